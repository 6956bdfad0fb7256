//! How a session ends and who is to blame, and the small results that both machines share.

use std::fmt;

use strongroom_block::foreign;

use crate::pdu::error::PduError;

/// The two bytes of status of a login response: class and detail (RFC 7143 §11.13.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LoginStatus(pub u16);

#[allow(missing_docs)] // The RFC's names.
impl LoginStatus {
    pub const SUCCESS: LoginStatus = LoginStatus(0x0000);
    pub const TARGET_MOVED_TEMPORARILY: LoginStatus = LoginStatus(0x0101);
    pub const TARGET_MOVED_PERMANENTLY: LoginStatus = LoginStatus(0x0102);
    pub const INITIATOR_ERROR: LoginStatus = LoginStatus(0x0200);
    pub const AUTHENTICATION_FAILED: LoginStatus = LoginStatus(0x0201);
    pub const AUTHORIZATION_FAILED: LoginStatus = LoginStatus(0x0202);
    pub const NOT_FOUND: LoginStatus = LoginStatus(0x0203);
    pub const TARGET_REMOVED: LoginStatus = LoginStatus(0x0204);
    pub const UNSUPPORTED_VERSION: LoginStatus = LoginStatus(0x0205);
    pub const TOO_MANY_CONNECTIONS: LoginStatus = LoginStatus(0x0206);
    pub const MISSING_PARAMETER: LoginStatus = LoginStatus(0x0207);
    pub const CANNOT_INCLUDE_IN_SESSION: LoginStatus = LoginStatus(0x0208);
    pub const SESSION_TYPE_NOT_SUPPORTED: LoginStatus = LoginStatus(0x0209);
    pub const SESSION_DOES_NOT_EXIST: LoginStatus = LoginStatus(0x020a);
    pub const INVALID_DURING_LOGIN: LoginStatus = LoginStatus(0x020b);
    pub const TARGET_ERROR: LoginStatus = LoginStatus(0x0300);
    pub const SERVICE_UNAVAILABLE: LoginStatus = LoginStatus(0x0301);
    pub const OUT_OF_RESOURCES: LoginStatus = LoginStatus(0x0302);
}

impl LoginStatus {
    /// 0 success, 1 redirection, 2 the initiator's error, 3 the target's.
    pub const fn class(self) -> u8 {
        (self.0 >> 8) as u8
    }
}

impl fmt::Debug for LoginStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoginStatus({:#06x})", self.0)
    }
}

impl fmt::Display for LoginStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match *self {
            Self::SUCCESS => "success",
            Self::TARGET_MOVED_TEMPORARILY | Self::TARGET_MOVED_PERMANENTLY => {
                "the target has moved; attach it at the address that it names"
            }
            Self::AUTHENTICATION_FAILED => {
                "authentication failed; check the identities (or the CHAP secret) of both sides"
            }
            Self::AUTHORIZATION_FAILED => {
                "this initiator may not use the target, or not in this way, and the target's log says why; ask its administrator to add your \
                 name to the access list (a sealed volume takes strongroom:// URLs only, and may take some --scheme only)"
            }
            Self::NOT_FOUND => "no such target; list what there is by discovery",
            Self::TARGET_REMOVED => "the target was removed",
            Self::UNSUPPORTED_VERSION => "the protocol version is not supported",
            Self::TOO_MANY_CONNECTIONS => "the session has as many connections as were agreed on; close one first",
            Self::MISSING_PARAMETER => "a required key was missing (InitiatorName or TargetName)",
            Self::SESSION_DOES_NOT_EXIST => "the session to join does not exist; log in again",
            Self::INVALID_DURING_LOGIN => "a request that has no place in a login",
            Self::SERVICE_UNAVAILABLE => "the target is not serving now; try again later",
            Self::OUT_OF_RESOURCES => "the target is at a limit; try again later or raise the limit",
            _ if self.class() == 2 => "the target refused the login as the initiator's error",
            _ => "the target refused the login",
        };
        write!(f, "{what} (status {:#06x})", self.0)
    }
}

/// What a peer did that no rule allows; the session ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerMisbehaved {
    /// A PDU that does not decode.
    #[error(transparent)]
    Pdu(#[from] PduError),
    /// Text that is not key=value pairs.
    #[error(transparent)]
    Text(#[from] crate::text::TextError),
    /// A PDU that has no place at this moment.
    #[error("{what} where {expected} was expected")]
    OutOfPlace {
        /// What came.
        what: &'static str,
        /// What would have been right.
        expected: &'static str,
    },
    /// A login that breaks a rule of RFC 7143 §6.
    #[error("login: {0}")]
    Login(&'static str),
    /// A key with a value that cannot be.
    #[error("login: the key {key} has the value '{}', which it cannot have", foreign(.value))]
    Key {
        /// The key.
        key: &'static str,
        /// Its value, shortened.
        value: String,
    },
    /// An answer about a task that is not.
    #[error("{what} names the task {task_tag:08x}, which does not exist")]
    UnknownTask {
        /// The answer.
        what: &'static str,
        /// Its initiator task tag.
        task_tag: u32,
    },
    /// Data out of order, outside the expected transfer, or without whole blocks and their records.
    #[error("data of the task {task_tag:08x}: {why}")]
    Data {
        /// The task.
        task_tag: u32,
        /// The rule it broke.
        why: &'static str,
    },
    /// An answer whose StatSN is not the next.
    #[error("StatSN {found} where {expected} was next: an answer was lost")]
    StatSn {
        /// What the answer had.
        found: u32,
        /// What was next.
        expected: u32,
    },
    /// A queue at its limit because the peer does not take its answers.
    #[error("more than {limit} {what} wait for this peer")]
    Flood {
        /// What of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The peer rejected one of our PDUs.
    #[error("the peer rejected a PDU with opcode 0x{opcode:02x} (reason 0x{reason:02x})")]
    Rejected {
        /// The reason's code.
        reason: u8,
        /// The opcode of what was rejected.
        opcode: u8,
    },
}

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The initiator logged out.
    #[error("logged out")]
    LoggedOut,
    /// The connection ended underneath.
    #[error("connection lost: {0}")]
    ConnectionLost(String),
    /// The peer did not finish the login in time.
    #[error("the peer did not finish its login in time; check the network and the peer's log")]
    LoginTimedOut,
    /// The login was refused, by us or by the peer.
    #[error("login refused: {0}")]
    LoginRefused(LoginStatus),
    /// Nothing came from the peer, not even an answer to a ping.
    #[error("the peer has been silent for too long and did not answer a ping; check the network")]
    PeerSilent,
    /// The peer was asked to log out and did not in time.
    #[error("the initiator did not log out in the time that it was given")]
    DrainTimedOut,
    /// Every connection was lost, and no new one came in the time that was agreed on.
    #[error("every connection was lost, and none came to recover the session in the time that was agreed on")]
    NotRecovered,
    /// The target said that it drops the connection.
    #[error("the target dropped the connection; it may be restarting")]
    DroppedByTarget,
    /// A data digest did not fit.
    #[error("data was damaged on the way, as its digest shows; check the network's hardware")]
    Damaged,
    /// The application closed the session.
    #[error("closed by this side: {0}")]
    ClosedHere(String),
    /// The peer broke a rule.
    #[error("the peer misbehaved: {0}")]
    Misbehaved(#[from] PeerMisbehaved),
}
