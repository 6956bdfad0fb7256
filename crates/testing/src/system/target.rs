//! The target: logins, sessions and task management around the units of one store, on the simulated disk. As the worker does it, without
//! sockets.

mod reservations;
mod served_store;
mod sessions;

use std::time::Instant;

use strongroom_scsi::NexusId;
use strongroom_target::machine::Verdict;

use super::layout::{initiator_name, isid_of};
use crate::{Random, SimDisk};
pub(super) use reservations::{Reservations, Reserve};
pub(super) use served_store::{ServedStore, Settings, Sighted};
pub(super) use sessions::{Output, SessionTable};

/// The target.
pub(super) struct Target {
    pub(super) store: ServedStore,
    pub(super) sessions: SessionTable,
    pub(super) reservations: Reservations,
}

impl Target {
    /// A target with a new volume, not formatted yet.
    pub(super) fn new(disk: SimDisk, settings: Settings, random: Random) -> Target {
        Target {
            store: ServedStore::new(disk, settings, random),
            sessions: SessionTable::default(),
            reservations: Reservations::default(),
        }
    }

    /// Whether no session uses the volume, and nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.sessions.is_empty() && self.store.is_idle()
    }

    /// The process is gone, with everything that it had in memory.
    pub(super) fn crash(&mut self) {
        self.store.crash();
        self.sessions.crash();
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.store.tick(now);
        self.sessions.handle_timeout(now);
    }

    /// LOGICAL UNIT RESET, as if another initiator had asked for it: every task is aborted, and its initiator is told so.
    pub(super) fn reset(&mut self) {
        self.clear_task_set();
        if let Some(unit) = self.store.unit(0) {
            unit.reset();
        }
    }

    /// CLEAR TASK SET, as if another initiator had asked for it.
    pub(super) fn clear_task_set(&mut self) {
        let Some(unit) = self.store.unit(0) else { return };
        for key in unit.sessions_at_work() {
            unit.abort_for_others(key);
            self.sessions.abort_tasks(key);
        }
    }

    /// Moves everything forward as far as it goes now; what is to be sent.
    pub(super) fn drive(&mut self, now: Instant) -> Vec<Output> {
        loop {
            let mut moved = self.sessions.drive(now, &mut self.store);
            let mut finished = self.store.poll();
            moved |= !finished.is_empty();
            finished.retain(|(_, task, response)| !self.reservations.take(*task, response.as_ref()));
            moved |= self.sessions.complete(finished);
            if !moved {
                break;
            }
        }
        self.sessions.take_output()
    }

    fn session_of(&mut self, initiator: u64) -> Option<u64> {
        let nexus = NexusId {
            initiator_name: initiator_name(initiator).into(),
            isid: isid_of(initiator),
            target_portal_group: 1,
        };
        let session = self.store.unit(0)?.session_of(&nexus)?;
        self.sessions.is_open(session).then_some(session)
    }

    /// Whether an initiator has a session with the volume.
    pub(super) fn has_session(&mut self, initiator: u64) -> bool {
        self.session_of(initiator).is_some()
    }

    /// Has an initiator's node change the reservations of the volume; `None`: it has no session. The outcome comes from
    /// [`Reservations::take_ended`].
    pub(super) fn reserve(&mut self, initiator: u64, what: Reserve) -> Option<u64> {
        let session = self.session_of(initiator)?;
        let (ticket, command) = self.reservations.command(initiator, what);
        let task = command.task;
        match self.store.unit(0)?.submit(session, command, 0) {
            Verdict::Answer(response) => drop(self.reservations.take(task, Some(&response))),
            Verdict::Later => {}
            Verdict::Violation(what) => panic!("a reservation breaks the frame discipline: {what}"),
        }
        Some(ticket)
    }
}
