//! Proves what a volume remembers when nobody uses it: it is closed, and can be deleted, for all that its initiators have set; and what
//! they have set holds when it is opened again by the same target.

use strongroom_block::Buffer;
use strongroom_iscsi::initiator::{Command, WriteSource};
use strongroom_scsi::cdb;
use strongroom_target::VolumeSpec;

use crate::support::{ALICE, BOB, CONFLICT, Host, Initiator, LUN, eventually, normal};

fn host() -> Host {
    Host::start_with(&[VolumeSpec::plain("disk", 16 << 20)], |config| config.limits.idle_close_s = 0)
}

fn six(bytes: [u8; 6]) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[..6].copy_from_slice(&bytes);
    cdb
}

fn register_and_reserve(session: &mut Initiator) {
    for (action, kind, keys) in [(0u8, 0u8, [0u64, 7]), (1, 3, [7, 0])] {
        let mut cdb = [0; 16];
        cdb[..9].copy_from_slice(&[0x5f, action, kind, 0, 0, 0, 0, 0, 24]);
        let list = [&keys[0].to_be_bytes()[..], &keys[1].to_be_bytes(), &[0; 8]].concat();
        session.run(Command::write(LUN, cdb, WriteSource::plain(Buffer::copy_from(&list)))).good();
    }
}

#[track_caller]
fn wait_until_closed(host: &Host) {
    eventually("the volume is closed", || host.handle().stats().volumes_open == 0);
}

#[test]
fn a_reservation_that_is_not_kept_on_disk_outlives_the_closing() {
    let host = host();
    let mut alice = host.plain("disk");
    register_and_reserve(&mut alice);
    alice.log_out();
    wait_until_closed(&host);
    let mut bob = Initiator::log_in(&host, None, normal(BOB, "disk")).unwrap();
    assert_eq!(bob.try_write(0, &[0; 4096]).status, CONFLICT);
    bob.log_out();
    wait_until_closed(&host);
    let mut alice = host.plain("disk");
    assert_eq!(alice.try_write(0, &[0; 4096]).status, 0, "it is still hers");
}

#[test]
fn a_volume_of_the_same_name_inherits_nothing() {
    let host = host();
    let mut alice = host.plain("disk");
    register_and_reserve(&mut alice);
    alice.log_out();
    wait_until_closed(&host);
    host.handle().catalogue().delete("disk").unwrap();
    host.handle().catalogue().create(&VolumeSpec::plain("disk", 16 << 20)).unwrap();
    let mut bob = Initiator::log_in(&host, None, normal(BOB, "disk")).unwrap();
    assert_eq!(bob.try_write(0, &[0; 4096]).status, 0);
}

#[test]
fn a_stopped_unit_stays_stopped() {
    let host = host();
    let mut alice = host.plain("disk");
    alice.run(Command::without_data(LUN, six([0x1b, 0, 0, 0, 0, 0]))).good();
    alice.log_out();
    wait_until_closed(&host);
    let mut alice = Initiator::log_in(&host, None, normal(ALICE, "disk")).unwrap();
    let sense = alice.run(Command::without_data(LUN, cdb::test_unit_ready())).sense();
    assert_eq!((sense.key as u8, sense.asc, sense.ascq), (2, 4, 2), "INITIALIZING COMMAND REQUIRED");
    alice.run(Command::without_data(LUN, six([0x1b, 0, 0, 0, 1, 0]))).good();
    alice.log_out();
    wait_until_closed(&host);
    let mut alice = host.plain("disk");
    alice.run(Command::without_data(LUN, cdb::test_unit_ready())).good();
}

#[test]
fn mode_pages_outlive_the_closing() {
    let host = host();
    let mut alice = host.plain("disk");
    // The caching page with WCE=0.
    let list = [&[0, 0, 0, 0, 8, 18][..], &[0; 18]].concat();
    let select = six([0x15, 0x10, 0, 0, list.len() as u8, 0]);
    alice.run(Command::write(LUN, select, WriteSource::plain(Buffer::copy_from(&list)))).good();
    alice.log_out();
    wait_until_closed(&host);
    let mut alice = host.plain("disk");
    let page = alice.run(Command::read(LUN, six([0x1a, 8, 8, 0, 255, 0]), 255)).good();
    assert_eq!(page[4 + 2] & 4, 0, "WCE");
}
