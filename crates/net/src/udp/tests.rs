//! Proves, over loopback: what is sent arrives, in trains where the kernel has the offload; quanta land in memory of their own where packets
//! are as long as expected, and everything else arrives whole; and packets go to the worker that their connection id names.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use strongroom_block::Buffer;

use super::{PacketSplit, UdpPacket, UdpPath, UdpSent, UdpSocket, UdpTransmit};
use crate::{Event, FlavourChoice, NetError, Runtime, RuntimeOptions};

const PATIENCE: Duration = Duration::from_secs(30);

fn packet(connection_id: u32, number: u8, head_bytes: usize, payload: &[u8]) -> UdpTransmit {
    let mut head = vec![number; head_bytes];
    head[4..8].copy_from_slice(&connection_id.to_be_bytes());
    UdpTransmit { head, payload: Buffer::copy_from(payload) }
}

fn bound(address: &str) -> UdpSocket {
    UdpSocket::bind_group(address.parse().unwrap(), 1).unwrap().remove(0)
}

/// Waits until `count` packets have arrived.
fn receive(socket: &mut UdpSocket, count: usize) -> Vec<UdpPacket> {
    let (mut packets, until) = (Vec::new(), Instant::now() + PATIENCE);
    while packets.len() < count {
        if !socket.receive(&mut packets) {
            assert!(Instant::now() < until, "{} of {count} packets", packets.len());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    packets
}

fn send(socket: &mut UdpSocket, peer: SocketAddr, packets: impl IntoIterator<Item = UdpTransmit>) {
    let mut queue: VecDeque<UdpTransmit> = packets.into_iter().collect();
    let until = Instant::now() + PATIENCE;
    while socket.send(UdpPath { peer, local: None }, &mut queue) == UdpSent::Full {
        assert!(Instant::now() < until, "the kernel takes nothing");
    }
}

#[test]
fn trains_arrive_split_and_the_rest_whole() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let mut receiver = bound(address);
        let mut sender = UdpSocket::connect(receiver.local_address(), None).unwrap();
        for (head_bytes, quantum_bytes) in [(136, 4096), (144, 512), (200, 1024)] {
            receiver.expect(PacketSplit { head_bytes, quantum_bytes });
            let before = receiver.counters();
            let data = |number: u8| vec![number ^ 0x55; quantum_bytes];
            let mut packets: Vec<UdpTransmit> = (0..20).map(|at| packet(0, at, head_bytes, &data(at))).collect();
            // Of other lengths: messages, a segment, a head that is longer.
            packets.push(packet(0, 20, 101, &[]));
            packets.push(packet(0, 21, 64, &[]));
            packets.push(packet(0, 22, head_bytes, &[7; 500]));
            packets.push(packet(0, 23, head_bytes + 8, &data(23)));
            let expected: Vec<Vec<u8>> =
                packets.iter().map(|packet| [&packet.head[..], &packet.payload].concat()).collect();
            send(&mut sender, receiver.local_address(), packets);
            let arrived = receive(&mut receiver, expected.len());
            assert_eq!(arrived.len(), expected.len());
            for (at, (arrived, expected)) in arrived.iter().zip(&expected).enumerate() {
                assert_eq!(arrived.source, sender.local_address());
                assert!([&arrived.head[..], &arrived.rest].concat() == *expected, "packet {at}");
                let is_quantum = at < 20;
                assert_eq!(arrived.rest.len(), if is_quantum { quantum_bytes } else { 0 }, "packet {at}");
                assert!(arrived.rest.is_empty() || (arrived.rest.as_ptr() as usize).is_multiple_of(512), "in place");
            }
            let after = receiver.counters();
            assert_eq!(after.packets_received - before.packets_received, 24);
            assert_eq!(after.packets_placed - before.packets_placed, 20);
        }
        assert!(sender.counters().sends < sender.counters().packets_sent, "{:?}", sender.counters());
    }
}

#[test]
fn without_offload_packets_go_one_by_one() {
    let mut receiver = bound("127.0.0.1:0");
    let mut sender = UdpSocket::connect(receiver.local_address(), None).unwrap();
    sender.sender.train_packets_max = 1;
    send(&mut sender, receiver.local_address(), (0..10).map(|at| packet(0, at, 136, &[at; 4096])));
    assert_eq!(receive(&mut receiver, 10).len(), 10);
    assert_eq!((sender.counters().sends, sender.counters().packets_sent), (10, 10));
}

#[test]
fn what_is_too_long_is_refused_and_the_rest_goes_on() {
    let mut receiver = bound("127.0.0.1:0");
    let mut sender = UdpSocket::connect(receiver.local_address(), None).unwrap();
    let long = UdpTransmit { head: vec![1; 100], payload: Buffer::copy_from(&[2; 66_000]) };
    send(&mut sender, receiver.local_address(), [long, packet(0, 3, 100, &[])]);
    assert_eq!(receive(&mut receiver, 1)[0].head[0], 3);
    assert_eq!((sender.counters().packets_refused, sender.counters().packets_sent), (1, 1));
}

#[test]
fn packets_go_to_the_worker_that_their_connection_id_names() {
    let mut group = UdpSocket::bind_group("127.0.0.1:0".parse().unwrap(), 1).unwrap();
    let address = group.remove(0).local_address();
    let mut group = UdpSocket::bind_group(address, 3).unwrap();
    let mut sender = bound("127.0.0.1:0");
    // Several at once, as one train, would go by the first one's id: an association has a socket of its own.
    for connection_id in 0..9 {
        send(&mut sender, address, [packet(connection_id, 0, 100, &[])]);
    }
    for (worker, socket) in group.iter_mut().enumerate() {
        for packet in receive(socket, 3) {
            let id = u32::from_be_bytes(packet.head[4..8].try_into().unwrap());
            assert_eq!(id as usize % 3, worker);
        }
    }
    // Another program has the port.
    let taken = UdpSocket::bind_group(address, 1).unwrap_err();
    assert!(matches!(taken, NetError::UdpPortTaken { .. }) && taken.to_string().contains("ecl = false"), "{taken}");
}

#[test]
fn replies_come_from_the_address_that_was_called() {
    let mut receiver = bound("0.0.0.0:0");
    let port = receiver.local_address().port();
    let called: SocketAddr = ([127, 0, 0, 9], port).into();
    let mut sender = UdpSocket::connect(called, None).unwrap();
    send(&mut sender, called, [packet(0, 1, 100, &[])]);
    let source = receive(&mut receiver, 1)[0].source;
    let mut answer = VecDeque::from([packet(0, 2, 100, &[])]);
    let path = UdpPath { peer: source, local: Some(called.ip()) };
    assert_eq!(receiver.send(path, &mut answer), UdpSent::All);
    // From another of our addresses the kernel would not hand it over.
    assert_eq!(receive(&mut sender, 1)[0].source, called);
}

#[test]
fn a_runtime_tells_of_datagrams_until_they_are_taken() {
    for flavour in [FlavourChoice::Epoll, FlavourChoice::Auto] {
        let mut runtime = Runtime::new(RuntimeOptions { flavour, ..RuntimeOptions::default() }).unwrap();
        let mut receiver = bound("127.0.0.1:0");
        let mut sender = UdpSocket::connect(receiver.local_address(), None).unwrap();
        let id = runtime.watch_datagrams(&receiver).unwrap();
        let mut packets = Vec::new();
        for round in 1..=3 {
            // Two of different lengths, in two calls: one is left after the first.
            send(&mut sender, receiver.local_address(), [packet(0, 1, 100, &[]), packet(0, 2, 200, &[])]);
            let until = Instant::now() + PATIENCE;
            while packets.len() < 2 * round {
                assert!(Instant::now() < until, "{flavour:?}: {} packets in round {round}", packets.len());
                runtime.poll(Some(Duration::from_secs(1))).unwrap();
                while let Some(event) = runtime.next_event() {
                    assert!(matches!(event, Event::DatagramsReady { socket } if socket == id), "{event:?}");
                    receiver.receive(&mut packets);
                }
            }
        }
        runtime.ignore_datagrams(id);
        send(&mut sender, receiver.local_address(), [packet(0, 3, 100, &[])]);
        runtime.poll(Some(Duration::from_millis(50))).unwrap();
        runtime.poll(Some(Duration::from_millis(50))).unwrap();
        assert!(runtime.next_event().is_none(), "{flavour:?}");
    }
}
