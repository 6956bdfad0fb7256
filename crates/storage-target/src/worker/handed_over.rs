//! Connections that leave this worker: a peer that sends a snapshot, an operator, and a node that says it was invited.

use std::net::TcpStream;

use strongroom_net::{DetachedChannel, DetachedStream, NetError, Runtime, StreamId};

use super::Worker;
use super::connection::Connection;
use crate::detached_connection::DetachedConnection;

impl Worker {
    /// Hands a connection to the threads that serve its purpose, with all that was not yet sent and not yet read.
    pub(super) fn hand_to_handler(&mut self, mut connection: Box<Connection>) {
        self.release(&mut connection);
        if self.stop.is_some() {
            return self.finish(connection, None);
        }
        let (from, stream, purpose) = (connection.peer, connection.stream.id(), connection.link.purpose());
        let runtime = &mut self.network.runtime;
        let Some((mut channel, slot)) = connection.into_detached() else { return runtime.abort(stream) };
        match detach(runtime, stream, &mut channel) {
            Ok(stream) => {
                self.handlers.begin(&self.services, purpose, DetachedConnection { stream, channel, from, slot })
            }
            Err(error) => tracing::warn!(peer = %from, ?purpose, %error, "a connection could not be handed over"),
        }
    }
}

/// The socket, out of the runtime; what that has not sent or given away goes to the channel.
fn detach(runtime: &mut Runtime, stream: StreamId, channel: &mut DetachedChannel) -> Result<TcpStream, NetError> {
    let (stream, unsent, unread) = runtime.detach(stream).and_then(DetachedStream::into_std)?;
    channel.unsent.insert(0, bytes::Bytes::from(unsent).into());
    channel.unread.extend(unread);
    Ok(stream)
}
