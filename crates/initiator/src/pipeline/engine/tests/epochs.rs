//! Proves that nothing is sent under an epoch that is over: not what waited, not what is sent again, and nothing at all without keys.

use std::collections::BTreeMap;

use strongroom_block::SealRecord;

use super::*;
use crate::pipeline::boot_time::BootTime;
use crate::pipeline::operation::ConditionalWrite;
use crate::pipeline::sealing::SealedBlocks;

const FLUSHED_NEVER: Limits = Limits {
    requests_max: 256,
    request_bytes_max: 32 << 20,
    commands_max: 64,
    transfer_bytes_max: 1 << 20,
    unflushed_bytes_max: 64 << 20,
};

/// Seals under `current`; has the keys of all of `epochs`.
pub(super) fn sealer(current: u32, epochs: &[u32]) -> VolumeSealer {
    let mut text = String::from("strongroom-volume-key 1\n");
    for epoch in epochs {
        let one = VolumeKeyFile::new(KeyPurpose::Volume, &[7 + *epoch as u8; 32]).to_text();
        let line = one.lines().last().unwrap().replace("epoch 1", &format!("epoch {epoch}"));
        text.push_str(&format!("{line}\n"));
    }
    let context = SealContext::new(SealingDomain([2; 16]), BlockSize::new(BLOCK as u64).unwrap(), current);
    VolumeSealer::blind(&VolumeKeyFile::parse(&text).unwrap(), context, Arc::new(CryptoCounters::new())).unwrap()
}

fn rig() -> Rig {
    let mut rig = Rig::new(true, FLUSHED_NEVER);
    rig.hold(1, &[1]);
    rig.discard(0, BLOCKS).unwrap();
    rig.flush().unwrap();
    rig
}

impl Rig {
    fn hold(&mut self, current: u32, epochs: &[u32]) {
        self.sealing.as_ref().unwrap().keys().replace(sealer(current, epochs), true);
        self.engine.keys_changed();
    }

    /// The epoch of what is stored at each block that is not absent.
    fn stored(&self) -> BTreeMap<u64, u32> {
        let data = self.unit.blocks.iter().filter(|(_, stored)| !stored.record.is_empty());
        data.map(|(lba, stored)| (*lba, SealRecord::decode(&stored.record).unwrap().epoch())).collect()
    }
}

#[test]
fn what_waited_while_the_epoch_moved_on_is_resealed() {
    let mut rig = rig();
    let write = rig.write_work(1, &[5; 3 * BLOCK], false);
    let (write, hole) = (rig.submit(write), rig.discard_work(40, 2));
    let hole = rig.submit(hole);
    rig.hold(2, &[2, 1]);
    rig.run();
    rig.result(write).unwrap();
    rig.result(hole).unwrap();
    assert_eq!(rig.stored(), BTreeMap::from([(1, 2), (2, 2), (3, 2)]));
    assert_eq!(rig.unit.hole_of(40).record.epoch(), 2);
    assert_eq!(rig.read(1, 3).unwrap(), vec![5; 3 * BLOCK]);
}

#[test]
fn what_is_sent_again_after_a_restart_is_resealed() {
    let mut rig = rig();
    rig.write(1, 5, 3).unwrap();
    rig.discard(2, 1).unwrap();
    rig.sealing.as_ref().unwrap().keys().replace(sealer(2, &[2, 1]), true);
    rig.reconnect(true);
    rig.run();
    assert_eq!(rig.stored(), BTreeMap::from([(1, 2), (3, 2)]));
    assert_eq!(rig.unit.hole_of(2).record.epoch(), 2);
    assert_eq!(rig.marks()[..5], [0, 5, 0, 5, 0]);
}

#[test]
fn what_is_sealed_under_the_old_epoch_is_made_durable_when_there_is_a_new_one() {
    let mut rig = rig();
    rig.write(1, 5, 3).unwrap();
    assert!(rig.engine.unflushed_bytes() > 0);
    rig.hold(2, &[2, 1]);
    rig.run();
    assert_eq!(rig.engine.unflushed_bytes(), 0, "it need not be sent again, and so its key is not needed");
    rig.unit.crash();
    assert_eq!(rig.marks()[..5], [0, 5, 5, 5, 0]);
}

#[test]
fn part_of_a_block_is_merged_again_and_a_conditional_write_is_sealed_again() {
    let mut rig = rig();
    rig.write(1, 5, 1).unwrap();
    let part = rig.submit(Rig::part(1, 0, &[9]));
    assert_eq!(rig.exchange(1), 1, "read, and sealed");
    rig.hold(2, &[2, 1]);
    rig.run();
    rig.result(part).unwrap();
    assert_eq!(rig.stored()[&1], 2);
    let block = rig.read(1, 1).unwrap();
    assert_eq!((block[0], block[1]), (9, 5));

    let Write { lba, data, records: Some(records), .. } = rig.write_work(1, &[6; BLOCK], false) else {
        panic!("a sealed write")
    };
    let expected = rig.unit.blocks[&1].record[8..32].try_into().unwrap();
    let conditional = rig.submit(ConditionalWrite::new(lba, expected, SealedBlocks { data, records }));
    rig.hold(3, &[3, 2]);
    rig.run();
    rig.result(conditional).unwrap();
    assert_eq!(rig.stored()[&1], 3);
}

/// What is logged is what was sent: the epoch that it was first sealed under may be destroyed before the next flush.
#[test]
fn what_was_resealed_is_kept_so_to_be_sent_again() {
    let mut rig = rig();
    let write = rig.write_work(1, &[5; 10 * BLOCK], false);
    let (write, hole) = (rig.submit(write), rig.discard_work(40, 2));
    let hole = rig.submit(hole);
    let hold = |rig: &Rig, epochs: &[u32]| rig.sealing.as_ref().unwrap().keys().replace(sealer(2, epochs), true);
    hold(&rig, &[2, 1]);
    // Sent, and not answered.
    let (_, first) = rig.engine.next_command().unwrap();
    hold(&rig, &[2]);
    rig.reconnect(false);
    let (id, again) = rig.engine.next_command().unwrap();
    let (was, is) = (first.write.unwrap(), again.clone().write.unwrap());
    assert!(was.data == is.data && was.records.unwrap().bytes == is.records.unwrap().bytes, "resealed once");
    let (_, completed) = rig.unit.execute(&again);
    rig.engine.completed(rig.now, id, &completed);
    hold(&rig, &[2, 1]);
    rig.run();
    rig.result(write).unwrap();
    rig.result(hole).unwrap();
    assert!(rig.engine.unflushed_bytes() > 0);
    hold(&rig, &[2]);
    rig.reconnect(true);
    rig.run();
    rig.flush().unwrap();
    assert_eq!(rig.read(1, 10).unwrap(), vec![5; 10 * BLOCK]);
    assert_eq!(rig.unit.hole_of(40).record.epoch(), 2);
}

/// A power cut takes target and key server, and the target is back first: what it forgot is sent again when there are keys.
#[test]
fn a_replay_waits_for_keys_whose_lease_has_ended() {
    // The lease ends before the replay, or while it is under way.
    for ends_midway in [false, true] {
        let mut rig = rig();
        rig.write(1, 5, 12).unwrap();
        rig.discard(3, 4).unwrap();
        rig.write(4, 6, 1).unwrap();
        let expected = rig.marks();
        let before = rig.submit(rig.write_work(30, &[9; BLOCK], false));
        let end_lease = |rig: &Rig| {
            let sealing = rig.sealing.as_ref().unwrap();
            sealing.keys().lend_until(BootTime::now());
            assert!(sealing.expire());
        };
        if !ends_midway {
            end_lease(&rig);
        }
        rig.reconnect(true);
        if ends_midway {
            assert_eq!(rig.exchange(1), 1);
            end_lease(&rig);
        }
        let flush = rig.submit(Flush);
        rig.run();
        assert_eq!(rig.read(1, 1).unwrap_err().kind, DeviceErrorKind::NoKey);
        assert_eq!(rig.result(before).unwrap_err().kind, DeviceErrorKind::NoKey);
        assert!(rig.finished.is_empty(), "the flush waits");
        // The connection is lost once more meanwhile; nothing of it is forgotten.
        rig.reconnect(false);
        rig.run();
        rig.hold(2, &[2, 1]);
        rig.run();
        rig.result(flush).unwrap();
        assert_eq!(rig.marks(), expected, "midway: {ends_midway}");
        rig.unit.crash();
        assert_eq!(rig.marks(), expected, "the flush covers it");
    }
}

/// A key server that never comes back: a flush fails, after as long as requests wait for a lost connection. Nothing is given up.
#[test]
fn a_flush_waits_for_keys_no_longer_than_for_a_connection() {
    let mut rig = rig();
    rig.engine.replay.patience = Some(Duration::from_secs(300));
    rig.write(1, 5, 12).unwrap();
    let expected = rig.marks();
    let sealing = rig.sealing.clone().unwrap();
    sealing.keys().lend_until(BootTime::now());
    assert!(sealing.expire());
    let start = rig.now;
    let at = |seconds| start + Duration::from_secs(seconds);
    rig.engine.handle_timeout(start);
    rig.reconnect(true);
    let flush = rig.submit(Flush);
    rig.exchange(usize::MAX);
    assert!(rig.finished.is_empty() && rig.engine.replay.missing_keys.is_some());
    assert_eq!(rig.engine.poll_timeout(), Some(at(300)));
    // A connection that comes and goes does not restart it.
    rig.now = at(299);
    rig.engine.handle_timeout(rig.now);
    rig.reconnect(false);
    rig.exchange(usize::MAX);
    assert!(rig.finished.is_empty(), "it waits");
    rig.now = at(300);
    rig.engine.handle_timeout(rig.now);
    rig.run();
    let error = rig.result(flush).unwrap_err();
    assert!(error.kind == DeviceErrorKind::NoKey && error.message.contains("not durable"), "{error}");
    assert_eq!(rig.engine.poll_timeout(), None);
    assert!(rig.flush().is_err(), "and the next at once");
    rig.hold(2, &[2, 1]);
    rig.run();
    rig.flush().unwrap();
    assert_eq!(rig.marks(), expected, "it was kept");
    assert_eq!(rig.engine.replay.without_keys_since, None);
}

/// Keys that came, and went again before all was sent: the time without them starts again at zero.
#[test]
fn a_flush_waits_the_full_time_again_when_keys_were_there_in_between() {
    let mut rig = rig();
    rig.engine.replay.patience = Some(Duration::from_secs(300));
    rig.write(1, 5, 12).unwrap();
    rig.discard(3, 4).unwrap();
    rig.write(4, 6, 1).unwrap();
    let expected = rig.marks();
    let start = rig.now;
    let pass = |rig: &mut Rig, seconds| {
        rig.now = start + Duration::from_secs(seconds);
        rig.engine.handle_timeout(rig.now);
    };
    let end_lease = |rig: &Rig| {
        let sealing = rig.sealing.as_ref().unwrap();
        sealing.keys().lend_until(BootTime::now());
        assert!(sealing.expire());
    };
    pass(&mut rig, 0);
    end_lease(&rig);
    rig.reconnect(true);
    rig.exchange(usize::MAX);
    assert!(rig.engine.replay.without_keys_since.is_some());
    pass(&mut rig, 100);
    rig.hold(2, &[2, 1]);
    assert_eq!(rig.exchange(1), 1);
    end_lease(&rig);
    let flush = rig.submit(Flush);
    pass(&mut rig, 310);
    rig.exchange(usize::MAX);
    assert!(rig.finished.is_empty() && rig.engine.replay.missing_keys.is_some(), "they are missing since just now");
    assert_eq!(rig.engine.poll_timeout(), Some(start + Duration::from_secs(610)));
    rig.hold(2, &[2, 1]);
    rig.run();
    rig.result(flush).unwrap();
    assert_eq!(rig.marks(), expected);
}

#[test]
fn a_replay_that_waits_is_lost_when_the_keys_are_taken_back() {
    let mut rig = rig();
    rig.write(1, 5, 1).unwrap();
    let sealing = rig.sealing.clone().unwrap();
    sealing.keys().lend_until(BootTime::now());
    rig.reconnect(true);
    let flush = rig.submit(Flush);
    rig.run();
    assert!(rig.finished.is_empty(), "it waits");
    sealing.keys().revoke("they were taken back");
    rig.engine.keys_changed();
    rig.run();
    assert_eq!(rig.engine.replay.requests, 0);
    let said = rig.result(flush).and_then(|_| rig.flush().map(|()| Answer::Done)).unwrap_err();
    assert!(said.message.contains("may be lost"), "{said}");
}

/// Those that fail for want of a key let others begin, which are to be sealed: the driver of the engine must know.
#[test]
fn what_begins_when_others_fail_is_there_to_be_sealed() {
    let mut rig = rig();
    let plain = |mark| Write { lba: Lba(1), data: Buffer::copy_from(&[mark; BLOCK]), records: None, fua: false };
    rig.submit(plain(1));
    rig.submit(plain(2));
    let job = rig.engine.next_to_seal().unwrap();
    let sealed = rig.sealing.as_ref().unwrap().seal(job.lba, &job.plain);
    rig.engine.sealed(job.id, sealed);
    assert!(!rig.engine.has_to_seal(), "the second waits for the first");
    rig.sealing.as_ref().unwrap().keys().revoke("they were taken back");
    assert!(rig.engine.next_command().is_none());
    assert!(rig.engine.has_to_seal());
}

#[test]
fn without_keys_everything_fails_but_a_flush_and_nothing_is_sent() {
    let mut rig = rig();
    rig.write(1, 5, 1).unwrap();
    let waiting = rig.write_work(2, &[6; BLOCK], false);
    let waiting = rig.submit(waiting);
    rig.sealing.as_ref().unwrap().keys().revoke("they were taken back");
    rig.run();
    for error in [rig.result(waiting).unwrap_err(), rig.read(1, 1).unwrap_err()] {
        assert_eq!(error.kind, DeviceErrorKind::NoKey);
        assert!(error.message.contains("taken back"), "{error}");
    }
    assert_eq!(rig.stored(), BTreeMap::from([(1, 1)]));
    rig.flush().unwrap();
    // What the target forgets meanwhile is lost, and said to be.
    rig.hold(1, &[1]);
    rig.write(3, 7, 1).unwrap();
    rig.sealing.as_ref().unwrap().keys().revoke("they were taken back");
    rig.reconnect(true);
    rig.run();
    assert!(rig.flush().unwrap_err().message.contains("may be lost"));
    rig.hold(2, &[2, 1]);
    assert_eq!(rig.marks()[..4], [0, 5, 0, 0]);
}

/// Without the condition an absence would be sealed over what somebody else has just written.
#[test]
fn a_target_that_knows_no_condition_for_absences_is_not_asked_to_reseal_them() {
    let mut unit = description(true);
    assert!(unit.check_reseal().is_ok());
    unit.sealed.as_mut().unwrap().conditional_holes = false;
    assert!(unit.check_reseal().unwrap_err().message.contains("update it"));
}
