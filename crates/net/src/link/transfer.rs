//! A link that both ends agreed to use for a transfer: its channel in other hands.

use strongroom_block::Buffer;
use strongroom_channel::{Channel, ChannelLimits};
use strongroom_handshake::PublicKey;

use super::{Link, LinkState};

/// Whether a channel may be one that carries snapshots to a target, which is another protocol than iSCSI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transfers {
    /// It speaks iSCSI.
    #[default]
    Never,
    /// A target: as the initiator likes.
    Admitted,
    /// An initiator: it speaks nothing else.
    Only,
}

/// Longest message of a transfer without what it carries, in bytes: a name and a short text fit.
pub const TRANSFER_MESSAGE_BYTES_MAX: usize = 4096;
/// Most bytes of a stream that one message carries.
pub const TRANSFER_PIECE_BYTES_MAX: usize = 256 << 10;

/// What a transfer's channel takes: a longer frame is refused as soon as its prefix is there.
pub(super) fn limits(usual: ChannelLimits) -> ChannelLimits {
    let (header_bytes_max, data_bytes_max) = (TRANSFER_MESSAGE_BYTES_MAX, TRANSFER_PIECE_BYTES_MAX);
    ChannelLimits { header_bytes_max, data_bytes_max, ..usual }
}

/// What is left of a [`Link`] whose handshake agreed on a transfer: the channel, for the code that speaks that protocol.
#[derive(Debug)]
pub struct TransferChannel {
    /// Confirmed, and no frame of it taken yet.
    pub channel: Channel,
    /// Who the other end has proven to be.
    pub peer: PublicKey,
    /// To be sent before anything else.
    pub unsent: Vec<Buffer>,
    /// What came behind the handshake, for the channel.
    pub unread: Vec<u8>,
}

impl Link {
    /// The channel, if the link is for [`LinkPurpose::Transfer`](super::LinkPurpose::Transfer).
    pub fn into_transfer(self) -> Option<TransferChannel> {
        let LinkState::Transfer(channel) = self.state else { return None };
        let (peer, unread) = (self.peer?, self.held.unwrap_or_default());
        Some(TransferChannel { channel: *channel, peer, unsent: self.out, unread })
    }
}
