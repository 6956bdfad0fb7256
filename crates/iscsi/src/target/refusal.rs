//! Why a login cannot go on: what the initiator is told, and what the log says.

use crate::error::{LoginStatus, PeerMisbehaved};

/// A refused login.
pub(super) struct Refusal {
    /// Goes out in the login response (RFC 7143 §11.13.5).
    pub(super) status: LoginStatus,
    /// Goes into the log.
    pub(super) reason: PeerMisbehaved,
}

impl Refusal {
    pub(super) fn new(status: LoginStatus, reason: &'static str) -> Refusal {
        Refusal { status, reason: PeerMisbehaved::Login(reason) }
    }

    /// The initiator broke a rule of the login.
    pub(super) fn initiator(reason: &'static str) -> Refusal {
        Refusal::new(LoginStatus::INITIATOR_ERROR, reason)
    }

    pub(super) fn authentication(reason: &'static str) -> Refusal {
        Refusal::new(LoginStatus::AUTHENTICATION_FAILED, reason)
    }
}

impl<E: Into<PeerMisbehaved>> From<E> for Refusal {
    fn from(error: E) -> Refusal {
        Refusal { status: LoginStatus::INITIATOR_ERROR, reason: error.into() }
    }
}
