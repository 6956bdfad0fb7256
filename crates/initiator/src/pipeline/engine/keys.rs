//! What becomes of requests when keys move on, come, or go.

use std::collections::VecDeque;
use std::time::Instant;

use strongroom_block::{DeviceError, Lba};
use strongroom_iscsi::ahs;
use strongroom_iscsi::initiator::Command as ScsiCommand;
use strongroom_scsi::cdb;

use super::command::CommandKind;
use super::{CommandId, Engine, OpWork};
use crate::pipeline::request::Reply;

impl Engine {
    /// Keys were asked for, are others, or gone: reads whose question was answered are tried once more, and what was sealed under older
    /// keys is made durable, so that it need not be sent again when they are gone for good.
    pub(crate) fn keys_changed(&mut self) {
        let sealing = self.sealing.as_ref();
        let answered = |question| sealing.is_none_or(|sealing| sealing.is_answered(question));
        for (_, key) in self.awaiting_keys.extract_if(.., |(question, _)| answered(*question)) {
            if self.commands.contains(key) {
                self.ready.add_first(key, self.commands[key].kind);
            }
        }
        if self.replay_waits.take().is_some() && self.replay_ops == 0 {
            self.begin_replay();
        }
        if !self.own_flush && self.log.bytes() > 0 {
            self.make_own_flush();
        }
    }

    /// Whether the target has sealed writes that it has not answered.
    pub(crate) fn has_unanswered_writes(&self) -> bool {
        self.commands.iter().any(|(_, command)| command.sent && command.kind.writes())
    }

    /// A block under an unknown epoch: the source of the keys is asked once before the read fails.
    pub(super) fn waits_for_keys(&mut self, id: CommandId, lba: Option<Lba>) -> bool {
        let command = &mut self.commands[id.0];
        if std::mem::replace(&mut command.asked_for_keys, true) {
            return false;
        }
        let Some(question) = self.sealing.as_ref().and_then(|sealing| sealing.ask_for_keys(lba)) else { return false };
        if let OpWork::Asking(_, found) = &mut self.ops[command.op].work {
            found.forget();
        }
        self.awaiting_keys.push((question, id.0));
        true
    }

    pub(super) fn build_crypto_erase(&self, epoch: u32) -> ScsiCommand {
        let mut segments = Vec::new();
        ahs::push_keys_destroyed(&mut segments, epoch);
        let cdb = cdb::sanitize_crypto_erase();
        ScsiCommand { ahs: segments.into(), ..ScsiCommand::without_data(self.unit.wire_lun(), cdb) }
    }

    /// Whether a command failed for keys that come again, and is part of a replay: what the application believes to be written is not
    /// lost for a key server that is not back yet.
    pub(super) fn waits_with_the_replay(&mut self, key: usize, error: &DeviceError) -> bool {
        let waits = self.ops[self.commands[key].op].is_replay && self.is_passing(error);
        if waits {
            self.replay_ready.push_front(key);
            self.replay_waits = Some(error.clone());
        }
        waits
    }

    pub(super) fn is_passing(&self, error: &DeviceError) -> bool {
        self.sealing.as_ref().is_some_and(|sealing| sealing.is_passing(error))
    }

    /// While a replay waits for keys, others fail for want of them, as they would without it. Flushes wait, as long as requests wait
    /// for a lost connection.
    pub(super) fn fail_without_keys(&mut self) {
        let Some(error) = self.replay_waits.clone() else { return };
        while let Some(key) = self.ready.reads.pop_front().or_else(|| self.ready.writes.pop_front()) {
            self.fail_command(key, error.clone());
        }
        let Some(now) = self.now else { return };
        self.without_keys_since.get_or_insert(now);
        if self.patience_ends().is_some_and(|at| at <= now) {
            self.fail_flushes(&error);
        }
    }

    /// When flushes stop waiting for the keys that a replay needs, if it waits for any.
    pub(super) fn patience_ends(&self) -> Option<Instant> {
        self.replay_waits.as_ref()?;
        // Once it is over there is nothing to wake for: flushes that come are looked at as they come.
        let ends = self.without_keys_since? + self.patience?;
        self.ready.others.iter().any(|key| self.is_asked_flush(*key)).then_some(ends)
    }

    /// A flush that somebody waits for.
    fn is_asked_flush(&self, key: usize) -> bool {
        let command = &self.commands[key];
        matches!(command.kind, CommandKind::Flush { .. }) && !matches!(self.ops[command.op].reply, Reply::Nobody)
    }

    fn fail_flushes(&mut self, error: &DeviceError) {
        let others = std::mem::take(&mut self.ready.others);
        let (flushes, others) = others.into_iter().partition::<VecDeque<_>, _>(|key| self.is_asked_flush(*key));
        self.ready.others = others;
        for key in flushes {
            let message = format!(
                "what was written before is not durable: the target was restarted and forgot it, and it cannot be sent again before there \
                 are keys; it is kept until then: {}",
                error.message
            );
            tracing::error!(message, "a flush fails");
            self.fail_command(key, DeviceError { message, ..error.clone() });
        }
    }

    /// Part of a block that was merged, never sent, and sealed under an epoch that is over, or that cannot be told to be current, begins anew: without
    /// keys it then fails where it opens what it read.
    pub(super) fn read_again_if_stale(&mut self, key: usize) {
        let command = &self.commands[key];
        if command.kind == CommandKind::PartWrite
            && !command.may_be_done
            && let (OpWork::Part(part), Some(sealing)) = (&self.ops[command.op].work, &self.sealing)
            && part.sealed().is_some_and(|blocks| sealing.is_stale(blocks.records.epoch()) != Ok(false))
        {
            self.commands[key].kind = CommandKind::PartRead;
        }
    }
}
