//! Pairing: invitations that a target gives out, nodes that take them up over its ordinary port, and the peers that come of it.
//! `docs/pairing.md` is the specification, and has the peer database bit by bit.
//!
//! The database and the rules about it are `registry`, which knows no sockets; `incoming` serves the connections, in threads of their own, and
//! `join` is the other end. Absent: what a peer may do with a volume (`access`), and the text of an invitation (the crate `handshake`).

mod database;
mod error;
mod failures;
pub(crate) mod incoming;
mod join;
mod message;
mod names;
mod registry;

#[doc(hidden)]
pub use database::fuzz_database;
pub use database::paired_names;
pub use error::{PairingError, PeerDatabaseError};
pub use join::{JoinError, Joined, join};
pub use message::{PairingRefusal, fuzz_message};
pub use names::PeerName;

pub(crate) use database::{InvitationRecord, PairedPeer};
pub(crate) use registry::{ConfiguredPeers, Joining, NewInvitation, PeerChange, PeerRegistry};

/// The file with the peers, among the volumes.
pub const DATABASE_NAME: &str = ".peers.toml";
/// Peers in the database, at most.
pub const PEERS_MAX: usize = 4096;
/// Invitations that are not forgotten, at most.
pub const INVITATIONS_MAX: usize = 64;
/// Volumes of one invitation or peer, at most.
pub const VOLUMES_MAX: usize = 64;
/// How long an invitation may be good for, in seconds: a minute, and a week.
pub const EXPIRES_S_MIN: u64 = 60;
/// See [`EXPIRES_S_MIN`].
pub const EXPIRES_S_MAX: u64 = 7 * 24 * 3600;
/// An invitation that has expired is remembered for so long, so that the node that brings it can be told, and the one that has joined can ask
/// again.
const REMEMBERED_S: u64 = 24 * 3600;

/// Seconds since 1970.
pub(crate) fn now_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
