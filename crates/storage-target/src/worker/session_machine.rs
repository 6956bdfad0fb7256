//! The machine of a session, whichever transport it has. Only simulations have sessions of ECL so far: those of connections are iSCSI's.

use std::time::Instant;

use strongroom_ecl::target as ecl;
use strongroom_iscsi::CloseReason;
use strongroom_iscsi::target::{self as iscsi, Event, ManagementId, Response, TaskId, TaskManagementResult};
use strongroom_scsi::transport::target::{Event as ScsiEvent, Session as _};

/// See the module.
pub(crate) enum SessionMachine {
    Iscsi(Box<iscsi::Session>),
    Ecl(Box<ecl::Session>),
}

/// What is the same for both.
macro_rules! each {
    ($machine:expr, $one:ident => $what:expr) => {
        match $machine {
            SessionMachine::Iscsi($one) => $what,
            SessionMachine::Ecl($one) => $what,
        }
    };
}

impl From<iscsi::Session> for SessionMachine {
    fn from(session: iscsi::Session) -> SessionMachine {
        SessionMachine::Iscsi(Box::new(session))
    }
}

impl SessionMachine {
    /// iSCSI's; `None`: it has another transport.
    pub(super) fn iscsi(&self) -> Option<&iscsi::Session> {
        match self {
            SessionMachine::Iscsi(session) => Some(session),
            SessionMachine::Ecl(_) => None,
        }
    }

    /// See [`SessionMachine::iscsi`].
    pub(super) fn iscsi_mut(&mut self) -> Option<&mut iscsi::Session> {
        match self {
            SessionMachine::Iscsi(session) => Some(session),
            SessionMachine::Ecl(_) => None,
        }
    }

    /// The next event.
    pub(super) fn poll_event(&mut self) -> Option<Event> {
        match self {
            SessionMachine::Iscsi(session) => session.poll_event(),
            SessionMachine::Ecl(session) => Some(match session.poll_event()? {
                ScsiEvent::Command(command) => Event::Command(command),
                ScsiEvent::TaskManagement(request) => Event::TaskManagement(request),
                ScsiEvent::Closed { reason, .. } => {
                    let is_logout = reason == strongroom_ecl::CloseReason::LoggedOut.to_string();
                    Event::Closed(if is_logout { CloseReason::LoggedOut } else { CloseReason::ConnectionLost(reason) })
                }
                ScsiEvent::Transport(()) => return None,
            }),
        }
    }

    pub(super) fn complete(&mut self, task: TaskId, response: Response) -> bool {
        each!(self, session => session.complete(task, response))
    }

    pub(super) fn answer_task_management(&mut self, id: ManagementId, result: TaskManagementResult) {
        each!(self, session => session.answer_task_management(id, result));
    }

    pub(super) fn answer_query(&mut self, id: ManagementId, found: [u8; 3]) {
        each!(self, session => session.answer_query(id, found));
    }

    /// Another session's function aborts all of its tasks.
    pub(super) fn abort_tasks(&mut self) {
        each!(self, session => drop(session.abort_tasks(None)));
    }

    pub(super) fn sealed_blocks_max(&self, block_bytes: u32, entry_bytes: usize) -> usize {
        each!(self, session => session.sealed_blocks_max(block_bytes, entry_bytes))
    }

    pub(super) fn unsent_bytes(&self) -> u64 {
        each!(self, session => session.unsent_bytes())
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        each!(self, session => session.memory_bytes())
    }

    /// Bounds the memory of writes. An association's window is agreed on in its login.
    pub(super) fn set_write_memory_max(&mut self, bytes: u64) {
        if let SessionMachine::Iscsi(session) = self {
            session.set_write_memory_max(bytes);
        }
    }

    pub(super) fn request_logout(&mut self, now: Instant, grace: std::time::Duration) {
        each!(self, session => session.request_logout(now, grace));
    }

    pub(crate) fn close(&mut self, why: impl Into<String>) {
        let why: String = why.into();
        each!(self, session => session.close(why));
    }

    pub(super) fn is_closed(&self) -> bool {
        each!(self, session => session.is_closed())
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        each!(self, session => session.handle_timeout(now));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        each!(self, session => session.poll_timeout())
    }

    pub(super) fn statistics(&self) -> iscsi::Statistics {
        self.iscsi().map(iscsi::Session::statistics).unwrap_or_default()
    }

    /// Commands that the unit executes, or that wait for it.
    pub(super) fn executing(&self) -> usize {
        self.iscsi().map_or(0, iscsi::Session::executing)
    }
}
