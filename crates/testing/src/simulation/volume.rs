//! The volume of a run: what it is, and how it grows.

use strongroom_block::{BlockSize, Custody, Geometry, SealRecord, VolumeId};
use strongroom_store::{CreateOptions, StoreId, UnitKind};

use crate::{Content, Random, ReadBlock, record_for};

/// What the store holds.
pub(super) struct Volume {
    pub(super) kind: UnitKind,
    pub(super) block_size: BlockSize,
    pub(super) segment_bytes: u32,
    pub(super) blocks: u64,
}

impl Volume {
    /// How its store, or another one for it, is made.
    pub(super) fn create_options(&self, number: u8, random: &mut Random) -> CreateOptions {
        let geometry = Geometry { block_size: self.block_size, blocks: self.blocks };
        let mut options = CreateOptions::new(VolumeId([number; 16]), geometry, self.kind);
        options.segment_bytes = self.segment_bytes;
        options.retention_percent = [10, 50, 100][random.below(3) as usize];
        options.store_id = Some(StoreId([6 + number; 16]));
        options
    }

    /// The seal record of a block, or of a hole.
    pub(super) fn record(&self, op: u64, index: u64, bytes: Option<&[u8]>) -> SealRecord {
        let record = record_for(op, index, bytes);
        match self.kind {
            UnitKind::Sealed { custody: Custody::Target, .. } => record.with_block_key(&[op as u8; 40]),
            _ => record,
        }
    }

    /// Some blocks, first and count: at most `most`.
    pub(super) fn range(&self, most: u64, random: &mut Random) -> (u64, u64) {
        let lba = random.below(self.blocks);
        let count = 1 + random.below(most.min(self.blocks - lba));
        (lba, count)
    }

    /// What to discard: mostly a little, at times a lot, at times all of it.
    pub(super) fn ranges_to_discard(&self, random: &mut Random) -> Vec<(u64, u64)> {
        match random.below(8) {
            0 => vec![(0, self.blocks)],
            1 => vec![self.range(self.blocks, random)],
            2 => (0..1 + random.below(6)).map(|_| self.range(10, random)).collect(),
            _ => vec![self.range(40, random)],
        }
    }

    /// What blocks hold that the volume grew by.
    pub(super) fn never_written(&self) -> Content {
        if self.kind.is_sealed() { Content::Nothing } else { Content::Hole }
    }

    /// What was read before the volume grew.
    pub(super) fn as_large_as_now(&self, mut holds: Vec<ReadBlock>) -> Vec<ReadBlock> {
        for lba in holds.len() as u64..self.blocks {
            holds.push(ReadBlock { lba, sequence: 0, content: self.never_written() });
        }
        holds
    }
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
