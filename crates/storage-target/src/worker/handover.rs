//! Connections between workers and logins that wait: taken over, handed over, retried, turned away.

use super::Worker;
use super::connection::{Connection, ConnectionKey, Disposition, LoginStage};
use super::message::DetachedConnection;
use super::unit_lifecycle::FailedOpening;
use crate::names::VolumeName;

impl Worker {
    /// A login that waited looks again.
    pub(super) fn retry_login(&mut self, key: ConnectionKey) {
        let Some(mut connection) = self.connections.check_out(key) else { return };
        let (logins, mut context) = self.login_parts();
        let disposition = logins.try_login(&mut context, &mut connection);
        self.connections.settle(&connection);
        match disposition {
            Disposition::HandOver(worker) => self.hand_over(connection, worker),
            Disposition::Keep | Disposition::HandToHandler | Disposition::End => {
                self.connections.check_in_ready(connection);
            }
        }
    }

    /// Logins that waited for a volume which could not be opened.
    pub(super) fn reject_waiting(&mut self, failed: &FailedOpening) {
        for key in &failed.logins {
            self.connections.change(*key, |connection| self.logins.policy.reject_unopened(connection, &failed.error));
        }
    }

    /// Sessions were ended whose logins may not be over: those are turned away.
    pub(super) fn refuse_ended_logins(&mut self) {
        while let Some(session) = self.routing.pop_ended_login() {
            self.connections.refuse_new_session(session);
        }
    }

    /// Gives a connection to the worker that owns its volume. Nothing is lost: what is queued and received goes along.
    pub(super) fn hand_over(&mut self, mut connection: Box<Connection>, worker: usize) {
        connection.transmit(self.now, &mut self.network.runtime, None);
        self.release(&mut connection);
        let connection = match self.network.runtime.detach(connection.stream.id()) {
            Ok(stream) => match self.mail.links[worker].hand_over(DetachedConnection { stream, connection }) {
                Ok(()) => return,
                Err(detached) => {
                    let mut connection = detached.connection;
                    connection.lost("the worker that it belongs to has ended".to_owned());
                    tracing::warn!(peer = %connection.peer, "the worker of a connection has ended; it may log in again");
                    connection
                }
            },
            Err(error) => {
                connection.lost(error.to_string());
                connection
            }
        };
        self.finish(connection, None);
    }

    /// Takes a connection over from another worker.
    pub(super) fn adopt(&mut self, detached: DetachedConnection) {
        let DetachedConnection { stream, mut connection } = detached;
        match self.network.runtime.attach(stream) {
            Ok(stream) => connection.stream.moved_to(stream),
            Err(error) => {
                tracing::warn!(peer = %connection.peer, %error, "a connection could not be moved between workers");
                connection.lost(error.to_string());
            }
        }
        connection.is_ready = false;
        // A drain that began while it was on its way did not see it.
        let is_drained = |volume: &VolumeName| self.services.drain().of(volume).is_some();
        let is_late = match &connection.stage {
            LoginStage::Admitted { grant, .. } => grant.volume.as_ref().is_some_and(is_drained),
            _ => false,
        };
        if self.stop.is_some() || is_late {
            connection.refuse();
            return self.connections.insert(connection, self.index);
        }
        // Ownership may have changed while it was on its way: its volume was closed, and opened elsewhere.
        let (logins, mut context) = self.login_parts();
        match logins.route(&mut context, &mut connection) {
            Disposition::HandOver(worker) => self.hand_over(connection, worker),
            _ => self.connections.insert(connection, self.index),
        }
    }
}
