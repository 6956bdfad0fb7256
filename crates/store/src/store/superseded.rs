//! Whether a replay is lost: of each of its blocks that has something newer, whether that was made without regard to what was there
//! before, or from what the replay wrote; or from what a crash had left instead.
//!
//! What was written on a condition says in the log what it was made from. That is read only here, a batch at a time.

use strongroom_block::Lba;

use super::Store;
use super::append::Content;
use super::gate::Gate;
use crate::catalogue::NodeId;
use crate::index::Version;
use crate::planted::PlantedFault;
use crate::steps;

/// Steps of one poll.
const STEPS_PER_POLL: u64 = 8192;
/// Versions whose records are read at once.
const BATCH: usize = 256;

/// What was found.
pub(super) enum Judgement {
    /// Something newer was made without this block.
    Lost(Lba),
    NotLost,
    /// Something was begun.
    Again,
    /// Not in this poll.
    Waits,
}

/// How far a replay was looked at.
#[derive(Default)]
pub(super) struct Judging {
    /// Which of its ranges.
    range: usize,
    /// Blocks of that before this one are done.
    at: u64,
    /// What is being read: the blocks, and the sequences that they have in the replay.
    batch: Vec<(u64, u64)>,
    lost: Option<Lba>,
}

impl Judging {
    /// What the versions of the batch were made from.
    pub(super) fn found(&mut self, bases: &[u64]) {
        for (nth, (lba, sequence)) in std::mem::take(&mut self.batch).into_iter().enumerate() {
            // What cannot be read may have been made from anything.
            if bases.get(nth).is_none_or(|&base| base < sequence) {
                self.lost.get_or_insert(Lba(lba));
            }
        }
    }
}

impl Store {
    /// Looks at what is there instead of the first request, a replay, as far as this poll allows.
    pub(super) fn judge_replay(&mut self, node: NodeId) -> Judgement {
        let planted = self.options.planted;
        if planted.has(PlantedFault::BaseIgnored) || planted.has(PlantedFault::StaleReplay) {
            return Judgement::NotLost;
        }
        let op = self.queue.front_mut().expect("the caller saw it");
        let mut judging = op.judging.take().unwrap_or_default();
        let before = steps::steps_taken();
        let left = STEPS_PER_POLL.saturating_sub(self.judged_in_poll);
        let mut versions = Vec::new();
        let is_done = self.look_for_newer(node, &mut judging, left, &mut versions);
        self.judged_in_poll += steps::steps_taken() - before;
        if let Some(lba) = judging.lost {
            return Judgement::Lost(lba);
        }
        if versions.is_empty() && is_done {
            return Judgement::NotLost;
        }
        let op = self.queue.front_mut().expect("the caller saw it");
        op.judging = Some(judging);
        if versions.is_empty() {
            self.cleaner.awaits_slices = true;
            return Judgement::Waits;
        }
        let ticket = self.next_look;
        self.next_look += 1;
        op.gate = Gate::Reading(Box::new(Gate::Superseded), ticket);
        self.start_base_read(ticket, &versions);
        Judgement::Again
    }

    /// Collects versions that are newer than what the first request has for their blocks. Whether it saw all that was left.
    fn look_for_newer(
        &self,
        node: NodeId,
        judging: &mut Judging,
        steps_left: u64,
        versions: &mut Vec<(u64, Version)>,
    ) -> bool {
        let before = steps::steps_taken();
        let op = self.queue.front().expect("the caller saw it");
        let first = op.origin.and_then(|origin| origin.replay).map_or(0, |first| first.0);
        while let Some((start, end)) = range_of(&op.content, judging.range) {
            let mut at = judging.at.max(start);
            while at < end {
                let spent = judging.lost.is_some() || versions.len() == BATCH;
                if spent || steps::steps_taken() - before >= steps_left {
                    judging.at = at;
                    return false;
                }
                at = match &op.content {
                    Content::Holes(_) => {
                        let sequence = first + judging.range as u64;
                        // A hole instead of a hole: nothing is lost.
                        self.block_instead(node, at, end, sequence, judging, versions)
                    }
                    _ => self.anything_instead(node, at, first + (at - start), judging, versions),
                };
            }
            (judging.range, judging.at) = (judging.range + 1, 0);
        }
        true
    }

    /// Looks at the next block with data; where to go on.
    fn block_instead(
        &self,
        node: NodeId,
        at: u64,
        end: u64,
        sequence: u64,
        judging: &mut Judging,
        versions: &mut Vec<(u64, Version)>,
    ) -> u64 {
        let index = &self.map.table(node).index;
        let Some(lba) = index.next_mapped(at).filter(|&lba| lba < end) else { return end };
        let newer = index.find(lba).filter(|version| version.sequence() > sequence);
        if let Some(version) = newer.filter(|_| !self.was_there(lba, sequence)) {
            judging.batch.push((lba, sequence));
            versions.push((lba, version));
        }
        lba + 1
    }

    /// Whether what is newer came when this version was there: so it was made with it.
    fn was_there(&self, lba: u64, sequence: u64) -> bool {
        self.map.versions.find(lba, sequence).is_some()
    }

    /// Looks at one block, whatever is there; where to go on.
    fn anything_instead(
        &self,
        node: NodeId,
        lba: u64,
        sequence: u64,
        judging: &mut Judging,
        versions: &mut Vec<(u64, Version)>,
    ) -> u64 {
        let newest = self.map.newest_in(node, lba);
        if newest > sequence && !self.was_there(lba, sequence) {
            let block = self.map.table(node).index.find(lba).filter(|version| version.sequence() == newest);
            match block {
                Some(version) => {
                    judging.batch.push((lba, sequence));
                    versions.push((lba, version));
                }
                None if self.base_of_hole(newest) < sequence => {
                    judging.lost.get_or_insert(Lba(lba));
                }
                None => {}
            }
        }
        lba + 1
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
