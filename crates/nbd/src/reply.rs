//! Replies, in the format that was agreed on.

use strongroom_block::{BlockSize, Buffer};

use crate::error::NbdError;
use crate::export::ReplyFormat;
use crate::request::RequestId;
use crate::wire::{
    ALLOCATION_CONTEXT_ID, EXTENDED_REPLY_MAGIC, REPLY_FLAG_DONE, SIMPLE_REPLY_MAGIC, STATE_ABSENT,
    STRUCTURED_REPLY_MAGIC, reply_type,
};

/// Longest text of an error, in bytes. The specification allows 4096.
const ERROR_TEXT_BYTES_MAX: usize = 1024;
/// Room for the longest header of a chunk and its fixed fields, in bytes.
const HEAD_BYTES: usize = 48;

/// Bytes to send: a head, and data behind it that need not be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// A header, with the fields that follow it.
    pub head: Vec<u8>,
    /// Contents of the export.
    pub body: Buffer,
}

/// A part of the export, and whether it is a hole, which reads as zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// At least one.
    pub len_bytes: u64,
    /// It is absent.
    pub is_hole: bool,
}

/// Encodes the replies of one connection.
#[derive(Clone, Copy, Debug)]
pub struct ReplyEncoder {
    format: ReplyFormat,
}

impl ReplyEncoder {
    /// As was agreed.
    pub fn new(format: ReplyFormat) -> ReplyEncoder {
        ReplyEncoder { format }
    }

    /// Success, of a request that is not answered with data.
    pub fn done(self, id: RequestId) -> Message {
        let head = match self.format {
            ReplyFormat::Simple | ReplyFormat::Structured => simple_head(id, 0),
            ReplyFormat::Extended => self.chunk_head(id, REPLY_FLAG_DONE, reply_type::NONE, 0),
        };
        Message { head, body: Buffer::empty() }
    }

    /// A failure; a client with chunks is told the reason too.
    pub fn error(self, id: RequestId, error: NbdError, reason: &str) -> Message {
        let number = error.number();
        if self.format == ReplyFormat::Simple {
            return Message { head: simple_head(id, number), body: Buffer::empty() };
        }
        let text = shortened(reason);
        let mut head = self.chunk_head(id, REPLY_FLAG_DONE, reply_type::ERROR, 6 + text.len() as u64);
        head.extend_from_slice(&number.to_be_bytes());
        head.extend_from_slice(&(text.len() as u16).to_be_bytes());
        head.extend_from_slice(text.as_bytes());
        Message { head, body: Buffer::empty() }
    }

    /// The data of a read, which follow each other from its offset on. In chunks, blocks of zeros become holes, unless the client wants one
    /// chunk.
    pub fn read(self, id: RequestId, data: &[Buffer], block_size: BlockSize, dont_fragment: bool) -> Vec<Message> {
        let is_split = self.format != ReplyFormat::Simple && !dont_fragment;
        if is_split { self.read_chunks(id, data, block_size) } else { self.read_whole(id, data) }
    }

    /// What is allocated, from the request's offset on.
    pub fn block_status(self, id: RequestId, extents: &[Extent]) -> Message {
        let is_extended = self.format == ReplyFormat::Extended;
        let mut payload = ALLOCATION_CONTEXT_ID.to_be_bytes().to_vec();
        if is_extended {
            payload.extend_from_slice(&(extents.len() as u32).to_be_bytes());
        }
        for extent in extents {
            let state = if extent.is_hole { STATE_ABSENT } else { 0 };
            if is_extended {
                payload.extend_from_slice(&extent.len_bytes.to_be_bytes());
                payload.extend_from_slice(&u64::from(state).to_be_bytes());
            } else {
                // A request has a length of 32 bits then, and extents do not reach beyond it.
                payload.extend_from_slice(&(extent.len_bytes as u32).to_be_bytes());
                payload.extend_from_slice(&state.to_be_bytes());
            }
        }
        let kind = if is_extended { reply_type::BLOCK_STATUS_EXT } else { reply_type::BLOCK_STATUS };
        let mut head = self.chunk_head(id, REPLY_FLAG_DONE, kind, payload.len() as u64);
        head.extend_from_slice(&payload);
        Message { head, body: Buffer::empty() }
    }

    fn read_whole(self, id: RequestId, data: &[Buffer]) -> Vec<Message> {
        let len: usize = data.iter().map(|part| part.len()).sum();
        let mut head = match self.format {
            ReplyFormat::Simple => simple_head(id, 0),
            _ => self.data_head(id, REPLY_FLAG_DONE, id.offset, len),
        };
        let message = |part: &Buffer| Message { head: std::mem::take(&mut head), body: part.clone() };
        data.iter().map(message).collect()
    }

    fn read_chunks(self, id: RequestId, data: &[Buffer], block_size: BlockSize) -> Vec<Message> {
        let mut messages = Vec::with_capacity(1);
        let mut offset = id.offset;
        let last = data.len().saturating_sub(1);
        for (part, at) in data.iter().zip(0..) {
            let mut runs = Runs { data: part, offset, block_bytes: block_size.len(), start: 0 }.peekable();
            while let Some(run) = runs.next() {
                let flags = if at == last && runs.peek().is_none() { REPLY_FLAG_DONE } else { 0 };
                messages.push(self.run(id, flags, offset + run.start as u64, part, run));
            }
            offset += part.len() as u64;
        }
        messages
    }

    fn run(self, id: RequestId, flags: u16, offset: u64, part: &Buffer, run: Run) -> Message {
        if run.is_zero {
            let mut head = self.chunk_head(id, flags, reply_type::OFFSET_HOLE, 12);
            head.extend_from_slice(&offset.to_be_bytes());
            head.extend_from_slice(&((run.end - run.start) as u32).to_be_bytes());
            return Message { head, body: Buffer::empty() };
        }
        let head = self.data_head(id, flags, offset, run.end - run.start);
        Message { head, body: part.slice(run.start..run.end) }
    }

    fn data_head(self, id: RequestId, flags: u16, offset: u64, len: usize) -> Vec<u8> {
        let mut head = self.chunk_head(id, flags, reply_type::OFFSET_DATA, 8 + len as u64);
        head.extend_from_slice(&offset.to_be_bytes());
        head
    }

    fn chunk_head(self, id: RequestId, flags: u16, kind: u16, len: u64) -> Vec<u8> {
        let is_extended = self.format == ReplyFormat::Extended;
        let magic = if is_extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC };
        let mut head = Vec::with_capacity(HEAD_BYTES);
        head.extend_from_slice(&magic.to_be_bytes());
        head.extend_from_slice(&flags.to_be_bytes());
        head.extend_from_slice(&kind.to_be_bytes());
        head.extend_from_slice(&id.cookie.to_be_bytes());
        if is_extended {
            head.extend_from_slice(&id.offset.to_be_bytes());
            head.extend_from_slice(&len.to_be_bytes());
        } else {
            head.extend_from_slice(&(len as u32).to_be_bytes());
        }
        head
    }
}

/// As much of it as may be sent.
fn shortened(text: &str) -> &str {
    let end = (0..=text.len().min(ERROR_TEXT_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

fn simple_head(id: RequestId, error: u32) -> Vec<u8> {
    let mut head = Vec::with_capacity(16);
    head.extend_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    head.extend_from_slice(&error.to_be_bytes());
    head.extend_from_slice(&id.cookie.to_be_bytes());
    head
}

/// A stretch of data, by its place in them.
#[derive(Clone, Copy)]
struct Run {
    start: usize,
    end: usize,
    is_zero: bool,
}

/// Whole blocks of zeros, and what is between them.
struct Runs<'a> {
    data: &'a [u8],
    /// Of the data in the export.
    offset: u64,
    block_bytes: usize,
    start: usize,
}

impl Runs<'_> {
    /// To the end of the block that holds the byte at `start`.
    fn piece(&self, start: usize) -> Run {
        let within = ((self.offset + start as u64) % self.block_bytes as u64) as usize;
        let end = (start + self.block_bytes - within).min(self.data.len());
        let is_whole = end - start == self.block_bytes;
        Run { start, end, is_zero: is_whole && is_zero(&self.data[start..end]) }
    }
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        if self.start == self.data.len() {
            return None;
        }
        let mut run = self.piece(self.start);
        while run.end < self.data.len() {
            let next = self.piece(run.end);
            if next.is_zero != run.is_zero {
                break;
            }
            run.end = next.end;
        }
        self.start = run.end;
        Some(run)
    }
}

/// Comparing with itself, shifted by one byte, is a comparison of memory, which stops at the first difference.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.first().is_none_or(|first| *first == 0 && bytes[1..] == bytes[..bytes.len() - 1])
}
