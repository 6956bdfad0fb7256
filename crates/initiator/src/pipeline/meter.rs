//! Measures the requests of an engine: how long each was with it, the bytes of those that succeeded, and the errors of those that failed. No
//! clock: the time is what the engine was told.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use strongroom_block::{DeviceErrorKind, IoKind, Latencies, LatencyCounters};

/// The kinds of errors, as metrics name them.
const ERROR_KINDS: [&str; 9] = [
    "medium",
    "out_of_range",
    "no_space",
    "read_only",
    "reservation_conflict",
    "refused",
    "unreachable",
    "hardware",
    "no_key",
];

/// The place of a kind of error in [`ERROR_KINDS`].
fn error_index(kind: DeviceErrorKind) -> usize {
    match kind {
        DeviceErrorKind::Medium => 0,
        DeviceErrorKind::OutOfRange => 1,
        DeviceErrorKind::NoSpace => 2,
        DeviceErrorKind::ReadOnly => 3,
        DeviceErrorKind::ReservationConflict => 4,
        DeviceErrorKind::Refused => 5,
        DeviceErrorKind::Unreachable => 6,
        DeviceErrorKind::Hardware => 7,
        DeviceErrorKind::NoKey => 8,
    }
}

/// What an attachment's requests came to, since it was attached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestReport {
    /// From the moment at which the engine took a request in to its end. The engine's own requests count, too: what it sends again, what it
    /// fetches ahead, and what it tells the target.
    pub latencies: Latencies,
    /// Failed requests by the kind of their error, in snake case.
    pub errors: Vec<(&'static str, u64)>,
    /// Bytes of the blocks that were read.
    pub read_bytes: u64,
    /// Bytes of the blocks that were written.
    pub written_bytes: u64,
}

/// See the module. Only the device's thread writes to it; others may read it.
#[derive(Debug, Default)]
pub(crate) struct RequestMeter {
    latencies: LatencyCounters,
    /// By [`ERROR_KINDS`].
    errors: [AtomicU64; ERROR_KINDS.len()],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl RequestMeter {
    /// A request has ended. `time`: how long it was with the engine, if that is known. `bytes`: of its blocks.
    pub(crate) fn ended(&self, kind: IoKind, time: Option<Duration>, bytes: u64, error: Option<DeviceErrorKind>) {
        if let Some(time) = time {
            self.latencies.record(kind, time);
        }
        match (error, kind) {
            (Some(error), _) => self.errors[error_index(error)].fetch_add(1, Ordering::Relaxed),
            (None, IoKind::Read) => self.read_bytes.fetch_add(bytes, Ordering::Relaxed),
            (None, IoKind::Write | IoKind::ConditionalWrite) => self.written_bytes.fetch_add(bytes, Ordering::Relaxed),
            (None, _) => 0,
        };
    }

    /// What there was so far.
    pub(crate) fn report(&self) -> RequestReport {
        let mut latencies = Latencies::default();
        self.latencies.add_to(&mut latencies);
        let errors = ERROR_KINDS.into_iter().zip(&self.errors);
        RequestReport {
            latencies,
            errors: errors.map(|(kind, count)| (kind, count.load(Ordering::Relaxed))).collect(),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_by_what_they_came_to() {
        let (meter, time) = (RequestMeter::default(), Some(Duration::from_millis(1)));
        meter.ended(IoKind::Read, time, 4096, None);
        meter.ended(IoKind::ConditionalWrite, time, 512, None);
        meter.ended(IoKind::Discard, None, 1 << 30, None);
        meter.ended(IoKind::Read, time, 4096, Some(DeviceErrorKind::NoKey));
        let report = meter.report();
        assert_eq!((report.read_bytes, report.written_bytes), (4096, 512));
        let failed: Vec<_> = report.errors.iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(failed, [&("no_key", 1)]);
        assert_eq!(report.latencies.of(IoKind::Read).count(), 2);
        assert_eq!(report.latencies.of(IoKind::Discard).count(), 0);
    }
}
