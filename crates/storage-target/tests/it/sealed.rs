//! Proves over real sockets that a sealed volume is served only through a channel, to the peers and names it is for, with its
//! records, and with the frame discipline that leaves nothing but sealed block data outside the channel's encryption.
//!
//! The blocks here are sealed by nobody: a target cannot tell, and these tests hold it to that.

use std::sync::Arc;

use strongroom_block::{
    Buffer, Custody, Lba, Mode, RecordFlags, SealRecord, Stamp, StoreSequence, Suite, keyless_checksum,
};
use strongroom_handshake::NodeKey;
use strongroom_iscsi::LoginStatus;
use strongroom_iscsi::initiator::{Command, WriteSource};
use strongroom_scsi::vendor::{self, UnitPage};
use strongroom_scsi::{Sense, VendorCommand, cdb, supported};
use strongroom_target::admin::{SpaceReport, StoreReport};
use strongroom_target::operate::Operation;
use strongroom_target::{SealedSpec, Target, TargetOptions, VolumeSpec};

use crate::support::keeper;
use crate::support::sealed::{
    ATTACH_ID, Mask, format, hole, hole_of, read, read_version, record, records, registration, returned, seal_hole,
    sealed_write, stamp,
};
use crate::support::{self, ALICE, BLOCK, Host, Initiator, LUN, MIB, Refused, alice_key, normal, pattern};

#[test]
fn blocks_come_back_with_their_records_and_holes_with_theirs() {
    let host = Host::start(&[VolumeSpec::sealed("vault", 64 * MIB)]);
    let mut initiator = host.channel("vault");
    let data = initiator.run(Command::read(LUN, cdb::inquiry_vpd(0xc0, 255), 255)).good();
    let page = UnitPage::parse(&data).unwrap();
    let sealing = page.sealing.unwrap();
    assert_eq!((sealing.custody, sealing.record_bytes, sealing.epoch), (Custody::KeyFile, 56, 1));

    let unformatted = read(&mut initiator, 5, 1).sense();
    assert_eq!(unformatted, Sense::UNRECOVERED_READ.at(Lba(5)), "neither record nor hole is an error, never zeros");
    format(&mut initiator, 16384);
    let data = pattern(1, 300);
    let written = records(1, &data);
    initiator.run(sealed_write(100, &data, &written)).good();
    let outcome = read(&mut initiator, 90, 320);
    let (blocks, holes) = returned(&outcome);
    assert_eq!(blocks.iter().map(|(_, record)| record.clone()).collect::<Vec<_>>(), written);
    assert!(blocks.windows(2).all(|pair| pair[0].0 < pair[1].0), "later blocks have later sequences");
    assert_eq!(holes.iter().map(|hole| hole.covered_blocks).collect::<Vec<_>>(), [10, 10]);
    assert!(holes.iter().all(|found| found.record == hole(0, 16384)));
    assert_eq!(outcome.completed.residual, strongroom_iscsi::Residual::None, "holes count as if they had been sent");
    assert_eq!(outcome.good(), data);
    initiator.synchronize();
    assert_eq!(initiator.log_out(), "logged out");
    assert!(host.handle().stats().crypto.total() < 300 * BLOCK as u64 / 2, "headers alone cost cryptography");
}

#[test]
fn versions_feedback_conditions_and_retries() {
    let host = Host::start(&[VolumeSpec::sealed("vault", MIB)]);
    let mut initiator = host.channel("vault");
    format(&mut initiator, 256);
    let blocks: Vec<Vec<u8>> = (1..=3).map(|seed| pattern(seed, 1)).collect();
    for (index, block) in blocks.iter().enumerate() {
        initiator.run(sealed_write(7, block, &[record(index as u64 + 1, block)])).good();
    }
    // A retry under the same stamp is acknowledged and makes no version.
    initiator.run(sealed_write(7, &blocks[2], &[record(3, &blocks[2])])).good();
    let mut older_than = 0;
    for block in blocks.iter().rev() {
        let outcome = read_version(&mut initiator, 7, older_than);
        older_than = returned(&outcome).0[0].0;
        assert_eq!(outcome.good(), *block);
    }
    // The first version is the hole that formatting made.
    let outcome = read_version(&mut initiator, 7, older_than);
    let (_, holes) = returned(&outcome);
    if let Some(hole) = holes.first() {
        older_than = hole.store_sequence;
        let none = read_version(&mut initiator, 7, older_than).sense();
        assert_eq!(none, Sense::NO_OLDER_VERSION.at(Lba(7)));
    } else {
        assert_eq!(outcome.sense(), Sense::NO_OLDER_VERSION.at(Lba(7)));
    }

    let newest = returned(&read(&mut initiator, 7, 1)).0[0].0;
    let list = vendor::encode_verified(&[(Lba(7), StoreSequence(newest))]);
    let cdb = VendorCommand::Verified { parameter_list_len: list.len() as u32 }.encode();
    initiator.run(Command::write(LUN, cdb, WriteSource::plain(Buffer::copy_from(&list)))).good();
    let gone = read_version(&mut initiator, 7, newest);
    assert!(gone.status == 2 || gone.data.is_empty(), "older versions may go after feedback");

    let conditional = |expected: Option<Stamp>, block: &[u8], counter: u64| {
        let mut command = sealed_write(7, block, &[record(counter, block)]);
        command.cdb = VendorCommand::ConditionalWrite { lba: Lba(7), count: 1 }.encode();
        command.parameters.expected_stamp = Some(expected.map_or([0; 24], Stamp::to_bytes));
        command
    };
    let next = pattern(9, 1);
    let refused = initiator.run(conditional(Some(stamp(1)), &next, 9)).sense();
    assert!(refused.is(&Sense::MISCOMPARE), "{refused}");
    let refused = initiator.run(conditional(None, &next, 9)).sense();
    assert!(refused.is(&Sense::MISCOMPARE), "{refused}");
    initiator.run(conditional(Some(stamp(3)), &next, 9)).good();
    assert_eq!(read(&mut initiator, 7, 1).good(), next);
    initiator.run(conditional(Some(stamp(3)), &next, 9)).good();
}

#[test]
fn what_does_not_fit_its_records_is_refused_and_not_stored() {
    let host = Host::start(&[VolumeSpec::sealed("vault", MIB)]);
    let mut initiator = host.channel("vault");
    format(&mut initiator, 256);
    let block = pattern(1, 1);
    let mut flipped = block.clone();
    flipped[1000] ^= 0x40;
    let sense = initiator.run(sealed_write(0, &flipped, &[record(1, &block)])).sense();
    assert!(sense.is(&Sense::CHECKSUM_ON_ARRIVAL), "{sense}");
    let keyed = record(1, &block).with_block_key(&[1; 32]);
    let sense = initiator.run(sealed_write(0, &block, &[keyed])).sense();
    assert!(sense.is(&Sense::INVALID_SEAL_RECORD), "{sense}");
    let as_hole = SealRecord::new(
        Suite::Aes256Gcm,
        Mode::Encrypt,
        RecordFlags(RecordFlags::HOLE),
        1,
        stamp(1),
        keyless_checksum(&block),
        [0; 16],
    );
    let sense = initiator.run(sealed_write(0, &block, &[as_hole])).sense();
    assert!(sense.is(&Sense::INVALID_SEAL_RECORD), "{sense}");
    let other_mode = SealRecord::new(
        Suite::Aes256Gcm,
        Mode::AuthenticateOnly,
        RecordFlags(0),
        1,
        stamp(1),
        keyless_checksum(&block),
        [0; 16],
    );
    let sense = initiator.run(sealed_write(0, &block, &[other_mode])).sense();
    assert!(sense.is(&Sense::INVALID_SEAL_RECORD), "{sense}");
    let outside = vendor::encode_holes(&[hole(250, 7)]);
    assert!(initiator.run(seal_hole(&outside)).sense().is(&Sense::LBA_OUT_OF_RANGE));
    assert!(initiator.run(seal_hole(&outside[..71])).sense().is(&Sense::PARAMETER_LIST_LENGTH));
    let (blocks, holes) = returned(&read(&mut initiator, 0, 256));
    assert!(blocks.is_empty() && holes.len() == 1, "nothing of all that was stored");
}

#[test]
fn nothing_that_needs_keys_is_offered() {
    let host = Host::start(&[VolumeSpec::sealed("vault", MIB)]);
    let mut initiator = host.channel("vault");
    let list = initiator.run(Command::read(LUN, cdb::report_supported_operation_codes(4096), 4096)).good();
    let list = supported::decode_list(&list).unwrap();
    for opcode in [0x41, 0x42, 0x89, 0x93] {
        assert!(list.iter().all(|(listed, _)| *listed != opcode));
    }
    let unmap = initiator.run(Command::without_data(LUN, cdb::unmap(0))).sense();
    assert!(unmap.is(&Sense::INVALID_OPCODE));
    let same = initiator.run(Command::without_data(LUN, cdb::write_same_16(Lba(0), 1, false, true))).sense();
    assert!(same.is(&Sense::INVALID_OPCODE));
    let limits = initiator.run(Command::read(LUN, cdb::inquiry_vpd(0xb0, 64), 64)).good();
    let limits = strongroom_scsi::inquiry::BlockLimits::parse(&limits).unwrap();
    assert_eq!((limits.compare_and_write_blocks, limits.unmap_blocks_max, limits.write_same_blocks_max), (0, 0, 0));
}

#[test]
fn block_data_in_a_protected_frame_ends_the_session() {
    let host = Host::start(&[VolumeSpec::sealed("vault", MIB)]);
    let mut initiator = host.channel("vault");
    let write =
        Command::write(LUN, cdb::write_16(Lba(0), 1, false), WriteSource::plain(Buffer::copy_from(&pattern(1, 1))));
    let task = initiator.submit(write);
    initiator.try_wait(task).unwrap_err();
    ended_for_misbehaviour(&host, 1);
}

/// A session need not be with the worker that has the volume: its blocks and records cross, and so does what it broke.
#[test]
fn sessions_of_every_worker_get_blocks_with_their_records() {
    let host = Host::start_with(&[VolumeSpec::sealed("vault", 64 * MIB)], |config| config.workers = Some(3));
    let mut sessions: Vec<Initiator> = (0..3)
        .map(|which| {
            let mut config = normal(ALICE, "vault");
            config.isid[5] = 10 + which;
            Initiator::log_in(&host, Some(alice_key()), config).expect("admitted")
        })
        .collect();
    format(&mut sessions[0], 16384);
    let data: Vec<Vec<u8>> = (1..=3).map(|seed| pattern(seed, 100)).collect();
    for (which, session) in sessions.iter_mut().enumerate() {
        let lba = which as u64 * 1000;
        session.run(sealed_write(lba, &data[which], &records(1 + lba, &data[which]))).good();
    }
    for session in &mut sessions {
        for (which, data) in data.iter().enumerate() {
            let lba = which as u64 * 1000;
            let outcome = read(session, lba, 110);
            let (blocks, holes) = returned(&outcome);
            let found: Vec<SealRecord> = blocks.into_iter().map(|(_, record)| record).collect();
            assert_eq!((found, holes.len()), (records(1 + lba, data), 1));
            assert_eq!(outcome.good(), *data);
        }
    }
    for session in &mut sessions {
        let plain = WriteSource::plain(Buffer::copy_from(&pattern(1, 1)));
        let task = session.submit(Command::write(LUN, cdb::write_16(Lba(0), 1, false), plain));
        session.try_wait(task).unwrap_err();
    }
    ended_for_misbehaviour(&host, 3);
}

#[test]
fn a_sealed_frame_on_a_plain_unit_or_for_parameters_ends_the_session() {
    let host = Host::start(&[VolumeSpec::sealed("vault", MIB), VolumeSpec::plain("disk", MIB)]);
    let block = pattern(1, 1);
    let mut initiator = host.channel("disk");
    let task = initiator.submit(sealed_write(0, &block, &[record(1, &block)]));
    initiator.try_wait(task).unwrap_err();

    let mut initiator = host.channel("vault");
    let mut command = sealed_write(0, &block, &[record(1, &block)]);
    command.cdb = VendorCommand::Verified { parameter_list_len: BLOCK as u32 }.encode();
    let task = initiator.submit(command);
    initiator.try_wait(task).unwrap_err();
    ended_for_misbehaviour(&host, 2);
}

fn ended_for_misbehaviour(host: &Host, count: u64) {
    support::eventually("the session ends", || host.handle().stats().sessions == 0);
    assert_eq!(host.handle().stats().misbehaved, count, "by the target, for breaking the rule");
}

#[test]
fn a_plain_volume_through_a_channel() {
    let host = Host::start(&[VolumeSpec::plain("disk", MIB)]);
    let mut initiator = host.channel("disk");
    initiator.write(0, &pattern(4, 8));
    assert_eq!(initiator.read(0, 8), pattern(4, 8));
    assert!(host.handle().stats().crypto.total() > 16 * BLOCK as u64, "plain data is protected by the channel");
    assert_eq!(host.handle().sessions()[0].peer.as_deref(), Some("alice"));
}

#[test]
fn strangers_and_borrowed_names_stay_outside() {
    let host = Host::start(&[VolumeSpec::sealed("vault", MIB)]);
    let stranger = NodeKey::from_seed(&[0xee; 32]);
    let refused = Initiator::log_in(&host, Some(stranger), normal(ALICE, "vault")).err().unwrap();
    let Refused::Closed(reason) = refused else { panic!("a stranger does not get as far as a login: {refused:?}") };
    assert!(reason.contains("strongroom-ed25519"), "the reason names our own key, to be added there: {reason}");

    let borrowed = normal("iqn.2026-11.org.example:bob", "vault");
    let refused = Initiator::log_in(&host, Some(alice_key()), borrowed).err();
    assert_eq!(refused, Some(Refused::Login(LoginStatus::AUTHORIZATION_FAILED)));

    let plain = Initiator::log_in(&host, None, normal(ALICE, "vault")).err();
    assert_eq!(plain, Some(Refused::Login(LoginStatus::AUTHORIZATION_FAILED)));
    let stats = host.handle().stats();
    assert_eq!((stats.logins, stats.logins_refused), (0, 2));
    host.channel("vault");
}

#[test]
fn a_peer_without_the_volume_stays_outside() {
    let host = Host::start_with(&[VolumeSpec::sealed("vault", MIB)], |config| config.peers[0].volumes.clear());
    let refused = Initiator::log_in(&host, Some(alice_key()), normal(ALICE, "vault")).err();
    assert_eq!(refused, Some(Refused::Login(LoginStatus::AUTHORIZATION_FAILED)));
    let access = strongroom_target::Access { peers: vec!["alice".into()], ..Default::default() };
    host.handle().catalogue().set_access("vault", access).unwrap();
    host.channel("vault");
}

#[test]
fn without_a_node_key_there_are_no_channels() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = support::config(dir.path());
    let message = Target::start(TargetOptions::new(config.clone())).unwrap_err().to_string();
    assert!(message.contains("identity new"), "{message}");
    config.peers.clear();
    let target = Target::start(TargetOptions::new(config)).unwrap();
    let host = Host { target: Some(target), dir, node: support::target_key().public() };
    assert!(Initiator::log_in(&host, Some(alice_key()), normal(ALICE, "vault")).is_err());
}

fn custody_target_host(wraps: Option<strongroom_target::WrapFactory>) -> Host {
    let dir = tempfile::tempdir().unwrap();
    let sealed = SealedSpec { wrapping_key: Some("/etc/wrap.key".into()), ..SealedSpec::new(Custody::Target) };
    let spec = VolumeSpec { sealed: Some(sealed), ..VolumeSpec::plain("vault", MIB) };
    strongroom_target::Catalogue::open(dir.path()).unwrap().create(&spec).unwrap();
    let mut options = TargetOptions::new(support::config(dir.path()));
    options.node_key = Some(support::target_key());
    options.wraps = wraps;
    let node = support::target_key().public();
    Host { target: Some(Target::start(options).unwrap()), dir, node }
}

#[test]
fn block_keys_are_raw_in_the_channel_and_wrapped_at_rest() {
    const KEY: [u8; 32] = *b"this block key must not rest raw";
    let mut host = custody_target_host(Some(Arc::new(|volume| {
        assert!(volume.sealed.as_ref().unwrap().wrapping_key.is_some());
        Ok(Arc::new(Mask))
    })));
    let mut initiator = host.channel("vault");
    initiator.run(registration(ATTACH_ID)).good();
    let list = {
        let mut hole = hole(0, 256);
        hole.record = hole.record.with_block_key(&KEY);
        vendor::encode_holes(&[hole])
    };
    initiator.run(seal_hole(&list)).good();
    let data = pattern(1, 3);
    let written: Vec<_> = records(1, &data).iter().map(|record| record.with_block_key(&KEY)).collect();
    initiator.run(sealed_write(4, &data, &written)).good();
    let outcome = read(&mut initiator, 3, 5);
    let (blocks, holes) = returned(&outcome);
    assert_eq!(blocks.iter().map(|(_, record)| record.clone()).collect::<Vec<_>>(), written);
    assert_eq!(holes[0].record.record.raw_block_key(), Some(&KEY));
    // A blind record has no place here.
    let sense = initiator.run(sealed_write(4, &data[..BLOCK], &[record(9, &data[..BLOCK])])).sense();
    assert!(sense.is(&Sense::INVALID_SEAL_RECORD), "{sense}");
    initiator.synchronize();
    drop(initiator);
    host.target.take().unwrap().stop();
    let stored = files_under(host.dir.path());
    let wrapped: Vec<u8> = KEY.iter().map(|byte| byte ^ 0x3c).collect();
    assert!(!contains(&stored, &KEY), "a raw block key at rest");
    assert!(contains(&stored, &wrapped), "the search finds what is there");
}

#[test]
fn without_its_wrapping_key_a_volume_is_not_served() {
    let none = custody_target_host(None);
    let refused = Initiator::log_in(&none, Some(alice_key()), normal(ALICE, "vault")).err();
    assert_eq!(refused, Some(Refused::Login(LoginStatus::TARGET_ERROR)));
    let broken = custody_target_host(Some(Arc::new(|_| Err("no such file".into()))));
    let refused = Initiator::log_in(&broken, Some(alice_key()), normal(ALICE, "vault")).err();
    assert_eq!(refused, Some(Refused::Login(LoginStatus::TARGET_ERROR)));
}

fn files_under(dir: &std::path::Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files_under(&path));
        } else {
            all.extend(std::fs::read(&path).unwrap());
        }
    }
    all
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

fn operate(host: &Host, operation: Operation) -> StoreReport {
    keeper::operate(host, "vault", operation).unwrap().store
}

/// What holds for a plain volume (`space.rs`), and what only a sealed one has: feedback and sealed holes.
#[test]
fn full_stops_only_writes_of_a_sealed_volume() {
    /// THIN PROVISIONING SOFT THRESHOLD REACHED.
    const THRESHOLD: (u8, u8) = (0x38, 0x07);
    const BLOCKS: u64 = 2048;
    let host = Host::start(&[VolumeSpec::sealed("vault", 8 * MIB)]);
    let mut initiator = host.channel("vault");
    format(&mut initiator, BLOCKS);
    let (mut stamps, mut thresholds, mut full) = (0, 0, None);
    let mut write = |initiator: &mut Initiator, lba: u64, data: &[u8]| {
        stamps += 64;
        let outcome = initiator.run(sealed_write(lba, data, &records(stamps, data)));
        let told = outcome.sense.is_some_and(|sense| (sense.asc, sense.ascq) == THRESHOLD);
        thresholds += u32::from(told);
        // A unit attention: the command was not done, and is sent again.
        if told { initiator.run(sealed_write(lba, data, &records(stamps, data))) } else { outcome }
    };
    'filling: for round in 0..40u8 {
        // The first blocks twice: that leaves an older version beside what the snapshots keep.
        for lba in [0].into_iter().chain((0..BLOCKS).step_by(64)) {
            let outcome = write(&mut initiator, lba, &pattern(round, 64));
            if outcome.status != 0 {
                full = Some((outcome.sense(), lba, round));
                break 'filling;
            }
        }
        operate(&host, Operation::SnapshotCreate { snapshot: format!("s{round}") });
    }
    let (sense, at, round) = full.expect("snapshots of a volume that is written again and again fill its store");
    assert!(sense.is(&Sense::NO_SPACE), "SPACE ALLOCATION FAILED WRITE PROTECT: {sense}");
    assert!(at > 64 && round > 0, "{at} in round {round}");
    assert_eq!(operate(&host, Operation::Describe).space, SpaceReport::Full);
    // Nothing is lost: what was acknowledged is there, what was refused left nothing.
    assert_eq!(read(&mut initiator, at - 64, 64).good(), pattern(round, 64));
    assert_eq!(read(&mut initiator, at, 64).good(), pattern(round - 1, 64));
    initiator.synchronize();
    // Older versions made way before a write was refused. Feedback goes on, also where it finds none to let go.
    let described = operate(&host, Operation::Describe);
    assert!(described.versions_retained == 0 && described.versions_evicted > 0, "{described:?}");
    let (blocks, _) = returned(&read(&mut initiator, 0, 1));
    let list = vendor::encode_verified(&[(Lba(0), StoreSequence(blocks[0].0))]);
    let cdb = VendorCommand::Verified { parameter_list_len: list.len() as u32 }.encode();
    initiator.run(Command::write(LUN, cdb, WriteSource::plain(Buffer::copy_from(&list)))).good();
    // So do holes, and the deletion of snapshots; and then there is room again.
    // Under a stamp of its own: with that of the formatting it would be a repeat.
    initiator.run(seal_hole(&vendor::encode_holes(&[hole_of(stamp(1 << 41), 0, BLOCKS / 2)]))).good();
    assert_eq!(returned(&read(&mut initiator, 0, 1)).1.len(), 1);
    for snapshot in 0..round {
        operate(&host, Operation::SnapshotDelete { snapshot: format!("s{snapshot}") });
    }
    support::eventually("there is room again", || write(&mut initiator, at, &pattern(99, 64)).status == 0);
    assert_eq!(read(&mut initiator, at, 64).good(), pattern(99, 64));
    assert_eq!(thresholds, 1, "it was told, once");
}
