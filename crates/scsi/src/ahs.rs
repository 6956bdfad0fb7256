//! Strongroom's additional header segments: what rides beside a PDU inside a channel (`docs/vendor-cdbs.md`).
//!
//! On the wire each is AHSLength (u16, the bytes after the type byte, padding not counted), AHSType (u8), content, padded with
//! zeros to a multiple of four bytes. Here they are read and written; where they are legal is the session's business.

use strongroom_block::{HoleRecord, Lba, RecordError, SealRecord, Stamp, StoreSequence};

use crate::bytes::{be16, be32, be64};

/// SEAL RECORDS: one entry per block of the data segment.
pub const SEAL_RECORDS: u8 = 0x30;
/// HOLE: this Data-In stands for absent blocks.
pub const HOLE: u8 = 0x31;
/// EXPECTED STAMP: the condition of CONDITIONAL WRITE.
pub const EXPECTED_STAMP: u8 = 0x32;
/// OLDER THAN: the parameter of READ VERSION.
pub const OLDER_THAN: u8 = 0x33;

/// Bytes of the store sequence in front of each record towards the initiator.
pub const SEQUENCE_BYTES: usize = 8;

/// An additional header segment that is not what its type says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AhsError {
    /// The length field points past the end, or the content is too short for its type.
    #[error("an additional header segment is cut short")]
    Truncated,
    /// The entry length does not divide the content, or is of no known record.
    #[error("seal record entries of {entry_bytes} bytes in {content_bytes} bytes")]
    EntryLength {
        /// The entry length field.
        entry_bytes: usize,
        /// How much there is.
        content_bytes: usize,
    },
    /// A record in it does not decode.
    #[error("entry {index}: {source}")]
    Record {
        /// Which entry.
        index: usize,
        /// Why.
        source: RecordError,
    },
}

/// One additional header segment, found by [`walk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahs<'a> {
    /// AHSType.
    pub kind: u8,
    /// What follows the type byte (the reserved or entry-length byte first), without padding.
    pub content: &'a [u8],
}

/// Walks the segments of a PDU, in order; ends after the first malformed one.
pub fn walk(mut bytes: &[u8]) -> impl Iterator<Item = Result<Ahs<'_>, AhsError>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let parsed = (|| {
            let content_bytes = usize::from(be16(bytes, 0)?);
            let kind = *bytes.get(2)?;
            let content = bytes.get(3..3 + content_bytes)?;
            Some((Ahs { kind, content }, (3 + content_bytes).next_multiple_of(4)))
        })();
        match parsed {
            Some((ahs, whole)) => {
                bytes = bytes.get(whole..).unwrap_or(&[]);
                Some(Ok(ahs))
            }
            None => {
                bytes = &[];
                Some(Err(AhsError::Truncated))
            }
        }
    })
}

/// The content of the first segment of type `kind`, if there is one in front of anything malformed.
pub fn find(bytes: &[u8], kind: u8) -> Option<&[u8]> {
    walk(bytes).map_while(Result::ok).find(|ahs| ahs.kind == kind).map(|ahs| ahs.content)
}

/// Appends one segment, padded. `content` starts with the reserved or entry-length byte.
///
/// # Panics
/// If `content` has more than 65535 bytes: callers cut PDUs long before.
pub fn push(out: &mut Vec<u8>, kind: u8, content: &[u8]) {
    let len = u16::try_from(content.len()).expect("an AHS holds at most 65535 bytes");
    out.extend_from_slice(&len.to_be_bytes());
    out.push(kind);
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// The SEAL RECORDS segment of a write: records as the channel carries them, in the order of the blocks.
pub fn seal_records_towards_target<'a>(records: impl IntoIterator<Item = &'a SealRecord>) -> Vec<u8> {
    let mut content = vec![0];
    for record in records {
        content[0] = record.as_bytes().len() as u8;
        content.extend_from_slice(record.as_bytes());
    }
    segment(SEAL_RECORDS, &content)
}

/// The SEAL RECORDS segment of a read: each record behind the store sequence of its version.
pub fn seal_records_towards_initiator<'a>(
    entries: impl IntoIterator<Item = (StoreSequence, &'a SealRecord)>,
) -> Vec<u8> {
    let mut content = vec![0];
    for (sequence, record) in entries {
        content[0] = (SEQUENCE_BYTES + record.as_bytes().len()) as u8;
        content.extend_from_slice(&sequence.0.to_be_bytes());
        content.extend_from_slice(record.as_bytes());
    }
    segment(SEAL_RECORDS, &content)
}

/// Reads a write's SEAL RECORDS content.
///
/// # Errors
/// [`AhsError`].
pub fn records_towards_target(content: &[u8]) -> Result<Vec<SealRecord>, AhsError> {
    entries(content)?
        .enumerate()
        .map(|(index, entry)| SealRecord::decode(entry).map_err(|source| AhsError::Record { index, source }))
        .collect()
}

/// Reads a read's SEAL RECORDS content.
///
/// # Errors
/// [`AhsError`].
pub fn records_towards_initiator(content: &[u8]) -> Result<Vec<(StoreSequence, SealRecord)>, AhsError> {
    entries(content)?
        .enumerate()
        .map(|(index, entry)| {
            let sequence = be64(entry, 0).ok_or(AhsError::Truncated)?;
            let record =
                SealRecord::decode(&entry[SEQUENCE_BYTES..]).map_err(|source| AhsError::Record { index, source })?;
            Ok((StoreSequence(sequence), record))
        })
        .collect()
}

fn entries(content: &[u8]) -> Result<std::slice::ChunksExact<'_, u8>, AhsError> {
    let (&entry_bytes, entries) = content.split_first().ok_or(AhsError::Truncated)?;
    let entry_bytes = usize::from(entry_bytes);
    if entry_bytes < SealRecord::BASE_BYTES || entries.is_empty() || entries.len() % entry_bytes != 0 {
        return Err(AhsError::EntryLength { entry_bytes, content_bytes: entries.len() });
    }
    Ok(entries.chunks_exact(entry_bytes))
}

/// A HOLE segment: the blocks that a Data-In without data stands for are absent, and here is the seal of their absence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoleAhs {
    /// How many blocks of the PDU's range it stands for.
    pub covered_blocks: u32,
    /// When the hole was made.
    pub sequence: StoreSequence,
    /// The sealed range; covers at least the blocks that the PDU stands for.
    pub hole: HoleRecord,
}

impl HoleAhs {
    /// The whole segment.
    pub fn encode(&self) -> Vec<u8> {
        let mut content = vec![0];
        content.extend_from_slice(&self.covered_blocks.to_be_bytes());
        content.extend_from_slice(&self.sequence.0.to_be_bytes());
        self.hole.encode(&mut content);
        segment(HOLE, &content)
    }

    /// Reads its content.
    ///
    /// # Errors
    /// [`AhsError`].
    pub fn decode(content: &[u8]) -> Result<HoleAhs, AhsError> {
        let covered_blocks = be32(content, 1).ok_or(AhsError::Truncated)?;
        let sequence = StoreSequence(be64(content, 5).ok_or(AhsError::Truncated)?);
        let hole = HoleRecord::decode(&content[13..]).map_err(|source| AhsError::Record { index: 0, source })?;
        Ok(HoleAhs { covered_blocks, sequence, hole })
    }

    /// Whether the hole really covers what the PDU stands for, from `lba` on.
    pub fn covers_from(&self, lba: Lba) -> bool {
        self.covered_blocks > 0
            && self.hole.covers(lba)
            && lba.checked_add(u64::from(self.covered_blocks) - 1).is_some_and(|last| self.hole.covers(last))
    }
}

/// The EXPECTED STAMP segment: `None` says that the block must be a hole now (all zeros on the wire).
pub fn expected_stamp(stamp: Option<Stamp>) -> Vec<u8> {
    let mut content = vec![0];
    content.extend_from_slice(&stamp.map_or([0; Stamp::BYTES], Stamp::to_bytes));
    segment(EXPECTED_STAMP, &content)
}

/// Reads an EXPECTED STAMP's content.
///
/// # Errors
/// [`AhsError::Truncated`].
pub fn decode_expected_stamp(content: &[u8]) -> Result<Option<Stamp>, AhsError> {
    let bytes: [u8; Stamp::BYTES] = crate::bytes::array(content, 1).ok_or(AhsError::Truncated)?;
    Ok((bytes != [0; Stamp::BYTES]).then(|| Stamp::from_bytes(bytes)))
}

/// The OLDER THAN segment: `None` asks for the newest version (0 on the wire).
pub fn older_than(sequence: Option<StoreSequence>) -> Vec<u8> {
    let mut content = vec![0];
    content.extend_from_slice(&sequence.map_or(0, |sequence| sequence.0).to_be_bytes());
    segment(OLDER_THAN, &content)
}

/// Reads an OLDER THAN's content.
///
/// # Errors
/// [`AhsError::Truncated`].
pub fn decode_older_than(content: &[u8]) -> Result<Option<StoreSequence>, AhsError> {
    let sequence = be64(content, 1).ok_or(AhsError::Truncated)?;
    Ok((sequence != 0).then_some(StoreSequence(sequence)))
}

fn segment(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity((3 + content.len()).next_multiple_of(4));
    push(&mut out, kind, content);
    out
}

#[cfg(test)]
mod tests;
