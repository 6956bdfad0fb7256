//! The engine: requests in, SCSI commands out, results back. No sockets, no threads, no clock: time is an argument.
//!
//! ```text
//! submit -> (order: overlapping writers wait) -> cut into commands -> sealed -> ready -> in flight -> completed
//!                                                                                ^                        |
//!                                                                                +-- retried, reconnected +
//! ```
//!
//! A connection comes and goes underneath. When it goes, every command in flight is ready again, in its old order and with
//! the very same bytes; when a new one comes to a target that was restarted, the log of unflushed writes goes first.
//! What may be sealed and sent now is for the pipeline's windows to say ([`crate::pipeline`]): one of the writes, one of the reads.
//! Absent: the session (`connection`), sealing itself (the caller's side or `sealers` do it), policy of any kind about blocks
//! that do not open: here they fail (`previous` may look further).

mod command;
mod fetch;
mod finish;
mod keys;
mod lease;
mod operation;
mod part;
mod ready;
mod reconnect;
mod refetch;
mod seal;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;
use strongroom_block::{Buffer, BufferMut, DeviceError, DeviceErrorKind, Geometry, Lba, Stamp};

use crate::completion::device_error;
use crate::pipeline::Window;
use crate::pipeline::feedback::VerifiedFeedback;
use crate::pipeline::outcome::Retries;
use crate::pipeline::request::{FailedRequest, FinishedOp, NewOp, Reply, SurveyedBlock, SurveyedHole, Work};
use crate::pipeline::sealing::Sealing;
use crate::pipeline::unflushed::{Stored, UnflushedLog};
use crate::pipeline::unit::UnitDescription;
use crate::pipeline::write_order::{Range, WriteOrder};
use crate::{Limits, Pipeline};
use command::{Command, CommandKind};
use finish::lost_request;
use lease::LeaseWatch;
use operation::Registrations;
use part::Part;
use ready::Ready;
use refetch::{Fetches, Refetching};
use seal::SealingState;

pub(crate) use refetch::ReadFault;
pub(crate) use seal::{SealId, SealJob};

/// Commands of one request in flight or ready at once; the rest of a huge request is cut as these complete.
const COMMANDS_PER_OP_MAX: u32 = 32;
/// A target that has commands of ours and neither answers, sends data, nor takes data for so long is taken for mute: we call
/// it anew, and everything unanswered goes out again.
///
/// A command that legitimately takes longer (a long flush) loses nothing by that: a sealed unit executes no write twice, and on a plain
/// one each command says what shall be, not what shall change. It only begins anew.
const MUTE_TIMEOUT: Duration = Duration::from_secs(60);
/// A command that is not answered for so long, while others are, was lost by the target: not every one answers commands that
/// another initiator's reset has ended.
const LOST_TIMEOUT: Duration = Duration::from_secs(600);
/// Most blocks that one probe for holes asks for.
const PROBE_BYTES_MAX: u64 = 32 << 20;

/// Names a command in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CommandId(usize);

/// Where the connection is, as far as commands are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Down,
    /// Only the replay's commands go out.
    Replaying,
    Up,
}

/// One request.
#[derive(Debug)]
struct Op {
    reply: Reply,
    cost_bytes: usize,
    work: OpWork,
    /// The range that it holds against other writers.
    holds: Option<Range>,
    is_replay: bool,
    /// Of a replay to a sealed unit: how the unit knew it.
    stored: Option<Stored>,
    /// Commands made and not completed.
    outstanding: u32,
    /// The next block to cut, and the end.
    cursor: Range,
    error: Option<DeviceError>,
}

/// As [`Work`], with the engine's own state of those that take several steps.
#[derive(Debug)]
enum OpWork {
    Plain(Work),
    Part(Box<Part>),
    /// READ VERSION, GET LBA STATUS, READ CAPACITY and probes keep what they found here.
    Asking(Work, Box<Found>),
}

#[derive(Debug, Default)]
struct Found {
    bytes: Vec<u8>,
    /// Blocks that the probe asked for: fewer than wanted where a transfer is limited.
    asked_blocks: u32,
    hole_blocks: u64,
    oldest_epoch: Option<u32>,
    saw_data: bool,
    version: Option<crate::pipeline::request::Version>,
    surveyed: (Vec<SurveyedBlock>, Vec<SurveyedHole>),
    /// Somebody else wrote first.
    miscompared: bool,
}

impl Found {
    /// The question is asked anew.
    fn forget(&mut self) {
        *self = Found { asked_blocks: self.asked_blocks, ..Found::default() };
    }
}

/// Counters of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Commands sent, those sent again included.
    pub commands_sent: u64,
    /// Commands sent again, after an answer that asked for it or a lost connection.
    pub commands_resent: u64,
    /// Blocks sent again to a target that may have lost them.
    pub blocks_replayed: u64,
    /// Of these, blocks that the target left out because something newer was stored there.
    pub blocks_superseded: u64,
    /// Writes that were sent again and that the target had executed before.
    pub writes_repeated: u64,
    /// Attach ids that the target has registered.
    pub registrations: u64,
    /// Flushes that we made by ourselves, to bound what would be replayed.
    pub own_flushes: u64,
    /// Guarded writes that found another version and were tried again.
    pub guarded_retries: u64,
    /// Blocks that did not open, or could not be read.
    pub blocks_failed: u64,
    /// Blocks that were fetched again because they did not authenticate.
    pub blocks_refetched: u64,
    /// Connections that were ended to fetch such blocks over a new one.
    pub refetch_connections: u64,
    /// Commands whose data authenticated when it was fetched again: it was damaged on the wire, not at the target.
    pub refetches_succeeded: u64,
    /// How often the unit said that its size has changed.
    pub size_changes: u64,
}

#[derive(Debug)]
pub(crate) struct Engine {
    unit: Arc<UnitDescription>,
    sealing: Option<Arc<Sealing>>,
    limits: Limits,
    ops: Slab<Op>,
    commands: Slab<Command>,
    order: WriteOrder,
    /// Made and not yet sealed.
    unsealed: VecDeque<usize>,
    ready: Ready,
    writes: Window,
    reads: Window,
    replay_ready: VecDeque<usize>,
    registrations: Registrations,
    /// The command that registers an attach id, to be sent before any other.
    registration_ready: Option<usize>,
    delayed: Vec<(Instant, usize)>,
    /// Reads that wait for the answer to a question about their keys.
    awaiting_keys: Vec<(u64, usize)>,
    refetching: Refetching,
    in_flight: usize,
    /// Bytes of writes in flight: they will be in the log once acknowledged.
    writing_bytes: usize,
    next_sequence: u64,
    phase: Phase,
    replay_ops: usize,
    /// Blocks of it that the target left out.
    replay_superseded: u64,
    /// Why the replay does not go on: keys that come again are missing.
    replay_waits: Option<DeviceError>,
    /// Since when it has not gone on, whatever connections came and went since.
    without_keys_since: Option<Instant>,
    /// How long flushes wait with it; `None`: for ever.
    patience: Option<Duration>,
    /// The target was restarted and does not have all of the log yet, whatever connections came and went since.
    replay_due: bool,
    log: UnflushedLog,
    own_flush: bool,
    /// A flush of ours failed: the next flush of the application says so, once.
    lost: Option<DeviceError>,
    /// A planted fault, for tests of tests: a flush covers what was acknowledged before its response.
    marks_flushes_late: bool,
    /// Another one: what is sealed again goes out under a new operation id.
    forgets_operations: bool,
    verified: Option<VerifiedFeedback>,
    lease: LeaseWatch,
    lba_status_works: bool,
    finished: Vec<FinishedOp>,
    /// The latest time that we were told.
    now: Option<Instant>,
    /// When the target last answered, sent data, or took some.
    moved_at: Option<Instant>,
    /// The unit was reset: what was in flight may never be answered.
    was_reset: bool,
    pub(crate) counters: EngineCounters,
}

impl Engine {
    pub(crate) fn new(
        unit: Arc<UnitDescription>,
        sealing: Option<Arc<Sealing>>,
        limits: Limits,
        verified_feedback: bool,
    ) -> Engine {
        let verified = (verified_feedback && sealing.is_some()).then(VerifiedFeedback::default);
        Engine {
            unit,
            sealing,
            limits,
            ops: Slab::new(),
            commands: Slab::new(),
            order: WriteOrder::default(),
            unsealed: VecDeque::new(),
            ready: Ready::default(),
            writes: Window::new(Pipeline::Auto),
            reads: Window::of_reads(Pipeline::Auto),
            replay_ready: VecDeque::new(),
            registrations: Registrations::default(),
            registration_ready: None,
            delayed: Vec::new(),
            awaiting_keys: Vec::new(),
            refetching: Refetching::default(),
            in_flight: 0,
            writing_bytes: 0,
            next_sequence: 0,
            phase: Phase::Down,
            replay_ops: 0,
            replay_superseded: 0,
            replay_waits: None,
            without_keys_since: None,
            patience: None,
            replay_due: false,
            log: UnflushedLog::default(),
            own_flush: false,
            lost: None,
            marks_flushes_late: false,
            forgets_operations: false,
            verified,
            lease: LeaseWatch::default(),
            lba_status_works: true,
            finished: Vec::new(),
            now: None,
            moved_at: None,
            was_reset: false,
            counters: EngineCounters::default(),
        }
    }

    /// The same with this pipeline, before anything is submitted.
    pub(crate) fn with_pipeline(self, pipeline: Pipeline) -> Engine {
        Engine { writes: Window::new(pipeline), reads: Window::of_reads(pipeline), ..self }
    }

    /// The same, whose flushes fail when a replay has waited for keys so long; zero: they wait for ever.
    pub(crate) fn with_patience(self, patience: Duration) -> Engine {
        Engine { patience: Some(patience).filter(|patience| !patience.is_zero()), ..self }
    }

    /// The same with planted faults, or without: the mark of a flush is taken when its response arrives, not when it is sent; a request
    /// that is sealed again goes out under a new operation id.
    pub(crate) fn with_planted(self, marks_flushes_late: bool, forgets_operations: bool) -> Engine {
        Engine { marks_flushes_late, forgets_operations, ..self }
    }

    fn geometry(&self) -> Geometry {
        self.unit.geometry
    }

    fn block_bytes(&self) -> usize {
        self.unit.geometry.block_size.len()
    }

    /// Takes a request in. What it may do was checked by the caller's side.
    pub(crate) fn submit(&mut self, op: NewOp) {
        let NewOp { reply, cost_bytes, work } = op;
        let kept_from = self.lease.lost().filter(|_| work.changes()).cloned();
        let block_bytes = self.block_bytes();
        let blocks = |bytes: usize| (bytes / block_bytes) as u64;
        let (range, writes) = match &work {
            Work::Read { lba, buffer } => (Range::new(*lba, blocks(buffer.len())), false),
            Work::Write { lba, data, .. } => (Range::new(*lba, blocks(data.len())), true),
            Work::WritePart { lba, .. } | Work::ConditionalWrite { lba, .. } | Work::ResealBlock { lba, .. } => {
                (Range::new(*lba, 1), true)
            }
            Work::Hole(hole) | Work::ResealHole(hole) => (Range::new(hole.start, hole.count), true),
            Work::Discard { lba, count } => (Range::new(*lba, *count), true),
            Work::CryptoErase { blocks, .. } => (Range::new(Lba(0), *blocks), true),
            Work::ProbeHole { lba, count } | Work::Survey { lba, count, .. } | Work::Fetch { lba, count } => {
                (Range::new(*lba, u64::from(*count)), false)
            }
            Work::LbaStatus { lba } | Work::ReadVersion { lba, .. } => (Range::new(*lba, 1), false),
            Work::Flush | Work::Verified { .. } | Work::TakePlace | Work::Register { .. } | Work::Capacity => {
                (Range { start: 0, end: 0 }, false)
            }
        };
        let mut work = match work {
            Work::WritePart { lba, offset_bytes, data, fua } => {
                OpWork::Part(Box::new(Part::new(lba, offset_bytes, data, fua, block_bytes)))
            }
            Work::ProbeHole { .. }
            | Work::LbaStatus { .. }
            | Work::Capacity
            | Work::ReadVersion { .. }
            | Work::Survey { .. }
            | Work::ResealBlock { .. }
            | Work::ResealHole(_) => OpWork::Asking(work, Box::default()),
            _ => OpWork::Plain(work),
        };
        if let Some(error) = kept_from {
            let failed = lost_request(&work, block_bytes).map(FailedRequest::Lost);
            return self.finished.push(FinishedOp { reply, cost_bytes, result: Err(error), failed });
        }
        if let OpWork::Asking(Work::ProbeHole { .. }, found) = &mut work {
            found.asked_blocks = self.probe_blocks(range.end - range.start);
        }
        let key = self.ops.insert(Op {
            reply,
            cost_bytes,
            work,
            holds: writes.then_some(range),
            is_replay: false,
            stored: None,
            outstanding: 0,
            cursor: range,
            error: None,
        });
        if !writes || self.order.acquire(key, range) {
            self.start(key);
        }
    }

    /// Starts a request that nothing stands in the way of.
    fn start(&mut self, key: usize) {
        let kind = match &self.ops[key].work {
            OpWork::Plain(work) if work.is_cut() => return self.cut(key),
            OpWork::Plain(Work::Flush) => {
                if let Some(error) = self.lost.take() {
                    self.ops[key].error = Some(error);
                    return self.finish_if_done(key);
                }
                CommandKind::Flush { mark: 0 }
            }
            OpWork::Plain(Work::Hole(_)) => CommandKind::SealHole,
            OpWork::Plain(Work::Verified { .. }) => CommandKind::Verified,
            OpWork::Plain(Work::TakePlace) => CommandKind::TakePlace,
            OpWork::Plain(Work::Register { .. }) => CommandKind::Register,
            OpWork::Plain(Work::CryptoErase { .. }) => CommandKind::CryptoErase,
            OpWork::Plain(Work::ConditionalWrite { .. }) => CommandKind::Conditional,
            OpWork::Part(_) => CommandKind::PartRead,
            OpWork::Asking(Work::LbaStatus { .. }, _) if !self.lba_status_works => return self.finish_if_done(key),
            OpWork::Asking(Work::ResealBlock { .. } | Work::ResealHole(_), _) => CommandKind::Reseal,
            OpWork::Asking(..) => CommandKind::Ask,
            OpWork::Plain(_) => unreachable!("submit makes the other kinds of work `Part` or `Asking`"),
        };
        self.make_command(key, kind);
    }

    /// Makes the next commands of a request that is cut at the transfer limit.
    fn cut(&mut self, key: usize) {
        let data_blocks_max = self.transfer_blocks();
        let unmap_blocks_max = self.unit.unmap_blocks_max.map(u64::from).unwrap_or(data_blocks_max);
        loop {
            let op = &mut self.ops[key];
            if op.cursor.start == op.cursor.end || op.outstanding >= COMMANDS_PER_OP_MAX || op.error.is_some() {
                return self.finish_if_done(key);
            }
            let is_discard = matches!(op.work, OpWork::Plain(Work::Discard { .. }));
            let blocks_max = if is_discard { unmap_blocks_max } else { data_blocks_max };
            let count = (op.cursor.end - op.cursor.start).min(blocks_max) as u32;
            let lba = Lba(op.cursor.start);
            op.cursor.start += u64::from(count);
            let kind = match (&op.work, self.unit.unmap_blocks_max) {
                (OpWork::Plain(Work::Read { .. } | Work::Fetch { .. }), _) => CommandKind::Read { lba, count },
                (OpWork::Plain(Work::Write { .. }), _) => CommandKind::Write { lba, count },
                (_, Some(_)) => CommandKind::Unmap { lba, count },
                (_, None) => CommandKind::WriteZeros { lba, count },
            };
            self.make_command(key, kind);
        }
    }

    /// Blocks of one READ or WRITE.
    fn transfer_blocks(&self) -> u64 {
        let ours = u64::from(self.limits.transfer_bytes_max) >> self.geometry().block_size.shift();
        let theirs = self.unit.transfer_blocks_max.map_or(u64::MAX, u64::from);
        ours.min(theirs).max(1)
    }

    /// Blocks of one probe, of `wanted`.
    fn probe_blocks(&self, wanted: u64) -> u32 {
        let ours = PROBE_BYTES_MAX >> self.geometry().block_size.shift();
        let theirs = self.unit.transfer_blocks_max.map_or(u64::MAX, u64::from);
        wanted.min(ours).min(theirs).clamp(1, u64::from(u32::MAX)) as u32
    }

    /// A flush that makes durable what the request has just written. Should that have to be sent again, it has the operation id
    /// that it had.
    fn flush_written(&mut self, op: usize, operation: Option<Stamp>) {
        let key = self.make_command(op, CommandKind::Flush { mark: 0 });
        self.commands[key].operation = operation;
    }

    fn make_command(&mut self, op: usize, kind: CommandKind) -> usize {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let is_plain = matches!(&self.ops[op].work, OpWork::Plain(Work::Write { records: None, .. }));
        let is_unsealed = is_plain && self.sealing.is_some() && matches!(kind, CommandKind::Write { .. });
        let stored = self.ops[op].stored.map(|stored| self.stored_part(stored, op, kind));
        let key = self.commands.insert(Command {
            op,
            kind,
            operation: stored.map(|stored| stored.operation),
            may_be_done: false,
            refusals: 0,
            sequence,
            tries: 0,
            retries: Retries::default(),
            fetches: Fetches::default(),
            sent: false,
            sent_at: None,
            write_bytes: 0,
            sealing: if is_unsealed { SealingState::Due } else { SealingState::AsSubmitted },
            is_ahead: false,
            flight: None,
            received_bytes: 0,
            error: None,
            asked_for_keys: false,
        });
        self.ops[op].outstanding += 1;
        if kind == CommandKind::Register {
            self.registration_ready = Some(key);
        } else if self.ops[op].is_replay {
            self.replay_ready.push_back(key);
        } else if is_unsealed {
            self.unsealed.push_back(key);
        } else {
            self.ready.add(key, sequence, kind, &self.commands);
        }
        key
    }

    /// What the target has acknowledged and may still lose, in bytes.
    pub(crate) fn unflushed_bytes(&self) -> usize {
        self.log.bytes()
    }

    /// Requests somebody waits for.
    pub(crate) fn has_waiting_callers(&self) -> bool {
        self.ops.iter().any(|(_, op)| !matches!(op.reply, Reply::Nobody | Reply::Ahead(_)))
    }

    /// When [`Engine::handle_timeout`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let delayed = self.delayed.iter().map(|(at, _)| *at).min();
        let verified = self.verified.as_ref().and_then(VerifiedFeedback::due).filter(|_| self.phase == Phase::Up);
        let windows = [&self.writes, &self.reads].into_iter().filter_map(Window::poll_timeout);
        let refetch = self.refetching.needs_connection().and(self.now);
        let others = [delayed, verified, self.silence_ends(), self.patience_ends(), refetch];
        others.into_iter().flatten().chain(windows).min()
    }

    /// The target took data, or otherwise showed that it works on what it has.
    pub(crate) fn moved(&mut self, now: Instant) {
        self.moved_at = Some(now);
    }

    /// When our patience with what is in flight ends.
    fn silence_ends(&self) -> Option<Instant> {
        let sent = self.commands.iter().filter(|(_, command)| command.sent).filter_map(|(_, command)| command.sent_at);
        let oldest = sent.min()?;
        let moved = self.moved_at.map_or(oldest, |at| at.max(oldest));
        Some((moved + MUTE_TIMEOUT).min(oldest + LOST_TIMEOUT))
    }

    /// Why what is in flight can only be settled over a new connection, if that is so.
    pub(crate) fn needs_new_connection(&self, now: Instant) -> Option<&'static str> {
        if let Some(why) = self.refetching.needs_connection() {
            return Some(why);
        }
        if self.was_reset && self.in_flight > 0 {
            return Some("the unit was reset, and commands in flight with it");
        }
        self.silence_ends().is_some_and(|at| at <= now).then_some("commands were not answered for too long")
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.now = Some(now);
        self.writes.handle_timeout(now);
        self.reads.handle_timeout(now);
        let (due, later) = std::mem::take(&mut self.delayed).into_iter().partition(|(at, _)| *at <= now);
        self.delayed = later;
        let due: Vec<(Instant, usize)> = due;
        for (_, key) in due.into_iter().rev() {
            self.again_ready(key);
        }
        if self.phase == Phase::Up
            && let Some(pairs) = self.verified.as_mut().and_then(|verified| verified.take_due(now))
        {
            self.submit(NewOp { reply: Reply::Nobody, cost_bytes: 0, work: Work::Verified { pairs } });
        }
    }

    /// The session had no room for a command after all.
    pub(crate) fn not_sent(&mut self, id: CommandId) {
        self.take_back(id);
        self.again_ready(id.0);
    }

    /// A command that was sent before, or nearly, is the first of its kind to be sent.
    fn again_ready(&mut self, key: usize) {
        let command = &self.commands[key];
        if command.kind == CommandKind::Register {
            self.registration_ready = Some(key);
        } else if self.ops[command.op].is_replay {
            self.replay_ready.push_front(key);
        } else {
            self.ready.add_first(key, command.kind);
        }
    }

    /// The session cannot express a command: a fault of ours, which fails the request and nothing else.
    pub(crate) fn cannot_be_sent(&mut self, id: CommandId, why: &str) {
        self.take_back(id);
        let command = self.commands.remove(id.0);
        self.ops[command.op].outstanding -= 1;
        let message = format!("the request cannot be expressed ({why}); please report this as a bug");
        self.command_failed(command.op, command.kind, device_error(DeviceErrorKind::Refused, None, message));
    }

    fn take_back(&mut self, id: CommandId) {
        let command = &mut self.commands[id.0];
        command.sent = false;
        command.tries -= 1;
        self.in_flight -= 1;
        self.writing_bytes -= std::mem::take(&mut command.write_bytes);
        if let Some(flight) = command.flight.take() {
            let window = if command.kind.reads() { &mut self.reads } else { &mut self.writes };
            window.not_sent(&flight);
        }
    }

    /// What has ended since the last call.
    /// How much feedback is still to be given.
    pub(crate) fn feedback_pending(&self) -> usize {
        self.verified.as_ref().map_or(0, VerifiedFeedback::pending)
    }

    pub(crate) fn take_finished(&mut self) -> Vec<FinishedOp> {
        std::mem::take(&mut self.finished)
    }

    fn delay(&mut self, now: Instant, after: Duration, key: usize) {
        self.delayed.push((now + after, key));
    }
}

/// A buffer of zeros for units that cannot unmap.
fn zeros(len_bytes: usize) -> Buffer {
    BufferMut::zeroed(len_bytes).freeze()
}
