//! A bounded pool of threads for work that blocks. Threads are started when there is work and end when there is none, so that a pool
//! needs no stopping.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs, a bounded number at the same time, in the order of submission.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Inner>);

struct Inner {
    name: &'static str,
    threads_max: usize,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    waiting: VecDeque<Job>,
    threads: usize,
    /// Most threads that there were at the same time.
    threads_peak: usize,
}

impl Pool {
    /// `name` is that of its threads.
    pub(crate) fn new(name: &'static str, threads_max: usize) -> Pool {
        Pool(Arc::new(Inner { name, threads_max, state: Mutex::default() }))
    }

    /// Has a job done.
    ///
    /// # Errors
    /// No thread could be started, and there is none: the job is dropped.
    pub(crate) fn submit(&self, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut state = self.0.state();
        state.waiting.push_back(Box::new(job));
        if state.threads == self.0.threads_max {
            return Ok(());
        }
        match Inner::start_thread(&self.0, &mut state) {
            // Those that there are will come to it.
            Err(_) if state.threads > 0 => Ok(()),
            Err(error) => {
                state.waiting.pop_back();
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Most threads that there were at the same time.
    #[cfg(test)]
    pub(crate) fn threads_peak(&self) -> usize {
        self.0.state().threads_peak
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_thread(inner: &Arc<Inner>, state: &mut PoolState) -> io::Result<()> {
        let own = Arc::clone(inner);
        let body = move || {
            let thread = PoolThread(own);
            while let Some(job) = thread.next_job() {
                job();
            }
        };
        std::thread::Builder::new().name(inner.name.to_owned()).spawn(body)?;
        state.threads += 1;
        state.threads_peak = state.threads_peak.max(state.threads);
        Ok(())
    }
}

/// A thread of the pool; replaced by another one if a job panics while others wait.
struct PoolThread(Arc<Inner>);

impl PoolThread {
    fn next_job(&self) -> Option<Job> {
        let mut state = self.0.state();
        let job = state.waiting.pop_front();
        if job.is_none() {
            // Under the same lock: the next submission sees that there is one thread less.
            state.threads -= 1;
        }
        job
    }
}

impl Drop for PoolThread {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.state();
            state.threads -= 1;
            if !state.waiting.is_empty() {
                let _ = Inner::start_thread(&self.0, &mut state);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn jobs_share_few_threads() {
        let pool = Pool::new("test", 4);
        let (done, results) = mpsc::channel();
        for number in 0..1000 {
            let done = done.clone();
            pool.submit(move || done.send(number).unwrap()).unwrap();
        }
        drop(done);
        let mut results: Vec<i32> = results.iter().collect();
        results.sort_unstable();
        assert_eq!(results, (0..1000).collect::<Vec<_>>());
        assert!(pool.threads_peak() <= 4);
    }

    #[test]
    fn a_job_that_panics_takes_no_other_along() {
        let pool = Pool::new("test", 1);
        let (done, results) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        pool.submit(move || {
            let _ = wait.recv();
            panic!("as this test wants");
        })
        .unwrap();
        pool.submit(move || done.send(1).unwrap()).unwrap();
        drop(go);
        assert_eq!(results.recv_timeout(Duration::from_secs(60)), Ok(1));
    }
}
