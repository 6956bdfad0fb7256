//! Proves, over real sockets with a proxy in between that reads no key: under every scheme, what one initiator writes the
//! others open, under any scheme; each end does exactly the cryptography that the lazy-crypto paper's Table 1 says; and
//! the wire shows exactly what the scheme says that it shows.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use strongroom_block::{Buffer, CryptoBytes, CryptoCounters, Lba, Mode};
use strongroom_channel::Scheme;
use strongroom_initiator::{
    AttachError, AttachOptions, RemoteDevice, discard_blocking, flush_blocking, read_blocking, write_blocking,
};
use strongroom_target::{Access, Protection, Service, VolumeSpec};

use crate::axes::{pairs, schemes};
use crate::support::{Host, SIZE, trusted};

const BLOCK: usize = 4096;
const BLOCKS: usize = 16;
const PREFIX: usize = 8;
const TAG: usize = 16;
const BHS: usize = 48;
/// What is written, over and over.
const CANARY: &[u8] = b"a canary that sings on the wire!";

fn volumes() -> [VolumeSpec; 4] {
    let mut open = VolumeSpec::sealed("open", SIZE);
    open.sealed.as_mut().expect("it is sealed").mode = Mode::AuthenticateOnly;
    [VolumeSpec::sealed("vault", SIZE), trusted(), open, VolumeSpec::plain("disk", SIZE)]
}

fn may_use(volume: &str, scheme: Scheme) -> bool {
    volume != "open" || !scheme.is_confidential() || scheme == Scheme::EncryptAll
}

fn options(host: &Host, volume: &str, address: SocketAddr, scheme: Scheme) -> AttachOptions {
    let mut options = host.options(format!("strongroom://{address}/{volume}").parse().unwrap());
    options.channel.scheme = Some(scheme);
    if volume == "open" {
        options.sealing.mode = Mode::AuthenticateOnly;
    }
    options
}

fn data(round: u8) -> Vec<u8> {
    let mut data: Vec<u8> = CANARY.iter().copied().cycle().take(BLOCKS * BLOCK).collect();
    data[0] = round;
    data
}

/// What a wire showed: what each end must have done to the frames, by the paper's table and the clear prefixes alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    encrypted_to_target: u64,
    authenticated_to_target: u64,
    encrypted_to_initiator: u64,
    authenticated_to_initiator: u64,
    canaries: u64,
    /// Readable data that is not sealed block data, towards the target.
    readable_parameters: u64,
}

/// Passes connections on and reads what is in the clear.
struct Tap {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

impl Tap {
    fn before(target: SocketAddr) -> Tap {
        Tap::with(target, pass_on)
    }

    /// Each connection's two ways are for `pass_on`.
    fn with(target: SocketAddr, pass_on: fn(TcpStream, TcpStream, bool, &Mutex<Seen>)) -> Tap {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tap = Tap { address: listener.local_addr().unwrap(), seen: Arc::default() };
        let seen = tap.seen.clone();
        std::thread::spawn(move || {
            for initiator in listener.incoming() {
                let (initiator, target) = (initiator.unwrap(), TcpStream::connect(target).unwrap());
                for (from, to, to_target) in [
                    (initiator.try_clone().unwrap(), target.try_clone().unwrap(), true),
                    (target.try_clone().unwrap(), initiator.try_clone().unwrap(), false),
                ] {
                    let seen = seen.clone();
                    std::thread::spawn(move || pass_on(from, to, to_target, &seen));
                }
            }
        });
        tap
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, to_target: bool, seen: &Mutex<Seen>) {
    let (mut waiting, mut input) = (Vec::new(), vec![0; 64 << 10]);
    while let Ok(count @ 1..) = from.read(&mut input) {
        waiting.extend_from_slice(&input[..count]);
        // Read before it is passed on: when an answer arrives, everything before it has been counted.
        while let Some(message_bytes) = message(&waiting, to_target, seen) {
            waiting.drain(..message_bytes);
        }
        if to.write_all(&input[..count]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

/// The same where there is no channel: all of it is in the clear.
fn pass_on_plain(mut from: TcpStream, mut to: TcpStream, to_target: bool, seen: &Mutex<Seen>) {
    let (mut waiting, mut input) = (Vec::new(), vec![0; 64 << 10]);
    while let Ok(count @ 1..) = from.read(&mut input) {
        waiting.extend_from_slice(&input[..count]);
        {
            let mut seen = seen.lock().unwrap();
            while let Some(at) = waiting.windows(CANARY.len()).position(|window| window == CANARY) {
                waiting.drain(..at + CANARY.len());
                (seen.canaries, seen.readable_parameters) =
                    (seen.canaries + 1, seen.readable_parameters + u64::from(to_target));
            }
        }
        if to.write_all(&input[..count]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

/// Reads the message at the beginning of `bytes`, if all of it is there; its length.
fn message(bytes: &[u8], to_target: bool, seen: &Mutex<Seen>) -> Option<usize> {
    let prefix = bytes.first_chunk::<PREFIX>()?;
    if prefix[0] < 0x40 {
        let record = 5 + usize::from(u16::from_be_bytes([prefix[3], prefix[4]]));
        return (bytes.len() >= record).then_some(record);
    }
    let header = usize::from(u16::from_be_bytes([prefix[2], prefix[3]]));
    let data = u32::from_be_bytes([prefix[4], prefix[5], prefix[6], prefix[7]]) as usize;
    // By docs/protocol.md: what is encrypted, what has a tag, and how long the frame is.
    let clear = header.min(BHS);
    let (encrypted, authenticated, tags) = match prefix[0] {
        0x51 | 0x53 | 0x54 | 0x55 | 0x56 => (header + data, header + data, 1),
        0x52 => (header, header, 1),
        0x57 => (header, header + data, 2),
        0x58 | 0x59 => (header - clear, header + data, 1 + usize::from(data > 0)),
        0x5a => (header - clear, header, 1),
        other => panic!("no frame has type {other:#x}"),
    };
    let message = bytes.get(..PREFIX + header + data + tags * TAG)?;
    let mut seen = seen.lock().unwrap();
    let (encrypted, authenticated) = (encrypted as u64, authenticated as u64);
    if to_target {
        seen.readable_parameters += if prefix[0] == 0x58 { data as u64 } else { 0 };
        seen.encrypted_to_target += encrypted;
        seen.authenticated_to_target += authenticated;
    } else {
        seen.encrypted_to_initiator += encrypted;
        seen.authenticated_to_initiator += authenticated;
    }
    seen.canaries += message.windows(CANARY.len()).filter(|window| *window == CANARY).count() as u64;
    Some(message.len())
}

#[test]
fn what_is_written_under_one_scheme_is_read_under_every_other() {
    let host = Host::start(&volumes());
    for (at, volume) in ["vault", "trusted", "open", "disk"].into_iter().enumerate() {
        let schemes: Vec<Scheme> = schemes().into_iter().filter(|scheme| may_use(volume, *scheme)).collect();
        for (round, (writer, reader)) in (10 * at as u8..).zip(pairs(&schemes, &schemes)) {
            let device = RemoteDevice::attach(options(&host, volume, host.address, writer)).unwrap();
            if volume != "disk" {
                device.format().unwrap();
            }
            write_blocking(&device, Lba(3), Buffer::copy_from(&data(round)), false).unwrap();
            flush_blocking(&device).unwrap();
            let other = RemoteDevice::attach(options(&host, volume, host.address, reader)).unwrap();
            let read = read_blocking(&other, Lba(3), BLOCKS as u64).unwrap();
            assert!(read[..] == data(round), "{volume} {writer} {reader}");
            other.detach().unwrap();
            device.detach().unwrap();
        }
    }
}

/// One write and one read of 64 KiB under `scheme`, through a tap.
fn assert_table_1(volume: &str, scheme: Scheme) {
    let host = Host::start(&volumes());
    let tap = Tap::before(host.address);
    let mut options = options(&host, volume, tap.address, scheme);
    // Telling the target what opened takes commands of its own, at its own time.
    options.sealing.verified_feedback = false;
    let counters = Arc::new(CryptoCounters::new());
    options.counters = counters.clone();
    let device = RemoteDevice::attach(options).unwrap();
    if volume != "disk" {
        device.format().unwrap();
    }
    let before = counters.snapshot();
    let (seen_before, target_before) = (*tap.seen.lock().unwrap(), host.stats().crypto);
    assert_eq!(seen_before.canaries, 0);
    write_blocking(&device, Lba(0), Buffer::copy_from(&data(1)), false).unwrap();
    assert!(read_blocking(&device, Lba(0), BLOCKS as u64).unwrap()[..] == data(1));
    let (seen, target) = (*tap.seen.lock().unwrap(), host.stats().crypto);

    let between = |now: CryptoBytes, before: CryptoBytes| CryptoBytes {
        encrypted: now.encrypted - before.encrypted,
        decrypted: now.decrypted - before.decrypted,
        mac_made: now.mac_made - before.mac_made,
        mac_checked: now.mac_checked - before.mac_checked,
    };
    let to_target = |seen: Seen| (seen.encrypted_to_target, seen.authenticated_to_target);
    let to_initiator = |seen: Seen| (seen.encrypted_to_initiator, seen.authenticated_to_initiator);
    let sent = (to_target(seen).0 - to_target(seen_before).0, to_target(seen).1 - to_target(seen_before).1);
    let answered =
        (to_initiator(seen).0 - to_initiator(seen_before).0, to_initiator(seen).1 - to_initiator(seen_before).1);

    // The server's columns: what the wire showed, and nothing else.
    let server = CryptoBytes { decrypted: sent.0, mac_checked: sent.1, encrypted: answered.0, mac_made: answered.1 };
    assert_eq!(between(target, target_before), server, "{volume} {scheme}: the target");
    // The client's columns: the same from its side, and each block sealed and opened once.
    let blocks = (BLOCKS * BLOCK) as u64;
    let (sealed, encrypted) = match volume {
        "vault" | "trusted" => (blocks, blocks),
        "open" => (blocks, 0),
        _ => (0, 0),
    };
    let client = CryptoBytes {
        encrypted: sent.0 + encrypted,
        mac_made: sent.1 + sealed,
        decrypted: answered.0 + encrypted,
        mac_checked: answered.1 + sealed,
    };
    assert_eq!(between(counters.snapshot(), before), client, "{volume} {scheme}: the initiator");

    // What the rows say of bodies: one went each way.
    let lazy = matches!(scheme, Scheme::LazyAuth | Scheme::Lazy);
    let body_has_tag = volume == "disk" || !lazy;
    let body_is_encrypted = if volume == "disk" { scheme.is_confidential() } else { scheme == Scheme::EncryptAll };
    for (encrypted, authenticated) in [sent, answered] {
        assert_eq!(authenticated >= blocks, body_has_tag, "{volume} {scheme}: {authenticated}");
        assert_eq!(encrypted >= blocks, body_is_encrypted, "{volume} {scheme}: {encrypted}");
        assert!(authenticated - if body_has_tag { blocks } else { 0 } < 4000, "headers: {authenticated}");
    }
    // What parameters hold (a hole's block key, in custody `target`) is never readable on the way to a sealed unit.
    discard_blocking(&device, Lba(0), 2).unwrap();
    let readable = tap.seen.lock().unwrap().readable_parameters;
    assert_eq!(readable > 0, volume == "disk" && !scheme.is_confidential(), "{volume} {scheme}: {readable}");
    // And what the wire shows.
    let is_readable = !["vault", "trusted"].contains(&volume) && !body_is_encrypted;
    assert_eq!(seen.canaries > 0, is_readable, "{volume} {scheme}: {} canaries", seen.canaries);
    device.detach().unwrap();
}

/// Plain iSCSI: `M = H + B`, and no cryptography anywhere, from the login on.
#[test]
fn table_1_plain_iscsi() {
    let host = Host::start(&volumes());
    let tap = Tap::with(host.address, pass_on_plain);
    let url = host.plain_url("disk").to_string().replace(&host.address.to_string(), &tap.address.to_string());
    let options = host.options(url.parse().unwrap());
    let counters = options.counters.clone();
    let device = RemoteDevice::attach(options).unwrap();
    let sectors = (BLOCKS * BLOCK / device.unit().geometry.block_size.len()) as u64;
    write_blocking(&device, Lba(0), Buffer::copy_from(&data(1)), false).unwrap();
    assert!(read_blocking(&device, Lba(0), sectors).unwrap()[..] == data(1));
    assert_eq!(counters.snapshot(), CryptoBytes::default(), "the initiator");
    assert_eq!(host.stats().crypto, CryptoBytes::default(), "the target");
    // The wire shows every byte, each way once.
    let seen = *tap.seen.lock().unwrap();
    let canaries = (BLOCKS * BLOCK / CANARY.len()) as u64 - 1;
    assert_eq!((seen.canaries, seen.readable_parameters), (2 * canaries, canaries));
    device.detach().unwrap();
}

/// IPsec AH: `HMAC_Ck(H + B)` at both ends.
#[test]
fn table_1_ipsec_ah() {
    for volume in ["disk", "open", "vault", "trusted"] {
        assert_table_1(volume, Scheme::MacAll);
    }
}

/// IPsec ESP: `E_Ck(H + B), HMAC_Ck(H + B)` at both ends.
#[test]
fn table_1_ipsec_esp() {
    for volume in ["disk", "open", "vault", "trusted"] {
        assert_table_1(volume, Scheme::EncryptAll);
    }
}

/// Lazy Auth.: `HMAC_Ck(H)` at both ends, `HMAC_Bk(B)` at clients alone.
#[test]
fn table_1_lazy_auth() {
    for volume in ["disk", "open", "vault", "trusted"] {
        assert_table_1(volume, Scheme::LazyAuth);
    }
}

/// IPsec AH + Lazy Dec.: `HMAC_Ck(H + B)` and `E_Ck(H)` at both ends, `E_Bk(B)` at clients alone.
#[test]
fn table_1_lazy_decryption_with_ipsec_ah() {
    for volume in ["disk", "vault", "trusted"] {
        assert_table_1(volume, Scheme::LazyDecrypt);
    }
}

/// Lazy Auth + Lazy Dec.: `HMAC_Ck(eH)` and `E_Ck(H)` at both ends, `HMAC_Bk(eB)` and `E_Bk(B)` at clients alone.
#[test]
fn table_1_lazy_both() {
    for volume in ["disk", "vault", "trusted"] {
        assert_table_1(volume, Scheme::Lazy);
    }
}

#[test]
fn a_volume_gets_no_less_protection_than_it_asks_for() {
    let asking = |name: &str, services: &[Service], schemes: &[&str]| {
        let protection = Protection {
            services: services.to_vec(),
            schemes: schemes.iter().map(|&scheme| scheme.to_owned()).collect(),
        };
        VolumeSpec { access: Access { protection, ..Access::default() }, ..VolumeSpec::sealed(name, SIZE) }
    };
    let host = Host::start(&[
        asking("secret", &[Service::Confidentiality], &[]),
        asking("checked", &[Service::CheckedOnArrival], &[]),
        asking("exact", &[], &["S2-3", "lazy"]),
    ]);
    for (volume, fitting) in [
        ("secret", &[Scheme::EncryptAll, Scheme::LazyDecrypt, Scheme::Lazy][..]),
        ("checked", &[Scheme::MacAll, Scheme::EncryptAll, Scheme::LazyDecrypt]),
        ("exact", &[Scheme::LazyDecrypt, Scheme::Lazy]),
    ] {
        for scheme in Scheme::ALL {
            let attached = RemoteDevice::attach(options(&host, volume, host.address, *scheme));
            assert_eq!(attached.is_ok(), fitting.contains(scheme), "{volume} {scheme}: {:?}", attached.err());
        }
    }
}

/// Blocks that anyone can read do not go under a scheme that promises that nobody does: both ends see to it.
#[test]
fn an_authenticate_only_volume_is_refused_under_the_lazy_schemes() {
    let host = Host::start(&volumes());
    for scheme in [Scheme::LazyDecrypt, Scheme::Lazy] {
        let error = RemoteDevice::attach(options(&host, "open", host.address, scheme)).unwrap_err();
        assert!(matches!(error, AttachError::LoginRefused(_) | AttachError::Unsupported(_)), "{error:?}");
    }
    // Without a choice the scheme is one that fits.
    let mut chosen = options(&host, "open", host.address, Scheme::Lazy);
    chosen.channel.scheme = None;
    RemoteDevice::attach(chosen).unwrap();
}
