//! The two copies of the superblock: written in turn, so that one of them is always intact.

use super::io::{IoQueue, Purpose};
use crate::backend::Io;
use crate::layout::SUPERBLOCK_AT;
use crate::superblock::Superblock;

/// The superblock, and the copy that is written next.
pub(super) struct Superblocks {
    current: Superblock,
    /// The copy that holds the current one.
    copy: usize,
    writing: Option<Superblock>,
    /// One was written and is not known to be durable. No other may be written until it is.
    is_dirty: bool,
}

impl Superblocks {
    pub(super) fn new(current: Superblock, copy: usize) -> Superblocks {
        Superblocks { current, copy, writing: None, is_dirty: false }
    }

    pub(super) fn current(&self) -> &Superblock {
        &self.current
    }

    pub(super) fn copy(&self) -> usize {
        self.copy
    }

    /// Replaces the current one in memory: an erase begins a new store, which the next write names.
    pub(super) fn replace(&mut self, superblock: Superblock) {
        self.current = superblock;
    }

    pub(super) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.is_dirty
    }

    /// The I/O that writes `next` into the other copy, with the next serial.
    pub(super) fn write(&mut self, next: Superblock) -> Io {
        let copy = self.copy ^ 1;
        let next = Superblock { serial: self.current.serial + 1, ..next };
        let buffers = vec![next.encode(copy).freeze()];
        self.writing = Some(next);
        Io::Write { offset: SUPERBLOCK_AT[copy], buffers }
    }

    pub(super) fn start_write(&mut self, io: &mut IoQueue, next: Superblock) {
        let write = self.write(next);
        io.start(Purpose::Superblock, write);
    }

    /// The write has ended; on success the written superblock is the current one.
    pub(super) fn write_done(&mut self, success: bool) {
        let written = self.writing.take().expect("one superblock is being written");
        if success {
            self.current = written;
            self.copy ^= 1;
            self.is_dirty = true;
        }
    }

    /// A sync that began after the write has ended.
    pub(super) fn synced(&mut self) {
        self.is_dirty = false;
    }
}
