//! The one thread that commits: takes what waits, decides it in order, stores it as one transaction, then answers. So that
//! every key that leaves is in the log before, and a hundred callers cost one sync.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use strongroom_block::SealingDomain;
use strongroom_handshake::PublicKey;

use crate::audit::{AuditHead, line};
use crate::batch::{Batch, Role};
use crate::database::{Database, DatabaseError};
use crate::leases::Leases;
use crate::metrics::Metrics;
use crate::operations::{Caller, Draft, Event, LineKey, Operation, Outcome, Recent, RepeatCount, Terms};
use crate::protocol::Failure;
use crate::replication::Replication;

/// Operations that wait at most; further callers are told to come again.
const QUEUE_MAX: usize = 1024;
/// How soon a probe is sent again that found the queue full.
const PROBE_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// Operations in one transaction at most.
const GROUP_MAX: usize = 256;
/// Between two tries to open a database that could not be written.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// Lines that are remembered, so as not to be written again; old ones are forgotten beyond.
const RECENT_MAX: usize = 10_000;
const RECENT_FOR: Duration = Duration::from_secs(600);
/// How far a promoted server's sequence is ahead of what it had.
pub(crate) const SEQUENCE_GAP: u64 = 1 << 32;
/// Lines that are kept in memory while the database cannot be written; then keys are refused too.
pub(crate) const HELD_LINES_MAX: usize = 10_000;

struct Job {
    caller: Caller,
    operation: Operation,
    at_ms: u64,
    answer: SyncSender<Result<Outcome, Failure>>,
}

/// What the thread that commits takes from its queue.
enum Queued {
    Job(Box<Job>),
    /// Is answered at once: a sign of life.
    Probe(SyncSender<()>),
}

impl Queued {
    /// The job. A probe is answered.
    fn into_job(self) -> Option<Job> {
        match self {
            Queued::Job(job) => Some(*job),
            Queued::Probe(answer) => {
                let _ = answer.try_send(());
                None
            }
        }
    }
}

pub(crate) struct Engine {
    pub(crate) database: Arc<Database>,
    queue: Mutex<Option<SyncSender<Queued>>>,
    /// Counts commits; waited on by those who watch.
    commits: Mutex<u64>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    stopping: AtomicBool,
    pub(crate) leases: Leases,
    pub(crate) replication: Replication,
    /// A change is done only when a standby has it, and how long it waits for that.
    pub(crate) required: Mutex<Option<Duration>>,
    /// Held while anything is decided and stored.
    pub(crate) committing: Mutex<()>,
    /// Lines that are the same within this many seconds are one.
    pub(crate) repeated: AtomicU64,
    pub(crate) volumes_max: AtomicUsize,
    pub(crate) metrics: Arc<Metrics>,
}

/// Milliseconds since 1970, for the log alone.
pub(crate) fn wall_clock_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Engine {
    pub(crate) fn start(database: Arc<Database>, metrics: Arc<Metrics>) -> std::io::Result<Arc<Engine>> {
        let (queue, queued) = sync_channel(QUEUE_MAX);
        let (replication, longest) = {
            let state = database.state();
            (Replication::new(state.sequence, state.head, false), Duration::from_millis(state.lease_ms))
        };
        let engine = Arc::new(Engine {
            database,
            queue: Mutex::new(Some(queue)),
            commits: Mutex::new(0),
            changed: Condvar::new(),
            thread: Mutex::new(None),
            stopping: AtomicBool::new(false),
            leases: Leases::new(longest, Instant::now()),
            replication,
            required: Mutex::new(None),
            committing: Mutex::new(()),
            repeated: AtomicU64::new(0),
            volumes_max: AtomicUsize::new(usize::MAX),
            metrics,
        });
        let committer = Arc::clone(&engine);
        let thread = thread::Builder::new().name("key-commits".into()).spawn(move || committer.run(&queued))?;
        *engine.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(engine)
    }

    /// Does one operation; returns when it is stored.
    pub(crate) fn submit(&self, caller: Caller, operation: Operation) -> Result<Outcome, Failure> {
        let (answer, answered) = sync_channel(1);
        let job = Queued::Job(Box::new(Job { caller, operation, at_ms: wall_clock_ms(), answer }));
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
            let terms = self.terms();
            self.leases.given(domain, terms.now);
        }
        same
    }

    pub(crate) fn terms(&self) -> Terms<'_> {
        Terms {
            leases: &self.leases,
            now: Instant::now(),
            volumes_max: self.volumes_max.load(Ordering::SeqCst),
            repeated: Duration::from_secs(self.repeated.load(Ordering::SeqCst)),
        }
    }

    /// Reopens the database if necessary. It may then contain more than was answered.
    fn recover(&self) -> Result<(), DatabaseError> {
        if self.database.recover()? {
            let state = self.database.state();
            self.leases.restart(Duration::from_millis(state.lease_ms), Instant::now());
            self.replication.go_on_from(state.sequence, state.head);
        }
        Ok(())
    }

    /// Whether the thread that commits has ended, although it was not asked to.
    pub(crate) fn has_failed(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(JoinHandle::is_finished) && !self.is_stopping()
    }

    /// Whether the thread that commits takes from its queue within `patience`. A commit that waits for a required standby takes as long as
    /// `standby_timeout_s`.
    pub(crate) fn answers(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let (answer, answered) = sync_channel(1);
        loop {
            let sent = match self.queue.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
                Some(queue) => queue.try_send(Queued::Probe(answer.clone())),
                // It is stopping, and waits for what is under way.
                None => return true,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            match sent {
                Ok(()) => return answered.recv_timeout(left).is_ok(),
                Err(TrySendError::Disconnected(_)) => return false,
                Err(TrySendError::Full(_)) if left.is_zero() => return false,
                Err(TrySendError::Full(_)) => thread::sleep(PROBE_AGAIN_AFTER),
            }
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// No request waits any more.
    pub(crate) fn announce_stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.replication.close();
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

    fn run(&self, queued: &Receiver<Queued>) {
        let mut pending = Pending::default();
        while let Ok(first) = queued.recv() {
            let all = std::iter::once(first).chain(queued.try_iter().take(GROUP_MAX - 1));
            let group: Vec<Job> = all.filter_map(Queued::into_job).collect();
            if !group.is_empty() {
                self.commit(&group, &mut pending);
                self.wake();
            }
        }
        // The last chance to write down what could not be written before.
        if !pending.held.is_empty() {
            pending.retry_at = None;
            self.commit(&[], &mut pending);
        }
    }

    /// Stores a transaction; one that changes something only behind a required standby.
    fn store(&self, batch: Batch, before: AuditHead) -> Result<Result<(), DatabaseError>, NotStored> {
        let required = *self.required.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(patience), true) = (required, batch.is_change()) {
            let follows = self.replication.is_followed(Instant::now());
            if !follows || !self.replication.offer(&batch, before, patience) {
                return Err(NotStored::NoStandby);
            }
        }
        match self.database.commit(&batch) {
            Ok(after) => {
                self.replication.stored(&batch, before);
                Ok(after)
            }
            Err(error) => {
                self.replication.withdraw();
                Err(error.into())
            }
        }
    }

    /// Makes a standby the primary of a new generation, durably.
    pub(crate) fn promote(&self, by: &PublicKey) -> Result<(), Failure> {
        if self.database.state().sequence == 0 {
            return Err(Failure::Conflict("this standby never followed its primary: it has nothing to serve".into()));
        }
        let text = |generation| format!("promote generation={generation}");
        self.change_role(Role::Standby, Role::Primary, None, Some(*by), text)
    }

    /// Another server has taken this one's place.
    pub(crate) fn fence(&self, by: &PublicKey, database: [u8; 16], generation: u64) -> Result<(), Failure> {
        if self.database.state().id != database {
            return Err(Failure::Conflict("that server has another database: it cannot take this one's place".into()));
        }
        let text = |generation| format!("fenced generation={generation}");
        self.change_role(Role::Primary, Role::Fenced, Some(generation), Some(*by), text)
    }

    fn change_role(
        &self,
        from: Role,
        to: Role,
        generation: Option<u64>,
        by: Option<PublicKey>,
        text: impl Fn(u64) -> String,
    ) -> Result<(), Failure> {
        let _committing = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
        let unavailable = |error: DatabaseError| Failure::Unavailable(error.to_string());
        self.recover().map_err(unavailable)?;
        let (batch, before) = {
            let state = self.database.state();
            if state.role != from {
                return Err(Failure::Conflict(format!("this server is {}, not {from}", state.role)));
            }
            let generation = generation.unwrap_or(state.generation + 1);
            if generation <= state.generation {
                return Err(Failure::Conflict(format!("this server is of generation {} already", state.generation)));
            }
            let line = line(state.head.lines + 1, wall_clock_ms(), by.as_ref(), &text(generation));
            let head = state.head.then(&line).expect("numbered right here");
            // Revisions are sequences: one that the old primary told is not told again with other contents.
            let gap = if to == Role::Primary { SEQUENCE_GAP } else { 1 };
            let (sequence, lines) = (state.sequence + gap, vec![line]);
            // A fenced server keeps its generation: it is not of the new one.
            let generation = if to == Role::Fenced { state.generation } else { generation };
            let lease_ms = state.lease_ms;
            let batch = Batch { sequence, generation, lease_ms, lines, head, volumes: Vec::new(), slots: Vec::new() };
            (batch, state.head)
        };
        let stored = self.database.commit_as(&batch, to).map_err(unavailable)?;
        if to == Role::Primary {
            // The old primary gave keys out until now, for all that is known.
            self.leases.restart(Duration::from_millis(batch.lease_ms), Instant::now());
        }
        self.replication.stored(&batch, before);
        self.wake();
        stored.map_err(unavailable)
    }

    fn commit(&self, group: &[Job], pending: &mut Pending) {
        let _committing = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
        self.commit_group(&group.iter().collect::<Vec<_>>(), pending);
    }

    fn commit_group(&self, group: &[&Job], pending: &mut Pending) {
        let recovered = match pending.retry_at {
            Some(at) if Instant::now() < at => Err(NotStored::Later),
            _ => self.recover().map_err(NotStored::from),
        };
        let Some(mut decision) = self.decide(group, pending, recovered.as_ref().err()) else { return decline(group) };
        let stored = match (recovered, decision.batch.take()) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(batch)) => self.store(batch, decision.before),
            (Ok(()), None) => Ok(Ok(())),
        };
        match stored {
            Ok(after) => self.finish_stored(group, decision, after, pending),
            Err(error @ NotStored::NoStandby) => {
                tracing::error!(%error, "nothing is changed");
                let (changes, others): (Vec<&Job>, Vec<&Job>) = group.iter().partition(|job| job.operation.is_change());
                for job in changes {
                    let _ = job.answer.try_send(Err(Failure::Unavailable(error.to_string())));
                }
                // The rest is decided again, and stored.
                return self.commit_group(&others, pending);
            }
            Err(error) => finish_unstored(group, decision, &error, pending),
        }
        self.metrics.held_lines(pending.held.len());
    }

    /// Decides every operation of a group; while the database is `broken`, changes are refused. `None` if this server is not the primary.
    fn decide(&self, group: &[&Job], pending: &Pending, broken: Option<&NotStored>) -> Option<Decision> {
        let state = self.database.state();
        if state.role != Role::Primary {
            return None;
        }
        let terms = self.terms();
        let mut draft = Draft::new(&self.database, &state, terms, &pending.recent);
        pending.held.iter().for_each(|event| draft.log(event.clone()));
        let results = group
            .iter()
            .map(|job| match broken {
                Some(error) if job.operation.is_change() => Err(Failure::Unavailable(error.to_string())),
                _ => draft.operate(&job.caller, &job.operation, job.at_ms),
            })
            .collect();
        let (fresh, again) = draft.told();
        Some(Decision {
            results,
            batch: draft.batch(),
            before: state.head,
            rotated: draft.rotated(),
            changed: draft.changed_domains(),
            fresh,
            again,
            lines: draft.lines_without_changes().collect(),
            at: terms.now,
        })
    }

    /// The decision is durable; `after` tells whether everything after that succeeded too.
    fn finish_stored(
        &self,
        group: &[&Job],
        decision: Decision,
        after: Result<(), DatabaseError>,
        pending: &mut Pending,
    ) {
        pending.settle(decision.fresh, decision.again, decision.at);
        pending.held.clear();
        (pending.retry_at, pending.pause) = (None, RETRY_MIN);
        for (domain, old) in decision.rotated {
            match old {
                0 => self.leases.created(domain, decision.at),
                _ => self.leases.rotated(domain, decision.at),
            }
        }
        let problem = after.err().map(|error| Problem { text: error.to_string(), ..Problem::default() });
        answer(group, decision.results, problem.as_ref());
    }
}

/// What was decided about a group of operations, before it is stored.
struct Decision {
    results: Vec<Result<Outcome, Failure>>,
    batch: Option<Batch>,
    /// The audit log's head without the batch.
    before: AuditHead,
    rotated: Vec<(SealingDomain, u32)>,
    changed: BTreeSet<SealingDomain>,
    /// Lines of the log that are new, and those that were written a short time ago.
    fresh: BTreeSet<LineKey>,
    again: Vec<LineKey>,
    /// Lines to keep if the batch cannot be stored.
    lines: Vec<Event>,
    at: Instant,
}

/// Nothing of the decision is stored: its lines are kept for the next attempt, and what depends on changes is refused.
fn finish_unstored(group: &[&Job], decision: Decision, error: &NotStored, pending: &mut Pending) {
    if !matches!(error, NotStored::Later) {
        tracing::error!(%error, "nothing can be changed; keys are given out");
    }
    if matches!(error, NotStored::Database(_)) {
        // Reopening reads all of it: not for each request.
        pending.retry_at = Some(Instant::now() + pending.pause);
        pending.pause = (pending.pause * 2).min(RETRY_MAX);
    }
    let is_full = decision.lines.len() > HELD_LINES_MAX;
    if !is_full {
        for event in decision.lines.iter().skip(pending.held.len()) {
            tracing::warn!(target: "strongroom_keyserver::audit", "{}", event.text);
        }
        pending.held = decision.lines.into();
        pending.settle(decision.fresh, decision.again, decision.at);
    }
    let problem = Problem { text: error.to_string(), is_full, changed: decision.changed };
    answer(group, decision.results, Some(&problem));
}

/// Why a transaction was not stored.
#[derive(Debug, thiserror::Error)]
enum NotStored {
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error("the key database could not be written, and is tried again in a moment; look at the key server's log")]
    Later,
    #[error(
        "the standby does not follow, and this server is set up to change nothing without it; start it, or take \
         standby_required out of the configuration"
    )]
    NoStandby,
}

/// A server that is no primary writes down nothing of its own: its log is its primary's.
fn decline(group: &[&Job]) {
    for job in group {
        let result = match &job.operation {
            Operation::Note(text) => {
                tracing::info!("{text}");
                Ok(Outcome::Done)
            }
            _ => Err(Failure::NotPrimary("it is not the primary".into())),
        };
        let _ = job.answer.try_send(result);
    }
}

/// What stands in the way of an answer.
#[derive(Default)]
struct Problem {
    text: String,
    /// Not even lines can be kept any more.
    is_full: bool,
    /// What was decided about these is not so.
    changed: BTreeSet<SealingDomain>,
}

/// Tells every caller.
fn answer(group: &[&Job], results: Vec<Result<Outcome, Failure>>, problem: Option<&Problem>) {
    for (job, result) in group.iter().zip(results) {
        let result = match problem {
            Some(problem) if result.is_ok() && problem.spoils(&job.operation) => {
                Err(Failure::Unavailable(problem.text.clone()))
            }
            _ => result,
        };
        // A requester that does not wait any more does not need it.
        let _ = job.answer.try_send(result);
    }
}

impl Problem {
    fn spoils(&self, operation: &Operation) -> bool {
        let request = match operation {
            Operation::Ask(request) => request,
            Operation::Note(_) => return self.is_full,
            Operation::Disclosure(_) => return true,
        };
        // Keys of an epoch that is not stored, or by a grant that is not, must not go out.
        let is_changed = request.domain().is_some_and(|domain| self.changed.contains(&domain));
        operation.is_change() || self.is_full || is_changed
    }
}

/// What waits to be stored, and what was written lately.
struct Pending {
    held: VecDeque<Event>,
    recent: Recent,
    retry_at: Option<Instant>,
    pause: Duration,
}

impl Default for Pending {
    fn default() -> Pending {
        Pending { held: VecDeque::new(), recent: Recent::new(), retry_at: None, pause: RETRY_MIN }
    }
}

impl Pending {
    /// Remembers what was told, and what was not told again.
    fn settle(&mut self, fresh: BTreeSet<LineKey>, again: Vec<LineKey>, now: Instant) {
        if self.recent.len() > RECENT_MAX {
            self.recent.retain(|_, told| now.duration_since(told.at) < RECENT_FOR);
        }
        for key in fresh {
            self.recent.insert(key, RepeatCount { at: now, again: 0 });
        }
        for key in again {
            if let Some(told) = self.recent.get_mut(&key) {
                told.again = told.again.saturating_add(1);
            }
        }
    }
}
