//! Quanta as they arrive: whole, or in segments that are joined. Nothing is taken before its checksum was compared.

use std::collections::BTreeMap;

use strongroom_block::{Buffer, BufferMut, SealRecord, keyless_checksum};

use crate::connection::{Fault, Packet};
use crate::error::{Dropped, PeerMisbehaved};
use crate::header::Segment;
use crate::planted::{Planted, PlantedFault};

/// What segments are counted in.
const UNIT_BYTES: usize = 512;

/// The keyless checksum in an encoded seal record (`docs/sealed-block.md`); `None` if it is too short to be one.
pub(crate) fn record_checksum(record: &[u8]) -> Option<u64> {
    let is_long_enough = record.len() >= SealRecord::BASE_BYTES;
    is_long_enough.then(|| u64::from_be_bytes(record[32..40].try_into().expect("8 bytes")))
}

/// Checks the payload of a packet: its length, and the checksum of the quantum (in `record`) or of the segment (in the header).
pub(crate) fn check(packet: &Packet, record: &[u8], quantum_bytes: u32, planted: Planted) -> Result<(), Fault> {
    let segment = packet.header.segment;
    if usize::from(segment.count) > quantum_bytes as usize / UNIT_BYTES {
        return Err(PeerMisbehaved::Body("a segment that no quantum of this association has").into());
    }
    // Nothing else protects the payload's length.
    if packet.payload.len() != segment.range(quantum_bytes as usize).len() {
        return Err(Dropped::Checksum.into());
    }
    let expected = record_checksum(record).ok_or(PeerMisbehaved::Body("a quantum without a seal record"))?;
    let expected = match segment.count {
        1 => expected,
        _ => segment_checksum(&packet.header.specific),
    };
    if keyless_checksum(&packet.payload) != expected && !planted.has(PlantedFault::AcknowledgedUnchecked) {
        return Err(Dropped::Checksum.into());
    }
    Ok(())
}

/// The checksum of a segment, as a header has it.
fn segment_checksum(specific: &[u8; 16]) -> u64 {
    u64::from_be_bytes(specific[..8].try_into().expect("8 bytes"))
}

/// The same for a header in the making; zeros for a whole quantum, whose checksum is in its record.
pub(crate) fn specific_of(segment: Segment, payload: &[u8]) -> [u8; 16] {
    let mut specific = [0; 16];
    if segment.count > 1 {
        specific[..8].copy_from_slice(&keyless_checksum(payload).to_be_bytes());
    }
    specific
}

/// Quanta of one transfer whose segments are not all there.
#[derive(Debug, Default)]
pub(crate) struct Joiner(BTreeMap<u32, PartialQuantum>);

#[derive(Debug)]
struct PartialQuantum {
    buffer: BufferMut,
    /// A bit for each unit that is there.
    units: u8,
}

impl Joiner {
    /// Takes the payload of a packet that [`check`] has checked; returns the quantum once it is whole. A whole one is passed on as it is.
    pub(crate) fn add(&mut self, packet: &Packet, quantum_bytes: u32) -> Option<Buffer> {
        let (quantum, segment) = (packet.header.quantum, packet.header.segment);
        if segment.count == 1 {
            self.0.remove(&quantum);
            return Some(packet.payload.clone());
        }
        let quantum_bytes = quantum_bytes as usize;
        let partial = self
            .0
            .entry(quantum)
            .or_insert_with(|| PartialQuantum { buffer: BufferMut::to_fill(quantum_bytes), units: 0 });
        let range = segment.range(quantum_bytes);
        for unit in range.start / UNIT_BYTES..range.end / UNIT_BYTES {
            partial.units |= 1 << unit;
        }
        partial.buffer[range].copy_from_slice(&packet.payload);
        let is_whole = partial.units.count_ones() as usize == quantum_bytes / UNIT_BYTES;
        is_whole.then(|| self.0.remove(&quantum).expect("just added to").buffer.freeze())
    }

    /// Memory that it takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.0.values().map(|partial| partial.buffer.len() as u64).sum()
    }
}

/// The segments into which a quantum, or a segment of one, is cut where a packet carries `segment_bytes` of it.
pub(crate) fn cut(whole: Segment, quantum_bytes: u32, segment_bytes: usize) -> impl Iterator<Item = Segment> {
    let count = (quantum_bytes as usize / segment_bytes).max(usize::from(whole.count)) as u8;
    let parts = count / whole.count;
    (0..parts).map(move |part| Segment { index: whole.index * parts + part, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_cut_further_and_never_joined_for_sending() {
        let cuts = |index, count, segment_bytes| -> Vec<(u8, u8)> {
            let segments = cut(Segment { index, count }, 4096, segment_bytes);
            segments.map(|segment| (segment.index, segment.count)).collect()
        };
        assert_eq!(cuts(0, 1, 4096), [(0, 1)]);
        assert_eq!(cuts(0, 1, 2048), [(0, 2), (1, 2)]);
        assert_eq!(cuts(1, 2, 1024), [(2, 4), (3, 4)]);
        assert_eq!(cuts(1, 4, 4096), [(1, 4)]);
        assert_eq!(cut(Segment::WHOLE, 512, 4096).count(), 1);
    }
}
