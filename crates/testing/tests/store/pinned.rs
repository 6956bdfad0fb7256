//! Proves what is told of a tree of snapshots and clones: every view has what a model has that looks it up the long way, and the bytes
//! that each snapshot alone keeps are those that no other view has, after anything was cloned, rolled back, deleted, merged and opened
//! again; and that many snapshots hold nobody up, neither an opening nor a poll.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::{BlockSize, Buffer, Geometry, Lba, Token, VolumeId};
use strongroom_store::{
    BranchId, CreateOptions, Extent, Op, OpenOptions, Outcome, PinnedCount, SharedMemory, SnapshotId, Store, UnitKind,
    View, steps_taken,
};
use strongroom_testing::Random;

const BLOCK_BYTES: u64 = 512;

fn made(blocks: u64) -> SharedMemory {
    let backend = SharedMemory::default();
    let geometry = Geometry { block_size: BlockSize::new(BLOCK_BYTES).unwrap(), blocks };
    let options = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
    Store::create_on(Box::new(backend.clone()), &CreateOptions { segment_bytes: 256 << 10, ..options }).unwrap();
    backend
}

fn open(backend: &SharedMemory) -> Store {
    Store::open_on(Box::new(backend.clone()), &OpenOptions::default(), Arc::new(|| {})).unwrap()
}

fn write(lba: u64, count: u64) -> Op {
    write_of(7, lba, count)
}

fn write_of(byte: u8, lba: u64, count: u64) -> Op {
    let data = vec![Buffer::copy_from(&vec![byte; (count * BLOCK_BYTES) as usize])];
    Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None }
}

fn snapshot(store: &mut Store, view: View, name: String) -> SnapshotId {
    match store.execute_on(view, Op::SnapshotCreate { name }) {
        Ok(Outcome::SnapshotCreated { id }) => id,
        other => panic!("no snapshot: {other:?}"),
    }
}

/// What a block and its record take.
fn weight() -> u64 {
    let mut store = open(&made(8));
    store.execute(write(0, 1)).unwrap();
    store.index().branches()[0].bytes_written
}

fn pinned(store: &Store) -> (PinnedCount, u32) {
    let (mut count, mut slices) = (PinnedCount::default(), 1);
    while store.index().count_pinned(&mut count) {
        slices += 1;
    }
    (count, slices)
}

/// Polls until nothing more happens: each poll merges or drops a node.
fn settle(store: &mut Store) {
    for _ in 0..100 {
        store.poll_completions(&mut Vec::new());
    }
}

/// What was written between two changes of the tree: bytes, or holes.
#[derive(Default)]
struct Node {
    parent: Option<usize>,
    blocks: BTreeMap<u64, Option<u8>>,
}

/// The tree as it should be, without merging anything: every view is looked up the long way.
struct Tree {
    nodes: Vec<Node>,
    heads: BTreeMap<u32, (usize, Option<SnapshotId>)>,
    snapshots: BTreeMap<u64, (usize, u32)>,
}

impl Tree {
    fn new() -> Tree {
        Tree { nodes: vec![Node::default()], heads: BTreeMap::from([(0, (0, None))]), snapshots: BTreeMap::new() }
    }

    fn add(&mut self, parent: usize) -> usize {
        self.nodes.push(Node { parent: Some(parent), blocks: BTreeMap::new() });
        self.nodes.len() - 1
    }

    fn path(&self, node: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(node), |&node| self.nodes[node].parent)
    }

    /// Where a view's entry at a block is, and its byte.
    fn find(&self, node: usize, lba: u64) -> Option<(usize, Option<u8>)> {
        self.path(node).find_map(|node| Some((node, *self.nodes[node].blocks.get(&lba)?)))
    }

    fn views(&self) -> Vec<usize> {
        self.heads.values().map(|&(node, _)| node).chain(self.snapshots.values().map(|&(node, _)| node)).collect()
    }

    /// The children of a node through which a view goes.
    fn children(&self, node: usize) -> Vec<usize> {
        let views = self.views();
        let child = |&child: &usize| {
            self.nodes[child].parent == Some(node) && views.iter().any(|&view| self.path(view).any(|at| at == child))
        };
        (0..self.nodes.len()).filter(child).collect()
    }

    /// The nodes that are a snapshot's own once all is merged: up to the next that another view needs.
    fn own(&self, node: usize) -> Vec<usize> {
        let views = self.views();
        let further =
            self.path(node).skip(1).take_while(|&above| !views.contains(&above) && self.children(above).len() == 1);
        [node].into_iter().chain(further).collect()
    }

    /// How many blocks of its own a snapshot has that no other view has.
    fn pinned(&self, node: usize, blocks: u64) -> u64 {
        let (own, views) = (self.own(node), self.views());
        let counts = |&lba: &u64| {
            let Some((at, Some(_))) = self.find(node, lba) else { return false };
            let has = |view: usize| view != node && self.find(view, lba).is_some_and(|(found, _)| found == at);
            own.contains(&at) && !views.iter().any(|&view| has(view))
        };
        (0..blocks).filter(counts).count() as u64
    }
}

/// The first byte of each block.
fn bytes(extent: &Extent) -> Vec<Option<u8>> {
    match extent {
        Extent::Blocks { data, .. } => data.chunks_exact(BLOCK_BYTES as usize).map(|block| Some(block[0])).collect(),
        Extent::Hole { count, .. } => vec![None; *count as usize],
    }
}

/// One history: what is done next is drawn.
struct History {
    random: Random,
    store: Store,
    tree: Tree,
    blocks: u64,
    weight: u64,
    made: u64,
    /// How many deletions gave back what was told, and how many counts were not zero.
    deletions: u32,
    nonzero: u32,
    /// How many branches had to be told as kept.
    kept: u32,
}

impl History {
    fn some_branch(&mut self) -> u32 {
        let at = self.random.below(self.tree.heads.len() as u64) as usize;
        *self.tree.heads.keys().nth(at).unwrap()
    }

    fn some_snapshot(&mut self) -> Option<u64> {
        let ids: Vec<u64> = self.tree.snapshots.keys().copied().collect();
        (!ids.is_empty()).then(|| ids[self.random.below(ids.len() as u64) as usize])
    }

    fn range(&mut self) -> (u64, u64) {
        let lba = self.random.below(self.blocks);
        (lba, 1 + self.random.below((self.blocks - lba).min(self.blocks / 3)))
    }

    fn put(&mut self, is_data: bool) {
        let branch = self.some_branch();
        let (lba, count) = self.range();
        let byte = is_data.then(|| 1 + self.random.below(255) as u8);
        let op = byte.map_or(Op::Discard { lba: Lba(lba), count }, |byte| write_of(byte, lba, count));
        self.store.execute_on(View::Head(BranchId(branch)), op).unwrap();
        let node = self.tree.heads[&branch].0;
        self.tree.nodes[node].blocks.extend((lba..lba + count).map(|lba| (lba, byte)));
    }

    fn take_snapshot(&mut self) {
        let branch = self.some_branch();
        self.made += 1;
        let id = snapshot(&mut self.store, View::Head(BranchId(branch)), format!("s{}", self.made));
        let node = self.tree.heads[&branch].0;
        self.tree.snapshots.insert(id.0, (node, branch));
        let head = self.tree.add(node);
        self.tree.heads.get_mut(&branch).unwrap().0 = head;
    }

    fn clone_one(&mut self) {
        let Some(from) = self.some_snapshot() else { return };
        self.made += 1;
        let (name, volume_id) = (format!("c{}", self.made), VolumeId([self.made as u8; 16]));
        let clone = Op::CloneCreate { from: SnapshotId(from), name, volume_id };
        let Ok(Outcome::CloneCreated { branch }) = self.store.execute(clone) else { panic!("no clone") };
        let head = self.tree.add(self.tree.snapshots[&from].0);
        self.tree.heads.insert(branch.0, (head, Some(SnapshotId(from))));
    }

    fn roll_back(&mut self) {
        let Some(to) = self.some_snapshot() else { return };
        let (node, branch) = self.tree.snapshots[&to];
        self.store.execute(Op::Rollback { to: SnapshotId(to) }).unwrap();
        let head = self.tree.add(node);
        self.tree.heads.get_mut(&branch).unwrap().0 = head;
    }

    fn delete_clone(&mut self) {
        let branch = self.some_branch();
        let has_snapshots = self.tree.snapshots.values().any(|&(_, of)| of == branch);
        if branch != 0 && !has_snapshots {
            self.store.execute(Op::CloneDelete { branch: BranchId(branch) }).unwrap();
            self.tree.heads.remove(&branch);
        }
    }

    fn delete_snapshot(&mut self) {
        let Some(id) = self.some_snapshot() else { return };
        if self.tree.heads.values().any(|&(_, from)| from == Some(SnapshotId(id))) {
            return;
        }
        settle(&mut self.store);
        let (told, before) = (pinned(&self.store).0.bytes(SnapshotId(id)), self.store.stats().blocks_mapped);
        self.store.execute(Op::SnapshotDelete { id: SnapshotId(id) }).unwrap();
        settle(&mut self.store);
        let back = (before - self.store.stats().blocks_mapped) * self.weight;
        let (node, _) = self.tree.snapshots.remove(&id).unwrap();
        // A node with several children stays, and so does what it got from its parent; what is above may have waited for this.
        let views = self.tree.views();
        if matches!(self.tree.children(node)[..], [] | [_])
            && self.tree.children(node).iter().all(|child| views.contains(child))
        {
            assert!(back >= told, "{told} bytes were told, {back} came back");
            self.deletions += u32::from(told > 0);
        }
    }

    /// Every view reads as the model has it, and tells its runs so.
    fn check_views(&mut self) {
        let heads = self.tree.heads.iter().map(|(&id, &(node, _))| (View::Head(BranchId(id)), node));
        let snapshots = self.tree.snapshots.iter().map(|(&id, &(node, _))| (View::Snapshot(SnapshotId(id)), node));
        for (view, node) in heads.chain(snapshots) {
            let expected: Vec<Option<u8>> =
                (0..self.blocks).map(|lba| self.tree.find(node, lba).and_then(|(_, byte)| byte)).collect();
            let read = self.store.execute_on(view, Op::Read { lba: Lba(0), count: self.blocks as u32 });
            let Ok(Outcome::Read(extents)) = read else { panic!("{view:?} is not read") };
            let found: Vec<Option<u8>> = extents.iter().flat_map(bytes).collect();
            assert_eq!(found, expected, "{view:?}");
            let runs = self.store.index().mapped_runs(view, Lba(0), usize::MAX);
            let told: Vec<bool> = runs.iter().flat_map(|run| vec![run.mapped; run.count as usize]).collect();
            assert_eq!(told, expected.iter().map(Option::is_some).collect::<Vec<_>>(), "{view:?}");
        }
    }

    /// A branch is said to be kept only where a snapshot has all that it has, or nothing was written; and always while nothing was
    /// written to it since a snapshot that is there.
    fn check_kept(&mut self) {
        let contents =
            |node| (0..self.blocks).map(|lba| self.tree.find(node, lba).and_then(|(_, byte)| byte)).collect();
        let snapshots: Vec<Vec<Option<u8>>> = self.tree.snapshots.values().map(|&(node, _)| contents(node)).collect();
        for info in self.store.index().branches() {
            let (head, _) = self.tree.heads[&info.id.0];
            let (has, node) = (contents(head), &self.tree.nodes[head]);
            if info.is_kept {
                assert!(snapshots.contains(&has) || has.iter().all(Option::is_none), "{info:?}");
            }
            let is_snapshot = |parent| self.tree.snapshots.values().any(|&(node, _)| Some(node) == parent);
            if node.blocks.is_empty() && is_snapshot(node.parent) {
                assert!(info.is_kept, "{info:?}");
                self.kept += 1;
            }
        }
    }

    fn step(&mut self, backend: &SharedMemory) {
        match self.random.below(24) {
            0..=8 => self.put(true),
            9..=11 => self.put(false),
            12..=14 => self.take_snapshot(),
            15 => self.clone_one(),
            16 => self.roll_back(),
            17 => self.delete_clone(),
            18..=20 => self.delete_snapshot(),
            21 => {
                self.store.execute(Op::Flush).unwrap();
                self.store = open(backend);
            }
            _ => {
                self.check_views();
                self.check_kept();
                settle(&mut self.store);
                self.check_views();
                self.check_kept();
                let (count, _) = pinned(&self.store);
                for (&id, &(node, _)) in &self.tree.snapshots {
                    let expected = self.tree.pinned(node, self.blocks);
                    assert_eq!(count.bytes(SnapshotId(id)), expected * self.weight, "of the snapshot {id:x}");
                    self.nonzero += u32::from(expected > 0);
                }
            }
        }
    }
}

#[test]
fn a_snapshot_pins_what_no_other_view_has() {
    let (mut deletions, mut nonzero, mut kept) = (0, 0, 0);
    for seed in 0..40 {
        println!("seed {seed}");
        // Some within a chunk of the index, some over several.
        let blocks = [40, 200][usize::from(seed % 2 == 1)];
        let backend = made(blocks);
        let (store, tree, random) = (open(&backend), Tree::new(), Random::new(seed));
        let mut history =
            History { random, store, tree, blocks, weight: weight(), made: 0, deletions: 0, nonzero: 0, kept: 0 };
        for _ in 0..150 {
            history.step(&backend);
        }
        (deletions, nonzero) = (deletions + history.deletions, nonzero + history.nonzero);
        kept += history.kept;
    }
    assert!(kept > 300, "{kept} branches had nothing new");
    assert!(deletions > 100 && nonzero > 300, "{deletions} deletions gave something back, {nonzero} counts");
}

/// What is counted over several slices is the same.
#[test]
fn much_is_counted_in_slices() {
    const FAR: u64 = 16 * 1024;
    let mut store = open(&made(400 * FAR));
    let ids = [1, 2].map(|count| {
        for at in 0..400 {
            store.execute(write(at * FAR + 64 * (at % 200), count)).unwrap();
        }
        snapshot(&mut store, View::default(), format!("s{count}"))
    });
    // Over two blocks of each of the first hundred.
    store.execute(Op::Discard { lba: Lba(0), count: 100 * FAR }).unwrap();
    let (count, slices) = pinned(&store);
    assert_eq!(ids.map(|id| count.bytes(id)), [400 * weight(), 200 * weight()]);
    assert!(slices > 3, "{slices} slices");
}

/// So many snapshots, before each of which some blocks were written.
fn with_snapshots(store: &mut Store, snapshots: u64, blocks: u64, lba: impl Fn(u64) -> u64) {
    for at in 0..snapshots {
        for block in at * blocks..(at + 1) * blocks {
            store.submit(Token(block), write(lba(block), 1));
        }
        store.poll_completions(&mut Vec::new());
        snapshot(store, View::default(), format!("s{at}"));
    }
}

fn shortest(times: u32, mut of: impl FnMut() -> Duration) -> Duration {
    (0..times).map(|_| of()).min().unwrap()
}

/// By comparison with the same blocks again and again, each of which the next node above has: what a machine under load takes is no
/// measure.
#[test]
fn an_opening_looks_at_no_node_for_the_blocks_of_another() {
    const BLOCKS: u64 = 64 * 1024;
    let opening = |lba: fn(u64) -> u64| {
        let backend = made(BLOCKS);
        let mut store = open(&backend);
        with_snapshots(&mut store, 800, 50, lba);
        store.execute(Op::Flush).unwrap();
        drop(store);
        shortest(3, || {
            let begun = Instant::now();
            drop(open(&backend));
            begun.elapsed()
        })
    };
    let (same, others) = (opening(|at| at % 50 * 1300), opening(|at| at * 1299 % BLOCKS));
    assert!(others < 8 * same, "{same:?} with the same blocks, {others:?} with others");
}

/// The most steps of one poll while a snapshot of many blocks is merged into the next. Steps, because time depends on the machine's load.
#[test]
fn many_snapshots_make_no_poll_of_a_merge_longer() {
    let longest = |others| {
        let mut store = open(&made(20_000));
        with_snapshots(&mut store, others, 1, |at| at);
        for lba in (0..20_000).step_by(1000) {
            store.execute(write(lba, 1000)).unwrap();
        }
        let id = snapshot(&mut store, View::default(), "large".to_owned());
        snapshot(&mut store, View::default(), "next".to_owned());
        store.submit(Token(1), Op::SnapshotDelete { id });
        let poll = |_| {
            let before = steps_taken();
            store.poll_completions(&mut Vec::new());
            steps_taken() - before
        };
        (0..20).map(poll).max().unwrap()
    };
    let (few, many) = (longest(2), longest(800));
    assert!(few > 100 && many < 2 * few, "{few} steps with few snapshots, {many} with many");
}
