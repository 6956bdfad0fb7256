//! Attacks on the ports of a running target, and on what comes from it. Each test's name is in the threat model.

use std::net::{SocketAddr, UdpSocket};

use strongroom_block::{Buffer, Lba};
use strongroom_initiator::{RemoteDevice, flush_blocking, read_blocking, write_blocking};

use super::path::Path;
use super::{BLOCK, attach, pattern, start};
use crate::support::eventually;

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
