//! CLAIM WRITER LEASE, RELEASE WRITER LEASE and REPORT WRITERS, and what leases let a session do. What a lease is: `leases`.
//!
//! A change of leases holds once it is on disk, as one of reservations does. What cannot be written is refused, and nothing of it has
//! happened. A claim is answered when nothing that it forbids can take effect any more.

use std::collections::HashSet;
use std::sync::Arc;

use strongroom_block::foreign;
use strongroom_iscsi::target::{self as iscsi, Response, TaskId};
use strongroom_scsi::vendor::lease::{Claim, ClaimError, LeaseId, LeaseMode, Standing, Writer, WriterRole};
use strongroom_scsi::{Command, Sense, Status, UnitAttention, VendorCommand, vendor};

use super::answers::data;
use super::leases::{Holder, LeaseRecord, OtherSession, Permission, Verdict};
use super::reserve::Delayed;
use super::{Plan, SessionKey, Unit, check_condition, status};
use crate::names::for_log;

/// What the leases will be when they are on disk, and what is done then.
pub(super) struct LeaseChange {
    /// Who waits for it.
    asker: Option<(SessionKey, TaskId)>,
    after: Vec<LeaseRecord>,
    /// Those that end by it, against the will of their holders or in their absence.
    ended: Vec<LeaseId>,
    what: What,
}

enum What {
    Claimed {
        lease: LeaseRecord,
        takes_over: bool,
    },
    Released(LeaseId),
    /// A session without a lease wants to write, and what stood against that has lapsed.
    Lapsed,
}

impl Unit {
    pub(super) fn plan_lease(
        &mut self,
        connection: SessionKey,
        command: VendorCommand,
        request: iscsi::Command,
    ) -> Plan {
        if let VendorCommand::ReportWriters { allocation_len } = command {
            return data(vendor::lease::encode_writers(&self.writers(connection)), allocation_len);
        }
        if self.lease_changes.is_writing() {
            self.lease_changes.wait(connection, request);
            return Plan::Delayed;
        }
        let planned = match command {
            VendorCommand::ClaimLease { parameter_list_len } => self.claim(connection, parameter_list_len, &request),
            _ => Ok(self.release(connection, request.task)),
        };
        planned.unwrap_or_else(Plan::from)
    }

    /// One that waited for another change.
    pub(super) fn plan_lease_again(&mut self, connection: SessionKey, request: iscsi::Command) -> Plan {
        match Command::decode(&request.cdb) {
            Ok(Command::Vendor(command)) => self.plan_lease(connection, command, request),
            _ => Plan::from(Sense::INVALID_OPCODE),
        }
    }

    fn claim(&mut self, connection: SessionKey, list_len: u32, request: &iscsi::Command) -> Result<Plan, Sense> {
        if list_len > Claim::BYTES_MAX {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        }
        let list = self.gather(request, list_len.into())?;
        let claim = Claim::parse(&list).map_err(|error| match error {
            ClaimError::Length(_) => Sense::PARAMETER_LIST_LENGTH,
            ClaimError::Field(at) => Sense::INVALID_FIELD_IN_PARAMETERS.in_parameters(at),
        })?;
        let user = self.users.get_mut(&connection).ok_or(Sense::INTERNAL_FAILURE)?;
        user.standing.knows_leases = true;
        user.standing.description.clone_from(&claim.description);
        let holder =
            Holder { initiator_name: Arc::clone(&user.nexus.initiator_name), identity: user.origin.identity.clone() };
        if claim.mode == LeaseMode::Reader {
            if user.standing.lease.is_some() {
                return Err(Sense::COMMAND_SEQUENCE);
            }
            user.standing.is_reader = true;
            return Ok(Plan::Answer(Response::good()));
        }
        if user.read_only || self.shown.is_some() {
            return Err(Sense::WRITE_PROTECTED);
        }
        // One lease for each session: another one would be left without anybody who could release it.
        if user.standing.lease.is_some_and(|id| id != claim.id) {
            return Err(Sense::COMMAND_SEQUENCE);
        }
        let is_other = |key: SessionKey, user: &super::User| key != connection && user.standing.lease != Some(claim.id);
        let others = self.users.iter().filter(|(key, user)| is_other(**key, user));
        let others = others.map(|(_, user)| OtherSession {
            standing: &user.standing,
            read_only: user.read_only,
            is_plain: user.origin.scheme.is_none(),
        });
        match self.leases.judge(&claim, &holder, others) {
            Verdict::Conflict => {
                if claim.resume {
                    self.refuse_to_resume(connection, claim.id);
                }
                Ok(Plan::Answer(status(Status::ReservationConflict)))
            }
            Verdict::Full => Err(Sense::INSUFFICIENT_REGISTRATION_RESOURCES),
            Verdict::Held => {
                self.joins(connection, claim.id);
                Ok(Plan::Answer(Response::good()))
            }
            Verdict::Granted { after, ended } => {
                let lease = after.last().cloned().ok_or(Sense::INTERNAL_FAILURE)?;
                let what = What::Claimed { lease, takes_over: claim.take_over };
                Ok(self.change_leases(LeaseChange { asker: Some((connection, request.task)), after, ended, what }))
            }
        }
    }

    /// Whoever comes back for a lease that is another's by now writes nothing before it claims one as if it were new.
    fn refuse_to_resume(&mut self, connection: SessionKey, id: LeaseId) {
        let why = self.leases.why_ended(id);
        if let Some(user) = self.users.get_mut(&connection) {
            tracing::warn!(
                volume = %self.volume.name,
                initiator = %for_log(&user.nexus.initiator_name),
                "an initiator came back for a writer lease that it has no more"
            );
            user.standing.lease = None;
            user.standing.fenced = Some(why);
        }
    }

    fn joins(&mut self, connection: SessionKey, id: LeaseId) {
        let Some(user) = self.users.get_mut(&connection) else { return };
        let standing = &mut user.standing;
        (standing.lease, standing.fenced) = (Some(id), None);
        (standing.is_reader, standing.has_written) = (false, false);
        self.leases.joined(id);
    }

    fn release(&mut self, connection: SessionKey, task: TaskId) -> Plan {
        let Some(user) = self.users.get_mut(&connection) else { return Plan::from(Sense::INTERNAL_FAILURE) };
        user.standing.knows_leases = true;
        let Some(id) = user.standing.lease else { return Plan::Answer(Response::good()) };
        let (after, asker) = (self.leases.without(id), Some((connection, task)));
        self.change_leases(LeaseChange { asker, after, ended: Vec::new(), what: What::Released(id) })
    }

    /// Ends what has lapsed, for a session without a lease that wants to write. Whether that is done.
    pub(super) fn end_lapsed(&mut self) -> bool {
        if self.lease_changes.is_writing() {
            return false;
        }
        let (after, ended) = self.leases.without_lapsed();
        let change = LeaseChange { asker: None, after, ended, what: What::Lapsed };
        matches!(self.change_leases(change), Plan::Answer(_))
    }

    fn change_leases(&mut self, change: LeaseChange) -> Plan {
        if self.lease_keeper.keep(change.after.clone()) {
            self.lease_changes.write(change);
            return Plan::Delayed;
        }
        let delayed = self.put_leases_in_force(change);
        match delayed {
            Some(delayed) if !delayed.is_ready() => {
                self.delayed.push(delayed);
                Plan::Delayed
            }
            _ => Plan::Answer(Response::good()),
        }
    }

    /// What was being written is on disk, or could not be put there.
    pub(super) fn poll_leases(&mut self) {
        if let Some(written) = self.lease_keeper.poll()
            && let Some(change) = self.lease_changes.written()
        {
            let delayed = match written {
                Ok(()) => self.put_leases_in_force(*change),
                Err(error) => {
                    tracing::error!(volume = %self.volume.name, %error, "writer leases could not be written: the change is refused");
                    let refused = |(key, task)| Delayed::now(key, task, check_condition(Sense::INTERNAL_FAILURE));
                    change.asker.map(refused)
                }
            };
            self.delayed.extend(delayed);
        }
        while let Some((connection, request)) = self.lease_changes.next_waiting() {
            let task = request.task;
            if let Plan::Answer(response) = self.plan_lease_again(connection, request) {
                self.delayed.push(Delayed::now(connection, task, response));
            }
        }
    }

    fn put_leases_in_force(&mut self, change: LeaseChange) -> Option<Delayed> {
        let LeaseChange { asker, after, ended, what } = change;
        let claimed = match &what {
            What::Claimed { lease, .. } => Some(lease),
            What::Released(_) | What::Lapsed => None,
        };
        self.leases.put_in_force(after, &ended, claimed);
        let mut waits_for = HashSet::new();
        match what {
            What::Claimed { lease, takes_over } => {
                let claimant = asker.map(|(key, _)| key).filter(|key| self.users.contains_key(key));
                self.tell_of_claim(&lease, ended.len());
                for key in self.fence(&ended) {
                    waits_for.extend(self.abort_for_others(key).into_iter().map(|task| (key, task)));
                }
                for key in self.kept_out_by(&lease) {
                    if takes_over {
                        self.abort_for_others(key);
                    }
                    waits_for.extend(self.tasks_of(key));
                }
                for key in self.leaving.keys() {
                    waits_for.extend(self.tasks_of(*key));
                }
                if let Some(key) = claimant {
                    self.joins(key, lease.id);
                }
            }
            What::Released(id) => {
                for user in self.users.values_mut().filter(|user| user.standing.lease == Some(id)) {
                    user.standing.lease = None;
                }
            }
            What::Lapsed => {
                tracing::info!(volume = %self.volume.name, leases = ended.len(), "writer leases ended: their holders stayed away");
                self.fence(&ended);
            }
        }
        let (connection, task) = asker?;
        Some(Delayed::after(connection, task, Response::good(), waits_for))
    }

    fn tell_of_claim(&self, lease: &LeaseRecord, ended: usize) {
        let (volume, initiator) = (&self.volume.name, for_log(&lease.holder.initiator_name));
        let (mode, holder) = (lease.mode, foreign(&lease.description));
        match ended {
            0 => tracing::info!(%volume, %initiator, ?mode, %holder, "a writer lease is granted"),
            _ => {
                tracing::warn!(%volume, %initiator, ?mode, %holder, ended, "a writer lease is granted, and others ended by it")
            }
        }
    }

    /// Sessions whose lease has ended change nothing more, and are told. Which those are.
    fn fence(&mut self, ended: &[LeaseId]) -> Vec<SessionKey> {
        let mut fenced = Vec::new();
        for (key, user) in &mut self.users {
            let Some(id) = user.standing.lease.filter(|id| ended.contains(id)) else { continue };
            (user.standing.lease, user.standing.fenced) = (None, Some(self.leases.why_ended(id)));
            user.attentions.establish(UnitAttention::ReservationsPreempted);
            fenced.push(*key);
        }
        fenced
    }

    /// Sessions that could change the medium until this lease was granted.
    fn kept_out_by(&self, lease: &LeaseRecord) -> Vec<SessionKey> {
        if lease.mode != LeaseMode::Exclusive {
            return Vec::new();
        }
        let is_kept_out = |user: &super::User| user.standing.lease.is_none() && !user.read_only;
        self.users.iter().filter(|(_, user)| is_kept_out(user)).map(|(key, _)| *key).collect()
    }

    /// What of a session is at work, with what was answered before its end.
    fn tasks_of(&self, key: SessionKey) -> impl Iterator<Item = (SessionKey, TaskId)> {
        self.running.values().filter(move |running| running.connection == key).map(move |running| (key, running.task))
    }

    /// Whether a session may send a command that changes the medium, as far as leases go; else what it is told. `Err` of BUSY passes.
    pub(super) fn check_lease(&mut self, connection: SessionKey, command: &Command) -> Result<(), Status> {
        if !command.writes_medium() {
            return Ok(());
        }
        let Some(user) = self.users.get(&connection) else { return Ok(()) };
        match self.leases.permits(&user.standing, command) {
            Permission::Allowed => {}
            Permission::AfterLapsed if self.end_lapsed() => {}
            Permission::AfterLapsed => return Err(Status::Busy),
            Permission::Conflict => return Err(Status::ReservationConflict),
        }
        if let Some(user) = self.users.get_mut(&connection) {
            user.standing.has_written |= user.standing.lease.is_none();
        }
        Ok(())
    }

    fn writers(&self, asker: SessionKey) -> Vec<Writer> {
        let Some(user) = self.users.get(&asker) else { return Vec::new() };
        let fenced = user.standing.fenced.iter().map(|ended| ended.to_writer());
        let holders = self.leases.writers(user.standing.lease);
        let unleased = self.users.iter().filter(|(key, user)| **key != asker && user.standing.lease.is_none());
        let sessions = unleased.map(|(_, user)| {
            let other = OtherSession {
                standing: &user.standing,
                read_only: user.read_only,
                is_plain: user.origin.scheme.is_none(),
            };
            Writer {
                role: if other.is_unleased_writer() { WriterRole::Unleased } else { WriterRole::Reader },
                is_asker: false,
                standing: Standing::Connected,
                initiator_name: user.nexus.initiator_name.to_string(),
                description: user.standing.description.clone(),
            }
        });
        fenced.chain(holders).chain(sessions).collect()
    }
}
