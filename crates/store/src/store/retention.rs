//! Retained versions: the budget of older versions, feedback of readers that releases them, and the feedback that is not in the log yet.

use std::collections::VecDeque;

use super::volume::Volume;
use crate::catalogue::NodeId;
use crate::holes::Hole;
use crate::layout::RECORD_BLOCK;
use crate::map::BlockMap;
use crate::segments::Segments;
use crate::unit::{UnitBuilder, VERIFIED_PAIR};

/// Retained versions looked at for eviction at once.
const EVICTED_PER_SLICE: usize = 1024;
/// Upper bound on feedback that is not in the log yet; the oldest is dropped, which costs only space.
const FEEDBACK_MAX: usize = 65536;

/// The retention of older versions.
#[derive(Default)]
pub(super) struct Retention {
    /// Upper bound on versions while a request waits for the space that they take.
    limit: Option<u64>,
    /// Feedback that released versions and is not in the log yet: branch, block, sequence.
    feedback: VecDeque<(u32, u64, u64)>,
    /// The store is idle or being closed: feedback may have a unit of its own.
    flushes_feedback: bool,
    /// Versions evicted because they were over the budget, since the store was opened.
    pub(super) evicted: u64,
    /// How many times versions within the budget made way for a write, since the store was opened.
    pub(super) made_way: u64,
    /// Versions released by feedback, since the store was opened.
    pub(super) released: u64,
}

impl Retention {
    /// The log begins again after an erase: there is nothing to tell of.
    pub(super) fn clear_feedback(&mut self) {
        (self.feedback, self.flushes_feedback) = (VecDeque::new(), false);
    }

    /// Memory taken, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.feedback.capacity() * size_of::<(u32, u64, u64)>()
    }

    fn budget(&self, volume: &Volume) -> u64 {
        let budget = volume.info.retention_blocks;
        self.limit.map_or(budget, |limit| limit.min(budget))
    }

    /// Evicts the oldest versions over the budget, a slice of them; whether there are more. Retained versions never cost a write.
    pub(super) fn evict(&mut self, map: &mut BlockMap, segments: &mut Segments, volume: &Volume) -> bool {
        let (budget, mut fuel) = (self.budget(volume), EVICTED_PER_SLICE);
        while let Some(version) = map.evict(budget, &mut fuel) {
            segments.sub_live_block(version);
            self.evicted += 1;
        }
        map.versions.has_excess(budget)
    }

    /// A request would fail for want of space: a quarter of the versions, the oldest, makes way, so that there is something to compact.
    /// False if the limit of an earlier call is not reached yet.
    pub(super) fn lower_limit(&mut self, map: &BlockMap, volume: &Volume) -> bool {
        if map.versions.has_excess(self.budget(volume)) {
            return false;
        }
        let count = map.versions.len();
        self.made_way += 1;
        self.limit = Some(count - (count / 4).max(EVICTED_PER_SLICE as u64).min(count));
        true
    }

    /// No request waits for space any more: the whole budget may be used again.
    pub(super) fn restore_limit(&mut self) {
        self.limit = None;
    }

    /// Feedback on one block of a view. Returns the number of versions that it released: at most `fuel`, which is reduced by it. The
    /// others go with later feedback, or when the budget is exceeded.
    pub(super) fn verified(
        &mut self,
        map: &mut BlockMap,
        segments: &mut Segments,
        node: NodeId,
        (lba, sequence): (u64, u64),
        fuel: &mut usize,
    ) -> u64 {
        let found = map.path(node).iter().zip(map.catalogue.path(node)).find_map(|(table, node)| {
            let newest = table.index.find(lba).is_some_and(|version| version.sequence() == sequence);
            let hole = table.holes.covering(lba).is_some_and(|(.., hole)| hole == sequence);
            (newest || hole).then_some((node, newest))
        });
        let (of, newest, branch) = match found {
            Some((of, newest)) => {
                let branch = map.labels(of).branch(sequence).expect("a table has what is in its labels");
                (of, newest, branch)
            }
            None => {
                let Some(branch) = map.versions.branch(lba, sequence) else { return 0 };
                let Some(of) = map.catalogue.node_of(branch, sequence) else { return 0 };
                (of, false, branch)
            }
        };
        let mut released = Vec::new();
        let catalogue = &map.catalogue;
        // Its own node, which is another one than that of the table while that is being merged.
        let own = catalogue.node_of(branch, sequence);
        let same = |branch, sequence| catalogue.node_of(branch, sequence) == own;
        map.versions.release_below(lba, sequence, fuel, same, |version| released.push(version));
        for &version in &released {
            segments.sub_live_block(version);
        }
        if newest && map.may_trim(of) {
            let gone = |hole: Hole| segments.sub_live(hole.place.segment, hole.live_bytes());
            map.table_mut(of).holes.trim(lba, sequence, |_, _, _| false, gone);
        }
        if !released.is_empty() {
            self.note_feedback(branch, lba, sequence);
        }
        self.released += released.len() as u64;
        released.len() as u64
    }

    fn note_feedback(&mut self, branch: u32, lba: u64, sequence: u64) {
        if self.feedback.len() == FEEDBACK_MAX {
            self.feedback.pop_front();
        }
        self.feedback.push_back((branch, lba, sequence));
    }

    /// Feedback that no write takes along may be appended by itself.
    pub(super) fn flush_feedback(&mut self) {
        self.flushes_feedback = true;
    }

    /// Whether feedback is to be appended by itself.
    pub(super) fn wants_unit(&mut self) -> bool {
        self.flushes_feedback &= !self.feedback.is_empty();
        self.flushes_feedback
    }

    /// Puts feedback into what is left of a unit's last record block, where it costs nothing.
    pub(super) fn push_feedback(&mut self, unit: &mut UnitBuilder) {
        while let Some(&(branch, ..)) = self.feedback.front() {
            let same = self.feedback.iter().take_while(|(of, ..)| *of == branch);
            let pairs: Vec<u8> = same
                .take(RECORD_BLOCK / VERIFIED_PAIR)
                .flat_map(|(_, lba, sequence)| [lba.to_be_bytes(), sequence.to_be_bytes()])
                .flatten()
                .collect();
            let taken = unit.push_verified(branch, &pairs);
            if taken == 0 {
                return;
            }
            self.feedback.drain(..taken);
        }
    }
}
