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
        self.send_management_response(management.initiator_task_tag, result, [0; 3]);
    }

    /// Answers a query with `Succeeded`, and with what was found: for `QueryAsyncEvent` sense key, code and qualifier.
    pub fn answer_query(&mut self, id: ManagementId, found: [u8; 3]) {
        let Some(at) = self.managements.iter().position(|management| management.id == id) else { return };
        let management = self.managements.swap_remove(at);
        self.send_management_response(management.initiator_task_tag, TaskManagementResult::Succeeded, found);
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
        let answer = |session: &mut Session, result| {
            session.send_management_response(tag, result, [0; 3]);
            Ok(())
        };
        let function = TaskFunction::from_code(request.function);
        if function.is_some_and(needs_level_2) && self.agreed.protocol_level < 2 {
            return answer(self, TaskManagementResult::NotSupported);
        }
        let (function, keys) = match function {
            Some(TaskFunction::AbortTask) => {
                let Some(&key) = self.by_tag.get(&request.referenced_task_tag) else {
                    // Answered already, or not here yet: the initiator waits for an answer that is on its way, or for none.
                    return match self.abort_unseen(&request) {
                        true => answer(self, TaskManagementResult::Complete).and_then(|()| self.release_held()),
                        false => answer(self, TaskManagementResult::TaskDoesNotExist),
                    };
                };
                if !matches!(self.tasks.get(key).map(|task| &task.state), Some(State::Executing)) {
                    self.abort(key);
                    return answer(self, TaskManagementResult::Complete);
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
            Some(TaskFunction::TaskReassign) => return answer(self, TaskManagementResult::ReassignNotSupported),
            Some(TaskFunction::QueryTask) => {
                let key = self.by_tag.get(&request.referenced_task_tag);
                let found = key.and_then(|key| self.tasks.get(*key)).is_some_and(|task| task.lun == lun);
                return answer(
                    self,
                    if found { TaskManagementResult::Succeeded } else { TaskManagementResult::Complete },
                );
            }
            Some(TaskFunction::QueryTaskSet) => {
                let any = !self.keys_of(Some(lun)).is_empty();
                (ManagementFunction::QueryTaskSet { lun, any }, Vec::new())
            }
            Some(TaskFunction::NexusReset) => (ManagementFunction::NexusReset, self.keys_of(None)),
            Some(TaskFunction::QueryAsyncEvent) => (ManagementFunction::QueryAsyncEvent(lun), Vec::new()),
            None => return answer(self, TaskManagementResult::NotSupported),
        };
        let held = self.freeze(&keys);
        let id = ManagementId(self.next_management);
        self.next_management += 1;
        self.managements.push(Management { id, initiator_task_tag: tag, tasks: keys });
        self.events.push_back(Event::TaskManagement(TaskManagement { id, function, tasks: held }));
        Ok(())
    }

    /// RFC 7143 §11.6.1: a task to abort that has not arrived, though its CmdSN is in the window and before the request's, counts
    /// as received and aborted; it must not start should it still come.
    fn abort_unseen(&mut self, request: &TaskManagementRequest) -> bool {
        let cmd_sn = request.ref_cmd_sn;
        let is_awaited = cmd_sn.is_within(self.exp_cmd_sn, self.max_cmd_sn()) && cmd_sn.is_before(request.cmd_sn);
        if is_awaited {
            self.held.retain(|(held, _)| *held != cmd_sn);
            self.held.push((cmd_sn, None));
        }
        is_awaited
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
        if let Some(recovery) = &mut self.recovery {
            recovery.forget(task.initiator_task_tag);
        }
    }

    fn keys_of(&self, lun: Option<Lun>) -> Vec<Key> {
        let wanted = |of: Lun| lun.is_none_or(|lun| lun == of);
        self.tasks.iter().filter(|(_, task)| wanted(task.lun)).map(|(key, _)| key).collect()
    }

    fn send_management_response(&mut self, initiator_task_tag: u32, result: TaskManagementResult, additional: [u8; 3]) {
        let answer = TaskManagementResponse { result, additional, initiator_task_tag, sequence: Sequence::default() };
        if let Err(flood) = self.answer(answer.encode(), Buffer::empty(), AnswerKind::Numbered) {
            self.end(crate::CloseReason::Misbehaved(flood));
        }
    }
}

/// RFC 7144 §5.1: functions that both sides must have agreed to have.
fn needs_level_2(function: TaskFunction) -> bool {
    matches!(
        function,
        TaskFunction::QueryTask | TaskFunction::QueryTaskSet | TaskFunction::NexusReset | TaskFunction::QueryAsyncEvent
    )
}
