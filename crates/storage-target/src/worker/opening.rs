//! How a unit is made: from a store with its lock, what wraps block keys and what opens blocks; or, for a clone or a snapshot, from a view
//! of the store that its volume has open.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strongroom_block::BlockKeyWrap;
use strongroom_store::{Admission, Medium, Store, View};

use super::open_unit::{OpenStoreLock, OpenUnit, StoreMemory};
use super::opened_unit::OpenedUnit;
use crate::budget::MemoryClass;
use crate::catalogue::{VolumeLock, store_error};
use crate::error::{CatalogueError, KeyError};
use crate::names::{self, VolumeName};
use crate::services::TargetServices;
use crate::settings::Settings;
use crate::store_handle::StoreHandle;
use crate::unit::{ABSENCE_MAX, BlockCodec, KeyRenewal, RenewalError, Renewed, Unit, UnitFiles};
use crate::volume::Volume;

/// How long opening a volume waits for its lock, and how often it tries.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The unit of a volume that was opened, to be served.
pub(super) fn serve(
    opened: OpenedUnit,
    services: &Arc<TargetServices>,
    waker: &strongroom_net::Waker,
    now: Instant,
) -> OpenUnit {
    let OpenedUnit { volume: described, target_name, store, wrap, .. } = opened;
    let OpenedUnit { key_survived, opener, resealer, files, lock, ready, cache_bytes_max, .. } = opened;
    let store = StoreHandle::new(store);
    let rest = services.resting().take(&described);
    let environment = Arc::clone(&services.environment);
    let renewer = services.key_renewer().filter(|_| wrap.is_some());
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
    unit.store().signal_completions(waker);
    let budget = &services.budget;
    let used = unit.store().memory();
    let memory = StoreMemory {
        store: budget.charge(MemoryClass::Stores, used.total() - used.cache_bytes - used.request_bytes),
        caches: budget.charge(MemoryClass::Caches, used.cache_bytes),
        cache_bytes_max,
        admission: Admission::default(),
    };
    let store_lock = OpenStoreLock::new(&services.metrics.counters, lock);
    OpenUnit::new(unit, ready, Some(store_lock), Some(memory), now)
}

/// What others call when a unit has something to poll.
pub(super) fn wake(ready: &Arc<AtomicBool>, waker: &strongroom_net::Waker) -> strongroom_store::Waker {
    let (ready, waker) = (Arc::clone(ready), waker.clone());
    Arc::new(move || {
        ready.store(true, Ordering::Release);
        waker.wake();
    })
}

fn open_files(
    services: &TargetServices,
    name: &VolumeName,
    waker: &strongroom_store::Waker,
) -> Result<UnitFiles, CatalogueError> {
    let mut files = UnitFiles::open(&services.catalogue.volume_dir(name), waker)?;
    if services.metrics.uptime() > ABSENCE_MAX {
        // Sessions of before the restart have had their time to come back, and this target closes no volume whose image is pinned.
        files.release_image()?;
    }
    Ok(files)
}

/// Opens a volume: lock, description, store, and what wraps its block keys. Takes as long as recovery takes.
pub(super) fn open(
    services: &TargetServices,
    name: &VolumeName,
    waker: strongroom_store::Waker,
    ready: Arc<AtomicBool>,
) -> Result<OpenedUnit, CatalogueError> {
    let lock = lock_patiently(services, name)?;
    let mut volume = services.catalogue.load(name)?;
    let mut wrap = services.keys.wrap(&volume)?;
    let dir = services.catalogue.store_dir(name);
    let files = open_files(services, name, &waker)?;
    let volumes = services.metrics.counters.volumes_open.load(Ordering::Relaxed) + 1;
    let cache_bytes_max = services.budget.cache_bytes(&services.settings().config.limits, volumes);
    let options = volume.open_options(cache_bytes_max);
    let store = match volume.medium {
        Medium::Memory => Store::open_in_memory(&volume.create_options(), &options, waker),
        _ => Store::open(&dir, &options, waker),
    };
    let store = store.map_err(|source| store_error(name, source))?;
    report_damage(name, &store, &dir);
    let key_survived = continue_key_erase(services, &volume, &store, &mut wrap)?;
    volume.agrees_with(store.info()).map_err(|problem| problem.at(dir))?;
    let target_name = names::target_name(&services.settings().config.base_name, name);
    volume = services.catalogue.mend(&volume, &store)?;
    let opener = services.keys.opener(&volume);
    let resealer = services.keys.resealer(&volume)?;
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

/// Logs what a read-only opening of a damaged log has passed over.
fn report_damage(name: &VolumeName, store: &Store, dir: &Path) {
    if let Some(damage) = store.damage() {
        let (places, first) = (damage.places.len(), damage.places.first());
        tracing::error!(
            volume = %name, places, first,
            "the volume's log is damaged: it is open read-only, and blocks may be missing or old. Close it and list them with: \
             strongroom store damage {}",
            dir.display()
        );
    }
}

/// An interrupted erase may have been one that destroys the key; it overwrites everything in any case. Whether the key still exists.
fn continue_key_erase(
    services: &TargetServices,
    volume: &Volume,
    store: &Store,
    wrap: &mut Option<Arc<dyn BlockKeyWrap>>,
) -> Result<bool, CatalogueError> {
    if store.erase_progress().is_none() {
        return Ok(false);
    }
    let Some(renewer) = services.key_renewer().filter(|_| wrap.is_some()) else { return Ok(false) };
    match renewer.run(volume) {
        Renewed::Destroyed(renewed) => *wrap = Some(renewed),
        // No cryptographic erase begins with such a key.
        Renewed::Untouched(why) => {
            tracing::info!(volume = %volume.name, %why, "an erase goes on and keeps the wrapping key");
        }
        Renewed::Unknown { error, wrap: found } => {
            tracing::error!(volume = %volume.name, problem = %error, "an erase goes on, and the wrapping key could not be destroyed");
            let unusable = |error: RenewalError| CatalogueError::WrappingKey {
                name: volume.name.to_string(),
                problem: KeyError::Renewal(error.into()),
            };
            *wrap = Some(found.map_err(unusable)?);
            return Ok(true);
        }
    }
    Ok(false)
}

/// The unit of a clone or of a snapshot, on the store that its volume's unit has open.
pub(super) fn derive(
    (services, settings, waker): (&TargetServices, &Settings, &strongroom_net::Waker),
    described: &Volume,
    base: &OpenUnit,
    now: Instant,
) -> Result<OpenUnit, CatalogueError> {
    let view = view_of(described, base)?;
    let target_name = names::target_name(&settings.config.base_name, &described.name);
    let too_many = || CatalogueError::TooManyViews { name: described.store_name().to_string() };
    let store = base.unit.store().another(view).ok_or_else(too_many)?;
    let ready = Arc::new(AtomicBool::new(true));
    let files = match described.name.snapshot() {
        // Nobody who may only read reserves anything.
        Some(_) => UnitFiles::discarded(),
        None => UnitFiles::open(&services.catalogue.volume_dir(&described.name), &wake(&ready, waker))?,
    };
    let environment = Arc::clone(&services.environment);
    let mut described_here = described.clone();
    if described.name.snapshot().is_some() {
        // As large as it was when it was taken; of nothing at all one block, which cannot be read.
        described_here.geometry.blocks = store.readable_blocks().max(1);
    }
    let codec = base.unit.codec().clone();
    let mut unit = Unit::new(Arc::new(described_here), target_name, store, codec, files, environment);
    if let Some(opener) = services.keys.opener(described) {
        unit.verify_with(opener);
    }
    if let Some(rest) = services.resting().take(described) {
        unit.resume(rest);
    }
    Ok(OpenUnit::new(unit, ready, None, None, now))
}

/// The view that a clone or a snapshot is of its volume's store.
fn view_of(described: &Volume, base: &OpenUnit) -> Result<View, CatalogueError> {
    let missing = || CatalogueError::NotInStore { name: described.name.to_string() };
    let own = described.branch();
    match described.name.snapshot() {
        // Of this volume or clone: the others in its store are not exported under its name.
        Some(name) => {
            let snapshots = base.unit.store().snapshots();
            let found = snapshots.iter().find(|snapshot| snapshot.branch == own && snapshot.name == name);
            Ok(View::Snapshot(found.ok_or_else(missing)?.id))
        }
        None => {
            let branches = base.unit.store().branches();
            let found = branches.iter().find(|branch| branch.id == own && branch.volume_id == described.id);
            Ok(View::Head(found.ok_or_else(missing)?.id))
        }
    }
}

/// The lock of a volume. A process that lists volumes holds it for a moment; that must not refuse a login.
fn lock_patiently(services: &TargetServices, name: &VolumeName) -> Result<VolumeLock, CatalogueError> {
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match services.catalogue.lock(name) {
            Err(CatalogueError::InUse { .. }) if Instant::now() < until => std::thread::sleep(LOCK_PAUSE),
            outcome => return outcome,
        }
    }
}

/// Syncs and closes a store; its lock is released last.
pub(super) fn close(volume: &Volume, store: Store, lock: OpenStoreLock) {
    if let Err(error) = store.close() {
        tracing::error!(volume = %volume.name, %error, "a store did not close in order; what was flushed before is safe");
    }
    drop(lock);
}
