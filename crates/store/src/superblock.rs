//! The superblock: what the store is, and where its newest durable segment table is.
//!
//! Two copies; at most one is written between two syncs, so one is always whole.

use std::ops::Range;

use crc_fast::{CrcAlgorithm, Digest};
use strongroom_block::{BlockSize, BufferMut, Custody, Geometry, SealingDomain, VolumeId};

use crate::error::StoreError;
use crate::layout::{
    COUNTER_MAX, FORMAT_VERSION, FORMAT_VERSION_OLDEST, Layout, RECORD_BLOCK, SEGMENT_BLOCKS_MIN, SEQUENCE_MAX,
    SUPERBLOCK_AT, be_u32, be_u64, countable,
};
use crate::options::{StoreId, UnitKind, VolumeInfo};
use crate::unit::NO_SEGMENT;

/// First bytes of a superblock.
const MAGIC: [u8; 8] = *b"SRoomLog";
/// Where the checksum is; it covers everything else and the copy's number.
const CHECKSUM_AT: usize = 16;

/// Where bits of features are that a build must know to open the store.
const FEATURES_AT: usize = 184;
/// The feature that everything is being erased.
const FEATURE_ERASING: u64 = 1;
/// The feature that the superblock has an incarnation, and the log operations.
const FEATURE_OPERATIONS: u64 = 2;
/// The feature that the superblock names a second segment table.
const FEATURE_SECOND_TABLE: u64 = 4;
/// The feature that the log tells what was written on a condition.
const FEATURE_BASES: u64 = 8;
/// Where the incarnation is.
const INCARNATION_AT: usize = 216;
/// Where the second segment table is named.
const SECOND_TABLE_AT: usize = 224;
/// Behind that.
const SECOND_TABLE_END: usize = 268;
/// From which store sequence on the log tells what was written on a condition.
const BASES_FROM_AT: usize = 272;

/// Bytes that are zeros in this version.
const RESERVED: [Range<usize>; 6] =
    [12..16, 82..84, 108..112, 177..184, SECOND_TABLE_END..BASES_FROM_AT, BASES_FROM_AT + 8..RECORD_BLOCK];

/// Where the newest whole checkpoint is described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointAt {
    pub(crate) segment: u32,
    /// In 4 KiB blocks.
    pub(crate) block: u32,
    /// Generation of that segment.
    pub(crate) generation: u64,
    /// Every unit up to this one is in the checkpoint; also its name.
    pub(crate) begin_lsn: u64,
}

/// A second segment table with the same rows as the first, written directly behind it, and where the log goes on behind both. So each
/// of them can be read without the other, and the log can be followed without either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SecondTable {
    pub(crate) segment: u32,
    /// In 4 KiB blocks.
    pub(crate) block: u32,
    /// Number of its first unit.
    pub(crate) lsn: u64,
    /// Behind its last unit.
    pub(crate) end: TableEnd,
}

/// Where the log goes on behind a segment table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableEnd {
    /// The segment of the table's last unit.
    pub(crate) segment: u32,
    /// Where in it that unit ends, in 4 KiB blocks.
    pub(crate) block: u32,
    /// Number of that unit.
    pub(crate) lsn: u64,
    /// Generation of the segment.
    pub(crate) generation: u64,
    /// The segment that the unit names as the next one, or `NO_SEGMENT`.
    pub(crate) next_segment: u32,
}

/// One superblock. It has a field for each of the format's, in the order of `docs/store-format.md`: encoding, decoding and the document can
/// be compared line by line, and what works on several fields at once is only the code of the format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Grows with every superblock written; the larger one of two valid copies counts.
    pub(crate) serial: u64,
    pub(crate) store_id: StoreId,
    pub(crate) volume_id: VolumeId,
    pub(crate) kind: UnitKind,
    pub(crate) geometry: Geometry,
    pub(crate) segment_bytes: u32,
    pub(crate) segments: u32,
    pub(crate) retention_blocks: u64,
    /// How many times the store was opened.
    pub(crate) open_epoch: u64,
    /// Which opening's units follow the table.
    pub(crate) open_id: u64,
    /// Where the newest durable segment table begins.
    pub(crate) table_segment: u32,
    /// In 4 KiB blocks.
    pub(crate) table_block: u32,
    pub(crate) table_lsn: u64,
    /// None in a new store, in one of an older build, and where there was no room for it.
    pub(crate) second_table: Option<SecondTable>,
    /// Every store sequence handed out is smaller.
    pub(crate) sequence_limit: u64,
    /// Every generation handed out before the table was written is smaller.
    pub(crate) next_generation: u64,
    /// Every unit up to this one was known synced when this superblock was written.
    pub(crate) durable_lsn: u64,
    /// Closed in order: nothing follows that was not synced.
    pub(crate) clean: bool,
    /// None in version 1, and until the first one is whole.
    pub(crate) checkpoint: Option<CheckpointAt>,
    /// Everything in the log is on its way out: nothing of it counts.
    pub(crate) erasing: bool,
    /// Changes when acknowledged data may have been lost. 0: none was drawn yet.
    pub(crate) incarnation: u64,
    /// Whether a version with this sequence or a larger one was written on a condition stands in the log. None in a store of an older
    /// build, until it is opened.
    pub(crate) bases_from: Option<u64>,
}

impl Superblock {
    /// As written to copy `copy`.
    pub(crate) fn encode(&self, copy: usize) -> BufferMut {
        let mut block = BufferMut::zeroed(RECORD_BLOCK);
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(8, &FORMAT_VERSION.to_be_bytes());
        put(24, &self.serial.to_be_bytes());
        put(32, &self.store_id.0);
        put(48, &self.volume_id.0);
        if let UnitKind::Sealed { domain, custody } = self.kind {
            put(64, &domain.0);
            put(80, &[1, custody as u8]);
        }
        put(84, &self.geometry.block_size.bytes().to_be_bytes());
        put(88, &self.geometry.blocks.to_be_bytes());
        put(96, &(self.kind.record_bytes() as u32).to_be_bytes());
        put(100, &self.segment_bytes.to_be_bytes());
        put(104, &self.segments.to_be_bytes());
        put(112, &self.retention_blocks.to_be_bytes());
        put(120, &self.open_epoch.to_be_bytes());
        put(128, &self.open_id.to_be_bytes());
        put(136, &self.table_segment.to_be_bytes());
        put(140, &self.table_block.to_be_bytes());
        put(144, &self.table_lsn.to_be_bytes());
        put(152, &self.sequence_limit.to_be_bytes());
        put(160, &self.next_generation.to_be_bytes());
        put(168, &self.durable_lsn.to_be_bytes());
        put(176, &[u8::from(self.clean)]);
        let erasing = if self.erasing { FEATURE_ERASING } else { 0 };
        let second = if self.second_table.is_some() { FEATURE_SECOND_TABLE } else { 0 };
        let bases = if self.bases_from.is_some() { FEATURE_BASES } else { 0 };
        put(FEATURES_AT, &(FEATURE_OPERATIONS | erasing | second | bases).to_be_bytes());
        put(BASES_FROM_AT, &self.bases_from.unwrap_or(0).to_be_bytes());
        put(INCARNATION_AT, &self.incarnation.to_be_bytes());
        if let Some(at) = self.checkpoint {
            put(192, &at.segment.to_be_bytes());
            put(196, &at.block.to_be_bytes());
            put(200, &at.generation.to_be_bytes());
            put(208, &at.begin_lsn.to_be_bytes());
        }
        if let Some(SecondTable { segment, block, lsn, end }) = self.second_table {
            put(SECOND_TABLE_AT, &segment.to_be_bytes());
            put(SECOND_TABLE_AT + 4, &block.to_be_bytes());
            put(SECOND_TABLE_AT + 8, &lsn.to_be_bytes());
            put(SECOND_TABLE_AT + 16, &end.segment.to_be_bytes());
            put(SECOND_TABLE_AT + 20, &end.block.to_be_bytes());
            put(SECOND_TABLE_AT + 24, &end.lsn.to_be_bytes());
            put(SECOND_TABLE_AT + 32, &end.generation.to_be_bytes());
            put(SECOND_TABLE_AT + 40, &end.next_segment.to_be_bytes());
        }
        let sum = checksum(&block, copy);
        block[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&sum.to_be_bytes());
        block
    }

    /// Reads copy `copy` from 4096 bytes.
    ///
    /// # Errors
    /// [`StoreError::Superblock`] or [`StoreError::Version`].
    pub(crate) fn decode(block: &[u8], copy: usize) -> Result<Superblock, StoreError> {
        let bad = |what: &str| StoreError::Superblock(what.to_owned());
        if block.len() != RECORD_BLOCK || block[..8] != MAGIC {
            return Err(bad("no magic"));
        }
        // First, so that a version is only believed of a copy that is whole.
        if be_u64(block, CHECKSUM_AT) != checksum(block, copy) {
            return Err(bad("its checksum does not fit"));
        }
        let version = be_u32(block, 8);
        if !(FORMAT_VERSION_OLDEST..=FORMAT_VERSION).contains(&version) {
            return Err(StoreError::Version { found: version, known: FORMAT_VERSION });
        }
        check_features(block)?;
        let (features, incarnation) = (be_u64(block, FEATURES_AT), be_u64(block, INCARNATION_AT));
        let kind = match block[80] {
            0 => UnitKind::Plain,
            1 => UnitKind::Sealed {
                domain: SealingDomain(array(block, 64)),
                custody: Custody::from_byte(block[81]).map_err(|error| bad(&error.to_string()))?,
            },
            _ => return Err(bad("unknown kind of unit")),
        };
        let block_size = BlockSize::new(u64::from(be_u32(block, 84))).map_err(|error| bad(&error.to_string()))?;
        let superblock = Superblock {
            serial: be_u64(block, 24),
            store_id: StoreId(array(block, 32)),
            volume_id: VolumeId(array(block, 48)),
            kind,
            geometry: Geometry { block_size, blocks: be_u64(block, 88) },
            segment_bytes: be_u32(block, 100),
            segments: be_u32(block, 104),
            retention_blocks: be_u64(block, 112),
            open_epoch: be_u64(block, 120),
            open_id: be_u64(block, 128),
            table_segment: be_u32(block, 136),
            table_block: be_u32(block, 140),
            table_lsn: be_u64(block, 144),
            second_table: (features & FEATURE_SECOND_TABLE != 0).then(|| second_table(block)),
            sequence_limit: be_u64(block, 152),
            next_generation: be_u64(block, 160),
            durable_lsn: be_u64(block, 168),
            clean: block[176] != 0,
            checkpoint: Some(CheckpointAt {
                segment: be_u32(block, 192),
                block: be_u32(block, 196),
                generation: be_u64(block, 200),
                begin_lsn: be_u64(block, 208),
            })
            .filter(|at| at.generation != 0),
            erasing: features & FEATURE_ERASING != 0,
            incarnation,
            bases_from: (features & FEATURE_BASES != 0).then(|| be_u64(block, BASES_FROM_AT)),
        };
        superblock.check(be_u32(block, 96)).map_err(bad)?;
        Ok(superblock)
    }

    fn check(&self, record_bytes: u32) -> Result<(), &'static str> {
        if record_bytes as usize != self.kind.record_bytes() {
            return Err("record length and custody contradict each other");
        }
        if !segment_bytes_valid(self.segment_bytes) || self.segments == 0 {
            return Err("impossible segment size or count");
        }
        if !countable(self.segments, self.segment_bytes) {
            return Err("more segments than can be addressed");
        }
        if self.segment_bytes / self.geometry.block_size.bytes() < SEGMENT_BLOCKS_MIN {
            return Err("segments of less than 16 blocks");
        }
        // Every block has room in the log: so what its index takes in memory is bounded by the medium's size.
        let log_bytes = u64::from(self.segments) * u64::from(self.segment_bytes);
        if self.geometry.blocks == 0 || self.geometry.blocks > log_bytes / u64::from(self.geometry.block_size.bytes()) {
            return Err("impossible size of the volume");
        }
        if self.retention_blocks > self.geometry.blocks {
            return Err("impossible count of retained versions");
        }
        let counters =
            [self.serial, self.open_epoch, self.table_lsn, self.next_generation, self.durable_lsn, self.sequence_limit];
        if counters.into_iter().any(|counter| counter >= COUNTER_MAX) {
            return Err("an impossible counter");
        }
        if self.table_lsn == 0 {
            return Err("an impossible segment table");
        }
        if self.table_segment >= self.segments || self.table_block >= self.segment_bytes / RECORD_BLOCK as u32 {
            return Err("the segment table lies outside the log");
        }
        if let Some(SecondTable { segment, block, lsn, end }) = self.second_table {
            let blocks = self.segment_bytes / RECORD_BLOCK as u32;
            let next = end.next_segment < self.segments || end.next_segment == NO_SEGMENT;
            if segment >= self.segments
                || block >= blocks
                || end.segment >= self.segments
                || end.block > blocks
                || !next
            {
                return Err("the second segment table lies outside the log");
            }
            if lsn <= self.table_lsn || end.lsn < lsn || end.lsn.max(end.generation) >= COUNTER_MAX {
                return Err("an impossible second segment table");
            }
        }
        if let Some(at) = self.checkpoint
            && (at.segment >= self.segments || at.block >= self.segment_bytes / RECORD_BLOCK as u32)
        {
            return Err("the checkpoint lies outside the log");
        }
        if self.bases_from.is_some_and(|from| from > self.sequence_limit) {
            return Err("an impossible sequence of the first base");
        }
        if self.sequence_limit >= SEQUENCE_MAX {
            return Err("store sequences are exhausted");
        }
        Ok(())
    }

    /// The better one of two copies as read, and which copy it is.
    ///
    /// # Errors
    /// If neither is valid: why the more telling one is not.
    pub(crate) fn choose(copies: [&[u8]; 2]) -> Result<(Superblock, usize), StoreError> {
        match (Superblock::decode(copies[0], 0), Superblock::decode(copies[1], 1)) {
            // A whole copy of another format says that a build that knows more was here: the other copy may be outdated.
            (Err(error @ StoreError::Version { .. }), _) | (_, Err(error @ StoreError::Version { .. })) => Err(error),
            (Ok(a), Ok(b)) if b.serial > a.serial => Ok((b, 1)),
            (Ok(a), _) => Ok((a, 0)),
            (Err(_), Ok(b)) => Ok((b, 1)),
            (Err(error), Err(_)) => Err(error),
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        Layout {
            segment_bytes: self.segment_bytes,
            segments: self.segments,
            block_bytes: self.geometry.block_size.bytes(),
            item_bytes: Layout::item_bytes_of(self.kind),
        }
    }

    pub(crate) fn info(&self) -> VolumeInfo {
        VolumeInfo {
            store_id: self.store_id,
            volume_id: self.volume_id,
            geometry: self.geometry,
            kind: self.kind,
            format_version: FORMAT_VERSION,
            segment_bytes: self.segment_bytes,
            segments: self.segments,
            retention_blocks: self.retention_blocks,
            open_epoch: self.open_epoch,
        }
    }
}

/// Whether a segment may have this size.
pub(crate) fn segment_bytes_valid(bytes: u32) -> bool {
    bytes.is_power_of_two() && (64 << 10..=16 << 20).contains(&bytes)
}

fn array(block: &[u8], at: usize) -> [u8; 16] {
    block[at..at + 16].try_into().expect("16 bytes")
}

fn checksum(block: &[u8], copy: usize) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&SUPERBLOCK_AT[copy].to_be_bytes());
    digest.update(&block[..CHECKSUM_AT]);
    digest.update(&block[CHECKSUM_AT + 8..]);
    digest.finalize()
}

/// Checks that the reserved bytes, and those of features that are off, are zero.
fn check_features(block: &[u8]) -> Result<(), StoreError> {
    let bad = |what: &str| StoreError::Superblock(what.to_owned());
    let features = be_u64(block, FEATURES_AT);
    if features & !(FEATURE_ERASING | FEATURE_OPERATIONS | FEATURE_SECOND_TABLE | FEATURE_BASES) != 0 {
        // The version of the format is the same, but something was switched on that this build would misread.
        return Err(StoreError::Version { found: FORMAT_VERSION + 1, known: FORMAT_VERSION });
    }
    if !RESERVED.iter().all(|range| block[range.clone()].iter().all(|&byte| byte == 0)) {
        return Err(bad("a reserved byte is not zero"));
    }
    let incarnation = be_u64(block, INCARNATION_AT);
    let bases_from = be_u64(block, BASES_FROM_AT);
    let unknown = features & FEATURE_OPERATIONS == 0 && incarnation != 0;
    if unknown || features & FEATURE_BASES == 0 && bases_from != 0 {
        return Err(bad("a reserved byte is not zero"));
    }
    let has_second_table = features & FEATURE_SECOND_TABLE != 0;
    if !has_second_table && block[SECOND_TABLE_AT..SECOND_TABLE_END].iter().any(|&byte| byte != 0) {
        return Err(bad("a reserved byte is not zero"));
    }
    Ok(())
}

fn second_table(block: &[u8]) -> SecondTable {
    SecondTable {
        segment: be_u32(block, SECOND_TABLE_AT),
        block: be_u32(block, SECOND_TABLE_AT + 4),
        lsn: be_u64(block, SECOND_TABLE_AT + 8),
        end: TableEnd {
            segment: be_u32(block, SECOND_TABLE_AT + 16),
            block: be_u32(block, SECOND_TABLE_AT + 20),
            lsn: be_u64(block, SECOND_TABLE_AT + 24),
            generation: be_u64(block, SECOND_TABLE_AT + 32),
            next_segment: be_u32(block, SECOND_TABLE_AT + 40),
        },
    }
}

/// For fuzzing: makes any superblock's checksum fit.
pub(crate) fn fit_checksum(block: &mut [u8], copy: usize) {
    block[..8].copy_from_slice(&MAGIC);
    let sum = checksum(block, copy);
    block[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            serial: 7,
            store_id: StoreId([1; 16]),
            volume_id: VolumeId([2; 16]),
            kind: UnitKind::Sealed { domain: SealingDomain([3; 16]), custody: Custody::KeyFile },
            geometry: Geometry { block_size: BlockSize::DEFAULT, blocks: 500 },
            segment_bytes: 1 << 16,
            segments: 40,
            retention_blocks: 100,
            open_epoch: 3,
            open_id: 0x1234,
            table_segment: 2,
            table_block: 1,
            table_lsn: 99,
            second_table: Some(SecondTable {
                segment: 2,
                block: 2,
                lsn: 100,
                end: TableEnd { segment: 2, block: 3, lsn: 100, generation: 11, next_segment: NO_SEGMENT },
            }),
            sequence_limit: 1 << 33,
            next_generation: 12,
            durable_lsn: 98,
            clean: true,
            checkpoint: Some(CheckpointAt { segment: 3, block: 2, generation: 9, begin_lsn: 77 }),
            erasing: false,
            incarnation: 0x5566,
            bases_from: Some(0x77),
        }
    }

    #[test]
    fn decodes_as_encoded_and_knows_its_place() {
        let block = sample().encode(1);
        assert_eq!(Superblock::decode(&block, 1).unwrap(), sample());
        assert!(Superblock::decode(&block, 0).is_err(), "a copy written to the wrong place");
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let good = sample().encode(0);
        for at in 0..272 {
            let mut bad = good.to_vec();
            bad[at] ^= 0x10;
            assert!(Superblock::decode(&bad, 0).is_err(), "byte {at}");
        }
    }

    #[test]
    fn the_newer_valid_copy_counts() {
        let older = sample().encode(0);
        let mut newer = sample();
        newer.serial = 8;
        let mut newer = newer.encode(1);
        assert_eq!(Superblock::choose([&older, &newer]).unwrap().0.serial, 8);
        newer[30] ^= 1;
        assert_eq!(Superblock::choose([&older, &newer]).unwrap().0.serial, 7);
        assert!(Superblock::choose([&[0; 4096], &newer]).is_err());
    }

    #[test]
    fn an_unknown_feature_is_a_newer_format() {
        for at in FEATURES_AT..FEATURES_AT + 8 {
            let block = patched(&sample(), 0, at, 0x80);
            assert!(matches!(Superblock::decode(&block, 0), Err(StoreError::Version { .. })));
        }
        let erasing = Superblock { erasing: true, ..sample() };
        let block = erasing.encode(0);
        assert_eq!(block[FEATURES_AT..FEATURES_AT + 8], 15u64.to_be_bytes());
        assert_eq!(Superblock::decode(&block, 0).unwrap(), erasing);
        // As builds wrote it that knew no incarnation.
        let without = Superblock { incarnation: 0, second_table: None, bases_from: None, ..sample() };
        let block = patched(&without, 0, FEATURES_AT + 7, 0);
        assert_eq!(Superblock::decode(&block, 0).unwrap(), without);
        assert!(Superblock::decode(&patched(&sample(), 0, FEATURES_AT + 7, 0), 0).is_err(), "bytes without their bit");
        for features in [2, 6, 10] {
            let block = patched(&sample(), 0, FEATURES_AT + 7, features);
            assert!(Superblock::decode(&block, 0).is_err(), "bytes without their bit");
        }
    }

    /// A whole copy with one byte changed.
    fn patched(superblock: &Superblock, copy: usize, at: usize, byte: u8) -> BufferMut {
        let mut block = superblock.encode(copy);
        block[at] = byte;
        let sum = checksum(&block, copy);
        block[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&sum.to_be_bytes());
        block
    }

    #[test]
    fn a_newer_format_is_named_and_never_passed_over() {
        for version in [0, 9] {
            let newer = patched(&sample(), 0, 11, version);
            let is_named = |result| matches!(result, Err(StoreError::Version { found, .. }) if found == version.into());
            assert!(is_named(Superblock::decode(&newer, 0).map(|_| ())));
            assert!(is_named(Superblock::choose([&newer, &sample().encode(1)]).map(|_| ())));
            let newer = patched(&sample(), 1, 11, version);
            assert!(is_named(Superblock::choose([&sample().encode(0), &newer]).map(|_| ())));
        }
        let mut torn = sample().encode(0);
        torn[11] = 9;
        assert!(Superblock::choose([&torn, &sample().encode(1)]).is_ok(), "a torn copy names no version");
    }

    #[test]
    fn reserved_bytes_are_zeros() {
        for at in [12, 82, 108, 177, 268, 4095] {
            assert!(Superblock::decode(&patched(&sample(), 0, at, 1), 0).is_err(), "byte {at}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |change: fn(&mut Superblock)| {
            let mut superblock = sample();
            change(&mut superblock);
            assert!(Superblock::decode(&superblock.encode(0), 0).is_err(), "{superblock:?}");
        };
        refused(|superblock| superblock.serial = u64::MAX);
        refused(|superblock| superblock.open_epoch = u64::MAX);
        refused(|superblock| superblock.table_lsn = u64::MAX);
        refused(|superblock| superblock.table_lsn = 0);
        refused(|superblock| superblock.second_table.as_mut().unwrap().lsn = 99);
        refused(|superblock| superblock.second_table.as_mut().unwrap().segment = 40);
        refused(|superblock| superblock.second_table.as_mut().unwrap().end.lsn = 99);
        refused(|superblock| superblock.second_table.as_mut().unwrap().end.block = 17);
        refused(|superblock| superblock.second_table.as_mut().unwrap().end.next_segment = 40);
        refused(|superblock| superblock.second_table.as_mut().unwrap().end.generation = 1 << 62);
        refused(|superblock| superblock.next_generation = 1 << 62);
        refused(|superblock| superblock.durable_lsn = 1 << 62);
        refused(|superblock| superblock.geometry.blocks = u64::MAX >> 17);
        refused(|superblock| superblock.geometry.blocks = 641);
        refused(|superblock| superblock.retention_blocks = u64::MAX);
        refused(|superblock| superblock.geometry.block_size = BlockSize::new(8192).unwrap());
    }
}
