//! Operations that units request of each other: out to the worker that has the other unit, and back. An initiator reaches no unit by
//! EXTENDED COPY that it could not log in to: the rules are applied to the requester again, operation by operation, where the unit is.

use std::sync::Arc;

use super::message::Message;
use super::units::UnitRequest;
use crate::open_units::{CrossUnitOutcome, CrossUnitReply, CrossUnitRequest};
use crate::services::TargetServices;
use crate::unit::OutgoingRequest;

/// Sends out what a unit of this worker requested while it was polled.
pub(super) fn send_request(request: UnitRequest, services: &Arc<TargetServices>, worker: usize) {
    match request {
        UnitRequest::Succession { volume } => crate::succession::begin(services, &volume),
        UnitRequest::CrossUnit { volume, opening, request } => {
            let OutgoingRequest { token, to, requester, op } = *request;
            let own = Arc::clone(services);
            let reply = CrossUnitReply::new(move |result| {
                let outcome = CrossUnitOutcome { volume, opening, token, result };
                own.tell(worker, Message::CrossUnitOutcome(Box::new(outcome)));
            });
            // A unit that is closed is not reached: dropping the reply reports that.
            if let Some(worker) = services.environment.open_units.worker_of(&to) {
                let request = CrossUnitRequest { volume: to, requester, op, reply };
                services.tell(worker, Message::CrossUnit(Box::new(request)));
            }
        }
    }
}
