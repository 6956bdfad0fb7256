//! What the index of an open store tells: from memory alone, without I/O. Here: its snapshots and branches, and what to verify; `runs` has
//! which blocks are there, `pinned` what snapshots keep, `damaged` what may be missing.

use strongroom_block::Lba;

use super::reception::{ReceptionInfo, receive_position, receptions};
use super::volume::Volume;
use crate::catalogue::NodeId;
use crate::map::BlockMap;
use crate::recover::Damage;
use crate::versions::Unverified;
use crate::view::{BranchId, BranchInfo, SnapshotId, SnapshotInfo};

/// Upper bound on older versions that one search for unverified blocks looks at.
const VERSIONS_SEARCHED_MAX: usize = 16 * 1024;

/// The index of an open store, to be asked; see [`Store::index`](crate::Store::index).
#[derive(Clone, Copy)]
pub struct VolumeIndex<'a> {
    pub(super) map: &'a BlockMap,
    pub(super) volume: &'a Volume,
    /// Why the store is open read-only.
    pub(super) damage: Option<&'a Damage>,
}

impl VolumeIndex<'_> {
    /// Every snapshot, in the order in which they were taken.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        let catalogue = &self.map.catalogue;
        let weight = self.volume.layout.live_block_bytes();
        let info = |snapshot: &crate::catalogue::Snapshot| {
            let table = self.map.table(snapshot.node);
            SnapshotInfo {
                id: SnapshotId(snapshot.id),
                name: snapshot.name.clone(),
                branch: BranchId(snapshot.branch),
                created_seconds: snapshot.created,
                bytes_written: table.index.len() * weight,
                clones: catalogue.clones_of(snapshot.id),
            }
        };
        catalogue.snapshots.iter().map(info).collect()
    }

    /// A number that changes whenever the contents of a branch are replaced (a rollback, a reception), and only then: not with writes, and not
    /// with snapshots that are taken or deleted. It orders nothing. `None`: there is no such branch.
    pub fn image_of(&self, branch: BranchId) -> Option<u64> {
        self.map.catalogue.unbroken_since(branch.0)
    }

    /// The volume and every clone.
    pub fn branches(&self) -> Vec<BranchInfo> {
        let weight = self.volume.layout.live_block_bytes();
        let own = self.map.catalogue.branches.iter().filter(|(_, branch)| branch.receiving == 0);
        own.map(|(&id, branch)| BranchInfo {
            id: BranchId(id),
            name: branch.name.clone(),
            volume_id: branch.volume_id,
            from: Some(SnapshotId(branch.from)).filter(|from| from.0 != 0),
            created_seconds: branch.created,
            bytes_written: self.map.table(branch.node).index.len() * weight,
            is_kept: self.is_kept(branch.node),
        })
        .collect()
    }

    /// Whether nothing was written to the node of a branch, neither blocks nor holes, and a snapshot has what is below it.
    fn is_kept(&self, node: NodeId) -> bool {
        let (catalogue, table) = (&self.map.catalogue, self.map.table(node));
        let is_empty = table.index.len() == 0 && table.holes.len() == 0;
        let has_snapshot = |parent| catalogue.snapshots.iter().any(|snapshot| snapshot.node == parent);
        is_empty && catalogue.parent(node).is_none_or(has_snapshot)
    }

    /// What to verify next: blocks of a branch, from `from` on and at most `blocks_max`, of each of which an older version is retained
    /// that feedback could release.
    pub fn unverified(&self, branch: BranchId, from: Lba, blocks_max: u32) -> Unverified {
        self.map.versions.run_from(branch.0, from.0, blocks_max, VERSIONS_SEARCHED_MAX)
    }

    /// Every reception that was begun and not ended.
    pub fn receptions(&self) -> Vec<ReceptionInfo> {
        receptions(self.map)
    }

    /// Where the reception of a snapshot stands that was interrupted: what [`Sender::new`](crate::Sender::new) wants.
    /// `None`: it was not begun.
    pub fn receive_position(&self, id: SnapshotId) -> Option<u64> {
        receive_position(self.map, id)
    }
}
