//! Tells writes that cannot be repetitions from those that may be, without a look at the medium.
//!
//! Of each attach id the highest counter is kept, and which of the [`WINDOW`] counters up to it were seen: writes of one
//! writer may arrive out of order. A write whose counter is not among them was never here; only the others, and those
//! below the window, need a look at the block's newest record.

use std::collections::{HashMap, VecDeque};

use strongroom_block::{AttachId, Stamp};

/// Upper bound on remembered attach ids; each takes about 200 bytes.
const ATTACH_IDS_MAX: usize = 4096;
/// How many counters below the highest are told apart.
const WINDOW: u64 = 1024;

/// The counters seen of one attach id.
struct Seen {
    highest: u64,
    /// Bit `counter % WINDOW`, for the counters from `highest - WINDOW + 1` to `highest`.
    bits: [u64; (WINDOW / 64) as usize],
}

impl Seen {
    /// `known`: nothing but `counter` was seen; else all up to it may have been.
    fn first(counter: u64, known: bool) -> Seen {
        let mut seen = Seen { highest: counter, bits: [if known { 0 } else { u64::MAX }; (WINDOW / 64) as usize] };
        seen.note(counter);
        seen
    }

    fn at(counter: u64) -> (usize, u64) {
        ((counter % WINDOW / 64) as usize, 1 << (counter % 64))
    }

    fn contains(&self, counter: u64) -> bool {
        let (word, bit) = Seen::at(counter);
        counter <= self.highest && (self.highest - counter >= WINDOW || self.bits[word] & bit != 0)
    }

    fn note(&mut self, counter: u64) {
        if counter > self.highest {
            if counter - self.highest >= WINDOW {
                self.bits.fill(0);
            } else {
                for between in self.highest + 1..counter {
                    let (word, bit) = Seen::at(between);
                    self.bits[word] &= !bit;
                }
            }
            self.highest = counter;
        }
        if self.highest - counter < WINDOW {
            let (word, bit) = Seen::at(counter);
            self.bits[word] |= bit;
        }
    }
}

/// The counters seen of each recent attach id.
#[derive(Default)]
pub(crate) struct StampFilter {
    seen: HashMap<AttachId, Seen>,
    order: VecDeque<AttachId>,
    forgot: bool,
}

impl StampFilter {
    /// There may be any that were not noted.
    pub(crate) fn forget(&mut self) {
        self.forgot = true;
    }

    /// Notes a stamp.
    pub(crate) fn note(&mut self, stamp: Stamp) {
        self.note_all(stamp.attach_id, std::iter::once(stamp.counter));
    }

    /// Notes stamps of one attach id (at least one); whether any of them may have been seen before.
    pub(crate) fn note_all(&mut self, id: AttachId, mut counters: impl Iterator<Item = u64> + Clone) -> bool {
        if let Some(seen) = self.seen.get_mut(&id) {
            let suspect = counters.clone().any(|counter| seen.contains(counter));
            counters.for_each(|counter| seen.note(counter));
            return suspect;
        }
        let Some(first) = counters.next() else { return false };
        let suspect = self.forgot;
        if self.order.len() == ATTACH_IDS_MAX {
            let oldest = self.order.pop_front().expect("not empty");
            self.seen.remove(&oldest);
            self.forgot = true;
        }
        self.order.push_back(id);
        // Once some were forgotten this may be one of them.
        let mut seen = Seen::first(first, !self.forgot);
        counters.for_each(|counter| seen.note(counter));
        self.seen.insert(id, seen);
        suspect
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    impl StampFilter {
        fn may_be_repeated(&self, stamp: Stamp) -> bool {
            self.seen.get(&stamp.attach_id).map_or(self.forgot, |seen| seen.contains(stamp.counter))
        }
    }

    #[test]
    fn never_calls_a_repetition_new() {
        let mut filter = StampFilter::default();
        let stamp = |id: u128, counter| Stamp { attach_id: AttachId(id.to_be_bytes()), counter };
        assert!(!filter.may_be_repeated(stamp(1, 0)));
        filter.note(stamp(1, 5));
        assert!(filter.may_be_repeated(stamp(1, 5)) && !filter.may_be_repeated(stamp(1, 2)));
        assert!(!filter.may_be_repeated(stamp(1, 6)) && !filter.may_be_repeated(stamp(2, 1)));
        for id in 2..5000 {
            filter.note(stamp(id, 0));
        }
        assert!(filter.may_be_repeated(stamp(1, 7)), "forgotten, so unknown");
        assert!(filter.order.len() <= ATTACH_IDS_MAX);
    }

    /// What a write of several blocks brings is held against what was before it, and not against itself.
    #[test]
    fn stamps_of_one_write_are_noted_together() {
        let mut filter = StampFilter::default();
        let id = AttachId([7; 16]);
        assert!(!filter.note_all(id, 10..14), "nothing was there before");
        assert!(!filter.note_all(id, 14..18));
        assert!(filter.note_all(id, 17..20), "17 was");
        assert!(!filter.note_all(id, [3, 2].into_iter()), "older, and within the window");
        assert!(filter.note_all(id, [30, 2].into_iter()), "2 was");
        assert!((10..20).chain([2, 3, 30]).all(|counter| filter.may_be_repeated(Stamp { attach_id: id, counter })));
    }

    #[test]
    fn a_forgotten_attach_id_is_conservative_when_it_returns() {
        let mut filter = StampFilter::default();
        let stamp = |id: u128, counter| Stamp { attach_id: AttachId(id.to_be_bytes()), counter };
        for id in 0..=ATTACH_IDS_MAX as u128 {
            filter.note(stamp(id, 100));
        }
        filter.note(stamp(0, 200));
        assert!(filter.may_be_repeated(stamp(0, 100)) && filter.may_be_repeated(stamp(0, 150)));
        assert!(!filter.may_be_repeated(stamp(0, 201)));
    }

    proptest! {
        /// Whatever was noted is a suspect for ever; of the window nothing else is.
        #[test]
        fn the_window_is_exact(steps in prop::collection::vec((0u64..3, 0u64..3000), 1..300)) {
            let mut filter = StampFilter::default();
            let (mut noted, mut highest, mut base) = (HashSet::new(), 0, 0);
            for (jump, offset) in steps {
                base += jump * 700;
                let counter = base + offset % 1500;
                let stamp = |counter| Stamp { attach_id: AttachId([1; 16]), counter };
                let exact = noted.contains(&counter);
                let within = noted.is_empty() || counter + WINDOW > highest;
                prop_assert_eq!(filter.may_be_repeated(stamp(counter)), exact || !within);
                filter.note(stamp(counter));
                noted.insert(counter);
                highest = highest.max(counter);
                prop_assert!(noted.iter().all(|&counter| filter.may_be_repeated(stamp(counter))));
            }
        }
    }
}
