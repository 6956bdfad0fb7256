//! Ranges without data. A hole is one record over a range; what newer holes left of it are its fragments.
//!
//! A fragment says nothing about blocks: where a block is mapped, the block is newer (sealed units keep the hole beneath
//! as that block's older version).

use std::collections::{BTreeMap, HashMap};

use strongroom_block::SealRecord;

use crate::index::low_bits;

/// Where an entry of the log is: segment, and byte of its item in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ItemPlace {
    pub(crate) segment: u32,
    pub(crate) item_at: u32,
}

/// One hole as it was written.
#[derive(Clone, Debug)]
pub(crate) struct Hole {
    pub(crate) start: u64,
    pub(crate) count: u64,
    pub(crate) sequence: u64,
    /// `None` on plain units.
    pub(crate) record: Option<SealRecord>,
    pub(crate) place: ItemPlace,
    /// How many pieces of it still count.
    fragments: u32,
}

impl Hole {
    pub(crate) fn new(start: u64, count: u64, sequence: u64, record: Option<SealRecord>, place: ItemPlace) -> Hole {
        Hole { start, count, sequence, record, place, fragments: 0 }
    }

    /// What it weighs in its segment, in bytes.
    pub(crate) fn live_bytes(&self) -> u64 {
        32 + self.record.as_ref().map_or(0, |record| record.as_bytes().len() as u64)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fragment {
    end: u64,
    sequence: u64,
}

/// All holes that count.
#[derive(Default)]
pub(crate) struct HoleMap {
    fragments: BTreeMap<u64, Fragment>,
    holes: HashMap<u64, Hole>,
}

impl HoleMap {
    /// How many holes count somewhere.
    pub(crate) fn len(&self) -> usize {
        self.holes.len()
    }

    /// The fragment that covers `lba`: start, end, sequence.
    pub(crate) fn covering(&self, lba: u64) -> Option<(u64, u64, u64)> {
        let (&start, fragment) = self.fragments.range(..=lba).next_back()?;
        (fragment.end > lba).then_some((start, fragment.end, fragment.sequence))
    }

    /// The end of what holes cover: 0 if there are none.
    pub(crate) fn end(&self) -> u64 {
        self.fragments.last_key_value().map_or(0, |(_, fragment)| fragment.end)
    }

    /// The hole of a sequence, if any of it counts.
    pub(crate) fn hole(&self, sequence: u64) -> Option<&Hole> {
        self.holes.get(&sequence)
    }

    /// Every hole, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Hole> {
        self.holes.values()
    }

    /// Takes a hole in where nothing newer is; tells the holes of which nothing is left (this one too, perhaps).
    /// A hole that is there already is only moved to its new place.
    pub(crate) fn insert(&mut self, hole: Hole, mut gone: impl FnMut(Hole)) {
        let (sequence, start, end) = (hole.sequence, hole.start, hole.start + hole.count);
        if let Some(known) = self.holes.get_mut(&sequence) {
            known.place = hole.place;
            return;
        }
        self.holes.insert(sequence, hole);
        let mut at = start;
        for (piece_start, piece) in self.overlapping(start, end) {
            if piece.sequence > sequence {
                self.add(at, piece_start, sequence);
                at = piece.end;
                continue;
            }
            self.fragments.remove(&piece_start);
            self.add(piece_start, start, piece.sequence);
            self.add(end, piece.end, piece.sequence);
            self.drop_fragment(piece.sequence, &mut gone);
        }
        self.add(at, end, sequence);
        if self.holes[&sequence].fragments == 0 {
            gone(self.holes.remove(&sequence).expect("inserted above"));
        }
    }

    /// Which of the 64 blocks from `base` on are covered, lowest first.
    pub(crate) fn chunk_at(&self, base: u64) -> u64 {
        if self.fragments.is_empty() {
            return 0;
        }
        let end = base + 64;
        let first = self.covering(base).map_or(base, |(start, ..)| start);
        self.fragments.range(first..end).fold(0, |covered, (&start, fragment)| {
            covered | low_bits(fragment.end.min(end) - base) & !low_bits(start.max(base) - base)
        })
    }

    fn overlapping(&self, start: u64, end: u64) -> Vec<(u64, Fragment)> {
        let first = self.covering(start).map_or(start, |(fragment_start, ..)| fragment_start);
        self.fragments.range(first..end).map(|(&start, &fragment)| (start, fragment)).collect()
    }

    /// Adds `start..end` as a fragment, if it is not empty.
    fn add(&mut self, start: u64, end: u64, sequence: u64) {
        if start < end {
            self.fragments.insert(start, Fragment { end, sequence });
            self.holes.get_mut(&sequence).expect("fragments have their hole").fragments += 1;
        }
    }

    fn drop_fragment(&mut self, sequence: u64, gone: &mut impl FnMut(Hole)) {
        let hole = self.holes.get_mut(&sequence).expect("fragments have their hole");
        hole.fragments -= 1;
        if hole.fragments == 0 {
            gone(self.holes.remove(&sequence).expect("just seen"));
        }
    }

    /// Forgets the hole at `lba` where that is cheap: at an edge of a fragment older than `below`. Called when a block
    /// there needs no hole beneath any more, so that a hole written over bit by bit goes away.
    pub(crate) fn trim(&mut self, lba: u64, below: u64, mut gone: impl FnMut(Hole)) {
        let Some((start, end, sequence)) = self.covering(lba) else { return };
        if sequence >= below || (lba != start && lba != end - 1) {
            return;
        }
        self.fragments.remove(&start);
        if lba == start {
            self.add(start + 1, end, sequence);
        } else {
            self.add(start, end - 1, sequence);
        }
        self.drop_fragment(sequence, &mut gone);
    }

    /// Takes a hole out, with everything that counts of it.
    pub(crate) fn remove(&mut self, sequence: u64) -> Option<Hole> {
        let mut hole = self.holes.remove(&sequence)?;
        let (start, end) = (hole.start, hole.start + hole.count);
        for (at, fragment) in self.overlapping(start, end) {
            if fragment.sequence == sequence {
                self.fragments.remove(&at);
            }
        }
        hole.fragments = 0;
        Some(hole)
    }

    /// Notes that cleaning copied a hole; false if it is not at `from` any more.
    pub(crate) fn relocate(&mut self, sequence: u64, from: ItemPlace, to: ItemPlace) -> bool {
        match self.holes.get_mut(&sequence) {
            Some(hole) if hole.place == from => {
                hole.place = to;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLACE: ItemPlace = ItemPlace { segment: 0, item_at: 0 };

    proptest! {
        /// In whatever order holes arrive, the newest covers each block, and exactly the useless ones are told as gone.
        #[test]
        fn the_newest_hole_covers(mut ranges in prop::collection::vec((0u64..60, 1u64..30), 1..25), seed in 0usize..1000) {
            let count = ranges.len();
            let mut map = HoleMap::default();
            let mut model = vec![0u64; 100];
            let mut gone = Vec::new();
            let mut order: Vec<usize> = (0..count).collect();
            order.rotate_left(seed % count);
            if seed % 2 == 0 { order.reverse(); }
            for &at in &order {
                let (start, len) = ranges[at];
                let sequence = at as u64 + 1;
                map.insert(Hole::new(start, len, sequence, None, PLACE), |hole| gone.push(hole.sequence));
                for block in start..start + len {
                    model[block as usize] = model[block as usize].max(sequence);
                }
            }
            ranges.clear();
            for (lba, &sequence) in model.iter().enumerate() {
                prop_assert_eq!(map.covering(lba as u64).map_or(0, |(.., sequence)| sequence), sequence);
            }
            for sequence in 1..=count as u64 {
                prop_assert_eq!(gone.contains(&sequence), !model.contains(&sequence));
                prop_assert_eq!(map.hole(sequence).is_some(), model.contains(&sequence));
            }
        }
    }

    #[test]
    fn trimming_from_the_edges_ends_a_hole() {
        let mut map = HoleMap::default();
        map.insert(Hole::new(10, 3, 5, None, PLACE), |_| panic!("nothing older"));
        map.trim(11, 9, |_| panic!("the middle stays"));
        assert!(map.covering(11).is_some());
        map.trim(10, 5, |_| panic!("not older than that"));
        assert!(map.covering(10).is_some());
        let mut gone = 0;
        for lba in [10, 12, 11] {
            map.trim(lba, 6, |hole| gone += hole.sequence);
        }
        assert_eq!((gone, map.len()), (5, 0));
    }
}
