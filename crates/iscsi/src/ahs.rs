//! Additional header segments: the list codec of RFC 7143 §11.2.2 and the kinds that Strongroom adds inside a
//! channel. What a seal record says is `block`'s; who checks it, `seal`'s.
//!
//! Each segment: AHSLength (u16, big-endian: bytes behind the type byte, without padding), AHSType (u8), content, padding
//! to four bytes. The layout is the same on a plain stream and inside a channel; only the limit of all of them together
//! differs (1020 bytes; 65535 less the BHS).

use std::fmt;

use bytes::{Buf, Bytes};
use strongroom_block::{HoleRecord, Stamp, StoreSequence};
use strongroom_scsi::transport::{self, MalformedOperation, Operation, Parameters, StoredRecords, Written};

/// What an additional header segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AhsKind(pub u8);

impl AhsKind {
    /// The rest of a CDB longer than 16 bytes (RFC 7143 §11.2.2.3).
    pub const EXTENDED_CDB: AhsKind = AhsKind(1);
    /// Expected length of the read part of a command that reads and writes (RFC 7143 §11.2.2.4).
    pub const BIDIRECTIONAL_READ_LENGTH: AhsKind = AhsKind(2);
    /// Seal records of the blocks in this PDU's data segment, in order.
    pub const SEAL_RECORDS: AhsKind = AhsKind(0x30);
    /// Blocks of this Data-In that are absent, and the range record that says so.
    pub const HOLE: AhsKind = AhsKind(0x31);
    /// The stamp that a CONDITIONAL WRITE replaces.
    pub const EXPECTED_STAMP: AhsKind = AhsKind(0x32);
    /// The store sequence that READ VERSION must stay below.
    pub const OLDER_THAN: AhsKind = AhsKind(0x33);
    /// From which key epoch on there are keys: what SANITIZE, CRYPTOGRAPHIC ERASE goes by where a key server has them.
    pub const KEYS_DESTROYED: AhsKind = AhsKind(0x34);
    /// Which operation a write is, where its first seal record does not say so, and which place it had before a crash.
    pub const OPERATION: AhsKind = AhsKind(0x35);
    /// Where a write was stored. On SCSI Response.
    pub const WRITTEN: AhsKind = AhsKind(0x36);
}

/// Why additional header segments do not parse. Who sent them misbehaved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AhsError {
    /// Fewer than four bytes are left, or not a whole number of words.
    #[error("{0} bytes of additional header segments do not make whole words")]
    Ragged(usize),
    /// A segment without even the reserved byte behind its type.
    #[error("an additional header segment at byte {at} has AHSLength 0")]
    Empty {
        /// Where it starts.
        at: usize,
    },
    /// A segment that reaches past the end.
    #[error("an additional header segment at byte {at} claims {len_bytes} bytes and reaches past the end")]
    PastEnd {
        /// Where it starts.
        at: usize,
        /// Its AHSLength.
        len_bytes: usize,
    },
    /// The same kind twice.
    #[error("additional header segment 0x{0:02x} appears twice")]
    Twice(u8),
    /// The content of one of Strongroom's kinds is malformed.
    #[error("additional header segment 0x{kind:02x} has malformed content: {why}")]
    Content {
        /// Which kind.
        kind: u8,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// One segment. Its `Debug` does not show the content, which may hold a block key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ahs<'a> {
    /// Its AHSType.
    pub kind: AhsKind,
    /// What is behind the type byte, `AHSLength` bytes; at least one (reserved, or specific to the kind).
    pub content: &'a [u8],
}

impl fmt::Debug for Ahs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ahs(0x{:02x}, {} bytes)", self.kind.0, self.content.len())
    }
}

/// A list of segments whose `Debug` shows kinds and lengths, never content.
pub(crate) struct Redacted<'a>(pub(crate) &'a [u8]);

impl fmt::Debug for Redacted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(list(self.0).map_while(Result::ok)).finish()
    }
}

/// Walks segments back to back, each padded to four bytes. Ends after the first error.
pub fn list(bytes: &[u8]) -> List<'_> {
    List { bytes, at: 0 }
}

/// Checks that segments parse and that no kind appears twice.
///
/// # Errors
/// [`AhsError`], the first one met.
pub fn check(bytes: &[u8]) -> Result<(), AhsError> {
    let mut seen = [0u64; 4];
    for segment in list(bytes) {
        let kind = segment?.kind.0;
        let (word, bit) = (usize::from(kind >> 6), 1u64 << (kind & 63));
        if seen[word] & bit != 0 {
            return Err(AhsError::Twice(kind));
        }
        seen[word] |= bit;
    }
    Ok(())
}

/// The content of the first segment of `kind`, if the list has one and is well-formed up to there.
pub fn find(bytes: &[u8], kind: AhsKind) -> Option<&[u8]> {
    list(bytes).map_while(Result::ok).find(|segment| segment.kind == kind).map(|segment| segment.content)
}

/// The walk of [`list`].
#[derive(Clone)]
pub struct List<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> List<'a> {
    fn next_segment(&mut self) -> Result<Ahs<'a>, AhsError> {
        let at = self.at;
        let left = &self.bytes[at..];
        if left.len() < 4 || !left.len().is_multiple_of(4) {
            return Err(AhsError::Ragged(left.len()));
        }
        // Capped before use: AHSLength 0 was a heap overflow in a well-known target once.
        let len_bytes = usize::from(u16::from_be_bytes([left[0], left[1]]));
        if len_bytes == 0 {
            return Err(AhsError::Empty { at });
        }
        let content = left.get(3..3 + len_bytes).ok_or(AhsError::PastEnd { at, len_bytes })?;
        self.at = at + (3 + len_bytes).next_multiple_of(4);
        Ok(Ahs { kind: AhsKind(left[2]), content })
    }
}

impl<'a> Iterator for List<'a> {
    type Item = Result<Ahs<'a>, AhsError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let segment = self.next_segment();
        if segment.is_err() {
            self.at = self.bytes.len();
        }
        Some(segment)
    }
}

/// Appends one segment whose content is the concatenation of `parts`, with padding.
///
/// # Panics
/// If the content is empty or longer than 65535 bytes: callers cut their lists to fit a header.
pub fn push(out: &mut Vec<u8>, kind: AhsKind, parts: &[&[u8]]) {
    let len_bytes: usize = parts.iter().map(|part| part.len()).sum();
    let len = u16::try_from(len_bytes).expect("a segment fits a header, which is at most 65535 bytes");
    assert!(len > 0, "a segment has at least the byte behind its type");
    out.extend_from_slice(&len.to_be_bytes());
    out.push(kind.0);
    for part in parts {
        out.extend_from_slice(part);
    }
    out.resize(out.len() + padding(len_bytes), 0);
}

/// Bytes of padding behind a content of `len_bytes`.
const fn padding(len_bytes: usize) -> usize {
    (4 - (3 + len_bytes) % 4) % 4
}

/// The content of a [`AhsKind::SEAL_RECORDS`] segment: entries of one length, one per block, in order.
///
/// Towards the target an entry is a seal record; towards the initiator a store sequence (u64, big-endian) and a record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SealRecords<'a> {
    /// Bytes in one entry.
    pub entry_bytes: usize,
    /// The entries, back to back.
    pub entries: &'a [u8],
}

impl fmt::Debug for SealRecords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealRecords({} of {} bytes)", self.count(), self.entry_bytes)
    }
}

impl<'a> SealRecords<'a> {
    /// Reads the segment from a list; `None` when there is none.
    ///
    /// # Errors
    /// [`AhsError::Content`] if the entries are not whole or there is none.
    pub fn find(ahs: &'a [u8]) -> Result<Option<SealRecords<'a>>, AhsError> {
        find(ahs, AhsKind::SEAL_RECORDS).map(SealRecords::decode).transpose()
    }

    /// Reads a segment's content.
    ///
    /// # Errors
    /// [`AhsError::Content`] if the entries are not whole or there is none.
    pub fn decode(content: &'a [u8]) -> Result<SealRecords<'a>, AhsError> {
        let wrong = |why| AhsError::Content { kind: AhsKind::SEAL_RECORDS.0, why };
        let (&entry_bytes, entries) = content.split_first().ok_or(wrong("no entry length"))?;
        let entry_bytes = usize::from(entry_bytes);
        if entry_bytes == 0 || entries.is_empty() || entries.len() % entry_bytes != 0 {
            return Err(wrong("its length is not a whole number of entries"));
        }
        Ok(SealRecords { entry_bytes, entries })
    }

    /// How many entries there are.
    pub fn count(&self) -> usize {
        self.entries.len() / self.entry_bytes
    }

    /// The entries.
    pub fn iter(&self) -> std::slice::ChunksExact<'a, u8> {
        self.entries.chunks_exact(self.entry_bytes)
    }
}

/// Appends a [`AhsKind::SEAL_RECORDS`] segment; `entries` are back to back, `entry_bytes` each.
///
/// # Panics
/// If the entries are not whole, or do not fit: see [`seal_records_max`].
pub fn push_seal_records(out: &mut Vec<u8>, entry_bytes: usize, entries: &[u8]) {
    assert!(entry_bytes > 0 && entries.len().is_multiple_of(entry_bytes), "whole entries");
    let entry_length = u8::try_from(entry_bytes).expect("an entry is a record of at most 96 bytes and a sequence");
    push(out, AhsKind::SEAL_RECORDS, &[&[entry_length], entries]);
}

/// The [`AhsKind::SEAL_RECORDS`] segment of a Data-In, in the memory of the records.
///
/// # Panics
/// If they do not fit: see [`seal_records_max`].
pub fn stored_records_segment(records: StoredRecords) -> Bytes {
    let len_bytes = 1 + records.as_bytes().len();
    let [high, low] = u16::try_from(len_bytes).expect("a header is at most 65535 bytes").to_be_bytes();
    let entry_bytes =
        u8::try_from(records.entry_bytes()).expect("an entry is a record of at most 96 bytes and a sequence");
    records.framed([high, low, AhsKind::SEAL_RECORDS.0, entry_bytes], padding(len_bytes))
}

/// The seal records in a list of segments; `None` when there are none.
///
/// # Errors
/// [`AhsError::Content`] if the entries are not whole or there is none.
pub fn seal_records(ahs: Bytes) -> Result<Option<transport::SealRecords>, AhsError> {
    let Some(SealRecords { entry_bytes, entries }) = SealRecords::find(&ahs)? else { return Ok(None) };
    let entries = part_of(&ahs, entries);
    Ok(transport::SealRecords::new(entry_bytes, slice(ahs, entries)))
}

/// Where `part` is in `whole`.
fn part_of(whole: &[u8], part: &[u8]) -> std::ops::Range<usize> {
    let start = part.as_ptr() as usize - whole.as_ptr() as usize;
    start..start + part.len()
}

/// As [`Bytes::slice`], without counting one reference more and one less.
fn slice(mut bytes: Bytes, range: std::ops::Range<usize>) -> Bytes {
    bytes.truncate(range.end);
    bytes.advance(range.start);
    bytes
}

/// How many entries of `entry_bytes` one header takes beside `other_ahs_bytes` of other segments.
pub const fn seal_records_max(entry_bytes: usize, other_ahs_bytes: usize) -> usize {
    // BHS, the segment's own four bytes, and up to three of padding.
    let taken = crate::pdu::bhs::BHS_BYTES + other_ahs_bytes + 4 + 3;
    crate::pdu::bhs::CHANNEL_HEADER_BYTES_MAX.saturating_sub(taken) / entry_bytes
}

/// The content of a [`AhsKind::HOLE`] segment: blocks of a Data-In that are absent. The PDU has no data; BufferOffset and
/// residual count the blocks as if they had been sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hole {
    /// Blocks of this PDU's range.
    pub covered_blocks: u32,
    /// When the hole was stored.
    pub store_sequence: u64,
    /// The range and its record.
    pub record: HoleRecord,
}

impl Hole {
    const PREFIX_BYTES: usize = 1 + 4 + 8;

    /// Reads the segment from a list; `None` when there is none.
    ///
    /// # Errors
    /// [`AhsError::Content`] if it is malformed or covers nothing.
    pub fn find(ahs: &[u8]) -> Result<Option<Hole>, AhsError> {
        find(ahs, AhsKind::HOLE).map(Hole::decode).transpose()
    }

    /// How many blocks the segment in a list covers, without reading its record; `None` when there is no hole.
    pub fn covered_blocks(ahs: &[u8]) -> Option<u32> {
        let content = find(ahs, AhsKind::HOLE)?;
        Some(u32::from_be_bytes(content.get(1..5)?.try_into().expect("4 bytes")))
    }

    /// Reads a segment's content.
    ///
    /// # Errors
    /// [`AhsError::Content`] if it is malformed or covers nothing.
    pub fn decode(content: &[u8]) -> Result<Hole, AhsError> {
        let wrong = |why| AhsError::Content { kind: AhsKind::HOLE.0, why };
        let (prefix, record) = content.split_at_checked(Self::PREFIX_BYTES).ok_or(wrong("too short"))?;
        let covered_blocks = u32::from_be_bytes(prefix[1..5].try_into().expect("4 bytes"));
        if covered_blocks == 0 {
            return Err(wrong("it covers no block"));
        }
        Ok(Hole {
            covered_blocks,
            store_sequence: u64::from_be_bytes(prefix[5..].try_into().expect("8 bytes")),
            record: HoleRecord::decode(record).map_err(|_| wrong("its hole record does not decode"))?,
        })
    }

    /// Appends the segment.
    pub fn push(&self, out: &mut Vec<u8>) {
        push_hole(out, self.covered_blocks, self.store_sequence, &self.record);
    }
}

/// Appends an [`AhsKind::HOLE`] segment.
fn push_hole(out: &mut Vec<u8>, covered_blocks: u32, store_sequence: u64, hole: &HoleRecord) {
    let (covered_blocks, sequence) = (covered_blocks.to_be_bytes(), store_sequence.to_be_bytes());
    let (start, count) = (hole.start.0.to_be_bytes(), hole.count.to_be_bytes());
    // In one allocation, and the record from where it is: copies would leave a block key behind.
    let record = hole.record.as_bytes();
    out.reserve_exact(4 + Hole::PREFIX_BYTES + HoleRecord::PREFIX_BYTES + record.len() + 3);
    push(out, AhsKind::HOLE, &[&[0], &covered_blocks, &sequence, &start, &count, record]);
}

/// The [`AhsKind::HOLE`] segment of a Data-In; wiped on release if it holds a block key.
pub fn hole_segment(covered_blocks: u32, sequence: StoreSequence, hole: &HoleRecord) -> Bytes {
    let mut out = Vec::new();
    push_hole(&mut out, covered_blocks, sequence.0, hole);
    if hole.record.flags().has_block_key() { strongroom_block::wiped(out) } else { Bytes::from(out) }
}

/// The store sequence and the encoded hole record of an [`AhsKind::HOLE`] segment in a list; zero and nothing if it is too short.
pub fn hole_record(ahs: Bytes) -> (StoreSequence, Bytes) {
    let content = find(&ahs, AhsKind::HOLE).unwrap_or_default();
    let Some((prefix, record)) = content.split_at_checked(Hole::PREFIX_BYTES) else { return Default::default() };
    let sequence = u64::from_be_bytes(prefix[5..].try_into().expect("8 bytes"));
    let record = part_of(&ahs, record);
    (StoreSequence(sequence), slice(ahs, record))
}

/// Bytes in the content of a [`AhsKind::EXPECTED_STAMP`] segment: a reserved byte and a stamp.
const EXPECTED_STAMP_BYTES: usize = 1 + Stamp::BYTES;
/// The same of [`AhsKind::OLDER_THAN`]: a reserved byte and a store sequence.
const OLDER_THAN_BYTES: usize = 1 + 8;
/// The same of [`AhsKind::KEYS_DESTROYED`]: a reserved byte and an epoch.
const KEYS_DESTROYED_BYTES: usize = 1 + 4;

/// Appends an [`AhsKind::EXPECTED_STAMP`] segment: the stamp (24 bytes as encoded) of the newest version that the write
/// replaces; all zeros when the block must be a hole now.
pub fn push_expected_stamp(out: &mut Vec<u8>, stamp: &[u8; 24]) {
    push(out, AhsKind::EXPECTED_STAMP, &[&[0], stamp]);
}

/// The stamp of an [`AhsKind::EXPECTED_STAMP`] segment; `None` when the list has none of the right length.
pub fn expected_stamp(ahs: &[u8]) -> Option<[u8; 24]> {
    let content = find(ahs, AhsKind::EXPECTED_STAMP).filter(|content| content.len() == EXPECTED_STAMP_BYTES)?;
    Some(content[1..].try_into().expect("24 bytes"))
}

/// Appends an [`AhsKind::OLDER_THAN`] segment: a store sequence; 0 asks for the newest version.
pub fn push_older_than(out: &mut Vec<u8>, store_sequence: u64) {
    push(out, AhsKind::OLDER_THAN, &[&[0], &store_sequence.to_be_bytes()]);
}

/// The sequence of an [`AhsKind::OLDER_THAN`] segment; `None` when the list has none of the right length.
pub fn older_than(ahs: &[u8]) -> Option<u64> {
    let content = find(ahs, AhsKind::OLDER_THAN).filter(|content| content.len() == OLDER_THAN_BYTES)?;
    Some(u64::from_be_bytes(content[1..].try_into().expect("8 bytes")))
}

/// Appends an [`AhsKind::KEYS_DESTROYED`] segment: the sender had the keys of every epoch before `epoch` destroyed.
pub fn push_keys_destroyed(out: &mut Vec<u8>, epoch: u32) {
    push(out, AhsKind::KEYS_DESTROYED, &[&[0], &epoch.to_be_bytes()]);
}

/// The epoch of an [`AhsKind::KEYS_DESTROYED`] segment; `None` when the list has none of the right length.
pub fn keys_destroyed(ahs: &[u8]) -> Option<u32> {
    let content = find(ahs, AhsKind::KEYS_DESTROYED).filter(|content| content.len() == KEYS_DESTROYED_BYTES)?;
    Some(u32::from_be_bytes(content[1..].try_into().expect("4 bytes")))
}

/// Bytes in the content of an [`AhsKind::OPERATION`] segment.
const OPERATION_BYTES: usize = 1 + Stamp::BYTES + 8;

/// The operation in a list of segments; `None` when there is none.
///
/// # Errors
/// [`AhsError::Content`] if its length is wrong or a reserved bit is set.
pub fn operation(ahs: &[u8]) -> Result<Option<Operation>, AhsError> {
    let decoded = find(ahs, AhsKind::OPERATION).map(decode_operation).transpose();
    decoded.map_err(|MalformedOperation(why)| AhsError::Content { kind: AhsKind::OPERATION.0, why })
}

fn decode_operation(content: &[u8]) -> Result<Operation, MalformedOperation> {
    let length = MalformedOperation("its length is not 33 bytes");
    let content: &[u8; OPERATION_BYTES] = content.try_into().map_err(|_| length)?;
    if content[0] != 0 {
        return Err(MalformedOperation("a reserved bit is set"));
    }
    let (stamp, sequence) = content[1..].split_at(Stamp::BYTES);
    let sequence = u64::from_be_bytes(sequence.try_into().expect("8 bytes"));
    Ok(Operation {
        id: Stamp::from_bytes(stamp.try_into().expect("24 bytes")),
        replay: (sequence != 0).then_some(StoreSequence(sequence)),
    })
}

/// Appends an [`AhsKind::OPERATION`] segment.
pub fn push_operation(out: &mut Vec<u8>, operation: &Operation) {
    let sequence = operation.replay.unwrap_or_default().0.to_be_bytes();
    push(out, AhsKind::OPERATION, &[&[0], &operation.id.to_bytes(), &sequence]);
}

/// What a command carries beside its CDB. Segments of the wrong length count as absent, but for that of an operation.
pub fn parameters(ahs: &[u8]) -> Parameters {
    if ahs.is_empty() {
        return Parameters::default();
    }
    Parameters {
        expected_stamp: expected_stamp(ahs),
        older_than: older_than(ahs).map(StoreSequence),
        keys_destroyed: keys_destroyed(ahs),
        operation: find(ahs, AhsKind::OPERATION).map(decode_operation),
    }
}

/// Appends a segment for each parameter. An operation that did not decode has none.
pub fn push_parameters(out: &mut Vec<u8>, parameters: &Parameters) {
    if let Some(stamp) = &parameters.expected_stamp {
        push_expected_stamp(out, stamp);
    }
    if let Some(sequence) = parameters.older_than {
        push_older_than(out, sequence.0);
    }
    if let Some(epoch) = parameters.keys_destroyed {
        push_keys_destroyed(out, epoch);
    }
    if let Some(Ok(operation)) = &parameters.operation {
        push_operation(out, operation);
    }
}

/// Bytes that [`push_parameters`] appends.
pub fn parameters_bytes(parameters: &Parameters) -> usize {
    let segment = |len_bytes: usize| 3 + len_bytes + padding(len_bytes);
    let stamp = parameters.expected_stamp.map_or(0, |_| segment(EXPECTED_STAMP_BYTES));
    let sequence = parameters.older_than.map_or(0, |_| segment(OLDER_THAN_BYTES));
    let epoch = parameters.keys_destroyed.map_or(0, |_| segment(KEYS_DESTROYED_BYTES));
    let operation = parameters.operation.map_or(0, |decoded| decoded.map_or(0, |_| segment(OPERATION_BYTES)));
    stamp + sequence + epoch + operation
}

/// Bytes in the content of an [`AhsKind::WRITTEN`] segment.
const WRITTEN_BYTES: usize = 1 + 8 + 4;
/// The flag of a repeat.
const WRITTEN_REPEAT: u8 = 1;

/// What a response says of a write; `None` when it says nothing.
///
/// # Errors
/// [`AhsError::Content`] if its length is wrong or a reserved bit is set.
pub fn written(ahs: &[u8]) -> Result<Option<Written>, AhsError> {
    find(ahs, AhsKind::WRITTEN).map(decode_written).transpose()
}

fn decode_written(content: &[u8]) -> Result<Written, AhsError> {
    let wrong = |why| AhsError::Content { kind: AhsKind::WRITTEN.0, why };
    let content: &[u8; WRITTEN_BYTES] = content.try_into().map_err(|_| wrong("its length is not 13 bytes"))?;
    if content[0] & !WRITTEN_REPEAT != 0 {
        return Err(wrong("a reserved bit is set"));
    }
    Ok(Written {
        is_repeat: content[0] & WRITTEN_REPEAT != 0,
        first: StoreSequence(u64::from_be_bytes(content[1..9].try_into().expect("8 bytes"))),
        superseded: u32::from_be_bytes(content[9..].try_into().expect("4 bytes")),
    })
}

/// The [`AhsKind::WRITTEN`] segment, as the only one of a SCSI Response.
pub fn written_segment(written: &Written) -> Bytes {
    let mut out = Vec::with_capacity(3 + WRITTEN_BYTES);
    let flags = u8::from(written.is_repeat) * WRITTEN_REPEAT;
    push(&mut out, AhsKind::WRITTEN, &[&[flags], &written.first.0.to_be_bytes(), &written.superseded.to_be_bytes()]);
    Bytes::from(out)
}

/// Runs the decoders over arbitrary bytes, for fuzzing.
#[doc(hidden)]
pub fn fuzz_ahs(bytes: &[u8]) {
    let mut walked = 0;
    for segment in list(bytes) {
        let Ok(segment) = segment else { break };
        walked += (3 + segment.content.len()).next_multiple_of(4);
        let _ = SealRecords::decode(segment.content).map(|records| assert_eq!(records.iter().count(), records.count()));
        if let Ok(hole) = Hole::decode(segment.content) {
            let mut again = Vec::new();
            hole.push(&mut again);
            assert_eq!(Hole::find(&again), Ok(Some(hole)), "a hole decodes as encoded");
        }
        if let Ok(decoded) = decode_operation(segment.content) {
            let mut again = Vec::new();
            push_operation(&mut again, &decoded);
            assert_eq!(operation(&again), Ok(Some(decoded)), "an operation decodes as encoded");
            assert_eq!(&again[3..3 + OPERATION_BYTES], segment.content, "one operation has one encoding");
        }
        if let Ok(decoded) = decode_written(segment.content) {
            let again = written_segment(&decoded);
            assert_eq!(written(&again), Ok(Some(decoded)), "a response decodes as encoded");
            assert_eq!(&again[3..], segment.content, "one response has one encoding");
        }
    }
    assert!(walked <= bytes.len(), "the walk stays inside");
    let _ =
        (check(bytes), Hole::covered_blocks(bytes), expected_stamp(bytes), older_than(bytes), keys_destroyed(bytes));
    let _ = (operation(bytes), written(bytes));
    let carried = parameters(bytes);
    let mut again = Vec::new();
    push_parameters(&mut again, &carried);
    assert_eq!(again.len(), parameters_bytes(&carried), "their length is known before they are encoded");
    let carried = Parameters { operation: carried.operation.filter(Result::is_ok), ..carried };
    assert_eq!(parameters(&again), carried, "parameters decode as encoded");
    let shared = Bytes::copy_from_slice(bytes);
    if let Ok(Some(records)) = seal_records(shared.clone()) {
        let found = SealRecords::find(bytes).expect("sound").expect("present");
        assert_eq!(records.as_bytes(), found.entries, "the same entries");
    }
    let _ = hole_record(shared);
}

#[cfg(test)]
mod tests;
