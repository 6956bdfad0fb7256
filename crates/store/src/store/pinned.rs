//! What only one snapshot keeps: counted when somebody asks, in slices, from the index alone. So neither writes nor opening pay for it.

use std::collections::{BTreeMap, BTreeSet};

use super::volume_index::VolumeIndex;
use crate::catalogue::NodeId;
use crate::map::BlockMap;
use crate::view::SnapshotId;

/// Chunks of the index that one slice looks at, about.
const CHUNKS_PER_SLICE: usize = 32 * 1024;

/// A count on its way: [`VolumeIndex::count_pinned`] goes on with it.
#[derive(Clone, Debug, Default)]
pub struct PinnedCount {
    bytes: BTreeMap<SnapshotId, u64>,
    /// Snapshots to be counted, the next one last, and how far that is; `None`: not begun.
    left: Option<(Vec<SnapshotId>, u64)>,
}

impl PinnedCount {
    /// Bytes of a snapshot's blocks and records that no other snapshot and no branch has: about what deleting it gives back.
    pub fn bytes(&self, snapshot: SnapshotId) -> u64 {
        self.bytes.get(&snapshot).copied().unwrap_or(0)
    }
}

impl VolumeIndex<'_> {
    /// Counts a slice of what each snapshot alone keeps; whether there is more to count. Snapshots made after it began have nothing in
    /// it, and what is written meanwhile counts or does not.
    pub fn count_pinned(&self, count: &mut PinnedCount) -> bool {
        let catalogue = &self.map.catalogue;
        let all = || catalogue.snapshots.iter().rev().map(|snapshot| SnapshotId(snapshot.id)).collect();
        let (left, lba) = count.left.get_or_insert_with(|| (all(), 0));
        let tree = Tree { map: self.map, seen: catalogue.seen(), children: catalogue.children() };
        let mut fuel = CHUNKS_PER_SLICE;
        while let Some(&id) = left.last() {
            if let Some(snapshot) = catalogue.snapshot(id.0) {
                let (blocks, goes_on_at) = tree.pinned_from(snapshot.node, *lba, &mut fuel);
                *count.bytes.entry(id).or_default() += blocks * self.volume.layout.live_block_bytes();
                if let Some(at) = goes_on_at {
                    *lba = at;
                    return true;
                }
            }
            *lba = 0;
            left.pop();
        }
        false
    }
}

/// The nodes and who sees them.
struct Tree<'a> {
    map: &'a BlockMap,
    seen: BTreeSet<NodeId>,
    children: BTreeMap<NodeId, Vec<NodeId>>,
}

impl Tree<'_> {
    /// How many blocks of a node, from `lba` on, no view further down has; and where to go on when the fuel is used up.
    fn pinned_from(&self, node: NodeId, lba: u64, fuel: &mut usize) -> (u64, Option<u64>) {
        let mut blocks = 0;
        for (base, present) in self.map.table(node).index.chunks_from(lba) {
            if *fuel == 0 {
                return (blocks, Some(base));
            }
            *fuel -= 1;
            if present != 0 {
                blocks += u64::from(self.hidden_below(node, base, present, fuel).count_ones());
            }
        }
        (blocks, None)
    }

    /// Which of a node's blocks in a chunk all of its children hide.
    fn hidden_below(&self, node: NodeId, base: u64, mut blocks: u64, fuel: &mut usize) -> u64 {
        for &child in self.children.get(&node).into_iter().flatten() {
            if blocks == 0 {
                break;
            }
            *fuel = fuel.saturating_sub(1);
            let table = self.map.table(child);
            let mut hidden = blocks & table.chunk_at(base);
            // What the child lets through only its own view sees, or, if it has none, those of its children.
            if hidden != blocks && !self.seen.contains(&child) {
                hidden |= self.hidden_below(child, base, blocks & !hidden, fuel);
            }
            blocks = hidden;
        }
        blocks
    }
}
