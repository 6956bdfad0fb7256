//! Which requests must wait for which: writers of the same block go one after the other.
//!
//! Two overlapping writes in flight at once could reach the medium in either order, and a replay could not tell which was
//! the later one; a read-modify-write would lose an update of its own side. So a request that writes holds its range, and
//! a request that overlaps waits, in the order of submission. Readers hold nothing: a read beside a write in flight may see either.

use std::collections::{BTreeMap, VecDeque};

use strongroom_block::Lba;

/// A half-open range of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Range {
    pub(crate) fn new(lba: Lba, count: u64) -> Range {
        Range { start: lba.0, end: lba.0 + count }
    }

    /// How many blocks.
    pub(crate) fn count(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    fn overlaps(self, other: Range) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// Ranges held by writers, and those who wait for one.
#[derive(Debug, Default)]
pub(crate) struct WriteOrder {
    /// Disjoint: start to end.
    held: BTreeMap<u64, u64>,
    waiting: VecDeque<(usize, Range)>,
}

impl WriteOrder {
    /// Takes `range` for the request `key` (true), or queues it until [`WriteOrder::release`] returns it (false).
    pub(crate) fn acquire(&mut self, key: usize, range: Range) -> bool {
        let free = self.is_free(range) && !self.waiting.iter().any(|(_, waiting)| waiting.overlaps(range));
        if free {
            self.held.insert(range.start, range.end);
        } else {
            self.waiting.push_back((key, range));
        }
        free
    }

    /// Gives `range` back; returns the requests that now hold theirs, in the order in which they came.
    pub(crate) fn release(&mut self, range: Range) -> Vec<usize> {
        let end = self.held.remove(&range.start);
        debug_assert_eq!(end, Some(range.end), "only what is held is released");
        let mut granted = Vec::new();
        let mut still_waiting: VecDeque<(usize, Range)> = VecDeque::new();
        for (key, wanted) in std::mem::take(&mut self.waiting) {
            if self.is_free(wanted) && !still_waiting.iter().any(|(_, earlier)| earlier.overlaps(wanted)) {
                self.held.insert(wanted.start, wanted.end);
                granted.push(key);
            } else {
                still_waiting.push_back((key, wanted));
            }
        }
        self.waiting = still_waiting;
        granted
    }

    fn is_free(&self, range: Range) -> bool {
        self.held.range(..range.end).next_back().is_none_or(|(_, &end)| end <= range.start)
    }
}

#[cfg(test)]
mod tests {
    //! Proves that overlapping writers never hold at once and are served in order, against a naive model.
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_later_overlap_does_not_overtake() {
        let mut order = WriteOrder::default();
        let (a, b, c) = (Range { start: 0, end: 4 }, Range { start: 2, end: 8 }, Range { start: 6, end: 9 });
        assert!(order.acquire(0, a));
        assert!(!order.acquire(1, b));
        assert!(!order.acquire(2, c), "free, but it must not overtake 1");
        assert!(order.acquire(3, Range { start: 20, end: 21 }));
        assert_eq!(order.release(a), [1]);
        assert_eq!(order.release(b), [2]);
    }

    proptest! {
        #[test]
        fn holders_never_overlap_and_everyone_is_served(
            ranges in proptest::collection::vec((0u64..40, 1u64..8), 1..60),
            picks in proptest::collection::vec(any::<prop::sample::Index>(), 60),
        ) {
            let mut order = WriteOrder::default();
            let mut holders: Vec<(usize, Range)> = Vec::new();
            let mut served = Vec::new();
            let all: Vec<Range> = ranges.iter().map(|&(start, len)| Range { start, end: start + len }).collect();
            for (key, &range) in all.iter().enumerate() {
                if order.acquire(key, range) {
                    holders.push((key, range));
                }
            }
            for pick in picks {
                if holders.is_empty() {
                    break;
                }
                for (at, (_, one)) in holders.iter().enumerate() {
                    for (_, other) in &holders[at + 1..] {
                        prop_assert!(!one.overlaps(*other));
                    }
                }
                let (key, range) = holders.swap_remove(pick.index(holders.len()));
                served.push(key);
                holders.extend(order.release(range).into_iter().map(|key| (key, all[key])));
            }
            prop_assert_eq!(served.len(), all.len());
            for (at, &first) in served.iter().enumerate() {
                for &second in &served[at + 1..] {
                    prop_assert!(first < second || !all[first].overlaps(all[second]), "order kept where it matters");
                }
            }
        }
    }
}
