//! What a client sends, as headers and data. Much of it may come at once: small requests need no system call each, and long data go straight
//! to where they are wanted.

use std::io;
use std::time::Instant;

use strongroom_nbd::INPUT_BYTES_MAX;

use super::stream::Stream;

const BUFFER_BYTES: usize = 64 << 10;
const _: () = assert!(BUFFER_BYTES >= INPUT_BYTES_MAX, "a whole option fits");

/// See the module.
#[derive(Debug)]
pub(super) struct Input {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    pub(super) fn new() -> Input {
        Input { buffer: vec![0; BUFFER_BYTES].into(), start: 0, end: 0 }
    }

    /// What is there.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// So much of it was used.
    pub(super) fn consume(&mut self, len: usize) {
        self.start += len;
        assert!(self.start <= self.end, "no more than there was");
    }

    /// Waits for more; false at the end.
    pub(super) fn receive(&mut self, stream: &Stream, until: Option<Instant>) -> io::Result<bool> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let len = stream.receive(&mut self.buffer[self.end..], until)?;
        self.end += len;
        Ok(len > 0)
    }

    /// Waits until this number of bytes is there. False if the client ended before the first of them.
    ///
    /// # Errors
    /// Also if it ended amid them.
    pub(super) fn has(&mut self, stream: &Stream, len: usize, mut on_receive: impl FnMut()) -> io::Result<bool> {
        while self.bytes().len() < len {
            if !self.receive(stream, None)? {
                return if self.bytes().is_empty() { Ok(false) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            on_receive();
        }
        Ok(true)
    }

    /// Fills all of `target`.
    pub(super) fn read_exact(&mut self, stream: &Stream, target: &mut [u8]) -> io::Result<()> {
        let at_hand = self.bytes().len().min(target.len());
        let (first, mut rest) = target.split_at_mut(at_hand);
        first.copy_from_slice(&self.bytes()[..at_hand]);
        self.consume(at_hand);
        while !rest.is_empty() {
            match stream.receive(rest, None)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => rest = &mut rest[len..],
            }
        }
        Ok(())
    }

    /// Skips this number of bytes.
    pub(super) fn skip(&mut self, stream: &Stream, mut len: usize) -> io::Result<()> {
        loop {
            let part = len.min(self.bytes().len());
            self.consume(part);
            len -= part;
            if len == 0 {
                return Ok(());
            }
            if !self.receive(stream, None)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
