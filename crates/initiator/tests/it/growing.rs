//! Proves that an attached volume grows in place, and only by what can be read: a sealed one by what somebody with the key has
//! sealed, no matter what the target says; and that it never shrinks.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::support::{Host, SIZE};
use strongroom_block::{BlockDevice, Buffer, DeviceErrorKind, Geometry, Lba};
use strongroom_initiator::{
    Growth, RemoteDevice, UnsealedGrowth, grow_and_seal, read_blocking, unsealed_part, write_blocking,
};
use strongroom_target::operate::Operation;
use strongroom_target::{Catalogue, VolumeSpec};

const BLOCK: usize = 4096;
const BLOCKS: u64 = SIZE / BLOCK as u64;
/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn block(mark: u8) -> Buffer {
    Buffer::copy_from(&[mark; BLOCK])
}

/// The target goes, and comes back with a larger volume.
fn grow(host: &mut Host, volume: &str, size_bytes: u64) {
    host.stop();
    // Its lock may outlast the target for a moment: the kernel ends rings late, and a process that another test has just forked has a copy.
    let catalogue = Catalogue::open(host.dir.path()).unwrap();
    let until = Instant::now() + PATIENCE;
    while let Err(problem) = catalogue.operate(volume, &Operation::Resize { size_bytes }) {
        assert!(problem.to_string().contains("in use") && Instant::now() < until, "{problem}");
        std::thread::sleep(Duration::from_millis(10));
    }
    host.start_again();
}

/// Sizes that the device takes by itself.
fn followed(device: &Arc<RemoteDevice>) -> Receiver<Geometry> {
    let (sender, grown) = channel();
    let tell = move |geometry| {
        // Nobody may wait for it any more.
        let _ = sender.send(geometry);
    };
    device.follow_growth(UnsealedGrowth::Report, tell).unwrap();
    grown
}

fn holds(device: &RemoteDevice, lba: u64, mark: u8) -> bool {
    read_blocking(device, Lba(lba), 1).unwrap()[..] == [mark; BLOCK]
}

fn is_outside(device: &RemoteDevice, lba: u64) -> bool {
    let errors = [read_blocking(device, Lba(lba), 1).err(), write_blocking(device, Lba(lba), block(1), false).err()];
    errors.into_iter().all(|error| error.unwrap().kind == DeviceErrorKind::OutOfRange)
}

#[test]
fn a_plain_volume_grows_and_does_not_shrink() {
    let mut host = Host::start(&[VolumeSpec::plain("disk", SIZE)]);
    let mut options = host.options(host.url("disk"));
    options.readahead = true;
    let device = Arc::new(RemoteDevice::attach(options).unwrap());
    write_blocking(&*device, Lba(3), block(3), false).unwrap();
    assert_eq!(device.grow().unwrap(), Growth::Same);
    grow(&mut host, "disk", 2 * SIZE);
    assert!(holds(&device, 3, 3), "it is the same volume");
    // Its users were told a size; the new one is for who looks.
    assert!(is_outside(&device, BLOCKS));
    let Growth::Grown(geometry) = device.grow().unwrap() else { panic!("it has grown") };
    assert_eq!((geometry.bytes(), device.geometry()), (2 * SIZE, geometry));
    assert_eq!(device.grow().unwrap(), Growth::Same);
    write_blocking(&*device, Lba(2 * BLOCKS - 1), block(4), false).unwrap();
    assert!(holds(&device, BLOCKS, 0) && holds(&device, 2 * BLOCKS - 1, 4));
    assert!(is_outside(&device, 2 * BLOCKS));
    // In sequence across the old end: what is fetched ahead goes as far.
    for lba in BLOCKS - 64..2 * BLOCKS - 1 {
        assert!(holds(&device, lba, 0), "block {lba}");
    }
    // A target that goes back on its word has another volume.
    host.stop();
    let catalogue = Catalogue::open(host.dir.path()).unwrap();
    std::fs::remove_dir_all(host.dir.path().join("disk")).unwrap();
    catalogue.create(&VolumeSpec::plain("disk", SIZE)).unwrap();
    host.start_again();
    assert_eq!(read_blocking(&*device, Lba(3), 1).unwrap_err().kind, DeviceErrorKind::Refused);
    assert_eq!(device.geometry().bytes(), 2 * SIZE);
}

#[test]
fn a_sealed_volume_grows_when_somebody_with_the_key_has_sealed_it() {
    let mut host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let device = Arc::new(host.attach("vault"));
    device.format().unwrap();
    write_blocking(&*device, Lba(3), block(3), false).unwrap();
    let grown = followed(&device);
    grow(&mut host, "vault", 3 * SIZE);
    // So it is, too, where a target only says that there is more.
    let Growth::NotSealed(geometry) = device.grow().unwrap() else { panic!("nobody has sealed it") };
    assert_eq!((geometry.bytes(), device.geometry().bytes()), (3 * SIZE, SIZE));
    assert!(is_outside(&device, BLOCKS));
    assert!(grown.recv_timeout(Duration::from_secs(3)).is_err());
    assert_eq!(device.status().engine.blocks_failed, 0, "what is not there yet is not damaged");
    let bob = RemoteDevice::attach(host.bobs_options(host.url("vault"))).unwrap();
    bob.format_grown(Lba(BLOCKS)).unwrap();
    assert_eq!(grown.recv_timeout(PATIENCE).unwrap(), geometry);
    assert_eq!(device.geometry(), geometry);
    assert!(holds(&device, BLOCKS, 0) && holds(&device, 3 * BLOCKS - 1, 0));
    write_blocking(&*device, Lba(2 * BLOCKS), block(5), true).unwrap();
    assert!(holds(&bob, 2 * BLOCKS, 5) && holds(&device, 3, 3));
    // Not all of it is sealed yet when it has grown again: it is as large as it was.
    grow(&mut host, "vault", 4 * SIZE);
    assert!(matches!(device.grow().unwrap(), Growth::NotSealed(_)));
    assert!(is_outside(&device, 3 * BLOCKS) && holds(&device, 2 * BLOCKS, 5));
    device.detach().unwrap();
}

#[test]
fn the_only_writer_seals_what_its_volume_grows_by() {
    let mut host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let device = Arc::new(host.attach("vault"));
    device.format().unwrap();
    write_blocking(&*device, Lba(BLOCKS - 1), block(3), true).unwrap();
    assert_eq!(unsealed_part(&device).unwrap(), None);
    let (sender, grown) = channel();
    let tell = move |geometry| {
        let _ = sender.send(geometry);
    };
    device.follow_growth(UnsealedGrowth::Seal, tell).unwrap();
    grow(&mut host, "vault", 3 * SIZE);
    assert_eq!(grown.recv_timeout(PATIENCE).unwrap().bytes(), 3 * SIZE);
    assert!(holds(&device, BLOCKS - 1, 3) && holds(&device, BLOCKS, 0) && holds(&device, 3 * BLOCKS - 1, 0));
    write_blocking(&*device, Lba(2 * BLOCKS), block(5), true).unwrap();
    // There is nothing more to be sealed.
    assert_eq!(grow_and_seal(&device).unwrap(), Growth::Same);
    assert!(holds(&device, 2 * BLOCKS, 5));
    device.detach().unwrap();
}

#[test]
fn what_nobody_has_sealed_is_found_and_nothing_else() {
    let mut host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let device = host.attach("vault");
    let refused = unsealed_part(&device).unwrap_err();
    assert!(refused.message.contains("not formatted"), "{refused}");
    device.format().unwrap();
    device.detach().unwrap();
    grow(&mut host, "vault", 3 * SIZE);
    let device = host.attach("vault");
    assert_eq!(unsealed_part(&device).unwrap(), Some(Lba(BLOCKS)));
    // Blocks behind it are in use: nobody can tell where it grew.
    for lba in 2 * BLOCKS..3 * BLOCKS - 1 {
        write_blocking(&device, Lba(lba), block(7), false).unwrap();
    }
    assert!(unsealed_part(&device).is_err());
    let from = Lba(BLOCKS);
    device.format_grown(from).unwrap();
    assert_eq!(unsealed_part(&device).unwrap(), None);
    device.detach().unwrap();
}
