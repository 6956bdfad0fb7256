//! What busy polling came to in the workers' runtimes, for status reports.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strongroom_net::PollCounters;

/// Looks for work before a worker sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyPollReport {
    /// Looks begun.
    pub polls: u64,
    /// Looks that found something.
    pub hits: u64,
    /// Looks that found nothing in their time.
    pub misses: u64,
    /// Looks that ended early, because another thread wanted the processor.
    pub contended: u64,
    /// Time spent looking, in microseconds.
    pub spent_us: u64,
}

/// The counters of one worker, which alone writes to them.
#[derive(Debug, Default)]
pub(crate) struct PollCounts {
    polls: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    contended: AtomicU64,
    spent_us: AtomicU64,
}

impl PollCounts {
    /// Publishes what its runtime counted.
    pub(crate) fn set(&self, counters: &PollCounters) {
        let PollCounters { polls, hits, misses, contended, spent } = *counters;
        let spent_us = micros(spent);
        let counts = [(&self.polls, polls), (&self.hits, hits), (&self.misses, misses)];
        for (count, value) in counts.into_iter().chain([(&self.contended, contended), (&self.spent_us, spent_us)]) {
            count.store(value, Ordering::Relaxed);
        }
    }

    /// Adds this worker's to a report.
    pub(crate) fn add_to(&self, report: &mut BusyPollReport) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        report.polls += load(&self.polls);
        report.hits += load(&self.hits);
        report.misses += load(&self.misses);
        report.contended += load(&self.contended);
        report.spent_us += load(&self.spent_us);
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_added_up() {
        let spent = Duration::from_micros(5);
        let counters = PollCounters { polls: 10, hits: 7, misses: 2, contended: 1, spent };
        let (counts, mut report) = (PollCounts::default(), BusyPollReport::default());
        counts.set(&counters);
        counts.set(&PollCounters { polls: 11, hits: 8, ..counters });
        counts.add_to(&mut report);
        counts.add_to(&mut report);
        assert_eq!(report, BusyPollReport { polls: 22, hits: 16, misses: 4, contended: 2, spent_us: 10 });
    }
}
