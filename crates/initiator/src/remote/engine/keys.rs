//! What becomes of requests when keys move on, come, or go.

use super::command::CommandKind;
use super::{CommandId, Engine, OpWork};

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

    /// Part of a block that was merged and sealed under an epoch that is over begins anew.
    pub(super) fn read_again_if_stale(&mut self, key: usize) {
        let command = &self.commands[key];
        if command.kind == CommandKind::PartWrite
            && let (OpWork::Part(part), Some(sealing)) = (&self.ops[command.op].work, &self.sealing)
            && part.sealed_epoch().is_some_and(|epoch| sealing.is_stale(epoch) == Ok(true))
        {
            self.commands[key].kind = CommandKind::PartRead;
        }
    }
}
