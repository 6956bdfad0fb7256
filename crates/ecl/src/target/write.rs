//! The data of a write on its way in: pieces in any order, each once.

use std::collections::BTreeMap;

use strongroom_scsi::transport::SealRecords;
use strongroom_scsi::transport::target::WriteSegment;

use crate::connection::{Fault, Packet};
use crate::error::PeerMisbehaved;
use crate::parity::Parity;
use crate::parity::receiver::{Groups, Member};
use crate::quantum::Joiner;

/// See the module.
#[derive(Debug)]
pub(super) struct WriteAssembly {
    pieces: BTreeMap<u32, WriteSegment>,
    joiner: Joiner,
    groups: Option<Groups>,
    received_bytes: u32,
}

impl WriteAssembly {
    pub(super) fn new(parity: Option<Parity>) -> WriteAssembly {
        let (pieces, joiner) = (BTreeMap::new(), Joiner::default());
        WriteAssembly { pieces, joiner, groups: Groups::new(parity, 0), received_bytes: 0 }
    }

    /// Takes a quantum, or a segment, that was checked. `entry`: its seal record. Returns how many quanta were restored with it.
    pub(super) fn take_quantum(
        &mut self,
        packet: &Packet,
        entry: bytes::Bytes,
        quantum_bytes: u32,
        limit_bytes: u32,
    ) -> Result<u64, PeerMisbehaved> {
        let misplaced = |why| PeerMisbehaved::Data { tag: packet.sink.0, why };
        let quantum = packet.header.quantum;
        let offset = offset_of(quantum, quantum_bytes, limit_bytes).ok_or(misplaced(BEYOND))?;
        if self.pieces.contains_key(&offset) {
            return Ok(0);
        }
        let Some(data) = self.joiner.add(packet, quantum_bytes) else { return Ok(0) };
        let member = Member { quantum, entry, data };
        let restored = self.groups.as_mut().map(|groups| groups.add(&member)).unwrap_or_default();
        self.insert(member, quantum_bytes, limit_bytes).map_err(misplaced)?;
        self.restore(restored, quantum_bytes, limit_bytes).map_err(misplaced)
    }

    /// Takes parity. Returns how many quanta were restored with it.
    pub(super) fn take_parity(&mut self, packet: &Packet, quantum_bytes: u32, limit_bytes: u32) -> Result<u64, Fault> {
        let misplaced = |why| PeerMisbehaved::Data { tag: packet.sink.0, why };
        let Some(groups) = &mut self.groups else { return Err(misplaced("parity that was not settled").into()) };
        if offset_of(packet.header.quantum, quantum_bytes, limit_bytes).is_none() {
            return Err(misplaced(BEYOND).into());
        }
        let restored = groups.add_parity(packet, quantum_bytes)?;
        Ok(self.restore(restored, quantum_bytes, limit_bytes).map_err(misplaced)?)
    }

    fn restore(&mut self, restored: Vec<Member>, quantum_bytes: u32, limit_bytes: u32) -> Result<u64, &'static str> {
        let count = restored.len() as u64;
        for member in restored {
            self.insert(member, quantum_bytes, limit_bytes)?;
        }
        Ok(count)
    }

    fn insert(&mut self, member: Member, quantum_bytes: u32, limit_bytes: u32) -> Result<(), &'static str> {
        let Member { quantum, entry, data } = member;
        let offset = offset_of(quantum, quantum_bytes, limit_bytes).ok_or(BEYOND)?;
        let records = SealRecords::new(entry.len(), entry).ok_or("a quantum without its record")?;
        self.received_bytes += quantum_bytes;
        self.pieces.insert(offset, WriteSegment { offset, data, records: Some(records) });
        Ok(())
    }

    /// Takes bytes that are not sealed.
    pub(super) fn take_plain(&mut self, packet: &Packet, limit_bytes: u32) -> Result<(), PeerMisbehaved> {
        let misplaced = |why| PeerMisbehaved::Data { tag: packet.sink.0, why };
        let (offset, len) = (packet.header.quantum, packet.body.len() as u32);
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= limit_bytes);
        if len == 0 || !is_inside {
            return Err(misplaced("no data, or beyond the end of the transfer"));
        }
        if !self.pieces.contains_key(&offset) {
            self.received_bytes += len;
            let data = packet.body.clone().into();
            self.pieces.insert(offset, WriteSegment { offset, data, records: None });
        }
        Ok(())
    }

    /// Whether all of a transfer of `expected_bytes` is there.
    pub(super) fn is_whole(&self, expected_bytes: u32) -> bool {
        self.received_bytes == expected_bytes
    }

    /// Where the data ends that is there.
    pub(super) fn end_bytes(&self) -> u64 {
        let last = self.pieces.last_key_value();
        last.map_or(0, |(offset, piece)| u64::from(*offset) + piece.data.len() as u64)
    }

    /// Memory that it takes, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let parity = self.groups.as_ref().map_or(0, Groups::memory_bytes);
        u64::from(self.received_bytes) + self.joiner.memory_bytes() + parity
    }

    /// The data in order. `is_sealed`: as the command says.
    ///
    /// # Errors
    /// The rule that it breaks: pieces of the other kind, or such as leave gaps.
    pub(super) fn finish(self, is_sealed: bool) -> Result<Vec<WriteSegment>, &'static str> {
        let mut end = 0;
        for piece in self.pieces.values() {
            if piece.offset != end {
                return Err("pieces that overlap");
            }
            if piece.records.is_some() != is_sealed {
                return Err("sealed data for a plain write, or plain for a sealed one");
            }
            end += piece.data.len() as u32;
        }
        Ok(self.pieces.into_values().collect())
    }
}

const BEYOND: &str = "beyond the end of the transfer";

/// Where a quantum lies in its transfer; `None` if its end is beyond `limit_bytes`.
fn offset_of(quantum: u32, quantum_bytes: u32, limit_bytes: u32) -> Option<u32> {
    let offset = quantum.checked_mul(quantum_bytes)?;
    offset.checked_add(quantum_bytes).filter(|end| *end <= limit_bytes).map(|_| offset)
}
