//! Proves, against a real target over real sockets: volumes attach and keep their data, for a second initiator too; every
//! refusal is an error that says what to do; a restart of the target is survived, and a target that stays away is not waited
//! for for ever.

use std::io::Write;
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{Host, SIZE, key_of};
use strongroom_block::{BlockDevice, Buffer, BufferMut, DeviceErrorKind, Lba, Request, SealingDomain, Token};
use strongroom_initiator::copy::{CopyOptions, Endpoint, copy};
use strongroom_initiator::{
    AttachError, ExpectedUnit, KeyFileSource, RemoteDevice, discard_blocking, flush_blocking, inquire, read_blocking,
    write_blocking, write_part_blocking,
};
use strongroom_target::VolumeSpec;

const BLOCK: usize = 4096;
/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn block(mark: u8) -> Buffer {
    Buffer::copy_from(&[mark; BLOCK])
}

#[test]
fn a_sealed_volume_from_format_to_a_second_initiator() {
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let alice = host.attach("vault");
    assert_eq!(alice.geometry().bytes(), SIZE);
    let error = read_blocking(&alice, Lba(0), 1).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Medium, "never formatted: an error, never zeros");
    alice.format().unwrap();
    assert!(read_blocking(&alice, Lba(0), 64).unwrap().iter().all(|&byte| byte == 0));
    assert_eq!(alice.hole_at(Lba(0), 1000).unwrap(), 1000);

    let large: Vec<u8> = (0..3 << 20).map(|at| (at / 4099) as u8).collect();
    write_blocking(&alice, Lba(100), Buffer::copy_from(&large), false).unwrap();
    write_blocking(&alice, Lba(5), block(7), true).unwrap();
    write_part_blocking(&alice, Lba(5), 1000, Buffer::copy_from(b"part of a block")).unwrap();
    write_part_blocking(&alice, Lba(6), 0, Buffer::copy_from(b"part of a hole")).unwrap();
    discard_blocking(&alice, Lba(110), 10).unwrap();
    flush_blocking(&alice).unwrap();
    assert_eq!(alice.hole_at(Lba(0), 1000).unwrap(), 5);
    alice.detach().unwrap();

    let bob = RemoteDevice::attach(host.bobs_options(host.url("vault"))).unwrap();
    let mut expected = large.clone();
    expected[10 * BLOCK..20 * BLOCK].fill(0);
    assert!(read_blocking(&bob, Lba(100), 768).unwrap()[..] == expected);
    let mut expected = vec![7; BLOCK];
    expected[1000..1015].copy_from_slice(b"part of a block");
    assert!(read_blocking(&bob, Lba(5), 1).unwrap()[..] == expected);
    assert_eq!(&read_blocking(&bob, Lba(6), 1).unwrap()[..14], b"part of a hole");
    // The store has no byte of it in the clear.
    let stored = stored_bytes(host.dir.path());
    assert!(!contains(&stored, b"part of a block") && !contains(&stored, &[7; 64]));
}

fn stored_bytes(dir: &std::path::Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(stored_bytes(&path));
        } else if path.is_file() && path.extension().is_none_or(|extension| extension != "key") {
            all.extend(std::fs::read(path).unwrap());
        }
    }
    all
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[test]
fn a_plain_volume_over_both_kinds_of_urls() {
    let host = Host::start(&[VolumeSpec::plain("disk", SIZE)]);
    let plain = RemoteDevice::attach(host.options(host.plain_url("disk"))).unwrap();
    assert!(plain.unit().sealed.is_none());
    let data: Vec<u8> = (0..2 << 20).map(|at| (at / 1013) as u8).collect();
    write_blocking(&plain, Lba(3), Buffer::copy_from(&data), false).unwrap();
    write_part_blocking(&plain, Lba(3), 1, Buffer::copy_from(b"hello")).unwrap();
    discard_blocking(&plain, Lba(10), 5).unwrap();
    plain.detach().unwrap();
    let channel = host.attach("disk");
    let count = (data.len() / plain.geometry().block_size.len()) as u64;
    let back = read_blocking(&channel, Lba(3), count).unwrap();
    let mut expected = data;
    expected[1..6].copy_from_slice(b"hello");
    let block_bytes = channel.geometry().block_size.len();
    expected[7 * block_bytes..12 * block_bytes].fill(0);
    assert!(back[..] == expected);
}

#[test]
fn many_requests_in_flight_complete_once_each() {
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let device = host.attach("vault");
    device.format().unwrap();
    let (mut submitted, mut completed) = (0_u64, std::collections::HashSet::new());
    let mut completions = Vec::new();
    for round in 0..3_u8 {
        for lba in 0..1000 {
            let request = match round {
                0 => Request::Write { lba: Lba(lba), data: block(lba as u8), fua: false },
                1 => {
                    Request::WritePart { lba: Lba(lba), offset_bytes: 9, data: Buffer::copy_from(&[0xEE]), fua: false }
                }
                _ => Request::Read { lba: Lba(lba), buffer: BufferMut::zeroed(BLOCK) },
            };
            device.submit(Token(submitted), request);
            submitted += 1;
        }
        while completed.len() < submitted as usize {
            assert!(device.wait(Some(Duration::from_secs(30))), "nothing completes");
            device.poll_completions(&mut completions);
            for completion in completions.drain(..) {
                assert!(completed.insert(completion.token));
                if let Some(buffer) = completion.result.unwrap() {
                    let lba = completion.token.0 - 2000;
                    assert_eq!((buffer[0], buffer[9], buffer[10]), (lba as u8, 0xEE, lba as u8));
                }
            }
        }
    }
}

#[test]
fn every_refusal_says_what_to_do() {
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let says = |error: AttachError, part: &str| {
        assert!(error.to_string().contains(part), "{error}");
        error
    };
    let error = says(host.attach_error(|options| options.channel.node_key = Some(key_of(0x99))), "[[peer]]");
    assert!(!error.is_temporary());
    says(
        host.attach_error(|options| options.channel.target_keys = vec![key_of(0x11).public()]),
        "not the expected one",
    );
    says(host.attach_error(|options| options.channel.target_keys.clear()), "identity show");
    says(host.attach_error(|options| options.channel.node_key = None), "identity new");
    let error = host.attach_error(|options| options.iscsi.initiator_name = crate::support::BOB.into());
    assert!(matches!(error, AttachError::LoginRefused(_)), "alice under bob's name: {error}");
    let error = host.attach_error(|options| options.url = host.url("nothing"));
    assert!(matches!(error, AttachError::LoginRefused(_)), "{error}");
    says(host.attach_error(|options| options.url = host.plain_url("vault")), "strongroom:// URL");
    says(host.attach_error(|options| options.sealing.key_source = None), "--key-file");
    let other_domain = ExpectedUnit { domain: Some(SealingDomain([9; 16])), ..ExpectedUnit::default() };
    says(host.attach_error(|options| options.expected = other_domain), "sealing domain");
    // The right things work, and asking what is there needs no key.
    let mut options = host.options(host.url("vault"));
    options.sealing.key_source = None;
    let unit = inquire(options).unwrap();
    assert!(unit.sealed.is_some() && unit.target_key == Some(key_of(0x7a).public()));
}

#[test]
fn nobody_there_and_somebody_else_there() {
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let closed = format!("strongroom://{free}/vault").parse().unwrap();
    let error = host.attach_error(|options| options.url = closed);
    assert!(matches!(error, AttachError::Unreachable(_)) && error.is_temporary(), "{error}");
    for greeting in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &[0; 200], b""] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("strongroom://{}/vault", listener.local_addr().unwrap()).parse().unwrap();
        let stranger = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(greeting).unwrap();
            // Nothing more, and the connection stays.
            std::thread::sleep(Duration::from_millis(1500));
        });
        let started = Instant::now();
        let error = host.attach_error(|options| {
            options.url = url;
            options.timeouts.connect = Duration::from_secs(1);
        });
        assert!(started.elapsed() < PATIENCE, "{error}");
        stranger.join().unwrap();
    }
}

#[test]
fn the_wrong_key_opens_nothing_and_harms_nothing() {
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let device = host.attach("vault");
    device.format().unwrap();
    write_blocking(&device, Lba(1), block(5), true).unwrap();
    let mut options = host.bobs_options(host.url("vault"));
    options.sealing.key_source = Some(Arc::new(KeyFileSource::new(host.dir.path().join("wrong.key"))));
    let wrong = RemoteDevice::attach(options).unwrap();
    for lba in [0, 1] {
        let error = read_blocking(&wrong, Lba(lba), 1).unwrap_err();
        assert_eq!((error.kind, error.lba), (DeviceErrorKind::Medium, Some(Lba(lba))));
        assert!(write_part_blocking(&wrong, Lba(lba), 0, Buffer::copy_from(b"x")).is_err());
    }
    assert!(read_blocking(&device, Lba(1), 1).unwrap()[..] == [5; BLOCK]);
}

#[test]
fn requests_outside_the_volume_or_ragged_are_errors() {
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let mut options = host.options(host.url("vault"));
    options.read_only = true;
    let device = RemoteDevice::attach(options).unwrap();
    let blocks = SIZE / BLOCK as u64;
    let kind = |request| {
        device.submit(Token(1), request);
        assert!(device.wait(Some(Duration::from_secs(10))));
        let mut completions = Vec::new();
        device.poll_completions(&mut completions);
        completions.pop().unwrap().result.unwrap_err().kind
    };
    let read = |lba, bytes| Request::Read { lba: Lba(lba), buffer: BufferMut::zeroed(bytes) };
    for outside in [read(blocks, BLOCK), read(u64::MAX, BLOCK), read(0, 100), read(0, 0)] {
        assert_eq!(kind(outside), DeviceErrorKind::OutOfRange);
    }
    assert_eq!(kind(Request::Write { lba: Lba(0), data: block(1), fua: false }), DeviceErrorKind::ReadOnly);
    assert_eq!(kind(Request::Discard { lba: Lba(0), count: 1 }), DeviceErrorKind::ReadOnly);
    assert!(device.format().is_err());
    flush_blocking(&device).unwrap();
    device.detach().unwrap();
}

#[test]
fn a_restart_of_the_target_is_survived_in_the_midst_of_writes() {
    let mut host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let device = Arc::new(host.attach("vault"));
    device.format().unwrap();
    let writer = {
        let device = device.clone();
        std::thread::spawn(move || {
            for round in 1..=60_u8 {
                for lba in 0..16 {
                    write_blocking(&*device, Lba(lba * 7), block(round), false).unwrap();
                }
                if round % 10 == 0 {
                    flush_blocking(&*device).unwrap();
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        })
    };
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(150));
        host.stop();
        std::thread::sleep(Duration::from_millis(100));
        host.start_again();
    }
    writer.join().unwrap();
    for lba in 0..16 {
        assert!(read_blocking(&*device, Lba(lba * 7), 1).unwrap()[..] == [60; BLOCK]);
    }
    let status = device.status();
    assert!(status.connections >= 2 && status.is_connected, "{status:?}");
    device.detach().unwrap();
}

/// The caller that gives an attachment up is answered at once, and so is every thread that waits for it.
#[test]
fn an_abandoned_device_keeps_nobody() {
    let mut host = Host::start(&[VolumeSpec::plain("disk", SIZE)]);
    let device = Arc::new(host.attach("disk"));
    write_blocking(&*device, Lba(1), block(1), false).unwrap();
    host.stop();
    let waiting = {
        let device = device.clone();
        std::thread::spawn(move || read_blocking(&*device, Lba(1), 1).map(drop))
    };
    let begun = Instant::now();
    std::thread::sleep(Duration::from_millis(100));
    while device.status().is_connected {
        assert!(begun.elapsed() < PATIENCE, "the loss is not seen");
        std::thread::sleep(Duration::from_millis(10));
    }
    let status = device.status();
    assert!(status.unflushed_bytes >= BLOCK, "{status:?}");
    let begun = Instant::now();
    device.abandon();
    assert!(waiting.join().unwrap().unwrap_err().message.contains("by force"));
    assert!(device.detach().unwrap_err().message.contains("by force"));
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
}

#[test]
fn a_target_that_stays_away_is_given_up_and_taken_up_again() {
    let mut host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let mut options = host.options(host.url("vault"));
    options.timeouts.give_up = Duration::from_secs(1);
    let device = RemoteDevice::attach(options).unwrap();
    device.format().unwrap();
    write_blocking(&device, Lba(1), block(5), false).unwrap();
    host.stop();
    let started = Instant::now();
    let error = write_blocking(&device, Lba(2), block(6), false).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Unreachable, "{error}");
    let waited = started.elapsed();
    assert!(waited > Duration::from_millis(700) && waited < PATIENCE, "{waited:?}");
    // On a busy machine somebody else may have the processor meanwhile, but not every time.
    let is_immediate = || {
        let started = Instant::now();
        assert!(read_blocking(&device, Lba(1), 1).is_err());
        started.elapsed() < Duration::from_millis(500)
    };
    assert!(std::iter::repeat_with(is_immediate).take(20).any(|is_so| is_so), "nobody waits any longer");
    host.start_again();
    let deadline = Instant::now() + PATIENCE;
    while !device.status().is_connected {
        assert!(Instant::now() < deadline, "{:?}", device.status());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(read_blocking(&device, Lba(1), 1).unwrap()[..] == [5; BLOCK]);
    // Detaching from a target that is gone ends, too.
    host.stop();
    std::thread::sleep(Duration::from_millis(200));
    assert!(device.detach().is_err());
}

#[test]
fn copies_between_a_file_and_volumes() {
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE), VolumeSpec::plain("disk", SIZE)]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut content = vec![0; SIZE as usize];
    for (at, byte) in content[2 << 20..5 << 20].iter_mut().enumerate() {
        *byte = (at / 777) as u8;
    }
    std::fs::write(&path, &content).unwrap();
    let sealed = Arc::new(host.attach("vault"));
    sealed.format().unwrap();
    let plain = Arc::new(host.attach("disk"));
    let options = CopyOptions { verify: true, overwrite: true, ..CopyOptions::default() };
    let mut quiet = |_: &_| ControlFlow::Continue(());
    let file = Endpoint::File(path.clone());
    let (vault, disk) = (Endpoint::Volume(sealed.clone()), Endpoint::Volume(plain));
    let report = copy(&file, &vault, options, &mut quiet).unwrap();
    assert_eq!(report.sums.crc64, strongroom_block::keyless_checksum(&content));
    assert!(report.hole_bytes >= 10 << 20, "{report:?}");
    assert_eq!(sealed.hole_at(Lba(0), 512).unwrap(), 512, "absent stays absent");
    let over = copy(&vault, &disk, options, &mut quiet).unwrap();
    assert_eq!(over.sums, report.sums);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(copy(&disk, &file, options, &mut quiet).unwrap().sums, report.sums);
    assert!(std::fs::read(&path).unwrap() == content);
}
