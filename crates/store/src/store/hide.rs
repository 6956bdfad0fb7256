//! What a hole covers: taken out of the index in slices, so that a hole over a whole volume holds nobody up. The request is answered
//! when that is done.
//!
//! The hole is there from the moment when its group is whole; a block older than it is seen until its slice comes, as long as the
//! request is under way. What has to know what a block holds (a write with a condition) or what a branch holds (a change of the
//! tree) waits until it is done. After a crash nothing is left of it: opening takes the newest entry of each block.

use std::collections::VecDeque;

use super::Store;
use super::append::Content;
use super::gate::Gate;
use super::group::Finished;
use crate::catalogue::NodeId;
use crate::holes::Hole;
use crate::map::Table;

/// What a slice costs besides its blocks, counted in blocks: it looks at chunks of the index that have none.
const SLICE_COST: u64 = 256;
/// Chunks of the index that one slice looks at, at most.
const CHUNKS_PER_SLICE: u32 = 1024;
/// Fragments of other holes that one slice replaces, at most.
const FRAGMENTS_PER_SLICE: usize = 512;

/// A part of a node under a hole, from which older blocks are to be taken.
struct Covered {
    node: NodeId,
    branch: u32,
    at: u64,
    end: u64,
    /// Of the hole.
    sequence: u64,
    /// The hole itself is taken in with the slices, because it replaces many others.
    inserts: bool,
}

/// What holes have still to hide.
#[derive(Default)]
pub(super) struct Hiding {
    covered: VecDeque<Covered>,
    /// How many came, and how many are done.
    taken: u64,
    done: u64,
    /// Requests, each with how many must be done before it is answered.
    waiting: VecDeque<(u64, Finished)>,
    left_in_poll: u64,
}

impl Hiding {
    /// A new poll: so many blocks may be looked at again.
    pub(super) fn new_poll(&mut self, blocks: u64) {
        self.left_in_poll = blocks;
    }

    /// Whether something is still to be hidden.
    pub(super) fn is_busy(&self) -> bool {
        !self.covered.is_empty()
    }

    fn touches(&self, lba: u64, count: u64) -> bool {
        self.covered.iter().any(|covered| covered.at < lba + count && lba < covered.end)
    }
}

impl Store {
    /// A hole is in its node: what is older there goes, slice by slice.
    pub(super) fn cover(&mut self, node: NodeId, branch: u32, range: (u64, u64), sequence: u64, inserts: bool) {
        self.hiding.taken += 1;
        self.hiding.covered.push_back(Covered { node, branch, at: range.0, end: range.1, sequence, inserts });
    }

    /// Answers a request for holes when everything that they cover is hidden.
    pub(super) fn complete_when_hidden(&mut self, finished: Finished) {
        self.hiding.waiting.push_back((self.hiding.taken, finished));
    }

    /// Whether the first queued request must see what holes under way leave.
    pub(super) fn waits_for_hiding(&self) -> bool {
        let Some(op) = self.queue.front().filter(|_| self.hiding.is_busy()) else { return false };
        match &op.content {
            Content::Change(_) => true,
            Content::Register(_) => false,
            Content::Blocks { addresses, count, .. } => {
                !matches!(op.gate, Gate::Open) && self.hiding.touches(addresses.at(0), u64::from(*count))
            }
            Content::Holes(holes) => {
                !matches!(op.gate, Gate::Open)
                    && holes.iter().any(|(start, count, _)| self.hiding.touches(*start, *count))
            }
        }
    }

    /// Does what this poll allows.
    pub(super) fn drive_hiding(&mut self) -> bool {
        let mut progress = false;
        while self.hiding.left_in_poll > 0 && self.hide_slice() {
            progress = true;
        }
        while let Some((after, _)) = self.hiding.waiting.front()
            && *after <= self.hiding.done
        {
            let (_, finished) = self.hiding.waiting.pop_front().expect("just seen");
            self.complete(finished.token, finished.bytes, finished.answer());
            progress = true;
        }
        progress
    }

    fn hide_slice(&mut self) -> bool {
        let Some(covered) = self.hiding.covered.front_mut() else { return false };
        let &mut Covered { node, branch, at, end, sequence, inserts } = covered;
        let (sealed, weight, layout) = (self.info.kind.is_sealed(), self.layout.live_block_bytes(), self.layout);
        let Table { index, holes } = self.map.table_mut(node);
        let mut until = index.end_of_slice(at, end, self.hiding.left_in_poll, CHUNKS_PER_SLICE);
        let (segments, mut hidden, mut seen) = (&mut self.segments, Vec::new(), 0);
        if inserts {
            until = holes.end_of_slice(at, until, FRAGMENTS_PER_SLICE);
            seen += FRAGMENTS_PER_SLICE as u64;
            let needless = |start, end, hole| !sealed && index.is_newer(start, end, hole);
            let mut gone = |gone: Hole| segments.sub_live(gone.place.segment, gone.live_bytes());
            holes.take_range(sequence, at, until, &needless, &mut gone);
            if until >= end {
                holes.finish_insert(sequence, gone);
            }
        }
        index.retain_range(at, until, |lba, version| {
            seen += 1;
            // What was written since stays.
            let stays = version.sequence() > sequence;
            match stays {
                true => {}
                false if sealed => hidden.push((lba, version)),
                false => segments.sub_live(version.segment(&layout), weight),
            }
            stays
        });
        covered.at = until;
        self.hiding.left_in_poll = self.hiding.left_in_poll.saturating_sub(seen + SLICE_COST);
        if until >= end {
            self.hiding.covered.pop_front();
            self.hiding.done += 1;
        }
        for (lba, version) in hidden {
            let of = self.map.label(node, branch, version.sequence());
            self.map.versions.keep(of, lba, version, sequence);
        }
        self.evict_over_budget();
        true
    }
}
