//! Proves that the explicit recovery brings the version before of a block that does not open, and that a wire which is cut again and
//! again loses nothing. What attacks on the wire come to is in `attacks`.

use std::sync::Arc;

use crate::support::{Host, SIZE, Wire, keep_the_checksum};
use strongroom_block::{Buffer, DeviceErrorKind, Lba, keyless_checksum};
use strongroom_initiator::{RecoverError, Recovered, RemoteDevice, flush_blocking, read_blocking, write_blocking};
use strongroom_target::VolumeSpec;

const BLOCK: usize = 4096;

fn block(mark: u8) -> Buffer {
    Buffer::copy_from(&[mark; BLOCK])
}

fn attached() -> (Host, Wire, RemoteDevice) {
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let wire = Wire::before(&host);
    let device = RemoteDevice::attach(host.options(wire.url("vault"))).unwrap();
    device.format().unwrap();
    for mark in [1, 2] {
        write_blocking(&device, Lba(9), Buffer::copy_from(&[mark; 4 * BLOCK]), false).unwrap();
    }
    flush_blocking(&device).unwrap();
    (host, wire, device)
}

#[test]
fn a_block_that_was_changed_on_its_way_can_be_recovered() {
    let (host, wire, device) = attached();
    wire.tamper_towards_target(|message| {
        if message.has_blocks() {
            let range = message.data.clone();
            keep_the_checksum(&mut message.bytes[range], keyless_checksum);
        }
    });
    // The target cannot know better.
    write_blocking(&device, Lba(9), block(3), true).unwrap();
    wire.behave();
    for _ in 0..2 {
        let error = read_blocking(&device, Lba(9), 1).unwrap_err();
        assert_eq!((error.kind, error.lba), (DeviceErrorKind::Medium, Some(Lba(9))));
    }
    match device.recover(Lba(9), false).unwrap() {
        Recovered::WroteBack { bad_versions: 1, was_absent: false, .. } => {}
        other => panic!("{other:?}"),
    }
    assert!(read_blocking(&device, Lba(9), 1).unwrap()[..] == [2; BLOCK], "the version before");
    assert!(matches!(device.recover(Lba(9), false).unwrap(), Recovered::NothingToDo { .. }));
    let other = RemoteDevice::attach(host.bobs_options(host.url("vault"))).unwrap();
    assert!(read_blocking(&other, Lba(9), 1).unwrap()[..] == [2; BLOCK]);
}

#[test]
fn a_flipped_byte_at_rest_is_an_error_that_names_the_block_and_can_be_recovered_from() {
    let mut host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let device = host.attach("vault");
    device.format().unwrap();
    write_blocking(&device, Lba(30), block(1), true).unwrap();
    let before = stored(&host);
    write_blocking(&device, Lba(30), block(2), true).unwrap();
    device.detach().unwrap();
    flip_newest_block(&mut host, &before);
    let device = host.attach("vault");
    let error = read_blocking(&device, Lba(30), 1).unwrap_err();
    assert_eq!((error.kind, error.lba), (DeviceErrorKind::Medium, Some(Lba(30))), "{error}");
    match device.recover(Lba(30), false).unwrap() {
        Recovered::WroteBack { bad_versions: 1, .. } => {}
        other => panic!("{other:?}"),
    }
    assert!(read_blocking(&device, Lba(30), 1).unwrap()[..] == [1; BLOCK]);
    // A block of which there is nothing else.
    assert!(matches!(device.recover(Lba(31), false).unwrap(), Recovered::NothingToDo { .. }), "the hole is fine");
}

#[test]
fn an_absence_is_brought_back_only_when_it_is_asked_for() {
    let mut host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let device = host.attach("vault");
    device.format().unwrap();
    write_blocking(&device, Lba(29), block(1), true).unwrap();
    let before = stored(&host);
    write_blocking(&device, Lba(30), block(2), true).unwrap();
    device.detach().unwrap();
    flip_newest_block(&mut host, &before);
    let device = host.attach("vault");
    assert!(matches!(device.recover(Lba(30), false), Err(RecoverError::OnlyAbsence { tried: 1, .. })));
    assert!(read_blocking(&device, Lba(30), 1).is_err(), "nothing was changed");
    match device.recover(Lba(30), true).unwrap() {
        Recovered::WroteBack { was_absent: true, .. } => {}
        other => panic!("{other:?}"),
    }
    assert!(read_blocking(&device, Lba(30), 1).unwrap()[..] == [0; BLOCK]);
    assert!(read_blocking(&device, Lba(29), 1).unwrap()[..] == [1; BLOCK]);
}

#[test]
fn a_plain_volume_has_nothing_to_recover_by() {
    let host = Host::start(&[VolumeSpec::plain("disk", SIZE)]);
    assert!(matches!(host.attach("disk").recover(Lba(0), false), Err(RecoverError::NotSealed)));
}

fn stored(host: &Host) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    fn walk(dir: &std::path::Path, found: &mut Vec<(std::path::PathBuf, Vec<u8>)>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.is_file() {
                found.push((path.clone(), std::fs::read(&path).unwrap()));
            }
        }
    }
    let mut found = Vec::new();
    walk(host.dir.path(), &mut found);
    found
}

/// Flips one bit at rest, in the block that was written since `before`, while the target is down.
fn flip_newest_block(host: &mut Host, before: &[(std::path::PathBuf, Vec<u8>)]) {
    host.stop();
    // What the last write added and the store had not before: its block is in there somewhere.
    let (path, at) = newest_block(host, before);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[at] ^= 0x80;
    std::fs::write(&path, bytes).unwrap();
    host.start_again();
}

/// A byte in the middle of the longest aligned run of 4096 bytes that differs from before and looks like ciphertext.
fn newest_block(host: &Host, before: &[(std::path::PathBuf, Vec<u8>)]) -> (std::path::PathBuf, usize) {
    for (path, now) in stored(host) {
        let was = before.iter().find(|(known, _)| *known == path).map_or(&[][..], |(_, bytes)| &bytes[..]);
        for (at, piece) in now.chunks_exact(BLOCK).enumerate() {
            let offset = at * BLOCK;
            let differs = was.get(offset..offset + BLOCK) != Some(piece);
            let zeros = piece.iter().filter(|&&byte| byte == 0).count();
            if differs && zeros < 100 {
                return (path, offset + BLOCK / 2);
            }
        }
    }
    panic!("the write left no block behind");
}

#[test]
fn a_wire_that_is_cut_again_and_again_loses_nothing() {
    let (_host, wire, device) = attached();
    let device = Arc::new(device);
    let writer = {
        let device = device.clone();
        std::thread::spawn(move || {
            for lba in 0..400 {
                write_blocking(&*device, Lba(lba), block(lba as u8), false).unwrap();
            }
            flush_blocking(&*device).unwrap();
        })
    };
    for cut in 0..12 {
        std::thread::sleep(std::time::Duration::from_millis(20 + 9 * cut));
        wire.cut();
    }
    writer.join().unwrap();
    for lba in 0..400 {
        assert!(read_blocking(&*device, Lba(lba), 1).unwrap()[..] == [lba as u8; BLOCK], "block {lba}");
    }
}
