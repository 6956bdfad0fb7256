//! An operation that this unit executes for a command of another unit (EXTENDED COPY).

use strongroom_scsi::transport::target::Response;
use strongroom_store::{Op, OpError, Outcome};

use crate::open_units::{CrossUnitError, CrossUnitReply};
use crate::unit::medium::Medium;
use crate::unit::plan::Advance;

/// Operations that a unit executes at once for others.
pub(crate) const SERVED_MAX: usize = 64;

/// The operation's reply, and its outcome while a flush makes that durable (WCE=0).
pub(crate) struct ServedOperation {
    reply: CrossUnitReply,
    flushing: Option<Outcome>,
}

impl ServedOperation {
    pub(crate) fn new(reply: CrossUnitReply) -> ServedOperation {
        ServedOperation { reply, flushing: None }
    }

    /// The store has executed the operation, or its flush. Without a write cache a discard is made durable before the reply.
    pub(super) fn advance(mut self: Box<Self>, outcome: Outcome, medium: &Medium) -> Advance<Box<ServedOperation>> {
        match (self.flushing.take(), outcome) {
            (Some(outcome), Outcome::Flushed) => self.reply.tell(Ok(outcome)),
            (None, outcome @ Outcome::Written { .. }) if medium.state.forces_unit_access(false) => {
                self.flushing = Some(outcome);
                return Advance::Again(self, Op::Flush);
            }
            (_, outcome) => self.reply.tell(Ok(outcome)),
        }
        Advance::Done(Response::good())
    }

    /// The store has refused it.
    pub(super) fn failed(self, error: OpError) {
        self.reply.tell(Err(CrossUnitError::Store(error)));
    }
}
