//! A target's association as SCSI sees it: the transport interface of `strongroom_scsi`, for ECL.

use std::time::{Duration, Instant};

use strongroom_scsi::transport::target::{self, Event, ManagementId, Response, TaskId};
use strongroom_scsi::transport::{Lun, TaskManagementResult};

use super::session::Session;
use crate::mtu::PathReduction;

/// Most blocks of one part of a read. Each travels in packets of its own; the bound keeps a part's records in one piece of memory.
const PART_BLOCKS_MAX: usize = 256;

impl target::Session for Session {
    /// Packets to the initiator have to be shorter from now on.
    type TransportEvent = PathReduction;

    fn poll_event(&mut self) -> Option<Event<PathReduction>> {
        self.poll_event()
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

    fn sealed_blocks_max(&self, block_bytes: u32, _entry_bytes: usize) -> usize {
        if block_bytes == self.quantum_bytes() { PART_BLOCKS_MAX } else { 0 }
    }

    fn unsent_bytes(&self) -> u64 {
        self.unsent_bytes()
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes()
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
