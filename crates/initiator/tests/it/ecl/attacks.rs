//! Attacks on the ports of a running target, and on what comes from it. Each test's name is in the threat model.

use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc;

use strongroom_block::{Buffer, Lba, Suite};
use strongroom_channel::Scheme;
use strongroom_handshake::{alpn, ecl_alpn};
use strongroom_initiator::{AttachError, RemoteDevice, flush_blocking, read_blocking, write_blocking};

use super::path::Path;
use super::{BLOCK, attach, pattern, start};
use crate::support::{Message, Wire, eventually, mark};

/// A socket of somebody who has no keys, and did not wait for answers.
fn attacker(ip: [u8; 4]) -> UdpSocket {
    let socket = UdpSocket::bind(SocketAddr::from((ip, 0))).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn has_heard_nothing(socket: &UdpSocket) -> bool {
    socket.recv_from(&mut [0; 65536]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// What is no packet, or of no association, costs a look-up: nobody is answered, nothing is kept, and associations go on.
#[test]
fn attack_ecl_flood_at_the_udp_port() {
    let host = start(|config| config.workers = Some(2));
    let device = attach(&host, "vault");
    device.format().unwrap();
    let attacker = attacker([127, 0, 0, 1]);
    let mut sent = 0;
    for round in 0..40_u32 {
        for at in 0..50_u32 {
            let mut packet = vec![at as u8; [0, 1, 15, 16, 80, 101, 600, 1200, 4232][(at % 9) as usize]];
            if packet.len() >= 16 && at % 2 == 0 {
                // The header of a packet, for an association that there is not.
                packet[..4].copy_from_slice(&[0x11, 0, 0, 120]);
                packet[4..8].copy_from_slice(&(round * 50 + at).wrapping_mul(0x9e37_79b9).to_be_bytes());
            }
            sent += u64::from(attacker.send_to(&packet, host.address).is_ok());
        }
        let data = pattern(round as u8, 20 * BLOCK);
        write_blocking(&device, Lba(40), Buffer::copy_from(&data), false).unwrap();
        assert!(read_blocking(&device, Lba(40), 20).unwrap()[..] == data);
    }
    assert!(sent >= 2000, "{sent}");
    // What the kernel had no room for was not even looked at.
    eventually("the flood", || host.stats().datagrams_dropped > 0);
    assert!(has_heard_nothing(&attacker));
    assert_eq!((host.stats().sessions, host.stats().misbehaved), (1, 0));
    assert_eq!(device.status().connections, 1);
    device.detach().unwrap();
}

/// Packets that were recorded on the way come again from elsewhere: another port of the same host, and another host. They change nothing, and
/// nothing is sent there.
#[test]
fn attack_ecl_recorded_packets_from_elsewhere() {
    let host = start(|_| {});
    let path = Path::before(&host);
    let device = RemoteDevice::attach(host.options(path.url("vault"))).unwrap();
    device.format().unwrap();
    write_blocking(&device, Lba(200), Buffer::copy_from(&pattern(5, 100 * BLOCK)), false).unwrap();
    write_blocking(&device, Lba(7), Buffer::copy_from(&[1; BLOCK]), false).unwrap();
    let recorded = path.recorded();
    assert!(recorded.len() > 20);
    write_blocking(&device, Lba(7), Buffer::copy_from(&[2; BLOCK]), false).unwrap();
    let attackers = [attacker([127, 0, 0, 1]), attacker([127, 0, 0, 66])];
    for attacker in &attackers {
        for packet in &recorded {
            attacker.send_to(packet, host.address).unwrap();
            // The same, changed in what is protected.
            let mut changed = packet.clone();
            changed[40] ^= 1;
            attacker.send_to(&changed, host.address).unwrap();
        }
        let data = pattern(3, 100 * BLOCK);
        write_blocking(&device, Lba(100), Buffer::copy_from(&data), true).unwrap();
        assert!(read_blocking(&device, Lba(100), 100).unwrap()[..] == data);
        assert_eq!(read_blocking(&device, Lba(7), 1).unwrap()[0], 2);
    }
    assert!(attackers.iter().all(has_heard_nothing));
    assert_eq!((device.status().connections, host.stats().misbehaved), (1, 0));
    device.detach().unwrap();
}

/// One byte of the connection that carries packets is changed, in lengths, headers, records and quanta, in either direction. Nothing wrong is
/// read or written, and the initiator connects again at once.
#[test]
fn attack_ecl_stream_changed_on_the_way() {
    let host = start(|_| {});
    let path = Path::before(&host);
    path.set_udp(|_, _| false);
    let device = RemoteDevice::attach(host.options(path.tcp_url("vault"))).unwrap();
    device.format().unwrap();
    let mut data = Vec::new();
    for round in 0..1000_u64 {
        // Packets of 4 KiB blocks follow one another in 4,300 bytes or so: each round meets another part of one. A change outside a quantum, which
        // one in twenty is, ends the association.
        if round >= 40 && device.status().connections > 1 {
            break;
        }
        path.damage_after(20_000 + round * 111);
        data = pattern(round as u8, 20 * BLOCK);
        while !path.has_damaged() {
            write_blocking(&device, Lba(40), Buffer::copy_from(&data), false).unwrap();
            assert!(read_blocking(&device, Lba(40), 20).unwrap()[..] == data, "round {round}");
        }
    }
    flush_blocking(&device).unwrap();
    assert!(read_blocking(&device, Lba(40), 20).unwrap()[..] == data);
    assert!(device.status().connections > 1, "{:?}", device.status());
    assert_eq!(host.stats().misbehaved, 0);
    device.detach().unwrap();
}

/// The messages of TLS that begin a handshake (RFC 8446 §4).
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;

/// Which of them a record consists of.
fn hello(message: &Message<'_>) -> Option<u8> {
    let is_handshake = message.kind == 0x16;
    message.bytes.get(5).copied().filter(|kind| is_handshake && [CLIENT_HELLO, SERVER_HELLO].contains(kind))
}

/// The record of a hello with `name` as its only application protocol (RFC 7301), and all lengths as they have to be.
fn with_protocol(record: &[u8], name: &[u8]) -> Vec<u8> {
    let length = |at: usize| usize::from(u16::from_be_bytes([record[at], record[at + 1]]));
    // Behind the headers of record and message: version, random and session id.
    let mut at = 44 + usize::from(record[43]);
    if record[5] == CLIENT_HELLO {
        at += 2 + length(at);
        at += 1 + usize::from(record[at]);
    } else {
        at += 3;
    }
    let mut protocols = vec![0, 16];
    for len in [name.len() + 3, name.len() + 1] {
        protocols.extend_from_slice(&(len as u16).to_be_bytes());
    }
    protocols.push(name.len() as u8);
    protocols.extend_from_slice(name);
    let (mut next, end) = (at + 2, at + 2 + length(at));
    let (mut extensions, mut is_there) = (Vec::new(), false);
    while next < end {
        let behind = next + 4 + length(next + 2);
        let is_protocols = record[next..next + 2] == [0, 16];
        extensions.extend_from_slice(if is_protocols { &protocols } else { &record[next..behind] });
        is_there |= is_protocols;
        next = behind;
    }
    if !is_there {
        extensions.extend_from_slice(&protocols);
    }
    let mut changed = record[..at].to_vec();
    changed.extend_from_slice(&(extensions.len() as u16).to_be_bytes());
    changed.extend(extensions);
    let (record_bytes, message_bytes) = (changed.len() - 5, changed.len() - 9);
    changed[3..5].copy_from_slice(&(record_bytes as u16).to_be_bytes());
    changed[6..9].copy_from_slice(&(message_bytes as u32).to_be_bytes()[1..]);
    changed
}

/// Somebody in the middle makes iSCSI of an offer of ECL, or ECL of one of iSCSI, or says in the target's name that it was agreed on: the
/// handshake ends, nobody is logged in, and nothing is read or written.
#[test]
fn attack_ecl_downgrade_between_transports() {
    let host = start(|_| {});
    let device = attach(&host, "vault");
    device.format().unwrap();
    write_blocking(&device, Lba(7), Buffer::copy_from(&[7; BLOCK]), true).unwrap();
    device.detach().unwrap();
    let (ecl, iscsi) = (ecl_alpn(Scheme::Lazy, Suite::default()), alpn(Scheme::Lazy, Suite::default()));
    for (transport, offered, other) in [("ecl", &ecl, &iscsi), ("ecl+tcp", &ecl, &iscsi), ("strongroom", &iscsi, &ecl)]
    {
        // With its own name in place of itself the offer is what it was: what is on the path does not end the handshake by itself.
        for (attacked, name) in [(CLIENT_HELLO, offered), (CLIENT_HELLO, other), (SERVER_HELLO, other)] {
            // What follows the handshake there are no TLS records, and does not pass this wire.
            if transport == "ecl+tcp" && name == offered {
                continue;
            }
            let wire = Wire::before(&host);
            let (answered, seen) = mpsc::channel();
            let rewritten = name.clone();
            wire.tamper_towards_target(move |message| {
                if attacked == CLIENT_HELLO && hello(message) == Some(CLIENT_HELLO) {
                    *message.bytes = with_protocol(message.bytes, &rewritten);
                }
            });
            let rewritten = name.clone();
            wire.tamper_towards_initiator(move |message| {
                if hello(message) == Some(SERVER_HELLO) {
                    let _ = answered.send(());
                    if attacked == SERVER_HELLO {
                        *message.bytes = with_protocol(message.bytes, &rewritten);
                    }
                }
            });
            let logins = host.stats().logins;
            let url = format!("{transport}://{}/vault", wire.address).parse().unwrap();
            let mut options = host.options(url);
            options.channel.scheme = Some(Scheme::Lazy);
            match RemoteDevice::attach(options) {
                Ok(device) => {
                    assert_eq!(name, offered, "{transport}: another transport was agreed on");
                    assert_eq!(mark(&device, 7), 7);
                    device.detach().unwrap();
                }
                Err(error) => {
                    assert_ne!(name, offered, "{transport}: {error}");
                    assert!(matches!(error, AttachError::Handshake(_) | AttachError::Unreachable(_)), "{error:?}");
                    assert_eq!(host.stats().logins, logins, "nobody was logged in");
                }
            }
            assert!(seen.try_recv().is_ok(), "{transport}: the target has taken the offer as it came");
        }
    }
}
