//! What one end of a channel is willing to take, and when it changes keys.

/// No header is longer, in bytes: basic header segment and additional header segments together.
pub const HEADER_BYTES_CAP: usize = 65_535;
/// No data segment is longer, in bytes.
pub const DATA_BYTES_CAP: usize = 16 << 20;
/// A receiver ends the channel when one generation of keys has served for this many tags. Senders change far
/// earlier; the bound keeps every key far below what AES-GCM allows, independently of the peer.
pub const GENERATION_TAGS_CAP: u64 = 1 << 24;

/// Limits of one end. A frame above them is refused as soon as its prefix is there, before anything is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelLimits {
    /// Longest header taken, in bytes; at most [`HEADER_BYTES_CAP`].
    pub header_bytes_max: usize,
    /// Longest data segment taken, in bytes; at most [`DATA_BYTES_CAP`]. Also what one connection can make this end
    /// hold. A session's MaxRecvDataSegmentLength must not be larger.
    pub data_bytes_max: usize,
    /// Tags made before this end changes its keys: one for each frame, or two where data has its own.
    pub rekey_tags: u64,
    /// Bytes of headers and data sent before this end changes its keys.
    pub rekey_bytes: u64,
}

impl Default for ChannelLimits {
    fn default() -> Self {
        ChannelLimits {
            header_bytes_max: HEADER_BYTES_CAP,
            data_bytes_max: DATA_BYTES_CAP,
            rekey_tags: 1 << 20,
            rekey_bytes: 64 << 30,
        }
    }
}

impl ChannelLimits {
    /// The same, brought within what the protocol allows.
    pub(crate) fn capped(self) -> ChannelLimits {
        ChannelLimits {
            header_bytes_max: self.header_bytes_max.min(HEADER_BYTES_CAP),
            data_bytes_max: self.data_bytes_max.min(DATA_BYTES_CAP),
            rekey_tags: self.rekey_tags.clamp(1, GENERATION_TAGS_CAP / 2),
            rekey_bytes: self.rekey_bytes.clamp(1, 64 << 30),
        }
    }
}
