//! The volumes that a worker owns: opened at the first login, closed when nobody used them for a while, both in the threads of a
//! bounded pool (`opening`), so that recovery of a large store holds up no session.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strongroom_iscsi::target::{ManagementId, TaskId};
use strongroom_store::Admission;

use super::held::Held;
use super::opening::{OpenedUnit, close, derive, open, wake};
use super::scrubbing::ScrubSchedule;
use super::{ConnectionKey, Flow, Message, Worker};
use crate::budget::Charge;
use crate::error::CatalogueError;
use crate::iterations::IterationClock;
use crate::names::VolumeName;
use crate::unit::{Finished, Job, SessionKey, Unit};

/// After so long without a command the store may tidy up.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// A volume, open or on the way.
pub(super) enum Slot {
    Opening { waiting: Vec<ConnectionKey> },
    Open(Box<OpenUnit>),
    Closing { waiting: Vec<ConnectionKey> },
}

impl Slot {
    /// The volume in whose store it lies, if that is another one.
    fn base(&self) -> Option<VolumeName> {
        match self {
            Slot::Open(open) if open.held.is_none() => Some(open.unit.volume().store_name()),
            _ => None,
        }
    }

    /// Nobody uses it, and nothing would be lost if it were closed now.
    fn is_unused(&self) -> bool {
        let unused = |open: &OpenUnit| open.unused_since.is_some() && open.unit.is_idle() && open.replacing.is_empty();
        matches!(self, Slot::Open(open) if unused(open))
    }

    /// A thread works on it, or it has work in flight.
    pub(super) fn is_busy(&self) -> bool {
        match self {
            Slot::Opening { .. } | Slot::Closing { .. } => true,
            Slot::Open(open) => open.unit.in_flight() > 0,
        }
    }
}

/// A volume being served.
pub(super) struct OpenUnit {
    pub(super) unit: Unit,
    /// Set by the store when it has something to poll.
    ready: Arc<AtomicBool>,
    /// As long as the store is open; `None` for a clone or snapshot, whose store another unit opened.
    held: Option<Held>,
    /// Something was submitted since it was polled last.
    pub(super) submitted: bool,
    /// In which pass it was.
    polled_in: u64,
    last_activity: Instant,
    told_idle: bool,
    scrubs: ScrubSchedule,
    /// When background verification goes on, if nothing is asked for.
    verify_at: Instant,
    /// Since when no session uses it.
    unused_since: Option<Instant>,
    /// Logins that wait for the tasks of the session that they replace.
    pub(super) replacing: Vec<ConnectionKey>,
    pub(super) managements: Vec<PendingManagement>,
    /// Of a store that this unit opened.
    pub(super) memory: Option<StoreMemory>,
}

/// A pass through the units that have something to do, which may take several iterations: each unit has its turn once in a pass, so that
/// none waits for others that always have something to do.
#[derive(Debug)]
pub(super) struct UnitPass {
    number: u64,
    /// An iteration ended within it.
    is_interrupted: bool,
}

impl Default for UnitPass {
    fn default() -> UnitPass {
        // Units begin with 0.
        UnitPass { number: 1, is_interrupted: false }
    }
}

impl UnitPass {
    /// Whether a unit had its turn, if it was polled last in the pass of that number.
    fn had(&self, polled_in: u64) -> bool {
        self.number == polled_in
    }

    /// An iteration ends. `is_whole`: all units that had something to do had their turn in this pass; whether no unit can have got
    /// something to do behind its turn.
    fn end(&mut self, is_whole: bool) -> bool {
        self.number += u64::from(is_whole);
        let was_interrupted = std::mem::replace(&mut self.is_interrupted, !is_whole);
        is_whole && !was_interrupted
    }
}

/// What an open store is charged, and the bounds that hold for it.
pub(super) struct StoreMemory {
    pub(super) store: Charge,
    pub(super) caches: Charge,
    /// Of records, and of data.
    pub(super) cache_bytes_max: (usize, usize),
    pub(super) admission: Admission,
}

/// A task management function that waits for tasks to end.
pub(super) struct PendingManagement {
    pub(super) session: SessionKey,
    pub(super) id: ManagementId,
    pub(super) waiting: HashSet<(SessionKey, TaskId)>,
    pub(super) closes: bool,
}

impl OpenUnit {
    pub(super) fn new(
        unit: Unit,
        ready: Arc<AtomicBool>,
        held: Option<Held>,
        memory: Option<StoreMemory>,
        now: Instant,
    ) -> OpenUnit {
        let mut open = OpenUnit {
            unit,
            ready,
            held,
            submitted: true,
            polled_in: 0,
            last_activity: now,
            told_idle: false,
            scrubs: ScrubSchedule::new(now),
            verify_at: now + IDLE_AFTER,
            unused_since: None,
            replacing: Vec::new(),
            managements: Vec::new(),
            memory,
        };
        open.unit_unused(now);
        open
    }

    /// A command was submitted.
    pub(super) fn activity(&mut self, now: Instant) {
        self.unit.tick(now);
        self.submitted = true;
        self.last_activity = now;
        self.told_idle = false;
    }

    /// Looks for rot in a segment, if one is due.
    fn scrub(&mut self, now: Instant, share_percent: u8) {
        if now >= self.last_activity + IDLE_AFTER {
            if !self.scrubs.is_due(now) {
                return;
            }
            self.unit.store_mut().scrub();
            self.scrubs.begun_idle(now);
        } else if self.scrubs.is_due_beside(now, self.unit.store().is_scrubbing(), share_percent) {
            self.unit.store_mut().scrub_beside();
        } else {
            return;
        }
        self.scrubs.passed(now, self.unit.store().scrub_passes());
        self.submitted = true;
    }

    pub(super) fn unit_in_use(&mut self) {
        self.unused_since = None;
    }

    /// No session uses it any more. A volume in memory would lose everything if it were closed, so it stays open.
    fn unit_unused(&mut self, now: Instant) {
        self.unused_since = self.unit.volume().medium.is_durable().then_some(now);
    }

    fn task_over(&mut self, session: SessionKey, task: TaskId) {
        for pending in &mut self.managements {
            pending.waiting.remove(&(session, task));
        }
    }

    fn deadline(&self, idle_close: Duration, scrub_share: u8) -> Option<Instant> {
        let idle = (!self.told_idle).then(|| self.last_activity + IDLE_AFTER);
        // What keeps it from being idle wakes the worker when it ends.
        let close = self.unused_since.filter(|_| self.unit.is_idle()).map(|since| since + idle_close);
        let scrub = self.held.is_some().then(|| self.scrubs.deadline(self.last_activity + IDLE_AFTER, scrub_share));
        let verify = self.unit.verifies().then(|| self.verify_at.max(self.last_activity + IDLE_AFTER));
        [idle, close, scrub, verify].into_iter().flatten().min()
    }
}

impl Worker {
    /// Has the unit made that a login waits for, now or later. A clone or a snapshot is a unit of another volume's store.
    pub(super) fn open_for(
        &mut self,
        volume: &VolumeName,
        store: &VolumeName,
        waiting: ConnectionKey,
    ) -> Result<(), CatalogueError> {
        match self.units.get_mut(store) {
            None => self.open_unit(store, vec![waiting]),
            Some(Slot::Opening { waiting: others } | Slot::Closing { waiting: others }) => others.push(waiting),
            Some(Slot::Open(base)) => {
                let described = self.shared.catalogue.load(volume)?;
                let open = derive((&self.shared, &self.settings, &self.waker), &described, base, self.now)?;
                tracing::info!(%volume, worker = self.index, "opened");
                self.shared.environment.neighbours.enter(open.unit.volume(), self.index);
                self.units.insert(volume.clone(), Slot::Open(Box::new(open)));
            }
        }
        Ok(())
    }

    /// Opens a volume for logins or jobs that wait for it.
    pub(super) fn open_unit(&mut self, volume: &VolumeName, waiting: Vec<ConnectionKey>) {
        self.units.insert(volume.clone(), Slot::Opening { waiting });
        let (shared, index, name) = (Arc::clone(&self.shared), self.index, volume.clone());
        let ready = Arc::new(AtomicBool::new(true));
        let waker = wake(&ready, &self.waker);
        let body = move || {
            let outcome = open(&shared, &name, waker, ready);
            let message = Message::Opened { volume: name, outcome: Box::new(outcome) };
            shared.tell(index, message);
        };
        if let Err(source) = self.shared.store_pool.submit(body) {
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
            Ok(opened) => {
                tracing::info!(%volume, worker = self.index, "opened");
                let open = opened.into_open(&self.shared, &self.waker, self.now);
                self.shared.environment.neighbours.enter(open.unit.volume(), self.index);
                self.units.insert(volume.clone(), Slot::Open(Box::new(open)));
                for job in self.waiting_jobs.remove(&volume).unwrap_or_default() {
                    self.take_job(&volume, job);
                }
                self.retries.extend(waiting);
            }
            Err(error) => {
                self.shared.disown(&volume);
                tracing::error!(%volume, %error, "a volume could not be opened");
                // Whoever waits for them is told by the end of the channel.
                self.waiting_jobs.remove(&volume);
                self.reject_all(&waiting, &error);
            }
        }
    }

    /// Does something with a volume's store, opening it first if need be.
    pub(super) fn take_job(&mut self, volume: &VolumeName, job: Job) {
        match self.units.get_mut(volume) {
            Some(Slot::Open(open)) => {
                open.unit.take_job(job);
                open.activity(self.now);
            }
            Some(Slot::Opening { .. } | Slot::Closing { .. }) => {
                self.waiting_jobs.entry(volume.clone()).or_default().push(job);
            }
            None => {
                self.waiting_jobs.entry(volume.clone()).or_default().push(job);
                self.open_unit(volume, Vec::new());
            }
        }
    }

    fn reject_all(&mut self, waiting: &[ConnectionKey], error: &CatalogueError) {
        for key in waiting {
            if let Some(mut connection) = self.connections.remove(key) {
                self.reject_waiting(&mut connection, error);
                connection.touch(&mut self.touched);
                self.connections.insert(*key, connection);
            }
        }
    }

    pub(super) fn login_again(&mut self, key: ConnectionKey) {
        let Some(mut connection) = self.connections.remove(&key) else { return };
        match self.try_login(&mut connection) {
            Flow::Move(worker) => self.hand_over(connection, worker),
            Flow::Stay | Flow::Transfer | Flow::Over => {
                connection.touch(&mut self.touched);
                self.connections.insert(key, connection);
            }
        }
    }

    /// A session that used a unit here is over, wherever it was.
    pub(super) fn detach(&mut self, volume: &VolumeName, key: SessionKey) {
        self.abroad.remove(&key);
        let Some(Slot::Open(open)) = self.units.get_mut(volume) else { return };
        open.unit.tick(self.now);
        open.unit.detach(key);
        open.submitted = true;
        if open.unit.users().is_empty() {
            open.unit_unused(self.now);
        }
    }

    /// Moves every store that has something to do forward, and its answers to the sessions, until this iteration has taken its time.
    /// Whether all had their turn.
    pub(super) fn poll_units(&mut self, clock: &IterationClock) -> bool {
        let (mut polled, mut is_whole) = (0, true);
        let mut finished = std::mem::take(&mut self.finished);
        let mut done = Vec::new();
        let mut again = Vec::new();
        let mut errands = Vec::new();
        for (name, slot) in &mut self.units {
            let Slot::Open(open) = slot else { continue };
            // Completions of I/O wake the worker, and do not say whose they are.
            let called = open.ready.swap(false, Ordering::AcqRel) || open.unit.store().has_mail();
            let ready = called || open.unit.store().ios_in_flight() > 0;
            if !(ready || open.submitted) || self.unit_pass.had(open.polled_in) {
                open.ready.fetch_or(called, Ordering::AcqRel);
                continue;
            }
            if polled > 0 && clock.is_over() {
                open.ready.fetch_or(called, Ordering::AcqRel);
                is_whole = false;
                break;
            }
            polled += 1;
            open.polled_in = self.unit_pass.number;
            open.submitted = false;
            let before = finished.len();
            open.unit.poll(&mut finished);
            if open.unit.take_place() {
                crate::succession::begin(&self.shared, name);
            }
            let outward = open.unit.take_outward();
            errands.extend(outward.into_iter().map(|errand| (name.clone(), open.unit.opening(), errand)));
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
                again.append(&mut open.replacing);
            }
        }
        for Finished { connection, task, response } in finished.drain(..) {
            self.task_finished(connection, task, response);
        }
        self.finished = finished;
        errands.into_iter().for_each(|(name, opening, errand)| self.send_errand(&name, opening, errand));
        done.iter().for_each(|pending| self.management_done(pending));
        self.retries.extend(again);
        self.unit_pass.end(is_whole)
    }

    /// Whether a unit got completions while another one of its store was polled.
    pub(super) fn has_mail(&self) -> bool {
        self.units.values().any(|slot| matches!(slot, Slot::Open(open) if open.unit.store().has_mail()))
    }

    /// Lets idle stores tidy up, and closes those that nobody uses.
    pub(super) fn tend_units(&mut self) {
        let idle_close = self.idle_close();
        let mut close = Vec::new();
        let bases: HashSet<VolumeName> = self.units.values().filter_map(Slot::base).collect();
        for (name, slot) in &mut self.units {
            let Slot::Open(open) = slot else { continue };
            if !open.told_idle && self.now >= open.last_activity + IDLE_AFTER {
                open.told_idle = true;
                open.unit.store_mut().idle();
                open.submitted = true;
            }
            // A clone or a snapshot is scrubbed with the volume that holds its store.
            if open.held.is_some() {
                open.scrub(self.now, self.settings.config.limits.scrub_share);
            }
            if open.unit.verifies() && self.now >= open.verify_at.max(open.last_activity + IDLE_AFTER) {
                open.verify_at = self.now + open.unit.verify_step();
                open.submitted = true;
            }
            let unused = open.unused_since.is_some_and(|since| self.now >= since + idle_close);
            let depended = open.held.is_some() && bases.contains(name);
            // A login that waited until it was open may be about to use it.
            let awaited = !open.replacing.is_empty() || !self.retries.is_empty();
            if unused && open.unit.is_idle() && !awaited && !depended {
                close.push(name.clone());
            } else if unused {
                // Not now: looked at again after as long, and not in every turn.
                open.unused_since = Some(self.now);
            }
        }
        for name in close {
            self.close_unit(&name);
        }
    }

    /// When [`Worker::tend_units`] has something to do next.
    pub(super) fn unit_deadline(&self) -> Option<Instant> {
        let (idle_close, scrub_share) = (self.idle_close(), self.settings.config.limits.scrub_share);
        let deadline = |slot: &Slot| match slot {
            Slot::Open(open) => open.deadline(idle_close, scrub_share),
            Slot::Opening { .. } | Slot::Closing { .. } => None,
        };
        self.units.values().filter_map(deadline).min()
    }

    fn idle_close(&self) -> Duration {
        Duration::from_secs(self.settings.config.limits.idle_close_s)
    }

    /// Closes a store that nobody uses, and the clones and snapshots of it that are open; nothing of that if one of them is in use.
    pub(super) fn close_unused(&mut self, store: &VolumeName) {
        let of_store = |(name, slot): &(&VolumeName, &Slot)| *name == store || slot.base().as_ref() == Some(store);
        if self.units.iter().filter(of_store).any(|(_, slot)| !slot.is_unused()) {
            return;
        }
        // Clones and snapshots first: the last handle takes the store.
        let views: Vec<VolumeName> =
            self.units.iter().filter(of_store).map(|(name, _)| name.clone()).filter(|name| name != store).collect();
        views.iter().for_each(|name| self.close_unit(name));
        if self.units.contains_key(store) {
            self.close_unit(store);
        }
    }

    pub(super) fn close_unit(&mut self, volume: &VolumeName) {
        let Some(Slot::Open(open)) = self.units.remove(volume) else { return };
        self.shared.environment.neighbours.leave(volume);
        let OpenUnit { unit, held, .. } = *open;
        let described = Arc::clone(unit.volume());
        self.shared.resting().put(&described, unit.closed());
        // A clone's or snapshot's goes without a word: the store stays open for the volume.
        let (Some(store), Some(held)) = (unit.into_store().into_store(), held) else {
            tracing::info!(%volume, "closed");
            return;
        };
        self.units.insert(volume.clone(), Slot::Closing { waiting: Vec::new() });
        let (shared, index, name) = (Arc::clone(&self.shared), self.index, volume.clone());
        let body = move || {
            close(&described, store, held);
            shared.tell(index, Message::Closed { volume: name });
            shared.forget_resting();
        };
        if let Err(error) = self.shared.store_pool.submit(body) {
            // The unit went with the body that never ran: its store is closed without a last word, as after a crash.
            tracing::error!(%volume, %error, "a volume could not be closed in order");
            self.closed(volume);
        }
    }

    /// A clone or snapshot was deleted: another one of its name must not be taken for it.
    pub(super) fn forget_unit(&mut self, export: &VolumeName) {
        let Some(Slot::Open(open)) = self.units.get_mut(export) else { return };
        if open.held.is_some() {
            return;
        }
        let waiting = std::mem::take(&mut open.replacing);
        self.close_unit(export);
        self.retries.extend(waiting);
    }

    /// A volume's store was closed.
    pub(super) fn closed(&mut self, volume: &VolumeName) {
        tracing::info!(%volume, "closed");
        let Some(Slot::Closing { waiting }) = self.units.remove(volume) else { return };
        if waiting.is_empty() && !self.waiting_jobs.contains_key(volume) {
            self.shared.disown(volume);
        } else {
            self.open_unit(volume, waiting);
        }
    }

    /// The worker ends: its stores are synced and closed here and now.
    pub(super) fn close_units_now(&mut self) {
        // Clones and snapshots first: the last handle takes the store.
        self.units.retain(|_, slot| !matches!(slot, Slot::Open(open) if open.held.is_none()));
        for (volume, slot) in self.units.drain() {
            let Slot::Open(open) = slot else { continue };
            let OpenUnit { unit, held, .. } = *open;
            let described = Arc::clone(unit.volume());
            if let (Some(store), Some(held)) = (unit.into_store().into_store(), held) {
                close(&described, store, held);
            }
            self.shared.disown(&volume);
        }
    }
}
