//! What the store answers, and which answers are right.

use strongroom_block::{Lba, StoreSequence};
use strongroom_store::{Extent, Op, OpError, Outcome, Store};

use super::requests::Asked;
use super::run::Run;

impl Run {
    pub(super) fn take_answers(&mut self, store: &mut Store) {
        let mut done = Vec::new();
        store.poll_completions(&mut done);
        for completion in done {
            let op = completion.token.0;
            let asked = self.asked.remove(&op).expect("asked once, answered once");
            match (asked, completion.result) {
                (Asked::Write { fua }, Ok(Outcome::Written { first, repeated: 0 })) => {
                    self.model.written(op, first.0, fua);
                }
                (Asked::Hole, Ok(Outcome::Written { first, .. })) => self.model.holed(op, first.0),
                (Asked::Read { lba, floor }, Ok(Outcome::Read(extents))) => {
                    self.model.check_read(lba, &floor, &extents);
                }
                (Asked::Version { lba, older_than, must }, Ok(Outcome::Read(extents))) => {
                    let sequence = self.model.check_version(lba, older_than, &extents[0]);
                    self.seen.versions_demanded += u64::from(must.is_some());
                    assert!(must.is_none_or(|must| sequence >= must), "a version of block {lba} was passed over");
                }
                (Asked::Version { lba, must, .. }, Err(OpError::NoVersion { .. })) => {
                    assert_eq!(must, None, "a version of block {lba} that nobody verified a newer one of is gone");
                }
                (Asked::Flush { mark }, Ok(Outcome::Flushed)) => self.model.flushed(mark),
                (Asked::Other, Ok(_)) => {}
                (Asked::SnapshotCreate { floor }, Ok(Outcome::SnapshotCreated { id })) => {
                    self.snapshot_taken(store, id.0, floor);
                }
                (Asked::SnapshotDelete { id }, Ok(_)) => self.snapshot_deleted(id),
                // What snapshots hold on to is not to be had.
                (Asked::Write { .. } | Asked::Hole, Err(OpError::NoSpace)) if self.snapshots.wanted => {
                    self.seen.full += 1;
                    self.model.failed(op);
                }
                (Asked::SnapshotCreate { .. }, Err(OpError::NoSpace)) => {}
                (Asked::SnapshotDelete { .. }, Err(OpError::NoSpace)) => self.snapshots_stay(),
                (Asked::Write { .. } | Asked::Hole, Err(OpError::NoSpace)) if self.fills_up => {
                    self.seen.full += 1;
                    self.model.failed(op);
                }
                (_, Err(OpError::WritesRefused { .. })) if self.failing_syncs => self.seen.refusals += 1,
                (Asked::Read { .. } | Asked::Version { .. }, Err(OpError::Medium { .. })) if self.reads_may_fail() => {
                    self.seen.failed_reads += 1;
                }
                // Cut off, or a sync failed: whatever happened to the request, a crash follows.
                (_, Err(OpError::WritesRefused { .. } | OpError::Medium { .. })) if self.disk.is_cut_off() => {}
                (_, result) => panic!("unexpected answer {result:?}"),
            }
        }
    }

    fn reads_may_fail(&self) -> bool {
        self.failing_reads || self.disk.has_strayed()
    }

    /// The whole volume, or `None` if the disk was cut off meanwhile.
    pub(super) fn read_all(&mut self, store: &mut Store) -> Option<Vec<Extent>> {
        match store.execute(Op::Read { lba: Lba(0), count: self.blocks as u32 }) {
            Ok(Outcome::Read(extents)) => Some(extents),
            other => {
                assert!(self.disk.is_cut_off(), "the volume cannot be read: {other:?}");
                None
            }
        }
    }

    /// Every older version that must still be there is there.
    pub(super) fn demand_versions(&mut self, store: &mut Store) {
        for lba in 0..self.blocks {
            let newest = self.model.floor(lba, 1)[0];
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

    /// Looks at every block by itself after the disk lied.
    pub(super) fn compare_after_lie(&mut self, store: &mut Store) {
        for lba in 0..self.blocks {
            match store.execute(Op::Read { lba: Lba(lba), count: 1 }) {
                Ok(Outcome::Read(extents)) => self.model.after_lie(lba, &extents),
                Err(OpError::Medium { .. }) => self.seen.bad_blocks += 1,
                Err(OpError::NotFormatted { .. }) if self.seen.repairs > 0 => self.seen.not_formatted += 1,
                other => panic!("block {lba}: {other:?}"),
            }
        }
    }
}
