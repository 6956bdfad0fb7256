//! What targets, attachments and key servers tell those who collect metrics: a file for each, with the list of its metrics and where their
//! values come from. `docs/metrics.md` is the same list for people; a test holds one against the other.
//!
//! Absent: the server and the text (`strongroom-metrics`), and the counters themselves.

pub(crate) mod attachment;
pub(crate) mod key_server;
pub(crate) mod target;
#[cfg(test)]
mod tests;

use std::time::Duration;

use anyhow::Result;
use strongroom_block::{CryptoBytes, IoKind, Latencies, LatencyHistogram};
use strongroom_metrics::{Definition, Exposition, MetricsAddress, MetricsServer};

/// Answers collectors at an address, if one was chosen, with what `source` measures.
///
/// # Errors
/// The address cannot be listened at.
pub(crate) fn start(
    address: Option<&MetricsAddress>,
    source: impl FnMut() -> Exposition + Send + 'static,
) -> Result<Option<MetricsServer>> {
    let Some(address) = address else { return Ok(None) };
    let server = MetricsServer::start(address, source)?;
    println!("metrics on {}", server.address());
    Ok(Some(server))
}

/// A histogram for each kind of operation, those that there never were included.
fn add_latencies(exposition: &mut Exposition, definition: &Definition, latencies: &Latencies) {
    for kind in IoKind::ALL {
        add_latency(exposition, definition, kind.name(), latencies.of(kind));
    }
}

/// How long one kind of operations took.
fn add_latency(exposition: &mut Exposition, definition: &Definition, kind: &str, histogram: &LatencyHistogram) {
    let buckets = histogram.buckets().map(|(bound, count)| (bound.map(|bound| bound.as_secs_f64()), count));
    exposition.add_histogram(definition, &[kind], buckets, histogram.sum().as_secs_f64());
}

/// Bytes of cryptography by what was done.
fn add_crypto(exposition: &mut Exposition, definition: &Definition, bytes: CryptoBytes) {
    let CryptoBytes { encrypted, decrypted, mac_made, mac_checked } = bytes;
    for (work, bytes) in
        [("encrypted", encrypted), ("decrypted", decrypted), ("mac_made", mac_made), ("mac_checked", mac_checked)]
    {
        exposition.add(definition, &[work], bytes);
    }
}

fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64())
}

fn micros(micros: u64) -> f64 {
    Duration::from_micros(micros).as_secs_f64()
}
