//! The writer lease over the sessions of an attachment: claimed before the first write of each, asked for again when something stands against
//! it, and given back at the end.

use std::sync::Arc;
use std::time::Instant;

use super::{Attached, Driver, LOGOUT_TIMEOUT, SessionState};
use crate::AttachError;
use crate::completion::lock;
use crate::pipeline::unit::UnitDescription;
use crate::session::writer_lease::{LeaseOutcome, LeaseTalk};

impl Driver {
    /// The unit is the one that it should be: commands flow when it is ours to write to, as far as we want to.
    pub(super) fn claim(&mut self, unit: Arc<UnitDescription>, restarted: bool) {
        match (self.lease.begin(&unit), &mut self.state) {
            (Some(talk), SessionState::Active(nexus)) => {
                nexus.talk_of_lease(Instant::now(), talk, unit.custody());
                self.claiming = Some((unit, restarted));
            }
            _ => self.opened(unit, restarted),
        }
    }

    /// Asks the target who writes, and passes the answer to the callers that wait for it.
    pub(super) fn ask_writers(&mut self, unit: Arc<UnitDescription>) {
        if let (true, SessionState::Active(nexus)) = (unit.has_leases, &mut self.state) {
            nexus.talk_of_lease(Instant::now(), LeaseTalk::report(&unit), unit.custody());
            self.claiming = Some((unit, false));
            return;
        }
        self.tell_first(Ok(Attached { unit, sealing: None, writers: Vec::new() }));
    }

    /// The unit has answered what was said about the lease.
    pub(super) fn lease_answered(&mut self, outcome: LeaseOutcome) -> Result<(), AttachError> {
        let outcome = match (outcome, self.claiming.take()) {
            (LeaseOutcome::Reported(writers), Some((unit, _))) => {
                self.tell_first(Ok(Attached { unit, sealing: None, writers }));
                return Ok(());
            }
            (LeaseOutcome::Released, _) => return Ok(()),
            (outcome, claiming) => {
                self.claiming = claiming;
                outcome
            }
        };
        self.lease.concluded(outcome)?;
        if let Some((unit, restarted)) = self.claiming.take() {
            self.opened(unit, restarted);
            return Ok(());
        }
        if let Some(engine) = &mut self.engine {
            match self.lease.lost() {
                Some(error) => {
                    engine.lease_lost(error);
                    lock(&self.status).lease_lost = Some(error.message.clone());
                }
                None => engine.lease_held(),
            }
        }
        Ok(())
    }

    /// Asks whether the lease still is ours, gives it back, and then logs out.
    pub(super) fn say_goodbye(&mut self, now: Instant) {
        let SessionState::Active(nexus) = &mut self.state else { return };
        if nexus.talks_of_lease() {
            self.logout_deadline.get_or_insert(now + LOGOUT_TIMEOUT);
            return;
        }
        match self.unit.as_ref().and_then(|unit| Some((self.lease.leave(unit)?, unit.custody()))) {
            // Or others would have to wait until it ends by itself.
            Some((talk, custody)) => nexus.talk_of_lease(now, talk, custody),
            None => nexus.log_out(now),
        }
        self.logout_deadline = Some(now + LOGOUT_TIMEOUT);
        self.transmit(now);
    }

    /// Whether a detach waits for a connection that is lost: the target is asked once whether the lease still is ours. `false`: it waited for
    /// long enough, or there is nothing to ask.
    pub(super) fn waits_to_ask(&mut self, now: Instant) -> bool {
        let asks = self.lease.is_held() && !self.intake.is_abandoned() && !matches!(self.state, SessionState::Refused);
        asks && *self.logout_deadline.get_or_insert(now + LOGOUT_TIMEOUT) > now
    }

    /// Something stands against us: asks whether the lease still is ours.
    pub(super) fn look_at_lease(&mut self) {
        if !self.engine.as_ref().is_some_and(|engine| engine.lease.is_doubted()) || !self.lease.is_held() {
            return;
        }
        if let (SessionState::Active(nexus), Some(unit)) = (&mut self.state, &self.unit)
            && !nexus.talks_of_lease()
            && !nexus.is_logging_out()
        {
            nexus.talk_of_lease(Instant::now(), self.lease.resume(unit), unit.custody());
        }
    }
}
