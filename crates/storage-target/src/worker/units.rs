//! The units of the volumes that a worker owns: a table with their states, and the pass that polls them.
//!
//! Absent: how units are opened and closed, which takes threads and files (`unit_lifecycle`).

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use strongroom_store::Admission;

use super::connection::ConnectionKey;
use super::open_unit::{OpenUnit, PendingManagement};
use crate::budget::MemoryBudget;
use crate::config::Limits;
use crate::names::VolumeName;
use crate::open_units::{CrossUnitOutcome, CrossUnitRequest};
use crate::stats::Counters;
use crate::unit::{Finished, OutgoingRequest, SessionKey};

/// How often stores are asked how much memory they hold, at most.
const STORES_EVERY: Duration = Duration::from_millis(100);

/// A volume, open or on the way. `waiting`: logins that wait for it.
pub(super) enum UnitEntry {
    Opening { waiting: Vec<ConnectionKey> },
    Open(Box<OpenUnit>),
    Closing { waiting: Vec<ConnectionKey> },
}

impl UnitEntry {
    fn open(&self) -> Option<&OpenUnit> {
        match self {
            UnitEntry::Open(open) => Some(open),
            UnitEntry::Opening { .. } | UnitEntry::Closing { .. } => None,
        }
    }

    fn open_mut(&mut self) -> Option<&mut OpenUnit> {
        match self {
            UnitEntry::Open(open) => Some(open),
            UnitEntry::Opening { .. } | UnitEntry::Closing { .. } => None,
        }
    }

    fn base(&self) -> Option<VolumeName> {
        self.open().and_then(OpenUnit::base)
    }
}

#[derive(Default)]
pub(super) struct Units {
    /// Ordered, so that a simulation can repeat the order in which units are polled.
    table: BTreeMap<VolumeName, UnitEntry>,
    pass: UnitPass,
    /// When stores were last asked how much memory they hold.
    memory_asked_at: Option<Instant>,
    /// The time of the worker's iteration.
    now: Option<Instant>,
}

/// What polling units has brought. Kept between polls for its capacity.
#[derive(Default)]
pub(super) struct UnitOutput {
    pub(super) finished: Vec<Finished>,
    /// Task management functions that are complete.
    pub(super) managements: Vec<PendingManagement>,
    /// Logins that waited for tasks of the session that they replace; they look again.
    pub(super) logins: Vec<ConnectionKey>,
    pub(super) requests: Vec<UnitRequest>,
}

/// What a unit requests of the target around it.
pub(super) enum UnitRequest {
    /// An operation on another unit. `opening` identifies the opening of the unit that requests it.
    CrossUnit { volume: VolumeName, opening: u64, request: Box<OutgoingRequest> },
    /// The volume replaces the one that it was made to succeed.
    Succession { volume: VolumeName },
}

/// A pass through the units that have something to do, which may take several iterations: each unit is polled once in a pass, so that
/// none waits for others that always have something to do.
#[derive(Debug)]
struct UnitPass {
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
    /// An iteration ends. `is_whole`: all units that had something to do were polled in this pass. Whether no unit can have got
    /// something to do after it was polled.
    fn end(&mut self, is_whole: bool) -> bool {
        self.number += u64::from(is_whole);
        let was_interrupted = std::mem::replace(&mut self.is_interrupted, !is_whole);
        is_whole && !was_interrupted
    }
}

impl Units {
    pub(super) fn contains(&self, name: &VolumeName) -> bool {
        self.table.contains_key(name)
    }

    pub(super) fn entry_mut(&mut self, name: &VolumeName) -> Option<&mut UnitEntry> {
        self.table.get_mut(name)
    }

    /// A unit that is open.
    pub(super) fn open(&self, name: &VolumeName) -> Option<&OpenUnit> {
        self.table.get(name).and_then(UnitEntry::open)
    }

    pub(super) fn open_mut(&mut self, name: &VolumeName) -> Option<&mut OpenUnit> {
        self.table.get_mut(name).and_then(UnitEntry::open_mut)
    }

    /// An open unit that has this session. Another unit of the same name knows nothing of the session.
    pub(super) fn with_session(&mut self, name: &VolumeName, session: SessionKey) -> Option<&mut OpenUnit> {
        self.open_mut(name).filter(|open| open.unit.users().contains(session))
    }

    pub(super) fn insert(&mut self, name: VolumeName, entry: UnitEntry) {
        self.table.insert(name, entry);
    }

    pub(super) fn remove(&mut self, name: &VolumeName) -> Option<UnitEntry> {
        self.table.remove(name)
    }

    /// Removes a unit that is open; any other entry stays.
    pub(super) fn remove_open(&mut self, name: &VolumeName) -> Option<OpenUnit> {
        self.open(name)?;
        match self.table.remove(name) {
            Some(UnitEntry::Open(open)) => Some(*open),
            _ => None,
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &VolumeName> {
        self.table.keys()
    }

    pub(super) fn iter_open(&self) -> impl Iterator<Item = (&VolumeName, &OpenUnit)> {
        self.table.iter().filter_map(|(name, entry)| Some((name, entry.open()?)))
    }

    pub(super) fn iter_open_mut(&mut self) -> impl Iterator<Item = (&VolumeName, &mut OpenUnit)> {
        self.table.iter_mut().filter_map(|(name, entry)| Some((name, entry.open_mut()?)))
    }

    /// A thread opens or closes one, or one has work in flight.
    pub(super) fn are_busy(&self) -> bool {
        self.table.values().any(|entry| entry.open().is_none_or(|open| open.unit.in_flight() > 0))
    }

    /// Whether a unit got completions while another one of its store was polled.
    pub(super) fn have_mail(&self) -> bool {
        self.table.values().filter_map(UnitEntry::open).any(|open| open.unit.store().has_mail())
    }

    /// Polls every unit that has something to do, until `is_over`. Whether all had their turn, and none has left something: otherwise they
    /// are to be polled again soon, although nothing wakes the worker.
    pub(super) fn poll(&mut self, is_over: impl Fn() -> bool, output: &mut UnitOutput) -> bool {
        let (mut is_first, mut is_whole, mut goes_on) = (true, true, false);
        let (pass, now) = (self.pass.number, self.now);
        for (name, entry) in &mut self.table {
            let Some(open) = entry.open_mut() else { continue };
            let Some(permit) = open.begin_poll(pass) else { continue };
            if !is_first && is_over() {
                open.postpone_poll(&permit);
                is_whole = false;
                break;
            }
            is_first = false;
            if let Some(now) = now {
                open.unit.meter_mut().tick(now);
            }
            let before = output.finished.len();
            open.poll(permit, pass, &mut output.finished);
            goes_on |= open.unit.goes_on;
            if open.unit.take_place() {
                output.requests.push(UnitRequest::Succession { volume: name.clone() });
            }
            for request in open.unit.take_outgoing() {
                let (volume, opening, request) = (name.clone(), open.unit.opening(), Box::new(request));
                output.requests.push(UnitRequest::CrossUnit { volume, opening, request });
            }
            open.finished_managements(&output.finished[before..], &mut output.managements);
            // Logins that still have to wait are added again.
            output.logins.append(&mut open.replacing);
        }
        self.pass.end(is_whole) && !goes_on
    }

    /// Starts what is due at idle units; returns those to close, which nobody has used for `idle_close`. `is_awaited`: a login that waited
    /// until a unit was open may be about to use it.
    pub(super) fn tend(
        &mut self,
        now: Instant,
        (idle_close, scrub_share): (Duration, u8),
        is_awaited: bool,
    ) -> Vec<VolumeName> {
        self.now = Some(now);
        let mut close = Vec::new();
        let bases: HashSet<VolumeName> = self.table.values().filter_map(UnitEntry::base).collect();
        for (name, entry) in &mut self.table {
            let Some(open) = entry.open_mut() else { continue };
            open.tend(now, scrub_share);
            if !open.is_unused_for(now, idle_close) {
                continue;
            }
            let has_views = open.has_store() && bases.contains(name);
            if open.may_close() && !is_awaited && !has_views {
                close.push(name.clone());
            } else {
                open.postpone_close(now);
            }
        }
        close
    }

    /// When [`Units::tend`] has something to do next.
    pub(super) fn deadline(&self, idle_close: Duration, scrub_share: u8) -> Option<Instant> {
        self.table.values().filter_map(|entry| entry.open()?.deadline(idle_close, scrub_share)).min()
    }

    /// A store and its clones and snapshots that are open, these first, since the last handle takes the store. Nothing if one is in use.
    pub(super) fn unused_of_store(&self, store: &VolumeName) -> Vec<VolumeName> {
        let of_store =
            |(name, entry): &(&VolumeName, &UnitEntry)| *name == store || entry.base().as_ref() == Some(store);
        let in_use = |(_, entry): (&VolumeName, &UnitEntry)| !entry.open().is_some_and(OpenUnit::may_close);
        if self.table.iter().filter(of_store).any(in_use) {
            return Vec::new();
        }
        let mut names: Vec<VolumeName> = self.table.iter().filter(of_store).map(|(name, _)| name.clone()).collect();
        names.sort_by_key(|name| name == store);
        names
    }

    /// A unit of any worker requests an operation of a unit here. Dropped, it is answered as not reachable.
    pub(super) fn cross_unit_request(&mut self, now: Instant, request: CrossUnitRequest, may_write: bool) {
        let Some(open) = self.open_mut(&request.volume) else { return };
        open.unit.serve(request, may_write);
        open.activity(now);
    }

    /// An operation that a unit here requested is over.
    pub(super) fn cross_unit_outcome(&mut self, outcome: CrossUnitOutcome) {
        let Some(open) = self.open_mut(&outcome.volume) else { return };
        if open.unit.opening() == outcome.opening {
            open.unit.take_reply(outcome.token, outcome.result);
            open.is_submitted = true;
        }
    }

    /// The store of this volume has grown: its clones learn their new size.
    pub(super) fn resize(&mut self, store: &VolumeName) {
        let Some(base) = self.open(store) else { return };
        let geometry = base.unit.volume().geometry;
        for (_, open) in self.iter_open_mut() {
            let volume = open.unit.volume();
            // A snapshot keeps its size.
            if volume.store_name() == *store && volume.name.snapshot().is_none() {
                open.unit.take_size(geometry);
            }
        }
    }

    /// Charges what the stores hold, and bounds their caches and their growth, if that was some time ago. What an idle store holds does not
    /// change.
    pub(super) fn bound_memory(&mut self, now: Instant, budget: &MemoryBudget, limits: &Limits, counters: &Counters) {
        if self.memory_asked_at.is_some_and(|at| now < at + STORES_EVERY) {
            return;
        }
        self.memory_asked_at = Some(now);
        let volumes = counters.volumes_open.load(Ordering::Relaxed);
        let cache_bytes = budget.cache_bytes(limits, volumes);
        let admission = if budget.stores_may_grow() { Admission::All } else { Admission::NoGrowth };
        for (name, open) in self.iter_open_mut() {
            // A clone or a snapshot has its volume's store.
            let Some(memory) = &mut open.memory else { continue };
            let used = open.unit.store().memory();
            memory.caches.set(used.cache_bytes);
            // Data of requests is charged to their sessions.
            memory.store.set(used.total() - used.cache_bytes - used.request_bytes);
            if memory.cache_bytes_max != cache_bytes {
                memory.cache_bytes_max = cache_bytes;
                open.unit.store().set_cache_bytes(cache_bytes.0, cache_bytes.1);
            }
            if memory.admission != admission {
                tracing::warn!(volume = %name, ?admission, "the memory of all indexes: what a store accepts changes");
                memory.admission = admission;
                open.unit.store().set_admission(admission);
            }
        }
    }

    /// All units, out of the table: the worker ends. Clones and snapshots are dropped first, since the last handle takes the store.
    pub(super) fn take_all(&mut self) -> Vec<(VolumeName, OpenUnit)> {
        self.table.retain(|_, entry| entry.open().is_some_and(OpenUnit::has_store));
        let open = std::mem::take(&mut self.table).into_iter().filter_map(|(name, entry)| match entry {
            UnitEntry::Open(open) => Some((name, *open)),
            UnitEntry::Opening { .. } | UnitEntry::Closing { .. } => None,
        });
        open.collect()
    }
}
