//! What is asked and told about peers and invitations: plain data.

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::roles::PeerRole;

/// What becomes of a peer that has joined by invitation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum PeerOperation {
    /// It is one no longer, and its sessions end.
    Remove,
    /// It gets another name.
    Rename {
        /// Which.
        to: String,
    },
    /// It may use these volumes, too.
    Allow {
        /// Which; `*` for all.
        volumes: Vec<String>,
        /// Whether it may only read, from now on; none: as before.
        #[serde(default)]
        read_only: Option<bool>,
    },
    /// It may not use these volumes any more; sessions with them end.
    Deny {
        /// Which, as they were allowed.
        volumes: Vec<String>,
    },
    /// It is this to the target, from now on.
    Role {
        /// What.
        role: PeerRole,
    },
}

/// The text of an invitation: a secret on its way to the one who asked for it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
#[serde(transparent)]
pub struct InvitationText(pub String);

impl std::fmt::Debug for InvitationText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InvitationText")
    }
}

/// An invitation that can still be used. Nothing in it can be used to join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvitationReport {
    /// What the node will be called.
    pub name: String,
    /// The volumes that it may use; `*` for all.
    pub volumes: Vec<String>,
    /// It may only read.
    pub read_only: bool,
    /// What it will be to the target.
    #[serde(default)]
    pub role: PeerRole,
    /// When it expires, in seconds since 1970.
    pub expires_at: u64,
    /// How long that is from now, in seconds.
    pub expires_in_s: u64,
}

/// A node that may come through a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerReport {
    /// Its name.
    pub name: String,
    /// Its public line.
    pub key: String,
    /// The volumes that it may use, besides those that name it themselves; `*` for all.
    pub volumes: Vec<String>,
    /// It may only read.
    pub read_only: bool,
    /// What it is to the target.
    #[serde(default)]
    pub role: PeerRole,
    /// Where this is said.
    pub origin: PeerOrigin,
    /// When it joined by invitation, in seconds since 1970.
    #[serde(default)]
    pub since: Option<u64>,
}

/// Where it is said what a peer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerOrigin {
    /// In a `[[peer]]` of the configuration.
    Configuration,
    /// In the peer database.
    Invitation,
    /// Likewise, and it does not count: the configuration has a peer of this name or key.
    Overridden,
}
