//! The writer lease over the sessions of an attachment, and its registration as a node of a cluster: claimed before the first write of each,
//! asked for again when something stands against them, and given back at the end.

use std::sync::Arc;
use std::time::Instant;

use super::{Attached, Driver, SessionState};
use crate::AttachError;
use crate::completion::lock;
use crate::device::attachment::{LeaseAnswer, ProbedUnit};
use crate::pipeline::unit::UnitDescription;
use crate::session::nexus::AccessTalk;
use crate::session::transport::SessionTransport;

impl<T: SessionTransport> Driver<T> {
    /// The unit is the one that it should be: commands flow when it is ours to write to, as far as we want to.
    pub(super) fn claim(&mut self, now: Instant, probed: ProbedUnit) {
        let SessionState::Active(nexus) = &mut self.state else { return };
        if let Some(probed) = self.attachment.claim(now, probed, nexus) {
            self.opened(now, probed);
        }
    }

    /// Asks the target something, and passes the answer to the callers that wait for it.
    pub(super) fn ask(&mut self, now: Instant, unit: Arc<UnitDescription>, talk: impl Into<AccessTalk>) {
        if let SessionState::Active(nexus) = &mut self.state {
            self.attachment.ask(now, unit, talk, nexus);
        }
    }

    /// The unit has answered what was said about the lease, or about reservations.
    pub(super) fn lease_answered(&mut self, now: Instant, answer: Result<LeaseAnswer, AttachError>) {
        match answer {
            Err(error) => self.lose(now, error),
            Ok(LeaseAnswer::Open(probed)) => self.opened(now, probed),
            Ok(LeaseAnswer::Claimed(probed)) => {
                let SessionState::Active(nexus) = &mut self.state else { return };
                if let Some(probed) = self.attachment.register(now, probed, nexus) {
                    self.opened(now, probed);
                }
            }
            Ok(LeaseAnswer::CheckRegistration) => {
                if let SessionState::Active(nexus) = &mut self.state {
                    self.attachment.check_registration(now, nexus);
                }
            }
            Ok(LeaseAnswer::Writers(unit, writers)) => {
                self.tell_first(Ok(Attached { writers, ..Attached::unused(unit) }));
            }
            Ok(LeaseAnswer::Reported(unit, report)) => {
                self.tell_first(Ok(Attached { report, ..Attached::unused(unit) }));
            }
            Ok(LeaseAnswer::Noted) => {
                if let Some(error) = self.attachment.lost() {
                    lock(&self.status).lease_lost = Some(error.message.clone());
                }
            }
        }
    }

    /// If something stands against us: asks whether the lease still is ours.
    pub(super) fn check_lease(&mut self, now: Instant) {
        if let SessionState::Active(nexus) = &mut self.state {
            self.attachment.check_lease(now, nexus);
        }
    }
}
