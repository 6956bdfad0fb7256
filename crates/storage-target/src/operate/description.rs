//! What a volume's store has in it, as administrators see it.

use serde::{Deserialize, Serialize};
use strongroom_store::{BranchId, PinnedCount};

use super::prune::PrunedSnapshot;
use crate::admin::StoreReport;
use crate::unit::StoreContents;
use crate::volume::Volume;

/// What a store has in it, for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// Its counters.
    pub store: StoreReport,
    /// Its snapshots.
    pub snapshots: Vec<SnapshotReport>,
    /// The clones that share it.
    pub clones: Vec<CloneReport>,
    /// After pruning: what became of each snapshot, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pruned: Vec<PrunedSnapshot>,
}

/// A snapshot, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotReport {
    /// Its name.
    pub name: String,
    /// Its identity, also in stores that it was sent to.
    pub id: String,
    /// The clone that it is of; `None`: of the volume itself.
    pub clone: Option<String>,
    /// When it was taken, in seconds since 1970.
    pub created_seconds: u64,
    /// Bytes written between the snapshot before and this one that are still kept.
    pub bytes_written: u64,
    /// About what deleting it gives back, in bytes.
    pub bytes_pinned: u64,
    /// How many clones were made from it.
    pub clones: u32,
}

/// A clone, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneReport {
    /// Its name.
    pub name: String,
    /// The snapshot that it was made from.
    pub snapshot: String,
    /// When it was made, in seconds since 1970.
    pub created_seconds: u64,
    /// Bytes written to it since its newest snapshot.
    pub bytes_written: u64,
}

/// `pinned`: what each snapshot alone keeps.
pub(super) fn describe(volume: &Volume, contents: &StoreContents, pinned: &PinnedCount) -> Description {
    let clone_name = |branch: BranchId| {
        let found = contents.branches.iter().find(|info| info.id == branch && branch != BranchId::VOLUME);
        found.map(|info| info.name.clone())
    };
    let own = volume.branch();
    // Of a clone its own; of the volume itself all.
    let shown = contents.snapshots.iter().filter(|info| own == BranchId::VOLUME || info.branch == own);
    let snapshots = shown.map(|info| SnapshotReport {
        name: info.name.clone(),
        id: info.id.to_string(),
        clone: clone_name(info.branch),
        created_seconds: info.created_seconds,
        bytes_written: info.bytes_written,
        bytes_pinned: pinned.bytes(info.id),
        clones: info.clones,
    });
    let of_snapshot = |id| contents.snapshots.iter().find(|info| Some(info.id) == id).map(|info| info.name.clone());
    let clones = contents.branches.iter().filter(|info| info.id != BranchId::VOLUME).map(|info| CloneReport {
        name: info.name.clone(),
        snapshot: of_snapshot(info.from).unwrap_or_default(),
        created_seconds: info.created_seconds,
        bytes_written: info.bytes_written,
    });
    Description {
        store: contents.stats.into(),
        snapshots: snapshots.collect(),
        clones: clones.collect(),
        pruned: Vec::new(),
    }
}
