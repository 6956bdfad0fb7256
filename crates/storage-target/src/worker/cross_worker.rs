//! Messages between sessions and units of different workers.
//!
//! A unit is touched by its own worker alone, and so is a session. The first session of a unit is placed at the unit's worker and calls the
//! unit directly; further sessions are placed at the worker with the fewest sessions. Their requests are sent to the unit's worker, and
//! notices are sent back: in order, without locks, one batch with one wake-up per iteration. A session has no more requests under way than
//! its command window admits, which bounds both directions.

use std::sync::Arc;

use strongroom_iscsi::target::{self as iscsi, ManagementId, Response, TaskId, TaskManagement, TaskManagementResult};

use crate::names::VolumeName;
use crate::unit::SessionKey;

pub(crate) enum CrossWorkerMessage {
    Request { session: SessionKey, volume: Arc<VolumeName>, request: CrossWorkerRequest },
    Notice { session: SessionKey, notice: SessionNotice },
}

/// What a session requests of its unit.
pub(crate) enum CrossWorkerRequest {
    Command {
        command: iscsi::Command,
        sealed_blocks_max: usize,
    },
    Manage(TaskManagement),
    /// The rules changed: whether the session may still write.
    ReadOnly(bool),
    /// The session's initiator has logged out and does not come back. `Leave` follows.
    LoggedOut,
    /// The session is over.
    Leave,
}

/// What a unit tells a session.
pub(crate) enum SessionNotice {
    /// A command is over. `response`: unless it was aborted without one.
    Finished { task: TaskId, response: Option<Response> },
    /// The session's peer broke the frame discipline.
    Violation(&'static str),
    /// A task management function was carried out.
    Managed(ManagementOutcome),
    /// Another session's function aborts the session's tasks, and ends the session if it `closes`.
    AbortTasks { closes: bool },
    /// The session has to end.
    End { why: &'static str },
}

/// The outcome of a task management function.
#[derive(Debug)]
pub(crate) struct ManagementOutcome {
    pub(super) id: ManagementId,
    pub(super) answer: ManagementAnswer,
    /// The session ends with it.
    pub(super) closes: bool,
}

#[derive(Debug)]
pub(super) enum ManagementAnswer {
    Result(TaskManagementResult),
    /// What a query found: sense key, code and qualifier.
    Sense([u8; 3]),
}

impl ManagementOutcome {
    pub(super) fn result(id: ManagementId, result: TaskManagementResult) -> ManagementOutcome {
        ManagementOutcome { id, answer: ManagementAnswer::Result(result), closes: false }
    }
}
