//! The connections of a session, and how commands are spread over them: each goes by the one that has the fewest bytes to move.

use std::time::Instant;

use super::connection::Connection;
use super::connection_id::ConnectionId;

/// All connections of a session, those that are logging in included.
#[derive(Debug)]
pub(super) struct Connections(Vec<Connection>);

impl Connections {
    pub(super) fn new(leading: Connection) -> Connections {
        Connections(vec![leading])
    }

    pub(super) fn add(&mut self, connection: Connection) {
        self.0.push(connection);
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.0.iter().find(|connection| connection.id == id)
    }

    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.0.iter_mut().find(|connection| connection.id == id)
    }

    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Connection> {
        let at = self.0.iter().position(|connection| connection.id == id)?;
        Some(self.0.remove(at))
    }

    pub(super) fn ids(&self) -> impl DoubleEndedIterator<Item = ConnectionId> {
        self.0.iter().map(|connection| connection.id)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many are in full-feature phase.
    pub(super) fn in_full_feature_phase(&self) -> usize {
        self.0.iter().filter(|connection| connection.is_in_full_feature_phase()).count()
    }

    /// The connection with the least to move; `None` while there is none.
    pub(super) fn least_loaded(&self) -> Option<ConnectionId> {
        let open = self.0.iter().filter(|connection| connection.is_in_full_feature_phase());
        open.min_by_key(|connection| connection.load_bytes()).map(|connection| connection.id)
    }

    pub(super) fn least_loaded_mut(&mut self) -> Option<&mut Connection> {
        let id = self.least_loaded()?;
        self.get_mut(id)
    }

    pub(super) fn timeout(&self) -> Option<Instant> {
        self.0.iter().filter_map(Connection::timeout).min()
    }

    /// Commands that were not sent stay unsent: the session ends.
    pub(super) fn forget_waiting(&mut self) {
        self.0.iter_mut().for_each(|connection| connection.waiting.clear());
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
