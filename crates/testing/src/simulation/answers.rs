//! What the store answers, and which answers are right.

use std::collections::BTreeSet;

use strongroom_block::{Lba, StoreSequence};
use strongroom_store::{CheckReport, Op, OpError, Outcome, Stats, Store, View};

use super::asked::Asked;
use super::run::Run;
use crate::model::held;
use crate::{Content, ReadBlock};

/// Upper bound on the polls until everything is answered.
const POLLS_MAX: u64 = 1_000_000;

impl Run {
    pub(super) fn take_answers(&mut self, store: &mut Store) {
        let mut done = Vec::new();
        store.poll_completions(&mut done);
        self.destroy_key(store);
        self.look_at_space(&store.stats());
        for completion in done {
            let op = completion.token.0;
            let asked = self.asked.remove(&op).expect("asked once, answered once");
            match completion.result {
                Ok(outcome) => self.take_outcome(store, op, asked, outcome),
                Err(error) => self.take_error(op, &asked, error),
            }
        }
    }

    /// Takes over what a store counted that is about to end.
    pub(super) fn take_stats(&mut self, store: &Store) {
        self.look_at_space(&store.stats());
        self.seen.add(store.stats());
    }

    /// Where there is no space for a write older versions make way, however few they are: from then on none is demanded.
    fn look_at_space(&mut self, stats: &Stats) {
        if stats.versions_made_way > 0 {
            self.model.retains(0);
        }
    }

    /// Until everything that was asked is answered.
    pub(super) fn settle(&mut self, store: &mut Store) {
        for _ in 0..POLLS_MAX {
            self.take_answers(store);
            if self.asked.is_empty() {
                return;
            }
        }
        panic!("{} requests are never answered", self.asked.len());
    }

    fn take_outcome(&mut self, store: &mut Store, op: u64, asked: Asked, outcome: Outcome) {
        match (asked, outcome) {
            (Asked::Write { fua }, Outcome::Written { first, repeated: 0, .. }) => self.model.written(op, first.0, fua),
            (Asked::Condition(condition), Outcome::Written { first, repeated: 0, .. }) => {
                condition.was_met(self.model.is_contended(op));
                self.seen.conditions_met += 1;
                self.model.written(op, first.0, condition.fua);
            }
            (Asked::Hole, Outcome::Written { first, .. }) => self.model.holed(op, first.0),
            (Asked::Read { branch, lba, floor }, Outcome::Read(extents)) => {
                self.model.check_read(branch, lba, &floor, &extents);
            }
            (Asked::Version { lba, older_than, must }, Outcome::Read(extents)) => {
                let sequence = self.model.check_version(lba, older_than, &extents[0]);
                let must = must.filter(|_| self.model.demands_versions());
                self.seen.versions_demanded += u64::from(must.is_some());
                assert!(must.is_none_or(|must| sequence >= must), "a version of block {lba} was passed over");
            }
            (Asked::Flush { mark }, Outcome::Flushed) => self.model.flushed(mark),
            (Asked::Verified, Outcome::Verified { .. }) => {}
            (Asked::SnapshotCreate { branch, floor }, Outcome::SnapshotCreated { id }) => {
                self.snapshot_taken(store, id.0, branch, floor);
            }
            (Asked::SnapshotDelete { id }, Outcome::Changed) => self.snapshot_deleted(id),
            (Asked::Change, Outcome::Changed) => self.view_changed(store, None),
            (Asked::Change, Outcome::CloneCreated { branch }) => self.view_changed(store, Some(branch.0)),
            (Asked::Grow, Outcome::Changed) => {
                let blocks = self.growth.asked.take().expect("it was asked for");
                assert_eq!(store.info().geometry.blocks, blocks);
                self.grown(blocks);
            }
            (Asked::Erase, Outcome::Changed) => {
                assert!(self.asked.is_empty(), "what was taken in before is over, and the rest was refused");
                self.erased(store);
            }
            (_, outcome) => panic!("the answer {outcome:?} is of another request"),
        }
    }

    fn take_error(&mut self, op: u64, asked: &Asked, error: OpError) {
        let writes = matches!(asked, Asked::Write { .. } | Asked::Condition(_) | Asked::Hole);
        match (asked, &error) {
            (Asked::Condition(condition), OpError::Miscompare { .. } | OpError::StampDiffers { .. }) => {
                condition.was_not_met(self.model.is_contended(op), &error);
                self.seen.conditions_failed += 1;
                self.model.failed(op);
            }
            (Asked::Condition(_), OpError::Medium { .. }) if self.reads_may_fail() => {
                self.seen.failed_reads += 1;
                self.model.failed(op);
            }
            (Asked::Version { lba, must, .. }, OpError::NoVersion { .. }) => {
                let must = must.filter(|_| self.model.demands_versions());
                assert_eq!(must, None, "a version of block {lba} that nobody verified a newer one of is gone");
            }
            (Asked::Erase, OpError::Depended(_) | OpError::Busy) => {
                self.erases.as_mut().expect("only then").asked = false;
            }
            (_, OpError::Erasing) if self.may_be_erased() => {
                self.seen.refused_while_erasing += 1;
                self.did_not_happen(op, asked);
            }
            (Asked::Read { lba, floor, .. }, OpError::NotFormatted { lba: at }) => {
                let floor = floor[(at.0 - lba) as usize];
                assert!(floor == 0 && self.never_written() == Content::Nothing, "block {at} was written");
                self.seen.not_formatted += 1;
            }
            (_, OpError::Busy) if self.few_requests => {
                self.seen.busy += 1;
                self.did_not_happen(op, asked);
            }
            // What snapshots hold on to is not to be had, and what the volume grows by has to be found.
            (_, OpError::NoSpace) if self.conditions.fills_up || self.views.wanted || self.growth.wanted => {
                let gives = matches!(asked, Asked::SnapshotDelete { .. } | Asked::Flush { .. } | Asked::Verified);
                assert!(self.conditions.fills_up || !gives, "full means stuck");
                self.seen.full += u64::from(writes);
                self.did_not_happen(op, asked);
            }
            (_, OpError::WritesRefused { .. }) if self.conditions.failing_syncs => self.seen.refusals += 1,
            // An erase found no space for the new store: it goes on at the next opening.
            (_, OpError::WritesRefused { .. }) if self.conditions.fills_up && self.may_be_erased() => {
                self.seen.refusals += 1
            }
            (Asked::Read { .. } | Asked::Version { .. }, OpError::Medium { .. }) if self.reads_may_fail() => {
                self.seen.failed_reads += 1;
            }
            // Cut off, or a sync failed: a crash follows, and it does not matter what happened to the request.
            (_, OpError::WritesRefused { .. } | OpError::Medium { .. }) if self.disk.is_cut_off() => {}
            (_, error) => panic!("unexpected answer {error:?}"),
        }
    }

    fn did_not_happen(&mut self, op: u64, asked: &Asked) {
        match asked {
            Asked::Write { .. } | Asked::Condition(_) | Asked::Hole => self.model.failed(op),
            Asked::SnapshotDelete { .. } => self.views.going = None,
            Asked::Change => self.views.limbo = None,
            // One that reached a superblock may yet be found after a crash.
            Asked::Grow if self.conditions.fills_up => {}
            Asked::Grow => self.growth.asked = None,
            _ => {}
        }
    }

    pub(super) fn reads_may_fail(&self) -> bool {
        self.conditions.failing_reads || self.disk.has_strayed()
    }

    /// A whole view, or `None` if the disk was cut off meanwhile, or a read failed that may.
    pub(super) fn read_view(&mut self, store: &mut Store, view: View, blocks: u64) -> Option<Vec<ReadBlock>> {
        let mut all = Vec::new();
        let (mut lba, mut until) = (0, blocks);
        while lba < blocks {
            match store.execute_on(view, Op::Read { lba: Lba(lba), count: (until - lba) as u32 }) {
                Ok(Outcome::Read(extents)) => {
                    all.extend(held(&extents, self.volume.block_size));
                    (lba, until) = (until, blocks);
                }
                Err(OpError::NotFormatted { lba: Lba(at) }) if at == lba => {
                    all.push(ReadBlock { lba, sequence: 0, content: Content::Nothing });
                    lba += 1;
                }
                // Up to there it can be read.
                Err(OpError::NotFormatted { lba: Lba(at) }) => until = at,
                Err(OpError::Medium { .. }) if self.reads_may_fail() || self.disk.is_cut_off() => return None,
                Err(OpError::Busy) if self.few_requests => return None,
                Err(OpError::Erasing) if self.may_be_erased() => return None,
                other => panic!("{view:?} cannot be read: {other:?}"),
            }
        }
        assert_eq!(all.len() as u64, blocks, "the whole view was read");
        Some(all)
    }

    /// Every older version that must still be there is there.
    pub(super) fn demand_versions(&mut self, store: &mut Store) {
        for lba in 0..self.volume.blocks {
            let newest = self.model.floor(0, lba, 1)[0];
            let Some(must) = self.model.must_have(lba, newest) else { continue };
            let request = Op::ReadVersion { lba: Lba(lba), older_than: StoreSequence(newest) };
            match store.execute(request) {
                Ok(Outcome::Read(extents)) => {
                    let sequence = self.model.check_version(lba, newest, &extents[0]);
                    assert!(sequence >= must, "a version of block {lba} was passed over");
                    self.seen.versions_demanded += 1;
                }
                other => assert!(self.disk.is_cut_off(), "version {must} of block {lba}: {other:?}"),
            }
        }
    }

    /// Looks at every block by itself after the disk lied. What the check said must be what reads find.
    pub(super) fn compare_after_lie(&mut self, store: &mut Store, report: Option<&CheckReport>) {
        let mut bad = BTreeSet::new();
        for lba in 0..self.volume.blocks.min(store.info().geometry.blocks) {
            match store.execute(Op::Read { lba: Lba(lba), count: 1 }) {
                Ok(Outcome::Read(extents)) => self.model.after_lie(held(&extents, self.volume.block_size)[0]),
                Err(OpError::Medium { .. }) => drop(bad.insert(lba)),
                Err(OpError::NotFormatted { .. }) if self.seen.repairs > 0 || self.growth.wanted => {
                    self.seen.not_formatted += 1;
                }
                other => panic!("block {lba}: {other:?}"),
            }
        }
        self.seen.bad_blocks += bad.len() as u64;
        let Some(report) = report else { return };
        let listed: BTreeSet<u64> = report.bad_blocks.iter().map(|lba| lba.0).collect();
        // Blocks of other views are listed too.
        let agree = if self.views.wanted { bad.is_subset(&listed) } else { bad == listed };
        assert!(agree, "the check and the reads disagree: {bad:?}, {report:?}");
    }
}
