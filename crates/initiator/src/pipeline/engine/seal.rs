//! Writes that came in plain: each of their commands is sealed when the pipeline has room for it, by the driver of the engine, and is
//! ready to be sent once that is done.

use strongroom_block::{Buffer, DeviceError, Lba};

use super::Engine;
use super::command::SealingState;
use crate::pipeline::operation::execute::Execute;
use crate::pipeline::sealing::SealedBlocks;

/// Names what is being sealed. The sequence distinguishes it from an earlier command in the same slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SealId {
    command: usize,
    sequence: u64,
}

#[cfg(test)]
impl SealId {
    pub(crate) fn numbered(sequence: u64) -> SealId {
        SealId { command: 0, sequence }
    }

    pub(crate) fn number(self) -> u64 {
        self.sequence
    }
}

/// Blocks to seal.
#[derive(Debug)]
pub(crate) struct SealJob {
    pub(crate) id: SealId,
    pub(crate) lba: Lba,
    pub(crate) plain: Buffer,
}

impl Engine {
    /// Whether there is something to seal now.
    pub(crate) fn has_to_seal(&self) -> bool {
        let first = self.table.queue.unsealed.front();
        first.is_some_and(|key| self.windows.writes.may_seal(self.table.data_bytes(*key)))
    }

    /// The next blocks to seal, if the pipeline has room for them.
    pub(crate) fn next_to_seal(&mut self) -> Option<SealJob> {
        if !self.has_to_seal() {
            return None;
        }
        let key = self.table.queue.unsealed.pop_front()?;
        self.windows.writes.sealing(self.table.data_bytes(key));
        let block_bytes = self.unit.geometry.block_size.len();
        let (command, request) = self.table.both(key);
        command.sealing = SealingState::InProgress;
        command.is_ahead = true;
        let id = SealId { command: key, sequence: command.sequence };
        let plain = request.operation.plain_blocks(&command.plan, block_bytes)?;
        Some(SealJob { id, lba: command.plan.lba_or_zero(), plain })
    }

    /// The result; ignored if its command is gone.
    pub(crate) fn sealed(&mut self, id: SealId, result: Result<SealedBlocks, DeviceError>) {
        let key = id.command;
        let command = self.table.commands.get_mut(key).filter(|command| command.sequence == id.sequence);
        let Some(command) = command.filter(|command| matches!(command.sealing, SealingState::InProgress)) else {
            return;
        };
        match result {
            Ok(sealed) => {
                command.sealing = SealingState::Done(Box::new(sealed));
                self.table.queue.add(key, &self.table.commands);
            }
            Err(error) => self.fail_command(key, error),
        }
    }

    /// A command is sent, or fails: it no longer counts as sealed ahead.
    pub(super) fn no_longer_ahead(&mut self, key: usize) {
        if std::mem::take(&mut self.table.commands[key].is_ahead) {
            self.windows.writes.no_longer_ahead(self.table.data_bytes(key));
        }
    }
}
