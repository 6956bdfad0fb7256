//! How the sessions at a store share its queue. A store takes a limited number of requests and answers BUSY to the rest; if that were all, those
//! who ask for much at once would have all of it, and refill it faster than any other comes back.
//!
//! A session may have no more in the queue than is free in it (the dynamic threshold of Choudhury and Hahne, "Dynamic queue length
//! thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking 6 (2), 1998): one alone gets half of it, `n` get
//! 1/(n + 1) each, and a new session finds room at once. What is beyond that waits in its own session and is not answered BUSY.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;
use strongroom_scsi::transport::target::TaskId;
use strongroom_store::OpenOptions;

/// What sessions share. The rest is for what the target does of its own: what goes on after its answer, jobs, copies for other units.
const OPS_MAX: u64 = OpenOptions::QUEUE_OPS_MAX_DEFAULT as u64 - 256;
const BYTES_MAX: u64 = OpenOptions::QUEUE_BYTES_MAX_DEFAULT as u64 - (32 << 20);

/// What the sessions of all workers have in one store's queue.
#[derive(Debug, Default)]
pub(crate) struct StoreQueue {
    ops: AtomicU64,
    bytes: AtomicU64,
}

/// What of that is one session's; given back when it goes.
#[derive(Debug, Default)]
pub(crate) struct Share {
    queue: Arc<StoreQueue>,
    tasks: FxHashMap<TaskId, u64>,
    bytes: u64,
}

impl Share {
    pub(crate) fn of(queue: Arc<StoreQueue>) -> Share {
        Share { queue, tasks: FxHashMap::default(), bytes: 0 }
    }

    /// Whether a command may go to the store that takes this many bytes of its queue. Always, if the session has none there: then no
    /// completion would bring it on.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let free_ops = OPS_MAX.saturating_sub(self.queue.ops.load(Ordering::Relaxed));
        let free_bytes = BYTES_MAX.saturating_sub(self.queue.bytes.load(Ordering::Relaxed));
        self.tasks.is_empty() || ((self.tasks.len() as u64) < free_ops && self.bytes + bytes <= free_bytes)
    }

    /// A command went there.
    pub(crate) fn begin(&mut self, task: TaskId, bytes: u64) {
        if self.tasks.insert(task, bytes).is_none() {
            self.bytes += bytes;
            self.queue.ops.fetch_add(1, Ordering::Relaxed);
            self.queue.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// It is over; nothing happens to one that did not go there.
    pub(crate) fn end(&mut self, task: TaskId) {
        if let Some(bytes) = self.tasks.remove(&task) {
            self.bytes -= bytes;
            self.queue.ops.fetch_sub(1, Ordering::Relaxed);
            self.queue.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.queue.ops.fetch_sub(self.tasks.len() as u64, Ordering::Relaxed);
        self.queue.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    //! Proves that every newcomer finds room in the queue, however much those before him want of it, and that they give way.
    use super::*;

    /// Takes as much as there is; how much that was.
    fn fill(share: &mut Share, bytes: u64) -> u64 {
        let mut next = share.tasks.keys().map(|task| task.0 + 1).max().unwrap_or(0);
        let before = share.tasks.len();
        while share.has_room(bytes) {
            share.begin(TaskId(next), bytes);
            next += 1;
        }
        (share.tasks.len() - before) as u64
    }

    #[test]
    fn sessions_share_the_queue() {
        const MIB: u64 = 1 << 20;
        // Many small commands, or large ones.
        for (bytes, limit) in [(0, OPS_MAX), (MIB, BYTES_MAX / MIB)] {
            let queue = Arc::new(StoreQueue::default());
            let mut shares: Vec<Share> = Vec::new();
            for _ in 0..5 {
                let mut share = Share::of(Arc::clone(&queue));
                assert!(fill(&mut share, bytes) > 0, "there is room for who comes");
                shares.push(share);
            }
            assert_eq!(shares[0].tasks.len() as u64, limit / 2);
            // Each gets its answers and asks for more, again and again.
            for round in 0..10_000 {
                let at = round % 5;
                let oldest = shares[at].tasks.keys().copied().min().expect("it has some");
                shares[at].end(oldest);
                fill(&mut shares[at], bytes);
                let total = shares.iter().map(|share| share.tasks.len() as u64).sum::<u64>();
                assert!(total < limit, "{total} of {limit}");
            }
            for share in &shares {
                let part = share.tasks.len() as u64;
                assert!((limit / 6 - 2..=limit / 6 + 2).contains(&part), "{part} of {limit}");
            }
            let mut another = Share::of(Arc::clone(&queue));
            assert!(fill(&mut another, bytes) >= limit / 16, "and the next one");
            drop(shares);
            drop(another);
            assert_eq!((queue.ops.load(Ordering::Relaxed), queue.bytes.load(Ordering::Relaxed)), (0, 0));
        }
    }

    #[test]
    fn who_has_nothing_there_goes_on_in_any_case() {
        let queue = Arc::new(StoreQueue::default());
        let mut first = Share::of(Arc::clone(&queue));
        (0..OPS_MAX).for_each(|task| first.begin(TaskId(task), 1));
        let mut second = Share::of(queue);
        assert!(!first.has_room(0) && second.has_room(BYTES_MAX));
        second.begin(TaskId(0), 0);
        assert!(!second.has_room(0));
        (0..10).for_each(|task| first.end(TaskId(task)));
        first.end(TaskId(0));
        assert!(second.has_room(0) && !first.has_room(0));
    }
}
