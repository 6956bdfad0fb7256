//! What the store must hold, and may: the reference model of its branches, and what is known of its snapshots and clones. Requests are noted
//! here when they are made, and again when they are answered.

use std::collections::BTreeMap;

use strongroom_block::{Buffer, HoleRecord, Lba, VolumeId};
use strongroom_store::{BranchId, Op, SnapshotId, Stats, Store};

use super::asked::Asked;
use super::seen::Seen;
use super::snapshot_tree::{Change, KnownSnapshot, Views};
use super::volume::{Growth, Volume};
use crate::{Model, Random, ReadBlock};

/// Upper bound on the clones of a run.
const CLONES_MAX: usize = 2;

/// What is expected of the store.
pub(super) struct Expectation {
    pub(super) volume: Volume,
    pub(super) model: Model,
    pub(super) views: Views,
    pub(super) growth: Growth,
}

/// What is expected if a change that was not answered was made.
struct Changed {
    model: Model,
    clones: BTreeMap<u32, u64>,
}

impl Expectation {
    /// Of a new volume.
    pub(super) fn new(volume: Volume) -> Expectation {
        let model = Model::new(volume.blocks, volume.block_size, 1).of_plain(!volume.kind.is_sealed());
        Expectation { volume, model, views: Views::default(), growth: Growth::default() }
    }

    /// A write of a range by operation `op`.
    pub(super) fn write(
        &mut self,
        op: u64,
        branch: u32,
        (lba, count): (u64, u64),
        fua: bool,
        random: &mut Random,
    ) -> Op {
        let bytes = self.model.bytes(op, lba, count);
        let block = self.volume.block_size.len();
        let records = match self.volume.kind.is_sealed() {
            true => bytes.chunks(block).enumerate().map(|(i, b)| self.volume.record(op, i as u64, Some(b))).collect(),
            false => Vec::new(),
        };
        let cut = random.below(bytes.len() as u64) as usize;
        let data = vec![Buffer::copy_from(&bytes[..cut]), Buffer::copy_from(&bytes[cut..])];
        self.model.submitted(op, branch, &[(lba, count)]);
        Op::Write { lba: Lba(lba), data, records, fua, origin: None }
    }

    /// Ranges become holes. A plain unit takes one at a time.
    pub(super) fn holes(&mut self, op: u64, branch: u32, ranges: &[(u64, u64)]) -> Op {
        if !self.volume.kind.is_sealed() {
            let (lba, count) = ranges[0];
            self.model.submitted(op, branch, &ranges[..1]);
            return Op::Discard { lba: Lba(lba), count };
        }
        self.model.submitted(op, branch, ranges);
        let record = |(at, &(start, count)): (usize, &(u64, u64))| HoleRecord {
            start: Lba(start),
            count,
            record: self.volume.record(op, at as u64, None),
        };
        Op::Hole { holes: ranges.iter().enumerate().map(record).collect(), origin: None }
    }

    /// A request was refused.
    pub(super) fn did_not_happen(&mut self, op: u64, asked: &Asked, fills_up: bool) {
        match asked {
            Asked::Write { .. } | Asked::Condition(_) | Asked::Hole => self.model.failed(op),
            Asked::SnapshotDelete { .. } => self.views.going = None,
            Asked::Change => self.views.limbo = None,
            // One that reached a superblock may yet be found after a crash.
            Asked::Grow if fills_up => {}
            Asked::Grow => self.growth.asked = None,
            _ => {}
        }
    }

    /// Where there is no space for a write older versions make way, however few they are: from then on none is demanded.
    pub(super) fn look_at_space(&mut self, stats: &Stats) {
        if stats.versions_made_way > 0 {
            self.model.retains(0);
        }
    }

    /// The volume has grown. A sealed one is formatted there by the next request.
    pub(super) fn grown(&mut self, blocks: u64) {
        if self.volume.kind.is_sealed() {
            self.growth.unformatted = Some((self.volume.blocks, blocks - self.volume.blocks));
        }
        self.model.grow(blocks, self.volume.never_written());
        self.volume.blocks = blocks;
    }

    /// One of the branches; often the volume itself.
    pub(super) fn some_head(&self, random: &mut Random) -> u32 {
        let heads = self.model.branches();
        if heads.len() == 1 || random.once_in(2) { 0 } else { heads[random.below(heads.len() as u64) as usize] }
    }

    /// A snapshot was taken.
    pub(super) fn snapshot_taken(&mut self, id: u64, branch: u32, floor: Vec<u64>, before_op: u64) {
        self.views.taken.insert(id, KnownSnapshot { branch, floor, before_op, holds: None });
    }

    /// One was deleted.
    pub(super) fn snapshot_deleted(&mut self, id: u64) {
        self.views.taken.remove(&id);
        self.views.going = None;
    }

    /// A change of what a branch holds, if one is possible. `lies`: what a branch held before may be back.
    pub(super) fn some_change(
        &self,
        store: &Store,
        upcoming_op: u64,
        lies: bool,
        random: &mut Random,
    ) -> Option<(Change, Op)> {
        let all_read = self.views.taken.values().all(|taken| taken.holds.is_some());
        let known: Vec<u64> = self.views.taken.keys().copied().filter(|&id| self.views.going != Some(id)).collect();
        let id = (!known.is_empty()).then(|| known[random.below(known.len() as u64) as usize]);
        match random.below(3) {
            // What a snapshot holds is compared with its branch when it is read first.
            0 if all_read && !lies => {
                let (id, taken) = (id?, &self.views.taken[&id?]);
                let holds = self.volume.as_large_as_now(taken.holds.clone()?);
                let change = Change::Rollback { branch: taken.branch, holds };
                Some((change, Op::Rollback { to: SnapshotId(id) }))
            }
            1 if self.views.clones.len() < CLONES_MAX => {
                let (from, holds) = (id?, self.volume.as_large_as_now(self.views.taken[&id?].holds.clone()?));
                let (name, volume_id) = (format!("c{upcoming_op}"), VolumeId([upcoming_op as u8; 16]));
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

    /// The change that was asked for was made. `branch`: of a new clone. The branch that holds something else now, and what.
    pub(super) fn view_changed(&mut self, branch: Option<u32>, seen: &mut Seen) -> Option<(u32, Vec<ReadBlock>)> {
        match self.views.limbo.take().expect("one was asked for") {
            Change::Rollback { branch, holds } => {
                seen.rollbacks += 1;
                self.model.branch_holds(branch, &holds);
                Some((branch, holds))
            }
            Change::Clone { from, holds } => {
                seen.clones += 1;
                let branch = branch.expect("a clone is answered by its branch");
                self.views.clones.insert(branch, from);
                self.model.branch_holds(branch, &holds);
                Some((branch, holds))
            }
            Change::CloneDelete { branch } => {
                seen.clones_deleted += 1;
                self.views.clones.remove(&branch);
                self.model.branch_gone(branch);
                None
            }
        }
    }

    /// After a crash: which of the worlds that may be is this one? The model becomes that. `newest`: the highest sequence in a snapshot.
    pub(super) fn settle_after_crash(
        &mut self,
        store: &Store,
        heads: &BTreeMap<u32, Vec<ReadBlock>>,
        newest: u64,
        seen: &mut Seen,
    ) {
        if let Some(change) = self.views.limbo.take() {
            let before = self.model.judge(heads, newest);
            let changed = self.changed(store, change);
            let after = changed.model.judge(heads, newest);
            match (before, after) {
                (Ok(()), _) => seen.changes_lost += 1,
                (Err(_), Ok(())) => {
                    seen.changes_survived += 1;
                    (self.model, self.views.clones) = (changed.model, changed.clones);
                }
                (Err(before), Err(after)) => panic!("neither is it as before ({before}), nor as asked for ({after})"),
            }
        }
        self.model.after_crash(heads, newest);
    }

    /// What the world is if the change that was not answered was made.
    fn changed(&self, store: &Store, change: Change) -> Changed {
        let mut world = Changed { model: self.model.clone(), clones: self.views.clones.clone() };
        match change {
            Change::Rollback { branch, holds } => {
                world.model.branch_holds(branch, &self.volume.as_large_as_now(holds));
            }
            Change::CloneDelete { branch } => {
                world.model.branch_gone(branch);
                world.clones.remove(&branch);
            }
            Change::Clone { from, holds } => {
                let known = |branch: u32| branch == 0 || self.views.clones.contains_key(&branch);
                if let Some(made) = store.index().branches().into_iter().find(|info| !known(info.id.0)) {
                    assert_eq!(made.from, Some(SnapshotId(from)), "a clone of another snapshot");
                    world.model.branch_holds(made.id.0, &self.volume.as_large_as_now(holds));
                    world.clones.insert(made.id.0, from);
                }
            }
        }
        world
    }

    /// Every snapshot is there, but for one that was being deleted, and holds what it held.
    pub(super) fn compare_snapshots(&mut self, there: BTreeMap<u64, (u32, Vec<ReadBlock>)>) {
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

    /// What was read in a snapshot is what it holds.
    pub(super) fn judge_snapshot(&mut self, id: u64, holds: Vec<ReadBlock>) {
        let taken = &self.views.taken[&id];
        match taken.holds.clone() {
            Some(before) => {
                let before = self.volume.as_large_as_now(before);
                assert!(before == holds, "snapshot {id} has changed: {}", difference(&before, &holds));
            }
            None => self.model.check_snapshot(taken.branch, &holds, &taken.floor, taken.before_op),
        }
        self.views.taken.get_mut(&id).expect("just seen").holds = Some(holds);
    }
}

/// Where two readings differ, in a few words.
pub(super) fn difference(before: &[ReadBlock], after: &[ReadBlock]) -> String {
    let different: Vec<_> = before.iter().zip(after).filter(|(before, after)| before != after).take(4).collect();
    format!("{} and {} blocks, {different:?}", before.len(), after.len())
}
