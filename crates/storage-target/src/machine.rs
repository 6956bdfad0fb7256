//! A logical unit as a machine, for simulations: SCSI commands of sessions in, answers out, on a store that the simulation opened.
//!
//! Deliberately absent: what the worker does around a unit (sockets, logins, sessions, opening and closing volumes), and the files of
//! reservations and writer leases: they are kept in memory that outlives the unit.

use std::net::Ipv4Addr;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use strongroom_block::{Custody, Geometry, Mode, SealingDomain, Suite, Token, VolumeId};
use strongroom_channel::Scheme;
use strongroom_handshake::PublicKey;
use strongroom_scsi::NexusId;
use strongroom_scsi::persistent::SavedReservations;
use strongroom_scsi::transport::target::{Command, Response, TaskId};
use strongroom_store::{
    BranchInfo, Completion, CreateOptions, IoChoice, Medium, Op, OpError, Outcome, SnapshotInfo, Store, View,
};

use crate::access::Identity;
use crate::config::Config;
use crate::names::VolumeName;
use crate::open_units::Origin;
use crate::store_handle::StoreHandle;
use crate::unit::{self, BlockCodec, SessionKey, SimulatedFiles, TargetEnvironment, UnitFiles};
use crate::volume::{Access, Sealed, Volume};

/// A sealed volume of custody `keyfile`.
///
/// # Panics
/// If the name is none.
pub fn sealed_volume(name: &str, geometry: Geometry, domain: SealingDomain) -> Volume {
    Volume {
        name: VolumeName::new(name).expect("a name"),
        id: VolumeId([1; 16]),
        geometry,
        sealed: Some(Sealed {
            custody: Custody::KeyFile,
            domain,
            suite: Suite::Aes256Gcm,
            mode: Mode::Encrypt,
            epoch: 1,
            wrapping_key: None,
            opened_with: None,
        }),
        retention_percent: CreateOptions::RETENTION_PERCENT_DEFAULT,
        spare_percent: CreateOptions::SPARE_PERCENT_DEFAULT,
        medium: Medium::Directory,
        io: IoChoice::Auto,
        clone_of: None,
        snapshots: Vec::new(),
        schedule: None,
        successor: None,
        succeeds: None,
        access: Access::default(),
    }
}

/// How a volume's store is made.
pub fn create_options(volume: &Volume) -> CreateOptions {
    volume.create_options()
}

/// What outlives a unit beside its store, and a power loss: persistent reservations and writer leases.
#[derive(Clone, Debug, Default)]
pub struct Memory(SimulatedFiles);

impl Memory {
    /// Forgets the reservations: what a target must not do.
    pub fn forget_reservations(&self) {
        *self.0.reservations.lock().unwrap_or_else(PoisonError::into_inner) = SavedReservations::default();
    }

    /// Forgets the writer leases: what a target must not do either.
    pub fn forget_leases(&self) {
        self.0.leases.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// What became of a command.
#[derive(Debug)]
pub enum Verdict {
    /// The answer.
    Answer(Response),
    /// [`Unit::poll`] will bring it.
    Later,
    /// The peer broke the frame discipline of sealed units: its session ends.
    Violation(&'static str),
}

/// A command that has ended: its session, its task, and the answer, if anybody wants it.
pub type Finished = (u64, TaskId, Option<Response>);

/// A unit: a volume's, or a view's of the same store. Sessions are named by numbers that are never used again.
pub struct Unit {
    unit: unit::Unit,
    /// For what is asked of the store beside sessions.
    own: StoreHandle,
}

impl std::fmt::Debug for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unit").field("in_flight", &self.unit.in_flight()).finish_non_exhaustive()
    }
}

impl Unit {
    /// The unit of a volume, on its open store.
    pub fn new(volume: Volume, store: Store, memory: &Memory) -> Unit {
        Unit::on(volume, StoreHandle::new(store), UnitFiles::simulated(&memory.0))
    }

    /// The unit of a clone or a snapshot of the same store.
    pub fn of_view(&self, volume: Volume, view: View, memory: &Memory) -> Unit {
        let store = self.unit.store().another(view).expect("a simulation has few views");
        Unit::on(volume, store, UnitFiles::simulated(&memory.0))
    }

    fn on(volume: Volume, handle: StoreHandle, files: UnitFiles) -> Unit {
        let own = handle.another(handle.view()).expect("a simulation has few views");
        let config = Config::new("/nonexistent");
        let target_name = crate::names::target_name(&config.base_name, &volume.name);
        let environment = Arc::new(TargetEnvironment::of(&config));
        let unit = unit::Unit::new(Arc::new(volume), target_name, handle, BlockCodec::default(), files, environment);
        Unit { unit, own }
    }

    /// Every branch in the store.
    pub fn branches(&self) -> Vec<BranchInfo> {
        self.own.branches()
    }

    /// Every snapshot in the store.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.own.snapshots()
    }

    /// It is that late: writer leases count from it.
    pub fn tick(&mut self, now: Instant) {
        self.unit.tick(now);
    }

    /// A session of a node begins.
    pub fn attach(&mut self, session: u64, nexus: NexusId, node: PublicKey) {
        let identity = Identity::Channel(node);
        let origin = Origin { identity, from: Ipv4Addr::LOCALHOST.into(), scheme: Some(Scheme::default()) };
        self.unit.attach(SessionKey(session), nexus, origin, false);
    }

    /// A session ends. What it has in flight goes on.
    pub fn detach(&mut self, session: u64) {
        self.unit.detach(SessionKey(session));
    }

    /// The session of a nexus.
    pub fn session_of(&self, nexus: &NexusId) -> Option<u64> {
        self.unit.users().session_of(nexus).map(|(key, _)| key.0)
    }

    /// Whether something of an earlier session of this nexus is in flight.
    pub fn is_leaving(&self, nexus: &NexusId) -> bool {
        self.unit.users().is_leaving(nexus)
    }

    /// A command of a session.
    pub fn submit(&mut self, session: u64, command: Command, sealed_blocks_max: usize) -> Verdict {
        match self.unit.submit(SessionKey(session), command, sealed_blocks_max) {
            unit::Verdict::Answer(response) => Verdict::Answer(response),
            unit::Verdict::Later => Verdict::Later,
            unit::Verdict::Violation(what) => Verdict::Violation(what),
        }
    }

    /// Moves everything forward; appends what has ended.
    pub fn poll(&mut self, ended: &mut Vec<Finished>) {
        let mut finished = Vec::new();
        self.unit.poll(&mut finished);
        ended.extend(finished.into_iter().map(|one| (one.connection.0, one.task, one.response)));
    }

    /// Stops wanting the answer of a task, or of all of a session; those that still run.
    pub fn abort(&mut self, session: u64, task: Option<TaskId>) -> Vec<TaskId> {
        self.unit.abort(SessionKey(session), task)
    }

    /// Another session ends the tasks of this one; those that still run.
    pub fn abort_for_others(&mut self, session: u64) -> Vec<TaskId> {
        self.unit.abort_for_others(SessionKey(session))
    }

    /// LOGICAL UNIT RESET.
    pub fn reset(&mut self) {
        self.unit.reset();
    }

    /// Sessions that may have something in flight.
    pub fn sessions_at_work(&self) -> Vec<u64> {
        self.unit.users().keys_with_tasks().into_iter().map(|key| key.0).collect()
    }

    /// Whether no session uses it, and nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.unit.is_idle()
    }

    /// How many I/Os its store has under way.
    pub fn ios_in_flight(&self) -> usize {
        self.unit.store().ios_in_flight()
    }

    /// Something came for this unit while another one was polled.
    pub fn has_mail(&self) -> bool {
        self.unit.store().has_mail()
    }

    /// Nothing was asked for a while.
    pub fn idle(&mut self) {
        self.unit.store_mut().idle();
    }

    /// Asks the store something beside all sessions; the answer comes from [`Unit::poll_own`].
    pub fn submit_own(&mut self, token: u64, op: Op) {
        self.own.submit(Token(token), op);
    }

    /// Answers to [`Unit::submit_own`].
    pub fn poll_own(&mut self) -> Vec<(u64, Result<Outcome, OpError>)> {
        let mut completions = Vec::new();
        self.own.poll_completions(&mut completions);
        completions.into_iter().map(|Completion { token, result }| (token.0, result)).collect()
    }

    /// The store, if this is the last unit on it.
    pub fn into_store(self) -> Option<Store> {
        drop(self.own);
        self.unit.into_store().into_store()
    }
}
