//! Data that arrives, and the end of a command.

use std::time::Instant;

use strongroom_block::{DeviceError, DeviceErrorKind, Stamp};
use strongroom_scsi::transport::Written;
use strongroom_scsi::transport::initiator::{Completed, DataIn};

use super::Engine;
use super::command::{Command, CommandId, Sent};
use super::flushes::lost;
use super::refetching::FetchAgain;
use crate::completion::device_error;
use crate::pipeline::command_plan::{CommandKind, CommandPlan};
use crate::pipeline::operation::execute::{Execute, Next, UnitContext, unrequested_data};
use crate::pipeline::outcome::{Change, Outcome, change, is_good, judge, may_have_been_executed, says_reset};
use crate::pipeline::read_data::ReadData;
use crate::pipeline::read_fault::ReadFault;
use crate::pipeline::request::{Purpose, Reply};
use crate::pipeline::unflushed::{Entry, Stored};

impl Engine {
    /// Data of a command in flight. What is wrong with it is kept until the command's end.
    pub(crate) fn data_in(&mut self, now: Instant, id: CommandId, data_in: &DataIn) {
        let Engine { table, sealing, unit, feedback, .. } = self;
        let Some(command) = table.commands.get_mut(id.0) else { return };
        let Some(sent) = command.sent.as_mut().filter(|sent| sent.fault.is_none()) else { return };
        self.in_flight.moved(now);
        sent.received_bytes += data_in.data().len();
        let shift = unit.geometry.block_size.shift();
        let mut data = ReadData { sealing: sealing.as_deref(), shift, data_in, now, feedback: feedback.as_mut() };
        let operation = &mut table.requests[command.request].operation;
        let result = match command.plan.reads() {
            true => operation.data_in(&command.plan, &mut data),
            false => Err(unrequested_data()),
        };
        sent.fault = result.err();
    }

    /// A command has ended.
    pub(crate) fn completed(&mut self, now: Instant, id: CommandId, completed: &Completed) {
        let key = id.0;
        let Some(sent) = self.table.commands.get_mut(key).and_then(|command| command.sent.take()) else { return };
        self.answered(now, key, &sent, completed);
        let Some((outcome, written)) = self.outcome(now, key, sent.fault, completed) else { return };
        let (command, request) = self.table.both(key);
        if self.lease.keeps(key, &command.plan, &outcome) {
            return;
        }
        if let Outcome::Fail(error) = &outcome
            && error.kind == DeviceErrorKind::NoKey
            && self.key_questions.ask(key, command, self.sealing.as_deref(), error.lba)
        {
            return request.operation.restart();
        }
        if let Outcome::Retry(after) = outcome {
            command.may_be_done |= command.plan.writes() && may_have_been_executed(completed);
            request.operation.restart();
            return self.table.queue.delay(now, after, key);
        }
        let operation_id = self.table.operation_id(key);
        let command = self.table.remove_command(key);
        match outcome {
            Outcome::Done => self.succeeded(command, operation_id, written),
            Outcome::Fail(error) => self.failed(command.request, command.plan.kind, error),
            outcome => {
                let (operation, plan) = (&mut self.table.requests[command.request].operation, command.plan);
                let next = operation.declined(&plan, &outcome, &mut self.table.capabilities);
                self.proceed(command.request, &plan, next, None);
            }
        }
    }

    /// What an answer says besides the command's outcome.
    fn answered(&mut self, now: Instant, key: usize, sent: &Sent, completed: &Completed) {
        self.in_flight.ended(sent.log_bytes);
        self.in_flight.answered(now, says_reset(completed));
        let command = &self.table.commands[key];
        // Absent blocks do not come over the link.
        let moved = match command.plan.reads() {
            true => sent.received_bytes > 0,
            false => self.table.requests[command.request].operation.measures_path(),
        };
        self.windows.answered(now, &command.plan, sent, moved && is_good(completed));
        match change(completed) {
            Some(Change::Size) => self.counters.size_changes += 1,
            Some(Change::Reservations) => self.lease.doubt(),
            None => {}
        }
    }

    /// How a command has ended, and where a write is stored; `None` if it is sent again at once, or over another connection.
    fn outcome(
        &mut self,
        now: Instant,
        key: usize,
        fault: Option<ReadFault>,
        completed: &Completed,
    ) -> Option<(Outcome, Option<Written>)> {
        let (command, request) = self.table.both(key);
        let plan = command.plan;
        let outcome = judge(completed, plan.lba, &mut command.retries);
        match outcome {
            Outcome::Done => {}
            _ if plan.needs_write_access() && self.lease.lost().is_some() => {
                return self.lease.lost().map(|error| (Outcome::Fail(error.clone()), None));
            }
            Outcome::UnknownAttachment => {
                return match self.attach_ids.refused(command, request, self.sealing.as_deref()) {
                    Ok(()) => {
                        self.table.requeue(key);
                        None
                    }
                    Err(error) => Some((Outcome::Fail(error), None)),
                };
            }
            outcome => return Some((outcome, None)),
        }
        match fault {
            Some(ReadFault::Error(error)) => return Some((Outcome::Fail(error), None)),
            Some(ReadFault::NotAuthentic { lba, sequence }) => {
                let version = (lba, sequence);
                match self.refetching.fetch_again(now, command, request, version, &mut self.counters) {
                    Ok(FetchAgain::Now) => {
                        self.table.requeue(key);
                        return None;
                    }
                    Ok(FetchAgain::OverNewConnection) => return None,
                    Err(_) if request.operation.accepts_damage() => {}
                    Err(error) => return Some((Outcome::Fail(error), None)),
                }
            }
            None => {
                self.refetching.succeeded(command, &mut self.counters);
                let shift = self.unit.geometry.block_size.shift();
                if let Err(error) = check_length(&plan, request.operation.expected_bytes(&plan, shift), completed) {
                    return Some((Outcome::Fail(error), None));
                }
            }
        }
        if self.sealing.is_none() || !plan.writes() {
            return Some((Outcome::Done, None));
        }
        Some(match completed.written {
            Some(written) => (Outcome::Done, Some(written)),
            None => {
                let why = "the target does not say where it stored a write; update it, or see its log";
                (Outcome::Fail(device_error(DeviceErrorKind::Hardware, plan.lba, why)), None)
            }
        })
    }

    /// `operation_id` and `written`: of a write to a sealed unit, what it was and what became of it.
    fn succeeded(&mut self, command: Command, operation_id: Option<Stamp>, written: Option<Written>) {
        let Command { request: key, plan, sealing, .. } = command;
        let block_bytes = self.unit.geometry.block_size.len();
        let request = &mut self.table.requests[key];
        let is_repeat = written.is_some_and(|written| written.is_repeat);
        self.counters.writes_repeated += u64::from(is_repeat);
        match plan.kind {
            CommandKind::Flush { mark } => {
                self.flushes.flushed(mark);
                return self.proceed(key, &plan, Next::Continue, None);
            }
            // It is in the log already.
            CommandKind::Write if request.is_replay() => {
                let superseded = written.map_or(0, |written| u64::from(written.superseded));
                self.counters.blocks_superseded += superseded;
                self.replay.superseded(superseded);
                return self.proceed(key, &plan, Next::Continue, None);
            }
            // It was executed before and is durable: it need not be replayed, and must not be.
            CommandKind::Write if is_repeat => return self.proceed(key, &plan, Next::Continue, None),
            CommandKind::Write => {
                let sealed = sealing.into_done();
                if let Some((range, what)) = request.operation.log_entry(&plan, sealed, block_bytes) {
                    let stored = operation_id.zip(written);
                    let stored = stored.map(|(operation, written)| Stored { operation, first: written.first });
                    self.flushes.log.push(Entry { range, what, stored });
                }
            }
            CommandKind::Read | CommandKind::Control | CommandKind::Registration => {}
        }
        let context = UnitContext { unit: &self.unit, sealing: self.sealing.as_deref() };
        let next = request.operation.succeeded(&plan, context);
        self.proceed(key, &plan, next, operation_id);
    }

    /// Goes on with a request after the end of one of its commands.
    fn proceed(&mut self, key: usize, plan: &CommandPlan, next: Next, operation_id: Option<Stamp>) {
        match next {
            Next::Continue => {}
            Next::Flush => {
                let flush = self.table.make_command(key, CommandPlan::flush());
                // Should the write have to be sent again, it has the operation id that it had.
                self.table.commands[flush].operation_id = operation_id;
            }
            Next::Send(plan) => drop(self.table.make_command(key, plan)),
            Next::StartOver(plan) => {
                self.counters.guarded_retries += 1;
                self.table.make_command(key, plan);
            }
            Next::Registered => {
                self.counters.registrations += 1;
                let Engine { table, flushes, attach_ids, .. } = self;
                let waiting = table.commands.iter().filter_map(|(key, _)| table.operation_id(key));
                let waiting = waiting.map(|stamp| stamp.attach_id);
                attach_ids.registered(|| waiting.chain(flushes.log.attach_ids()).collect());
            }
            Next::Erased => self.flushes.erased(),
            Next::Fail(error) => return self.failed(key, plan.kind, error),
        }
        self.table.cut(key);
        self.settle_own();
    }

    /// A command fails before it is sent, or while it waits.
    pub(super) fn fail_command(&mut self, key: usize, error: DeviceError) {
        self.no_longer_ahead(key);
        let command = self.table.remove_command(key);
        self.failed(command.request, command.plan.kind, error);
    }

    /// A command of a request has failed.
    fn failed(&mut self, key: usize, kind: CommandKind, error: DeviceError) {
        let request = &self.table.requests[key];
        let is_ahead = matches!(request.reply, Reply::Ahead(_));
        self.counters.blocks_failed += u64::from(error.kind == DeviceErrorKind::Medium && !is_ahead);
        let is_flush = matches!(kind, CommandKind::Flush { .. });
        if request.is_own() && (request.is_replay() || is_flush) {
            // The application believes these writes to be safe until its next flush says otherwise.
            tracing::error!(%error, "writes that were acknowledged may be lost");
            let is_replay = request.is_replay();
            let lost = lost(&error);
            // The flushes that wait just now say so, or else the next one: none of them may promise that these writes are durable.
            if !self.table.fail_waiting_flushes(&lost) {
                self.flushes.set_lost(lost);
            }
            if !is_replay {
                self.flushes.log.give_up();
            }
        }
        // The replay was to restore what others own now. On a plain unit nothing keeps a later one from overwriting what they write meanwhile.
        let is_data = matches!(kind, CommandKind::Write | CommandKind::Flush { .. } | CommandKind::Registration);
        let is_unsafe = self.sealing.is_none() || self.table.requests[key].is_replay();
        if error.kind == DeviceErrorKind::ReservationConflict && is_data && is_unsafe {
            self.flushes.give_up(&mut self.table, &error);
        }
        self.table.fail(key, error.clone());
        self.settle_own();
        if kind == CommandKind::Registration {
            self.registration_failed(&error);
        }
    }

    /// The unit does not take an attach id (it is read-only, reserved, or full): what waits for it fails as it would have by itself.
    fn registration_failed(&mut self, error: &DeviceError) {
        let Some(id) = self.attach_ids.not_registered() else { return };
        let operations: Vec<usize> = {
            let waits = |key| self.table.operation_id(key).is_some_and(|stamp| stamp.attach_id == id);
            self.table.commands.iter().map(|(key, _)| key).filter(|key| waits(*key)).collect()
        };
        for key in self.table.queue.take_writes(|key| operations.contains(&key)) {
            self.fail_command(key, error.clone());
        }
    }

    /// What follows from the end of the engine's own requests.
    pub(super) fn settle_own(&mut self) {
        while let Some(purpose) = self.table.take_own_ended() {
            match purpose {
                Purpose::Replay => {
                    self.replay.request_ended();
                    self.replay.end_if_complete();
                }
                Purpose::Flush => self.flushes.own_ended(),
                Purpose::Feedback => {
                    if let Some(feedback) = &mut self.feedback {
                        feedback.sent_or_lost();
                    }
                }
                Purpose::Registration => {}
            }
        }
    }
}

/// A read that reports success must have moved what was asked for.
fn check_length(plan: &CommandPlan, expected: Option<u32>, completed: &Completed) -> Result<(), DeviceError> {
    match expected {
        Some(expected) if completed.moved_bytes != expected => {
            let moved = completed.moved_bytes;
            let message = format!("the target sent {moved} of {expected} bytes and called it done; see its log");
            Err(device_error(DeviceErrorKind::Medium, plan.lba, message))
        }
        _ => Ok(()),
    }
}
