//! The data of a write on its way in: pieces in any order, each once.

use std::collections::BTreeMap;

use strongroom_scsi::transport::SealRecords;
use strongroom_scsi::transport::target::WriteSegment;

use crate::connection::Packet;
use crate::error::PeerMisbehaved;
use crate::quantum::Joiner;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct WriteAssembly {
    pieces: BTreeMap<u32, WriteSegment>,
    joiner: Joiner,
    received_bytes: u32,
}

impl WriteAssembly {
    /// Takes a quantum, or a segment, that was checked. `entry`: its seal record.
    pub(super) fn take_quantum(
        &mut self,
        packet: &Packet,
        entry: bytes::Bytes,
        quantum_bytes: u32,
        limit_bytes: u32,
    ) -> Result<(), PeerMisbehaved> {
        let misplaced = |why| PeerMisbehaved::Data { tag: packet.sink.0, why };
        let offset = packet.header.quantum.checked_mul(quantum_bytes);
        let end = offset.and_then(|offset| offset.checked_add(quantum_bytes)).filter(|end| *end <= limit_bytes);
        let (Some(offset), Some(_)) = (offset, end) else { return Err(misplaced("beyond the end of the transfer")) };
        if self.pieces.contains_key(&offset) {
            return Ok(());
        }
        let Some(data) = self.joiner.add(packet, quantum_bytes) else { return Ok(()) };
        let records = SealRecords::new(entry.len(), entry).ok_or(misplaced("a quantum without its record"))?;
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
        u64::from(self.received_bytes) + self.joiner.memory_bytes()
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
