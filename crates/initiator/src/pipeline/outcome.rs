//! What the end of a command means: done, again, or which error for a person.

use std::time::Duration;

use strongroom_block::{DeviceError, DeviceErrorKind, Lba};
use strongroom_iscsi::initiator::Completed;
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
pub(crate) enum Verdict {
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
pub(crate) fn judge(completed: &Completed, lba: Option<Lba>, retries: &mut Retries) -> Verdict {
    if completed.response != 0 {
        return retry_aborted(retries, lba, "the target could not complete a command");
    }
    match Status::from_byte(completed.status) {
        Some(Status::Good | Status::ConditionMet) => Verdict::Done,
        Some(Status::CheckCondition) => match Sense::parse(&completed.sense) {
            Some(sense) => judge_sense(&sense, lba, retries),
            None => retry_aborted(retries, lba, "the target reports an error without saying which"),
        },
        Some(Status::Busy | Status::TaskSetFull) => retry_busy(retries, lba, "the target is busy"),
        Some(Status::TaskAborted) => retry_aborted(retries, lba, "the target keeps aborting a command"),
        Some(Status::ReservationConflict) => Verdict::Fail(device_error(
            DeviceErrorKind::ReservationConflict,
            lba,
            "another initiator has reserved the volume; detach it there, or clear its reservation",
        )),
        None => Verdict::Fail(device_error(
            DeviceErrorKind::Hardware,
            lba,
            format!("the target answers with the unknown status 0x{:02x}; see its log", completed.status),
        )),
    }
}

fn judge_sense(sense: &Sense, lba: Option<Lba>, retries: &mut Retries) -> Verdict {
    let at = sense.information.map(Lba).or(lba);
    let code = format!("sense {:x}/{:02x}/{:02x}", sense.key as u8, sense.asc, sense.ascq);
    let fail = |kind, message: String| Verdict::Fail(device_error(kind, at, message));
    match sense.key {
        SenseKey::NoSense | SenseKey::RecoveredError | SenseKey::Completed => Verdict::Done,
        // The attention concerns what was before this command; the command itself was not done.
        SenseKey::UnitAttention => retry_aborted(retries, lba, "the unit keeps asking for attention"),
        SenseKey::AbortedCommand => retry_aborted(retries, lba, &format!("the target keeps aborting a command ({code})")),
        SenseKey::NotReady if sense.is(&Sense::STOPPED) => {
            fail(DeviceErrorKind::Refused, "the unit was stopped at the target; start it there".into())
        }
        SenseKey::NotReady => retry_busy(retries, lba, "the unit is not ready"),
        SenseKey::Miscompare => Verdict::Miscompare,
        SenseKey::MediumError => fail(
            DeviceErrorKind::Medium,
            format!(
                "the target cannot read or write this block ({code}); 'strongroom volume recover' looks for an older version"
            ),
        ),
        SenseKey::DataProtect if sense.is(&Sense::NO_SPACE) => {
            fail(DeviceErrorKind::NoSpace, "the target's store is full; free space there, or discard blocks".into())
        }
        SenseKey::DataProtect => {
            fail(DeviceErrorKind::ReadOnly, "this initiator may not write to the volume; attach it read-only".into())
        }
        SenseKey::IllegalRequest if sense.is(&Sense::NO_OLDER_VERSION) => Verdict::NoOlderVersion,
        SenseKey::IllegalRequest if sense.is(&Sense::INVALID_OPCODE) => Verdict::NotSupported,
        SenseKey::IllegalRequest if sense.is(&Sense::UNKNOWN_ATTACHMENT) => Verdict::UnknownAttachment,
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

fn retry_aborted(retries: &mut Retries, lba: Option<Lba>, what: &str) -> Verdict {
    retries.aborted += 1;
    let tries = retries.aborted;
    if tries < TRIES_MAX {
        return Verdict::Retry(if tries < 3 { Duration::ZERO } else { BUSY_PAUSE_MIN * tries });
    }
    Verdict::Fail(device_error(DeviceErrorKind::Hardware, lba, format!("{what}, {tries} times; see the target's log")))
}

fn retry_busy(retries: &mut Retries, lba: Option<Lba>, what: &str) -> Verdict {
    retries.busy += 1;
    let tries = retries.busy;
    if tries < BUSY_TRIES_MAX {
        return Verdict::Retry((BUSY_PAUSE_MIN * tries).min(BUSY_PAUSE_MAX));
    }
    Verdict::Fail(device_error(DeviceErrorKind::Hardware, lba, format!("{what} for too long; see its log")))
}

#[cfg(test)]
mod tests {
    //! Proves that each way a command can end has one consequence, and that retries end.
    use super::*;
    use strongroom_iscsi::Residual;
    use strongroom_iscsi::initiator::TaskId;

    fn ended(status: u8, sense: Option<Sense>) -> Completed {
        let sense = sense.map(|sense| sense.encode()).unwrap_or_default();
        Completed {
            task: TaskId(1),
            status,
            response: 0,
            sense,
            residual: Residual::None,
            moved_bytes: 0,
            ahs: Default::default(),
        }
    }

    fn judge_first(completed: &Completed) -> Verdict {
        judge(completed, None, &mut Retries::default())
    }

    fn kind(sense: Sense) -> DeviceErrorKind {
        match judge(&ended(2, Some(sense)), Some(Lba(1)), &mut Retries::default()) {
            Verdict::Fail(error) => error.kind,
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
        assert_eq!(judge_first(&ended(2, Some(Sense::MISCOMPARE))), Verdict::Miscompare);
        assert_eq!(judge_first(&ended(2, Some(Sense::NO_OLDER_VERSION))), Verdict::NoOlderVersion);
        assert_eq!(judge_first(&ended(0, None)), Verdict::Done);
    }

    #[test]
    fn the_block_named_by_the_target_is_reported() {
        let ended = ended(2, Some(Sense::UNRECOVERED_READ.at(Lba(77))));
        let Verdict::Fail(error) = judge(&ended, Some(Lba(70)), &mut Retries::default()) else {
            panic!("a medium error fails")
        };
        assert_eq!(error.lba, Some(Lba(77)));
    }

    #[test]
    fn retries_end() {
        for (status, sense) in [(2, Some(Sense::CHECKSUM_ON_ARRIVAL)), (2, None), (8, None), (0x28, None), (0x40, None)]
        {
            let ended = ended(status, sense);
            assert!(matches!(judge_first(&ended), Verdict::Retry(_)));
            let mut retries = Retries { aborted: 10_000, busy: 10_000 };
            assert!(matches!(judge(&ended, None, &mut retries), Verdict::Fail(_)));
        }
    }

    #[test]
    fn having_been_busy_uses_up_no_patience_with_abortions() {
        let attention = Sense::new(SenseKey::UnitAttention, 0x29, 1);
        let (full, attention) = (ended(0x28, None), ended(2, Some(attention)));
        let mut retries = Retries::default();
        for _ in 0..BUSY_TRIES_MAX - 1 {
            assert!(matches!(judge(&full, None, &mut retries), Verdict::Retry(_)));
        }
        for _ in 0..TRIES_MAX - 1 {
            assert!(matches!(judge(&attention, None, &mut retries), Verdict::Retry(_)));
        }
        assert!(matches!(judge(&attention, None, &mut retries), Verdict::Fail(_)));
        assert!(matches!(judge(&full, None, &mut retries), Verdict::Fail(_)));
    }
}
