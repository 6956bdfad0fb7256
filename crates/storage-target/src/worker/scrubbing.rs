//! When an open store is scrubbed: one segment a second while it is idle, and a share of time while it is busy, so that a volume that
//! is never idle is scrubbed too.

use std::time::{Duration, Instant};

/// Between two segments of an idle store.
const IDLE_PAUSE: Duration = Duration::from_secs(1);
/// How long scrubbing rests after it went through a store.
const PASS_PAUSE: Duration = Duration::from_secs(24 * 3600);
/// The least that a segment counts for: a medium in memory takes no time, but comparing does.
const SEGMENT_LEAST: Duration = Duration::from_millis(1);

/// The schedule of one store.
pub(super) struct ScrubSchedule {
    next: Instant,
    /// How many times the whole store was read.
    passes: u64,
    /// A segment is being read beside requests since then.
    busy_since: Option<Instant>,
}

impl ScrubSchedule {
    pub(super) fn new(now: Instant) -> ScrubSchedule {
        ScrubSchedule { next: now + IDLE_PAUSE, passes: 0, busy_since: None }
    }

    /// When a segment is to be read next, if nothing changes. `idle_at`: when the store counts as idle. `share_percent`: of time, on a
    /// busy store.
    pub(super) fn deadline(&self, idle_at: Instant, share_percent: u8) -> Instant {
        // The store wakes the worker when a segment that is being read is there.
        let waits = share_percent == 0 || self.busy_since.is_some();
        if waits { self.next.max(idle_at) } else { self.next }
    }

    /// Whether a segment is due on a busy store. `is_scrubbing`: one is being read. Rests in proportion to how long that took.
    pub(super) fn is_due_beside(&mut self, now: Instant, is_scrubbing: bool, share_percent: u8) -> bool {
        if is_scrubbing {
            // Perhaps since the store was idle.
            self.busy_since.get_or_insert(now);
            return false;
        }
        if let Some(since) = self.busy_since.take() {
            let share = u32::from(share_percent.clamp(1, 100));
            let rest = (now - since).max(SEGMENT_LEAST) * (100 - share) / share;
            self.next = self.next.max(now + rest);
        }
        let is_due = share_percent > 0 && now >= self.next;
        self.busy_since = is_due.then_some(now);
        is_due
    }

    /// Whether a segment is due on an idle store.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// A segment was begun on an idle store.
    pub(super) fn begun_idle(&mut self, now: Instant) {
        self.busy_since = None;
        self.next = now + IDLE_PAUSE;
    }

    /// The store was read as a whole this many times.
    pub(super) fn passed(&mut self, now: Instant, passes: u64) {
        if passes > self.passes {
            self.passes = passes;
            self.busy_since = None;
            self.next = now + PASS_PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_store_is_scrubbed_for_its_share_of_time() {
        let start = Instant::now();
        let mut schedule = ScrubSchedule::new(start);
        let ms = Duration::from_millis;
        let (mut now, mut scrubbing_until, mut busy_ms) = (start, None::<Instant>, 0u32);
        // A segment takes 20 ms.
        for _ in 0..100_000 {
            let is_scrubbing = scrubbing_until.is_some_and(|until| now < until);
            busy_ms += u32::from(is_scrubbing);
            if schedule.is_due_beside(now, is_scrubbing, 5) {
                scrubbing_until = Some(now + ms(20));
            }
            now += ms(1);
        }
        assert!((4_500..=5_500).contains(&busy_ms), "{busy_ms} ms of 100 s");
        let none = ScrubSchedule::new(now).is_due_beside(now + ms(5000), false, 0);
        assert!(!none, "without a share only idle stores are scrubbed");
    }

    #[test]
    fn after_a_pass_it_rests_for_a_day() {
        let start = Instant::now();
        let mut schedule = ScrubSchedule::new(start);
        let later = start + Duration::from_secs(10);
        assert!(schedule.is_due(later) && schedule.is_due_beside(later, false, 5));
        schedule.passed(later, 1);
        let hours = |hours: u64| later + Duration::from_secs(3600 * hours);
        assert!(!schedule.is_due(hours(23)) && !schedule.is_due_beside(hours(23), false, 5));
        assert!(schedule.is_due(hours(25)) && schedule.is_due_beside(hours(25), false, 5));
    }
}
