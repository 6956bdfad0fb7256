//! An initiator session as SCSI sees it: the transport interface of `strongroom_scsi`, for iSCSI.

use std::time::{Duration, Instant};

use strongroom_scsi::transport::{self, Lun, TaskFunction};

use super::Session;
use crate::initiator::types::{Command, Event, SubmitError, TaskId};

impl transport::initiator::Session for Session {
    /// Logins, connections, and the answers to SendTargets and echoes.
    type TransportEvent = Event;

    fn submit(&mut self, command: Command) -> Result<TaskId, SubmitError> {
        self.submit(command)
    }

    fn manage_task(&mut self, function: TaskFunction, lun: Lun, task: Option<TaskId>) -> Result<TaskId, SubmitError> {
        self.manage_task(function, lun, task)
    }

    fn poll_event(&mut self) -> Option<transport::initiator::Event<Event>> {
        Some(match self.poll_event()? {
            Event::DataIn(data_in) => transport::initiator::Event::DataIn(data_in),
            Event::Completed(completed) => transport::initiator::Event::Completed(completed),
            Event::TaskManagementDone { id, result, ended } => {
                transport::initiator::Event::TaskManagementDone { id, result, ended }
            }
            Event::LogoutRequested { within } => transport::initiator::Event::LogoutRequested { within },
            Event::AsyncSense { lun, sense } => transport::initiator::Event::AsyncSense { lun, sense },
            Event::Closed(reason) => transport::initiator::Event::Closed { reason: reason.to_string() },
            event @ (Event::LoggedIn { .. }
            | Event::LoginFailed { .. }
            | Event::TargetsListed(_)
            | Event::Echoed { .. }
            | Event::ConnectionJoined { .. }
            | Event::ConnectionLost { .. }) => transport::initiator::Event::Transport(event),
        })
    }

    fn logout(&mut self, now: Instant) {
        self.logout(now);
    }

    fn is_closed(&self) -> bool {
        self.is_closed()
    }

    fn reconnect_after(&self) -> Duration {
        self.reconnect_after()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.handle_timeout(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.poll_timeout()
    }
}
