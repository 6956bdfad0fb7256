//! What a volume's unit is made of: a store with its lock, what wraps block keys and what opens blocks; or, for a clone or a snapshot,
//! a view of the store that its volume has open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strongroom_block::{BlockKeyWrap, Opener, Resealer};
use strongroom_store::{Admission, Medium, Store, View};

use super::held::Held;
use super::units::{OpenUnit, StoreMemory};
use crate::budget::MemoryClass;
use crate::catalogue::{VolumeLock, store_error};
use crate::error::CatalogueError;
use crate::names::{self, VolumeName};
use crate::server::{Settings, Shared};
use crate::store_handle::StoreHandle;
use crate::unit::{BlockCodec, KeyRenewal, RenewalError, Renewed, Unit, UnitFiles};
use crate::volume::Volume;

/// How long opening a volume waits for its lock, and how often it looks.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// What a thread that opened a volume brings back: all that its unit is made of.
pub(crate) struct OpenedUnit {
    volume: Volume,
    target_name: String,
    store: Store,
    wrap: Option<Arc<dyn BlockKeyWrap>>,
    /// An erase goes on from before that may have been to destroy the key, and it is still there.
    key_survived: bool,
    opener: Option<Arc<dyn Opener>>,
    resealer: Option<Arc<dyn Resealer>>,
    files: UnitFiles,
    lock: VolumeLock,
    ready: Arc<AtomicBool>,
    cache_bytes_max: (usize, usize),
}

impl OpenedUnit {
    /// The unit, to be served.
    pub(super) fn into_open(self, shared: &Arc<Shared>, waker: &strongroom_net::Waker, now: Instant) -> OpenUnit {
        let OpenedUnit { volume: described, target_name, store, wrap, .. } = self;
        let OpenedUnit { key_survived, opener, resealer, files, lock, ready, cache_bytes_max, .. } = self;
        let store = StoreHandle::new(store);
        let rest = shared.resting().take(&described);
        let environment = Arc::clone(&shared.environment);
        let renewer = shared.key_renewer().filter(|_| wrap.is_some());
        let renewal = renewer.map(|renewer| KeyRenewal::new(renewer, wake(&ready, waker)));
        let codec = BlockCodec { wrap, resealer };
        let unit = Unit::new(Arc::new(described), target_name, store, codec, files, environment);
        let mut unit = unit.with_key_renewal(renewal);
        if let Some(rest) = rest {
            unit.resume(rest);
        }
        if key_survived {
            unit.key_survived();
        }
        if let Some(opener) = opener {
            unit.verify_with(opener);
        }
        unit.store_mut().signal_completions(waker);
        let budget = &shared.budget;
        let used = unit.store().memory();
        let memory = StoreMemory {
            store: budget.charge(MemoryClass::Stores, used.total() - used.cache_bytes - used.request_bytes),
            caches: budget.charge(MemoryClass::Caches, used.cache_bytes),
            cache_bytes_max,
            admission: Admission::default(),
        };
        OpenUnit::new(unit, ready, Some(Held::new(shared, lock)), Some(memory), now)
    }
}

/// What others call when a unit has something to poll.
pub(super) fn wake(ready: &Arc<AtomicBool>, waker: &strongroom_net::Waker) -> strongroom_store::Waker {
    let (ready, waker) = (Arc::clone(ready), waker.clone());
    Arc::new(move || {
        ready.store(true, Ordering::Release);
        waker.wake();
    })
}

/// Opens a volume: lock, description, store, and what wraps its block keys. Takes as long as recovery takes.
pub(super) fn open(
    shared: &Shared,
    name: &VolumeName,
    waker: strongroom_store::Waker,
    ready: Arc<AtomicBool>,
) -> Result<OpenedUnit, CatalogueError> {
    let lock = lock_patiently(shared, name)?;
    let mut volume = shared.catalogue.load(name)?;
    let mut wrap = match volume.sealed.as_ref().filter(|sealed| !sealed.custody.is_blind()) {
        None => None,
        Some(_) => {
            let trouble = |problem: String| CatalogueError::WrappingKey { name: name.to_string(), problem };
            let factory = shared
                .wraps
                .as_ref()
                .ok_or_else(|| trouble("this target was started without access to wrapping keys".to_owned()))?;
            Some(factory(&volume).map_err(trouble)?)
        }
    };
    let dir = shared.catalogue.store_dir(name);
    let files = UnitFiles::open(&shared.catalogue.volume_dir(name), &waker)?;
    let volumes = shared.counters.volumes_open.load(Ordering::Relaxed) + 1;
    let cache_bytes_max = shared.budget.cache_bytes(&shared.settings().config.limits, volumes);
    let options = volume.open_options(cache_bytes_max);
    let store = match volume.medium {
        Medium::Memory => Store::open_in_memory(&volume.create_options(), &options, waker),
        _ => Store::open(&dir, &options, waker),
    };
    let store = store.map_err(|source| store_error(name, source))?;
    let mut key_survived = false;
    // An erase that was cut short may have been one that destroys the key; it overwrites everything in any case.
    if store.erase_progress().is_some()
        && let Some(renewer) = shared.key_renewer().filter(|_| wrap.is_some())
    {
        let trouble =
            |error: RenewalError| CatalogueError::WrappingKey { name: name.to_string(), problem: error.to_string() };
        match renewer.run(&volume) {
            Renewed::Destroyed(renewed) => wrap = Some(renewed),
            // No cryptographic erase begins with such a key.
            Renewed::Untouched(why) => {
                tracing::info!(volume = %name, %why, "an erase goes on and keeps the wrapping key");
            }
            Renewed::Unknown { error, wrap: found } => {
                tracing::error!(volume = %name, problem = %error, "an erase goes on, and the wrapping key could not be destroyed");
                (wrap, key_survived) = (Some(found.map_err(trouble)?), true);
            }
        }
    }
    volume.agrees_with(store.info()).map_err(|problem| CatalogueError::Description { path: dir, problem })?;
    let target_name = names::target_name(&shared.settings().config.base_name, name);
    volume = shared.catalogue.mend(&volume, &store)?;
    let opener = opener_of(shared, &volume);
    let resealer = resealer_of(shared, &volume)?;
    Ok(OpenedUnit {
        volume,
        target_name,
        store,
        wrap,
        key_survived,
        opener,
        resealer,
        files,
        lock,
        ready,
        cache_bytes_max,
    })
}

/// What opens the volume's blocks when they arrive, if that is how it is kept. Without it nothing in it can be read or written.
fn resealer_of(shared: &Shared, volume: &Volume) -> Result<Option<Arc<dyn Resealer>>, CatalogueError> {
    if volume.sealed.as_ref().is_none_or(|sealed| sealed.opened_with.is_none()) {
        return Ok(None);
    }
    let trouble = |problem: String| CatalogueError::OpeningKey { name: volume.name.to_string(), problem };
    let factory = shared.resealers.as_ref();
    let factory =
        factory.ok_or_else(|| trouble("this target was started without access to volumes' keys".to_owned()))?;
    factory(volume, Arc::clone(&shared.background_crypto)).map(Some).map_err(trouble)
}

/// What opens the blocks of a volume, if the target is trusted to. Without it the volume is served all the same.
fn opener_of(shared: &Shared, volume: &Volume) -> Option<Arc<dyn Opener>> {
    let factory = shared.openers.as_ref()?;
    volume.sealed.as_ref().filter(|sealed| !sealed.custody.is_blind())?;
    match factory(volume, Arc::clone(&shared.background_crypto)) {
        Ok(opener) => Some(opener),
        Err(problem) => {
            tracing::error!(volume = %volume.name, problem, "the volume is not verified in the background");
            None
        }
    }
}

/// The unit of a clone or of a snapshot, on the store that its volume's unit has open.
pub(super) fn derive(
    (shared, settings, waker): (&Shared, &Settings, &strongroom_net::Waker),
    described: &Volume,
    base: &OpenUnit,
    now: Instant,
) -> Result<OpenUnit, CatalogueError> {
    let missing = || CatalogueError::NotInStore { name: described.name.to_string() };
    let own = described.branch();
    let view = match described.name.snapshot() {
        // Of this volume or clone: the others in its store are not exported under its name.
        Some(name) => {
            let snapshots = base.unit.store().snapshots();
            let found = snapshots.iter().find(|snapshot| snapshot.branch == own && snapshot.name == name);
            View::Snapshot(found.ok_or_else(missing)?.id)
        }
        None => {
            let branches = base.unit.store().branches();
            let found = branches.iter().find(|branch| branch.id == own && branch.volume_id == described.id);
            View::Head(found.ok_or_else(missing)?.id)
        }
    };
    let target_name = names::target_name(&settings.config.base_name, &described.name);
    let too_many = || CatalogueError::TooManyViews { name: described.store_name().to_string() };
    let store = base.unit.store().another(view).ok_or_else(too_many)?;
    let ready = Arc::new(AtomicBool::new(true));
    let files = match described.name.snapshot() {
        // Nobody who may only read reserves anything.
        Some(_) => UnitFiles::discarded(),
        None => UnitFiles::open(&shared.catalogue.volume_dir(&described.name), &wake(&ready, waker))?,
    };
    let environment = Arc::clone(&shared.environment);
    let mut described_here = described.clone();
    if described.name.snapshot().is_some() {
        // As large as it was when it was taken; of nothing at all one block, which cannot be read.
        described_here.geometry.blocks = store.readable_blocks().max(1);
    }
    let codec = base.unit.codec().clone();
    let mut unit = Unit::new(Arc::new(described_here), target_name, store, codec, files, environment);
    if let Some(opener) = opener_of(shared, described) {
        unit.verify_with(opener);
    }
    if let Some(rest) = shared.resting().take(described) {
        unit.resume(rest);
    }
    Ok(OpenUnit::new(unit, ready, None, None, now))
}

/// The lock of a volume. Whoever lists volumes holds it for a moment; that must not refuse a login.
fn lock_patiently(shared: &Shared, name: &VolumeName) -> Result<VolumeLock, CatalogueError> {
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match shared.catalogue.lock(name) {
            Err(CatalogueError::InUse { .. }) if Instant::now() < until => std::thread::sleep(LOCK_PAUSE),
            outcome => return outcome,
        }
    }
}

/// Syncs and closes a store; its lock goes last.
pub(super) fn close(volume: &Volume, store: Store, held: Held) {
    if let Err(error) = store.close() {
        tracing::error!(volume = %volume.name, %error, "a store did not close in order; what was flushed before is safe");
    }
    drop(held);
}
