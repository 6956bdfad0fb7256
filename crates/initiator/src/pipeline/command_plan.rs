//! One SCSI command of an operation as queues, windows and time-outs see it: its kind, and the blocks that it concerns.

use strongroom_block::Lba;

/// What a command competes for and what it may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandKind {
    /// Fetches blocks, or asks about them.
    Read,
    /// Writes blocks, holes or discards. On a sealed unit it has an operation id.
    Write,
    /// Makes durable what was acknowledged before. `mark`: how far that is in the log of unflushed writes, set when it is sent.
    Flush { mark: u64 },
    /// Tells the unit something, or changes more than blocks.
    Control,
    /// Registers an attach id; no write is sent before it is answered.
    Registration,
}

/// A command that an operation wants to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandPlan {
    pub(crate) kind: CommandKind,
    /// The first block concerned, which errors name.
    pub(crate) lba: Option<Lba>,
    /// Blocks concerned.
    pub(crate) count: u32,
    /// Blocks of data that it moves: what windows count.
    pub(crate) data_blocks: u32,
}

impl CommandPlan {
    /// Fetches `count` blocks.
    pub(crate) fn read(lba: Lba, count: u32) -> CommandPlan {
        CommandPlan { kind: CommandKind::Read, lba: Some(lba), count, data_blocks: count }
    }

    /// Asks something about `lba` and what follows. Windows do not count the answer.
    pub(crate) fn question(lba: Lba, count: u32) -> CommandPlan {
        CommandPlan { kind: CommandKind::Read, lba: Some(lba), count, data_blocks: 0 }
    }

    /// Sends `count` blocks.
    pub(crate) fn write(lba: Lba, count: u32) -> CommandPlan {
        CommandPlan { kind: CommandKind::Write, lba: Some(lba), count, data_blocks: count }
    }

    /// Changes blocks without a window's counting what it sends.
    pub(crate) fn write_uncounted(lba: Lba, count: u32) -> CommandPlan {
        CommandPlan { kind: CommandKind::Write, lba: Some(lba), count, data_blocks: 0 }
    }

    pub(crate) fn flush() -> CommandPlan {
        CommandPlan::of_unit(CommandKind::Flush { mark: 0 })
    }

    pub(crate) fn control() -> CommandPlan {
        CommandPlan::of_unit(CommandKind::Control)
    }

    pub(crate) fn registration() -> CommandPlan {
        CommandPlan::of_unit(CommandKind::Registration)
    }

    fn of_unit(kind: CommandKind) -> CommandPlan {
        CommandPlan { kind, lba: None, count: 0, data_blocks: 0 }
    }

    /// The first block concerned; 0 where the whole unit is.
    pub(crate) fn lba_or_zero(&self) -> Lba {
        self.lba.unwrap_or(Lba(0))
    }

    pub(crate) fn reads(&self) -> bool {
        self.kind == CommandKind::Read
    }

    pub(crate) fn writes(&self) -> bool {
        self.kind == CommandKind::Write
    }

    pub(crate) fn is_flush(&self) -> bool {
        matches!(self.kind, CommandKind::Flush { .. })
    }

    /// Whether it is useless, or must not be sent, without the right to write.
    pub(crate) fn needs_write_access(&self) -> bool {
        !self.reads()
    }
}
