//! Proves over real sessions that persistent reservations fence a node off, survive a restart of the target if they were asked to (APTPL), are
//! forgotten if not, and that a damaged file of them keeps the volume closed rather than open to everybody.

use strongroom_block::{Buffer, Lba};
use strongroom_iscsi::initiator::{Command, Config as SessionConfig, WriteSource};
use strongroom_scsi::cdb;
use strongroom_target::VolumeSpec;

use crate::support::{ALICE, BLOCK, BOB, CONFLICT, Host, Initiator, LUN, normal, pattern};

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
/// Exclusive access.
const EXCLUSIVE: u8 = 3;

fn bob() -> SessionConfig {
    normal(BOB, "disk")
}

fn reserve_out(session: &mut Initiator, action: u8, kind: u8, keys: (u64, u64), persist: bool) -> u8 {
    let mut cdb = [0; 16];
    cdb[..9].copy_from_slice(&[0x5f, action, kind, 0, 0, 0, 0, 0, 24]);
    let list = [&keys.0.to_be_bytes()[..], &keys.1.to_be_bytes(), &[0, 0, 0, 0, persist.into(), 0, 0, 0]].concat();
    session.run(Command::write(LUN, cdb, WriteSource::plain(Buffer::copy_from(&list)))).status
}

fn keys(session: &mut Initiator) -> Vec<u64> {
    let mut cdb = [0; 16];
    cdb[..9].copy_from_slice(&[0x5e, 0, 0, 0, 0, 0, 0, 1, 0]);
    let data = session.run(Command::read(LUN, cdb, 256)).good();
    data[8..].chunks_exact(8).map(|key| u64::from_be_bytes(key.try_into().unwrap())).collect()
}

fn read_status(session: &mut Initiator) -> u8 {
    session.run(Command::read(LUN, cdb::read_16(Lba(0), 1), BLOCK as u32)).status
}

#[test]
fn a_fenced_node_stays_fenced_over_a_restart() {
    let mut host = Host::start(&[VolumeSpec::plain("disk", 16 << 20)]);
    let mut alice = host.plain("disk");
    let data = pattern(1, 1);
    alice.write(0, &data);
    assert_eq!(reserve_out(&mut alice, REGISTER, 0, (0, 0xa11ce), true), 0);
    assert_eq!(reserve_out(&mut alice, RESERVE, EXCLUSIVE, (0xa11ce, 0), false), 0);
    alice.synchronize();
    drop(alice);
    host.restart_without_peers();
    // Bob comes first; the reservation was there before him.
    let mut fenced = Initiator::log_in(&host, None, bob()).unwrap();
    assert_eq!(fenced.try_write(0, &pattern(2, 1)).status, CONFLICT);
    assert_eq!(read_status(&mut fenced), CONFLICT);
    assert_eq!(keys(&mut fenced), [0xa11ce]);
    let mut alice = host.plain("disk");
    assert_eq!(alice.read(0, 1), data);
    // Bob takes over; Alice is told, and out.
    assert_eq!(reserve_out(&mut fenced, REGISTER, 0, (0, 0xb0b), true), 0);
    assert_eq!(reserve_out(&mut fenced, PREEMPT, EXCLUSIVE, (0xb0b, 0xa11ce), false), 0);
    let told = alice.run(Command::without_data(LUN, cdb::test_unit_ready())).sense();
    assert_eq!((told.asc, told.ascq), (0x2a, 0x05), "REGISTRATIONS PREEMPTED");
    assert_eq!(read_status(&mut alice), CONFLICT);
    drop((alice, fenced));
    host.restart_without_peers();
    let mut alice = host.plain("disk");
    assert_eq!(read_status(&mut alice), CONFLICT, "the takeover is kept too");
    let mut bob = Initiator::log_in(&host, None, bob()).unwrap();
    assert_eq!(reserve_out(&mut bob, CLEAR, 0, (0xb0b, 0), false), 0);
    assert!(!host.dir.path().join("disk/reservations.toml").exists());
    assert_eq!(read_status(&mut bob), 0);
}

#[test]
fn what_was_not_to_be_kept_is_gone_after_a_restart() {
    let mut host = Host::start(&[VolumeSpec::plain("disk", 16 << 20)]);
    let mut alice = host.plain("disk");
    assert_eq!(reserve_out(&mut alice, REGISTER, 0, (0, 1), false), 0);
    assert_eq!(reserve_out(&mut alice, RESERVE, EXCLUSIVE, (1, 0), false), 0);
    // It holds over a mere logout.
    alice.log_out();
    let mut other = Initiator::log_in(&host, None, bob()).unwrap();
    assert_eq!(read_status(&mut other), CONFLICT);
    drop(other);
    host.restart_without_peers();
    let mut other = Initiator::log_in(&host, None, bob()).unwrap();
    assert_eq!(read_status(&mut other), 0);
    assert!(keys(&mut other).is_empty());
}

#[test]
fn what_cannot_be_written_is_refused_and_has_not_happened() {
    let host = Host::start(&[VolumeSpec::plain("disk", 16 << 20)]);
    let mut alice = host.plain("disk");
    let mut bob = Initiator::log_in(&host, None, bob()).unwrap();
    assert_eq!(reserve_out(&mut alice, REGISTER, 0, (0, 0xa11ce), true), 0);
    assert_eq!(reserve_out(&mut alice, RESERVE, EXCLUSIVE, (0xa11ce, 0), false), 0);
    let in_the_way = host.dir.path().join("disk/.reservations.toml");
    std::fs::create_dir(&in_the_way).unwrap();
    let check_condition = 2;
    assert_eq!(reserve_out(&mut bob, REGISTER, 0, (0, 0xb0b), true), check_condition);
    assert_eq!(keys(&mut bob), [0xa11ce]);
    // Nobody was told of what did not happen, and nobody's tasks were ended by it.
    assert_eq!(reserve_out(&mut alice, CLEAR, 0, (0xa11ce, 0), false), 0, "to remove the file needs no room");
    assert_eq!(reserve_out(&mut alice, REGISTER, 0, (0, 0xa11ce), true), check_condition);
    assert!(keys(&mut alice).is_empty());
    assert_eq!(read_status(&mut bob), 0);
    std::fs::remove_dir(&in_the_way).unwrap();
    assert_eq!(reserve_out(&mut alice, REGISTER, 0, (0, 0xa11ce), true), 0);
    assert_eq!(keys(&mut bob), [0xa11ce]);
}

#[test]
fn changes_take_their_turns() {
    let host = Host::start(&[VolumeSpec::plain("disk", 16 << 20)]);
    let mut alice = host.plain("disk");
    let command = |action, kind, keys: (u64, u64)| {
        let mut cdb = [0; 16];
        cdb[..9].copy_from_slice(&[0x5f, action, kind, 0, 0, 0, 0, 0, 24]);
        let list = [&keys.0.to_be_bytes()[..], &keys.1.to_be_bytes(), &[0, 0, 0, 0, 1, 0, 0, 0]].concat();
        Command::write(LUN, cdb, WriteSource::plain(Buffer::copy_from(&list)))
    };
    // All at once, while the first is being written.
    let tasks = [(REGISTER, 0, (0, 1)), (REGISTER, 0, (1, 2)), (RESERVE, EXCLUSIVE, (2, 0)), (RESERVE, 5, (2, 0))]
        .map(|(action, kind, keys)| alice.submit(command(action, kind, keys)));
    assert_eq!(tasks.map(|task| alice.wait(task).status), [0, 0, 0, CONFLICT]);
    assert_eq!(keys(&mut alice), [2]);
}

#[test]
fn a_damaged_file_keeps_the_volume_closed() {
    let host = Host::start(&[VolumeSpec::plain("disk", 16 << 20)]);
    std::fs::write(host.dir.path().join("disk/reservations.toml"), "version = 1\n[reservation]\n").unwrap();
    let refused = Initiator::log_in(&host, None, normal(ALICE, "disk"));
    assert!(refused.is_err());
    std::fs::remove_file(host.dir.path().join("disk/reservations.toml")).unwrap();
    host.plain("disk").log_out();
}
