//! What a session says about the writer lease, beside the commands of the engine.

use std::time::{Duration, Instant};

use strongroom_block::Custody;
use strongroom_scsi::transport::initiator::{Completed, Session as _};

use super::{Dialog, Nexus, Notice, Task};
use crate::session::transport::SessionTransport;
use crate::session::writer_lease::{LeaseStep, LeaseTalk};

/// When what is to be said about the lease has no room in the command window, it is tried again after so long.
const SAY_AGAIN_AFTER: Duration = Duration::from_millis(50);

impl<T: SessionTransport> Nexus<T> {
    /// Talks to the unit about the writer lease; [`Notice::Lease`] follows. `custody`: who holds its keys, if it is sealed.
    pub(crate) fn talk_of_lease(&mut self, now: Instant, talk: LeaseTalk, custody: Option<Custody>) {
        self.transport.protect(custody);
        self.lease = Some(Dialog::new(talk));
        self.say(now);
    }

    /// Whether that is going on.
    pub(crate) fn talks_of_lease(&self) -> bool {
        self.lease.is_some()
    }

    /// The unit has answered.
    pub(super) fn lease_answered(&mut self, now: Instant, completed: &Completed) -> Option<Notice> {
        match self.lease.as_mut()?.of.completed(completed) {
            LeaseStep::Ask(after) if after.is_zero() => self.say(now),
            LeaseStep::Ask(after) => self.lease.as_mut()?.at = Some(now + after),
            LeaseStep::Done(outcome) => {
                self.lease = None;
                return Some(Notice::Lease(outcome));
            }
            LeaseStep::Failed(error) => return Some(Notice::Lost(error)),
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
