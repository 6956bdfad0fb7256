//! What a sender owes: parity behind the quanta of each group.

use std::collections::VecDeque;

use bytes::Bytes;
use strongroom_block::{Buffer, BufferMut, keyless_checksum};

use super::Parity;
use super::field::{add, double};
use crate::connection::Outgoing;
use crate::header::{Header, Operation};
use crate::tag::SinkTag;

/// A packet of parity: which quanta it covers, and whether it is P (0) or Q (1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ParityContent {
    /// The first quantum of the group.
    pub(super) first: u32,
    /// A bit for each member, from the first on.
    members: u32,
    pub(super) index: u8,
}

impl ParityContent {
    /// The quanta that it covers, in order.
    pub(crate) fn quanta(self) -> impl DoubleEndedIterator<Item = u32> {
        (0..32).filter(move |at| self.members >> at & 1 == 1).map(move |at| self.first + at)
    }

    /// The packet, of the entry and the data of each member.
    pub(crate) fn packet(
        self,
        (tag, task): (SinkTag, u32),
        quantum_bytes: u32,
        member: impl Fn(u32) -> (Bytes, Buffer),
    ) -> Outgoing {
        let (mut entry, mut data) = (Vec::new(), BufferMut::zeroed(quantum_bytes as usize));
        let mut above = None;
        for quantum in self.quanta().rev() {
            let (its_entry, its_data) = member(quantum);
            entry.resize(its_entry.len(), 0);
            if self.index == 1 {
                let steps = above.map_or(0, |above| above - quantum);
                (0..steps).for_each(|_| [&mut entry[..], &mut data[..]].into_iter().for_each(double));
                above = Some(quantum);
            }
            add(&mut entry, &its_entry);
            add(&mut data, &its_data);
        }
        if let Some(lowest) = above {
            (0..lowest - self.first).for_each(|_| [&mut entry[..], &mut data[..]].into_iter().for_each(double));
        }
        let mut specific = [0; 16];
        specific[..4].copy_from_slice(&self.members.to_be_bytes());
        specific[4] = self.index;
        specific[8..].copy_from_slice(&keyless_checksum(&data).to_be_bytes());
        let header =
            Header { task, quantum: self.first, length: quantum_bytes, specific, ..Header::new(Operation::Parity) };
        Outgoing { header, sink: tag, body: entry, payload: data.freeze() }
    }
}

/// Which parity a sender still owes for the quanta of a transfer that it has sent.
#[derive(Debug, Default)]
pub(crate) struct ParityPlan {
    parity: Option<Parity>,
    /// The first quantum of the group that is being sent, and the members that were.
    group: Option<(u32, u32)>,
    pending: VecDeque<ParityContent>,
    /// The one that leaves: it is sent once.
    leaving: Option<ParityContent>,
}

impl ParityPlan {
    pub(crate) fn new(parity: Option<Parity>) -> ParityPlan {
        ParityPlan { parity, ..ParityPlan::default() }
    }

    /// A quantum is sent, whole, for the first time. They come in order.
    pub(crate) fn sent(&mut self, quantum: u32) {
        let Some(Parity { quanta, .. }) = self.parity else { return };
        let first = quantum - quantum % u32::from(quanta);
        if self.group.is_some_and(|(group, _)| group != first) {
            self.finish_group();
        }
        let (_, members) = self.group.get_or_insert((first, 0));
        *members |= 1 << (quantum - first);
        if quantum - first + 1 == u32::from(quanta) {
            self.finish_group();
        }
    }

    /// No member of the present group follows.
    pub(crate) fn finish_group(&mut self) {
        let (Some(Parity { parity, .. }), Some((first, members))) = (self.parity, self.group.take()) else { return };
        // One alone would be sent twice.
        if members.count_ones() > 1 {
            self.pending.extend((0..parity).map(|index| ParityContent { first, members, index }));
        }
    }

    /// The next packet that is owed.
    pub(crate) fn next(&mut self) -> Option<ParityContent> {
        self.leaving = self.pending.pop_front();
        self.leaving
    }

    /// Whether nothing is owed.
    pub(crate) fn is_done(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether a packet is the one that leaves.
    pub(crate) fn is_leaving(&self, content: ParityContent) -> bool {
        self.leaving == Some(content)
    }
}
