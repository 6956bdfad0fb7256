//! The name of a connection within its session, and whether one may be added.

/// Names a connection of one session; never used again there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub(super) u32);

impl ConnectionId {
    /// The only connection of a session of another transport, which has but one.
    pub const ONLY: ConnectionId = ConnectionId(0);
}

/// Whether a connection with some CID may be added now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayAdd {
    /// Yes.
    Yes,
    /// Tasks of an earlier connection with this CID are being ended: ask again when the session has answered its management.
    Later,
    /// There are as many as were agreed on.
    TooMany,
    /// The session is over.
    Over,
}
