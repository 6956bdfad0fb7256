//! Syncs of the log, and the requests that wait for them.

use strongroom_block::Token;

use super::io::{IoQueue, Purpose};
use crate::backend::Io;
use crate::op::Outcome;

/// A request that completes when the log is durable up to a unit.
pub(super) struct Waiter {
    pub(super) lsn: u64,
    pub(super) token: Token,
    pub(super) bytes: usize,
    pub(super) outcome: Outcome,
}

/// What a sync has made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Synced {
    /// Units up to this one.
    pub(super) lsn: u64,
    /// A superblock too.
    pub(super) superblock: bool,
}

/// The sync in flight and its waiters.
#[derive(Default)]
pub(super) struct Syncs {
    in_flight: Option<Synced>,
    waiters: Vec<Waiter>,
    /// Sync although no request waits.
    forced: bool,
    /// Syncs done since the store was opened.
    pub(super) count: u64,
}

impl Syncs {
    /// The log begins again after an erase. The counter goes on.
    pub(super) fn begin_log(&mut self) {
        *self = Syncs { count: self.count, ..Syncs::default() };
    }

    /// Whether no sync is in flight, and no request waits for one.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.waiters.is_empty()
    }

    pub(super) fn wait(&mut self, waiter: Waiter) {
        self.waiters.push(waiter);
    }

    /// Asks for a sync for which no request waits.
    pub(super) fn force(&mut self) {
        self.forced = true;
    }

    /// Starts a sync if one is wanted and none is in flight. `superblock`: one was written and is not durable. `for_round`: a round waits.
    pub(super) fn advance(
        &mut self,
        io: &mut IoQueue,
        (completed_lsn, durable_lsn): (u64, u64),
        superblock: bool,
        for_round: bool,
    ) -> bool {
        let wanted = for_round || self.forced || self.waiters.iter().any(|waiter| waiter.lsn > durable_lsn);
        if self.in_flight.is_some() || !wanted {
            return false;
        }
        self.forced = false;
        self.in_flight = Some(Synced { lsn: completed_lsn, superblock });
        io.start(Purpose::Sync, Io::Sync);
        true
    }

    /// The sync in flight has ended.
    pub(super) fn done(&mut self) -> Synced {
        self.in_flight.take().expect("one sync is in flight")
    }

    /// The requests that waited for units up to `lsn`.
    pub(super) fn take_ready(&mut self, lsn: u64) -> Vec<Waiter> {
        let (ready, waiting) = std::mem::take(&mut self.waiters).into_iter().partition(|waiter| waiter.lsn <= lsn);
        self.waiters = waiting;
        ready
    }

    /// All requests that wait.
    pub(super) fn take_all(&mut self) -> Vec<Waiter> {
        std::mem::take(&mut self.waiters)
    }
}
