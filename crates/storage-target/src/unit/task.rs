//! Names of sessions and of their tasks, and what a unit reports of a task that has ended.

use strongroom_scsi::transport::target::{Response, TaskId};

/// Names a session; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SessionKey(pub(crate) u64);

/// Names a task among those of all sessions. It stays the same over all operations of the task.
pub(super) type TaskKey = (SessionKey, TaskId);

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) connection: SessionKey,
    pub(crate) task: TaskId,
    /// `None`: the task has ended, and its session does not want a response.
    pub(crate) response: Option<Response>,
}

impl Finished {
    /// A response to a task.
    pub(super) fn answered((connection, task): TaskKey, response: Response) -> Finished {
        Finished { connection, task, response: Some(response) }
    }
}
