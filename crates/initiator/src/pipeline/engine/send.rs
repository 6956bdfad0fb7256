//! Which command is sent next, and what it needs before.

use strongroom_block::{DeviceError, DeviceErrorKind};
use strongroom_scsi::transport::Operation;
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::Engine;
use super::command::{CommandId, Sent};
use super::replay::Phase;
use crate::completion::device_error;
use crate::pipeline::command_plan::CommandKind;
use crate::pipeline::operation::execute::{BuildContext, Execute, UnitContext};
use crate::pipeline::operation::flush::build_flush;
use crate::pipeline::operation::{Flush, Register};
use crate::pipeline::request::Purpose;

impl Engine {
    /// The next command to send, if there is one and limits allow it. It counts as sent from here on.
    pub(crate) fn next_command(&mut self) -> Option<(CommandId, ScsiCommand)> {
        loop {
            let key = self.next_ready()?;
            let needs_write_access = self.table.commands[key].plan.needs_write_access();
            if let Some(error) = self.lease.lost().filter(|_| needs_write_access).cloned() {
                self.fail_command(key, error);
                continue;
            }
            match self.prepare(key) {
                Ok(true) => return Some((CommandId(key), self.send(key))),
                Ok(false) => {}
                Err(error) if self.waits_with_replay(key, &error) => {}
                // There is no key to seal it with, any more.
                Err(error) => self.fail_command(key, error),
            }
        }
    }

    fn next_ready(&mut self) -> Option<usize> {
        if self.in_flight.count >= self.windows.commands_max() {
            return None;
        }
        match self.replay.phase {
            Phase::Down => None,
            _ if self.table.queue.registration.is_some() => self.table.queue.registration.take(),
            Phase::Replaying if self.replay.missing_keys.is_some() => {
                self.fail_without_keys();
                None
            }
            Phase::Replaying if self.attach_ids.is_pending() => None,
            Phase::Replaying => self.table.queue.replay.pop_front(),
            Phase::Up => {
                if self.flushes.wants_own_flush(self.windows.unflushed_bytes_max()) {
                    self.begin_own_flush();
                }
                self.choose()
            }
        }
    }

    /// Of those that are ready and may go, the one that was made first; a flush, and what tells the target something, before all.
    /// Writes, reads and flushes wait for nothing but their own limits.
    fn choose(&mut self) -> Option<usize> {
        if let Some(key) = self.table.queue.take_other() {
            return Some(key);
        }
        let pinned = self.flushes.log.bytes() + self.in_flight.log_bytes();
        let log_has_room = pinned == 0 || pinned < self.windows.unflushed_bytes_max();
        let write = self.table.queue.first_write();
        if write.is_some() && !log_has_room {
            // The log grows with the window, which therefore must not take this for a lack of writes.
            self.windows.writes.held_back();
        }
        let write = write.filter(|_| log_has_room && !self.attach_ids.is_pending());
        let write = write.filter(|key| self.windows.writes.may_send(self.table.data_bytes(*key)));
        let read = self.table.queue.first_read();
        let read = read.filter(|key| self.windows.reads.may_send(self.table.data_bytes(*key)));
        let sequence = |key: &usize| self.table.commands[*key].sequence;
        let key = [write, read].into_iter().flatten().min_by_key(sequence)?;
        self.table.queue.take(key);
        Some(key)
    }

    /// A flush of the engine's own, before everything else.
    pub(super) fn begin_own_flush(&mut self) {
        self.flushes.own_begins();
        self.counters.own_flushes += 1;
        self.table.begin_own(Flush.into(), Purpose::Flush, None);
    }

    /// Reseals what must not be sent as it is. Whether the command can be sent; otherwise the registration of its attach id goes first.
    fn prepare(&mut self, key: usize) -> Result<bool, DeviceError> {
        let Some(sealing) = &self.sealing else { return Ok(true) };
        let (command, request) = self.table.both(key);
        if command.plan.writes()
            && !command.may_be_done
            && let Some(plan) = request.operation.instead_of_stale(sealing)
        {
            command.plan = plan;
        }
        self.attach_ids.reseal_if_stale(command, request, sealing)?;
        let Some(attach_id) = self.attach_ids.register_first(self.table.operation_id(key)) else { return Ok(true) };
        self.table.requeue(key);
        self.table.begin_own(Register { attach_id }.into(), Purpose::Registration, None);
        Ok(false)
    }

    /// Builds a command and counts it as sent.
    fn send(&mut self, key: usize) -> ScsiCommand {
        let scsi = self.build(key);
        self.no_longer_ahead(key);
        let is_up = self.replay.phase == Phase::Up;
        let data_bytes = self.table.data_bytes(key);
        let (command, request) = self.table.both(key);
        if let CommandKind::Flush { mark } = &mut command.plan.kind {
            *mark = self.flushes.log.mark();
        }
        if request.is_replay() {
            self.replay.has_keys();
        }
        let log_bytes = if command.plan.writes() && is_up { scsi.expected_bytes as usize } else { 0 };
        let flight = match (self.now.filter(|_| is_up), self.windows.of(&command.plan)) {
            (Some(now), Some(window)) => Some(window.sent(now, data_bytes)),
            _ => None,
        };
        command.sent = Some(Sent { at: self.now, log_bytes, flight, received_bytes: 0, fault: None });
        self.counters.commands_sent += 1;
        self.counters.commands_resent += u64::from(command.tries > 0);
        command.tries += 1;
        self.in_flight.sent(self.now, log_bytes);
        scsi
    }

    fn build(&self, key: usize) -> ScsiCommand {
        let command = &self.table.commands[key];
        let context = UnitContext { unit: &self.unit, sealing: self.sealing.as_deref() };
        if command.plan.is_flush() {
            return build_flush(context);
        }
        let request = &self.table.requests[command.request];
        // For what was resealed, and for replays.
        let operation = match request.stored.filter(|_| command.plan.writes()) {
            None => command.operation_id.map(|id| Operation { id, replay: None }),
            Some(stored) => {
                let first = stored.offset(command.plan.lba_or_zero().0 - request.range.start).first;
                self.table.operation_id(key).map(|id| Operation { id, replay: Some(first) })
            }
        };
        let context = BuildContext { unit: context, sealed: command.sealing.done(), operation };
        request.operation.build(&command.plan, &context)
    }

    /// The session did not take a command: it had no room after all, or cannot express it (`why`). The latter is a fault of ours, which
    /// fails the request and nothing else.
    pub(crate) fn not_sent(&mut self, id: CommandId, why: Option<&str>) {
        let command = &mut self.table.commands[id.0];
        command.tries -= 1;
        if let Some(sent) = command.sent.take() {
            self.in_flight.ended(sent.log_bytes);
            self.windows.not_sent(&command.plan, &sent);
        }
        let Some(why) = why else { return self.table.requeue(id.0) };
        let message = format!("the request cannot be expressed ({why}); please report this as a bug");
        self.fail_command(id.0, device_error(DeviceErrorKind::Refused, None, message));
    }
}
