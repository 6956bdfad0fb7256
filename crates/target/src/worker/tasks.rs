//! Commands on their way to a unit and back, and task management across the sessions of a unit.

use std::collections::HashSet;

use strongroom_iscsi::Lun;
use strongroom_iscsi::target::{
    self as iscsi, ManagementFunction, Response, TaskId, TaskManagement, TaskManagementResult,
};
use strongroom_scsi::Sense;

use super::Worker;
use super::session::{Session, cost};
use super::units::{PendingManagement, Slot};
use crate::stats::Counters;
use crate::unit::{SessionKey, Verdict};

impl Worker {
    /// A command arrived, with all its data.
    pub(super) fn command(&mut self, session: &mut Session, command: iscsi::Command) {
        if session.must_wait(&command, self.settings.config.limits.read_memory_bytes) {
            session.queued.push_back(command);
        } else {
            self.start_command(session, command);
        }
    }

    /// Starts commands that waited for memory, as far as there is some.
    pub(super) fn start_queued(&mut self, session: &mut Session) {
        while session.may_start_queued(self.settings.config.limits.read_memory_bytes) {
            let Some(command) = session.queued.pop_front() else { return };
            self.start_command(session, command);
        }
        // What was answered at once is sent in the next round.
        session.touch(&mut self.touched_sessions);
    }

    fn start_command(&mut self, session: &mut Session, command: iscsi::Command) {
        let (task, cost) = (command.task, cost(&command));
        let open = session.volume.as_ref().and_then(|volume| match self.units.get_mut(volume) {
            Some(Slot::Open(open)) => Some(open),
            _ => None,
        });
        let Some(open) = open else {
            session.machine.complete(task, Response::check_condition(Sense::INTERNAL_FAILURE.encode()));
            return;
        };
        let volume = std::sync::Arc::clone(open.unit.volume());
        let sealed_blocks_max = volume.sealed.as_ref().map_or(0, |sealed| {
            let entry_bytes = 8 + sealed.custody.record_bytes_in_channel();
            session.machine.sealed_blocks_max(volume.geometry.block_size.bytes(), entry_bytes)
        });
        open.activity(self.now);
        match open.unit.submit(session.key, command, sealed_blocks_max) {
            Verdict::Answer(response) => session.finished(task, Some(response)),
            Verdict::Later => session.started(task, cost),
            Verdict::Violation(what) => {
                Counters::count(&self.shared.counters.misbehaved);
                tracing::warn!(address = %session.address, volume = %volume.name, what, "broke the frame discipline");
                session.machine.close(format!("{what}: the initiator breaks the frame discipline; update it"));
            }
        }
    }

    /// The store has finished something.
    pub(super) fn task_finished(&mut self, key: SessionKey, task: TaskId, response: Option<Response>) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.finished(task, response);
            session.touch(&mut self.touched_sessions);
        }
    }

    /// Carries out a task management function. Its answer comes when nothing that it ends can take effect any more.
    pub(super) fn task_management(&mut self, session: &mut Session, request: TaskManagement) {
        let TaskManagement { id, function, tasks } = request;
        let answer = |session: &mut Session, result| session.machine.answer_task_management(id, result);
        let lun = match function {
            ManagementFunction::ClearAca(_) => return answer(session, TaskManagementResult::NotSupported),
            ManagementFunction::AbortTaskSet(lun)
            | ManagementFunction::ClearTaskSet(lun)
            | ManagementFunction::QueryTaskSet { lun, .. }
            | ManagementFunction::QueryAsyncEvent(lun)
            | ManagementFunction::LogicalUnitReset(lun) => lun,
            ManagementFunction::AbortTask(_)
            | ManagementFunction::NexusReset
            | ManagementFunction::ConnectionEnded
            | ManagementFunction::TargetWarmReset
            | ManagementFunction::TargetColdReset => Lun::single_level(0),
        };
        if lun.index() != Some(0) {
            return answer(session, TaskManagementResult::LunDoesNotExist);
        }
        let Some(volume) = session.volume.clone() else {
            return answer(session, TaskManagementResult::NotSupported);
        };
        match function {
            ManagementFunction::QueryTaskSet { any: true, .. } => {
                return answer(session, TaskManagementResult::Succeeded);
            }
            ManagementFunction::QueryTaskSet { any: false, .. } => {
                return answer(session, TaskManagementResult::Complete);
            }
            ManagementFunction::QueryAsyncEvent(_) => {
                let waits = match self.units.get(&volume) {
                    Some(Slot::Open(open)) => open.unit.waiting_attention(session.key),
                    _ => None,
                };
                return match waits {
                    Some(sense) => session.machine.answer_query(id, [sense.key as u8, sense.asc, sense.ascq]),
                    None => answer(session, TaskManagementResult::Complete),
                };
            }
            _ => {}
        }
        let own = matches!(
            function,
            ManagementFunction::AbortTask(_)
                | ManagementFunction::AbortTaskSet(_)
                | ManagementFunction::ConnectionEnded
                | ManagementFunction::NexusReset
        );
        let others = !own;
        if let (true, Some(Slot::Open(open))) = (others, self.units.get(&volume))
            && open.unit.is_read_only(session.key)
        {
            tracing::warn!(address = %session.address, %volume, ?function, "refused to one who may only read");
            return answer(session, TaskManagementResult::AuthorizationFailed);
        }
        session.queued.retain(|command| !tasks.contains(&command.task));
        let Some(Slot::Open(open)) = self.units.get_mut(&volume) else {
            return answer(session, TaskManagementResult::Rejected);
        };
        let mut waiting: HashSet<(SessionKey, TaskId)> = HashSet::new();
        for task in tasks {
            waiting.extend(open.unit.abort(session.key, Some(task)).into_iter().map(|task| (session.key, task)));
        }
        if function == ManagementFunction::NexusReset {
            open.unit.nexus_lost(session.key);
        }
        let mut end_others = Vec::new();
        if others {
            for key in open.unit.connections_at_work().into_iter().filter(|key| *key != session.key) {
                waiting.extend(open.unit.abort_for_others(key).into_iter().map(|task| (key, task)));
                end_others.push(key);
            }
            // With TAS=1 cleared commands are answered, and no unit attention tells of them (SAM-5 §5.14).
            if !matches!(function, ManagementFunction::ClearTaskSet(_)) {
                open.unit.reset();
            }
        }
        let close_sessions = function == ManagementFunction::TargetColdReset;
        let pending = PendingManagement { session: session.key, id, waiting, close_sessions };
        if pending.waiting.is_empty() {
            answer(session, TaskManagementResult::Complete);
            if close_sessions {
                session.machine.close("target cold reset");
            }
            // Logins may have waited for this.
            if let Some(Slot::Open(open)) = self.units.get_mut(&volume) {
                open.activity(self.now);
            }
        } else {
            open.managements.push(pending);
        }
        for key in end_others {
            self.end_tasks_of_other(key, close_sessions);
        }
    }

    /// Another session's reset reaches this one. What the store works on is answered when that is over; the rest at once.
    fn end_tasks_of_other(&mut self, key: SessionKey, close_session: bool) {
        let Some(other) = self.sessions.get_mut(&key) else { return };
        let queued = std::mem::take(&mut other.queued);
        other.machine.abort_tasks(None);
        for command in queued {
            other.machine.complete(command.task, Response::task_aborted());
        }
        if close_session {
            other.machine.close("target cold reset");
        }
        other.touch(&mut self.touched_sessions);
    }

    /// A management function has nothing left to wait for.
    pub(super) fn management_done(&mut self, pending: &PendingManagement) {
        let Some(session) = self.sessions.get_mut(&pending.session) else { return };
        session.machine.answer_task_management(pending.id, TaskManagementResult::Complete);
        if pending.close_sessions {
            session.machine.close("target cold reset");
        }
        session.touch(&mut self.touched_sessions);
    }
}
