//! The further connections of a session: how many there may be, and when the next one is called.

use std::time::{Duration, Instant};

use strongroom_iscsi::LoginStatus;
use strongroom_iscsi::initiator::Session;

/// This many refusals in a row are believed: the session makes do with what it has.
const REFUSALS_MAX: u32 = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct FurtherConnections {
    /// Connections that the session may have, the leading one included.
    wanted: usize,
    /// No further one is called before.
    call_at: Option<Instant>,
    backoff: Duration,
    /// Refusals in a row.
    refusals: u32,
}

impl FurtherConnections {
    pub(super) fn new(backoff: Duration) -> FurtherConnections {
        FurtherConnections { wanted: 1, call_at: None, backoff, refusals: 0 }
    }

    /// What was agreed in the login, of the number that was asked for.
    pub(super) fn agreed(&mut self, connections_max: u16, asked_for: u16) {
        self.wanted = usize::from(connections_max.min(asked_for.max(1)));
        if self.wanted < usize::from(asked_for) {
            tracing::warn!(asked_for, connections = self.wanted, "the target takes fewer connections per session");
        }
    }

    /// When the next one is to be called, if one is missing. `count`: those that there are.
    pub(super) fn due(&self, session: &Session, count: usize) -> Option<Instant> {
        // The first to come back continues the session; the others follow.
        let wanted = if session.is_suspended() { 1 } else { self.wanted };
        self.call_at.max(session.continues_at()).filter(|_| count < wanted)
    }

    /// The next one may be called now.
    pub(super) fn now(&mut self, now: Instant) {
        self.call_at = Some(now);
    }

    /// One could not be called, or was lost: the next try waits.
    pub(super) fn later(&mut self, now: Instant, backoff_max: Duration) {
        self.call_at = Some(now + self.backoff);
        self.backoff = (self.backoff * 2).min(backoff_max);
    }

    /// One has joined the session.
    pub(super) fn joined(&mut self, now: Instant, backoff_min: Duration) {
        self.backoff = backoff_min;
        self.refusals = 0;
        self.call_at = Some(now);
    }

    /// The target refused one.
    pub(super) fn refused(&mut self, status: &LoginStatus, session: &Session) {
        self.refusals += 1;
        if self.refusals == REFUSALS_MAX {
            tracing::warn!(%status, "the target takes no further connection into the session");
            self.wanted = session.connections().count();
        }
    }
}
