//! The seam below the store: something with bytes at offsets that reads, writes and syncs by token.

mod choose;
mod direct;
mod file;
mod kind;
mod memory;
mod pool;
mod positioned;
mod uring;

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use strongroom_block::{Buffer, BufferMut};

pub(crate) use choose::{Chosen, backend_on};
pub use choose::{IoChoice, IoChoiceError};
pub use file::FileBackend;
pub use kind::IoKind;
pub use memory::{MemoryBackend, SharedMemory};
pub use pool::PoolBackend;
pub use uring::UringBackend;

/// Called, from any thread, when there is something new to poll.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// One I/O.
#[derive(Debug)]
pub enum Io {
    /// Fill `buffer` from `offset`. Bytes past the end of the medium are zeros.
    Read {
        /// In bytes.
        offset: u64,
        /// Aligned; comes back filled.
        buffer: BufferMut,
    },
    /// Write the buffers back to back from `offset`. Durable only after a [`Io::Sync`] submitted after its completion.
    Write {
        /// In bytes.
        offset: u64,
        /// Gathered, not copied.
        buffers: Vec<Buffer>,
    },
    /// Make everything durable that completed before this was submitted.
    Sync,
    /// The bytes are not needed any more: give the space back. They may read as zeros or as before.
    Discard {
        /// In bytes.
        offset: u64,
        /// In bytes.
        len: u64,
    },
    /// Make sure that there is space for these bytes (so that writing them cannot run out of it).
    Allocate {
        /// In bytes.
        offset: u64,
        /// In bytes.
        len: u64,
    },
}

/// A finished I/O.
#[derive(Debug)]
pub struct IoDone {
    /// The submitter's token.
    pub token: u64,
    /// The filled buffer of a read, `None` for everything else.
    pub result: io::Result<Option<BufferMut>>,
}

/// Bytes at offsets. I/Os may complete in any order; every submitted one completes once.
///
/// The store promises not to have overlapping writes in flight, nor a read that overlaps a write and whose result it looks at.
pub trait Backend: Send {
    /// Sets what to call when a completion can be polled that was not there when `submit` returned.
    fn set_waker(&mut self, waker: Waker);
    /// Asks that an eventfd be counted up at every completion instead of calling the waker; false if this one cannot.
    fn set_completion_fd(&mut self, _fd: &OwnedFd) -> bool {
        false
    }
    /// How it does its I/O.
    fn kind(&self) -> IoKind {
        IoKind::Memory
    }
    /// How large the medium is, if that is known: a log that claims to be larger is refused.
    ///
    /// # Errors
    /// If the system cannot tell.
    fn size_bytes(&mut self) -> io::Result<Option<u64>> {
        Ok(None)
    }
    /// Makes the medium at least so large, durably with the next sync. Returns only when done.
    ///
    /// # Errors
    /// `StorageFull` if it cannot be so large.
    fn grow(&mut self, bytes: u64) -> io::Result<()> {
        match self.size_bytes()? {
            Some(size) if size < bytes => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }
    /// How much more the host beneath the medium could give it, if that is known and not promised already.
    fn host_free_bytes(&mut self) -> Option<u64> {
        None
    }
    /// The first bytes at or after `from` that the medium may hold data in; `None`: there are none. What lies between is known to
    /// be zeros that take no space.
    fn data_from(&mut self, from: u64) -> Option<Range<u64>> {
        Some(from..u64::MAX)
    }
    /// The bytes at a place as they lie there, without an I/O and without a copy, if the medium can do that and all of them were written.
    /// They stay as they are as long as somebody has them.
    fn share(&mut self, _offset: u64, _len: usize) -> Option<Buffer> {
        None
    }
    /// Hands an I/O over. It may begin only with the next call of `poll` or `wait`.
    fn submit(&mut self, token: u64, io: Io);
    /// Moves what has completed to the end of `done`; returns how many. Never blocks.
    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize;
    /// Blocks until `poll` will return something. Must not be called with nothing in flight.
    fn wait(&mut self);
}

/// Does one I/O and waits for it; for use before a store is open.
pub(crate) fn blocking(backend: &mut dyn Backend, io: Io) -> io::Result<Option<BufferMut>> {
    backend.submit(u64::MAX, io);
    let mut done = Vec::new();
    while backend.poll(&mut done) == 0 {
        backend.wait();
    }
    done.pop().expect("one was submitted").result
}
