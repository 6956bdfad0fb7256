//! The link: bytes of one connection to PDUs and back, plain or through a channel. No sockets, no sessions.
//!
//! A link is told apart from its driver so that every byte order, every cut and every tampering can be tried without a
//! network: it takes bytes and the time, gives buffers and events, and reads no clock.
//!
//! ```text
//! initiator, strongroom://   handshake ──> channel, once the target's confirmation has opened
//! initiator, iscsi://        plain framing at once
//! target                     first byte 0x16: handshake ──> channel    0x43: plain framing    other: the end
//! ```
//!
//! The driver's loop, per connection: give what arrived to [`Link::handle_input`] (or [`Link::handle_eof`],
//! [`Link::handle_timeout`]), take every [`Link::poll_event`], queue what the session wants to say with
//! [`Link::send_pdu`], send what [`Link::poll_transmit`] has, look at [`Link::poll_timeout`]. After
//! [`LinkEvent::Ended`] send what is left and close the stream.

mod detached;
mod ecl;
mod end;
mod fuzz;
mod options;
mod packets;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use strongroom_block::{Buffer, Suite};
use strongroom_channel::{Channel, ChannelKeys, FrameKind, Role, Scheme};
use strongroom_handshake::{Handshake, HandshakeError, NodeKey, PeerPolicy, PublicKey};
use strongroom_iscsi::pdu::Opcode;
use strongroom_iscsi::{Digests, Pdu, PlainFramer};
use zeroize::Zeroize as _;

pub use self::detached::{
    DetachedChannel, OPERATOR_MESSAGE_BYTES_MAX, PAIRING_MESSAGE_BYTES_MAX, ProtocolUse, TRANSFER_MESSAGE_BYTES_MAX,
    TRANSFER_PIECE_BYTES_MAX,
};
pub use self::ecl::ECL_MESSAGE_BYTES_MAX;
pub use self::end::LinkEnd;
#[doc(hidden)]
pub use self::fuzz::fuzz_link;
pub use self::options::{LinkOptions, LinkPurpose};
pub use self::packets::LinkPacket;

/// First byte of a TLS ClientHello's record.
const TLS_HANDSHAKE_RECORD: u8 = 0x16;
/// First byte of a plain iSCSI connection: a Login Request, always immediate (RFC 7143 §11.12).
const LOGIN_REQUEST: u8 = 0x43;

/// What a target's port admits.
#[derive(Clone)]
pub struct Admission {
    /// The target's identity; without one it takes no channels.
    pub identity: Option<Arc<NodeKey>>,
    /// Whose channels it takes.
    pub peers: Arc<dyn PeerPolicy>,
    /// Whether it takes plain iSCSI connections.
    pub allow_plain: bool,
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let identity = self.identity.as_ref().map(|identity| identity.public());
        f.debug_struct("Admission")
            .field("identity", &identity)
            .field("allow_plain", &self.allow_plain)
            .finish_non_exhaustive()
    }
}

/// What a link has to tell.
#[derive(Debug, PartialEq)]
pub enum LinkEvent {
    /// PDUs may flow. `peer` is who the other end has proven to be, `None` on a plain stream.
    Established {
        /// The other node.
        peer: Option<PublicKey>,
    },
    /// A PDU arrived. Inside a channel its header is authentic; its data too unless it is `sealed`.
    Pdu(Pdu),
    /// A PDU arrived whose data was damaged on the way, as its digest shows.
    Corrupt(Pdu),
    /// A message of an ECL login arrived.
    Message(Vec<u8>),
    /// A packet of an ECL association arrived, on the stream of its login.
    Packet(LinkPacket),
    /// The link is over; always the last event.
    Ended(LinkEnd),
}

enum LinkState {
    /// A target before the first byte.
    Sniffing(Admission),
    Plain(Box<PlainFramer>),
    Handshaking(Box<Handshake>, Role),
    /// An initiator whose handshake is done and whose target may still refuse, in TLS, until its first frame begins.
    Confirming(Box<Confirming>),
    Channel(Box<Channel>),
    /// The same for a transfer, a pairing or an operator, until [`Link::into_detached`].
    Detachable(detached::Detachable),
    /// The same for the login of an ECL association, which has messages instead of PDUs, and perhaps packets behind them.
    Ecl(Box<ecl::EclChannel>),
    Ended,
}

struct Confirming {
    handshake: Handshake,
    channel: Box<Channel>,
    agreement: ecl::Agreement,
    frame_begun: bool,
}

/// One connection's protocol below the session.
pub struct Link {
    state: LinkState,
    options: LinkOptions,
    setup_deadline: Option<Instant>,
    /// When a channel next changes its keys for their age.
    rekey_at: Option<Instant>,
    established: bool,
    peer: Option<PublicKey>,
    /// Data that is not sealed block data is encrypted under every scheme.
    conceals: bool,
    /// Buffers that held a header with additional segments are wiped.
    wipes_headers: bool,
    /// This end said that it sends no more PDUs.
    closed: bool,
    digests: Digests,
    /// What came behind the last PDU of a login, until it is known which digests it has.
    held: Option<Vec<u8>>,
    events: VecDeque<LinkEvent>,
    out: Vec<Buffer>,
    header: Vec<u8>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("state", &self.state.name()).field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Link {
    /// A target's end of a connection just accepted.
    pub fn target(admission: Admission, options: LinkOptions, now: Instant) -> Link {
        Self::new(LinkState::Sniffing(admission), options, now)
    }

    /// An initiator's end for a `strongroom://` URL: never anything but a channel, with a target that has one of the
    /// `expected` keys.
    ///
    /// # Errors
    /// [`HandshakeError::NoTargetKey`] if there is no key to expect.
    pub fn initiator_channel(
        node: &NodeKey,
        expected: &[PublicKey],
        options: LinkOptions,
        now: Instant,
    ) -> Result<Link, HandshakeError> {
        let handshake = Handshake::initiator(node, expected, options.protocols())?;
        let mut link = Self::new(LinkState::Handshaking(Box::new(handshake), Role::Initiator), options, now);
        link.take_handshake_output();
        Ok(link)
    }

    /// An initiator's end for an `iscsi://` URL: scheme S0, nothing is protected.
    pub fn initiator_plain(options: LinkOptions, now: Instant) -> Link {
        let framer = PlainFramer::new(options.data_bytes_max);
        let mut link = Self::new(LinkState::Plain(Box::new(framer)), options, now);
        link.establish(None);
        link
    }

    /// One end of a channel whose handshake is left out, for a simulation: it gives the same keys to both ends, and each the other's name.
    #[doc(hidden)]
    pub fn simulated(role: Role, keys: ChannelKeys, peer: PublicKey, options: LinkOptions, now: Instant) -> Link {
        let (limits, counters) = (options.channel, Arc::clone(&options.counters));
        let mut out = Vec::new();
        let channel = match role {
            Role::Initiator => Channel::initiator(keys, limits, counters),
            Role::Target => Channel::target(keys, limits, counters, &mut out),
        };
        let mut link = Self::new(LinkState::Channel(Box::new(channel)), options, now);
        (link.out, link.peer) = (out, Some(peer));
        if role == Role::Target {
            link.establish(Some(peer));
        }
        link
    }

    fn new(state: LinkState, options: LinkOptions, now: Instant) -> Link {
        Link {
            state,
            setup_deadline: Some(now + options.setup_timeout),
            rekey_at: (!options.rekey_after.is_zero()).then(|| now + options.rekey_after),
            options,
            established: false,
            peer: None,
            conceals: false,
            wipes_headers: false,
            closed: false,
            digests: Digests::default(),
            held: None,
            events: VecDeque::new(),
            out: Vec::new(),
            header: Vec::new(),
        }
    }

    /// Whether the PDUs go through a channel (known from [`LinkEvent::Established`] on).
    pub fn in_channel(&self) -> bool {
        matches!(self.state, LinkState::Channel(_))
    }

    /// What the channel protects; `None` on a plain stream (S0), and before [`LinkEvent::Established`].
    pub fn scheme(&self) -> Option<Scheme> {
        self.channel().map(Channel::scheme)
    }

    /// The channel's cipher; `None` where [`Link::scheme`] is.
    pub fn suite(&self) -> Option<Suite> {
        self.channel().map(Channel::suite)
    }

    fn channel(&self) -> Option<&Channel> {
        match &self.state {
            LinkState::Channel(channel) => Some(channel),
            LinkState::Ecl(ecl) => Some(ecl.channel()),
            _ => None,
        }
    }

    /// What both ends agreed to use it for. Before the end of the handshake, and without one: [`LinkPurpose::Blocks`].
    pub fn purpose(&self) -> LinkPurpose {
        match self.state {
            LinkState::Detachable(ref detachable) => detachable.purpose,
            LinkState::Ecl(_) => LinkPurpose::Ecl,
            _ => LinkPurpose::Blocks,
        }
    }

    /// Who the other end has proven to be, from [`LinkEvent::Established`] on; `None` on a plain stream.
    pub fn peer(&self) -> Option<PublicKey> {
        self.peer
    }

    /// Whether the link is over.
    pub fn is_ended(&self) -> bool {
        matches!(self.state, LinkState::Ended)
    }

    /// Takes all of `bytes` from the peer. What they make comes from [`Link::poll_event`]; after the end they are
    /// ignored.
    pub fn handle_input(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() && !self.is_ended() {
            if let Some(held) = &mut self.held {
                // At most what the socket gives at a time: the session decides before more is read.
                return held.extend_from_slice(rest);
            }
            match self.take(rest) {
                Ok(taken) => rest = &rest[taken..],
                Err(end) => self.end(end),
            }
        }
    }

    /// The peer sends no more.
    pub fn handle_eof(&mut self) {
        let end = match &mut self.state {
            LinkState::Sniffing(_) => LinkEnd::NothingSaid,
            LinkState::Plain(framer) if framer.is_between_pdus() => LinkEnd::PeerClosed,
            LinkState::Plain(_) => LinkEnd::Truncated,
            LinkState::Handshaking(handshake, _) => handshake.handle_eof().into(),
            LinkState::Confirming(confirming) => confirming.handshake.handle_eof().into(),
            LinkState::Channel(channel) => end::of_stream(channel),
            LinkState::Detachable(detachable) => end::of_stream(&mut detachable.channel),
            LinkState::Ecl(ecl) => ecl.end_of_stream(),
            LinkState::Ended => return,
        };
        self.end(end);
    }

    /// The time is `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.setup_deadline.is_some_and(|deadline| now >= deadline) && !self.is_ended() {
            let stage = if self.established { "the login" } else { "the handshake" };
            self.end(LinkEnd::TimedOut { stage, after: self.options.setup_timeout });
        }
        if let LinkState::Channel(channel) = &mut self.state
            && self.rekey_at.is_some_and(|at| now >= at)
        {
            channel.rekey(&mut self.out);
            self.rekey_at = Some(now + self.options.rekey_after);
        }
    }

    /// When [`Link::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let rekey_at = self.rekey_at.filter(|_| self.in_channel());
        [self.setup_deadline, rekey_at].into_iter().flatten().min()
    }

    /// How often we and the peer have changed keys on this connection.
    pub fn rekeys(&self) -> (u64, u64) {
        self.channel().map_or((0, 0), |channel| (channel.rekeys(), channel.peer_rekeys()))
    }

    /// The session is in its full-feature phase: the set-up time limit no longer counts, and PDUs have `digests` from now on.
    /// What came behind the last PDU of the login is read only now: look for events again.
    pub fn login_finished(&mut self, digests: Digests) {
        self.setup_deadline = None;
        self.digests = digests;
        if let LinkState::Plain(framer) = &mut self.state {
            framer.set_digests(digests);
        }
        if let Some(held) = self.held.take() {
            self.handle_input(&held);
        }
    }

    /// The logical unit is sealed: data that is sent to it and is not sealed block data is a parameter list, which may hold block keys
    /// (SEAL HOLE, custody `target`), and is encrypted from now on even under a scheme that leaves such data readable.
    pub fn conceal_parameters(&mut self) {
        self.conceals = true;
    }

    /// The unit's headers carry block keys (custody `target`): from now on every buffer that a header with additional segments was in
    /// is wiped.
    pub fn wipe_headers(&mut self) {
        self.wipes_headers = true;
        if let LinkState::Channel(channel) = &mut self.state {
            channel.wipe_headers();
        }
    }

    /// Whether there are events.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Queues a PDU for the peer; `sealed` ones go with their data untouched. After the end or after
    /// [`Link::close`] it is dropped: the session learns of that by itself.
    pub fn send_pdu(&mut self, pdu: Pdu) {
        if self.closed || self.is_ended() {
            return;
        }
        let sent = match &mut self.state {
            LinkState::Plain(_) => {
                PlainFramer::encode(pdu, self.digests, &mut self.out);
                Ok(())
            }
            LinkState::Channel(channel) => {
                self.header.clear();
                // At once: what grows in steps leaves copies behind.
                self.header.reserve(pdu.header_bytes());
                pdu.channel_header(&mut self.header);
                let kind = frame_kind(&pdu, self.conceals);
                let has_segments = !pdu.ahs.is_empty();
                let encoded = channel.encode(kind, &self.header, pdu.data, &mut self.out).map_err(LinkEnd::from);
                if self.wipes_headers && has_segments {
                    self.header.zeroize();
                }
                encoded
            }
            _ => Err(LinkEnd::SentTooEarly),
        };
        if let Err(end) = sent {
            self.end(end);
        }
    }

    /// Says goodbye: nothing is sent after what is queued. In a channel the peer can tell this from a cut. Send what
    /// [`Link::poll_transmit`] has, then close the stream.
    pub fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        match &mut self.state {
            LinkState::Channel(channel) => channel.close(&mut self.out),
            LinkState::Detachable(detachable) => detachable.channel.close(&mut self.out),
            LinkState::Ecl(ecl) => ecl.close(&mut self.out),
            _ => {}
        }
    }

    /// Appends what is to be sent, in order, payloads by reference.
    pub fn poll_transmit(&mut self, out: &mut Vec<Buffer>) {
        out.append(&mut self.out);
    }

    /// The next event, if any.
    pub fn poll_event(&mut self) -> Option<LinkEvent> {
        self.events.pop_front()
    }

    /// Takes some of `bytes`, at least one.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, LinkEnd> {
        match &mut self.state {
            LinkState::Sniffing(_) => self.sniff(bytes[0]).map(|()| 0),
            LinkState::Plain(framer) => {
                let taken = framer.handle_input(bytes)?;
                if let Some(pdu) = framer.poll_corrupt() {
                    self.events.push_back(LinkEvent::Corrupt(pdu));
                } else if let Some(pdu) = framer.poll_pdu() {
                    if self.setup_deadline.is_some() && ends_login(&pdu) {
                        self.held = Some(Vec::new());
                    }
                    self.events.push_back(LinkEvent::Pdu(pdu));
                }
                Ok(taken)
            }
            LinkState::Handshaking(handshake, _) => {
                let taken = handshake.handle_input(bytes);
                let finished = handshake.finished();
                self.take_handshake_output();
                let taken = taken?;
                if let Some(finished) = finished {
                    self.finish_handshake(finished);
                }
                Ok(taken)
            }
            LinkState::Confirming(confirming) => {
                if !confirming.frame_begun {
                    let taken = confirming.handshake.handle_input(bytes)?;
                    if taken > 0 {
                        return Ok(taken);
                    }
                    confirming.frame_begun = true;
                }
                let taken = confirming.channel.handle_input(bytes)?;
                if confirming.channel.is_confirmed() {
                    let LinkState::Confirming(confirming) = std::mem::replace(&mut self.state, LinkState::Ended) else {
                        unreachable!("matched above");
                    };
                    self.begin_channel(confirming.channel, confirming.agreement);
                    self.take_frame()?;
                }
                Ok(taken)
            }
            LinkState::Channel(channel) => {
                let taken = channel.handle_input(bytes)?;
                // Only a simulated initiator is here before its channel is confirmed.
                if !self.established && channel.is_confirmed() {
                    self.establish(self.peer);
                }
                self.take_frame()?;
                Ok(taken)
            }
            LinkState::Ecl(ecl) => ecl.handle_input(bytes, &mut self.events, &mut self.out),
            LinkState::Detachable(_) => unreachable!("what comes is held"),
            LinkState::Ended => Ok(bytes.len()),
        }
    }

    /// A target learns from the first byte whom it has before it.
    fn sniff(&mut self, first: u8) -> Result<(), LinkEnd> {
        let LinkState::Sniffing(admission) = std::mem::replace(&mut self.state, LinkState::Ended) else {
            unreachable!("called in this state only");
        };
        match first {
            TLS_HANDSHAKE_RECORD => {
                let identity = admission.identity.ok_or(LinkEnd::ChannelRefused)?;
                clear_stack();
                let handshake = Handshake::target(&identity, admission.peers, self.options.protocols())?;
                self.state = LinkState::Handshaking(Box::new(handshake), Role::Target);
            }
            LOGIN_REQUEST if admission.allow_plain => {
                self.state = LinkState::Plain(Box::new(PlainFramer::new(self.options.data_bytes_max)));
                self.establish(None);
            }
            LOGIN_REQUEST => return Err(LinkEnd::PlainRefused),
            first => return Err(LinkEnd::UnknownProtocol { first }),
        }
        Ok(())
    }

    fn take_handshake_output(&mut self) {
        if let LinkState::Handshaking(handshake, _) = &mut self.state {
            while let Some(bytes) = handshake.poll_transmit() {
                self.out.push(Buffer::from(bytes::Bytes::from(bytes)));
            }
        }
    }

    /// Keys are there, and the record layer of TLS has served.
    fn finish_handshake(&mut self, finished: strongroom_handshake::Finished) {
        let LinkState::Handshaking(handshake, role) = std::mem::replace(&mut self.state, LinkState::Ended) else {
            unreachable!("called in this state only");
        };
        let agreement = ecl::Agreement {
            peer: finished.peer,
            protocol: finished.protocol,
            ecl: finished.ecl,
            pairing: finished.pairing,
        };
        let limits = detached::limits(agreement.protocol, self.options.channel);
        let counters = Arc::clone(&self.options.counters);
        if role == Role::Initiator {
            let channel = Channel::initiator(finished.keys, limits, counters);
            self.state = LinkState::Confirming(Box::new(Confirming {
                handshake: *handshake,
                channel: Box::new(channel),
                agreement,
                frame_begun: false,
            }));
        } else {
            let channel = Channel::target(finished.keys, limits, counters, &mut self.out);
            self.begin_channel(Box::new(channel), agreement);
        }
    }

    fn establish(&mut self, peer: Option<PublicKey>) {
        self.established = true;
        self.peer = peer;
        self.events.push_back(LinkEvent::Established { peer });
    }

    /// What the channel has ready: a PDU, or the peer's goodbye.
    fn take_frame(&mut self) -> Result<(), LinkEnd> {
        let channel = match &mut self.state {
            LinkState::Channel(channel) => channel,
            LinkState::Ecl(ecl) => return ecl.take_message(&mut self.events, &mut self.out),
            _ => return Ok(()),
        };
        if let Some(frame) = channel.poll_frame() {
            let pdu = Pdu::from_channel_frame(frame.header, frame.data, frame.kind == FrameKind::Sealed)?;
            self.events.push_back(LinkEvent::Pdu(pdu));
        } else if channel.is_closed_by_peer() {
            channel.close(&mut self.out);
            return Err(LinkEnd::PeerClosed);
        }
        Ok(())
    }

    fn end(&mut self, end: LinkEnd) {
        self.take_handshake_output(); // The alert that tells the peer why.
        self.state = LinkState::Ended;
        self.setup_deadline = None;
        self.events.push_back(LinkEvent::Ended(end));
    }
}

impl LinkState {
    fn name(&self) -> &'static str {
        match self {
            LinkState::Sniffing(_) => "before the first byte",
            LinkState::Plain(_) => "plain",
            LinkState::Handshaking(..) => "handshaking",
            LinkState::Confirming(..) => "awaiting confirmation",
            LinkState::Channel(_) => "channel",
            LinkState::Detachable(_) => "channel without sessions",
            LinkState::Ecl(_) => "channel of an ECL login",
            LinkState::Ended => "ended",
        }
    }
}

/// How much of a PDU a channel has to protect: the login completely in every scheme, and what has to be concealed; of the rest,
/// what the scheme says.
fn frame_kind(pdu: &Pdu, conceals: bool) -> FrameKind {
    match pdu.bhs.opcode() {
        Some(Opcode::LoginRequest | Opcode::LoginResponse) => FrameKind::Private,
        _ if pdu.sealed => FrameKind::Sealed,
        _ if conceals && !pdu.data.is_empty() => FrameKind::Private,
        _ => FrameKind::Protected,
    }
}

/// Whether an initiator's login is over with this PDU: a Login Response without error that leads to full-feature phase.
fn ends_login(pdu: &Pdu) -> bool {
    const TRANSIT_TO_FULL_FEATURE: u8 = 0x83;
    let flags = pdu.bhs.0[1];
    pdu.bhs.opcode() == Some(Opcode::LoginResponse)
        && flags & TRANSIT_TO_FULL_FEATURE == TRANSIT_TO_FULL_FEATURE
        && pdu.bhs.0[36] == 0
}

/// Overwrites what earlier calls left on the stack, which may be block keys: a handshake is a large value that is built on the stack and
/// moved to the heap, with the bytes of its unused parts, and is freed without being wiped.
#[inline(never)]
fn clear_stack() {
    std::hint::black_box([0_u8; 64 << 10]);
}
