//! Proves what an attachment does with its writer lease: the second writer is refused by the name of the first, a cut connection and a restart
//! of the target lose nothing, what lapsed goes on if nobody wrote meanwhile and fails if somebody did, and who is taken over from writes nothing
//! more and says who it was.

use std::time::Duration;

use strongroom_block::{Buffer, DeviceErrorKind, Lba};
use strongroom_initiator::{
    AttachError, AttachOptions, LeaseMode, LeaseOptions, RemoteDevice, WriterConflict, WriterRole, flush_blocking,
    write_blocking, writers,
};
use strongroom_target::VolumeSpec;

use crate::support::{ALICE, BOB, Host, SIZE, Wire, eventually, mark};

const BLOCK: usize = 4096;

fn data(mark: u8) -> Buffer {
    Buffer::copy_from(&vec![mark; BLOCK])
}

fn alone(options: AttachOptions, seconds: u64) -> AttachOptions {
    let lease = LeaseOptions {
        duration: Duration::from_secs(seconds),
        description: format!("test of {}\u{1b}[2J", options.iscsi.initiator_name),
        ..LeaseOptions::default()
    };
    AttachOptions { lease, ..options }
}

fn taking_over(options: AttachOptions) -> AttachOptions {
    let mut options = alone(options, 60);
    options.lease.take_over = true;
    options
}

#[track_caller]
fn refused(options: AttachOptions) -> WriterConflict {
    match RemoteDevice::attach(options) {
        Err(AttachError::InUse(conflict)) => *conflict,
        other => panic!("{other:?}"),
    }
}

fn vault() -> Host {
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE), VolumeSpec::plain("disk", SIZE)]);
    host.attach("vault").format().unwrap();
    host
}

#[test]
fn the_second_writer_is_refused_by_the_name_of_the_first() {
    let host = vault();
    for (ours, theirs) in [
        (host.options(host.url("vault")), host.bobs_options(host.url("vault"))),
        (host.options(host.plain_url("disk")), host.bobs_options(host.plain_url("disk"))),
    ] {
        let first = RemoteDevice::attach(alone(ours.clone(), 60)).unwrap();
        let conflict = refused(alone(theirs.clone(), 60));
        let text = conflict.to_string();
        assert!(text.contains(ALICE) && text.contains("test of") && text.contains("connected"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert_eq!(conflict.ends_in(), None);
        refused(AttachOptions { lease: LeaseOptions::shared(), ..theirs.clone() });
        // Who only reads is let in, and stands against nobody.
        let reader = RemoteDevice::attach(AttachOptions { read_only: true, ..alone(theirs.clone(), 60) }).unwrap();
        write_blocking(&first, Lba(3), data(7), false).unwrap();
        assert_eq!(mark(&reader, 3), 7);
        first.detach().unwrap();
        let second = RemoteDevice::attach(alone(theirs.clone(), 60)).unwrap();
        let mut sole = alone(ours, 60);
        sole.lease.sole = true;
        refused(sole.clone());
        second.detach().unwrap();
        assert!(refused(sole.clone()).to_string().contains("reading"));
        reader.detach().unwrap();
        RemoteDevice::attach(sole).unwrap().detach().unwrap();
    }
}

#[test]
fn a_cut_connection_and_a_restart_of_the_target_keep_the_lease() {
    let mut host = vault();
    let wire = Wire::before(&host);
    let alice = RemoteDevice::attach(alone(host.options(wire.url("vault")), 60)).unwrap();
    let bobs = alone(host.bobs_options(host.url("vault")), 60);
    write_blocking(&alice, Lba(0), data(1), false).unwrap();
    wire.set_down(true);
    eventually("the target sees it", || refused(bobs.clone()).ends_in().is_some());
    wire.set_down(false);
    write_blocking(&alice, Lba(1), data(2), false).unwrap();
    assert_eq!(refused(bobs.clone()).ends_in(), None);
    host.stop();
    host.start_again();
    // Whichever comes first: the lease is on the disk.
    let conflict = refused(bobs.clone());
    assert!(conflict.to_string().contains(ALICE), "{conflict}");
    write_blocking(&alice, Lba(2), data(3), false).unwrap();
    flush_blocking(&alice).unwrap();
    assert_eq!([0, 1, 2].map(|lba| mark(&alice, lba)), [1, 2, 3]);
    alice.detach().unwrap();
    RemoteDevice::attach(bobs).unwrap().detach().unwrap();
}

#[test]
fn a_lease_that_lapsed_goes_on_if_nobody_wrote_and_fails_if_somebody_did() {
    let host = vault();
    let wire = Wire::before(&host);
    let alice = RemoteDevice::attach(alone(host.options(wire.url("vault")), 1)).unwrap();
    write_blocking(&alice, Lba(0), data(1), false).unwrap();
    flush_blocking(&alice).unwrap();
    wire.set_down(true);
    std::thread::sleep(Duration::from_secs(2));
    wire.set_down(false);
    write_blocking(&alice, Lba(1), data(2), false).unwrap();
    flush_blocking(&alice).unwrap();
    wire.set_down(true);
    let bobs = alone(host.bobs_options(host.url("vault")), 60);
    let mut bob = None;
    eventually("her lease lapses", || {
        bob = RemoteDevice::attach(bobs.clone()).ok();
        bob.is_some()
    });
    let bob = bob.unwrap();
    assert_eq!([mark(&bob, 0), mark(&bob, 1)], [1, 2], "what was flushed is there");
    write_blocking(&bob, Lba(0), data(9), true).unwrap();
    wire.set_down(false);
    let error = write_blocking(&alice, Lba(5), data(5), false).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::ReservationConflict);
    assert!(error.message.contains("lease of 1 s") && error.message.contains(BOB), "{error}");
    assert_eq!(mark(&alice, 0), 9, "reads go on");
    bob.detach().unwrap();
    write_blocking(&alice, Lba(5), data(5), false).unwrap_err();
    flush_blocking(&alice).unwrap_err();
    assert!(alice.status().lease_lost.is_some());
    alice.detach().unwrap_err();
    assert_eq!(mark(&host.attach("vault"), 5), 0);
}

/// The target is asked before a detach says that all is well, over a new connection if the last one is lost.
#[test]
fn a_detach_without_writes_says_that_the_volume_was_taken_over() {
    let host = vault();
    for is_cut in [false, true] {
        let wire = Wire::before(&host);
        let alice = RemoteDevice::attach(alone(host.options(wire.url("vault")), 60)).unwrap();
        write_blocking(&alice, Lba(0), data(1), true).unwrap();
        flush_blocking(&alice).unwrap();
        wire.set_down(is_cut);
        let bob = RemoteDevice::attach(taking_over(host.bobs_options(host.url("vault")))).unwrap();
        wire.set_down(false);
        let error = alice.detach().expect_err("she is told");
        assert!(error.message.contains("was taken over") && error.message.contains(BOB), "{is_cut}: {error}");
        bob.detach().unwrap();
    }
}

#[test]
fn who_is_taken_over_from_writes_nothing_more_and_says_who_it_was() {
    let mut host = vault();
    let wire = Wire::before(&host);
    let alice = RemoteDevice::attach(alone(host.options(wire.url("vault")), 60)).unwrap();
    write_blocking(&alice, Lba(0), data(1), false).unwrap();
    let bob = RemoteDevice::attach(taking_over(host.bobs_options(host.url("vault")))).unwrap();
    assert_eq!(mark(&bob, 0), 1);
    let error = write_blocking(&alice, Lba(0), data(2), false).unwrap_err();
    assert!(error.message.contains("was taken over") && error.message.contains(BOB), "{error}");
    assert!(!error.message.contains('\u{1b}'), "{error:?}");
    assert_eq!((mark(&alice, 0), mark(&bob, 0)), (1, 1));
    // Neither a new connection nor a restart of the target brings it back, nor that the other one is gone.
    wire.cut();
    bob.detach().unwrap();
    write_blocking(&alice, Lba(0), data(2), false).unwrap_err();
    host.stop();
    host.start_again();
    eventually("it is there again", || alice.status().is_connected);
    write_blocking(&alice, Lba(0), data(2), false).unwrap_err();
    let error = alice.detach().unwrap_err();
    assert!(error.message.contains("was taken over"), "{error}");
    assert_eq!(mark(&host.attach("vault"), 0), 1);
}

/// Writes are under way all the time; from the moment that the take-over is answered on, none takes effect.
#[test]
fn attack_a_take_over_amid_writes_is_complete() {
    let host = vault();
    let alice = RemoteDevice::attach(alone(host.options(host.url("vault")), 60)).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written = 0;
            loop {
                match write_blocking(&alice, Lba(written % 8), data(1), false) {
                    Ok(()) => written += 1,
                    Err(error) => return (written, error),
                }
            }
        });
        std::thread::sleep(Duration::from_millis(200));
        let bob = RemoteDevice::attach(taking_over(host.bobs_options(host.url("vault")))).unwrap();
        (0..8).for_each(|lba| write_blocking(&bob, Lba(lba), data(2), false).unwrap());
        let (written, error) = writer.join().unwrap();
        assert!(written > 0 && error.message.contains("was taken over"), "{written} {error}");
        assert!((0..8).all(|lba| mark(&bob, lba) == 2));
    });
}

#[test]
fn several_write_where_all_say_so_and_maintenance_beside_one() {
    let host = vault();
    let shared = |options| AttachOptions { lease: LeaseOptions::shared(), ..options };
    let alice = RemoteDevice::attach(shared(host.options(host.url("vault")))).unwrap();
    let bob = RemoteDevice::attach(shared(host.bobs_options(host.url("vault")))).unwrap();
    write_blocking(&alice, Lba(0), data(1), false).unwrap();
    write_blocking(&bob, Lba(1), data(2), false).unwrap();
    let roles: Vec<WriterRole> =
        writers(host.options(host.url("vault"))).unwrap().into_iter().map(|writer| writer.role).collect();
    assert_eq!(roles, [WriterRole::Holder(LeaseMode::Shared); 2]);
    bob.detach().unwrap();
    alice.detach().unwrap();
    let alice = RemoteDevice::attach(alone(host.options(host.url("vault")), 60)).unwrap();
    let lease = LeaseOptions { mode: LeaseMode::Maintenance, ..LeaseOptions::default() };
    let bob = RemoteDevice::attach(AttachOptions { lease, ..host.bobs_options(host.url("vault")) }).unwrap();
    let error = write_blocking(&bob, Lba(1), data(3), false).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::ReservationConflict);
    write_blocking(&alice, Lba(1), data(4), false).unwrap();
    assert_eq!(mark(&bob, 1), 4);
}
