//! The target's side of one session: PDUs in, events out, and back. No SCSI semantics: the application executes commands.

mod types;

use std::time::Instant;

pub use types::*;

use crate::pdu::TaskManagementResult;
use crate::{Agreed, CloseReason, LoginStatus, Lun, Pdu};

/// A target's session machine; see the crate's first page for how to drive it.
#[derive(Debug)]
pub struct Session {}

#[allow(unused_variables, clippy::unused_self)]
impl Session {
    /// A session on a connection that was made at `now`.
    pub fn new(now: Instant, config: Config) -> Session {
        Session {}
    }
    /// Takes a PDU from the peer.
    pub fn handle_pdu(&mut self, now: Instant, pdu: Pdu) {
        unreachable!("being written")
    }
    /// Bytes moved on the connection (either way) without completing a PDU: the peer is alive.
    pub fn handle_progress(&mut self, now: Instant) {
        unreachable!("being written")
    }
    /// The connection ended underneath, or its framing failed (`why` for the log). Emits `Closed` unless it was already.
    pub fn handle_closed(&mut self, reason: CloseReason) {
        unreachable!("being written")
    }
    /// The time of `poll_timeout` has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        unreachable!("being written")
    }
    /// When `handle_timeout` wants to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        unreachable!("being written")
    }
    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        unreachable!("being written")
    }
    /// The next PDU to send.
    pub fn poll_transmit(&mut self) -> Option<Pdu> {
        unreachable!("being written")
    }
    /// False while so many answers wait that the driver should not read on.
    pub fn accepts_input(&self) -> bool {
        unreachable!("being written")
    }
    /// Lets the initiator of `LoginRequested` in; `tsih` names the session, not 0.
    pub fn accept_login(&mut self, now: Instant, tsih: u16) {
        unreachable!("being written")
    }
    /// Refuses it.
    pub fn reject_login(&mut self, status: LoginStatus) {
        unreachable!("being written")
    }
    /// Answers `SendTargets`.
    pub fn send_targets(&mut self, targets: &[TargetEntry]) {
        unreachable!("being written")
    }
    /// Answers a `Command`. False when the task is gone (aborted, or the session closed): nothing was sent.
    pub fn complete(&mut self, task: TaskId, response: Response) -> bool {
        unreachable!("being written")
    }
    /// Answers a `TaskManagement`.
    pub fn answer_task_management(&mut self, id: ManagementId, result: TaskManagementResult) {
        unreachable!("being written")
    }
    /// Ends tasks without an answer, on one logical unit or all, because another session cleared or reset it. Returns
    /// those that the application holds.
    pub fn abort_tasks(&mut self, lun: Option<Lun>) -> Vec<TaskId> {
        unreachable!("being written")
    }
    /// Asks the initiator to log out within `grace`, by an asynchronous message, for a drain; then closes.
    pub fn request_logout(&mut self, now: Instant, grace: std::time::Duration) {
        unreachable!("being written")
    }
    /// Ends the session now, telling the initiator that the connection drops.
    pub fn close(&mut self, why: impl Into<String>) {
        unreachable!("being written")
    }
    /// Whether `Closed` was emitted.
    pub fn is_closed(&self) -> bool {
        unreachable!("being written")
    }
    /// What the login settled; `None` before full-feature phase.
    pub fn agreed(&self) -> Option<&Agreed> {
        unreachable!("being written")
    }
    /// Most sealed blocks that fit one Data-In, given the block size and the length of an entry (sequence and record).
    pub fn sealed_blocks_max(&self, block_bytes: u32, entry_bytes: usize) -> usize {
        unreachable!("being written")
    }
    /// Counters.
    pub fn statistics(&self) -> Statistics {
        unreachable!("being written")
    }
}
