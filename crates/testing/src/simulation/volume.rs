//! The volume of a run: what it is, how it grows, and what is known of its erases.

use strongroom_block::BlockSize;
use strongroom_store::{StoreId, UnitKind};

/// What the store holds.
pub(super) struct Volume {
    pub(super) kind: UnitKind,
    pub(super) block_size: BlockSize,
    pub(super) segment_bytes: u32,
    pub(super) blocks: u64,
}

/// How the volume grows.
#[derive(Default)]
pub(super) struct Growth {
    /// Whether it grows at times.
    pub(super) wanted: bool,
    /// Growing to this many blocks was asked for and not answered.
    pub(super) asked: Option<u64>,
    /// What has to be formatted first: first block and count.
    pub(super) unformatted: Option<(u64, u64)>,
}

/// What is known of erases.
pub(super) struct Erases {
    /// The store that there was last.
    pub(super) store_id: StoreId,
    /// One was asked for, and what came of it is not known.
    pub(super) asked: bool,
}
