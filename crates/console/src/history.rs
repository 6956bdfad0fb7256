//! What the target did lately: rates and latencies from status reports and their differences. Pure: reports come in, numbers come out.

use std::collections::VecDeque;
use std::sync::Arc;

use strongroom_target::admin::{LatencyBucket, LatencyReport, SessionReport, StatusReport};

/// Points of a line: with one every two seconds, three minutes.
const POINTS_MAX: usize = 90;
/// Latencies cover at most this many points.
const LATENCY_POINTS: usize = 15;

/// Work per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    pub(crate) commands: f64,
    pub(crate) read_bytes: f64,
    pub(crate) written_bytes: f64,
}

/// How long operations of one kind took.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Latency {
    pub(crate) operation: String,
    pub(crate) count: u64,
    pub(crate) mean_us: u64,
    /// Half of them took at most this long; `None`: longer than is measured.
    pub(crate) median_us: Option<u64>,
    pub(crate) p99_us: Option<u64>,
}

/// Status reports, from the oldest to the newest, and what lies between them.
#[derive(Clone, Default)]
pub(crate) struct History {
    /// The newest, and the one before.
    reports: VecDeque<Arc<StatusReport>>,
    rates: VecDeque<Rates>,
    latencies: VecDeque<Arc<Vec<LatencyReport>>>,
}

impl History {
    /// Another report. After a restart of the target it begins with the new one.
    pub(crate) fn push(&mut self, report: Arc<StatusReport>) {
        if let Some(before) = self.reports.back() {
            let seconds = report.uptime_s - before.uptime_s;
            if report.pid != before.pid || seconds <= 0.0 {
                *self = History::default();
            } else {
                self.rates.push_back(rates(&of_target(before), &of_target(&report), seconds));
            }
        }
        self.latencies.push_back(Arc::new(report.latencies.clone()));
        self.reports.push_back(report);
        let Self { reports, rates, latencies } = self;
        let excess = |len: usize, max: usize| ..len.saturating_sub(max);
        reports.drain(excess(reports.len(), 2));
        rates.drain(excess(rates.len(), POINTS_MAX));
        latencies.drain(excess(latencies.len(), LATENCY_POINTS + 1));
    }

    /// The newest report.
    pub(crate) fn now(&self) -> &StatusReport {
        self.reports.back().expect("a history is shown when there is a report")
    }

    /// Lately, from the oldest to the newest.
    pub(crate) fn rates(&self) -> impl ExactSizeIterator<Item = &Rates> {
        self.rates.iter()
    }

    /// Of one session, between the last two reports.
    pub(crate) fn of_session(&self, session: &SessionReport) -> Option<Rates> {
        let before = self.reports.front().filter(|_| self.reports.len() > 1)?;
        let seconds = self.now().uptime_s - before.uptime_s;
        let earlier = before.sessions.iter().find(|other| other.id == session.id);
        let earlier = earlier.map_or([0; 3], of_session);
        Some(rates(&earlier, &of_session(session), seconds))
    }

    /// Recent latencies by kind of operation; kinds that only occurred earlier have a count of 0.
    pub(crate) fn latencies(&self) -> Vec<Latency> {
        let (Some(from), Some(to)) = (self.latencies.front(), self.latencies.back()) else { return Vec::new() };
        to.iter().map(|report| latency(from.iter().find(|other| other.operation == report.operation), report)).collect()
    }
}

fn of_target(report: &StatusReport) -> [u64; 3] {
    let counters = &report.counters;
    [counters.commands, counters.bytes_read, counters.bytes_written]
}

fn of_session(session: &SessionReport) -> [u64; 3] {
    [session.commands, session.bytes_read, session.bytes_written]
}

fn rates(from: &[u64; 3], to: &[u64; 3], seconds: f64) -> Rates {
    let rate = |at: usize| to[at].saturating_sub(from[at]) as f64 / seconds.max(0.001);
    Rates { commands: rate(0), read_bytes: rate(1), written_bytes: rate(2) }
}

/// What is in `to` beyond `from`.
fn latency(from: Option<&LatencyReport>, to: &LatencyReport) -> Latency {
    let before = |bound: Option<u64>| {
        let buckets = from.map_or(&[][..], |from| &from.buckets);
        buckets.iter().find(|bucket| bucket.up_to_us == bound).map_or(0, |bucket| bucket.count)
    };
    let since = |bucket: &LatencyBucket| (bucket.up_to_us, bucket.count.saturating_sub(before(bucket.up_to_us)));
    let buckets: Vec<(Option<u64>, u64)> = to.buckets.iter().map(since).collect();
    let count = buckets.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
    let at_most = |percent: u64| {
        let wanted = u64::try_from(u128::from(count) * u128::from(percent)).unwrap_or(u64::MAX).div_ceil(100);
        let mut sum = 0_u64;
        let found = buckets.iter().find(|(_, count)| {
            sum = sum.saturating_add(*count);
            sum >= wanted
        });
        found.and_then(|(bound, _)| *bound)
    };
    let total_us = to.total_us.saturating_sub(from.map_or(0, |from| from.total_us));
    Latency {
        operation: to.operation.clone(),
        count,
        mean_us: total_us.checked_div(count).unwrap_or(0),
        median_us: at_most(50),
        p99_us: at_most(99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(counts: [(Option<u64>, u64); 3], total_us: u64) -> LatencyReport {
        let buckets = counts.map(|(up_to_us, count)| LatencyBucket { up_to_us, count }).to_vec();
        LatencyReport { operation: "read".to_owned(), buckets, total_us }
    }

    #[test]
    fn latencies_are_those_between_two_reports() {
        let from = report([(Some(8), 1000), (Some(16), 5), (None, 1)], 9000);
        let to = report([(Some(8), 1000), (Some(16), 95), (None, 11)], 10_000);
        let found = latency(Some(&from), &to);
        assert_eq!((found.count, found.mean_us, found.median_us, found.p99_us), (100, 10, Some(16), None));
        let all = latency(None, &to);
        assert_eq!((all.count, all.median_us, all.p99_us), (1106, Some(8), Some(16)));
        let none = latency(Some(&to), &to);
        assert_eq!((none.count, none.mean_us), (0, 0));
    }

    /// A target may say anything.
    #[test]
    fn numbers_of_a_hostile_target_do_no_harm() {
        let to = report([(Some(u64::MAX), u64::MAX), (None, u64::MAX), (Some(0), 0)], u64::MAX);
        assert_eq!(latency(Some(&to), &report([(None, 0), (None, 0), (None, 0)], 0)).count, 0);
        assert_eq!(latency(None, &to).count, u64::MAX);
    }
}
