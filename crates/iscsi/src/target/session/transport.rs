//! A target session as SCSI sees it: the transport interface of `strongroom_scsi`, for iSCSI.

use std::time::{Duration, Instant};

use strongroom_scsi::transport::{self, Lun, TaskManagementResult};

use super::Session;
use crate::CloseReason;
use crate::target::types::{Event, ManagementId, Response, TaskId};

impl transport::target::Session for Session {
    /// Connections that ended, and SendTargets.
    type TransportEvent = Event;

    fn poll_event(&mut self) -> Option<transport::target::Event<Event>> {
        Some(match self.poll_event()? {
            Event::Command(command) => transport::target::Event::Command(command),
            Event::TaskManagement(request) => transport::target::Event::TaskManagement(request),
            Event::Closed(reason) => {
                let misbehaved = matches!(reason, CloseReason::Misbehaved(_));
                transport::target::Event::Closed { misbehaved, reason: reason.to_string() }
            }
            event @ (Event::SendTargets(..) | Event::ConnectionClosed { .. }) => {
                transport::target::Event::Transport(event)
            }
        })
    }

    fn complete(&mut self, task: TaskId, response: Response) -> bool {
        self.complete(task, response)
    }

    fn answer_task_management(&mut self, id: ManagementId, result: TaskManagementResult) {
        self.answer_task_management(id, result);
    }

    fn answer_query(&mut self, id: ManagementId, found: [u8; 3]) {
        self.answer_query(id, found);
    }

    fn abort_tasks(&mut self, lun: Option<Lun>) -> Vec<TaskId> {
        self.abort_tasks(lun)
    }

    fn sealed_blocks_max(&self, block_bytes: u32, entry_bytes: usize) -> usize {
        self.sealed_blocks_max(block_bytes, entry_bytes)
    }

    fn unsent_bytes(&self) -> u64 {
        self.tasks.memory().unsent()
    }

    fn memory_bytes(&self) -> u64 {
        self.tasks.memory().total() + self.order.buffer().memory_bytes()
    }

    fn request_logout(&mut self, now: Instant, grace: Duration) {
        self.request_logout(now, grace);
    }

    fn close(&mut self, why: String) {
        self.close(why);
    }

    fn is_closed(&self) -> bool {
        self.is_closed()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.handle_timeout(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.poll_timeout()
    }
}
