//! The primary's side of a standby: what it has stored lately, and what a required standby has to store first.
//!
//! A change that needs a standby is offered to it **before** it is stored here, and stored here once the standby says that it
//! has it. So the standby is at most that one transaction ahead, which no client was told of, and never behind anything that
//! a client was told.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use crate::audit::AuditHead;
use crate::batch::Batch;

/// Transactions that are kept for a standby that is behind; beyond it gets everything again.
const KEPT_BYTES_MAX: usize = 16 << 20;
/// A standby that was not heard of for so long does not follow; it asks every [`FOLLOW_WAIT`] at least.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// How long a follower is kept waiting for news.
pub(crate) const FOLLOW_WAIT: Duration = Duration::from_secs(1);

pub(crate) struct Replication {
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    /// The last that is stored here.
    current: (u64, AuditHead),
    /// Whether any identity may follow: without a standby nothing is retained.
    enabled: bool,
    kept: VecDeque<RetainedTransaction>,
    kept_bytes: usize,
    /// Not stored here yet.
    offered: Option<RetainedTransaction>,
    /// What the standby has, and when it was last heard of.
    followed: Option<(u64, Instant)>,
    /// The one connection that follows, and when it last asked.
    follower: Option<(u64, Instant)>,
    /// The offered one is stored there.
    taken: bool,
    closed: bool,
}

#[derive(Clone)]
struct RetainedTransaction {
    sequence: u64,
    before: AuditHead,
    head: AuditHead,
    bytes: Arc<Zeroizing<Vec<u8>>>,
}

/// Whether a connection may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// From now on: it has to be written down first.
    First,
    /// As before.
    Again,
    /// Another one follows. Two standbys would each be taken for the one that has stored what the other has not.
    Taken,
}

/// What a follower gets.
pub(crate) enum News {
    Nothing,
    Batch(Arc<Zeroizing<Vec<u8>>>),
    /// It is too far behind, or has what was withdrawn: everything.
    Snapshot,
    /// It has more than ever was here.
    Ahead,
}

impl Replication {
    pub(crate) fn new(sequence: u64, head: AuditHead, enabled: bool) -> Replication {
        let inner = Inner {
            current: (sequence, head),
            enabled,
            kept: VecDeque::new(),
            kept_bytes: 0,
            offered: None,
            followed: None,
            follower: None,
            taken: false,
            closed: false,
        };
        Replication { inner: Mutex::new(inner), changed: Condvar::new() }
    }

    /// What is stored is not what was told here: those who follow begin from it.
    pub(crate) fn go_on_from(&self, sequence: u64, head: AuditHead) {
        let mut inner = self.lock();
        if inner.current != (sequence, head) {
            inner.current = (sequence, head);
            (inner.kept, inner.kept_bytes) = (VecDeque::new(), 0);
        }
    }

    pub(crate) fn enable(&self, enabled: bool) {
        self.lock().enabled = enabled;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a standby follows.
    pub(crate) fn is_followed(&self, now: Instant) -> bool {
        self.lock().followed.is_some_and(|(_, heard)| now.saturating_duration_since(heard) < SILENCE_MAX)
    }

    /// Lets one connection follow at a time; one that was not heard of for long gives way.
    pub(crate) fn claim(&self, connection: u64, now: Instant) -> Claim {
        let mut inner = self.lock();
        let claim = match inner.follower {
            Some((follower, _)) if follower == connection => Claim::Again,
            Some((_, heard)) if now.saturating_duration_since(heard) < SILENCE_MAX => return Claim::Taken,
            _ => Claim::First,
        };
        inner.follower = Some((connection, now));
        claim
    }

    /// The connection does not follow any more.
    pub(crate) fn release(&self, connection: u64) {
        let mut inner = self.lock();
        if inner.follower.is_some_and(|(follower, _)| follower == connection) {
            inner.follower = None;
        }
    }

    /// The last transaction that the standby has stored.
    pub(crate) fn followed_sequence(&self) -> Option<u64> {
        self.lock().followed.map(|(sequence, _)| sequence)
    }

    /// Offers a transaction, which is not stored here yet, and waits until a standby has it.
    pub(crate) fn offer(&self, batch: &Batch, before: AuditHead, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut inner = self.lock();
        inner.offered = Some(RetainedTransaction::of(batch, before));
        inner.taken = false;
        self.changed.notify_all();
        while !inner.taken && !inner.closed {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            inner = self.changed.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let taken = inner.taken;
        if !taken {
            inner.offered = None;
            // The next one does not wait for it as long again.
            inner.followed = None;
        }
        taken
    }

    /// A transaction is stored here.
    pub(crate) fn stored(&self, batch: &Batch, before: AuditHead) {
        let mut inner = self.lock();
        inner.current = (batch.sequence, batch.head);
        if !inner.enabled {
            return;
        }
        let kept = inner.offered.take().filter(|offered| offered.head == batch.head);
        let kept = kept.unwrap_or_else(|| RetainedTransaction::of(batch, before));
        inner.kept_bytes += kept.bytes.len();
        inner.kept.push_back(kept);
        while inner.kept_bytes > KEPT_BYTES_MAX {
            let Some(oldest) = inner.kept.pop_front() else { break };
            inner.kept_bytes -= oldest.bytes.len();
        }
        self.changed.notify_all();
    }

    /// What was offered is not stored after all.
    pub(crate) fn withdraw(&self) {
        self.lock().offered = None;
    }

    /// Ends all waiting.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Takes in what a standby has, and gives what follows.
    pub(crate) fn follow(&self, sequence: u64, head: AuditHead) -> News {
        let deadline = Instant::now() + FOLLOW_WAIT;
        let mut inner = self.lock();
        loop {
            let (stored, stored_head) = inner.current;
            let offered = inner.offered.clone();
            let is_offered = offered.as_ref().is_some_and(|kept| (kept.sequence, kept.head) == (sequence, head));
            let known = (sequence, head) == (stored, stored_head)
                || is_offered
                || inner.kept.iter().any(|kept| (kept.sequence, kept.head) == (sequence, head));
            if !known {
                let behind = inner.kept.iter().find(|kept| kept.sequence == sequence + 1 && kept.before == head);
                return match behind {
                    Some(next) => News::Batch(Arc::clone(&next.bytes)),
                    None if sequence > stored + 1 => News::Ahead,
                    None => News::Snapshot,
                };
            }
            inner.followed = Some((sequence, Instant::now()));
            if is_offered && !inner.taken {
                inner.taken = true;
                self.changed.notify_all();
            }
            let next = inner.kept.iter().chain(&offered).find(|kept| kept.sequence == sequence + 1);
            if let Some(next) = next {
                return News::Batch(Arc::clone(&next.bytes));
            }
            if sequence < stored {
                return News::Snapshot;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || inner.closed {
                return News::Nothing;
            }
            inner = self.changed.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl RetainedTransaction {
    fn of(batch: &Batch, before: AuditHead) -> RetainedTransaction {
        RetainedTransaction { sequence: batch.sequence, before, head: batch.head, bytes: Arc::new(batch.encode()) }
    }
}
