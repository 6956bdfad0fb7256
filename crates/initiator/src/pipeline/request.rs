//! Requests on their way from callers to the engine and back.

use std::sync::mpsc::SyncSender;

use strongroom_block::{BufferMut, DeviceError, Lba, Token};

use crate::pipeline::ahead::FetchId;
use crate::pipeline::answer::Answer;
use crate::pipeline::losses::LostRequest;
use crate::pipeline::operation::Operation;

/// A request, checked and (where it writes blocks) sealed.
#[derive(Debug)]
pub(crate) struct NewRequest {
    pub(crate) reply: Reply,
    /// What it counts against the limit of bytes.
    pub(crate) cost_bytes: usize,
    pub(crate) operation: Operation,
}

/// Who waits for a request.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The device's consumer.
    Token(Token),
    /// A caller that blocks for an answer of its own.
    Caller(SyncSender<Result<Answer, DeviceError>>),
    /// Readahead.
    Ahead(FetchId),
    /// The engine itself.
    Engine(Purpose),
}

/// What a request of the engine's own is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Sends an unflushed write again to a target that was restarted.
    Replay,
    /// Bounds the log of unflushed writes.
    Flush,
    /// Tells the target which versions opened.
    Feedback,
    /// Registers an attach id.
    Registration,
}

/// What a request was that failed.
#[derive(Debug)]
pub(crate) enum FailedRequest {
    /// Where it began, and its buffer.
    Read(Lba, BufferMut),
    /// A write or a flush.
    Lost(LostRequest),
}

/// A request that has ended: the caller's side tells who waits and gives its limits back.
#[derive(Debug)]
pub(crate) struct FinishedRequest {
    pub(crate) reply: Reply,
    pub(crate) cost_bytes: usize,
    pub(crate) result: Result<Answer, DeviceError>,
    /// What it was, if it failed and that matters.
    pub(crate) failed: Option<FailedRequest>,
}
