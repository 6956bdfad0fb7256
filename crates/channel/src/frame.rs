//! The bytes of a frame: its prefix, its types, and what a confirmation says.

use std::sync::Arc;

use bytes::Bytes;
use strongroom_block::{Buffer, CryptoCounters};

use crate::{
    Channel, ChannelError, ChannelKeys, ChannelLimits, DATA_BYTES_CAP, EXPORTER_BYTES, HEADER_BYTES_CAP, Scheme,
};

/// Bytes of the clear prefix.
pub const PREFIX_BYTES: usize = 8;
/// Bytes of a frame's authentication tag.
pub const TAG_BYTES: usize = 16;
/// How much of a header the integrity-only schemes leave in the clear: the basic header segment.
pub(crate) const CLEAR_HEADER_BYTES: usize = 48;
/// No frame type is smaller: TLS records start with 0x14 to 0x17, so a receiver can tell the two by the first byte.
pub const FRAME_TYPE_MIN: u8 = 0x40;

/// The version of the channel that this build speaks; a confirmation carries it.
pub(crate) const VERSION: u16 = 1;

/// What is in a PDU, and so how much of it a scheme has to protect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// What is secret under any scheme: the login, and messages that contain a secret. Encrypted completely.
    Private,
    /// A PDU whose data, if any, is not sealed block data: both protected by the channel, as its scheme says.
    Protected,
    /// A PDU whose data is block data of a sealed unit. The lazy schemes pass it on as it is.
    Sealed,
}

/// A PDU that arrived, its header authentic. The data of a `Sealed` one is not in the lazy schemes: its seal records
/// tell.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    /// What is in it.
    pub kind: FrameKind,
    /// Basic header segment and additional header segments.
    pub header: Bytes,
    /// The data segment; starts on a page boundary, unless it is a parameter list that is wiped ([`Channel::wipe_headers`]).
    pub data: Buffer,
}

/// The first byte of a prefix: how a frame's parts are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameType {
    /// Header and data encrypted as one.
    Encrypted = 0x51,
    /// Header encrypted, block data as it is.
    EncryptedHeader = 0x52,
    Confirm = 0x53,
    Rekey = 0x54,
    Close = 0x55,
    /// Header and block data encrypted as one.
    EncryptedBlocks = 0x56,
    /// Header encrypted, block data as it is with a tag of the channel behind it.
    CheckedBlocks = 0x57,
    /// Header and data in the clear, each with a tag.
    Authentic = 0x58,
    /// Header and block data in the clear, each with a tag.
    AuthenticBlocks = 0x59,
    /// Header in the clear with a tag, block data as it is.
    AuthenticHeader = 0x5a,
}

/// Where a frame's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataPlace {
    /// Encrypted with the header, under its tag.
    WithHeader,
    /// Behind the header's tag, as it is.
    Behind,
    /// Behind the header's tag, as it is, with a tag of its own behind it.
    BehindWithTag,
}

impl FrameType {
    const ALL: [FrameType; 10] = [
        FrameType::Encrypted,
        FrameType::EncryptedHeader,
        FrameType::Confirm,
        FrameType::Rekey,
        FrameType::Close,
        FrameType::EncryptedBlocks,
        FrameType::CheckedBlocks,
        FrameType::Authentic,
        FrameType::AuthenticBlocks,
        FrameType::AuthenticHeader,
    ];

    pub(crate) fn data_place(self) -> DataPlace {
        match self {
            FrameType::EncryptedHeader | FrameType::AuthenticHeader => DataPlace::Behind,
            FrameType::CheckedBlocks | FrameType::Authentic | FrameType::AuthenticBlocks => DataPlace::BehindWithTag,
            FrameType::Encrypted
            | FrameType::EncryptedBlocks
            | FrameType::Confirm
            | FrameType::Rekey
            | FrameType::Close => DataPlace::WithHeader,
        }
    }

    /// How many of a header's `header_bytes` are in the clear: the basic header segment, or nothing. Additional header
    /// segments may hold block keys and are encrypted under every scheme.
    pub(crate) fn clear_bytes(self, header_bytes: usize) -> usize {
        match self {
            FrameType::Authentic | FrameType::AuthenticBlocks | FrameType::AuthenticHeader => {
                header_bytes.min(CLEAR_HEADER_BYTES)
            }
            _ => 0,
        }
    }

    /// Whether such a frame carries a PDU, and whether it may have data or must.
    fn carries(self) -> Carries {
        match self {
            FrameType::Encrypted | FrameType::Authentic => Carries::Pdu,
            FrameType::EncryptedHeader
            | FrameType::EncryptedBlocks
            | FrameType::CheckedBlocks
            | FrameType::AuthenticBlocks
            | FrameType::AuthenticHeader => Carries::Blocks,
            FrameType::Confirm => Carries::Confirmation,
            FrameType::Rekey | FrameType::Close => Carries::Nothing,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Carries {
    Pdu,
    Blocks,
    Confirmation,
    Nothing,
}

/// The clear start of a frame; authenticated as associated data. Lengths are of the plaintext.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefix {
    pub(crate) frame_type: FrameType,
    pub(crate) generation: u8,
    pub(crate) header_bytes: usize,
    pub(crate) data_bytes: usize,
}

impl Prefix {
    pub(crate) fn encode(&self) -> [u8; PREFIX_BYTES] {
        let header = u16::try_from(self.header_bytes).expect("checked against the cap of 65535").to_be_bytes();
        let data = u32::try_from(self.data_bytes).expect("checked against the cap of 16 MiB").to_be_bytes();
        [self.frame_type as u8, self.generation, header[0], header[1], data[0], data[1], data[2], data[3]]
    }

    /// Reads a prefix and holds it against `limits`: everything that can be known before more is stored.
    pub(crate) fn decode(bytes: [u8; PREFIX_BYTES], limits: &ChannelLimits) -> Result<Prefix, ChannelError> {
        let frame_type = FrameType::ALL.into_iter().find(|known| *known as u8 == bytes[0]);
        let frame_type = frame_type.ok_or(ChannelError::UnknownType(bytes[0]))?;
        let header_bytes = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        let data_bytes = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as usize;
        let carries = frame_type.carries();
        let possible = match carries {
            Carries::Pdu => true,
            Carries::Blocks => data_bytes > 0,
            Carries::Confirmation => header_bytes == Confirmation::BYTES && data_bytes == 0,
            Carries::Nothing => header_bytes == 0 && data_bytes == 0,
        };
        if !possible {
            return Err(ChannelError::Lengths(bytes[0]));
        }
        if matches!(carries, Carries::Pdu | Carries::Blocks) {
            if header_bytes > limits.header_bytes_max {
                return Err(ChannelError::HeaderTooLong { bytes: header_bytes, limit: limits.header_bytes_max });
            }
            if data_bytes > limits.data_bytes_max {
                return Err(ChannelError::DataTooLong { bytes: data_bytes, limit: limits.data_bytes_max });
            }
        }
        Ok(Prefix { frame_type, generation: bytes[1], header_bytes, data_bytes })
    }
}

/// What the target's first frame says: version u16, scheme u8, reserved u8, longest header u32, longest data u32,
/// reserved u32; big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Confirmation {
    pub(crate) scheme: Scheme,
    pub(crate) header_bytes_max: usize,
    pub(crate) data_bytes_max: usize,
}

impl Confirmation {
    pub(crate) const BYTES: usize = 16;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..2].copy_from_slice(&VERSION.to_be_bytes());
        bytes[2] = self.scheme as u8;
        bytes[4..8].copy_from_slice(&(self.header_bytes_max as u32).to_be_bytes());
        bytes[8..12].copy_from_slice(&(self.data_bytes_max as u32).to_be_bytes());
        bytes
    }

    /// Reserved bytes are ignored, so that a later version may use them.
    pub(crate) fn decode(bytes: &[u8], scheme: Scheme) -> Result<Confirmation, ChannelError> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().map_err(|_| ChannelError::Confirmation)?;
        let version = u16::from_be_bytes([bytes[0], bytes[1]]);
        if version != VERSION || bytes[2] != scheme as u8 {
            return Err(ChannelError::Incompatible { version, scheme: bytes[2] });
        }
        let header_bytes = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as usize;
        let data_bytes = u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
        Ok(Confirmation {
            scheme,
            header_bytes_max: header_bytes.min(HEADER_BYTES_CAP),
            data_bytes_max: data_bytes.min(DATA_BYTES_CAP),
        })
    }
}

/// For fuzzers: reads any bytes as a prefix, as a confirmation, and as a stream to either end, in pieces.
#[doc(hidden)]
pub fn fuzz_decode(bytes: &[u8]) {
    if let Some(prefix) = bytes.first_chunk::<PREFIX_BYTES>()
        && let Ok(decoded) = Prefix::decode(*prefix, &ChannelLimits::default())
    {
        assert_eq!(decoded.encode(), *prefix);
    }
    let counters = Arc::new(CryptoCounters::new());
    let limits = ChannelLimits::default();
    for scheme in Scheme::ALL {
        let _ = Confirmation::decode(bytes, *scheme);
        let keys = || ChannelKeys::new([1; EXPORTER_BYTES], *scheme);
        let target = Channel::target(keys(), limits, Arc::clone(&counters), &mut Vec::new());
        for mut end in [Channel::initiator(keys(), limits, Arc::clone(&counters)), target] {
            for piece in bytes.chunks(1 + usize::from(bytes.first().copied().unwrap_or(0) % 61)) {
                if end.handle_input(piece).is_err() {
                    break;
                }
                assert!(end.poll_frame().is_none(), "without the keys nothing is authentic");
            }
        }
    }
}
