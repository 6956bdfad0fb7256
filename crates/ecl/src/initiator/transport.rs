//! An initiator's association as SCSI sees it: the transport interface of `strongroom_scsi`, for ECL.

use std::time::{Duration, Instant};

use strongroom_scsi::transport::initiator::{self, Command, Event, SubmitError, TaskId};
use strongroom_scsi::transport::{Lun, TaskFunction};

use super::session::{EclEvent, Session};

impl initiator::Session for Session {
    type TransportEvent = EclEvent;

    fn submit(&mut self, command: Command) -> Result<TaskId, SubmitError> {
        self.submit(command)
    }

    fn manage_task(&mut self, function: TaskFunction, lun: Lun, task: Option<TaskId>) -> Result<TaskId, SubmitError> {
        self.manage_task(function, lun, task)
    }

    fn poll_event(&mut self) -> Option<Event<EclEvent>> {
        self.poll_event()
    }

    fn logout(&mut self, now: Instant) {
        self.logout(now);
    }

    fn is_closed(&self) -> bool {
        self.is_closed()
    }

    /// A target of ECL asks for nothing here: who may come back when is said by its TCP port.
    fn reconnect_after(&self) -> Duration {
        Duration::ZERO
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.handle_timeout(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.poll_timeout()
    }
}
