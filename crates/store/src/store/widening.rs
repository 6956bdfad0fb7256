//! Plain discards that touch older holes are written over those as well, so that adjacent holes become one.
//!
//! Otherwise a volume that is discarded piece by piece keeps a fragment in memory, and an entry in the log, for each piece. The wider
//! hole is what is logged: an opening finds the same holes, and the entries of those that it replaces are dead.
//!
//! It must cover nothing that a write has put there or is about to: so it covers holes of the same node under which no block is mapped,
//! and only while all that was appended before is in the index, apart from holes in the unit that is being put together. Sealed holes
//! have records, which say where they begin and end, and stay as they are.

use std::collections::BTreeMap;

use super::request::{Content, WriteRequest};
use crate::map::BlockMap;

/// Longest hole that is made this way, in blocks: what has to be searched for mapped blocks. Per TiB of 4 KiB blocks, at most 7 MiB of
/// memory remain.
const WIDENED_BLOCKS_MAX: u64 = 4096;

/// The holes of one unit.
pub(super) struct Widening {
    /// By branch and first block: the end of each.
    ranges: BTreeMap<(u32, u64), u64>,
    is_possible: bool,
}

impl Widening {
    /// A unit of writes begins.
    pub(super) fn new(is_possible: bool) -> Widening {
        Widening { ranges: BTreeMap::new(), is_possible }
    }

    /// The hole of this unit that ends at `lba`, or covers it.
    fn before(&self, branch: u32, lba: u64) -> Option<(u64, u64)> {
        let (&(_, start), &end) = self.ranges.range((branch, 0)..=(branch, lba)).next_back()?;
        (end >= lba).then_some((start, end))
    }

    /// The hole of this unit that begins at `lba`.
    fn behind(&self, branch: u32, lba: u64) -> Option<(u64, u64)> {
        self.ranges.get(&(branch, lba)).map(|&end| (lba, end))
    }

    /// Widens the holes of a request that is about to be put into the unit.
    pub(super) fn widen(&mut self, map: &BlockMap, op: &mut WriteRequest) {
        let Content::Holes(holes) = &mut op.content else {
            // What it writes is not in the index yet.
            self.is_possible = false;
            return;
        };
        let Some(node) = map.catalogue.head(op.branch).filter(|_| self.is_possible) else { return };
        let table = map.table(node);
        // An older hole without a mapped block, as far as it goes beyond what is known to be empty.
        let older = |lba: u64| {
            let (start, end, _) = table.holes.covering(lba)?;
            let is_short = end - start <= WIDENED_BLOCKS_MAX;
            (is_short && !table.index.any_in(start, end)).then_some((start, end))
        };
        for (start, count, _) in holes.iter_mut() {
            let (first, end) = (*start, *start + *count);
            let mut widened = (first, end);
            let before = self.before(op.branch, first).or_else(|| older(first.checked_sub(1)?));
            let behind = self.behind(op.branch, end).or_else(|| older(end));
            for (other_start, other_end) in before.into_iter().chain(behind) {
                let whole = (widened.0.min(other_start), widened.1.max(other_end));
                if whole.1 - whole.0 <= WIDENED_BLOCKS_MAX {
                    widened = whole;
                }
            }
            (*start, *count) = (widened.0, widened.1 - widened.0);
            let within: Vec<_> =
                self.ranges.range((op.branch, widened.0)..(op.branch, widened.1)).map(|(&key, _)| key).collect();
            for key in within {
                self.ranges.remove(&key);
            }
            self.ranges.insert((op.branch, widened.0), widened.1);
        }
    }
}
