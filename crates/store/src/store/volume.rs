//! What every part of a store needs to know of its volume: identity, shape, and where things are on the medium.

use crate::layout::Layout;
use crate::options::VolumeInfo;
use crate::planted::{Planted, PlantedFault};
use crate::superblock::Superblock;

/// The volume of an open store. Changes only when the volume grows or is erased.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub(super) info: VolumeInfo,
    pub(super) layout: Layout,
    /// From this sequence on the log says of every write whether it had a condition; `None`: of no write.
    bases_from: Option<u64>,
    planted: Planted,
}

impl Volume {
    pub(super) fn new(superblock: &Superblock, planted: Planted) -> Volume {
        Volume { info: superblock.info(), layout: superblock.layout(), bases_from: superblock.bases_from, planted }
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.info.kind.is_sealed()
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.layout.block_bytes as usize
    }

    /// The bytes of one segment.
    pub(super) fn segment_bytes(&self) -> u64 {
        u64::from(self.layout.segment_bytes)
    }

    /// The base of what was written without a condition: its own sequence, or 0 (unknown) if the log of that time does not tell.
    pub(super) fn base_of_unconditional(&self, sequence: u64) -> u64 {
        if self.bases_from.is_some_and(|from| sequence >= from) { sequence } else { 0 }
    }

    /// Whether the store shall make a mistake, for a simulation.
    pub(super) fn has_planted(&self, fault: PlantedFault) -> bool {
        self.planted.has(fault)
    }
}
