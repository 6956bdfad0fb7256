//! A link that both ends agreed to use for an invitation: its channel in other hands, with what the proof is bound to.

use strongroom_channel::{Channel, ChannelLimits};
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
    pub(super) fn begin_pairing(&mut self, channel: Box<Channel>, binding: PairingBinding) {
        // What comes next is none of ours.
        self.held = Some(Vec::new());
        self.state = LinkState::Pairing(channel, binding);
    }

    /// Whether both ends agreed on pairing: then no PDUs flow, and [`Link::into_pairing`] has the channel.
    pub fn is_for_pairing(&self) -> bool {
        matches!(self.state, LinkState::Pairing(..))
    }

    /// The channel, if [`Link::is_for_pairing`].
    pub fn into_pairing(self) -> Option<PairingChannel> {
        let LinkState::Pairing(channel, binding) = self.state else { return None };
        let (peer, unread) = (self.peer?, self.held.unwrap_or_default());
        Some(PairingChannel { channel: TransferChannel { channel: *channel, peer, unsent: self.out, unread }, binding })
    }
}
