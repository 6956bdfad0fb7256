//! What a load counts between `mark` and `stop`: I/Os, their latencies, bytes of cryptography, errors.

use std::time::Instant;

use strongroom_block::{CryptoBytes, CryptoCounters};

use crate::latency::Latencies;
use crate::protocol::{Outcome, ProratedCounts};

/// The counts of one measurement.
pub(super) struct Tally<'a> {
    /// `None`: this engine does not count.
    counters: Option<&'a CryptoCounters>,
    pub(super) marked: Instant,
    /// Counting has ended; I/Os that are still in flight are waited for.
    pub(super) stopped: Option<Instant>,
    crypto_begun: CryptoBytes,
    crypto_marked: CryptoBytes,
    ios: u64,
    /// I/Os since the beginning, and those since `mark` in proportion ([`ProratedCounts`]).
    pub(super) ios_begun: u64,
    pub(super) ios_prorated: f64,
    latencies: Latencies,
    errors: u64,
    first_error: Option<String>,
    /// Sectors that were compared.
    verified: u64,
}

impl<'a> Tally<'a> {
    pub(super) fn new(counters: Option<&'a CryptoCounters>) -> Tally<'a> {
        let crypto = snapshot(counters);
        Tally {
            counters,
            marked: Instant::now(),
            stopped: None,
            crypto_begun: crypto,
            crypto_marked: crypto,
            ios: 0,
            ios_begun: 0,
            ios_prorated: 0.0,
            latencies: Latencies::default(),
            errors: 0,
            first_error: None,
            verified: 0,
        }
    }

    /// Forgets what was counted, and begins to count.
    pub(super) fn mark(&mut self) {
        (self.ios, self.ios_prorated) = (0, 0.0);
        self.latencies.clear();
        self.crypto_marked = snapshot(self.counters);
        self.marked = Instant::now();
    }

    /// Ends counting: the outcome, which still lacks what I/Os in flight add ([`Tally::complete`]).
    pub(super) fn stop(&mut self, io_bytes: u64) -> Outcome {
        let crypto = snapshot(self.counters);
        let outcome = Outcome {
            elapsed_ns: self.marked.elapsed().as_nanos() as u64,
            ios: self.ios,
            bytes: self.ios * io_bytes,
            latency: self.latencies.counts(),
            crypto_bytes: self.counters.map(|_| crypto.total() - self.crypto_marked.total()),
            encrypted_bytes: self.counters.map(|_| crypto.encrypted - self.crypto_marked.encrypted),
            ..Outcome::default()
        };
        self.stopped = Some(Instant::now());
        outcome
    }

    /// Adds what is known when nothing is in flight any more.
    pub(super) fn complete(self, mut outcome: Outcome, is_verified: bool) -> Outcome {
        outcome.verified = is_verified.then_some(self.verified);
        outcome.errors = self.errors;
        outcome.first_error = self.first_error;
        outcome
    }

    /// Counts in which I/Os in flight at `mark` or `stop` count in proportion. To be called when nothing is in flight.
    pub(super) fn prorated(&self, io_bytes: u64) -> ProratedCounts {
        let (crypto, begun) = (snapshot(self.counters), self.crypto_begun);
        let part = self.ios_prorated / self.ios_begun.max(1) as f64;
        let of = |bytes: u64| (bytes as f64 * part).round() as u64;
        ProratedCounts {
            bytes: (self.ios_prorated * io_bytes as f64).round() as u64,
            crypto_bytes: of(crypto.total() - begun.total()),
            encrypted_bytes: of(crypto.encrypted - begun.encrypted),
        }
    }

    /// An I/O has completed.
    pub(super) fn record(&mut self, begun: Instant, now: Instant) {
        self.ios += 1;
        self.ios_begun += 1;
        self.ios_prorated += self.share(begun, now);
        self.latencies.record((now - begun).as_nanos() as u64);
    }

    /// The share of an I/O's time that was counted.
    pub(super) fn share(&self, begun: Instant, now: Instant) -> f64 {
        let counted =
            self.stopped.map_or(now, |stopped| stopped.min(now)).saturating_duration_since(begun.max(self.marked));
        let whole = now - begun;
        if whole.is_zero() { 1.0 } else { counted.as_secs_f64() / whole.as_secs_f64() }
    }

    /// Counts sectors that hold what they should.
    pub(super) fn add_verified(&mut self, sectors: u64) {
        self.verified += sectors;
    }

    /// An I/O has failed, or what it read was wrong.
    pub(super) fn fail(&mut self, problem: String) {
        self.errors += 1;
        self.first_error.get_or_insert(problem);
    }

    pub(super) fn errors(&self) -> u64 {
        self.errors
    }
}

fn snapshot(counters: Option<&CryptoCounters>) -> CryptoBytes {
    counters.map_or_else(CryptoBytes::default, CryptoCounters::snapshot)
}
