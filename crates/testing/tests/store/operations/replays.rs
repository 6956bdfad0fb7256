//! Replays of lost writes: they go back to where they were in the order, and never over anything newer.

use super::*;

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
    let report = CheckReport::of_backend(&mut bench.memory.clone()).unwrap();
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
