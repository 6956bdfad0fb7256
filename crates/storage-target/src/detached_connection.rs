//! A connection on its way from a worker to what serves it.

use std::net::{SocketAddr, TcpStream};

use strongroom_net::DetachedChannel;

use crate::connection_slots::ConnectionSlot;

/// A connection that no worker serves: its purpose is another one than sessions.
pub(crate) struct DetachedConnection {
    pub(crate) stream: TcpStream,
    pub(crate) channel: DetachedChannel,
    pub(crate) from: SocketAddr,
    /// Of a pairing, that of a connection that has proven nothing.
    pub(crate) slot: ConnectionSlot,
}
