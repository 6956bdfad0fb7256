//! What initiators asked and what they were answered: all that the checker sees.

use std::fmt;

/// What a block holds.
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

/// A moment: moments are numbered in the order in which things happened, and no two things share one.
pub type Moment = u64;

/// What an operation did to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The block became this.
    Write(Value),
    /// The block was this.
    Read(Value),
}

/// One operation, as far as one block is concerned.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Which initiator asked. One that was replaced after it died has another number.
    pub initiator: u64,
    /// Of which view of the volume.
    pub view: usize,
    /// Which block.
    pub block: u64,
    /// What it did.
    pub action: Action,
    /// A write that was durable when it returned (force unit access).
    pub durable: bool,
    /// When it was asked.
    pub invoked: Moment,
    /// When it was answered; `None`: never, or with an error: it may have taken effect, or may yet do so.
    pub returned: Option<Moment>,
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

/// A crash of the target, and what the blocks of its views held when the store was open again, before any initiator was back.
#[derive(Clone, Debug)]
pub struct Crash {
    /// When.
    pub at: Moment,
    /// By view and block, as far as they could be looked at.
    pub found: Vec<Vec<Option<Value>>>,
}

/// Everything that happened.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Reads that failed are not here: they say nothing.
    pub operations: Vec<Operation>,
    /// In any order.
    pub flushes: Vec<Flush>,
    /// In their order.
    pub crashes: Vec<Crash>,
    pub(super) last: Moment,
}

impl History {
    /// The next moment.
    pub fn now(&mut self) -> Moment {
        self.last += 1;
        self.last
    }
}
