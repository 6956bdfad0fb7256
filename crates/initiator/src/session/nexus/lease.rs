//! What a session says about the writer lease and about reservations, beside the commands of the engine.

use std::time::{Duration, Instant};

use strongroom_block::Custody;
use strongroom_scsi::transport::initiator::{Command as ScsiCommand, Completed, Session as _};

use super::{Dialog, Nexus, Notice, Task};
use crate::session::reservation::{ReservationStep, ReservationTalk};
use crate::session::transport::SessionTransport;
use crate::session::writer_lease::{LeaseStep, LeaseTalk};

/// When what is to be said about the lease has no room in the command window, it is tried again after so long.
const SAY_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Something that is being said.
#[derive(Debug)]
pub(crate) enum AccessTalk {
    Lease(LeaseTalk),
    Reservation(ReservationTalk),
}

impl From<LeaseTalk> for AccessTalk {
    fn from(talk: LeaseTalk) -> AccessTalk {
        AccessTalk::Lease(talk)
    }
}

impl From<ReservationTalk> for AccessTalk {
    fn from(talk: ReservationTalk) -> AccessTalk {
        AccessTalk::Reservation(talk)
    }
}

/// What to do after an answer.
enum AccessStep {
    Ask(Duration),
    Done(Notice),
}

impl AccessTalk {
    fn command(&mut self) -> ScsiCommand {
        match self {
            AccessTalk::Lease(talk) => talk.command(),
            AccessTalk::Reservation(talk) => talk.command(),
        }
    }

    pub(super) fn data(&mut self, data: &[u8]) {
        match self {
            AccessTalk::Lease(talk) => talk.data(data),
            AccessTalk::Reservation(talk) => talk.data(data),
        }
    }

    fn completed(&mut self, completed: &Completed) -> AccessStep {
        match self {
            AccessTalk::Lease(talk) => match talk.completed(completed) {
                LeaseStep::Ask(after) => AccessStep::Ask(after),
                LeaseStep::Done(outcome) => AccessStep::Done(Notice::Lease(outcome)),
                LeaseStep::Failed(error) => AccessStep::Done(Notice::Lost(error)),
            },
            AccessTalk::Reservation(talk) => match talk.completed(completed) {
                ReservationStep::Ask(after) => AccessStep::Ask(after),
                ReservationStep::Done(outcome) => AccessStep::Done(Notice::Reservation(outcome)),
                ReservationStep::Failed(error) => AccessStep::Done(Notice::Lost(error)),
            },
        }
    }
}

impl<T: SessionTransport> Nexus<T> {
    /// Talks to the unit about the writer lease or about reservations; [`Notice::Lease`] or [`Notice::Reservation`] follows. `custody`: who
    /// holds its keys, if it is sealed.
    pub(crate) fn talk_of_lease(&mut self, now: Instant, talk: impl Into<AccessTalk>, custody: Option<Custody>) {
        self.transport.protect(custody);
        self.lease = Some(Dialog::new(talk.into()));
        self.say(now);
    }

    /// Whether that is going on.
    pub(crate) fn talks_of_lease(&self) -> bool {
        self.lease.is_some()
    }

    /// The unit has answered.
    pub(super) fn lease_answered(&mut self, now: Instant, completed: &Completed) -> Option<Notice> {
        match self.lease.as_mut()?.of.completed(completed) {
            AccessStep::Ask(after) if after.is_zero() => self.say(now),
            AccessStep::Ask(after) => self.lease.as_mut()?.at = Some(now + after),
            AccessStep::Done(notice) => {
                self.lease = None;
                return Some(notice);
            }
        }
        None
    }

    pub(super) fn say(&mut self, now: Instant) {
        let (Some(lease), Some(session)) = (&mut self.lease, self.transport.session_mut()) else { return };
        match session.submit(lease.of.command()) {
            Ok(task) => drop(self.tasks.insert(task, Task::Lease)),
            Err(error) => {
                tracing::debug!(%error, "a claim could not be sent yet");
                // The window is full of commands of ours, or the session is ending.
                lease.at = Some(now + SAY_AGAIN_AFTER);
            }
        }
    }
}
