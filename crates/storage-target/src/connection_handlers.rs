//! What serves the connections that no worker serves: each has threads of its own, and a worker hands over what is for it.

use crate::pairing::incoming::Pairings;
use crate::transfers::Transfers;

pub(crate) struct ConnectionHandlers {
    pub(crate) transfers: Transfers,
    pub(crate) pairings: Pairings,
}

impl ConnectionHandlers {
    pub(crate) fn new() -> ConnectionHandlers {
        ConnectionHandlers { transfers: Transfers::new(), pairings: Pairings::new() }
    }
}
