//! What is going on in a target: how long its operations take, and what is done with a volume in the background. Plain data for `status`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use strongroom_block::{IoKind, Latencies};
use strongroom_scsi::vendor::lease::{LeaseMode, Standing, Writer, WriterRole};

/// How long operations of one kind have taken since the start. A kind that there was none of is left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// The kind, as metrics call it: `read`, `write`, `flush`, …
    pub operation: String,
    /// The shortest first; those with nothing in them are left out.
    pub buckets: Vec<LatencyBucket>,
    /// How long all of them took, in microseconds.
    pub total_us: u64,
}

/// Operations that took at most this long, and longer than the bound before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyBucket {
    /// Upper bound in microseconds; `None`: there is none.
    pub up_to_us: Option<u64>,
    /// How many.
    pub count: u64,
}

/// What goes on in a volume beside its sessions' commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityReport {
    /// How much of the pass of scrubbing that is under way is done, in 65536ths.
    pub scrub: u16,
    /// Who holds writer leases, verification and resealing by an initiator included.
    pub leases: Vec<LeaseReport>,
}

/// A writer lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseReport {
    /// `exclusive`, `shared` or `maintenance`.
    pub mode: String,
    /// The initiator name of its holder.
    pub initiator: String,
    /// What the holder says about itself; may be empty.
    pub description: String,
    /// A session has it now.
    pub connected: bool,
}

/// Every kind of operation that there was.
pub(super) fn latencies(latencies: &Latencies) -> Vec<LatencyReport> {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let report = |kind: IoKind| {
        let histogram = latencies.of(kind);
        let bucket = |(bound, count): (Option<Duration>, u64)| LatencyBucket { up_to_us: bound.map(micros), count };
        let buckets = histogram.buckets().filter(|(_, count)| *count > 0).map(bucket).collect();
        LatencyReport { operation: kind.name().to_owned(), buckets, total_us: micros(histogram.sum()) }
    };
    IoKind::ALL.into_iter().map(report).filter(|report| !report.buckets.is_empty()).collect()
}

impl LeaseReport {
    /// `None`: it is none.
    pub(crate) fn of(writer: Writer) -> Option<LeaseReport> {
        let mode = match writer.role {
            WriterRole::Holder(LeaseMode::Exclusive) => "exclusive",
            WriterRole::Holder(LeaseMode::Shared) => "shared",
            WriterRole::Holder(LeaseMode::Maintenance) => "maintenance",
            _ => return None,
        };
        let connected = writer.standing == Standing::Connected;
        let Writer { initiator_name: initiator, description, .. } = writer;
        Some(LeaseReport { mode: mode.to_owned(), initiator, description, connected })
    }
}
