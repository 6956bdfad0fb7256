//! Proves, from many seeds, that snapshots, clones and rollbacks survive crashes whole or not at all and never mix: after
//! every crash each view holds what a model of a few lines says it held after some operation, not older than the last
//! one that was durable. Cleaning, merging of nodes and checkpoints go on in between.
//!
//! One seed: `STRONGROOM_SEED=7 cargo test -p strongroom-testing --test sim_branches`.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use strongroom_block::{BlockSize, Buffer, Custody, Geometry, HoleRecord, Lba, SealingDomain, StoreSequence, VolumeId};
use strongroom_store::{
    BranchId, CreateOptions, Extent, Op, OpError, OpenOptions, Outcome, SnapshotId, Stats, Store, StoreId, UnitKind,
    View,
};
use strongroom_testing::{Content, Random, SimDisk, block_bytes, content_of, record_for};

const SEEDS: u64 = 240;

/// What one view holds: which operation wrote each block; `None`: never anything.
type Blocks = Vec<Option<Content>>;

/// Everything that can be seen.
#[derive(Clone, Debug, Default, PartialEq)]
struct World {
    heads: BTreeMap<u32, Blocks>,
    snapshots: BTreeMap<u64, (String, u32, Blocks)>,
    /// Clones by the snapshot that they began at.
    clones: BTreeMap<u32, u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    crashes: u64,
    snapshots: u64,
    rollbacks: u64,
    clones: u64,
    deleted: u64,
    cleaned_bytes: u64,
    full: u64,
    checkpoints: u64,
    from_checkpoints: u64,
}

struct Run {
    random: Random,
    disk: SimDisk,
    kind: UnitKind,
    block_size: BlockSize,
    blocks: u64,
    /// Since what is surely durable, oldest first; the last is now.
    history: Vec<World>,
    /// Creates a snapshot or clone, but its answer, with the identity, was lost.
    unanswered: Option<Create>,
    next_op: u64,
    seen: Seen,
}

#[derive(Clone)]
enum Create {
    Snapshot { name: String, head: u32 },
    Clone { from: u64 },
}

impl Create {
    /// What the world became, if it is this one.
    fn applied(&self, mut world: World, now: &World) -> Option<World> {
        match self {
            Create::Snapshot { name, head } => {
                let (&id, _) = now.snapshots.iter().find(|(_, (of, ..))| of == name)?;
                let blocks = world.heads[head].clone();
                world.snapshots.insert(id, (name.clone(), *head, blocks));
            }
            Create::Clone { from } => {
                let branch = *now.clones.keys().find(|branch| !world.clones.contains_key(branch))?;
                let blocks = world.snapshots[from].2.clone();
                world.heads.insert(branch, blocks);
                world.clones.insert(branch, *from);
            }
        }
        Some(world)
    }
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut random = Random::new(seed ^ 0xb7a_9c4e5);
        let kind = match random.once_in(2) {
            true => UnitKind::Sealed { domain: SealingDomain([9; 16]), custody: Custody::KeyFile },
            false => UnitKind::Plain,
        };
        let block_size = BlockSize::new([512, 4096][random.below(2) as usize]).unwrap();
        let blocks = 16 + random.below(60);
        let disk = SimDisk::new(random.number());
        let mut options = CreateOptions::new(VolumeId([1; 16]), Geometry { block_size, blocks }, kind);
        options.segment_bytes = 64 << 10;
        options.store_id = Some(StoreId([7; 16]));
        Store::create_on(Box::new(disk.backend(true)), &options).unwrap();
        let empty = if kind.is_sealed() { None } else { Some(Content::Hole) };
        let world = World { heads: BTreeMap::from([(0, vec![empty; blocks as usize])]), ..World::default() };
        Run {
            random,
            disk,
            kind,
            block_size,
            blocks,
            history: vec![world],
            unanswered: None,
            next_op: 1,
            seen: Seen::default(),
        }
    }

    fn now(&self) -> &World {
        self.history.last().expect("never empty")
    }

    fn open(&mut self) -> Option<Store> {
        let orderly = self.random.once_in(3);
        let options = OpenOptions { open_id: Some(self.random.number()), ..OpenOptions::default() };
        match Store::open_on(Box::new(self.disk.backend(orderly)), &options, Arc::new(|| {})) {
            Ok(store) => Some(store),
            Err(error) => {
                assert!(self.disk.is_cut_off(), "the store does not open: {error}");
                None
            }
        }
    }

    /// Reads a whole view.
    fn read(&self, store: &mut Store, view: View) -> Option<Blocks> {
        let mut all: Blocks = Vec::new();
        for lba in 0..self.blocks {
            match store.execute_on(view, Op::Read { lba: Lba(lba), count: 1 }) {
                Ok(Outcome::Read(extents)) => all.push(Some(match &extents[0] {
                    Extent::Blocks { data, .. } => content_of(data, lba),
                    Extent::Hole { hole, .. } => {
                        assert_eq!(hole.is_some(), self.kind.is_sealed());
                        Content::Hole
                    }
                })),
                Err(OpError::NotFormatted { .. }) => all.push(None),
                other => {
                    assert!(self.disk.is_cut_off(), "view {view:?} cannot be read: {other:?}");
                    return None;
                }
            }
        }
        Some(all)
    }

    fn observe(&self, store: &mut Store) -> Option<World> {
        let mut world = World::default();
        for branch in store.branches() {
            world.heads.insert(branch.id.0, self.read(store, View::Head(branch.id))?);
            if let Some(from) = branch.from {
                world.clones.insert(branch.id.0, from.0);
            }
        }
        for snapshot in store.snapshots() {
            let blocks = self.read(store, View::Snapshot(snapshot.id))?;
            world.snapshots.insert(snapshot.id.0, (snapshot.name, snapshot.branch.0, blocks));
        }
        Some(world)
    }

    /// Opens, again and again, and finds out which state survived.
    fn reopen(&mut self) -> Store {
        loop {
            if self.random.once_in(3) {
                self.disk.cut_off_after(self.random.below(80));
            }
            if let Some(mut store) = self.open() {
                self.seen.from_checkpoints += u64::from(store.stats().opened_from_checkpoint);
                if let Some(world) = self.observe(&mut store) {
                    let created = self.unanswered.take().and_then(|create| create.applied(self.now().clone(), &world));
                    self.history.extend(created);
                    let survived = self.history.iter().position(|state| *state == world);
                    let Some(survived) = survived else {
                        for (at, state) in self.history.iter().enumerate() {
                            eprintln!("state {at}: {}", difference(state, &world));
                        }
                        panic!("what survived never was, or is older than what was durable");
                    };
                    self.history.drain(..survived);
                    self.history.truncate(1);
                    self.disk.cut_off_after(u64::MAX);
                    return store;
                }
            }
            self.disk.crash();
        }
    }

    /// Does one operation; `apply` says what it does to the world. False if the disk was cut off.
    fn step(
        &mut self,
        store: &mut Store,
        view: View,
        op: Op,
        durable: bool,
        apply: impl Fn(&mut World, &Outcome),
    ) -> bool {
        let mut next = self.now().clone();
        match store.execute_on(view, op.clone()) {
            Ok(outcome) => {
                apply(&mut next, &outcome);
                self.history.push(next);
                if durable {
                    self.history.drain(..self.history.len() - 1);
                }
                true
            }
            Err(OpError::NoSpace) => {
                assert!(!matches!(op, Op::SnapshotDelete { .. } | Op::CloneDelete { .. }), "full means stuck");
                self.seen.full += 1;
                true
            }
            Err(error) => {
                assert!(self.disk.is_cut_off(), "{op:?}: {error}");
                // It may have arrived all the same.
                match op {
                    Op::SnapshotCreate { name } => {
                        let View::Head(BranchId(head)) = view else { panic!("a snapshot of a snapshot") };
                        self.unanswered = Some(Create::Snapshot { name, head });
                    }
                    Op::CloneCreate { from, .. } => self.unanswered = Some(Create::Clone { from: from.0 }),
                    _ => {
                        apply(&mut next, &Outcome::Changed);
                        self.history.push(next);
                    }
                }
                false
            }
        }
    }

    fn some_head(&mut self) -> u32 {
        let heads: Vec<u32> = self.now().heads.keys().copied().collect();
        if self.random.once_in(2) { 0 } else { heads[self.random.below(heads.len() as u64) as usize] }
    }

    fn some_snapshot(&mut self) -> Option<u64> {
        let all: Vec<u64> = self.now().snapshots.keys().copied().collect();
        (!all.is_empty()).then(|| all[self.random.below(all.len() as u64) as usize])
    }

    fn one(&mut self, store: &mut Store) -> bool {
        let op = self.next_op;
        self.next_op += 1;
        let head = self.some_head();
        let view = View::Head(BranchId(head));
        let lba = self.random.below(self.blocks);
        let count = 1 + self.random.below((self.blocks - lba).min(8));
        let range = lba as usize..(lba + count) as usize;
        match self.random.below(24) {
            0..=11 => {
                let blocks: Vec<Vec<u8>> =
                    (lba..lba + count).map(|lba| block_bytes(op, lba, self.block_size)).collect();
                let record = |(at, bytes): (usize, &Vec<u8>)| record_for(op, at as u64, Some(bytes));
                let records =
                    if self.kind.is_sealed() { blocks.iter().enumerate().map(record).collect() } else { Vec::new() };
                let fua = self.random.once_in(8);
                let write = Op::Write { lba: Lba(lba), data: vec![Buffer::copy_from(&blocks.concat())], records, fua };
                self.step(store, view, write, fua, move |world, _| {
                    world.heads.get_mut(&head).unwrap()[range.clone()].fill(Some(Content::Data(op)));
                })
            }
            12 | 13 => {
                let record = record_for(op, 0, None);
                let hole = match self.kind.is_sealed() {
                    true => Op::Hole { holes: vec![HoleRecord { start: Lba(lba), count, record }] },
                    false => Op::Discard { lba: Lba(lba), count },
                };
                self.step(store, view, hole, false, move |world, _| {
                    world.heads.get_mut(&head).unwrap()[range.clone()].fill(Some(Content::Hole));
                })
            }
            14 | 15 if self.now().snapshots.len() < 6 => {
                self.seen.snapshots += 1;
                let name = format!("s{op}");
                let create = Op::SnapshotCreate { name: name.clone() };
                self.step(store, view, create, true, move |world, outcome| {
                    let Outcome::SnapshotCreated { id } = outcome else { panic!("{outcome:?}") };
                    let blocks = world.heads[&head].clone();
                    world.snapshots.insert(id.0, (name.clone(), head, blocks));
                })
            }
            16 => {
                let Some(id) = self.some_snapshot() else { return true };
                if self.now().clones.values().any(|&from| from == id) {
                    let refused = store.execute(Op::SnapshotDelete { id: SnapshotId(id) });
                    return matches!(refused, Err(OpError::Depended(_)));
                }
                self.seen.deleted += 1;
                let delete = Op::SnapshotDelete { id: SnapshotId(id) };
                self.step(store, View::default(), delete, true, move |world, _| drop(world.snapshots.remove(&id)))
            }
            17 => {
                let Some(id) = self.some_snapshot() else { return true };
                self.seen.rollbacks += 1;
                let rollback = Op::Rollback { to: SnapshotId(id) };
                self.step(store, View::default(), rollback, true, move |world, _| {
                    let (_, branch, blocks) = world.snapshots[&id].clone();
                    world.heads.insert(branch, blocks);
                })
            }
            18 if self.now().clones.len() < 3 => {
                let Some(id) = self.some_snapshot() else { return true };
                self.seen.clones += 1;
                let (name, volume_id) = (format!("c{op}"), VolumeId([op as u8; 16]));
                let create = Op::CloneCreate { from: SnapshotId(id), name, volume_id };
                self.step(store, View::default(), create, true, move |world, outcome| {
                    let Outcome::CloneCreated { branch } = outcome else { panic!("{outcome:?}") };
                    let blocks = world.snapshots[&id].2.clone();
                    world.heads.insert(branch.0, blocks);
                    world.clones.insert(branch.0, id);
                })
            }
            19 => {
                let clones: Vec<u32> = self.now().clones.keys().copied().collect();
                let own = |branch| self.history.last().unwrap().snapshots.values().any(|(_, of, _)| *of == branch);
                let Some(&branch) = clones.iter().find(|&&branch| !own(branch)) else { return true };
                let delete = Op::CloneDelete { branch: BranchId(branch) };
                self.step(store, View::default(), delete, true, move |world, _| {
                    world.heads.remove(&branch);
                    world.clones.remove(&branch);
                })
            }
            20 => {
                let view = match self.some_snapshot() {
                    Some(id) if self.random.once_in(2) => View::Snapshot(SnapshotId(id)),
                    _ => view,
                };
                let Some(blocks) = self.read(store, view) else { return false };
                let expected = match view {
                    View::Head(BranchId(branch)) => &self.now().heads[&branch],
                    View::Snapshot(id) => &self.now().snapshots[&id.0].2,
                };
                assert_eq!(blocks, *expected, "{view:?}");
                true
            }
            21 => {
                let read = store.execute_on(view, Op::Read { lba: Lba(lba), count: 1 });
                if let Ok(Outcome::Read(extents)) = read
                    && let Extent::Blocks { sequences, .. } = &extents[0]
                {
                    let pairs = vec![(Lba(lba), StoreSequence(sequences[0].0))];
                    let _ = store.execute_on(view, Op::Verified { pairs });
                }
                !self.disk.is_cut_off()
            }
            22 => {
                store.idle();
                !self.disk.is_cut_off()
            }
            _ => self.step(store, View::default(), Op::Flush, true, |_, _| ()),
        }
    }

    fn add(&mut self, stats: Stats) {
        self.seen.cleaned_bytes += stats.cleaned_bytes;
        self.seen.checkpoints += stats.checkpoints;
    }
}

/// Where two worlds differ, in a few words.
fn difference(a: &World, b: &World) -> String {
    let views = |world: &World| -> BTreeMap<String, Blocks> {
        let heads = world.heads.iter().map(|(branch, blocks)| (format!("head {branch}"), blocks.clone()));
        let snapshots = world.snapshots.values().map(|(name, _, blocks)| (format!("snapshot {name}"), blocks.clone()));
        heads.chain(snapshots).collect()
    };
    let (a, b) = (views(a), views(b));
    let mut out = String::new();
    for (name, blocks) in &a {
        match b.get(name) {
            None => out += &format!("{name} is missing; "),
            Some(other) => {
                for (lba, (was, is)) in blocks.iter().zip(other).enumerate().filter(|(_, (was, is))| was != is).take(4)
                {
                    out += &format!("{name} block {lba}: {was:?} became {is:?}; ");
                }
            }
        }
    }
    for name in b.keys().filter(|name| !a.contains_key(*name)) {
        out += &format!("{name} is new; ");
    }
    out
}

fn run(seed: u64) -> Seen {
    let mut run = Run::new(seed);
    for _ in 0..1 + run.random.below(6) {
        let mut store = run.reopen();
        if !run.random.once_in(4) {
            run.disk.cut_off_after(run.random.below(900));
        }
        for _ in 0..run.random.below(220) {
            if !run.one(&mut store) {
                break;
            }
        }
        run.add(store.stats());
        if !run.disk.is_cut_off() && run.random.once_in(2) {
            run.disk.cut_off_after(u64::MAX);
            store.close().unwrap();
            run.history.drain(..run.history.len() - 1);
        } else {
            drop(store);
        }
        run.seen.crashes += 1;
        run.disk.crash();
    }
    run.reopen();
    let report = Store::check_on(&mut run.disk.backend(true)).unwrap();
    assert!(report.is_sound(), "{report:?}");
    run.seen
}

#[test]
fn sim_views_survive_crashes_whole_or_not_at_all() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds: Vec<u64> = match number("STRONGROOM_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("STRONGROOM_SEEDS").unwrap_or(SEEDS)).collect(),
    };
    let (failed, seen) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (failed, seen, seeds) = (&failed, &seen, &seeds);
            scope.spawn(move || {
                for &seed in seeds.iter().skip(thread).step_by(2) {
                    match catch_unwind(AssertUnwindSafe(|| run(seed))) {
                        Ok(one) => seen.lock().unwrap().push(one),
                        Err(_) => {
                            eprintln!("seed {seed} failed: STRONGROOM_SEED={seed} runs it alone");
                            failed.lock().unwrap().push(seed);
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "failing seeds: {failed:?}");
    let mut all = Seen::default();
    for one in seen.into_inner().unwrap() {
        all.crashes += one.crashes;
        all.snapshots += one.snapshots;
        all.rollbacks += one.rollbacks;
        all.clones += one.clones;
        all.deleted += one.deleted;
        all.cleaned_bytes += one.cleaned_bytes;
        all.full += one.full;
        all.checkpoints += one.checkpoints;
        all.from_checkpoints += one.from_checkpoints;
    }
    println!("{all:?}");
    let everything = [all.snapshots, all.rollbacks, all.clones, all.deleted, all.cleaned_bytes];
    assert!(seeds.len() < 100 || everything.into_iter().all(|count| count > 0), "not everything was met: {all:?}");
}
