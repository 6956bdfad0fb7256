//! What the store answers, and which answers are right.

use strongroom_store::{OpError, Outcome, Store};

use super::asked::Asked;
use super::erases::Erases;
use super::run::Run;
use crate::Content;

/// Upper bound on the polls until everything is answered.
const POLLS_MAX: u64 = 1_000_000;

impl Run {
    pub(super) fn take_answers(&mut self, store: &mut Store) {
        let mut done = Vec::new();
        store.poll_completions(&mut done);
        if self.erases.is_some() {
            Erases::destroy_key(store, &mut self.random);
        }
        self.expected.look_at_space(&store.stats());
        for completion in done {
            let op = completion.token.0;
            let asked = self.pending.take(op);
            match completion.result {
                Ok(outcome) => self.take_outcome(store, op, asked, outcome),
                Err(error) => self.take_error(op, &asked, error),
            }
        }
    }

    /// Takes over what a store counted that is about to end.
    pub(super) fn take_stats(&mut self, store: &Store) {
        self.expected.look_at_space(&store.stats());
        self.seen.add(store.stats());
    }

    /// Until everything that was asked is answered.
    pub(super) fn settle(&mut self, store: &mut Store) {
        for _ in 0..POLLS_MAX {
            self.take_answers(store);
            if self.pending.len() == 0 {
                return;
            }
        }
        panic!("{} requests are never answered", self.pending.len());
    }

    fn take_outcome(&mut self, store: &mut Store, op: u64, asked: Asked, outcome: Outcome) {
        match (asked, outcome) {
            (Asked::Write { fua }, Outcome::Written { first, repeated: 0, .. }) => {
                self.expected.model.written(op, first.0, fua)
            }
            (Asked::Condition(condition), Outcome::Written { first, repeated: 0, .. }) => {
                condition.was_met(self.expected.model.is_contended(op));
                self.seen.conditions_met += 1;
                self.expected.model.written(op, first.0, condition.fua);
            }
            (Asked::Hole, Outcome::Written { first, .. }) => self.expected.model.holed(op, first.0),
            (Asked::Read { branch, lba, floor }, Outcome::Read(extents)) => {
                self.expected.model.check_read(branch, lba, &floor, &extents);
            }
            (Asked::Version { lba, older_than, must }, Outcome::Read(extents)) => {
                let sequence = self.expected.model.check_version(lba, older_than, &extents[0]);
                let must = must.filter(|_| self.expected.model.demands_versions());
                self.seen.versions_demanded += u64::from(must.is_some());
                assert!(must.is_none_or(|must| sequence >= must), "a version of block {lba} was passed over");
            }
            (Asked::Flush { mark }, Outcome::Flushed) => self.expected.model.flushed(mark),
            (Asked::Verified, Outcome::Verified { .. }) => {}
            (Asked::SnapshotCreate { branch, floor }, Outcome::SnapshotCreated { id }) => {
                self.snapshot_taken(store, id.0, branch, floor);
            }
            (Asked::SnapshotDelete { id }, Outcome::Changed) => {
                self.seen.snapshots_deleted += 1;
                self.expected.snapshot_deleted(id);
            }
            (Asked::Change, Outcome::Changed) => self.view_changed(store, None),
            (Asked::Change, Outcome::CloneCreated { branch }) => self.view_changed(store, Some(branch.0)),
            (Asked::Grow, Outcome::Changed) => {
                let blocks = self.expected.growth.asked.take().expect("it was asked for");
                assert_eq!(store.info().geometry.blocks, blocks);
                self.seen.grown += 1;
                self.expected.grown(blocks);
            }
            (Asked::Erase, Outcome::Changed) => {
                assert!(self.pending.len() == 0, "what was taken in before is over, and the rest was refused");
                self.erased(store);
            }
            (_, outcome) => panic!("the answer {outcome:?} is of another request"),
        }
    }

    fn take_error(&mut self, op: u64, asked: &Asked, error: OpError) {
        let writes = matches!(asked, Asked::Write { .. } | Asked::Condition(_) | Asked::Hole);
        match (asked, &error) {
            (Asked::Condition(condition), OpError::Miscompare { .. } | OpError::StampDiffers { .. }) => {
                condition.was_not_met(self.expected.model.is_contended(op), &error);
                self.seen.conditions_failed += 1;
                self.expected.model.failed(op);
            }
            (Asked::Condition(_), OpError::Medium { .. }) if self.reads_may_fail() => {
                self.seen.failed_reads += 1;
                self.expected.model.failed(op);
            }
            (Asked::Version { lba, must, .. }, OpError::NoVersion { .. }) => {
                let must = must.filter(|_| self.expected.model.demands_versions());
                assert_eq!(must, None, "a version of block {lba} that nobody verified a newer one of is gone");
            }
            (Asked::Erase, OpError::Depended(_) | OpError::Busy) => {
                self.erases.as_mut().expect("only then").asked = false;
            }
            (_, OpError::Erasing) if self.may_be_erased() => {
                self.seen.refused_while_erasing += 1;
                self.expected.did_not_happen(op, asked, self.conditions.fills_up);
            }
            (Asked::Read { lba, floor, .. }, OpError::NotFormatted { lba: at }) => {
                let floor = floor[(at.0 - lba) as usize];
                assert!(
                    floor == 0 && self.expected.volume.never_written() == Content::Nothing,
                    "block {at} was written"
                );
                self.seen.not_formatted += 1;
            }
            (_, OpError::Busy) if self.settings.few_requests => {
                self.seen.busy += 1;
                self.expected.did_not_happen(op, asked, self.conditions.fills_up);
            }
            // What snapshots hold on to is not to be had, and what the volume grows by has to be found.
            (_, OpError::NoSpace)
                if self.conditions.fills_up || self.expected.views.wanted || self.expected.growth.wanted =>
            {
                let gives = matches!(asked, Asked::SnapshotDelete { .. } | Asked::Flush { .. } | Asked::Verified);
                assert!(self.conditions.fills_up || !gives, "full means stuck");
                self.seen.full += u64::from(writes);
                self.expected.did_not_happen(op, asked, self.conditions.fills_up);
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

    pub(super) fn reads_may_fail(&self) -> bool {
        self.conditions.failing_reads || self.disk.has_strayed()
    }
}
