//! The unit: what one append writes. Record blocks that name and checksum the data, then the data.
//!
//! Encoding for the append path, decoding for recovery, cleaning and checking. `docs/store-format.md`, "Unit".

mod decode;
mod operations;

use crc_fast::{CrcAlgorithm, Digest};
use strongroom_block::{AttachId, BufferMut, Stamp};

use crate::layout::{COUNTER_MAX, Layout, RECORD_BLOCK, SEQUENCE_MAX, be_u16, be_u32, be_u64};
use crate::options::StoreId;

/// First bytes of every record block.
pub(crate) const MAGIC: [u8; 4] = *b"SRrb";
/// Bytes in front of the entries of a record block.
pub(crate) const BLOCK_HEADER: usize = 32;
/// Bytes in front of the entries of the first record block.
pub(crate) const UNIT_HEADER: usize = 128;
/// Where the first record block says which head of the log it belongs to. There is one, 0.
const HEAD_AT: usize = 96;
/// Bytes in front of the items of an entry.
pub(crate) const ENTRY_HEADER: usize = 24;
/// Bytes of one row of a segment table.
pub(crate) const TABLE_ROW: usize = 16;
/// Upper bound on the record blocks of one unit.
pub(crate) const RECORD_BLOCKS_MAX: usize = 256;
/// Upper bound on the bytes of one unit.
pub(crate) const UNIT_BYTES_MAX: u32 = 1 << 20;
/// Stands for "no segment".
pub(crate) const NO_SEGMENT: u32 = u32::MAX;

const KIND_BLOCKS: u8 = 1;
const KIND_HOLE: u8 = 2;
const KIND_TABLE: u8 = 3;
const KIND_CATALOGUE: u8 = 4;
const KIND_CHANGE: u8 = 5;
const KIND_VERIFIED: u8 = 6;
const KIND_OPERATION: u8 = 7;
const KIND_REGISTRATION: u8 = 8;
/// Of the operation windows, in a segment table.
const KIND_WINDOWS: u8 = 9;
/// One block that was written on a condition, with its base.
const KIND_CONDITIONAL_BLOCK: u8 = 10;
/// A hole that was written on condition that there was no data.
const KIND_CONDITIONAL_HOLE: u8 = 11;
/// Bytes of a base.
const BASE: usize = 8;

/// Bytes of one pair of feedback: block and sequence.
pub(crate) const VERIFIED_PAIR: usize = 16;

/// Bits of [`UnitHeader::flags`].
pub(crate) mod flag {
    /// First unit of a group.
    pub(crate) const FIRST: u32 = 1;
    /// Last unit of a group: only with it the group counts.
    pub(crate) const LAST: u32 = 2;
    /// Part of a segment table.
    pub(crate) const TABLE: u32 = 4;
    /// Copies made by cleaning.
    pub(crate) const CLEANING: u32 = 8;
    /// All bits that this build knows.
    pub(crate) const KNOWN: u32 = FIRST | LAST | TABLE | CLEANING;
}

/// What a unit says of itself, in its first record block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitHeader {
    pub(crate) record_blocks: u16,
    pub(crate) generation: u64,
    /// Number of the unit in the log: larger than every one before it, never used again.
    pub(crate) lsn: u64,
    /// The number of the unit before it in this opening; 0 for the first. A unit that was written but voided is skipped.
    pub(crate) prev_lsn: u64,
    pub(crate) open_id: u64,
    pub(crate) open_epoch: u64,
    /// Every unit up to this one was known synced when this one was written; ends a group.
    pub(crate) durable_lsn: u64,
    /// Every store sequence handed out so far is smaller.
    pub(crate) next_sequence: u64,
    pub(crate) data_bytes: u32,
    pub(crate) entries: u32,
    pub(crate) flags: u32,
    /// First unit of a segment: the segment before in this opening, or [`NO_SEGMENT`].
    pub(crate) prev_segment: u32,
    /// Where that one ended, in 4 KiB blocks.
    pub(crate) prev_end: u32,
    /// The segment that will be opened next, or [`NO_SEGMENT`] if none was free. Where recovery looks for what a lost
    /// first unit hides.
    pub(crate) next_segment: u32,
}

impl UnitHeader {
    /// How much of the segment it takes, in 4 KiB blocks.
    pub(crate) fn blocks(&self) -> u32 {
        u32::from(self.record_blocks) + self.data_bytes / RECORD_BLOCK as u32
    }

    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

/// Where a record block is and whose it is: what its checksum binds besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogAddress {
    pub(crate) store_id: StoreId,
    pub(crate) segment: u32,
    /// In 4 KiB blocks.
    pub(crate) block: u32,
}

fn checksum(record_block: &[u8], place: LogAddress) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&place.store_id.0);
    digest.update(&place.segment.to_be_bytes());
    digest.update(&place.block.to_be_bytes());
    digest.update(&record_block[..8]);
    digest.update(&record_block[16..]);
    digest.finalize()
}

/// The checksum of a block of another kind, at the same place in it.
pub(crate) fn place_checksum(block: &[u8], place: LogAddress) -> u64 {
    checksum(block, place)
}

/// Whether these 4096 bytes are an intact record block of this place. The cheap part of [`decode_header`].
pub(crate) fn record_block_intact(record_block: &[u8], place: LogAddress) -> bool {
    record_block.len() == RECORD_BLOCK
        && record_block[..4] == MAGIC
        && be_u64(record_block, 8) == checksum(record_block, place)
}

/// The generation that a record block names. Only meaningful if it is intact.
pub(crate) fn record_block_generation(record_block: &[u8]) -> u64 {
    be_u64(record_block, 16)
}

/// Reads the first record block of a unit. `None` if there is no intact one.
pub(crate) fn decode_header(record_block: &[u8], place: LogAddress, layout: &Layout) -> Option<UnitHeader> {
    if !record_block_intact(record_block, place) || be_u16(record_block, 4) != 0 {
        return None;
    }
    let header = UnitHeader {
        record_blocks: be_u16(record_block, 6),
        generation: be_u64(record_block, 16),
        lsn: be_u64(record_block, 24),
        open_id: be_u64(record_block, 32),
        open_epoch: be_u64(record_block, 40),
        durable_lsn: be_u64(record_block, 48),
        next_sequence: be_u64(record_block, 56),
        data_bytes: be_u32(record_block, 64),
        entries: be_u32(record_block, 68),
        flags: be_u32(record_block, 72),
        prev_segment: be_u32(record_block, 76),
        prev_end: be_u32(record_block, 80),
        next_segment: be_u32(record_block, 84),
        prev_lsn: be_u64(record_block, 88),
    };
    let fits = header.record_blocks > 0
        && usize::from(header.record_blocks) <= RECORD_BLOCKS_MAX
        && header.data_bytes.is_multiple_of(RECORD_BLOCK as u32)
        && u64::from(place.block) + u64::from(header.blocks()) <= u64::from(layout.segment_blocks())
        && header.flags & !flag::KNOWN == 0
        && header.durable_lsn < header.lsn
        && header.prev_lsn < header.lsn
        && zeros(&record_block[HEAD_AT..UNIT_HEADER])
        && header.lsn < COUNTER_MAX
        && header.generation < COUNTER_MAX
        && header.open_epoch < COUNTER_MAX
        && header.next_sequence < SEQUENCE_MAX
        && [header.prev_segment, header.next_segment].iter().all(|&at| at == NO_SEGMENT || at < layout.segments)
        && header.prev_end <= layout.segment_blocks();
    fits.then_some(header)
}

/// Reserved bytes, and heads that this version does not know, are zeros.
fn zeros(bytes: &[u8]) -> bool {
    // Without a branch for each byte: it is asked of the rest of every record block.
    bytes.chunks(64).all(|bytes| bytes.iter().fold(0, |all, byte| all | byte) == 0)
}

/// One entry of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry<'a> {
    /// Consecutive blocks with consecutive sequences.
    Blocks {
        branch: u32,
        lba: u64,
        sequence: u64,
        /// `count` items back to back.
        items: &'a [u8],
        count: u32,
        /// Of the first item, from the start of the unit, in bytes.
        item_at: u32,
        /// Which block of the unit's data the first one is.
        data_index: u32,
        /// Of a single block that was written on a condition: see [`Base`]. `None`: written unconditionally.
        base: Option<u64>,
    },
    /// A range without data.
    Hole {
        branch: u32,
        start: u64,
        count: u64,
        sequence: u64,
        /// Empty on a plain unit.
        record: &'a [u8],
        /// Of the entry, from the start of the unit, in bytes.
        item_at: u32,
        /// It was written on condition that there was no data.
        is_conditional: bool,
    },
    /// Rows of a segment table.
    Table { rows: &'a [u8] },
    /// A piece of the catalogue.
    Catalogue {
        /// Where it belongs, in bytes.
        at: u64,
        /// Of the whole.
        total: u64,
        bytes: &'a [u8],
    },
    /// A change of the catalogue.
    Change { branch: u32, sequence: u64, bytes: &'a [u8] },
    /// Feedback that let older versions go.
    Verified { branch: u32, pairs: &'a [u8] },
    /// A request of a sealed unit was executed: as many counters from this stamp on.
    Operation { branch: u32, operation: Stamp, count: u64 },
    /// An attach id was registered.
    Registration { branch: u32, attach_id: AttachId },
    /// A piece of the operation windows.
    Windows {
        /// Where it belongs, in bytes.
        at: u64,
        /// Of the whole.
        total: u64,
        bytes: &'a [u8],
    },
}

/// A unit whose record blocks are not what its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UnitFault(pub(crate) &'static str);

pub(crate) use decode::{Base, base_of, decode_entries, intact_entries};
pub(crate) use operations::OPERATION_BYTES;

/// Collects entries into record blocks, within a bound on the whole unit.
pub(crate) struct UnitBuilder {
    layout: Layout,
    /// Record blocks; headers are filled in at the end.
    records: Vec<u8>,
    /// Where the next byte goes in `records`.
    at: usize,
    /// Where the entry that can still grow begins, and what would continue it.
    run: Option<Run>,
    operations: Vec<operations::OpenOperation>,
    entries: u32,
    data_blocks: u32,
    limit_blocks: u32,
    /// With this many blocks it takes no record block more.
    packed_blocks: u32,
}

#[derive(Clone, Copy)]
struct Run {
    entry_at: usize,
    branch: u32,
    next_lba: u64,
    next_sequence: u64,
}

impl UnitBuilder {
    /// A unit of at most `limit_blocks` 4 KiB blocks.
    pub(crate) fn new(layout: Layout, limit_blocks: u32) -> UnitBuilder {
        UnitBuilder {
            layout,
            records: vec![0; RECORD_BLOCK],
            at: UNIT_HEADER,
            run: None,
            operations: Vec::new(),
            entries: 0,
            data_blocks: 0,
            limit_blocks,
            packed_blocks: limit_blocks,
        }
    }

    /// Once it has this many 4 KiB blocks it ends where its record blocks are full: no space is lost to one that is nearly empty.
    pub(crate) fn packed(self, blocks: u32) -> UnitBuilder {
        UnitBuilder { packed_blocks: blocks, ..self }
    }

    /// A unit that says nothing, in this many blocks (at most [`RECORD_BLOCKS_MAX`]).
    pub(crate) fn filler(layout: Layout, blocks: u32) -> UnitBuilder {
        UnitBuilder { records: vec![0; blocks as usize * RECORD_BLOCK], ..UnitBuilder::new(layout, blocks) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Its size so far, in 4 KiB blocks.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks_with(0, self.data_blocks)
    }

    fn blocks_with(&self, more_record_blocks: usize, data_blocks: u32) -> u32 {
        let data = u64::from(data_blocks) * u64::from(self.layout.block_bytes);
        (self.records.len() / RECORD_BLOCK + more_record_blocks) as u32 + data.div_ceil(RECORD_BLOCK as u64) as u32
    }

    fn left_in_record_block(&self) -> usize {
        self.records.len() - self.at
    }

    /// Makes room for an entry (or item) of `len` bytes; false if the unit is full.
    fn room(&mut self, len: usize, new_len: usize, more_data: u32) -> Option<bool> {
        let data_blocks = self.data_blocks + more_data;
        if self.left_in_record_block() >= len {
            return (self.blocks_with(0, data_blocks) <= self.limit_blocks).then_some(false);
        }
        debug_assert!(new_len <= RECORD_BLOCK - BLOCK_HEADER);
        let fits = self.records.len() / RECORD_BLOCK < RECORD_BLOCKS_MAX
            && self.blocks() < self.packed_blocks
            && self.blocks_with(1, data_blocks) <= self.limit_blocks;
        if !fits {
            return None;
        }
        self.at = self.records.len() + BLOCK_HEADER;
        self.records.resize(self.records.len() + RECORD_BLOCK, 0);
        self.run = None;
        Some(true)
    }

    /// Adds one block. Returns where its item is in the unit and which data block it is; `None` if the unit is full.
    pub(crate) fn push_block(&mut self, branch: u32, lba: u64, sequence: u64, item: &[u8]) -> Option<(u32, u32)> {
        debug_assert_eq!(item.len(), self.layout.item_bytes as usize);
        let continues =
            self.run.filter(|run| run.branch == branch && run.next_lba == lba && run.next_sequence == sequence);
        let whole = ENTRY_HEADER + item.len();
        let moved = self.room(if continues.is_some() { item.len() } else { whole }, whole, 1)?;
        match continues.filter(|_| !moved) {
            Some(run) => {
                let count = be_u16(&self.records, run.entry_at + 2) + 1;
                self.records[run.entry_at + 2..run.entry_at + 4].copy_from_slice(&count.to_be_bytes());
            }
            None => self.start_entry(KIND_BLOCKS, 1, branch, lba, sequence),
        }
        let item_at = self.put(item);
        let entry_at = continues.filter(|_| !moved).map_or(item_at - ENTRY_HEADER, |run| run.entry_at);
        self.run = Some(Run { entry_at, branch, next_lba: lba + 1, next_sequence: sequence + 1 });
        self.data_blocks += 1;
        Some((item_at as u32, self.data_blocks - 1))
    }

    /// Adds one block that was written on a condition. As [`UnitBuilder::push_block`].
    pub(crate) fn push_conditional(
        &mut self,
        (branch, lba, sequence): (u32, u64, u64),
        base: u64,
        item: &[u8],
    ) -> Option<(u32, u32)> {
        let len = ENTRY_HEADER + item.len() + BASE;
        self.room(len, len, 1)?;
        self.start_entry(KIND_CONDITIONAL_BLOCK, 1, branch, lba, sequence);
        let item_at = self.put(item);
        self.put(&base.to_be_bytes());
        self.run = None;
        self.data_blocks += 1;
        Some((item_at as u32, self.data_blocks - 1))
    }

    /// Adds a hole. Returns where it is in the unit; `None` if the unit is full.
    pub(crate) fn push_hole(
        &mut self,
        (branch, sequence): (u32, u64),
        start: u64,
        count: u64,
        record: &[u8],
        is_conditional: bool,
    ) -> Option<u32> {
        let len = (ENTRY_HEADER + 8 + record.len()).next_multiple_of(8);
        self.room(len, len, 0)?;
        let kind = if is_conditional { KIND_CONDITIONAL_HOLE } else { KIND_HOLE };
        self.start_entry(kind, record.len() as u16, branch, start, sequence);
        let item_at = self.put(&count.to_be_bytes());
        self.put(record);
        self.at = self.at.next_multiple_of(8);
        self.run = None;
        Some(item_at as u32)
    }

    /// Adds rows of a segment table (each [`TABLE_ROW`] bytes); returns how many rows went in.
    pub(crate) fn push_table(&mut self, rows: &[u8]) -> usize {
        let mut done = 0;
        while done * TABLE_ROW < rows.len() {
            let least = ENTRY_HEADER + TABLE_ROW;
            if self.room(least, least, 0).is_none() {
                break;
            }
            let space = (self.left_in_record_block() - ENTRY_HEADER) / TABLE_ROW;
            let take = space.min(rows.len() / TABLE_ROW - done);
            self.start_entry(KIND_TABLE, take as u16, 0, 0, 0);
            self.put(&rows[done * TABLE_ROW..(done + take) * TABLE_ROW]);
            self.run = None;
            done += take;
        }
        done
    }

    /// Adds a piece of a catalogue of `total` bytes, of which these begin at `at`; returns how many went in.
    pub(crate) fn push_catalogue(&mut self, at: usize, total: usize, bytes: &[u8]) -> usize {
        self.push_pieces(KIND_CATALOGUE, at, total, bytes)
    }

    fn push_pieces(&mut self, kind: u8, at: usize, total: usize, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            let least = ENTRY_HEADER + 64;
            if self.room(least, least, 0).is_none() {
                break;
            }
            let take = (self.left_in_record_block() - ENTRY_HEADER).min(bytes.len() - done);
            self.start_entry(kind, take as u16, 0, (at + done) as u64, total as u64);
            self.put_padded(&bytes[done..done + take]);
            done += take;
        }
        done
    }

    /// Adds a change of the catalogue; false if the unit is full.
    pub(crate) fn push_change(&mut self, branch: u32, sequence: u64, bytes: &[u8]) -> bool {
        let len = (ENTRY_HEADER + bytes.len()).next_multiple_of(8);
        let fits = self.room(len, len, 0).is_some();
        if fits {
            self.start_entry(KIND_CHANGE, bytes.len() as u16, branch, 0, sequence);
            self.put_padded(bytes);
        }
        fits
    }

    /// Adds pairs of feedback (each [`VERIFIED_PAIR`] bytes) as long as they take no record block more; returns how many.
    pub(crate) fn push_verified(&mut self, branch: u32, pairs: &[u8]) -> usize {
        let space = self.left_in_record_block().saturating_sub(ENTRY_HEADER) / VERIFIED_PAIR;
        let take = space.min(pairs.len() / VERIFIED_PAIR);
        if take > 0 {
            self.start_entry(KIND_VERIFIED, take as u16, branch, 0, 0);
            self.put_padded(&pairs[..take * VERIFIED_PAIR]);
        }
        take
    }

    fn put_padded(&mut self, bytes: &[u8]) {
        self.put(bytes);
        self.at = self.at.next_multiple_of(8);
        self.run = None;
    }

    fn start_entry(&mut self, kind: u8, count: u16, branch: u32, first: u64, second: u64) {
        let mut entry = [0; ENTRY_HEADER];
        entry[0] = kind;
        entry[2..4].copy_from_slice(&count.to_be_bytes());
        entry[4..8].copy_from_slice(&branch.to_be_bytes());
        entry[8..16].copy_from_slice(&first.to_be_bytes());
        entry[16..24].copy_from_slice(&second.to_be_bytes());
        self.put(&entry);
        self.entries += 1;
    }

    fn put(&mut self, bytes: &[u8]) -> usize {
        let at = self.at;
        self.records[at..at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        at
    }

    /// Bytes of data without padding.
    pub(crate) fn data_bytes(&self) -> u64 {
        u64::from(self.data_blocks) * u64::from(self.layout.block_bytes)
    }

    /// The record blocks, finished. `header` gives what the builder does not know.
    pub(crate) fn finish(self, mut header: UnitHeader, place: LogAddress) -> (UnitHeader, BufferMut) {
        let count = (self.records.len() / RECORD_BLOCK) as u16;
        header.record_blocks = count;
        header.data_bytes = self.data_bytes().next_multiple_of(RECORD_BLOCK as u64) as u32;
        header.entries = self.entries;
        let mut records = BufferMut::copy_from(&self.records);
        for (index, block) in records.chunks_exact_mut(RECORD_BLOCK).enumerate() {
            block[..4].copy_from_slice(&MAGIC);
            block[4..6].copy_from_slice(&(index as u16).to_be_bytes());
            block[6..8].copy_from_slice(&count.to_be_bytes());
            block[16..24].copy_from_slice(&header.generation.to_be_bytes());
            block[24..32].copy_from_slice(&header.lsn.to_be_bytes());
            if index == 0 {
                put_unit_header(block, &header);
            }
            let sum = checksum(block, LogAddress { block: place.block + index as u32, ..place });
            block[8..16].copy_from_slice(&sum.to_be_bytes());
        }
        (header, records)
    }
}

fn put_unit_header(block: &mut [u8], header: &UnitHeader) {
    block[32..40].copy_from_slice(&header.open_id.to_be_bytes());
    block[40..48].copy_from_slice(&header.open_epoch.to_be_bytes());
    block[48..56].copy_from_slice(&header.durable_lsn.to_be_bytes());
    block[56..64].copy_from_slice(&header.next_sequence.to_be_bytes());
    block[64..68].copy_from_slice(&header.data_bytes.to_be_bytes());
    block[68..72].copy_from_slice(&header.entries.to_be_bytes());
    block[72..76].copy_from_slice(&header.flags.to_be_bytes());
    block[76..80].copy_from_slice(&header.prev_segment.to_be_bytes());
    block[80..84].copy_from_slice(&header.prev_end.to_be_bytes());
    block[84..88].copy_from_slice(&header.next_segment.to_be_bytes());
    block[88..96].copy_from_slice(&header.prev_lsn.to_be_bytes());
}

/// For fuzzing: makes any record block intact at a place.
pub(crate) fn fit_checksum(record_block: &mut [u8], place: LogAddress) {
    record_block[..4].copy_from_slice(&MAGIC);
    let sum = checksum(record_block, place);
    record_block[8..16].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests;
