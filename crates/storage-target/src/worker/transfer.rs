//! A connection whose other end wants to send a snapshot: it leaves this worker.

use super::Worker;
use super::connection::Connection;
use crate::transfers::Incoming;

impl Worker {
    /// Gives it to the threads of transfers, with all that was not yet sent and not yet read.
    pub(super) fn hand_to_transfer(&mut self, mut connection: Box<Connection>) {
        self.by_stream.remove(&connection.stream);
        self.forget_arrival(connection.key);
        self.disarm(&mut connection);
        if self.stopping.is_some() {
            return self.finish(connection, None);
        }
        let (peer, stream) = (connection.peer, connection.stream);
        let Some((mut transfer, place)) = connection.into_transfer() else { return self.runtime.abort(stream) };
        let detached = self.runtime.detach(stream).and_then(strongroom_net::DetachedStream::into_std);
        match detached {
            Ok((stream, unsent, unread)) => {
                transfer.unsent.insert(0, bytes::Bytes::from(unsent).into());
                transfer.unread.extend(unread);
                self.shared.transfers.begin(&self.shared, Incoming { stream, transfer, from: peer, place });
            }
            Err(error) => tracing::warn!(%peer, %error, "a transfer was not begun"),
        }
    }
}
