//! Connections that leave this worker: a peer that sends a snapshot, and a node that says it was invited.

use std::net::TcpStream;

use strongroom_net::{StreamId, TransferChannel};

use super::Worker;
use super::connection::Connection;
use crate::pairing::incoming::IncomingPairing;
use crate::transfers::Incoming;

impl Worker {
    /// Hands it to the threads of transfers, with all that was not yet sent and not yet read.
    pub(super) fn hand_to_transfer(&mut self, mut connection: Box<Connection>) {
        self.release(&mut connection);
        if self.stop.is_some() {
            return self.finish(connection, None);
        }
        let (from, stream) = (connection.peer, connection.stream.id());
        let Some((mut transfer, place)) = connection.into_transfer() else {
            return self.network.runtime.abort(stream);
        };
        match self.detach(stream, &mut transfer) {
            Ok(stream) => {
                self.handlers.transfers.begin(&self.services, Incoming { stream, transfer, from, place });
            }
            Err(error) => tracing::warn!(peer = %from, %error, "a transfer was not begun"),
        }
    }

    /// The same to the threads of pairings.
    pub(super) fn hand_to_pairing(&mut self, mut connection: Box<Connection>) {
        self.release(&mut connection);
        if self.stop.is_some() {
            return self.finish(connection, None);
        }
        let (from, stream) = (connection.peer, connection.stream.id());
        let Some((mut pairing, slot)) = connection.into_pairing() else {
            return self.network.runtime.abort(stream);
        };
        match self.detach(stream, &mut pairing.channel) {
            Ok(stream) => {
                self.handlers.pairings.begin(&self.services, IncomingPairing { stream, pairing, from, slot });
            }
            Err(error) => tracing::warn!(peer = %from, %error, "a node that says it was invited was turned away"),
        }
    }

    /// The socket, out of the runtime; what that has not sent or given away goes to the channel.
    fn detach(
        &mut self,
        stream: StreamId,
        channel: &mut TransferChannel,
    ) -> Result<TcpStream, strongroom_net::NetError> {
        let detached = self.network.runtime.detach(stream).and_then(strongroom_net::DetachedStream::into_std);
        let (stream, unsent, unread) = detached?;
        channel.unsent.insert(0, bytes::Bytes::from(unsent).into());
        channel.unread.extend(unread);
        Ok(stream)
    }
}
