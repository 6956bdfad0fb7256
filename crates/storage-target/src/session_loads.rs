//! How many sessions with a volume each worker has: new sessions are placed at the worker with the fewest.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The count of a worker that has ended: more than of any other, also while its sessions are still being subtracted.
const ENDED: usize = usize::MAX / 2;

#[derive(Debug)]
pub(crate) struct SessionLoads(Vec<AtomicUsize>);

impl SessionLoads {
    pub(crate) fn new(workers: usize) -> SessionLoads {
        SessionLoads((0..workers).map(|_| AtomicUsize::new(0)).collect())
    }

    pub(crate) fn begin(&self, worker: usize) {
        self.0[worker].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self, worker: usize) {
        self.0[worker].fetch_sub(1, Ordering::Relaxed);
    }

    /// The worker with the fewest sessions; of several, `preferred` if it is among them.
    pub(crate) fn least_loaded(&self, preferred: usize) -> usize {
        let load = |worker: &usize| (self.0[*worker].load(Ordering::Relaxed), *worker != preferred);
        (0..self.0.len()).min_by_key(load).unwrap_or(preferred)
    }

    /// This worker takes no sessions any more.
    pub(crate) fn worker_ended(&self, worker: usize) {
        self.0[worker].store(ENDED, Ordering::Relaxed);
    }

    pub(crate) fn has_ended(&self, worker: usize) -> bool {
        self.0[worker].load(Ordering::Relaxed) > ENDED / 2
    }
}
