//! The channel room: protects PDUs with keys that a handshake left, and knows nothing of what they say.
//!
//! `docs/protocol.md` is the specification. A frame is an 8-byte clear prefix and a PDU: its header (basic header
//! segment and additional header segments), always authenticated, and its data. The [`Scheme`] says what else is done:
//! whether headers are encrypted, and whether block data of a sealed unit ([`FrameKind::Sealed`]) is encrypted,
//! authenticated, or passed through untouched because it is sealed already. The last is what the lazy schemes are about.
//!
//! Deliberately absent: sockets, TLS, clocks, randomness, iSCSI. One file each: the [`Scheme`], [`ChannelKeys`] and their
//! ratchet, the frame's bytes, the two directions, and [`Channel`] which joins them.

mod channel;
mod error;
mod frame;
mod inbound;
mod keys;
mod limits;
mod outbound;
mod scheme;

pub use channel::{Channel, Role};
pub use error::ChannelError;
pub use frame::{FRAME_TYPE_MIN, Frame, FrameKind, PREFIX_BYTES, TAG_BYTES, fuzz_decode};
pub use keys::{ChannelKeys, EXPORTER_BYTES};
pub use limits::{ChannelLimits, DATA_BYTES_CAP, GENERATION_TAGS_CAP, HEADER_BYTES_CAP};
pub use scheme::{Scheme, UnknownScheme};
pub use strongroom_block::{CryptoBytes, CryptoCounters};
