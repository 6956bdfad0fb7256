//! Serial-number arithmetic for CmdSN, StatSN, DataSN and R2TSN. Nothing else.

use std::fmt;

/// A sequence number of RFC 7143 §4.2.2.1: 32 bits that wrap, compared as RFC 1982 says; 0 follows `u32::MAX`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Serial(pub u32);

impl Serial {
    /// The number `count` places further on.
    #[must_use]
    pub const fn plus(self, count: u32) -> Serial {
        Serial(self.0.wrapping_add(count))
    }

    /// The number one place further on.
    #[must_use]
    pub const fn next(self) -> Serial {
        self.plus(1)
    }

    /// The number one place back.
    #[must_use]
    pub const fn previous(self) -> Serial {
        Serial(self.0.wrapping_sub(1))
    }

    /// How many steps lead from `self` to `other`, going forwards.
    pub const fn steps_to(self, other: Serial) -> u32 {
        other.0.wrapping_sub(self.0)
    }

    /// Whether `self` comes before `other`. Two numbers exactly 2^31 apart are in no order: both answers are false.
    pub const fn is_before(self, other: Serial) -> bool {
        let steps = self.steps_to(other);
        steps != 0 && steps < 0x8000_0000
    }

    /// Whether `self` lies in the closed window from `first` to `last`; empty when `last` is before `first`.
    pub const fn is_within(self, first: Serial, last: Serial) -> bool {
        !last.is_before(first) && first.steps_to(self) <= first.steps_to(last)
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn zero_follows_the_largest() {
        assert_eq!(Serial(u32::MAX).next(), Serial(0));
        assert_eq!(Serial(0).previous(), Serial(u32::MAX));
        assert!(Serial(u32::MAX).is_before(Serial(0)));
        assert!(!Serial(0).is_before(Serial(u32::MAX)));
        assert!(Serial(2).is_within(Serial(u32::MAX), Serial(5)));
        assert!(!Serial(6).is_within(Serial(u32::MAX), Serial(5)));
    }

    #[test]
    fn a_closed_window_is_empty() {
        // MaxCmdSN = ExpCmdSN - 1 closes the window (RFC 7143 §4.2.2.1).
        assert!(!Serial(7).is_within(Serial(7), Serial(6)));
        assert!(!Serial(6).is_within(Serial(7), Serial(6)));
        assert!(Serial(7).is_within(Serial(7), Serial(7)));
    }

    #[test]
    fn half_the_circle_is_in_no_order() {
        assert!(!Serial(0).is_before(Serial(0x8000_0000)));
        assert!(!Serial(0x8000_0000).is_before(Serial(0)));
    }

    proptest! {
        #[test]
        fn order_survives_wrapping(start: u32, steps in 1u32..0x8000_0000) {
            let (a, b) = (Serial(start), Serial(start).plus(steps));
            prop_assert!(a.is_before(b));
            prop_assert!(!b.is_before(a));
            prop_assert_eq!(a.steps_to(b), steps);
            prop_assert!(a.is_within(a, b) && b.is_within(a, b));
        }
    }
}
