//! Snapshots in the simulation: taken while writes are in flight, they hold what was written before them, and nothing after.

use std::collections::BTreeMap;

use strongroom_block::{Lba, Token};
use strongroom_store::{BranchId, Op, OpError, Outcome, SnapshotId, Store, View};

use super::requests::Asked;
use super::run::Run;
use crate::Content;

/// Upper bound on the snapshots of a run.
const SNAPSHOTS_MAX: usize = 3;

/// What is known of a snapshot.
pub(super) struct Taken {
    /// The sequences that it must have at least.
    floor: Vec<u64>,
    /// Operations from this one on were submitted after it was taken.
    before_op: u64,
    /// What it holds, once it was read.
    holds: Option<Vec<(u64, u64, Content)>>,
}

/// All snapshots of a run.
#[derive(Default)]
pub(super) struct Snapshots {
    /// Whether the run takes any.
    pub(super) wanted: bool,
    taken: BTreeMap<u64, Taken>,
    /// Deletion was asked for and not answered.
    going: Option<u64>,
}

impl Run {
    /// Takes a snapshot or deletes one.
    pub(super) fn submit_snapshot(&mut self, store: &mut Store) {
        let op = self.next_op();
        let oldest = self.snapshots.taken.keys().next().copied();
        let (asked, request) = match oldest.filter(|_| self.snapshots.taken.len() == SNAPSHOTS_MAX) {
            Some(_) if self.snapshots.going.is_some() => return,
            Some(id) => {
                self.snapshots.going = Some(id);
                (Asked::SnapshotDelete { id }, Op::SnapshotDelete { id: SnapshotId(id) })
            }
            None => {
                let floor = self.model.floor(0, self.blocks);
                (Asked::SnapshotCreate { floor }, Op::SnapshotCreate { name: format!("s{op}") })
            }
        };
        self.asked.insert(op, asked);
        store.submit_to(Token(op), View::Head(BranchId(0)), request);
    }

    pub(super) fn snapshot_taken(&mut self, store: &mut Store, id: u64, floor: Vec<u64>) {
        self.seen.snapshots += 1;
        let taken = Taken { floor, before_op: self.next_op, holds: None };
        self.snapshots.taken.insert(id, taken);
        self.compare_snapshot(store, id);
    }

    pub(super) fn snapshot_deleted(&mut self, id: u64) {
        self.snapshots.taken.remove(&id);
        self.snapshots.going = None;
    }

    /// A deletion failed.
    pub(super) fn snapshots_stay(&mut self) {
        self.snapshots.going = None;
    }

    /// After a reopening: every snapshot is there, but for one that was being deleted, and holds what it held.
    pub(super) fn compare_snapshots(&mut self, store: &mut Store) {
        let there: Vec<u64> = store.snapshots().iter().map(|info| info.id.0).collect();
        if let Some(going) = self.snapshots.going.take()
            && !there.contains(&going)
        {
            self.snapshots.taken.remove(&going);
        }
        for id in self.snapshots.taken.keys() {
            assert!(there.contains(id), "snapshot {id} was answered and is gone");
        }
        for id in there {
            let unanswered = || Taken { floor: Vec::new(), before_op: u64::MAX, holds: None };
            self.snapshots.taken.entry(id).or_insert_with(unanswered);
            self.compare_snapshot(store, id);
        }
    }

    fn compare_snapshot(&mut self, store: &mut Store, id: u64) {
        let read = Op::Read { lba: Lba(0), count: self.blocks as u32 };
        let extents = match store.execute_on(View::Snapshot(SnapshotId(id)), read) {
            Ok(Outcome::Read(extents)) => extents,
            Err(OpError::Medium { .. }) if self.failing_reads || self.disk.is_cut_off() => return,
            other => panic!("snapshot {id} cannot be read: {other:?}"),
        };
        let taken = self.snapshots.taken.get_mut(&id).expect("it was taken");
        let holds = self.model.check_snapshot(&extents, &taken.floor, taken.before_op);
        let before = taken.holds.get_or_insert_with(|| holds.clone());
        assert!(*before == holds, "snapshot {id} has changed");
    }
}
