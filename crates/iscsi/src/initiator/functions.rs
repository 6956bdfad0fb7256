//! Task management requests in flight (RFC 7143 §11.5).

use super::connection_id::ConnectionId;
use super::types::TaskFunction;
use crate::Serial;
use crate::pdu::Lun;
use crate::slots::Key;

/// Task management requests in flight.
const FUNCTIONS_MAX: usize = 16;

/// A request in flight.
#[derive(Debug)]
pub(super) struct PendingFunction {
    pub(super) tag: u32,
    /// `None`: the connection was lost, and it is to be requested again.
    pub(super) connection: Option<ConnectionId>,
    pub(super) function: TaskFunction,
    pub(super) lun: Lun,
    pub(super) task: Option<Key>,
    /// Commands from this one on were sent after the request, and are not concerned; settled when it is sent.
    before: Serial,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct FunctionTable(Vec<PendingFunction>);

/// Which tasks a function ends when it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    Nothing,
    Task(Key),
    /// Those sent before this number: of a logical unit, or all.
    Before(Serial, Option<Lun>),
}

impl FunctionTable {
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= FUNCTIONS_MAX
    }

    pub(super) fn add(
        &mut self,
        tag: u32,
        connection: ConnectionId,
        function: TaskFunction,
        lun: Lun,
        task: Option<Key>,
        before: Serial,
    ) {
        let connection = Some(connection);
        self.0.push(PendingFunction { tag, connection, function, lun, task, before });
    }

    /// A request leaves. Other connections may have sent commands since it was made.
    pub(super) fn sent(&mut self, tag: u32, cmd_sn: Serial) {
        if let Some(pending) = self.0.iter_mut().find(|pending| pending.tag == tag) {
            pending.before = cmd_sn;
        }
    }

    /// Takes out the request with this tag; `on`: only if it went by this connection.
    pub(super) fn take(&mut self, tag: u32, on: Option<ConnectionId>) -> Option<PendingFunction> {
        let is_it = |pending: &PendingFunction| pending.tag == tag && (on.is_none() || pending.connection == on);
        let at = self.0.iter().position(is_it)?;
        Some(self.0.swap_remove(at))
    }

    /// A connection is lost. What ends tasks of other connections will be requested again; the outcome of the others, which are
    /// returned, remains unknown.
    pub(super) fn lose_connection(&mut self, id: ConnectionId) -> Vec<PendingFunction> {
        let mut unknown = Vec::new();
        for at in (0..self.0.len()).rev() {
            let pending = &mut self.0[at];
            match pending.connection == Some(id) {
                true if ends_many(pending.function) => pending.connection = None,
                true => unknown.push(self.0.swap_remove(at)),
                false => {}
            }
        }
        unknown
    }

    /// Those that are to be requested again; they go by `connection` now.
    pub(super) fn repeat_on(&mut self, connection: ConnectionId) -> impl Iterator<Item = &PendingFunction> {
        self.0.iter_mut().filter(|pending| pending.connection.is_none()).map(move |pending| {
            pending.connection = Some(connection);
            &*pending
        })
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl PendingFunction {
    /// Which tasks end when it is complete.
    pub(super) fn ends(&self) -> Ends {
        match self.function {
            TaskFunction::AbortTask => self.task.map_or(Ends::Nothing, Ends::Task),
            TaskFunction::ClearAca
            | TaskFunction::QueryTask
            | TaskFunction::QueryTaskSet
            | TaskFunction::QueryAsyncEvent => Ends::Nothing,
            TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset | TaskFunction::NexusReset => {
                Ends::Before(self.before, None)
            }
            TaskFunction::AbortTaskSet | TaskFunction::ClearTaskSet | TaskFunction::LogicalUnitReset => {
                Ends::Before(self.before, Some(self.lun))
            }
        }
    }
}

/// Functions over the tasks of all connections: done once more they end what they ended before.
fn ends_many(function: TaskFunction) -> bool {
    matches!(
        function,
        TaskFunction::AbortTaskSet
            | TaskFunction::ClearTaskSet
            | TaskFunction::LogicalUnitReset
            | TaskFunction::TargetWarmReset
            | TaskFunction::TargetColdReset
            | TaskFunction::NexusReset
    )
}
