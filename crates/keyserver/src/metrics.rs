//! Counters, and their text for Prometheus. Names of volumes and identities are in the audit log, not here.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use strongroom_block::LatencyHistogram;

use crate::batch::Role;
use crate::protocol::ServerStatus;

/// What a key server tells a metrics server.
#[derive(Clone, Debug)]
pub struct KeyServerReport {
    /// Its role, its transactions, its audit log.
    pub status: ServerStatus,
    /// Requests answered since the start: kind, result, and how many.
    pub requests: Vec<(&'static str, &'static str, u64)>,
    /// How long it took to carry requests out, by kind; without those that are answered in parts.
    pub latencies: Vec<(&'static str, LatencyHistogram)>,
    /// Connections that are open.
    pub connections: u64,
    /// Connections refused since the start.
    pub connections_refused: u64,
    /// Lines of the audit log that could not be written yet.
    pub audit_lines_held: u64,
    /// The lease of its configuration.
    pub lease: Duration,
}

#[derive(Default)]
pub(crate) struct Metrics {
    requests: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    latencies: Mutex<BTreeMap<&'static str, LatencyHistogram>>,
    pub(crate) connections: AtomicUsize,
    connections_refused: AtomicUsize,
    held_lines: AtomicUsize,
}

impl Metrics {
    pub(crate) fn request(&self, kind: &'static str, result: &'static str) {
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner).entry((kind, result)).or_default() += 1;
    }

    pub(crate) fn took(&self, kind: &'static str, time: Duration) {
        self.latencies.lock().unwrap_or_else(PoisonError::into_inner).entry(kind).or_default().record(time);
    }

    pub(crate) fn connection_refused(&self) {
        self.connections_refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn held_lines(&self, lines: usize) {
        self.held_lines.store(lines, Ordering::Relaxed);
    }

    pub(crate) fn report(&self, status: ServerStatus, lease: Duration) -> KeyServerReport {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        let load = |number: &AtomicUsize| number.load(Ordering::Relaxed) as u64;
        KeyServerReport {
            status,
            requests: requests.iter().map(|((kind, result), count)| (*kind, *result, *count)).collect(),
            latencies: latencies.iter().map(|(kind, histogram)| (*kind, histogram.clone())).collect(),
            connections: load(&self.connections),
            connections_refused: load(&self.connections_refused),
            audit_lines_held: load(&self.held_lines),
            lease,
        }
    }

    /// The text format of Prometheus, version 0.0.4.
    pub(crate) fn text(&self, status: &ServerStatus) -> String {
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, values: Vec<(String, u64)>| {
            let _ =
                writeln!(text, "# HELP strongroom_keyserver_{name} {help}\n# TYPE strongroom_keyserver_{name} {kind}");
            for (labels, value) in values {
                let _ = writeln!(text, "strongroom_keyserver_{name}{labels} {value}");
            }
        };
        let plain = |value: u64| vec![(String::new(), value)];
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let requests =
            requests.iter().map(|((kind, result), count)| (format!("{{kind=\"{kind}\",result=\"{result}\"}}"), *count));
        family("requests_total", "counter", "Requests answered.", requests.collect());
        let load = |number: &AtomicUsize| number.load(Ordering::Relaxed) as u64;
        family("connections", "gauge", "Connections that are open.", plain(load(&self.connections)));
        family(
            "connections_refused_total",
            "counter",
            "Connections refused: too many, unknown identities, handshakes that failed.",
            plain(load(&self.connections_refused)),
        );
        family(
            "audit_lines_held",
            "gauge",
            "Lines of the audit log that could not be written yet; above 0: mend the disk.",
            plain(load(&self.held_lines)),
        );
        family("audit_lines", "counter", "Lines of the audit log.", plain(status.head.lines));
        family("volumes", "gauge", "Volumes with keys.", plain(status.volumes));
        family("sequence", "counter", "Transactions stored.", plain(status.sequence));
        family("generation", "gauge", "Promotions so far, and one.", plain(status.generation));
        family("primary", "gauge", "1 if this server is the primary.", plain((status.role == Role::Primary).into()));
        if let Some(sequence) = status.standby_sequence {
            family("standby_sequence", "counter", "Transactions that the standby has stored.", plain(sequence));
        }
        text
    }
}
