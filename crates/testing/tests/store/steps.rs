//! Proves that no call of a store does work in proportion to the volume: the steps that a poll takes are bounded, for anything that is
//! deleted, discarded, sent or searched.

use std::sync::Arc;

use strongroom_block::{
    BlockSize, Buffer, Custody, Geometry, HoleRecord, Lba, SealingDomain, Stamp, StoreSequence, VolumeId,
};
use strongroom_store::{
    BranchId, CreateOptions, Op, OpError, OpenOptions, Origin, Outcome, SnapshotId, Store, UnitKind, View, steps_taken,
};
use strongroom_testing::{SimDisk, record_for};

const SEALED: UnitKind = UnitKind::Sealed { domain: SealingDomain([9; 16]), custody: Custody::KeyFile };
const PAGE: usize = 512;
/// Most steps that one call may take.
const STEPS_MAX: u64 = 40_000;

fn create(kind: UnitKind, blocks: u64) -> CreateOptions {
    let geometry = Geometry { block_size: BlockSize::new(PAGE as u64).unwrap(), blocks };
    CreateOptions { retention_percent: 100, ..CreateOptions::new(VolumeId([1; 16]), geometry, kind) }
}

fn in_memory(kind: UnitKind, blocks: u64) -> Store {
    Store::open_in_memory(&create(kind, blocks), &OpenOptions::default(), Arc::new(|| {})).unwrap()
}

fn write(kind: UnitKind, op: u64, lba: u64, count: u64) -> Op {
    let data = vec![Buffer::copy_from(&vec![op as u8; PAGE * count as usize])];
    let record = |at| record_for(op, at, Some(&[op as u8; PAGE]));
    let records = if kind.is_sealed() { (lba..lba + count).map(record).collect() } else { Vec::new() };
    Op::Write { lba: Lba(lba), data, records, fua: false, origin: None }
}

fn fill(store: &mut Store, kind: UnitKind, view: View, op: u64, blocks: u64) {
    for lba in (0..blocks).step_by(256) {
        store.execute_on(view, write(kind, op, lba, 256)).unwrap();
    }
}

fn snapshot(store: &mut Store, name: &str) -> SnapshotId {
    match store.execute(Op::SnapshotCreate { name: name.to_owned() }) {
        Ok(Outcome::SnapshotCreated { id }) => id,
        other => panic!("no snapshot: {other:?}"),
    }
}

fn clone_of(store: &mut Store, from: SnapshotId) -> BranchId {
    let op = Op::CloneCreate { from, name: "clone".to_owned(), volume_id: VolumeId([2; 16]) };
    match store.execute(op) {
        Ok(Outcome::CloneCreated { branch }) => branch,
        other => panic!("no clone: {other:?}"),
    }
}

/// Polls this many times; the most steps that one poll took.
fn poll(store: &mut Store, polls: usize) -> u64 {
    let mut most = 0;
    for _ in 0..polls {
        let before = steps_taken();
        store.poll_completions(&mut Vec::new());
        most = most.max(steps_taken() - before);
    }
    most
}

#[test]
fn a_clone_with_many_older_versions_is_deleted_in_slices() {
    const BLOCKS: u64 = 1 << 17;
    let mut store = in_memory(SEALED, BLOCKS);
    let hole = HoleRecord { start: Lba(0), count: BLOCKS, record: record_for(1, 0, None) };
    store.execute(Op::Hole { holes: vec![hole], origin: None }).unwrap();
    let base = snapshot(&mut store, "base");
    let clone = clone_of(&mut store, base);
    for op in 2..4 {
        fill(&mut store, SEALED, View::Head(clone), op, BLOCKS);
    }
    assert_eq!(store.stats().versions_retained, BLOCKS);
    store.execute(Op::CloneDelete { branch: clone }).unwrap();
    let most = poll(&mut store, 200);
    assert_eq!((store.stats().blocks_mapped, store.stats().versions_retained), (0, 0), "all of it went");
    assert!(most <= STEPS_MAX, "{most} steps in one poll");
}

#[test]
fn a_damaged_segment_is_searched_in_slices() {
    const BLOCKS: u64 = 1 << 18;
    let disk = SimDisk::new(1);
    Store::create_on(Box::new(disk.backend(true)), &create(UnitKind::Plain, BLOCKS)).unwrap();
    let open = || Store::open_on(Box::new(disk.backend(true)), &OpenOptions::default(), Arc::new(|| {})).unwrap();
    let mut store = open();
    fill(&mut store, UnitKind::Plain, View::default(), 3, BLOCKS);
    // A record block in the middle of the third segment.
    let mut page = vec![0; 4096];
    let at = (2500..).map(|block| (1 << 20) + block * 4096).find(|&at| {
        disk.read(at, &mut page);
        page[..4] == *b"SRrb"
    });
    disk.flip(at.expect("there are record blocks") + 200, 1);
    // Else the damaged record block is still in memory.
    store.set_cache_bytes(0, 0);
    let (mut most, mut polls) = (0, 0);
    while store.stats().scrub_passes == 0 {
        let before = steps_taken();
        store.scrub();
        store.poll_completions(&mut Vec::new());
        most = most.max(steps_taken() - before);
        polls += 1;
        assert!(polls < 10_000, "a pass ends");
    }
    assert!(store.stats().scrub_bad_blocks > 0, "blocks whose record block is damaged are found");
    assert!(most <= STEPS_MAX, "{most} steps in one call");
}

/// A chain of snapshots may be long: a replay is of the head, and what the head has of its own is enough to judge it by.
#[test]
fn a_replay_below_many_snapshots_takes_no_longer_than_one_below_none() {
    const BLOCKS: u64 = 4096;
    const SNAPSHOTS: u64 = 500;
    let disk = SimDisk::new(1);
    Store::create_on(Box::new(disk.backend(true)), &create(SEALED, BLOCKS)).unwrap();
    let open = || Store::open_on(Box::new(disk.backend(true)), &OpenOptions::default(), Arc::new(|| {})).unwrap();
    let mut store = open();
    let attach_id = record_for(1, 0, None).stamp().attach_id;
    let hole = HoleRecord { start: Lba(0), count: BLOCKS, record: record_for(1, 0, None) };
    store.execute(Op::Hole { holes: vec![hole], origin: None }).unwrap();
    store.execute(Op::RegisterAttachment { attach_id }).unwrap();
    for at in 0..SNAPSHOTS {
        // Each node has something, but not where the replay goes.
        store.execute(write(SEALED, 2, BLOCKS - 1, 1)).unwrap();
        snapshot(&mut store, &format!("{at}"));
    }
    let written = store.execute(write(SEALED, 3, 2048, 4)).unwrap();
    let Outcome::Written { first, .. } = written else { panic!("{written:?}") };
    store.execute(Op::Flush).unwrap();
    drop(store);
    disk.crash();

    // As if 512 blocks had been acknowledged, of which the first four are there.
    let mut store = open();
    let Op::Write { lba, data, records, fua, .. } = write(SEALED, 4, 2048, 512) else { unreachable!() };
    let origin =
        |first| Some(Origin { operation: Stamp { attach_id, counter: 1 << 40 }, replay: Some(StoreSequence(first)) });
    let early = Op::Write { lba, data: data.clone(), records: records.clone(), fua, origin: origin(first.0 - 2) };
    assert!(matches!(store.execute(early), Err(OpError::ReplayRefused(_))), "it begins before the last snapshot");
    let before = steps_taken();
    store.submit(strongroom_block::Token(1), Op::Write { lba, data, records, fua, origin: origin(first.0) });
    let mut done = Vec::new();
    store.poll_completions(&mut done);
    let steps = steps_taken() - before;
    while done.is_empty() {
        store.poll_completions(&mut done);
    }
    assert!(matches!(done[0].result, Ok(Outcome::Written { superseded: 4, .. })), "{done:?}");
    println!("{steps} steps");
    assert!(steps <= 4 * 512, "{steps} steps for 512 blocks");
}

/// A discard of each block of `lbas`, many at a time.
fn discard_each(store: &mut Store, lbas: impl Iterator<Item = u64>) -> u64 {
    let (mut most, mut in_flight) = (0, 0);
    let mut done = Vec::new();
    for lba in lbas {
        store.submit(strongroom_block::Token(lba), Op::Discard { lba: Lba(lba), count: 1 });
        in_flight += 1;
        if in_flight == 64 {
            while in_flight > done.len() {
                let before = steps_taken();
                store.poll_completions(&mut done);
                most = most.max(steps_taken() - before);
            }
            (in_flight, done) = (0, Vec::new());
        }
    }
    store.poll_completions(&mut done);
    most
}

#[test]
fn discards_of_every_other_block_take_little_memory_and_a_discard_of_all_goes_in_slices() {
    const BLOCKS: u64 = 1 << 18;
    let mut store = in_memory(UnitKind::Plain, BLOCKS);
    fill(&mut store, UnitKind::Plain, View::default(), 2, BLOCKS);
    let most = discard_each(&mut store, (0..BLOCKS).step_by(2));
    assert!(most <= STEPS_MAX, "{most} steps in one poll");
    let stats = store.stats();
    assert!((BLOCKS / 2..BLOCKS / 2 + 8).contains(&stats.holes), "{stats:?}");
    println!("{} holes take {} bytes of memory", stats.holes, stats.hole_bytes);
    assert!(stats.hole_bytes <= 64 * stats.holes, "{stats:?}");

    // A snapshot that needs them all; and a discard of everything above it.
    let base = snapshot(&mut store, "base");
    fill(&mut store, UnitKind::Plain, View::default(), 3, BLOCKS);
    let most = discard_each(&mut store, (1..BLOCKS).step_by(2));
    assert!(most <= STEPS_MAX, "{most} steps in one poll");
    let mut sender = strongroom_store::Sender::new(None, base, 0);
    let mut most = 0;
    loop {
        let before = steps_taken();
        let step = sender.next_step(&store.index()).unwrap();
        most = most.max(steps_taken() - before);
        match step {
            strongroom_store::SendStep::Bytes(_) => {}
            _ => break,
        }
    }
    assert!(most <= STEPS_MAX, "{most} steps to send holes");
    store.submit(strongroom_block::Token(1), Op::Discard { lba: Lba(0), count: BLOCKS });
    let most = poll(&mut store, 400);
    assert!(most <= STEPS_MAX, "{most} steps in one poll for a discard of everything");
    assert_eq!(store.ops_in_flight(), 0, "it was answered");
    // The nodes become one: the snapshot's holes go to the volume's, which hides them all.
    store.submit(strongroom_block::Token(2), Op::SnapshotDelete { id: base });
    let most = poll(&mut store, 1000);
    assert!(most <= STEPS_MAX, "{most} steps in one poll while nodes are merged");
    let stats = store.stats();
    assert_eq!((stats.holes, stats.blocks_mapped), (1, 0), "{stats:?}");
}

/// Long runs of blocks and of retained versions take little room in a checkpoint, so one piece of it could tell of all of them.
#[test]
fn a_checkpoint_of_long_runs_is_written_in_slices() {
    const BLOCKS: u64 = 1 << 18;
    let disk = SimDisk::new(1);
    Store::create_on(Box::new(disk.backend(true)), &create(SEALED, BLOCKS)).unwrap();
    let open = |checkpoint_log_bytes| {
        let options = OpenOptions { checkpoint_log_bytes: Some(checkpoint_log_bytes), ..OpenOptions::default() };
        Store::open_on(Box::new(disk.backend(true)), &options, Arc::new(|| {})).unwrap()
    };
    let mut store = open(u64::MAX);
    let hole = HoleRecord { start: Lba(0), count: BLOCKS, record: record_for(1, 0, None) };
    store.execute(Op::Hole { holes: vec![hole], origin: None }).unwrap();
    for op in 2..4 {
        fill(&mut store, SEALED, View::default(), op, BLOCKS);
    }
    assert_eq!(store.stats().versions_retained, BLOCKS);
    store.execute(Op::Flush).unwrap();
    drop(store);

    let mut store = open(1);
    let before = store.stats().checkpoint_bytes;
    store.submit(strongroom_block::Token(1), write(SEALED, 4, 0, 1));
    let (mut most, mut polls) = (0, 0);
    while store.stats().checkpoints == 0 {
        most = most.max(poll(&mut store, 1));
        polls += 1;
        assert!(polls < 10_000, "a checkpoint ends: {:?}", store.stats());
    }
    let bytes = store.stats().checkpoint_bytes - before;
    println!("{most} steps in one poll, {bytes} bytes in {polls} polls");
    assert!(most <= STEPS_MAX, "{most} steps in one poll");
}
