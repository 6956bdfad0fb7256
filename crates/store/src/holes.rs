//! Ranges without data. A hole is one record over a range; what newer holes left of it are its fragments.
//!
//! A fragment says nothing about blocks: where a block is mapped, the block is newer (sealed units keep the hole beneath
//! as that block's older version).
//!
//! A plain hole all of which counts is its fragment, and nothing else: about 56 bytes. Only a hole that has a record, or is cut into
//! pieces, has an entry of its own besides.

use std::collections::BTreeMap;

use strongroom_block::SealRecord;

use crate::index::low_bits;
use crate::steps;

/// What a fragment takes in memory, about: 32 bytes in nodes that are two thirds full.
const FRAGMENT_BYTES: u64 = 56;
/// What a hole with an entry of its own takes besides, about.
const ENTRY_BYTES: u64 = 96;
/// What its record takes, about.
const RECORD_BYTES: u64 = 112;
/// Blocks of a fragment that are looked at one by one, to see whether any of it is still needed.
const LOOKED_AT_MAX: u64 = 64;

/// Where an entry of the log is: segment, and byte of its item in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ItemPlace {
    pub(crate) segment: u32,
    pub(crate) item_at: u32,
}

/// One hole as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hole {
    pub(crate) start: u64,
    pub(crate) count: u64,
    pub(crate) sequence: u64,
    /// `None` on plain units.
    pub(crate) record: Option<SealRecord>,
    pub(crate) place: ItemPlace,
    /// It was written on condition that there was no data; only with a record.
    pub(crate) is_conditional: bool,
}

impl Hole {
    pub(crate) fn new(start: u64, count: u64, sequence: u64, record: Option<SealRecord>, place: ItemPlace) -> Hole {
        Hole { start, count, sequence, record, place, is_conditional: false }
    }

    pub(crate) fn conditional(self, is_conditional: bool) -> Hole {
        Hole { is_conditional, ..self }
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
    /// Of its hole, if that has no entry of its own.
    place: ItemPlace,
}

/// A hole that is not one plain fragment.
struct Entry {
    start: u64,
    count: u64,
    place: ItemPlace,
    /// How many pieces of it still count.
    fragments: u32,
    /// Pieces are still being added: it counts without any.
    inserting: bool,
    is_conditional: bool,
    record: Option<Box<SealRecord>>,
}

impl Entry {
    fn hole(&self, sequence: u64) -> Hole {
        Hole::new(self.start, self.count, sequence, self.record.as_deref().cloned(), self.place)
            .conditional(self.is_conditional)
    }
}

/// Where a walk over all holes is: those that are one fragment by address, then the others by sequence. A hole never goes from the
/// second kind to the first, so that a walk in slices misses none that was there when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HolesAt {
    Whole(u64),
    Entries(u64),
}

impl HolesAt {
    pub(crate) const START: HolesAt = HolesAt::Whole(0);
}

/// All holes that count.
#[derive(Default)]
pub(crate) struct HoleMap {
    /// By their first blocks.
    fragments: BTreeMap<u64, Fragment>,
    /// By sequence.
    entries: BTreeMap<u64, Entry>,
    /// Fragments that are holes by themselves.
    whole: usize,
    records: usize,
}

impl HoleMap {
    /// How many holes count somewhere.
    pub(crate) fn len(&self) -> usize {
        self.whole + self.entries.len()
    }

    /// Memory taken, in bytes; estimated from what there is.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.fragments.len() as u64 * FRAGMENT_BYTES
            + self.entries.len() as u64 * ENTRY_BYTES
            + self.records as u64 * RECORD_BYTES
    }

    fn fragment_at(&self, lba: u64) -> Option<(u64, Fragment)> {
        let (&start, &fragment) = self.fragments.range(..=lba).next_back()?;
        (fragment.end > lba).then_some((start, fragment))
    }

    /// The fragment that covers `lba`: start, end, sequence.
    pub(crate) fn covering(&self, lba: u64) -> Option<(u64, u64, u64)> {
        self.fragment_at(lba).map(|(start, fragment)| (start, fragment.end, fragment.sequence))
    }

    /// The end of what holes cover: 0 if there are none.
    pub(crate) fn end(&self) -> u64 {
        self.fragments.last_key_value().map_or(0, |(_, fragment)| fragment.end)
    }

    /// The hole that began at `start` with this sequence, if any of it counts.
    pub(crate) fn hole(&self, start: u64, sequence: u64) -> Option<Hole> {
        if let Some(entry) = self.entries.get(&sequence) {
            return Some(entry.hole(sequence));
        }
        let fragment = self.fragments.get(&start).filter(|fragment| fragment.sequence == sequence)?;
        Some(Hole::new(start, fragment.end - start, sequence, None, fragment.place))
    }

    /// The hole of a sequence, if it has a record.
    pub(crate) fn sealed(&self, sequence: u64) -> Option<Hole> {
        let entry = self.entries.get(&sequence)?;
        entry.record.is_some().then(|| entry.hole(sequence))
    }

    /// Whether the hole of a sequence was written on condition that there was no data.
    pub(crate) fn is_conditional(&self, sequence: u64) -> bool {
        self.entries.get(&sequence).is_some_and(|entry| entry.is_conditional)
    }

    /// Every hole. It looks at all of them.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(Hole)) {
        let mut fuel = usize::MAX;
        self.visit(HolesAt::START, &mut fuel, |hole| {
            visit(hole);
            true
        });
    }

    /// Visits holes from a place in the order on, until told to stop (then the last one comes again), or all `fuel` is used: one for each
    /// fragment or entry looked at. Where to go on; `None`: that was all.
    pub(crate) fn visit(
        &self,
        from: HolesAt,
        fuel: &mut usize,
        mut visit: impl FnMut(Hole) -> bool,
    ) -> Option<HolesAt> {
        if let HolesAt::Whole(from) = from {
            for (&start, fragment) in self.fragments.range(from..) {
                if *fuel == 0 {
                    return Some(HolesAt::Whole(start));
                }
                *fuel -= 1;
                steps::count(1);
                let is_whole = !self.entries.contains_key(&fragment.sequence);
                let hole = || Hole::new(start, fragment.end - start, fragment.sequence, None, fragment.place);
                if is_whole && !visit(hole()) {
                    return Some(HolesAt::Whole(start));
                }
            }
        }
        let from = if let HolesAt::Entries(from) = from { from } else { 0 };
        for (&sequence, entry) in self.entries.range(from..) {
            if *fuel == 0 {
                return Some(HolesAt::Entries(sequence));
            }
            *fuel -= 1;
            steps::count(1);
            if !visit(entry.hole(sequence)) {
                return Some(HolesAt::Entries(sequence));
            }
        }
        None
    }

    /// Whether it has this hole.
    fn has(&self, start: u64, sequence: u64) -> bool {
        self.entries.contains_key(&sequence)
            || self.fragments.get(&start).is_some_and(|fragment| fragment.sequence == sequence)
    }

    /// Takes a hole in where nothing newer is; tells the holes of which nothing is left (this one too, perhaps).
    /// A hole that is there already is only moved to its new place. `needless` tells of a short range and a sequence whether newer
    /// blocks lie on all of it and nothing needs the hole beneath: what is cut off of older holes is forgotten then.
    pub(crate) fn insert(&mut self, hole: Hole, needless: impl Fn(u64, u64, u64) -> bool, mut gone: impl FnMut(Hole)) {
        if self.has(hole.start, hole.sequence) {
            self.move_to(hole.start, hole.sequence, hole.place);
            return;
        }
        let (sequence, start, end) = (hole.sequence, hole.start, hole.start + hole.count);
        self.begin_insert(hole);
        self.take_range(sequence, start, end, &needless, &mut gone);
        self.finish_insert(sequence, gone);
        // All of it counts: the fragment is enough.
        let fits = |entry: &Entry| entry.fragments == 1 && entry.record.is_none();
        if self.entries.get(&sequence).is_some_and(fits)
            && let Some(fragment) = self.fragments.get_mut(&start).filter(|it| it.sequence == sequence && it.end == end)
            && let Some(entry) = self.entries.remove(&sequence)
        {
            fragment.place = entry.place;
            self.whole += 1;
        }
    }

    /// Whether a hole over a range has so much to replace that it is better taken in in slices.
    pub(crate) fn has_more_than(&self, count: usize, start: u64, end: u64) -> bool {
        self.nth_fragment(count, start, end).is_some()
    }

    /// Begins to take a hole in by [`HoleMap::take_range`]. It counts from now on.
    pub(crate) fn begin_insert(&mut self, hole: Hole) {
        let Hole { start, count, sequence, record, place, is_conditional } = hole;
        self.records += usize::from(record.is_some());
        let record = record.map(Box::new);
        let entry = Entry { start, count, place, fragments: 0, inserting: true, is_conditional, record };
        self.entries.insert(sequence, entry);
    }

    /// The end of a slice of `start..end` that replaces no more than about `most` fragments.
    pub(crate) fn end_of_slice(&self, start: u64, end: u64, most: usize) -> u64 {
        self.nth_fragment(most, start, end).map_or(end, |next| next.max(start + 1))
    }

    /// Where the fragment behind `count` others begins that begin in a range.
    fn nth_fragment(&self, count: usize, start: u64, end: u64) -> Option<u64> {
        let starts = self.fragments.range(start..end).map(|(&start, _)| start);
        starts.inspect(|_| steps::count(1)).nth(count)
    }

    /// Takes a range of a hole in that is being inserted.
    pub(crate) fn take_range(
        &mut self,
        sequence: u64,
        start: u64,
        end: u64,
        needless: &impl Fn(u64, u64, u64) -> bool,
        gone: &mut impl FnMut(Hole),
    ) {
        let mut at = start;
        for (piece_start, piece) in self.overlapping(start, end) {
            steps::count(1);
            if piece.sequence > sequence {
                self.add(at, piece_start, sequence);
                at = piece.end;
            } else {
                self.cut(piece_start, start, end, needless, gone);
            }
        }
        self.add(at, end, sequence);
    }

    /// All of a hole was taken in.
    pub(crate) fn finish_insert(&mut self, sequence: u64, mut gone: impl FnMut(Hole)) {
        if let Some(entry) = self.entries.get_mut(&sequence) {
            entry.inserting = false;
            if entry.fragments == 0 {
                gone(self.take_entry(sequence));
            }
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

    /// Adds `start..end` as a fragment of a hole with an entry, if it is not empty. What it continues grows.
    fn add(&mut self, start: u64, end: u64, sequence: u64) {
        if start >= end {
            return;
        }
        if let Some((_, before)) = self.fragments.range_mut(..start).next_back()
            && before.end == start
            && before.sequence == sequence
        {
            before.end = end;
            return;
        }
        let entry = self.entries.get_mut(&sequence).expect("a hole that is cut has an entry");
        entry.fragments += 1;
        let place = entry.place;
        self.fragments.insert(start, Fragment { end, sequence, place });
    }

    /// Takes `from..to` out of the fragment at `start`.
    fn cut(
        &mut self,
        start: u64,
        from: u64,
        to: u64,
        needless: &impl Fn(u64, u64, u64) -> bool,
        gone: &mut impl FnMut(Hole),
    ) {
        let Fragment { end, sequence, place } = self.fragments.remove(&start).expect("the caller saw it");
        let is_needed = |&(start, end): &(u64, u64)| {
            start < end && !(end - start <= LOOKED_AT_MAX && needless(start, end, sequence))
        };
        let left = [(start, from.min(end)), (to.max(start), end)];
        let is_whole = !self.entries.contains_key(&sequence);
        if is_whole {
            self.whole -= 1;
            if !left.iter().any(is_needed) {
                gone(Hole::new(start, end - start, sequence, None, place));
                return;
            }
            let entry = Entry {
                start,
                count: end - start,
                place,
                fragments: 1,
                inserting: false,
                is_conditional: false,
                record: None,
            };
            self.entries.insert(sequence, entry);
        }
        for (start, end) in left.into_iter().filter(is_needed) {
            let entry = self.entries.get_mut(&sequence).expect("made sure of above");
            entry.fragments += 1;
            self.fragments.insert(start, Fragment { end, sequence, place });
        }
        self.drop_fragment(sequence, gone);
    }

    fn drop_fragment(&mut self, sequence: u64, gone: &mut impl FnMut(Hole)) {
        let entry = self.entries.get_mut(&sequence).expect("a hole that is cut has an entry");
        entry.fragments -= 1;
        if entry.fragments == 0 && !entry.inserting {
            gone(self.take_entry(sequence));
        }
    }

    fn take_entry(&mut self, sequence: u64) -> Hole {
        let entry = self.entries.remove(&sequence).expect("the caller saw it");
        self.records -= usize::from(entry.record.is_some());
        entry.hole(sequence)
    }

    /// Forgets the hole at `lba` where that is cheap: at an edge of a fragment older than `below`. Called when a block
    /// there needs no hole beneath any more, so that a hole written over bit by bit goes away. With it goes what lies next to it and
    /// `needless` says nothing needs either.
    pub(crate) fn trim(
        &mut self,
        lba: u64,
        below: u64,
        needless: impl Fn(u64, u64, u64) -> bool,
        mut gone: impl FnMut(Hole),
    ) {
        let Some((start, end, sequence)) = self.covering(lba) else { return };
        if sequence >= below || (lba != start && lba != end - 1) {
            return;
        }
        let (mut from, mut to) = (lba, lba + 1);
        while lba == start && to < end && to - from < LOOKED_AT_MAX && needless(to, to + 1, sequence) {
            to += 1;
        }
        while lba == end - 1 && from > start && to - from < LOOKED_AT_MAX && needless(from - 1, from, sequence) {
            from -= 1;
        }
        self.cut(start, from, to, &needless, &mut gone);
    }

    /// Takes the first fragment out, or as much of it as replaces about `most` fragments of another map: hole, range, and whether it was the
    /// last of its hole. That has an entry in this map until then.
    pub(crate) fn take_first(&mut self, other: &HoleMap, most: usize) -> Option<TakenFragment> {
        let (&start, &fragment) = self.fragments.first_key_value()?;
        let Fragment { end, sequence, place } = fragment;
        let is_whole = !self.entries.contains_key(&sequence);
        let until = other.end_of_slice(start, end, most);
        let hole = match self.entries.get(&sequence) {
            Some(entry) => entry.hole(sequence),
            None => Hole::new(start, end - start, sequence, None, place),
        };
        self.fragments.pop_first();
        if until < end {
            if is_whole {
                self.whole -= 1;
                let entry = Entry {
                    start,
                    count: end - start,
                    place,
                    fragments: 1,
                    inserting: false,
                    is_conditional: false,
                    record: None,
                };
                self.entries.insert(sequence, entry);
            }
            self.fragments.insert(until, Fragment { end, sequence, place });
            return Some(TakenFragment { hole, start, end: until, is_last: false, is_whole: false });
        }
        let mut is_last = true;
        if is_whole {
            self.whole -= 1;
        } else {
            let entry = self.entries.get_mut(&sequence).expect("it has one");
            entry.fragments -= 1;
            is_last = entry.fragments == 0;
            if is_last {
                self.take_entry(sequence);
            }
        }
        Some(TakenFragment { hole, start, end, is_last, is_whole })
    }

    /// Takes in what was taken out of another map; that map's hole has its entry here until the last piece comes.
    pub(crate) fn put(&mut self, taken: TakenFragment, mut gone: impl FnMut(Hole)) {
        let TakenFragment { hole, start, end, is_last, is_whole } = taken;
        let needless = |_, _, _| false;
        if is_whole {
            return self.insert(hole, needless, gone);
        }
        let sequence = hole.sequence;
        if !self.entries.contains_key(&sequence) {
            self.begin_insert(hole);
        }
        self.take_range(sequence, start, end, &needless, &mut gone);
        if is_last {
            self.finish_insert(sequence, gone);
        }
    }

    fn move_to(&mut self, start: u64, sequence: u64, to: ItemPlace) {
        if let Some(entry) = self.entries.get_mut(&sequence) {
            entry.place = to;
        } else if let Some(fragment) = self.fragments.get_mut(&start).filter(|it| it.sequence == sequence) {
            fragment.place = to;
        }
    }

    /// Notes that cleaning copied a hole; what it weighs, or `None` if it is not at `from` any more.
    pub(crate) fn relocate(&mut self, start: u64, sequence: u64, from: ItemPlace, to: ItemPlace) -> Option<u64> {
        let hole = self.hole(start, sequence).filter(|hole| hole.place == from)?;
        self.move_to(start, sequence, to);
        Some(hole.live_bytes())
    }
}

/// A piece of a hole on its way from one map to another.
pub(crate) struct TakenFragment {
    pub(crate) hole: Hole,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Nothing is left of the hole where it came from.
    pub(crate) is_last: bool,
    /// It is all of the hole.
    is_whole: bool,
}

#[cfg(test)]
mod tests;
