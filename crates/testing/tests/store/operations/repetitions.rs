//! Requests that are sent again: executed once, also after a crash.

use super::*;

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
