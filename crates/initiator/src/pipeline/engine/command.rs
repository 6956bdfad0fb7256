//! A command of a request, from its making to its end.

use std::time::Instant;

use strongroom_block::Stamp;

use super::fetches::Fetches;
use crate::pipeline::Flight;
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::outcome::Retries;
use crate::pipeline::read_fault::ReadFault;
use crate::pipeline::sealing::SealedBlocks;

/// Names a command in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CommandId(pub(super) usize);

#[derive(Debug)]
pub(super) struct Command {
    /// The request that it is a part of.
    pub(super) request: usize,
    pub(super) plan: CommandPlan,
    /// The operation id, where it is not the stamp of the first seal record.
    pub(super) operation_id: Option<Stamp>,
    /// It was sent, and no answer said that it was not executed.
    pub(super) may_be_done: bool,
    /// How often the unit did not know its attach id.
    pub(super) refusals: u32,
    /// Order of making; kept over reconnects.
    pub(super) sequence: u64,
    pub(super) tries: u32,
    pub(super) retries: Retries,
    /// While it is in flight.
    pub(super) sent: Option<Sent>,
    /// Of a write that the pipeline seals.
    pub(super) sealing: SealingState,
    /// It counts as sealed ahead.
    pub(super) is_ahead: bool,
    /// Of data that did not authenticate.
    pub(super) fetches: Fetches,
    /// The source of the keys was asked because of what it read.
    pub(super) asked_for_keys: bool,
}

/// A command in flight.
#[derive(Debug)]
pub(super) struct Sent {
    /// `None` before the engine was told a time.
    pub(super) at: Option<Instant>,
    /// What it will add to the log of unflushed writes, in bytes.
    pub(super) log_bytes: usize,
    /// Its share of a window, unless it belongs to a replay.
    pub(super) flight: Option<Flight>,
    /// Data that came for it, in bytes.
    pub(super) received_bytes: usize,
    /// What is wrong with its data; outweighs a good status.
    pub(super) fault: Option<ReadFault>,
}

/// Whether the data of a command is sealed.
#[derive(Debug)]
pub(super) enum SealingState {
    /// It goes as it was submitted.
    AsSubmitted,
    /// It is to be sealed.
    Due,
    /// It is being sealed.
    InProgress,
    /// The blocks, for each time that it is sent.
    Done(Box<SealedBlocks>),
}

impl SealingState {
    pub(super) fn is_pending(&self) -> bool {
        matches!(self, SealingState::Due | SealingState::InProgress)
    }

    pub(super) fn done(&self) -> Option<&SealedBlocks> {
        match self {
            SealingState::Done(sealed) => Some(sealed),
            _ => None,
        }
    }

    pub(super) fn into_done(self) -> Option<SealedBlocks> {
        match self {
            SealingState::Done(sealed) => Some(*sealed),
            _ => None,
        }
    }
}
