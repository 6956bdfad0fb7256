//! What a peer is to a target, beyond the volumes that it may use.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a peer is to a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerRole {
    /// It uses volumes.
    #[default]
    Initiator,
    /// It also makes and changes them, and says who may use them (`docs/operators.md`).
    Operator,
}

impl PeerRole {
    /// Whether it is that of a peer of which nothing is said: then it is not written down.
    pub(crate) fn is_usual(&self) -> bool {
        *self == PeerRole::Initiator
    }
}

impl fmt::Display for PeerRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PeerRole::Initiator => "initiator",
            PeerRole::Operator => "operator",
        })
    }
}
