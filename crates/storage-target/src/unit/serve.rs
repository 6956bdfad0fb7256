//! An operation that this unit executes for a command of another unit (EXTENDED COPY).

use strongroom_store::{Op, OpError, Outcome};

use crate::open_units::{CrossUnitError, CrossUnitReply};

/// Operations that a unit executes at once for others.
pub(super) const SERVED_MAX: usize = 64;

/// The operation's reply, and its outcome while a flush makes that durable (WCE=0).
pub(super) struct ServedOperation {
    reply: CrossUnitReply,
    flushing: Option<Outcome>,
}

impl ServedOperation {
    pub(super) fn new(reply: CrossUnitReply) -> ServedOperation {
        ServedOperation { reply, flushing: None }
    }

    /// The store has executed the operation, or its flush. Without a write cache a discard is made durable before the reply: then the
    /// flush is returned.
    pub(super) fn completed(mut self, outcome: Outcome, write_cache: bool) -> Option<(ServedOperation, Op)> {
        match (self.flushing.take(), outcome) {
            (Some(outcome), Outcome::Flushed) => self.reply.tell(Ok(outcome)),
            (None, outcome @ Outcome::Written { .. }) if !write_cache => {
                self.flushing = Some(outcome);
                return Some((self, Op::Flush));
            }
            (_, outcome) => self.reply.tell(Ok(outcome)),
        }
        None
    }

    /// The store has refused it.
    pub(super) fn failed(self, error: OpError) {
        self.reply.tell(Err(CrossUnitError::Store(error)));
    }
}
