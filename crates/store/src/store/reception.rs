//! Receptions that were begun: each is a branch of its own, which nobody sees, until it becomes the snapshot and the volume goes on from
//! it.

use crate::catalogue::Change;
use crate::map::BlockMap;
use crate::op::OpError;
use crate::stream::BLOCKS_FROM;
use crate::view::{BranchId, SnapshotId};

/// Why a reception cannot begin or end; callers know it as [`StreamError::Diverged`].
pub(super) const DIVERGED: &str =
    "the volume was written since the snapshot that the stream builds on; roll back to that first";

/// A reception that was begun and not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceptionInfo {
    /// The snapshot that it will be.
    pub id: SnapshotId,
    /// The snapshot that it builds on.
    pub from: Option<SnapshotId>,
    /// The snapshot's name.
    pub name: String,
    /// Where the sender shall go on.
    pub position: u64,
    /// Where it lies.
    pub branch: BranchId,
}

/// Every reception that was begun and not ended.
pub(super) fn receptions(map: &BlockMap) -> Vec<ReceptionInfo> {
    let begun = map.catalogue.branches.iter().filter(|(_, branch)| branch.receiving != 0);
    begun
        .map(|(&id, branch)| {
            // Blocks arrive by address, and what survives a crash is the beginning of what was written.
            let end = map.table(branch.node).index.end();
            ReceptionInfo {
                id: SnapshotId(branch.receiving),
                from: Some(SnapshotId(branch.from)).filter(|from| from.0 != 0),
                name: branch.name.clone(),
                position: if end > 0 { BLOCKS_FROM + end } else { 0 },
                branch: BranchId(id),
            }
        })
        .collect()
}

/// Where the reception of a snapshot stands that was interrupted; `None`: it was not begun.
pub(super) fn receive_position(map: &BlockMap, id: SnapshotId) -> Option<u64> {
    receptions(map).into_iter().find(|reception| reception.id == id).map(|reception| reception.position)
}

/// Whether a block of a reception is here. What is here after a crash is the beginning of what was written.
pub(super) fn has_blocks(map: &BlockMap, branch: u32) -> bool {
    let node = map.catalogue.head(branch);
    node.is_some_and(|node| map.table(node).index.len() > 0)
}

pub(super) fn receiving_branch(map: &BlockMap, id: SnapshotId) -> Option<u32> {
    let mut branches = map.catalogue.branches.iter();
    branches.find(|(_, branch)| branch.receiving == id.0).map(|(&branch, _)| branch)
}

/// Whether the volume has nothing that a reception onto snapshot `base` (0: none) would throw away.
pub(super) fn may_be_replaced(map: &BlockMap, base: u64) -> bool {
    let catalogue = &map.catalogue;
    let head = catalogue.head(0).expect("the volume itself is always there");
    match catalogue.snapshot(base) {
        Some(base) => {
            let table = map.table(head);
            catalogue.parent(head) == Some(base.node) && table.index.len() == 0 && table.holes.len() == 0
        }
        None => {
            // Also what deleted snapshots left and is not merged yet. The hole that a plain volume is made with, or the
            // one that formats a sealed volume, is nothing to lose.
            let path = map.path(head);
            let holes: usize = path.iter().map(|table| table.holes.len()).sum();
            catalogue.snapshots.is_empty() && holes <= 1 && path.iter().all(|table| table.index.len() == 0)
        }
    }
}

/// Why a change at the front of the queue would throw away what was written to the volume.
pub(super) fn would_lose(map: &BlockMap, change: &Change) -> Option<OpError> {
    let base = match change {
        Change::ReceiveBegin { base, .. } => *base,
        Change::ReceiveCommit { branch } => map.catalogue.branches.get(branch)?.from,
        _ => return None,
    };
    (!may_be_replaced(map, base)).then_some(OpError::Depended(DIVERGED))
}
