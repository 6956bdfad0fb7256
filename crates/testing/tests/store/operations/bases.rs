//! Replays beside conditional writes: what a newer version was made from decides whether it stands for the replay.

use super::*;

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
    let report = CheckReport::of_backend(&mut bench.memory.clone()).unwrap();
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
