//! The writer lease over the sessions of an attachment: claimed before the first write of each, asked for again when something stands against
//! it, and given back at the end.

use std::sync::Arc;
use std::time::Instant;

use super::{Attached, Driver, SessionState};
use crate::AttachError;
use crate::completion::lock;
use crate::device::attachment::{LeaseAnswer, ProbedUnit};
use crate::pipeline::unit::UnitDescription;
use crate::session::transport::SessionTransport;
use crate::session::writer_lease::LeaseOutcome;

impl<T: SessionTransport> Driver<T> {
    /// The unit is the one that it should be: commands flow when it is ours to write to, as far as we want to.
    pub(super) fn claim(&mut self, now: Instant, probed: ProbedUnit) {
        let SessionState::Active(nexus) = &mut self.state else { return };
        if let Some(probed) = self.attachment.claim(now, probed, nexus) {
            self.opened(now, probed);
        }
    }

    /// Asks the target who writes, and passes the answer to the callers that wait for it.
    pub(super) fn ask_writers(&mut self, now: Instant, unit: Arc<UnitDescription>) {
        if let (true, SessionState::Active(nexus)) = (unit.has_leases, &mut self.state) {
            self.attachment.ask_writers(now, unit, nexus);
            return;
        }
        self.tell_first(Ok(Attached { unit, sealing: None, writers: Vec::new() }));
    }

    /// The unit has answered what was said about the lease.
    pub(super) fn lease_answered(&mut self, now: Instant, outcome: LeaseOutcome) -> Result<(), AttachError> {
        match self.attachment.lease_answered(outcome)? {
            LeaseAnswer::Open(probed) => self.opened(now, probed),
            LeaseAnswer::Writers(unit, writers) => self.tell_first(Ok(Attached { unit, sealing: None, writers })),
            LeaseAnswer::Noted => {
                if let Some(error) = self.attachment.lease.lost() {
                    lock(&self.status).lease_lost = Some(error.message.clone());
                }
            }
        }
        Ok(())
    }

    /// If something stands against us: asks whether the lease still is ours.
    pub(super) fn check_lease(&mut self, now: Instant) {
        if let SessionState::Active(nexus) = &mut self.state {
            self.attachment.check_lease(now, nexus);
        }
    }
}
