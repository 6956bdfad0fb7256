//! A link that carries the login of an ECL association: messages in a channel. The association's packets go by UDP (`crate::udp`), with keys that
//! come from the same handshake; the link stays, and its end is the end of the association.

use strongroom_block::Buffer;
use strongroom_channel::{Channel, ChannelLimits, FrameKind};
use strongroom_handshake::{EclSecret, Protocol, PublicKey};

use super::{Link, LinkEnd, LinkEvent, LinkState, transfer};

/// Whether a channel may be the login of an ECL association, which is another protocol than iSCSI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EclLogins {
    /// It is not.
    #[default]
    Never,
    /// A target: as the initiator likes.
    Admitted,
    /// An initiator: it is nothing else.
    Only,
}

/// Longest message of an ECL login, in bytes: two names, or a reason.
pub const ECL_MESSAGE_BYTES_MAX: usize = 2048;

/// What a handshake has settled.
#[derive(Debug)]
pub(super) struct Agreement {
    pub(super) peer: PublicKey,
    pub(super) protocol: Protocol,
    pub(super) ecl: Option<EclSecret>,
}

impl Agreement {
    /// What the channel takes: a longer frame is refused as soon as its prefix is there.
    pub(super) fn limits(&self, usual: ChannelLimits) -> ChannelLimits {
        match self.protocol {
            Protocol::Transfer => transfer::limits(usual),
            Protocol::Ecl => ChannelLimits { header_bytes_max: ECL_MESSAGE_BYTES_MAX, data_bytes_max: 0, ..usual },
            _ => usual,
        }
    }
}

/// The channel of a login, and what the association's keys come from, until they are taken.
#[derive(Debug)]
pub(super) struct EclChannel {
    channel: Box<Channel>,
    secret: Option<EclSecret>,
}

impl EclChannel {
    pub(super) fn channel(&self) -> &Channel {
        &self.channel
    }

    pub(super) fn channel_mut(&mut self) -> &mut Channel {
        &mut self.channel
    }
}

impl Link {
    /// The channel stands.
    pub(super) fn begin_channel(&mut self, channel: Box<Channel>, agreement: Agreement) {
        match agreement.protocol {
            Protocol::Transfer => self.begin_transfer(channel),
            Protocol::Ecl => self.state = LinkState::Ecl(Box::new(EclChannel { channel, secret: agreement.ecl })),
            _ => self.state = LinkState::Channel(channel),
        }
        self.establish(Some(agreement.peer));
    }

    /// Whether both ends agreed on ECL: then messages flow and no PDUs.
    pub fn is_for_ecl(&self) -> bool {
        matches!(self.state, LinkState::Ecl(_))
    }

    /// What the keys of the association come from, once, if [`Link::is_for_ecl`].
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
        if let Err(error) = ecl.channel.encode(FrameKind::Private, message, Buffer::empty(), &mut self.out) {
            self.end(error.into());
        }
    }

    /// What the channel has ready: a message, or the peer's goodbye.
    pub(super) fn take_message(&mut self) -> Result<(), LinkEnd> {
        let LinkState::Ecl(ecl) = &mut self.state else { return Ok(()) };
        if let Some(frame) = ecl.channel.poll_frame() {
            // Where the scheme leaves other frames readable, a message must be in none of those.
            let is_encrypted = frame.kind == FrameKind::Private
                || frame.kind == FrameKind::Protected && ecl.channel.scheme().is_confidential();
            if !is_encrypted || !frame.data.is_empty() {
                return Err(LinkEnd::EclLogin("a frame that is no message"));
            }
            self.events.push_back(LinkEvent::Message(frame.header.to_vec()));
        } else if ecl.channel.is_closed_by_peer() {
            ecl.channel.close(&mut self.out);
            return Err(LinkEnd::PeerClosed);
        }
        Ok(())
    }
}
