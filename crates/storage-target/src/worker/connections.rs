//! The connections of a worker: found by key or by stream, driven in the order in which they became ready, evicted oldest first.

use std::collections::{BTreeSet, VecDeque};

use rustc_hash::FxHashMap;
use strongroom_net::StreamId;

use super::connection::{Connection, ConnectionKey};
use super::grant::LoginGrant;
use crate::connection_slots::SlotKind;
use crate::unit::SessionKey;

/// A connection that is being driven is checked out: it is not in the table meanwhile.
#[derive(Default)]
pub(super) struct Connections {
    table: FxHashMap<ConnectionKey, Box<Connection>>,
    by_stream: FxHashMap<StreamId, ConnectionKey>,
    ready: VecDeque<ConnectionKey>,
    /// Unauthenticated connections without a session, the oldest first.
    arrivals: BTreeSet<ConnectionKey>,
}

impl Connections {
    /// Takes a new or adopted connection in and has it driven.
    pub(super) fn insert(&mut self, mut connection: Box<Connection>, worker: usize) {
        self.by_stream.insert(connection.stream.id(), connection.key);
        connection.slot.move_to(worker);
        if connection.slot.kind() == SlotKind::Arriving {
            self.arrivals.insert(connection.key);
        }
        self.check_in_ready(connection);
    }

    /// Takes a connection out of the table to drive it.
    pub(super) fn check_out(&mut self, key: ConnectionKey) -> Option<Box<Connection>> {
        self.table.remove(&key)
    }

    pub(super) fn check_in(&mut self, connection: Box<Connection>) {
        self.table.insert(connection.key, connection);
    }

    /// The same, and has it driven again.
    pub(super) fn check_in_ready(&mut self, mut connection: Box<Connection>) {
        mark(&mut self.ready, &mut connection);
        self.check_in(connection);
    }

    /// A connection that is checked out leaves this worker or ends.
    pub(super) fn forget(&mut self, connection: &Connection) {
        self.by_stream.remove(&connection.stream.id());
        self.arrivals.remove(&connection.key);
    }

    /// The runtime has closed a stream.
    pub(super) fn forget_stream(&mut self, stream: StreamId) {
        self.by_stream.remove(&stream);
    }

    /// A connection that is checked out may have authenticated or begun a session: then it is no longer evicted first.
    pub(super) fn settle(&mut self, connection: &Connection) {
        if connection.slot.kind() != SlotKind::Arriving || connection.stage.session().is_some() {
            self.arrivals.remove(&connection.key);
        }
    }

    pub(super) fn get(&self, key: ConnectionKey) -> Option<&Connection> {
        self.table.get(&key).map(|connection| &**connection)
    }

    pub(super) fn get_mut(&mut self, key: ConnectionKey) -> Option<&mut Connection> {
        self.table.get_mut(&key).map(|connection| &mut **connection)
    }

    /// Applies what happened on a stream to its connection and has that driven. `None`: no connection has this stream.
    pub(super) fn on_stream<T>(&mut self, stream: StreamId, change: impl FnOnce(&mut Connection) -> T) -> Option<T> {
        let key = *self.by_stream.get(&stream)?;
        self.change(key, change)
    }

    /// Changes a connection and has it driven.
    pub(super) fn change<T>(&mut self, key: ConnectionKey, change: impl FnOnce(&mut Connection) -> T) -> Option<T> {
        let connection = self.table.get_mut(&key)?;
        let outcome = change(connection);
        mark(&mut self.ready, connection);
        Some(outcome)
    }

    /// Turns every connection away that has no session.
    pub(super) fn refuse_all(&mut self) {
        for connection in self.table.values_mut() {
            connection.refuse();
            mark(&mut self.ready, connection);
        }
    }

    /// Evicts the oldest unauthenticated connection, if there is one.
    pub(super) fn evict_arrival(&mut self) -> Option<&Connection> {
        while let Some(key) = self.arrivals.pop_first() {
            // One that is checked out is not the oldest in any case.
            if self.change(key, Connection::refuse).is_some() {
                return self.get(key);
            }
        }
        None
    }

    /// Turns away the connection whose login is to begin this session.
    pub(super) fn refuse_new_session(&mut self, session: SessionKey) {
        let begins = |connection: &&Connection| connection.new_session().is_some_and(|(key, _)| key == session);
        let found = self.iter().find(begins).map(|connection| connection.key);
        if let Some(key) = found {
            self.change(key, Connection::refuse);
        }
    }

    /// Turns away logins that were admitted and are not over; the sessions that they were to begin.
    pub(super) fn refuse_new_sessions(
        &mut self,
        matches: impl Fn(&Connection, SessionKey, &LoginGrant) -> bool,
    ) -> Vec<SessionKey> {
        let mut refused = Vec::new();
        for connection in self.table.values_mut() {
            let session = connection.new_session().filter(|(key, grant)| matches(connection, *key, grant));
            if let Some(key) = session.map(|(key, _)| key) {
                connection.refuse();
                mark(&mut self.ready, connection);
                refused.push(key);
            }
        }
        refused
    }

    /// The next connection that waits to be driven.
    pub(super) fn pop_ready(&mut self) -> Option<ConnectionKey> {
        self.ready.pop_front()
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.table.values().map(|connection| &**connection)
    }

    /// All connections, out of the table: the worker ends.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Box<Connection>> + use<> {
        std::mem::take(&mut self.table).into_values()
    }
}

fn mark(ready: &mut VecDeque<ConnectionKey>, connection: &mut Connection) {
    if !std::mem::replace(&mut connection.is_ready, true) {
        ready.push_back(connection.key);
    }
}
