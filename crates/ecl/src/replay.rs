//! The replay window: which packet numbers have been used up. A number is accepted once; one that is too old to tell counts as used.

use crate::planted::{Planted, PlantedFault};

/// How far behind the newest packet a packet may be, in packets. Above the largest number of packets in flight that an association has.
pub const REPLAY_WINDOW: u64 = 1 << 15;
const WORDS: usize = (REPLAY_WINDOW / 64) as usize;

/// One bit for each of the last [`REPLAY_WINDOW`] packet numbers.
#[derive(Debug)]
pub(crate) struct ReplayWindow {
    bits: Box<[u64; WORDS]>,
    /// One more than the highest number that was accepted.
    end: u64,
    planted: Planted,
}

impl ReplayWindow {
    pub(crate) fn new(planted: Planted) -> ReplayWindow {
        ReplayWindow { bits: Box::new([0; WORDS]), end: 0, planted }
    }

    /// One more than the highest number that was accepted.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Whether a packet with this number may be used.
    pub(crate) fn admits(&self, number: u64) -> bool {
        if number >= self.end {
            return true;
        }
        let width = REPLAY_WINDOW + u64::from(self.planted.has(PlantedFault::WindowTooWide));
        let behind = self.end - number;
        if behind > REPLAY_WINDOW && behind <= width {
            // The planted fault: its bit is the newest number's, or was cleared for it.
            return true;
        }
        behind <= REPLAY_WINDOW && !self.has(number)
    }

    /// Uses up a number that [`ReplayWindow::admits`] admitted.
    pub(crate) fn accept(&mut self, number: u64) {
        if number >= self.end {
            // Numbers that were skipped are unused, and those of a window ago are forgotten.
            let skipped = (number - self.end).min(REPLAY_WINDOW);
            for clear in 0..skipped {
                self.set(number - 1 - clear, false);
            }
            self.end = number + 1;
        }
        self.set(number, true);
    }

    fn has(&self, number: u64) -> bool {
        let bit = number % REPLAY_WINDOW;
        self.bits[(bit / 64) as usize] >> (bit % 64) & 1 == 1
    }

    fn set(&mut self, number: u64, is_used: bool) {
        let bit = number % REPLAY_WINDOW;
        let word = &mut self.bits[(bit / 64) as usize];
        *word = *word & !(1 << (bit % 64)) | u64::from(is_used) << (bit % 64);
    }
}

/// The packet number whose low 32 bits are `low`, nearest to `expected` (RFC 9000 §A.3).
pub(crate) fn packet_number(expected: u64, low: u32) -> u64 {
    const WINDOW: u64 = 1 << 32;
    let candidate = expected & !(WINDOW - 1) | u64::from(low);
    if candidate + WINDOW / 2 <= expected {
        candidate + WINDOW
    } else if candidate > expected + WINDOW / 2 && candidate >= WINDOW {
        candidate - WINDOW
    } else {
        candidate
    }
}

#[cfg(test)]
mod tests {
    //! Proves that no number is accepted twice, against a set that forgets nothing.
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_is_accepted_once(jumps in prop::collection::vec((0u64..3, 0u64..2 * REPLAY_WINDOW), 1..200)) {
            let mut window = ReplayWindow::new(Planted::default());
            let mut used = BTreeSet::new();
            for (kind, distance) in jumps {
                let number = match kind {
                    0 => window.end() + distance,
                    1 => window.end() + distance % 3,
                    _ => window.end().saturating_sub(distance),
                };
                let admitted = window.admits(number);
                let is_recent = number + REPLAY_WINDOW >= window.end();
                prop_assert_eq!(admitted, is_recent && !used.contains(&number));
                if admitted {
                    window.accept(number);
                    used.insert(number);
                    prop_assert!(!window.admits(number));
                }
            }
        }

        #[test]
        fn numbers_are_restored_from_their_low_bits(expected in 0u64..1 << 40, distance in 0u64..1 << 31, is_ahead: bool) {
            let number = if is_ahead { expected + distance } else { expected.saturating_sub(distance) };
            prop_assert_eq!(packet_number(expected, number as u32), number);
        }
    }

    #[test]
    fn the_oldest_number_has_its_bit() {
        let mut window = ReplayWindow::new(Planted::default());
        window.accept(0);
        window.accept(REPLAY_WINDOW - 1);
        assert!(!window.admits(0));
        window.accept(REPLAY_WINDOW);
        assert!(!window.admits(0), "too old to tell");
        assert!(window.admits(1));
    }
}
