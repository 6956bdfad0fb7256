//! Error recovery level 2 (RFC 7143 §7.2.2): a connection is lost and the session is not. Once Time2Wait is over, the lost
//! connection is logged out over another one (or reinstated by a login, if there is no other); then every task of it that the
//! target has is reassigned and goes on where it was, and what the target never got is sent under its old number. Nothing
//! else is sent again.

use std::time::{Duration, Instant};

use strongroom_block::Buffer;

use super::connection::{Connection, ConnectionId, cost_bytes};
use super::manage::ends_many;
use super::{Completed, Event, Phase, Session, Task, TaskManagementResult, task_id};
use crate::pdu::{self, LogoutReason, LogoutRequest, LogoutResponse, LogoutResult, TAG_NONE, TaskManagementRequest};
use crate::slots::Key;
use crate::{CloseReason, Residual, Serial};

/// Reassignments in flight: they are immediate, and a target takes only so many of those.
const REASSIGNS_MAX: usize = 8;
/// A response that stands for "unknown": the task was gone when it was to be reassigned (§11.4.3: target failure).
const RESPONSE_TARGET_FAILURE: u8 = 1;

/// A connection that was lost and whose tasks were not yet taken over.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) id: ConnectionId,
    /// When the next step may be taken.
    due: Instant,
    /// When the target forgets the tasks.
    ends: Instant,
    step: ReassignmentStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReassignmentStage {
    /// The target is to be told.
    Waiting,
    Asked {
        tag: u32,
        via: ConnectionId,
    },
    /// The target knows; tasks may be reassigned.
    Removed,
}

impl Lost {
    pub(super) fn due(&self) -> Instant {
        self.due
    }
}

/// What is between a task and its new connection.
#[derive(Debug)]
pub(super) struct Reassign {
    pub(super) tag: u32,
    key: Key,
    via: ConnectionId,
}

impl Session {
    /// A connection in full-feature phase is lost; its tasks wait. What was not sent yet goes by another at once.
    pub(super) fn orphan(&mut self, now: Instant, connection: Connection) {
        let wait = Duration::from_secs(u64::from(self.agreed.time2wait_s));
        let retain = Duration::from_secs(u64::from(self.agreed.time2retain_s.max(1)));
        let (due, id) = (now + wait, connection.id);
        // One that took its CID over and is lost in its turn: what still waits of the first waits with it.
        self.lost.retain(|lost| lost.id != id);
        self.lost.push(Lost { id, due, ends: due + retain, step: ReassignmentStage::Waiting });
        self.homeless.extend(connection.waiting);
        let of_it: Vec<Key> = self.tasks.iter().filter(|(_, task)| task.is_at(id)).map(|(key, _)| key).collect();
        for key in of_it {
            self.tasks.get_mut(key).expect("just listed").is_orphan = true;
        }
        // What it was to say, or was answered on it, remains unknown. What ends tasks of other connections has to be known.
        for at in (0..self.managements.len()).rev() {
            let management = &mut self.managements[at];
            match management.via == Some(id) {
                true if ends_many(management.function) => management.via = None,
                true => self.end_management(at, TaskManagementResult::Rejected),
                false => {}
            }
        }
        self.reassigns.retain(|reassign| reassign.via != id);
        for lost in &mut self.lost {
            if matches!(lost.step, ReassignmentStage::Asked { via, .. } if via == id) {
                lost.step = ReassignmentStage::Waiting;
            }
        }
        if let Some(question) = self.question.as_mut().filter(|question| question.via == Some(id)) {
            question.via = None;
        }
        self.recover(now);
    }

    /// Takes every step that is due.
    pub(super) fn recover(&mut self, now: Instant) {
        if self.lost.is_empty() && self.homeless.is_empty() {
            return;
        }
        if self.lost.iter().any(|lost| lost.ends <= now) {
            return self.end(CloseReason::PeerSilent);
        }
        let Some(via) = self.least_loaded() else { return };
        for key in std::mem::take(&mut self.homeless) {
            self.adopt(key);
        }
        if let Some(question) = self.question.take_if(|question| question.via.is_none()) {
            self.ask(via, question.text, question.is_asked);
        }
        let via_id = self.connections[via].id;
        for management in self.managements.iter_mut().filter(|management| management.via.is_none()) {
            management.via = Some(via_id);
            let request = TaskManagementRequest {
                immediate: true,
                function: pdu::TaskFunction::from(management.function) as u8,
                lun: management.lun,
                initiator_task_tag: management.tag,
                referenced_task_tag: TAG_NONE,
                cmd_sn: Serial(0),
                exp_stat_sn: Serial(0),
                ref_cmd_sn: Serial(0),
                exp_data_sn: 0,
            };
            self.connections[via].requests.push_back((request.encode(), Buffer::empty()));
        }
        for at in 0..self.lost.len() {
            let lost = &self.lost[at];
            // A login that takes its CID over stands for the logout.
            if lost.due > now || lost.step != ReassignmentStage::Waiting || self.index_of(lost.id).is_some() {
                continue;
            }
            let cid = lost.id.0;
            let tag = self.control_tag();
            let request = LogoutRequest {
                immediate: true,
                reason: LogoutReason::RemoveForRecovery as u8,
                initiator_task_tag: tag,
                cid,
                cmd_sn: Serial(0),
                exp_stat_sn: Serial(0),
            };
            self.connections[via].requests.push_back((request.encode(), Buffer::empty()));
            self.lost[at].step = ReassignmentStage::Asked { tag, via: via_id };
        }
        self.reassign_due(now);
    }

    /// When [`Session::recover`] has something to do.
    pub(super) fn recovery_due(&self) -> Option<Instant> {
        let step = |lost: &Lost| match lost.step {
            ReassignmentStage::Asked { .. } => lost.ends,
            ReassignmentStage::Waiting | ReassignmentStage::Removed if self.least_loaded().is_none() => lost.ends,
            ReassignmentStage::Waiting | ReassignmentStage::Removed => lost.due.min(lost.ends),
        };
        self.lost.iter().map(step).min()
    }

    /// A connection is in full-feature phase: it may be the one that others wait for, or that was lost.
    pub(super) fn joined(&mut self, now: Instant, id: ConnectionId) {
        if let Some(lost) = self.lost.iter_mut().find(|lost| lost.id == id) {
            lost.step = ReassignmentStage::Removed;
        }
        self.recover(now);
    }

    /// The answer to a logout for recovery; false if it is not one.
    pub(super) fn handle_removed(&mut self, now: Instant, on: ConnectionId, answer: &LogoutResponse) -> bool {
        let asked = ReassignmentStage::Asked { tag: answer.initiator_task_tag, via: on };
        let Some(lost) = self.lost.iter_mut().find(|lost| lost.step == asked) else { return false };
        match answer.result {
            // Not found: it was logged out before, and the answer was lost.
            LogoutResult::Closed | LogoutResult::CidNotFound => {
                lost.step = ReassignmentStage::Removed;
                lost.due = now + Duration::from_secs(u64::from(answer.time2wait_s));
                self.recover(now);
            }
            LogoutResult::RecoveryNotSupported | LogoutResult::CleanupFailed => {
                self.end(CloseReason::ClosedHere("the target does not recover connections after all".into()));
            }
        }
        true
    }

    /// Gives a command that was not sent a connection.
    fn adopt(&mut self, key: Key) {
        let Some(at) = self.least_loaded() else { return self.homeless.push(key) };
        let Some(task) = self.tasks.get_mut(key) else { return };
        let connection = &mut self.connections[at];
        task.via = connection.id;
        connection.load_bytes += cost_bytes(&task.command);
        match task.cmd_sn {
            None => connection.waiting.push_back(key),
            Some(_) => connection.retries.push_back(key),
        }
    }

    /// Reassigns the tasks of connections that the target has given up.
    fn reassign_due(&mut self, now: Instant) {
        let is_ready = |lost: &Lost| lost.step == ReassignmentStage::Removed && lost.due <= now;
        while self.reassigns.len() < REASSIGNS_MAX
            && let Some(id) = self.lost.iter().find(|lost| is_ready(lost)).map(|lost| lost.id)
        {
            let is_orphan = |task: &Task| task.via == id && task.is_orphan;
            let Some(key) = self.tasks.iter().find(|(_, task)| is_orphan(task)).map(|(key, _)| key) else {
                self.lost.retain(|lost| lost.id != id);
                continue;
            };
            self.take_over(key);
        }
    }

    fn take_over(&mut self, key: Key) {
        let Some(at) = self.least_loaded() else { return };
        let tag = self.control_tag();
        let exp_cmd_sn = self.exp_cmd_sn;
        let Some(task) = self.tasks.get_mut(key) else { return };
        task.is_orphan = false;
        let cmd_sn = task.cmd_sn.expect("what was not sent is no orphan");
        if !cmd_sn.is_before(exp_cmd_sn) {
            // It never got there: the gap is filled under the old number (§7.2.1).
            return self.adopt(key);
        }
        let connection = &mut self.connections[at];
        task.via = connection.id;
        connection.load_bytes += cost_bytes(&task.command);
        task.r2ts_open = 0;
        task.is_r2t_sn_open = true;
        task.was_reassigned = true;
        task.is_asked_again = false;
        task.early = None;
        let request = TaskManagementRequest {
            immediate: true,
            function: pdu::TaskFunction::TaskReassign as u8,
            lun: task.command.lun,
            initiator_task_tag: tag,
            referenced_task_tag: task_id(key).0,
            cmd_sn: Serial(0),
            exp_stat_sn: Serial(0),
            ref_cmd_sn: cmd_sn,
            exp_data_sn: task.next_data_sn,
        };
        self.reassigns.push(Reassign { tag, key, via: connection.id });
        connection.requests.push_back((request.encode(), Buffer::empty()));
    }

    /// The answer to a reassignment; false if it is not one.
    pub(super) fn handle_reassigned(&mut self, now: Instant, tag: u32, result: pdu::TaskManagementResult) -> bool {
        let Some(at) = self.reassigns.iter().position(|reassign| reassign.tag == tag) else { return false };
        let key = self.reassigns.swap_remove(at).key;
        match result {
            pdu::TaskManagementResult::Complete => {}
            pdu::TaskManagementResult::TaskDoesNotExist => self.tell_unknown(key),
            _ if self.phase == Phase::FullFeature => {
                self.end(CloseReason::ClosedHere("the target does not reassign tasks after all".into()));
            }
            _ => {}
        }
        self.recover(now);
        true
    }

    /// A task ended at the target with an unknown result.
    fn tell_unknown(&mut self, key: Key) {
        if !self.forget(key) {
            return;
        }
        let task = task_id(key);
        self.events.push_back(Event::Completed(Completed {
            task,
            status: 0,
            response: RESPONSE_TARGET_FAILURE,
            sense: Vec::new(),
            residual: Residual::None,
            moved_bytes: 0,
            written: None,
        }));
    }
}
