//! The channel room: protects PDUs with keys that a handshake left, and knows nothing of what they say.
//!
//! `docs/protocol.md` is the specification. A frame is an 8-byte clear prefix and a PDU: its header (basic header
//! segment and additional header segments), always encrypted and authenticated, and its data. Data is either protected
//! with the header ([`FrameKind::Protected`]) or passed through untouched, because it is sealed already
//! ([`FrameKind::Sealed`]): that is what the lazy schemes are about.
//!
//! Deliberately absent: sockets, TLS, clocks, randomness, iSCSI. One file each: [`ChannelKeys`] and their ratchet,
//! the frame's bytes, the two directions, and [`Channel`] which joins them.

mod channel;
mod error;
mod frame;
mod inbound;
mod keys;
mod limits;
mod outbound;

pub use channel::{Channel, Role};
pub use error::ChannelError;
pub use frame::{FRAME_TYPE_MIN, Frame, FrameKind, PREFIX_BYTES, TAG_BYTES, fuzz_decode};
pub use keys::{ChannelKeys, EXPORTER_BYTES, Scheme};
pub use limits::{ChannelLimits, DATA_BYTES_CAP, GENERATION_FRAMES_CAP, HEADER_BYTES_CAP};
pub use strongroom_block::{CryptoBytes, CryptoCounters};
