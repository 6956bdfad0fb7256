//! Reads what a store holds, and compares it with what is expected.

use std::collections::{BTreeMap, BTreeSet};

use strongroom_block::{Lba, StoreSequence};
use strongroom_store::{BranchId, CheckReport, Op, OpError, Outcome, SnapshotId, Store, View};

use super::expectation::{Expectation, difference};
use super::seen::Seen;
use crate::model::held;
use crate::{Content, ReadBlock, SimDisk};

/// Errors that reads may bring beside what the model says.
#[derive(Clone, Copy)]
pub(super) struct ReadFailures {
    /// The disk may fail to read, or a write went astray.
    pub(super) medium: bool,
    /// The store takes in few requests at a time.
    pub(super) busy: bool,
    /// The volume may be being erased.
    pub(super) erasing: bool,
}

/// An inspection of an open store.
pub(super) struct Inspection<'a> {
    pub(super) store: &'a mut Store,
    pub(super) expected: &'a mut Expectation,
    pub(super) seen: &'a mut Seen,
    pub(super) disk: &'a SimDisk,
    pub(super) failures: ReadFailures,
}

impl Inspection<'_> {
    /// A whole view, or `None` if the disk was cut off meanwhile, or a read failed that may.
    fn read_view(&mut self, view: View, blocks: u64) -> Option<Vec<ReadBlock>> {
        let mut all = Vec::new();
        let (mut lba, mut until) = (0, blocks);
        while lba < blocks {
            match self.store.execute_on(view, Op::Read { lba: Lba(lba), count: (until - lba) as u32 }) {
                Ok(Outcome::Read(extents)) => {
                    all.extend(held(&extents, self.expected.volume.block_size));
                    (lba, until) = (until, blocks);
                }
                Err(OpError::NotFormatted { lba: Lba(at) }) if at == lba => {
                    all.push(ReadBlock { lba, sequence: 0, content: Content::Nothing });
                    lba += 1;
                }
                // Up to there it can be read.
                Err(OpError::NotFormatted { lba: Lba(at) }) => until = at,
                Err(OpError::Medium { .. }) if self.failures.medium || self.disk.is_cut_off() => return None,
                Err(OpError::Busy) if self.failures.busy => return None,
                Err(OpError::Erasing) if self.failures.erasing => return None,
                other => panic!("{view:?} cannot be read: {other:?}"),
            }
        }
        assert_eq!(all.len() as u64, blocks, "the whole view was read");
        Some(all)
    }

    /// A branch holds what a snapshot of it, or a clone's origin, holds.
    pub(super) fn compare_head(&mut self, branch: u32, holds: &[ReadBlock]) {
        if let Some(read) = self.read_view(View::Head(BranchId(branch)), self.expected.volume.blocks) {
            assert!(read == holds, "branch {branch} is not what the snapshot holds: {}", difference(holds, &read));
        }
    }

    pub(super) fn compare_snapshot(&mut self, id: u64) {
        if let Some(holds) = self.read_view(View::Snapshot(SnapshotId(id)), self.expected.volume.blocks) {
            self.expected.judge_snapshot(id, holds);
        }
    }

    /// After a crash: everything that is there is one of the worlds that may be. False if the disk was cut off.
    pub(super) fn compare_worlds(&mut self) -> bool {
        let blocks = self.store.info().geometry.blocks;
        if blocks != self.expected.volume.blocks {
            let (asked, before) = (self.expected.growth.asked, self.expected.volume.blocks);
            assert!(asked == Some(blocks), "there are {blocks} blocks instead of {before}");
            self.seen.grown += 1;
            self.expected.grown(blocks);
        }
        self.expected.growth.asked = None;
        let mut heads = BTreeMap::new();
        for info in self.store.index().branches() {
            let Some(held) = self.read_view(View::Head(info.id), blocks) else { return false };
            heads.insert(info.id.0, held);
        }
        let mut newest = 0;
        let mut snapshots = BTreeMap::new();
        for info in self.store.index().snapshots() {
            let Some(held) = self.read_view(View::Snapshot(info.id), blocks) else { return false };
            newest = held.iter().map(|held| held.sequence).fold(newest, u64::max);
            snapshots.insert(info.id.0, (info.branch.0, held));
        }
        self.expected.settle_after_crash(self.store, &heads, newest, self.seen);
        self.expected.compare_snapshots(snapshots);
        true
    }

    /// Every older version that must still be there is there.
    pub(super) fn demand_versions(&mut self) {
        for lba in 0..self.expected.volume.blocks {
            let newest = self.expected.model.floor(0, lba, 1)[0];
            let Some(must) = self.expected.model.must_have(lba, newest) else { continue };
            let request = Op::ReadVersion { lba: Lba(lba), older_than: StoreSequence(newest) };
            match self.store.execute(request) {
                Ok(Outcome::Read(extents)) => {
                    let sequence = self.expected.model.check_version(lba, newest, &extents[0]);
                    assert!(sequence >= must, "a version of block {lba} was passed over");
                    self.seen.versions_demanded += 1;
                }
                other => assert!(self.disk.is_cut_off(), "version {must} of block {lba}: {other:?}"),
            }
        }
    }

    /// Looks at every block by itself after the disk lied. What the check said must be what reads find.
    pub(super) fn compare_after_lie(&mut self, report: Option<&CheckReport>) {
        let mut bad = BTreeSet::new();
        for lba in 0..self.expected.volume.blocks.min(self.store.info().geometry.blocks) {
            match self.store.execute(Op::Read { lba: Lba(lba), count: 1 }) {
                Ok(Outcome::Read(extents)) => {
                    let found = held(&extents, self.expected.volume.block_size)[0];
                    self.expected.model.after_lie(found);
                }
                Err(OpError::Medium { .. }) => drop(bad.insert(lba)),
                Err(OpError::NotFormatted { .. }) if self.seen.repairs > 0 || self.expected.growth.wanted => {
                    self.seen.not_formatted += 1;
                }
                other => panic!("block {lba}: {other:?}"),
            }
        }
        self.seen.bad_blocks += bad.len() as u64;
        let Some(report) = report else { return };
        let listed: BTreeSet<u64> = report.bad_blocks.iter().map(|lba| lba.0).collect();
        // Blocks of other views are listed too.
        let agree = if self.expected.views.wanted { bad.is_subset(&listed) } else { bad == listed };
        assert!(agree, "the check and the reads disagree: {bad:?}, {report:?}");
    }

    /// After the disk lied a snapshot may be gone; one that is there holds what it held, or cannot be read.
    pub(super) fn compare_snapshots_after_lie(&mut self) {
        let blocks = self.expected.volume.blocks.min(self.store.info().geometry.blocks);
        for info in self.store.index().snapshots() {
            let Some(taken) = self.expected.views.taken.get(&info.id.0) else { continue };
            let Some(holds) = taken.holds.clone() else { continue };
            for before in holds.into_iter().take(blocks as usize) {
                let read = Op::Read { lba: Lba(before.lba), count: 1 };
                match self.store.execute_on(View::Snapshot(info.id), read) {
                    Ok(Outcome::Read(extents)) => {
                        let now = held(&extents, self.expected.volume.block_size);
                        assert!(now == [before], "snapshot {} has changed: {before:?} is {now:?}", info.id);
                    }
                    Err(OpError::Medium { .. }) => self.seen.bad_blocks += 1,
                    Err(OpError::NotFormatted { .. }) if before.content == Content::Nothing => {}
                    other => panic!("block {} of snapshot {}: {other:?}", before.lba, info.id),
                }
            }
        }
    }
}
