//! Task management functions that wait for the application, and their responses that wait for other connections (RFC 7143 §11.5,
//! §4.2.3.3). Which tasks a function ends is decided in the session.

use super::connection_id::ConnectionId;
use super::types::{Event, MANAGEMENTS_MAX, ManagementFunction, ManagementId, TaskId, TaskManagement};
use crate::pdu::TaskFunction;
use crate::slots::Key;

/// A function that waits for the application.
#[derive(Debug)]
pub(super) struct PendingFunction {
    id: ManagementId,
    pub(super) origin: FunctionOrigin,
    /// The tasks that end when it is carried out.
    pub(super) tasks: Vec<Key>,
}

/// Why tasks have to end.
#[derive(Clone, Copy, Debug)]
pub(super) enum FunctionOrigin {
    /// A task management request.
    Request { connection: ConnectionId, initiator_task_tag: u32, concerns_many: bool },
    /// A logout of the connection `closes`, which has or had this CID.
    Logout { connection: ConnectionId, initiator_task_tag: u32, closes: ConnectionId, cid: u16 },
    /// The connection `closes` is lost or replaced; no response is due.
    ConnectionEnd { closes: ConnectionId, cid: u16 },
}

/// A response that must not overtake those that the function's tasks got on other connections before it was carried out (RFC 7143
/// §4.2.3.3). Each of these connections is pinged, and has delivered them when the ping is answered.
#[derive(Debug)]
struct ResponseBarrier {
    connection: ConnectionId,
    initiator_task_tag: u32,
    /// Connections, and the tags of their pings.
    pings: Vec<(ConnectionId, u32)>,
}

/// All functions of a session that are not answered.
#[derive(Debug, Default)]
pub(super) struct FunctionTable {
    pending: Vec<PendingFunction>,
    next_id: u64,
    barriers: Vec<ResponseBarrier>,
}

impl FunctionTable {
    pub(super) fn is_full(&self) -> bool {
        self.pending.len() + self.barriers.len() >= MANAGEMENTS_MAX
    }

    /// Asks the application to carry a function out. `keys`: the tasks that end; `executing`: those of them that the application has.
    pub(super) fn ask(
        &mut self,
        origin: FunctionOrigin,
        function: ManagementFunction,
        keys: Vec<Key>,
        executing: Vec<TaskId>,
    ) -> Event {
        let id = ManagementId(self.next_id);
        self.next_id += 1;
        self.pending.push(PendingFunction { id, origin, tasks: keys });
        Event::TaskManagement(TaskManagement { id, function, tasks: executing })
    }

    /// The application has answered.
    pub(super) fn take(&mut self, id: ManagementId) -> Option<PendingFunction> {
        let at = self.pending.iter().position(|pending| pending.id == id)?;
        Some(self.pending.swap_remove(at))
    }

    /// Whether tasks of an earlier connection with this CID are still being ended.
    pub(super) fn is_ending(&self, cid: u16) -> bool {
        self.pending.iter().any(|pending| match pending.origin {
            FunctionOrigin::Logout { cid: of, .. } | FunctionOrigin::ConnectionEnd { cid: of, .. } => of == cid,
            FunctionOrigin::Request { .. } => false,
        })
    }

    /// A function was carried out: its response waits until the pings are answered.
    pub(super) fn hold_response(
        &mut self,
        connection: ConnectionId,
        initiator_task_tag: u32,
        pings: Vec<(ConnectionId, u32)>,
    ) {
        self.barriers.push(ResponseBarrier { connection, initiator_task_tag, pings });
    }

    /// A ping was answered.
    pub(super) fn take_ping_answer(&mut self, id: ConnectionId, target_transfer_tag: u32) {
        for barrier in &mut self.barriers {
            barrier.pings.retain(|ping| *ping != (id, target_transfer_tag));
        }
    }

    /// A connection is gone, with what was on its way there.
    pub(super) fn drop_connection(&mut self, id: ConnectionId) {
        for barrier in &mut self.barriers {
            barrier.pings.retain(|(other, _)| *other != id);
        }
    }

    /// The next response that is due: its connection and its tag.
    pub(super) fn next_response(&mut self) -> Option<(ConnectionId, u32)> {
        let at = self.barriers.iter().position(|barrier| barrier.pings.is_empty())?;
        let barrier = self.barriers.remove(at);
        Some((barrier.connection, barrier.initiator_task_tag))
    }

    pub(super) fn clear(&mut self) {
        self.pending.clear();
        self.barriers.clear();
    }
}

/// RFC 7144 §5.1: functions that both sides must have agreed to have.
pub(super) fn needs_level_2(function: TaskFunction) -> bool {
    matches!(
        function,
        TaskFunction::QueryTask | TaskFunction::QueryTaskSet | TaskFunction::NexusReset | TaskFunction::QueryAsyncEvent
    )
}
