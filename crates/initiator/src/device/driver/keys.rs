//! What the thread does when keys come, move on, or go.

use std::time::Instant;

use super::{Driver, SessionState};
use crate::AttachError;
use crate::session::transport::SessionTransport;

impl<T: SessionTransport> Driver<T> {
    /// Ends a lease that is over, and tells the engine what has changed.
    pub(super) fn look_at_keys(&mut self, now: Instant) {
        let expired = self.attachment.sealing.as_ref().is_some_and(|sealing| sealing.expire());
        if (self.intake.take_keys_changed() || expired)
            && let Some(engine) = &mut self.attachment.engine
        {
            engine.keys_changed();
        }
        self.cut_without_keys(now);
    }

    /// What was sealed with keys that are gone must not reach the target any more: their epoch may be about to be destroyed. What waits
    /// in a socket does not, if the connection is reset.
    fn cut_without_keys(&mut self, now: Instant) {
        let is_gone = self.attachment.sealing.as_ref().is_some_and(|sealing| !sealing.has_keys());
        if !is_gone || !self.attachment.engine.as_ref().is_some_and(|engine| engine.table.has_unanswered_writes()) {
            return;
        }
        if let SessionState::Active(nexus) = &mut self.state {
            nexus.wires().iter().for_each(|wire| self.runtime.abort(wire.stream));
        }
        self.lose(now, AttachError::Unreachable("the keys are gone, and writes were not answered".into()));
    }
}
