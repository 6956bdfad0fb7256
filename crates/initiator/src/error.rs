//! Why there is no attachment: the world failed, the target refused, or it is not what it was.

use strongroom_block::foreign;
use strongroom_iscsi::LoginStatus;

use crate::{KeySourceError, ReservationError, UnitMismatch, WriterConflict};

/// Why a volume could not be attached, or was given up after it had been.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The options contradict themselves.
    #[error("{0}")]
    Options(String),
    /// This machine refused a socket, a thread or a descriptor.
    #[error("cannot start the attachment: {0}")]
    System(#[from] std::io::Error),
    /// No connection could be made. Trying again may help.
    #[error("cannot reach the target: {0}")]
    Unreachable(String),
    /// The target did not finish in time.
    #[error("the target did not answer within {seconds} s while {doing}; check its log, or raise --connect-timeout")]
    TimedOut {
        /// The limit, in seconds.
        seconds: u64,
        /// What was under way.
        doing: &'static str,
    },
    /// The handshake failed: an unknown key on either side, or something that is no Strongroom target.
    #[error("no channel with the target: {0}")]
    Handshake(String),
    /// The target refused the login.
    #[error("the target refused the login: {0}")]
    LoginRefused(String),
    /// The target sends us elsewhere (RFC 7143 §11.13.5, status class 1), too often or to no address.
    #[error(
        "the target sends us to '{}', which cannot be followed; attach the volume where it is now", foreign(.address)
    )]
    Moved {
        /// Where: `host:port`, perhaps with a portal group.
        address: String,
        /// For good, not for a while.
        is_permanent: bool,
    },
    /// There is no volume behind the logical unit.
    #[error("{0}")]
    NoUnit(String),
    /// The target says something about the unit that we cannot use.
    #[error("the unit cannot be used: {0}")]
    Unsupported(String),
    /// Other contents were put in place while the connection was lost.
    #[error(
        "the volume's contents were replaced at the target while the connection was lost (by a received snapshot, or a rollback), and are not what \
         was attached; detach, then attach again to see them"
    )]
    Replaced,
    /// The volume is not what is known of it.
    #[error(transparent)]
    Mismatch(#[from] UnitMismatch),
    /// The volume is sealed and no key was given.
    #[error("the volume is sealed; give its key with --key-file, or the server that has it with --key-server")]
    KeyNeeded,
    /// Others write to the volume, or use it where nobody else was to.
    #[error(transparent)]
    InUse(Box<WriterConflict>),
    /// A reservation key could not be registered, or a node not be fenced.
    #[error(transparent)]
    Reservation(Box<ReservationError>),
    /// The key could not be had.
    #[error(transparent)]
    Key(#[from] KeySourceError),
}

/// A refused login for people: what the target says of it where it says anything, else what the status means.
pub(crate) fn refusal(status: LoginStatus, reason: Option<&str>) -> String {
    match reason {
        Some(reason) => format!("{} (status {:#06x})", foreign(reason), status.0),
        None => status.to_string(),
    }
}

/// The error of a login that failed.
pub(crate) fn login_error(status: LoginStatus, redirect: Option<String>, reason: Option<&str>) -> AttachError {
    if let Some(address) = redirect {
        return AttachError::Moved { address, is_permanent: status == LoginStatus::TARGET_MOVED_PERMANENTLY };
    }
    let message = refusal(status, reason);
    // RFC 7143 §11.13.5: class 3 is the target's own trouble, which may pass.
    if status.class() == 3 { AttachError::Unreachable(message) } else { AttachError::LoginRefused(message) }
}

impl AttachError {
    /// Whether waiting and trying again can help. A refusal stays one.
    pub fn is_temporary(&self) -> bool {
        matches!(self, AttachError::Unreachable(_) | AttachError::TimedOut { .. })
    }
}
