//! The survey: what a store's superblocks say and, if it can be recovered, what it holds. Reads only; needs no keys.

use std::path::Path;

use crate::backend::Backend;
use crate::error::StoreError;
use crate::layout::SUPERBLOCK_AT;
use crate::options::VolumeInfo;
use crate::planted::Planted;
use crate::recover::{recover, superblocks};

/// What one copy of the superblock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuperblockSummary {
    /// Where it is, in bytes of the log.
    pub offset: u64,
    /// Grows with every superblock written.
    pub serial: u64,
    /// How many times the store was opened.
    pub open_epoch: u64,
    /// Whether it was closed in order.
    pub clean: bool,
    /// Where the segment table begins, in bytes of the log.
    pub table_offset: u64,
    /// Where the second one begins, if there is one.
    pub second_table_offset: Option<u64>,
    /// The volume.
    pub info: VolumeInfo,
}

/// What a store holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Segments that hold something.
    pub segments_used: u32,
    /// Blocks with data.
    pub blocks: u64,
    /// Older versions that are kept.
    pub versions: u64,
    /// Holes.
    pub holes: u64,
    /// Memory that the index takes while the store is open, in bytes, caches not counted.
    pub index_bytes: u64,
    /// Bytes of blocks and records that count.
    pub live_bytes: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Branches: the volume itself, and its clones.
    pub branches: u64,
}

/// What there is to see of a store in any state.
#[derive(Debug)]
pub struct Survey {
    /// Both copies of the superblock, or what is wrong with them.
    pub superblocks: [Result<SuperblockSummary, StoreError>; 2],
    /// What the store holds, or why it does not open.
    pub contents: Result<Contents, StoreError>,
}

impl Survey {
    /// The volume, if any superblock is whole: what the newer one says.
    pub fn info(&self) -> Option<&VolumeInfo> {
        let whole = self.superblocks.iter().filter_map(|copy| copy.as_ref().ok());
        whole.max_by_key(|copy| copy.serial).map(|copy| &copy.info)
    }
}

impl Survey {
    /// Looks at the store in `dir`, which must not be open, in any state.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::InUse`], [`StoreError::Io`].
    pub fn of(dir: &Path) -> Result<Survey, StoreError> {
        let (_lock, mut backend) = crate::store::log_for_reading(dir)?;
        Ok(Survey::of_backend(backend.as_mut()))
    }

    /// Looks at the store on a backend.
    pub fn of_backend(backend: &mut dyn Backend) -> Survey {
        let mut at = SUPERBLOCK_AT.into_iter();
        let superblocks = superblocks(backend).map(|copy| {
            let offset = at.next().expect("one place each");
            copy.map(|superblock| SuperblockSummary {
                offset,
                serial: superblock.serial,
                open_epoch: superblock.open_epoch,
                clean: superblock.clean,
                table_offset: superblock.layout().block_at(superblock.table_segment, superblock.table_block),
                second_table_offset: superblock
                    .second_table
                    .map(|second| superblock.layout().block_at(second.segment, second.block)),
                info: superblock.info(),
            })
        });
        let contents = recover(backend, 0, Planted::default()).map(|recovered| Contents {
            segments_used: recovered.segments.used_count(),
            blocks: recovered.map.blocks(),
            versions: recovered.map.versions.len() + recovered.map.versions.pinned(),
            holes: recovered.map.holes(),
            index_bytes: recovered.map.memory_bytes(),
            live_bytes: recovered.segments.live_bytes(),
            snapshots: recovered.map.catalogue.snapshots.len() as u64,
            branches: recovered.map.catalogue.branches.len() as u64,
        });
        Survey { superblocks, contents }
    }
}
