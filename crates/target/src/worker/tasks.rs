//! Commands on their way to a unit and back, and task management across the sessions of a unit.

use std::collections::HashSet;

use strongroom_iscsi::Lun;
use strongroom_iscsi::target::{
    self as iscsi, ManagementFunction, Response, TaskId, TaskManagement, TaskManagementResult,
};
use strongroom_scsi::Sense;

use super::Worker;
use super::connection::{Connection, cost};
use super::units::{PendingManagement, Slot};
use crate::stats::Counters;
use crate::unit::{ConnectionKey, Verdict};

impl Worker {
    /// A command arrived, with all its data.
    pub(super) fn command(&mut self, connection: &mut Connection, command: iscsi::Command) {
        if connection.must_wait(&command, self.settings.config.limits.read_memory_bytes) {
            connection.queued.push_back(command);
        } else {
            self.start_command(connection, command);
        }
    }

    /// Starts commands that waited for memory, as far as there is some.
    pub(super) fn start_queued(&mut self, connection: &mut Connection) {
        while connection.may_start_queued(self.settings.config.limits.read_memory_bytes) {
            let Some(command) = connection.queued.pop_front() else { return };
            self.start_command(connection, command);
        }
        // What was answered at once is sent in the next round.
        connection.touch(&mut self.touched);
    }

    fn start_command(&mut self, connection: &mut Connection, command: iscsi::Command) {
        let (task, cost) = (command.task, cost(&command));
        let Some(session) = &mut connection.session else { return };
        let open = connection.stage.volume().and_then(|volume| match self.units.get_mut(volume) {
            Some(Slot::Open(open)) => Some(open),
            _ => None,
        });
        let Some(open) = open else {
            session.complete(task, Response::check_condition(Sense::INTERNAL_FAILURE.encode()));
            return;
        };
        let volume = std::sync::Arc::clone(open.unit.volume());
        let sealed_blocks_max = volume.sealed.as_ref().map_or(0, |sealed| {
            let entry_bytes = 8 + sealed.custody.record_bytes_in_channel();
            session.sealed_blocks_max(volume.geometry.block_size.bytes(), entry_bytes)
        });
        open.activity(self.now);
        match open.unit.submit(connection.key, command, sealed_blocks_max) {
            Verdict::Answer(response) => connection.finished(task, Some(response)),
            Verdict::Later => connection.started(task, cost),
            Verdict::Violation(what) => {
                Counters::count(&self.shared.counters.misbehaved);
                tracing::warn!(peer = %connection.peer, volume = %volume.name, what, "broke the frame discipline");
                session.close(format!("{what}: the initiator breaks the frame discipline; update it"));
            }
        }
    }

    /// The store has finished something.
    pub(super) fn task_finished(&mut self, key: ConnectionKey, task: TaskId, response: Option<Response>) {
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.finished(task, response);
            connection.touch(&mut self.touched);
        }
    }

    /// Carries out a task management function. Its answer comes when nothing that it ends can take effect any more.
    pub(super) fn task_management(&mut self, connection: &mut Connection, request: TaskManagement) {
        let TaskManagement { id, function, tasks } = request;
        let answer = |connection: &mut Connection, result| {
            if let Some(session) = &mut connection.session {
                session.answer_task_management(id, result);
            }
        };
        let lun = match function {
            ManagementFunction::ClearAca(_) => return answer(connection, TaskManagementResult::NotSupported),
            ManagementFunction::AbortTaskSet(lun)
            | ManagementFunction::ClearTaskSet(lun)
            | ManagementFunction::QueryTaskSet { lun, .. }
            | ManagementFunction::QueryAsyncEvent(lun)
            | ManagementFunction::LogicalUnitReset(lun) => lun,
            ManagementFunction::AbortTask(_)
            | ManagementFunction::NexusReset
            | ManagementFunction::TargetWarmReset
            | ManagementFunction::TargetColdReset => Lun::single_level(0),
        };
        if lun.index() != Some(0) {
            return answer(connection, TaskManagementResult::LunDoesNotExist);
        }
        let Some(volume) = connection.stage.volume().cloned() else {
            return answer(connection, TaskManagementResult::NotSupported);
        };
        match function {
            ManagementFunction::QueryTaskSet { any: true, .. } => {
                return answer(connection, TaskManagementResult::Succeeded);
            }
            ManagementFunction::QueryTaskSet { any: false, .. } => {
                return answer(connection, TaskManagementResult::Complete);
            }
            ManagementFunction::QueryAsyncEvent(_) => {
                let waits = match self.units.get(&volume) {
                    Some(Slot::Open(open)) => open.unit.waiting_attention(connection.key),
                    _ => None,
                };
                return match (waits, &mut connection.session) {
                    (Some(sense), Some(session)) => session.answer_query(id, [sense.key as u8, sense.asc, sense.ascq]),
                    _ => answer(connection, TaskManagementResult::Complete),
                };
            }
            _ => {}
        }
        let own = matches!(
            function,
            ManagementFunction::AbortTask(_) | ManagementFunction::AbortTaskSet(_) | ManagementFunction::NexusReset
        );
        let others = !own;
        if let (true, Some(Slot::Open(open))) = (others, self.units.get(&volume))
            && open.unit.is_read_only(connection.key)
        {
            tracing::warn!(peer = %connection.peer, %volume, ?function, "refused to one who may only read");
            return answer(connection, TaskManagementResult::AuthorizationFailed);
        }
        connection.queued.retain(|command| !tasks.contains(&command.task));
        let Some(Slot::Open(open)) = self.units.get_mut(&volume) else {
            return answer(connection, TaskManagementResult::Rejected);
        };
        let mut waiting: HashSet<(ConnectionKey, TaskId)> = HashSet::new();
        for task in tasks {
            waiting.extend(open.unit.abort(connection.key, Some(task)).into_iter().map(|task| (connection.key, task)));
        }
        if function == ManagementFunction::NexusReset {
            open.unit.nexus_lost(connection.key);
        }
        let mut end_others = Vec::new();
        if others {
            for key in open.unit.connections_at_work().into_iter().filter(|key| *key != connection.key) {
                waiting.extend(open.unit.abort_for_others(key).into_iter().map(|task| (key, task)));
                end_others.push(key);
            }
            // With TAS=1 cleared commands are answered, and no unit attention tells of them (SAM-5 §5.14).
            if !matches!(function, ManagementFunction::ClearTaskSet(_)) {
                open.unit.reset();
            }
        }
        let close_sessions = function == ManagementFunction::TargetColdReset;
        let pending = PendingManagement { connection: connection.key, id, waiting, close_sessions };
        if pending.waiting.is_empty() {
            answer(connection, TaskManagementResult::Complete);
            if close_sessions && let Some(session) = &mut connection.session {
                session.close("target cold reset");
            }
        } else {
            open.managements.push(pending);
        }
        for key in end_others {
            self.end_tasks_of_other(key, close_sessions);
        }
    }

    /// Another session's reset reaches this one. What the store works on is answered when that is over; the rest at once.
    fn end_tasks_of_other(&mut self, key: ConnectionKey, close_session: bool) {
        let Some(other) = self.connections.get_mut(&key) else { return };
        let queued = std::mem::take(&mut other.queued);
        if let Some(session) = &mut other.session {
            session.abort_tasks(None);
            for command in queued {
                session.complete(command.task, Response::task_aborted());
            }
            if close_session {
                session.close("target cold reset");
            }
        }
        other.touch(&mut self.touched);
    }

    /// A management function has nothing left to wait for.
    pub(super) fn management_done(&mut self, pending: &PendingManagement) {
        let Some(connection) = self.connections.get_mut(&pending.connection) else { return };
        if let Some(session) = &mut connection.session {
            session.answer_task_management(pending.id, TaskManagementResult::Complete);
            if pending.close_sessions {
                session.close("target cold reset");
            }
        }
        connection.touch(&mut self.touched);
    }
}
