//! The contents of a checkpoint: walks over the index node by node, over holes and older versions, a block of a checkpoint at a time.

use crate::catalogue::NodeId;
use crate::checkpoint::{Content, HOLES_MAX, Runs};
use crate::holes::{Hole, HolesAt};
use crate::layout::Layout;
use crate::map::BlockMap;
use crate::steps;

/// The progress of a checkpoint.
pub(super) enum Cursor {
    Node {
        node: NodeId,
        branches: Vec<u32>,
        lba: u64,
    },
    Holes {
        node: NodeId,
        at: HolesAt,
    },
    Versions {
        lba: u64,
        sequence: u64,
    },
    /// Only its description is left.
    Description,
    Done,
}

/// What comes next in a checkpoint.
enum Next {
    /// Branch and content of a block.
    Block(u32, Content),
    /// This poll has done enough.
    Later,
    End,
}

/// Walks over the index.
pub(super) struct ContentWalk<'a> {
    pub(super) map: &'a BlockMap,
    pub(super) layout: Layout,
}

impl Cursor {
    pub(super) const START: Cursor = Cursor::Node { node: 0, branches: Vec::new(), lba: 0 };
}

impl ContentWalk<'_> {
    /// The next block's content and branch; `None` when only the description is left, or all `fuel` is used.
    pub(super) fn next_content(&self, cursor: &mut Cursor, fuel: &mut usize) -> Option<(u32, Content)> {
        loop {
            match cursor {
                Cursor::Node { node, branches, lba } => match self.next_runs(node, branches, lba, fuel) {
                    Next::Block(branch, content) => return Some((branch, content)),
                    Next::Later => return None,
                    Next::End => {
                        let node = self.map.table_from(*node).map_or(NodeId::MAX, |(node, _)| node);
                        *cursor = Cursor::Holes { node, at: HolesAt::START };
                    }
                },
                Cursor::Holes { node, at } => match self.next_holes(*node, at, fuel) {
                    Next::Block(branch, content) => return Some((branch, content)),
                    Next::Later => return None,
                    Next::End if *node == NodeId::MAX => *cursor = Cursor::Versions { lba: 0, sequence: 0 },
                    Next::End => *cursor = Cursor::Node { node: *node + 1, branches: Vec::new(), lba: 0 },
                },
                Cursor::Versions { lba, sequence } => match self.next_versions(lba, sequence, fuel) {
                    Next::Block(branch, content) => return Some((branch, content)),
                    Next::Later => return None,
                    Next::End => {
                        *cursor = Cursor::Description;
                        return None;
                    }
                },
                Cursor::Description | Cursor::Done => return None,
            }
        }
    }

    /// Blocks of the node at the cursor, or, if that is gone, of the next one. Parents come before their children, and
    /// blocks move from parents to children only: so none is missed.
    fn next_runs(&self, node: &mut NodeId, branches: &mut Vec<u32>, lba: &mut u64, fuel: &mut usize) -> Next {
        let Some((at, table)) = self.map.table_from(*node) else { return Next::End };
        let labels = self.map.labels(at);
        if at != *node || (branches.is_empty() && *lba == 0) {
            (*node, *lba) = (at, 0);
            *branches = labels.branches();
        }
        while let Some(&branch) = branches.last() {
            let mut runs = Runs::new(self.layout);
            let mut next = None;
            table.index.visit_from(*lba, |lba, version| {
                // One without would be in no checkpoint, and nobody would know.
                let label = labels.branch(version.sequence()).expect("a table has what is in its labels");
                let fits = *fuel > 0 && (label != branch || runs.push(lba, version));
                *fuel = fuel.saturating_sub(1);
                next = Some(lba).filter(|_| !fits);
                fits
            });
            match next {
                Some(next) => *lba = next,
                None => {
                    branches.pop();
                    *lba = if branches.is_empty() { u64::MAX } else { 0 };
                }
            }
            if !runs.runs.is_empty() {
                return Next::Block(branch, Content::Runs(runs.runs));
            }
            if *fuel == 0 {
                return Next::Later;
            }
        }
        Next::End
    }

    /// The next holes of a node, if it is still there.
    fn next_holes(&self, node: NodeId, at: &mut HolesAt, fuel: &mut usize) -> Next {
        let Some((_, table)) = self.map.table_from(node).filter(|&(of, _)| of == node) else { return Next::End };
        let labels = self.map.labels(node);
        let mut holes: Vec<Hole> = Vec::new();
        let mut branch = None;
        let next = table.holes.visit(*at, fuel, |hole| {
            let label = labels.branch(hole.sequence).expect("a table has what is in its labels");
            let fits = holes.len() < HOLES_MAX && *branch.get_or_insert(label) == label;
            holes.extend(Some(hole).filter(|_| fits));
            fits
        });
        match (branch, next) {
            (Some(branch), next) => {
                // Behind everything: the next call finds no more.
                *at = next.unwrap_or(HolesAt::Entries(u64::MAX));
                Next::Block(branch, Content::Holes(holes))
            }
            (None, Some(next)) => {
                *at = next;
                Next::Later
            }
            (None, None) => Next::End,
        }
    }

    /// Older versions of one branch from a block and sequence on.
    fn next_versions(&self, lba: &mut u64, sequence: &mut u64, fuel: &mut usize) -> Next {
        if *fuel == 0 {
            return Next::Later;
        }
        let mut versions = self.map.versions.from(*lba, *sequence).peekable();
        let Some(&(branch, ..)) = versions.peek() else { return Next::End };
        let mut runs = Runs::new(self.layout);
        let mut next = (u64::MAX, 0);
        for (of, at, version) in versions {
            steps::count(1);
            if *fuel == 0 || of != branch || !runs.push(at, version) {
                next = (at, version.sequence());
                break;
            }
            *fuel -= 1;
        }
        (*lba, *sequence) = next;
        Next::Block(branch, Content::Runs(runs.runs))
    }
}
