//! What one worker counts of the commands of its units: how long they took, and the errors that they were answered with.

use std::sync::atomic::{AtomicU64, Ordering};

use strongroom_block::LatencyCounters;
use strongroom_scsi::transport::target::Response;
use strongroom_scsi::{Sense, SenseKey, Status};

/// The kinds of errors, as metrics name them: SCSI statuses, and the sense keys of CHECK CONDITION.
pub(crate) const ERROR_KINDS: [&str; 14] = [
    "busy",
    "reservation_conflict",
    "task_set_full",
    "task_aborted",
    "not_ready",
    "medium_error",
    "hardware_error",
    "illegal_request",
    "unit_attention",
    "data_protect",
    "copy_aborted",
    "aborted_command",
    "miscompare",
    "other",
];

/// Counters of one worker, which alone writes to them.
#[derive(Debug, Default)]
pub(crate) struct CommandCounters {
    pub(crate) latencies: LatencyCounters,
    /// By [`ERROR_KINDS`].
    errors: [AtomicU64; ERROR_KINDS.len()],
}

impl CommandCounters {
    /// A command is answered.
    pub(crate) fn answered(&self, response: &Response) {
        if let Some(name) = error_kind(response) {
            let at = ERROR_KINDS.iter().position(|kind| *kind == name).expect("every kind is listed");
            self.errors[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Adds the errors to others, by [`ERROR_KINDS`].
    pub(crate) fn add_errors_to(&self, errors: &mut [u64; ERROR_KINDS.len()]) {
        for (sum, counter) in errors.iter_mut().zip(&self.errors) {
            *sum += counter.load(Ordering::Relaxed);
        }
    }
}

/// The kind of error that a response is; `None` for a success.
fn error_kind(response: &Response) -> Option<&'static str> {
    Some(match Status::from_byte(response.status) {
        Some(Status::Good | Status::ConditionMet) => return None,
        Some(Status::Busy) => "busy",
        Some(Status::ReservationConflict) => "reservation_conflict",
        Some(Status::TaskSetFull) => "task_set_full",
        Some(Status::TaskAborted) => "task_aborted",
        Some(Status::CheckCondition) => match Sense::parse(&response.sense).map(|sense| sense.key) {
            Some(SenseKey::NotReady) => "not_ready",
            Some(SenseKey::MediumError) => "medium_error",
            Some(SenseKey::HardwareError) => "hardware_error",
            Some(SenseKey::IllegalRequest) => "illegal_request",
            Some(SenseKey::UnitAttention) => "unit_attention",
            Some(SenseKey::DataProtect) => "data_protect",
            Some(SenseKey::CopyAborted) => "copy_aborted",
            Some(SenseKey::AbortedCommand) => "aborted_command",
            Some(SenseKey::Miscompare) => "miscompare",
            _ => "other",
        },
        None => "other",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_kind() {
        let counters = CommandCounters::default();
        let sense = |sense: Sense| Response::check_condition(sense.encode());
        counters.answered(&Response::good());
        counters.answered(&sense(Sense::UNRECOVERED_READ));
        counters.answered(&sense(Sense::WRITE_ERROR));
        counters.answered(&sense(Sense::MISCOMPARE));
        counters.answered(&Response::check_condition(Sense::NO_SPACE.encode_descriptor()));
        counters.answered(&Response::task_aborted());
        counters.answered(&Response { status: 0x08, ..Response::default() });
        counters.answered(&Response { status: 0xff, ..Response::default() });
        let mut errors = [0; ERROR_KINDS.len()];
        counters.add_errors_to(&mut errors);
        let counted: Vec<(&str, u64)> = ERROR_KINDS.into_iter().zip(errors).filter(|(_, count)| *count > 0).collect();
        let expected = [
            ("busy", 1),
            ("task_aborted", 1),
            ("medium_error", 2),
            ("data_protect", 1),
            ("miscompare", 1),
            ("other", 1),
        ];
        assert_eq!(counted, expected);
    }
}
