//! Proves what becomes of versions that nobody has verified: readers tell the target what opened, and older versions go; `verify`
//! reads a whole volume, names what does not open, and goes on where it was stopped; and where every write is checked on arrival
//! nothing is retained in the first place.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use strongroom_block::{Buffer, Lba, keyless_checksum};
use strongroom_channel::Scheme;
use strongroom_initiator::{AttachOptions, RemoteDevice, VerifyReport, flush_blocking, read_blocking, write_blocking};
use strongroom_target::admin::{Client, Reply, Request, VolumeReport, default_socket};
use strongroom_target::{Access, Protection, Service, VolumeSpec};

use crate::support::{Host, Message, SIZE, Wire, keep_the_checksum};

const BLOCK: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(60);
const BLOCKS: u64 = SIZE / BLOCK as u64;

/// What the target says of its open volume.
fn report(host: &Host) -> VolumeReport {
    let mut client = Client::connect(&default_socket(host.dir.path())).unwrap().expect("it listens");
    match client.ask(&Request::Status, PATIENCE).unwrap() {
        Reply::Status(report) => report.volumes.into_iter().next().expect("it is open"),
        other => panic!("{other:?}"),
    }
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn write(device: &RemoteDevice, lba: u64, mark: u8) {
    write_blocking(device, Lba(lba), Buffer::copy_from(&[mark; BLOCK]), false).unwrap();
}

fn under(host: &Host, scheme: Scheme) -> AttachOptions {
    let mut options = host.options(host.url("vault"));
    options.channel.scheme = Some(scheme);
    options
}

#[test]
fn what_a_reader_opened_lets_older_versions_go() {
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    for &scheme in Scheme::ALL {
        let device = RemoteDevice::attach(under(&host, scheme)).unwrap();
        device.format().unwrap();
        let before = report(&host).store;
        for mark in 1..=3 {
            (0..8).for_each(|lba| write(&device, lba, mark));
        }
        flush_blocking(&device).unwrap();
        let kept = report(&host).store;
        assert_eq!(kept.versions_retained, before.versions_retained + 16, "{scheme}: two for each block");
        read_blocking(&device, Lba(0), 8).unwrap();
        eventually("readers' feedback arrives", || {
            report(&host).store.versions_released >= before.versions_released + 16
        });
        assert!(report(&host).store.versions_retained <= before.versions_retained);
        device.detach().unwrap();
    }
}

/// "Versions checked on arrival are not retained", and lazily checked ones are kept from such a volume altogether.
#[test]
fn what_is_checked_on_arrival_is_not_retained() {
    let protection = Protection { services: vec![Service::CheckedOnArrival], ..Protection::default() };
    let access = Access { protection, ..Access::default() };
    let host = Host::start(&[VolumeSpec { access, ..VolumeSpec::sealed("vault", SIZE) }]);
    for &scheme in Scheme::ALL {
        let mut options = under(&host, scheme);
        options.sealing.verified_feedback = false;
        if !scheme.checks_on_arrival() {
            assert!(RemoteDevice::attach(options).is_err(), "{scheme}");
            continue;
        }
        let device = RemoteDevice::attach(options).unwrap();
        device.format().unwrap();
        for mark in 1..=3 {
            let data = Buffer::copy_from(&[mark; 8 * BLOCK]);
            write_blocking(&device, Lba(0), data, mark == 2).unwrap();
            let part = Buffer::copy_from(&[mark + 10]);
            strongroom_initiator::write_part_blocking(&device, Lba(3), 5, part).unwrap();
        }
        assert_eq!(report(&host).store.versions_retained, 0, "{scheme}");
        let read = read_blocking(&device, Lba(0), 8).unwrap();
        assert_eq!((read[0], read[3 * BLOCK + 5], read[3 * BLOCK + 6]), (3, 13, 3));
        device.detach().unwrap();
    }
}

/// Writes a block that its readers cannot open: changed on the way so that the target does not notice.
fn write_badly(host: &Host, lba: u64) {
    let wire = Wire::before(host);
    let device = RemoteDevice::attach(host.options(wire.url("vault"))).unwrap();
    wire.tamper_towards_target(|message: &mut Message<'_>| {
        if message.has_blocks() {
            let range = message.data.clone();
            keep_the_checksum(&mut message.bytes[range], keyless_checksum);
        }
    });
    write(&device, lba, 66);
    device.detach().unwrap();
}

fn verify(device: &RemoteDevice, from: u64) -> VerifyReport {
    device.verify(Lba(from), &mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn a_volume_is_verified_from_an_initiator() {
    let host = Host::start(&[VolumeSpec { retention_percent: 100, ..VolumeSpec::sealed("vault", SIZE) }]);
    let device = host.attach("vault");
    device.format().unwrap();
    let data = |mark: u8| Buffer::copy_from(&vec![mark; 1500 * BLOCK]);
    for mark in [1, 2] {
        write_blocking(&device, Lba(100), data(mark), false).unwrap();
        write_blocking(&device, Lba(2000), data(mark), false).unwrap();
    }
    flush_blocking(&device).unwrap();
    for lba in [120, 2500] {
        write_badly(&host, lba);
    }
    assert_eq!(report(&host).store.versions_retained, 3002);
    let whole = verify(&device, 0);
    assert_eq!(whole.bad_blocks, [Lba(120), Lba(2500)]);
    assert_eq!((whole.progress.next, whole.progress.bad), (Lba(BLOCKS), 2));
    assert_eq!(whole.progress.opened + whole.progress.absent + whole.progress.bad, BLOCKS);
    assert!(whole.progress.opened >= 2998 && whole.progress.absent >= 500, "{whole:?}");
    // What opened was told; of what did not, every older version is there.
    assert_eq!(report(&host).store.versions_retained, 4);
    for lba in [120, 2500] {
        device.recover(Lba(lba), false).unwrap();
    }
    assert_eq!(verify(&device, 0).bad_blocks, []);

    // Stopped, and gone on with where it was.
    let mut steps = 0;
    let first = device.verify(Lba(0), &mut |_| {
        steps += 1;
        if steps > 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let first = first.unwrap().progress;
    assert!(first.next.0 > 100 && first.next.0 < BLOCKS, "{first:?}");
    let rest = verify(&device, first.next.0).progress;
    assert_eq!((rest.next, first.opened + first.absent + rest.opened + rest.absent), (Lba(BLOCKS), BLOCKS));
}

#[test]
fn only_what_is_sealed_can_be_verified() {
    let host = Host::start(&[VolumeSpec::plain("disk", SIZE), VolumeSpec::sealed("vault", SIZE)]);
    let error = host.attach("disk").verify(Lba(0), &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(error.message.contains("plain"), "{error}");
    // Nobody has formatted this one: nothing in it opens.
    let device = host.attach("vault");
    let mut calls = 0;
    let report = device.verify(Lba(BLOCKS - 300), &mut |_| {
        calls += 1;
        // After each block that does not open, and a few steps.
        assert!(calls < 310);
        ControlFlow::Continue(())
    });
    assert_eq!(report.unwrap().progress.bad, 300);
    // With a key that opens nothing, that can be seen early.
    let early = device.verify(Lba(BLOCKS - 300), &mut |progress| match progress.bad {
        0..16 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    });
    let early = early.unwrap().progress;
    assert_eq!((early.bad, early.next), (16, Lba(BLOCKS - 300 + 16)));
}
