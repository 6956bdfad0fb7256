//! A group of units: what of the log counts only as a whole, and what happens to the index when it is whole.

use strongroom_block::{Lba, StoreSequence, Token};

use super::operations::Noted;
use super::{Head, Store};
use crate::catalogue::{Change, NodeId};
use crate::holes::{Hole, ItemPlace};
use crate::index::Version;
use crate::map::Table;
use crate::op::{OpError, Outcome};
use crate::planted::PlantedFault;

/// Fragments of older holes that a new one replaces at once; a hole over more of them is taken in in slices.
const FRAGMENTS_AT_ONCE: usize = 256;
/// Retained versions looked at for eviction at once.
const EVICTED_PER_SLICE: usize = 4096;
/// Upper bound on versions that one request with feedback releases.
pub(super) const RELEASED_PER_REQUEST: usize = 16384;

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
    Block { branch: u32, lba: u64, version: Version },
    Hole { branch: u32, hole: Box<Hole> },
    Copy { branch: u32, lba: u64, from: Version, to: Version },
    CopyHole { branch: u32, start: u64, sequence: u64, from: ItemPlace, to: ItemPlace },
    Change { change: Box<Change>, sequence: u64 },
}

/// A request all of whose blocks are in the group.
pub(super) struct Finished {
    pub(super) token: Token,
    pub(super) bytes: usize,
    pub(super) first: u64,
    pub(super) fua: bool,
    /// It asked for holes.
    pub(super) holes: bool,
    /// The answer, if it is not that it was written.
    pub(super) outcome: Option<Outcome>,
    /// What the operation windows have of it.
    pub(super) noted: Option<Noted>,
    /// Of a replay: the first block that was left out although it is lost.
    pub(super) lost: Option<Lba>,
}

impl Finished {
    /// Its answer.
    pub(super) fn answer(&self) -> Result<Outcome, OpError> {
        if let Some(lba) = self.lost {
            return Err(OpError::ReplayLost { lba });
        }
        let written = Outcome::Written { first: StoreSequence(self.first), repeated: 0, superseded: 0 };
        Ok(self.outcome.clone().unwrap_or(written))
    }
}

/// The group being written.
#[derive(Default)]
pub(super) struct Group {
    pub(super) kind: GroupKind,
    /// Units of it are on the medium (or on their way), and the last is not.
    pub(super) open: bool,
    /// The head before its first unit.
    pub(super) start: Option<Head>,
    /// Segments that became the head since it began, until another group did.
    pub(super) opened: Vec<u32>,
    pub(super) finished: Vec<Finished>,
    pub(super) updates: Vec<Update>,
}

impl Store {
    /// The group is whole: the index moves, its requests complete.
    pub(super) fn apply_group(&mut self, group: Group, lsn: u64) {
        self.head.completed_lsn = lsn;
        for update in group.updates {
            match update {
                Update::Block { branch, lba, version } => self.apply_block(branch, lba, version),
                Update::Hole { branch, hole } => self.apply_hole(branch, *hole),
                Update::Copy { branch, lba, from, to } => self.apply_copy(branch, lba, from, to),
                Update::CopyHole { branch, start, sequence, from, to } => {
                    self.apply_hole_copy(branch, start, sequence, from, to);
                }
                Update::Change { change, sequence } => self.apply_change(&change, sequence),
            }
        }
        self.evict_over_budget();
        for finished in group.finished {
            let Finished { token, bytes, .. } = finished;
            match finished.answer() {
                _ if finished.holes => self.complete_when_hidden(finished),
                Ok(outcome) if finished.fua => self.complete_when_durable(lsn, token, bytes, outcome),
                answer => self.complete(token, bytes, answer),
            }
        }
        match group.kind {
            GroupKind::Writes => {}
            GroupKind::Table => self.table_written(lsn),
            GroupKind::Cleaning => self.copies_written(),
        }
    }

    /// These groups, the last of the log, failed for want of space: they are void, their requests fail, nothing else is touched.
    pub(super) fn void_groups(&mut self, groups: Vec<Group>) {
        for segment in groups.iter().flat_map(|group| &group.opened).rev() {
            self.segments.unopen(*segment, true);
        }
        if let Some(start) = groups.iter().find_map(|group| group.start.clone()) {
            self.segments.reopen(start.segment);
            let Head { next_lsn, next_sequence, next_generation, completed_lsn, durable_lsn, .. } = self.head;
            self.head = Head { next_lsn, next_sequence, next_generation, completed_lsn, durable_lsn, ..start };
        }
        for group in groups {
            for Finished { token, bytes, noted, .. } in group.finished {
                noted.into_iter().for_each(|noted| self.take_back(noted));
                self.complete(token, bytes, Err(OpError::NoSpace));
            }
            match group.kind {
                GroupKind::Writes => {}
                GroupKind::Table => self.table_failed(),
                GroupKind::Cleaning => self.copies_failed(),
            }
        }
    }

    fn live_add(&mut self, version: Version) {
        self.segments.add_live(version.segment(&self.layout), self.layout.live_block_bytes());
    }

    pub(super) fn live_sub(&mut self, version: Version) {
        self.segments.sub_live(version.segment(&self.layout), self.layout.live_block_bytes());
    }

    fn apply_block(&mut self, branch: u32, lba: u64, version: Version) {
        let node = self.map.catalogue.head(branch).expect("a branch with writes in flight is not deleted");
        self.live_add(version);
        let table = self.map.table_mut(node);
        let old = table.index.insert(lba, version);
        let sealed = self.info.kind.is_sealed();
        match old {
            Some(old) if sealed => {
                if self.options.planted.has(PlantedFault::VersionReclaimedTooSoon) && old.sequence() % 8 == 0 {
                    return self.live_sub(old);
                }
                // Not always the writing branch: what was received came on another.
                let of = self.map.label(node, branch, old.sequence());
                self.map.versions.keep(of, lba, old, version.sequence());
            }
            Some(old) => self.live_sub(old),
            None if sealed => {}
            None => {
                let segments = &mut self.segments;
                let gone = |hole: Hole| segments.sub_live(hole.place.segment, hole.live_bytes());
                let Table { index, holes } = table;
                holes.trim(lba, version.sequence(), |start, end, hole| index.is_newer(start, end, hole), gone);
            }
        }
    }

    fn apply_hole(&mut self, branch: u32, hole: Hole) {
        let node = self.map.catalogue.head(branch).expect("a branch with writes in flight is not deleted");
        let (range, sequence) = ((hole.start, hole.start + hole.count), hole.sequence);
        let is_sealed = self.info.kind.is_sealed();
        let segments = &mut self.segments;
        segments.add_live(hole.place.segment, hole.live_bytes());
        let Table { index, holes } = self.map.table_mut(node);
        let in_slices = holes.has_more_than(FRAGMENTS_AT_ONCE, range.0, range.1);
        if in_slices {
            holes.begin_insert(hole);
        } else {
            let needless = |start, end, hole| !is_sealed && index.is_newer(start, end, hole);
            holes.insert(hole, needless, |gone| segments.sub_live(gone.place.segment, gone.live_bytes()));
        }
        self.cover(node, branch, range, sequence, in_slices);
    }

    fn apply_copy(&mut self, branch: u32, lba: u64, from: Version, to: Version) {
        // Overwritten while it was copied: then the copy is dead on arrival.
        if self.map.relocate(branch, lba, from, to) {
            self.live_sub(from);
            self.live_add(to);
        }
    }

    fn apply_hole_copy(&mut self, branch: u32, start: u64, sequence: u64, from: ItemPlace, to: ItemPlace) {
        if let Some(bytes) = self.map.relocate_hole(branch, start, sequence, from, to) {
            self.segments.sub_live(from.segment, bytes);
            self.segments.add_live(to.segment, bytes);
        }
    }

    /// Retained versions never cost a write: the oldest go, a slice of them. Whether there are more.
    pub(super) fn evict_over_budget(&mut self) -> bool {
        if !self.cleaner.urgent {
            self.versions_max = None;
        }
        let (budget, mut fuel) = (self.retention_now(), EVICTED_PER_SLICE);
        while let Some(version) = self.map.evict(budget, &mut fuel) {
            self.live_sub(version);
            self.stats.versions_evicted += 1;
        }
        self.map.versions.has_excess(budget)
    }

    fn retention_now(&self) -> u64 {
        self.versions_max.map_or(self.info.retention_blocks, |most| most.min(self.info.retention_blocks))
    }

    /// The first request would fail for want of space, of the log or of the host, that older versions take: a quarter of them, those that have
    /// been old for longest, makes way, so that there is something to clean. Whether any did.
    pub(super) fn versions_make_way(&mut self) -> bool {
        let kept = self.map.versions.len();
        if !self.map.versions.has_excess(self.retention_now()) {
            self.stats.versions_made_way += 1;
            self.versions_max = Some(kept - (kept / 4).max(EVICTED_PER_SLICE as u64).min(kept));
            self.cleaner.copied_for_front = 0;
        }
        self.evict_over_budget() || self.map.versions.len() < kept
    }

    /// Feedback on one block of a view. Returns how many versions it released; no more than `fuel`, which are taken off it. The others
    /// go with later feedback, or when the budget is exceeded.
    pub(super) fn verified(&mut self, node: NodeId, lba: u64, sequence: u64, fuel: &mut usize) -> u64 {
        let found = self.map.path(node).iter().zip(self.map.catalogue.path(node)).find_map(|(table, node)| {
            let newest = table.index.find(lba).is_some_and(|version| version.sequence() == sequence);
            let hole = table.holes.covering(lba).is_some_and(|(.., hole)| hole == sequence);
            (newest || hole).then_some((node, newest))
        });
        let catalogue = &self.map.catalogue;
        let (of, newest, branch) = match found {
            Some((of, newest)) => {
                let branch = self.map.labels(of).branch(sequence).expect("a table has what is in its labels");
                (of, newest, branch)
            }
            None => {
                let Some(branch) = self.map.versions.branch(lba, sequence) else { return 0 };
                let Some(of) = catalogue.node_of(branch, sequence) else { return 0 };
                (of, false, branch)
            }
        };
        let mut released = Vec::new();
        // Its own node, which is another one than that of the table while that is being merged.
        let own = catalogue.node_of(branch, sequence);
        let same = |branch, sequence| catalogue.node_of(branch, sequence) == own;
        self.map.versions.release_below(lba, sequence, fuel, same, |version| released.push(version));
        for &version in &released {
            self.live_sub(version);
        }
        if newest && self.map.may_trim(of) {
            let segments = &mut self.segments;
            let gone = |hole: Hole| segments.sub_live(hole.place.segment, hole.live_bytes());
            self.map.table_mut(of).holes.trim(lba, sequence, |_, _, _| false, gone);
        }
        if !released.is_empty() {
            self.note_feedback(branch, lba, sequence);
        }
        self.stats.versions_released += released.len() as u64;
        released.len() as u64
    }
}
