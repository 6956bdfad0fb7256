//! The receiving direction: bytes in any pieces, authentic frames out. One frame is in the making at a time, and never
//! more is stored than its prefix announced within the limits.

use std::sync::Arc;

use bytes::Bytes;
use strongroom_block::{BUFFER_ALIGN, Buffer, BufferMut, CryptoCounters, wiped};
use zeroize::Zeroize as _;

use crate::frame::{CLEAR_HEADER_BYTES, DataPlace, Frame, FrameType, Prefix};
use crate::keys::FrameKeys;
use crate::{ChannelError, ChannelLimits, FrameKind, GENERATION_TAGS_CAP, PREFIX_BYTES, Scheme, TAG_BYTES};

pub(crate) struct Inbound {
    scheme: Scheme,
    keys: FrameKeys,
    limits: ChannelLimits,
    stage: Stage,
    closed: bool,
    /// Header segments and parameter lists may hold block keys.
    holds_keys: bool,
    counters: Arc<CryptoCounters>,
}

/// What arrived whole.
pub(crate) enum Arrival {
    Pdu(Frame),
    Confirmation(Bytes),
    Rekey,
    Close,
}

/// What the next bytes belong to.
enum Stage {
    Prefix { bytes: [u8; PREFIX_BYTES], filled: usize },
    Body { prefix: Prefix, body: Body, filled: usize },
    Data { kind: FrameKind, header: Bytes, data: BufferMut, filled: usize, tag_bytes: usize },
}

/// Where what the header's tag covers lands, behind a copy of the prefix, the tag at its end. With data inside, the data
/// starts on a page boundary.
enum Body {
    Small(Vec<u8>),
    Aligned { buffer: BufferMut, offset: usize },
}

impl Body {
    fn for_prefix(prefix: &Prefix) -> Body {
        let inside = if prefix.frame_type.data_place() == DataPlace::WithHeader { prefix.data_bytes } else { 0 };
        let mut body = if inside == 0 {
            Body::Small(vec![0; PREFIX_BYTES + prefix.header_bytes + TAG_BYTES])
        } else {
            // All that is shown of it is filled before; what lies in front of the header never is.
            let data_at = (PREFIX_BYTES + prefix.header_bytes).next_multiple_of(BUFFER_ALIGN);
            let buffer = BufferMut::to_fill(data_at + inside + TAG_BYTES);
            Body::Aligned { buffer, offset: data_at - prefix.header_bytes - PREFIX_BYTES }
        };
        body.bytes_mut()[..PREFIX_BYTES].copy_from_slice(&prefix.encode());
        body
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Body::Small(bytes) => bytes,
            Body::Aligned { buffer, offset } => &mut buffer[*offset..],
        }
    }

    /// Header and data, after decryption, where they may hold keys: in memory that is wiped when the last reference to it is dropped.
    /// A header without additional segments and block data hold no keys and are treated as any others.
    fn split_wiped(mut self, prefix: &Prefix) -> (Bytes, Buffer) {
        let header_end = PREFIX_BYTES + prefix.header_bytes;
        // Everything that is encrypted as one with the header and is not block data is a parameter list.
        let list_bytes = if prefix.frame_type == FrameType::Encrypted { prefix.data_bytes } else { 0 };
        if prefix.header_bytes <= CLEAR_HEADER_BYTES && list_bytes == 0 {
            return self.split(prefix);
        }
        match &mut self {
            Body::Small(bytes) => (wiped(std::mem::take(bytes)).slice(PREFIX_BYTES..header_end), Buffer::empty()),
            Body::Aligned { buffer, offset } => {
                let header = &mut buffer[*offset + PREFIX_BYTES..*offset + header_end];
                let own_header = wiped(header.to_vec());
                header.zeroize();
                if list_bytes == 0 {
                    return (own_header, self.split(prefix).1);
                }
                let list = &mut buffer[*offset + header_end..*offset + header_end + list_bytes];
                let own_list = wiped(list.to_vec());
                list.zeroize();
                (own_header, Buffer::from(own_list))
            }
        }
    }

    /// Header and data, after decryption.
    fn split(self, prefix: &Prefix) -> (Bytes, Buffer) {
        let header_end = PREFIX_BYTES + prefix.header_bytes;
        match self {
            Body::Small(bytes) => (Bytes::from(bytes).slice(PREFIX_BYTES..header_end), Buffer::empty()),
            Body::Aligned { buffer, offset } => {
                let shared = buffer.freeze();
                let data_at = offset + header_end;
                let header = shared.slice(offset + PREFIX_BYTES..data_at).into_bytes();
                (header, shared.slice(data_at..data_at + prefix.data_bytes))
            }
        }
    }
}

impl Stage {
    fn start() -> Stage {
        Stage::Prefix { bytes: [0; PREFIX_BYTES], filled: 0 }
    }

    /// What is still to be filled.
    fn space(&mut self) -> &mut [u8] {
        match self {
            Stage::Prefix { bytes, filled } => &mut bytes[*filled..],
            Stage::Body { body, filled, .. } => &mut body.bytes_mut()[*filled..],
            Stage::Data { data, filled, .. } => &mut data[*filled..],
        }
    }

    fn filled_mut(&mut self) -> &mut usize {
        match self {
            Stage::Prefix { filled, .. } | Stage::Body { filled, .. } | Stage::Data { filled, .. } => filled,
        }
    }
}

impl Inbound {
    pub(crate) fn new(
        scheme: Scheme,
        keys: FrameKeys,
        limits: ChannelLimits,
        counters: Arc<CryptoCounters>,
    ) -> Inbound {
        Inbound { scheme, keys, limits, stage: Stage::start(), closed: false, holds_keys: false, counters }
    }

    pub(crate) fn wipe_headers(&mut self) {
        self.holds_keys = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn generation(&self) -> u64 {
        self.keys.generation()
    }

    /// Takes bytes until one frame is whole. Returns how many it took and the frame, if it is.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> Result<(usize, Option<Arrival>), ChannelError> {
        let offered = bytes.len();
        while !bytes.is_empty() {
            if self.closed {
                return Err(ChannelError::AfterClose);
            }
            let space = self.stage.space();
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            if let Some(arrival) = self.filled(count)? {
                return Ok((offered - bytes.len(), Some(arrival)));
            }
        }
        Ok((offered, None))
    }

    /// The place of the data in the making, to be read into directly.
    pub(crate) fn space(&mut self) -> Option<&mut [u8]> {
        match self.stage {
            Stage::Prefix { .. } => None,
            Stage::Body { .. } | Stage::Data { .. } => Some(self.stage.space()),
        }
    }

    /// Counts `count` bytes that were put into the stage's space, and finishes the stage if it is full.
    pub(crate) fn filled(&mut self, count: usize) -> Result<Option<Arrival>, ChannelError> {
        assert!(count <= self.stage.space().len(), "more bytes than there was space for");
        *self.stage.filled_mut() += count;
        while self.stage.space().is_empty() {
            if let Some(arrival) = self.finish_stage()? {
                return Ok(Some(arrival));
            }
        }
        Ok(None)
    }

    fn finish_stage(&mut self) -> Result<Option<Arrival>, ChannelError> {
        match std::mem::replace(&mut self.stage, Stage::start()) {
            Stage::Prefix { bytes, .. } => {
                let prefix = self.check_prefix(bytes)?;
                let body = Body::for_prefix(&prefix);
                self.stage = Stage::Body { prefix, body, filled: PREFIX_BYTES };
                Ok(None)
            }
            Stage::Body { prefix, body, .. } => self.open_body(&prefix, body),
            Stage::Data { kind, header, mut data, tag_bytes, .. } => {
                let data_bytes = data.len() - tag_bytes;
                if tag_bytes > 0 {
                    let (data, tag) = data.split_at_mut(data_bytes);
                    self.counters.verified(data_bytes);
                    self.keys.open(data, tag)?;
                }
                Ok(Some(Arrival::Pdu(Frame { kind, header, data: data.freeze().slice(..data_bytes) })))
            }
        }
    }

    fn check_prefix(&self, bytes: [u8; PREFIX_BYTES]) -> Result<Prefix, ChannelError> {
        let prefix = Prefix::decode(bytes, &self.limits)?;
        let expected = self.keys.generation_byte();
        if prefix.generation != expected {
            return Err(ChannelError::Generation { found: prefix.generation, expected });
        }
        if self.keys.tags() >= GENERATION_TAGS_CAP {
            return Err(ChannelError::RekeyOverdue);
        }
        // New keys cost the receiver far more than the 24 bytes that ask for them.
        if prefix.frame_type == FrameType::Rekey && self.keys.tags() == 0 {
            return Err(ChannelError::EmptyGeneration);
        }
        let is_control = matches!(prefix.frame_type, FrameType::Confirm | FrameType::Rekey | FrameType::Close);
        if !is_control && self.scheme.kind_of(prefix.frame_type).is_none() {
            return Err(ChannelError::OtherScheme { found: bytes[0], scheme: self.scheme });
        }
        Ok(prefix)
    }

    fn open_body(&mut self, prefix: &Prefix, mut body: Body) -> Result<Option<Arrival>, ChannelError> {
        let clear_bytes = prefix.frame_type.clear_bytes(prefix.header_bytes);
        let (clear, encrypted) = body.bytes_mut().split_at_mut(PREFIX_BYTES + clear_bytes);
        let opened = self.keys.open(clear, encrypted);
        self.counters.verified(clear_bytes);
        self.counters.opened(encrypted.len() - TAG_BYTES);
        opened?;
        let (header, data) = if self.holds_keys { body.split_wiped(prefix) } else { body.split(prefix) };
        Ok(Some(match (prefix.frame_type, self.scheme.kind_of(prefix.frame_type)) {
            (FrameType::Confirm, _) => Arrival::Confirmation(header),
            (FrameType::Rekey, _) => {
                self.keys.advance();
                Arrival::Rekey
            }
            (FrameType::Close, _) => {
                self.closed = true;
                Arrival::Close
            }
            (frame_type, kind) => {
                let kind = kind.expect("checked with the prefix");
                let tag_bytes = match frame_type.data_place() {
                    DataPlace::BehindWithTag if prefix.data_bytes > 0 => TAG_BYTES,
                    DataPlace::Behind => 0,
                    _ => return Ok(Some(Arrival::Pdu(Frame { kind, header, data }))),
                };
                // The header is authentic, so the announced length is the peer's own word: now memory is given.
                let data = BufferMut::to_fill(prefix.data_bytes + tag_bytes);
                self.stage = Stage::Data { kind, header, data, filled: 0, tag_bytes };
                return Ok(None);
            }
        }))
    }
}
