//! Error recovery level 2 (RFC 7143 §7.2.2): a connection is lost and the session is not. Once Time2Wait is over, the lost
//! connection is logged out over another one (or reinstated by a login, if there is no other); then every task of it that the
//! target has is reassigned and goes on where it was, and what the target never got is sent under its old number. Nothing
//! else is sent again.

use std::time::{Duration, Instant};

use super::connection_id::ConnectionId;
use super::connections::Connections;
use super::requests::{self, ControlTags};
use super::task_set::TaskSet;
use crate::login::Agreed;
use crate::pdu::{LogoutReason, LogoutResponse, LogoutResult};
use crate::slots::Key;

/// Reassignments in flight: they are immediate, and a target takes only this many of those.
const REASSIGNMENTS_MAX: usize = 8;

/// A connection that was lost and whose tasks were not yet taken over.
#[derive(Debug)]
struct LostConnection {
    id: ConnectionId,
    /// When the next stage may begin.
    due: Instant,
    /// When the target forgets the tasks.
    ends: Instant,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The target is to be told.
    Waiting,
    /// A logout for recovery is in flight.
    LoggingOut { tag: u32, on: ConnectionId },
    /// The target knows; tasks may be reassigned.
    Removed,
}

/// A task on its way to another connection.
#[derive(Debug)]
struct Reassignment {
    tag: u32,
    key: Key,
    connection: ConnectionId,
}

/// The lost connections of a session, and the reassignments of their tasks.
#[derive(Debug, Default)]
pub(super) struct Reassignments {
    lost: Vec<LostConnection>,
    in_flight: Vec<Reassignment>,
}

impl Reassignments {
    pub(super) fn is_idle(&self) -> bool {
        self.lost.is_empty()
    }

    pub(super) fn is_lost(&self, id: ConnectionId) -> bool {
        self.lost.iter().any(|lost| lost.id == id)
    }

    /// The connection that was lost first, and when it may be replaced.
    pub(super) fn first(&self) -> Option<(ConnectionId, Instant)> {
        self.lost.first().map(|lost| (lost.id, lost.due))
    }

    /// A connection in full-feature phase is lost.
    pub(super) fn lose(&mut self, now: Instant, id: ConnectionId, session: &Agreed) {
        let wait = Duration::from_secs(u64::from(session.time2wait_s));
        let retain = Duration::from_secs(u64::from(session.time2retain_s.max(1)));
        let due = now + wait;
        // One that took its CID over and is lost in its turn: what still waits of the first waits with it.
        self.lost.retain(|lost| lost.id != id);
        self.lost.push(LostConnection { id, due, ends: due + retain, stage: Stage::Waiting });
        self.in_flight.retain(|reassignment| reassignment.connection != id);
        for lost in &mut self.lost {
            if matches!(lost.stage, Stage::LoggingOut { on, .. } if on == id) {
                lost.stage = Stage::Waiting;
            }
        }
    }

    /// Whether the target has forgotten tasks meanwhile.
    pub(super) fn is_expired(&self, now: Instant) -> bool {
        self.lost.iter().any(|lost| lost.ends <= now)
    }

    /// Logs out what was lost, over the connection `on`, when it is time.
    pub(super) fn log_out_due(
        &mut self,
        now: Instant,
        connections: &mut Connections,
        on: ConnectionId,
        tags: &mut ControlTags,
    ) {
        for lost in &mut self.lost {
            // A login that takes its CID over stands for the logout.
            if lost.due > now || lost.stage != Stage::Waiting || connections.get(lost.id).is_some() {
                continue;
            }
            let Some(connection) = connections.get_mut(on) else { return };
            let tag = tags.next();
            connection.request_header(requests::logout(tag, LogoutReason::RemoveForRecovery, lost.id.0));
            lost.stage = Stage::LoggingOut { tag, on };
        }
    }

    /// Reassigns the tasks of connections that the target has given up.
    pub(super) fn reassign_due(&mut self, now: Instant, tasks: &mut TaskSet, connections: &mut Connections) {
        let is_ready = |lost: &LostConnection| lost.stage == Stage::Removed && lost.due <= now;
        while self.in_flight.len() < REASSIGNMENTS_MAX
            && let Some(id) = self.lost.iter().find(|lost| is_ready(lost)).map(|lost| lost.id)
        {
            let Some(key) = tasks.orphan_of(id) else {
                self.lost.retain(|lost| lost.id != id);
                continue;
            };
            if let Some((tag, connection)) = tasks.take_over(connections, key) {
                self.in_flight.push(Reassignment { tag, key, connection });
            }
        }
    }

    /// When there is something to do.
    pub(super) fn timeout(&self, has_connection: bool) -> Option<Instant> {
        let next = |lost: &LostConnection| match lost.stage {
            Stage::LoggingOut { .. } => lost.ends,
            Stage::Waiting | Stage::Removed if !has_connection => lost.ends,
            Stage::Waiting | Stage::Removed => lost.due.min(lost.ends),
        };
        self.lost.iter().map(next).min()
    }

    /// A connection is in full-feature phase: it may be the one that was lost.
    pub(super) fn joined(&mut self, id: ConnectionId) {
        if let Some(lost) = self.lost.iter_mut().find(|lost| lost.id == id) {
            lost.stage = Stage::Removed;
        }
    }

    /// Takes the answer to a logout for recovery; `None` if it is not one, `Some(false)`: the target does not recover connections.
    pub(super) fn take_logout_response(
        &mut self,
        now: Instant,
        on: ConnectionId,
        answer: &LogoutResponse,
    ) -> Option<bool> {
        let asked = Stage::LoggingOut { tag: answer.initiator_task_tag, on };
        let lost = self.lost.iter_mut().find(|lost| lost.stage == asked)?;
        match answer.result {
            // Not found: it was logged out before, and the answer was lost.
            LogoutResult::Closed | LogoutResult::CidNotFound => {
                lost.stage = Stage::Removed;
                lost.due = now + Duration::from_secs(u64::from(answer.time2wait_s));
                Some(true)
            }
            LogoutResult::RecoveryNotSupported | LogoutResult::CleanupFailed => Some(false),
        }
    }

    /// The task whose reassignment has this tag; it is no longer in flight.
    pub(super) fn take(&mut self, tag: u32) -> Option<Key> {
        let at = self.in_flight.iter().position(|reassignment| reassignment.tag == tag)?;
        Some(self.in_flight.swap_remove(at).key)
    }

    pub(super) fn clear(&mut self) {
        *self = Reassignments::default();
    }
}
