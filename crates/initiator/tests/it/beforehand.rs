//! Proves, with somebody in the middle who counts, that a load generator which seals beforehand, and opens nothing, has the target do what
//! it does for others: the same messages of the same lengths go both ways, the target counts the same commands, bytes and cryptography,
//! and what was written opens.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use strongroom_block::{BlockDevice, Buffer, BufferMut, CryptoBytes, CryptoCounters, Lba, Mode, Request, Token};
use strongroom_channel::Scheme;
use strongroom_initiator::{RemoteDevice, read_blocking};
use strongroom_target::VolumeSpec;

use crate::support::{Host, SIZE, Wire, trusted};

const BLOCK: usize = 4096;
const BLOCKS: u32 = 16;
/// Of 64 KiB, each at a place of its own and each place twice.
const WRITES: u64 = 8;

/// What the target was asked for and sent.
#[derive(Debug, Default, PartialEq, Eq)]
struct WorkSummary {
    /// To the target, then to the initiator: kind, bytes of the whole message.
    messages: [Vec<(u8, usize)>; 2],
    commands: u64,
    bytes: (u64, u64),
    crypto: [u64; 4],
}

fn place(write: u64) -> Lba {
    Lba(write % (WRITES / 2) * u64::from(BLOCKS))
}

fn data(write: u64) -> Buffer {
    Buffer::copy_from(&[write as u8 + 1; BLOCK * BLOCKS as usize])
}

fn done(device: &RemoteDevice) -> Option<BufferMut> {
    let mut completions = Vec::new();
    while device.poll_completions(&mut completions) == 0 {
        device.wait(Some(Duration::from_secs(60)));
    }
    completions.remove(0).result.unwrap()
}

/// One after the other, so that what is sent does not depend on the time.
fn measure(volume: &str, scheme: Scheme, is_beforehand: bool) -> (WorkSummary, CryptoBytes) {
    let mut open = VolumeSpec::sealed("open", SIZE);
    open.sealed.as_mut().expect("it is sealed").mode = Mode::AuthenticateOnly;
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE), trusted(), open, VolumeSpec::plain("disk", SIZE)]);
    let wire = Wire::before(&host);
    let mut options = host.options(wire.url(volume));
    options.channel.scheme = Some(scheme);
    options.sealing.mode = if volume == "open" { Mode::AuthenticateOnly } else { Mode::Encrypt };
    // Telling the target what opened takes commands of its own, at its own time.
    options.sealing.verified_feedback = false;
    let counters = Arc::new(CryptoCounters::new());
    options.counters = counters.clone();
    let device = RemoteDevice::attach(options).unwrap();
    if volume != "disk" {
        device.format().unwrap();
    }
    let sealed: Vec<_> = match is_beforehand {
        true => (0..WRITES).map(|write| device.seal(place(write), &data(write)).unwrap()).collect(),
        false => Vec::new(),
    };

    let [to_target, to_initiator] = [(); 2].map(|()| Arc::new(Mutex::new(Vec::new())));
    let (up, down) = (to_target.clone(), to_initiator.clone());
    wire.tamper_towards_target(move |message| up.lock().unwrap().push((message.kind, message.bytes.len())));
    wire.tamper_towards_initiator(move |message| down.lock().unwrap().push((message.kind, message.bytes.len())));
    let (before, ours_before) = (host.stats(), counters.snapshot());
    if is_beforehand {
        for write in sealed {
            device.submit_sealed(Token(0), write);
            assert!(done(&device).is_none());
        }
    } else {
        for write in 0..WRITES {
            device.submit(Token(0), Request::Write { lba: place(write), data: data(write), fua: false });
            assert!(done(&device).is_none());
        }
    }
    for write in 0..WRITES {
        if is_beforehand {
            device.submit_fetch(Token(0), place(write), BLOCKS);
            assert!(done(&device).is_none(), "nothing is shown of what is not opened");
        } else {
            let buffer = BufferMut::zeroed(BLOCK * BLOCKS as usize);
            device.submit(Token(0), Request::Read { lba: place(write), buffer });
            assert!(done(&device).is_some());
        }
    }
    let (stats, ours) = (host.stats(), counters.snapshot());
    wire.behave();

    for write in WRITES / 2..WRITES {
        let read = read_blocking(&device, place(write), u64::from(BLOCKS)).unwrap();
        assert!(read[..] == data(write)[..], "{volume} {scheme}: what was written last opens");
    }
    device.detach().unwrap();
    let crypto = |crypto: CryptoBytes| [crypto.encrypted, crypto.decrypted, crypto.mac_made, crypto.mac_checked];
    let between = |now: CryptoBytes, before: CryptoBytes| {
        let (now, before) = (crypto(now), crypto(before));
        std::array::from_fn(|at| now[at] - before[at])
    };
    let work = WorkSummary {
        messages: [to_target, to_initiator].map(|seen| std::mem::take(&mut *seen.lock().unwrap())),
        commands: stats.commands - before.commands,
        bytes: (stats.bytes_written - before.bytes_written, stats.bytes_read - before.bytes_read),
        crypto: between(stats.crypto, before.crypto),
    };
    let [encrypted, decrypted, mac_made, mac_checked] = between(ours, ours_before);
    (work, CryptoBytes { encrypted, decrypted, mac_made, mac_checked })
}

#[test]
fn what_was_sealed_for_one_attachment_is_refused_by_another() {
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE), VolumeSpec::plain("disk", SIZE)]);
    let (vault, disk) = (host.attach("vault"), host.attach("disk"));
    for (from, to) in [(&vault, &disk), (&disk, &vault)] {
        to.submit_sealed(Token(0), from.seal(Lba(0), &data(0)).unwrap());
        let mut completions = Vec::new();
        assert_eq!(to.poll_completions(&mut completions), 1);
        let error = completions.remove(0).result.unwrap_err();
        assert!(error.message.contains("another attachment"), "{error}");
    }
}

#[test]
fn the_target_does_the_same_for_what_was_sealed_beforehand() {
    for (volume, schemes) in [
        ("vault", &[Scheme::LazyDecrypt, Scheme::Lazy][..]),
        ("trusted", &[Scheme::Lazy]),
        ("open", &[Scheme::LazyAuth]),
        ("disk", &[Scheme::EncryptAll]),
    ] {
        for &scheme in schemes {
            let (usual, ours) = measure(volume, scheme, false);
            let (beforehand, ours_beforehand) = measure(volume, scheme, true);
            assert_eq!(beforehand, usual, "{volume} {scheme}");
            let data_bytes = WRITES * (BLOCK * BLOCKS as usize) as u64;
            assert_eq!(usual.bytes, (data_bytes, data_bytes), "{volume} {scheme}");
            // At the initiator just the blocks' own cryptography is left out, of each write and each read.
            let is_sealed = volume != "disk";
            let blocks = if is_sealed { data_bytes } else { 0 };
            let encrypted = if is_sealed && volume != "open" { data_bytes } else { 0 };
            let less = CryptoBytes {
                encrypted: ours.encrypted - encrypted,
                decrypted: ours.decrypted - encrypted,
                mac_made: ours.mac_made - blocks,
                mac_checked: ours.mac_checked - blocks,
            };
            assert_eq!(ours_beforehand, less, "{volume} {scheme}");
        }
    }
}
