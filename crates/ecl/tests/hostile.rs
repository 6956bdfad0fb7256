//! Proves what an attacker achieves who can read, change, keep, repeat, invent and misdirect packets, or who is an authentic peer that breaks
//! the rules.

#[path = "hostile/pair.rs"]
mod pair;

use std::net::SocketAddr;

use pair::{Pair, address, datagram};
use strongroom_block::{AttachId, Buffer, Mode, RecordFlags, SealRecord, Stamp, Suite, keyless_checksum};
use strongroom_ecl::{Config, Datagram, EclKeys, Scheme, Transmit, initiator, target};
use strongroom_scsi::transport::Lun;
use strongroom_scsi::transport::initiator::{Command, Event, WriteRecords, WriteSource};
use strongroom_scsi::transport::target::{self as unit, Response};

const BLOCK: usize = 512;
const WRITE: [u8; 16] = [0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];

fn config(secret: u8, id: u32, peer: SocketAddr, scheme: Scheme) -> Config {
    Config::new(EclKeys::new([secret; 32], scheme, Suite::Aes256Gcm), id, peer, BLOCK as u32)
}

impl Pair {
    fn new() -> Pair {
        Pair::with(7, 1, Scheme::Lazy)
    }

    fn with(secret: u8, id: u32, scheme: Scheme) -> Pair {
        Pair::established(|peer| config(secret, id, peer, scheme))
    }

    /// Submits a write of one block and returns its packet, which the network has not delivered.
    fn write(&mut self, fill: u8) -> Transmit {
        self.initiator.submit(write(fill)).expect("taken");
        self.initiator.poll_transmit(self.now).expect("sent at once")
    }

    /// The data of the command that the unit has got; `None`: it has got none.
    fn executed(&mut self) -> Option<u8> {
        match self.target.poll_event() {
            Some(unit::Event::Command(command)) => {
                self.target.complete(command.task, Response::good());
                Some(command.gather()[0])
            }
            None => None,
            other => panic!("expected a command, got {other:?}"),
        }
    }

    fn is_completed(&mut self) -> bool {
        matches!(self.initiator.poll_event(), Some(Event::Completed(completed)) if completed.status == 0)
    }
}

fn write(fill: u8) -> Command {
    let data = [fill; BLOCK];
    let stamp = Stamp { attach_id: AttachId([7; 16]), counter: 1 };
    let checksum = keyless_checksum(&data);
    let record = SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags::default(), 3, stamp, checksum, [5; 16]);
    let bytes = record.as_bytes().to_vec().into();
    let records = WriteRecords { block_bytes: BLOCK as u32, record_bytes: SealRecord::BASE_BYTES as u32, bytes };
    Command::write(Lun(0), WRITE, WriteSource { data: Buffer::copy_from(&data), records: Some(records) })
}

fn changed(transmit: &Transmit, at: usize) -> Transmit {
    let mut all = [&transmit.head[..], &transmit.payload[..]].concat();
    all[at] ^= 1;
    let payload = Buffer::copy_from(&all[transmit.head.len()..]);
    all.truncate(transmit.head.len());
    Transmit { head: all, payload }
}

/// Each bit position of header, record, tag and quantum: the packet counts as lost, and the write arrives all the same.
#[test]
fn attack_ecl_flip() {
    for scheme in [Scheme::Lazy, Scheme::LazyAuth] {
        let mut pair = Pair::with(7, 1, scheme);
        let packet = pair.write(0xa5);
        for at in 0..packet.len_bytes() {
            pair.give_to_target(&changed(&packet, at));
            assert_eq!(pair.executed(), None, "byte {at}");
        }
        let dropped = pair.target.statistics().dropped;
        assert_eq!(dropped.checksum, BLOCK as u64, "the quantum's checksum tells: {dropped:?}");
        assert!(dropped.not_authentic > 100 && !pair.target.is_closed(), "{dropped:?}");
        pair.give_to_target(&packet);
        assert_eq!(pair.executed(), Some(0xa5));
        pair.settle();
        assert!(pair.is_completed());
    }
}

/// The credits of a response, and everything else in it.
#[test]
fn attack_ecl_forged_credits() {
    let mut pair = Pair::new();
    let packet = pair.write(1);
    pair.give_to_target(&packet);
    pair.executed();
    let response = pair.target.poll_transmit(pair.now).expect("the response");
    for at in 32..36 {
        pair.give_to_initiator(&changed(&response, at));
    }
    assert_eq!(pair.initiator.statistics().dropped.not_authentic, 4);
    pair.give_to_initiator(&response);
    assert!(pair.is_completed());
}

/// An acknowledgement that somebody changed, so that it might cover a packet which did not arrive, or that comes again: nothing counts as
/// arrived or as lost by it.
#[test]
fn attack_ecl_forged_acknowledgement() {
    let mut pair = Pair::new();
    let held_back = pair.write(1);
    let packet = pair.write(2);
    pair.give_to_target(&packet);
    let acknowledgement = pair.target.poll_transmit(pair.now).expect("at once, because one is missing");
    let before = pair.initiator.statistics();
    assert_eq!(before.in_flight_bytes as usize, held_back.len_bytes() + packet.len_bytes());
    for at in 0..acknowledgement.len_bytes() {
        pair.give_to_initiator(&changed(&acknowledgement, at));
        let now = pair.initiator.statistics();
        assert_eq!((now.in_flight_bytes, now.packets_lost), (before.in_flight_bytes, 0), "byte {at}");
    }
    let dropped = pair.initiator.statistics().dropped;
    assert!(dropped.not_authentic > 60 && !pair.initiator.is_closed());
    for _ in 0..3 {
        pair.give_to_initiator(&acknowledgement);
        assert_eq!(pair.initiator.statistics().in_flight_bytes as usize, held_back.len_bytes(), "what has arrived");
    }
    assert_eq!(pair.initiator.statistics().dropped.replayed - dropped.replayed, 2);
    pair.give_to_target(&held_back);
    assert_eq!((pair.executed(), pair.executed()), (Some(2), Some(1)));
}

/// An authentic initiator that sends more than its credits allow: it is ended before memory is given.
#[test]
fn attack_ecl_more_data_than_credits() {
    let now = Pair::new().now;
    let generous = config(7, 1, address(2, 3260), Scheme::Lazy);
    let mut strict = config(7, 1, address(1, 0), Scheme::Lazy);
    strict.window_bytes = 2 * BLOCK as u64;
    let (initiator, target) = (initiator::Session::new(now, &generous), target::Session::new(now, &strict));
    let mut pair = Pair { now, initiator, target };
    pair.settle();
    pair.initiator.poll_event();
    for fill in 0..3 {
        let packet = pair.write(fill);
        pair.give_to_target(&packet);
    }
    assert_eq!((pair.target.memory_bytes(), pair.target.is_closed()), (0, true));
    let Some(unit::Event::Closed { misbehaved: true, reason }) = pair.target.poll_event() else {
        panic!("it is ended")
    };
    assert!(reason.contains("credits"), "{reason}");
}

/// Data without commands: no more is kept than credits allow, and what is dropped is not acknowledged.
#[test]
fn attack_ecl_data_without_commands_is_bounded() {
    let now = Pair::new().now;
    let generous = config(7, 1, address(2, 3260), Scheme::Lazy);
    let mut strict = config(7, 1, address(1, 0), Scheme::Lazy);
    strict.window_bytes = 4 * BLOCK as u64;
    let (initiator, target) = (initiator::Session::new(now, &generous), target::Session::new(now, &strict));
    let mut pair = Pair { now, initiator, target };
    pair.settle();
    pair.initiator.poll_event();
    let data = vec![9; 16 * BLOCK];
    let plain = Command::write(Lun(0), [0x5f; 16], WriteSource::plain(Buffer::copy_from(&data)));
    pair.initiator.submit(plain).expect("taken");
    let command = pair.initiator.poll_transmit(pair.now).expect("the command");
    assert!(command.len_bytes() < 200, "it carries no data");
    while let Some(transmit) = pair.initiator.poll_transmit(pair.now) {
        pair.give_to_target(&transmit);
    }
    assert!(pair.target.memory_bytes() <= 4 * BLOCK as u64, "{}", pair.target.memory_bytes());
    assert!(pair.target.statistics().dropped.no_room > 0 && pair.executed().is_none());
}

#[test]
fn attack_ecl_replay() {
    let mut pair = Pair::new();
    let packet = pair.write(3);
    pair.give_to_target(&packet);
    assert_eq!(pair.executed(), Some(3));
    for _ in 0..5 {
        pair.give_to_target(&packet);
        assert_eq!(pair.executed(), None, "once");
    }
    assert_eq!(pair.target.statistics().dropped.replayed, 5);
    let response = pair.target.poll_transmit(pair.now).expect("the response");
    pair.give_to_initiator(&response);
    assert!(pair.is_completed());
    pair.give_to_initiator(&response);
    assert!(pair.initiator.poll_event().is_none(), "completed once");
}

#[test]
fn attack_ecl_reorder() {
    let mut pair = Pair::new();
    let mut packets: Vec<Transmit> = (0..4).map(|fill| pair.write(fill)).collect();
    let flush = Command::without_data(Lun(0), [0x91, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    pair.initiator.submit(flush).expect("taken");
    packets.push(pair.initiator.poll_transmit(pair.now).expect("sent at once"));
    for packet in packets.iter().rev() {
        pair.give_to_target(packet);
    }
    let mut arrived = Vec::new();
    while let Some(unit::Event::Command(command)) = pair.target.poll_event() {
        arrived.push(command.cdb[0]);
        pair.target.complete(command.task, Response::good());
    }
    assert_eq!(arrived, [0x8a, 0x8a, 0x8a, 0x8a, 0x91], "the flush is behind what was sent before it");
    pair.settle();
    assert!((0..5).all(|_| pair.is_completed()));
}

/// A packet of another association of the same nodes, with its own id and with this one's.
#[test]
fn attack_ecl_splice_from_another_association() {
    let (mut pair, mut other) = (Pair::new(), Pair::with(8, 2, Scheme::Lazy));
    other.write(1);
    let mut spliced = other.write(2);
    pair.give_to_target(&spliced);
    assert_eq!(pair.target.statistics().dropped.malformed, 1, "for another association");
    spliced.head[4..8].copy_from_slice(&1u32.to_be_bytes());
    pair.give_to_target(&spliced);
    assert_eq!((pair.target.statistics().dropped.not_authentic, pair.executed()), (1, None));
    // The quantum of one packet behind the head of another.
    let (one, another) = (pair.write(4), pair.write(5));
    let swapped = Transmit { head: one.head.clone(), payload: another.payload.clone() };
    pair.give_to_target(&swapped);
    assert_eq!((pair.target.statistics().dropped.checksum, pair.executed()), (1, None));
    pair.give_to_target(&one);
    assert_eq!(pair.executed(), Some(4));
}

#[test]
fn attack_ecl_truncate() {
    let mut pair = Pair::new();
    let packet = pair.write(6);
    let all = [&packet.head[..], &packet.payload[..]].concat();
    for len in 0..all.len() {
        let cut = Datagram::whole(address(1, 5000), all[..len].to_vec());
        pair.target.handle_datagram(pair.now, cut);
        assert_eq!(pair.executed(), None, "{len} bytes");
    }
    assert!(!pair.target.is_closed(), "nobody is blamed for what anyone on the path can do");
    pair.give_to_target(&packet);
    assert_eq!(pair.executed(), Some(6));
}

#[test]
fn attack_ecl_reflect() {
    let mut pair = Pair::new();
    let packet = pair.write(1);
    pair.give_to_initiator(&packet);
    assert_eq!(pair.initiator.statistics().dropped.not_authentic, 1);
    pair.give_to_target(&packet);
    pair.executed();
    let response = pair.target.poll_transmit(pair.now).expect("the response");
    pair.give_to_target(&response);
    // Whether or not its number was used in this direction, too.
    let dropped = pair.target.statistics().dropped;
    assert_eq!((dropped.not_authentic + dropped.replayed, pair.target.is_closed()), (1, false));
}

/// An authentic packet from elsewhere: nothing is taken from there, and nothing sent to it.
#[test]
fn attack_ecl_spoofed_source_address() {
    let mut pair = Pair::new();
    assert_eq!(pair.target.peer(), Some(address(1, 5000)));
    let packet = pair.write(1);
    for source in [address(9, 5000), address(1, 5001)] {
        pair.target.handle_datagram(pair.now, datagram(source, &packet));
    }
    assert_eq!(pair.target.statistics().dropped.other_source, 2);
    assert_eq!((pair.executed(), pair.target.peer()), (None, Some(address(1, 5000))));
    pair.give_to_target(&packet);
    assert_eq!(pair.executed(), Some(1));

    // Before the first packet the host is known already, from the login's connection.
    let mut fresh = target::Session::new(pair.now, &config(7, 1, address(1, 0), Scheme::Lazy));
    let mut initiator = initiator::Session::new(pair.now, &config(7, 1, address(2, 3260), Scheme::Lazy));
    let first = initiator.poll_transmit(pair.now).expect("a ping");
    fresh.handle_datagram(pair.now, datagram(address(9, 5000), &first));
    assert_eq!((fresh.peer(), fresh.poll_transmit(pair.now).is_none()), (None, true), "nothing is answered");
}

/// The first packet of a write is held back until its slot was used again, while the write itself went on by a second one.
#[test]
fn attack_ecl_late_duplicate_of_an_old_write() {
    let mut pair = Pair::new();
    let held_back = pair.write(1);
    pair.settle();
    assert_eq!(pair.executed(), Some(1), "sent again");
    pair.settle();
    assert!(pair.is_completed());
    // All slots are used once, then the first one again.
    for fill in 0..1024u32 {
        let packet = pair.write(fill as u8 | 0x80);
        if fill == 1023 {
            pair.give_to_target(&held_back);
            assert_eq!(pair.target.statistics().stale, 1);
        }
        pair.give_to_target(&packet);
        assert_eq!(pair.executed(), Some(fill as u8 | 0x80));
        pair.settle();
        assert!(pair.is_completed());
    }
    pair.give_to_target(&held_back);
    assert_eq!(pair.executed(), None);
}

/// Nobody can make an association of S2-5 take packets of S1-2, whose headers could be read.
#[test]
fn attack_ecl_downgrade() {
    let mut pair = Pair::new();
    let mut weak = Pair::with(7, 1, Scheme::LazyAuth);
    let (strong, readable) = (pair.write(1), weak.write(1));
    assert_ne!(strong.head[16..48], readable.head[16..48]);
    pair.give_to_target(&readable);
    weak.give_to_target(&strong);
    for session in [&pair.target, &weak.target] {
        assert_eq!(session.statistics().dropped.not_authentic, 1);
    }
    // What ECL does not carry is refused by name, and not carried as something else.
    for number in [11, 21, 23, 0] {
        assert!(Scheme::from_number(number).expect_err("not carried").to_string().contains("iSCSI"));
    }
}

/// Packets that anyone can send: no answer, no memory, and the association works on.
#[test]
fn attack_ecl_flood_of_unauthenticated_packets() {
    let mut pair = Pair::new();
    let packet = pair.write(1);
    let before = pair.target.statistics();
    for at in 0..10_000u32 {
        let mut forged = packet.head.clone();
        forged[8..12].copy_from_slice(&at.to_be_bytes());
        forged[1] = at as u8;
        forged[20] ^= 1;
        pair.target.handle_datagram(pair.now, Datagram::whole(address(1, 5000), forged));
        pair.target.handle_datagram(pair.now, Datagram::whole(address(1, 5000), at.to_be_bytes().to_vec()));
    }
    assert!(pair.target.poll_transmit(pair.now).is_none(), "nothing is answered");
    let after = pair.target.statistics();
    assert_eq!((after.packets_received, after.packets_sent), (before.packets_received, before.packets_sent));
    assert_eq!((pair.target.memory_bytes(), after.peer_rekeys), (0, 0));
    pair.give_to_target(&packet);
    assert_eq!(pair.executed(), Some(1));
}
