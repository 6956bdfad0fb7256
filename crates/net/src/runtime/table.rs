//! What both drivers share: the table of streams and listeners, the events found but not yet told, and deadlines.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{Shutdown, sockopt};
use slab::Slab;

use super::event::{DatagramId, ListenerId, RuntimeCounters, StreamId};
use super::options::RuntimeOptions;
use super::send_queue::SendQueue;
use super::socket::Listener;
use super::stream::{PeerEnd, Phase, Stream};
use crate::{NetError, StreamFailure};

/// How long a stream closed by its owner may make no progress in handing over its last bytes and seeing the peer's end.
const LINGER: Duration = Duration::from_secs(5);

/// How often that time is extended while bytes still leave.
const LINGER_ROUNDS: u8 = 12;

/// Upper bound on `streams_max`: what the drivers' tokens can name.
const STREAMS_CAP: usize = 1 << 20;

/// How long accepting pauses when the process is out of file descriptors.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A stream that the kernel has given up.
#[derive(Debug)]
pub(super) struct Failed(pub(super) StreamId, pub(super) io::Error);

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) stream: Stream,
    pub(super) generation: u32,
}

/// Something found by the driver, to be told in order.
#[derive(Debug)]
pub(super) enum Pending {
    /// epoll: a receive will not block.
    Readable(StreamId),
    /// io_uring: `len_bytes` lie in provided buffer `buffer`.
    Provided {
        stream: StreamId,
        buffer: u16,
        len_bytes: u32,
    },
    /// `Stream::early` holds bytes.
    Early(StreamId),
    Accepted {
        listener: ListenerId,
        stream: StreamId,
        peer: SocketAddr,
    },
    Connected(StreamId),
    Finished(StreamId),
    /// io_uring: the stream failed, behind what was received before.
    Failed {
        stream: StreamId,
        error: io::Error,
    },
    SendLow(StreamId),
    Datagrams(DatagramId),
    /// Its slot is free already: reported regardless of the table.
    Closed {
        stream: StreamId,
        failure: StreamFailure,
    },
    Woken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Deadline {
    Connect(StreamId),
    Linger(StreamId),
    AcceptAgain,
}

#[derive(Debug)]
pub(super) struct Table {
    pub(super) options: RuntimeOptions,
    pub(super) streams: Slab<Slot>,
    pub(super) listeners: Slab<Listener>,
    /// Datagram sockets that are watched; their owners have them too.
    pub(super) datagrams: Slab<OwnedFd>,
    pub(super) pending: VecDeque<Pending>,
    pub(super) dirty: Vec<StreamId>,
    pub(super) deadlines: BinaryHeap<Reverse<(Instant, Deadline)>>,
    pub(super) counters: RuntimeCounters,
    /// Accepting is paused until `Deadline::AcceptAgain`.
    pub(super) accept_paused: bool,
    /// No warning about refused connections was logged since one was last accepted.
    pub(super) refusal_logged: bool,
    /// Streams in `Phase::Lingering`.
    pub(super) lingering_count: usize,
    generation_next: u32,
}

impl Table {
    pub(super) fn new(mut options: RuntimeOptions) -> Table {
        options.streams_max = options.streams_max.min(STREAMS_CAP);
        Table {
            options,
            streams: Slab::new(),
            datagrams: Slab::new(),
            listeners: Slab::new(),
            pending: VecDeque::new(),
            dirty: Vec::new(),
            deadlines: BinaryHeap::new(),
            counters: RuntimeCounters::default(),
            accept_paused: false,
            refusal_logged: false,
            lingering_count: 0,
            generation_next: 1,
        }
    }

    pub(super) fn insert(&mut self, fd: OwnedFd, peer: SocketAddr, phase: Phase) -> Result<StreamId, NetError> {
        if self.streams.len() >= self.options.streams_max {
            return Err(NetError::TooManyStreams { streams_max: self.options.streams_max });
        }
        let generation = self.generation_next;
        // 31 bits: the highest bit of a token marks a listener.
        self.generation_next = (self.generation_next + 1) & 0x7fff_ffff;
        let stream = Stream::new(fd, peer, phase);
        let index = self.streams.insert(Slot { stream, generation });
        let index = u32::try_from(index).expect("streams_max is far below 2^32");
        Ok(StreamId { index, generation })
    }

    /// The stream, unless it is gone.
    pub(super) fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.streams
            .get_mut(id.index as usize)
            .filter(|slot| slot.generation == id.generation)
            .map(|slot| &mut slot.stream)
    }

    /// The stream, unless it is gone for its owner.
    pub(super) fn owned(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.stream(id).filter(|stream| matches!(stream.phase, Phase::Connecting | Phase::Open))
    }

    pub(super) fn remove(&mut self, id: StreamId) -> Option<Stream> {
        if self.stream(id)?.phase == Phase::Lingering {
            self.lingering_count -= 1;
        }
        Some(self.streams.remove(id.index as usize).stream)
    }

    /// The stream has ended, except in the kernel.
    pub(super) fn bury(&mut self, id: StreamId) {
        let Some(stream) = self.stream(id) else { return };
        if std::mem::replace(&mut stream.phase, Phase::Dead) == Phase::Lingering {
            self.lingering_count -= 1;
        }
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = StreamId> {
        self.streams.iter().map(|(index, slot)| StreamId { index: index as u32, generation: slot.generation })
    }

    pub(super) fn lingering(&self) -> impl Iterator<Item = StreamId> {
        self.streams
            .iter()
            .filter(|(_, slot)| slot.stream.phase == Phase::Lingering)
            .map(|(index, slot)| StreamId { index: index as u32, generation: slot.generation })
    }

    /// Lets the owner see what lies in `Stream::early`, and the end behind it.
    pub(super) fn tell_early(&mut self, id: StreamId) {
        let Some(stream) = self.stream(id) else { return };
        let (parts, finished) = (stream.early.len(), stream.peer_end == PeerEnd::Finished);
        self.pending.extend((0..parts).map(|_| Pending::Early(id)));
        if finished {
            self.pending.push_back(Pending::Finished(id));
        }
    }

    /// Sending failed. What the peer sent before may still explain why, so the end is told when that is read; at once
    /// if the peer does not read.
    pub(super) fn send_failed(&mut self, id: StreamId, error: io::Error) -> Option<Failed> {
        let stream = self.stream(id)?;
        if stream.phase != Phase::Open
            || !stream.receiving
            || stream.peer_end.has_come()
            || stream.send_failure.is_some()
        {
            return Some(Failed(id, error));
        }
        stream.queue = SendQueue::default();
        stream.send_failure = Some(error);
        None
    }

    pub(super) fn arm(&mut self, after: Duration, deadline: Deadline) {
        self.deadlines.push(Reverse((Instant::now() + after, deadline)));
    }

    /// Until the first deadline or `timeout`, whichever comes first; nothing while there are events to tell.
    pub(super) fn wait_at_most(&self, timeout: Option<Duration>) -> Option<Duration> {
        if !self.pending.is_empty() {
            return Some(Duration::ZERO);
        }
        let Some(Reverse((first, _))) = self.deadlines.peek() else { return timeout };
        let until = first.saturating_duration_since(Instant::now());
        Some(timeout.map_or(until, |timeout| timeout.min(until)))
    }

    pub(super) fn due(&mut self) -> Option<Deadline> {
        let Reverse((first, deadline)) = *self.deadlines.peek()?;
        if first > Instant::now() {
            return None;
        }
        self.deadlines.pop();
        Some(deadline)
    }

    /// The owner lets go of the stream. True if nothing is left to do for it.
    pub(super) fn begin_linger(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.owned(id) else { return false };
        if stream.phase == Phase::Connecting {
            return true;
        }
        stream.phase = Phase::Lingering;
        stream.early.clear();
        stream.receiving = true;
        stream.linger_mark = (stream.queue.len_bytes(), 0);
        self.lingering_count += 1;
        self.arm(LINGER, Deadline::Linger(id));
        self.finish_sending(id)
    }

    /// The time to linger is over. True if that is final: no byte left meanwhile, or it took too long altogether.
    pub(super) fn linger_expired(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.stream(id) else { return true };
        let (mark, rounds) = stream.linger_mark;
        let queued_bytes = stream.queue.len_bytes();
        if queued_bytes >= mark || rounds >= LINGER_ROUNDS {
            return true;
        }
        stream.linger_mark = (queued_bytes, rounds + 1);
        self.arm(LINGER, Deadline::Linger(id));
        false
    }

    /// Says that no more bytes come from us, once the queue of a lingering stream is empty. True if it is over then.
    pub(super) fn finish_sending(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.stream(id) else { return false };
        if stream.phase != Phase::Lingering || !stream.queue.is_empty() {
            return false;
        }
        if !stream.sending_shut {
            stream.sending_shut = true;
            let _ = rustix::net::shutdown(&stream.fd, Shutdown::Write);
            self.counters.system_calls += 1;
        }
        self.stream(id).is_some_and(|stream| stream.peer_end.has_come())
    }

    /// Books `sent` bytes of the queue as gone, and tells the owner if that makes room.
    pub(super) fn sent(&mut self, id: StreamId, sent: usize) {
        self.counters.sent_bytes += sent as u64;
        let low_water = self.options.send_low_water_bytes;
        let Some(stream) = self.stream(id) else { return };
        stream.queue.advance(sent);
        if stream.above_high_water && stream.queue.len_bytes() <= low_water {
            stream.above_high_water = false;
            if stream.phase == Phase::Open {
                self.pending.push_back(Pending::SendLow(id));
            }
        }
    }

    /// Whether the kernel made the connection.
    pub(super) fn connect_result(&mut self, id: StreamId) -> io::Result<()> {
        self.counters.system_calls += 1;
        match self.stream(id) {
            Some(stream) => match sockopt::socket_error(&stream.fd) {
                Ok(Ok(())) => Ok(()),
                Ok(Err(errno)) | Err(errno) => Err(errno.into()),
            },
            None => Ok(()),
        }
    }

    /// The connection stands.
    pub(super) fn connected(&mut self, id: StreamId) {
        if let Some(stream) = self.stream(id) {
            stream.phase = Phase::Open;
            self.pending.push_back(Pending::Connected(id));
        }
    }

    /// Takes in a connection that the kernel accepted, or refuses it with a log line.
    pub(super) fn accepted(&mut self, listener: ListenerId, fd: OwnedFd, peer: SocketAddr) -> Option<StreamId> {
        if let Err(error) = self.options.stream.apply(&fd) {
            // The peer is gone already, or a socket option is bad: the first shows soon enough, the second must show.
            tracing::warn!(%peer, %error, "socket options not applied");
        }
        match self.insert(fd, peer, Phase::Open) {
            Ok(stream) => {
                self.counters.accepted += 1;
                self.refusal_logged = false;
                self.pending.push_back(Pending::Accepted { listener, stream, peer });
                Some(stream)
            }
            Err(error) => {
                self.counters.refused += 1;
                if !std::mem::replace(&mut self.refusal_logged, true) {
                    tracing::warn!(%peer, %error, "connection refused (further ones are counted, not logged)");
                }
                None
            }
        }
    }

    /// Accepting failed: out of file descriptors or memory. Pauses instead of spinning.
    pub(super) fn accept_failed(&mut self, errno: Errno) {
        if !self.accept_paused {
            self.accept_paused = true;
            self.arm(ACCEPT_PAUSE, Deadline::AcceptAgain);
            if !std::mem::replace(&mut self.refusal_logged, true) {
                let error = io::Error::from(errno);
                tracing::error!(%error, "cannot accept connections: raise the limit of open files (`ulimit -n`)");
            }
        }
    }
}
