//! Proves that a segment table which takes several segments costs little, and never passes for space that can be freed: a full store
//! says that it is, takes writes again when there is room, and one that nobody uses comes to rest.

use std::sync::Arc;

use strongroom_block::{BlockSize, Buffer, Geometry, Lba, Token, VolumeId};
use strongroom_store::{
    Completion, CreateOptions, Op, OpError, OpenOptions, Outcome, SharedMemory, SnapshotId, Stats, Store, UnitKind,
};
use strongroom_testing::Random;

const SEGMENT: u64 = 64 << 10;

/// A store with this many snapshots of nothing: their names make a long catalogue, which is in every table.
fn made(blocks: u64, snapshots: u32) -> (SharedMemory, Store) {
    let backend = SharedMemory::default();
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks };
    let create = CreateOptions {
        segment_bytes: SEGMENT as u32,
        ..CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain)
    };
    Store::create_on(Box::new(backend.clone()), &create).unwrap();
    let mut store = open(&backend);
    for at in 0..snapshots {
        snapshot(&mut store, &format!("{at:0128}"));
    }
    (backend, store)
}

/// Without checkpoints: a table would come with each.
fn open(backend: &SharedMemory) -> Store {
    let options = OpenOptions { checkpoint_log_bytes: Some(u64::MAX), ..OpenOptions::default() };
    Store::open_on(Box::new(backend.clone()), &options, Arc::new(|| {})).unwrap()
}

fn snapshot(store: &mut Store, name: &str) -> SnapshotId {
    match store.execute(Op::SnapshotCreate { name: name.to_owned() }) {
        Ok(Outcome::SnapshotCreated { id }) => id,
        other => panic!("{other:?}"),
    }
}

fn write(lba: u64, count: usize) -> Op {
    let data = vec![Buffer::copy_from(&vec![lba as u8; 4096 * count])];
    Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None }
}

/// An answer, which must come.
fn answer(store: &mut Store, op: Op) -> Result<Outcome, OpError> {
    let mut done: Vec<Completion> = Vec::new();
    store.submit(Token(1), op);
    for _ in 0..20_000 {
        store.poll_completions(&mut done);
        if let Some(answer) = done.pop() {
            return answer.result;
        }
    }
    panic!("no answer: {:?}", store.stats());
}

fn fill(store: &mut Store, blocks: u64) {
    for lba in (0..blocks).step_by(16) {
        answer(store, write(lba, 16)).unwrap();
    }
}

/// Writes until there is no space, and where that was; tables took little of it.
fn fill_up(store: &mut Store, blocks: u64) -> u64 {
    let before = store.stats();
    let refused = (0..blocks).step_by(16).find(|&lba| match answer(store, write(lba, 16)) {
        Ok(_) => false,
        Err(OpError::NoSpace) => true,
        Err(other) => panic!("{other:?}"),
    });
    let after = store.stats();
    let tables = after.table_bytes - before.table_bytes;
    assert!(tables < 4 * blocks * 4096, "{tables} bytes of tables until it is full");
    refused.expect("it is full before all of it is written again")
}

fn moved(stats: &Stats) -> u64 {
    stats.appended_bytes + stats.cleaned_bytes
}

/// How many segments a table takes, of which every round writes two.
fn table_segments(store: &mut Store) -> f64 {
    store.execute(Op::Flush).unwrap();
    let before = store.stats().table_bytes;
    let blocks = store.info().geometry.blocks;
    store.execute(Op::Grow { blocks: blocks + 1 }).unwrap();
    (store.stats().table_bytes - before) as f64 / 2.0 / SEGMENT as f64
}

fn full_is_told_and_ends(blocks: u64, snapshots: u32, table: std::ops::Range<f64>) {
    let (backend, mut store) = made(blocks, snapshots);
    fill(&mut store, blocks);
    let takes = table_segments(&mut store);
    assert!(table.contains(&takes), "a table takes {takes} segments");
    let pinning = snapshot(&mut store, "pins all");
    let refused = fill_up(&mut store, blocks);
    assert!(refused > blocks / 16, "only {refused} blocks more");

    // What was written since the snapshot can be discarded, and its space written again.
    answer(&mut store, Op::Discard { lba: Lba(0), count: refused }).unwrap();
    fill(&mut store, refused / 2);
    fill_up(&mut store, blocks);

    // Full, it can be closed and opened.
    store.close().unwrap();
    let mut store = open(&backend);
    fill_up(&mut store, blocks);
    answer(&mut store, Op::SnapshotDelete { id: pinning }).unwrap();
    fill(&mut store, blocks);
    fill(&mut store, blocks);
    store.close().unwrap();
}

#[test]
fn full_is_told_where_a_table_takes_less_than_a_segment() {
    full_is_told_and_ends(16384, 0, 0.0..0.5);
}

#[test]
fn full_is_told_where_a_table_takes_about_a_segment() {
    full_is_told_and_ends(16384, 200, 0.9..1.2);
}

#[test]
fn full_is_told_where_a_table_takes_one_and_a_half_segments() {
    full_is_told_and_ends(16384, 400, 1.2..1.8);
}

#[test]
fn full_is_told_where_a_table_takes_three_segments() {
    full_is_told_and_ends(16384, 760, 2.7..3.3);
}

/// As on a volume of more than a TiB: the rows alone fill more than a segment.
#[test]
fn full_is_told_where_the_rows_of_a_table_fill_a_segment() {
    let (_backend, mut store) = made(60_000, 0);
    fill(&mut store, 60_000);
    snapshot(&mut store, "pins all");
    fill_up(&mut store, 60_000);
}

#[test]
fn an_idle_store_comes_to_rest_however_long_its_table_is() {
    for snapshots in [0, 400, 850] {
        let (_backend, mut store) = made(4096, snapshots);
        fill(&mut store, 4096);
        let mut done = Vec::new();
        let mut idle = |store: &mut Store, times: u32| {
            for _ in 0..times {
                store.idle();
                store.poll_completions(&mut done);
            }
        };
        for round in 0..8 {
            for at in 0..6 {
                answer(&mut store, write(round * 300 + at * 16, 16)).unwrap();
            }
            idle(&mut store, 4);
            let before = store.stats();
            idle(&mut store, 50);
            let after = store.stats();
            assert_eq!(moved(&after) + after.table_bytes, moved(&before) + before.table_bytes, "{snapshots} snapshots");
            assert!(after.table_bytes < 2 * (round + 3) * 6 * SEGMENT, "{} bytes of tables", after.table_bytes);
        }
    }
}

/// A volume written over and over: a round frees many times what its table takes.
#[test]
fn long_tables_are_seldom() {
    const BLOCKS: u64 = 32768;
    let (_backend, mut store) = made(BLOCKS, 850);
    fill(&mut store, BLOCKS);
    let before = store.stats();
    let mut random = Random::new(3);
    for _ in 0..2 * BLOCKS / 4 {
        answer(&mut store, write(random.below(BLOCKS - 4), 4)).unwrap();
    }
    let after = store.stats();
    let (tables, moved) = (after.table_bytes - before.table_bytes, moved(&after) - moved(&before));
    println!("{tables} bytes of tables beside {moved}");
    assert!(tables < moved / 6, "{tables} bytes of tables beside {moved}");
}
