//! Places for connections and sessions of this worker: who gets one, and who makes way for another one.

use std::net::SocketAddr;
use std::time::Instant;

use strongroom_net::{ListenerId, StreamId};

use super::connection::Connection;
use super::session::Session;
use super::{ConnectionKey, Message, Worker};
use crate::access::Identity;
use crate::places::{NoPlace, Place, PlaceKind, PlaceLimits, PlaceNeed};
use crate::stats::Counters;

/// Since when a session has had no connection, and the place that it has meanwhile.
pub(super) struct Vacancy {
    since: Instant,
    place: Place,
}

impl Worker {
    fn place_limits(&self) -> PlaceLimits {
        PlaceLimits::of(&self.settings.config.limits)
    }

    /// A connection was accepted.
    pub(super) fn accept_stream(&mut self, listener: ListenerId, stream: StreamId, peer: SocketAddr) {
        if self.stopping.is_some() {
            return self.runtime.abort(stream);
        }
        let (place, makes_way) = match self.shared.places.arrive(&self.place_limits(), peer.ip(), self.index) {
            Ok(found) => found,
            Err(none) => {
                self.turned_away(peer, none);
                return self.runtime.abort(stream);
            }
        };
        if let Some(worker) = makes_way {
            self.have_way_made(worker, PlaceNeed::Arrival);
        }
        Counters::count(&self.shared.counters.connections_accepted);
        let known = self.listeners.iter().find(|(id, _)| *id == listener);
        let portal = known.expect("only stopping removes listeners, and then nobody is accepted").1;
        let key = self.shared.connection_key();
        let link = strongroom_net::Link::target(self.shared.admission(), self.shared.link_options(), self.now);
        self.insert(Box::new(Connection::new(key, stream, peer, portal, link, place)));
    }

    fn turned_away(&self, peer: SocketAddr, none: NoPlace) {
        Counters::count(&self.shared.counters.connections_refused);
        tracing::warn!(%peer, advice = none.advice(), "turned a connection away: there is no place for it");
    }

    /// A connection has proven who it is; whether there is a place for such a one.
    pub(super) fn settle_proven(&mut self, connection: &mut Connection) -> bool {
        let settled = connection.place.prove(&self.place_limits());
        self.settled(connection, settled, PlaceNeed::Proven)
    }

    /// A connection gets a session with a volume, or becomes part of one; whether there is a place for it.
    pub(super) fn settle_login(&mut self, connection: &mut Connection) -> bool {
        let settled = connection.place.begin_plain(&self.place_limits());
        self.settled(connection, settled, PlaceNeed::Plain)
    }

    fn settled(&mut self, connection: &Connection, settled: Result<Option<usize>, NoPlace>, need: PlaceNeed) -> bool {
        match settled {
            Ok(makes_way) => {
                self.arrivals.remove(&connection.key);
                if let Some(worker) = makes_way {
                    self.have_way_made(worker, need);
                }
                true
            }
            Err(none) => {
                self.turned_away(connection.peer, none);
                false
            }
        }
    }

    fn have_way_made(&mut self, worker: usize, need: PlaceNeed) {
        if worker == self.index {
            self.make_way(need);
        } else {
            self.shared.tell(worker, Message::PlaceNeeded(need));
        }
    }

    /// Ends somebody here for the sake of somebody else, if there still is one who has to make way.
    pub(super) fn make_way(&mut self, need: PlaceNeed) {
        const WHY: &str = "it had proven nothing, and another initiator needed the place";
        if need == PlaceNeed::Arrival {
            if let Some(key) = self.discoveries.pop_first() {
                Counters::count(&self.shared.counters.connections_evicted);
                return self.end_session(key, WHY);
            }
            while let Some(key) = self.arrivals.pop_first() {
                // One that is being driven now is not there; it is not the oldest in any case.
                let Some(connection) = self.connections.get_mut(&key) else { continue };
                Counters::count(&self.shared.counters.connections_evicted);
                tracing::warn!(peer = %connection.peer, "a connection that had proven nothing made way for another one");
                connection.refuse();
                return connection.touch(&mut self.touched);
            }
        }
        let may_end_proven = need == PlaceNeed::Proven;
        let vacant = self.sessions.values().filter(|session| !session.machine.is_closed()).filter_map(|session| {
            let vacancy = session.vacancy.as_ref()?;
            let is_proven = vacancy.place.kind() == PlaceKind::VacantProven;
            (may_end_proven || !is_proven).then_some((is_proven, vacancy.since, session.key))
        });
        if let Some((_, _, key)) = vacant.min() {
            self.end_session(key, "it had no connection, and another initiator needed the place");
        }
    }

    /// A connection of this worker counts as one that may have to make way.
    pub(super) fn note_arrival(&mut self, connection: &mut Connection) {
        connection.place.move_to(self.index);
        if connection.place.kind() == PlaceKind::Arriving {
            self.arrivals.insert(connection.key);
        }
    }

    /// A connection leaves this worker, or is over.
    pub(super) fn forget_arrival(&mut self, key: ConnectionKey) {
        self.arrivals.remove(&key);
    }

    /// A discovery session begins. One that has proven nothing is the first to make way; each has its time.
    pub(super) fn note_discovery(&mut self, session: &mut Session, connection: &Connection) {
        session.ends_at = Some(self.now + self.settings.config.limits.discovery_timeout());
        if self.arrivals.remove(&connection.key) {
            self.discoveries.insert(session.key);
        }
    }

    /// A session without a connection takes a place among connections until it is over.
    pub(super) fn count_vacant(&mut self, session: &mut Session, is_over: bool) {
        if is_over || !session.connections.is_empty() {
            session.vacancy = None;
        } else if session.vacancy.is_none() {
            let is_proven = session.identity != Identity::Plain;
            session.vacancy =
                Some(Vacancy { since: self.now, place: self.shared.places.vacate(is_proven, self.index) });
        }
    }
}
