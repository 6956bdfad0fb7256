//! Task management (RFC 7143 §11.5): which tasks a function ends here. What it does to a logical unit and to other sessions
//! is the application's.

use strongroom_block::Buffer;

use super::{
    AnswerKind, Event, MANAGEMENTS_MAX, ManagementFunction, ManagementId, Response, Session, State, TaskId,
    TaskManagement,
};
use crate::PeerMisbehaved;
use crate::pdu::{
    Lun, Pdu, RejectReason, Sequence, TaskFunction, TaskManagementRequest, TaskManagementResponse, TaskManagementResult,
};
use crate::slots::Key;

/// A request that waits for the application.
#[derive(Debug)]
pub(super) struct Management {
    id: ManagementId,
    initiator_task_tag: u32,
    /// The tasks that it ends when it is carried out.
    tasks: Vec<Key>,
}

impl Session {
    /// Answers a `TaskManagement`. With `Complete`, the tasks that it named are forgotten, and those that were being
    /// answered are cut off.
    pub fn answer_task_management(&mut self, id: ManagementId, result: TaskManagementResult) {
        let Some(at) = self.managements.iter().position(|management| management.id == id) else { return };
        let management = self.managements.swap_remove(at);
        if result == TaskManagementResult::Complete {
            for key in management.tasks {
                self.abort(key);
            }
        }
        self.send_management_response(management.initiator_task_tag, result);
    }

    /// Another session clears or resets a logical unit, or all: tasks whose data is still arriving end with the status TASK
    /// ABORTED (TAS=1). Returns those that the application holds, which ends them in the same way when they have no effect
    /// any more: an initiator that was told so sends them again. Answers on their way go out still.
    pub fn abort_tasks(&mut self, lun: Option<Lun>) -> Vec<TaskId> {
        let mut held = Vec::new();
        for key in self.keys_of(lun) {
            match self.tasks.get(key).map(|task| &task.state) {
                Some(State::Executing) => held.push(TaskId::of(key)),
                Some(State::Receiving(_)) => self.fail_with(key, Response::task_aborted()),
                _ => {}
            }
        }
        held
    }

    pub(super) fn handle_task_management(
        &mut self,
        request: TaskManagementRequest,
        pdu: &Pdu,
    ) -> Result<(), PeerMisbehaved> {
        if self.managements.len() >= MANAGEMENTS_MAX {
            return self.reject(pdu, RejectReason::TooManyImmediateCommands);
        }
        let tag = request.initiator_task_tag;
        let lun = request.lun;
        let (function, keys) = match TaskFunction::from_code(request.function) {
            Some(TaskFunction::AbortTask) => {
                let Some(&key) = self.by_tag.get(&request.referenced_task_tag) else {
                    // Answered already, or never seen: the initiator waits for an answer that is on its way, or for none.
                    self.send_management_response(tag, TaskManagementResult::TaskDoesNotExist);
                    return Ok(());
                };
                if !matches!(self.tasks.get(key).map(|task| &task.state), Some(State::Executing)) {
                    self.abort(key);
                    self.send_management_response(tag, TaskManagementResult::Complete);
                    return Ok(());
                }
                (ManagementFunction::AbortTask(TaskId::of(key)), vec![key])
            }
            Some(TaskFunction::AbortTaskSet) => (ManagementFunction::AbortTaskSet(lun), self.keys_of(Some(lun))),
            Some(TaskFunction::ClearAca) => (ManagementFunction::ClearAca(lun), Vec::new()),
            Some(TaskFunction::ClearTaskSet) => (ManagementFunction::ClearTaskSet(lun), self.keys_of(Some(lun))),
            Some(TaskFunction::LogicalUnitReset) => {
                (ManagementFunction::LogicalUnitReset(lun), self.keys_of(Some(lun)))
            }
            Some(TaskFunction::TargetWarmReset) => (ManagementFunction::TargetWarmReset, self.keys_of(None)),
            Some(TaskFunction::TargetColdReset) => (ManagementFunction::TargetColdReset, self.keys_of(None)),
            Some(TaskFunction::TaskReassign) => {
                self.send_management_response(tag, TaskManagementResult::ReassignNotSupported);
                return Ok(());
            }
            None => {
                self.send_management_response(tag, TaskManagementResult::NotSupported);
                return Ok(());
            }
        };
        let held = self.freeze(&keys);
        let id = ManagementId(self.next_management);
        self.next_management += 1;
        self.managements.push(Management { id, initiator_task_tag: tag, tasks: keys });
        self.events.push_back(Event::TaskManagement(TaskManagement { id, function, tasks: held }));
        Ok(())
    }

    /// Ends the tasks among `keys` whose data is still arriving: they must not start once the function is on its way.
    /// Returns those that the application holds.
    fn freeze(&mut self, keys: &[Key]) -> Vec<TaskId> {
        let mut held = Vec::new();
        for &key in keys {
            match self.tasks.get(key).map(|task| &task.state) {
                Some(State::Receiving(_)) => self.abort(key),
                Some(State::Executing) => held.push(TaskId::of(key)),
                _ => {}
            }
        }
        held
    }

    fn abort(&mut self, key: Key) {
        let Some(task) = self.remove_task(key) else { return };
        self.withdraw_r2ts(task.initiator_task_tag);
        self.remember_ended(task.initiator_task_tag);
    }

    fn keys_of(&self, lun: Option<Lun>) -> Vec<Key> {
        let wanted = |of: Lun| lun.is_none_or(|lun| lun == of);
        self.tasks.iter().filter(|(_, task)| wanted(task.lun)).map(|(key, _)| key).collect()
    }

    fn send_management_response(&mut self, initiator_task_tag: u32, result: TaskManagementResult) {
        let answer = TaskManagementResponse { result, initiator_task_tag, sequence: Sequence::default() };
        if let Err(flood) = self.answer(answer.encode(), Buffer::empty(), AnswerKind::Numbered) {
            self.end(crate::CloseReason::Misbehaved(flood));
        }
    }
}
