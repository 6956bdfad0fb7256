//! Proves over real sockets that a sealed unit executes each operation at most once (docs/vendor-cdbs.md, "Operations"), that it says
//! where it stored what, and that nobody gains anything by operation ids, sequences or registrations that are made up.

use strongroom_block::{AttachId, Buffer, Lba, SealRecord, Stamp, StoreSequence};
use strongroom_iscsi::ahs::{self, AhsKind};
use strongroom_iscsi::initiator::{Command, WriteSource};
use strongroom_scsi::transport::{Operation, Parameters, Written};
use strongroom_scsi::vendor::{self, UnitPage};
use strongroom_scsi::{Sense, VendorCommand, cdb, supported};
use strongroom_target::VolumeSpec;

use crate::support::sealed::{
    ATTACH_ID, format, hole_of, read, record_of, registration, returned, seal_hole, sealed_write, stamp,
};
use crate::support::{
    ALICE, BLOCK, CONFLICT, Host, Initiator, LUN, MIB, Outcome, alice_key, eventually, normal, pattern,
};

const BOBS: AttachId = AttachId([0xb0; 16]);

fn bobs(counter: u64) -> Stamp {
    Stamp { attach_id: BOBS, counter }
}

/// A session of its own.
fn another(host: &Host) -> Initiator {
    let mut config = normal(ALICE, "vault");
    config.isid[5] = 2;
    Initiator::log_in(host, Some(alice_key()), config).expect("admitted")
}

/// A formatted volume, and two sessions that have registered.
fn two() -> (Host, Initiator, Initiator) {
    let host = Host::start(&[VolumeSpec::sealed("vault", MIB)]);
    let mut alice = host.channel("vault");
    format(&mut alice, 256);
    let mut bob = another(&host);
    bob.run(registration(BOBS)).good();
    (host, alice, bob)
}

fn records(first: Stamp, data: &[u8]) -> Vec<SealRecord> {
    let stamps = (first.counter..).map(|counter| Stamp { counter, ..first });
    data.chunks_exact(BLOCK).zip(stamps).map(|(block, stamp)| record_of(stamp, block)).collect()
}

fn write(lba: u64, data: &[u8], first: Stamp) -> Command {
    sealed_write(lba, data, &records(first, data))
}

fn with(command: Command, id: Stamp, replay: Option<u64>) -> Command {
    let operation = Some(Ok(Operation { id, replay: replay.map(StoreSequence) }));
    Command { parameters: Parameters { operation, ..command.parameters }, ..command }
}

fn conditional(lba: u64, expected: Option<Stamp>, data: &[u8], stamp: Stamp) -> Command {
    let expected_stamp = Some(expected.map_or([0; 24], Stamp::to_bytes));
    let parameters = Parameters { expected_stamp, ..Parameters::default() };
    let cdb = VendorCommand::ConditionalWrite { lba: Lba(lba), count: 1 }.encode();
    Command { cdb, parameters, ..write(lba, data, stamp) }
}

fn hole(start: u64, count: u64, stamp: Stamp) -> Command {
    seal_hole(&vendor::encode_holes(&[hole_of(stamp, start, count)]))
}

#[track_caller]
fn written(outcome: Outcome) -> Written {
    let written = outcome.completed.written.expect("a response to a write says where");
    outcome.good();
    written
}

#[track_caller]
fn repeated(outcome: Outcome) {
    assert_eq!(written(outcome), Written { is_repeat: true, ..Written::default() });
}

fn contents(initiator: &mut Initiator, lba: u64, blocks: u32) -> Vec<u8> {
    read(initiator, lba, blocks).good()
}

#[test]
fn a_response_says_where_a_write_was_stored() {
    let (_host, mut alice, _) = two();
    let data = pattern(1, 3);
    let first = written(alice.run(write(10, &data, stamp(1))));
    let stored: Vec<u64> = returned(&read(&mut alice, 10, 3)).0.iter().map(|(sequence, _)| *sequence).collect();
    assert_eq!(stored, [first.first.0, first.first.0 + 1, first.first.0 + 2]);
    let next = written(alice.run(hole(10, 1, stamp(1000))));
    assert!(!next.is_repeat && next.first > first.first);
    let (_, holes) = returned(&read(&mut alice, 10, 1));
    assert_eq!(holes[0].store_sequence, next.first.0);
    let third = written(alice.run(conditional(11, Some(stamp(2)), &pattern(2, 1), stamp(50))));
    assert!(third.first > next.first);
}

/// The response of the first is lost, another initiator overwrites a block, and the request comes again; also sealed again.
#[test]
fn what_was_executed_is_not_executed_again() {
    let (_host, mut alice, mut bob) = two();
    let (data, others) = (pattern(1, 3), pattern(9, 1));
    let expected = [&data[..BLOCK], &others[..], &data[2 * BLOCK..]].concat();
    alice.run(write(10, &data, stamp(1))).good();
    bob.run(write(11, &others, bobs(1))).good();
    repeated(alice.run(write(10, &data, stamp(1))));
    repeated(alice.run(with(write(10, &data, stamp(70)), stamp(1), None)));
    assert_eq!(contents(&mut bob, 10, 3), expected);

    alice.run(hole(20, 3, stamp(200))).good();
    bob.run(write(21, &others, bobs(2))).good();
    repeated(alice.run(hole(20, 3, stamp(200))));
    repeated(alice.run(with(hole(20, 3, stamp(201)), stamp(200), None)));
    assert_eq!(contents(&mut bob, 21, 1), others);

    let absent = || conditional(30, None, &data[..BLOCK], stamp(300));
    alice.run(absent()).good();
    bob.run(write(30, &others, bobs(3))).good();
    repeated(alice.run(absent()));
    assert_eq!(contents(&mut bob, 30, 1), others);
}

#[test]
fn what_was_executed_is_known_after_the_volume_was_closed() {
    let host = Host::start_with(&[VolumeSpec::sealed("vault", MIB)], |config| config.limits.idle_close_s = 0);
    let incarnation = |initiator: &mut Initiator| {
        let page = initiator.run(Command::read(LUN, cdb::inquiry_vpd(vendor::UNIT_PAGE, 255), 255)).good();
        UnitPage::parse(&page).unwrap().incarnation
    };
    let mut alice = host.channel("vault");
    format(&mut alice, 256);
    let (data, others) = (pattern(1, 3), pattern(9, 1));
    alice.run(write(10, &data, stamp(1))).good();
    let before = incarnation(&mut alice);
    alice.log_out();
    eventually("the volume is closed", || host.handle().stats().volumes_open == 0);
    let mut bob = another(&host);
    bob.run(registration(BOBS)).good();
    bob.run(write(11, &others, bobs(1))).good();
    bob.log_out();
    eventually("the volume is closed", || host.handle().stats().volumes_open == 0);
    let mut alice = host.channel("vault");
    assert_eq!(incarnation(&mut alice), before, "nothing was lost");
    repeated(alice.run(write(10, &data, stamp(1))));
    assert_eq!(contents(&mut alice, 11, 1), others);
}

#[test]
fn an_unknown_attach_id_is_refused_and_not_executed() {
    let (_host, mut alice, _) = two();
    let (data, unknown) = (pattern(1, 1), Stamp { attach_id: AttachId([0xee; 16]), counter: 1 });
    let commands = [
        write(10, &data, unknown),
        hole(10, 1, unknown),
        conditional(10, None, &data, unknown),
        with(write(10, &data, stamp(1)), unknown, None),
        with(write(10, &data, stamp(1)), unknown, Some(1)),
    ];
    for command in commands {
        let sense = alice.run(command).sense();
        assert!(sense.is(&Sense::UNKNOWN_ATTACHMENT), "{sense}");
    }
    let (blocks, holes) = returned(&read(&mut alice, 10, 1));
    assert!(blocks.is_empty() && holes[0].record.record.stamp().attach_id == ATTACH_ID);
    alice.run(registration(unknown.attach_id)).good();
    alice.run(registration(unknown.attach_id)).good();
    alice.run(write(10, &data, unknown)).good();
    assert_eq!(contents(&mut alice, 10, 1), data);
}

/// Somebody who may write can overwrite any block anyway; under another one's ids he can do less.
#[test]
fn attack_forge_an_operation_id() {
    let (_host, mut alice, mut bob) = two();
    let (data, forged) = (pattern(1, 3), pattern(6, 3));
    alice.run(write(10, &data, stamp(1))).good();
    // One that was executed: nothing is stored, wherever it points.
    repeated(bob.run(with(write(10, &forged, bobs(1)), stamp(1), None)));
    repeated(bob.run(with(write(50, &forged, bobs(1)), stamp(1), None)));
    // Some of its stamps were: it is none of alice's requests.
    let sense = bob.run(with(write(10, &forged, bobs(1)), stamp(3), None)).sense();
    assert!(sense.is(&Sense::INVALID_OPERATION), "{sense}");
    // Counters at the end of all.
    let outcome = bob.run(with(write(10, &forged, bobs(1)), stamp(u64::MAX - 1), None));
    assert_eq!(outcome.status, 2, "no counter comes after the last");
    assert_eq!(contents(&mut alice, 10, 3), data);
    assert!(returned(&read(&mut alice, 50, 3)).0.is_empty());
    alice.run(write(10, &forged, stamp(10))).good();
}

#[test]
fn attack_forge_the_sequence_of_a_replay() {
    let (_host, mut alice, mut bob) = two();
    let (data, forged) = (pattern(1, 3), pattern(6, 3));
    let first = written(alice.run(write(10, &data, stamp(1)))).first.0;
    // Of this opening, or of the future: such a write was never acknowledged and lost.
    for (at, sequence) in [first, first + 3, first + 1000, u64::MAX - 1, u64::MAX].into_iter().enumerate() {
        let id = bobs(100 * (1 + at as u64));
        let sense = bob.run(with(write(10, &forged, id), id, Some(sequence))).sense();
        assert!(sense.is(&Sense::INVALID_OPERATION), "sequence {sequence}: {sense}");
    }
    assert_eq!(contents(&mut alice, 10, 3), data);
}

#[test]
fn attack_register_without_the_right_to_write() {
    let (host, mut alice, mut bob) = two();
    let fresh = AttachId([0x77; 16]);
    let reserve = Command::without_data(LUN, {
        let mut cdb = [0; 16];
        cdb[0] = 0x16;
        cdb
    });
    alice.run(reserve).good();
    assert_eq!(bob.run(registration(fresh)).status, CONFLICT);
    alice.log_out();
    drop((bob, host));
    let read_only = Host::start_with(&[VolumeSpec::sealed("vault", MIB)], |config| config.peers[0].read_only = true);
    let mut reader = read_only.channel("vault");
    let sense = reader.run(registration(fresh)).sense();
    assert!(sense.is(&Sense::WRITE_PROTECTED), "{sense}");
    let sense = reader.run(write(10, &pattern(1, 1), stamp(1))).sense();
    assert!(sense.is(&Sense::WRITE_PROTECTED), "{sense}");
}

#[test]
fn attack_malformed_operation_segments_and_registrations() {
    let (_host, mut alice, _) = two();
    let data = pattern(1, 1);
    let run_with = |alice: &mut Initiator, content: &[u8]| {
        ahs::push(&mut alice.extra_segments, AhsKind::OPERATION, &[content]);
        alice.run(write(10, &data, stamp(1)))
    };
    let sound = [&[0][..], &stamp(1).to_bytes(), &[0; 8]].concat();
    let reserved = [&[0x80][..], &sound[1..]].concat();
    let longer = [&sound[..], &[0]].concat();
    for content in [&sound[..1], &sound[..32], &longer[..], &reserved[..]] {
        let sense = run_with(&mut alice, content).sense();
        assert!(sense.is(&Sense::INVALID_OPERATION), "{content:?}: {sense}");
    }
    for len in [1, 15, 17, 32] {
        let cdb = VendorCommand::RegisterAttachment { parameter_list_len: len as u32 }.encode();
        let sense = alice.run(Command::write(LUN, cdb, WriteSource::plain(Buffer::copy_from(&vec![7; len])))).sense();
        assert!(sense.is(&Sense::PARAMETER_LIST_LENGTH), "{len} bytes: {sense}");
    }
    assert!(returned(&read(&mut alice, 10, 1)).0.is_empty(), "nothing was stored");
    run_with(&mut alice, &sound).good();
}

#[test]
fn a_plain_unit_has_no_operations() {
    let host = Host::start(&[VolumeSpec::plain("disk", MIB)]);
    let mut initiator = host.channel("disk");
    let sense = initiator.run(registration(ATTACH_ID)).sense();
    assert!(sense.is(&Sense::INVALID_OPCODE), "{sense}");
    let outcome = initiator.try_write(0, &pattern(1, 1));
    assert_eq!(outcome.completed.written, None);
    outcome.good();
    let list = initiator.run(Command::read(LUN, cdb::report_supported_operation_codes(8192), 8192)).good();
    let list = supported::decode_list(&list).unwrap();
    let ours = list.into_iter().filter(|(opcode, _)| *opcode == 0xc1).map(|(_, action)| action);
    assert!(ours.eq([Some(7), Some(8), Some(9)]), "those about writer leases, and no others");
}
