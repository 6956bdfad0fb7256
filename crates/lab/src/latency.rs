//! Latencies: a histogram with three digits at any magnitude, in nanoseconds; passed between processes as counts.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest latency that is told apart, in nanoseconds; longer ones count as this.
const LONGEST_NS: u64 = 120_000_000_000;

/// How long I/Os took.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

/// The same as it travels between processes: (nanoseconds, how many).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyCounts(pub Vec<(u64, u64)>);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("these bounds are possible"))
    }
}

impl Latencies {
    /// Counts one.
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// Adds what another process saw.
    pub fn add(&mut self, counts: &LatencyCounts) {
        for &(ns, count) in &counts.0 {
            self.0.saturating_record_n(ns, count);
        }
    }

    /// For another process.
    pub fn counts(&self) -> LatencyCounts {
        LatencyCounts(self.0.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect())
    }

    /// The latency that `quantile` (0 to 1) of all stayed within, in microseconds; `None` if there are none.
    pub fn quantile_us(&self, quantile: f64) -> Option<f64> {
        (self.count() > 0).then(|| self.0.value_at_quantile(quantile) as f64 / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_survive_the_way_between_processes() {
        let mut seen = Latencies::default();
        assert_eq!(seen.quantile_us(0.5), None);
        (1..=1000u64).for_each(|us| seen.record(us * 1000));
        let mut total = Latencies::default();
        total.add(&seen.counts());
        total.add(&seen.counts());
        assert_eq!(total.count(), 2000);
        for (quantile, us) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0)] {
            let found = total.quantile_us(quantile).unwrap();
            assert!((found / us - 1.0).abs() < 0.002, "{quantile}: {found}");
        }
        total.record(u64::MAX);
        total.clear();
        assert_eq!(total.count(), 0);
    }
}
