//! Reservations of a unit: RESERVE and RELEASE (SPC-2), and PERSISTENT RESERVE (SPC-4) with its file.
//!
//! A change by PERSISTENT RESERVE OUT takes effect when it is on disk, if it must survive a restart. A change that cannot be written is
//! refused without any effect. Changes that arrive meanwhile wait.

pub(super) mod format;

use std::io;
use std::sync::Arc;

use strongroom_block::Buffer;
use strongroom_scsi::persistent::{Effects, PersistentReservations, Refusal, SavedReservations};
use strongroom_scsi::reservation::Reservation;
use strongroom_scsi::transport::target::{self as transport, Response, TaskId};
use strongroom_scsi::{Command, NexusId, Sense, Status};

use super::pending::PendingChanges;
use super::persistent_file::PersistentFile;
use super::response::{check_condition, data, status};
use super::task::{SessionKey, TaskKey};

/// Who may use the unit, by SCSI's rules.
pub(super) struct Reservations {
    /// RESERVE (6) and (10).
    legacy: Reservation,
    persistent: PersistentReservations,
    file: PersistentFile<SavedReservations>,
    changes: PendingChanges<ReservationChange>,
}

/// The persistent reservations after a change that is being written, and the effects that it then has.
struct ReservationChange {
    task: TaskKey,
    after: PersistentReservations,
    effects: Effects,
}

/// What becomes of a PERSISTENT RESERVE OUT.
pub(super) enum ReserveOut {
    Refused(Response),
    /// It is in force; the caller carries out the effects.
    InForce(Effects),
    /// It is being written; [`Reservations::poll`] reports it.
    Writing,
}

/// The end of a change that was being written.
pub(super) struct ReservationWritten {
    pub(super) task: TaskKey,
    /// The effects that the caller carries out.
    pub(super) result: io::Result<Effects>,
}

impl Reservations {
    pub(super) fn new(
        (file, saved): (PersistentFile<SavedReservations>, SavedReservations),
        ports: Arc<[u16]>,
    ) -> Reservations {
        Reservations {
            legacy: Reservation::default(),
            persistent: PersistentReservations::restore(saved).with_ports(ports),
            file,
            changes: PendingChanges::default(),
        }
    }

    /// Whether a command of this nexus conflicts with no reservation.
    pub(super) fn allows(&self, nexus: &NexusId, command: &Command) -> bool {
        self.legacy.allows(nexus, command) && self.persistent.allows(nexus, command)
    }

    pub(super) fn reserve(&mut self, nexus: &NexusId) -> Response {
        let reserved = self.persistent.compatible(nexus).unwrap_or_else(|| self.legacy.reserve(nexus));
        if reserved { Response::good() } else { status(Status::ReservationConflict) }
    }

    pub(super) fn release(&mut self, nexus: &NexusId) -> Response {
        if self.persistent.compatible(nexus) == Some(false) {
            return status(Status::ReservationConflict);
        }
        self.legacy.release(nexus);
        Response::good()
    }

    /// The nexus is lost, which ends its RESERVE.
    pub(super) fn nexus_lost(&mut self, nexus: &NexusId) {
        self.legacy.release(nexus);
    }

    /// LOGICAL UNIT RESET.
    pub(super) fn reset(&mut self) {
        self.legacy.clear();
    }

    /// PERSISTENT RESERVE IN.
    pub(super) fn report(&self, service_action: u8, allocation_len: u16) -> Response {
        // SPC-4 §5.13.3: RESERVE (6) and persistent reservations exclude each other.
        match self.legacy.holder() {
            Some(_) => status(Status::ReservationConflict),
            None => data(self.persistent.report(service_action), allocation_len.into()),
        }
    }

    /// Whether a change is being written, for which another command must [wait](Reservations::wait).
    pub(super) fn is_changing(&self) -> bool {
        self.changes.is_writing()
    }

    pub(super) fn wait(&mut self, connection: SessionKey, request: transport::Command) {
        self.changes.wait(connection, request);
    }

    /// PERSISTENT RESERVE OUT with its parameter list, while no other change is being written.
    pub(super) fn reserve_out(
        &mut self,
        task: TaskKey,
        nexus: &NexusId,
        (service_action, scope_type): (u8, u8),
        list: impl FnOnce() -> Result<Buffer, Sense>,
    ) -> ReserveOut {
        match self.try_reserve_out(task, nexus, (service_action, scope_type), list) {
            Ok(outcome) => outcome,
            Err(Refusal::Conflict) => ReserveOut::Refused(status(Status::ReservationConflict)),
            Err(Refusal::Sense(sense)) => ReserveOut::Refused(check_condition(sense)),
        }
    }

    fn try_reserve_out(
        &mut self,
        task: TaskKey,
        nexus: &NexusId,
        (service_action, scope_type): (u8, u8),
        list: impl FnOnce() -> Result<Buffer, Sense>,
    ) -> Result<ReserveOut, Refusal> {
        if self.legacy.holder().is_some() {
            return Err(Refusal::Conflict);
        }
        let mut after = self.persistent.clone();
        let effects = after.change(nexus, service_action, scope_type, &list()?)?;
        let change = ReservationChange { task, after, effects };
        if self.file.write(change.after.to_keep()) {
            self.changes.begin(change);
            return Ok(ReserveOut::Writing);
        }
        Ok(ReserveOut::InForce(self.put_in_force(change)))
    }

    fn put_in_force(&mut self, change: ReservationChange) -> Effects {
        self.persistent = change.after;
        change.effects
    }

    /// The change that has been written since the last call, or could not be.
    pub(super) fn poll(&mut self) -> Option<ReservationWritten> {
        let written = self.file.poll()?;
        let change = self.changes.end()?;
        let task = change.task;
        Some(ReservationWritten { task, result: written.map(|()| self.put_in_force(change)) })
    }

    /// The next command that waited for a change, once that is written.
    pub(super) fn next_waiting(&mut self) -> Option<(SessionKey, transport::Command)> {
        self.changes.next_waiting()
    }

    /// Removes waiting commands; returns which.
    pub(super) fn withdraw(&mut self, connection: SessionKey, task: Option<TaskId>) -> Vec<TaskId> {
        self.changes.withdraw(connection, task)
    }

    /// Whether a change is being written or waits.
    pub(super) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Whether the file is being written.
    pub(super) fn is_writing(&self) -> bool {
        self.file.is_writing()
    }

    /// The persistent reservations, to remember them while the unit is closed.
    pub(super) fn persistent(&self) -> &PersistentReservations {
        &self.persistent
    }

    /// Continues with the reservations from before the unit was closed, unless the file was changed meanwhile.
    pub(super) fn resume(&mut self, before: PersistentReservations) {
        if before.to_keep() == self.persistent.to_keep() {
            self.persistent = before;
        }
    }
}
