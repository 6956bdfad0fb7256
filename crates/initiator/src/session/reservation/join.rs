//! How an attachment becomes a registered node, sees that it still is one, and leaves; and how a node gives up a key without an attachment.

use strongroom_scsi::persistent::ReservationType;
use strongroom_scsi::persistent::parameters::ReportedRegistration;
use strongroom_scsi::vendor::lease::{Standing as WriterStanding, WriterRole};

use super::{Answer, Next, OwnPort, Question, ReservationOutcome, registrants};
use crate::lease::describe;
use crate::pipeline::stamps::random;
use crate::reservation::{FenceReport, ReservationError, ReservationKey};

/// How often a reservation is made that somebody else has released in between.
const RESERVE_TRIES_MAX: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JoinStep {
    Looking,
    /// Who is alive? This node has registered the key before.
    AskingWriters,
    /// Under a key of the moment, to remove what is left of the node's former attachments.
    RegisteringForTheMoment,
    Removing,
    Renaming,
    Registering,
    Reserving,
    Inspecting,
    Withdrawing,
}

/// Registers a key, and reserves the unit for all who are registered.
///
/// A registration belongs to a session's port, which is another one for each attachment: those of attachments that died stay, with the same
/// key. They are removed, or the node would be registered ever more often.
#[derive(Debug)]
pub(super) struct Join {
    key: ReservationKey,
    /// Of the moment.
    other_key: u64,
    take_over: bool,
    own: OwnPort,
    has_leases: bool,
    step: JoinStep,
    tries: u32,
    failed: Option<ReservationError>,
}

impl Join {
    pub(super) fn new((key, take_over): (ReservationKey, bool), own: OwnPort, has_leases: bool) -> Join {
        let other_key = u64::from_be_bytes(random()) | 1 << 63;
        let step = JoinStep::Looking;
        Join { key, other_key, take_over, own, has_leases, step, tries: 0, failed: None }
    }

    pub(super) fn next(&mut self, answer: Answer) -> Next {
        let key = self.key.value();
        match (self.step, answer) {
            (JoinStep::Looking, Answer::Status(status)) => self.looked(&status),
            (JoinStep::AskingWriters, Answer::Writers(writers)) => {
                let other = writers.iter().find(|writer| {
                    let is_held = matches!(writer.role, WriterRole::Holder(_));
                    let is_there = writer.standing == WriterStanding::Connected;
                    let is_ours = writer.initiator_name.to_lowercase() == self.own.name;
                    is_held && is_there && is_ours && !writer.is_asker
                });
                match other {
                    Some(other) => Next::Fail(ReservationError::AttachedAlready { key: self.key, by: describe(other) }),
                    None => self.replace(),
                }
            }
            (JoinStep::RegisteringForTheMoment, Answer::Good) => {
                self.ask(JoinStep::Removing, Question::Preempt { key: self.other_key, victim: key })
            }
            // There was nothing left to remove, if it conflicts.
            (JoinStep::Removing, Answer::Good | Answer::Conflict) => {
                self.ask(JoinStep::Renaming, Question::Register { old: Some(self.other_key), new: key })
            }
            (JoinStep::Renaming | JoinStep::Registering, Answer::Good) => {
                self.ask(JoinStep::Reserving, Question::Reserve { key })
            }
            (JoinStep::Reserving, Answer::Good) => Next::Done(ReservationOutcome::Registered),
            (JoinStep::Reserving, Answer::Conflict) => self.ask(JoinStep::Inspecting, Question::Status),
            (JoinStep::Inspecting, Answer::Status(status)) => self.inspected(&status),
            (JoinStep::Withdrawing, _) => Next::Fail(self.failed.take().unwrap_or(ReservationError::Conflict)),
            (JoinStep::Renaming | JoinStep::Registering, Answer::Conflict) => {
                Next::Fail(ReservationError::FencedFirst { key: self.key })
            }
            _ => Next::Fail(ReservationError::Conflict),
        }
    }

    fn ask(&mut self, step: JoinStep, question: Question) -> Next {
        self.step = step;
        Next::Ask(question)
    }

    fn looked(&mut self, status: &[ReportedRegistration]) -> Next {
        if let Err(error) = self.own.check_ours(self.key, status) {
            return Next::Fail(error);
        }
        let is_left = status.iter().any(|one| one.key == self.key.value() && !self.own.made(one));
        match (is_left, self.has_leases && !self.take_over) {
            (false, _) => self.ask(JoinStep::Registering, Question::Register { old: None, new: self.key.value() }),
            (true, true) => self.ask(JoinStep::AskingWriters, Question::Writers),
            (true, false) => self.replace(),
        }
    }

    /// Takes the place of this node's former attachments, and ends what they had under way.
    fn replace(&mut self) -> Next {
        self.ask(JoinStep::RegisteringForTheMoment, Question::Register { old: None, new: self.other_key })
    }

    /// Somebody holds another reservation: whether the registered may write beside it.
    fn inspected(&mut self, status: &[ReportedRegistration]) -> Next {
        if !status.iter().any(|one| self.own.made(one)) {
            return Next::Fail(ReservationError::FencedFirst { key: self.key });
        }
        let kind = status.iter().find_map(|one| one.holds);
        self.tries += 1;
        match kind {
            None if self.tries < RESERVE_TRIES_MAX => {
                self.ask(JoinStep::Reserving, Question::Reserve { key: self.key.value() })
            }
            None => self.withdraw(ReservationError::Conflict),
            Some(kind) if is_for_one(kind) && !status.iter().any(|one| self.own.made(one) && one.holds.is_some()) => {
                self.withdraw(ReservationError::OtherKind { kind })
            }
            Some(_) => Next::Done(ReservationOutcome::Registered),
        }
    }

    fn withdraw(&mut self, error: ReservationError) -> Next {
        self.failed = Some(error);
        self.ask(JoinStep::Withdrawing, Question::Register { old: Some(self.key.value()), new: 0 })
    }
}

/// Whether being registered is not enough to write beside a reservation of this type.
fn is_for_one(kind: u8) -> bool {
    use ReservationType::{ExclusiveAccess, WriteExclusive};
    matches!(ReservationType::from_bits(kind), None | Some(WriteExclusive | ExclusiveAccess))
}

/// Whether the node's registration still stands.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) key: ReservationKey,
    pub(super) own: OwnPort,
}

impl Standing {
    pub(super) fn next(&self, answer: &Answer) -> Next {
        let Answer::Status(status) = answer else { return Next::Fail(ReservationError::Conflict) };
        let stands = status.iter().any(|one| self.own.made(one) && one.key == self.key.value());
        Next::Done(if stands { ReservationOutcome::Registered } else { ReservationOutcome::Fenced })
    }
}

/// Ends the registration of an attachment, which shows whether it still stood.
#[derive(Debug)]
pub(super) struct Leave;

impl Leave {
    pub(super) fn next(&self, answer: &Answer) -> Next {
        Next::Done(match answer {
            Answer::Good => ReservationOutcome::Left,
            _ => ReservationOutcome::Fenced,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReleaseStep {
    Looking,
    Registering,
    Removing,
    Leaving,
    Reading,
}

/// Gives up a key of this node: all registrations of it, with the attachments that have it.
#[derive(Debug)]
pub(super) struct Release {
    key: ReservationKey,
    other_key: u64,
    own: OwnPort,
    step: ReleaseStep,
}

impl Release {
    pub(super) fn new(key: ReservationKey, own: OwnPort) -> Release {
        Release { key, other_key: u64::from_be_bytes(random()) | 1 << 63, own, step: ReleaseStep::Looking }
    }

    pub(super) fn next(&mut self, answer: Answer) -> Next {
        let (key, other) = (self.key.value(), self.other_key);
        let (step, question) = match (self.step, answer) {
            (ReleaseStep::Looking, Answer::Status(status)) => {
                if let Err(error) = self.own.check_ours(self.key, &status) {
                    return Next::Fail(error);
                }
                if !status.iter().any(|one| one.key == key) {
                    return Next::Fail(ReservationError::NotRegistered { key: self.key });
                }
                (ReleaseStep::Registering, Question::Register { old: None, new: other })
            }
            (ReleaseStep::Registering, Answer::Good) => {
                (ReleaseStep::Removing, Question::Preempt { key: other, victim: key })
            }
            (ReleaseStep::Removing, Answer::Good | Answer::Conflict) => {
                (ReleaseStep::Leaving, Question::Register { old: Some(other), new: 0 })
            }
            (ReleaseStep::Leaving, Answer::Good | Answer::Conflict) => (ReleaseStep::Reading, Question::Status),
            (ReleaseStep::Reading, Answer::Status(status)) => {
                let report = FenceReport { registered: registrants(&status), ..FenceReport::default() };
                return Next::Done(ReservationOutcome::Reported(report));
            }
            _ => return Next::Fail(ReservationError::Conflict),
        };
        self.step = step;
        Next::Ask(question)
    }
}
