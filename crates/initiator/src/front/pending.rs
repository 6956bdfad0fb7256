//! What programs still wait for: operations, each of one or several requests of the device, by token. Who asked is answered in the device's own
//! thread as soon as the last request has ended; a thread of ours answers those with much data, and those after which the device has to be
//! asked once more.
//!
//! Absent: what an answer looks like, which is the front end's ([`Asker`]).

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slab::Slab;
use strongroom_block::{BlockDevice, BufferMut, Completion, CompletionSink, DeviceError, Request, Token};

use crate::completion::lock;

/// How long the thread sleeps at most before it looks whether it should stop.
const STOP_CHECK: Duration = Duration::from_millis(250);

/// Who has asked for an operation.
pub(super) trait Asker: fmt::Debug + Send + Sync {
    /// Takes the outcome, once: of a read the data, in the order of the blocks. May be called in the device's own thread, and then must return
    /// soon and submit nothing.
    fn answer(&self, outcome: Result<Vec<BufferMut>, OperationError>);

    /// Nobody waits for the answer any more; what is not submitted yet need not be.
    fn is_gone(&self) -> bool {
        false
    }
}

/// Why an operation failed.
#[derive(Debug)]
pub(super) enum OperationError {
    /// The first request of the device that failed.
    Device(DeviceError),
    /// Its asker was gone before everything was submitted.
    GivenUp,
}

/// What somebody has asked for.
#[derive(Debug)]
pub(super) struct Operation<A> {
    asker: A,
    /// It is answered by the thread, not by the device's.
    is_left_to_thread: bool,
    /// Requests of the device that have not ended, and one while more may be submitted.
    remaining: AtomicUsize,
    outcome: Mutex<Outcome>,
}

#[derive(Debug, Default)]
struct Outcome {
    failure: Option<OperationError>,
    /// In the order of the blocks.
    data: Vec<BufferMut>,
    /// What was done has to be made durable, and that was not asked for yet.
    needs_flush: bool,
}

impl<A: Asker> Operation<A> {
    fn new(asker: A, is_left_to_thread: bool, outcome: Outcome) -> Operation<A> {
        Operation { asker, is_left_to_thread, remaining: AtomicUsize::new(1), outcome: Mutex::new(outcome) }
    }

    /// Anything that is answered without data.
    pub(super) fn plain(asker: A) -> Operation<A> {
        Operation::new(asker, false, Outcome::default())
    }

    /// The same, durable before it is answered, where the device's requests cannot be.
    pub(super) fn flushed(asker: A) -> Operation<A> {
        Operation::new(asker, true, Outcome { needs_flush: true, ..Outcome::default() })
    }

    /// A read, in this many requests. `is_long`: there is too much data for the device's own thread.
    pub(super) fn read(asker: A, requests: usize, is_long: bool) -> Operation<A> {
        let data = std::iter::repeat_with(|| BufferMut::to_fill(0)).take(requests).collect();
        Operation::new(asker, is_long, Outcome { data, ..Outcome::default() })
    }

    fn take(&self, index: usize, result: Result<Option<BufferMut>, DeviceError>) {
        let mut outcome = lock(&self.outcome);
        match result {
            Ok(Some(data)) => outcome.data[index] = data,
            Ok(None) => {}
            Err(error) => {
                tracing::error!(%error, kind = ?error.kind, "request failed");
                outcome.failure.get_or_insert(OperationError::Device(error));
            }
        }
    }

    fn give_up(&self) {
        lock(&self.outcome).failure.get_or_insert(OperationError::GivenUp);
    }

    /// Whether it still has to be flushed; asked once.
    fn take_flush(&self) -> bool {
        let mut outcome = lock(&self.outcome);
        std::mem::take(&mut outcome.needs_flush) && outcome.failure.is_none()
    }

    fn answer(&self) {
        let Outcome { failure, data, .. } = std::mem::take(&mut *lock(&self.outcome));
        self.asker.answer(failure.map_or(Ok(data), Err));
    }
}

/// A request of the device, and whose it is.
#[derive(Debug)]
struct OwedPart<A> {
    operation: Arc<Operation<A>>,
    index: usize,
}

/// What is owed, to all askers. Bounded by their credits.
#[derive(Debug)]
pub(super) struct Pending<A> {
    parts: Mutex<Slab<OwedPart<A>>>,
    is_stopping: AtomicBool,
}

impl<A: Asker> Pending<A> {
    pub(super) fn new() -> Pending<A> {
        Pending { parts: Mutex::new(Slab::new()), is_stopping: AtomicBool::new(false) }
    }

    /// Submits every request; answers when the last has ended, with the first error if there was one. For as many as it takes, this waits
    /// for the device.
    pub(super) fn submit(
        &self,
        device: &dyn BlockDevice,
        operation: Operation<A>,
        requests: impl Iterator<Item = Request>,
    ) {
        let operation = Arc::new(operation);
        for (index, request) in requests.enumerate() {
            if operation.asker.is_gone() {
                operation.give_up();
                break;
            }
            self.submit_part(device, &operation, index, request);
        }
        self.part_ended(Some(device), &operation);
    }

    fn submit_part(&self, device: &dyn BlockDevice, operation: &Arc<Operation<A>>, index: usize, request: Request) {
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

    fn remove(&self, token: Token) -> Option<OwedPart<A>> {
        lock(&self.parts).try_remove(usize::try_from(token.0).ok()?)
    }

    fn part_completed(&self, device: Option<&dyn BlockDevice>, part: OwedPart<A>, completion: Completion) {
        part.operation.take(part.index, completion.result);
        self.part_ended(device, &part.operation);
    }

    /// `device`: none in the device's own thread, which must not submit.
    fn part_ended(&self, device: Option<&dyn BlockDevice>, operation: &Arc<Operation<A>>) {
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

impl<A: Asker> CompletionSink for Pending<A> {
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
