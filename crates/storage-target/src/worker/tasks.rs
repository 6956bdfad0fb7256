//! Commands on their way to a unit and back, and task management across the sessions of a unit.

use std::collections::HashSet;

use strongroom_iscsi::Lun;
use strongroom_iscsi::target::{
    self as iscsi, ManagementFunction, Response, TaskId, TaskManagement, TaskManagementResult,
};
use strongroom_scsi::Sense;

use super::Worker;
use super::crossing::{Answer, Managed, Notice, Request};
use super::session::{Session, cost, queue_bytes};
use super::units::{PendingManagement, Slot};
use crate::names::VolumeName;
use crate::unit::{SessionKey, Verdict};

impl Worker {
    /// A command arrived, with all its data.
    pub(super) fn command(&mut self, session: &mut Session, command: iscsi::Command) {
        if session.must_wait(&command, self.read_bytes_max()) {
            session.queued.push_back(command);
        } else {
            self.start_command(session, command);
        }
    }

    /// Starts commands that waited for memory or for a place in the store's queue, as far as there is some.
    pub(super) fn start_queued(&mut self, session: &mut Session) {
        while session.may_start_queued(self.read_bytes_max()) {
            let Some(command) = session.queued.pop_front() else { return };
            self.start_command(session, command);
        }
        // What was answered at once is sent in the next round.
        session.touch(&mut self.touched_sessions);
    }

    fn start_command(&mut self, session: &mut Session, command: iscsi::Command) {
        let (task, cost, queue_bytes) = (command.task, cost(&command), queue_bytes(&command));
        let Some(place) = &session.place else {
            session.machine.complete(task, Response::check_condition(Sense::INTERNAL_FAILURE.encode()));
            return;
        };
        let sealed_blocks_max = place.sealed_blocks_max(&session.machine);
        if place.unit != self.index {
            self.ask_unit(session.key, place, Request::Command { command, sealed_blocks_max });
            return session.started(task, cost, queue_bytes);
        }
        let Some(Slot::Open(open)) = self.units.get_mut(&*place.volume) else {
            session.machine.complete(task, Response::check_condition(Sense::INTERNAL_FAILURE.encode()));
            return;
        };
        open.activity(self.now);
        match open.unit.submit(session.key, command, sealed_blocks_max) {
            Verdict::Answer(response) => session.finished(task, Some(response)),
            Verdict::Later => session.started(task, cost, queue_bytes),
            Verdict::Violation(what) => self.violated(session, what),
        }
    }

    /// The store has finished something.
    pub(super) fn task_finished(&mut self, key: SessionKey, task: TaskId, response: Option<Response>) {
        match self.sessions.get_mut(&key) {
            Some(session) => {
                session.finished(task, response);
                session.touch(&mut self.touched_sessions);
            }
            None => self.tell_session(key, Notice::Finished { task, response }),
        }
    }

    /// Has a task management function carried out. Its answer comes when nothing that it ends can take effect any more.
    pub(super) fn task_management(&mut self, session: &mut Session, request: TaskManagement) {
        let (id, function) = (request.id, request.function);
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
        let Some(place) = session.place.clone() else {
            return answer(session, TaskManagementResult::NotSupported);
        };
        if let ManagementFunction::QueryTaskSet { any, .. } = function {
            let found = if any { TaskManagementResult::Succeeded } else { TaskManagementResult::Complete };
            return answer(session, found);
        }
        if is_about_others(function) && session.read_only {
            let volume = &*place.volume;
            tracing::warn!(address = %session.address, %volume, ?function, "refused to one who may only read");
            return answer(session, TaskManagementResult::AuthorizationFailed);
        }
        session.queued.retain(|command| !request.tasks.contains(&command.task));
        if place.unit != self.index {
            return self.ask_unit(session.key, &place, Request::Manage(request));
        }
        if let Some(managed) = self.manage(session.key, &place.volume, request) {
            self.managed(session, &managed);
        }
    }

    /// Carries out a function at the unit. `None`: it has to wait, and the session is told later.
    pub(super) fn manage(&mut self, key: SessionKey, volume: &VolumeName, request: TaskManagement) -> Option<Managed> {
        let TaskManagement { id, function, tasks } = request;
        let open = match self.units.get_mut(volume) {
            // Another unit of the same name knows nothing of the session.
            Some(Slot::Open(open)) if open.unit.users().contains(key) => open,
            _ => return Some(Managed::result(id, TaskManagementResult::Rejected)),
        };
        if let ManagementFunction::QueryAsyncEvent(_) = function {
            let answer = match open.unit.users().pending_attention(key) {
                Some(sense) => Answer::Found([sense.key as u8, sense.asc, sense.ascq]),
                None => Answer::Result(TaskManagementResult::Complete),
            };
            return Some(Managed { id, answer, closes: false });
        }
        let mut waiting: HashSet<(SessionKey, TaskId)> = HashSet::new();
        for task in tasks {
            waiting.extend(open.unit.abort(key, Some(task)).into_iter().map(|task| (key, task)));
        }
        if function == ManagementFunction::NexusReset {
            open.unit.nexus_lost(key);
        }
        let mut end_others = Vec::new();
        if is_about_others(function) {
            for other in open.unit.users().keys_with_tasks().into_iter().filter(|other| *other != key) {
                waiting.extend(open.unit.abort_for_others(other).into_iter().map(|task| (other, task)));
                end_others.push(other);
            }
            // With TAS=1 cleared commands are answered, and no unit attention tells of them (SAM-5 §5.14).
            if !matches!(function, ManagementFunction::ClearTaskSet(_)) {
                open.unit.reset();
            }
        }
        let closes = function == ManagementFunction::TargetColdReset;
        let pending = PendingManagement { session: key, id, waiting, closes };
        // Logins may have waited for this.
        open.activity(self.now);
        let is_done = pending.waiting.is_empty();
        if !is_done {
            open.managements.push(pending);
        }
        for other in end_others {
            self.tell_session(other, Notice::EndTasks { closes });
        }
        is_done.then(|| Managed { closes, ..Managed::result(id, TaskManagementResult::Complete) })
    }

    /// A management function has nothing left to wait for.
    pub(super) fn management_done(&mut self, pending: &PendingManagement) {
        let done = Managed::result(pending.id, TaskManagementResult::Complete);
        self.tell_session(pending.session, Notice::Managed(Managed { closes: pending.closes, ..done }));
    }

    /// Answers the initiator.
    pub(super) fn managed(&mut self, session: &mut Session, managed: &Managed) {
        match managed.answer {
            Answer::Result(result) => session.machine.answer_task_management(managed.id, result),
            Answer::Found(sense) => session.machine.answer_query(managed.id, sense),
        }
        if managed.closes {
            session.machine.close("target cold reset");
        }
        self.retries.extend(session.joining.drain(..));
    }
}

/// Functions that reach the tasks of other sessions.
fn is_about_others(function: ManagementFunction) -> bool {
    !matches!(
        function,
        ManagementFunction::AbortTask(_)
            | ManagementFunction::AbortTaskSet(_)
            | ManagementFunction::ConnectionEnded
            | ManagementFunction::NexusReset
            | ManagementFunction::QueryTaskSet { .. }
            | ManagementFunction::QueryAsyncEvent(_)
    )
}
