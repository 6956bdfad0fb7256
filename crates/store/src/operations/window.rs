//! The window of one attach id: the exact set of executed counters, as intervals.
//!
//! Counters are handed out in order, so that nearly all of them form one interval; a counter that is never executed (its request
//! failed, or was sealed again under others) leaves a gap. The number of intervals is bounded: beyond it the lowest one is forgotten.
//! What lies below the floor is then unknown, and never taken for new.

use super::Standing;

/// Upper bound on the intervals of one window.
pub(super) const INTERVALS_MAX: usize = 1024;

/// A set of counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    /// Nothing is known of counters below.
    floor: u64,
    /// First counter and the one behind the last; ascending, with gaps between them.
    intervals: Vec<(u64, u64)>,
}

impl Window {
    /// `None` if the intervals are not possible.
    pub(super) fn from_parts(floor: u64, intervals: Vec<(u64, u64)>) -> Option<Window> {
        let whole = intervals.iter().all(|(from, to)| from < to)
            && intervals.first().is_none_or(|(from, _)| floor <= *from)
            && intervals.windows(2).all(|pair| pair[0].1 < pair[1].0)
            && intervals.len() <= INTERVALS_MAX;
        whole.then_some(Window { floor, intervals })
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// How many intervals there are.
    pub(super) fn len(&self) -> usize {
        self.intervals.len()
    }

    pub(super) fn intervals(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.intervals.iter().copied()
    }

    /// What is known of `count` counters (at least one) from `counter` on, which do not overflow.
    pub(super) fn standing(&self, counter: u64, count: u64) -> Standing {
        let end = counter + count;
        if counter < self.floor {
            return Standing::Unknown;
        }
        match self.intervals.get(self.first_ending_behind(counter)) {
            Some(&(from, to)) if from <= counter && end <= to => Standing::Completed,
            Some(&(from, _)) if from < end => Standing::Overlaps,
            _ => Standing::New,
        }
    }

    /// Adds counters. If there are too many intervals then, the lowest one is forgotten.
    pub(super) fn note(&mut self, counter: u64, count: u64) {
        let (mut from, mut to) = (counter.max(self.floor), counter + count);
        if from >= to {
            return;
        }
        // Those that it overlaps or touches become one with it.
        let first = self.first_ending_behind(from.saturating_sub(1));
        let mut last = first;
        while let Some(&(other_from, other_to)) = self.intervals.get(last).filter(|(other, _)| *other <= to) {
            (from, to) = (from.min(other_from), to.max(other_to));
            last += 1;
        }
        match last - first {
            1 => self.intervals[first] = (from, to),
            _ => drop(self.intervals.splice(first..last, [(from, to)])),
        }
        if self.intervals.len() > INTERVALS_MAX {
            self.forget_lowest();
        }
    }

    /// Takes counters out again.
    pub(super) fn remove(&mut self, counter: u64, count: u64) {
        let end = counter + count;
        let first = self.first_ending_behind(counter);
        let met = self.intervals[first..].iter().take_while(|(from, _)| *from < end).count();
        let mut left = Vec::new();
        for &(from, to) in &self.intervals[first..first + met] {
            left.extend((from < counter).then_some((from, counter)));
            left.extend((end < to).then_some((end, to)));
        }
        self.intervals.splice(first..first + met, left);
        if self.intervals.len() > INTERVALS_MAX {
            self.forget_lowest();
        }
    }

    /// Everything up to the end of the lowest interval becomes unknown.
    pub(super) fn forget_lowest(&mut self) {
        if !self.intervals.is_empty() {
            self.floor = self.intervals.remove(0).1;
        }
    }

    /// The first interval with a counter larger than this, or equal to it.
    fn first_ending_behind(&self, counter: u64) -> usize {
        // Nearly always the last one, or none.
        match self.intervals.last() {
            Some(&(from, to)) if from <= counter => self.intervals.len() - usize::from(counter < to),
            _ => self.intervals.partition_point(|&(_, to)| to <= counter),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_forgotten_counter_is_unknown_and_never_new() {
        let mut window = Window::default();
        for at in 0..INTERVALS_MAX as u64 {
            window.note(10 * at, 5);
        }
        assert_eq!((window.len(), window.floor()), (INTERVALS_MAX, 0));
        window.note(1_000_000, 1);
        assert_eq!((window.len(), window.floor()), (INTERVALS_MAX, 5));
        assert_eq!(window.standing(0, 5), Standing::Unknown);
        assert_eq!(window.standing(4, 3), Standing::Unknown, "it begins below the floor");
        assert_eq!(window.standing(5, 5), Standing::New, "the gap above the floor is known exactly");
        assert_eq!(window.standing(10, 5), Standing::Completed);
    }

    #[test]
    fn counters_at_the_end_of_their_range() {
        let mut window = Window::default();
        window.note(u64::MAX - 3, 3);
        assert_eq!(window.standing(u64::MAX - 3, 3), Standing::Completed);
        assert_eq!(window.standing(u64::MAX - 4, 2), Standing::Overlaps);
        window.remove(u64::MAX - 2, 1);
        assert_eq!(window.intervals().collect::<Vec<_>>(), [(u64::MAX - 3, u64::MAX - 2), (u64::MAX - 1, u64::MAX)]);
    }

    #[test]
    fn impossible_intervals_are_refused() {
        for (floor, intervals) in [
            (0, vec![(3, 3)]),
            (0, vec![(4, 3)]),
            (5, vec![(4, 6)]),
            (0, vec![(1, 3), (3, 4)]),
            (0, vec![(5, 6), (1, 2)]),
            (0, (0..=INTERVALS_MAX as u64).map(|at| (2 * at, 2 * at + 1)).collect()),
        ] {
            assert_eq!(Window::from_parts(floor, intervals), None);
        }
    }

    proptest! {
        /// Against a set of counters, for any sequence of noting, taking back and forgetting.
        #[test]
        fn agrees_with_a_set(steps in prop::collection::vec((0u8..20, 0u64..300, 1u64..12), 1..200)) {
            let (mut window, mut model, mut floor) = (Window::default(), BTreeSet::new(), 0);
            for (kind, counter, count) in steps {
                let range = counter..counter + count;
                match kind {
                    0 => {
                        let lowest = model.first().map(|&first| (first..).find(|at| !model.contains(at)).unwrap());
                        floor = lowest.unwrap_or(floor);
                        model.retain(|&at| at >= floor);
                        window.forget_lowest();
                    }
                    1..=4 => {
                        window.remove(counter, count);
                        model.retain(|at| !range.contains(at));
                    }
                    _ => {
                        window.note(counter, count);
                        model.extend(range.clone().filter(|&at| at >= floor));
                    }
                }
                prop_assert!(Window::from_parts(window.floor(), window.intervals().collect()).is_some());
                for counter in 0..320 {
                    for count in [1, 2, 7] {
                        let known = (counter..counter + count).filter(|at| model.contains(at)).count() as u64;
                        let expected = match known {
                            _ if counter < floor => Standing::Unknown,
                            0 => Standing::New,
                            known if known == count => Standing::Completed,
                            _ => Standing::Overlaps,
                        };
                        prop_assert_eq!(window.standing(counter, count), expected);
                    }
                }
            }
        }
    }
}
