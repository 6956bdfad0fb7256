//! Writes that came in plain: each of their commands is sealed when the pipeline has room for it, by whoever drives the engine, and is
//! ready to be sent once that is done.

use strongroom_block::{Buffer, DeviceError, Lba};

use super::command::CommandKind;
use super::{Engine, OpWork};
use crate::pipeline::request::Work;
use crate::pipeline::sealing::SealedBlocks;
use crate::pipeline::{PathSample, Window};
use crate::{Limits, PipelineStatus};

/// Requests taken in are so many windows of what is under way, if that is more than their limit.
const REQUEST_WINDOWS: usize = 2;

/// What has become of a command's data.
#[derive(Debug)]
pub(super) enum SealingState {
    /// It goes as it was submitted.
    AsSubmitted,
    /// It is to be sealed.
    Due,
    /// It is being sealed.
    UnderWay,
    /// So it goes, each time that it is sent.
    Done(Box<SealedBlocks>),
}

impl SealingState {
    pub(super) fn is_pending(&self) -> bool {
        matches!(self, SealingState::Due | SealingState::UnderWay)
    }
}

/// Names what is being sealed; what a command before had the place of is told apart.
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
        self.unsealed.front().is_some_and(|key| self.writes.may_seal(self.data_bytes(*key)))
    }

    /// The next blocks to seal, if the pipeline has room for them.
    pub(crate) fn next_to_seal(&mut self) -> Option<SealJob> {
        if !self.has_to_seal() {
            return None;
        }
        let key = self.unsealed.pop_front()?;
        let bytes = self.data_bytes(key);
        self.writes.sealing(bytes);
        let block_bytes = self.block_bytes();
        let command = &mut self.commands[key];
        command.sealing = SealingState::UnderWay;
        command.is_ahead = true;
        let id = SealId { command: key, sequence: command.sequence };
        match (command.kind, &self.ops[command.op].work) {
            (CommandKind::Write { lba, count }, OpWork::Plain(Work::Write { lba: first, data, .. })) => {
                let from = (lba.0 - first.0) as usize * block_bytes;
                let plain = data.slice(from..from + count as usize * block_bytes);
                Some(SealJob { id, lba, plain })
            }
            (kind, _) => unreachable!("{kind:?} is not sealed here"),
        }
    }

    /// What came of it; ignored if nobody waits for it any more.
    pub(crate) fn sealed(&mut self, id: SealId, result: Result<SealedBlocks, DeviceError>) {
        let key = id.command;
        let command = self.commands.get_mut(key).filter(|command| command.sequence == id.sequence);
        let Some(command) = command.filter(|command| matches!(command.sealing, SealingState::UnderWay)) else { return };
        match result {
            Ok(sealed) => {
                command.sealing = SealingState::Done(Box::new(sealed));
                self.ready.add(key, id.sequence, self.commands[key].kind, &self.commands);
            }
            Err(error) => self.fail_command(key, error),
        }
    }

    pub(super) fn no_longer_ahead(&mut self, key: usize) {
        if std::mem::take(&mut self.commands[key].is_ahead) {
            self.writes.no_longer_ahead(self.data_bytes(key));
        }
    }

    /// What the kernel says about the connection.
    pub(crate) fn path(&mut self, sample: PathSample) {
        self.writes.path(sample);
        self.reads.path(sample);
    }

    /// What the pipeline of the writes is at, as far as it knows.
    pub(crate) fn pipeline_status(&self) -> PipelineStatus {
        self.writes.status()
    }

    /// Threads that should seal, of `workers_max`; 0: who submits a write had better seal it.
    pub(crate) fn workers(&self, seal_bytes_per_second: f64, workers_max: u32) -> u32 {
        self.writes.workers(seal_bytes_per_second, workers_max)
    }

    /// Bytes that are to be fetched ahead of sequential reads; 0 where the way is short.
    pub(crate) fn ahead_bytes(&self) -> u64 {
        self.reads.window_bytes().unwrap_or(0).saturating_mul(REQUEST_WINDOWS as u64)
    }

    /// Bytes of requests that are to be taken in, so that there is always something to send.
    pub(crate) fn request_bytes_max(&self) -> usize {
        let windows = [&self.writes, &self.reads].into_iter().filter_map(Window::window_bytes);
        let window = windows.max().map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        self.limits.request_bytes_max.max(window.saturating_mul(REQUEST_WINDOWS).min(Limits::PINNED_BYTES_MAX))
    }
}
