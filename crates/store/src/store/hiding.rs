//! Hiding what a hole covers: older blocks are taken out of the index in slices, so that a hole over a whole volume blocks nobody. The
//! request is answered when that is done.
//!
//! The hole takes effect when its group is complete; a block older than it is seen until its slice comes, as long as the request is in
//! progress. What has to know what a block holds (a conditional write) or what a branch holds (a change of the tree) waits until it is
//! done. A crash needs no redo: opening takes the newest entry of each block.

use std::collections::VecDeque;

use super::request::{Content, Gate, WriteRequest};
use super::retention::Retention;
use super::update::Finished;
use super::volume::Volume;
use crate::catalogue::NodeId;
use crate::holes::Hole;
use crate::map::{BlockMap, Table};
use crate::segments::Segments;
use crate::steps;

/// The cost of a slice besides its blocks, counted in blocks: it looks at chunks of the index that have none.
const SLICE_COST: u64 = 256;
/// Blocks that one slice hides, at most: what it costs beside them, to keep and to evict versions, is known when it is done.
const BLOCKS_PER_SLICE: u64 = 1024;
/// Chunks of the index that one slice looks at, at most.
const CHUNKS_PER_SLICE: u32 = 1024;
/// Fragments of other holes that one slice replaces, at most.
const FRAGMENTS_PER_SLICE: usize = 512;

/// A part of a node under a hole, from which older blocks are to be taken.
pub(super) struct CoveredRange {
    pub(super) node: NodeId,
    pub(super) branch: u32,
    pub(super) at: u64,
    pub(super) end: u64,
    /// Of the hole.
    pub(super) sequence: u64,
    /// The hole itself is inserted with the slices, because it replaces many others.
    pub(super) inserts: bool,
}

/// The ranges that holes have still to hide.
#[derive(Default)]
pub(super) struct Hiding {
    covered: VecDeque<CoveredRange>,
    /// Ranges added and ranges done, since the store was opened.
    added: u64,
    done: u64,
    /// Requests, each with the number of ranges that must be done before it is answered.
    waiting: VecDeque<(u64, Finished)>,
    left_in_poll: u64,
}

impl Hiding {
    /// A new poll may look at this many blocks.
    pub(super) fn new_poll(&mut self, blocks: u64) {
        self.left_in_poll = blocks;
    }

    /// Whether something is still to be hidden.
    pub(super) fn is_busy(&self) -> bool {
        !self.covered.is_empty()
    }

    /// A hole is in its node: what is older in the range is to be hidden.
    pub(super) fn cover(&mut self, range: CoveredRange) {
        self.added += 1;
        self.covered.push_back(range);
    }

    /// Keeps a request for holes until everything that they cover is hidden.
    pub(super) fn answer_when_hidden(&mut self, finished: Finished) {
        self.waiting.push_back((self.added, finished));
    }

    /// The next request whose holes have hidden everything.
    pub(super) fn next_answered(&mut self) -> Option<Finished> {
        self.waiting.front().filter(|(after, _)| *after <= self.done)?;
        self.waiting.pop_front().map(|(_, finished)| finished)
    }

    /// Whether a request has to wait until holes in progress have hidden what it looks at.
    pub(super) fn holds_up(&self, request: &WriteRequest) -> bool {
        let is_conditional = !matches!(request.gate, Gate::Open);
        self.is_busy()
            && match &request.content {
                Content::Change(_) => true,
                Content::Register(_) => false,
                Content::Blocks { addresses, count, .. } => {
                    is_conditional && self.touches(addresses.at(0), u64::from(*count))
                }
                Content::Holes(holes) => {
                    is_conditional && holes.iter().any(|(start, count, _)| self.touches(*start, *count))
                }
            }
    }

    fn touches(&self, lba: u64, count: u64) -> bool {
        self.covered.iter().any(|covered| covered.at < lba + count && lba < covered.end)
    }

    /// Does what this poll allows; whether that was anything.
    pub(super) fn advance(
        &mut self,
        map: &mut BlockMap,
        segments: &mut Segments,
        retention: &mut Retention,
        volume: &Volume,
    ) -> bool {
        let mut progress = false;
        while self.left_in_poll > 0 && self.is_busy() {
            let (left, before) = (self.left_in_poll, steps::steps_taken());
            self.hide_slice(map, segments, volume);
            retention.evict(map, segments, volume);
            // Versions that are kept and evicted cost more than the blocks that are looked at.
            self.left_in_poll = self.left_in_poll.min(left.saturating_sub(steps::steps_taken() - before));
            progress = true;
        }
        progress
    }

    fn hide_slice(&mut self, map: &mut BlockMap, segments: &mut Segments, volume: &Volume) {
        let covered = self.covered.front_mut().expect("the caller saw it");
        let &mut CoveredRange { node, branch, at, end, sequence, inserts } = covered;
        let is_sealed = volume.is_sealed();
        let Table { index, holes } = map.table_mut(node);
        let most = self.left_in_poll.min(BLOCKS_PER_SLICE);
        let mut until = index.end_of_slice(at, end, most, CHUNKS_PER_SLICE);
        let (mut hidden, mut seen) = (Vec::new(), 0);
        if inserts {
            until = holes.end_of_slice(at, until, FRAGMENTS_PER_SLICE);
            seen += FRAGMENTS_PER_SLICE as u64;
            let needless = |start, end, hole| !is_sealed && index.is_newer(start, end, hole);
            let mut gone = |gone: Hole| segments.sub_live(gone.place.segment, gone.live_bytes());
            holes.take_range(sequence, at, until, &needless, &mut gone);
            if until >= end {
                holes.finish_insert(sequence, gone);
            }
        }
        index.retain_range(at, until, |lba, version| {
            seen += 1;
            // Blocks written since stay.
            let stays = version.sequence() > sequence;
            match stays {
                true => {}
                false if is_sealed => hidden.push((lba, version)),
                false => segments.sub_live_block(version),
            }
            stays
        });
        covered.at = until;
        self.left_in_poll = self.left_in_poll.saturating_sub(seen + SLICE_COST);
        if until >= end {
            self.covered.pop_front();
            self.done += 1;
        }
        for (lba, version) in hidden {
            let of = map.label(node, branch, version.sequence());
            map.versions.keep(of, lba, version, sequence);
        }
    }
}
