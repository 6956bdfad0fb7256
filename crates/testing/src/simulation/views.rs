//! Snapshots, clones and rollbacks in the simulation. Snapshots are taken and deleted while writes are in flight: they hold
//! what was written before them, and nothing after. What exchanges what a branch holds comes alone, and a crash finds it whole
//! or not at all.

use strongroom_block::Token;
use strongroom_store::{BranchId, Op, SnapshotId, Store, View};

use super::asked::Asked;
use super::run::Run;

/// Upper bound on the snapshots of a run.
const SNAPSHOTS_MAX: usize = 4;

impl Run {
    /// The power may go while the tree is being changed.
    fn cut_now_and_then(&mut self) {
        if self.conditions.cuts && self.random.once_in(3) {
            self.disk.cut_off_after(self.random.below(8));
        }
    }

    /// Takes a snapshot or deletes one.
    pub(super) fn submit_snapshot(&mut self, store: &mut Store) {
        let views = &mut self.expected.views;
        let deletable: Vec<u64> = views.taken.keys().copied().filter(|&id| !views.is_cloned(id)).collect();
        let full = views.taken.len() >= SNAPSHOTS_MAX;
        if full || (!deletable.is_empty() && self.random.once_in(4)) {
            if deletable.is_empty() || views.going.is_some() {
                return;
            }
            let id = deletable[self.random.below(deletable.len() as u64) as usize];
            views.going = Some(id);
            self.cut_now_and_then();
            let op = self.pending.ask(Asked::SnapshotDelete { id });
            return store.submit(Token(op), Op::SnapshotDelete { id: SnapshotId(id) });
        }
        let branch = self.expected.some_head(&mut self.random);
        self.cut_now_and_then();
        let floor = self.expected.model.floor(branch, 0, self.expected.volume.blocks);
        let op = self.pending.ask(Asked::SnapshotCreate { branch, floor });
        store.submit_to(Token(op), View::Head(BranchId(branch)), Op::SnapshotCreate { name: format!("s{op}") });
    }

    pub(super) fn snapshot_taken(&mut self, store: &mut Store, id: u64, branch: u32, floor: Vec<u64>) {
        self.seen.snapshots += 1;
        self.expected.snapshot_taken(id, branch, floor, self.pending.upcoming_op());
        self.inspect(store).compare_snapshot(id);
    }

    /// Rolls a branch back, makes a clone or deletes one; everything else is answered first.
    pub(super) fn change_views(&mut self, store: &mut Store) {
        self.settle(store);
        let quiet = !self.disk.is_cut_off() && !store.stats().writes_refused && self.expected.views.limbo.is_none();
        let (upcoming_op, lies) = (self.pending.upcoming_op(), self.conditions.lies);
        let change = self.expected.some_change(store, upcoming_op, lies, &mut self.random);
        let Some((change, request)) = change.filter(|_| quiet) else { return };
        let op = self.pending.ask(Asked::Change);
        self.expected.views.limbo = Some(change);
        self.cut_now_and_then();
        store.submit(Token(op), request);
        self.settle(store);
    }

    /// The change that was asked for was made. `branch`: of a new clone.
    pub(super) fn view_changed(&mut self, store: &mut Store, branch: Option<u32>) {
        if let Some((branch, holds)) = self.expected.view_changed(branch, &mut self.seen) {
            self.inspect(store).compare_head(branch, &holds);
        }
    }
}
