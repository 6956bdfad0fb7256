//! The initiator's side of one session: commands in, events out, and back. Reconnecting is the application's business.

mod types;

use std::time::Instant;

pub use types::*;

use crate::{Agreed, CloseReason, Lun, Pdu};

/// An initiator's session machine; see the crate's first page for how to drive it.
#[derive(Debug)]
pub struct Session {}

#[allow(unused_variables, clippy::unused_self)]
impl Session {
    /// A session on a connection that was made at `now`; the login starts with the first `poll_transmit`.
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
    /// The connection ended underneath, or its framing failed. Emits `Closed` unless it was already.
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
    /// Sends a command, at once or when the target's command window lets it.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was sent.
    pub fn submit(&mut self, command: Command) -> Result<TaskId, SubmitError> {
        unreachable!("being written")
    }
    /// Commands in flight or waiting.
    pub fn outstanding(&self) -> usize {
        unreachable!("being written")
    }
    /// Asks for targets; answered by `TargetsListed`.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was sent.
    pub fn send_targets(&mut self, question: &SendTargets) -> Result<(), SubmitError> {
        unreachable!("being written")
    }
    /// Sends a task management function; `task` for `AbortTask`. Answered by `TaskManagementDone`.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was sent.
    pub fn manage_task(
        &mut self,
        function: TaskFunction,
        lun: Lun,
        task: Option<TaskId>,
    ) -> Result<TaskId, SubmitError> {
        unreachable!("being written")
    }
    /// Logs out; `Closed` follows when the target has answered, or not in time.
    pub fn logout(&mut self, now: Instant) {
        unreachable!("being written")
    }
    /// What the login settled; `None` before full-feature phase.
    pub fn agreed(&self) -> Option<&Agreed> {
        unreachable!("being written")
    }
    /// Whether `Closed` was emitted.
    pub fn is_closed(&self) -> bool {
        unreachable!("being written")
    }
}
