//! What a receiver keeps of each group until it is whole, and what it restores with it.

use std::collections::BTreeMap;

use bytes::Bytes;
use strongroom_block::{Buffer, keyless_checksum};

use super::Parity;
use super::field::{Shard, add, add_scaled, inverse, power, scale};
use crate::connection::{Fault, Packet};
use crate::error::{Dropped, PeerMisbehaved};
use crate::quantum::record_checksum;

/// A quantum as it arrived, or as it was restored.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) quantum: u32,
    /// What stood in front of it.
    pub(crate) entry: Bytes,
    pub(crate) data: Buffer,
}

/// The groups of one transfer on their way in.
#[derive(Debug)]
pub(crate) struct Groups {
    quanta: u32,
    /// Where in what stands in front of a quantum its record begins.
    record_at: usize,
    open: BTreeMap<u32, Group>,
}

#[derive(Debug, Default)]
struct Group {
    /// By their number in the group.
    members: BTreeMap<u32, (Bytes, Buffer)>,
    /// P and Q.
    parity: [Option<(Bytes, Buffer)>; 2],
    /// Which there are, once a packet of parity has said it.
    expected: Option<u32>,
    /// Every member is there.
    is_whole: bool,
}

impl Groups {
    /// `None` where no parity was settled. `record_at`: where in what stands in front of a quantum its record begins, in bytes.
    pub(crate) fn new(parity: Option<Parity>, record_at: usize) -> Option<Groups> {
        parity.map(|parity| Groups { quanta: parity.quanta.into(), record_at, open: BTreeMap::new() })
    }

    /// A quantum is there. Those that can be restored with it.
    pub(crate) fn add(&mut self, member: &Member) -> Vec<Member> {
        let at = member.quantum % self.quanta;
        let first = member.quantum - at;
        let group = self.open.entry(first).or_default();
        if group.is_whole {
            return Vec::new();
        }
        group.members.insert(at, (member.entry.clone(), member.data.clone()));
        let restored = group.restore(first, self.quanta);
        self.intact(restored)
    }

    /// A packet of parity is there. Those that can be restored with it.
    pub(crate) fn add_parity(&mut self, packet: &Packet, quantum_bytes: u32) -> Result<Vec<Member>, Fault> {
        let header = &packet.header;
        let misplaced = |why| PeerMisbehaved::Data { tag: packet.sink.0, why };
        let members = u32::from_be_bytes(header.specific[..4].try_into().expect("4 bytes"));
        let index = usize::from(header.specific[4]);
        let is_possible = header.quantum.is_multiple_of(self.quanta)
            && index < 2
            && (self.quanta == 32 || members >> self.quanta == 0)
            && header.quantum.checked_add(self.quanta).is_some();
        if !is_possible {
            return Err(misplaced("parity of a group that there is not").into());
        }
        if packet.payload.len() != quantum_bytes as usize
            || keyless_checksum(&packet.payload).to_be_bytes() != header.specific[8..]
        {
            return Err(Dropped::Checksum.into());
        }
        let group = self.open.entry(header.quantum).or_default();
        if group.is_whole {
            return Ok(Vec::new());
        }
        if group.expected.is_some_and(|expected| expected != members) {
            return Err(misplaced("parity of one group over different quanta").into());
        }
        group.expected = Some(members);
        group.parity[index] = Some((packet.body.clone(), packet.payload.clone()));
        let restored = group.restore(header.quantum, self.quanta);
        Ok(self.intact(restored))
    }

    /// Those that are what their records say.
    fn intact(&self, mut restored: Vec<Member>) -> Vec<Member> {
        restored.retain(|member| {
            let record = member.entry.get(self.record_at..).and_then(record_checksum);
            record == Some(keyless_checksum(&member.data))
        });
        restored
    }

    /// Memory that parity takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let parity = self.open.values().flat_map(|group| &group.parity).flatten();
        parity.map(|(_, data)| data.len() as u64).sum()
    }
}

impl Group {
    /// Restores what is missing, if there is enough to do it with.
    fn restore(&mut self, first: u32, quanta: u32) -> Vec<Member> {
        if self.members.len() == quanta as usize {
            self.finish();
            return Vec::new();
        }
        let Some(expected) = self.expected else { return Vec::new() };
        let missing: Vec<u32> =
            (0..quanta).filter(|at| expected >> at & 1 == 1 && !self.members.contains_key(at)).collect();
        let restored = match (missing[..].as_ref(), &self.parity) {
            ([], _) => Vec::new(),
            (&[at], [Some(p), _]) => vec![(at, self.difference(p, |_| 1))],
            (&[at], [None, Some(q)]) => {
                let mut shard = self.difference(q, power);
                scale(&mut shard, inverse(power(at)));
                vec![(at, shard)]
            }
            (&[low, high], [Some(p), Some(q)]) => self.two(low, high, (p, q)),
            _ => return Vec::new(),
        };
        self.finish();
        let members = restored.into_iter().map(|(at, shard)| {
            let [entry, data] = shard;
            let data = Buffer::copy_from(&data);
            Member { quantum: first + at, entry: strongroom_block::wiped(entry), data }
        });
        members.collect()
    }

    /// The parity less what the members that are there give to it: entry and data. The checksum is linear, so it would not show a quantum too
    /// many: one that was sent in segments is no member.
    fn difference(&self, (entry, data): &(Bytes, Buffer), factor: impl Fn(u32) -> u8) -> Shard {
        let mut shard = [entry.to_vec(), data.to_vec()];
        let expected = self.expected.unwrap_or_default();
        for (at, (entry, data)) in self.members.iter().filter(|(at, _)| expected >> *at & 1 == 1) {
            let factor = factor(*at);
            for (sum, part) in shard.iter_mut().zip([&entry[..], &data[..]]) {
                add_scaled(sum, part, factor);
            }
        }
        shard
    }

    /// Two that are missing: P gives their sum, Q the sum of their multiples.
    fn two(&self, low: u32, high: u32, (p, q): (&(Bytes, Buffer), &(Bytes, Buffer))) -> Vec<(u32, Shard)> {
        let sum = self.difference(p, |_| 1);
        let mut first = self.difference(q, power);
        for (part, sum) in first.iter_mut().zip(&sum) {
            add_scaled(part, sum, power(high));
        }
        scale(&mut first, inverse(power(low) ^ power(high)));
        let mut second = sum;
        for (part, first) in second.iter_mut().zip(&first) {
            add(part, first);
        }
        vec![(low, first), (high, second)]
    }

    fn finish(&mut self) {
        *self = Group { is_whole: true, ..Group::default() };
    }
}
