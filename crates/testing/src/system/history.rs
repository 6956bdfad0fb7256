//! What initiators asked and what they were answered: all that the checker sees.
//!
//! The checker knows registers, not blocks: a block is one register, or two where initiators write halves of blocks too.

use std::fmt;

use super::layout::HALVES;

/// What a register holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    /// Zeros: it was discarded, or never written.
    Zeros,
    /// The data of this write. No two writes have the same number.
    Written(u64),
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Zeros => f.write_str("zeros"),
            Value::Written(number) => write!(f, "w{number}"),
        }
    }
}

/// A moment: moments are numbered in the order in which things happened.
pub type Moment = u64;

/// What an operation did to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It became this.
    Write(Value),
    /// It was this.
    Read(Value),
}

/// One operation, as far as one register is concerned.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Which initiator asked. One that was replaced after it died has another number.
    pub initiator: u64,
    /// Of which view of the volume.
    pub view: usize,
    /// Which register.
    pub register: u64,
    /// What it did.
    pub action: Action,
    /// A write that was durable when it returned (force unit access).
    pub durable: bool,
    /// When it was asked.
    pub invoked: Moment,
    /// When it was answered; `None`: never, or with an error: it may have taken effect, or may yet do so.
    pub returned: Option<Moment>,
}

/// A read that failed because a block could not be read. Reads that failed for other reasons say nothing and are nowhere.
#[derive(Clone, Copy, Debug)]
pub struct FailedRead {
    /// Which initiator asked.
    pub initiator: u64,
    /// Of which view.
    pub view: usize,
    /// A register of the block that the error names.
    pub register: u64,
    /// When it was asked.
    pub invoked: Moment,
    /// When it was answered.
    pub returned: Moment,
}

/// An initiator was told that its unflushed write of a block is lost: a crash took it, and part of the block was written since.
#[derive(Clone, Copy, Debug)]
pub struct LostWrite {
    /// Which initiator.
    pub initiator: u64,
    /// Of which view.
    pub view: usize,
    /// A register of the block that the error names.
    pub register: u64,
    /// When it was told.
    pub at: Moment,
}

/// What a register held was damaged on the disk.
#[derive(Clone, Copy, Debug)]
pub struct Rot {
    /// In which view.
    pub view: usize,
    /// Which register.
    pub register: u64,
    /// When.
    pub at: Moment,
}

/// A flush.
#[derive(Clone, Copy, Debug)]
pub struct Flush {
    /// Whose; it covers the writes of this initiator that returned before it was asked, since the last one that failed.
    pub initiator: u64,
    /// Of which view.
    pub view: usize,
    /// When it was asked.
    pub invoked: Moment,
    /// When it was answered.
    pub returned: Moment,
    /// Whether it succeeded. One that fails says that what was written before it may be lost, and no later one promises that again.
    pub succeeded: bool,
}

/// A persistent reservation keeps an initiator from writing: what it has under way took effect before, or does after.
#[derive(Clone, Copy, Debug)]
pub struct Fence {
    /// Whom.
    pub initiator: u64,
    /// PREEMPT AND ABORT was answered.
    pub from: Moment,
    /// It was about to be let in again; `None`: never.
    pub until: Option<Moment>,
}

/// What all registers of a view held at one moment.
#[derive(Clone, Debug)]
pub struct Look {
    /// Which view.
    pub view: usize,
    /// When.
    pub at: Moment,
    /// By register, as far as they could be read.
    pub found: Vec<Option<Value>>,
}

/// Everything that happened.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Reads that failed are not here.
    pub operations: Vec<Operation>,
    /// In any order.
    pub failed_reads: Vec<FailedRead>,
    /// In any order.
    pub lost_writes: Vec<LostWrite>,
    /// In any order.
    pub rots: Vec<Rot>,
    /// In any order.
    pub flushes: Vec<Flush>,
    /// In any order.
    pub fences: Vec<Fence>,
    /// When the target crashed, in order.
    pub crashes: Vec<Moment>,
    /// After a crash before any initiator was back, and of snapshots.
    pub looks: Vec<Look>,
    /// What views held at first, by register; zeros where nothing is said.
    pub initial: Vec<Vec<Value>>,
    /// Whether a block is two registers.
    pub has_halves: bool,
    pub(super) last: Moment,
}

impl History {
    /// The next moment.
    pub fn now(&mut self) -> Moment {
        self.last += 1;
        self.last
    }

    /// The registers of a block.
    pub(super) fn registers_of(&self, block: u64) -> std::ops::Range<u64> {
        let each = if self.has_halves { HALVES } else { 1 };
        block * each..(block + 1) * each
    }

    /// The registers of a block and what they hold; `None`: the halves of a block that is only ever written whole are of two writes.
    pub(super) fn split(&self, block: u64, values: [Value; HALVES as usize]) -> Option<Vec<(u64, Value)>> {
        let is_possible = self.has_halves || values[0] == values[1];
        is_possible.then(|| self.registers_of(block).zip(values).collect())
    }

    /// The registers of the block of which this is one.
    pub(super) fn beside(&self, register: u64) -> std::ops::Range<u64> {
        let each = if self.has_halves { HALVES } else { 1 };
        self.registers_of(register / each)
    }

    /// What a register of a view held at first.
    pub(super) fn initial_of(&self, view: usize, register: u64) -> Value {
        let of_view = self.initial.get(view).and_then(|values| values.get(register as usize));
        of_view.copied().unwrap_or(Value::Zeros)
    }
}
