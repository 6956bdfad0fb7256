//! What the simulation knows of snapshots and clones.

use std::collections::BTreeMap;

use crate::ReadBlock;

/// What is known of a snapshot.
pub(super) struct KnownSnapshot {
    pub(super) branch: u32,
    /// The sequences that it must have at least.
    pub(super) floor: Vec<u64>,
    /// Operations from this one on were submitted after it was taken.
    pub(super) before_op: u64,
    /// What it holds, once it was read.
    pub(super) holds: Option<Vec<ReadBlock>>,
}

/// A change of what a branch holds that was not answered.
#[derive(Clone)]
pub(super) enum Change {
    Rollback { branch: u32, holds: Vec<ReadBlock> },
    Clone { from: u64, holds: Vec<ReadBlock> },
    CloneDelete { branch: u32 },
}

/// All snapshots and clones of a run.
#[derive(Default)]
pub(super) struct Views {
    /// Whether the run has any.
    pub(super) wanted: bool,
    pub(super) taken: BTreeMap<u64, KnownSnapshot>,
    /// Deletion was asked for and not answered.
    pub(super) going: Option<u64>,
    /// Clones, and the snapshot that each began at.
    pub(super) clones: BTreeMap<u32, u64>,
    /// Asked for and not answered, or answered by an error after which it may be seen: nothing more is asked then until the
    /// store is opened again.
    pub(super) limbo: Option<Change>,
}

impl Views {
    /// Whether a clone began at a snapshot, or perhaps will.
    pub(super) fn is_cloned(&self, id: u64) -> bool {
        self.clones.values().any(|&from| from == id)
            || matches!(self.limbo, Some(Change::Clone { from, .. }) if from == id)
    }
}
