//! A load with a fixed number of I/Os per second: when each of them is due. Latencies are counted from that time, so they include the wait behind
//! a slow I/O.

use std::time::{Duration, Instant};

/// Due times at equal distances.
#[derive(Debug)]
pub(super) struct Pace {
    interval: Duration,
    next_at: Instant,
}

impl Pace {
    /// The first is due now; `None` without a rate.
    pub(super) fn new(per_second: u32, now: Instant) -> Option<Pace> {
        (per_second > 0).then(|| Pace { interval: Duration::from_secs(1) / per_second, next_at: now })
    }

    /// When the next I/O was due, if it is; the one after it is then due an interval later.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Instant> {
        let due = self.next_at;
        (due <= now).then(|| {
            self.next_at += self.interval;
            due
        })
    }

    /// How long until the next I/O is due.
    pub(super) fn until_due(&self, now: Instant) -> Duration {
        self.next_at.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_times_are_evenly_spaced_and_none_is_left_out() {
        let begun = Instant::now();
        assert!(Pace::new(0, begun).is_none());
        let mut pace = Pace::new(1000, begun).unwrap();
        let at = |ms| begun + Duration::from_millis(ms);
        assert_eq!((pace.take_due(begun), pace.take_due(begun)), (Some(begun), None));
        assert_eq!(pace.until_due(begun), Duration::from_millis(1));
        let late: Vec<Instant> = std::iter::from_fn(|| pace.take_due(at(3))).collect();
        assert_eq!(late, [at(1), at(2), at(3)]);
        assert_eq!(pace.until_due(at(9)), Duration::ZERO);
    }
}
