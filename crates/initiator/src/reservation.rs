//! Reservation keys and fencing: what a node of a cluster asks of the target, and what it is told (`docs/cluster.md`). What is said to the
//! target for it is in `session::reservation`.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use strongroom_block::foreign;

/// The key by which a node of a cluster is registered at a volume, and by which others fence it. Not a secret: every initiator that may log in
/// can read it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReservationKey(pub NonZeroU64);

/// A text that is no reservation key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a reservation key is 1 to 16 hexadecimal digits, with or without 0x before them, and not zero")]
pub struct ReservationKeyError;

impl ReservationKey {
    /// As the target knows it; `None` for 0.
    pub(crate) fn from_wire(key: u64) -> Option<ReservationKey> {
        NonZeroU64::new(key).map(ReservationKey)
    }

    pub(crate) fn value(self) -> u64 {
        self.0.get()
    }
}

impl FromStr for ReservationKey {
    type Err = ReservationKeyError;

    fn from_str(text: &str) -> Result<ReservationKey, ReservationKeyError> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let are_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let key = u64::from_str_radix(digits, 16).ok().filter(|_| are_digits && digits.len() <= 16);
        key.and_then(ReservationKey::from_wire).ok_or(ReservationKeyError)
    }
}

impl fmt::Display for ReservationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for ReservationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReservationKey({self})")
    }
}

/// Whom to fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Victim {
    /// Who is registered by this key.
    Key(ReservationKey),
    /// Who is registered under this initiator name.
    Node(String),
    /// The one other node that is registered; an error if there are several.
    Other,
}

/// What a node of a cluster asks of the target, without an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FenceRequest {
    /// Who is registered?
    List,
    /// Keep a node from writing: PREEMPT AND ABORT.
    Fence {
        /// The key of the node that asks.
        key: ReservationKey,
        /// Whom to fence.
        victim: Victim,
        /// The node that asks need not be registered: it is registered then.
        joins: bool,
    },
    /// Give up a key that this node has registered.
    Release {
        /// Which.
        key: ReservationKey,
    },
}

/// A registration at the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// By which key.
    pub key: ReservationKey,
    /// What the initiator is called; from the target, and shown escaped only.
    pub initiator_name: String,
    /// It holds the reservation, or all registrants do.
    pub holds: bool,
}

/// What came of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FenceReport {
    /// Who was fenced by this request. Empty: nobody like that was registered, and so could write.
    pub fenced: Vec<Registrant>,
    /// Who is registered now.
    pub registered: Vec<Registrant>,
    /// The exclusive writer lease of who was fenced is ended.
    pub ended_lease: bool,
}

/// Why a request about reservations was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationError {
    /// The key belongs to another node.
    #[error("the reservation key {key} belongs to {}: each node needs a key of its own", foreign(.owner))]
    KeyInUse {
        /// Which key.
        key: ReservationKey,
        /// Whose it is.
        owner: String,
    },
    /// This node has an attachment with this key that is alive.
    #[error(
        "this node has the volume attached with the reservation key {key} already: {}. Detach that first, or take it over: --take-over",
        foreign(.by)
    )]
    AttachedAlready {
        /// Which key.
        key: ReservationKey,
        /// How that attachment describes itself.
        by: String,
    },
    /// This node is not registered.
    #[error(
        "the reservation key {key} is not registered: this node has been fenced, or has not attached the volume with it, and may not fence others. To fence from a \
         node that has no attachment: --register"
    )]
    NotRegistered {
        /// Which key.
        key: ReservationKey,
    },
    /// Another node has fenced this one meanwhile.
    #[error(
        "another node has fenced this one meanwhile (its reservation key {key} is gone): nobody was fenced by this command"
    )]
    FencedFirst {
        /// Which key.
        key: ReservationKey,
    },
    /// The victim is the node that asks.
    #[error("{0} is this node's own reservation key; to give it up: --release")]
    OwnKey(ReservationKey),
    /// It was not said which.
    #[error("several nodes are registered ({0}); say which one to fence: --victim KEY")]
    WhichOne(String),
    /// It writes, and has no key by which it could be fenced.
    #[error(
        "{} has the volume attached without a reservation key, so it cannot be fenced; attach it with --reservation-key, or take the volume over: attach --take-over",
        foreign(.0)
    )]
    VictimWithoutKey(String),
    /// Another kind of reservation keeps all but one initiator out.
    #[error(
        "another initiator holds a reservation of type {kind} for itself alone, beside which a cluster cannot write; release it there"
    )]
    OtherKind {
        /// SPC-4's number of the type.
        kind: u8,
    },
    /// There are as many registrations as the target takes.
    #[error(
        "the target takes no more registrations of this volume; see who is registered ('strongroom fence URL --list'), and fence or release who is gone"
    )]
    Full,
    /// RESERVE (6), or an error that should not be.
    #[error(
        "the target refuses persistent reservations; an initiator may hold the volume by RESERVE (6), or be changing reservations all the time"
    )]
    Conflict,
    /// This peer may only read.
    #[error(
        "this initiator may only read the volume, and cannot register or fence there; allow it to write: 'strongroom peer allow' at the target"
    )]
    ReadOnly,
    /// The target says something of reservations that cannot be read.
    #[error("the target does not say who is registered in a way that this build knows")]
    Unreadable,
}

#[cfg(test)]
mod tests {
    //! Proves which texts are keys.
    use super::*;

    #[test]
    fn keys_are_hexadecimal_and_not_zero() {
        for (text, shown) in [("1", "0x1"), ("0xAB12", "0xab12"), ("ffffffffffffffff", "0xffffffffffffffff")] {
            assert_eq!(text.parse::<ReservationKey>().unwrap().to_string(), shown);
        }
        for text in ["", "0", "0x", "0x0", "+1", "-1", "g", "10000000000000000", "00000000000000001", "0x0x1", " 1"] {
            assert_eq!(text.parse::<ReservationKey>(), Err(ReservationKeyError), "{text}");
        }
    }
}
