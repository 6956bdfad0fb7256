//! What an attachment keeps over its sessions: the unit, what seals and opens its blocks, the writer lease, its registration as a node of a
//! cluster, and the engine with its requests.
//! The thread's driver and the machine of the simulation differ in where sessions come from, not in this.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::DeviceError;
use strongroom_scsi::vendor::lease::Writer;

use crate::pipeline::engine::{Engine, EngineOptions};
use crate::pipeline::meter::RequestMeter;
use crate::pipeline::sealing::Sealing;
use crate::pipeline::unit::UnitDescription;
use crate::reservation::FenceReport;
use crate::session::nexus::{AccessTalk, Nexus};
use crate::session::reservation::{NodeRegistration, ReservationOutcome};
use crate::session::transport::{InitiatorPort, SessionTransport};
use crate::session::writer_lease::{LeaseOutcome, WriterLease};
use crate::{AttachError, AttachOptions};

/// A registered node asks so often whether it still is: if it is idle, nothing else would tell it.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// A unit that was probed in a new session.
#[derive(Debug)]
pub(super) struct ProbedUnit {
    pub(super) unit: Arc<UnitDescription>,
    /// The target may have lost what was not flushed.
    pub(super) restarted: bool,
}

/// What follows from an answer about the writer lease.
#[derive(Debug)]
pub(super) enum LeaseAnswer {
    /// The claim of a new session was answered: open it.
    Open(ProbedUnit),
    /// The claim of a new session was answered: register, if that is wanted, and open it.
    Claimed(ProbedUnit),
    /// The lease stands: whether the registration does is to be asked.
    CheckRegistration,
    /// Who writes to the unit.
    Writers(Arc<UnitDescription>, Vec<Writer>),
    /// A request about reservations was carried out.
    Reported(Arc<UnitDescription>, FenceReport),
    /// The engine knows how the lease stands.
    Noted,
}

/// See the module.
pub(super) struct Attachment {
    /// Once the first session was opened.
    pub(super) engine: Option<Engine>,
    pub(super) sealing: Option<Arc<Sealing>>,
    /// As it was when the last session was opened.
    pub(super) unit: Option<Arc<UnitDescription>>,
    lease: WriterLease,
    /// If it has a reservation key.
    registration: Option<NodeRegistration>,
    /// When it is asked whether that still stands, though nothing says otherwise: who is idle is not told.
    next_check: Option<Instant>,
    /// It is being asked because something stands against us.
    is_doubted: bool,
    meter: Arc<RequestMeter>,
    /// Commands flow when the lease is ours.
    claiming: Option<ProbedUnit>,
}

impl Attachment {
    /// `meter`: measures its requests.
    pub(super) fn new(options: &AttachOptions, port: InitiatorPort, meter: Arc<RequestMeter>) -> Attachment {
        Attachment {
            engine: None,
            sealing: None,
            unit: None,
            lease: WriterLease::new(options),
            registration: NodeRegistration::new(options, port),
            next_check: None,
            is_doubted: false,
            meter,
            claiming: None,
        }
    }

    /// Why nothing more may be written.
    pub(super) fn lost(&self) -> Option<&DeviceError> {
        self.lease.lost().or_else(|| self.registration.as_ref()?.lost())
    }

    /// Whether the target keeps the volume for this attachment, by a lease or a registration.
    pub(super) fn is_held(&self) -> bool {
        self.lost().is_none() && (self.lease.is_held() || self.is_registered())
    }

    fn is_registered(&self) -> bool {
        self.registration.as_ref().is_some_and(NodeRegistration::is_registered)
    }

    /// The unit of a new session is the one that it should be. Returns it if there is nothing to claim first: open it.
    pub(super) fn claim<T: SessionTransport>(
        &mut self,
        now: Instant,
        probed: ProbedUnit,
        nexus: &mut Nexus<T>,
    ) -> Option<ProbedUnit> {
        let Some(talk) = self.lease.begin(&probed.unit) else { return self.register(now, probed, nexus) };
        nexus.talk_of_lease(now, talk, probed.unit.custody());
        self.claiming = Some(probed);
        None
    }

    /// The lease is ours, or none is needed. Returns the unit if there is nothing to register first, or to ask.
    pub(super) fn register<T: SessionTransport>(
        &mut self,
        now: Instant,
        probed: ProbedUnit,
        nexus: &mut Nexus<T>,
    ) -> Option<ProbedUnit> {
        let registration = self.registration.as_ref().filter(|_| self.lease.lost().is_none());
        let Some(talk) = registration.and_then(|registration| registration.begin(&probed.unit)) else {
            return Some(probed);
        };
        nexus.talk_of_lease(now, talk, probed.unit.custody());
        self.claiming = Some(probed);
        None
    }

    /// Asks the target something for a caller that does not use the unit; answered by [`LeaseAnswer::Writers`] or [`LeaseAnswer::Reported`].
    pub(super) fn ask<T: SessionTransport>(
        &mut self,
        now: Instant,
        unit: Arc<UnitDescription>,
        talk: impl Into<AccessTalk>,
        nexus: &mut Nexus<T>,
    ) {
        nexus.talk_of_lease(now, talk, unit.custody());
        self.claiming = Some(ProbedUnit { unit, restarted: false });
    }

    /// The unit has answered what was said about the lease.
    ///
    /// # Errors
    /// The volume is in use elsewhere.
    pub(super) fn lease_answered(&mut self, outcome: LeaseOutcome) -> Result<LeaseAnswer, AttachError> {
        let claiming = self.claiming.take();
        match (outcome, claiming) {
            (LeaseOutcome::Reported(writers), Some(asked)) => return Ok(LeaseAnswer::Writers(asked.unit, writers)),
            (LeaseOutcome::Released, _) => return Ok(LeaseAnswer::Noted),
            (outcome, claiming) => {
                self.claiming = claiming;
                self.lease.concluded(outcome)?;
            }
        }
        if let Some(probed) = self.claiming.take() {
            return Ok(LeaseAnswer::Claimed(probed));
        }
        if self.lost().is_none() && self.is_registered() {
            return Ok(LeaseAnswer::CheckRegistration);
        }
        self.tell_engine();
        Ok(LeaseAnswer::Noted)
    }

    /// The unit has answered what was said about reservations.
    pub(super) fn reservation_answered(&mut self, outcome: ReservationOutcome) -> LeaseAnswer {
        let claiming = self.claiming.take();
        if let Some(registration) = &mut self.registration {
            registration.concluded(&outcome);
        }
        match (outcome, claiming) {
            (ReservationOutcome::Reported(report), Some(asked)) => LeaseAnswer::Reported(asked.unit, report),
            (_, Some(probed)) => LeaseAnswer::Open(probed),
            (_, None) => {
                if std::mem::take(&mut self.is_doubted) || self.lost().is_some() {
                    self.tell_engine();
                }
                LeaseAnswer::Noted
            }
        }
    }

    fn tell_engine(&mut self) {
        let lost = self.lost().cloned();
        match (&mut self.engine, lost) {
            (Some(engine), Some(error)) => engine.lease_lost(&error),
            (Some(engine), None) => engine.lease_held(),
            (None, _) => {}
        }
    }

    /// Commands may flow. `patience`: how long a flush waits for the keys of a replay; zero: for ever.
    pub(super) fn open<T: SessionTransport>(
        &mut self,
        now: Instant,
        options: &AttachOptions,
        patience: Duration,
        probed: &ProbedUnit,
        nexus: Option<&mut Nexus<T>>,
    ) {
        let ProbedUnit { unit, restarted } = probed;
        // Not before: whether the target was restarted is told once, and what follows from it is done here.
        self.unit = Some(unit.clone());
        let (lost, is_held) = (self.lost().cloned(), self.is_held());
        let engine = self.engine.get_or_insert_with(|| {
            let options = EngineOptions {
                limits: options.limits,
                pipeline: options.pipeline,
                patience,
                verified_feedback: options.sealing.verified_feedback && !options.read_only,
                marks_flushes_late: options.faults.marks_flushes_late,
                forgets_operations: options.faults.forgets_operations,
            };
            let mut engine = Engine::new(unit.clone(), self.sealing.clone(), options);
            engine.table.meter = Arc::clone(&self.meter);
            engine.table.now = Some(now);
            engine
        });
        match lost {
            // Before anything is sent again.
            Some(error) => engine.lease_lost(&error),
            None if is_held => engine.lease_held(),
            None => {}
        }
        engine.connected(unit.clone(), *restarted);
        self.next_check = self.is_registered().then_some(now + CHECK_EVERY);
        if let Some(nexus) = nexus {
            nexus.open(now, unit.custody());
        }
    }

    /// If something stands against us: asks whether the lease still is ours.
    pub(super) fn check_lease<T: SessionTransport>(&mut self, now: Instant, nexus: &mut Nexus<T>) {
        let (Some(engine), Some(unit)) = (&self.engine, &self.unit) else { return };
        if !self.is_held() || nexus.talks_of_lease() || nexus.is_logging_out() || !nexus.is_open() {
            return;
        }
        if engine.lease.is_doubted() && self.lease.is_held() {
            return nexus.talk_of_lease(now, self.lease.resume(unit), unit.custody());
        }
        let is_doubted = engine.lease.is_doubted();
        if is_doubted || self.next_check.is_some_and(|at| at <= now) {
            self.is_doubted = is_doubted;
            self.ask_registration(now, nexus);
        }
    }

    /// The lease stands, and something stood against us: asks whether the registration does.
    pub(super) fn check_registration<T: SessionTransport>(&mut self, now: Instant, nexus: &mut Nexus<T>) {
        self.is_doubted = true;
        self.ask_registration(now, nexus);
    }

    fn ask_registration<T: SessionTransport>(&mut self, now: Instant, nexus: &mut Nexus<T>) {
        let (Some(unit), Some(registration)) = (&self.unit, &self.registration) else { return };
        self.next_check = Some(now + CHECK_EVERY);
        nexus.talk_of_lease(now, registration.check(unit), unit.custody());
    }

    /// When [`Attachment::check_lease`] has something to ask by itself.
    pub(super) fn next_check(&self) -> Option<Instant> {
        self.next_check.filter(|_| self.is_held() && self.is_registered())
    }

    /// Asks whether the lease still is ours, gives it back, ends the registration, and then logs out: one step at each call, as soon as the
    /// last one is answered.
    pub(super) fn leave<T: SessionTransport>(&mut self, now: Instant, nexus: &mut Nexus<T>) {
        let Some(unit) = self.unit.clone() else { return nexus.log_out(now) };
        // Or others would have to wait until it ends by itself.
        if let Some(talk) = self.lease.leave(&unit) {
            return nexus.talk_of_lease(now, talk, unit.custody());
        }
        match self.registration.as_mut().and_then(|registration| registration.leave(&unit)) {
            Some(talk) => nexus.talk_of_lease(now, talk, unit.custody()),
            None => nexus.log_out(now),
        }
    }

    /// The session, or a try to make one, has ended.
    pub(super) fn disconnected(&mut self) {
        self.claiming = None;
        self.next_check = None;
        self.is_doubted = false;
        if let Some(engine) = &mut self.engine {
            engine.disconnected();
        }
    }
}
