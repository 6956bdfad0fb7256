//! Task management (RFC 7143 §11.5): which tasks a function ends here, over all connections of the session. What it does to a logical
//! unit and to other sessions is the application's.

use strongroom_block::Buffer;

use super::connection::ConnectionId;
use super::outbox::AnswerKind;
use super::{
    Event, MANAGEMENTS_MAX, ManagementFunction, ManagementId, Response, Session, TaskId, TaskManagement, TaskState,
    task_id,
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
    asked: Asked,
    /// The tasks that it ends when it is carried out.
    tasks: Vec<Key>,
}

/// Who wants tasks to end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    /// A task management function.
    Function { connection: ConnectionId, initiator_task_tag: u32, is_for_many: bool },
    /// A logout of the connection `closes`, which has or had this CID.
    Logout { connection: ConnectionId, initiator_task_tag: u32, closes: ConnectionId, cid: u16 },
    /// No response is due: the connection `closes` is gone.
    Nothing { closes: ConnectionId, cid: u16 },
}

/// An answer that must not overtake others: those that the function's tasks got on other connections before it was carried out (RFC 7143
/// §4.2.3.3). Each of these connections is pinged, and has taken them when it answers.
#[derive(Debug)]
pub(super) struct Barrier {
    connection: ConnectionId,
    initiator_task_tag: u32,
    result: TaskManagementResult,
    /// Connections, and the tags of their pings.
    waits_for: Vec<(ConnectionId, u32)>,
}

impl Session {
    /// Answers a `TaskManagement`. With `Complete`, the tasks that it named are forgotten, and those that were being
    /// answered are cut off.
    pub fn answer_task_management(&mut self, id: ManagementId, result: super::TaskManagementResult) {
        let result = TaskManagementResult::from(result);
        let Some(at) = self.managements.iter().position(|management| management.id == id) else { return };
        let management = self.managements.swap_remove(at);
        match (management.asked, result) {
            (asked, TaskManagementResult::Complete) => self.carried_out(asked, management.tasks),
            (Asked::Function { connection, initiator_task_tag, .. }, result) => {
                self.send_management_response(connection, initiator_task_tag, result, [0; 3]);
            }
            // The connection is closed independently of the answer about its tasks.
            (asked @ (Asked::Logout { .. } | Asked::Nothing { .. }), _) => self.carried_out(asked, management.tasks),
        }
    }

    /// Answers a query with `Succeeded`, and with what was found: for `QueryAsyncEvent` sense key, code and qualifier.
    pub fn answer_query(&mut self, id: ManagementId, found: [u8; 3]) {
        let Some(at) = self.managements.iter().position(|management| management.id == id) else { return };
        let management = self.managements.swap_remove(at);
        if let Asked::Function { connection, initiator_task_tag, .. } = management.asked {
            self.send_management_response(connection, initiator_task_tag, TaskManagementResult::Succeeded, found);
        }
    }

    /// No task of `tasks` can have an effect any more.
    pub(super) fn carried_out(&mut self, asked: Asked, tasks: Vec<Key>) {
        for key in tasks {
            self.abort(key);
        }
        match asked {
            Asked::Function { connection, initiator_task_tag, is_for_many } => {
                let waits_for = if is_for_many { self.ping_others(connection) } else { Vec::new() };
                let result = TaskManagementResult::Complete;
                self.barriers.push(Barrier { connection, initiator_task_tag, result, waits_for });
                self.lift_barriers();
            }
            Asked::Logout { .. } | Asked::Nothing { .. } => self.left(&asked),
        }
    }

    fn ping_others(&mut self, id: ConnectionId) -> Vec<(ConnectionId, u32)> {
        let others = self.connections.iter().filter(|other| other.id != id && !other.is_leaving);
        let others: Vec<ConnectionId> = others.map(|other| other.id).collect();
        others.into_iter().filter_map(|other| self.ping(other).map(|tag| (other, tag))).collect()
    }

    /// A ping was answered.
    pub(super) fn take_pong(&mut self, id: ConnectionId, target_transfer_tag: u32) {
        for barrier in &mut self.barriers {
            barrier.waits_for.retain(|waits| *waits != (id, target_transfer_tag));
        }
        self.lift_barriers();
    }

    /// A connection is gone, with what was on its way there.
    pub(super) fn drop_barriers(&mut self, id: ConnectionId) {
        for barrier in &mut self.barriers {
            barrier.waits_for.retain(|(other, _)| *other != id);
        }
        self.lift_barriers();
    }

    fn lift_barriers(&mut self) {
        while let Some(at) = self.barriers.iter().position(|barrier| barrier.waits_for.is_empty()) {
            let barrier = self.barriers.remove(at);
            self.send_management_response(barrier.connection, barrier.initiator_task_tag, barrier.result, [0; 3]);
        }
    }

    /// Whether tasks of an earlier connection with this CID are still being ended.
    pub(super) fn is_ending(&self, cid: u16) -> bool {
        self.managements.iter().any(|management| match management.asked {
            Asked::Logout { cid: of, .. } | Asked::Nothing { cid: of, .. } => of == cid,
            Asked::Function { .. } => false,
        })
    }

    /// Another session clears or resets a logical unit, or all: tasks whose data is still arriving end with the status TASK
    /// ABORTED (TAS=1). Returns those that the application holds, which ends them in the same way when they have no effect
    /// any more: an initiator that was told so sends them again. Answers on their way go out still.
    pub fn abort_tasks(&mut self, lun: Option<Lun>) -> Vec<TaskId> {
        let mut held = Vec::new();
        for key in self.keys_of(lun) {
            match self.tasks.get(key).map(|task| &task.state) {
                Some(TaskState::Executing) => held.push(task_id(key)),
                Some(TaskState::Receiving(_)) => self.fail_with(key, Response::task_aborted()),
                _ => {}
            }
        }
        held
    }

    pub(super) fn handle_task_management(
        &mut self,
        id: ConnectionId,
        request: TaskManagementRequest,
        pdu: &Pdu,
    ) -> Result<(), PeerMisbehaved> {
        if self.managements.len() + self.barriers.len() >= MANAGEMENTS_MAX {
            return self.reject(id, pdu, RejectReason::TooManyImmediateCommands);
        }
        let tag = request.initiator_task_tag;
        let lun = request.lun;
        let answer = |session: &mut Session, result| {
            session.send_management_response(id, tag, result, [0; 3]);
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
                if !matches!(self.tasks.get(key).map(|task| &task.state), Some(TaskState::Executing)) {
                    self.abort(key);
                    return answer(self, TaskManagementResult::Complete);
                }
                (ManagementFunction::AbortTask(task_id(key)), vec![key])
            }
            Some(TaskFunction::AbortTaskSet) => {
                (ManagementFunction::AbortTaskSet(lun), self.keys_before(&request, Some(lun)))
            }
            Some(TaskFunction::ClearAca) => (ManagementFunction::ClearAca(lun), Vec::new()),
            Some(TaskFunction::ClearTaskSet) => {
                (ManagementFunction::ClearTaskSet(lun), self.keys_before(&request, Some(lun)))
            }
            Some(TaskFunction::LogicalUnitReset) => {
                (ManagementFunction::LogicalUnitReset(lun), self.keys_before(&request, Some(lun)))
            }
            Some(TaskFunction::TargetWarmReset) => {
                (ManagementFunction::TargetWarmReset, self.keys_before(&request, None))
            }
            Some(TaskFunction::TargetColdReset) => {
                (ManagementFunction::TargetColdReset, self.keys_before(&request, None))
            }
            Some(TaskFunction::TaskReassign) => {
                let (result, task) = self.reassign(id, &request);
                answer(self, result)?;
                task.into_iter().for_each(|key| self.go_on(key));
                return Ok(());
            }
            Some(TaskFunction::QueryTask) => {
                let key = self.by_tag.get(&request.referenced_task_tag);
                let found = key.and_then(|key| self.tasks.get(*key)).is_some_and(|task| task.lun == lun);
                return answer(
                    self,
                    if found { TaskManagementResult::Succeeded } else { TaskManagementResult::Complete },
                );
            }
            Some(TaskFunction::QueryTaskSet) => {
                let any = !self.keys_before(&request, Some(lun)).is_empty();
                (ManagementFunction::QueryTaskSet { lun, any }, Vec::new())
            }
            Some(TaskFunction::NexusReset) => (ManagementFunction::NexusReset, self.keys_before(&request, None)),
            Some(TaskFunction::QueryAsyncEvent) => (ManagementFunction::QueryAsyncEvent(lun), Vec::new()),
            None => return answer(self, TaskManagementResult::NotSupported),
        };
        let held = self.freeze(&keys);
        let is_for_many = !matches!(function, ManagementFunction::AbortTask(_)) && !keys.is_empty();
        let asked = Asked::Function { connection: id, initiator_task_tag: tag, is_for_many };
        self.ask_application(asked, function, keys, held);
        Ok(())
    }

    /// `keys`: the tasks that end; `held`: those of them that the application has.
    pub(super) fn ask_application(
        &mut self,
        asked: Asked,
        function: ManagementFunction,
        keys: Vec<Key>,
        held: Vec<TaskId>,
    ) {
        let id = ManagementId(self.next_management);
        self.next_management += 1;
        self.managements.push(Management { id, asked, tasks: keys });
        self.events.push_back(Event::TaskManagement(TaskManagement { id, function, tasks: held }));
    }

    /// RFC 7143 §11.6.1: a task to abort that has not arrived, though its CmdSN is in the window and before the request's, counts
    /// as received and aborted; it must not start should it still come.
    fn abort_unseen(&mut self, request: &TaskManagementRequest) -> bool {
        let cmd_sn = request.ref_cmd_sn;
        let is_awaited =
            cmd_sn.is_within(self.exp_cmd_sn, self.window().max_cmd_sn) && cmd_sn.is_before(request.cmd_sn);
        if is_awaited {
            self.held.void(cmd_sn);
        }
        is_awaited
    }

    /// Ends the tasks among `keys` whose data is still arriving: they must not start once the function is on its way.
    /// Returns those that the application holds.
    pub(super) fn freeze(&mut self, keys: &[Key]) -> Vec<TaskId> {
        let mut held = Vec::new();
        for &key in keys {
            match self.tasks.get(key).map(|task| &task.state) {
                Some(TaskState::Receiving(_)) => self.abort(key),
                Some(TaskState::Executing) => held.push(task_id(key)),
                _ => {}
            }
        }
        held
    }

    fn abort(&mut self, key: Key) {
        let Some(task) = self.remove_task(key) else { return };
        self.withdraw_r2ts(task.initiator_task_tag);
        self.remember_ended(task.initiator_task_tag);
        if let Some(kept) = self.connection_mut(task.connection).and_then(|connection| connection.kept.as_mut()) {
            kept.forget(task.initiator_task_tag);
        }
    }

    fn keys_of(&self, lun: Option<Lun>) -> Vec<Key> {
        let wanted = |of: Lun| lun.is_none_or(|lun| lun == of);
        self.tasks.iter().filter(|(_, task)| wanted(task.lun)).map(|(key, _)| key).collect()
    }

    /// Those of them that were sent before a request (RFC 7143 §11.5.1): later ones may have come by a faster connection.
    fn keys_before(&self, request: &TaskManagementRequest, lun: Option<Lun>) -> Vec<Key> {
        let mut keys = self.keys_of(lun);
        keys.retain(|key| {
            self.tasks.get(*key).is_some_and(|task| match task.immediate {
                // It shows the number of the next command and does not use it up.
                true => !request.cmd_sn.is_before(task.cmd_sn),
                false => task.cmd_sn.is_before(request.cmd_sn),
            })
        });
        keys
    }

    fn send_management_response(
        &mut self,
        id: ConnectionId,
        initiator_task_tag: u32,
        result: TaskManagementResult,
        additional: [u8; 3],
    ) {
        let answer = TaskManagementResponse { result, additional, initiator_task_tag, sequence: Sequence::default() };
        if let Err(flood) = self.answer(id, answer.encode(), Buffer::empty(), AnswerKind::Numbered) {
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

/// Functions over all tasks of a unit or a session: they wait for the commands before them (RFC 7143 §4.2.3.3).
pub(super) fn is_for_many(function: u8) -> bool {
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
