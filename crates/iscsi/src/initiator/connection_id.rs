//! The name of a connection within its session.

/// Names a connection of a session; goes out as its CID. [`ConnectionId::LEADING`] is the one that the session begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u16);

impl ConnectionId {
    /// The first connection of a session.
    pub const LEADING: ConnectionId = ConnectionId(0);
}
