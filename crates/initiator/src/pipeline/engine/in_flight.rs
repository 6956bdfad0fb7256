//! Commands in flight together: how many, what they will add to the log, and when silence means that the connection is of no use.

use std::time::{Duration, Instant};

/// More than a ping takes: a transmission of this size or more carries commands or data.
const DATA_BYTES_MIN: usize = 1024;
/// A target that has commands of ours and neither answers, sends data, nor takes data for this long is taken for dead: a new connection is
/// made, and everything unanswered is sent again.
///
/// A command that legitimately takes longer (a long flush) loses nothing by that: a sealed unit executes no write twice, and on a plain
/// one each command says what shall be, not what shall change. It only starts over.
const MUTE_TIMEOUT: Duration = Duration::from_secs(60);
/// A command that is not answered for this long, while others are, was lost by the target: not every target answers commands that
/// another initiator's reset has ended.
const LOST_TIMEOUT: Duration = Duration::from_secs(600);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    pub(super) count: usize,
    /// No command in flight was sent before this. Not looked up for each command that ends, so the oldest may have been sent later.
    none_before: Option<Instant>,
    /// Of writes: they will be in the log once they are acknowledged.
    log_bytes: usize,
    /// When the target last answered, sent data, or took some.
    moved_at: Option<Instant>,
    /// The unit was reset: what was in flight may never be answered.
    was_reset: bool,
}

impl InFlight {
    pub(super) fn log_bytes(&self) -> usize {
        self.log_bytes
    }

    /// `now`: `None` before the engine was told a time.
    pub(super) fn sent(&mut self, now: Option<Instant>, log_bytes: usize) {
        self.count += 1;
        self.none_before = self.none_before.or(now);
        self.log_bytes += log_bytes;
    }

    pub(super) fn ended(&mut self, log_bytes: usize) {
        self.count -= 1;
        self.log_bytes -= log_bytes;
        if self.count == 0 {
            self.none_before = None;
        }
    }

    /// A time-out may be over: `oldest` says when the oldest command in flight was sent.
    pub(super) fn handle_timeout(&mut self, now: Instant, oldest: impl FnOnce() -> Option<Instant>) {
        if self.timeout().is_some_and(|at| at <= now) {
            self.none_before = oldest();
        }
    }

    /// The target took this many bytes: it works, unless they are no more than the answer to a ping.
    pub(crate) fn transmitted(&mut self, now: Instant, bytes: usize) {
        if bytes >= DATA_BYTES_MIN {
            self.moved(now);
        }
    }

    /// The target sent data, or otherwise showed that it works.
    pub(super) fn moved(&mut self, now: Instant) {
        self.moved_at = Some(now);
    }

    /// A command was answered; `says_reset`: its answer says that the unit was reset.
    pub(super) fn answered(&mut self, now: Instant, says_reset: bool) {
        self.moved_at = Some(now);
        self.was_reset = self.count > 0 && (self.was_reset || says_reset);
    }

    /// The session is gone.
    pub(super) fn disconnected(&mut self) {
        *self = InFlight { moved_at: self.moved_at, ..InFlight::default() };
    }

    /// When the time-out of what is in flight ends at the earliest; exact once that time has been handled.
    pub(super) fn timeout(&self) -> Option<Instant> {
        let oldest = self.none_before?;
        let moved = self.moved_at.map_or(oldest, |at| at.max(oldest));
        Some((moved + MUTE_TIMEOUT).min(oldest + LOST_TIMEOUT))
    }

    /// Why only a new connection can settle what is in flight, if that is so.
    pub(super) fn needs_new_connection(&self, now: Instant) -> Option<&'static str> {
        if self.was_reset && self.count > 0 {
            return Some("the unit was reset, and commands in flight with it");
        }
        self.timeout().is_some_and(|at| at <= now).then_some("commands were not answered for too long")
    }
}
