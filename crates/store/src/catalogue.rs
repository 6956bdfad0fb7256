//! The tree of nodes: which writes belong to which view. It holds no blocks, only who sees whose.
//!
//! A *node* is what was written on one branch between two snapshots. A view is a node and all its parents; the nearest
//! entry counts. Entries of the log name their branch and sequence; *spans* tell which node that is. So a snapshot, a
//! clone and a rollback each are one new node, independent of the volume's size. `docs/store-format.md`, "Branches".

mod bytes;
mod change;

use std::collections::btree_map::Range;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::Rev;

use strongroom_block::VolumeId;

use crate::op::{Op, OpError};
use crate::view::{BranchId, View};

pub(crate) use bytes::CATALOGUE_BYTES_MAX;
pub(crate) use change::Change;

/// A node; parents have smaller ones.
pub(crate) type NodeId = u64;

/// The node of a new store.
const FIRST_NODE: NodeId = 1;
/// The end of a span that is still written to.
const OPEN: u64 = u64::MAX;
/// Upper bound on nodes and spans: more than views need, for what is left of rollbacks.
const SPANS_MAX: usize = 8192;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    parent: Option<NodeId>,
    /// The branch on which it was made.
    branch: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    /// Sequences up to here, exclusively.
    to: u64,
    node: NodeId,
}

/// Looks up nodes on the way to the root: a parent is mostly the next smaller node, or nearly, and then it costs next to nothing.
pub(crate) struct Descent<'a, V> {
    map: &'a BTreeMap<NodeId, V>,
    below: Rev<Range<'a, NodeId, V>>,
}

impl<'a, V> Descent<'a, V> {
    /// How many adjacent names are looked at.
    const NEAR: usize = 4;

    pub(crate) fn new(map: &'a BTreeMap<NodeId, V>) -> Descent<'a, V> {
        Descent { map, below: map.range(..0).rev() }
    }

    pub(crate) fn find(&mut self, node: NodeId) -> Option<&'a V> {
        if let Some((_, value)) = self.below.by_ref().take(Self::NEAR).find(|&(&at, _)| at == node) {
            return Some(value);
        }
        self.below = self.map.range(..=node).rev();
        self.below.next().filter(|&(&at, _)| at == node).map(|(_, value)| value)
    }
}

/// One snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) id: u64,
    pub(crate) node: NodeId,
    pub(crate) branch: u32,
    /// Its own: what it holds has smaller ones.
    pub(crate) sequence: u64,
    pub(crate) created: u64,
    pub(crate) name: String,
}

/// One branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Branch {
    pub(crate) node: NodeId,
    /// The snapshot where it began; 0: none.
    pub(crate) from: u64,
    pub(crate) created: u64,
    pub(crate) volume_id: VolumeId,
    pub(crate) name: String,
    /// It is a snapshot on its way here: the identity that it will have. 0: an ordinary branch.
    pub(crate) receiving: u64,
}

/// Of one node: first sequence, end, branch. Disjoint.
pub(crate) struct Labels(Vec<(u64, u64, u32)>);

impl Labels {
    /// Each branch once.
    pub(crate) fn branches(&self) -> Vec<u32> {
        let mut branches: Vec<u32> = self.0.iter().map(|&(.., branch)| branch).collect();
        branches.sort_unstable();
        branches.dedup();
        branches
    }

    /// The branch of the node's entry of this sequence; `None`: the node has no such entry.
    pub(crate) fn branch(&self, sequence: u64) -> Option<u32> {
        let found = self.0.iter().find(|(from, to, _)| (*from..*to).contains(&sequence));
        found.map(|&(.., branch)| branch)
    }

    /// Those of another node besides.
    pub(crate) fn and(mut self, other: Labels) -> Labels {
        self.0.extend(other.0);
        self
    }
}

/// Changes made once more, from the log: when they were made the first time, nodes that no view needed were merged or
/// dropped in between, or there would have been too many.
pub(crate) struct Replay {
    catalogue: Catalogue,
    /// With this many spans it is time for that.
    crowded: usize,
}

impl Replay {
    pub(crate) fn new(catalogue: Catalogue) -> Replay {
        Replay { catalogue, crowded: 0 }
    }

    /// Makes a change at its sequence.
    pub(crate) fn apply(&mut self, change: &Change, sequence: u64) -> Result<(), OpError> {
        if self.catalogue.spans.len() >= self.crowded {
            self.catalogue.collapse();
            self.crowded = (2 * self.catalogue.spans.len() + 64).min(SPANS_MAX - 2);
        }
        self.catalogue.apply(change, sequence).map(drop)
    }

    /// The tree, without what no view needs.
    pub(crate) fn finish(mut self) -> Catalogue {
        self.catalogue.collapse();
        self.catalogue
    }
}

/// What is to be done about a node that no view needs for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeRemoval {
    /// Nobody sees it.
    Drop(NodeId),
    /// Only one child sees it: they become one.
    Merge { from: NodeId, to: NodeId },
}

/// The tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Catalogue {
    nodes: BTreeMap<NodeId, Node>,
    /// By branch and first sequence.
    spans: BTreeMap<(u32, u64), Span>,
    pub(crate) snapshots: Vec<Snapshot>,
    pub(crate) branches: BTreeMap<u32, Branch>,
    next_node: NodeId,
    next_branch: u32,
}

impl Catalogue {
    /// One branch, no snapshots.
    pub(crate) fn new(volume_id: VolumeId) -> Catalogue {
        let volume = Branch { node: FIRST_NODE, from: 0, created: 0, volume_id, name: String::new(), receiving: 0 };
        Catalogue {
            nodes: BTreeMap::from([(FIRST_NODE, Node { parent: None, branch: 0 })]),
            spans: BTreeMap::from([((0, 0), Span { to: OPEN, node: FIRST_NODE })]),
            snapshots: Vec::new(),
            branches: BTreeMap::from([(0, volume)]),
            next_node: FIRST_NODE + 1,
            next_branch: 1,
        }
    }

    /// Whether there was never more than the volume itself.
    pub(crate) fn is_trivial(&self) -> bool {
        self.next_node == FIRST_NODE + 1
    }

    /// The node that a branch is written to.
    pub(crate) fn head(&self, branch: u32) -> Option<NodeId> {
        self.branches.get(&branch).map(|branch| branch.node)
    }

    /// The node of a view.
    pub(crate) fn node(&self, view: View) -> Option<NodeId> {
        match view {
            View::Head(BranchId(branch)) => self.head(branch),
            View::Snapshot(id) => self.snapshot(id.0).map(|snapshot| snapshot.node),
        }
    }

    pub(crate) fn snapshot(&self, id: u64) -> Option<&Snapshot> {
        self.snapshots.iter().find(|snapshot| snapshot.id == id)
    }

    /// The node to which an entry of the log belongs; `None` if no view needs it any more.
    pub(crate) fn node_of(&self, branch: u32, sequence: u64) -> Option<NodeId> {
        self.node_until(branch, sequence).map(|(node, _)| node)
    }

    /// As [`Catalogue::node_of`], and the end (exclusively) of the sequences of the branch that belong to it as well.
    pub(crate) fn node_until(&self, branch: u32, sequence: u64) -> Option<(NodeId, u64)> {
        let (&(of, _), span) = self.spans.range(..=(branch, sequence)).next_back()?;
        (of == branch && sequence < span.to).then_some((span.node, span.to))
    }

    /// The smallest sequence of the node that a branch is written to.
    pub(crate) fn head_begins(&self, branch: u32) -> u64 {
        let last = self.spans.range((branch, 0)..=(branch, u64::MAX)).next_back();
        last.filter(|(_, span)| span.to == OPEN).map_or(OPEN, |(&(_, from), _)| from)
    }

    /// The sequence since which a branch has gone on without a break. Writes, and taking or deleting snapshots, do not change it; a rollback
    /// and a reception do, because the branch goes on from another node then.
    pub(crate) fn unbroken_since(&self, branch: u32) -> Option<u64> {
        let path: BTreeSet<NodeId> = self.path(self.head(branch)?).collect();
        let spans = self.spans.range((branch, 0)..=(branch, u64::MAX)).filter(|(_, span)| path.contains(&span.node));
        let (mut since, mut end) = (None, None);
        for (&(_, from), span) in spans {
            if end != Some(from) {
                since = Some(from);
            }
            end = Some(span.to);
        }
        since
    }

    /// The nodes to which entries with any of these sequences may belong, on whichever branch.
    pub(crate) fn nodes_with(&self, sequences: &std::ops::Range<u64>) -> Vec<NodeId> {
        let meets = |&(&(_, from), span): &(&(u32, u64), &Span)| from < sequences.end && sequences.start < span.to;
        let mut nodes: Vec<NodeId> = self.spans.iter().filter(meets).map(|(_, span)| span.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    pub(crate) fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.nodes.get(&node)?.parent
    }

    /// A node and its parents, nearest first.
    pub(crate) fn path(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let (mut nodes, mut next) = (Descent::new(&self.nodes), Some(node));
        std::iter::from_fn(move || {
            let node = next?;
            next = nodes.find(node).and_then(|node| node.parent);
            Some(node)
        })
    }

    /// The smallest sequence that the newest node of every branch has: what is written next must not be smaller.
    pub(crate) fn newest_begins(&self) -> u64 {
        self.spans.keys().map(|&(_, from)| from).max().unwrap_or(0)
    }

    /// Under which branches entries of a node stand in the log.
    pub(crate) fn labels(&self, node: NodeId) -> Labels {
        let spans = self.spans.iter().filter(|(_, span)| span.node == node);
        Labels(spans.map(|(&(branch, from), span)| (from, span.to, branch)).collect())
    }

    /// Every node, parents first.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.keys().copied()
    }

    /// Whether a branch is written to this node.
    pub(crate) fn is_head(&self, node: NodeId) -> bool {
        self.branches.values().any(|branch| branch.node == node)
    }

    /// The nodes of all views.
    pub(crate) fn seen(&self) -> BTreeSet<NodeId> {
        let heads = self.branches.values().map(|branch| branch.node);
        heads.chain(self.snapshots.iter().map(|snapshot| snapshot.node)).collect()
    }

    /// Of each node with children, these.
    pub(crate) fn children(&self) -> BTreeMap<NodeId, Vec<NodeId>> {
        let mut children: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for (&child, node) in &self.nodes {
            if let Some(parent) = node.parent {
                children.entry(parent).or_default().push(child);
            }
        }
        children
    }

    /// How many branches began at a snapshot.
    pub(crate) fn clones_of(&self, snapshot: u64) -> u32 {
        self.branches.values().filter(|branch| branch.from == snapshot).count() as u32
    }

    /// What is to be done next about nodes that no view needs.
    pub(crate) fn work(&self) -> Option<NodeRemoval> {
        let seen = self.seen();
        // Of each node one child, and whether there are more.
        let mut children: BTreeMap<NodeId, (NodeId, bool)> = BTreeMap::new();
        for (&child, node) in &self.nodes {
            if let Some(parent) = node.parent {
                children.entry(parent).and_modify(|(_, more)| *more = true).or_insert((child, false));
            }
        }
        self.nodes.keys().rev().filter(|node| !seen.contains(node)).find_map(|&node| match children.get(&node) {
            None => Some(NodeRemoval::Drop(node)),
            Some(&(to, false)) => Some(NodeRemoval::Merge { from: node, to }),
            Some((_, true)) => None,
        })
    }

    /// The work is done.
    pub(crate) fn finish(&mut self, work: NodeRemoval) {
        match work {
            NodeRemoval::Drop(node) => {
                self.nodes.remove(&node);
                self.move_spans(&BTreeMap::from([(node, None)]));
            }
            NodeRemoval::Merge { from, to } => {
                let parent = self.nodes.remove(&from).and_then(|node| node.parent);
                if let Some(node) = self.nodes.get_mut(&to) {
                    node.parent = parent;
                }
                self.move_spans(&BTreeMap::from([(from, Some(to))]));
            }
        }
    }

    /// Does all work at once: for a tree that has no blocks yet. In one pass over it: what is done about a node changes how many
    /// children its parent has, and parents have smaller ids.
    pub(crate) fn collapse(&mut self) {
        let seen = self.seen();
        // Of each node how many children there are, and their ids xored: the only one's, if there is only one.
        let mut children: BTreeMap<NodeId, (usize, NodeId)> = BTreeMap::new();
        for (&child, node) in &self.nodes {
            if let Some(parent) = node.parent {
                let (count, ids) = children.entry(parent).or_default();
                (*count, *ids) = (*count + 1, *ids ^ child);
            }
        }
        let mut gone = BTreeMap::new();
        let unseen: Vec<NodeId> = self.nodes.keys().rev().copied().filter(|node| !seen.contains(node)).collect();
        for node in unseen {
            let to = match children.get(&node) {
                None | Some((0, _)) => None,
                Some(&(1, only)) => Some(only),
                Some(_) => continue,
            };
            let parent = self.nodes.remove(&node).and_then(|node| node.parent);
            if let Some((count, ids)) = parent.and_then(|parent| children.get_mut(&parent)) {
                *count -= usize::from(to.is_none());
                *ids ^= node ^ to.unwrap_or(0);
            }
            if let Some(to) = to.and_then(|to| self.nodes.get_mut(&to)) {
                to.parent = parent;
            }
            gone.insert(node, to);
        }
        if !gone.is_empty() {
            self.move_spans(&gone);
        }
    }

    /// Nodes are gone, each with the one that has its entries now, if there is one. Spans that have become adjacent are merged.
    fn move_spans(&mut self, gone: &BTreeMap<NodeId, Option<NodeId>>) {
        let mut joined: BTreeMap<(u32, u64), Span> = BTreeMap::new();
        for (&(branch, first), span) in &self.spans {
            let Some(node) = gone.get(&span.node).copied().unwrap_or(Some(span.node)) else { continue };
            match joined.last_entry() {
                Some(mut last) if last.key().0 == branch && last.get().to == first && last.get().node == node => {
                    last.get_mut().to = span.to;
                }
                _ => drop(joined.insert((branch, first), Span { node, ..*span })),
            }
        }
        self.spans = joined;
    }

    /// Whether a change can be made.
    ///
    /// # Errors
    /// What stands in its way.
    pub(crate) fn check(&self, change: &Change) -> Result<(), OpError> {
        if self.spans.len() + 2 > SPANS_MAX {
            return Err(OpError::TooMany("too many rollbacks; send the volume to a new store"));
        }
        match change {
            Change::SnapshotCreate { branch, id, name, .. } => {
                let branch = self.branches.get(branch).ok_or(OpError::NoSuchView)?;
                check(branch.receiving == 0, OpError::NoSuchView)?;
                self.check_snapshot_name(*id, name)
            }
            Change::SnapshotDelete { id } => {
                self.snapshot(*id).ok_or(OpError::NoSuchView)?;
                let depended = "a clone (or a snapshot being received) depends on the snapshot; delete that first";
                check(self.clones_of(*id) == 0, OpError::Depended(depended))
            }
            Change::Rollback { to } => {
                let snapshot = self.snapshot(*to).ok_or(OpError::NoSuchView)?;
                check(self.branches.contains_key(&snapshot.branch), OpError::NoSuchView)
            }
            Change::CloneCreate { branch, from, name, .. } => {
                self.check_new_branch(*branch)?;
                self.snapshot(*from).ok_or(OpError::NoSuchView)?;
                check(self.branches.len() <= Op::CLONES_MAX, OpError::TooMany("at most 256 clones; delete one first"))?;
                check_name(name)?;
                let taken = self.branches.values().any(|branch| branch.name == *name);
                check(!taken, OpError::NameTaken(name.clone()))
            }
            Change::CloneDelete { branch } => {
                check(*branch != 0, OpError::Depended("the volume itself is no clone; delete the volume"))?;
                check(self.branches.contains_key(branch), OpError::NoSuchView)?;
                let depended = "the clone has snapshots; delete those first";
                let free = self.snapshots.iter().all(|snapshot| snapshot.branch != *branch);
                check(free, OpError::Depended(depended))
            }
            Change::ReceiveBegin { branch, id, base, name, .. } => {
                self.check_new_branch(*branch)?;
                if *base != 0 {
                    self.snapshot(*base).ok_or(OpError::NoSuchView)?;
                }
                check(self.branches.len() <= Op::CLONES_MAX, OpError::TooMany("at most 256 clones; delete one first"))?;
                let twice = self.branches.values().any(|branch| branch.receiving == *id);
                check(!twice, OpError::Depended("that snapshot is being received already; go on with that"))?;
                self.check_snapshot_name(*id, name)
            }
            Change::ReceiveCommit { branch } => {
                let receiving = self.branches.get(branch).filter(|branch| branch.receiving != 0);
                let receiving = receiving.ok_or(OpError::NoSuchView)?;
                self.check_snapshot_name(receiving.receiving, &receiving.name)
            }
        }
    }

    /// A branch has a number of its own; what a log says is not believed.
    fn check_new_branch(&self, branch: u32) -> Result<(), OpError> {
        let new = (self.next_branch..u32::MAX).contains(&branch);
        check(new, OpError::TooMany("no number is left for a clone; send the volume to a new store"))
    }

    fn check_snapshot_name(&self, id: u64, name: &str) -> Result<(), OpError> {
        let many = OpError::TooMany("at most 1024 snapshots; delete one first");
        check(self.snapshots.len() < Op::SNAPSHOTS_MAX, many)?;
        check_name(name)?;
        let taken = self.snapshots.iter().any(|snapshot| snapshot.id == id || snapshot.name == name);
        check(!taken, OpError::NameTaken(name.to_owned()))
    }

    /// Makes a change that was checked, at its sequence. Returns the branch or snapshot that it made, or 0.
    pub(crate) fn apply(&mut self, change: &Change, sequence: u64) -> Result<u64, OpError> {
        self.check(change)?;
        match change {
            Change::SnapshotCreate { id, branch, created, name } => {
                let node = self.branches[branch].node;
                self.go_on(*branch, sequence, Some(node));
                let (id, branch, created, name) = (*id, *branch, *created, name.clone());
                self.snapshots.push(Snapshot { id, node, branch, sequence, created, name });
                Ok(id)
            }
            Change::SnapshotDelete { id } => {
                self.snapshots.retain(|snapshot| snapshot.id != *id);
                Ok(0)
            }
            Change::Rollback { to } => {
                let snapshot = self.snapshot(*to).expect("checked");
                let (branch, node) = (snapshot.branch, snapshot.node);
                self.go_on(branch, sequence, Some(node));
                Ok(0)
            }
            Change::CloneCreate { branch, from, created, volume_id, name } => {
                let node = self.snapshot(*from).expect("checked").node;
                let new = Branch {
                    node,
                    from: *from,
                    created: *created,
                    volume_id: *volume_id,
                    name: name.clone(),
                    receiving: 0,
                };
                self.branch_off(*branch, new, sequence, Some(node));
                Ok(u64::from(*branch))
            }
            Change::CloneDelete { branch } => {
                let node = self.branches.remove(branch).expect("checked").node;
                for span in self.spans.values_mut().filter(|span| span.node == node && span.to == OPEN) {
                    span.to = sequence;
                }
                Ok(0)
            }
            Change::ReceiveBegin { branch, id, base, created, name } => {
                let node = self.snapshot(*base).map(|snapshot| snapshot.node);
                let volume_id = self.branches[&0].volume_id;
                let (from, created, name) = (*base, *created, name.clone());
                let new = Branch { node: 0, from, created, volume_id, name, receiving: *id };
                self.branch_off(*branch, new, sequence, node);
                Ok(u64::from(*branch))
            }
            Change::ReceiveCommit { branch } => {
                // The snapshot is what arrived; the volume goes on from there.
                let received = self.branches.remove(branch).expect("checked");
                self.close_span(*branch, sequence);
                let Branch { node, created, name, receiving: id, .. } = received;
                self.go_on(0, sequence, Some(node));
                self.snapshots.push(Snapshot { id, node, branch: 0, sequence, created, name });
                Ok(id)
            }
        }
    }

    /// The branch that a clone or a reception will have.
    pub(crate) fn next_branch(&self) -> u32 {
        self.next_branch
    }

    /// A branch goes on in a node of its own.
    fn go_on(&mut self, branch: u32, sequence: u64, parent: Option<NodeId>) {
        self.close_span(branch, sequence);
        let node = self.add_node(branch, parent, sequence);
        self.branches.get_mut(&branch).expect("it goes on").node = node;
    }

    fn branch_off(&mut self, branch: u32, new: Branch, sequence: u64, parent: Option<NodeId>) {
        self.next_branch = self.next_branch.max(branch + 1);
        let node = self.add_node(branch, parent, sequence);
        self.branches.insert(branch, Branch { node, ..new });
    }

    fn add_node(&mut self, branch: u32, parent: Option<NodeId>, sequence: u64) -> NodeId {
        let node = self.next_node;
        self.next_node += 1;
        self.nodes.insert(node, Node { parent, branch });
        self.spans.insert((branch, sequence), Span { to: OPEN, node });
        node
    }

    fn close_span(&mut self, branch: u32, sequence: u64) {
        if let Some((_, span)) = self.spans.range_mut((branch, 0)..=(branch, sequence)).next_back()
            && span.to == OPEN
        {
            span.to = sequence;
        }
    }
}

fn check(holds: bool, otherwise: OpError) -> Result<(), OpError> {
    if holds { Ok(()) } else { Err(otherwise) }
}

fn check_name(name: &str) -> Result<(), OpError> {
    let fits = (1..=Op::NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control);
    check(fits, OpError::Misuse("a name is 1 to 128 bytes of UTF-8 without control characters"))
}

#[cfg(test)]
mod tests;
