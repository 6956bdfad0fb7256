//! EXTENDED COPY (LID1) parameter lists and RECEIVE COPY RESULTS data (SPC-4 §6.4, §6.20). Which units a list's descriptors mean is the
//! caller's to say.

use strongroom_block::Lba;

use crate::bytes::{be16, be32, be64};
use crate::sense::Sense;

/// Most CSCD (target) descriptors of one list.
pub const TARGETS_MAX: usize = 8;
/// Most segment descriptors of one list.
pub const SEGMENTS_MAX: usize = 64;
/// Most bytes of all descriptors of one list.
pub const DESCRIPTOR_BYTES_MAX: usize = TARGETS_MAX * TARGET_BYTES + SEGMENTS_MAX * SEGMENT_BYTES;
/// Most bytes of a parameter list.
pub const LIST_BYTES_MAX: u32 = (HEADER_BYTES + DESCRIPTOR_BYTES_MAX) as u32;

const HEADER_BYTES: usize = 16;
const TARGET_BYTES: usize = 32;
const SEGMENT_BYTES: usize = 28;
/// Identification descriptor.
const TARGET_BY_DESIGNATOR: u8 = 0xe4;
/// Block device to block device.
const BLOCK_TO_BLOCK: u8 = 0x02;
/// LIST ID USAGE: the list has no identifier, and no results are kept.
const UNIDENTIFIED: u8 = 3;

/// What is to be copied. `P` names a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyList<P> {
    /// LIST IDENTIFIER; `None`: the result will not be requested.
    pub list_id: Option<u8>,
    /// The segments, in order.
    pub segments: Vec<Segment<P>>,
}

/// A run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<P> {
    /// How many blocks.
    pub blocks: u16,
    /// From this unit.
    pub source: P,
    /// From here.
    pub from: Lba,
    /// To this unit.
    pub destination: P,
    /// To here.
    pub to: Lba,
}

impl<P: Clone> CopyList<P> {
    /// Reads a parameter list. `find` knows units by a designator's type and value and by their block length in bytes; a unit that
    /// it does not know is an error where a segment needs it.
    ///
    /// # Errors
    /// The sense that names what cannot be done.
    pub fn parse(list: &[u8], find: impl Fn(u8, &[u8], u32) -> Option<P>) -> Result<CopyList<P>, Sense> {
        let too_short = Sense::PARAMETER_LIST_LENGTH;
        let targets_len = usize::from(be16(list, 2).ok_or(too_short)?);
        let segments_len = be32(list, 8).ok_or(too_short)? as usize;
        let inline_len = be32(list, 12).ok_or(too_short)?;
        if targets_len + segments_len > DESCRIPTOR_BYTES_MAX || inline_len != 0 {
            return Err(too_short);
        }
        let body = &list[HEADER_BYTES..];
        let targets = body.get(..targets_len).ok_or(too_short)?;
        let segments = body.get(targets_len..targets_len + segments_len).ok_or(too_short)?;
        if targets.len() / TARGET_BYTES > TARGETS_MAX {
            return Err(Sense::TOO_MANY_TARGETS);
        }
        if segments.len() / SEGMENT_BYTES > SEGMENTS_MAX {
            return Err(Sense::TOO_MANY_SEGMENTS);
        }
        let units = targets_of(targets, find)?;
        let segments = segments_of(segments, HEADER_BYTES + targets_len, &units)?;
        Ok(CopyList { list_id: (list[1] >> 3 & 3 != UNIDENTIFIED).then_some(list[0]), segments })
    }
}

/// The units that the target descriptors mean; `None` for one that is not known.
fn targets_of<P>(targets: &[u8], find: impl Fn(u8, &[u8], u32) -> Option<P>) -> Result<Vec<Option<P>>, Sense> {
    let mut units = Vec::new();
    for (index, target) in targets.chunks(TARGET_BYTES).enumerate() {
        let at = (HEADER_BYTES + index * TARGET_BYTES) as u16;
        if target[0] != TARGET_BY_DESIGNATOR {
            return Err(Sense::UNSUPPORTED_TARGET_DESCRIPTOR.in_parameters(at));
        }
        // A torn descriptor, or one of something else than a block device.
        if target.len() < TARGET_BYTES || target[1] & 0x1f != 0 {
            return Err(Sense::INVALID_FIELD_IN_PARAMETERS.in_parameters(at + 1));
        }
        let designator = target.get(8..8 + usize::from(target[7]));
        let designator = designator.ok_or(Sense::INVALID_FIELD_IN_PARAMETERS.in_parameters(at + 7))?;
        let said = u32::from_be_bytes([0, target[29], target[30], target[31]]);
        units.push(find(target[5] & 0x3f, designator, said));
    }
    Ok(units)
}

fn segments_of<P: Clone>(segments: &[u8], start: usize, units: &[Option<P>]) -> Result<Vec<Segment<P>>, Sense> {
    let mut found = Vec::new();
    let mut at = start;
    let mut rest = segments;
    while let Some(&kind) = rest.first() {
        if kind != BLOCK_TO_BLOCK {
            return Err(Sense::UNSUPPORTED_SEGMENT_DESCRIPTOR.in_parameters(at as u16));
        }
        let bad = Sense::INVALID_FIELD_IN_PARAMETERS.in_parameters(at as u16);
        let segment = rest.get(..SEGMENT_BYTES).ok_or(bad)?;
        let field = |at| be16(segment, at).ok_or(bad);
        if usize::from(field(2)?) != SEGMENT_BYTES - 4 {
            return Err(bad);
        }
        let unit =
            |index: u16| units.get(usize::from(index)).cloned().flatten().ok_or(Sense::COPY_TARGET_NOT_REACHABLE);
        let (source, destination) = (unit(field(4)?)?, unit(field(6)?)?);
        let lba = |at| be64(segment, at).map(Lba).ok_or(bad);
        found.push(Segment { blocks: field(10)?, source, from: lba(12)?, destination, to: lba(20)? });
        rest = &rest[SEGMENT_BYTES..];
        at += SEGMENT_BYTES;
    }
    Ok(found)
}

/// What came of a copy, for COPY STATUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyStatus {
    /// Its list identifier.
    pub list_id: u8,
    /// Whether it did everything.
    pub complete: bool,
    /// Segments done.
    pub segments: u16,
    /// Bytes moved.
    pub bytes: u64,
}

impl CopyStatus {
    /// COPY STATUS (LID1) data.
    pub fn encode(&self) -> Vec<u8> {
        let [high, low] = self.segments.to_be_bytes();
        let kib = u32::try_from(self.bytes / 1024).unwrap_or(u32::MAX);
        let status = if self.complete { 1 } else { 2 };
        // Transfer count units 1: KiB.
        [[0, 0, 0, 8, status, high, low, 1].as_slice(), &kib.to_be_bytes()].concat()
    }
}

/// OPERATING PARAMETERS data. `segment_bytes_max`: most bytes of one segment; `copies_max`: most copies at once.
pub fn operating_parameters(segment_bytes_max: u32, copies_max: u8, block_shift: u8) -> Vec<u8> {
    let kinds = [BLOCK_TO_BLOCK, TARGET_BY_DESIGNATOR];
    let mut data = vec![0; 44];
    data[3] = (data.len() + kinds.len() - 4) as u8;
    data[4] = 0x01; // SNLID: a list may come without an identifier.
    data[8..10].copy_from_slice(&(TARGETS_MAX as u16).to_be_bytes());
    data[10..12].copy_from_slice(&(SEGMENTS_MAX as u16).to_be_bytes());
    data[12..16].copy_from_slice(&(DESCRIPTOR_BYTES_MAX as u32).to_be_bytes());
    data[16..20].copy_from_slice(&segment_bytes_max.to_be_bytes());
    data[34..36].copy_from_slice(&u16::from(copies_max).to_be_bytes());
    data[36] = copies_max;
    data[37] = block_shift;
    data[43] = kinds.len() as u8;
    data.extend_from_slice(&kinds);
    data
}

/// Builds a parameter list, for initiators: units known by their NAA designators, and segments, which name units by index.
///
/// # Panics
/// If there are more than [`TARGETS_MAX`] units or [`SEGMENTS_MAX`] segments.
pub fn encode(units: &[[u8; 8]], block_bytes: u32, segments: &[Segment<u16>]) -> Vec<u8> {
    assert!(segments.len() <= SEGMENTS_MAX && units.len() <= TARGETS_MAX, "split the segments over several lists");
    let mut list = vec![0; HEADER_BYTES];
    list[1] = UNIDENTIFIED << 3;
    list[2..4].copy_from_slice(&((units.len() * TARGET_BYTES) as u16).to_be_bytes());
    list[8..12].copy_from_slice(&((segments.len() * SEGMENT_BYTES) as u32).to_be_bytes());
    for naa in units {
        let mut target = [0; TARGET_BYTES];
        target[..8].copy_from_slice(&[TARGET_BY_DESIGNATOR, 0, 0, 0, 1, 3, 0, 8]);
        target[8..16].copy_from_slice(naa);
        target[28..32].copy_from_slice(&block_bytes.to_be_bytes());
        list.extend_from_slice(&target);
    }
    for segment in segments {
        let mut bytes = [0; SEGMENT_BYTES];
        bytes[0] = BLOCK_TO_BLOCK;
        bytes[3] = (SEGMENT_BYTES - 4) as u8;
        bytes[4..6].copy_from_slice(&segment.source.to_be_bytes());
        bytes[6..8].copy_from_slice(&segment.destination.to_be_bytes());
        bytes[10..12].copy_from_slice(&segment.blocks.to_be_bytes());
        bytes[12..20].copy_from_slice(&segment.from.0.to_be_bytes());
        bytes[20..28].copy_from_slice(&segment.to.0.to_be_bytes());
        list.extend_from_slice(&bytes);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAA: [u8; 8] = [0x31, 2, 3, 4, 5, 6, 7, 8];
    const OTHER: [u8; 8] = [0x3f, 2, 3, 4, 5, 6, 7, 8];
    const SEGMENT: Segment<u16> =
        Segment { blocks: 9, source: 0, from: Lba(1), destination: 0, to: Lba(0x1_0000_0000) };

    fn parse(list: &[u8]) -> Result<CopyList<u16>, Sense> {
        CopyList::parse(list, |kind, value, block_bytes| match (kind, block_bytes) {
            (3, 4096) if value == NAA => Some(0),
            (3, 4096) if value == OTHER => Some(1),
            _ => None,
        })
    }

    #[test]
    fn segments_name_their_units() {
        let there = Segment { destination: 1, ..SEGMENT };
        let list = encode(&[NAA, OTHER], 4096, &[there]);
        assert_eq!(parse(&list).unwrap().segments, [there]);
        // An unknown one is no error until it is needed.
        let list = encode(&[NAA, [9; 8]], 4096, &[SEGMENT]);
        assert!(parse(&list).is_ok());
        let list = encode(&[NAA, [9; 8]], 4096, &[there]);
        assert!(parse(&list).is_err_and(|sense| sense.is(&Sense::COPY_TARGET_NOT_REACHABLE)));
    }

    #[test]
    fn parses_as_encoded() {
        let list = encode(&[NAA], 4096, &[SEGMENT, SEGMENT]);
        assert_eq!(parse(&list), Ok(CopyList { list_id: None, segments: vec![SEGMENT; 2] }));
        let mut identified = list.clone();
        identified[..2].copy_from_slice(&[7, 0]);
        assert_eq!(parse(&identified).unwrap().list_id, Some(7));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let list = encode(&[NAA], 4096, &[SEGMENT]);
        for len in 0..list.len() {
            assert!(parse(&list[..len]).is_err_and(|sense| sense.is(&Sense::PARAMETER_LIST_LENGTH)), "{len}");
        }
        let with = |at: usize, byte: u8| {
            let mut changed = list.clone();
            changed[at] = byte;
            parse(&changed).unwrap_err()
        };
        assert!(with(16, 0xe0).is(&Sense::UNSUPPORTED_TARGET_DESCRIPTOR));
        assert!(with(24, 0x32).is(&Sense::COPY_TARGET_NOT_REACHABLE));
        assert!(
            with(30, 0x20).is(&Sense::INVALID_FIELD_IN_PARAMETERS)
                || with(30, 0x20).is(&Sense::COPY_TARGET_NOT_REACHABLE)
        );
        assert!(with(48, 0x03).is(&Sense::UNSUPPORTED_SEGMENT_DESCRIPTOR));
        assert!(with(55, 1).is(&Sense::COPY_TARGET_NOT_REACHABLE));
    }

    #[test]
    fn golden_status_and_parameters() {
        let status = CopyStatus { list_id: 1, complete: true, segments: 1, bytes: 8 << 20 };
        assert_eq!(status.encode(), [0, 0, 0, 8, 1, 0, 1, 1, 0, 0, 0x20, 0]);
        let parameters = operating_parameters(1 << 20, 16, 12);
        assert_eq!((parameters.len(), parameters[3], parameters[43]), (46, 42, 2));
        assert_eq!(parameters[44..], [0x02, 0xe4]);
    }
}
