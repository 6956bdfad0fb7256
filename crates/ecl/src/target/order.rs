//! Which commands were handed over, and which may be next.

use std::collections::BTreeSet;

use crate::error::PeerMisbehaved;
use crate::replay::packet_number;
use crate::tag::SINKS_MAX;

/// How far a command's number may be ahead of the oldest that is missing.
const AHEAD_MAX: u64 = 4 * SINKS_MAX as u64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct CommandOrder {
    /// All commands before this one were handed over.
    next: u64,
    /// Later ones that were.
    above: BTreeSet<u64>,
}

impl CommandOrder {
    /// Number and epoch of a command, from their low 32 bits.
    ///
    /// # Errors
    /// [`PeerMisbehaved::Command`] for an epoch behind the command itself, or a number far ahead of those that are missing.
    pub(super) fn place(&self, number: u32, epoch: u32) -> Result<(u64, u64), PeerMisbehaved> {
        let full = packet_number(self.next, number);
        let behind = u64::from(number.wrapping_sub(epoch));
        let misbehaved = |why| PeerMisbehaved::Command { number: full, why };
        let epoch = full.checked_sub(behind).ok_or(misbehaved("an order epoch behind it"))?;
        if full >= self.next + AHEAD_MAX {
            return Err(misbehaved("a number far beyond the window"));
        }
        Ok((full, epoch))
    }

    /// The full number of a task that a function names.
    pub(super) fn named(&self, number: u32) -> u64 {
        packet_number(self.next, number)
    }

    /// Whether a command was not handed over.
    pub(super) fn is_new(&self, number: u64) -> bool {
        number >= self.next && !self.above.contains(&number)
    }

    /// Whether everything before an epoch was handed over.
    pub(super) fn has_reached(&self, epoch: u64) -> bool {
        self.next >= epoch
    }

    /// A command is handed over.
    pub(super) fn hand_over(&mut self, number: u64) {
        self.above.insert(number);
        while self.above.remove(&self.next) {
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_waits_for_everything_before_it() {
        let mut order = CommandOrder::default();
        order.hand_over(1);
        order.hand_over(2);
        assert!(!order.has_reached(1) && !order.is_new(2) && order.is_new(0) && order.is_new(3));
        order.hand_over(0);
        assert!(order.has_reached(3) && !order.has_reached(4) && !order.is_new(1));
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        let order = CommandOrder::default();
        assert_eq!(order.place(5, 2), Ok((5, 2)));
        assert!(order.place(1, 2).is_err(), "its epoch begins after it");
        assert!(order.place(AHEAD_MAX as u32, 0).is_err());
    }
}
