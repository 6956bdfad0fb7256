//! What an attachment keeps over its sessions: the unit, what seals and opens its blocks, the writer lease, and the engine with its requests.
//! The thread's driver and the machine of the simulation differ in where sessions come from, not in this.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_scsi::vendor::lease::Writer;

use crate::pipeline::engine::{Engine, EngineOptions};
use crate::pipeline::meter::RequestMeter;
use crate::pipeline::sealing::Sealing;
use crate::pipeline::unit::UnitDescription;
use crate::session::nexus::Nexus;
use crate::session::transport::SessionTransport;
use crate::session::writer_lease::{LeaseOutcome, LeaseTalk, WriterLease};
use crate::{AttachError, AttachOptions};

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
    /// Who writes to the unit.
    Writers(Arc<UnitDescription>, Vec<Writer>),
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
    pub(super) lease: WriterLease,
    meter: Arc<RequestMeter>,
    /// Commands flow when the lease is ours.
    claiming: Option<ProbedUnit>,
}

impl Attachment {
    /// `meter`: measures its requests.
    pub(super) fn new(options: &AttachOptions, meter: Arc<RequestMeter>) -> Attachment {
        Attachment { engine: None, sealing: None, unit: None, lease: WriterLease::new(options), meter, claiming: None }
    }

    /// The unit of a new session is the one that it should be. Returns it if there is nothing to claim first: open it.
    pub(super) fn claim<T: SessionTransport>(
        &mut self,
        now: Instant,
        probed: ProbedUnit,
        nexus: &mut Nexus<T>,
    ) -> Option<ProbedUnit> {
        let Some(talk) = self.lease.begin(&probed.unit) else { return Some(probed) };
        nexus.talk_of_lease(now, talk, probed.unit.custody());
        self.claiming = Some(probed);
        None
    }

    /// Asks the target who writes; answered by [`LeaseAnswer::Writers`].
    pub(super) fn ask_writers<T: SessionTransport>(
        &mut self,
        now: Instant,
        unit: Arc<UnitDescription>,
        nexus: &mut Nexus<T>,
    ) {
        nexus.talk_of_lease(now, LeaseTalk::report(&unit), unit.custody());
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
            return Ok(LeaseAnswer::Open(probed));
        }
        if let Some(engine) = &mut self.engine {
            match self.lease.lost() {
                Some(error) => engine.lease_lost(error),
                None => engine.lease_held(),
            }
        }
        Ok(LeaseAnswer::Noted)
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
        match self.lease.lost() {
            // Before anything is sent again.
            Some(error) => engine.lease_lost(error),
            None if self.lease.is_held() => engine.lease_held(),
            None => {}
        }
        engine.connected(unit.clone(), *restarted);
        if let Some(nexus) = nexus {
            nexus.open(now, unit.custody());
        }
    }

    /// If something stands against us: asks whether the lease still is ours.
    pub(super) fn check_lease<T: SessionTransport>(&mut self, now: Instant, nexus: &mut Nexus<T>) {
        if let (Some(engine), Some(unit)) = (&self.engine, &self.unit)
            && engine.lease.is_doubted()
            && self.lease.is_held()
            && !nexus.talks_of_lease()
            && !nexus.is_logging_out()
        {
            nexus.talk_of_lease(now, self.lease.resume(unit), unit.custody());
        }
    }

    /// Asks whether the lease still is ours, gives it back, and then logs out: one step at each call, as soon as the last one is answered.
    pub(super) fn leave<T: SessionTransport>(&mut self, now: Instant, nexus: &mut Nexus<T>) {
        match self.unit.as_ref().and_then(|unit| Some((self.lease.leave(unit)?, unit.custody()))) {
            // Or others would have to wait until it ends by itself.
            Some((talk, custody)) => nexus.talk_of_lease(now, talk, custody),
            None => nexus.log_out(now),
        }
    }

    /// The session, or a try to make one, has ended.
    pub(super) fn disconnected(&mut self) {
        self.claiming = None;
        if let Some(engine) = &mut self.engine {
            engine.disconnected();
        }
    }
}
