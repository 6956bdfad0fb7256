//! The attachment's writer lease: what is asked of the target at each session and at the end, and what follows from its answers. A machine
//! like `probe`: commands out, their ends in. Absent: how the lease is kept (the target's), what becomes of requests when it is lost (`engine`).

use std::time::Duration;

use strongroom_block::{Buffer, DeviceError, DeviceErrorKind};
use strongroom_scsi::transport::Lun;
use strongroom_scsi::transport::initiator::{Command as ScsiCommand, Completed, WriteSource};
use strongroom_scsi::vendor::lease::{Claim, LeaseId, LeaseMode, REPORT_BYTES_MAX, Writer, WriterRole, parse_writers};
use strongroom_scsi::{Status, VendorCommand};

use crate::completion::device_error;
use crate::lease::{WriterConflict, describe};
use crate::pipeline::outcome::{Outcome, Retries, judge};
use crate::pipeline::stamps::random;
use crate::pipeline::unit::UnitDescription;
use crate::{AttachError, AttachOptions};

/// A claim that only sessions without a lease stand against is made so often, at such intervals: one of ours that has just logged in has
/// not said yet what it wants, and one that has just logged out may still be there.
const TRIES_MAX: u32 = 20;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// What is to be said about the lease in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Question {
    Claim(Claim),
    Report,
    Release,
}

/// One exchange with the unit.
#[derive(Debug)]
pub(crate) struct LeaseTalk {
    lun: Lun,
    question: Question,
    /// What the report that follows a refusal is about.
    refused: Option<Claim>,
    volume: String,
    report: Vec<u8>,
    retries: Retries,
    tries: u32,
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum LeaseOutcome {
    /// The lease is ours, or what was said was heard.
    Held,
    /// We may not write.
    ReadOnly,
    Refused(WriterConflict),
    Reported(Vec<Writer>),
    Released,
}

/// What to do after an answer.
#[derive(Debug)]
pub(crate) enum LeaseStep {
    /// Send [`LeaseTalk::command`], after a pause.
    Ask(Duration),
    Done(LeaseOutcome),
    Failed(AttachError),
}

impl LeaseTalk {
    fn new(unit: &UnitDescription, volume: &str, question: Question) -> LeaseTalk {
        LeaseTalk {
            lun: unit.wire_lun(),
            question,
            refused: None,
            volume: volume.to_owned(),
            report: Vec::new(),
            retries: Retries::default(),
            tries: 0,
        }
    }

    /// Asks who writes.
    pub(crate) fn report(unit: &UnitDescription) -> LeaseTalk {
        LeaseTalk::new(unit, "", Question::Report)
    }

    /// The next command.
    pub(crate) fn command(&mut self) -> ScsiCommand {
        self.report.clear();
        match &self.question {
            Question::Claim(claim) => {
                let list = Buffer::copy_from(&claim.encode());
                let cdb = VendorCommand::ClaimLease { parameter_list_len: list.len() as u32 }.encode();
                ScsiCommand::write(self.lun, cdb, WriteSource::plain(list))
            }
            Question::Report => {
                let cdb = VendorCommand::ReportWriters { allocation_len: REPORT_BYTES_MAX }.encode();
                ScsiCommand::read(self.lun, cdb, REPORT_BYTES_MAX)
            }
            Question::Release => ScsiCommand::without_data(self.lun, VendorCommand::ReleaseLease.encode()),
        }
    }

    pub(crate) fn data(&mut self, data: &[u8]) {
        let room = REPORT_BYTES_MAX as usize - self.report.len();
        self.report.extend_from_slice(&data[..data.len().min(room)]);
    }

    pub(crate) fn completed(&mut self, completed: &Completed) -> LeaseStep {
        let is_refused = Status::from_byte(completed.status) == Some(Status::ReservationConflict);
        if let (true, Question::Claim(claim)) = (is_refused && completed.response == 0, &self.question) {
            self.refused = Some(claim.clone());
            self.question = Question::Report;
            return LeaseStep::Ask(Duration::ZERO);
        }
        match judge(completed, None, &mut self.retries) {
            Outcome::Done => self.answered(),
            Outcome::Retry(after) => LeaseStep::Ask(after),
            Outcome::Fail(error) if error.kind == DeviceErrorKind::ReadOnly => LeaseStep::Done(LeaseOutcome::ReadOnly),
            // It ends by itself.
            _ if self.question == Question::Release => LeaseStep::Done(LeaseOutcome::Released),
            Outcome::Fail(error) => {
                let what = format!("the target could not give out its writer lease: {}", error.message);
                LeaseStep::Failed(match &self.question {
                    // It may be well again when it is asked the next time.
                    Question::Claim(claim) if claim.resume => AttachError::Unreachable(what),
                    _ => AttachError::Unsupported(what),
                })
            }
            other => {
                let what = format!("a claim of the writer lease was answered with {other:?}; update the target");
                LeaseStep::Failed(AttachError::Unsupported(what))
            }
        }
    }

    fn answered(&mut self) -> LeaseStep {
        let claim = match (&self.question, self.refused.take()) {
            (Question::Claim(_), _) => return LeaseStep::Done(LeaseOutcome::Held),
            (Question::Release, _) => return LeaseStep::Done(LeaseOutcome::Released),
            (Question::Report, claim) => claim,
        };
        let Some(writers) = parse_writers(&self.report) else {
            let what = "it does not say who writes to the volume in a way that this build knows; update";
            return LeaseStep::Failed(AttachError::Unsupported(what.to_owned()));
        };
        let Some(claim) = claim else { return LeaseStep::Done(LeaseOutcome::Reported(writers)) };
        let (volume, wanted, sole) = (self.volume.clone(), claim.mode, claim.sole);
        let conflict = WriterConflict { volume, wanted, sole, writers };
        self.tries += 1;
        if conflict.may_pass() && !claim.resume && self.tries < TRIES_MAX {
            self.question = Question::Claim(claim);
            return LeaseStep::Ask(TRY_AGAIN_AFTER);
        }
        LeaseStep::Done(LeaseOutcome::Refused(conflict))
    }
}

/// How the attachment stands with its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ClaimState {
    /// Not asked for yet.
    Unclaimed,
    /// The target has none, or we do not write.
    Unneeded,
    Held,
    /// It is ours, and the target is asked for the last time whether it still is.
    Confirming,
    /// Somebody else has the volume, or had it meanwhile. For good.
    Lost(DeviceError),
    Released,
}

/// The lease of one attachment, over all its sessions.
#[derive(Debug)]
pub(crate) struct WriterLease {
    claim: Claim,
    volume: String,
    state: ClaimState,
}

impl WriterLease {
    pub(crate) fn new(options: &AttachOptions) -> WriterLease {
        let lease = &options.lease;
        let mode = if options.read_only || options.url.is_snapshot() { LeaseMode::Reader } else { lease.mode };
        let is_reader = mode == LeaseMode::Reader;
        let claim = Claim {
            id: LeaseId(random()),
            mode,
            take_over: lease.take_over && !is_reader,
            sole: lease.sole && !is_reader,
            resume: false,
            // 0 would mean the target's own choice.
            seconds: u32::try_from(lease.duration.as_secs()).unwrap_or(u32::MAX).max(1),
            description: lease.description.clone(),
        };
        let is_asked = lease.is_claimed || is_reader;
        let state = if is_asked { ClaimState::Unclaimed } else { ClaimState::Unneeded };
        WriterLease { claim, volume: options.url.file_name().to_owned(), state }
    }

    /// What is to be said in a new session before anything is written, if there is anything to say.
    pub(crate) fn begin(&mut self, unit: &UnitDescription) -> Option<LeaseTalk> {
        match (&self.state, unit.has_leases) {
            (ClaimState::Held | ClaimState::Confirming, true) => Some(self.resume(unit)),
            (ClaimState::Held | ClaimState::Confirming, false) => {
                let what = "the target does not keep writer leases any more, so somebody else may have written: nothing more is written \
                            here; detach, and attach it again";
                self.state = ClaimState::Lost(device_error(DeviceErrorKind::ReservationConflict, None, what));
                None
            }
            // A reader says so in each session.
            (ClaimState::Unclaimed, true) | (ClaimState::Unneeded, true) if self.claims_in_each_session() => {
                Some(LeaseTalk::new(unit, &self.volume, Question::Claim(self.claim.clone())))
            }
            (ClaimState::Unclaimed, false) => {
                if self.claim.mode != LeaseMode::Reader {
                    tracing::warn!(
                        volume = self.volume,
                        "this target keeps no second writer out of the volume: see to it that nobody else writes to it"
                    );
                }
                self.state = ClaimState::Unneeded;
                None
            }
            _ => None,
        }
    }

    fn claims_in_each_session(&self) -> bool {
        self.state == ClaimState::Unclaimed || self.claim.mode == LeaseMode::Reader
    }

    /// Asks whether it still is ours.
    pub(crate) fn resume(&self, unit: &UnitDescription) -> LeaseTalk {
        let claim = Claim { resume: true, take_over: false, sole: false, ..self.claim.clone() };
        LeaseTalk::new(unit, &self.volume, Question::Claim(claim))
    }

    /// The next thing to ask before we leave, if there is one: whether the lease still is ours, so that a detach does not report success
    /// after another initiator has taken the volume over; then its release.
    pub(crate) fn leave(&mut self, unit: &UnitDescription) -> Option<LeaseTalk> {
        match self.state {
            ClaimState::Held => {
                self.state = ClaimState::Confirming;
                Some(self.resume(unit))
            }
            ClaimState::Confirming => {
                self.state = ClaimState::Released;
                Some(LeaseTalk::new(unit, &self.volume, Question::Release))
            }
            ClaimState::Unclaimed | ClaimState::Unneeded | ClaimState::Lost(_) | ClaimState::Released => None,
        }
    }

    /// What came of a claim.
    ///
    /// # Errors
    /// The first one was refused.
    pub(crate) fn concluded(&mut self, outcome: LeaseOutcome) -> Result<(), AttachError> {
        match outcome {
            LeaseOutcome::Held if self.claim.mode == LeaseMode::Reader => self.state = ClaimState::Unneeded,
            LeaseOutcome::Held if self.state == ClaimState::Confirming => {}
            LeaseOutcome::Held => self.state = ClaimState::Held,
            LeaseOutcome::ReadOnly => self.state = ClaimState::Unneeded,
            LeaseOutcome::Refused(conflict) if self.state == ClaimState::Unclaimed => {
                return Err(AttachError::InUse(Box::new(conflict)));
            }
            LeaseOutcome::Refused(conflict) => self.state = ClaimState::Lost(self.lost_to(&conflict)),
            LeaseOutcome::Reported(_) | LeaseOutcome::Released => {}
        }
        Ok(())
    }

    fn lost_to(&self, conflict: &WriterConflict) -> DeviceError {
        let volume = &self.volume;
        let taker = conflict.writers.iter().find(|writer| writer.role == WriterRole::TookOver);
        let holders: Vec<String> = conflict.blockers().map(describe).collect();
        let what = match taker {
            Some(taker) => format!("{volume} was taken over for writing by {}", describe(taker)),
            None => {
                let now = match holders.is_empty() {
                    true => "others may have written to it since".to_owned(),
                    false => format!("it is attached for writing by {} now", holders.join("; ")),
                };
                let seconds = self.claim.seconds;
                format!("{volume} was out of reach for longer than its writer lease of {seconds} s, and {now}")
            }
        };
        let message = format!("{what}: nothing more is written from here; detach it, and attach it again");
        device_error(DeviceErrorKind::ReservationConflict, None, message)
    }

    /// It is ours.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self.state, ClaimState::Held | ClaimState::Confirming)
    }

    /// Why nothing more may be written.
    pub(crate) fn lost(&self) -> Option<&DeviceError> {
        match &self.state {
            ClaimState::Lost(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
