//! The volumes that a worker owns: opened at the first login, closed when nobody used them for a while, both in threads of their
//! own, so that recovery of a large store holds up nobody.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strongroom_iscsi::target::{ManagementId, TaskId};
use strongroom_store::{Medium, OpenOptions, Store};

use super::{Message, Worker};
use crate::catalogue::{VolumeLock, store_error};
use crate::error::CatalogueError;
use crate::names::{self, VolumeName};
use crate::server::Shared;
use crate::stats::Counters;
use crate::unit::{ConnectionKey, Finished, Unit};

/// After so long without a command the store may tidy up.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// How long opening a volume waits for its lock, and how often it looks.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// A volume, open or on the way.
pub(super) enum Slot {
    Opening { waiting: Vec<ConnectionKey> },
    Open(Box<OpenUnit>),
    Closing { waiting: Vec<ConnectionKey> },
}

impl Slot {
    /// A thread works on it, or it has work in flight.
    pub(super) fn is_busy(&self) -> bool {
        match self {
            Slot::Opening { .. } | Slot::Closing { .. } => true,
            Slot::Open(open) => open.unit.in_flight() > 0,
        }
    }
}

/// What a thread that opened a volume brings back.
pub(crate) struct OpenedUnit {
    unit: Unit,
    ready: Arc<AtomicBool>,
}

/// A volume being served.
pub(super) struct OpenUnit {
    pub(super) unit: Unit,
    /// Set by the store when it has something to poll.
    ready: Arc<AtomicBool>,
    /// Something was submitted since it was polled last.
    submitted: bool,
    last_activity: Instant,
    told_idle: bool,
    /// Since when no session uses it.
    unused_since: Option<Instant>,
    /// Logins that wait for the tasks of the session that they replace.
    pub(super) replacing: Vec<ConnectionKey>,
    pub(super) managements: Vec<PendingManagement>,
}

/// A task management function that waits for tasks to end.
pub(super) struct PendingManagement {
    pub(super) connection: ConnectionKey,
    pub(super) id: ManagementId,
    pub(super) waiting: HashSet<(ConnectionKey, TaskId)>,
    pub(super) close_sessions: bool,
}

impl OpenUnit {
    fn new(opened: OpenedUnit, now: Instant) -> OpenUnit {
        let mut open = OpenUnit {
            unit: opened.unit,
            ready: opened.ready,
            submitted: true,
            last_activity: now,
            told_idle: false,
            unused_since: None,
            replacing: Vec::new(),
            managements: Vec::new(),
        };
        open.unit_unused(now);
        open
    }

    /// A command was submitted.
    pub(super) fn activity(&mut self, now: Instant) {
        self.submitted = true;
        self.last_activity = now;
        self.told_idle = false;
    }

    pub(super) fn unit_in_use(&mut self) {
        self.unused_since = None;
    }

    /// No session uses it any more. A volume in memory would lose everything if it were closed, so it stays open.
    fn unit_unused(&mut self, now: Instant) {
        self.unused_since = self.unit.volume().medium.is_durable().then_some(now);
    }

    fn task_over(&mut self, connection: ConnectionKey, task: TaskId) {
        for pending in &mut self.managements {
            pending.waiting.remove(&(connection, task));
        }
    }

    fn deadline(&self, idle_close: Duration) -> Option<Instant> {
        let idle = (!self.told_idle).then(|| self.last_activity + IDLE_AFTER);
        let close = self.unused_since.map(|since| since + idle_close);
        [idle, close].into_iter().flatten().min()
    }
}

impl Worker {
    /// Opens a volume for a login that waits for it.
    pub(super) fn open_unit(&mut self, volume: &VolumeName, waiting: ConnectionKey) {
        self.units.insert(volume.clone(), Slot::Opening { waiting: vec![waiting] });
        let (shared, index, name) = (Arc::clone(&self.shared), self.index, volume.clone());
        let ready = Arc::new(AtomicBool::new(true));
        let waker = {
            let (ready, waker) = (Arc::clone(&ready), self.waker.clone());
            Arc::new(move || {
                ready.store(true, Ordering::Release);
                waker.wake();
            })
        };
        let body = move || {
            let outcome = open(&shared, &name, waker).map(|unit| OpenedUnit { unit, ready });
            let message = Message::Opened { volume: name, outcome: Box::new(outcome) };
            shared.tell(index, message);
        };
        if let Err(source) = std::thread::Builder::new().name("volume-open".to_owned()).spawn(body) {
            let error = CatalogueError::Io { what: "start a thread to open", path: volume.as_str().into(), source };
            self.opened(volume.clone(), Err(error));
        }
    }

    /// A volume was opened, or could not be.
    pub(super) fn opened(&mut self, volume: VolumeName, outcome: Result<OpenedUnit, CatalogueError>) {
        let waiting = match self.units.remove(&volume) {
            Some(Slot::Opening { waiting }) => waiting,
            _ => Vec::new(),
        };
        match outcome {
            Ok(mut opened) => {
                opened.unit.signal_completions(&self.waker);
                Counters::count(&self.shared.counters.volumes_open);
                tracing::info!(%volume, worker = self.index, "opened");
                self.units.insert(volume.clone(), Slot::Open(Box::new(OpenUnit::new(opened, self.now))));
                self.login_again(&waiting, &volume);
            }
            Err(error) => {
                self.shared.disown(&volume);
                tracing::error!(%volume, %error, "a volume could not be opened");
                for key in waiting {
                    if let Some(mut connection) = self.connections.remove(&key) {
                        self.reject_waiting(&mut connection, &error);
                        connection.touch(&mut self.touched);
                        self.connections.insert(key, connection);
                    }
                }
            }
        }
    }

    fn login_again(&mut self, waiting: &[ConnectionKey], volume: &VolumeName) {
        for &key in waiting {
            if let Some(mut connection) = self.connections.remove(&key) {
                self.try_login(&mut connection, volume);
                connection.touch(&mut self.touched);
                self.connections.insert(key, connection);
            }
        }
    }

    /// A connection that used a volume is over.
    pub(super) fn leave_unit(&mut self, volume: &VolumeName, key: ConnectionKey) {
        let Some(Slot::Open(open)) = self.units.get_mut(volume) else { return };
        open.unit.detach(key);
        open.submitted = true;
        if open.unit.connections().is_empty() {
            open.unit_unused(self.now);
        }
    }

    /// Moves every store that has something to do forward, and its answers to the sessions.
    pub(super) fn poll_units(&mut self) {
        let mut finished = std::mem::take(&mut self.finished);
        let mut done = Vec::new();
        let mut again = Vec::new();
        for (name, slot) in &mut self.units {
            let Slot::Open(open) = slot else { continue };
            // Completions of I/O wake the worker, and do not say whose they are.
            let ready = open.ready.swap(false, Ordering::AcqRel) || open.unit.ios_in_flight() > 0;
            if !ready && !std::mem::take(&mut open.submitted) {
                continue;
            }
            open.submitted = false;
            let before = finished.len();
            open.unit.poll(&mut finished);
            for Finished { connection, task, .. } in &finished[before..] {
                open.task_over(*connection, *task);
            }
            let (over, still) = std::mem::take(&mut open.managements)
                .into_iter()
                .partition::<Vec<_>, _>(|pending| pending.waiting.is_empty());
            open.managements = still;
            done.extend(over);
            // Those that still have to wait put themselves on the list again.
            if !open.replacing.is_empty() {
                again.push((name.clone(), std::mem::take(&mut open.replacing)));
            }
        }
        for Finished { connection, task, response } in finished.drain(..) {
            self.task_finished(connection, task, response);
        }
        self.finished = finished;
        done.iter().for_each(|pending| self.management_done(pending));
        for (volume, waiting) in again {
            self.login_again(&waiting, &volume);
        }
    }

    /// Lets idle stores tidy up, and closes those that nobody uses.
    pub(super) fn tend_units(&mut self) {
        let idle_close = self.idle_close();
        let mut close = Vec::new();
        for (name, slot) in &mut self.units {
            let Slot::Open(open) = slot else { continue };
            if !open.told_idle && self.now >= open.last_activity + IDLE_AFTER {
                open.told_idle = true;
                open.unit.idle();
                open.submitted = true;
            }
            let unused = open.unused_since.is_some_and(|since| self.now >= since + idle_close);
            if unused && open.unit.is_idle() && open.replacing.is_empty() {
                close.push(name.clone());
            }
        }
        for name in close {
            self.close_unit(&name);
        }
    }

    /// When [`Worker::tend_units`] has something to do next.
    pub(super) fn unit_deadline(&self) -> Option<Instant> {
        let idle_close = self.idle_close();
        let deadline = |slot: &Slot| match slot {
            Slot::Open(open) => open.deadline(idle_close),
            Slot::Opening { .. } | Slot::Closing { .. } => None,
        };
        self.units.values().filter_map(deadline).min()
    }

    fn idle_close(&self) -> Duration {
        Duration::from_secs(self.settings.config.limits.idle_close_s)
    }

    fn close_unit(&mut self, volume: &VolumeName) {
        let Some(Slot::Open(open)) = self.units.remove(volume) else { return };
        self.units.insert(volume.clone(), Slot::Closing { waiting: Vec::new() });
        let (shared, index, name) = (Arc::clone(&self.shared), self.index, volume.clone());
        let body = move || {
            close(open.unit);
            shared.tell(index, Message::Closed { volume: name });
        };
        if let Err(error) = std::thread::Builder::new().name("volume-close".to_owned()).spawn(body) {
            // The unit went with the body that never ran: its store is closed without a last word, as after a crash.
            tracing::error!(%volume, %error, "a volume could not be closed in order");
            self.closed(volume);
        }
    }

    /// A volume's store was closed.
    pub(super) fn closed(&mut self, volume: &VolumeName) {
        self.shared.counters.volumes_open.fetch_sub(1, Ordering::Relaxed);
        tracing::info!(%volume, "closed");
        let Some(Slot::Closing { waiting }) = self.units.remove(volume) else { return };
        match waiting.split_first() {
            None => self.shared.disown(volume),
            Some((&first, rest)) => {
                self.open_unit(volume, first);
                if let Some(Slot::Opening { waiting }) = self.units.get_mut(volume) {
                    waiting.extend_from_slice(rest);
                }
            }
        }
    }

    /// The worker ends: its stores are synced and closed here and now.
    pub(super) fn close_units_now(&mut self) {
        for (volume, slot) in self.units.drain() {
            if let Slot::Open(open) = slot {
                close(open.unit);
                self.shared.counters.volumes_open.fetch_sub(1, Ordering::Relaxed);
                self.shared.disown(&volume);
            }
        }
    }
}

/// Opens a volume: lock, description, store, and what wraps its block keys. Takes as long as recovery takes.
fn open(shared: &Shared, name: &VolumeName, waker: strongroom_store::Waker) -> Result<Unit, CatalogueError> {
    let lock = lock_patiently(shared, name)?;
    let volume = shared.catalogue.load(name)?;
    let wrap = match volume.sealed.as_ref().filter(|sealed| !sealed.custody.is_blind()) {
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
    let options = OpenOptions::default();
    let store = match volume.medium {
        Medium::Memory => Store::open_in_memory(&volume.create_options(), &options, waker),
        _ => Store::open(&dir, &options, waker),
    };
    let store = store.map_err(|source| store_error(name, source))?;
    volume.agrees_with(store.info()).map_err(|problem| CatalogueError::Description { path: dir, problem })?;
    let target_name = names::target_name(&shared.settings().config.base_name, name);
    Ok(Unit::new(Arc::new(volume), target_name, store, wrap, lock))
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
fn close(unit: Unit) {
    let (volume, store, lock) = unit.into_parts();
    if let Err(error) = store.close() {
        tracing::error!(volume = %volume.name, %error, "a store did not close in order; what was flushed before is safe");
    }
    drop(lock);
}
