//! Snapshots, clones and rollbacks in the simulation. Snapshots are taken and deleted while writes are in flight: they hold
//! what was written before them, and nothing after. What exchanges what a branch holds comes alone, and a crash finds it whole
//! or not at all.

use std::collections::BTreeMap;

use strongroom_block::{Lba, Token, VolumeId};
use strongroom_store::{BranchId, Op, OpError, Outcome, SnapshotId, Store, View};

use super::asked::Asked;
use super::run::Run;
use super::snapshot_tree::{Change, KnownSnapshot};
use crate::model::held;
use crate::{Content, Model, ReadBlock};

/// Upper bound on the snapshots of a run.
const SNAPSHOTS_MAX: usize = 4;
/// Upper bound on its clones.
const CLONES_MAX: usize = 2;

impl Run {
    /// One of the branches; often the volume itself.
    pub(super) fn some_head(&mut self) -> u32 {
        let heads = self.model.branches();
        if heads.len() == 1 || self.random.once_in(2) {
            0
        } else {
            heads[self.random.below(heads.len() as u64) as usize]
        }
    }

    /// The power may go while the tree is being changed.
    fn cut_now_and_then(&mut self) {
        if self.conditions.cuts && self.random.once_in(3) {
            self.disk.cut_off_after(self.random.below(8));
        }
    }

    /// Takes a snapshot or deletes one.
    pub(super) fn submit_snapshot(&mut self, store: &mut Store) {
        let deletable: Vec<u64> = self.views.taken.keys().copied().filter(|&id| !self.views.is_cloned(id)).collect();
        let full = self.views.taken.len() >= SNAPSHOTS_MAX;
        if full || (!deletable.is_empty() && self.random.once_in(4)) {
            if deletable.is_empty() || self.views.going.is_some() {
                return;
            }
            let id = deletable[self.random.below(deletable.len() as u64) as usize];
            self.views.going = Some(id);
            self.cut_now_and_then();
            let op = self.next_op();
            self.asked.insert(op, Asked::SnapshotDelete { id });
            return store.submit(Token(op), Op::SnapshotDelete { id: SnapshotId(id) });
        }
        let branch = self.some_head();
        self.cut_now_and_then();
        let op = self.next_op();
        let floor = self.model.floor(branch, 0, self.volume.blocks);
        self.asked.insert(op, Asked::SnapshotCreate { branch, floor });
        store.submit_to(Token(op), View::Head(BranchId(branch)), Op::SnapshotCreate { name: format!("s{op}") });
    }

    pub(super) fn snapshot_taken(&mut self, store: &mut Store, id: u64, branch: u32, floor: Vec<u64>) {
        self.seen.snapshots += 1;
        let taken = KnownSnapshot { branch, floor, before_op: self.next_op, holds: None };
        self.views.taken.insert(id, taken);
        self.compare_snapshot(store, id);
    }

    pub(super) fn snapshot_deleted(&mut self, id: u64) {
        self.seen.snapshots_deleted += 1;
        self.views.taken.remove(&id);
        self.views.going = None;
    }

    /// Rolls a branch back, makes a clone or deletes one; everything else is answered first.
    pub(super) fn change_views(&mut self, store: &mut Store) {
        self.settle(store);
        let quiet = !self.disk.is_cut_off() && !store.stats().writes_refused && self.views.limbo.is_none();
        let Some((change, request)) = self.some_change(store).filter(|_| quiet) else { return };
        let op = self.next_op();
        self.views.limbo = Some(change);
        self.asked.insert(op, Asked::Change);
        self.cut_now_and_then();
        store.submit(Token(op), request);
        self.settle(store);
    }

    fn some_change(&mut self, store: &Store) -> Option<(Change, Op)> {
        let all_read = self.views.taken.values().all(|taken| taken.holds.is_some());
        let known: Vec<u64> = self.views.taken.keys().copied().filter(|&id| self.views.going != Some(id)).collect();
        let id = (!known.is_empty()).then(|| known[self.random.below(known.len() as u64) as usize]);
        match self.random.below(3) {
            // What a snapshot holds is compared with its branch when it is read first.
            0 if all_read && !self.conditions.lies => {
                let (id, taken) = (id?, &self.views.taken[&id?]);
                let holds = self.as_large_as_now(taken.holds.clone()?);
                let change = Change::Rollback { branch: taken.branch, holds };
                Some((change, Op::Rollback { to: SnapshotId(id) }))
            }
            1 if self.views.clones.len() < CLONES_MAX => {
                let (from, holds) = (id?, self.as_large_as_now(self.views.taken[&id?].holds.clone()?));
                let (name, volume_id) = (format!("c{}", self.next_op), VolumeId([self.next_op as u8; 16]));
                Some((Change::Clone { from, holds }, Op::CloneCreate { from: SnapshotId(from), name, volume_id }))
            }
            2 => {
                let snapshots = store.index().snapshots();
                let own = |branch| snapshots.iter().any(|snapshot| snapshot.branch == BranchId(branch));
                let &branch = self.views.clones.keys().find(|&&branch| !own(branch))?;
                Some((Change::CloneDelete { branch }, Op::CloneDelete { branch: BranchId(branch) }))
            }
            _ => None,
        }
    }

    /// What was read before the volume grew.
    fn as_large_as_now(&self, mut holds: Vec<ReadBlock>) -> Vec<ReadBlock> {
        for lba in holds.len() as u64..self.volume.blocks {
            holds.push(ReadBlock { lba, sequence: 0, content: self.never_written() });
        }
        holds
    }

    /// What blocks hold that the volume grew by.
    pub(super) fn never_written(&self) -> Content {
        if self.volume.kind.is_sealed() { Content::Nothing } else { Content::Hole }
    }

    /// The change that was asked for was made. `branch`: of a new clone.
    pub(super) fn view_changed(&mut self, store: &mut Store, branch: Option<u32>) {
        match self.views.limbo.take().expect("one was asked for") {
            Change::Rollback { branch, holds } => {
                self.seen.rollbacks += 1;
                self.model.branch_holds(branch, &holds);
                self.compare_head(store, branch, &holds);
            }
            Change::Clone { from, holds } => {
                self.seen.clones += 1;
                let branch = branch.expect("a clone is answered by its branch");
                self.views.clones.insert(branch, from);
                self.model.branch_holds(branch, &holds);
                self.compare_head(store, branch, &holds);
            }
            Change::CloneDelete { branch } => {
                self.seen.clones_deleted += 1;
                self.views.clones.remove(&branch);
                self.model.branch_gone(branch);
            }
        }
    }

    fn compare_head(&mut self, store: &mut Store, branch: u32, holds: &[ReadBlock]) {
        if let Some(read) = self.read_view(store, View::Head(BranchId(branch)), self.volume.blocks) {
            assert!(read == holds, "branch {branch} is not what the snapshot holds: {}", difference(holds, &read));
        }
    }

    /// After a crash: which of the worlds that may be is this one? The model becomes that. False if the disk was cut off.
    pub(super) fn compare_worlds(&mut self, store: &mut Store) -> bool {
        let blocks = store.info().geometry.blocks;
        if blocks != self.volume.blocks {
            assert!(self.growth.asked == Some(blocks), "there are {blocks} blocks instead of {}", self.volume.blocks);
            self.grown(blocks);
        }
        self.growth.asked = None;
        let mut heads = BTreeMap::new();
        for info in store.index().branches() {
            let Some(held) = self.read_view(store, View::Head(info.id), blocks) else { return false };
            heads.insert(info.id.0, held);
        }
        let mut newest = 0;
        let mut snapshots = BTreeMap::new();
        for info in store.index().snapshots() {
            let Some(held) = self.read_view(store, View::Snapshot(info.id), blocks) else { return false };
            newest = held.iter().map(|held| held.sequence).fold(newest, u64::max);
            snapshots.insert(info.id.0, (info.branch.0, held));
        }
        if let Some(change) = self.views.limbo.take() {
            let before = self.model.judge(&heads, newest);
            let changed = self.changed(store, change);
            let after = changed.model.judge(&heads, newest);
            match (before, after) {
                (Ok(()), _) => self.seen.changes_lost += 1,
                (Err(_), Ok(())) => {
                    self.seen.changes_survived += 1;
                    (self.model, self.views.clones) = (changed.model, changed.clones);
                }
                (Err(before), Err(after)) => panic!("neither is it as before ({before}), nor as asked for ({after})"),
            }
        }
        self.model.after_crash(&heads, newest);
        self.compare_snapshots(snapshots);
        true
    }

    /// What the world is if the change that was not answered was made.
    fn changed(&self, store: &Store, change: Change) -> Changed {
        let mut world = Changed { model: self.model.clone(), clones: self.views.clones.clone() };
        match change {
            Change::Rollback { branch, holds } => world.model.branch_holds(branch, &self.as_large_as_now(holds)),
            Change::CloneDelete { branch } => {
                world.model.branch_gone(branch);
                world.clones.remove(&branch);
            }
            Change::Clone { from, holds } => {
                let known = |branch: u32| branch == 0 || self.views.clones.contains_key(&branch);
                if let Some(made) = store.index().branches().into_iter().find(|info| !known(info.id.0)) {
                    assert_eq!(made.from, Some(SnapshotId(from)), "a clone of another snapshot");
                    world.model.branch_holds(made.id.0, &self.as_large_as_now(holds));
                    world.clones.insert(made.id.0, from);
                }
            }
        }
        world
    }

    /// Every snapshot is there, but for one that was being deleted, and holds what it held.
    fn compare_snapshots(&mut self, there: BTreeMap<u64, (u32, Vec<ReadBlock>)>) {
        if let Some(going) = self.views.going.take()
            && !there.contains_key(&going)
        {
            self.views.taken.remove(&going);
        }
        for id in self.views.taken.keys() {
            assert!(there.contains_key(id), "snapshot {id} was answered and is gone");
        }
        for (id, (branch, holds)) in there {
            let unanswered = || KnownSnapshot { branch, floor: Vec::new(), before_op: u64::MAX, holds: None };
            self.views.taken.entry(id).or_insert_with(unanswered);
            self.judge_snapshot(id, holds);
        }
    }

    /// After the disk lied a snapshot may be gone; one that is there holds what it held, or cannot be read.
    pub(super) fn compare_snapshots_after_lie(&mut self, store: &mut Store) {
        let blocks = self.volume.blocks.min(store.info().geometry.blocks);
        for info in store.index().snapshots() {
            let Some(taken) = self.views.taken.get(&info.id.0) else { continue };
            let Some(holds) = taken.holds.clone() else { continue };
            for before in holds.into_iter().take(blocks as usize) {
                let read = Op::Read { lba: Lba(before.lba), count: 1 };
                match store.execute_on(View::Snapshot(info.id), read) {
                    Ok(Outcome::Read(extents)) => {
                        let now = held(&extents, self.volume.block_size);
                        assert!(now == [before], "snapshot {} has changed: {before:?} is {now:?}", info.id);
                    }
                    Err(OpError::Medium { .. }) => self.seen.bad_blocks += 1,
                    Err(OpError::NotFormatted { .. }) if before.content == Content::Nothing => {}
                    other => panic!("block {} of snapshot {}: {other:?}", before.lba, info.id),
                }
            }
        }
    }

    fn compare_snapshot(&mut self, store: &mut Store, id: u64) {
        if let Some(holds) = self.read_view(store, View::Snapshot(SnapshotId(id)), self.volume.blocks) {
            self.judge_snapshot(id, holds);
        }
    }

    fn judge_snapshot(&mut self, id: u64, holds: Vec<ReadBlock>) {
        let taken = &self.views.taken[&id];
        match taken.holds.clone() {
            Some(before) => {
                let before = self.as_large_as_now(before);
                assert!(before == holds, "snapshot {id} has changed: {}", difference(&before, &holds));
            }
            None => self.model.check_snapshot(taken.branch, &holds, &taken.floor, taken.before_op),
        }
        self.views.taken.get_mut(&id).expect("just seen").holds = Some(holds);
    }
}

struct Changed {
    model: Model,
    clones: BTreeMap<u32, u64>,
}

/// Where two readings differ, in a few words.
fn difference(before: &[ReadBlock], after: &[ReadBlock]) -> String {
    let different: Vec<_> = before.iter().zip(after).filter(|(before, after)| before != after).take(4).collect();
    format!("{} and {} blocks, {different:?}", before.len(), after.len())
}
