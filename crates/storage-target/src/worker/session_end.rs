//! How a session has ended, whichever transport it had.

use std::fmt;

use strongroom_ecl::CloseReason as EclCloseReason;
use strongroom_iscsi::CloseReason;

/// How a session has ended.
#[derive(Debug)]
pub(super) enum SessionEnd {
    /// Its initiator logged out.
    LoggedOut,
    /// Its initiator broke a rule.
    Misbehaved(String),
    /// Anything else.
    Other(String),
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionEnd::LoggedOut => f.write_str("logged out"),
            SessionEnd::Misbehaved(reason) | SessionEnd::Other(reason) => f.write_str(reason),
        }
    }
}

impl From<&CloseReason> for SessionEnd {
    fn from(reason: &CloseReason) -> SessionEnd {
        match reason {
            CloseReason::LoggedOut => SessionEnd::LoggedOut,
            CloseReason::Misbehaved(_) => SessionEnd::Misbehaved(reason.to_string()),
            _ => SessionEnd::Other(reason.to_string()),
        }
    }
}

impl From<&EclCloseReason> for SessionEnd {
    fn from(reason: &EclCloseReason) -> SessionEnd {
        match reason {
            EclCloseReason::LoggedOut => SessionEnd::LoggedOut,
            EclCloseReason::Misbehaved(_) => SessionEnd::Misbehaved(reason.to_string()),
            _ => SessionEnd::Other(reason.to_string()),
        }
    }
}
