//! Proves that work which touches much holds nobody up: a hole over a whole volume goes in slices, and requests that come meanwhile find
//! either what was there or the hole, never something in between; and the space of many segments goes back a few at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use strongroom_block::{
    BlockSize, Buffer, Custody, Geometry, HoleRecord, Lba, SealingDomain, StoreSequence, Token, VolumeId,
};
use strongroom_store::backend::{Backend, Io, IoDone};
use strongroom_store::{
    Completion, CreateOptions, Extent, MemoryBackend, Op, OpError, OpenOptions, Outcome, Store, UnitKind, View, Waker,
};
use strongroom_testing::{SimDisk, record_for};

const BLOCKS: u64 = 4096;
/// What holes hide in one poll, here.
const SLICE: u64 = 300;

const SEALED: UnitKind = UnitKind::Sealed { domain: SealingDomain([9; 16]), custody: Custody::KeyFile };

fn create(kind: UnitKind) -> CreateOptions {
    let geometry = Geometry { block_size: BlockSize::new(512).unwrap(), blocks: BLOCKS };
    CreateOptions { segment_bytes: 64 << 10, ..CreateOptions::new(VolumeId([1; 16]), geometry, kind) }
}

fn open(disk: &SimDisk) -> Store {
    let options = OpenOptions { hide_blocks_per_poll: SLICE, ..OpenOptions::default() };
    Store::open_on(Box::new(disk.backend(true)), &options, Arc::new(|| {})).unwrap()
}

fn write(kind: UnitKind, op: u64, lba: u64, count: u64) -> Op {
    let data = vec![Buffer::copy_from(&vec![op as u8; 512 * count as usize])];
    let record = |at| record_for(op, at, Some(&[op as u8; 512]));
    let records = if kind.is_sealed() { (0..count).map(record).collect() } else { Vec::new() };
    Op::Write { lba: Lba(lba), data, records, fua: false, origin: None }
}

fn everything(kind: UnitKind, op: u64) -> Op {
    match kind {
        UnitKind::Plain => Op::Discard { lba: Lba(0), count: BLOCKS },
        UnitKind::Sealed { .. } => Op::Hole {
            holes: vec![HoleRecord { start: Lba(0), count: BLOCKS, record: record_for(op, 0, None) }],
            origin: None,
        },
    }
}

/// A full volume.
fn full(kind: UnitKind) -> (SimDisk, Store) {
    let disk = SimDisk::new(1);
    Store::create_on(Box::new(disk.backend(true)), &create(kind)).unwrap();
    let mut store = open(&disk);
    store.execute(everything(kind, 1)).unwrap();
    for lba in (0..BLOCKS).step_by(64) {
        store.execute(write(kind, 2, lba, 64)).unwrap();
    }
    assert_eq!(store.stats().blocks_mapped, BLOCKS);
    (disk, store)
}

/// The first byte of a block; `None`: a hole.
fn first_byte(store: &mut Store, view: View, lba: u64) -> Option<u8> {
    match store.execute_on(view, Op::Read { lba: Lba(lba), count: 1 }) {
        Ok(Outcome::Read(extents)) => match &extents[0] {
            Extent::Blocks { data, .. } => Some(data[0]),
            Extent::Hole { .. } => None,
        },
        other => panic!("not read: {other:?}"),
    }
}

#[test]
fn a_hole_over_everything_lets_others_in_between() {
    const HOLE: Token = Token(1);
    for kind in [UnitKind::Plain, SEALED] {
        let (disk, mut store) = full(kind);
        store.submit(HOLE, everything(kind, 3));
        let (mut done, mut polls) = (Vec::new(), 0);
        while !done.iter().any(|completion: &Completion| completion.token == HOLE) {
            polls += 1;
            let mapped = store.stats().blocks_mapped;
            store.submit(Token(100 + polls), Op::Read { lba: Lba(BLOCKS - 1), count: 1 });
            if polls == 2 {
                store.submit(Token(2), write(kind, 4, 7, 1));
            }
            store.poll_completions(&mut done);
            assert!(done.iter().any(|completion| completion.token == Token(100 + polls)), "reads go on");
            let hidden = mapped.saturating_sub(store.stats().blocks_mapped);
            assert!(hidden <= SLICE + 64, "one poll hides a little: {hidden}");
            assert!(polls < 1000, "it ends");
        }
        assert!(polls > BLOCKS / (SLICE + 64), "{polls} polls");
        assert!(done.iter().any(|completion| completion.token == Token(2)), "a write was done in between");
        assert!(done.iter().all(|completion| completion.result.is_ok()));
        // What was written meanwhile came later; nothing else is left.
        let look = |store: &mut Store| {
            assert_eq!(store.stats().blocks_mapped, 1);
            assert_eq!(
                [6, 7, 8, BLOCKS - 1].map(|lba| first_byte(store, View::default(), lba)),
                [None, Some(4), None, None]
            );
        };
        look(&mut store);
        if kind.is_sealed() {
            let older = Op::ReadVersion { lba: Lba(9), older_than: StoreSequence(u64::MAX >> 3) };
            assert!(matches!(store.execute(older), Ok(Outcome::Read(_))));
            assert!(store.stats().versions_retained > 0, "what a hole hides is an older version");
        }
        store.execute(Op::Flush).unwrap();
        drop(store);
        disk.crash();
        look(&mut open(&disk));
    }
}

/// A crash in the middle of it: the hole is in the log, whole.
#[test]
fn a_hole_that_was_flushed_while_it_hides_is_whole_after_a_crash() {
    for kind in [UnitKind::Plain, SEALED] {
        let (disk, mut store) = full(kind);
        let mut done = Vec::new();
        store.submit(Token(1), everything(kind, 3));
        store.poll_completions(&mut done);
        assert!((1..BLOCKS).contains(&store.stats().blocks_mapped), "it is at it");
        store.execute(Op::Flush).unwrap();
        drop(store);
        disk.crash();
        assert_eq!(open(&disk).stats().blocks_mapped, 0);
    }
}

/// A condition and a snapshot are about the volume as the hole leaves it: they come after it in the log.
#[test]
fn conditions_and_snapshots_wait_for_the_hole_before_them() {
    for kind in [UnitKind::Plain, SEALED] {
        let (_disk, mut store) = full(kind);
        let mut done = Vec::new();
        store.submit(Token(1), everything(kind, 3));
        store.poll_completions(&mut done);
        assert!(done.is_empty() && store.stats().blocks_mapped > 0);
        let lba = Lba(BLOCKS - 1);
        let old = Buffer::copy_from(&[2; 512]);
        let conditional = match kind {
            UnitKind::Plain => Op::CompareAndWrite { lba, compare: old.clone(), data: old, fua: false },
            UnitKind::Sealed { .. } => {
                let expected = Some(record_for(2, 63, None).stamp());
                Op::ConditionalWrite {
                    lba,
                    expected,
                    data: vec![old.clone()],
                    record: record_for(5, 0, Some(&old)),
                    fua: false,
                    origin: None,
                }
            }
        };
        let refused = store.execute(conditional).unwrap_err();
        assert!(matches!(refused, OpError::Miscompare { .. } | OpError::StampDiffers { found: None, .. }), "{refused}");

        let (_disk, mut store) = full(kind);
        store.submit(Token(1), everything(kind, 3));
        store.poll_completions(&mut done);
        let Ok(Outcome::SnapshotCreated { id }) = store.execute(Op::SnapshotCreate { name: "s".into() }) else {
            panic!("no snapshot")
        };
        assert_eq!(first_byte(&mut store, View::Snapshot(id), BLOCKS - 1), None);
    }
}

/// Memory of which discards take their time; tells how many were under way at most.
#[derive(Default)]
struct SlowDiscards {
    memory: MemoryBackend,
    waiting: VecDeque<u64>,
    most: Arc<AtomicUsize>,
    total: Arc<AtomicUsize>,
}

impl Backend for SlowDiscards {
    fn set_waker(&mut self, _waker: Waker) {}
    fn submit(&mut self, token: u64, io: Io) {
        if matches!(io, Io::Discard { .. }) {
            self.waiting.push_back(token);
            self.most.fetch_max(self.waiting.len(), Ordering::Relaxed);
            self.total.fetch_add(1, Ordering::Relaxed);
        } else {
            self.memory.submit(token, io);
        }
    }
    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        let before = done.len();
        // Only when nothing else is left to do.
        if self.memory.poll(done) == 0 {
            done.extend(self.waiting.pop_front().map(|token| IoDone { token, result: Ok(None) }));
        }
        done.len() - before
    }
    fn wait(&mut self) {}
}

#[test]
fn the_space_of_many_segments_goes_back_a_few_at_a_time() {
    let mut backend = SlowDiscards::default();
    let (most, total) = (Arc::clone(&backend.most), Arc::clone(&backend.total));
    let image = SimDisk::new(1);
    Store::create_on(Box::new(image.backend(true)), &create(UnitKind::Plain)).unwrap();
    let mut bytes = vec![0; 4 << 20];
    image.read(0, &mut bytes);
    backend.memory.write_at(0, &bytes);
    let mut store = Store::open_on(Box::new(backend), &OpenOptions::default(), Arc::new(|| {})).unwrap();
    for lba in (0..BLOCKS).step_by(64) {
        store.execute(write(UnitKind::Plain, 2, lba, 64)).unwrap();
    }
    let free = store.stats().segments_free;
    store.execute(everything(UnitKind::Plain, 3)).unwrap();
    // One round makes all of them free.
    for _ in 0..10_000 {
        store.idle();
    }
    let freed = store.stats().segments_free - free;
    assert!(freed > 16, "{freed} segments");
    assert!(total.load(Ordering::Relaxed) > 8, "most of their space goes back");
    assert!(most.load(Ordering::Relaxed) <= 4, "{} discards at a time", most.load(Ordering::Relaxed));
}
