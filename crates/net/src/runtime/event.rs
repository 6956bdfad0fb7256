//! What a runtime tells its owner, and the names it uses.

use std::net::SocketAddr;

use super::busy_poll::PollCounters;
use crate::StreamFailure;

/// A stream of this runtime. Never reused while the runtime lives (for 2^31 streams).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl StreamId {
    /// A name for a stream of no runtime: a simulation has no sockets.
    #[doc(hidden)]
    pub fn simulated(number: u32) -> StreamId {
        StreamId { index: number, generation: 0 }
    }

    pub(super) fn token(self) -> u64 {
        u64::from(self.index) | u64::from(self.generation) << 32
    }

    pub(super) fn from_token(token: u64) -> StreamId {
        StreamId { index: token as u32, generation: (token >> 32) as u32 }
    }
}

/// A listening socket of this runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub(super) u32);

/// A datagram socket that a runtime watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DatagramId(pub(super) u32);

/// What happened. Events of one stream come in order; none comes after its `Closed`, nor after the owner's `close`,
/// `abort` or `detach`.
#[derive(Debug)]
pub enum Event<'a> {
    /// A peer connected; the stream receives already.
    Accepted {
        /// Where.
        listener: ListenerId,
        /// The new stream.
        stream: StreamId,
        /// Who.
        peer: SocketAddr,
    },
    /// A [`connect`](crate::Runtime::connect) succeeded.
    Connected {
        /// Which.
        stream: StreamId,
    },
    /// Bytes arrived. They are lent until the next call of the runtime.
    Received {
        /// Where.
        stream: StreamId,
        /// Never empty.
        bytes: &'a [u8],
    },
    /// The peer has sent its last byte; sending to it still works. Told once; `close` or `abort` is up to the owner.
    PeerFinished {
        /// Which.
        stream: StreamId,
    },
    /// The send queue, once above its high-water mark, is down to the low-water mark: produce again.
    SendLow {
        /// Which.
        stream: StreamId,
    },
    /// The stream failed and is gone.
    Closed {
        /// Which it was.
        stream: StreamId,
        /// Why.
        failure: StreamFailure,
    },
    /// Packets wait in a datagram socket ([`watch_datagrams`](crate::Runtime::watch_datagrams)).
    DatagramsReady {
        /// In which.
        socket: DatagramId,
    },
    /// A [`Waker`](crate::Waker) was used (any number of times).
    Woken,
}

/// Whether the owner of a stream should go on producing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a producer that ignores `Full` grows the queue until the stream is given up"]
pub enum SendState {
    /// Go on.
    Ready,
    /// The queue is above its high-water mark: stop until [`SendLow`](crate::Event::SendLow).
    Full,
}

/// What a runtime has done since it was made, for metrics and benches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeCounters {
    /// System calls made, all kinds.
    pub system_calls: u64,
    /// Bytes the kernel took from us.
    pub sent_bytes: u64,
    /// Bytes the kernel gave us.
    pub received_bytes: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused for `streams_max`.
    pub refused: u64,
    /// What busy polling came to.
    pub busy_poll: PollCounters,
}
