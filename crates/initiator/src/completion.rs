//! Where finished requests wait for their one consumer: the half of `BlockDevice` that every device here shares.
//!
//! Absent: any limit. What may be in flight is limited where requests come in; a completion only replaces its request.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use strongroom_block::{Completion, CompletionSink, DeviceError, DeviceErrorKind, Lba};

/// Finished requests in the order in which they finished.
#[derive(Debug, Default)]
pub(crate) struct CompletionQueue {
    finished: Mutex<Vec<Completion>>,
    arrived: Condvar,
    /// Is offered each of them first.
    sink: RwLock<Option<Arc<dyn CompletionSink>>>,
}

impl CompletionQueue {
    /// Adds one; wakes the consumer. To be called without a lock that the sink or a submitter might want.
    pub(crate) fn push(&self, completion: Completion) {
        let left = match self.sink() {
            Some(sink) => sink.complete(completion),
            None => Some(completion),
        };
        if let Some(completion) = left {
            lock(&self.finished).push(completion);
            self.arrived.notify_one();
        }
    }

    /// Moves everything in `batch` over with one wake-up. As [`CompletionQueue::push`].
    pub(crate) fn append(&self, batch: &mut Vec<Completion>) {
        if batch.is_empty() {
            return;
        }
        if let Some(sink) = self.sink() {
            *batch = batch.drain(..).filter_map(|completion| sink.complete(completion)).collect();
        }
        if !batch.is_empty() {
            lock(&self.finished).append(batch);
            self.arrived.notify_one();
        }
    }

    /// As [`strongroom_block::BlockDevice::offer_completions`].
    pub(crate) fn offer_to(&self, sink: Arc<dyn CompletionSink>) {
        *self.sink.write().unwrap_or_else(PoisonError::into_inner) = Some(sink);
    }

    fn sink(&self) -> Option<Arc<dyn CompletionSink>> {
        self.sink.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// As [`strongroom_block::BlockDevice::poll_completions`].
    pub(crate) fn poll(&self, completions: &mut Vec<Completion>) -> usize {
        let mut finished = lock(&self.finished);
        let count = finished.len();
        completions.append(&mut finished);
        count
    }

    /// As [`strongroom_block::BlockDevice::wait`].
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> bool {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut finished = lock(&self.finished);
        while finished.is_empty() {
            finished = match deadline {
                None => self.arrived.wait(finished).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    self.arrived.wait_timeout(finished, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }
}

/// Locks, also after a thread panicked while it held the lock: what these locks protect is whole at every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device error for people and programs.
pub(crate) fn device_error(kind: DeviceErrorKind, lba: Option<Lba>, message: impl Into<String>) -> DeviceError {
    DeviceError { kind, lba, message: message.into() }
}
