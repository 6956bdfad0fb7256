//! Slots for the connections and sessions of a worker: which one gets a slot, and which connections have to be evicted for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::connection::Connection;
use super::message::Message;
use super::session::{Session, Vacancy};
use crate::access::Identity;
use crate::config::Limits;
use crate::connection_slots::{ConnectionSlot, NoSlot, SlotLimits, SlotNeed};
use crate::services::TargetServices;
use crate::stats::Counters;

pub(super) struct SlotAllocator {
    worker: usize,
    services: Arc<TargetServices>,
    /// Slots for which this worker has to evict a connection or a session.
    evictions: Vec<SlotNeed>,
}

impl SlotAllocator {
    pub(super) fn new(worker: usize, services: Arc<TargetServices>) -> SlotAllocator {
        SlotAllocator { worker, services, evictions: Vec::new() }
    }

    /// A slot for a connection that was accepted.
    pub(super) fn arrive(&mut self, peer: SocketAddr, limits: &Limits) -> Option<ConnectionSlot> {
        match self.services.slots.arrive(&SlotLimits::of(limits), peer.ip(), self.worker) {
            Ok((slot, evicts)) => {
                self.evict(evicts, SlotNeed::Arrival);
                Some(slot)
            }
            Err(none) => {
                self.turned_away(peer, none);
                None
            }
        }
    }

    /// A connection has proven its identity; whether there is a slot for it.
    pub(super) fn settle_proven(&mut self, connection: &mut Connection, limits: &Limits) -> bool {
        let settled = connection.slot.prove(&SlotLimits::of(limits));
        self.settled(connection.peer, settled, SlotNeed::Proven)
    }

    /// A connection begins or joins a session with a volume; whether there is a slot for it.
    pub(super) fn settle_login(&mut self, connection: &mut Connection, limits: &Limits) -> bool {
        let settled = connection.slot.begin_plain(&SlotLimits::of(limits));
        self.settled(connection.peer, settled, SlotNeed::Plain)
    }

    fn settled(&mut self, peer: SocketAddr, settled: Result<Option<usize>, NoSlot>, need: SlotNeed) -> bool {
        match settled {
            Ok(evicts) => {
                self.evict(evicts, need);
                true
            }
            Err(none) => {
                self.turned_away(peer, none);
                false
            }
        }
    }

    fn evict(&mut self, worker: Option<usize>, need: SlotNeed) {
        match worker {
            None => {}
            Some(worker) if worker == self.worker => self.evictions.push(need),
            Some(worker) => self.services.tell(worker, Message::SlotNeeded(need)),
        }
    }

    fn turned_away(&self, peer: SocketAddr, none: NoSlot) {
        Counters::count(&self.services.metrics.counters.connections_refused);
        tracing::warn!(%peer, advice = none.advice(), "turned a connection away: there is no place for it");
    }

    /// The next slot for which this worker has to evict a connection or a session.
    pub(super) fn pop_eviction(&mut self) -> Option<SlotNeed> {
        self.evictions.pop()
    }

    /// A session without a connection keeps a slot until it is over.
    pub(super) fn keep_slot(&self, session: &mut Session, now: Instant) {
        if !session.connections.is_empty() {
            session.vacancy = None;
        } else if session.vacancy.is_none() {
            let is_proven = session.peer.identity != Identity::Plain;
            let slot = self.services.slots.vacate(is_proven, self.worker);
            session.vacancy = Some(Vacancy { since: now, slot });
        }
    }
}
