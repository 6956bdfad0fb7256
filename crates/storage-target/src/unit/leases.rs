//! Writer leases of a unit: CLAIM WRITER LEASE, RELEASE WRITER LEASE and REPORT WRITERS, the file of the leases, and how each session stands
//! to them. The rules are in `table`.
//!
//! A change takes effect when it is on disk. A change that cannot be written is refused without any effect. A claim is answered when
//! nothing that it forbids can take effect any more; the unit sees to that from the [`LeaseEffects`].

pub(super) mod format;
pub(super) mod table;

use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;
use strongroom_block::foreign;
use strongroom_scsi::transport::target::{self as transport, Response, TaskId};
use strongroom_scsi::vendor::lease::{Claim, LeaseId, LeaseMode, Standing, Writer, WriterRole};
use strongroom_scsi::{Command, Sense, Status};

use self::table::{Holder, LeaseRecord, LeaseTable, OtherSession, Permission, SessionStanding, Verdict};
use super::pending::PendingChanges;
use super::persistent_file::PersistentFile;
use super::response::status;
use super::task::{SessionKey, TaskKey};
use super::users::{User, Users};
use crate::names::{VolumeName, for_log};

/// The leases, their file, and the sessions.
pub(super) struct WriterLeases {
    table: LeaseTable,
    sessions: FxHashMap<SessionKey, SessionStanding>,
    file: PersistentFile<Vec<LeaseRecord>>,
    changes: PendingChanges<LeaseChange>,
}

/// The leases after a change that is being written.
struct LeaseChange {
    /// The task that waits for it.
    task: Option<TaskKey>,
    after: Vec<LeaseRecord>,
    /// Those that it ends against the will of their holders, or in their absence.
    ended: Vec<LeaseId>,
    cause: Cause,
}

enum Cause {
    Claim {
        lease: LeaseRecord,
        takes_over: bool,
    },
    Release(LeaseId),
    /// A session without a lease wants to write, and the leases that excluded it have lapsed.
    Lapse,
}

/// What the caller must do after a change.
pub(super) struct LeaseEffects {
    /// Sessions that have lost their lease. They get a unit attention; after a claim their tasks are aborted.
    pub(super) fenced: Vec<SessionKey>,
    /// The lease that was granted, if the change was a claim.
    pub(super) granted: Option<Grant>,
}

/// What a new lease excludes. Its claim is answered when these tasks have ended.
pub(super) struct Grant {
    /// Sessions that could change the medium until then.
    pub(super) excluded: Vec<SessionKey>,
    /// Their tasks are aborted.
    pub(super) takes_over: bool,
}

/// What becomes of a command about leases.
pub(super) enum LeaseOutcome {
    Answer(Response),
    /// It is in force; the caller carries out the effects.
    InForce(LeaseEffects),
    /// It is being written; [`WriterLeases::poll`] reports it.
    Writing,
}

/// The end of a change that was being written.
pub(super) struct LeasesWritten {
    pub(super) task: Option<TaskKey>,
    pub(super) result: io::Result<LeaseEffects>,
}

impl WriterLeases {
    pub(super) fn new((file, leases): (PersistentFile<Vec<LeaseRecord>>, Vec<LeaseRecord>)) -> WriterLeases {
        let changes = PendingChanges::default();
        WriterLeases { table: LeaseTable::restore(leases), sessions: FxHashMap::default(), file, changes }
    }

    /// Advances the time by which leases lapse.
    pub(super) fn tick(&mut self, now: Instant) {
        self.table.tick(now);
    }

    pub(super) fn attach(&mut self, key: SessionKey) {
        self.sessions.insert(key, SessionStanding::default());
    }

    pub(super) fn detach(&mut self, key: SessionKey) {
        if let Some(id) = self.sessions.remove(&key).and_then(|session| session.lease)
            && !self.sessions.values().any(|other| other.lease == Some(id))
        {
            self.table.left(id);
        }
    }

    /// How a session stands to the leases.
    pub(super) fn standing(&self, key: SessionKey) -> Option<&SessionStanding> {
        self.sessions.get(&key)
    }

    /// The holders of leases.
    pub(super) fn holders(&self) -> impl Iterator<Item = Writer> {
        self.table.writers(None)
    }

    /// Whether a change is being written, for which another command must [wait](WriterLeases::wait).
    pub(super) fn is_changing(&self) -> bool {
        self.changes.is_writing()
    }

    pub(super) fn wait(&mut self, connection: SessionKey, request: transport::Command) {
        self.changes.wait(connection, request);
    }

    /// CLAIM WRITER LEASE, while no other change is being written. `is_read_only`: nobody can write to the unit now.
    pub(super) fn claim(
        &mut self,
        task: TaskKey,
        claim: &Claim,
        users: &Users,
        (volume, is_read_only): (&VolumeName, bool),
    ) -> Result<LeaseOutcome, Sense> {
        let connection = task.0;
        let user = users.get(connection).ok_or(Sense::INTERNAL_FAILURE)?;
        let session = self.sessions.get_mut(&connection).ok_or(Sense::INTERNAL_FAILURE)?;
        session.knows_leases = true;
        session.description.clone_from(&claim.description);
        if claim.mode == LeaseMode::Reader {
            if session.lease.is_some() {
                return Err(Sense::COMMAND_SEQUENCE);
            }
            session.is_reader = true;
            return Ok(LeaseOutcome::Answer(Response::good()));
        }
        if user.read_only {
            return Err(Sense::WRITE_PROTECTED);
        }
        if is_read_only {
            return Err(Sense::IMAGE_PINNED);
        }
        // One lease for each session: otherwise nobody could release the first one.
        if session.lease.is_some_and(|id| id != claim.id) {
            return Err(Sense::COMMAND_SEQUENCE);
        }
        match self.judge(connection, claim, user, users) {
            Verdict::Conflict => {
                if claim.resume {
                    self.refuse_to_resume(connection, claim.id, user, volume);
                }
                Ok(LeaseOutcome::Answer(status(Status::ReservationConflict)))
            }
            Verdict::Full => Err(Sense::INSUFFICIENT_REGISTRATION_RESOURCES),
            Verdict::Held => {
                self.join(connection, claim.id);
                Ok(LeaseOutcome::Answer(Response::good()))
            }
            Verdict::Granted { after, ended } => {
                let lease = after.last().cloned().ok_or(Sense::INTERNAL_FAILURE)?;
                let cause = Cause::Claim { lease, takes_over: claim.take_over };
                Ok(self.change(LeaseChange { task: Some(task), after, ended, cause }, users, volume))
            }
        }
    }

    fn judge(&self, connection: SessionKey, claim: &Claim, user: &User, users: &Users) -> Verdict {
        let holder =
            Holder { initiator_name: Arc::clone(&user.nexus.initiator_name), identity: user.origin.identity.clone() };
        let others =
            self.others(users).filter(|(key, other)| *key != connection && other.standing.lease != Some(claim.id));
        self.table.judge(claim, &holder, others.map(|(_, other)| other))
    }

    /// Every session as a claim sees it.
    fn others<'a>(&'a self, users: &'a Users) -> impl Iterator<Item = (SessionKey, OtherSession<'a>)> {
        users.iter().filter_map(|(key, user)| {
            let standing = self.sessions.get(&key)?;
            let is_plain = user.origin.scheme.is_none();
            Some((key, OtherSession { standing, read_only: user.read_only, is_plain }))
        })
    }

    /// The session wants to continue with a lease that it has lost. It must not write before it claims a new one.
    fn refuse_to_resume(&mut self, connection: SessionKey, id: LeaseId, user: &User, volume: &VolumeName) {
        let why = self.table.why_ended(id);
        if let Some(session) = self.sessions.get_mut(&connection) {
            tracing::warn!(
                %volume,
                initiator = %for_log(&user.nexus.initiator_name),
                "an initiator came back for a writer lease that it has no more"
            );
            (session.lease, session.fenced) = (None, Some(why));
        }
    }

    fn join(&mut self, connection: SessionKey, id: LeaseId) {
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        (session.lease, session.fenced) = (Some(id), None);
        (session.is_reader, session.has_written) = (false, false);
        self.table.joined(id);
    }

    /// RELEASE WRITER LEASE, while no other change is being written.
    pub(super) fn release(&mut self, task: TaskKey, users: &Users, volume: &VolumeName) -> Result<LeaseOutcome, Sense> {
        let session = self.sessions.get_mut(&task.0).ok_or(Sense::INTERNAL_FAILURE)?;
        session.knows_leases = true;
        let Some(id) = session.lease else { return Ok(LeaseOutcome::Answer(Response::good())) };
        let (after, cause) = (self.table.without(id), Cause::Release(id));
        Ok(self.change(LeaseChange { task: Some(task), after, ended: Vec::new(), cause }, users, volume))
    }

    /// Whether a session may execute a command that changes the medium.
    pub(super) fn permits(&self, connection: SessionKey, command: &Command) -> Permission {
        match self.sessions.get(&connection) {
            Some(session) => self.table.permits(session, command),
            None => Permission::Allowed,
        }
    }

    /// Ends the lapsed leases, because a session without a lease wants to write. `None`: the change is being written, or waits.
    pub(super) fn end_lapsed(&mut self, users: &Users, volume: &VolumeName) -> Option<LeaseEffects> {
        if self.changes.is_writing() {
            return None;
        }
        let (after, ended) = self.table.without_lapsed();
        match self.change(LeaseChange { task: None, after, ended, cause: Cause::Lapse }, users, volume) {
            LeaseOutcome::InForce(effects) => Some(effects),
            LeaseOutcome::Answer(_) | LeaseOutcome::Writing => None,
        }
    }

    /// A session changes the medium.
    pub(super) fn note_write(&mut self, connection: SessionKey) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.has_written |= session.lease.is_none();
        }
    }

    fn change(&mut self, change: LeaseChange, users: &Users, volume: &VolumeName) -> LeaseOutcome {
        if self.file.write(change.after.clone()) {
            self.changes.begin(change);
            return LeaseOutcome::Writing;
        }
        LeaseOutcome::InForce(self.put_in_force(change, users, volume))
    }

    /// The change that has been written since the last call, or could not be.
    pub(super) fn poll(&mut self, users: &Users, volume: &VolumeName) -> Option<LeasesWritten> {
        let written = self.file.poll()?;
        let change = self.changes.end()?;
        let task = change.task;
        Some(LeasesWritten { task, result: written.map(|()| self.put_in_force(change, users, volume)) })
    }

    fn put_in_force(&mut self, change: LeaseChange, users: &Users, volume: &VolumeName) -> LeaseEffects {
        let LeaseChange { task, after, ended, cause } = change;
        let claimed = match &cause {
            Cause::Claim { lease, .. } => Some(lease),
            Cause::Release(_) | Cause::Lapse => None,
        };
        self.table.put_in_force(after, &ended, claimed);
        match cause {
            Cause::Claim { lease, takes_over } => {
                log_claim(volume, &lease, ended.len());
                let fenced = self.fence(&ended);
                let excluded = self.excluded_by(&lease, users);
                if let Some((key, _)) = task {
                    self.join(key, lease.id);
                }
                LeaseEffects { fenced, granted: Some(Grant { excluded, takes_over }) }
            }
            Cause::Release(id) => {
                for session in self.sessions.values_mut().filter(|session| session.lease == Some(id)) {
                    session.lease = None;
                }
                LeaseEffects { fenced: Vec::new(), granted: None }
            }
            Cause::Lapse => {
                tracing::info!(%volume, leases = ended.len(), "writer leases ended: their holders stayed away");
                LeaseEffects { fenced: self.fence(&ended), granted: None }
            }
        }
    }

    /// Sessions whose lease has ended must not change the medium any more. Returns them.
    fn fence(&mut self, ended: &[LeaseId]) -> Vec<SessionKey> {
        let mut fenced = Vec::new();
        for (key, session) in &mut self.sessions {
            let Some(id) = session.lease.filter(|id| ended.contains(id)) else { continue };
            (session.lease, session.fenced) = (None, Some(self.table.why_ended(id)));
            fenced.push(*key);
        }
        fenced
    }

    /// Sessions that could change the medium until this lease was granted.
    fn excluded_by(&self, lease: &LeaseRecord, users: &Users) -> Vec<SessionKey> {
        if lease.mode != LeaseMode::Exclusive {
            return Vec::new();
        }
        let others = self.others(users);
        let excluded = others.filter(|(_, other)| other.standing.lease.is_none() && !other.read_only);
        excluded.map(|(key, _)| key).collect()
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

    /// REPORT WRITERS.
    pub(super) fn writers(&self, asker: SessionKey, users: &Users) -> Vec<Writer> {
        let Some(session) = self.sessions.get(&asker) else { return Vec::new() };
        let fenced = session.fenced.iter().map(|ended| ended.to_writer());
        let holders = self.table.writers(session.lease);
        let unleased = self.others(users).filter(|(key, other)| *key != asker && other.standing.lease.is_none());
        let sessions = unleased.filter_map(|(key, other)| {
            Some(Writer {
                role: if other.is_unleased_writer() { WriterRole::Unleased } else { WriterRole::Reader },
                is_asker: false,
                standing: Standing::Connected,
                initiator_name: users.nexus(key)?.initiator_name.to_string(),
                description: other.standing.description.clone(),
            })
        });
        fenced.chain(holders).chain(sessions).collect()
    }

    /// The leases, to remember them while the unit is closed.
    pub(super) fn table(&self) -> &LeaseTable {
        &self.table
    }

    /// Continues with what was remembered while the unit was closed.
    pub(super) fn resume(&mut self, before: LeaseTable) {
        self.table.resume(before);
    }
}

fn log_claim(volume: &VolumeName, lease: &LeaseRecord, ended: usize) {
    let initiator = for_log(&lease.holder.initiator_name);
    let (mode, holder) = (lease.mode, foreign(&lease.description));
    match ended {
        0 => tracing::info!(%volume, %initiator, ?mode, %holder, "a writer lease is granted"),
        _ => {
            tracing::warn!(%volume, %initiator, ?mode, %holder, ended, "a writer lease is granted, and others ended by it")
        }
    }
}
