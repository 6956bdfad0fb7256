//! A target as machines, for simulations: workers with their sessions and units, on a store that the simulation opened.
//!
//! Deliberately absent: what a worker does around sessions and units (sockets, logins, threads that open and close volumes), and the files
//! of reservations and writer leases: they are kept in memory that outlives the unit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use strongroom_block::{Custody, Geometry, Mode, SealingDomain, Suite, Token, VolumeId};
use strongroom_scsi::persistent::SavedReservations;
use strongroom_store::{
    BranchInfo, Completion, CreateOptions, IoChoice, Medium, Op, OpError, Outcome, SnapshotInfo, Store, StoreError,
    View, Waker,
};

use crate::config::Config;
use crate::store_handle::StoreHandle;
use crate::unit::{self, BlockCodec, ClosedUnit, SimulatedFiles, TargetEnvironment, UnitFiles};
use crate::volume::{Access, Sealed, Volume};

pub use crate::names::VolumeName;
pub use crate::worker::machine::{Admission, DrivenSession, Grant, Messages, Polled, RoutedWorker, Sending};

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

/// What outlives a unit beside its store: persistent reservations and writer leases, also a power loss; what its initiators have set,
/// as long as the process runs.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    files: SimulatedFiles,
    closed: Arc<Mutex<Option<ClosedUnit>>>,
}

impl Memory {
    /// The process has ended.
    pub fn forget_process(&self) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Forgets the reservations: what a target must not do.
    pub fn forget_reservations(&self) {
        *self.files.reservations.lock().unwrap_or_else(PoisonError::into_inner) = SavedReservations::default();
    }

    /// Forgets the writer leases: what a target must not do either.
    pub fn forget_leases(&self) {
        self.files.leases.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The unit is being closed.
    pub(crate) fn keep(&self, unit: ClosedUnit) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = Some(unit);
    }
}

/// A unit that a [`RoutedWorker`] is to serve.
pub struct Unit {
    pub(crate) unit: unit::Unit,
    /// Set by the store when it has something to poll.
    pub(crate) ready: Arc<AtomicBool>,
    /// It is the volume's, not a clone's.
    pub(crate) has_store: bool,
}

impl std::fmt::Debug for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unit").field("volume", &self.unit.volume().name).finish_non_exhaustive()
    }
}

/// An open store, for what is asked of it beside all sessions: of one view, with answers of its own.
pub struct OpenStore {
    handle: StoreHandle,
    ready: Arc<AtomicBool>,
    is_first: bool,
}

impl std::fmt::Debug for OpenStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenStore").field("view", &self.handle.view()).finish_non_exhaustive()
    }
}

impl OpenStore {
    /// Opens a store; `open` is given what the store calls when it has something to poll.
    ///
    /// # Errors
    /// What `open` says.
    pub fn open(open: impl FnOnce(Waker) -> Result<Store, StoreError>) -> Result<OpenStore, StoreError> {
        let ready = Arc::new(AtomicBool::new(true));
        let wake = Arc::clone(&ready);
        let store = open(Arc::new(move || wake.store(true, Ordering::Release)))?;
        Ok(OpenStore { handle: StoreHandle::new(store), ready, is_first: true })
    }

    fn handle(&self, view: View) -> StoreHandle {
        self.handle.another(view).expect("a simulation has few views")
    }

    /// The same store, for another view.
    pub fn of_view(&self, view: View) -> OpenStore {
        OpenStore { handle: self.handle(view), ready: Arc::new(AtomicBool::new(true)), is_first: false }
    }

    /// The unit of this view.
    pub fn unit(&self, volume: Volume, memory: &Memory) -> Unit {
        let config = Config::new("/nonexistent");
        let target_name = crate::names::target_name(&config.base_name, &volume.name);
        let environment = Arc::new(TargetEnvironment::of(&config));
        let files = UnitFiles::simulated(&memory.files);
        let handle = self.handle(self.handle.view());
        let mut unit =
            unit::Unit::new(Arc::new(volume), target_name, handle, BlockCodec::default(), files, environment);
        if let Some(closed) = memory.closed.lock().unwrap_or_else(PoisonError::into_inner).take() {
            unit.resume(closed);
        }
        Unit { unit, ready: Arc::clone(&self.ready), has_store: self.is_first }
    }

    /// Every branch in the store.
    pub fn branches(&self) -> Vec<BranchInfo> {
        self.handle.branches()
    }

    /// Every snapshot in the store.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.handle.snapshots()
    }

    /// How many I/Os the store has under way.
    pub fn ios_in_flight(&self) -> usize {
        self.handle.ios_in_flight()
    }

    /// Whether answers came while a unit was polled.
    pub fn has_mail(&self) -> bool {
        self.handle.has_mail()
    }

    /// Whether the store has asked to be polled: work that it does in slices goes on.
    pub fn wants_poll(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Nothing was asked for a while.
    pub fn idle(&mut self) {
        self.handle.idle();
    }

    /// Asks something of this view.
    pub fn submit(&mut self, token: u64, op: Op) {
        self.handle.submit(Token(token), op);
    }

    /// Moves the store forward; the answers to [`OpenStore::submit`].
    pub fn poll(&mut self) -> Vec<(u64, Result<Outcome, OpError>)> {
        let mut completions = Vec::new();
        self.handle.poll_completions(&mut completions);
        completions.into_iter().map(|Completion { token, result }| (token.0, result)).collect()
    }

    /// The store itself, if nothing else uses it.
    pub fn into_store(self) -> Option<Store> {
        self.handle.into_store()
    }
}
