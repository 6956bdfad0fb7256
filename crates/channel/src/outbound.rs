//! The sending direction: PDUs in, buffers for a vectored write out. Sealed data is passed on by reference.

use std::sync::Arc;

use bytes::BytesMut;
use strongroom_block::{Buffer, CryptoCounters};

use crate::frame::{DataPlace, FrameType, Prefix};
use crate::keys::FrameKeys;
use crate::{ChannelError, ChannelLimits, FrameKind, PREFIX_BYTES, Scheme, TAG_BYTES};

/// Small frames share allocations of this size, in bytes.
const ARENA_BYTES: usize = 16 << 10;

pub(crate) struct Outbound {
    scheme: Scheme,
    keys: FrameKeys,
    /// What the peer takes, and when we change keys.
    pub(crate) limits: ChannelLimits,
    generation_bytes: u64,
    closed: bool,
    arena: BytesMut,
    counters: Arc<CryptoCounters>,
}

impl Outbound {
    pub(crate) fn new(
        scheme: Scheme,
        keys: FrameKeys,
        limits: ChannelLimits,
        counters: Arc<CryptoCounters>,
    ) -> Outbound {
        Outbound { scheme, keys, limits, generation_bytes: 0, closed: false, arena: BytesMut::new(), counters }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn generation(&self) -> u64 {
        self.keys.generation()
    }

    pub(crate) fn pdu(
        &mut self,
        kind: FrameKind,
        header: &[u8],
        data: Buffer,
        out: &mut Vec<Buffer>,
    ) -> Result<(), ChannelError> {
        if self.closed {
            return Err(ChannelError::Closed);
        }
        if header.len() > self.limits.header_bytes_max || data.len() > self.limits.data_bytes_max {
            return Err(ChannelError::TooLong { header_bytes: header.len(), data_bytes: data.len() });
        }
        if kind == FrameKind::Sealed && data.is_empty() {
            return Err(ChannelError::SealedWithoutData);
        }
        let bytes = (header.len() + data.len()) as u64;
        let due = self.keys.tags() >= self.limits.rekey_tags
            || self.generation_bytes.saturating_add(bytes) > self.limits.rekey_bytes;
        if due {
            self.rekey_if_used(out);
        }
        self.generation_bytes = self.generation_bytes.saturating_add(bytes);
        let frame_type = self.scheme.frame_type(kind);
        match frame_type.data_place() {
            DataPlace::WithHeader => {
                let frame = self.frame(frame_type, header, &data, data.len());
                out.push(frame);
            }
            place => {
                let frame = self.frame(frame_type, header, &[], data.len());
                out.push(frame);
                if !data.is_empty() {
                    let tag = (place == DataPlace::BehindWithTag).then(|| self.data_tag(&data));
                    out.push(data);
                    out.extend(tag);
                }
            }
        }
        Ok(())
    }

    /// Sends the target's first frame.
    pub(crate) fn confirm(&mut self, confirmation: &[u8], out: &mut Vec<Buffer>) {
        let frame = self.frame(FrameType::Confirm, confirmation, &[], 0);
        out.push(frame);
    }

    /// Changes keys, unless this generation is as fresh as the next one would be.
    pub(crate) fn rekey_if_used(&mut self, out: &mut Vec<Buffer>) {
        if self.keys.tags() > 0 && !self.closed {
            self.rekey(out);
        }
    }

    fn rekey(&mut self, out: &mut Vec<Buffer>) {
        let frame = self.frame(FrameType::Rekey, &[], &[], 0);
        out.push(frame);
        self.keys.advance();
        self.generation_bytes = 0;
    }

    pub(crate) fn close(&mut self, out: &mut Vec<Buffer>) {
        if !self.closed {
            let frame = self.frame(FrameType::Close, &[], &[], 0);
            out.push(frame);
            self.closed = true;
        }
    }

    /// Prefix, protected header and `inside`, tag. `data_bytes` is what the prefix says, wherever the data is.
    fn frame(&mut self, frame_type: FrameType, header: &[u8], inside: &[u8], data_bytes: usize) -> Buffer {
        let prefix =
            Prefix { frame_type, generation: self.keys.generation_byte(), header_bytes: header.len(), data_bytes }
                .encode();
        let body_bytes = header.len() + inside.len();
        let clear_bytes = frame_type.clear_bytes(header.len());
        self.reserve(PREFIX_BYTES + body_bytes + TAG_BYTES);
        self.arena.extend_from_slice(&prefix);
        self.arena.extend_from_slice(header);
        self.arena.extend_from_slice(inside);
        let (clear, body) = self.arena.split_at_mut(PREFIX_BYTES + clear_bytes);
        let tag = self.keys.seal(clear, body);
        self.arena.extend_from_slice(&tag);
        self.counters.authenticated(clear_bytes);
        self.counters.sealed(body_bytes - clear_bytes);
        self.arena.split().freeze().into()
    }

    /// What authenticates data that goes as it is.
    fn data_tag(&mut self, data: &[u8]) -> Buffer {
        let tag = self.keys.seal(data, &mut []);
        self.counters.authenticated(data.len());
        self.reserve(TAG_BYTES);
        self.arena.extend_from_slice(&tag);
        self.arena.split().freeze().into()
    }

    fn reserve(&mut self, bytes: usize) {
        if self.arena.capacity() < bytes {
            self.arena = BytesMut::with_capacity(bytes.max(ARENA_BYTES));
        }
    }
}
