//! Why a link ended: in order, for the peer's fault, or because of the world, always with what to do next.

use std::time::Duration;

use strongroom_channel::{Channel, ChannelError};
use strongroom_handshake::HandshakeError;
use strongroom_iscsi::pdu::PduError;

/// How a link ended. Nothing comes after it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LinkEnd {
    /// The peer ended the connection in order: with the channel's goodbye, or on a plain stream between two PDUs.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The peer connected and left without a byte: a port scan or a health check.
    #[error("the peer connected and left without a word")]
    NothingSaid,
    /// The stream ended in the midst of a PDU or packet.
    #[error("the connection ended in the middle of a message: the peer crashed, or the connection was cut")]
    Truncated,
    /// Handshake or login was not finished in time.
    #[error(
        "{stage} was not finished within {} s: check that the peer runs an iSCSI initiator or Strongroom, and the \
         network between",
        .after.as_secs_f32()
    )]
    TimedOut {
        /// What it was at.
        stage: &'static str,
        /// The limit.
        after: Duration,
    },
    /// The first byte belongs to no protocol that this port speaks.
    #[error("the peer speaks neither iSCSI nor Strongroom (first byte 0x{first:02x}); check who connects here")]
    UnknownProtocol {
        /// The byte.
        first: u8,
    },
    /// A plain iSCSI login where only channels are taken.
    #[error(
        "refused a plain iSCSI login: this port takes only strongroom:// connections; allow plain ones in the \
         configuration if that is meant"
    )]
    PlainRefused,
    /// A channel where the target has no identity.
    #[error(
        "refused a strongroom:// connection: this target has no identity; make one with 'strongroom identity new' and \
         name it in the configuration"
    )]
    ChannelRefused,
    /// The handshake failed.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The channel failed.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The peer sent what is no PDU.
    #[error("the peer broke the protocol: {0}; check that both ends run compatible versions")]
    Pdu(#[from] PduError),
    /// The peer sent what has no place in an ECL login.
    #[error("the peer broke the protocol of an ECL login: {0}; check that both ends run compatible versions")]
    EclLogin(&'static str),
    /// What the peer sent is no packet of an association.
    #[error(
        "a packet of an ECL association has an impossible length: it was changed on the way, or the peer runs an incompatible version"
    )]
    EclPacket,
    /// The caller sent a PDU before the link was established.
    #[error("a message was to be sent before the connection was established; please report this as a bug")]
    SentTooEarly,
}

/// What the end of a channel's stream means.
pub(super) fn of_stream(channel: &mut Channel) -> LinkEnd {
    match channel.handle_eof() {
        Ok(()) => LinkEnd::PeerClosed,
        Err(error) => error.into(),
    }
}

impl LinkEnd {
    /// Whether the peer left as it may, as opposed to a failure that should be logged and retried.
    pub fn is_orderly(&self) -> bool {
        matches!(self, LinkEnd::PeerClosed | LinkEnd::NothingSaid)
    }
}
