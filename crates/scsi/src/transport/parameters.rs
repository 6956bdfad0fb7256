//! What Strongroom's commands carry beside the CDB, and what the response to a write says. `docs/vendor-cdbs.md` is the specification;
//! how a transport encodes them is its own matter.

use strongroom_block::{Stamp, StoreSequence};

/// Parameters of a command for which its CDB has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// The encoded stamp of the version that CONDITIONAL WRITE or SEAL HOLE replaces; all zeros: the block must be a hole.
    pub expected_stamp: Option<[u8; Stamp::BYTES]>,
    /// READ VERSION returns the newest version below this store sequence; 0 asks for the newest one.
    pub older_than: Option<StoreSequence>,
    /// The sender had the keys of every epoch before this one destroyed (SANITIZE, CRYPTOGRAPHIC ERASE).
    pub keys_destroyed: Option<u32>,
    /// Which operation a write is, where its first seal record does not say so. An error if it did not decode: a write that may have
    /// been executed before must not be taken for another one.
    pub operation: Option<Result<Operation, MalformedOperation>>,
}

impl Parameters {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        *self == Parameters::default()
    }
}

/// Which operation a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The stamp under which the command's first block or hole was sealed when it was first sent.
    pub id: Stamp,
    /// The store sequence that the first block or hole had when it was acknowledged; `None`: this is no replay.
    pub replay: Option<StoreSequence>,
}

/// An operation that did not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operation of a write is malformed: {0}")]
pub struct MalformedOperation(pub &'static str);

/// What a response says of a write of sealed blocks or holes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The operation had been executed before this command; its effect is durable.
    pub is_repeat: bool,
    /// The store sequence of the first block or hole; each further one has the next. Zero for a repeat.
    pub first: StoreSequence,
    /// Blocks of a replay that were left out because newer data had been stored.
    pub superseded: u32,
}
