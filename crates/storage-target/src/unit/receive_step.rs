//! A step of a stream that is received into the volume: its answer, and why it may be refused.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use strongroom_store::{OpError, Outcome, ReceiveStep, StreamError};

use crate::access::Identity;

/// Whose session, or lease, lets it write to the volume, so that a reception is refused.
#[derive(Clone, Debug)]
pub(crate) struct PossibleWriter {
    pub(crate) initiator_name: Arc<str>,
    /// `None`: of a lease whose holder is away.
    pub(crate) identity: Option<Identity>,
}

/// Why a step was not done.
#[derive(Debug)]
pub(crate) enum StepError {
    /// There is no room for it now.
    Busy(Box<ReceiveStep>),
    Stream(StreamError),
    /// These could write.
    InUse(Vec<PossibleWriter>),
    /// What readers see could not be pinned on disk.
    NotPinned(std::io::Error),
}

/// A step, and to whom it is answered.
pub(super) struct RequestedStep {
    pub(super) step: Box<ReceiveStep>,
    pub(super) reply: Sender<Result<(), StepError>>,
}

impl RequestedStep {
    /// It is not done.
    pub(super) fn refuse(self, error: StepError) {
        let _ = self.reply.send(Err(error));
    }
}

/// A step that the store works on.
pub(super) struct RunningStep {
    reply: Sender<Result<(), StepError>>,
    is_end: bool,
}

impl RunningStep {
    pub(super) fn new(reply: Sender<Result<(), StepError>>, is_end: bool) -> RunningStep {
        RunningStep { reply, is_end }
    }

    /// Whether it is the last step of its stream.
    pub(super) fn is_end(&self) -> bool {
        self.is_end
    }

    /// The store has done it, or could not.
    pub(super) fn done(self, result: Result<Outcome, OpError>) {
        let outcome = result.map(drop).map_err(|error| StepError::Stream(StreamError::of_step(error)));
        let _ = self.reply.send(outcome);
    }
}
