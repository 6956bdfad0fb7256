//! Why a key server did not do what it was asked for, in words for the person who must do something about it.

use strongroom_handshake::PublicKey;

/// What went wrong between a client and its key servers.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// None answered.
    #[error("no key server can be reached ({tried}); check that one runs, its address, and the network between")]
    Unreachable {
        /// Each server and why not.
        tried: String,
    },
    /// There is no such volume, or no right to it: the answer does not say which.
    #[error(
        "the key server gives this identity nothing for this volume: it is unknown there, or not granted; ask who administers \
         the volume for `strongroom key grant`"
    )]
    Refused,
    /// What concerns the whole server is for its administrators.
    #[error(
        "this needs the role \"administrator\" at the key server, which this identity has not; add it to `roles` of its [[identity]] in \
         the key server's configuration, and reload that (SIGHUP)"
    )]
    NotAdministrator,
    /// The server does not know this node at all.
    #[error(
        "no key server admits this node; ask who administers the volume for: strongroom key grant VOLUME '{own}' --rights open,seal"
    )]
    NotAdmitted {
        /// Our key.
        own: PublicKey,
    },
    /// Another server answered.
    #[error(
        "the key server presented the key '{presented}', which is not the expected one; compare it with `strongroom identity \
         show` on the key server: an attacker may be in the middle"
    )]
    WrongServer {
        /// What it presented.
        presented: PublicKey,
    },
    /// It speaks another protocol.
    #[error("the other end is no key server of this version: check address and port; a target is not a key server")]
    NotAKeyServer,
    /// The state of things does not allow it.
    #[error("{0}")]
    Conflict(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The server cannot do it now.
    #[error("the key server cannot do this now: {0}")]
    Unavailable(String),
    /// Too many requests that were refused.
    #[error(
        "the key server refuses further requests for a while, because too many were refused; correct what asks for them"
    )]
    TooMany,
    /// An older primary that does not know that another one took its place.
    #[error(
        "this key server is of generation {generation}, and one of generation {known} has taken its place; stop the old one, or \
         set it up as the standby of the new one"
    )]
    Superseded {
        /// Its generation.
        generation: u64,
        /// The newest one seen.
        known: u64,
    },
    /// The server has gone back in time.
    #[error(
        "the key server shows revision {told} of the volume, and once had {known}: its database was rolled back to an older \
         copy; ask who administers it"
    )]
    RolledBack {
        /// What we know of.
        known: u64,
        /// What it tells now.
        told: u64,
    },
    /// The connection was lost before the answer to a change.
    #[error(
        "the connection was lost before the key server answered ({0}); look with `strongroom key show` whether it was done"
    )]
    Unknown(String),
    /// One end breaks the protocol.
    #[error("{0}; run compatible Strongroom versions on both ends")]
    Protocol(&'static str),
    /// What came cannot be written.
    #[error("cannot write it: {0}")]
    Output(std::io::Error),
}

impl ClientError {
    /// Whether it may go away by itself: an initiator goes on under its lease. Otherwise keys are refused for good.
    pub fn is_temporary(&self) -> bool {
        // Only what the server itself has said, proven, takes keys away.
        !matches!(
            self,
            ClientError::Refused
                | ClientError::NotAdministrator
                | ClientError::NotAdmitted { .. }
                | ClientError::Conflict(_)
                | ClientError::Invalid(_)
        )
    }
}
