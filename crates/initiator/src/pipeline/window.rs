//! What may begin now: commands are counted from the beginning of their sealing, or of their way, to their answer.

use std::time::{Duration, Instant};

use super::estimator::{Estimator, Flight, PathSample};
use super::{PathRoundTrip, Pipeline, PipelineStatus};

/// Upper bound on what is sealed and not yet sent, in bytes, beside one command.
const AHEAD_BYTES_MAX: u64 = 8 << 20;

/// One direction's pipeline: of the writes, or of the reads.
#[derive(Debug)]
pub(crate) struct Window {
    pipeline: Pipeline,
    estimator: Estimator,
    /// Being sealed, or sealed and not sent.
    ahead: Load,
    /// Sent and not answered.
    under_way: Load,
    /// A command waits for the window.
    is_waited_for: bool,
}

/// Commands, and their bytes of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    count: u32,
    bytes: u64,
}

impl Load {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: u64) {
        self.count -= 1;
        self.bytes -= bytes;
    }
}

impl Window {
    pub(crate) fn new(pipeline: Pipeline) -> Window {
        let (ahead, under_way) = (Load::default(), Load::default());
        Window { pipeline, estimator: Estimator::default(), ahead, under_way, is_waited_for: false }
    }

    /// The reads' pipeline.
    pub(crate) fn of_reads(pipeline: Pipeline) -> Window {
        Window { estimator: Estimator::of_reads(), ..Window::new(pipeline) }
    }

    /// Whether a command of `bytes` may be sealed now.
    pub(crate) fn may_seal(&self, bytes: u64) -> bool {
        match self.pipeline {
            Pipeline::Fixed { depth, .. } => self.ahead.count + self.under_way.count < depth,
            Pipeline::Auto => self.ahead.count == 0 || self.ahead.bytes + bytes <= AHEAD_BYTES_MAX,
        }
    }

    /// Whether a command of `bytes` may be sent now. That it may not is remembered: the window is what limits, not who writes.
    pub(crate) fn may_send(&mut self, bytes: u64) -> bool {
        match self.pipeline {
            Pipeline::Fixed { depth, .. } => self.under_way.count < depth,
            Pipeline::Auto => {
                let Some(window) = self.estimator.window_bytes() else { return true };
                let window = window.saturating_add(self.estimator.overdue_bytes());
                let fits = self.under_way.count == 0 || self.under_way.bytes + bytes <= window;
                self.is_waited_for = !fits;
                if !fits {
                    self.estimator.held_back();
                }
                fits
            }
        }
    }

    /// A command was held back by something else that follows the window.
    pub(crate) fn held_back(&mut self) {
        self.estimator.held_back();
    }

    /// A command is being sealed.
    pub(crate) fn sealing(&mut self, bytes: u64) {
        self.ahead.add(bytes);
    }

    /// One that was sealed is sent after this, or will never be.
    pub(crate) fn no_longer_ahead(&mut self, bytes: u64) {
        self.ahead.remove(bytes);
    }

    /// A command is sent.
    pub(crate) fn sent(&mut self, now: Instant, bytes: u64) -> Flight {
        let flight = self.estimator.sent(now, bytes, self.under_way.bytes);
        self.under_way.add(bytes);
        flight
    }

    /// One was not sent after all.
    pub(crate) fn not_sent(&mut self, flight: &Flight) {
        self.under_way.remove(flight.bytes);
        self.estimator.not_sent(flight);
    }

    /// A command was answered; `moved`: its data went over the link, all of it.
    pub(crate) fn answered(&mut self, now: Instant, flight: &Flight, moved: bool) {
        self.under_way.remove(flight.bytes);
        self.estimator.answered(now, flight, moved);
    }

    /// When [`Window::handle_timeout`] may let one more command through.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let waits = self.pipeline == Pipeline::Auto && self.is_waited_for;
        waits.then(|| self.estimator.poll_timeout()).flatten()
    }

    /// Time has passed without an answer.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.estimator.handle_timeout(now);
        }
    }

    /// The session is gone: nothing is under way any more.
    pub(crate) fn disconnected(&mut self) {
        self.under_way = Load::default();
        self.is_waited_for = false;
        self.estimator.disconnected();
    }

    /// Nothing is sealed or under way any more.
    pub(crate) fn clear(&mut self) {
        self.disconnected();
        self.ahead = Load::default();
    }

    /// What the kernel says about the connection.
    pub(crate) fn path(&mut self, sample: PathSample) {
        self.estimator.path(sample);
    }

    /// Threads that should seal, of `workers_max`, if one seals this many bytes per second (0: not known). 0: no thread but the
    /// caller's is worth it.
    pub(crate) fn workers(&self, seal_bytes_per_second: f64, workers_max: u32) -> u32 {
        match self.pipeline {
            Pipeline::Fixed { depth: 1, .. } => 0,
            Pipeline::Fixed { workers, .. } => workers,
            Pipeline::Auto => match self.estimator.workers(seal_bytes_per_second, workers_max) {
                1 => 0,
                workers => workers,
            },
        }
    }

    /// Bytes that may be under way, once that was measured, if the way is long enough to matter.
    pub(crate) fn window_bytes(&self) -> Option<u64> {
        match self.pipeline {
            Pipeline::Fixed { .. } => None,
            Pipeline::Auto => self.estimator.window_bytes().filter(|_| self.estimator.is_measured()),
        }
    }

    pub(crate) fn status(&self) -> PipelineStatus {
        let window_bytes = self.window_bytes();
        PipelineStatus {
            depth: match self.pipeline {
                Pipeline::Fixed { depth, .. } => Some(depth),
                Pipeline::Auto => window_bytes.map(|bytes| self.estimator.units_in(bytes)),
            },
            window_bytes,
            round_trip: self.estimator.round_trip().map(Duration::from_secs_f64),
            path: self.estimator.path_round_trip().map(|(now, smallest)| PathRoundTrip { now, smallest }),
            link_bytes_per_second: self.estimator.status_rate(),
            ..PipelineStatus::default()
        }
    }
}
