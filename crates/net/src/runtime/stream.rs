//! One connection of a runtime: its socket, what is queued, and how far it is from its end. Both drivers work on it.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use super::send_queue::SendQueue;
use super::uring_stream::UringStream;

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) fd: OwnedFd,
    pub(super) peer: SocketAddr,
    pub(super) phase: Phase,
    pub(super) queue: SendQueue,
    /// The owner wants what comes in.
    pub(super) receiving: bool,
    pub(super) peer_end: PeerEnd,
    /// We have said that no more bytes come from us.
    pub(super) sending_shut: bool,
    /// In `Table::dirty`: bytes were queued since the last flush.
    pub(super) dirty: bool,
    pub(super) unflushed_bytes: usize,
    /// Sending failed; told when all that the peer sent before is read.
    pub(super) send_failure: Option<io::Error>,
    /// The queue passed the high-water mark and `SendLow` has not been told since.
    pub(super) above_high_water: bool,
    /// Received before the owner could take it: carried over from another runtime, or while receiving was paused.
    pub(super) early: VecDeque<Vec<u8>>,
    /// While lingering: what was queued when the time began, and how often it did.
    pub(super) linger_mark: (usize, u8),
    pub(super) epoll: EpollStream,
    pub(super) uring: UringStream,
}

impl Stream {
    pub(super) fn new(fd: OwnedFd, peer: SocketAddr, phase: Phase) -> Stream {
        Stream {
            fd,
            peer,
            phase,
            queue: SendQueue::default(),
            receiving: true,
            peer_end: PeerEnd::default(),
            sending_shut: false,
            dirty: false,
            unflushed_bytes: 0,
            send_failure: None,
            above_high_water: false,
            early: VecDeque::new(),
            linger_mark: (0, 0),
            epoll: EpollStream::default(),
            uring: UringStream::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The kernel is still calling the peer.
    Connecting,
    /// In use by its owner.
    Open,
    /// Its owner closed it: the rest of the queue goes out, what comes in is discarded, nothing is told.
    Lingering,
    /// Over, but the kernel still holds buffers of it (io_uring only).
    Dead,
}

/// Whether the peer has sent its last byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PeerEnd {
    #[default]
    Open,
    /// It has, and the owner does not know yet.
    Finished,
    /// It has, and `PeerFinished` was reported to the owner.
    Reported,
}

impl PeerEnd {
    /// The kernel says that the peer has sent its last byte.
    pub(super) fn note(&mut self) {
        if *self == PeerEnd::Open {
            *self = PeerEnd::Finished;
        }
    }

    pub(super) fn has_come(self) -> bool {
        self != PeerEnd::Open
    }
}

/// What the epoll driver keeps of each stream.
#[derive(Debug, Default)]
pub(super) struct EpollStream {
    /// Events that the kernel is asked to report.
    pub(super) interest: u32,
    /// A `Pending::Readable` for the stream waits.
    pub(super) readable_pending: bool,
}
