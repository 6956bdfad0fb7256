//! Proves that plain holes which touch become one, and that this loses no data: neither what is mapped beside them, nor what is being
//! written, nor what a snapshot has.

use std::sync::Arc;

use strongroom_block::{BlockSize, Buffer, Geometry, Lba, Token, VolumeId};
use strongroom_store::{CreateOptions, Extent, Op, OpenOptions, Outcome, SnapshotId, Store, UnitKind, View};
use strongroom_testing::{Random, SimDisk};

const PAGE: usize = 512;

fn create(blocks: u64) -> CreateOptions {
    let geometry = Geometry { block_size: BlockSize::new(PAGE as u64).unwrap(), blocks };
    CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain)
}

fn write(lba: u64, count: u64, mark: u8) -> Op {
    let data = vec![Buffer::copy_from(&vec![mark; PAGE * count as usize])];
    Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None }
}

/// Submits requests many at a time, as a queue of that depth does.
fn at_once(store: &mut Store, depth: usize, ops: impl IntoIterator<Item = Op>) {
    let mut ops = ops.into_iter().peekable();
    while ops.peek().is_some() {
        let mut done = Vec::new();
        let submitted = ops.by_ref().take(depth).enumerate();
        let count = submitted.map(|(at, op)| store.submit(Token(at as u64), op)).count();
        while done.len() < count {
            store.poll_completions(&mut done);
        }
        assert!(done.iter().all(|answer| answer.result.is_ok()), "{done:?}");
    }
}

/// Once with each discard by itself, once with many in a queue.
#[test]
fn holes_that_touch_become_one() {
    const BLOCKS: u64 = 1 << 14;
    for depth in [1, 64] {
        let mut store = Store::open_in_memory(&create(BLOCKS), &OpenOptions::default(), Arc::new(|| {})).unwrap();
        at_once(&mut store, 16, (0..BLOCKS).step_by(256).map(|lba| write(lba, 256, 1)));
        let discard = |lba| Op::Discard { lba: Lba(lba), count: 1 };
        at_once(&mut store, depth, (0..BLOCKS).step_by(2).map(discard));
        let between = store.stats().holes;
        assert!(between >= BLOCKS / 2, "{between} holes between blocks with data");
        at_once(&mut store, depth, (1..BLOCKS).step_by(2).map(discard));
        let stats = store.stats();
        assert_eq!(stats.blocks_mapped, 0);
        assert!(stats.holes <= BLOCKS / 1024, "{} holes are left of {BLOCKS} discards, {depth} at a time", stats.holes);
    }
}

/// What each block holds: 0 is absent.
fn marks(store: &mut Store, view: View) -> Vec<u8> {
    let read = store.execute_on(view, Op::Read { lba: Lba(0), count: SMALL as u32 }).unwrap();
    let Outcome::Read(extents) = read else { panic!("{read:?}") };
    let mut marks = Vec::new();
    for extent in extents {
        match extent {
            Extent::Blocks { data, .. } => marks.extend(data.chunks(PAGE).map(|block| block[0])),
            Extent::Hole { count, .. } => marks.resize(marks.len() + count as usize, 0),
        }
    }
    marks
}

/// Blocks of the volume that is compared with a model.
const SMALL: u64 = 192;

/// A few requests at once, writes and discards in one queue; the model after them.
fn some_requests(store: &mut Store, random: &mut Random, model: &mut [u8]) {
    let mut ops = Vec::new();
    for _ in 0..1 + random.below(12) {
        let lba = random.below(SMALL);
        let count = 1 + random.below(6).min(SMALL - lba - 1);
        // Mostly discards: the blocks next to them are then holes.
        let mark = if random.below(3) == 0 { 1 + random.below(255) as u8 } else { 0 };
        model[lba as usize..(lba + count) as usize].fill(mark);
        ops.push(if mark > 0 { write(lba, count, mark) } else { Op::Discard { lba: Lba(lba), count } });
    }
    at_once(store, 12, ops);
}

#[test]
fn wider_holes_hide_nothing_that_was_written() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let disk = SimDisk::new(seed);
        Store::create_on(Box::new(disk.backend(true)), &create(SMALL)).unwrap();
        let open = || Store::open_on(Box::new(disk.backend(true)), &OpenOptions::default(), Arc::new(|| {})).unwrap();
        let mut store = open();
        let mut model = vec![0; SMALL as usize];
        let mut snapshots: Vec<(SnapshotId, Vec<u8>)> = Vec::new();
        for round in 0..30 {
            some_requests(&mut store, &mut random, &mut model);
            assert_eq!(marks(&mut store, View::default()), model, "seed {seed}, round {round}");
            if random.once_in(6) {
                let Ok(Outcome::SnapshotCreated { id }) =
                    store.execute(Op::SnapshotCreate { name: format!("s{round}") })
                else {
                    panic!("no snapshot")
                };
                snapshots.push((id, model.clone()));
            }
            if random.once_in(10) && !snapshots.is_empty() {
                let (id, _) = snapshots.swap_remove(random.below(snapshots.len() as u64) as usize);
                store.execute(Op::SnapshotDelete { id }).unwrap();
            }
            if random.once_in(8) {
                store.execute(Op::Flush).unwrap();
                drop(store);
                disk.crash();
                store = open();
                assert_eq!(marks(&mut store, View::default()), model, "seed {seed}, opened after round {round}");
            }
        }
        for (id, then) in snapshots {
            assert_eq!(marks(&mut store, View::Snapshot(id)), then, "seed {seed}, snapshot {id:?}");
        }
    }
}
