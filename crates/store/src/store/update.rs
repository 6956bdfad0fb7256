//! Changes of the index that are on their way to the log, and the groups of units that make them take effect.

use strongroom_block::{AttachId, Lba, Stamp, StoreSequence, Token};

use crate::catalogue::Change;
use crate::head::Head;
use crate::holes::{Hole, ItemPlace};
use crate::index::Version;
use crate::op::{OpError, Outcome};

/// A change of the index whose place in the log is not known before its unit is complete.
pub(super) enum UnplacedUpdate {
    Block { branch: u32, lba: u64, sequence: u64, item_at: u32, data_index: u32 },
    Hole { branch: u32, hole: Box<Hole>, item_at: u32 },
    Copy { branch: u32, lba: u64, from: Version, item_at: u32, data_index: u32 },
    CopyHole { branch: u32, start: u64, sequence: u64, from: ItemPlace, item_at: u32 },
    Change { change: Box<Change>, sequence: u64 },
}

/// The purpose of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum GroupKind {
    #[default]
    Writes,
    Table,
    Compaction,
}

/// What a request adds to the operation windows when it is appended.
#[derive(Clone, Copy, Debug)]
pub(super) enum WindowEntry {
    Operation { branch: u32, operation: Stamp, count: u64 },
    Registration { branch: u32, attach_id: AttachId },
}

/// One change of the index, waiting for its group.
pub(super) enum Update {
    Block { branch: u32, lba: u64, version: Version },
    Hole { branch: u32, hole: Box<Hole> },
    Copy { branch: u32, lba: u64, from: Version, to: Version },
    CopyHole { branch: u32, start: u64, sequence: u64, from: ItemPlace, to: ItemPlace },
    Change { change: Box<Change>, sequence: u64 },
}

/// A request all of whose blocks are in the group.
pub(super) struct Finished {
    pub(super) token: Token,
    pub(super) bytes: usize,
    pub(super) first: u64,
    pub(super) fua: bool,
    /// It wrote holes.
    pub(super) holes: bool,
    /// The outcome, if it is not [`Outcome::Written`] with new sequences.
    pub(super) outcome: Option<Outcome>,
    /// What it added to the operation windows.
    pub(super) window_entry: Option<WindowEntry>,
    /// The first block of a replay that was left out although it is lost.
    pub(super) lost: Option<Lba>,
}

impl Finished {
    /// Its answer.
    pub(super) fn answer(&self) -> Result<Outcome, OpError> {
        if let Some(lba) = self.lost {
            return Err(OpError::ReplayLost { lba });
        }
        let written = Outcome::Written { first: StoreSequence(self.first), repeated: 0, superseded: 0 };
        Ok(self.outcome.clone().unwrap_or(written))
    }
}

/// The group being written.
#[derive(Default)]
pub(super) struct Group {
    pub(super) kind: GroupKind,
    /// Units of it are on the medium (or on their way), and the last is not.
    pub(super) open: bool,
    /// The head before its first unit.
    pub(super) start: Option<Head>,
    /// Segments that became the head since it began, until another group did.
    pub(super) opened: Vec<u32>,
    pub(super) finished: Vec<Finished>,
    pub(super) updates: Vec<Update>,
}
