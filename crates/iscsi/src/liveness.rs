//! When to ping a silent peer and when to give it up. A connection on which anything moves, either way, is alive: a peer
//! that takes or sends bulk data slowly must not die of an unanswered ping.

use std::time::{Duration, Instant};

/// What a time-out asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Alive,
    Ping,
    Dead,
}

#[derive(Debug)]
pub(crate) struct Liveness {
    ping_after: Duration,
    ping_timeout: Duration,
    last_moved: Instant,
    pinged: Option<Instant>,
    /// A PDU other than a ping left since the last look, so the connection took bytes; the time is not known there.
    sent_since: bool,
}

impl Liveness {
    pub(crate) fn new(now: Instant, ping_after: Duration, ping_timeout: Duration) -> Liveness {
        Liveness { ping_after, ping_timeout, last_moved: now, pinged: None, sent_since: false }
    }

    /// Something came, or bytes of something went out.
    pub(crate) fn moved(&mut self, now: Instant) {
        self.last_moved = now;
        self.pinged = None;
        self.sent_since = false;
    }

    /// The driver took a PDU other than a ping.
    pub(crate) fn sent(&mut self) {
        self.sent_since = true;
    }

    pub(crate) fn deadline(&self) -> Instant {
        match self.pinged {
            Some(at) => at + self.ping_timeout,
            None => self.last_moved + self.ping_after,
        }
    }

    pub(crate) fn look(&mut self, now: Instant) -> Verdict {
        if now < self.deadline() {
            return Verdict::Alive;
        }
        if std::mem::take(&mut self.sent_since) {
            self.moved(now);
            return Verdict::Alive;
        }
        if self.pinged.is_some() {
            return Verdict::Dead;
        }
        self.pinged = Some(now);
        Verdict::Ping
    }
}
