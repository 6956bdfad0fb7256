//! How long operations take: histograms with fixed buckets, one for each kind of operation. Deliberately absent: the clock. Who measures
//! says how long it took.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What an operation does, as latencies are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum IoKind {
    /// Reads blocks.
    Read,
    /// Writes blocks.
    Write,
    /// Writes blocks if they are as expected: CONDITIONAL WRITE, COMPARE AND WRITE.
    ConditionalWrite,
    /// Makes writes durable.
    Flush,
    /// Makes blocks absent.
    Discard,
    /// Tells which versions opened.
    Feedback,
    /// Reads blocks without returning them.
    Verify,
    /// Anything else that takes an operation of the store.
    Other,
}

impl IoKind {
    /// All of them.
    pub const ALL: [IoKind; 8] = [
        IoKind::Read,
        IoKind::Write,
        IoKind::ConditionalWrite,
        IoKind::Flush,
        IoKind::Discard,
        IoKind::Feedback,
        IoKind::Verify,
        IoKind::Other,
    ];

    /// In snake case, for metrics.
    pub const fn name(self) -> &'static str {
        match self {
            IoKind::Read => "read",
            IoKind::Write => "write",
            IoKind::ConditionalWrite => "conditional_write",
            IoKind::Flush => "flush",
            IoKind::Discard => "discard",
            IoKind::Feedback => "feedback",
            IoKind::Verify => "verify",
            IoKind::Other => "other",
        }
    }
}

/// Upper bound of the first bucket, in nanoseconds. Each of the others reaches twice as far as the one before.
const FIRST_BOUND_NS: u64 = 4_000;
/// Buckets with an upper bound: from 4 microseconds to 16.8 seconds. One more has everything longer.
const BOUNDED_BUCKETS: usize = 23;
const BUCKETS: usize = BOUNDED_BUCKETS + 1;

/// The bucket of an operation that took this long, in nanoseconds. Its bound is the least that is not exceeded.
fn bucket(time_ns: u64) -> usize {
    let bounds = time_ns.saturating_sub(1) / FIRST_BOUND_NS;
    let doublings = bounds.checked_ilog2().map_or(0, |log| log as usize + 1);
    doublings.min(BOUNDED_BUCKETS)
}

/// The histograms of one thread, which alone writes to them: an operation costs two additions, and no lock. Others read them at any time.
#[derive(Debug, Default)]
pub struct LatencyCounters {
    /// By [`IoKind`].
    histograms: [HistogramCounters; IoKind::ALL.len()],
}

#[derive(Debug, Default)]
struct HistogramCounters {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl LatencyCounters {
    /// An operation has ended that took this long.
    pub fn record(&self, kind: IoKind, time: Duration) {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let histogram = &self.histograms[kind as usize];
        histogram.counts[bucket(time_ns)].fetch_add(1, Ordering::Relaxed);
        histogram.sum_ns.fetch_add(time_ns, Ordering::Relaxed);
    }

    /// Adds these histograms to others.
    pub fn add_to(&self, latencies: &mut Latencies) {
        for (sum, histogram) in latencies.histograms.iter_mut().zip(&self.histograms) {
            for (count, counter) in sum.counts.iter_mut().zip(&histogram.counts) {
                *count += counter.load(Ordering::Relaxed);
            }
            sum.sum_ns = sum.sum_ns.wrapping_add(histogram.sum_ns.load(Ordering::Relaxed));
        }
    }
}

/// What [`LatencyCounters`] showed at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// By [`IoKind`].
    histograms: [LatencyHistogram; IoKind::ALL.len()],
}

impl Latencies {
    /// Of one kind of operation.
    pub fn of(&self, kind: IoKind) -> &LatencyHistogram {
        &self.histograms[kind as usize]
    }
}

/// Operations by how long they took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyHistogram {
    counts: [u64; BUCKETS],
    sum_ns: u64,
}

impl LatencyHistogram {
    /// An operation has ended that took this long.
    pub fn record(&mut self, time: Duration) {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(time_ns)] += 1;
        self.sum_ns = self.sum_ns.wrapping_add(time_ns);
    }

    /// The buckets, the shortest first: an upper bound (`None`: there is none), and how many operations took at most that long and longer
    /// than the bound before.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        self.counts.iter().enumerate().map(|(at, count)| {
            let bound = (at < BOUNDED_BUCKETS).then(|| Duration::from_nanos(FIRST_BOUND_NS << at));
            (bound, *count)
        })
    }

    /// How many operations there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// How long all of them took.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_in_the_first_bucket_that_is_long_enough() {
        let bound = |at: usize| FIRST_BOUND_NS << at;
        assert_eq!([0, 1, bound(0)].map(bucket), [0, 0, 0]);
        for at in 1..BOUNDED_BUCKETS {
            assert_eq!([bound(at - 1) + 1, bound(at)].map(bucket), [at, at]);
        }
        assert_eq!([bound(BOUNDED_BUCKETS - 1) + 1, u64::MAX].map(bucket), [BOUNDED_BUCKETS; 2]);
    }

    #[test]
    fn each_kind_of_operation_has_its_own_histogram() {
        let (one, other) = (LatencyCounters::default(), LatencyCounters::default());
        one.record(IoKind::Read, Duration::from_micros(5));
        other.record(IoKind::Read, Duration::from_secs(100));
        other.record(IoKind::Flush, Duration::ZERO);
        let mut latencies = Latencies::default();
        one.add_to(&mut latencies);
        other.add_to(&mut latencies);
        let reads = latencies.of(IoKind::Read);
        assert_eq!((reads.count(), reads.sum()), (2, Duration::from_micros(100_000_005)));
        let buckets: Vec<_> = reads.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(buckets, [(Some(Duration::from_micros(8)), 1), (None, 1)]);
        assert_eq!(latencies.of(IoKind::Flush).count(), 1);
        assert_eq!(latencies.of(IoKind::Write).count(), 0);
    }

    #[test]
    fn a_histogram_of_its_own_counts_alike() {
        let mut histogram = LatencyHistogram::default();
        histogram.record(Duration::from_micros(5));
        let counters = LatencyCounters::default();
        counters.record(IoKind::Read, Duration::from_micros(5));
        let mut latencies = Latencies::default();
        counters.add_to(&mut latencies);
        assert_eq!(&histogram, latencies.of(IoKind::Read));
    }

    #[test]
    fn kinds_are_in_the_order_of_their_numbers() {
        for (number, kind) in IoKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number, "{}", kind.name());
        }
    }
}
