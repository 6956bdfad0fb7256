//! The engine: requests in, SCSI commands out, results back. No sockets, no threads, no clock: time is an argument.
//!
//! ```text
//! submit -> (overlapping writers wait) -> split into commands -> sealed -> ready -> in flight -> completed
//!                                                                           ^                        |
//!                                                                           +-- retried, reconnected +
//! ```
//!
//! A connection comes and goes underneath. When it goes, every command in flight is ready again, in its old order and with
//! the same bytes; when a new one comes to a target that was restarted, the log of unflushed writes goes first.
//!
//! The engine decides what follows from what; who knows what is in the objects beneath: the request table with the command queue,
//! windows, commands in flight, flushes, the replay, attach ids, the writer lease, refetching, and questions about keys. What a request
//! means is its [`crate::pipeline::operation`]'s. Absent: the session (`crate::session`), sealing itself (the caller's side or
//! `seal_threads`), and any policy about blocks that do not open: here they fail (`crate::device` may look further).

mod attach_ids;
mod command;
mod command_queue;
mod counters;
mod fetches;
mod finish;
mod flushes;
mod in_flight;
mod key_questions;
mod lease_watch;
mod reconnect;
mod refetching;
mod replay;
mod request_table;
mod seal;
mod send;
#[cfg(test)]
mod tests;
mod windows;

use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::DeviceError;

use crate::pipeline::feedback::VerifiedFeedback;
use crate::pipeline::operation::Verified;
use crate::pipeline::operation::execute::Execute;
use crate::pipeline::request::{NewRequest, Purpose, Reply};
use crate::pipeline::sealing::Sealing;
use crate::pipeline::unit::UnitDescription;
use crate::{Limits, Pipeline};
use attach_ids::AttachIds;
use flushes::Flushes;
use in_flight::InFlight;
use key_questions::KeyQuestions;
use lease_watch::LeaseWatch;
use refetching::Refetching;
use replay::{Phase, Replay};
use request_table::RequestTable;
use windows::Windows;

pub(crate) use command::CommandId;
pub use counters::EngineCounters;
pub(crate) use seal::{SealId, SealJob};

/// What an engine is made with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineOptions {
    pub(crate) limits: Limits,
    pub(crate) pipeline: Pipeline,
    /// Flushes fail when a replay has waited for keys for this long; zero: they wait for ever.
    pub(crate) patience: Duration,
    /// The target is told which versions open.
    pub(crate) verified_feedback: bool,
    /// A planted fault, for tests of tests: the mark of a flush is taken when its response arrives, not when it is sent.
    pub(crate) marks_flushes_late: bool,
    /// Another one: a request that is resealed is sent under a new operation id.
    pub(crate) forgets_operations: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Engine {
    unit: Arc<UnitDescription>,
    sealing: Option<Arc<Sealing>>,
    pub(crate) table: RequestTable,
    pub(crate) windows: Windows,
    pub(crate) in_flight: InFlight,
    flushes: Flushes,
    replay: Replay,
    attach_ids: AttachIds,
    pub(crate) lease: LeaseWatch,
    refetching: Refetching,
    key_questions: KeyQuestions,
    feedback: Option<VerifiedFeedback>,
    /// The latest time that we were told.
    now: Option<Instant>,
    pub(crate) counters: EngineCounters,
}

impl Engine {
    pub(crate) fn new(unit: Arc<UnitDescription>, sealing: Option<Arc<Sealing>>, options: EngineOptions) -> Engine {
        let EngineOptions { limits, pipeline, patience, verified_feedback, marks_flushes_late, forgets_operations } =
            options;
        let block_bytes = unit.geometry.block_size.len();
        let feedback = (verified_feedback && sealing.is_some()).then(VerifiedFeedback::default);
        let windows = Windows::new(pipeline, limits);
        Engine {
            table: RequestTable::new(windows.capabilities(&unit, true), block_bytes, sealing.is_some()),
            unit,
            sealing,
            windows,
            in_flight: InFlight::default(),
            flushes: Flushes::new(marks_flushes_late),
            replay: Replay::new(patience),
            attach_ids: AttachIds::new(forgets_operations),
            lease: LeaseWatch::default(),
            refetching: Refetching::default(),
            key_questions: KeyQuestions::default(),
            feedback,
            now: None,
            counters: EngineCounters::default(),
        }
    }

    /// Takes a request in. What it may do was checked by the caller's side.
    pub(crate) fn submit(&mut self, new: NewRequest) {
        let is_kept_out = new.operation.effect().needs_write_access();
        if let Some(error) = self.lease.lost().filter(|_| is_kept_out).cloned() {
            return self.table.refuse(new, error);
        }
        if new.operation.is_flush()
            && let Some(error) = self.flushes.take_lost()
        {
            return self.table.refuse(new, error);
        }
        self.table.insert(new);
    }

    /// What the target has acknowledged and may still lose, in bytes.
    pub(crate) fn unflushed_bytes(&self) -> usize {
        self.flushes.log.bytes()
    }

    /// Versions that opened and that the target was not told of yet.
    pub(crate) fn feedback_pending(&self) -> usize {
        self.feedback.as_ref().map_or(0, VerifiedFeedback::pending)
    }

    /// When [`Engine::handle_timeout`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let feedback =
            self.feedback.as_ref().and_then(VerifiedFeedback::due).filter(|_| self.replay.phase == Phase::Up);
        let silence = self.in_flight.timeout();
        let refetch = self.refetching.needs_connection().and(self.now);
        let patience = self.replay.patience_ends().filter(|_| self.table.has_requested_flush());
        let others = [self.table.queue.poll_timeout(), feedback, silence, patience, refetch];
        others.into_iter().flatten().chain(self.windows.poll_timeout()).min()
    }

    /// Why only a new connection can settle what is in flight, if that is so.
    pub(crate) fn needs_new_connection(&self, now: Instant) -> Option<&'static str> {
        let refetch = self.refetching.needs_connection();
        refetch.or_else(|| self.in_flight.needs_new_connection(now))
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.now = Some(now);
        self.table.now = Some(now);
        self.windows.handle_timeout(now);
        self.in_flight.handle_timeout(now, || self.table.oldest_sent());
        for key in self.table.queue.take_due(now).into_iter().rev() {
            self.table.requeue(key);
        }
        if self.replay.phase == Phase::Up
            && let Some(pairs) = self.feedback.as_mut().and_then(|feedback| feedback.take_due(now))
        {
            let (reply, operation) = (Reply::Engine(Purpose::Feedback), Verified { pairs }.into());
            self.submit(NewRequest { reply, cost_bytes: 0, operation });
        }
    }

    /// The attachment has the writer lease.
    pub(crate) fn lease_held(&mut self) {
        // Something else has refused these.
        for (key, error) in self.lease.held() {
            self.fail_command(key, error);
        }
    }

    /// The lease is lost and does not come back: every request that changes the volume fails, those that wait and those to come. What was
    /// acknowledged is not sent again.
    pub(crate) fn lease_lost(&mut self, error: &DeviceError) {
        if self.lease.lost().is_some() {
            return;
        }
        tracing::error!(%error, "nothing more may be written from here");
        let waiting = self.lease.set_lost(error);
        self.flushes.give_up(&mut self.table, error);
        for (key, _) in waiting {
            self.fail_command(key, error.clone());
        }
    }
}
