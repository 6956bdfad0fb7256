//! A link that both ends agreed to use for something else than sessions: its channel in other hands.

use strongroom_block::Buffer;
use strongroom_channel::{Channel, ChannelLimits};
use strongroom_handshake::{PairingBinding, Protocol, PublicKey};

use super::{ECL_MESSAGE_BYTES_MAX, Link, LinkPurpose, LinkState};

/// Whether a channel may be used for a protocol that is another one than iSCSI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProtocolUse {
    /// It may not.
    #[default]
    Never,
    /// A target: as the initiator likes.
    Admitted,
    /// An initiator: it speaks nothing else.
    Only,
}

/// Longest message of a transfer without what it carries, in bytes: a name and a short text fit.
pub const TRANSFER_MESSAGE_BYTES_MAX: usize = 4096;
/// Most bytes of a stream that one message of a transfer carries.
pub const TRANSFER_PIECE_BYTES_MAX: usize = 256 << 10;
/// Longest message of a pairing, in bytes: names of a peer and of as many volumes as an invitation can have.
pub const PAIRING_MESSAGE_BYTES_MAX: usize = 8192;
/// Longest message of an operator or to one, in bytes: a whole request, or a part of an answer.
pub const OPERATOR_MESSAGE_BYTES_MAX: usize = 16 << 10;

/// What a channel takes: a longer frame is refused as soon as its prefix is there.
pub(super) fn limits(protocol: Protocol, usual: ChannelLimits) -> ChannelLimits {
    let (header_bytes_max, data_bytes_max) = match protocol {
        Protocol::Transfer => (TRANSFER_MESSAGE_BYTES_MAX, TRANSFER_PIECE_BYTES_MAX),
        Protocol::Pairing => (PAIRING_MESSAGE_BYTES_MAX, 0),
        Protocol::Operator => (OPERATOR_MESSAGE_BYTES_MAX, 0),
        Protocol::Ecl => (ECL_MESSAGE_BYTES_MAX, 0),
        Protocol::Blocks | Protocol::Keys => return usual,
    };
    ChannelLimits { header_bytes_max, data_bytes_max, ..usual }
}

/// What is left of a [`Link`] that is for a transfer, a pairing or an operator: the channel, for the code that speaks that protocol.
#[derive(Debug)]
pub struct DetachedChannel {
    /// Confirmed, and no frame of it taken yet.
    pub channel: Channel,
    /// Who the other end has proven to be; of a pairing, at a target, that may be anyone.
    pub peer: PublicKey,
    /// What a proof of an invitation is bound to; of a pairing only.
    pub binding: Option<PairingBinding>,
    /// To be sent before anything else.
    pub unsent: Vec<Buffer>,
    /// What came behind the handshake, for the channel.
    pub unread: Vec<u8>,
}

/// The channel of a link that is to be detached.
pub(super) struct Detachable {
    pub(super) purpose: LinkPurpose,
    pub(super) channel: Box<Channel>,
    pub(super) binding: Option<PairingBinding>,
}

impl Link {
    /// The channel, if the link is for a transfer, a pairing or an operator: [`LinkPurpose::is_detached`].
    pub fn into_detached(self) -> Option<DetachedChannel> {
        let LinkState::Detachable(Detachable { channel, binding, .. }) = self.state else { return None };
        let (peer, unread) = (self.peer?, self.held.unwrap_or_default());
        Some(DetachedChannel { channel: *channel, peer, binding, unsent: self.out, unread })
    }
}
