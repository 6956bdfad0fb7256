//! Task management as an initiator asks for it (RFC 7143 §11.5), and which of its tasks a function has ended.

use strongroom_block::Buffer;

use super::{ConnectionId, Event, Session, SubmitError, TaskFunction, TaskId, TaskManagementResult, key_of, task_id};
use crate::pdu::{self, TAG_NONE, TaskManagementRequest};
use crate::slots::Key;
use crate::{Lun, Serial};

/// Task management requests in flight.
const MANAGEMENTS_MAX: usize = 16;

/// A request in flight.
#[derive(Debug)]
pub(super) struct Management {
    pub(super) tag: u32,
    /// `None`: the connection was lost, and it is to be requested again.
    pub(super) via: Option<ConnectionId>,
    pub(super) function: TaskFunction,
    pub(super) lun: Lun,
    pub(super) task: Option<Key>,
    /// Commands from this one on were sent behind the request, and are not concerned; settled when it is sent.
    pub(super) before: Serial,
}

impl Session {
    /// Sends a task management function; `task` names the one of `AbortTask`. Answered by `TaskManagementDone` with the
    /// name that is returned here.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was sent.
    pub fn manage_task(
        &mut self,
        function: TaskFunction,
        lun: Lun,
        task: Option<TaskId>,
    ) -> Result<TaskId, SubmitError> {
        self.check_logged_in()?;
        if self.managements.len() >= MANAGEMENTS_MAX {
            return Err(SubmitError::QueueFull);
        }
        let least_loaded = self.least_loaded().ok_or(SubmitError::NotLoggedIn)?;
        let tag = self.control_tag();
        let names_task = matches!(function, TaskFunction::AbortTask | TaskFunction::QueryTask);
        let key = match task {
            None if names_task => {
                return Err(SubmitError::Malformed("the function is about a task, and none is named"));
            }
            Some(task) if names_task => Some(key_of(task)),
            _ => None,
        };
        let referenced = key.and_then(|key| self.tasks.get(key));
        if function == TaskFunction::AbortTask && referenced.is_none_or(|task| task.cmd_sn.is_none()) {
            // Over already, or never sent: the target need not be asked.
            let ended = key.filter(|key| self.forget(*key)).map(task_id);
            let result = match ended {
                Some(_) => TaskManagementResult::Complete,
                None => TaskManagementResult::TaskDoesNotExist,
            };
            let ended = ended.into_iter().collect();
            self.events.push_back(Event::TaskManagementDone { id: TaskId(tag), result, ended });
            return Ok(TaskId(tag));
        }
        let lun = referenced.map_or(lun, |task| task.command.lun);
        let request = TaskManagementRequest {
            immediate: true,
            function: pdu::TaskFunction::from(function) as u8,
            lun,
            initiator_task_tag: tag,
            referenced_task_tag: key.map_or(TAG_NONE, |key| task_id(key).0),
            cmd_sn: Serial(0),
            exp_stat_sn: Serial(0),
            ref_cmd_sn: referenced.and_then(|task| task.cmd_sn).unwrap_or_default(),
            exp_data_sn: 0,
        };
        // RFC 7143 §11.5.1: a task is aborted on the connection that it goes by.
        let at = referenced.and_then(|task| self.index_of(task.via)).unwrap_or(least_loaded);
        let connection = &mut self.connections[at];
        let via = Some(connection.id);
        self.managements.push(Management { tag, via, function, lun, task: key, before: self.cmd_sn });
        connection.requests.push_back((request.encode(), Buffer::empty()));
        Ok(TaskId(tag))
    }

    pub(super) fn end_management(&mut self, at: usize, result: TaskManagementResult) {
        let management = self.managements.swap_remove(at);
        let mut ended = Vec::new();
        if result == TaskManagementResult::Complete {
            let lun = match management.function {
                TaskFunction::AbortTask
                | TaskFunction::ClearAca
                | TaskFunction::QueryTask
                | TaskFunction::QueryTaskSet
                | TaskFunction::QueryAsyncEvent => None,
                TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset | TaskFunction::NexusReset => Some(None),
                _ => Some(Some(management.lun)),
            };
            let concerned = |of| lun.is_some_and(|lun| lun.is_none_or(|lun| lun == of));
            let before = management.before;
            let sent = self.tasks.iter().filter(|(_, task)| task.cmd_sn.is_some_and(|cmd_sn| cmd_sn.is_before(before)));
            let mut keys: Vec<_> = sent.filter(|(_, task)| concerned(task.command.lun)).map(|(key, _)| key).collect();
            keys.extend(management.task.filter(|_| management.function == TaskFunction::AbortTask));
            ended = keys.into_iter().filter(|key| self.forget(*key)).map(task_id).collect();
        }
        self.events.push_back(Event::TaskManagementDone { id: TaskId(management.tag), result, ended });
    }
}

/// Functions over the tasks of all connections: done once more they end what they ended before.
pub(super) fn ends_many(function: TaskFunction) -> bool {
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
