//! A group of units: what of the log counts only as a whole, and what happens to the index when it is whole.

use strongroom_block::{SealRecord, StoreSequence, Token};

use super::{Head, Store};
use crate::holes::{Hole, ItemPlace};
use crate::index::Version;
use crate::op::{OpError, Outcome};
use crate::planted::PlantedFault;

/// What a group is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum GroupKind {
    #[default]
    Writes,
    Table,
    Cleaning,
}

/// One change of the index, waiting for its group.
pub(super) enum Update {
    Block { lba: u64, version: Version },
    Hole(Box<Hole>),
    Copy { lba: u64, from: Version, to: Version },
    CopyHole { sequence: u64, from: ItemPlace, to: ItemPlace },
}

/// A request all of whose blocks are in the group.
pub(super) struct Finished {
    pub(super) token: Token,
    pub(super) bytes: usize,
    pub(super) first: u64,
    pub(super) fua: bool,
}

/// The group being written.
#[derive(Default)]
pub(super) struct Group {
    pub(super) kind: GroupKind,
    /// Units of it are on the medium (or on their way), and the last is not.
    pub(super) open: bool,
    /// The head before its first unit.
    pub(super) start: Option<Head>,
    /// Segments that became the head since.
    pub(super) opened: Vec<u32>,
    pub(super) finished: Vec<Finished>,
    pub(super) updates: Vec<Update>,
}

impl Store {
    /// The group is whole: the index moves, its requests complete.
    pub(super) fn apply_group(&mut self, lsn: u64) {
        self.head.completed_lsn = lsn;
        let group = std::mem::take(&mut self.group);
        for update in group.updates {
            match update {
                Update::Block { lba, version } => self.apply_block(lba, version),
                Update::Hole(hole) => self.apply_hole(*hole),
                Update::Copy { lba, from, to } => self.apply_copy(lba, from, to),
                Update::CopyHole { sequence, from, to } => self.apply_hole_copy(sequence, from, to),
            }
        }
        self.evict_over_budget();
        for Finished { token, bytes, first, fua } in group.finished {
            let outcome = Outcome::Written { first: StoreSequence(first), repeated: 0 };
            if fua {
                self.complete_when_durable(lsn, token, bytes, outcome);
            } else {
                self.complete(token, bytes, Ok(outcome));
            }
        }
        match group.kind {
            GroupKind::Writes => {}
            GroupKind::Table => self.table_written(lsn),
            GroupKind::Cleaning => self.copies_written(),
        }
    }

    /// The group failed for want of space: it is void, its requests fail, nothing else is touched.
    pub(super) fn void_group(&mut self) {
        let group = std::mem::take(&mut self.group);
        if let Some(start) = group.start {
            for segment in group.opened.into_iter().rev() {
                self.segments.unopen(segment);
            }
            let (next_lsn, next_sequence, next_generation) =
                (self.head.next_lsn, self.head.next_sequence, self.head.next_generation);
            self.segments.reopen(start.segment);
            self.head = Head { next_lsn, next_sequence, next_generation, durable_lsn: self.head.durable_lsn, ..start };
        }
        for Finished { token, bytes, .. } in group.finished {
            self.complete(token, bytes, Err(OpError::NoSpace));
        }
        match group.kind {
            GroupKind::Writes => {}
            GroupKind::Table => self.table_failed(),
            GroupKind::Cleaning => self.copies_failed(),
        }
    }

    fn live_add(&mut self, version: Version) {
        self.segments.add_live(version.segment(&self.layout), self.layout.live_block_bytes());
    }

    pub(super) fn live_sub(&mut self, version: Version) {
        self.segments.sub_live(version.segment(&self.layout), self.layout.live_block_bytes());
    }

    fn apply_block(&mut self, lba: u64, version: Version) {
        self.live_add(version);
        let old = self.index.insert(lba, version);
        if self.info.kind.is_sealed() {
            if let Some(old) = old {
                if self.options.planted.has(PlantedFault::VersionReclaimedTooSoon) && old.sequence() % 8 == 0 {
                    return self.live_sub(old);
                }
                self.versions.keep(lba, old);
            }
        } else if let Some(old) = old {
            self.live_sub(old);
        } else {
            let segments = &mut self.segments;
            self.holes.trim(lba, version.sequence(), |hole| segments.sub_live(hole.place.segment, hole.live_bytes()));
        }
    }

    fn apply_hole(&mut self, hole: Hole) {
        let (start, end) = (hole.start, hole.start + hole.count);
        let (sealed, budget) = (self.info.kind.is_sealed(), self.info.retention_blocks);
        let (layout, weight) = (self.layout, self.layout.live_block_bytes());
        let (segments, versions, stats) = (&mut self.segments, &mut self.versions, &mut self.stats);
        self.index.remove_range(start, end, |lba, version| {
            if !sealed {
                return segments.sub_live(version.segment(&layout), weight);
            }
            versions.keep(lba, version);
            while versions.len() > budget {
                let Some(oldest) = versions.evict() else { return };
                segments.sub_live(oldest.segment(&layout), weight);
                stats.versions_evicted += 1;
            }
        });
        let segments = &mut self.segments;
        segments.add_live(hole.place.segment, hole.live_bytes());
        self.holes.insert(hole, |gone| segments.sub_live(gone.place.segment, gone.live_bytes()));
    }

    fn apply_copy(&mut self, lba: u64, from: Version, to: Version) {
        if self.index.find(lba) == Some(from) {
            self.index.insert(lba, to);
        } else if !self.versions.relocate(lba, from, to) {
            return; // Overwritten while it was copied: the copy is dead on arrival.
        }
        self.live_sub(from);
        self.live_add(to);
    }

    fn apply_hole_copy(&mut self, sequence: u64, from: ItemPlace, to: ItemPlace) {
        if self.holes.relocate(sequence, from, to) {
            let bytes = self.holes.hole(sequence).expect("just moved").live_bytes();
            self.segments.sub_live(from.segment, bytes);
            self.segments.add_live(to.segment, bytes);
        }
    }

    /// Retained versions never cost a write: the oldest go.
    pub(super) fn evict_over_budget(&mut self) {
        while self.versions.len() > self.info.retention_blocks {
            let Some(version) = self.versions.evict() else { return };
            self.live_sub(version);
            self.stats.versions_evicted += 1;
        }
    }

    /// Feedback on one block. Returns how many versions it released.
    pub(super) fn verified(&mut self, lba: u64, sequence: u64) -> u64 {
        let newest = self.index.find(lba).is_some_and(|version| version.sequence() == sequence);
        let known = newest
            || self.versions.find(lba, sequence).is_some()
            || self.holes.covering(lba).is_some_and(|(.., hole)| hole == sequence);
        if !known {
            return 0;
        }
        let mut released = Vec::new();
        self.versions.release_below(lba, sequence, |version| released.push(version));
        for &version in &released {
            self.live_sub(version);
        }
        if newest {
            let segments = &mut self.segments;
            self.holes.trim(lba, sequence, |hole| segments.sub_live(hole.place.segment, hole.live_bytes()));
        }
        self.stats.versions_released += released.len() as u64;
        released.len() as u64
    }
}

/// A hole as the log has it.
pub(super) fn hole_of(
    start: u64,
    count: u64,
    sequence: u64,
    record: Option<SealRecord>,
    segment: u32,
    item_at: u32,
) -> Update {
    Update::Hole(Box::new(Hole::new(start, count, sequence, record, ItemPlace { segment, item_at })))
}
