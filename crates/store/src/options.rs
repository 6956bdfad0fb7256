//! How a store is made and opened, and what it tells about itself.

use std::fmt;

use strongroom_block::{Custody, Geometry, SealingDomain, VolumeId};

use crate::backend::IoChoice;
use crate::medium::Medium;

use crate::planted::Planted;

/// Names one store directory. Never shown to initiators: who knows it could write plain blocks that look like log units.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreId(pub [u8; 16]);

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreId({:032x})", u128::from_be_bytes(self.0))
    }
}

/// What kind of unit the store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitKind {
    /// Blocks as they are; absent blocks are zeros.
    Plain,
    /// Sealed blocks with records; absence is sealed too.
    Sealed {
        /// Shared by the volume, its snapshots and its clones.
        domain: SealingDomain,
        /// Who holds the keys; decides the length of a record at rest.
        custody: Custody,
    },
}

impl UnitKind {
    /// Bytes of one seal record at rest; 0 for a plain unit.
    pub fn record_bytes(self) -> usize {
        match self {
            UnitKind::Plain => 0,
            UnitKind::Sealed { custody, .. } => custody.record_bytes_at_rest(),
        }
    }

    /// Whether it is sealed.
    pub fn is_sealed(self) -> bool {
        matches!(self, UnitKind::Sealed { .. })
    }
}

/// How to make a store.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The volume's name among machines.
    pub volume_id: VolumeId,
    /// Block size and number of blocks.
    pub geometry: Geometry,
    /// Plain or sealed.
    pub kind: UnitKind,
    /// Bytes of one segment: a power of two from 64 KiB to 256 MiB.
    pub segment_bytes: u32,
    /// The share of the volume's size that retained versions may take, in percent (sealed units only).
    pub retention_percent: u8,
    /// Space for cleaning, in percent of what the volume and its retained versions take when all of it is written: from
    /// [`SPARE_PERCENT_DEFAULT`](CreateOptions::SPARE_PERCENT_DEFAULT) to [`SPARE_PERCENT_MAX`](CreateOptions::SPARE_PERCENT_MAX).
    pub spare_percent: u16,
    /// The store's identity; `None` draws a random one. Set by tests that need the same bytes twice.
    pub store_id: Option<StoreId>,
    /// What its log lies on.
    pub medium: Medium,
    /// So many segments instead of as many as the volume needs: to measure stores that are fuller than they are made. With as many as it
    /// needs an overwrite always finds space; with fewer it may be told that there is none, because cleaning
    /// passes by segments that are nearly full of what lives.
    #[doc(hidden)]
    pub segments: Option<u32>,
}

impl CreateOptions {
    /// Default bytes of a segment.
    pub const SEGMENT_BYTES_DEFAULT: u32 = 4 << 20;
    /// Default share of retained versions, in percent.
    pub const RETENTION_PERCENT_DEFAULT: u8 = 10;
    /// Default space for cleaning, and the least, in percent.
    pub const SPARE_PERCENT_DEFAULT: u16 = 25;
    /// The most, in percent.
    pub const SPARE_PERCENT_MAX: u16 = 400;

    /// The usual options for a volume.
    pub fn new(volume_id: VolumeId, geometry: Geometry, kind: UnitKind) -> CreateOptions {
        CreateOptions {
            volume_id,
            geometry,
            kind,
            segment_bytes: Self::SEGMENT_BYTES_DEFAULT,
            retention_percent: Self::RETENTION_PERCENT_DEFAULT,
            spare_percent: Self::SPARE_PERCENT_DEFAULT,
            store_id: None,
            medium: Medium::Directory,
            segments: None,
        }
    }
}

/// How to open a store.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// How the log is read and written.
    pub io: IoChoice,
    /// Upper bound on cached record blocks (checksums and seal records), in bytes; one 4 KiB block at least.
    pub record_cache_bytes: usize,
    /// Upper bound on cached data, in bytes; 0: none. Only used where I/O is direct: elsewhere the kernel caches.
    pub data_cache_bytes: usize,
    /// Upper bound on requests taken in and not completed; more are answered [`OpError::Busy`](crate::OpError::Busy).
    pub queue_ops_max: usize,
    /// Upper bound on bytes of data, to write or to read, of requests taken in and not completed; more are answered `Busy`.
    pub queue_bytes_max: usize,
    /// The host's clock, in seconds since 1970: when snapshots and clones were made. Nothing is ordered by it.
    pub clock_seconds: fn() -> u64,
    /// By how much the log must grow before another checkpoint, at least; `None`: 64 MiB, or an eighth of a small store.
    /// At most 1/32 of what is appended is written for checkpoints in any case.
    pub checkpoint_log_bytes: Option<u64>,
    /// Upper bound on a unit of the log that holds writes, in bytes; when half as much is queued, units go side by side.
    #[doc(hidden)]
    pub append_unit_bytes_max: u32,
    /// Bytes of a piece in which cleaning reads a segment: a multiple of 4096.
    #[doc(hidden)]
    pub cleaning_piece_bytes: u32,
    /// Upper bound on the blocks that holes hide in one poll.
    #[doc(hidden)]
    pub hide_blocks_per_poll: u64,
    /// If the part of the log that opening replays is damaged, opens the store read-only and passes over the damage, instead of
    /// refusing; see [`Store::damage`](crate::Store::damage). A store without damage is opened as ever.
    pub read_only_if_damaged: bool,
    /// Tells this opening's units from those of any other; `None` draws a random one. Set by simulations.
    pub open_id: Option<u64>,
    /// The mistake that a simulation wants the store to make.
    #[doc(hidden)]
    pub planted: Planted,
}

impl OpenOptions {
    /// Default bound on cached record blocks, in bytes.
    pub const RECORD_CACHE_BYTES_DEFAULT: usize = 32 << 20;
    /// Default bound on cached data, in bytes.
    pub const DATA_CACHE_BYTES_DEFAULT: usize = 32 << 20;
    /// Default bound on requests taken in and not completed.
    pub const QUEUE_OPS_MAX_DEFAULT: usize = 4096;
    /// Default bound on their data, in bytes.
    pub const QUEUE_BYTES_MAX_DEFAULT: usize = 256 << 20;
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            io: IoChoice::Auto,
            record_cache_bytes: Self::RECORD_CACHE_BYTES_DEFAULT,
            data_cache_bytes: Self::DATA_CACHE_BYTES_DEFAULT,
            queue_ops_max: Self::QUEUE_OPS_MAX_DEFAULT,
            queue_bytes_max: Self::QUEUE_BYTES_MAX_DEFAULT,
            clock_seconds: || {
                let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                since.map_or(0, |since| since.as_secs())
            },
            checkpoint_log_bytes: None,
            // 256 KiB of 4 KiB blocks and their records.
            append_unit_bytes_max: 264 << 10,
            cleaning_piece_bytes: 256 << 10,
            hide_blocks_per_poll: 8192,
            read_only_if_damaged: false,
            open_id: None,
            planted: Planted::default(),
        }
    }
}

/// What a store says of the volume in it; constant while it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// The store's own identity.
    pub store_id: StoreId,
    /// The volume's.
    pub volume_id: VolumeId,
    /// Its shape.
    pub geometry: Geometry,
    /// Plain or sealed.
    pub kind: UnitKind,
    /// Version of the format on disk.
    pub format_version: u32,
    /// Bytes of one segment.
    pub segment_bytes: u32,
    /// Number of segments.
    pub segments: u32,
    /// Upper bound on retained versions, in blocks.
    pub retention_blocks: u64,
    /// How many times the store was opened.
    pub open_epoch: u64,
}

/// How much space a store has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpaceState {
    /// Enough.
    #[default]
    Ample,
    /// The log or the host beneath it will soon have none: make room.
    NearlyFull,
    /// Writes are refused. Reads, discards, feedback and deleting snapshots go on.
    Full,
}

/// Counters and sizes of an open store: a flat record, because each field is one line of the target's reports and metrics, and nothing
/// computes with several of them. Those who count keep counters of their own; [`Store::stats`](crate::Store::stats) collects them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks with data (newest versions), those of snapshots included.
    pub blocks_mapped: u64,
    /// Older versions kept.
    pub versions_retained: u64,
    /// Older versions kept for snapshots, outside the budget.
    pub versions_pinned: u64,
    /// Older versions let go because the budget was exceeded, since the store was opened.
    pub versions_evicted: u64,
    /// How many times older versions within the budget made way for a write that there was no space for, since the store was opened.
    pub versions_made_way: u64,
    /// Older versions let go by feedback, since the store was opened.
    pub versions_released: u64,
    /// Hole extents.
    pub holes: u64,
    /// Segments in the store.
    pub segments_total: u64,
    /// Segments free for use.
    pub segments_free: u64,
    /// Bytes of blocks and records that are live, retained versions included.
    pub live_bytes: u64,
    /// Bytes of segments in use (the host's space, nearly).
    pub used_bytes: u64,
    /// Memory of the index, in bytes: of blocks, and about what older versions and holes take.
    pub index_bytes: u64,
    /// Of these, memory of holes.
    pub hole_bytes: u64,
    /// Memory of everything that the store holds, see [`Store::memory`](crate::Store::memory).
    pub memory_bytes: u64,
    /// Memory of cached record blocks, in bytes, and its bound.
    pub record_cache_bytes: u64,
    /// See above.
    pub record_cache_bytes_max: u64,
    /// Memory of cached data, in bytes, and its bound; 0: none is cached.
    pub data_cache_bytes: u64,
    /// See above.
    pub data_cache_bytes_max: u64,
    /// Data bytes that callers wrote since opened.
    pub written_bytes: u64,
    /// Bytes appended to the log for them, records and padding included.
    pub appended_bytes: u64,
    /// Units of the log that were written while others were on their way.
    pub units_alongside: u64,
    /// Bytes appended by cleaning, records and padding included.
    pub cleaned_bytes: u64,
    /// Bytes of segments that cleaning read, or was lent, for them.
    pub cleaning_read_bytes: u64,
    /// Reads of cleaning that the medium failed. Their segments are tried again later.
    pub cleaning_io_errors: u64,
    /// Bytes of segment tables and notes appended.
    pub table_bytes: u64,
    /// Checkpoints finished since opened.
    pub checkpoints: u64,
    /// Bytes written for checkpoints, unfinished ones included.
    pub checkpoint_bytes: u64,
    /// Whether opening began at a checkpoint instead of reading every record block.
    pub opened_from_checkpoint: bool,
    /// Syncs done.
    pub syncs: u64,
    /// Record blocks found in the cache by reads.
    pub record_cache_hits: u64,
    /// Record blocks that reads had to fetch.
    pub record_cache_misses: u64,
    /// Blocks of data that reads found in the cache.
    pub data_cache_hits: u64,
    /// Blocks of data that short reads had to fetch.
    pub data_cache_misses: u64,
    /// Reads that found a checksum mismatch or an unreadable block.
    pub medium_errors: u64,
    /// Most work that one call of [`Store::poll_completions`](crate::Store::poll_completions) did, in steps; see
    /// [`steps_taken`](crate::steps_taken).
    pub poll_steps_max: u64,
    /// Read by scrubbing, in bytes.
    pub scrubbed_bytes: u64,
    /// How many times scrubbing went through the whole store.
    pub scrub_passes: u64,
    /// Blocks that scrubbing found to be bad, in its last pass and this one so far.
    pub scrub_bad_blocks: u64,
    /// How much space is left.
    pub space: SpaceState,
    /// Bytes that may still be written to blocks that hold nothing, about: what both the log and the host beneath it have room for.
    pub room_bytes: u64,
    /// What the log alone has room for.
    pub log_free_bytes: u64,
    /// What the host's file system has left, as of the last look; `None`: all space was taken when the store was made.
    pub host_free_bytes: Option<u64>,
    /// See [`Store::space_percent`](crate::Store::space_percent).
    pub space_percent: u8,
    /// How far an erase is, in 65536ths; `None`: there is none.
    pub erasing: Option<u16>,
    /// Whether writes are refused because a sync or write failed.
    pub writes_refused: bool,
}
