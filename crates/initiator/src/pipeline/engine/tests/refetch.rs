//! Proves that a block that does not authenticate is fetched again, over the same connection and then over a new one, that only then it
//! is a medium error, and that neither fetches nor connections are without bound.

use strongroom_block::{Buffer, BufferMut, DeviceErrorKind, Lba, StoreSequence};

use super::{Answer, BLOCK, Rig, Tamper, data_of};
use crate::Limits;
use crate::pipeline::ahead::FetchId;
use crate::pipeline::answer::Version;
use crate::pipeline::operation::{Read, ReadVersion, Survey};
use crate::pipeline::request::Reply;

/// Flips a bit of the first block in each of the next `pieces` that carry data.
fn flips(mut pieces: usize) -> Option<Tamper> {
    Some(Box::new(move |data_in| {
        if pieces > 0 && !data_in.data().is_empty() {
            pieces -= 1;
            let mut data = data_in.data().to_vec();
            data[100] ^= 1;
            *data_of(data_in) = Buffer::copy_from(&data);
        }
    }))
}

fn rig() -> Rig {
    let mut rig = Rig::new(true, Limits::default());
    for lba in 0..8 {
        rig.write(lba, lba as u8 + 1, 1).unwrap();
    }
    rig.flush().unwrap();
    rig
}

/// As stored, from now on.
fn rot(rig: &mut Rig, lba: u64) {
    rig.unit.blocks.get_mut(&lba).unwrap().data[100] ^= 1;
}

fn expected(lba: u64, count: u64) -> Vec<u8> {
    (lba..lba + count).flat_map(|lba| [lba as u8 + 1; BLOCK]).collect()
}

#[test]
fn damage_on_the_wire_costs_a_fetch_and_no_error() {
    for (pieces, connections) in [(1, 0), (2, 1), (3, 1)] {
        let mut rig = rig();
        rig.tamper = flips(pieces);
        assert_eq!(rig.read(2, 1).unwrap(), expected(2, 1), "{pieces} pieces damaged");
        assert_eq!(rig.refetch_connections, connections, "{pieces} pieces damaged");
        let counters = rig.engine.counters;
        assert_eq!((counters.blocks_refetched, counters.refetches_succeeded), (pieces as u64, 1));
        assert_eq!((counters.refetch_connections, counters.blocks_failed), (connections as u64, 0));
    }
}

/// Every piece of a long read is damaged once: each block has its own fetches, and those before it are not fetched again.
#[test]
fn a_read_advances_from_one_damaged_block_to_the_next() {
    let mut rig = rig();
    let mut damaged = std::collections::HashSet::new();
    let mut fetched_bytes = 0;
    rig.tamper = Some(Box::new(move |data_in| {
        fetched_bytes += data_in.data().len();
        assert!(fetched_bytes <= 36 * BLOCK, "what was opened is not fetched again");
        let mut data = data_in.data().to_vec();
        for block in data.chunks_mut(BLOCK) {
            // Ciphertext tells blocks apart.
            if damaged.insert(block.to_vec()) {
                block[7] ^= 1;
            }
        }
        *data_of(data_in) = Buffer::copy_from(&data);
    }));
    assert_eq!(rig.read(0, 8).unwrap(), expected(0, 8));
    assert_eq!(rig.refetch_connections, 0);
}

#[test]
fn a_rotten_block_is_an_error_that_says_what_was_tried() {
    let mut rig = rig();
    rot(&mut rig, 3);
    let error = rig.read(0, 8).unwrap_err();
    assert_eq!((error.kind, error.lba), (DeviceErrorKind::Medium, Some(Lba(3))));
    assert!(error.message.contains("fetched 4 times over 2 connections"), "{error}");
    assert_eq!((rig.refetch_connections, rig.engine.counters.blocks_failed), (1, 1));
}

/// However often it is read.
#[test]
fn attack_a_rotten_block_cannot_force_connection_after_connection() {
    let mut rig = rig();
    rot(&mut rig, 3);
    rig.read(3, 1).unwrap_err();
    for _ in 0..100 {
        let error = rig.read(3, 1).unwrap_err();
        assert!(error.message.contains("fetched 2 times over one connection, and over a new one before"), "{error}");
    }
    // Another one, while new connections are known to be of no use.
    rot(&mut rig, 4);
    let error = rig.read(4, 1).unwrap_err();
    assert!(error.message.contains("no new connection was made"), "{error}");
    assert_eq!(rig.refetch_connections, 1);
    // Later it is tried again; and what was written since is another version.
    rig.now += super::super::refetching::PAUSE_MAX;
    rig.read(4, 1).unwrap_err();
    assert_eq!(rig.refetch_connections, 2);
    rig.now += super::super::refetching::PAUSE_MAX;
    rig.write(3, 9, 1).unwrap();
    assert_eq!(rig.read(3, 1).unwrap(), vec![9; BLOCK]);
}

#[test]
fn all_damaged_blocks_share_one_connection() {
    let mut rig = rig();
    (0..8).for_each(|lba| rot(&mut rig, lba));
    let reads: Vec<u64> =
        (0..8).map(|lba| rig.submit(Read { lba: Lba(lba), buffer: BufferMut::zeroed(BLOCK) })).collect();
    rig.run();
    for read in reads {
        assert_eq!(rig.result(read).unwrap_err().kind, DeviceErrorKind::Medium);
    }
    assert_eq!(rig.refetch_connections, 1);
}

/// What is fetched ahead is waited for by nobody: a new connection is for those who read.
#[test]
fn what_is_fetched_ahead_makes_no_connection() {
    let mut rig = rig();
    rig.tamper = flips(2);
    let operation = Read { lba: Lba(0), buffer: BufferMut::zeroed(BLOCK) }.into();
    rig.engine.submit(super::NewRequest { reply: Reply::Ahead(FetchId::FIRST), cost_bytes: 0, operation });
    rig.run();
    assert!(rig.finished.pop().unwrap().result.is_err());
    assert_eq!((rig.refetch_connections, rig.engine.counters.blocks_failed), (0, 0));
    assert_eq!(rig.read(0, 1).unwrap(), expected(0, 1), "who reads it gets it");
}

/// Reads that change part of a block, that look for older versions, and that reseal.
#[test]
fn other_reads_do_not_take_damage_on_the_wire_for_rot() {
    for pieces in [1, 2] {
        let mut rig = rig();
        rig.tamper = flips(pieces);
        rig.do_now(Rig::part(2, 0, b"x")).unwrap();
        rig.tamper = flips(pieces);
        let version = rig.do_now(ReadVersion::new(Lba(3), StoreSequence(0))).unwrap();
        let Answer::Version(Some(Version::Block { record, data, .. })) = version else { panic!("{version:?}") };
        let mut plain = [0; BLOCK];
        let sealing = rig.sealing.clone().unwrap();
        sealing.open_version(Lba(3), &record, &data, &mut plain).unwrap().unwrap();
        rig.tamper = flips(pieces);
        let survey = Survey::new(Lba(3), 2, BufferMut::zeroed(2 * BLOCK));
        let Answer::Survey(survey) = rig.do_now(survey).unwrap() else { panic!("a survey") };
        assert_eq!((survey.blocks.len(), survey.data.to_vec()), (2, expected(3, 2)));
        assert_eq!(rig.engine.counters.blocks_failed, 0);
    }
    // A version that is rotten at the target is still an answer.
    let mut rig = rig();
    rot(&mut rig, 3);
    let version = rig.do_now(ReadVersion::new(Lba(3), StoreSequence(0))).unwrap();
    assert!(matches!(version, Answer::Version(Some(Version::Block { .. }))), "{version:?}");
}
