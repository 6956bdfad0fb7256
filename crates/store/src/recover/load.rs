//! From entries to index: for every block the entry with the highest sequence counts, whatever order they come in.

use strongroom_block::{SealRecord, Stamp};

use super::scan::{Unit, damaged};
use crate::error::StoreError;
use crate::holes::{Hole, HoleMap, ItemPlace};
use crate::index::{BlockIndex, Version};
use crate::layout::{Layout, RECORD_BLOCK, SEQUENCE_MAX};
use crate::planted::{Planted, PlantedFault};
use crate::segments::Segments;
use crate::stamps::StampFilter;
use crate::superblock::Superblock;
use crate::unit::Entry;
use crate::versions::Versions;

/// How many versions over the budget are kept while loading, besides a quarter of it.
const VERSIONS_SLACK: u64 = 4096;

/// Builds the state of a store from its units, given in the order of the log.
pub(crate) struct Loader {
    layout: Layout,
    sealed: bool,
    blocks: u64,
    retention_blocks: u64,
    index: BlockIndex,
    holes: HoleMap,
    versions: Versions,
    stamps: StampFilter,
    /// Larger than any sequence seen.
    pub(crate) next_sequence: u64,
    /// Of the unit loaded last.
    last_lsn: u64,
    pub(crate) planted: Planted,
}

impl Loader {
    pub(crate) fn new(superblock: &Superblock) -> Loader {
        Loader {
            layout: superblock.layout(),
            sealed: superblock.kind.is_sealed(),
            blocks: superblock.geometry.blocks,
            retention_blocks: superblock.retention_blocks,
            index: BlockIndex::new(superblock.geometry.blocks),
            holes: HoleMap::default(),
            versions: Versions::default(),
            stamps: StampFilter::default(),
            next_sequence: 1,
            last_lsn: 0,
            planted: Planted::default(),
        }
    }

    /// Takes in the entries of a unit.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if an entry cannot be of this volume.
    pub(crate) fn load(&mut self, unit: &Unit) -> Result<(), StoreError> {
        // Of two entries with the same sequence the one with the larger LSN counts, because it is loaded later.
        if unit.header.lsn <= self.last_lsn && !self.planted.has(PlantedFault::StaleUnitReplayed) {
            return Err(damaged(unit.segment, unit.block, "a unit in the order of the log"));
        }
        self.last_lsn = unit.header.lsn;
        self.next_sequence = self.next_sequence.max(unit.header.next_sequence);
        for entry in unit.entries(&self.layout) {
            self.entry(unit, entry).ok_or_else(|| damaged(unit.segment, unit.block, "a possible entry of the log"))?;
        }
        Ok(())
    }

    fn entry(&mut self, unit: &Unit, entry: Entry<'_>) -> Option<()> {
        let unit_at = unit.block * RECORD_BLOCK as u32;
        match entry {
            Entry::Blocks { lba, sequence, items, count, item_at, data_index } => {
                self.possible(lba, u64::from(count), sequence)?;
                for (at, item) in (0..count).zip(items.chunks_exact(self.layout.item_bytes as usize)) {
                    let data_at = unit.data_at() + (data_index + at) * self.layout.block_bytes;
                    let item_at = unit_at + item_at + at * self.layout.item_bytes;
                    let sequence = sequence + u64::from(at);
                    let version = Version::new(&self.layout, sequence, unit.segment, data_at, item_at);
                    self.block(lba + u64::from(at), version);
                    if self.sealed {
                        self.stamps.note(Stamp::from_bytes(item[8..32].try_into().expect("24 bytes")));
                    }
                }
            }
            Entry::Hole { start, count, sequence, record, item_at } => {
                self.possible(start, count, sequence)?;
                let record = match (self.sealed, record) {
                    (false, []) => None,
                    (true, record) => Some(SealRecord::decode(record).ok()?),
                    _ => return None,
                };
                let place = ItemPlace { segment: unit.segment, item_at: unit_at + item_at };
                self.hole(Hole::new(start, count, sequence, record, place));
            }
            Entry::Table { .. } => {}
        }
        Some(())
    }

    fn possible(&mut self, lba: u64, count: u64, sequence: u64) -> Option<()> {
        let end = sequence.checked_add(count).filter(|&end| sequence > 0 && end < SEQUENCE_MAX)?;
        self.next_sequence = self.next_sequence.max(end);
        (lba.checked_add(count)? <= self.blocks).then_some(())
    }

    fn block(&mut self, lba: u64, version: Version) {
        let newest = self.index.find(lba);
        if newest.is_some_and(|newest| newest.sequence() > version.sequence()) || self.hole_above(lba, version) {
            return self.older(lba, version);
        }
        let same = newest.is_some_and(|newest| newest.sequence() == version.sequence());
        if let (Some(old), false) = (self.index.insert(lba, version), same) {
            self.older(lba, old);
        }
    }

    fn hole_above(&self, lba: u64, version: Version) -> bool {
        self.holes.covering(lba).is_some_and(|(.., sequence)| sequence > version.sequence())
    }

    fn older(&mut self, lba: u64, version: Version) {
        if self.sealed {
            keep_within(&mut self.versions, self.retention_blocks, lba, version);
        }
    }

    fn hole(&mut self, hole: Hole) {
        let (start, end, sequence) = (hole.start, hole.start + hole.count, hole.sequence);
        self.holes.insert(hole, |_| ());
        let (sealed, budget, versions) = (self.sealed, self.retention_blocks, &mut self.versions);
        self.index.retain_range(start, end, |lba, version| {
            let stays = version.sequence() > sequence;
            if !stays && sealed {
                keep_within(versions, budget, lba, version);
            }
            stays
        });
    }

    /// The state, with everything live counted in its segment.
    pub(crate) fn finish(mut self, segments: &mut Segments) -> (BlockIndex, HoleMap, Versions, StampFilter) {
        evict_to(&mut self.versions, self.retention_blocks);
        let (layout, weight) = (self.layout, self.layout.live_block_bytes());
        self.index.for_each(|_, version| segments.add_live(version.segment(&layout), weight));
        self.versions.for_each(|_, version| segments.add_live(version.segment(&layout), weight));
        for hole in self.holes.iter() {
            segments.add_live(hole.place.segment, hole.live_bytes());
        }
        (self.index, self.holes, self.versions, self.stamps)
    }
}

/// Keeps a version. What is far over the budget goes at once, so that opening takes no more memory than being open: those
/// with the lowest sequences, which would not stay in the end either.
fn keep_within(versions: &mut Versions, budget: u64, lba: u64, version: Version) {
    versions.keep(lba, version);
    if versions.len() > budget + budget / 4 + VERSIONS_SLACK {
        evict_to(versions, budget);
    }
}

fn evict_to(versions: &mut Versions, budget: u64) {
    versions.order_by_sequence();
    while versions.len() > budget {
        versions.evict();
    }
}
