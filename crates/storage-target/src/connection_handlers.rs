//! What serves the connections that no worker serves: each has threads of its own, and a worker hands over what is for it.

use std::sync::Arc;

use strongroom_net::LinkPurpose;

use crate::detached_connection::DetachedConnection;
use crate::operators::Operators;
use crate::pairing::incoming::Pairings;
use crate::services::TargetServices;
use crate::transfers::Transfers;

pub(crate) struct ConnectionHandlers {
    pub(crate) transfers: Transfers,
    pub(crate) pairings: Pairings,
    pub(crate) operators: Operators,
}

impl ConnectionHandlers {
    pub(crate) fn new() -> ConnectionHandlers {
        ConnectionHandlers { transfers: Transfers::new(), pairings: Pairings::new(), operators: Operators::new() }
    }

    /// Serves a connection elsewhere: the caller goes on at once.
    pub(crate) fn begin(&self, services: &Arc<TargetServices>, purpose: LinkPurpose, incoming: DetachedConnection) {
        match purpose {
            LinkPurpose::Transfer => self.transfers.begin(services, incoming),
            LinkPurpose::Pairing => self.pairings.begin(services, incoming),
            LinkPurpose::Operator => self.operators.begin(services, incoming),
            LinkPurpose::Blocks | LinkPurpose::Ecl => unreachable!("workers serve these"),
        }
    }
}
