//! The receiving direction: bytes in any pieces, authentic frames out. One frame is in the making at a time, and never
//! more is stored than its prefix announced within the limits.

use std::sync::Arc;

use bytes::Bytes;
use strongroom_block::{BUFFER_ALIGN, Buffer, BufferMut, CryptoCounters};

use crate::frame::{Frame, FrameKind, FrameType, Prefix};
use crate::keys::FrameKeys;
use crate::{ChannelError, ChannelLimits, GENERATION_FRAMES_CAP, PREFIX_BYTES, TAG_BYTES};

pub(crate) struct Inbound {
    keys: FrameKeys,
    limits: ChannelLimits,
    stage: Stage,
    closed: bool,
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
    SealedData { header: Bytes, data: BufferMut, filled: usize },
}

/// Where the encrypted part and its tag land. With data inside, the data starts on a page boundary.
enum Body {
    Small(Vec<u8>),
    Aligned { buffer: BufferMut, offset: usize },
}

impl Body {
    fn for_prefix(prefix: &Prefix) -> Body {
        let inside = if prefix.frame_type == FrameType::Protected { prefix.data_bytes } else { 0 };
        if inside == 0 {
            return Body::Small(vec![0; prefix.header_bytes + TAG_BYTES]);
        }
        // Fresh zeroed pages: memory is only touched as bytes arrive.
        let data_at = prefix.header_bytes.next_multiple_of(BUFFER_ALIGN);
        let buffer = BufferMut::zeroed(data_at + inside + TAG_BYTES);
        Body::Aligned { buffer, offset: data_at - prefix.header_bytes }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Body::Small(bytes) => bytes,
            Body::Aligned { buffer, offset } => &mut buffer[*offset..],
        }
    }

    /// Header and data, after decryption.
    fn split(self, prefix: &Prefix) -> (Bytes, Buffer) {
        match self {
            Body::Small(mut bytes) => {
                bytes.truncate(prefix.header_bytes);
                (Bytes::from(bytes), Buffer::empty())
            }
            Body::Aligned { buffer, offset } => {
                let shared = buffer.freeze();
                let data_at = offset + prefix.header_bytes;
                let header = shared.slice(offset..data_at).into_bytes();
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
            Stage::SealedData { data, filled, .. } => &mut data[*filled..],
        }
    }

    fn filled_mut(&mut self) -> &mut usize {
        match self {
            Stage::Prefix { filled, .. } | Stage::Body { filled, .. } | Stage::SealedData { filled, .. } => filled,
        }
    }
}

impl Inbound {
    pub(crate) fn new(keys: FrameKeys, limits: ChannelLimits, counters: Arc<CryptoCounters>) -> Inbound {
        Inbound { keys, limits, stage: Stage::start(), closed: false, counters }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
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
            Stage::Body { .. } | Stage::SealedData { .. } => Some(self.stage.space()),
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
                self.stage = Stage::Body { prefix, body, filled: 0 };
                Ok(None)
            }
            Stage::Body { prefix, body, .. } => self.open_body(&prefix, body),
            Stage::SealedData { header, data, .. } => {
                Ok(Some(Arrival::Pdu(Frame { kind: FrameKind::Sealed, header, data: data.freeze() })))
            }
        }
    }

    fn check_prefix(&self, bytes: [u8; PREFIX_BYTES]) -> Result<Prefix, ChannelError> {
        let prefix = Prefix::decode(bytes, &self.limits)?;
        let expected = self.keys.generation_byte();
        if prefix.generation != expected {
            return Err(ChannelError::Generation { found: prefix.generation, expected });
        }
        if self.keys.frames() >= GENERATION_FRAMES_CAP {
            return Err(ChannelError::RekeyOverdue);
        }
        Ok(prefix)
    }

    fn open_body(&mut self, prefix: &Prefix, mut body: Body) -> Result<Option<Arrival>, ChannelError> {
        let opened = self.keys.open(&prefix.encode(), body.bytes_mut());
        self.counters.opened(body.bytes_mut().len() - TAG_BYTES);
        opened?;
        let (header, data) = body.split(prefix);
        Ok(Some(match prefix.frame_type {
            FrameType::Protected => Arrival::Pdu(Frame { kind: FrameKind::Protected, header, data }),
            FrameType::Confirm => Arrival::Confirmation(header),
            FrameType::Rekey => {
                self.keys.advance();
                Arrival::Rekey
            }
            FrameType::Close => {
                self.closed = true;
                Arrival::Close
            }
            FrameType::Sealed => {
                // The header is authentic, so the announced length is the peer's own word: now memory is given.
                let data = BufferMut::zeroed(prefix.data_bytes);
                self.stage = Stage::SealedData { header, data, filled: 0 };
                return Ok(None);
            }
        }))
    }
}
