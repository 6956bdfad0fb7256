//! The end of a command, and the end of a request.

use std::time::Instant;

use strongroom_block::{DeviceError, DeviceErrorKind, Lba, Stamp};
use strongroom_iscsi::ahs::Written;
use strongroom_iscsi::initiator::Completed;
use strongroom_scsi::capacity::ReadCapacity16;
use strongroom_scsi::provisioning::parse_lba_status;
use strongroom_scsi::{Sense, SenseKey, Status};

use super::command::{Command, CommandKind};
use super::operation::may_have_been_executed;
use super::refetch::ReadFault;
use super::seal::SealingState;
use super::{CommandId, Engine, Op, OpWork};
use crate::completion::device_error;
use crate::pipeline::losses::LostRequest;
use crate::pipeline::outcome::{Verdict, judge};
use crate::pipeline::request::{Answer, FailedRequest, FinishedOp, Reply, Survey, Work};
use crate::pipeline::unflushed::{Entry, Logged, Stored};
use crate::pipeline::write_order::Range;

impl Engine {
    /// A command has ended.
    pub(crate) fn completed(&mut self, now: Instant, id: CommandId, completed: &Completed) {
        let Some(command) = self.commands.get_mut(id.0).filter(|command| command.sent) else { return };
        command.sent = false;
        self.moved_at = Some(now);
        self.in_flight -= 1;
        self.writing_bytes -= std::mem::take(&mut command.write_bytes);
        let (op_key, kind) = (command.op, command.kind);
        if let Some(flight) = command.flight.take() {
            let is_good = completed.response == 0 && completed.status == Status::Good as u8;
            match kind.reads() {
                // What is absent does not come over the link.
                true => self.reads.answered(now, &flight, is_good && command.received_bytes > 0),
                false => self.writes.answered(now, &flight, is_good && matches!(kind, CommandKind::Write { .. })),
            }
        }
        let lba = kind.lba(&self.ops[op_key]);
        self.was_reset = self.in_flight > 0 && (self.was_reset || says_reset(completed));
        let change = tell_of_change(completed);
        self.counters.size_changes += u64::from(change == Some(Change::Size));
        if change == Some(Change::Reservations) {
            self.lease.doubt();
        }
        let mut verdict = judge(completed, lba, &mut command.retries);
        if verdict != Verdict::Done
            && let Some(error) = self.lease.lost().filter(|_| kind.changes())
        {
            verdict = Verdict::Fail(error.clone());
        }
        if verdict == Verdict::Done {
            verdict = match command.error.take() {
                Some(ReadFault::Error(error)) => Verdict::Fail(error),
                Some(ReadFault::NotAuthentic { lba, sequence }) => match self.fetch_again(now, id.0, lba, sequence) {
                    Ok(()) => return,
                    // That one of its versions does not open is an answer to whoever asks for versions.
                    Err(_) if self.asks_for_version(op_key) => Verdict::Done,
                    Err(error) => Verdict::Fail(error),
                },
                None => {
                    self.was_fetched_again(id.0);
                    self.check_length(kind, op_key, completed)
                }
            };
        }
        let mut written = None;
        if verdict == Verdict::Done {
            match self.written(kind, completed) {
                Ok(found) => written = found,
                Err(why) => verdict = Verdict::Fail(device_error(DeviceErrorKind::Hardware, lba, why)),
            }
        }
        if verdict == Verdict::UnknownAttachment {
            match self.attachment_forgotten(id.0) {
                Ok(()) => return,
                Err(error) => verdict = Verdict::Fail(error),
            }
        }
        if let Verdict::Fail(error) = &verdict
            && error.kind == DeviceErrorKind::ReservationConflict
            && self.waits_for_lease(id.0, error)
        {
            return;
        }
        if let Verdict::Fail(error) = &verdict
            && error.kind == DeviceErrorKind::NoKey
            && self.waits_for_keys(id, error.lba)
        {
            return;
        }
        if let Verdict::Retry(after) = verdict {
            let command = &mut self.commands[id.0];
            command.error = None;
            command.may_be_done |= kind.writes() && may_have_been_executed(completed);
            if let OpWork::Asking(_, found) = &mut self.ops[op_key].work {
                found.forget();
            }
            return self.delay(now, after, id.0);
        }
        let operation = self.operation_id(id.0);
        let command = self.commands.remove(id.0);
        self.ops[op_key].outstanding -= 1;
        match verdict {
            Verdict::Done => self.command_done(command, operation, written),
            Verdict::Miscompare if kind == CommandKind::PartWrite => self.part_miscompared(op_key),
            Verdict::Miscompare if kind == CommandKind::Reseal => {
                if let OpWork::Asking(_, found) = &mut self.ops[op_key].work {
                    found.miscompared = true;
                }
                self.finish_if_done(op_key);
            }
            Verdict::NoOlderVersion if kind == CommandKind::Ask => self.finish_if_done(op_key),
            Verdict::NotSupported if kind == CommandKind::Ask => {
                if let OpWork::Asking(Work::LbaStatus { .. }, _) = &self.ops[op_key].work {
                    self.lba_status_works = false;
                }
                self.finish_if_done(op_key);
            }
            Verdict::Fail(error) => self.command_failed(op_key, kind, error),
            other => self.command_failed(op_key, kind, unexpected(&other, lba)),
        }
    }

    fn asks_for_version(&self, op: usize) -> bool {
        matches!(self.ops[op].work, OpWork::Asking(Work::ReadVersion { .. }, _))
    }

    /// A read that reports success must have moved what was asked for.
    fn check_length(&self, kind: CommandKind, op: usize, completed: &Completed) -> Verdict {
        let shift = self.geometry().block_size.shift();
        let expected = match kind {
            CommandKind::Read { count, .. } => count << shift,
            CommandKind::PartRead => 1 << shift,
            CommandKind::Ask => match &self.ops[op].work {
                OpWork::Asking(Work::Survey { count, .. }, _) => count << shift,
                _ => return Verdict::Done,
            },
            _ => return Verdict::Done,
        };
        if completed.moved_bytes == expected {
            return Verdict::Done;
        }
        let lba = kind.lba(&self.ops[op]);
        let message =
            format!("the target sent {} of {expected} bytes and called it done; see its log", completed.moved_bytes);
        Verdict::Fail(device_error(DeviceErrorKind::Medium, lba, message))
    }

    /// `operation` and `written`: what a write was and what became of it, on a sealed unit.
    fn command_done(&mut self, command: Command, operation: Option<Stamp>, written: Option<Written>) {
        let Command { op: key, kind, sealing, .. } = command;
        let is_replay = self.ops[key].is_replay;
        let is_repeat = written.is_some_and(|written| written.is_repeat);
        self.counters.writes_repeated += u64::from(is_repeat);
        let stored = operation.zip(written).map(|(operation, written)| Stored { operation, first: written.first });
        match kind {
            CommandKind::Flush { mark } => {
                let mark = if self.marks_flushes_late { self.log.mark() } else { mark };
                self.log.flushed(mark);
                self.finish_if_done(key);
            }
            CommandKind::PartRead => self.part_was_read(key),
            // It was executed before, and is durable.
            CommandKind::PartWrite | CommandKind::Conditional if is_repeat => self.finish_if_done(key),
            // A part, and what depends on a condition, is durable before it is acknowledged: see `part`.
            CommandKind::PartWrite | CommandKind::Conditional => self.flush_written(key, operation),
            // A replayed write is in the log already.
            _ if is_replay => {
                let superseded = written.map_or(0, |written| written.superseded);
                self.counters.blocks_superseded += u64::from(superseded);
                self.replay_superseded += u64::from(superseded);
                self.cut_or_finish(key);
            }
            // Durable: it need not be sent again, and must not be.
            CommandKind::Write { .. } | CommandKind::SealHole if is_repeat => self.cut_or_finish(key),
            CommandKind::Write { lba, count } => {
                if let OpWork::Plain(Work::Write { lba: first, data, records, .. }) = &self.ops[key].work {
                    let (data, records) = match sealing {
                        SealingState::Done(sealed) => (sealed.data, Some(sealed.records)),
                        _ => self.part_of_write(*first, data, records.as_ref(), lba, count),
                    };
                    self.log.push(Entry::write(lba, self.block_bytes(), data, records, stored));
                }
                self.cut_or_finish(key);
            }
            CommandKind::Unmap { lba, count } | CommandKind::WriteZeros { lba, count } => {
                let range = Range::new(lba, u64::from(count));
                self.log.push(Entry { range, what: Logged::Discard, stored: None });
                self.cut_or_finish(key);
            }
            CommandKind::SealHole => {
                if let OpWork::Plain(Work::Hole(hole)) = &self.ops[key].work {
                    let range = Range::new(hole.start, hole.count);
                    self.log.push(Entry { range, what: Logged::Hole(hole.clone()), stored });
                }
                self.finish_if_done(key);
            }
            // What was written before it is gone, and is not sent again.
            CommandKind::CryptoErase => {
                self.log.give_up();
                self.lost = None;
                self.finish_if_done(key);
            }
            CommandKind::Read { .. } => self.cut_or_finish(key),
            CommandKind::Register => {
                self.registered();
                self.finish_if_done(key);
            }
            // Not kept to be sent again: whoever reseals looks whether the target was restarted.
            CommandKind::Verified | CommandKind::TakePlace | CommandKind::Ask | CommandKind::Reseal => {
                self.finish_if_done(key);
            }
        }
    }

    /// A command fails before it is sent.
    pub(super) fn fail_command(&mut self, key: usize, error: DeviceError) {
        self.no_longer_ahead(key);
        let command = self.commands.remove(key);
        self.ops[command.op].outstanding -= 1;
        self.command_failed(command.op, command.kind, error);
    }

    pub(super) fn command_failed(&mut self, key: usize, kind: CommandKind, error: DeviceError) {
        let is_ahead = matches!(self.ops[key].reply, Reply::Ahead(_));
        if error.kind == DeviceErrorKind::Medium && !is_ahead {
            self.counters.blocks_failed += 1;
        }
        let op = &self.ops[key];
        let (ours, is_replay) = (matches!(op.reply, Reply::Nobody), op.is_replay);
        if ours && (is_replay || matches!(kind, CommandKind::Flush { .. })) {
            // The application believes these writes to be safe until its next flush says otherwise.
            tracing::error!(%error, "writes that were acknowledged may be lost");
            self.writes_lost(&error);
            if !is_replay {
                self.log.give_up();
            }
        }
        let refused = (kind == CommandKind::Register).then(|| error.clone());
        self.ops[key].error.get_or_insert(error);
        self.cut_or_finish(key);
        if let Some(error) = refused {
            self.registration_failed(&error);
        }
    }

    /// Writes that were acknowledged may be lost. The flushes that wait just now say so, or else the next one: none of them may promise
    /// that these writes are durable.
    fn writes_lost(&mut self, error: &DeviceError) {
        let error = lost(error);
        let is_flush = |op: &Op| matches!(op.work, OpWork::Plain(Work::Flush)) && !matches!(op.reply, Reply::Nobody);
        let mut is_told = false;
        for (_, op) in self.ops.iter_mut().filter(|(_, op)| is_flush(op)) {
            op.error.get_or_insert_with(|| error.clone());
            is_told = true;
        }
        if !is_told {
            self.lost.get_or_insert(error);
        }
    }

    fn cut_or_finish(&mut self, key: usize) {
        match &self.ops[key].work {
            OpWork::Plain(work) if work.is_cut() => self.cut(key),
            _ => self.finish_if_done(key),
        }
    }

    /// Ends a request with nothing outstanding and nothing left to cut.
    pub(super) fn finish_if_done(&mut self, key: usize) {
        let op = &self.ops[key];
        let cut = matches!(&op.work, OpWork::Plain(work) if work.is_cut());
        let more = cut && op.cursor.start < op.cursor.end && op.error.is_none();
        if op.outstanding > 0 || more {
            return;
        }
        let Op { reply, cost_bytes, work, holds, is_replay, error, .. } = self.ops.remove(key);
        if matches!(reply, Reply::Nobody) {
            self.own_op_ended(&work, is_replay);
        } else {
            let (result, failed) = match (error, work) {
                (Some(error), OpWork::Plain(Work::Read { lba, buffer })) => {
                    (Err(error), Some(FailedRequest::Read(lba, buffer)))
                }
                (Some(error), work) => (Err(error), lost_request(&work, self.block_bytes()).map(FailedRequest::Lost)),
                (None, work) => (Ok(answer(work)), None),
            };
            self.finished.push(FinishedOp { reply, cost_bytes, result, failed });
        }
        if let Some(range) = holds {
            for granted in self.order.release(range) {
                self.start(granted);
            }
        }
    }

    fn own_op_ended(&mut self, work: &OpWork, is_replay: bool) {
        if is_replay {
            self.replay_ops -= 1;
            return self.replay_done_if_empty();
        }
        match work {
            OpWork::Plain(Work::Flush) => self.own_flush = false,
            OpWork::Plain(Work::Verified { .. }) => {
                if let Some(verified) = &mut self.verified {
                    verified.sent_or_lost();
                }
            }
            _ => {}
        }
    }

    /// A request of the engine's own.
    pub(super) fn insert_own(&mut self, work: Work) -> usize {
        self.ops.insert(Op {
            reply: Reply::Nobody,
            cost_bytes: 0,
            work: OpWork::Plain(work),
            holds: None,
            is_replay: false,
            stored: None,
            outstanding: 0,
            cursor: Range { start: 0, end: 0 },
            error: None,
        })
    }
}

/// Whether the unit says that commands before this one were ended without an answer.
fn says_reset(completed: &Completed) -> bool {
    let sense = Sense::parse(&completed.sense);
    completed.status == Status::CheckCondition as u8
        && sense.is_some_and(|sense| {
            sense.key == SenseKey::UnitAttention && matches!((sense.asc, sense.ascq), (0x29, _) | (0x2f, 0x00))
        })
}

/// What a unit attention says has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Size,
    /// Or a writer lease.
    Reservations,
}

/// Tells people of a unit attention that concerns them: the command itself is only tried again.
fn tell_of_change(completed: &Completed) -> Option<Change> {
    if completed.status != Status::CheckCondition as u8 {
        return None;
    }
    let sense = Sense::parse(&completed.sense).filter(|sense| sense.key == SenseKey::UnitAttention)?;
    match (sense.asc, sense.ascq) {
        (0x2a, 0x09) => {
            tracing::info!("the volume's size has changed");
            Some(Change::Size)
        }
        (0x2a, 0x03..=0x05) => {
            tracing::warn!("somebody changed the reservations of the volume, perhaps ours with them");
            Some(Change::Reservations)
        }
        (asc, ascq) => {
            tracing::debug!(asc, ascq, "the unit asks for attention");
            None
        }
    }
}

fn answer(work: OpWork) -> Answer {
    match work {
        OpWork::Plain(Work::Read { buffer, .. }) => Answer::Read(buffer),
        OpWork::Asking(Work::ProbeHole { .. }, found) => Answer::HoleBlocks {
            absent: found.hole_blocks,
            asked: found.asked_blocks,
            oldest_epoch: found.oldest_epoch,
        },
        OpWork::Asking(Work::Survey { buffer, .. }, found) => {
            let (blocks, holes) = found.surveyed;
            Answer::Survey(Survey { data: buffer, blocks, holes })
        }
        OpWork::Asking(Work::ResealBlock { .. } | Work::ResealHole(_), found) => Answer::Resealed(!found.miscompared),
        OpWork::Asking(Work::LbaStatus { .. }, found) => {
            Answer::LbaStatus(parse_lba_status(&found.bytes).and_then(|all| all.into_iter().next()))
        }
        OpWork::Asking(Work::Capacity, found) => {
            Answer::Capacity(ReadCapacity16::parse(&found.bytes).and_then(|capacity| capacity.geometry()))
        }
        OpWork::Asking(_, found) => Answer::Version(found.version),
        OpWork::Plain(_) | OpWork::Part(_) => Answer::Done,
    }
}

fn unexpected(verdict: &Verdict, lba: Option<Lba>) -> DeviceError {
    let (kind, message) = match verdict {
        Verdict::Miscompare => {
            (DeviceErrorKind::Refused, "the block was written by somebody else in the meantime; try again")
        }
        Verdict::NotSupported => {
            (DeviceErrorKind::Refused, "the target does not know a command that is needed; update it")
        }
        _ => (DeviceErrorKind::Hardware, "the target answers in a way that makes no sense; see its log"),
    };
    device_error(kind, lba, message)
}

pub(super) fn lost(error: &DeviceError) -> DeviceError {
    let message = format!("writes since the last flush may be lost: {}", error.message);
    DeviceError { message, ..error.clone() }
}

/// What is lost if a request fails.
pub(super) fn lost_request(work: &OpWork, block_bytes: usize) -> Option<LostRequest> {
    match work {
        OpWork::Plain(Work::Write { lba, data, .. }) => {
            Some(LostRequest::Write { lba: *lba, blocks: (data.len() / block_bytes) as u64 })
        }
        OpWork::Part(part) => Some(LostRequest::Write { lba: part.lba, blocks: 1 }),
        OpWork::Plain(Work::Flush) => Some(LostRequest::Flush),
        _ => None,
    }
}
