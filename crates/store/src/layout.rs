//! Where things lie in the log file, and how large it must be for a volume. `docs/store-format.md`, "Layout".

use strongroom_block::Geometry;

use crate::op::Op;
use crate::options::UnitKind;

/// The format that this build writes.
pub(crate) const FORMAT_VERSION: u32 = 3;
/// The oldest one that it opens. Opening makes the newest one of it.
pub(crate) const FORMAT_VERSION_OLDEST: u32 = 1;
/// Bytes of a record block, and the unit in which offsets within a segment are counted.
pub(crate) const RECORD_BLOCK: usize = 4096;
/// Where the first segment begins, in bytes.
pub(crate) const LOG_START: u64 = 1 << 20;
/// Where the two copies of the superblock are, in bytes.
pub(crate) const SUPERBLOCK_AT: [u64; 2] = [0, 512 << 10];
/// Bytes of the smallest piece of the medium that a location names.
pub(crate) const SECTOR: u64 = 512;
/// Serials, epochs, generations and numbers of units are smaller: no store lives so long, and adding to one never overflows.
pub(crate) const COUNTER_MAX: u64 = 1 << 62;
/// Every store sequence is smaller: the index has 56 bits for them.
pub(crate) const SEQUENCES: u64 = 1 << 56;
/// Store sequences that opening finds on a medium are smaller; the rest is room for those of one opening.
pub(crate) const SEQUENCE_MAX: u64 = SEQUENCES - (1 << 40);
/// A segment has at least this many blocks of the volume.
pub(crate) const SEGMENT_BLOCKS_MIN: u32 = 16;
/// Share of a segment that cleaning fills when it packs scattered blocks, in percent.
const PACKED_PERCENT: u64 = 96;

/// What is set aside for each block in bytes, headers included.
pub(crate) const RUN_BYTES_PLANNED: u64 = 16;

/// The constant measures of one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) segment_bytes: u32,
    pub(crate) segments: u32,
    pub(crate) block_bytes: u32,
    /// Bytes that accompany each block in a record block: the seal record, or a checksum.
    pub(crate) item_bytes: u32,
}

impl Layout {
    /// Bytes of a plain block's item: its keyless checksum.
    pub(crate) const PLAIN_ITEM_BYTES: u32 = 8;

    /// The byte at which a segment begins.
    pub(crate) fn segment_at(&self, segment: u32) -> u64 {
        LOG_START + u64::from(segment) * u64::from(self.segment_bytes)
    }

    /// Offset in the log file of a 4 KiB block of a segment.
    pub(crate) fn block_at(&self, segment: u32, block: u32) -> u64 {
        self.segment_at(segment) + u64::from(block) * RECORD_BLOCK as u64
    }

    /// How many 4 KiB blocks a segment has.
    pub(crate) fn segment_blocks(&self) -> u32 {
        self.segment_bytes / RECORD_BLOCK as u32
    }

    /// How many segments only cleaning, tables and opening may use, so that full never means stuck; where a table takes several, more
    /// are set aside while a store is open.
    pub(crate) fn reserved_segments(&self) -> u32 {
        reserved_segments(self.segments, self.segment_bytes)
    }

    /// How many blocks of the volume the log can hold, at most.
    pub(crate) fn blocks_at_most(&self) -> u64 {
        u64::from(self.segments) * u64::from(self.segment_bytes / self.block_bytes)
    }

    /// What one live block weighs in its segment, in bytes.
    pub(crate) fn live_block_bytes(&self) -> u64 {
        u64::from(self.block_bytes + self.item_bytes)
    }

    /// Bytes of the item of a block of this kind.
    pub(crate) fn item_bytes_of(kind: UnitKind) -> u32 {
        if kind.is_sealed() { kind.record_bytes() as u32 } else { Self::PLAIN_ITEM_BYTES }
    }
}

fn reserved_segments(segments: u32, segment_bytes: u32) -> u32 {
    let table_bytes = u64::from(segments) * 16;
    4 + (segments / 64).min(8) + table_bytes.div_ceil(u64::from(segment_bytes)) as u32
}

/// How many segments a volume needs: as many as its blocks and retained versions fill when cleaning has packed them, and
/// `spare_percent` of that again, which makes cleaning cheap; the reserve and the largest write come on top. `None` if that is more
/// than segments can be counted.
pub(crate) fn segments_needed(
    geometry: Geometry,
    kind: UnitKind,
    segment_bytes: u32,
    retained: u64,
    spare_percent: u16,
) -> Option<u32> {
    let entry_bytes = 24 + u128::from(Layout::item_bytes_of(kind));
    let per_block = u128::from(geometry.block_size.bytes()) + entry_bytes;
    let live = (u128::from(geometry.blocks) + u128::from(retained)) * per_block;
    let packed = u128::from(segment_bytes) * u128::from(PACKED_PERCENT);
    let segments = u32::try_from((live * u128::from(100 + spare_percent)).div_ceil(packed)).ok()?;
    // The largest write must find its room in one go.
    let largest = geometry.bytes().min(Op::WRITE_BYTES_MAX as u64) * u64::try_from(per_block).ok()?;
    let largest = largest.div_ceil(u64::from(geometry.block_size.bytes()));
    let largest = largest.div_ceil(u64::from(segment_bytes) - 2 * RECORD_BLOCK as u64) as u32 + 1;
    // A checkpoint and the one before, with a run for each block.
    let checkpoint = (u128::from(geometry.blocks) + u128::from(retained)) * u128::from(RUN_BYTES_PLANNED);
    let checkpoint = checkpoint / u128::from(segment_bytes);
    let checkpoints = 2 * (u32::try_from(checkpoint).ok()? + 1);
    let spare = checkpoints + 2 * reserved_segments(segments, segment_bytes) + (segments / 32).clamp(1, 32) + largest;
    segments.checked_add(spare).filter(|&count| countable(count, segment_bytes))
}

/// Whether a location in the index can name every place in this many segments.
pub(crate) fn countable(segments: u32, segment_bytes: u32) -> bool {
    u64::from(segments) * u64::from(segment_bytes) / SECTOR < 1 << 40
}

/// Fewer segments than these hold no store: the volume itself, what is set aside, one that is written, and one for the first table.
pub(crate) fn segments_least(geometry: Geometry, segment_bytes: u32, segments: u32) -> u64 {
    let reserved = u64::from(reserved_segments(segments.max(1), segment_bytes));
    geometry.bytes().div_ceil(u64::from(segment_bytes)) + reserved + 2
}

/// The keyless checksum that an item names: a plain one is nothing else, a seal record has it at byte 32.
pub(crate) fn item_checksum(item: &[u8]) -> u64 {
    be_u64(item, if item.len() == 8 { 0 } else { 32 })
}

/// A fixed-size big-endian reader over bytes whose length was checked.
pub(crate) fn be_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}

/// As [`be_u16`].
pub(crate) fn be_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// As [`be_u16`].
pub(crate) fn be_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
