//! Connections that arrive, and those that are evicted for their slots.

use std::net::SocketAddr;

use strongroom_net::{ListenerId, StreamId};

use super::Worker;
use super::connection::Connection;
use crate::connection_slots::SlotNeed;
use crate::stats::Counters;

impl Worker {
    /// A connection was accepted.
    pub(super) fn accept_stream(&mut self, listener: ListenerId, stream: StreamId, peer: SocketAddr) {
        if self.stop.is_some() {
            return self.network.runtime.abort(stream);
        }
        let limits = self.logins.policy.limits();
        let Some(slot) = self.logins.slots.arrive(peer, limits) else {
            return self.network.runtime.abort(stream);
        };
        self.evict();
        Counters::count(&self.services.metrics.counters.connections_accepted);
        let portal = self.network.portal(listener);
        let key = self.services.workers.connection_key();
        let link = strongroom_net::Link::target(self.services.admission(), self.services.link_options(), self.now);
        let connection = Connection::new(key, stream, (peer, portal), link, slot);
        self.connections.insert(Box::new(connection), self.index);
    }

    /// Evicts connections and sessions for slots that connections of this worker have got.
    pub(super) fn evict(&mut self) {
        while let Some(need) = self.logins.slots.pop_eviction() {
            self.evict_for(need);
        }
    }

    /// Evicts a connection or session of this worker, if there still is one that may be evicted.
    pub(super) fn evict_for(&mut self, need: SlotNeed) {
        let counters = &self.services.metrics.counters;
        if need == SlotNeed::Arrival {
            if let Some(key) = self.routing.sessions.pop_discovery() {
                Counters::count(&counters.connections_evicted);
                return self.routing.end_session(key, "it had proven nothing, and another initiator needed the place");
            }
            if let Some(connection) = self.connections.evict_arrival() {
                Counters::count(&counters.connections_evicted);
                tracing::warn!(peer = %connection.peer, "a connection that had proven nothing made way for another one");
                return;
            }
        }
        if let Some(key) = self.routing.sessions.vacant_for(need) {
            self.routing.end_session(key, "it had no connection, and another initiator needed the place");
        }
    }
}
