//! A unit that is being served, and what its worker schedules for it: polls, idle work, scrubbing, verification, closing.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strongroom_iscsi::target::{ManagementId, TaskId};
use strongroom_store::Admission;

use super::connection::ConnectionKey;
use super::scrubbing::ScrubSchedule;
use crate::budget::Charge;
use crate::catalogue::VolumeLock;
use crate::names::VolumeName;
use crate::stats::Counters;
use crate::unit::{Finished, SessionKey, Unit};

/// After this long without a command the store may do idle work.
const IDLE_AFTER: Duration = Duration::from_secs(1);

pub(super) struct OpenUnit {
    pub(super) unit: Unit,
    /// Set by the store when it has something to poll.
    ready: Arc<AtomicBool>,
    /// While the store is open; `None` for a clone or snapshot, whose store another unit opened.
    store_lock: Option<OpenStoreLock>,
    /// Something was submitted since it was last polled, or the last poll left something.
    pub(super) is_submitted: bool,
    /// The pass in which it was last polled.
    polled_in: u64,
    last_activity: Instant,
    is_told_idle: bool,
    scrubs: ScrubSchedule,
    /// When background verification goes on while the unit is idle.
    verify_at: Instant,
    /// Since when no session uses it.
    unused_since: Option<Instant>,
    /// Logins that wait for the tasks of the session that they replace.
    pub(super) replacing: Vec<ConnectionKey>,
    managements: Vec<PendingManagement>,
    /// Of a store that this unit opened.
    pub(super) memory: Option<StoreMemory>,
}

/// The lock of a volume whose store is open. The volume counts as open until it is dropped, even if its worker fails.
pub(super) struct OpenStoreLock {
    counters: Arc<Counters>,
    /// `None` in a simulation.
    _lock: Option<VolumeLock>,
}

impl OpenStoreLock {
    pub(super) fn new(counters: &Arc<Counters>, lock: VolumeLock) -> OpenStoreLock {
        OpenStoreLock::counted(counters, Some(lock))
    }

    /// For a store that is on no file system.
    pub(super) fn simulated(counters: &Arc<Counters>) -> OpenStoreLock {
        OpenStoreLock::counted(counters, None)
    }

    fn counted(counters: &Arc<Counters>, lock: Option<VolumeLock>) -> OpenStoreLock {
        Counters::count(&counters.volumes_open);
        OpenStoreLock { counters: Arc::clone(counters), _lock: lock }
    }
}

impl Drop for OpenStoreLock {
    fn drop(&mut self) {
        self.counters.volumes_open.fetch_sub(1, Ordering::Relaxed);
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
        store_lock: Option<OpenStoreLock>,
        memory: Option<StoreMemory>,
        now: Instant,
    ) -> OpenUnit {
        let mut open = OpenUnit {
            unit,
            ready,
            store_lock,
            is_submitted: true,
            polled_in: 0,
            last_activity: now,
            is_told_idle: false,
            scrubs: ScrubSchedule::new(now),
            verify_at: now + IDLE_AFTER,
            unused_since: None,
            replacing: Vec::new(),
            managements: Vec::new(),
            memory,
        };
        open.set_unused(now);
        open.unit.tick(now);
        open
    }

    /// Whether this unit opened the store that it is in.
    pub(super) fn has_store(&self) -> bool {
        self.store_lock.is_some()
    }

    /// Nobody uses it, and nothing would be lost if it were closed now.
    pub(super) fn may_close(&self) -> bool {
        self.unused_since.is_some() && self.unit.is_idle() && self.replacing.is_empty()
    }

    /// A command was submitted.
    pub(super) fn activity(&mut self, now: Instant) {
        self.unit.tick(now);
        self.is_submitted = true;
        self.last_activity = now;
        self.is_told_idle = false;
    }

    pub(super) fn set_in_use(&mut self) {
        self.unused_since = None;
    }

    /// No session uses it. A volume in memory would lose everything if it were closed, so it stays open.
    fn set_unused(&mut self, now: Instant) {
        self.unused_since = self.unit.volume().medium.is_durable().then_some(now);
    }

    /// A session has ended.
    pub(super) fn detach(&mut self, now: Instant, key: SessionKey) {
        self.unit.tick(now);
        self.unit.detach(key);
        self.is_submitted = true;
        if self.unit.users().is_empty() {
            self.set_unused(now);
        }
    }

    /// Keeps a task management function until its tasks have ended.
    pub(super) fn wait_for_tasks(&mut self, pending: PendingManagement) {
        self.managements.push(pending);
    }

    /// Whether it has something to poll. `pass`: it was polled in that pass already. Completions of I/O wake the worker without naming the
    /// unit, so a unit with I/O in flight counts.
    pub(super) fn begin_poll(&mut self, pass: u64) -> Option<PollPermit> {
        let called = self.ready.swap(false, Ordering::AcqRel) || self.unit.store().has_mail();
        let has_work = called || self.unit.store().ios_in_flight() > 0 || self.is_submitted;
        if !has_work || self.polled_in == pass {
            self.ready.fetch_or(called, Ordering::AcqRel);
            return None;
        }
        Some(PollPermit { called })
    }

    /// The iteration is over: it is polled in the next one.
    pub(super) fn postpone_poll(&self, permit: &PollPermit) {
        self.ready.fetch_or(permit.called, Ordering::AcqRel);
    }

    pub(super) fn poll(&mut self, _permit: PollPermit, pass: u64, finished: &mut Vec<Finished>) {
        self.polled_in = pass;
        self.unit.poll(finished);
        self.is_submitted = self.unit.goes_on;
    }

    /// Task management functions that wait for none of their tasks any more, now that these have ended.
    pub(super) fn finished_managements(&mut self, finished: &[Finished], done: &mut Vec<PendingManagement>) {
        for Finished { connection, task, .. } in finished {
            for pending in &mut self.managements {
                pending.waiting.remove(&(*connection, *task));
            }
        }
        done.extend(self.managements.extract_if(.., |pending| pending.waiting.is_empty()));
    }

    /// Starts idle work, scrubbing and verification when they are due. `scrub_share`: percent of time, on a busy store.
    pub(super) fn tend(&mut self, now: Instant, scrub_share: u8) {
        if !self.is_told_idle && now >= self.last_activity + IDLE_AFTER {
            self.is_told_idle = true;
            self.unit.store().idle();
            self.is_submitted = true;
        }
        if self.unit.deadline().is_some_and(|at| now >= at) {
            self.unit.tick(now);
            self.is_submitted = true;
        }
        // A clone or a snapshot is scrubbed with the volume that has its store.
        if self.has_store() {
            self.scrub(now, scrub_share);
        }
        if self.unit.background().verifier.is_some() && now >= self.verify_at.max(self.last_activity + IDLE_AFTER) {
            self.verify_at = now + self.unit.verify_step();
            self.is_submitted = true;
        }
    }

    /// Scrubs a segment, if one is due.
    fn scrub(&mut self, now: Instant, share_percent: u8) {
        if now >= self.last_activity + IDLE_AFTER {
            if !self.scrubs.is_due(now) {
                return;
            }
            self.unit.store().scrub().begin_idle();
            self.scrubs.begun_idle(now);
        } else if self.scrubs.is_due_beside(now, self.unit.store().scrub().is_running(), share_percent) {
            self.unit.store().scrub().begin_beside();
        } else {
            return;
        }
        self.scrubs.passed(now, self.unit.store().scrub().passes());
        self.is_submitted = true;
    }

    /// Whether it has been unused for long enough to be closed, as far as the unit alone can tell.
    pub(super) fn is_unused_for(&self, now: Instant, idle_close: Duration) -> bool {
        self.unused_since.is_some_and(|since| now >= since + idle_close)
    }

    /// It cannot be closed now: it is looked at again after the same time, and not in every iteration.
    pub(super) fn postpone_close(&mut self, now: Instant) {
        self.unused_since = Some(now);
    }

    /// When [`OpenUnit::tend`] has something to do next, or the unit may be closed.
    pub(super) fn deadline(&self, idle_close: Duration, scrub_share: u8) -> Option<Instant> {
        let idle = (!self.is_told_idle).then(|| self.last_activity + IDLE_AFTER);
        // What keeps it from being idle wakes the worker when it ends.
        let close = self.unused_since.filter(|_| self.unit.is_idle()).map(|since| since + idle_close);
        let scrub = self.has_store().then(|| self.scrubs.deadline(self.last_activity + IDLE_AFTER, scrub_share));
        let verify =
            self.unit.background().verifier.is_some().then(|| self.verify_at.max(self.last_activity + IDLE_AFTER));
        [idle, close, scrub, verify, self.unit.deadline()].into_iter().flatten().min()
    }

    /// The volume in whose store it is, if that is another one.
    pub(super) fn base(&self) -> Option<VolumeName> {
        (!self.has_store()).then(|| self.unit.volume().store_name())
    }

    /// The unit, and the lock of its store if it opened one.
    pub(super) fn into_parts(self) -> (Unit, Option<OpenStoreLock>) {
        (self.unit, self.store_lock)
    }
}

/// A unit may be polled.
pub(super) struct PollPermit {
    called: bool,
}
