//! A connection whose peer sends a snapshot: it leaves this worker.

use super::Worker;
use super::connection::Connection;
use crate::transfers::Incoming;

impl Worker {
    /// Hands it to the threads of transfers, with all that was not yet sent and not yet read.
    pub(super) fn hand_to_transfer(&mut self, mut connection: Box<Connection>) {
        self.release(&mut connection);
        if self.stop.is_some() {
            return self.finish(connection, None);
        }
        let (peer, stream) = (connection.peer, connection.stream.id());
        let Some((mut transfer, place)) = connection.into_transfer() else {
            return self.network.runtime.abort(stream);
        };
        let detached = self.network.runtime.detach(stream).and_then(strongroom_net::DetachedStream::into_std);
        match detached {
            Ok((stream, unsent, unread)) => {
                transfer.unsent.insert(0, bytes::Bytes::from(unsent).into());
                transfer.unread.extend(unread);
                let incoming = Incoming { stream, transfer, from: peer, place };
                self.transfers.begin(&self.services, incoming);
            }
            Err(error) => tracing::warn!(%peer, %error, "a transfer was not begun"),
        }
    }
}
