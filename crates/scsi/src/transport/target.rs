//! The target's side of a transport: what a session hands to a logical unit, and what it takes back.

use super::Lun;

/// Names a task of one session from its command to its completion. Never reused while a late completion could still name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u64);

/// Names a task management request of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ManagementId(pub u64);

/// A task management function to carry out.
#[derive(Debug)]
pub struct TaskManagement {
    /// Names it in `answer_task_management`.
    pub id: ManagementId,
    /// What to do.
    pub function: ManagementFunction,
    /// Tasks of this session that the function ends and that the logical unit is executing: stop them. When the answer is
    /// `Complete` the session forgets them and ignores their completion.
    pub tasks: Vec<TaskId>,
}

/// What the target has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementFunction {
    /// Stop one task.
    AbortTask(TaskId),
    /// Stop this initiator's tasks on a logical unit.
    AbortTaskSet(Lun),
    /// End an auto contingent allegiance.
    ClearAca(Lun),
    /// Stop all tasks on a logical unit, of every initiator (other sessions: `abort_tasks`).
    ClearTaskSet(Lun),
    /// Reset a logical unit (other sessions: `abort_tasks`).
    LogicalUnitReset(Lun),
    /// Reset every logical unit.
    TargetWarmReset,
    /// Reset every logical unit and close every session (`close`) after answering.
    TargetColdReset,
    /// Answer `Succeeded` if this initiator has tasks on a logical unit (`any` says whether it has), `Complete` if not; or
    /// that there is no such unit.
    QueryTaskSet {
        /// Which.
        lun: Lun,
        /// Whether this session has tasks there.
        any: bool,
    },
    /// Stop this initiator's tasks on every logical unit and do what the loss of its nexus does.
    NexusReset,
    /// The connection that brought these tasks is gone: stop them. Their responses are not needed.
    ConnectionEnded,
    /// Answer `Succeeded` with the unit attention that is pending (`answer_query`), or `Complete` if there is none.
    QueryAsyncEvent(Lun),
}
