//! The one thread that commits: takes what waits, decides it in order, stores it as one transaction, then answers. So that
//! every key that leaves is in the log before, and a hundred callers cost one sync.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use strongroom_block::SealingDomain;

use crate::batch::Role;
use crate::database::{Database, DatabaseError};
use crate::leases::Leases;
use crate::metrics::Metrics;
use crate::operations::{Caller, Draft, Event, LeaseTerms, Operation, Outcome};
use crate::protocol::Failure;

/// Operations that wait at most; further callers are told to come again.
const QUEUE_MAX: usize = 1024;
/// Operations in one transaction at most.
const GROUP_MAX: usize = 256;
/// Lines that are kept in memory while the database cannot be written; then keys are refused too.
pub(crate) const HELD_LINES_MAX: usize = 10_000;

struct Job {
    caller: Caller,
    operation: Operation,
    at_ms: u64,
    answer: SyncSender<Result<Outcome, Failure>>,
}

pub(crate) struct Engine {
    pub(crate) database: Arc<Database>,
    queue: Mutex<Option<SyncSender<Job>>>,
    /// Counts commits; waited on by those who watch.
    commits: Mutex<u64>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    stopping: AtomicBool,
    pub(crate) leases: Leases,
    /// In milliseconds.
    lease: AtomicU64,
    pub(crate) metrics: Arc<Metrics>,
}

/// Milliseconds since 1970, for the log alone.
pub(crate) fn wall_clock_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Engine {
    pub(crate) fn start(
        database: Arc<Database>,
        lease: Duration,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Arc<Engine>> {
        let (queue, jobs) = sync_channel(QUEUE_MAX);
        let engine = Arc::new(Engine {
            database,
            queue: Mutex::new(Some(queue)),
            commits: Mutex::new(0),
            changed: Condvar::new(),
            thread: Mutex::new(None),
            stopping: AtomicBool::new(false),
            leases: Leases::new(Instant::now()),
            lease: AtomicU64::new(lease.as_millis() as u64),
            metrics,
        });
        let committer = Arc::clone(&engine);
        let thread = thread::Builder::new().name("key-commits".into()).spawn(move || committer.run(&jobs))?;
        *engine.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(engine)
    }

    /// Does one operation; returns when it is stored.
    pub(crate) fn submit(&self, caller: Caller, operation: Operation) -> Result<Outcome, Failure> {
        let (answer, answered) = sync_channel(1);
        let job = Job { caller, operation, at_ms: wall_clock_ms(), answer };
        let stopping = || Failure::Unavailable("the key server is stopping; try again".into());
        let sent = match self.queue.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(queue) => queue.try_send(job),
            None => return Err(stopping()),
        };
        match sent {
            Ok(()) => answered.recv().unwrap_or_else(|_| Err(stopping())),
            Err(TrySendError::Full(_)) => Err(Failure::Unavailable("the key server is busy; try again".into())),
            Err(TrySendError::Disconnected(_)) => Err(stopping()),
        }
    }

    /// Waits until the volume's revision is not `revision` any more, or there is no such volume; at most until `deadline`.
    pub(crate) fn wait_for_change(&self, domain: SealingDomain, revision: u64, deadline: Instant) {
        let mut commits = self.commits.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            {
                let state = self.database.state();
                let now = state.volumes.get(&domain).map(|volume| volume.revision);
                if now != Some(revision) || state.role != Role::Primary {
                    return;
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.is_stopping() {
                return;
            }
            commits = self.changed.wait_timeout(commits, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether the volume has still this revision; the caller may then go on with it for another lease.
    pub(crate) fn is_unchanged(&self, domain: SealingDomain, revision: u64) -> bool {
        // Told while the state is held: what is committed afterwards counts it in.
        let state = self.database.state();
        let same = state.volumes.get(&domain).is_some_and(|volume| volume.revision == revision);
        if same {
            let terms = self.lease_terms();
            self.leases.given(domain, terms.lease, terms.now);
        }
        same
    }

    /// For how long keys are given out, from now on. Shortened only for those that are given out later: what is out stays out.
    pub(crate) fn set_lease(&self, lease: Duration) {
        self.lease.fetch_max(lease.as_millis() as u64, Ordering::SeqCst);
    }

    pub(crate) fn lease_terms(&self) -> LeaseTerms<'_> {
        let lease = Duration::from_millis(self.lease.load(Ordering::SeqCst));
        LeaseTerms { leases: &self.leases, lease, now: Instant::now() }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Nobody is kept waiting any more.
    pub(crate) fn announce_stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Takes no more; what waits is done.
    pub(crate) fn stop(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    pub(crate) fn wake(&self) {
        *self.commits.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    fn run(&self, jobs: &Receiver<Job>) {
        let mut held = VecDeque::new();
        while let Ok(first) = jobs.recv() {
            let group: Vec<Job> = std::iter::once(first).chain(jobs.try_iter().take(GROUP_MAX - 1)).collect();
            self.commit(&group, &mut held);
            self.wake();
        }
        // The last chance to write down what could not be written before.
        if !held.is_empty() {
            self.commit(&[], &mut held);
        }
    }

    fn commit(&self, group: &[Job], held: &mut VecDeque<Event>) {
        let recovered = self.database.recover();
        let state = self.database.state();
        let terms = self.lease_terms();
        let mut draft = Draft::new(&self.database, &state, terms);
        held.iter().for_each(|event| draft.log(event.clone()));
        let results: Vec<Result<Outcome, Failure>> = group
            .iter()
            .map(|job| match &recovered {
                Err(error) if job.operation.is_change() => Err(Failure::Unavailable(error.to_string())),
                _ => draft.operate(&job.caller, &job.operation, job.at_ms),
            })
            .collect();
        let (batch, rotated) = (draft.batch(), draft.rotated());
        let lines: Vec<Event> = draft.lines_without_changes().collect();
        drop(state);
        let stored = match (recovered, batch) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(batch)) => self.database.commit(batch),
            (Ok(()), None) => Ok(Ok(())),
        };
        match stored {
            Ok(after) => {
                held.clear();
                for (domain, old) in rotated {
                    match old {
                        0 => self.leases.created(domain, terms.lease, terms.now),
                        _ => self.leases.rotated(domain, terms.lease),
                    }
                }
                answer(group, results, after.err().map(|error| (error, false)).as_ref());
            }
            Err(error) => {
                tracing::error!(%error, "the key database cannot be written: changes are refused, keys are given out");
                let room = HELD_LINES_MAX.saturating_sub(held.len());
                let is_full = lines.len().saturating_sub(held.len()) > room;
                if !is_full {
                    for event in lines.iter().skip(held.len()) {
                        tracing::warn!(target: "strongroom_keyserver::audit", "{}", event.text);
                    }
                    *held = lines.into();
                }
                answer(group, results, Some(&(error, is_full)));
            }
        }
        self.metrics.held_lines(held.len());
    }
}

/// Tells every caller. `problem`: what was not stored; and whether not even lines can be kept any more.
fn answer(group: &[Job], results: Vec<Result<Outcome, Failure>>, problem: Option<&(DatabaseError, bool)>) {
    for (job, result) in group.iter().zip(results) {
        let result = match problem {
            Some((error, is_full)) if result.is_ok() && (job.operation.is_change() || *is_full) => {
                Err(Failure::Unavailable(error.to_string()))
            }
            _ => result,
        };
        // Whoever does not wait any more does not need it.
        let _ = job.answer.try_send(result);
    }
}
