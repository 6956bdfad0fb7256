//! Settings and limits of a runtime, and what may lie beneath it.

use std::time::Duration;

use super::busy_poll::BusyPoll;
use super::socket::StreamOptions;

/// What lies beneath a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Readiness by epoll; works everywhere.
    Epoll,
    /// Completions by io_uring; containers often forbid it.
    IoUring,
}

/// What to put beneath a runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlavourChoice {
    /// The better one by `docs/bench/runtime.md`, with the other as the fallback; a log line tells of a fallback.
    #[default]
    Auto,
    /// epoll, even where io_uring is available.
    Epoll,
    /// io_uring or an error.
    IoUring,
}

/// Limits and settings of a runtime.
#[derive(Clone, Debug)]
pub struct RuntimeOptions {
    /// epoll or io_uring.
    pub flavour: FlavourChoice,
    /// Streams that this runtime holds at most; further connections are refused at once, counted and logged.
    pub streams_max: usize,
    /// From this many queued bytes on the owner should stop producing: [`send`](crate::Runtime::send) says so ...
    pub send_high_water_bytes: usize,
    /// ... until the queue is down to this many: then [`SendLow`](crate::Event::SendLow) is told.
    pub send_low_water_bytes: usize,
    /// A peer for which more than this waits is given up ([`NotReading`](crate::StreamFailure::NotReading)).
    pub send_queue_bytes_max: usize,
    /// Most bytes of one [`Received`](crate::Event::Received).
    pub receive_bytes_max: usize,
    /// How long a call to a peer may take.
    pub connect_timeout: Duration,
    /// Whether the runtime looks for work for a short while before it sleeps.
    pub busy_poll: BusyPoll,
    /// How sockets are set up.
    pub stream: StreamOptions,
}

impl Default for RuntimeOptions {
    fn default() -> RuntimeOptions {
        RuntimeOptions {
            flavour: FlavourChoice::Auto,
            streams_max: 1024,
            send_high_water_bytes: 4 << 20,
            send_low_water_bytes: 1 << 20,
            send_queue_bytes_max: 64 << 20,
            receive_bytes_max: 256 << 10,
            connect_timeout: Duration::from_secs(10),
            busy_poll: BusyPoll::Off,
            stream: StreamOptions::default(),
        }
    }
}
