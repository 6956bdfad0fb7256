//! Deadlines of the connections and sessions of a worker, the earliest first.
//!
//! Each owner remembers the deadline for which its timer is set (`armed`), so that an unchanged deadline costs one comparison.

use std::collections::BTreeSet;
use std::time::Instant;

use super::connection::ConnectionKey;
use crate::unit::SessionKey;

/// Whose deadline it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    Connection(ConnectionKey),
    Session(SessionKey),
}

#[derive(Debug, Default)]
pub(super) struct Timers {
    queue: BTreeSet<(Instant, Timer)>,
}

impl Timers {
    /// Sets a timer to `wanted`, or cancels it. `armed`: the deadline for which it is set now.
    pub(super) fn set(&mut self, timer: Timer, armed: &mut Option<Instant>, wanted: Option<Instant>) {
        if *armed == wanted {
            return;
        }
        if let Some(at) = armed.take() {
            self.queue.remove(&(at, timer));
        }
        if let Some(at) = wanted {
            self.queue.insert((at, timer));
            *armed = wanted;
        }
    }

    /// The next timer that has expired. Its owner's `armed` must be cleared.
    pub(super) fn pop_expired(&mut self, now: Instant) -> Option<Timer> {
        let (at, timer) = *self.queue.first()?;
        if at > now {
            return None;
        }
        self.queue.pop_first();
        Some(timer)
    }

    /// The earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.queue.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timers_expire_in_the_order_of_their_deadlines() {
        let (start, mut timers) = (Instant::now(), Timers::default());
        let (first, second) = (Timer::Session(SessionKey(1)), Timer::Connection(ConnectionKey(2)));
        let at = |ms| start + Duration::from_millis(ms);
        let (mut armed_first, mut armed_second) = (None, None);
        timers.set(first, &mut armed_first, Some(at(30)));
        timers.set(second, &mut armed_second, Some(at(20)));
        timers.set(first, &mut armed_first, Some(at(10)));
        assert_eq!((armed_first, timers.next()), (Some(at(10)), Some(at(10))));
        assert_eq!(timers.pop_expired(at(9)), None);
        assert_eq!((timers.pop_expired(at(30)), timers.pop_expired(at(30))), (Some(first), Some(second)));
        let mut armed = None;
        timers.set(first, &mut armed, Some(at(40)));
        timers.set(first, &mut armed, None);
        assert_eq!((armed, timers.next()), (None, None));
    }
}
