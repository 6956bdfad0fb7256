//! The store's queue of I/O: what each I/O in flight is for, and the results that were not processed yet.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use slab::Slab;
use strongroom_block::{Buffer, BufferMut};

use crate::backend::{Backend, Io, IoDone, IoKind, Waker, blocking};
use crate::cache::RecordKey;

/// Upper bound on the reads whose results one poll processes. Each takes time to verify, and the caller should submit its next reads
/// before the disk is idle.
const READS_PER_POLL: ReadBudget = ReadBudget { count: 8, bytes: 512 << 10 };

#[derive(Clone, Copy, Debug)]
struct ReadBudget {
    count: usize,
    bytes: usize,
}

/// Record blocks that are read together with the data behind them.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordsBefore {
    pub(super) segment: u32,
    /// The first one, in 4 KiB blocks of the segment.
    pub(super) block: u32,
    /// Bytes in front of the data.
    pub(super) bytes: usize,
}

/// The purpose of an I/O in flight.
pub(super) enum Purpose {
    Append { lsn: u64 },
    Allocate,
    Sync,
    Superblock,
    Discard { segment: u32 },
    Reserve { segment: u32 },
    ReadData { read: usize, part: usize, before: Option<RecordsBefore> },
    ReadRecord { key: RecordKey, segment: u32 },
    Compact { segment: u32, piece: usize },
    Scrub,
    Checkpoint,
    Erase,
}

/// A finished I/O: the filled buffer of a read, `None` for everything else.
pub(super) type IoResult = io::Result<Option<BufferMut>>;

/// The backend and its I/Os in flight.
pub(super) struct IoQueue {
    backend: Box<dyn Backend>,
    waker: Waker,
    in_flight: Slab<Purpose>,
    /// Room for the results of one call of the backend.
    polled: Vec<IoDone>,
    /// Finished and not processed.
    finished: VecDeque<IoDone>,
    reads_left: ReadBudget,
    /// An I/O was started since [`IoQueue::take_started`].
    started: bool,
}

impl IoQueue {
    pub(super) fn new(backend: Box<dyn Backend>, waker: Waker) -> IoQueue {
        IoQueue {
            backend,
            waker,
            in_flight: Slab::new(),
            polled: Vec::new(),
            finished: VecDeque::new(),
            reads_left: READS_PER_POLL,
            started: false,
        }
    }

    pub(super) fn new_poll(&mut self) {
        self.reads_left = READS_PER_POLL;
    }

    pub(super) fn start(&mut self, purpose: Purpose, io: Io) {
        self.started = true;
        let token = self.in_flight.insert(purpose);
        self.backend.submit(token as u64, io);
    }

    /// Does one I/O and waits for it. Only while nothing is in flight.
    pub(super) fn blocking(&mut self, io: Io) -> IoResult {
        blocking(self.backend.as_mut(), io)
    }

    /// Fetches results from the backend.
    pub(super) fn poll(&mut self) {
        self.backend.poll(&mut self.polled);
        self.finished.extend(self.polled.drain(..));
    }

    /// The next result, unless this poll has processed as many reads as it may.
    pub(super) fn next_finished(&mut self) -> Option<(Purpose, IoResult)> {
        if self.reads_left.count == 0 || self.reads_left.bytes == 0 {
            return None;
        }
        let IoDone { token, result } = self.finished.pop_front()?;
        // The backend completes what was submitted, once.
        Some((self.in_flight.remove(token as usize), result))
    }

    /// Counts a read for a caller against this poll, if the medium is a disk that works on others meanwhile.
    pub(super) fn count_read(&mut self, bytes: usize) {
        if matches!(self.backend.kind(), IoKind::DirectUring | IoKind::Direct) {
            self.reads_left.count -= 1;
            self.reads_left.bytes = self.reads_left.bytes.saturating_sub(bytes);
        }
    }

    /// Whether an I/O was started since the last call. A medium in memory has finished it already and does not call the waker.
    pub(super) fn take_started(&mut self) -> bool {
        std::mem::take(&mut self.started)
    }

    /// Whether results wait for the next poll.
    pub(super) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Blocks until an I/O has finished, if any is in flight.
    pub(super) fn wait(&mut self) {
        if self.finished.is_empty() && !self.in_flight.is_empty() {
            self.backend.wait();
        }
    }

    /// Asks the store's owner for another poll.
    pub(super) fn wake(&self) {
        (self.waker)();
    }

    pub(super) fn kind(&self) -> IoKind {
        self.backend.kind()
    }

    pub(super) fn set_completion_fd(&mut self, fd: &OwnedFd) -> bool {
        self.backend.set_completion_fd(fd)
    }

    pub(super) fn grow(&mut self, bytes: u64) -> io::Result<()> {
        self.backend.grow(bytes)
    }

    pub(super) fn host_free_bytes(&mut self) -> Option<u64> {
        self.backend.host_free_bytes()
    }

    pub(super) fn data_from(&mut self, from: u64) -> Option<Range<u64>> {
        self.backend.data_from(from)
    }

    pub(super) fn share(&mut self, offset: u64, len: usize) -> Option<Buffer> {
        self.backend.share(offset, len)
    }
}
