//! How long the iterations of the workers' event loops take, in CPU time of their threads: what one iteration takes, everybody else who
//! uses that worker waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Upper bounds of the histogram's buckets, in microseconds; behind them is one for everything longer.
const UP_TO_US: [u64; 9] = [10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000];

/// How much CPU time an iteration takes before it leaves the rest to the next one.
const ITERATION_GOAL: Duration = Duration::from_millis(2);

/// A histogram of iterations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IterationTimes {
    /// Iterations by their length, the shortest first. Each bucket begins where the one before it ends.
    pub buckets: Vec<IterationBucket>,
    /// The longest iteration, in microseconds.
    pub longest_us: u64,
    /// All of them together, in microseconds.
    #[serde(default)]
    pub total_us: u64,
}

/// Iterations of about one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IterationBucket {
    /// Their CPU time at most, in microseconds; `None`: any.
    pub up_to_us: Option<u64>,
    /// How many there were.
    pub count: u64,
}

impl IterationTimes {
    /// How many iterations took longer than this. Exact for the bounds of buckets.
    pub fn longer_than(&self, limit: Duration) -> u64 {
        let limit_us = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        let is_longer = |bucket: &&IterationBucket| bucket.up_to_us.is_none_or(|up_to_us| up_to_us > limit_us);
        self.buckets.iter().filter(is_longer).map(|bucket| bucket.count).sum()
    }

    /// All iterations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.count).sum()
    }
}

/// The histogram of one worker, which alone writes to it.
#[derive(Debug, Default)]
pub(crate) struct IterationCounts {
    counts: [AtomicU64; UP_TO_US.len() + 1],
    longest_us: AtomicU64,
    total_us: AtomicU64,
}

impl IterationCounts {
    fn record(&self, time: Duration) {
        let time_us = u64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX);
        let at = UP_TO_US.partition_point(|up_to_us| *up_to_us < time_us);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.longest_us.fetch_max(time_us, Ordering::Relaxed);
        self.total_us.fetch_add(time_us, Ordering::Relaxed);
    }

    /// Adds this worker's to a report.
    pub(crate) fn add_to(&self, report: &mut IterationTimes) {
        if report.buckets.is_empty() {
            let bounds = UP_TO_US.iter().copied().map(Some).chain([None]);
            report.buckets = bounds.map(|up_to_us| IterationBucket { up_to_us, count: 0 }).collect();
        }
        for (bucket, count) in report.buckets.iter_mut().zip(&self.counts) {
            bucket.count += count.load(Ordering::Relaxed);
        }
        report.longest_us = report.longest_us.max(self.longest_us.load(Ordering::Relaxed));
        report.total_us += self.total_us.load(Ordering::Relaxed);
    }
}

/// Measures the iterations of the calling thread, each from the end of the one before.
#[derive(Debug)]
pub(crate) struct IterationClock {
    began: Duration,
}

impl IterationClock {
    pub(crate) fn start() -> IterationClock {
        IterationClock { began: thread_time() }
    }

    /// Whether the iteration has taken as long as it should; what can wait then waits for the next one.
    pub(crate) fn is_over(&self) -> bool {
        thread_time().saturating_sub(self.began) >= ITERATION_GOAL
    }

    /// This much of the iteration was no work: looking for some, instead of sleeping.
    pub(crate) fn except(&mut self, looked: Duration) {
        self.began += looked;
    }

    /// An iteration is over, and the next one begins.
    pub(crate) fn lap(&mut self, counts: &IterationCounts) {
        let now = thread_time();
        counts.record(now.saturating_sub(std::mem::replace(&mut self.began, now)));
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_are_counted_by_their_length() {
        let counts = IterationCounts::default();
        for micros in [0, 10, 11, 10_000, 10_001, 5_000_000] {
            counts.record(Duration::from_micros(micros));
        }
        let mut report = IterationTimes::default();
        counts.add_to(&mut report);
        assert_eq!((report.count(), report.longest_us), (6, 5_000_000));
        assert_eq!(report.longer_than(Duration::from_millis(10)), 2);
        assert_eq!(report.longer_than(Duration::from_micros(10)), 4);
        counts.add_to(&mut report);
        assert_eq!(report.count(), 12, "of two workers");
    }

    #[test]
    fn only_work_counts() {
        let counts = IterationCounts::default();
        let mut clock = IterationClock::start();
        std::thread::sleep(Duration::from_millis(50));
        clock.lap(&counts);
        let mut report = IterationTimes::default();
        counts.add_to(&mut report);
        assert_eq!(report.longer_than(Duration::from_millis(30)), 0, "sleeping takes no CPU time");
        let begun = thread_time();
        while thread_time() < begun + Duration::from_millis(5) {}
        assert!(clock.is_over());
        clock.except(Duration::from_millis(4));
        assert!(!clock.is_over(), "looking for work is none");
    }
}
