//! Acknowledgements: what a receiver has taken, when it says so, and how (RFC 9000 §13.2, §19.3; the bytes are ours).

use std::time::{Duration, Instant};

use crate::error::PeerMisbehaved;
use crate::header::u32_at;

/// Longest time that an acknowledgement waits, unless the sender asked for one at once.
pub const ACK_DELAY_MAX: Duration = Duration::from_millis(1);
/// Packets that may arrive before an acknowledgement is due at once: two (RFC 9000 §13.2.2) while the sender finds out what the path
/// carries, later more, because an acknowledgement costs both ends as much as a small packet.
const PACKETS_UNACKNOWLEDGED_MAX_EARLY: u32 = 2;
const PACKETS_UNACKNOWLEDGED_MAX: u32 = 10;
/// Packets of an association that are early.
const EARLY_PACKETS: u64 = 100;
/// Most ranges that an acknowledgement has.
pub(crate) const RANGES_MAX: usize = 32;
const FIXED_BYTES: usize = 29;

/// What the network marked on the way (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// The sender does not use it.
    #[default]
    NotCapable,
    /// ECT(0).
    Capable0,
    /// ECT(1).
    Capable1,
    /// CE.
    CongestionExperienced,
}

impl Ecn {
    /// From the two lowest bits of an IP header's traffic class (RFC 3168 §5).
    pub fn from_bits(bits: u8) -> Ecn {
        match bits & 3 {
            0 => Ecn::NotCapable,
            1 => Ecn::Capable1,
            2 => Ecn::Capable0,
            _ => Ecn::CongestionExperienced,
        }
    }
}

/// How many packets arrived with each mark, modulo 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EcnCounts {
    /// ECT(0).
    pub capable_0: u32,
    /// ECT(1).
    pub capable_1: u32,
    /// CE.
    pub(crate) congestion_experienced: u32,
}

/// Packets that arrived, as ranges of numbers, the newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledgement {
    /// First and last number of each range, the newest range first; they neither touch nor overlap. At least one.
    pub(crate) ranges: Vec<(u64, u64)>,
    /// How long the newest packet waited for this, in microseconds.
    pub(crate) delay_us: u32,
    /// Marks of all packets so far.
    pub(crate) ecn: EcnCounts,
}

impl Acknowledgement {
    /// The highest number that it acknowledges.
    pub(crate) fn largest(&self) -> u64 {
        self.ranges[0].1
    }

    /// Appends its bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let (first, last) = self.ranges[0];
        out.extend_from_slice(&last.to_be_bytes());
        out.extend_from_slice(&self.delay_us.to_be_bytes());
        for count in [self.ecn.capable_0, self.ecn.capable_1, self.ecn.congestion_experienced] {
            out.extend_from_slice(&count.to_be_bytes());
        }
        out.push((self.ranges.len() - 1) as u8);
        out.extend_from_slice(&((last - first) as u32).to_be_bytes());
        let mut above = first;
        for (first, last) in &self.ranges[1..] {
            // At least one number lies between two ranges, and it is not counted.
            out.extend_from_slice(&((above - last - 2) as u32).to_be_bytes());
            out.extend_from_slice(&((last - first) as u32).to_be_bytes());
            above = *first;
        }
    }

    /// Reads one from the start of a body; returns it and what follows.
    ///
    /// # Errors
    /// [`PeerMisbehaved::Body`] if it is cut short, has too many ranges, or one below zero.
    pub(crate) fn decode(body: &[u8]) -> Result<(Acknowledgement, &[u8]), PeerMisbehaved> {
        let malformed = PeerMisbehaved::Body("an acknowledgement that is cut short or reaches below zero");
        let (fixed, mut rest) = body.split_at_checked(FIXED_BYTES).ok_or(malformed)?;
        let last = u64::from_be_bytes(fixed[..8].try_into().expect("8 bytes"));
        let first = last.checked_sub(u32_at(fixed, 25).into()).ok_or(malformed)?;
        let further = usize::from(fixed[24]);
        if further >= RANGES_MAX {
            return Err(PeerMisbehaved::Body("an acknowledgement with too many ranges"));
        }
        let mut ranges = Vec::with_capacity(1 + further);
        ranges.push((first, last));
        let mut above = first;
        for _ in 0..further {
            let (range, after) = rest.split_at_checked(8).ok_or(malformed)?;
            let last = above.checked_sub(u64::from(u32_at(range, 0)) + 2).ok_or(malformed)?;
            let first = last.checked_sub(u32_at(range, 4).into()).ok_or(malformed)?;
            ranges.push((first, last));
            (above, rest) = (first, after);
        }
        let ecn = EcnCounts {
            capable_0: u32_at(fixed, 12),
            capable_1: u32_at(fixed, 16),
            congestion_experienced: u32_at(fixed, 20),
        };
        Ok((Acknowledgement { ranges, delay_us: u32_at(fixed, 8), ecn }, rest))
    }
}

/// What arrived and is to be acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Receipts {
    /// The newest first; at most [`RANGES_MAX`], so the oldest are forgotten and their senders send again.
    ranges: Vec<(u64, u64)>,
    /// When the packet with the highest number came.
    newest_at: Option<Instant>,
    ecn: EcnCounts,
    /// Packets since the last acknowledgement that want one.
    unacknowledged: u32,
    due: Option<Instant>,
}

impl Receipts {
    /// A packet was used. `is_eliciting`: its sender waits for an acknowledgement.
    pub(crate) fn accept(&mut self, now: Instant, number: u64, ecn: Ecn, is_eliciting: bool) {
        let is_in_order = self.ranges.first().is_some_and(|(_, last)| number == last + 1);
        if self.ranges.first().is_none_or(|(_, last)| number > *last) {
            self.newest_at = Some(now);
        }
        self.insert(number);
        match ecn {
            Ecn::NotCapable => {}
            Ecn::Capable0 => self.ecn.capable_0 = self.ecn.capable_0.wrapping_add(1),
            Ecn::Capable1 => self.ecn.capable_1 = self.ecn.capable_1.wrapping_add(1),
            Ecn::CongestionExperienced => {
                self.ecn.congestion_experienced = self.ecn.congestion_experienced.wrapping_add(1);
            }
        }
        if !is_eliciting {
            return;
        }
        self.unacknowledged += 1;
        // RFC 9000 §13.2.1: at once where something is missing or marked, so that the sender learns of it. The first packet too: the path
        // is measured by it.
        let unacknowledged_max =
            if number < EARLY_PACKETS { PACKETS_UNACKNOWLEDGED_MAX_EARLY } else { PACKETS_UNACKNOWLEDGED_MAX };
        let is_urgent = !is_in_order || ecn == Ecn::CongestionExperienced || self.unacknowledged >= unacknowledged_max;
        let due = if is_urgent { now } else { now + ACK_DELAY_MAX };
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }

    fn insert(&mut self, number: u64) {
        let at = self.ranges.iter().position(|(first, _)| *first <= number + 1).unwrap_or(self.ranges.len());
        match self.ranges.get(at).copied() {
            Some((first, last)) if number >= first && number <= last => return,
            Some((first, last)) if number == last + 1 => {
                self.ranges[at] = (first, number);
                if at > 0 && self.ranges[at - 1].0 == number + 1 {
                    self.ranges[at - 1].0 = first;
                    self.ranges.remove(at);
                }
                return;
            }
            Some((first, last)) if number + 1 == first => {
                self.ranges[at] = (number, last);
                if let Some(&(below_first, below_last)) = self.ranges.get(at + 1)
                    && below_last + 1 == number
                {
                    self.ranges[at].0 = below_first;
                    self.ranges.remove(at + 1);
                }
                return;
            }
            _ => {}
        }
        self.ranges.insert(at, (number, number));
        self.ranges.truncate(RANGES_MAX);
    }

    /// When an acknowledgement has to leave.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether one is wanted at all, so that it can travel with another packet.
    pub(crate) fn is_wanted(&self) -> bool {
        self.unacknowledged > 0
    }

    /// The acknowledgement of everything so far; `None` before anything arrived.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Acknowledgement> {
        let newest_at = self.newest_at?;
        (self.unacknowledged, self.due) = (0, None);
        let delay = now.saturating_duration_since(newest_at).as_micros();
        let delay_us = u32::try_from(delay).unwrap_or(u32::MAX);
        Some(Acknowledgement { ranges: self.ranges.clone(), delay_us, ecn: self.ecn })
    }
}

#[cfg(test)]
mod tests {
    //! Proves that ranges are what arrived, and that their bytes say the same.
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[allow(clippy::disallowed_methods)]
    fn test_now() -> Instant {
        Instant::now()
    }

    proptest! {
        #[test]
        fn an_acknowledgement_says_what_arrived(numbers in prop::collection::vec(0u64..60, 1..60)) {
            let now = test_now();
            let mut receipts = Receipts::default();
            for number in &numbers {
                receipts.accept(now, *number, Ecn::Capable0, true);
            }
            let acknowledgement = receipts.take(now).expect("something arrived");
            let said: BTreeSet<u64> = acknowledgement.ranges.iter().flat_map(|(first, last)| *first..=*last).collect();
            prop_assert_eq!(said, numbers.iter().copied().collect::<BTreeSet<u64>>());
            prop_assert_eq!(acknowledgement.ecn.capable_0 as usize, numbers.len());
            let mut bytes = Vec::new();
            acknowledgement.encode(&mut bytes);
            bytes.push(9);
            prop_assert_eq!(Acknowledgement::decode(&bytes), Ok((acknowledgement, &[9][..])));
        }

        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok((acknowledgement, rest)) = Acknowledgement::decode(&bytes) {
                let mut again = Vec::new();
                acknowledgement.encode(&mut again);
                prop_assert_eq!(&again[..], &bytes[..bytes.len() - rest.len()]);
            }
        }
    }

    #[test]
    fn what_is_missing_is_told_at_once() {
        let now = test_now();
        let mut receipts = Receipts::default();
        receipts.accept(now, 0, Ecn::NotCapable, true);
        assert_eq!(receipts.due(), Some(now), "the first");
        receipts.take(now);
        receipts.accept(now, 1, Ecn::NotCapable, true);
        assert_eq!(receipts.due(), Some(now + ACK_DELAY_MAX));
        receipts.accept(now, 3, Ecn::NotCapable, true);
        assert_eq!(receipts.due(), Some(now));
        receipts.take(now);
        receipts.accept(now, 4, Ecn::NotCapable, false);
        assert_eq!((receipts.due(), receipts.is_wanted()), (None, false), "acknowledgements are not acknowledged");
        receipts.accept(now, 5, Ecn::CongestionExperienced, true);
        assert_eq!(receipts.due(), Some(now));
    }

    #[test]
    fn later_packets_wait_for_each_other() {
        let now = test_now();
        let mut receipts = Receipts::default();
        for number in 0..EARLY_PACKETS {
            receipts.accept(now, number, Ecn::NotCapable, true);
        }
        receipts.take(now);
        let dues = (EARLY_PACKETS..).take(10).map(|number| {
            receipts.accept(now, number, Ecn::NotCapable, true);
            receipts.due()
        });
        let (last, first) = dues.collect::<Vec<_>>().split_last().map(|(last, first)| (*last, first.to_vec())).unwrap();
        assert_eq!(last, Some(now));
        assert!(first.iter().all(|due| *due == Some(now + ACK_DELAY_MAX)), "{first:?}");
    }

    #[test]
    fn the_oldest_ranges_are_forgotten() {
        let now = test_now();
        let mut receipts = Receipts::default();
        for number in 0..2 * RANGES_MAX as u64 + 10 {
            receipts.accept(now, 2 * number, Ecn::NotCapable, true);
        }
        assert_eq!(receipts.take(now).expect("something arrived").ranges.len(), RANGES_MAX);
    }
}
