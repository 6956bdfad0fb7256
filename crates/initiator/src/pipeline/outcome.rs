//! What the answer to a command means: done, try again, or which error for a person.

use std::time::Duration;

use strongroom_block::{DeviceError, DeviceErrorKind, Lba};
use strongroom_scsi::transport::initiator::Completed;
use strongroom_scsi::{Sense, SenseKey, Status};

use crate::completion::device_error;

/// Tries of a command that the target aborted or answered with a unit attention.
const TRIES_MAX: u32 = 12;
/// Tries of a command for which the target has no room now, or whose unit is becoming ready.
const BUSY_TRIES_MAX: u32 = 600;
/// First and longest pause before such a try.
const BUSY_PAUSE_MIN: Duration = Duration::from_millis(10);
const BUSY_PAUSE_MAX: Duration = Duration::from_millis(500);

/// What to do with a command that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// GOOD.
    Done,
    /// Send the very same again, after a pause.
    Retry(Duration),
    /// A guarded write found something else than expected.
    Miscompare,
    /// READ VERSION: nothing older.
    NoOlderVersion,
    /// The unit does not know the command.
    NotSupported,
    /// The unit does not know the attach id of a write, and has not executed it now.
    UnknownAttachment,
    /// Over.
    Fail(DeviceError),
}

/// How often a command has ended in a way that asks for another try, each way with a patience of its own: a target that has no room
/// for a while is not one that keeps aborting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Retries {
    aborted: u32,
    busy: u32,
}

/// Judges the end of a command that began at `lba`, and counts it among those before.
pub(crate) fn judge(completed: &Completed, lba: Option<Lba>, retries: &mut Retries) -> Outcome {
    if completed.response != 0 {
        return retry_aborted(retries, lba, "the target could not complete a command");
    }
    match Status::from_byte(completed.status) {
        Some(Status::Good | Status::ConditionMet) => Outcome::Done,
        Some(Status::CheckCondition) => match Sense::parse(&completed.sense) {
            Some(sense) => judge_sense(&sense, lba, retries),
            None => retry_aborted(retries, lba, "the target reports an error without saying which"),
        },
        Some(Status::Busy | Status::TaskSetFull) => retry_busy(retries, lba, "the target is busy"),
        Some(Status::TaskAborted) => retry_aborted(retries, lba, "the target keeps aborting a command"),
        Some(Status::ReservationConflict) => Outcome::Fail(device_error(
            DeviceErrorKind::ReservationConflict,
            lba,
            "another initiator has reserved the volume; detach it there, or clear its reservation",
        )),
        None => Outcome::Fail(device_error(
            DeviceErrorKind::Hardware,
            lba,
            format!("the target answers with the unknown status 0x{:02x}; see its log", completed.status),
        )),
    }
}

fn judge_sense(sense: &Sense, lba: Option<Lba>, retries: &mut Retries) -> Outcome {
    let at = sense.information.map(Lba).or(lba);
    let code = format!("sense {:x}/{:02x}/{:02x}", sense.key as u8, sense.asc, sense.ascq);
    let fail = |kind, message: String| Outcome::Fail(device_error(kind, at, message));
    match sense.key {
        SenseKey::NoSense | SenseKey::RecoveredError | SenseKey::Completed => Outcome::Done,
        // The attention concerns what was before this command; the command itself was not done.
        SenseKey::UnitAttention => retry_aborted(retries, lba, "the unit keeps asking for attention"),
        SenseKey::AbortedCommand => retry_aborted(retries, lba, &format!("the target keeps aborting a command ({code})")),
        SenseKey::NotReady if sense.is(&Sense::STOPPED) => {
            fail(DeviceErrorKind::Refused, "the unit was stopped at the target; start it there".into())
        }
        SenseKey::NotReady => retry_busy(retries, lba, "the unit is not ready"),
        SenseKey::Miscompare => Outcome::Miscompare,
        SenseKey::MediumError => fail(
            DeviceErrorKind::Medium,
            format!(
                "the target cannot read or write this block ({code}); 'strongroom volume recover' looks for an older version"
            ),
        ),
        SenseKey::DataProtect if sense.is(&Sense::NO_SPACE) => {
            fail(DeviceErrorKind::NoSpace, "the target's store is full; free space there, or discard blocks".into())
        }
        SenseKey::DataProtect if sense.is(&Sense::IMAGE_PINNED) => fail(
            DeviceErrorKind::Refused,
            "others read the volume as it was before a snapshot was received, and until they detach nobody can write to it ('strongroom volume \
             show' at the target names them); attach it read-only, or try again later"
                .into(),
        ),
        SenseKey::DataProtect => {
            fail(DeviceErrorKind::ReadOnly, "this initiator may not write to the volume; attach it read-only".into())
        }
        SenseKey::IllegalRequest if sense.is(&Sense::NO_OLDER_VERSION) => Outcome::NoOlderVersion,
        SenseKey::IllegalRequest if sense.is(&Sense::INVALID_OPCODE) => Outcome::NotSupported,
        SenseKey::IllegalRequest if sense.is(&Sense::UNKNOWN_ATTACHMENT) => Outcome::UnknownAttachment,
        SenseKey::IllegalRequest if sense.is(&Sense::REPLAY_LOST) => fail(
            DeviceErrorKind::Hardware,
            "a crash of the target took an unflushed write of this block, and before it was sent again another initiator wrote a part of the \
             block: what that one read is there now; look at what uses the block, and write it again"
                .into(),
        ),
        SenseKey::IllegalRequest if sense.is(&Sense::DOES_NOT_OPEN) => fail(
            DeviceErrorKind::Refused,
            "the target, which opens what arrives, cannot open this block, and wrote nothing: it has another key than this initiator, or \
             the block was changed on the way"
                .into(),
        ),
        SenseKey::IllegalRequest if sense.is(&Sense::LBA_OUT_OF_RANGE) => {
            fail(DeviceErrorKind::OutOfRange, "outside the volume; its size may have changed: attach it again".into())
        }
        SenseKey::IllegalRequest => fail(
            DeviceErrorKind::Refused,
            format!("the target refuses the command ({code}): this initiator and the target do not fit together"),
        ),
        _ => fail(
            DeviceErrorKind::Hardware,
            format!("the target's store has failed ({code}); see its log, and reopen the volume there"),
        ),
    }
}

fn retry_aborted(retries: &mut Retries, lba: Option<Lba>, what: &str) -> Outcome {
    retries.aborted += 1;
    let tries = retries.aborted;
    if tries < TRIES_MAX {
        return Outcome::Retry(if tries < 3 { Duration::ZERO } else { BUSY_PAUSE_MIN * tries });
    }
    Outcome::Fail(device_error(DeviceErrorKind::Hardware, lba, format!("{what}, {tries} times; see the target's log")))
}

fn retry_busy(retries: &mut Retries, lba: Option<Lba>, what: &str) -> Outcome {
    retries.busy += 1;
    let tries = retries.busy;
    if tries < BUSY_TRIES_MAX {
        return Outcome::Retry((BUSY_PAUSE_MIN * tries).min(BUSY_PAUSE_MAX));
    }
    Outcome::Fail(device_error(DeviceErrorKind::Hardware, lba, format!("{what} for too long; see its log")))
}

/// Whether a command succeeded at the target.
pub(crate) fn is_good(completed: &Completed) -> bool {
    completed.response == 0 && completed.status == Status::Good as u8
}

/// Whether the answer to a question is that there is none.
pub(crate) fn is_no_answer(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::NoOlderVersion | Outcome::NotSupported)
}

/// The error of an outcome that the operation does not expect.
pub(crate) fn unexpected(outcome: &Outcome, lba: Option<Lba>) -> DeviceError {
    let (kind, message) = match outcome {
        Outcome::Miscompare => {
            (DeviceErrorKind::Refused, "the block was written by somebody else in the meantime; try again")
        }
        Outcome::NotSupported => {
            (DeviceErrorKind::Refused, "the target does not know a command that is needed; update it")
        }
        _ => (DeviceErrorKind::Hardware, "the target answers in a way that makes no sense; see its log"),
    };
    device_error(kind, lba, message)
}

/// Whether a command that is tried again may have been executed all the same.
pub(crate) fn may_have_been_executed(completed: &Completed) -> bool {
    let sense = Sense::parse(&completed.sense);
    match Status::from_byte(completed.status) {
        _ if completed.response != 0 => true,
        Some(Status::Busy | Status::TaskSetFull) => false,
        Some(Status::CheckCondition) => !sense.is_some_and(|sense| {
            matches!(sense.key, SenseKey::UnitAttention | SenseKey::NotReady | SenseKey::IllegalRequest)
        }),
        _ => true,
    }
}

/// Whether the unit says that commands before this one were ended without an answer.
pub(crate) fn says_reset(completed: &Completed) -> bool {
    let sense = Sense::parse(&completed.sense);
    completed.status == Status::CheckCondition as u8
        && sense.is_some_and(|sense| {
            sense.key == SenseKey::UnitAttention && matches!((sense.asc, sense.ascq), (0x29, _) | (0x2f, 0x00))
        })
}

/// What a unit attention says has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Size,
    /// Or a writer lease.
    Reservations,
}

/// What a unit attention says has changed; people are told. The command itself is only tried again.
pub(crate) fn change(completed: &Completed) -> Option<Change> {
    if completed.status != Status::CheckCondition as u8 {
        return None;
    }
    let sense = Sense::parse(&completed.sense).filter(|sense| sense.key == SenseKey::UnitAttention)?;
    match (sense.asc, sense.ascq) {
        (0x2a, 0x09) => {
            tracing::info!("the volume's size has changed");
            Some(Change::Size)
        }
        (0x2a, 0x03..=0x05) => {
            tracing::warn!("somebody changed the reservations of the volume, perhaps ours with them");
            Some(Change::Reservations)
        }
        (asc, ascq) => {
            tracing::debug!(asc, ascq, "the unit asks for attention");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves that each way a command can end has one consequence, and that retries end.
    use super::*;
    use strongroom_scsi::transport::Residual;
    use strongroom_scsi::transport::initiator::TaskId;

    fn ended(status: u8, sense: Option<Sense>) -> Completed {
        let sense = sense.map(|sense| sense.encode()).unwrap_or_default();
        Completed {
            task: TaskId(1),
            status,
            response: 0,
            sense,
            residual: Residual::None,
            moved_bytes: 0,
            written: None,
        }
    }

    fn judge_first(completed: &Completed) -> Outcome {
        judge(completed, None, &mut Retries::default())
    }

    fn kind(sense: Sense) -> DeviceErrorKind {
        match judge(&ended(2, Some(sense)), Some(Lba(1)), &mut Retries::default()) {
            Outcome::Fail(error) => error.kind,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_sense_has_its_kind() {
        assert_eq!(kind(Sense::UNRECOVERED_READ), DeviceErrorKind::Medium);
        assert_eq!(kind(Sense::NO_SPACE), DeviceErrorKind::NoSpace);
        assert_eq!(kind(Sense::WRITE_PROTECTED), DeviceErrorKind::ReadOnly);
        assert_eq!(kind(Sense::INTERNAL_FAILURE), DeviceErrorKind::Hardware);
        assert_eq!(kind(Sense::LBA_OUT_OF_RANGE), DeviceErrorKind::OutOfRange);
        assert_eq!(kind(Sense::INVALID_SEAL_RECORD), DeviceErrorKind::Refused);
        assert_eq!(kind(Sense::DOES_NOT_OPEN), DeviceErrorKind::Refused);
        assert_eq!(judge_first(&ended(2, Some(Sense::MISCOMPARE))), Outcome::Miscompare);
        assert_eq!(judge_first(&ended(2, Some(Sense::NO_OLDER_VERSION))), Outcome::NoOlderVersion);
        assert_eq!(judge_first(&ended(0, None)), Outcome::Done);
    }

    #[test]
    fn the_block_named_by_the_target_is_reported() {
        let ended = ended(2, Some(Sense::UNRECOVERED_READ.at(Lba(77))));
        let Outcome::Fail(error) = judge(&ended, Some(Lba(70)), &mut Retries::default()) else {
            panic!("a medium error fails")
        };
        assert_eq!(error.lba, Some(Lba(77)));
    }

    #[test]
    fn retries_end() {
        for (status, sense) in [(2, Some(Sense::CHECKSUM_ON_ARRIVAL)), (2, None), (8, None), (0x28, None), (0x40, None)]
        {
            let ended = ended(status, sense);
            assert!(matches!(judge_first(&ended), Outcome::Retry(_)));
            let mut retries = Retries { aborted: 10_000, busy: 10_000 };
            assert!(matches!(judge(&ended, None, &mut retries), Outcome::Fail(_)));
        }
    }

    #[test]
    fn having_been_busy_uses_up_no_patience_with_abortions() {
        let attention = Sense::new(SenseKey::UnitAttention, 0x29, 1);
        let (full, attention) = (ended(0x28, None), ended(2, Some(attention)));
        let mut retries = Retries::default();
        for _ in 0..BUSY_TRIES_MAX - 1 {
            assert!(matches!(judge(&full, None, &mut retries), Outcome::Retry(_)));
        }
        for _ in 0..TRIES_MAX - 1 {
            assert!(matches!(judge(&attention, None, &mut retries), Outcome::Retry(_)));
        }
        assert!(matches!(judge(&attention, None, &mut retries), Outcome::Fail(_)));
        assert!(matches!(judge(&full, None, &mut retries), Outcome::Fail(_)));
    }
}
