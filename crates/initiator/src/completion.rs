//! Where finished requests wait for their one consumer: the half of `BlockDevice` that every device here shares.
//!
//! Absent: any limit. What may be in flight is limited where requests come in; a completion only replaces its request.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use strongroom_block::{Completion, CompletionSink, DeviceError, DeviceErrorKind, Lba};
use strongroom_net::{BusyPoll, BusyPoller, Look, PollCounters};

/// Finished requests in the order in which they finished.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    finished: Mutex<Finished>,
    arrived: Condvar,
    /// Completions that wait, for a consumer that looks without the lock.
    count: AtomicUsize,
    poller: Mutex<BusyPoller>,
    /// Is offered each of them first.
    sink: RwLock<Option<Arc<dyn CompletionSink>>>,
}

#[derive(Debug, Default)]
struct Finished {
    completions: Vec<Completion>,
    /// The consumer has to be woken.
    sleeps: bool,
}

impl Default for CompletionQueue {
    fn default() -> CompletionQueue {
        CompletionQueue::new(BusyPoll::Off)
    }
}

impl CompletionQueue {
    /// Empty. Before it sleeps the consumer looks for completions as `busy_poll` says.
    pub(crate) fn new(busy_poll: BusyPoll) -> CompletionQueue {
        CompletionQueue {
            finished: Mutex::default(),
            arrived: Condvar::new(),
            count: AtomicUsize::new(0),
            poller: Mutex::new(BusyPoller::new(busy_poll)),
            sink: RwLock::new(None),
        }
    }

    /// What busy polling came to.
    pub(crate) fn poll_counters(&self) -> PollCounters {
        lock(&self.poller).counters
    }

    /// Adds one; wakes the consumer. To be called without a lock that the sink or a submitter might want.
    pub(crate) fn push(&self, completion: Completion) {
        let left = match self.sink() {
            Some(sink) => sink.complete(completion),
            None => Some(completion),
        };
        if let Some(completion) = left {
            self.add(|completions| completions.push(completion));
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
            self.add(|completions| completions.append(batch));
        }
    }

    fn add(&self, add: impl FnOnce(&mut Vec<Completion>)) {
        let mut finished = lock(&self.finished);
        add(&mut finished.completions);
        self.count.store(finished.completions.len(), Ordering::Release);
        if std::mem::take(&mut finished.sleeps) {
            drop(finished);
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
        let count = finished.completions.len();
        completions.append(&mut finished.completions);
        self.count.store(0, Ordering::Release);
        count
    }

    /// As [`strongroom_block::BlockDevice::wait`].
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> bool {
        if self.has_some() {
            return true;
        }
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut poller = lock(&self.poller);
        let look = poller.begin().map(|limit| timeout.map_or(limit, |timeout| timeout.min(limit)));
        let is_there = look.is_some_and(|limit| poller.look(limit, || self.has_some()) == Look::Hit);
        drop(poller);
        let is_there = is_there || self.sleep(deadline);
        lock(&self.poller).end(is_there);
        is_there
    }

    fn has_some(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    fn sleep(&self, deadline: Option<Instant>) -> bool {
        let mut finished = lock(&self.finished);
        while finished.completions.is_empty() {
            finished.sleeps = true;
            finished = match deadline {
                None => self.arrived.wait(finished).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        finished.sleeps = false;
                        return false;
                    }
                    self.arrived.wait_timeout(finished, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        finished.sleeps = false;
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

#[cfg(test)]
mod tests {
    //! Proves that a consumer which looks for completions gets each of them, sleeping or not, and keeps time.

    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use strongroom_block::Token;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn no_completion_is_slept_through() {
        // About as long as the pauses, so that some arrive while it looks, some while it sleeps, and some in between.
        let queue = Arc::new(CompletionQueue::new(BusyPoll::UpTo(Duration::from_micros(150))));
        let (taken, answers) = channel();
        let producer = {
            let queue = Arc::clone(&queue);
            std::thread::spawn(move || {
                for round in 0..3000_u64 {
                    let begun = Instant::now();
                    while begun.elapsed() < Duration::from_micros(round * 7 % 300) {
                        std::hint::spin_loop();
                    }
                    queue.push(Completion { token: Token(round), result: Ok(None) });
                    answers.recv_timeout(PATIENCE).expect("nobody takes it");
                }
            })
        };
        let mut completions = Vec::new();
        for round in 0..3000 {
            assert!(queue.wait(Some(PATIENCE)), "slept through a completion");
            assert_eq!(queue.poll(&mut completions), 1);
            assert_eq!(completions.pop().map(|completion| completion.token), Some(Token(round)));
            taken.send(()).expect("the producer goes on");
        }
        producer.join().expect("it ended in order");
        let PollCounters { polls, hits, misses, contended, .. } = queue.poll_counters();
        assert!(polls > 0 && polls == hits + misses + contended, "{polls} {hits} {misses} {contended}");
    }

    #[test]
    fn a_wait_in_vain_keeps_time() {
        for busy_poll in [BusyPoll::Off, BusyPoll::UpTo(Duration::from_millis(10))] {
            let queue = CompletionQueue::new(busy_poll);
            for round in 0..100 {
                queue.push(Completion { token: Token(round), result: Ok(None) });
                assert!(queue.wait(None));
                queue.poll(&mut Vec::new());
            }
            let begun = Instant::now();
            assert!(!queue.wait(Some(Duration::from_millis(3))));
            assert!(begun.elapsed() >= Duration::from_millis(3));
        }
    }
}
