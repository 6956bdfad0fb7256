//! One direction pair of packets between two ends: protection, replay, acknowledgements, recovery, congestion and packet sizes. What packets
//! carry is the session's matter.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::{Buffer, BufferMut};

use crate::acknowledgement::{Acknowledgement, Ecn, Receipts};
use crate::config::Config;
use crate::congestion::{CongestionControl, Uncontrolled, controller};
use crate::error::{Dropped, PeerMisbehaved};
use crate::header::{ClearHeader, Flags, HEADER_BYTES, Header, Operation, PacketType, TAG_BYTES};
use crate::keys::{Direction, ReceiveKeys, SendKeys};
use crate::mtu::PathMtu;
use crate::recovery::{Recovery, SentPacket, Verdict};
use crate::replay::{REPLAY_WINDOW, ReplayWindow, packet_number};
use crate::statistics::Statistics;
use crate::tag::SinkTag;

/// A peer that answers nothing for so long is gone.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(20);
/// An association on which nothing was sent for so long sends a ping, so that middleboxes keep its path.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Probe time-outs in a row that send contents again.
const TIMEOUTS_BEFORE_PING: u32 = 3;

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Initiator,
    Target,
}

/// A packet as it arrived, in two pieces: a driver receives the first [`Datagram::head_bytes`] bytes apart from the rest, so that a quantum
/// lands in memory of its own.
#[derive(Debug)]
pub struct Datagram {
    /// Where it came from.
    pub source: SocketAddr,
    /// How the network marked it.
    pub ecn: Ecn,
    /// Its first bytes.
    pub head: Vec<u8>,
    /// What follows, which is passed on by reference.
    pub rest: Buffer,
}

impl Datagram {
    /// A packet that arrived in one piece.
    pub fn whole(source: SocketAddr, head: Vec<u8>) -> Datagram {
        Datagram { source, ecn: Ecn::NotCapable, head, rest: Buffer::empty() }
    }

    /// Bytes in front of a quantum: where a driver splits packets that carry entries of `entry_bytes` (a seal record, behind a store
    /// sequence towards the initiator).
    pub const fn head_bytes(entry_bytes: usize) -> usize {
        HEADER_BYTES + entry_bytes + TAG_BYTES
    }

    /// The association that a packet belongs to; `None` for what is no packet.
    pub fn connection_id(first: &[u8]) -> Option<u32> {
        ClearHeader::decode(first).map(|clear| clear.connection_id)
    }
}

/// A packet to send: head and payload one after the other.
#[derive(Debug)]
pub struct Transmit {
    /// Header, body and tag.
    pub head: Vec<u8>,
    /// A quantum or a part of one, where it lies.
    pub payload: Buffer,
}

impl Transmit {
    /// Bytes in the packet.
    pub fn len_bytes(&self) -> usize {
        self.head.len() + self.payload.len()
    }
}

/// An authentic packet that was not used before.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) number: u64,
    ecn: Ecn,
    source: SocketAddr,
    pub(crate) sink: SinkTag,
    pub(crate) header: Header,
    /// Behind the acknowledgement, if there is one.
    pub(crate) body: Bytes,
    pub(crate) payload: Buffer,
    /// The payload stayed where it had been received.
    pub(crate) is_placed: bool,
}

#[cfg(test)]
impl Packet {
    /// One that was opened.
    pub(crate) fn for_tests(header: Header, sink: SinkTag, body: Bytes, payload: Buffer) -> Packet {
        let source = SocketAddr::from(([127, 0, 0, 1], 1));
        Packet { number: 0, ecn: Ecn::NotCapable, source, sink, header, body, payload, is_placed: true }
    }
}

/// Why a packet was not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Dropped(Dropped),
    Misbehaved(PeerMisbehaved),
}

impl From<Dropped> for Fault {
    fn from(dropped: Dropped) -> Fault {
        Fault::Dropped(dropped)
    }
}

impl From<PeerMisbehaved> for Fault {
    fn from(misbehaved: PeerMisbehaved) -> Fault {
        Fault::Misbehaved(misbehaved)
    }
}

/// A packet in the making.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) header: Header,
    pub(crate) sink: SinkTag,
    pub(crate) body: Vec<u8>,
    pub(crate) payload: Buffer,
}

impl Outgoing {
    pub(crate) fn message(header: Header, sink: SinkTag, body: Vec<u8>) -> Outgoing {
        Outgoing { header, sink, body, payload: Buffer::empty() }
    }
}

/// What a packet in flight carries.
#[derive(Clone, Debug)]
enum Carried<C> {
    Content(C),
    Ping,
    Probe,
}

/// What was settled about contents of the session.
#[derive(Debug)]
pub(crate) enum Settled<C> {
    Acknowledged(C),
    Lost(C),
}

/// When packets last went either way.
#[derive(Debug)]
struct Activity {
    opened_at: Instant,
    heard_at: Option<Instant>,
    sent_at: Instant,
    ping_wanted: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Connection<C> {
    role: Role,
    connection_id: u32,
    /// Where authentic packets come from. A target has only the host at first.
    peer: SocketAddr,
    is_port_known: bool,
    is_stream: bool,
    holds_keys: bool,
    protection: Protection,
    replay: ReplayWindow,
    receipts: Receipts,
    recovery: Recovery<Carried<C>>,
    congestion: Box<dyn CongestionControl>,
    pub(crate) mtu: PathMtu,
    activity: Activity,
    settled: VecDeque<Settled<C>>,
    pub(crate) statistics: Statistics,
}

struct Protection {
    sender: SendKeys,
    receiver: ReceiveKeys,
}

impl std::fmt::Debug for Protection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Protection")
    }
}

impl<C: Clone> Connection<C> {
    pub(crate) fn new(now: Instant, role: Role, config: &Config) -> Connection<C> {
        let (outward, inward) = match role {
            Role::Initiator => (Direction::ToTarget, Direction::ToInitiator),
            Role::Target => (Direction::ToInitiator, Direction::ToTarget),
        };
        let id = config.connection_id;
        let mtu = PathMtu::new(now, config.quantum_bytes as usize, config.is_stream);
        let packet_bytes = mtu.packet_bytes() as u16;
        let congestion = match config.is_stream {
            true => Box::new(Uncontrolled::default()),
            false => controller(config.congestion, now, packet_bytes, config.seed),
        };
        Connection {
            role,
            connection_id: id,
            peer: config.peer,
            is_port_known: role == Role::Initiator,
            is_stream: config.is_stream,
            holds_keys: config.holds_keys,
            protection: Protection {
                sender: SendKeys::new(&config.keys, outward, id, config.rekey),
                receiver: ReceiveKeys::new(&config.keys, inward, id),
            },
            replay: ReplayWindow::new(config.planted),
            receipts: Receipts::default(),
            recovery: Recovery::new(now),
            congestion,
            mtu,
            activity: Activity { opened_at: now, heard_at: None, sent_at: now, ping_wanted: role == Role::Initiator },
            settled: VecDeque::new(),
            statistics: Statistics::default(),
        }
    }

    /// Where packets go. A target does not know before the first authentic packet.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.is_port_known.then_some(self.peer)
    }

    /// Opens a packet. Its acknowledgement is taken at once; everything else only counts when [`Connection::accept`] is called.
    pub(crate) fn open(&mut self, now: Instant, datagram: Datagram) -> Result<Packet, Fault> {
        let opened = self.try_open(now, datagram);
        if let Err(Fault::Dropped(why)) = &opened {
            self.statistics.count_dropped(*why);
        }
        opened
    }

    fn try_open(&mut self, now: Instant, datagram: Datagram) -> Result<Packet, Fault> {
        let Datagram { source, ecn, head, rest } = datagram;
        let clear = ClearHeader::decode(&head).ok_or(Dropped::Malformed)?;
        if clear.connection_id != self.connection_id {
            return Err(Dropped::OtherAssociation.into());
        }
        let is_peer = if self.is_port_known { source == self.peer } else { source.ip() == self.peer.ip() };
        if !is_peer {
            return Err(Dropped::OtherSource.into());
        }
        let copied_before = self.statistics.copied_bytes;
        let (mut head, payload) = self.split(usize::from(clear.protected_bytes) + TAG_BYTES, head, rest)?;
        let number = packet_number(self.replay.end(), clear.packet_number);
        if !self.replay.admits(number) {
            return Err(Dropped::Replayed.into());
        }
        self.protection.receiver.open(now, clear.generation, number, &mut head)??;
        let first = head.first_chunk::<HEADER_BYTES>().expect("no packet is shorter");
        let header = Header::decode(first).map_err(PeerMisbehaved::Header)?;
        if (clear.packet_type == PacketType::Message) != payload.is_empty() {
            // Nothing protects a payload's length: anyone on the path can have cut it.
            return Err(Dropped::Malformed.into());
        }
        let end = head.len() - TAG_BYTES;
        let head = if self.holds_keys { strongroom_block::wiped(head) } else { Bytes::from(head) };
        let mut body = head.slice(HEADER_BYTES..end);
        if header.flags.has(Flags::ACKNOWLEDGEMENT) {
            let (acknowledgement, rest) = Acknowledgement::decode(&body)?;
            body = body.slice(body.len() - rest.len()..);
            let verdicts = self.recovery.acknowledge(now, &acknowledgement, &mut *self.congestion)?;
            self.settle(now, verdicts);
        }
        let is_placed = self.statistics.copied_bytes == copied_before;
        Ok(Packet { number, ecn, source, sink: clear.sink, header, body, payload, is_placed })
    }

    /// Head with its tag, and payload. Copies where they were not received apart; never a quantum that was.
    fn split(&mut self, head_bytes: usize, mut head: Vec<u8>, rest: Buffer) -> Result<(Vec<u8>, Buffer), Dropped> {
        if head.len() == head_bytes {
            self.statistics.placed_bytes += rest.len() as u64;
            return Ok((head, rest));
        }
        if head.len() < head_bytes {
            let missing = head_bytes - head.len();
            if missing > rest.len() {
                return Err(Dropped::Malformed);
            }
            head.extend_from_slice(&rest[..missing]);
            self.statistics.copied_bytes += missing as u64;
            return Ok((head, rest.slice(missing..)));
        }
        let len = head.len() - head_bytes + rest.len();
        self.statistics.copied_bytes += len as u64;
        let mut payload = BufferMut::to_fill(len);
        payload[..head.len() - head_bytes].copy_from_slice(&head[head_bytes..]);
        payload[head.len() - head_bytes..].copy_from_slice(&rest);
        head.truncate(head_bytes);
        Ok((head, payload.freeze()))
    }

    /// A packet was used: it is acknowledged, and never used again.
    pub(crate) fn accept(&mut self, now: Instant, packet: &Packet) {
        self.replay.accept(packet.number);
        let is_eliciting = packet.header.operation != Operation::Acknowledge;
        self.receipts.accept(now, packet.number, packet.ecn, is_eliciting);
        self.peer = packet.source;
        self.is_port_known = true;
        self.activity.heard_at = Some(now);
        self.statistics.packets_received += 1;
    }

    /// Whether a packet that was not used means that the stream which carries packets was changed on the way: what follows cannot be told
    /// from it any more.
    pub(crate) fn is_broken_by(&self, why: Dropped) -> bool {
        self.is_stream && matches!(why, Dropped::Malformed | Dropped::OtherAssociation | Dropped::NotAuthentic)
    }

    /// A packet was not used: it counts as lost.
    pub(crate) fn discard(&mut self, why: Dropped) {
        self.statistics.count_dropped(why);
    }

    fn settle(&mut self, now: Instant, verdicts: Vec<Verdict<Carried<C>>>) {
        let mut is_resized = false;
        for verdict in verdicts {
            match verdict {
                Verdict::Acknowledged(number, packet) => {
                    self.protection.sender.acknowledged(number);
                    let bytes = usize::from(packet.bytes);
                    match packet.content {
                        Carried::Probe => is_resized |= self.mtu.probe_acknowledged(now, bytes),
                        Carried::Ping => {}
                        Carried::Content(content) => {
                            self.mtu.acknowledged(bytes);
                            self.settled.push_back(Settled::Acknowledged(content));
                        }
                    }
                }
                Verdict::Lost(packet) => {
                    self.statistics.packets_lost += u64::from(!packet.is_probe);
                    match packet.content {
                        Carried::Probe => self.mtu.probe_lost(now),
                        Carried::Ping => self.activity.ping_wanted = true,
                        Carried::Content(content) => {
                            is_resized |= self.mtu.lost(now, packet.bytes.into());
                            self.settled.push_back(Settled::Lost(content));
                        }
                    }
                }
            }
        }
        if is_resized {
            self.congestion.on_packet_size(self.mtu.packet_bytes() as u16);
        }
    }

    /// What was acknowledged or lost since.
    pub(crate) fn poll_settled(&mut self) -> Option<Settled<C>> {
        self.settled.pop_front()
    }

    /// Whether contents may be sent now.
    pub(crate) fn may_send(&self, now: Instant) -> bool {
        let has_number = self.recovery.next_number() < self.recovery.oldest_number() + REPLAY_WINDOW / 2;
        let departs = self.congestion.departs_at().is_none_or(|at| at <= now);
        has_number && self.peer().is_some() && (self.recovery.wants_probe() || departs && !self.congestion.is_limited())
    }

    /// The content that a probe time-out wants to be sent once more. After several in a row there is none, and a ping is sent, which passes
    /// where packets with contents have become too long: its acknowledgement shows that those are lost.
    pub(crate) fn probe_content(&self) -> Option<C> {
        if !self.recovery.wants_probe() || self.recovery.timeouts_in_a_row() >= TIMEOUTS_BEFORE_PING {
            return None;
        }
        self.recovery.oldest_contents().find_map(|carried| match carried {
            Carried::Content(content) => Some(content.clone()),
            Carried::Ping | Carried::Probe => None,
        })
    }

    /// Makes a packet that the peer will acknowledge.
    pub(crate) fn transmit(&mut self, now: Instant, outgoing: Outgoing, content: C, is_app_limited: bool) -> Transmit {
        self.make(now, outgoing, Some(Carried::Content(content)), is_app_limited)
    }

    /// Makes a packet that is sent once, whether it arrives or not.
    pub(crate) fn transmit_once(&mut self, now: Instant, outgoing: Outgoing) -> Transmit {
        self.make(now, outgoing, None, true)
    }

    fn make(
        &mut self,
        now: Instant,
        outgoing: Outgoing,
        carried: Option<Carried<C>>,
        is_app_limited: bool,
    ) -> Transmit {
        let Outgoing { mut header, sink, body, payload } = outgoing;
        let mut prefix = Vec::new();
        let has_room = |prefix: &[u8]| HEADER_BYTES + prefix.len() + body.len() + TAG_BYTES <= self.mtu.packet_bytes();
        if payload.is_empty()
            && self.receipts.is_wanted()
            && let Some(acknowledgement) = self.receipts.take(now)
        {
            acknowledgement.encode(&mut prefix);
            header.flags.0 |= Flags::ACKNOWLEDGEMENT;
            if !has_room(&prefix) {
                // The newest range is what matters; the rest is told by the next one.
                prefix.clear();
                Acknowledgement { ranges: vec![acknowledgement.ranges[0]], ..acknowledgement }.encode(&mut prefix);
            }
        }
        let number = self.recovery.next_number();
        let clear = ClearHeader {
            packet_type: if payload.is_empty() { PacketType::Message } else { PacketType::Data },
            generation: self.protection.sender.generation_byte(),
            protected_bytes: (HEADER_BYTES + prefix.len() + body.len()) as u16,
            connection_id: self.connection_id,
            packet_number: number as u32,
            sink,
        };
        // Large enough from the start: growing would leave a copy of a block key behind.
        let mut head = Vec::with_capacity(HEADER_BYTES + prefix.len() + body.len() + TAG_BYTES);
        head.extend_from_slice(&header.encode(&clear));
        head.extend_from_slice(&prefix);
        head.extend_from_slice(&body);
        self.protection.sender.seal(number, &mut head);
        if self.holds_keys {
            drop(strongroom_block::wiped(body));
        }
        let transmit = Transmit { head, payload };
        self.register(now, transmit.len_bytes(), carried, is_app_limited);
        transmit
    }

    fn register(&mut self, now: Instant, len_bytes: usize, carried: Option<Carried<C>>, is_app_limited: bool) {
        self.statistics.packets_sent += 1;
        let sent = carried.map(|content| {
            self.activity.sent_at = now;
            let bytes = u16::try_from(len_bytes).expect("a packet is at most header, body and quantum");
            let info = self.congestion.on_sent(now, len_bytes, is_app_limited, &self.recovery.rtt);
            let is_probe = matches!(content, Carried::Probe);
            SentPacket { content, at: now, bytes, info, is_probe }
        });
        self.recovery.sent(sent);
    }

    /// Pings and probes of the path, and the probe of a time-out where no content is in flight.
    pub(crate) fn poll_own(&mut self, now: Instant) -> Option<Transmit> {
        self.peer()?;
        let empty = |operation| Outgoing::message(Header::new(operation), SinkTag::NONE, Vec::new());
        let probes_without_content = self.recovery.wants_probe() && self.probe_content().is_none();
        if self.activity.ping_wanted || probes_without_content {
            self.activity.ping_wanted = false;
            return Some(self.make(now, empty(Operation::Ping), Some(Carried::Ping), true));
        }
        if let Some(bytes) = self.mtu.wanted_probe(now)
            && self.may_send(now)
            && self.activity.heard_at.is_some()
        {
            // An acknowledgement has a packet of its own here, so that the size is exact.
            if self.receipts.is_wanted() {
                return self.acknowledge(now);
            }
            self.mtu.probe_sent();
            let filler = vec![0; bytes - HEADER_BYTES - TAG_BYTES];
            let outgoing = Outgoing { body: filler, ..empty(Operation::Probe) };
            return Some(self.make(now, outgoing, Some(Carried::Probe), true));
        }
        None
    }

    /// Asks for an acknowledgement.
    pub(crate) fn ping(&mut self, now: Instant) -> Option<Transmit> {
        self.activity.ping_wanted = true;
        self.poll_own(now)
    }

    /// The acknowledgement that is due.
    pub(crate) fn poll_acknowledgement(&mut self, now: Instant) -> Option<Transmit> {
        self.receipts.due().filter(|due| *due <= now)?;
        self.acknowledge(now)
    }

    fn acknowledge(&mut self, now: Instant) -> Option<Transmit> {
        self.peer()?;
        let header = Header::new(Operation::Acknowledge);
        Some(self.make(now, Outgoing::message(header, SinkTag::NONE, Vec::new()), None, true))
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        let verdicts = self.recovery.handle_timeout(now, &mut *self.congestion);
        self.settle(now, verdicts);
        if self.keep_alive_at().is_some_and(|at| at <= now) {
            self.activity.ping_wanted = true;
        }
    }

    /// An initiator keeps the path open; a target answers.
    fn keep_alive_at(&self) -> Option<Instant> {
        let is_idle = self.role == Role::Initiator && !self.recovery.has_in_flight();
        is_idle.then(|| self.activity.sent_at + KEEP_ALIVE)
    }

    /// When there is something to do next. `wants_to_send`: contents wait for the congestion window.
    pub(crate) fn poll_timeout(&self, wants_to_send: bool) -> Option<Instant> {
        let departs = self.congestion.departs_at().filter(|_| wants_to_send && !self.congestion.is_limited());
        let may_search = self.activity.heard_at.is_some() && !self.congestion.is_limited();
        let search = self.mtu.search_at().filter(|_| may_search);
        let deadlines =
            [self.recovery.deadline(), self.receipts.due(), departs, self.keep_alive_at(), search, self.silent_at()];
        deadlines.into_iter().flatten().min()
    }

    /// When the peer counts as gone.
    pub(crate) fn silent_at(&self) -> Option<Instant> {
        let waiting = self.recovery.waiting_since()?;
        Some(self.activity.heard_at.map_or(waiting, |heard| heard.max(waiting)) + SILENCE_MAX)
    }

    /// Since when nothing at all has been heard by UDP; `None` once something has.
    pub(crate) fn unheard_since(&self) -> Option<Instant> {
        let is_unheard = self.activity.heard_at.is_none() && !self.is_stream;
        is_unheard.then_some(self.activity.opened_at)
    }

    /// What `status` shows.
    pub(crate) fn measured(&self) -> Statistics {
        Statistics {
            rtt: self.recovery.rtt.has_sample().then(|| self.recovery.rtt.smoothed()),
            rtt_min: self.recovery.rtt.has_sample().then(|| self.recovery.rtt.shortest()),
            window_bytes: self.congestion.window_bytes(),
            in_flight_bytes: self.congestion.in_flight_bytes(),
            packet_bytes: self.mtu.packet_bytes(),
            black_holes: self.mtu.black_holes(),
            rekeys: self.protection.sender.generation(),
            peer_rekeys: self.protection.receiver.generation(),
            ..self.statistics
        }
    }
}
