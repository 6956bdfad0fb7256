//! What clients still wait for: operations, each of one or several requests of the device, by token. Short replies are sent by the device's own
//! thread as soon as the last request has ended; a thread of ours takes those with much data, and those after which the device has to be asked
//! once more.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slab::Slab;
use strongroom_block::{
    BlockDevice, BlockSize, Buffer, BufferMut, Completion, CompletionSink, DeviceError, DeviceErrorKind, Request,
    Token, with_foreign_parts,
};
use strongroom_nbd::{Message, NbdError, ReplyEncoder, RequestId};

use super::credit::Cost;
use super::outbox::{IN_PLACE_BYTES_MAX, Outbox};
use crate::completion::lock;

/// How long the thread sleeps at most before it looks whether it should stop.
const STOP_CHECK: Duration = Duration::from_millis(250);

/// Where a reply goes, and what it releases.
#[derive(Debug)]
pub(super) struct ReplyAddress {
    pub(super) outbox: Arc<Outbox>,
    pub(super) encoder: ReplyEncoder,
    pub(super) id: RequestId,
    pub(super) cost: Cost,
}

impl ReplyAddress {
    pub(super) fn send(&self, messages: Vec<Message>) {
        self.outbox.send(messages, self.cost);
    }

    pub(super) fn refuse(&self, error: NbdError, reason: &str) {
        self.send(vec![self.encoder.error(self.id, error, reason)]);
    }

    /// A request of the device has failed.
    pub(super) fn fail(&self, error: &DeviceError) {
        let failure = Failure::of(error);
        self.refuse(failure.error, &failure.reason);
    }
}

/// What of the blocks that were read is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadWindow {
    pub(super) skip_bytes: usize,
    pub(super) len_bytes: usize,
    pub(super) block_size: BlockSize,
    pub(super) dont_fragment: bool,
}

/// A client's request.
#[derive(Debug)]
pub(super) struct Operation {
    reply: ReplyAddress,
    /// Of a read.
    window: Option<ReadWindow>,
    /// It is answered by the thread, not by the device's.
    is_left_to_thread: bool,
    /// Requests of the device that have not ended, and one while more may be submitted.
    remaining: AtomicUsize,
    outcome: Mutex<Outcome>,
}

#[derive(Debug, Default)]
struct Outcome {
    failure: Option<Failure>,
    /// In the order of the blocks.
    data: Vec<BufferMut>,
    /// What was done has to be made durable, and that was not asked for yet.
    needs_flush: bool,
}

/// The first failure of an operation.
#[derive(Debug)]
struct Failure {
    error: NbdError,
    reason: String,
}

impl Failure {
    fn of(error: &DeviceError) -> Failure {
        Failure { error: nbd_error(error.kind), reason: with_foreign_parts(&error.to_string()).to_string() }
    }
}

impl Operation {
    fn new(reply: ReplyAddress, window: Option<ReadWindow>, is_left_to_thread: bool, outcome: Outcome) -> Operation {
        let (remaining, outcome) = (AtomicUsize::new(1), Mutex::new(outcome));
        Operation { reply, window, is_left_to_thread, remaining, outcome }
    }

    /// Anything that is answered without data.
    pub(super) fn plain(reply: ReplyAddress) -> Operation {
        Operation::new(reply, None, false, Outcome::default())
    }

    /// The same, durable before it is answered, where the device's requests cannot be.
    pub(super) fn flushed(reply: ReplyAddress) -> Operation {
        Operation::new(reply, None, true, Outcome { needs_flush: true, ..Outcome::default() })
    }

    /// A read, in this many requests.
    pub(super) fn read(reply: ReplyAddress, window: ReadWindow, requests: usize) -> Operation {
        let data = std::iter::repeat_with(|| BufferMut::to_fill(0)).take(requests).collect();
        let is_long = window.len_bytes > IN_PLACE_BYTES_MAX;
        Operation::new(reply, Some(window), is_long, Outcome { data, ..Outcome::default() })
    }

    fn take(&self, index: usize, result: Result<Option<BufferMut>, DeviceError>) {
        let mut outcome = lock(&self.outcome);
        match result {
            Ok(Some(data)) => outcome.data[index] = data,
            Ok(None) => {}
            Err(error) => {
                tracing::error!(%error, kind = ?error.kind, "request failed");
                outcome.failure.get_or_insert_with(|| Failure::of(&error));
            }
        }
    }

    fn give_up(&self) {
        let reason = "the connection ends".to_owned();
        lock(&self.outcome).failure.get_or_insert(Failure { error: NbdError::Shutdown, reason });
    }

    /// Whether it still has to be flushed; asked once.
    fn take_flush(&self) -> bool {
        let mut outcome = lock(&self.outcome);
        std::mem::take(&mut outcome.needs_flush) && outcome.failure.is_none()
    }

    fn answer(&self) {
        let Outcome { failure, data, .. } = std::mem::take(&mut *lock(&self.outcome));
        let ReplyAddress { encoder, id, .. } = self.reply;
        match (failure, self.window) {
            (Some(Failure { error, reason }), _) => self.reply.refuse(error, &reason),
            (None, None) => self.reply.send(vec![encoder.done(id)]),
            (None, Some(window)) => {
                let data = window.cut(data);
                self.reply.send(encoder.read(id, &data, window.block_size, window.dont_fragment));
            }
        }
    }
}

impl ReadWindow {
    fn cut(self, blocks: Vec<BufferMut>) -> Vec<Buffer> {
        let (mut skip, mut left) = (self.skip_bytes, self.len_bytes);
        let cut = |blocks: BufferMut| {
            let end = blocks.len().min(skip + left);
            let part = Buffer::from(blocks).slice(skip..end);
            (skip, left) = (0, left - part.len());
            part
        };
        blocks.into_iter().map(cut).collect()
    }
}

/// A request of the device, and whose it is.
#[derive(Debug)]
struct OwedPart {
    operation: Arc<Operation>,
    index: usize,
}

/// What is owed, to all clients. Bounded by their credits.
#[derive(Debug, Default)]
pub(super) struct Pending {
    parts: Mutex<Slab<OwedPart>>,
    is_stopping: AtomicBool,
}

impl Pending {
    /// Submits every request; answers when the last has ended, with the first error if there was one. For as many as it takes, this waits
    /// for the device.
    pub(super) fn submit(
        &self,
        device: &dyn BlockDevice,
        operation: Operation,
        requests: impl Iterator<Item = Request>,
    ) {
        let operation = Arc::new(operation);
        for (index, request) in requests.enumerate() {
            if operation.reply.outbox.is_broken() {
                operation.give_up();
                break;
            }
            self.submit_part(device, &operation, index, request);
        }
        self.part_ended(Some(device), &operation);
    }

    fn submit_part(&self, device: &dyn BlockDevice, operation: &Arc<Operation>, index: usize, request: Request) {
        operation.remaining.fetch_add(1, Ordering::AcqRel);
        let part = OwedPart { operation: operation.clone(), index };
        let key = lock(&self.parts).insert(part);
        device.submit(Token(key as u64), request);
    }

    /// The thread: runs until [`Pending::stop`] was called and nothing is owed any more.
    pub(super) fn answer_until_stopped(&self, device: &dyn BlockDevice) {
        let mut completions = Vec::new();
        loop {
            device.wait(Some(STOP_CHECK));
            device.poll_completions(&mut completions);
            for completion in completions.drain(..) {
                match self.remove(completion.token) {
                    Some(part) => self.part_completed(Some(device), part, completion),
                    None => tracing::error!(token = completion.token.0, "a completion that nobody waits for"),
                }
            }
            if self.is_stopping.load(Ordering::Acquire) && lock(&self.parts).is_empty() {
                return;
            }
        }
    }

    /// Lets the thread end once nothing is owed.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    fn remove(&self, token: Token) -> Option<OwedPart> {
        lock(&self.parts).try_remove(usize::try_from(token.0).ok()?)
    }

    fn part_completed(&self, device: Option<&dyn BlockDevice>, part: OwedPart, completion: Completion) {
        part.operation.take(part.index, completion.result);
        self.part_ended(device, &part.operation);
    }

    /// `device`: none in the device's own thread, which must not submit.
    fn part_ended(&self, device: Option<&dyn BlockDevice>, operation: &Arc<Operation>) {
        if operation.remaining.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        if operation.take_flush() {
            let device = device.expect("what is flushed is left to the thread");
            return self.submit_part(device, operation, 0, Request::Flush);
        }
        operation.answer();
    }
}

impl CompletionSink for Pending {
    fn complete(&self, completion: Completion) -> Option<Completion> {
        let mut parts = lock(&self.parts);
        let is_ours = |key: &usize| parts.get(*key).is_some_and(|part| !part.operation.is_left_to_thread);
        // What is not ours is the last flush's.
        let Some(key) = usize::try_from(completion.token.0).ok().filter(is_ours) else { return Some(completion) };
        let part = parts.remove(key);
        drop(parts);
        self.part_completed(None, part, completion);
        None
    }
}

/// What a client sees.
fn nbd_error(kind: DeviceErrorKind) -> NbdError {
    match kind {
        DeviceErrorKind::Medium | DeviceErrorKind::Hardware | DeviceErrorKind::Unreachable | DeviceErrorKind::NoKey => {
            NbdError::Io
        }
        DeviceErrorKind::OutOfRange => NbdError::Invalid,
        DeviceErrorKind::NoSpace => NbdError::NoSpace,
        DeviceErrorKind::ReadOnly | DeviceErrorKind::ReservationConflict | DeviceErrorKind::Refused => {
            NbdError::NotPermitted
        }
    }
}
