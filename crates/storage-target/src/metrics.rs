//! What a target measures: counters of its workers, CPU time of their iterations, bytes of cryptography.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::{CryptoCounters, Latencies};

use crate::admin::StatusReport;
use crate::command_counters::{CommandCounters, ERROR_KINDS};
use crate::iterations::{IterationCounts, IterationTimes};
use crate::polling::{BusyPollReport, PollCounts};
use crate::stats::{Counters, PacketCounts, Stats};

/// What a target tells a metrics server: a status report, and what is measured beside it.
#[derive(Clone, Debug)]
pub struct MetricsReport {
    /// Sessions, volumes and counters.
    pub status: StatusReport,
    /// How long commands took, since the start.
    pub latencies: Latencies,
    /// Commands that were answered with an error since the start, by its kind in snake case.
    pub command_errors: Vec<(&'static str, u64)>,
    /// ECL packets of all sessions since the start.
    pub packets: PacketCounts,
}

pub(crate) struct Metrics {
    started: Instant,
    pub(crate) counters: Arc<Counters>,
    /// By worker.
    pub(crate) iterations: Vec<IterationCounts>,
    /// By worker.
    pub(crate) polls: Vec<PollCounts>,
    /// By worker.
    pub(crate) commands: Vec<Arc<CommandCounters>>,
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
            commands: (0..workers).map(|_| Arc::default()).collect(),
            crypto: Arc::new(CryptoCounters::new()),
            background_crypto: Arc::new(CryptoCounters::new()),
        }
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// How long commands of all workers took, since the start.
    pub(crate) fn latencies(&self) -> Latencies {
        let mut latencies = Latencies::default();
        self.commands.iter().for_each(|worker| worker.latencies.add_to(&mut latencies));
        latencies
    }

    /// What all workers have measured, beside this.
    pub(crate) fn report(&self, status: StatusReport) -> MetricsReport {
        let mut errors = [0; ERROR_KINDS.len()];
        self.commands.iter().for_each(|worker| worker.add_errors_to(&mut errors));
        let latencies = self.latencies();
        let command_errors = ERROR_KINDS.into_iter().zip(errors).collect();
        MetricsReport { status, latencies, command_errors, packets: self.counters.packets() }
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
