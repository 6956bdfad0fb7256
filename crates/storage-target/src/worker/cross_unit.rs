//! Operations that units request of each other: out to the worker that has the other unit, and back. An initiator reaches no unit by
//! EXTENDED COPY that it could not log in to: the rules are applied to the requester again, operation by operation, where the unit is.

use std::sync::Arc;

use super::Worker;
use super::message::Message;
use super::units::UnitRequest;
use crate::open_units::{CrossUnitOutcome, CrossUnitReply, CrossUnitRequest};
use crate::unit::OutwardErrand;

impl Worker {
    /// What units requested while they were polled.
    pub(super) fn take_unit_requests(&mut self) {
        for request in self.unit_requests.drain(..) {
            match request {
                UnitRequest::Succession { volume } => crate::succession::begin(&self.services, &volume),
                UnitRequest::CrossUnit { volume, opening, errand } => {
                    let OutwardErrand { token, to, asker: requester, op } = *errand;
                    let (services, worker) = (Arc::clone(&self.services), self.index);
                    let reply = CrossUnitReply::new(move |result| {
                        let outcome = CrossUnitOutcome { volume, opening, token, result };
                        services.tell(worker, Message::CrossUnitOutcome(Box::new(outcome)));
                    });
                    // A unit that is closed is not reached: dropping the reply reports that.
                    if let Some(worker) = self.services.environment.open_units.worker_of(&to) {
                        let request = CrossUnitRequest { volume: to, requester, op, reply };
                        self.services.tell(worker, Message::CrossUnit(Box::new(request)));
                    }
                }
            }
        }
    }
}
