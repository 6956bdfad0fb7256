//! A link that carries the login of an ECL association: messages in a channel. The association's packets go by UDP (`crate::udp`), or behind the
//! login on the same stream, with keys that come from the same handshake; the link stays, and its end is the end of the association.

use std::collections::VecDeque;

use strongroom_block::Buffer;
use strongroom_channel::{Channel, FrameKind};
use strongroom_handshake::{EclSecret, PairingBinding, Protocol, PublicKey};

use super::detached::Detachable;
use super::packets::{LinkPacket, PacketFramer};
use super::{Link, LinkEnd, LinkEvent, LinkPurpose, LinkState, end};

/// Longest message of an ECL login, in bytes: two names, or a reason.
pub const ECL_MESSAGE_BYTES_MAX: usize = 2048;

/// What a handshake has settled.
#[derive(Debug)]
pub(super) struct Agreement {
    pub(super) peer: PublicKey,
    pub(super) protocol: Protocol,
    pub(super) ecl: Option<EclSecret>,
    pub(super) pairing: Option<PairingBinding>,
}

/// The channel of a login, and what the association's keys come from, until they are taken.
#[derive(Debug)]
pub(super) struct EclChannel {
    channel: Box<Channel>,
    secret: Option<EclSecret>,
    /// The stream carries packets: the channel has served.
    packets: Option<PacketFramer>,
}

impl EclChannel {
    pub(super) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// The channel, as long as it is used.
    fn channel_in_use(&mut self) -> Option<&mut Channel> {
        self.packets.is_none().then_some(&mut self.channel)
    }

    /// Takes some of `bytes`: of a packet, or of a message.
    pub(super) fn handle_input(
        &mut self,
        bytes: &[u8],
        events: &mut VecDeque<LinkEvent>,
        out: &mut Vec<Buffer>,
    ) -> Result<usize, LinkEnd> {
        if let Some(framer) = &mut self.packets {
            let (taken, packet) = framer.handle_input(bytes)?;
            events.extend(packet.map(LinkEvent::Packet));
            return Ok(taken);
        }
        let taken = self.channel.handle_input(bytes)?;
        self.take_message(events, out).map(|()| taken)
    }

    /// What the channel has ready: a message, or the peer's goodbye.
    pub(super) fn take_message(
        &mut self,
        events: &mut VecDeque<LinkEvent>,
        out: &mut Vec<Buffer>,
    ) -> Result<(), LinkEnd> {
        if let Some(frame) = self.channel.poll_frame() {
            // Where the scheme leaves other frames readable, a message must be in none of those.
            let is_encrypted = frame.kind == FrameKind::Private
                || frame.kind == FrameKind::Protected && self.channel.scheme().is_confidential();
            if !is_encrypted || !frame.data.is_empty() {
                return Err(LinkEnd::EclLogin("a frame that is no message"));
            }
            events.push_back(LinkEvent::Message(frame.header.to_vec()));
        } else if self.channel.is_closed_by_peer() {
            self.channel.close(out);
            return Err(LinkEnd::PeerClosed);
        }
        Ok(())
    }

    /// What the end of the stream means.
    pub(super) fn end_of_stream(&mut self) -> LinkEnd {
        match &self.packets {
            Some(framer) if framer.is_between_packets() => LinkEnd::PeerClosed,
            Some(_) => LinkEnd::Truncated,
            None => end::of_stream(&mut self.channel),
        }
    }

    /// The goodbye of the channel; a packet has said it, if there are packets.
    pub(super) fn close(&mut self, out: &mut Vec<Buffer>) {
        if let Some(channel) = self.channel_in_use() {
            channel.close(out);
        }
    }
}

impl Link {
    /// The channel stands.
    pub(super) fn begin_channel(&mut self, channel: Box<Channel>, agreement: Agreement) {
        let purpose = match agreement.protocol {
            Protocol::Transfer => LinkPurpose::Transfer,
            Protocol::Pairing => LinkPurpose::Pairing,
            Protocol::Operator => LinkPurpose::Operator,
            Protocol::Ecl => LinkPurpose::Ecl,
            Protocol::Blocks | Protocol::Keys => LinkPurpose::Blocks,
        };
        self.state = match purpose {
            LinkPurpose::Blocks => LinkState::Channel(channel),
            LinkPurpose::Ecl => LinkState::Ecl(Box::new(EclChannel { channel, secret: agreement.ecl, packets: None })),
            LinkPurpose::Transfer | LinkPurpose::Pairing | LinkPurpose::Operator => {
                // What comes next is for who takes the channel.
                self.held = Some(Vec::new());
                LinkState::Detachable(Detachable { purpose, channel, binding: agreement.pairing })
            }
        };
        self.establish(Some(agreement.peer));
    }

    /// What the keys of the association come from, once, if the link is for [`LinkPurpose::Ecl`].
    pub fn take_ecl_secret(&mut self) -> Option<EclSecret> {
        match &mut self.state {
            LinkState::Ecl(ecl) => ecl.secret.take(),
            _ => None,
        }
    }

    /// Queues a message of an ECL login, encrypted under every scheme. After the end or after [`Link::close`] it is dropped.
    pub fn send_message(&mut self, message: &[u8]) {
        if self.closed {
            return;
        }
        let LinkState::Ecl(ecl) = &mut self.state else { return };
        let Some(channel) = ecl.channel_in_use() else { return };
        if let Err(error) = channel.encode(FrameKind::Private, message, Buffer::empty(), &mut self.out) {
            self.end(error.into());
        }
    }

    /// The stream carries packets from now on, in both directions, behind what was sent before. If the link is for [`LinkPurpose::Ecl`].
    pub fn begin_packets(&mut self) {
        if let LinkState::Ecl(ecl) = &mut self.state {
            ecl.packets = Some(PacketFramer::default());
        }
    }

    /// Queues a packet, after [`Link::begin_packets`]. After the end or after [`Link::close`] it is dropped.
    pub fn send_packet(&mut self, packet: LinkPacket) {
        if let LinkState::Ecl(ecl) = &self.state
            && ecl.packets.is_some()
            && !self.closed
        {
            PacketFramer::encode(packet, &mut self.out);
        }
    }
}
