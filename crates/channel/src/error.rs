//! Why a channel refused something. Who is to blame is in the name; none of them is answered on the wire.

use crate::Scheme;

/// What went wrong in a channel. After any of the peer's or the world's errors the channel is dead: every later call
/// returns the same error, and the connection is to be dropped without a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// Peer: a frame type that this build does not know.
    #[error("the peer sent a frame of unknown type {0:#04x}; check that both ends run compatible versions")]
    UnknownType(u8),
    /// Peer: a frame that belongs to another scheme.
    #[error("the peer sent a frame of type {found:#04x}, which scheme {scheme} does not have; it breaks the protocol")]
    OtherScheme {
        /// Its type.
        found: u8,
        /// What the handshake agreed on.
        scheme: Scheme,
    },
    /// Peer: a frame under another generation of keys than the one in use.
    #[error(
        "the peer sent a frame under key generation {found}, expected {expected}; the connection was tampered with"
    )]
    Generation {
        /// In the prefix.
        found: u8,
        /// In use.
        expected: u8,
    },
    /// Peer: a header above the limit, known from the prefix.
    #[error("the peer announced a header of {bytes} bytes, above the limit of {limit}")]
    HeaderTooLong {
        /// Announced.
        bytes: usize,
        /// Allowed.
        limit: usize,
    },
    /// Peer: a data segment above the limit, known from the prefix.
    #[error("the peer announced a data segment of {bytes} bytes, above the limit of {limit}; lower its segment length")]
    DataTooLong {
        /// Announced.
        bytes: usize,
        /// Allowed.
        limit: usize,
    },
    /// Peer: lengths that this type of frame cannot have.
    #[error("the peer sent a frame of type {0:#04x} with lengths that it cannot have")]
    Lengths(u8),
    /// The peer or an attacker in the middle: a tag that does not match.
    #[error("a frame is not authentic: the connection was tampered with or damaged; a new connection is needed")]
    NotAuthentic,
    /// Peer: anything but a confirmation as its first frame, or a confirmation later, or from an initiator.
    #[error("the peer sent a frame out of place while the connection was being confirmed")]
    Confirmation,
    /// Peer: a confirmation of another version or scheme.
    #[error("the target speaks channel version {version}, scheme {scheme}; run compatible versions on both ends")]
    Incompatible {
        /// What the target said.
        version: u16,
        /// What the target said.
        scheme: u8,
    },
    /// Peer: it used one generation of keys for too long.
    #[error("the peer did not change its keys in time; the connection was ended")]
    RekeyOverdue,
    /// Peer: it changed keys that had protected nothing.
    #[error("the peer changes its keys without using them; it breaks the protocol")]
    EmptyGeneration,
    /// Peer: bytes after it said that no more would come.
    #[error("the peer sent data after it had closed the connection")]
    AfterClose,
    /// World: the stream ended without the peer's authenticated goodbye.
    #[error("the connection ended without an orderly close: the peer crashed, or the connection was cut")]
    Truncated,
    /// Caller: nothing may be sent before the target's confirmation arrived.
    #[error("the target has not confirmed the connection yet")]
    NotConfirmed,
    /// Caller: this end said goodbye already.
    #[error("this end of the connection is closed")]
    Closed,
    /// Caller: more than the peer takes.
    #[error("a header of {header_bytes} and data of {data_bytes} bytes are more than the peer takes")]
    TooLong {
        /// Of the header.
        header_bytes: usize,
        /// Of the data.
        data_bytes: usize,
    },
    /// Caller: a sealed frame without data.
    #[error("a sealed frame carries block data; send headers alone as protected frames")]
    SealedWithoutData,
}
