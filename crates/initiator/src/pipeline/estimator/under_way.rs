//! When what is under way was sent, and of which of it the answers are overdue.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Least time from one look to the next: each finds several.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// Commands by the time of their sending; they are answered in any order, as several connections carry them.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    commands: VecDeque<(Instant, u64)>,
    bytes: u64,
    /// This many, the first ones, are overdue, and their bytes.
    overdue: (usize, u64),
    looked_at: Option<Instant>,
    /// What more could have been overdue at that look, in bytes, as far as the pace goes.
    credit_bytes: f64,
}

impl UnderWay {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn overdue_bytes(&self) -> u64 {
        self.overdue.1
    }

    /// One is sent, after all others.
    pub(super) fn add(&mut self, at: Instant, bytes: u64) {
        self.commands.push_back((at, bytes));
        self.bytes += bytes;
    }

    /// One of this many bytes that was sent then is under way no more.
    pub(super) fn remove(&mut self, at: Instant, bytes: u64) {
        let from = self.commands.partition_point(|(sent, _)| *sent < at);
        let after = self.commands.range(from..).position(|command| *command == (at, bytes));
        let Some(place) = after.map(|after| from + after) else { return };
        self.commands.remove(place);
        self.bytes -= bytes;
        if place < self.overdue.0 {
            self.overdue = (self.overdue.0 - 1, self.overdue.1 - bytes);
        }
    }

    /// When to look for the next one whose answer is overdue, `due` after its sending.
    pub(super) fn next_look(&self, due: Duration) -> Option<Instant> {
        let (at, _) = self.commands.get(self.overdue.0)?;
        Some((*at + due).max(self.looked_at? + LOOK_INTERVAL))
    }

    /// Sees which answers are overdue by now, `due` after their sending; none for `None`. From one look to the next they become more at
    /// `bytes_per_second` at most.
    pub(super) fn look(&mut self, now: Instant, due: Option<Duration>, bytes_per_second: f64) {
        let passed = self.looked_at.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        self.looked_at = Some(now);
        let Some(due) = due else {
            self.overdue = (0, 0);
            return;
        };
        self.credit_bytes += if passed > 0.0 { bytes_per_second * passed } else { 0.0 };
        while let Some((at, bytes)) = self.commands.get(self.overdue.0).copied()
            && at + due <= now
        {
            if bytes as f64 > self.credit_bytes {
                return;
            }
            self.credit_bytes -= bytes as f64;
            self.overdue = (self.overdue.0 + 1, self.overdue.1 + bytes);
        }
        // What was not used is not kept for later.
        self.credit_bytes = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUE: Duration = Duration::from_millis(100);

    fn after(begun: Instant, ms: u64) -> Instant {
        begun + Duration::from_millis(ms)
    }

    /// With several connections an answer may overtake the one before it; what is overdue is still what was sent first.
    #[test]
    fn answers_in_any_order_leave_the_oldest_where_it_was() {
        let begun = Instant::now();
        let mut under_way = UnderWay::default();
        for ms in [0, 50, 60] {
            under_way.add(after(begun, ms), 10);
        }
        under_way.look(begun, Some(DUE), 1e9);
        under_way.remove(after(begun, 50), 10);
        assert_eq!((under_way.bytes(), under_way.next_look(DUE)), (20, Some(after(begun, 100))));
        under_way.look(after(begun, 100), Some(DUE), 1e9);
        assert_eq!((under_way.overdue_bytes(), under_way.next_look(DUE)), (10, Some(after(begun, 160))));
        under_way.remove(after(begun, 60), 10);
        assert_eq!((under_way.bytes(), under_way.overdue_bytes(), under_way.next_look(DUE)), (10, 10, None));
        under_way.remove(begun, 10);
        assert_eq!((under_way.bytes(), under_way.overdue_bytes()), (0, 0));
        under_way.remove(begun, 10);
    }

    #[test]
    fn what_is_overdue_grows_no_faster_than_the_link() {
        let begun = Instant::now();
        let mut under_way = UnderWay::default();
        (0..10).for_each(|_| under_way.add(begun, 1000));
        // Nobody looked for a second, but what is overdue was so only from the tenth of it on, and credit is not saved up.
        under_way.look(begun, Some(DUE), 1000.0 * 1000.0);
        under_way.look(after(begun, 99), Some(DUE), 1000.0 * 1000.0);
        for (ms, bytes) in [(100, 1000), (102, 3000), (104, 5000), (104, 5000), (200, 10_000)] {
            under_way.look(after(begun, ms), Some(DUE), 1000.0 * 1000.0);
            assert_eq!(under_way.overdue_bytes(), bytes, "after {ms} ms");
        }
        under_way.look(after(begun, 201), None, 0.0);
        assert_eq!(under_way.overdue_bytes(), 0);
    }
}
