//! Proves that a request of a sealed unit is executed at most once, however often it is sent, and after any crash; that a replay
//! puts a lost write back where it was in the order, and never over anything newer; and when the incarnation changes.

use std::sync::Arc;

use strongroom_block::{
    AttachId, BlockSize, Buffer, Custody, Geometry, HoleRecord, Lba, Mode, RecordFlags, SealRecord, SealingDomain,
    Stamp, StoreSequence, Suite, Token, VolumeId, keyless_checksum,
};
use strongroom_store::{
    BranchId, CreateOptions, Extent, Op, OpError, OpenOptions, Origin, Outcome, RepairOptions, SharedMemory,
    SnapshotId, Store, UnitKind, View,
};
use strongroom_testing::{Faults, SimDisk};

const BLOCKS: u64 = 64;
/// More than any store here takes.
const IMAGE_BYTES: usize = 16 << 20;

const A: AttachId = AttachId([0xa; 16]);
const B: AttachId = AttachId([0xb; 16]);

fn options() -> CreateOptions {
    let kind = UnitKind::Sealed { domain: SealingDomain([9; 16]), custody: Custody::KeyFile };
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
    CreateOptions { segment_bytes: 64 << 10, ..CreateOptions::new(VolumeId([1; 16]), geometry, kind) }
}

fn stamp(attach_id: AttachId, counter: u64) -> Stamp {
    Stamp { attach_id, counter }
}

fn record(stamp: Stamp, data: Option<&[u8]>) -> SealRecord {
    let (flags, sum) = data.map_or((RecordFlags::HOLE, 0), |data| (0, keyless_checksum(data)));
    SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(flags), 0, stamp, sum, [0; 16])
}

/// A write of `count` blocks that hold `fill`, known by `operation`, and sealed under `sealed`.
fn resealed(lba: u64, count: u64, fill: u8, operation: Stamp, sealed: Stamp, replay: Option<StoreSequence>) -> Op {
    let block = [fill; 4096];
    let of = |at| record(Stamp { counter: sealed.counter + at, ..sealed }, Some(&block));
    Op::Write {
        lba: Lba(lba),
        data: (0..count).map(|_| Buffer::copy_from(&block)).collect(),
        records: (0..count).map(of).collect(),
        fua: false,
        origin: Some(Origin { operation, replay }),
    }
}

fn write(lba: u64, count: u64, fill: u8, operation: Stamp) -> Op {
    resealed(lba, count, fill, operation, operation, None)
}

fn replay(lba: u64, count: u64, fill: u8, operation: Stamp, sequence: StoreSequence) -> Op {
    resealed(lba, count, fill, operation, operation, Some(sequence))
}

fn hole(start: u64, count: u64, operation: Stamp) -> Op {
    let holes = vec![HoleRecord { start: Lba(start), count, record: record(operation, None) }];
    Op::Hole { holes, origin: Some(Origin { operation, replay: None }) }
}

fn on(branch: u32) -> View {
    View::Head(BranchId(branch))
}

fn register(store: &mut Store, attach_id: AttachId) {
    assert_eq!(store.execute(Op::RegisterAttachment { attach_id }), Ok(Outcome::Changed));
}

fn first(result: Result<Outcome, OpError>) -> StoreSequence {
    match result {
        Ok(Outcome::Written { first, repeated: 0, superseded: 0 }) => first,
        other => panic!("not written: {other:?}"),
    }
}

fn repeated(count: u32) -> Result<Outcome, OpError> {
    Ok(Outcome::Written { first: StoreSequence(0), repeated: count, superseded: 0 })
}

/// What each block of a range holds: the byte that fills it, or 0 for a hole.
fn fills(store: &mut Store, view: View, lba: u64, count: u32) -> Vec<u8> {
    let Ok(Outcome::Read(extents)) = store.execute_on(view, Op::Read { lba: Lba(lba), count }) else {
        panic!("not read")
    };
    let fills = extents.iter().flat_map(|extent| match extent {
        Extent::Blocks { data, .. } => data.chunks(4096).map(|block| block[0]).collect::<Vec<_>>(),
        Extent::Hole { count, .. } => vec![0; *count as usize],
    });
    fills.collect()
}

fn volume(store: &mut Store, lba: u64, count: u32) -> Vec<u8> {
    fills(store, View::default(), lba, count)
}

fn format(store: &mut Store) {
    let holes = vec![HoleRecord { start: Lba(0), count: BLOCKS, record: record(stamp(AttachId([1; 16]), 0), None) }];
    store.execute(Op::Hole { holes, origin: None }).unwrap();
}

/// A disk whose losses are chosen: its image is taken, and put back.
struct Bench {
    memory: SharedMemory,
    options: OpenOptions,
}

impl Bench {
    fn new() -> Bench {
        Bench::with_segments(None)
    }

    fn with_segments(segments: Option<u32>) -> Bench {
        let bench = Bench { memory: SharedMemory::default(), options: OpenOptions::default() };
        Store::create_on(Box::new(bench.memory.clone()), &CreateOptions { segments, ..options() }).unwrap();
        let mut store = bench.open();
        format(&mut store);
        store.close().unwrap();
        bench
    }

    fn open(&self) -> Store {
        Store::open_on(Box::new(self.memory.clone()), &self.options, Arc::new(|| {})).unwrap()
    }

    fn image(&self) -> Vec<u8> {
        let mut image = vec![0; IMAGE_BYTES];
        self.memory.read_at(0, &mut image);
        image
    }

    /// The machine stops, and nothing that was written since the image was taken has arrived.
    fn crash_to(&mut self, store: Store, image: &[u8]) {
        drop(store);
        self.memory = SharedMemory::default();
        self.memory.write_at(0, image);
    }
}

#[test]
fn a_request_that_is_sent_again_is_not_executed_again() {
    let bench = Bench::new();
    let mut store = bench.open();
    register(&mut store, A);
    register(&mut store, B);
    let sent = first(store.execute(write(4, 2, 7, stamp(A, 10))));
    let later = first(store.execute(write(5, 1, 8, stamp(B, 3))));
    assert!(later > sent);
    for reopened in [false, true] {
        assert_eq!(store.execute(write(4, 2, 7, stamp(A, 10))), repeated(2));
        // Sealed again, under a new key, it is the same request.
        assert_eq!(store.execute(resealed(4, 2, 7, stamp(A, 10), stamp(A, 90), None)), repeated(2));
        assert_eq!(volume(&mut store, 4, 2), [7, 8], "what was written since stays");
        if !reopened {
            store.close().unwrap();
            store = bench.open();
        }
    }
    // Counters are known one by one: their order does not matter.
    first(store.execute(write(9, 1, 1, stamp(A, 12))));
    first(store.execute(write(9, 1, 2, stamp(A, 9))));
    assert_eq!(store.execute(write(9, 1, 2, stamp(A, 9))), repeated(1));
    assert_eq!(store.execute(write(9, 1, 1, stamp(A, 12))), repeated(1));
    assert_eq!(volume(&mut store, 9, 1), [2]);
    assert_eq!(volume(&mut store, 4, 2), [7, 8]);
}

#[test]
fn a_repetition_is_answered_when_it_is_durable() {
    let mut bench = Bench::new();
    let mut store = bench.open();
    register(&mut store, A);
    first(store.execute(write(4, 2, 7, stamp(A, 10))));
    assert_eq!(store.execute(write(4, 2, 7, stamp(A, 10))), repeated(2));
    let syncs = store.stats().syncs;
    assert_eq!(store.execute(write(4, 2, 7, stamp(A, 10))), repeated(2));
    assert_eq!(store.stats().syncs, syncs, "it was durable already");
    let image = bench.image();
    bench.crash_to(store, &image);
    assert_eq!(volume(&mut bench.open(), 4, 2), [7, 7]);
    // On a disk that keeps nothing unsynced the same holds.
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        Store::create_on(Box::new(disk.backend(true)), &options()).unwrap();
        let mut store = open_disk(&disk).unwrap();
        format(&mut store);
        register(&mut store, A);
        first(store.execute(write(4, 2, 7, stamp(A, 10))));
        assert_eq!(store.execute(write(4, 2, 7, stamp(A, 10))), repeated(2));
        drop(store);
        disk.crash();
        assert_eq!(volume(&mut open_disk(&disk).unwrap(), 4, 2), [7, 7], "seed {seed}");
    }
}

#[test]
fn attack_an_unknown_attach_id_and_overlapping_operations_are_refused() {
    let bench = Bench::new();
    let mut store = bench.open();
    let unknown = Err(OpError::UnknownAttachment { attach_id: A });
    assert_eq!(store.execute(write(4, 1, 7, stamp(A, 10))), unknown);
    assert_eq!(store.execute(hole(4, 1, stamp(A, 11))), unknown);
    assert_eq!(volume(&mut store, 4, 1), [0]);
    register(&mut store, A);
    first(store.execute(write(4, 2, 7, stamp(A, 10))));
    for (counter, count) in [(9, 2), (11, 2), (9, 4), (10, 3)] {
        let operation = stamp(A, counter);
        let overlaps = Err(OpError::OperationOverlaps { operation });
        assert_eq!(store.execute(write(20, count, 9, operation)), overlaps);
    }
    assert_eq!(volume(&mut store, 20, 4), [0; 4]);
    assert!(matches!(store.execute(write(0, 2, 9, stamp(A, u64::MAX - 1))), Err(OpError::Misuse(_))));
    first(store.execute(write(0, 1, 9, stamp(A, u64::MAX - 1))));
}

#[test]
fn a_resend_behind_its_request_in_the_same_batch_is_recognised() {
    let bench = Bench::new();
    let mut store = bench.open();
    register(&mut store, A);
    for token in 1..=2 {
        store.submit(Token(token), write(4, 1, 7, stamp(A, 50)));
    }
    // A third, while others are written side by side.
    for other in 0..20 {
        store.submit(Token(10 + other), write(8, 8, 1, stamp(A, 100 + 8 * other)));
    }
    store.submit(Token(3), write(4, 1, 7, stamp(A, 50)));
    let mut done = Vec::new();
    while done.len() < 23 {
        store.poll_completions(&mut done);
    }
    done.sort_by_key(|completion| completion.token.0);
    assert!(matches!(done[0].result, Ok(Outcome::Written { repeated: 0, .. })));
    assert_eq!((&done[1].result, &done[2].result), (&repeated(1), &repeated(1)));
    assert_eq!(store.stats().written_bytes, (1 + 8 * 20) * 4096, "it was written once");
}

/// What failed was not executed: the same request is executed when it is sent again.
#[test]
fn a_request_that_found_no_space_is_executed_when_it_is_sent_again() {
    let disk = SimDisk::new(3);
    Store::create_on(Box::new(disk.backend(true)), &options()).unwrap();
    let mut store = open_disk(&disk).unwrap();
    format(&mut store);
    register(&mut store, A);
    disk.set_faults(Faults { pages_max: disk.pages(), ..Faults::default() });
    assert_eq!(store.execute(write(4, 2, 7, stamp(A, 10))), Err(OpError::NoSpace));
    let unregistered = store.execute(Op::RegisterAttachment { attach_id: B });
    assert_eq!(unregistered, Err(OpError::NoSpace));
    disk.set_faults(Faults::default());
    first(store.execute(write(4, 2, 7, stamp(A, 10))));
    assert_eq!(store.execute(write(5, 1, 7, stamp(B, 1))), Err(OpError::UnknownAttachment { attach_id: B }));
    store.close().unwrap();
    let mut store = open_disk(&disk).unwrap();
    assert_eq!(store.execute(write(4, 2, 7, stamp(A, 10))), repeated(2));
    assert_eq!(store.execute(write(5, 1, 7, stamp(B, 1))), Err(OpError::UnknownAttachment { attach_id: B }));
}

#[test]
fn holes_and_requests_with_a_condition_are_executed_once() {
    let bench = Bench::new();
    let mut store = bench.open();
    register(&mut store, A);
    register(&mut store, B);
    let conditional = |expected, fill: u8, operation| {
        let data = [fill; 4096];
        let record = record(operation, Some(&data));
        let origin = Some(Origin { operation, replay: None });
        Op::ConditionalWrite { lba: Lba(2), expected, data: vec![Buffer::copy_from(&data)], record, fua: false, origin }
    };
    first(store.execute(conditional(None, 1, stamp(A, 1))));
    let failed = store.execute(conditional(None, 2, stamp(A, 2)));
    assert!(matches!(failed, Err(OpError::StampDiffers { .. })));
    first(store.execute(conditional(Some(stamp(A, 1)), 3, stamp(B, 1))));
    assert_eq!(store.execute(conditional(None, 1, stamp(A, 1))), repeated(1), "although its condition no longer holds");
    // One that failed was not executed: its condition is looked at again.
    first(store.execute(hole(2, 1, stamp(B, 2))));
    first(store.execute(conditional(None, 2, stamp(A, 2))));
    first(store.execute(hole(0, 8, stamp(A, 3))));
    first(store.execute(write(3, 1, 9, stamp(B, 3))));
    assert_eq!(store.execute(hole(0, 8, stamp(A, 3))), repeated(1));
    let absent = |operation| {
        let hole = HoleRecord { start: Lba(40), count: 8, record: record(operation, None) };
        Op::ConditionalHole { hole, origin: Some(Origin { operation, replay: None }) }
    };
    first(store.execute(absent(stamp(A, 4))));
    first(store.execute(write(41, 1, 9, stamp(B, 4))));
    assert_eq!(store.execute(absent(stamp(A, 4))), repeated(1));
    assert_eq!((volume(&mut store, 2, 2), volume(&mut store, 41, 1)), (vec![0, 9], vec![9]));
}

fn open_disk(disk: &SimDisk) -> Result<Store, strongroom_store::StoreError> {
    // Few writes between checkpoints, and small units: so that a cut meets all of them.
    let options =
        OpenOptions { checkpoint_log_bytes: Some(60_000), append_unit_bytes_max: 12 << 10, ..OpenOptions::default() };
    Store::open_on(Box::new(disk.backend(true)), &options, Arc::new(|| {}))
}

/// Requests, each of blocks of its own, so that what survived shows: lba, count and operation.
fn history() -> Vec<(u64, u64, Stamp)> {
    let of = |at: u64| (at * 4, 1 + at % 3, stamp(if at.is_multiple_of(2) { A } else { B }, 100 * (at % 5) + 10 * at));
    (0..16).map(of).collect()
}

/// The disk is cut off at the first I/O, at the second, and so on. Each time the windows are exactly what survived.
#[test]
fn after_a_crash_at_every_io_the_windows_are_what_survived() {
    let (mut survived, mut lost) = (0, 0);
    for ios in 0.. {
        let disk = SimDisk::new(ios);
        Store::create_on(Box::new(disk.backend(true)), &options()).unwrap();
        let mut store = open_disk(&disk).unwrap();
        format(&mut store);
        register(&mut store, A);
        register(&mut store, B);
        store.close().unwrap();
        disk.cut_off_after(ios);
        let mut ended = false;
        if let Ok(mut store) = open_disk(&disk) {
            for (at, (lba, count, operation)) in history().into_iter().enumerate() {
                store.submit(Token(at as u64), write(lba, count, at as u8 + 1, operation));
                let mut done = Vec::new();
                store.poll_completions(&mut done);
                if at % 6 == 5 {
                    let _ = store.execute(Op::Flush);
                }
            }
            ended = store.close().is_ok() && !disk.is_cut_off();
        }
        disk.crash();
        // An opening that is cut short changes nothing.
        disk.cut_off_after(ios % 7);
        drop(open_disk(&disk));
        disk.crash();
        let mut store = open_disk(&disk).unwrap();
        for (at, (lba, count, operation)) in history().into_iter().enumerate() {
            let found = volume(&mut store, lba, count as u32);
            let is_here = found.iter().all(|&fill| fill == at as u8 + 1);
            assert!(is_here || found.iter().all(|&fill| fill == 0), "cut at {ios}: torn");
            let again = store.execute(write(lba, count, at as u8 + 1, operation));
            match is_here {
                true => assert_eq!(again, repeated(count as u32), "cut at {ios}: executed twice"),
                false => drop(first(again)),
            }
            survived += u64::from(is_here);
            lost += u64::from(!is_here);
        }
        for (lba, count, operation) in history() {
            assert_eq!(store.execute(write(lba, count, 0xff, operation)), repeated(count as u32));
        }
        if ended {
            break;
        }
    }
    assert!(survived > 50 && lost > 50, "{survived} survived, {lost} were lost");
}

/// Cleaning, checkpoints and tables come and go: the windows stay, and replays stay where they are in the order.
#[test]
fn windows_and_replayed_blocks_outlive_cleaning_and_checkpoints() {
    let mut bench = Bench::with_segments(Some(16));
    bench.options.checkpoint_log_bytes = Some(100_000);
    let mut store = bench.open();
    register(&mut store, A);
    register(&mut store, B);
    let image = bench.image();
    let sequence = first(store.execute(write(60, 2, 7, stamp(A, 5))));
    bench.crash_to(store, &image);
    let mut store = bench.open();
    first(store.execute(write(61, 1, 9, stamp(B, 1))));
    let replayed = store.execute(replay(60, 2, 7, stamp(A, 5), sequence));
    assert_eq!(replayed, Ok(Outcome::Written { first: sequence, repeated: 0, superseded: 1 }));
    for counter in 0..4000 {
        first(store.execute(write(counter * counter % 59 % 50, 1, counter as u8, stamp(B, 10 + counter))));
    }
    assert!(store.stats().cleaned_bytes > 0 && store.stats().checkpoints > 1, "{:?}", store.stats());
    for closed in [true, false] {
        match closed {
            true => store.close().unwrap(),
            false => drop(store),
        }
        store = bench.open();
        assert_eq!(volume(&mut store, 60, 2), [7, 9]);
        assert_eq!(store.execute(replay(60, 2, 7, stamp(A, 5), sequence)), repeated(2));
        assert_eq!(store.execute(write(0, 1, 1, stamp(B, 10))), repeated(1));
        assert_eq!(store.execute(write(0, 1, 1, stamp(B, 4009))), repeated(1));
    }
    let report = Store::check_on(&mut bench.memory.clone()).unwrap();
    assert!(report.is_sound(), "{report:?}");
}

/// Two initiators wrote the same block, and a crash took both writes: in either order of the replays, the later one stays.
#[test]
fn replays_restore_the_order_from_before_the_crash() {
    for a_first in [true, false] {
        let mut bench = Bench::new();
        let mut store = bench.open();
        register(&mut store, A);
        register(&mut store, B);
        let image = bench.image();
        let of_a = first(store.execute(write(4, 3, 1, stamp(A, 5))));
        let of_b = first(store.execute(write(5, 1, 2, stamp(B, 5))));
        bench.crash_to(store, &image);
        let mut store = bench.open();
        assert_eq!(volume(&mut store, 4, 3), [0, 0, 0]);
        let (a, b) = (replay(4, 3, 1, stamp(A, 5), of_a), replay(5, 1, 2, stamp(B, 5), of_b));
        let outcomes = match a_first {
            true => [store.execute(a.clone()), store.execute(b.clone())],
            false => {
                let b = store.execute(b.clone());
                [store.execute(a.clone()), b]
            }
        };
        let superseded = u32::from(!a_first);
        assert_eq!(outcomes[0], Ok(Outcome::Written { first: of_a, repeated: 0, superseded }));
        assert_eq!(first(outcomes[1].clone()), of_b, "under its original sequence");
        for reopened in [false, true] {
            assert_eq!(volume(&mut store, 4, 3), [1, 2, 1]);
            assert_eq!(store.execute(a.clone()), repeated(3));
            assert_eq!(store.execute(b.clone()), repeated(1));
            if !reopened {
                store.execute(Op::Flush).unwrap();
                drop(store);
                store = bench.open();
            }
        }
        // What is written next is newer, and what a reader verified lets older ones go.
        let newest = first(store.execute(write(5, 1, 3, stamp(B, 6))));
        assert!(newest > of_b);
        let verified = store.execute(Op::Verified { pairs: vec![(Lba(5), newest), (Lba(4), of_a)] });
        assert_eq!(verified, Ok(Outcome::Verified { released: 1 + u64::from(a_first) }));
    }
}

/// The failure that was seen: a write is acknowledged and lost; another initiator writes the same block, flushes, and leaves; then the
/// first one comes back.
#[test]
fn attack_a_stale_replay_does_not_undo_flushed_data() {
    let mut bench = Bench::new();
    let mut store = bench.open();
    register(&mut store, A);
    register(&mut store, B);
    let image = bench.image();
    let of_a = first(store.execute(write(4, 3, 1, stamp(A, 5))));
    bench.crash_to(store, &image);
    let mut store = bench.open();
    first(store.execute(write(5, 1, 2, stamp(B, 5))));
    store.execute(Op::Flush).unwrap();
    store.close().unwrap();
    let mut store = bench.open();
    let replayed = store.execute(replay(4, 3, 1, stamp(A, 5), of_a));
    assert_eq!(replayed, Ok(Outcome::Written { first: of_a, repeated: 0, superseded: 1 }));
    assert_eq!(volume(&mut store, 4, 3), [1, 2, 1]);
    // Holes too: what is newer in their range stays.
    let holes = vec![HoleRecord { start: Lba(0), count: 16, record: record(stamp(A, 9), None) }];
    let origin = Some(Origin { operation: stamp(A, 9), replay: Some(StoreSequence(of_a.0 + 100)) });
    assert_eq!(first(store.execute(Op::Hole { holes, origin })), StoreSequence(of_a.0 + 100));
    assert_eq!(volume(&mut store, 4, 3), [0, 2, 0]);
    // All of it superseded: nothing is written, and it counts as executed.
    let none = store.execute(replay(5, 1, 6, stamp(A, 20), of_a));
    assert_eq!(none, Ok(Outcome::Written { first: of_a, repeated: 0, superseded: 1 }));
    store.close().unwrap();
    let mut store = bench.open();
    assert_eq!(store.execute(replay(5, 1, 6, stamp(A, 20), of_a)), repeated(1));
    assert_eq!(volume(&mut store, 4, 3), [0, 2, 0]);
}

/// One block on condition of the stamp that is there (`None`: a hole), known by its own stamp.
fn part(lba: u64, fill: u8, expected: Option<Stamp>, operation: Stamp) -> Op {
    let block = [fill; 4096];
    let origin = Some(Origin { operation, replay: None });
    let (data, record) = (vec![Buffer::copy_from(&block)], record(operation, Some(&block)));
    Op::ConditionalWrite { lba: Lba(lba), expected, data, record, fua: true, origin }
}

/// Initiator A's write of blocks 4 to 6 was acknowledged and is lost. What it had, and the store after the crash.
fn lost_write(bench: &mut Bench) -> (Store, StoreSequence) {
    let mut store = bench.open();
    register(&mut store, A);
    register(&mut store, B);
    first(store.execute(write(4, 3, 1, stamp(B, 1))));
    store.execute(Op::Flush).unwrap();
    let image = bench.image();
    let of_a = first(store.execute(write(4, 3, 2, stamp(A, 5))));
    bench.crash_to(store, &image);
    (bench.open(), of_a)
}

/// The loss that the simulation found: B wrote a part of a block that A's replay was still to bring back, together with the rest of it as
/// the crash had left it.
#[test]
fn a_replay_is_not_superseded_by_what_was_made_from_the_state_after_the_crash() {
    for parts in 1..4 {
        let mut bench = Bench::new();
        let (mut store, of_a) = lost_write(&mut bench);
        for nth in 0..parts {
            let expected = stamp(B, if nth == 0 { 2 } else { 10 + nth - 1 });
            first(store.execute(part(5, 3 + nth as u8, Some(expected), stamp(B, 10 + nth))));
        }
        let newest = 3 + parts as u8 - 1;
        let lost = Err(OpError::ReplayLost { lba: Lba(5) });
        assert_eq!(store.execute(replay(4, 3, 2, stamp(A, 5), of_a)), lost, "{parts} parts");
        assert_eq!(volume(&mut store, 4, 3), [2, newest, 2], "the others are back");
        // If that answer is lost too, it comes again; also from another opening, which read the log or a checkpoint.
        for _ in 0..2 {
            assert_eq!(store.execute(replay(4, 3, 2, stamp(A, 5), of_a)), lost);
            assert_eq!(
                store.execute(replay(5, 1, 2, stamp(A, 6), StoreSequence(of_a.0 + 1))),
                lost,
                "nothing is left of it"
            );
            store.close().unwrap();
            store = bench.open();
        }
        // A write of the whole block settles that.
        first(store.execute(write(5, 1, 9, stamp(B, 50))));
        let replayed = store.execute(replay(4, 3, 2, stamp(A, 5), of_a));
        assert_eq!(replayed, Ok(Outcome::Written { first: of_a, repeated: 0, superseded: 3 }));
        assert_eq!(volume(&mut store, 4, 3), [2, 9, 2]);
    }
}

/// Parts of what was written after the lost write without regard to it, or of the lost write itself, do supersede it.
#[test]
fn a_replay_is_superseded_by_parts_of_what_replaced_it() {
    for reopened in [false, true] {
        let mut bench = Bench::new();
        let (mut store, of_a) = lost_write(&mut bench);
        // All of block 4; a hole instead of block 5; and block 6 as A had it.
        first(store.execute(write(4, 1, 3, stamp(B, 10))));
        first(store.execute(hole(5, 1, stamp(B, 11))));
        let last = StoreSequence(of_a.0 + 2);
        assert_eq!(first(store.execute(replay(6, 1, 2, stamp(A, 40), last))), last);
        let made_from = [(4, Some(stamp(B, 10))), (5, None), (6, Some(stamp(A, 40)))];
        for (lba, expected) in made_from {
            first(store.execute(part(lba, 4, expected, stamp(B, 20 + 2 * lba))));
            first(store.execute(part(lba, 5, Some(stamp(B, 20 + 2 * lba)), stamp(B, 21 + 2 * lba))));
        }
        if reopened {
            store.close().unwrap();
            store = bench.open();
        }
        let replayed = store.execute(replay(4, 3, 2, stamp(A, 5), of_a));
        assert_eq!(replayed, Ok(Outcome::Written { first: of_a, repeated: 0, superseded: 3 }), "reopened: {reopened}");
        assert_eq!(volume(&mut store, 4, 3), [5, 5, 5]);
    }
}

/// A lost discard, and a seal of absence over a lost write.
#[test]
fn a_replay_is_not_superseded_across_holes() {
    let mut bench = Bench::new();
    let mut store = bench.open();
    register(&mut store, A);
    register(&mut store, B);
    first(store.execute(write(4, 3, 1, stamp(B, 1))));
    store.execute(Op::Flush).unwrap();
    let image = bench.image();
    let discarded = first(store.execute(hole(0, 16, stamp(A, 5))));
    let written = first(store.execute(write(30, 2, 2, stamp(A, 6))));
    bench.crash_to(store, &image);
    let mut store = bench.open();
    first(store.execute(part(5, 3, Some(stamp(B, 2)), stamp(B, 10))));
    let absent = HoleRecord { start: Lba(24), count: 16, record: record(stamp(B, 11), None) };
    let origin = Some(Origin { operation: stamp(B, 11), replay: None });
    first(store.execute(Op::ConditionalHole { hole: absent, origin }));
    for reopened in [false, true] {
        let holes = vec![HoleRecord { start: Lba(0), count: 16, record: record(stamp(A, 5), None) }];
        let origin = Some(Origin { operation: stamp(A, 5), replay: Some(discarded) });
        let again = store.execute(Op::Hole { holes, origin });
        match reopened {
            // The hole is there by now, and cannot be there twice.
            true => assert!(matches!(again, Err(OpError::ReplayLost { .. } | OpError::ReplayRefused(_))), "{again:?}"),
            false => assert_eq!(again, Err(OpError::ReplayLost { lba: Lba(5) })),
        }
        assert_eq!(volume(&mut store, 4, 3), [0, 3, 0], "what was as the crash left it is discarded");
        let lost = store.execute(replay(30, 2, 2, stamp(A, 6), written));
        assert_eq!(lost, Err(OpError::ReplayLost { lba: Lba(30) }));
        store.close().unwrap();
        store = bench.open();
    }
}

/// Cleaning and checkpoints move what was written on a condition, and what it was made from stays known.
#[test]
fn what_a_block_was_made_from_outlives_cleaning_and_checkpoints() {
    let mut bench = Bench::with_segments(Some(16));
    bench.options.checkpoint_log_bytes = Some(100_000);
    let (mut store, of_a) = lost_write(&mut bench);
    first(store.execute(part(5, 3, Some(stamp(B, 2)), stamp(B, 10))));
    let absent = HoleRecord { start: Lba(60), count: 2, record: record(stamp(B, 11), None) };
    store.execute(Op::ConditionalHole { hole: absent, origin: None }).unwrap();
    for counter in 0..4000 {
        first(store.execute(write(10 + counter * counter % 59 % 40, 1, counter as u8, stamp(B, 100 + counter))));
    }
    assert!(store.stats().cleaned_bytes > 0 && store.stats().checkpoints > 1, "{:?}", store.stats());
    for closed in [true, false] {
        match closed {
            true => store.close().unwrap(),
            false => drop(store),
        }
        store = bench.open();
        for lba in [5, 60, 61] {
            let sequence = StoreSequence(of_a.0 + 1);
            let lost = store.execute(replay(lba, 1, 2, stamp(A, lba), sequence));
            assert_eq!(lost, Err(OpError::ReplayLost { lba: Lba(lba) }));
        }
        let replayed = store.execute(replay(11, 1, 2, stamp(A, 100 + u64::from(closed)), of_a));
        assert!(matches!(replayed, Ok(Outcome::Written { superseded: 1, .. })), "{replayed:?}");
    }
    let report = Store::check_on(&mut bench.memory.clone()).unwrap();
    assert!(report.is_sound(), "{report:?}");
}

/// Two lost writes of a block: a part of the first one, once that is back, does not stand for the second.
#[test]
fn a_replay_is_not_superseded_by_a_part_of_an_older_replay() {
    let mut bench = Bench::new();
    let mut store = bench.open();
    register(&mut store, A);
    register(&mut store, B);
    let image = bench.image();
    let of_a = first(store.execute(write(5, 1, 1, stamp(A, 5))));
    let of_b = first(store.execute(write(5, 1, 2, stamp(B, 5))));
    bench.crash_to(store, &image);
    let mut store = bench.open();
    assert_eq!(first(store.execute(replay(5, 1, 1, stamp(A, 5), of_a))), of_a);
    first(store.execute(part(5, 3, Some(stamp(A, 5)), stamp(A, 6))));
    assert_eq!(store.execute(replay(5, 1, 2, stamp(B, 5), of_b)), Err(OpError::ReplayLost { lba: Lba(5) }));
    let again = store.execute(replay(5, 1, 1, stamp(A, 50), of_a));
    assert_eq!(again, Ok(Outcome::Written { first: of_a, repeated: 0, superseded: 1 }), "it is in there");
    assert_eq!(volume(&mut store, 5, 1), [3]);
}

#[test]
fn attack_a_replay_with_an_impossible_sequence_is_refused() {
    let mut bench = Bench::new();
    let mut store = bench.open();
    register(&mut store, A);
    let image = bench.image();
    let of_a = first(store.execute(write(4, 2, 1, stamp(A, 5))));
    let newest = first(store.execute(write(9, 1, 1, stamp(A, 7))));
    let refused = |result| matches!(result, Err(OpError::ReplayRefused(_)));
    for sequence in [0, newest.0, newest.0 + 1, u64::MAX - 1, u64::MAX] {
        assert!(refused(store.execute(replay(20, 2, 9, stamp(A, 50), StoreSequence(sequence)))), "{sequence}");
    }
    bench.crash_to(store, &image);
    let mut store = bench.open();
    let unknown = store.execute(replay(4, 2, 1, stamp(B, 5), of_a));
    assert_eq!(unknown, Err(OpError::UnknownAttachment { attach_id: B }));
    // A snapshot was made since: what is replayed must not get into it, and would have to.
    let Ok(Outcome::SnapshotCreated { id }) = store.execute(Op::SnapshotCreate { name: "s".into() }) else { panic!() };
    assert!(refused(store.execute(replay(4, 2, 1, stamp(A, 5), of_a))));
    assert_eq!(volume(&mut store, 4, 2), [0, 0]);
    // Without it, it can be.
    store.execute(Op::SnapshotDelete { id }).unwrap();
    while store.poll_completions(&mut Vec::new()) > 0 || store.execute(Op::Flush).is_err() {}
    for _ in 0..20 {
        store.poll_completions(&mut Vec::new());
    }
    assert_eq!(first(store.execute(replay(4, 2, 1, stamp(A, 5), of_a))), of_a);
    assert_eq!(volume(&mut store, 4, 2), [1, 1]);
}

fn clone(store: &mut Store) -> (SnapshotId, BranchId) {
    let Ok(Outcome::SnapshotCreated { id }) = store.execute(Op::SnapshotCreate { name: "s".into() }) else { panic!() };
    let clone = Op::CloneCreate { from: id, name: "c".into(), volume_id: VolumeId([3; 16]) };
    let Ok(Outcome::CloneCreated { branch }) = store.execute(clone) else { panic!() };
    (id, branch)
}

/// Sequences name versions in all branches: who writes to a clone cannot replay a sequence that the volume has.
#[test]
fn attack_a_forged_sequence_does_not_meet_another_branch() {
    let bench = Bench::new();
    let mut store = bench.open();
    let (_, branch) = clone(&mut store);
    register(&mut store, A);
    assert_eq!(store.execute_on(on(branch.0), Op::RegisterAttachment { attach_id: B }), Ok(Outcome::Changed));
    let of_block = first(store.execute(write(4, 1, 1, stamp(A, 1))));
    let of_hole = first(store.execute(hole(20, 4, stamp(A, 2))));
    let old = first(store.execute(write(6, 1, 1, stamp(A, 3))));
    first(store.execute(write(6, 1, 2, stamp(A, 4))));
    store.close().unwrap();
    let mut store = bench.open();
    for (counter, (lba, sequence)) in [(4, of_block), (6, old)].into_iter().enumerate() {
        let forged = store.execute_on(on(branch.0), replay(lba, 1, 9, stamp(B, counter as u64), sequence));
        assert!(matches!(forged, Err(OpError::ReplayRefused(_))), "{forged:?}");
    }
    let holes = vec![HoleRecord { start: Lba(20), count: 2, record: record(stamp(B, 9), None) }];
    let origin = Some(Origin { operation: stamp(B, 9), replay: Some(of_hole) });
    let forged = store.execute_on(on(branch.0), Op::Hole { holes, origin });
    assert!(matches!(forged, Err(OpError::ReplayRefused(_))), "{forged:?}");
    assert_eq!(volume(&mut store, 4, 3), [1, 0, 2]);
}

/// Windows are a branch's: a clone begins without any, a deleted one takes its own along, and a rollback undoes data but not the fact
/// that a request was executed.
#[test]
fn windows_and_branches() {
    let bench = Bench::new();
    let mut store = bench.open();
    register(&mut store, A);
    let (snapshot, branch) = clone(&mut store);
    let view = on(branch.0);
    let unknown = Err(OpError::UnknownAttachment { attach_id: A });
    assert_eq!(store.execute_on(view, write(4, 1, 7, stamp(A, 1))), unknown);
    assert_eq!(store.execute_on(view, Op::RegisterAttachment { attach_id: A }), Ok(Outcome::Changed));
    first(store.execute_on(view, write(4, 1, 7, stamp(A, 1))));
    first(store.execute(write(4, 1, 8, stamp(A, 1))));
    assert_eq!((fills(&mut store, view, 4, 1), volume(&mut store, 4, 1)), (vec![7], vec![8]));
    store.execute(Op::Rollback { to: snapshot }).unwrap();
    store.close().unwrap();
    let mut store = bench.open();
    assert_eq!(store.execute(write(4, 1, 8, stamp(A, 1))), repeated(1));
    assert_eq!(volume(&mut store, 4, 1), [0], "rolled back, and not executed again");
    assert_eq!(store.execute_on(view, write(4, 1, 7, stamp(A, 1))), repeated(1));
    assert_eq!(
        store.execute_on(View::Snapshot(snapshot), Op::RegisterAttachment { attach_id: B }),
        Err(OpError::ReadOnly)
    );
    store.execute(Op::CloneDelete { branch }).unwrap();
    drop(store);
    let mut store = bench.open();
    assert_eq!(store.execute(write(4, 1, 8, stamp(A, 1))), repeated(1));
}

/// Who may write to a clone can register as many attach ids as he likes: the volume's stay, the log does not fill up, and opening works.
#[test]
fn attack_a_flood_of_registrations_on_a_clone_costs_the_volume_nothing() {
    let bench = Bench::new();
    let mut store = bench.open();
    register(&mut store, A);
    first(store.execute(write(4, 1, 8, stamp(A, 1))));
    let (_, branch) = clone(&mut store);
    for number in 0..3000u128 {
        let attach_id = AttachId((1000 + number).to_be_bytes());
        let registered = store.execute_on(on(branch.0), Op::RegisterAttachment { attach_id });
        assert_eq!(registered, Ok(Outcome::Changed));
        if number % 100 == 0 {
            // Gaps too.
            for counter in 0..100 {
                first(store.execute_on(on(branch.0), write(4, 1, 1, stamp(attach_id, 2 * counter))));
            }
        }
    }
    for closed in [true, false] {
        assert_eq!(store.execute(write(4, 1, 8, stamp(A, 1))), repeated(1));
        match closed {
            true => store.close().unwrap(),
            false => drop(store),
        }
        store = bench.open();
    }
    first(store.execute(write(4, 1, 9, stamp(A, 2))));
    let newest = AttachId(3999u128.to_be_bytes());
    assert_eq!(store.execute_on(on(branch.0), Op::RegisterAttachment { attach_id: newest }), Ok(Outcome::Changed));
    first(store.execute_on(on(branch.0), write(4, 1, 1, stamp(newest, 0))));
}

#[test]
fn the_incarnation_changes_only_when_data_may_be_lost() {
    let mut bench = Bench::new();
    let mut store = bench.open();
    let incarnation = store.incarnation();
    assert_ne!(incarnation, 0);
    register(&mut store, A);
    first(store.execute(write(4, 1, 8, stamp(A, 1))));
    clone(&mut store);
    assert_eq!(store.incarnation(), incarnation);
    store.close().unwrap();
    let image = bench.image();
    let store = bench.open();
    assert_eq!(store.incarnation(), incarnation, "kept by an orderly close");
    // An opening that was cut short before it wrote anything counts for nothing.
    bench.crash_to(store, &image);
    let store = bench.open();
    assert_eq!(store.incarnation(), incarnation);
    drop(store);
    let store = bench.open();
    let crashed = store.incarnation();
    assert_ne!(crashed, incarnation, "nothing was written, but who knows");
    drop(store);
    let mut store = bench.open();
    assert_ne!(store.incarnation(), crashed);
    // An erase in order loses nothing that was not to be lost; one that is cut short is a crash.
    let before = store.incarnation();
    for branch in store.branches().into_iter().skip(1) {
        store.execute(Op::CloneDelete { branch: branch.id }).unwrap();
    }
    for snapshot in store.snapshots() {
        store.execute(Op::SnapshotDelete { id: snapshot.id }).unwrap();
    }
    store.execute(Op::Erase).unwrap();
    assert_eq!(store.incarnation(), before);
    assert_eq!(store.execute(write(4, 1, 8, stamp(A, 1))), Err(OpError::UnknownAttachment { attach_id: A }));
    store.close().unwrap();
    assert_eq!(bench.open().incarnation(), before);
}

#[test]
fn a_failed_sync_changes_the_incarnation_and_an_erase_cut_short_does() {
    let disk = SimDisk::new(5);
    Store::create_on(Box::new(disk.backend(true)), &options()).unwrap();
    let mut store = open_disk(&disk).unwrap();
    let incarnation = store.incarnation();
    format(&mut store);
    register(&mut store, A);
    first(store.execute(write(4, 1, 8, stamp(A, 1))));
    disk.set_faults(Faults { failing_sync_once_in: 1, ..Faults::default() });
    assert!(store.execute(Op::Flush).is_err());
    disk.set_faults(Faults::default());
    assert!(store.close().is_err());
    let mut store = open_disk(&disk).unwrap();
    let second = store.incarnation();
    assert_ne!(second, incarnation);
    // Both superblocks say that everything goes, and not much has gone.
    disk.cut_off_after(8);
    assert!(store.execute(Op::Erase).is_err());
    drop(store);
    disk.crash();
    let mut store = open_disk(&disk).unwrap();
    while store.erase_progress().is_some() {
        store.poll_completions(&mut Vec::new());
    }
    assert_ne!(store.incarnation(), second);
    assert_eq!(store.execute(write(4, 1, 8, stamp(A, 1))), Err(OpError::UnknownAttachment { attach_id: A }));
}

/// What was lost by damage is not known: so nothing that is sent again is executed, and the incarnation changes.
#[test]
fn a_repaired_store_knows_no_attach_ids() {
    let bench = Bench::new();
    let mut store = bench.open();
    register(&mut store, A);
    let incarnation = store.incarnation();
    first(store.execute(write(4, 1, 8, stamp(A, 1))));
    store.close().unwrap();
    // The first record block of the segment that has the newest table.
    for segment in 0..8u64 {
        let at = (1 << 20) + segment * (64 << 10);
        let mut magic = [0; 4];
        bench.memory.read_at(at, &mut magic);
        if magic == *b"SRrb" {
            bench.memory.write_at(at + 40, &[0xff; 8]);
        }
    }
    let options = RepairOptions { apply: true, accept_data_loss: true };
    let plan = Store::repair_on(Box::new(bench.memory.clone()), options, &mut |_, _| Ok(())).unwrap();
    assert!(plan.steps.iter().any(|step| step.done), "{plan:?}");
    let mut store = bench.open();
    assert_ne!(store.incarnation(), incarnation);
    assert_eq!(store.execute(write(4, 1, 8, stamp(A, 1))), Err(OpError::UnknownAttachment { attach_id: A }));
    register(&mut store, A);
    first(store.execute(write(4, 1, 8, stamp(A, 1))));
}
