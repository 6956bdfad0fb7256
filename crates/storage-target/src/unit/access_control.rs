//! Who may use a unit now: its sessions with their unit attentions, reservations, and writer leases; and the commands that change those.
//!
//! A change can abort tasks of other sessions, and its response waits for their end; for that the methods are given the [`TaskSet`]. They
//! return `None` where the response comes later.

use std::collections::HashSet;

use strongroom_scsi::persistent::Effects;
use strongroom_scsi::persistent::parameters::LIST_BYTES_MAX;
use strongroom_scsi::transport::target::{self as transport, Response, TaskId};
use strongroom_scsi::vendor::lease::{Claim, ClaimError};
use strongroom_scsi::{Command, NexusId, Sense, Status, UnitAttention, VendorCommand, vendor};

use super::files::UnitFiles;
use super::leases::table::Permission;
use super::leases::{LeaseEffects, LeaseOutcome, WriterLeases};
use super::persistent_file::is_no_space;
use super::request::gather;
use super::reservations::{Reservations, ReserveOut};
use super::response::{check_condition, data};
use super::task::{SessionKey, TaskKey};
use super::task_set::{Ending, TaskSet};
use super::users::Users;
use crate::names::VolumeName;
use crate::open_units::{Origin, Requester};

/// The sessions of a unit, and what excludes them from it.
pub(super) struct AccessControl {
    pub(super) users: Users,
    pub(super) reservations: Reservations,
    pub(super) leases: WriterLeases,
}

impl AccessControl {
    pub(super) fn new(files: UnitFiles, ports: std::sync::Arc<[u16]>) -> AccessControl {
        AccessControl {
            users: Users::default(),
            reservations: Reservations::new(files.reservations, ports),
            leases: WriterLeases::new(files.leases),
        }
    }

    pub(super) fn attach(&mut self, key: SessionKey, nexus: NexusId, origin: Origin, read_only: bool) {
        self.users.attach(key, nexus, origin, read_only);
        self.leases.attach(key);
    }

    /// A session ends. Its tasks are aborted; they may still have effects.
    pub(super) fn detach(&mut self, key: SessionKey, tasks: &mut TaskSet) {
        let Some(user) = self.users.detach(key) else { return };
        self.reservations.nexus_lost(&user.nexus);
        self.leases.detach(key);
        if !self.abort(key, None, tasks).is_empty() {
            self.users.leave(key, user.nexus);
        }
    }

    /// I_T NEXUS LOSS.
    pub(super) fn nexus_lost(&mut self, key: SessionKey) {
        let Some(user) = self.users.get_mut(key) else { return };
        user.attentions.establish(UnitAttention::NexusLoss);
        self.reservations.nexus_lost(&user.nexus);
    }

    /// LOGICAL UNIT RESET.
    pub(super) fn reset(&mut self) {
        self.reservations.reset();
        self.users.establish_for_all(UnitAttention::Reset);
    }

    /// A session aborts its tasks, one or all. Returns those that are still running: they may still have effects.
    pub(super) fn abort(&mut self, key: SessionKey, task: Option<TaskId>, tasks: &mut TaskSet) -> Vec<TaskId> {
        self.reservations.withdraw(key, task);
        self.leases.withdraw(key, task);
        tasks.end_tasks(key, task, Ending::Aborted)
    }

    /// Another session aborts the tasks of this one: each is answered with TASK ABORTED when it can have no effect any more. Returns those
    /// that are still running.
    pub(super) fn abort_for_others(&mut self, key: SessionKey, tasks: &mut TaskSet) -> Vec<TaskId> {
        let mut withdrawn = self.reservations.withdraw(key, None);
        withdrawn.extend(self.leases.withdraw(key, None));
        for task in withdrawn {
            tasks.answer_later((key, task), Response::task_aborted());
        }
        tasks.end_tasks(key, None, Ending::TaskAborted)
    }

    /// Whether a session may send a command that changes the medium, as far as leases go. BUSY: it may soon.
    pub(super) fn check_lease(
        &mut self,
        key: SessionKey,
        command: &Command,
        volume: &VolumeName,
    ) -> Result<(), Status> {
        if !command.writes_medium() {
            return Ok(());
        }
        match self.leases.permits(key, command) {
            Permission::Allowed => {}
            Permission::Conflict => return Err(Status::ReservationConflict),
            Permission::AfterLapsed => {
                let effects = self.leases.end_lapsed(&self.users, volume).ok_or(Status::Busy)?;
                self.establish_preempted(&effects.fenced);
            }
        }
        self.leases.note_write(key);
        Ok(())
    }

    /// A session of `requester` that may send a command like `command` itself; BUSY: one may soon.
    pub(super) fn session_for(
        &mut self,
        requester: &Requester,
        command: &Command,
        volume: &VolumeName,
    ) -> Result<Option<SessionKey>, Status> {
        let writes = command.writes_medium();
        let own = self.users.iter().filter(|(_, user)| {
            user.nexus.initiator_name == requester.initiator_name
                && user.origin.identity == requester.origin.identity
                && !(writes && user.read_only)
                && self.reservations.allows(&user.nexus, command)
        });
        let own: Vec<SessionKey> = own.map(|(key, _)| key).collect();
        let mut is_busy = false;
        for key in own {
            match self.check_lease(key, command, volume) {
                Ok(()) => return Ok(Some(key)),
                Err(refusal) => is_busy |= refusal == Status::Busy,
            }
        }
        if is_busy { Err(Status::Busy) } else { Ok(None) }
    }

    /// PERSISTENT RESERVE OUT.
    pub(super) fn reserve_out(
        &mut self,
        key: SessionKey,
        request: transport::Command,
        tasks: &mut TaskSet,
    ) -> Option<Response> {
        if self.reservations.is_changing() {
            self.reservations.wait(key, request);
            return None;
        }
        let Ok(Command::PersistentReserveOut { service_action, scope_type, parameter_list_len }) =
            Command::decode(&request.cdb)
        else {
            return Some(check_condition(Sense::INVALID_OPCODE));
        };
        let Some(nexus) = self.users.nexus(key) else { return Some(check_condition(Sense::INTERNAL_FAILURE)) };
        let task = (key, request.task);
        let list = || match parameter_list_len {
            0..=LIST_BYTES_MAX => gather(&request, parameter_list_len.into()),
            _ => Err(Sense::PARAMETER_LIST_LENGTH),
        };
        match self.reservations.reserve_out(task, nexus, (service_action, scope_type), list) {
            ReserveOut::Refused(response) => Some(response),
            ReserveOut::InForce(effects) => self.reserved(task, &effects, tasks),
            ReserveOut::Writing => None,
        }
    }

    /// A change of persistent reservations is in force. Its response waits for the tasks that it aborts.
    fn reserved(&mut self, task: TaskKey, effects: &Effects, tasks: &mut TaskSet) -> Option<Response> {
        for (nexus, attention) in &effects.attentions {
            self.users.establish(*attention, |_, user| user.nexus == *nexus);
        }
        let mut waits_for = HashSet::new();
        for nexus in &effects.abort {
            for key in self.users.of_nexus(nexus) {
                waits_for.extend(self.abort_for_others(key, tasks).into_iter().map(|task| (key, task)));
            }
        }
        respond(task, waits_for, tasks)
    }

    /// CLAIM WRITER LEASE, RELEASE WRITER LEASE and REPORT WRITERS. `is_read_only`: nobody can write to the unit now.
    pub(super) fn lease_command(
        &mut self,
        key: SessionKey,
        request: transport::Command,
        (volume, is_read_only): (&VolumeName, bool),
        tasks: &mut TaskSet,
    ) -> Option<Response> {
        let Ok(Command::Vendor(command)) = Command::decode(&request.cdb) else {
            return Some(check_condition(Sense::INVALID_OPCODE));
        };
        if let VendorCommand::ReportWriters { allocation_len } = command {
            return Some(data(vendor::lease::encode_writers(&self.leases.writers(key, &self.users)), allocation_len));
        }
        if self.leases.is_changing() {
            self.leases.wait(key, request);
            return None;
        }
        let task = (key, request.task);
        let outcome = match command {
            VendorCommand::ClaimLease { parameter_list_len } => parse_claim(&request, parameter_list_len)
                .and_then(|claim| self.leases.claim(task, &claim, &self.users, (volume, is_read_only))),
            _ => self.leases.release(task, &self.users, volume),
        };
        match outcome {
            Err(sense) => Some(check_condition(sense)),
            Ok(LeaseOutcome::Answer(response)) => Some(response),
            Ok(LeaseOutcome::InForce(effects)) => {
                let waits_for = self.leases_changed(&effects, tasks);
                respond(task, waits_for, tasks)
            }
            Ok(LeaseOutcome::Writing) => None,
        }
    }

    /// A change of leases is in force. Returns the tasks that its response waits for.
    fn leases_changed(&mut self, effects: &LeaseEffects, tasks: &mut TaskSet) -> HashSet<TaskKey> {
        self.establish_preempted(&effects.fenced);
        let mut waits_for = HashSet::new();
        let Some(grant) = &effects.granted else { return waits_for };
        for key in &effects.fenced {
            waits_for.extend(self.abort_for_others(*key, tasks).into_iter().map(|task| (*key, task)));
        }
        for key in &grant.excluded {
            if grant.takes_over {
                self.abort_for_others(*key, tasks);
            }
            waits_for.extend(tasks.tasks_of(*key));
        }
        for key in self.users.leaving() {
            waits_for.extend(tasks.tasks_of(key));
        }
        waits_for
    }

    fn establish_preempted(&mut self, fenced: &[SessionKey]) {
        if !fenced.is_empty() {
            self.users.establish(UnitAttention::ReservationsPreempted, |key, _| fenced.contains(&key));
        }
    }

    /// Whether a change is being written or waits.
    pub(super) fn has_changes(&self) -> bool {
        self.reservations.has_changes() || self.leases.has_changes()
    }

    /// Puts changes in force that have been written since the last call, and executes the commands that waited for them.
    pub(super) fn poll(&mut self, (volume, is_read_only): (&VolumeName, bool), tasks: &mut TaskSet) {
        if let Some(written) = self.reservations.poll() {
            let response = match written.result {
                Ok(effects) => self.reserved(written.task, &effects, tasks),
                Err(error) => {
                    tracing::error!(%volume, %error, "reservations could not be written: the change is refused");
                    Some(check_condition(not_written(&error)))
                }
            };
            answer_later(written.task, response, tasks);
        }
        while let Some((key, request)) = self.reservations.next_waiting() {
            let task = (key, request.task);
            let response = self.reserve_out(key, request, tasks);
            answer_later(task, response, tasks);
        }
        self.poll_leases((volume, is_read_only), tasks);
    }

    fn poll_leases(&mut self, (volume, is_read_only): (&VolumeName, bool), tasks: &mut TaskSet) {
        if let Some(written) = self.leases.poll(&self.users, volume) {
            match written.result {
                Ok(effects) => {
                    let waits_for = self.leases_changed(&effects, tasks);
                    if let Some(task) = written.task {
                        tasks.delay(task, Response::good(), waits_for);
                    }
                }
                Err(error) => {
                    tracing::error!(%volume, %error, "writer leases could not be written: the change is refused");
                    if let Some(task) = written.task {
                        tasks.answer_later(task, check_condition(not_written(&error)));
                    }
                }
            }
        }
        while let Some((key, request)) = self.leases.next_waiting() {
            let task = (key, request.task);
            let response = self.lease_command(key, request, (volume, is_read_only), tasks);
            answer_later(task, response, tasks);
        }
    }

    /// Whether one of the files is being written.
    pub(super) fn is_writing(&self) -> bool {
        self.reservations.is_writing() || self.leases.is_writing()
    }
}

/// What a session is told of a change that could not be written.
fn not_written(error: &std::io::Error) -> Sense {
    if is_no_space(error) { Sense::NO_SPACE } else { Sense::INTERNAL_FAILURE }
}

/// GOOD, at once or when other tasks have ended.
fn respond(task: TaskKey, waits_for: HashSet<TaskKey>, tasks: &mut TaskSet) -> Option<Response> {
    if waits_for.is_empty() {
        return Some(Response::good());
    }
    tasks.delay(task, Response::good(), waits_for);
    None
}

fn answer_later(task: TaskKey, response: Option<Response>, tasks: &mut TaskSet) {
    if let Some(response) = response {
        tasks.answer_later(task, response);
    }
}

fn parse_claim(request: &transport::Command, list_len: u32) -> Result<Claim, Sense> {
    if list_len > Claim::BYTES_MAX {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    }
    let list = gather(request, list_len.into())?;
    Claim::parse(&list).map_err(|error| match error {
        ClaimError::Length(_) => Sense::PARAMETER_LIST_LENGTH,
        ClaimError::Field(at) => Sense::INVALID_FIELD_IN_PARAMETERS.in_parameters(at),
    })
}
