//! Where the session is, as far as commands are concerned, and the replay of unflushed writes after a restart of the target.

use std::time::{Duration, Instant};

use strongroom_block::DeviceError;

/// Which commands may be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// None: there is no session.
    #[default]
    Down,
    /// Only those of the replay.
    Replaying,
    Up,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Replay {
    pub(super) phase: Phase,
    /// Requests of the replay that have not ended.
    pub(super) requests: usize,
    /// Blocks of it that the target left out.
    superseded: u64,
    /// Why the replay does not go on: keys are missing that will come again.
    pub(super) missing_keys: Option<DeviceError>,
    /// Since when it has not gone on; kept over reconnects.
    pub(super) without_keys_since: Option<Instant>,
    /// How long flushes wait with it; `None`: for ever.
    pub(super) patience: Option<Duration>,
    /// The target was restarted and does not have all of the log yet; kept over reconnects.
    is_due: bool,
}

impl Replay {
    pub(super) fn new(patience: Duration) -> Replay {
        Replay { patience: Some(patience).filter(|patience| !patience.is_zero()), ..Replay::default() }
    }

    /// There is a session. Whether a replay is due; `restarted`: the target may have lost what was not flushed.
    pub(super) fn connected(&mut self, restarted: bool) -> bool {
        self.phase = Phase::Up;
        self.is_due |= restarted;
        self.is_due
    }

    /// The session is gone, and the requests of a replay with it.
    pub(super) fn disconnected(&mut self) {
        self.phase = Phase::Down;
        self.requests = 0;
        self.superseded = 0;
        self.missing_keys = None;
    }

    pub(super) fn begin(&mut self) {
        self.phase = Phase::Replaying;
    }

    pub(super) fn add_request(&mut self) {
        self.requests += 1;
    }

    pub(super) fn request_ended(&mut self) {
        self.requests -= 1;
    }

    pub(super) fn superseded(&mut self, blocks: u64) {
        self.superseded += blocks;
    }

    /// A command of the replay could be sealed and sent: there are keys.
    pub(super) fn has_keys(&mut self) {
        self.without_keys_since = None;
    }

    /// Other commands may be sent once everything was replayed.
    pub(super) fn end_if_complete(&mut self) {
        if self.phase != Phase::Replaying || self.requests > 0 {
            return;
        }
        let superseded = std::mem::take(&mut self.superseded);
        tracing::info!(
            superseded,
            "unflushed writes are with the target again, except for blocks that hold something newer"
        );
        self.is_due = false;
        self.without_keys_since = None;
        self.phase = Phase::Up;
    }

    /// When flushes stop waiting for the keys that the replay needs, if it waits for any. Without such a flush there is nothing to wake
    /// for: those that come later are looked at as they come.
    pub(super) fn patience_ends(&self) -> Option<Instant> {
        self.missing_keys.as_ref()?;
        Some(self.without_keys_since? + self.patience?)
    }
}
