//! Replays: writes that an earlier opening acknowledged and a crash lost are written again, with their original sequences. Decided from
//! the index alone: which blocks are superseded by later writes, and which are lost because something newer was made without them.
//!
//! A conditional write says in the log what it was based on. Those records are read by the caller, in batches.

use std::ops::Range;

use strongroom_block::{Buffer, Lba, StoreSequence};

use super::reader::base_of_hole;
use super::request::{Addresses, Content, ReplayCheck, ReplayPlan, WriteRequest, slice_pieces};
use super::volume::Volume;
use crate::catalogue::NodeId;
use crate::index::Version;
use crate::map::BlockMap;
use crate::op::OpError;
use crate::planted::PlantedFault;
use crate::steps;

/// Versions whose records are read at once.
const BATCH: usize = 256;
/// Blocks of a replay for which the nodes of other branches are searched at once.
const BLOCKS_SEARCHED: u64 = 64;
/// Sequences name versions in all branches: a forged one must not name a version of another branch.
const SEQUENCE_TAKEN: &str = "its sequence names something else";

/// The result of comparing a replay with what was written since.
pub(super) enum Comparison {
    /// Something newer was made without this block.
    Lost(Lba),
    NotLost,
    /// The bases of these versions have to be read first.
    NeedsBases(Vec<(u64, Version)>),
    /// This poll has done enough.
    Unfinished,
}

/// Checks the sequences of a replay.
///
/// # Errors
/// [`OpError::ReplayRefused`].
pub(super) fn check_sequences(
    map: &BlockMap,
    request: &WriteRequest,
    first: StoreSequence,
    first_sequence: u64,
) -> Result<(), OpError> {
    let end = first.0.checked_add(request.asked).filter(|_| first.0 > 0);
    if end.is_none_or(|end| end > first_sequence) {
        return Err(OpError::ReplayRefused("its sequence is not one of an earlier opening"));
    }
    if first.0 < map.catalogue.head_begins(request.branch) {
        let later =
            "a snapshot, clone or rollback was made since it was acknowledged; write it again if it is still wanted";
        return Err(OpError::ReplayRefused(later));
    }
    Ok(())
}

/// Compares a replay with what was written since, with at most `steps_left` steps.
pub(super) fn compare(
    map: &BlockMap,
    volume: &Volume,
    node: NodeId,
    request: &WriteRequest,
    check: &mut ReplayCheck,
    steps_left: u64,
) -> Comparison {
    if volume.has_planted(PlantedFault::BaseIgnored) || volume.has_planted(PlantedFault::StaleReplay) {
        return Comparison::NotLost;
    }
    let mut search = NewerSearch { map, volume, node, check, versions: Vec::new() };
    let is_done = search.run(request, steps_left);
    let NewerSearch { versions, .. } = search;
    match check.lost {
        Some(lba) => Comparison::Lost(lba),
        None if !versions.is_empty() => Comparison::NeedsBases(versions),
        None if is_done => Comparison::NotLost,
        None => Comparison::Unfinished,
    }
}

/// The search for versions that are newer than those of a replay.
struct NewerSearch<'a> {
    map: &'a BlockMap,
    volume: &'a Volume,
    node: NodeId,
    check: &'a mut ReplayCheck,
    versions: Vec<(u64, Version)>,
}

impl NewerSearch<'_> {
    /// Whether it saw all that was left.
    fn run(&mut self, request: &WriteRequest, steps_left: u64) -> bool {
        let before = steps::steps_taken();
        let first = request.origin.and_then(|origin| origin.replay).map_or(0, |first| first.0);
        while let Some((start, end)) = range_of(&request.content, self.check.range) {
            let mut at = self.check.at.max(start);
            while at < end {
                let is_full = self.check.lost.is_some() || self.versions.len() == BATCH;
                if is_full || steps::steps_taken() - before >= steps_left {
                    self.check.at = at;
                    return false;
                }
                at = match &request.content {
                    // A hole instead of a hole: nothing is lost.
                    Content::Holes(_) => self.next_block(at, end, first + self.check.range as u64),
                    _ => self.anything(at, first + (at - start)),
                };
            }
            (self.check.range, self.check.at) = (self.check.range + 1, 0);
        }
        true
    }

    /// Looks at the next block with data; returns where to go on.
    fn next_block(&mut self, at: u64, end: u64, sequence: u64) -> u64 {
        let index = &self.map.table(self.node).index;
        let Some(lba) = index.next_mapped(at).filter(|&lba| lba < end) else { return end };
        let newer = index.find(lba).filter(|version| version.sequence() > sequence);
        if let Some(version) = newer.filter(|_| !self.was_there(lba, sequence)) {
            self.check.batch.push((lba, sequence));
            self.versions.push((lba, version));
        }
        lba + 1
    }

    /// Looks at a block, whether it has data or a hole; returns where to go on.
    fn anything(&mut self, lba: u64, sequence: u64) -> u64 {
        let newest = self.map.newest_in(self.node, lba);
        if newest > sequence && !self.was_there(lba, sequence) {
            let block = self.map.table(self.node).index.find(lba).filter(|version| version.sequence() == newest);
            match block {
                Some(version) => {
                    self.check.batch.push((lba, sequence));
                    self.versions.push((lba, version));
                }
                None if base_of_hole(self.map, self.volume, newest) < sequence => {
                    self.check.lost.get_or_insert(Lba(lba));
                }
                None => {}
            }
        }
        lba + 1
    }

    /// Whether the newer version was written while this one was there, and so with it.
    fn was_there(&self, lba: u64, sequence: u64) -> bool {
        self.map.versions.find(lba, sequence).is_some()
    }
}

/// The blocks of one of a request's ranges, from the first up to the last.
fn range_of(content: &Content, nth: usize) -> Option<(u64, u64)> {
    match content {
        Content::Blocks { addresses, count, .. } => {
            (nth == 0).then(|| (addresses.at(0), addresses.at(0) + u64::from(*count)))
        }
        Content::Holes(holes) => holes.get(nth).map(|&(start, count, _)| (start, start + count)),
        Content::Change(_) | Content::Register(_) => None,
    }
}

/// What is left of a replay when superseded blocks are left out; the content, if it is another than the request's.
///
/// # Errors
/// [`OpError::ReplayRefused`] if a sequence is that of something else.
pub(super) fn plan(
    map: &BlockMap,
    volume: &Volume,
    node: NodeId,
    request: &WriteRequest,
    first: StoreSequence,
) -> Result<(ReplayPlan, Option<Content>), OpError> {
    let range = first.0..first.0 + request.asked;
    let nodes = map.catalogue.nodes_with(&range);
    match &request.content {
        Content::Holes(holes) => {
            // Each hole has a sequence of its own. What is newer in its range stays, without being counted.
            let has_hole = |sequence| nodes.iter().any(|&node| map.table(node).holes.sealed(sequence).is_some());
            if range.clone().any(has_hole) {
                return Err(OpError::ReplayRefused(SEQUENCE_TAKEN));
            }
            debug_assert_eq!(holes.len() as u64, request.asked);
            Ok((ReplayPlan { sequences: range.collect(), first, superseded: 0, lost: None }, None))
        }
        Content::Blocks { addresses, pieces, items, .. } => {
            let source = ReplaySource { map, volume, node, nodes: &nodes };
            let (plan, content) = source.blocks_left(addresses.at(0), range, pieces, items)?;
            Ok((plan, Some(content)))
        }
        Content::Change(_) | Content::Register(_) => unreachable!("only what writes has an origin"),
    }
}

/// Where blocks of a replay may have been written already.
struct ReplaySource<'a> {
    map: &'a BlockMap,
    volume: &'a Volume,
    node: NodeId,
    /// The nodes, of all branches, that may have versions with these sequences.
    nodes: &'a [NodeId],
}

impl ReplaySource<'_> {
    /// The blocks of a replay that are not superseded.
    fn blocks_left(
        &self,
        lba: u64,
        range: Range<u64>,
        pieces: &[Buffer],
        items: &[u8],
    ) -> Result<(ReplayPlan, Content), OpError> {
        let (block_bytes, item_bytes) = (self.volume.block_bytes(), self.volume.layout.item_bytes as usize);
        let first = StoreSequence(range.start);
        let mut plan = ReplayPlan { sequences: Vec::new(), first, superseded: 0, lost: None };
        let (mut lbas, mut left, mut left_items) = (Vec::new(), Vec::new(), Vec::new());
        let (mut with_data, end) = (Vec::new(), lba + (range.end - range.start));
        for (at, sequence) in range.enumerate() {
            let lba = lba + at as u64;
            if at == 0 || lba.is_multiple_of(BLOCKS_SEARCHED) {
                with_data = self.map.with_data_in(self.nodes, lba, end.min(lba + BLOCKS_SEARCHED));
            }
            // The nodes above have nothing as new: the head began when they ended.
            let newest = self.map.newest_in(self.node, lba);
            if newest >= sequence && !self.volume.has_planted(PlantedFault::StaleReplay) {
                plan.superseded += 1;
                continue;
            }
            let is_here =
                |&node: &NodeId| self.map.table(node).index.find(lba).is_some_and(|it| it.sequence() == sequence);
            steps::count(with_data.len() as u64);
            if with_data.iter().any(is_here) || self.map.versions.find(lba, sequence).is_some() {
                return Err(OpError::ReplayRefused(SEQUENCE_TAKEN));
            }
            lbas.push(lba);
            plan.sequences.push(sequence);
            left_items.extend_from_slice(&items[at * item_bytes..][..item_bytes]);
            slice_pieces(pieces, at * block_bytes, (at + 1) * block_bytes, &mut left);
        }
        let count = lbas.len() as u32;
        let addresses = Addresses::Each(lbas);
        Ok((plan, Content::Blocks { addresses, pieces: left, items: left_items, count }))
    }
}
