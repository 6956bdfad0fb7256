//! Where everything that counts lies: the tree of nodes, and of each node its blocks and holes; and the older versions.
//!
//! A look-up takes the nearest entry on the way from a view's node to the root. Without snapshots that is one node.

use std::collections::BTreeMap;

use crate::catalogue::{Catalogue, Descent, Labels, NodeId, NodeRemoval};
use crate::holes::{Hole, HoleMap, ItemPlace};
use crate::index::{BlockIndex, Version, bits, low_bits};
use crate::steps;
use crate::versions::Versions;

/// What an older version takes in memory, about, in bytes.
const VERSION_BYTES: u64 = 70;
/// Blocks that are looked at one by one, at most.
const LOOKED_AT_MAX: u64 = 8192;
/// Steps that a hole may take where a block takes one: each replaces some in the other node.
const HOLE_STEPS_PER_BLOCK: u64 = 2;
/// Fragments of holes that one piece of a hole replaces at most while nodes are merged.
const FRAGMENTS_AT_ONCE: usize = 256;

/// What was written in one node.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) index: BlockIndex,
    pub(crate) holes: HoleMap,
}

/// What a view has at a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Block(Version),
    /// A piece of a hole: its end and sequence.
    Hole {
        end: u64,
        sequence: u64,
    },
    Nothing,
}

/// Everything that counts.
pub(crate) struct BlockMap {
    pub(crate) catalogue: Catalogue,
    tables: BTreeMap<NodeId, Table>,
    pub(crate) versions: Versions,
    /// What [`BlockMap::work`] is at.
    at_work: Option<AtWork>,
    /// There is no work, and the tree has not changed since that was seen: nobody has to look for any.
    settled: bool,
}

struct AtWork {
    work: NodeRemoval,
    /// Blocks before this one are done.
    lba: u64,
    /// Older versions before this one (block and sequence) are done.
    version: (u64, u64),
}

/// What became of something in a node that is merged or dropped.
pub(crate) enum Gone {
    /// A block. With its branch, if a newer one hides it: then it is an older version of that.
    Block { branch: Option<u32>, lba: u64, version: Version },
    /// A hole that nothing sees.
    Hole(Hole),
    /// A retained version of a dropped node.
    Version(Version),
}

impl BlockMap {
    pub(crate) fn new(catalogue: Catalogue) -> BlockMap {
        let tables = catalogue.nodes().map(|node| (node, Table::default())).collect();
        BlockMap { catalogue, tables, versions: Versions::default(), at_work: None, settled: false }
    }

    pub(crate) fn table(&self, node: NodeId) -> &Table {
        &self.tables[&node]
    }

    pub(crate) fn table_mut(&mut self, node: NodeId) -> &mut Table {
        self.tables.get_mut(&node).expect("every node has its table")
    }

    /// Parents first.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (NodeId, &Table)> {
        self.tables.iter().map(|(&node, table)| (node, table))
    }

    /// The table with the smallest node from this one on.
    pub(crate) fn table_from(&self, node: NodeId) -> Option<(NodeId, &Table)> {
        self.tables.range(node..).next().map(|(&node, table)| (node, table))
    }

    /// After a change of the tree: new nodes get their tables.
    pub(crate) fn grown(&mut self) {
        self.settled = false;
        for node in self.catalogue.nodes() {
            self.tables.entry(node).or_default();
        }
    }

    /// The tables that a view looks into, nearest first.
    pub(crate) fn path(&self, node: NodeId) -> Vec<&Table> {
        self.way_up(node).collect()
    }

    fn way_up(&self, node: NodeId) -> impl Iterator<Item = &Table> {
        let mut tables = Descent::new(&self.tables);
        let path = self.catalogue.path(node).inspect(|_| steps::count(1));
        path.map(move |node| tables.find(node).expect("every node has its table"))
    }

    /// The only table that a view looks into, if there is only one.
    pub(crate) fn only_table(&self, node: NodeId) -> Option<&Table> {
        self.catalogue.parent(node).is_none().then(|| self.table(node))
    }

    /// What a view has at each of some blocks. Goes no further up than it must, and looks at 64 blocks at once.
    pub(crate) fn look_up(&self, node: NodeId, start: u64, count: u64) -> Vec<At> {
        let mut found = vec![At::Nothing; count as usize];
        let (mut further, mut path) = (self.way_up(node), Vec::new());
        let (mut lba, end) = (start, start + count);
        while lba < end {
            let base = lba - lba % 64;
            let stop = end.min(base + 64);
            let mut wanted = low_bits(stop - base) & !low_bits(lba - base);
            let mut at = 0;
            while wanted != 0 {
                if at == path.len() {
                    let Some(table) = further.next() else { break };
                    path.push(table);
                }
                let here = wanted & path[at].chunk_at(base);
                wanted &= !here;
                for lba in bits(here).map(|bit| base + u64::from(bit)) {
                    found[(lba - start) as usize] = path[at].at(lba);
                }
                at += 1;
            }
            lba = stop;
        }
        found
    }

    /// The sequence of the newest that a node has of its own at a block, a block or a hole; 0 if it has nothing.
    pub(crate) fn newest_in(&self, node: NodeId, lba: u64) -> u64 {
        steps::count(1);
        let table = self.table(node);
        let block = table.index.find(lba).map_or(0, Version::sequence);
        // A hole may be newer than the block, until it has hidden it.
        block.max(table.holes.covering(lba).map_or(0, |(.., sequence)| sequence))
    }

    /// Whether a node has data of its own at every block of a range.
    pub(crate) fn has_all_of(&self, node: NodeId, start: u64, end: u64) -> bool {
        let index = &self.table(node).index;
        let mut base = start - start % 64;
        while base < end {
            steps::count(1);
            let wanted = low_bits(end.min(base + 64) - base) & !low_bits(start.max(base) - base);
            if index.chunk_at(base) & wanted != wanted {
                return false;
            }
            base += 64;
        }
        true
    }

    /// Those of some nodes that have data of their own among the blocks of a range.
    pub(crate) fn with_data_in(&self, nodes: &[NodeId], start: u64, end: u64) -> Vec<NodeId> {
        steps::count(nodes.len() as u64);
        nodes.iter().copied().filter(|&node| self.table(node).index.any_in(start, end)).collect()
    }

    /// Mapped blocks of all nodes.
    pub(crate) fn blocks(&self) -> u64 {
        self.tables.values().map(|table| table.index.len()).sum()
    }

    pub(crate) fn holes(&self) -> u64 {
        self.tables.values().map(|table| table.holes.len() as u64).sum()
    }

    /// Memory of mapped blocks, in bytes.
    pub(crate) fn index_bytes(&self) -> u64 {
        self.tables.values().map(|table| table.index.memory_bytes() as u64).sum()
    }

    /// Memory of older versions, in bytes; estimated.
    pub(crate) fn version_bytes(&self) -> u64 {
        (self.versions.len() + self.versions.pinned()) * VERSION_BYTES
    }

    /// Memory of holes, in bytes; estimated.
    pub(crate) fn hole_bytes(&self) -> u64 {
        self.tables.values().map(|table| table.holes.memory_bytes()).sum()
    }

    /// Memory of blocks, older versions and holes, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.index_bytes() + self.version_bytes() + self.hole_bytes()
    }

    /// The hole of a sequence, if it has a record and any of it counts.
    pub(crate) fn sealed_hole(&self, sequence: u64) -> Option<Hole> {
        self.tables.values().find_map(|table| table.holes.sealed(sequence))
    }

    /// Whether the hole of a sequence was written on condition that there was no data.
    pub(crate) fn is_conditional_hole(&self, sequence: u64) -> bool {
        self.tables.values().any(|table| table.holes.is_conditional(sequence))
    }

    /// Where an entry of the log is kept, if it is: in its node, or, while that is being merged, in the one it goes to.
    fn holders(&self, branch: u32, sequence: u64) -> impl Iterator<Item = NodeId> + use<> {
        let node = self.catalogue.node_of(branch, sequence);
        let going = self.at_work.as_ref().and_then(|at_work| match at_work.work {
            NodeRemoval::Merge { from, to } if Some(from) == node => Some(to),
            _ => None,
        });
        node.into_iter().chain(going)
    }

    /// Under which branches what is in a node's table stands in the log. While another node is being merged into it, what
    /// came from there is still in that node's spans.
    pub(crate) fn labels(&self, node: NodeId) -> Labels {
        let labels = self.catalogue.labels(node);
        match self.at_work.as_ref().map(|at_work| at_work.work) {
            Some(NodeRemoval::Merge { from, to }) if to == node => labels.and(self.catalogue.labels(from)),
            _ => labels,
        }
    }

    /// Under which branch one entry in a node's table stands in the log; `branch` is the likely one.
    pub(crate) fn label(&self, node: NodeId, branch: u32, sequence: u64) -> u32 {
        if self.catalogue.node_of(branch, sequence) == Some(node) {
            return branch;
        }
        self.labels(node).branch(sequence).expect("a table has what is in its labels")
    }

    /// Whether a version is the newest of its block in a node.
    pub(crate) fn is_mapped(&self, branch: u32, lba: u64, version: Version) -> bool {
        self.holders(branch, version.sequence()).any(|node| self.table(node).index.find(lba) == Some(version))
    }

    /// Whether a version counts at all.
    pub(crate) fn is_live(&self, branch: u32, lba: u64, version: Version) -> bool {
        self.is_mapped(branch, lba, version) || self.versions.find(lba, version.sequence()) == Some(version)
    }

    /// Whether a view has data in a range. Where several nodes make up the view and the range is long, data that a nearer hole hides
    /// counts too.
    pub(crate) fn may_hold(&self, node: NodeId, start: u64, count: u64) -> bool {
        if self.only_table(node).is_none() && count <= LOOKED_AT_MAX {
            return self.look_up(node, start, count).iter().any(|at| matches!(at, At::Block(_)));
        }
        self.way_up(node).any(|table| table.index.any_in(start, start + count))
    }

    /// The hole that began at `start` with this sequence, if it counts and is there.
    pub(crate) fn hole_at(&self, branch: u32, start: u64, sequence: u64, place: ItemPlace) -> Option<Hole> {
        let mut holders = self.holders(branch, sequence);
        holders.find_map(|node| self.table(node).holes.hole(start, sequence)).filter(|hole| hole.place == place)
    }

    /// Notes that cleaning copied a version; false if it did not count any more.
    pub(crate) fn relocate(&mut self, branch: u32, lba: u64, from: Version, to: Version) -> bool {
        for node in self.holders(branch, from.sequence()) {
            if self.table_mut(node).index.relocate(lba, from, to) {
                return true;
            }
        }
        self.versions.relocate(lba, from, to)
    }

    /// Notes that cleaning copied a hole; what it weighs, if it still counts. While its node is being merged, pieces of it may be in two.
    pub(crate) fn relocate_hole(
        &mut self,
        branch: u32,
        start: u64,
        sequence: u64,
        from: ItemPlace,
        to: ItemPlace,
    ) -> Option<u64> {
        let mut weight = None;
        for node in self.holders(branch, sequence) {
            weight = self.table_mut(node).holes.relocate(start, sequence, from, to).or(weight);
        }
        weight
    }

    /// Whether holes of a node may be trimmed: not while they move to another one.
    pub(crate) fn may_trim(&self, node: NodeId) -> bool {
        !matches!(self.at_work.as_ref().map(|at_work| at_work.work), Some(NodeRemoval::Merge { from, .. }) if from == node)
    }

    /// Whether a version belongs to one of a view's nodes.
    pub(crate) fn sees(&self, node: NodeId, branch: u32, sequence: u64) -> bool {
        let of = self.catalogue.node_of(branch, sequence);
        of.is_some_and(|of| self.catalogue.path(node).any(|node| node == of))
    }

    /// Lets the oldest version over a budget go, if there is one; looks at no more than `fuel`.
    pub(crate) fn evict(&mut self, budget: u64, fuel: &mut usize) -> Option<Version> {
        let (catalogue, work) = (&self.catalogue, self.at_work.as_ref().map(|at_work| at_work.work));
        self.versions.evict(budget, fuel, |branch, sequence| {
            let node = catalogue.node_of(branch, sequence)?;
            // No snapshot needs a node that is being merged, but what it is merged into may be one.
            let node = match work {
                Some(NodeRemoval::Merge { from, to }) if from == node => to,
                _ => node,
            };
            Some((node, !catalogue.is_head(node)))
        })
    }

    /// Whether nodes may wait to be merged or dropped.
    pub(crate) fn has_work(&self) -> bool {
        self.at_work.is_some() || !self.settled
    }

    /// Merges or drops nodes that no view needs, a slice of about `steps` blocks; tells what nothing sees any more.
    /// False if there is nothing to do.
    pub(crate) fn work(&mut self, steps: usize, gone: &mut Vec<Gone>) -> bool {
        if self.at_work.is_none() {
            if self.settled {
                return false;
            }
            let Some(work) = self.catalogue.work() else {
                self.settled = true;
                return false;
            };
            self.at_work = Some(AtWork { work, lba: 0, version: (0, 0) });
        }
        let mut at_work = self.at_work.take().expect("set above");
        let from = match at_work.work {
            NodeRemoval::Drop(node) | NodeRemoval::Merge { from: node, .. } => node,
        };
        let mut table = self.tables.remove(&from).expect("every node has its table");
        let done = self.work_blocks(&mut at_work, &mut table, steps, gone)
            && self.work_holes(&mut at_work, &mut table, steps, gone)
            && self.work_versions(&mut at_work, steps, gone);
        if done {
            self.catalogue.finish(at_work.work);
            self.versions.unpin();
        } else {
            self.tables.insert(from, table);
            self.at_work = Some(at_work);
        }
        true
    }

    fn work_blocks(&mut self, at: &mut AtWork, table: &mut Table, steps: usize, gone: &mut Vec<Gone>) -> bool {
        let mut left = steps;
        let labels = self.catalogue.labels(match at.work {
            NodeRemoval::Drop(node) | NodeRemoval::Merge { from: node, .. } => node,
        });
        while let Some(lba) = table.index.next_mapped(at.lba) {
            if left == 0 {
                return false;
            }
            let mut taken = Vec::new();
            let end = lba + (left.min(64) as u64);
            table.index.remove_range(lba, end, |lba, version| taken.push((lba, version)));
            at.lba = end;
            left = left.saturating_sub(taken.len().max(1));
            for (lba, version) in taken {
                let stays = match at.work {
                    NodeRemoval::Merge { to, .. } => Some(to).filter(|&to| self.table(to).at(lba) == At::Nothing),
                    NodeRemoval::Drop(_) => None,
                };
                match stays {
                    Some(to) => {
                        self.table_mut(to).index.insert(lba, version);
                    }
                    None => {
                        let keeps = matches!(at.work, NodeRemoval::Merge { .. });
                        let label = labels.branch(version.sequence()).expect("a table has what is in its labels");
                        let branch = Some(label).filter(|_| keeps);
                        gone.push(Gone::Block { branch, lba, version });
                    }
                }
            }
        }
        true
    }

    /// By address: every block has its nearest hole all the time, in one node or in the other.
    fn work_holes(&mut self, at: &mut AtWork, table: &mut Table, steps: usize, gone: &mut Vec<Gone>) -> bool {
        let before = steps::steps_taken();
        let nothing = HoleMap::default();
        while steps::steps_taken() - before < HOLE_STEPS_PER_BLOCK * steps as u64 {
            steps::count(1);
            let to = match at.work {
                NodeRemoval::Merge { to, .. } => {
                    Some(&mut self.tables.get_mut(&to).expect("every node has its table").holes)
                }
                NodeRemoval::Drop(_) => None,
            };
            let other = to.as_deref().unwrap_or(&nothing);
            let Some(taken) = table.holes.take_first(other, FRAGMENTS_AT_ONCE) else { return true };
            match to {
                Some(to) => to.put(taken, |hole| gone.push(Gone::Hole(hole))),
                None if taken.is_last => gone.push(Gone::Hole(taken.hole)),
                None => {}
            }
        }
        false
    }

    /// Older versions of a node that is dropped go.
    fn work_versions(&mut self, at: &mut AtWork, steps: usize, gone: &mut Vec<Gone>) -> bool {
        let NodeRemoval::Drop(node) = at.work else { return true };
        let catalogue = &self.catalogue;
        let of_node = |branch, sequence| catalogue.node_of(branch, sequence) == Some(node);
        let mut fuel = steps;
        let next = self.versions.drop_from(at.version, &mut fuel, of_node, |version| gone.push(Gone::Version(version)));
        if let Some(next) = next {
            at.version = next;
        }
        next.is_none()
    }
}

impl Table {
    /// What it has at a block itself.
    pub(crate) fn at(&self, lba: u64) -> At {
        if let Some(version) = self.index.find(lba) {
            return At::Block(version);
        }
        self.holes.covering(lba).map_or(At::Nothing, |(_, end, sequence)| At::Hole { end, sequence })
    }

    /// Of which of the 64 blocks from `base` on (a multiple of 64) it has something itself, lowest first.
    pub(crate) fn chunk_at(&self, base: u64) -> u64 {
        self.index.chunk_at(base) | self.holes.chunk_at(base)
    }
}
