//! Busy polling: whether a thread that has nothing to do looks for work for a short while before it sleeps. A sleep costs a wake-up, tens of
//! microseconds on a virtual machine; looking costs the processor meanwhile.
//!
//! [`WaitEstimator`] decides, from how long the last waits took; time is an argument there. [`BusyPoller`] looks, with the clock. Absent: what
//! is looked at, which is a runtime's sockets or a queue of completions.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Whether threads that have nothing to do look for work before they sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BusyPoll {
    /// Never.
    #[default]
    Off,
    /// While the expected wait is below [`BusyPoll::AUTO`].
    Auto,
    /// While the expected wait is below this, which is also how long one look lasts.
    UpTo(Duration),
}

impl BusyPoll {
    /// The threshold of [`BusyPoll::Auto`]: above what a wait takes at queue depth 1 when both ends sleep (docs/performance.md), so that polling
    /// begins, and short enough that a look in vain costs no more than a few sleeps.
    pub const AUTO: Duration = Duration::from_micros(200);

    /// The longest threshold that can be set: a longer look is no busy poll but a busy thread.
    pub const MAX: Duration = Duration::from_millis(10);

    /// The expected wait from which on threads sleep at once; `None`: always.
    pub fn threshold(self) -> Option<Duration> {
        match self {
            BusyPoll::Off => None,
            BusyPoll::Auto => Some(BusyPoll::AUTO),
            BusyPoll::UpTo(threshold) => Some(threshold.min(BusyPoll::MAX)).filter(|threshold| !threshold.is_zero()),
        }
    }
}

impl fmt::Display for BusyPoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BusyPoll::Off => f.write_str("off"),
            BusyPoll::Auto => f.write_str("auto"),
            BusyPoll::UpTo(threshold) => write!(f, "{}", threshold.as_micros()),
        }
    }
}

/// Not a setting of busy polling.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no setting of busy polling; give off, auto, or the longest expected wait in microseconds, 1 to 10000"
)]
pub struct BusyPollError(String);

impl FromStr for BusyPoll {
    type Err = BusyPollError;

    fn from_str(text: &str) -> Result<BusyPoll, BusyPollError> {
        match text {
            "off" => return Ok(BusyPoll::Off),
            "auto" => return Ok(BusyPoll::Auto),
            _ => {}
        }
        let threshold = text.parse().map(Duration::from_micros).ok();
        let is_valid = |threshold: &Duration| !threshold.is_zero() && *threshold <= BusyPoll::MAX;
        threshold.filter(is_valid).map(BusyPoll::UpTo).ok_or_else(|| BusyPollError(text.to_owned()))
    }
}

/// What busy polling came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollCounters {
    /// Looks begun.
    pub polls: u64,
    /// Looks that found something: a sleep saved.
    pub hits: u64,
    /// Looks that found nothing in their time: processor time lost.
    pub misses: u64,
    /// Looks that ended early, because another thread wanted the processor.
    pub contended: u64,
    /// Time spent looking.
    pub spent: Duration,
}

/// A wait counts at most this many thresholds, so that one pause does not hide the short waits behind it for long.
const LONGEST_WAIT: u32 = 4;
/// The moving average takes this part of each new wait.
const WEIGHT: u32 = 8;
/// Upper bound on the waits without a look after contention.
const SKIPPED_MAX: u32 = 1024;

/// Expects the next wait to be as long as the last ones were, and decides whether to look for work in it.
#[derive(Clone, Debug)]
pub struct WaitEstimator {
    threshold: Duration,
    /// Moving average of the last waits.
    expected: Duration,
    /// Waits to go without a look, because the processor was wanted by others.
    to_skip: u32,
    /// How many of them it will be after the next contention.
    skip_next: u32,
}

impl WaitEstimator {
    /// Expects long waits until it has seen short ones.
    pub fn new(threshold: Duration) -> WaitEstimator {
        WaitEstimator { threshold, expected: threshold * LONGEST_WAIT, to_skip: 0, skip_next: 1 }
    }

    /// How long to look for work now; `None`: not at all.
    pub fn look(&mut self) -> Option<Duration> {
        if self.to_skip > 0 {
            self.to_skip -= 1;
            return None;
        }
        (self.expected < self.threshold).then_some(self.threshold)
    }

    /// A wait has ended, with or without a look.
    pub fn waited(&mut self, lasted: Duration) {
        let lasted = lasted.min(self.threshold * LONGEST_WAIT);
        self.expected = (self.expected * (WEIGHT - 1) + lasted) / WEIGHT;
    }

    /// A look found something.
    pub fn hit(&mut self) {
        self.skip_next = 1;
    }

    /// A look took the processor from another thread. Each time in a row twice as many waits go by without one.
    pub fn contended(&mut self) {
        self.to_skip = self.skip_next;
        self.skip_next = (2 * self.skip_next).min(SKIPPED_MAX);
    }
}

/// How a look ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// With what was looked for.
    Hit,
    /// Its time was over.
    Missed,
    /// Another thread wants the processor.
    Contended,
}

/// How often a thread that looks lets others run.
const YIELD_EVERY: Duration = Duration::from_micros(5);
/// A yield that takes so long has let another thread run; one that lets nobody run takes a tenth of it.
const YIELD_CONTENDED: Duration = Duration::from_micros(3);

/// Looks for work before a thread sleeps. One for each thread that waits.
#[derive(Debug)]
pub struct BusyPoller {
    /// `None`: off.
    estimator: Option<WaitEstimator>,
    waiting_since: Option<Instant>,
    /// What it came to.
    pub counters: PollCounters,
}

impl BusyPoller {
    /// As set.
    pub fn new(setting: BusyPoll) -> BusyPoller {
        let estimator = setting.threshold().map(WaitEstimator::new);
        BusyPoller { estimator, waiting_since: None, counters: PollCounters::default() }
    }

    /// A wait begins, or goes on: how long to look for work before sleeping; `None`: not at all.
    pub fn begin(&mut self) -> Option<Duration> {
        let estimator = self.estimator.as_mut()?;
        self.waiting_since.get_or_insert_with(Instant::now);
        estimator.look()
    }

    /// The thread goes on, with something to do (`has_found`) or without: then the same wait goes on with the next [`BusyPoller::begin`], and
    /// counts as a long one as often as that happens after the threshold.
    pub fn end(&mut self, has_found: bool) {
        let (Some(estimator), Some(since)) = (&mut self.estimator, self.waiting_since) else { return };
        let lasted = since.elapsed();
        if has_found || lasted >= estimator.threshold {
            estimator.waited(lasted);
        }
        if has_found {
            self.waiting_since = None;
        }
    }

    /// Calls `is_there` again and again, for `limit` at most. Lets other threads run first of all: one that was just woken may be what is waited for.
    pub fn look(&mut self, limit: Duration, mut is_there: impl FnMut() -> bool) -> Look {
        let begun = Instant::now();
        let mut yield_at = begun;
        let outcome = loop {
            if is_there() {
                break Look::Hit;
            }
            let now = Instant::now();
            if now.saturating_duration_since(begun) >= limit {
                break Look::Missed;
            }
            if now < yield_at {
                std::hint::spin_loop();
                continue;
            }
            std::thread::yield_now();
            let after = Instant::now();
            yield_at = after + YIELD_EVERY;
            if after.saturating_duration_since(now) >= YIELD_CONTENDED {
                break if is_there() { Look::Hit } else { Look::Contended };
            }
        };
        self.count(outcome, begun.elapsed());
        outcome
    }

    fn count(&mut self, outcome: Look, spent: Duration) {
        let Some(estimator) = &mut self.estimator else { return };
        self.counters.polls += 1;
        self.counters.spent += spent;
        match outcome {
            Look::Hit => {
                self.counters.hits += 1;
                estimator.hit();
            }
            Look::Missed => self.counters.misses += 1,
            Look::Contended => {
                self.counters.contended += 1;
                estimator.contended();
            }
        }
    }
}

#[cfg(test)]
mod tests;
