//! Proves that nobody between initiator and target gets wrong data read or acknowledged: flips in headers end the
//! connection (and the request goes on over another), flips in block data end in an error that names the block, also flips
//! that keep the keyless checksum; and that the explicit recovery brings the version before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::{FRAME_PROTECTED, FRAME_SEALED, Host, SIZE, Wire, keep_the_checksum};
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
fn flipped_block_data_on_its_way_to_the_reader_is_an_error_that_names_the_block() {
    let (_host, wire, device) = attached();
    for keeps_checksum in [false, true] {
        wire.tamper_towards_initiator(move |message| {
            if message.kind == FRAME_SEALED {
                let at = message.data.start + BLOCK;
                let second = &mut message.bytes[at..at + BLOCK];
                let before = keyless_checksum(second);
                if keeps_checksum {
                    keep_the_checksum(second, keyless_checksum);
                    assert_eq!(keyless_checksum(second), before);
                } else {
                    second[77] ^= 0x10;
                }
            }
        });
        let error = read_blocking(&device, Lba(9), 4).unwrap_err();
        assert_eq!((error.kind, error.lba), (DeviceErrorKind::Medium, Some(Lba(10))), "{error}");
        wire.behave();
        assert!(read_blocking(&device, Lba(9), 4).unwrap()[..] == [2; 4 * BLOCK]);
    }
    assert_eq!(device.status().connections, 1, "block data is not the connection's business");
}

#[test]
fn flipped_headers_end_the_connection_and_the_request_goes_on_over_another() {
    let (_host, wire, device) = attached();
    for kind in [FRAME_PROTECTED, FRAME_SEALED] {
        let before = device.status().connections;
        let once = AtomicBool::new(false);
        wire.tamper_towards_initiator(move |message| {
            if message.kind == kind && !once.swap(true, Ordering::Relaxed) {
                message.bytes[message.header.start + 3] ^= 1;
            }
        });
        assert!(read_blocking(&device, Lba(9), 4).unwrap()[..] == [2; 4 * BLOCK]);
        // A read may be answered by sealed frames alone; a flush is not.
        flush_blocking(&device).unwrap();
        assert!(device.status().connections > before, "frames of type {kind:#x}");
        wire.behave();
    }
    let before = device.status().connections;
    let once = AtomicBool::new(false);
    wire.tamper_towards_target(move |message| {
        if message.kind == FRAME_SEALED && !once.swap(true, Ordering::Relaxed) {
            message.bytes[message.header.start] ^= 1;
        }
    });
    write_blocking(&device, Lba(20), block(7), true).unwrap();
    assert!(device.status().connections > before);
    assert!(read_blocking(&device, Lba(20), 1).unwrap()[..] == [7; BLOCK]);
}

#[test]
fn an_accident_on_the_way_to_the_target_is_noticed_there_and_sent_again() {
    let (_host, wire, device) = attached();
    let flips = Arc::new(AtomicUsize::new(0));
    let counted = flips.clone();
    wire.tamper_towards_target(move |message| {
        if message.kind == FRAME_SEALED && counted.fetch_add(1, Ordering::Relaxed) < 2 {
            message.bytes[message.data.start + 5] ^= 1;
        }
    });
    write_blocking(&device, Lba(9), block(3), true).unwrap();
    assert!(flips.load(Ordering::Relaxed) >= 3, "twice in vain, then well");
    assert!(read_blocking(&device, Lba(9), 1).unwrap()[..] == [3; BLOCK]);
    assert_eq!(device.status().connections, 1);
}

#[test]
fn an_attack_on_the_way_to_the_target_is_noticed_by_the_reader_and_recovered_from() {
    let (host, wire, device) = attached();
    wire.tamper_towards_target(|message| {
        if message.kind == FRAME_SEALED {
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
