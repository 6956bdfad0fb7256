//! A link that both ends agreed to use for an invitation: its channel in other hands, with what the proof is bound to.

use strongroom_channel::ChannelLimits;
use strongroom_handshake::PairingBinding;

use super::transfer::TransferChannel;
use super::{Link, LinkState};

/// Whether a node that the target does not know may take up an invitation over a channel, which is another protocol than iSCSI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pairings {
    /// It may not.
    #[default]
    Never,
    /// A target: as the initiator likes.
    Admitted,
    /// An initiator: it does nothing else.
    Only,
}

/// Longest message of this protocol, in bytes: names of a peer and of as many volumes as an invitation can have.
pub const PAIRING_MESSAGE_BYTES_MAX: usize = 8192;

/// What the channel takes: a longer frame is refused as soon as its prefix is there.
pub(super) fn limits(usual: ChannelLimits) -> ChannelLimits {
    ChannelLimits { header_bytes_max: PAIRING_MESSAGE_BYTES_MAX, data_bytes_max: 0, ..usual }
}

/// What is left of a [`Link`] whose handshake agreed on pairing. The peer's key is proven, and at a target it may be anyone's.
#[derive(Debug)]
pub struct PairingChannel {
    /// The channel, as a transfer has it.
    pub channel: TransferChannel,
    /// What a proof is bound to.
    pub binding: PairingBinding,
}

impl Link {
    /// The channel, if the link is for [`LinkPurpose::Pairing`](super::LinkPurpose::Pairing).
    pub fn into_pairing(self) -> Option<PairingChannel> {
        let LinkState::Pairing(channel, binding) = self.state else { return None };
        let (peer, unread) = (self.peer?, self.held.unwrap_or_default());
        Some(PairingChannel { channel: TransferChannel { channel: *channel, peer, unsent: self.out, unread }, binding })
    }
}
