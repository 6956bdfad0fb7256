//! Connections that leave this worker: a peer that sends a snapshot, and a node that says it was invited.

use std::net::TcpStream;

use strongroom_net::{DetachedStream, LinkPurpose, NetError, Runtime, StreamId, TransferChannel};

use super::Worker;
use super::connection::Connection;
use crate::pairing::incoming::IncomingPairing;
use crate::transfers::Incoming;

impl Worker {
    /// Hands a connection to the threads of transfers or of pairings, with all that was not yet sent and not yet read.
    pub(super) fn hand_to_handler(&mut self, mut connection: Box<Connection>) {
        self.release(&mut connection);
        if self.stop.is_some() {
            return self.finish(connection, None);
        }
        let (from, stream) = (connection.peer, connection.stream.id());
        let (runtime, handlers, services) = (&mut self.network.runtime, &self.handlers, &self.services);
        let begun = match connection.link.purpose() {
            LinkPurpose::Pairing => connection.into_pairing().map(|(mut pairing, slot)| {
                detach(runtime, stream, &mut pairing.channel).map(|stream| {
                    handlers.pairings.begin(services, IncomingPairing { stream, pairing, from, slot });
                })
            }),
            _ => connection.into_transfer().map(|(mut transfer, place)| {
                detach(runtime, stream, &mut transfer).map(|stream| {
                    handlers.transfers.begin(services, Incoming { stream, transfer, from, place });
                })
            }),
        };
        match begun {
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::warn!(peer = %from, %error, "a transfer or pairing was not begun"),
            None => self.network.runtime.abort(stream),
        }
    }
}

/// The socket, out of the runtime; what that has not sent or given away goes to the channel.
fn detach(runtime: &mut Runtime, stream: StreamId, channel: &mut TransferChannel) -> Result<TcpStream, NetError> {
    let (stream, unsent, unread) = runtime.detach(stream).and_then(DetachedStream::into_std)?;
    channel.unsent.insert(0, bytes::Bytes::from(unsent).into());
    channel.unread.extend(unread);
    Ok(stream)
}
