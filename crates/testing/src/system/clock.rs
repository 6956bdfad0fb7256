//! Virtual time.

use std::time::{Duration, Instant};

/// Nanoseconds since the beginning.
pub(super) type Time = u64;

/// One microsecond.
pub(super) const MICRO: Time = 1_000;
/// One millisecond.
pub(super) const MILLI: Time = 1_000_000;
/// One second.
pub(super) const SECOND: Time = 1_000_000_000;

/// The time of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    base: Instant,
    now: Time,
}

impl Clock {
    /// Begins at 0.
    pub(super) fn new() -> Clock {
        Clock { base: Instant::now(), now: 0 }
    }

    /// It is this late.
    pub(super) fn now(&self) -> Time {
        self.now
    }

    /// The same for machines, which know nothing of virtual time.
    pub(super) fn instant(&self) -> Instant {
        self.base + Duration::from_nanos(self.now)
    }

    /// When a machine wants to be woken.
    pub(super) fn time_of(&self, at: Instant) -> Time {
        at.saturating_duration_since(self.base).as_nanos() as Time
    }

    /// Time moves to the next event, by at least a microsecond.
    pub(super) fn advance(&mut self, next: Time) {
        self.now = next.max(self.now + MICRO);
    }
}
