//! How the units of a worker come and go: opened at the first login or job, closed when nobody uses them, both in the threads of a bounded
//! pool (`opening`), so that recovery of a large store delays no session.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use strongroom_net::Waker;

use super::connection::ConnectionKey;
use super::message::Message;
use super::open_unit::OpenUnit;
use super::opened_unit::OpenedUnit;
use super::opening::{close, derive, open, serve, wake};
use super::units::{UnitEntry, Units};
use crate::error::CatalogueError;
use crate::names::VolumeName;
use crate::services::TargetServices;
use crate::settings::Settings;
use crate::unit::Job;

pub(super) struct UnitLifecycle {
    worker: usize,
    services: Arc<TargetServices>,
    waker: Waker,
    /// Jobs for volumes that are being opened.
    waiting_jobs: HashMap<VolumeName, Vec<Job>>,
}

/// A volume that could not be opened, and the logins that waited for it.
pub(super) struct FailedOpening {
    pub(super) error: CatalogueError,
    pub(super) logins: Vec<ConnectionKey>,
}

impl UnitLifecycle {
    pub(super) fn new(worker: usize, services: Arc<TargetServices>, waker: Waker) -> UnitLifecycle {
        UnitLifecycle { worker, services, waker, waiting_jobs: HashMap::new() }
    }

    /// Has the unit made that a login waits for, now or later. A clone or a snapshot is a unit on another volume's store.
    pub(super) fn open_for(
        &mut self,
        units: &mut Units,
        (volume, store): (&VolumeName, &VolumeName),
        login: ConnectionKey,
        settings: &Settings,
        now: Instant,
    ) -> Result<(), CatalogueError> {
        match units.entry_mut(store) {
            None => self.begin_opening(units, store, vec![login]),
            Some(UnitEntry::Opening { waiting } | UnitEntry::Closing { waiting }) => waiting.push(login),
            Some(UnitEntry::Open(base)) => {
                let described = self.services.catalogue.load(volume)?;
                let open = derive((&self.services, settings, &self.waker), &described, base, now)?;
                self.enter(units, volume, open);
            }
        }
        Ok(())
    }

    /// Opens a volume for logins or jobs that wait for it.
    fn begin_opening(&mut self, units: &mut Units, volume: &VolumeName, waiting: Vec<ConnectionKey>) {
        units.insert(volume.clone(), UnitEntry::Opening { waiting });
        let (services, worker, name) = (Arc::clone(&self.services), self.worker, volume.clone());
        let ready = Arc::new(AtomicBool::new(true));
        let waker = wake(&ready, &self.waker);
        let body = move || {
            let outcome = open(&services, &name, waker, ready);
            services.tell(worker, Message::Opened { volume: name, outcome: Box::new(outcome) });
        };
        if let Err(source) = self.services.store_pool.submit(body) {
            let error = CatalogueError::Io { what: "start a thread to open", path: volume.as_str().into(), source };
            // By a message: the login that this is for may be being driven.
            let message = Message::Opened { volume: volume.clone(), outcome: Box::new(Err(error)) };
            self.services.tell(self.worker, message);
        }
    }

    fn enter(&self, units: &mut Units, volume: &VolumeName, mut open: OpenUnit) {
        tracing::info!(%volume, worker = self.worker, "opened");
        self.services.environment.open_units.enter(open.unit.volume(), self.worker);
        open.unit.meter_mut().count_in(Arc::clone(&self.services.metrics.commands[self.worker]));
        units.insert(volume.clone(), UnitEntry::Open(Box::new(open)));
    }

    /// A volume was opened, or could not be opened. The logins that go on.
    pub(super) fn opened(
        &mut self,
        units: &mut Units,
        volume: &VolumeName,
        outcome: Result<OpenedUnit, CatalogueError>,
        now: Instant,
    ) -> Result<Vec<ConnectionKey>, FailedOpening> {
        let logins = match units.remove(volume) {
            Some(UnitEntry::Opening { waiting }) => waiting,
            _ => Vec::new(),
        };
        match outcome {
            Ok(opened) => {
                let open = serve(opened, &self.services, &self.waker, now);
                self.enter(units, volume, open);
                for job in self.waiting_jobs.remove(volume).unwrap_or_default() {
                    self.take_job(units, volume, job, now);
                }
                Ok(logins)
            }
            Err(error) => {
                self.services.workers.disown(volume);
                tracing::error!(%volume, %error, "a volume could not be opened");
                // Dropped jobs close the channels on which their replies are awaited.
                self.waiting_jobs.remove(volume);
                Err(FailedOpening { error, logins })
            }
        }
    }

    /// Runs a job on a volume's store, opening it first if necessary.
    pub(super) fn take_job(&mut self, units: &mut Units, volume: &VolumeName, job: Job, now: Instant) {
        match units.entry_mut(volume) {
            Some(UnitEntry::Open(open)) => {
                open.unit.take_job(job);
                open.activity(now);
            }
            Some(UnitEntry::Opening { .. } | UnitEntry::Closing { .. }) => {
                self.waiting_jobs.entry(volume.clone()).or_default().push(job);
            }
            None => {
                self.waiting_jobs.entry(volume.clone()).or_default().push(job);
                self.begin_opening(units, volume, Vec::new());
            }
        }
    }

    pub(super) fn close(&mut self, units: &mut Units, volume: &VolumeName) {
        let Some(open) = units.remove_open(volume) else { return };
        self.services.environment.open_units.leave(volume);
        let (unit, store_lock) = open.into_parts();
        let described = Arc::clone(unit.volume());
        self.services.resting().put(&described, unit.closed());
        // A clone's or snapshot's unit is dropped: the store stays open for the volume.
        let (Some(store), Some(store_lock)) = (unit.into_store().into_store(), store_lock) else {
            tracing::info!(%volume, "closed");
            return;
        };
        units.insert(volume.clone(), UnitEntry::Closing { waiting: Vec::new() });
        let (services, worker, name) = (Arc::clone(&self.services), self.worker, volume.clone());
        let body = move || {
            close(&described, store, store_lock);
            services.tell(worker, Message::Closed { volume: name });
            services.forget_resting();
        };
        if let Err(error) = self.services.store_pool.submit(body) {
            // The unit was dropped with the body that never ran: its store is closed as after a crash.
            tracing::error!(%volume, %error, "a volume could not be closed in order");
            self.services.tell(self.worker, Message::Closed { volume: volume.clone() });
        }
    }

    /// A volume's store was closed.
    pub(super) fn closed(&mut self, units: &mut Units, volume: &VolumeName) {
        tracing::info!(%volume, "closed");
        let waiting = match units.remove(volume) {
            Some(UnitEntry::Closing { waiting }) => waiting,
            Some(other) => return units.insert(volume.clone(), other),
            None => return,
        };
        if waiting.is_empty() && !self.waiting_jobs.contains_key(volume) {
            self.services.workers.disown(volume);
        } else {
            self.begin_opening(units, volume, waiting);
        }
    }

    /// A clone or snapshot was deleted: another one of its name must not be taken for it. The logins that waited for its tasks.
    pub(super) fn forget(&mut self, units: &mut Units, export: &VolumeName) -> Vec<ConnectionKey> {
        let Some(open) = units.open_mut(export).filter(|open| !open.has_store()) else { return Vec::new() };
        let waiting = std::mem::take(&mut open.replacing);
        self.close(units, export);
        waiting
    }

    /// The worker ends: its stores are synced and closed by this thread.
    pub(super) fn close_all(&self, units: &mut Units) {
        for (volume, open) in units.take_all() {
            let (unit, store_lock) = open.into_parts();
            let described = Arc::clone(unit.volume());
            if let (Some(store), Some(store_lock)) = (unit.into_store().into_store(), store_lock) {
                close(&described, store, store_lock);
            }
            self.services.workers.disown(&volume);
        }
    }
}
