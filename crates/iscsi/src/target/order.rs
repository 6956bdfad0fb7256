//! Which request is executed next: CmdSN order over all connections of a session (RFC 7143 §4.2.2.1), and the task management functions
//! that must wait for commands sent before them (§4.2.3.3).

use super::connection_id::ConnectionId;
use super::outbox::Window;
use super::reorder::{DataOutPdu, OutOfOrderCommand, ReorderBuffer};
use super::tasks::TaskTable;
use super::types::MANAGEMENTS_MAX;
use crate::login::Agreed;
use crate::pdu::fields::{self, Field};
use crate::pdu::{DataOut, Pdu, TaskFunction, TaskManagementRequest};
use crate::{PeerMisbehaved, Serial};

/// The order of a session's requests.
#[derive(Debug)]
pub(super) struct CommandOrder {
    exp_cmd_sn: Serial,
    /// Commands that arrived before one that is missing.
    buffer: ReorderBuffer,
    /// Immediate functions over many tasks that arrived before some of these tasks.
    early_functions: Vec<(ConnectionId, Pdu)>,
    /// Several connections, or damaged commands that come again, can change the order of arrival.
    can_reorder: bool,
    /// Upper bound on memory for commands that wait, in bytes.
    memory_bytes_max: u64,
    first_burst_bytes: u32,
    ignored: u64,
}

/// What to do with a command that has just arrived.
pub(super) enum Arrival {
    /// It is the next one: execute it.
    Due(Pdu),
    /// It waits for commands before it, or was ignored.
    NotDue,
}

/// What to do with write data that has just arrived.
pub(super) enum DataArrival {
    /// Its command is being executed.
    Due(Pdu),
    /// It waits with its command.
    Waits,
    /// It is more than its command may have.
    Refused(Pdu),
}

/// A request whose turn has come, with the unsolicited data that arrived while it waited.
pub(super) struct DueRequest {
    pub(super) connection: ConnectionId,
    pub(super) pdu: Pdu,
    pub(super) data: Vec<DataOutPdu>,
}

impl CommandOrder {
    pub(super) fn new(exp_cmd_sn: Serial, session: &Agreed, memory_bytes_max: u64) -> CommandOrder {
        CommandOrder {
            exp_cmd_sn,
            buffer: ReorderBuffer::default(),
            early_functions: Vec::new(),
            can_reorder: session.connections_max > 1 || session.error_recovery_level > 0,
            memory_bytes_max,
            first_burst_bytes: session.first_burst_bytes,
            ignored: 0,
        }
    }

    pub(super) fn exp_cmd_sn(&self) -> Serial {
        self.exp_cmd_sn
    }

    /// The command window, in which `tasks` use places.
    pub(super) fn window(&self, tasks: &TaskTable) -> Window {
        tasks.window(self.exp_cmd_sn)
    }

    /// Commands ignored because their CmdSN was outside the window.
    pub(super) fn ignored(&self) -> u64 {
        self.ignored
    }

    pub(super) fn buffer(&self) -> &ReorderBuffer {
        &self.buffer
    }

    /// Takes a command that is not immediate.
    pub(super) fn arrive(
        &mut self,
        id: ConnectionId,
        cmd_sn: Serial,
        pdu: Pdu,
        window: Window,
    ) -> Result<Arrival, PeerMisbehaved> {
        // RFC 7143 §4.2.2.1: a command outside the window is ignored without an answer.
        if !cmd_sn.is_within(self.exp_cmd_sn, window.max_cmd_sn) || self.buffer.has(cmd_sn) {
            self.ignored += 1;
            return Ok(Arrival::NotDue);
        }
        if cmd_sn != self.exp_cmd_sn {
            self.buffer.insert(cmd_sn, id, pdu);
            self.check_memory()?;
            return Ok(Arrival::NotDue);
        }
        self.exp_cmd_sn = self.exp_cmd_sn.next();
        Ok(Arrival::Due(pdu))
    }

    /// Whether an immediate function over many tasks arrived before commands that were sent before it: by a faster connection, or because
    /// they were damaged and will be sent again.
    pub(super) fn is_early(&self, request: &TaskManagementRequest, window: Window) -> bool {
        let is_ahead = self.exp_cmd_sn.is_before(request.cmd_sn);
        request.immediate
            && concerns_many(request.function)
            && self.can_reorder
            && is_ahead
            && request.cmd_sn.previous().is_within(self.exp_cmd_sn, window.max_cmd_sn)
    }

    /// Has an early function wait; gives it back if too many wait.
    pub(super) fn hold_function(&mut self, id: ConnectionId, pdu: Pdu) -> Option<Pdu> {
        if self.early_functions.len() >= MANAGEMENTS_MAX {
            return Some(pdu);
        }
        self.early_functions.push((id, pdu));
        None
    }

    /// Takes write data, which waits if it is unsolicited data of a command that waits.
    pub(super) fn offer_data(
        &mut self,
        id: ConnectionId,
        header: DataOut,
        pdu: Pdu,
        is_damaged: bool,
    ) -> Result<DataArrival, PeerMisbehaved> {
        let Some(at) = self.buffer.write_of(id, &header) else { return Ok(DataArrival::Due(pdu)) };
        if !self.buffer.may_have(at, pdu.data.len(), self.first_burst_bytes) {
            return Ok(DataArrival::Refused(pdu));
        }
        self.buffer.add(at, DataOutPdu { header, pdu, is_damaged });
        self.check_memory()?;
        Ok(DataArrival::Waits)
    }

    /// The next request of those that waited, if nothing before it is missing.
    pub(super) fn next_due(&mut self) -> Option<DueRequest> {
        loop {
            let is_due = |pdu: &Pdu| !self.exp_cmd_sn.is_before(fields::CMD_SN.get(&pdu.bhs));
            if let Some(at) = self.early_functions.iter().position(|(_, pdu)| is_due(pdu)) {
                let (connection, pdu) = self.early_functions.remove(at);
                return Some(DueRequest { connection, pdu, data: Vec::new() });
            }
            let OutOfOrderCommand { connection, pdu, data, .. } = self.buffer.take(self.exp_cmd_sn)?;
            self.exp_cmd_sn = self.exp_cmd_sn.next();
            if let (Some(connection), Some(pdu)) = (connection, pdu) {
                return Some(DueRequest { connection, pdu, data });
            }
        }
    }

    /// RFC 7143 §11.6.1: a task to abort that has not arrived, though its CmdSN is in the window and before the request's, counts
    /// as received and aborted; it must not start should it still arrive. False: it is not awaited.
    pub(super) fn abort_unseen(&mut self, request: &TaskManagementRequest, window: Window) -> bool {
        let cmd_sn = request.ref_cmd_sn;
        let is_awaited = cmd_sn.is_within(self.exp_cmd_sn, window.max_cmd_sn) && cmd_sn.is_before(request.cmd_sn);
        if is_awaited {
            self.buffer.void(cmd_sn);
        }
        is_awaited
    }

    /// A connection is lost: what waits of it is sent again by the initiator, under the same number.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        self.buffer.forget(id);
        self.early_functions.retain(|(connection, _)| *connection != id);
    }

    /// A connection is logged out: its commands count as received and ended.
    pub(super) fn end(&mut self, id: ConnectionId) {
        self.buffer.end(id);
        self.early_functions.retain(|(connection, _)| *connection != id);
    }

    pub(super) fn clear(&mut self) {
        self.buffer.clear();
        self.early_functions.clear();
    }

    /// Whether so much waits for a missing command that a connection which brought some of it should wait for the slower ones.
    pub(super) fn is_nearly_full(&self, id: ConnectionId) -> bool {
        let max = self.memory_bytes_max;
        self.buffer.memory_bytes() > max - max / 4 && self.buffer.has_some_of(id)
    }

    fn check_memory(&self) -> Result<(), PeerMisbehaved> {
        if self.buffer.memory_bytes() > self.memory_bytes_max {
            let what = "more write data behind a command that is missing than a session may hold";
            return Err(PeerMisbehaved::OutOfPlace { what, expected: "that command" });
        }
        Ok(())
    }
}

/// Functions over all tasks of a unit or a session: they wait for the commands before them (RFC 7143 §4.2.3.3).
fn concerns_many(function: u8) -> bool {
    !matches!(
        TaskFunction::from_code(function),
        None | Some(
            TaskFunction::AbortTask
                | TaskFunction::ClearAca
                | TaskFunction::TaskReassign
                | TaskFunction::QueryTask
                | TaskFunction::QueryAsyncEvent
        )
    )
}
