//! The machine of a session, whichever transport it has: what the routing asks of it in SCSI's terms.

use std::time::{Duration, Instant};

use strongroom_ecl::PathReduction;
use strongroom_iscsi::CloseReason;
use strongroom_iscsi::target::{
    self as iscsi, Command, ConnectionId, ManagementId, Response, SendTargets, TaskId, TaskManagement,
    TaskManagementResult,
};
use strongroom_scsi::transport::target::Session as _;

use super::ecl_session::{EclEvent, EclSession, PacketCarrier};
use super::session_end::SessionEnd;

pub(super) enum SessionMachine {
    Iscsi(Box<iscsi::Session>),
    Ecl(Box<EclSession>),
}

/// What a session tells.
pub(super) enum MachineEvent {
    Command(Command),
    TaskManagement(TaskManagement),
    Session(SessionEvent),
}

/// An event of a session that concerns its connections, not its unit.
pub(super) enum SessionEvent {
    SendTargets(ConnectionId, SendTargets),
    ConnectionClosed(ConnectionId, CloseReason),
    PathReduced(PathReduction),
    Closed(SessionEnd),
}

impl From<iscsi::Session> for SessionMachine {
    fn from(session: iscsi::Session) -> SessionMachine {
        SessionMachine::Iscsi(Box::new(session))
    }
}

impl From<EclSession> for SessionMachine {
    fn from(session: EclSession) -> SessionMachine {
        SessionMachine::Ecl(Box::new(session))
    }
}

impl SessionMachine {
    /// The name of its transport, for people.
    pub(super) fn transport(&self) -> &'static str {
        match self {
            SessionMachine::Iscsi(_) => "iscsi",
            SessionMachine::Ecl(session) => match session.carrier() {
                PacketCarrier::Udp { .. } => "ecl",
                PacketCarrier::Stream => "ecl+tcp",
            },
        }
    }

    pub(super) fn iscsi(&self) -> Option<&iscsi::Session> {
        match self {
            SessionMachine::Iscsi(session) => Some(session),
            SessionMachine::Ecl(_) => None,
        }
    }

    pub(super) fn iscsi_mut(&mut self) -> Option<&mut iscsi::Session> {
        match self {
            SessionMachine::Iscsi(session) => Some(session),
            SessionMachine::Ecl(_) => None,
        }
    }

    pub(super) fn ecl(&self) -> Option<&EclSession> {
        match self {
            SessionMachine::Iscsi(_) => None,
            SessionMachine::Ecl(session) => Some(session),
        }
    }

    pub(super) fn ecl_mut(&mut self) -> Option<&mut EclSession> {
        match self {
            SessionMachine::Iscsi(_) => None,
            SessionMachine::Ecl(session) => Some(session),
        }
    }

    pub(super) fn poll_event(&mut self) -> Option<MachineEvent> {
        match self {
            SessionMachine::Iscsi(session) => Some(match session.poll_event()? {
                iscsi::Event::Command(command) => MachineEvent::Command(command),
                iscsi::Event::TaskManagement(request) => MachineEvent::TaskManagement(request),
                iscsi::Event::SendTargets(id, question) => {
                    MachineEvent::Session(SessionEvent::SendTargets(id, question))
                }
                iscsi::Event::ConnectionClosed { connection, reason } => {
                    MachineEvent::Session(SessionEvent::ConnectionClosed(connection, reason))
                }
                iscsi::Event::Closed(reason) => MachineEvent::Session(SessionEvent::Closed((&reason).into())),
            }),
            SessionMachine::Ecl(session) => Some(match session.poll_event()? {
                EclEvent::Command(command) => MachineEvent::Command(command),
                EclEvent::TaskManagement(request) => MachineEvent::TaskManagement(request),
                EclEvent::PathReduced(reduction) => MachineEvent::Session(SessionEvent::PathReduced(reduction)),
                EclEvent::Closed(end) => MachineEvent::Session(SessionEvent::Closed(end)),
            }),
        }
    }

    /// Answers a command. False when the task is gone.
    pub(super) fn complete(&mut self, task: TaskId, response: Response) -> bool {
        match self {
            SessionMachine::Iscsi(session) => session.complete(task, response),
            SessionMachine::Ecl(session) => session.complete(task, response),
        }
    }

    pub(super) fn answer_task_management(&mut self, id: ManagementId, result: TaskManagementResult) {
        match self {
            SessionMachine::Iscsi(session) => session.answer_task_management(id, result),
            SessionMachine::Ecl(session) => session.machine.answer_task_management(id, result),
        }
    }

    pub(super) fn answer_query(&mut self, id: ManagementId, found: [u8; 3]) {
        match self {
            SessionMachine::Iscsi(session) => session.answer_query(id, found),
            SessionMachine::Ecl(session) => session.machine.answer_query(id, found),
        }
    }

    /// Ends all tasks. Those that the logical unit is executing are answered with TASK ABORTED when it has stopped them.
    pub(super) fn abort_tasks(&mut self) {
        match self {
            SessionMachine::Iscsi(session) => drop(session.abort_tasks(None)),
            SessionMachine::Ecl(session) => drop(session.machine.abort_tasks(None)),
        }
    }

    pub(super) fn sealed_blocks_max(&self, block_bytes: u32, entry_bytes: usize) -> usize {
        match self {
            SessionMachine::Iscsi(session) => session.sealed_blocks_max(block_bytes, entry_bytes),
            SessionMachine::Ecl(session) => session.machine.sealed_blocks_max(block_bytes, entry_bytes),
        }
    }

    pub(super) fn unsent_bytes(&self) -> u64 {
        match self {
            SessionMachine::Iscsi(session) => session.unsent_bytes(),
            SessionMachine::Ecl(session) => session.machine.unsent_bytes(),
        }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        match self {
            SessionMachine::Iscsi(session) => session.memory_bytes(),
            SessionMachine::Ecl(session) => session.memory_bytes(),
        }
    }

    /// Bounds the write data that may be under way. Over ECL that was granted with the login, and holds.
    pub(super) fn set_write_memory_max(&mut self, bytes: u64) {
        if let SessionMachine::Iscsi(session) = self {
            session.set_write_memory_max(bytes);
        }
    }

    /// Commands that the logical unit executes.
    pub(super) fn executing(&self) -> usize {
        match self {
            SessionMachine::Iscsi(session) => session.executing(),
            SessionMachine::Ecl(session) => session.machine.executing(),
        }
    }

    pub(super) fn statistics(&self) -> iscsi::Statistics {
        match self {
            SessionMachine::Iscsi(session) => session.statistics(),
            SessionMachine::Ecl(session) => session.done(),
        }
    }

    /// Whether a connection may bring more. An association is held back by its credits alone.
    pub(super) fn accepts_input(&self, connection: ConnectionId) -> bool {
        match self {
            SessionMachine::Iscsi(session) => session.accepts_input(connection),
            SessionMachine::Ecl(_) => true,
        }
    }

    /// Bytes were received or sent on a connection.
    pub(super) fn handle_progress(&mut self, now: Instant, connection: ConnectionId) {
        if let SessionMachine::Iscsi(session) = self {
            session.handle_progress(now, connection);
        }
    }

    /// A connection is over, and with it an association.
    pub(super) fn handle_closed(&mut self, now: Instant, connection: ConnectionId, reason: CloseReason) {
        match self {
            SessionMachine::Iscsi(session) => session.handle_closed(now, connection, reason),
            SessionMachine::Ecl(session) => session.machine.close(reason.to_string()),
        }
    }

    pub(super) fn request_logout(&mut self, now: Instant, grace: Duration) {
        match self {
            SessionMachine::Iscsi(session) => session.request_logout(now, grace),
            SessionMachine::Ecl(session) => session.machine.request_logout(now, grace),
        }
    }

    pub(super) fn close(&mut self, why: impl Into<String>) {
        match self {
            SessionMachine::Iscsi(session) => session.close(why),
            SessionMachine::Ecl(session) => session.machine.close(why.into()),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        match self {
            SessionMachine::Iscsi(session) => session.is_closed(),
            SessionMachine::Ecl(session) => session.machine.is_closed(),
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        match self {
            SessionMachine::Iscsi(session) => session.handle_timeout(now),
            SessionMachine::Ecl(session) => session.machine.handle_timeout(now),
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self {
            SessionMachine::Iscsi(session) => session.poll_timeout(),
            SessionMachine::Ecl(session) => session.poll_timeout(),
        }
    }
}
