//! Persistent reservations as an initiator uses them: a node of a cluster registers by a key, sees whether it still is registered, leaves, and
//! fences other nodes. Machines like `writer_lease`: commands out, their ends in.
//!
//! The reservation is of the type Write Exclusive, All Registrants: it lasts until the last registered node leaves, so that who was fenced stays
//! out, no matter who made the reservation. Everything is registered with APTPL=1, so that it survives a restart of the target. Absent: what the
//! target does with it, and what becomes of requests of who was fenced (`engine`).

mod fence;
mod join;

use std::time::Duration;

use strongroom_block::{Buffer, DeviceError, DeviceErrorKind};
use strongroom_scsi::persistent::ReservationType;
use strongroom_scsi::persistent::parameters::{ReportedRegistration, ReserveOutList, parse_full_status};
use strongroom_scsi::transport::Lun;
use strongroom_scsi::transport::initiator::{Command as ScsiCommand, Completed, WriteSource};
use strongroom_scsi::vendor::lease::{Claim, REPORT_BYTES_MAX, Writer, parse_writers};
use strongroom_scsi::{Sense, Status, VendorCommand, cdb, opcode as op};

use crate::completion::device_error;
use crate::pipeline::outcome::{Outcome, Retries, judge};
use crate::pipeline::unit::UnitDescription;
use crate::reservation::{FenceReport, FenceRequest, Registrant, ReservationError, ReservationKey};
use crate::session::transport::InitiatorPort;
use crate::{AttachError, AttachOptions};
use fence::Fence;
use join::{Join, Leave, Release, Standing};

/// Bytes that are asked for of READ FULL STATUS, at most.
const STATUS_BYTES: u16 = u16::MAX;

/// Who we are, as the target reports us.
#[derive(Clone, Debug)]
pub(crate) struct OwnPort {
    name: String,
    isid: [u8; 6],
}

impl OwnPort {
    pub(crate) fn new(options: &AttachOptions, port: InitiatorPort) -> OwnPort {
        OwnPort { name: options.iscsi.initiator_name.to_lowercase(), isid: port.isid }
    }

    fn is_node_of(&self, one: &ReportedRegistration) -> bool {
        one.initiator_name == self.name
    }

    /// Whether it is this session's.
    fn made(&self, one: &ReportedRegistration) -> bool {
        self.is_node_of(one) && one.isid == Some(self.isid)
    }

    /// Whether another node has registered a key.
    fn check_ours(&self, key: ReservationKey, status: &[ReportedRegistration]) -> Result<(), ReservationError> {
        match status.iter().find(|one| one.key == key.value() && !self.is_node_of(one)) {
            Some(other) => Err(ReservationError::KeyInUse { key, owner: other.initiator_name.clone() }),
            None => Ok(()),
        }
    }
}

/// What is asked of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Question {
    /// READ FULL STATUS.
    Status,
    /// REGISTER; with `old` none, REGISTER AND IGNORE EXISTING KEY. `new` 0 ends the registration.
    Register {
        old: Option<u64>,
        new: u64,
    },
    Reserve {
        key: u64,
    },
    /// PREEMPT AND ABORT.
    Preempt {
        key: u64,
        victim: u64,
    },
    Writers,
    Claim(Claim),
    ReleaseLease,
}

/// What it says.
#[derive(Debug)]
enum Answer {
    Good,
    Conflict,
    Status(Vec<ReportedRegistration>),
    Writers(Vec<Writer>),
}

/// What a script does after an answer.
#[derive(Debug)]
enum Next {
    Ask(Question),
    Done(ReservationOutcome),
    Fail(ReservationError),
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum ReservationOutcome {
    /// This attachment is registered.
    Registered,
    /// It was, and is not any more.
    Fenced,
    /// It has ended its registration.
    Left,
    Reported(FenceReport),
}

/// What to do after an answer.
#[derive(Debug)]
pub(crate) enum ReservationStep {
    /// Send [`ReservationTalk::command`], after a pause.
    Ask(Duration),
    Done(ReservationOutcome),
    Failed(AttachError),
}

#[derive(Debug)]
enum Script {
    Join(Join),
    Standing(Standing),
    Leave(Leave),
    List,
    Fence(Fence),
    Release(Release),
}

/// One exchange with the unit.
#[derive(Debug)]
pub(crate) struct ReservationTalk {
    lun: Lun,
    script: Script,
    question: Question,
    /// A registration is one of all ports of the target, where it takes that.
    all_target_ports: bool,
    answer: Vec<u8>,
    retries: Retries,
}

impl ReservationTalk {
    fn new(unit: &UnitDescription, script: Script, question: Question) -> ReservationTalk {
        let (lun, retries) = (unit.wire_lun(), Retries::default());
        ReservationTalk { lun, script, question, all_target_ports: true, answer: Vec::new(), retries }
    }

    /// Carries out a request that is made without an attachment.
    pub(crate) fn request(unit: &UnitDescription, request: &FenceRequest, own: OwnPort) -> ReservationTalk {
        let script = match request {
            FenceRequest::List => Script::List,
            FenceRequest::Release { key } => Script::Release(Release::new(*key, own)),
            FenceRequest::Fence { key, victim, joins } => {
                Script::Fence(Fence::new((*key, *joins), victim.clone(), own, unit.has_leases))
            }
        };
        ReservationTalk::new(unit, script, Question::Status)
    }

    /// The next command.
    pub(crate) fn command(&mut self) -> ScsiCommand {
        self.answer.clear();
        match &self.question {
            Question::Status => {
                let cdb = cdb::persistent_reserve_in(op::SA_PR_READ_FULL_STATUS, STATUS_BYTES);
                ScsiCommand::read(self.lun, cdb, STATUS_BYTES.into())
            }
            Question::Register { old: None, new } => self.reserve_out(op::SA_PR_REGISTER_AND_IGNORE, 0, *new),
            Question::Register { old: Some(old), new } => self.reserve_out(op::SA_PR_REGISTER, *old, *new),
            Question::Reserve { key } => self.reserve_out(op::SA_PR_RESERVE, *key, 0),
            Question::Preempt { key, victim } => self.reserve_out(op::SA_PR_PREEMPT_AND_ABORT, *key, *victim),
            Question::Writers => {
                let cdb = VendorCommand::ReportWriters { allocation_len: REPORT_BYTES_MAX }.encode();
                ScsiCommand::read(self.lun, cdb, REPORT_BYTES_MAX)
            }
            Question::Claim(claim) => {
                let list = Buffer::copy_from(&claim.encode());
                let cdb = VendorCommand::ClaimLease { parameter_list_len: list.len() as u32 }.encode();
                ScsiCommand::write(self.lun, cdb, WriteSource::plain(list))
            }
            Question::ReleaseLease => ScsiCommand::without_data(self.lun, VendorCommand::ReleaseLease.encode()),
        }
    }

    fn reserve_out(&self, service_action: u8, key: u64, action_key: u64) -> ScsiCommand {
        let registers = matches!(service_action, op::SA_PR_REGISTER | op::SA_PR_REGISTER_AND_IGNORE);
        let all_target_ports = registers && self.all_target_ports;
        let list = ReserveOutList { key, action_key, persist: registers, all_target_ports }.encode();
        // SPC-4 §6.16.2: the type is ignored where nothing is reserved.
        let kind = if registers { 0 } else { ReservationType::WriteExclusiveAllRegistrants as u8 };
        let cdb = cdb::persistent_reserve_out(service_action, kind, list.len() as u32);
        ScsiCommand::write(self.lun, cdb, WriteSource::plain(Buffer::copy_from(&list)))
    }

    pub(crate) fn data(&mut self, data: &[u8]) {
        let room = REPORT_BYTES_MAX as usize - self.answer.len();
        self.answer.extend_from_slice(&data[..data.len().min(room)]);
    }

    pub(crate) fn completed(&mut self, completed: &Completed) -> ReservationStep {
        let is_refused = Status::from_byte(completed.status) == Some(Status::ReservationConflict);
        if is_refused && completed.response == 0 {
            return self.answered(Answer::Conflict);
        }
        match judge(completed, None, &mut self.retries) {
            Outcome::Done => match self.understand() {
                Some(answer) => self.answered(answer),
                None => failed(ReservationError::Unreadable),
            },
            Outcome::Retry(after) => ReservationStep::Ask(after),
            Outcome::Fail(_) if is_full(completed) => failed(ReservationError::Full),
            Outcome::Fail(error) if error.kind == DeviceErrorKind::ReadOnly => failed(ReservationError::ReadOnly),
            // A target with one port need not know the word.
            Outcome::Fail(error)
                if error.kind == DeviceErrorKind::Refused
                    && self.all_target_ports
                    && matches!(self.question, Question::Register { .. }) =>
            {
                self.all_target_ports = false;
                ReservationStep::Ask(Duration::ZERO)
            }
            Outcome::Fail(error) => unsupported(&error.message),
            other => unsupported(&format!("it answers {:?} with {other:?}", self.question)),
        }
    }

    /// What arrived with GOOD.
    fn understand(&self) -> Option<Answer> {
        Some(match self.question {
            Question::Status => Answer::Status(parse_full_status(&self.answer)?),
            Question::Writers => Answer::Writers(parse_writers(&self.answer)?),
            _ => Answer::Good,
        })
    }

    fn answered(&mut self, answer: Answer) -> ReservationStep {
        self.retries = Retries::default();
        if let (Question::Status, Answer::Conflict) = (&self.question, &answer) {
            return failed(ReservationError::Conflict);
        }
        let next = match &mut self.script {
            Script::Join(join) => join.next(answer),
            Script::Standing(standing) => standing.next(&answer),
            Script::Leave(leave) => leave.next(&answer),
            Script::List => list(answer),
            Script::Fence(fence) => fence.next(answer),
            Script::Release(release) => release.next(answer),
        };
        match next {
            Next::Ask(question) => {
                self.question = question;
                ReservationStep::Ask(Duration::ZERO)
            }
            Next::Done(outcome) => ReservationStep::Done(outcome),
            Next::Fail(error) => failed(error),
        }
    }
}

fn is_full(completed: &Completed) -> bool {
    Sense::parse(&completed.sense).is_some_and(|sense| sense.is(&Sense::INSUFFICIENT_REGISTRATION_RESOURCES))
}

fn failed(error: ReservationError) -> ReservationStep {
    ReservationStep::Failed(AttachError::Reservation(Box::new(error)))
}

fn unsupported(what: &str) -> ReservationStep {
    ReservationStep::Failed(AttachError::Unsupported(format!(
        "the target does not do what clusters need of persistent reservations: {what}"
    )))
}

fn list(answer: Answer) -> Next {
    match answer {
        Answer::Status(status) => Next::Done(ReservationOutcome::Reported(FenceReport {
            registered: registrants(&status),
            ..FenceReport::default()
        })),
        _ => Next::Fail(ReservationError::Conflict),
    }
}

/// Who is registered, once for each node and key.
fn registrants(status: &[ReportedRegistration]) -> Vec<Registrant> {
    let mut found: Vec<Registrant> = Vec::new();
    for one in status {
        let Some(key) = ReservationKey::from_wire(one.key) else { continue };
        match found.iter_mut().find(|known| known.key == key && known.initiator_name == one.initiator_name) {
            Some(known) => known.holds |= one.holds.is_some(),
            None => {
                let initiator_name = one.initiator_name.clone();
                found.push(Registrant { key, initiator_name, holds: one.holds.is_some() });
            }
        }
    }
    found
}

/// How the attachment stands with its registration.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RegistrationState {
    /// Not registered yet.
    New,
    Registered,
    /// Another node has ended the registration. For good.
    Fenced(DeviceError),
    Left,
}

/// The registration of one attachment, over all its sessions.
#[derive(Debug)]
pub(crate) struct NodeRegistration {
    key: ReservationKey,
    take_over: bool,
    volume: String,
    own: OwnPort,
    state: RegistrationState,
}

impl NodeRegistration {
    /// `None` if the attachment has no key.
    pub(crate) fn new(options: &AttachOptions, port: InitiatorPort) -> Option<NodeRegistration> {
        let key = options.lease.reservation_key.filter(|_| !options.read_only && !options.url.is_snapshot())?;
        Some(NodeRegistration {
            key,
            take_over: options.lease.take_over,
            volume: options.url.file_name().to_owned(),
            own: OwnPort::new(options, port),
            state: RegistrationState::New,
        })
    }

    /// What is to be said in a new session before anything is written.
    pub(crate) fn begin(&self, unit: &UnitDescription) -> Option<ReservationTalk> {
        match self.state {
            RegistrationState::New => {
                let join = Join::new((self.key, self.take_over), self.own.clone(), unit.has_leases);
                Some(ReservationTalk::new(unit, Script::Join(join), Question::Status))
            }
            RegistrationState::Registered => Some(self.check(unit)),
            RegistrationState::Fenced(_) | RegistrationState::Left => None,
        }
    }

    /// Asks whether it still is registered.
    pub(crate) fn check(&self, unit: &UnitDescription) -> ReservationTalk {
        let standing = Standing { key: self.key, own: self.own.clone() };
        ReservationTalk::new(unit, Script::Standing(standing), Question::Status)
    }

    /// Ends the registration, if there is one.
    pub(crate) fn leave(&mut self, unit: &UnitDescription) -> Option<ReservationTalk> {
        if self.state != RegistrationState::Registered {
            return None;
        }
        let question = Question::Register { old: Some(self.key.value()), new: 0 };
        Some(ReservationTalk::new(unit, Script::Leave(Leave), question))
    }

    /// What came of it.
    pub(crate) fn concluded(&mut self, outcome: &ReservationOutcome) {
        self.state = match outcome {
            ReservationOutcome::Registered => RegistrationState::Registered,
            ReservationOutcome::Left => RegistrationState::Left,
            ReservationOutcome::Fenced => {
                let message = format!(
                    "{} is fenced off: another node has removed the reservation key {} of this one. Nothing more is written from here, and what was not \
                     flushed is lost; detach it, and attach it again when the cluster takes this node back",
                    self.volume, self.key
                );
                RegistrationState::Fenced(device_error(DeviceErrorKind::ReservationConflict, None, message))
            }
            ReservationOutcome::Reported(_) => return,
        };
    }

    pub(crate) fn is_registered(&self) -> bool {
        self.state == RegistrationState::Registered
    }

    /// Why nothing more may be written.
    pub(crate) fn lost(&self) -> Option<&DeviceError> {
        match &self.state {
            RegistrationState::Fenced(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
