//! Proves the order and the bounds of the pipeline in the engine: what is sealed ahead, what is sent, what waits for what, and that
//! no matter in which order sealing ends, is lost, or fails, requests end once, right, and without a copy of what they held.

use std::collections::VecDeque;

use proptest::prelude::*;
use strongroom_block::{BlockSize, Buffer, DeviceErrorKind, Geometry};

use super::*;
use crate::Pipeline;
use crate::pipeline::engine::{SealId, SealJob};
use crate::pipeline::sealing::SealedBlocks;

fn fixed(depth: u32) -> Pipeline {
    Pipeline::Fixed { depth, workers: 2 }
}

fn rig(pipeline: Pipeline, limits: Limits) -> Rig {
    let mut rig = Rig::new(true, limits);
    let unit = Arc::new(description(true));
    let registrations = std::mem::take(&mut rig.engine.attach_ids);
    rig.engine =
        Engine::new(unit.clone(), rig.sealing.clone(), EngineOptions { limits, pipeline, ..Default::default() });
    // Under the same attach id.
    rig.engine.attach_ids = registrations;
    rig.engine.connected(unit, false);
    rig.engine.handle_timeout(rig.now);
    rig
}

/// Plain on a sealed unit: the pipeline seals it.
fn plain(lba: u64, count: usize, mark: u8) -> Write {
    Write { lba: Lba(lba), data: Buffer::copy_from(&vec![mark; count * BLOCK]), records: None, fua: false }
}

fn seal(rig: &Rig, job: &SealJob) -> (SealId, Result<SealedBlocks, DeviceError>) {
    (job.id, rig.sealing.as_ref().unwrap().seal(job.lba, &job.plain))
}

fn seal_all(rig: &mut Rig) -> usize {
    let mut count = 0;
    while let Some(job) = rig.engine.next_to_seal() {
        let (id, sealed) = seal(rig, &job);
        rig.engine.sealed(id, sealed);
        count += 1;
    }
    count
}

#[test]
fn one_at_a_time_is_no_overlap_at_all() {
    let mut rig = rig(fixed(1), Limits::default());
    let tokens: Vec<u64> = (0..3).map(|lba| rig.submit(plain(lba, 1, 7))).collect();
    for _ in 0..3 {
        assert!(rig.engine.next_command().is_none(), "nothing is sent unsealed");
        assert_eq!(seal_all(&mut rig), 1, "the next is not sealed before the one before it is answered");
        let (id, command) = rig.engine.next_command().unwrap();
        assert!(rig.engine.next_to_seal().is_none() && rig.engine.next_command().is_none());
        let (_, completed) = rig.unit.execute(&command);
        rig.engine.completed(rig.now, id, &completed);
    }
    rig.collect();
    tokens.into_iter().for_each(|token| drop(rig.result(token).unwrap()));
    assert_eq!(rig.marks()[..3], [7; 3]);
}

#[test]
fn a_depth_counts_what_is_sealed_and_what_is_under_way() {
    let mut rig = rig(fixed(4), Limits::default());
    // Cut at 8 blocks: the first request is five commands.
    rig.submit(plain(0, 40, 1));
    rig.submit(plain(50, 1, 2));
    let jobs: Vec<SealJob> = std::iter::from_fn(|| rig.engine.next_to_seal()).collect();
    assert_eq!(
        jobs.iter().map(|job| (job.lba.0, job.plain.len() / BLOCK)).collect::<Vec<_>>(),
        [(0, 8), (8, 8), (16, 8), (24, 8)]
    );
    // The last is done first, and goes first.
    let (id, sealed) = seal(&rig, &jobs[3]);
    rig.engine.sealed(id, sealed);
    let (sent, command) = rig.engine.next_command().unwrap();
    assert!(rig.engine.next_to_seal().is_none(), "three are being sealed, one is under way");
    for job in [&jobs[2], &jobs[0]] {
        let (id, sealed) = seal(&rig, job);
        rig.engine.sealed(id, sealed);
    }
    let (_, next) = rig.engine.next_command().unwrap();
    assert_eq!(next.cdb, strongroom_scsi::cdb::write_16(Lba(0), 8, false), "of those that are sealed the first");
    let (_, completed) = rig.unit.execute(&command);
    rig.engine.completed(rig.now, sent, &completed);
    assert_eq!(rig.engine.next_to_seal().unwrap().lba, Lba(32), "one was answered: one more");
}

#[test]
fn a_flush_and_a_read_do_not_wait_for_writes_that_wait() {
    let mut rig = rig(fixed(1), Limits::default());
    for lba in 0..4 {
        rig.submit(plain(lba, 1, 3));
    }
    seal_all(&mut rig);
    let (first, command) = rig.engine.next_command().unwrap();
    let read = rig.submit(Read { lba: Lba(40), buffer: BufferMut::zeroed(BLOCK) });
    let flush = rig.submit(Flush);
    let kinds: Vec<_> = std::iter::from_fn(|| rig.engine.next_command()).collect();
    assert_eq!(kinds.len(), 2, "the flush and the read, no second write");
    assert_eq!(kinds[0].1.cdb, strongroom_scsi::cdb::synchronize_cache_10());
    for (id, command) in kinds {
        let (data, completed) = rig.unit.execute(&command);
        data.iter().for_each(|data_in| rig.engine.data_in(rig.now, id, data_in));
        rig.engine.completed(rig.now, id, &completed);
    }
    rig.collect();
    rig.result(flush).unwrap();
    rig.result(read).unwrap();
    let (_, completed) = rig.unit.execute(&command);
    rig.engine.completed(rig.now, first, &completed);
    // The flush went before this write was answered, so it does not cover it.
    assert!(rig.engine.unflushed_bytes() > 0);
}

#[test]
fn overlapping_writes_are_sealed_one_after_the_other() {
    let mut rig = rig(fixed(8), Limits::default());
    for (lba, count) in [(0, 4), (2, 4), (20, 1)] {
        rig.submit(plain(lba, count, 1));
    }
    let lbas: Vec<u64> = std::iter::from_fn(|| rig.engine.next_to_seal()).map(|job| job.lba.0).collect();
    assert_eq!(lbas, [0, 20], "the second waits for the first's answer, the third for nobody");
}

#[test]
fn what_was_sealed_is_sent_again_as_it_was_and_logged_as_it_was() {
    let mut rig = rig(fixed(4), Limits::default());
    let token = rig.submit(plain(0, 8, 5));
    seal_all(&mut rig);
    let (_, first) = rig.engine.next_command().unwrap();
    rig.unit.execute(&first);
    rig.reconnect(false);
    assert!(rig.engine.next_to_seal().is_none(), "it is sealed");
    let (id, again) = rig.engine.next_command().unwrap();
    let (was, is) = (first.write.unwrap(), again.clone().write.unwrap());
    assert!(was.data == is.data && was.records.unwrap().bytes == is.records.unwrap().bytes);
    let written = rig.unit.writes;
    let (_, completed) = rig.unit.execute(&again);
    rig.engine.completed(rig.now, id, &completed);
    assert_eq!(rig.unit.writes, written, "the same stamps: not written twice");
    rig.collect();
    rig.result(token).unwrap();
    rig.reconnect(true);
    rig.run();
    assert_eq!(rig.marks()[..8], [5; 8], "replayed from the log after a restart");
}

#[test]
fn what_cannot_be_sealed_fails_and_frees_its_place() {
    let mut rig = rig(fixed(1), Limits::default());
    let tokens = [rig.submit(plain(0, 1, 1)), rig.submit(plain(1, 1, 2))];
    let job = rig.engine.next_to_seal().unwrap();
    rig.engine.sealed(job.id, Err(device_error(DeviceErrorKind::Refused, None, "a fork")));
    assert_eq!(seal_all(&mut rig), 1);
    rig.run();
    assert_eq!(rig.result(tokens[0]).unwrap_err().kind, DeviceErrorKind::Refused);
    rig.result(tokens[1]).unwrap();
}

#[test]
fn what_is_sealed_too_late_is_forgotten() {
    let mut rig = rig(fixed(2), Limits::default());
    let token = rig.submit(plain(0, 1, 1));
    let late = rig.engine.next_to_seal().unwrap();
    rig.engine.fail_all(&device_error(DeviceErrorKind::Unreachable, None, "gone"));
    rig.collect();
    rig.result(token).unwrap_err();
    rig.engine.connected(Arc::new(description(true)), false);
    // Another write takes the same place.
    let token = rig.submit(plain(9, 1, 2));
    let job = rig.engine.next_to_seal().unwrap();
    let (id, sealed) = seal(&rig, &late);
    rig.engine.sealed(id, sealed);
    assert!(rig.engine.next_command().is_none(), "what came late is not sent for it");
    let (id, sealed) = seal(&rig, &job);
    rig.engine.sealed(id, sealed);
    rig.run();
    rig.result(token).unwrap();
    let marks = rig.marks();
    assert_eq!((marks[0], marks[9]), (0, 2));
}

#[test]
fn sealing_ahead_is_bounded_in_bytes() {
    let limits = Limits { transfer_bytes_max: 1 << 20, ..Limits::default() };
    let block_size = BlockSize::new(BLOCK as u64).unwrap();
    let unit = UnitDescription {
        geometry: Geometry { block_size, blocks: 1 << 20 },
        transfer_blocks_max: None,
        ..description(true)
    };
    let mut engine =
        Engine::new(Arc::new(unit.clone()), Some(sealing(7, 2)), EngineOptions { limits, ..Default::default() });
    engine.connected(Arc::new(unit), false);
    for at in 0..24 {
        let operation = plain(at * 2048, 2048, 1).into();
        engine.submit(NewRequest { reply: Reply::Token(Token(at)), cost_bytes: 0, operation });
    }
    let ahead = std::iter::from_fn(|| engine.next_to_seal()).map(|job| job.plain.len()).sum::<usize>();
    assert_eq!(ahead, 8 << 20);
}

#[test]
fn flushes_of_our_own_do_not_hold_writes_up_on_a_long_way() {
    // 128 writes of 16 KiB in each round trip of 128 ms are twice what the log was to hold.
    const WRITES: usize = 128;
    const COUNT: usize = 32;
    const BLOCKS: u64 = 1 << 14;
    let limits = Limits { unflushed_bytes_max: 1 << 20, ..Limits::default() };
    let mut rig = Rig::new(false, limits);
    let geometry = Geometry { blocks: BLOCKS, ..description(false).geometry };
    let unit = Arc::new(UnitDescription { geometry, transfer_blocks_max: None, ..description(false) });
    rig.unit = FakeUnit::new(false, BLOCK, BLOCKS);
    rig.engine = Engine::new(unit.clone(), None, EngineOptions { limits, ..Default::default() });
    rig.engine.connected(unit, false);
    rig.engine.handle_timeout(rig.now);
    let delay = Duration::from_millis(128);
    let mut answers = VecDeque::new();
    let (begun, mut next, mut counted) = (rig.now, 0, 0);
    while rig.now < begun + 60 * delay {
        while rig.engine.table.requests.len() < WRITES {
            let lba = next * COUNT as u64 % BLOCKS;
            next += 1;
            let data = Buffer::copy_from(&[1; COUNT * BLOCK]);
            rig.submit(Write { lba: Lba(lba), data, records: None, fua: false });
        }
        while let Some((id, command)) = rig.engine.next_command() {
            answers.push_back((rig.now + delay, id, command));
        }
        let (at, id, command) = answers.pop_front().expect("something is always under way");
        rig.now = at;
        rig.engine.handle_timeout(rig.now);
        let (_, completed) = rig.unit.execute(&command);
        rig.engine.completed(rig.now, id, &completed);
        rig.collect();
        counted += if rig.now > begun + 40 * delay { rig.finished.len() } else { 0 };
        rig.finished.clear();
    }
    assert!(rig.engine.counters.own_flushes > 3, "{:?}", rig.engine.counters);
    assert!(counted > 18 * WRITES, "{counted} writes in twenty round trips");
    assert!(rig.engine.flushes.log.bytes() < 32 << 20);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Sealing that ends in any order, and connections that are lost in between: the contents are those of the requests in their order,
    /// and nothing stays counted.
    #[test]
    fn any_order_of_sealing_ends_in_the_contents_of_the_requests(
        depth in 1_u32..6,
        writes in proptest::collection::vec((0..BLOCKS - 12, 1_usize..12), 1..40),
        choices in proptest::collection::vec(0_usize..8, 1..400),
    ) {
        let mut rig = rig(fixed(depth), Limits::default());
        let mut model = vec![0_u8; BLOCKS as usize];
        let mut tokens = Vec::new();
        for (mark, (lba, count)) in (1..).zip(writes) {
            tokens.push(rig.submit(plain(lba, count, mark)));
            model[lba as usize..lba as usize + count].fill(mark);
        }
        let mut jobs: Vec<SealJob> = Vec::new();
        for choice in choices.into_iter().chain(std::iter::repeat_n(1, 600)) {
            match choice {
                0 => jobs.extend(rig.engine.next_to_seal()),
                6 => drop(rig.engine.next_command()),
                7 => rig.reconnect(false),
                _ => {
                    jobs.extend(rig.engine.next_to_seal());
                    if !jobs.is_empty() {
                        let job = jobs.swap_remove(choice % jobs.len());
                        let (id, sealed) = seal(&rig, &job);
                        rig.engine.sealed(id, sealed);
                    }
                    rig.exchange(choice);
                }
            }
            prop_assert!(rig.engine.in_flight.count <= depth as usize);
        }
        for job in jobs {
            let (id, sealed) = seal(&rig, &job);
            rig.engine.sealed(id, sealed);
        }
        // Commands whose answers were lost go out again.
        rig.reconnect(false);
        for _ in 0..200 {
            seal_all(&mut rig);
            rig.run();
        }
        for token in tokens {
            prop_assert!(rig.result(token).is_ok());
        }
        prop_assert_eq!(rig.marks(), model);
        prop_assert_eq!((rig.engine.table.commands.len(), rig.engine.table.requests.len()), (0, 0));
    }
}
