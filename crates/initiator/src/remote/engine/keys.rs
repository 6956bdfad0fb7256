//! What becomes of requests when keys move on, come, or go.

use strongroom_block::DeviceError;

use super::command::CommandKind;
use super::seal::SealingState;
use super::{CommandId, Engine, OpWork};
use crate::remote::sealing::SealedBlocks;
use crate::remote::work::Work;

impl Engine {
    /// Keys were asked for, are others, or gone: reads whose question was answered are tried once more, and what was sealed under older
    /// keys is made durable, so that it need not be sent again when they are gone for good.
    pub(in crate::remote) fn keys_changed(&mut self) {
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

    /// A block under an unknown epoch: the source of the keys is asked once before the read fails.
    pub(super) fn waits_for_keys(&mut self, id: CommandId) -> bool {
        let command = &mut self.commands[id.0];
        if std::mem::replace(&mut command.asked_for_keys, true) {
            return false;
        }
        let Some(question) = self.sealing.as_ref().and_then(|sealing| sealing.ask_for_keys()) else { return false };
        if let OpWork::Asking(_, found) = &mut self.ops[command.op].work {
            found.forget();
        }
        self.awaiting_keys.push((question, id.0));
        true
    }

    /// What was sealed under an epoch that is over is sealed anew, and kept so: what is sent again, and what the log keeps, is what was
    /// sent. The old epoch's key may be gone by then.
    pub(super) fn freshen(&mut self, key: usize) -> Result<(), DeviceError> {
        let Some(sealing) = &self.sealing else { return Ok(()) };
        let command = &self.commands[key];
        match (command.kind, &self.ops[command.op].work) {
            (CommandKind::Write { lba, .. }, _) => {
                if let (data, Some(records)) = self.blocks_to_write(key)
                    && let Some(fresh) = sealing.freshen(lba, &SealedBlocks { data, records })?
                {
                    self.commands[key].sealing = SealingState::Done(Box::new(fresh));
                }
            }
            (CommandKind::SealHole, OpWork::Plain(Work::Hole(hole))) if sealing.is_stale(hole.record.epoch())? => {
                let fresh = sealing.seal_hole(hole.start, hole.count)?;
                let op = command.op;
                self.ops[op].work = OpWork::Plain(Work::Hole(fresh));
            }
            _ => {}
        }
        Ok(())
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

    /// While a replay waits for keys, others fail for want of them, as they would without it. Flushes wait.
    pub(super) fn fail_without_keys(&mut self) {
        let Some(error) = self.replay_waits.clone() else { return };
        while let Some(key) = self.ready.reads.pop_front().or_else(|| self.ready.writes.pop_front()) {
            self.fail_command(key, error.clone());
        }
    }

    /// Part of a block that was merged and sealed under an epoch that is over, or that cannot be told to be current, begins anew: without
    /// keys it then fails where it opens what it read.
    pub(super) fn read_again_if_stale(&mut self, key: usize) {
        let command = &self.commands[key];
        if command.kind == CommandKind::PartWrite
            && let (OpWork::Part(part), Some(sealing)) = (&self.ops[command.op].work, &self.sealing)
            && part.sealed_epoch().is_some_and(|epoch| sealing.is_stale(epoch) != Ok(false))
        {
            self.commands[key].kind = CommandKind::PartRead;
        }
    }
}
