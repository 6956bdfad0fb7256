//! From entries to index: for every block the entry with the highest sequence counts, in any order.

use strongroom_block::SealRecord;

use super::scan::{Unit, damaged};
use crate::catalogue::{Catalogue, Change, NodeId};
use crate::checkpoint::Run;
use crate::error::StoreError;
use crate::holes::{Hole, ItemPlace};
use crate::index::Version;
use crate::layout::{Layout, RECORD_BLOCK, SEQUENCE_MAX, be_u64};
use crate::map::BlockMap;
use crate::operations::Operations;
use crate::planted::{Planted, PlantedFault};
use crate::segments::Segments;
use crate::superblock::Superblock;
use crate::unit::{Entry, VERIFIED_PAIR};
use crate::verified::Verified;

/// How many versions over the budget are kept while loading, besides a quarter of it.
const VERSIONS_SLACK: u64 = 4096;

/// Builds the state of a store from its units, given in the order of the log.
pub(crate) struct Loader {
    layout: Layout,
    sealed: bool,
    blocks: u64,
    retention_blocks: u64,
    map: BlockMap,
    verified: Verified,
    operations: Operations,
    /// What is loaded follows the segment table: the windows go on.
    in_tail: bool,
    /// Larger than any sequence seen.
    pub(crate) next_sequence: u64,
    /// Of the unit loaded last.
    last_lsn: u64,
    /// Units up to this one are in the checkpoint.
    pub(crate) begin_lsn: u64,
    pub(crate) planted: Planted,
}

impl Loader {
    pub(crate) fn new(superblock: &Superblock, catalogue: Catalogue) -> Loader {
        Loader {
            layout: superblock.layout(),
            sealed: superblock.kind.is_sealed(),
            blocks: superblock.geometry.blocks,
            retention_blocks: superblock.retention_blocks,
            verified: Verified::default(),
            operations: Operations::new(superblock.segment_bytes),
            in_tail: false,
            next_sequence: catalogue.newest_begins().max(1),
            map: BlockMap::new(catalogue),
            last_lsn: 0,
            begin_lsn: 0,
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
        if unit.header.lsn <= self.begin_lsn {
            return Ok(());
        }
        for entry in unit.entries(&self.layout) {
            self.entry(unit, entry).ok_or_else(|| damaged(unit.segment, unit.block, "a possible entry of the log"))?;
        }
        Ok(())
    }

    fn entry(&mut self, unit: &Unit, entry: Entry<'_>) -> Option<()> {
        let unit_at = unit.block * RECORD_BLOCK as u32;
        match entry {
            Entry::Blocks { branch, lba, sequence, count, item_at, data_index, .. } => {
                self.possible(lba, u64::from(count), sequence)?;
                let data_at = unit.data_at() + data_index * self.layout.block_bytes;
                let first = Version::new(&self.layout, sequence, unit.segment, data_at, unit_at + item_at);
                self.blocks(branch, Run { lba, count, first });
            }
            Entry::Hole { branch, start, count, sequence, record, item_at, is_conditional } => {
                self.possible(start, count, sequence)?;
                let record = match (self.sealed, record) {
                    (false, []) => None,
                    (true, record) => Some(SealRecord::decode(record).ok()?),
                    _ => return None,
                };
                if is_conditional && record.is_none() {
                    return None;
                }
                let place = ItemPlace { segment: unit.segment, item_at: unit_at + item_at };
                self.hole(branch, Hole::new(start, count, sequence, record, place).conditional(is_conditional));
            }
            Entry::Verified { branch, pairs } => {
                for pair in pairs.chunks_exact(VERIFIED_PAIR) {
                    self.verified.note(branch, be_u64(pair, 0), be_u64(pair, 8));
                }
            }
            Entry::Change { branch, sequence, bytes } => {
                self.possible(0, 0, sequence)?;
                if self.in_tail
                    && let Some(Change::CloneDelete { branch }) = Change::decode(branch, bytes)
                {
                    self.operations.forget_branch(branch);
                }
            }
            Entry::Operation { branch, operation, count } if self.in_tail => {
                self.operations.note(branch, operation, count);
            }
            Entry::Registration { branch, attach_id } if self.in_tail => self.operations.register(branch, attach_id),
            Entry::Operation { .. } | Entry::Registration { .. } => {}
            Entry::Table { .. } | Entry::Catalogue { .. } | Entry::Windows { .. } => {}
        }
        Some(())
    }

    /// Takes in a run of blocks of a checkpoint, if their segment still `counts`.
    pub(crate) fn run(&mut self, branch: u32, run: Run, counts: impl Fn(u32) -> bool) -> Option<()> {
        // Check the first one before any other is derived from it: a location outside the log has no others beside it.
        if !run.first.possible(&self.layout) {
            return None;
        }
        let last = run.first.step(&self.layout, run.count - 1);
        let (segment, sequence) = (run.first.segment(&self.layout), run.first.sequence());
        if !last.possible(&self.layout) || last.segment(&self.layout) != segment {
            return None;
        }
        self.possible(run.lba, u64::from(run.count), sequence)?;
        if counts(segment) {
            self.blocks(branch, run);
        }
        Some(())
    }

    /// As [`Loader::run`], for a hole.
    pub(crate) fn hole_from_checkpoint(&mut self, branch: u32, hole: Hole, counts: impl Fn(u32) -> bool) -> Option<()> {
        self.possible(hole.start, hole.count, hole.sequence)?;
        let fits = hole.place.segment < self.layout.segments && hole.place.item_at < self.layout.segment_bytes;
        if !fits || hole.record.is_some() != self.sealed {
            return None;
        }
        if counts(hole.place.segment) {
            self.hole(branch, hole);
        }
        Some(())
    }

    /// What is loaded from here on follows the segment table, which has these windows.
    pub(crate) fn goes_on_from(&mut self, operations: Operations) {
        self.operations = operations;
        self.in_tail = true;
    }

    fn possible(&mut self, lba: u64, count: u64, sequence: u64) -> Option<()> {
        let end = sequence.checked_add(count).filter(|&end| sequence > 0 && end < SEQUENCE_MAX)?;
        self.next_sequence = self.next_sequence.max(end);
        (lba.checked_add(count)? <= self.blocks).then_some(())
    }

    fn blocks(&mut self, branch: u32, run: Run) {
        let mut at = 0;
        while at < run.count {
            let sequence = run.first.sequence() + u64::from(at);
            // One look at the spans for all that are in the same.
            match self.map.catalogue.node_until(branch, sequence) {
                None => at += 1,
                Some((node, to)) => {
                    let end = u64::from(at).saturating_add(to - sequence).min(u64::from(run.count)) as u32;
                    for at in at..end {
                        let version = run.first.step(&self.layout, at);
                        self.block(node, branch, run.lba + u64::from(at), version);
                    }
                    at = end;
                }
            }
        }
    }

    fn block(&mut self, node: NodeId, branch: u32, lba: u64, version: Version) {
        let table = self.map.table_mut(node);
        let above = table.holes.covering(lba).is_some_and(|(.., sequence)| sequence > version.sequence());
        if above {
            return self.older(branch, lba, version);
        }
        let Some(old) = table.index.insert(lba, version) else { return };
        if old.sequence() > version.sequence() {
            table.index.insert(lba, old);
            self.older(branch, lba, version);
        } else if old.sequence() < version.sequence() {
            let branch = self.map.labels(node).branch(old.sequence()).expect("it was put there by its span");
            self.older(branch, lba, old);
        }
    }

    fn older(&mut self, branch: u32, lba: u64, version: Version) {
        if self.sealed {
            keep_within(&mut self.map, self.retention_blocks, branch, lba, version);
        }
    }

    fn hole(&mut self, branch: u32, hole: Hole) {
        let Some(node) = self.map.catalogue.node_of(branch, hole.sequence) else { return };
        let (start, end, sequence) = (hole.start, hole.start + hole.count, hole.sequence);
        let labels = self.map.labels(node);
        let table = self.map.table_mut(node);
        table.holes.insert(hole, |_, _, _| false, |_| ());
        let mut hidden = Vec::new();
        let sealed = self.sealed;
        table.index.retain_range(start, end, |lba, version| {
            let stays = version.sequence() > sequence;
            if !stays && sealed {
                hidden.push((lba, version));
            }
            stays
        });
        for (lba, version) in hidden {
            let branch = labels.branch(version.sequence()).expect("it was put there by its span");
            keep_within(&mut self.map, self.retention_blocks, branch, lba, version);
        }
    }

    /// The state, with everything live counted in its segment.
    pub(crate) fn finish(mut self, segments: &mut Segments) -> (BlockMap, Operations) {
        self.verified.release(&mut self.map);
        // What was pinned while the tree was not known as a whole is looked at again.
        self.map.versions.unpin();
        evict_to(&mut self.map, self.retention_blocks);
        let (layout, weight) = (self.layout, self.layout.live_block_bytes());
        for (_, table) in self.map.tables() {
            table.index.for_each(|_, version| segments.add_live(version.segment(&layout), weight));
            table.holes.for_each(|hole| segments.add_live(hole.place.segment, hole.live_bytes()));
        }
        self.map.versions.for_each(|_, _, version| segments.add_live(version.segment(&layout), weight));
        (self.map, self.operations)
    }
}

/// Keeps a version. What is far over the budget goes at once, so that opening takes no more memory than being open: those
/// with the lowest sequences, which would not stay in the end either.
fn keep_within(map: &mut BlockMap, budget: u64, branch: u32, lba: u64, version: Version) {
    map.versions.keep_unordered(branch, lba, version);
    if map.versions.len() > budget + budget / 4 + VERSIONS_SLACK {
        evict_to(map, budget);
    }
}

fn evict_to(map: &mut BlockMap, budget: u64) {
    map.versions.order_by_sequence();
    let mut fuel = usize::MAX;
    while map.evict(budget, &mut fuel).is_some() {}
}
