//! What a target measures: counters of its workers, CPU time of their iterations, bytes of cryptography.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::CryptoCounters;

use crate::iterations::{IterationCounts, IterationTimes};
use crate::polling::{BusyPollReport, PollCounts};
use crate::stats::{Counters, Stats};

pub(crate) struct Metrics {
    started: Instant,
    pub(crate) counters: Arc<Counters>,
    /// By worker.
    pub(crate) iterations: Vec<IterationCounts>,
    /// By worker.
    pub(crate) polls: Vec<PollCounts>,
    /// Of channels.
    pub(crate) crypto: Arc<CryptoCounters>,
    /// Of background verification and of opening at the target.
    pub(crate) background_crypto: Arc<CryptoCounters>,
}

impl Metrics {
    pub(crate) fn new(workers: usize) -> Metrics {
        Metrics {
            started: Instant::now(),
            counters: Arc::default(),
            iterations: (0..workers).map(|_| IterationCounts::default()).collect(),
            polls: (0..workers).map(|_| PollCounts::default()).collect(),
            crypto: Arc::new(CryptoCounters::new()),
            background_crypto: Arc::new(CryptoCounters::new()),
        }
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// `connections`: how many there are now.
    pub(crate) fn stats(&self, connections: usize) -> Stats {
        let mut iterations = IterationTimes::default();
        self.iterations.iter().for_each(|worker| worker.add_to(&mut iterations));
        let mut busy_poll = BusyPollReport::default();
        self.polls.iter().for_each(|worker| worker.add_to(&mut busy_poll));
        let stats = self.counters.snapshot(connections, &self.crypto, &self.background_crypto, iterations);
        Stats { busy_poll, ..stats }
    }
}
