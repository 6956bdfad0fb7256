//! Unit attentions: what an initiator must be told before its next command does anything (SAM-5 §5.14).

use std::collections::VecDeque;

use crate::command::Command;
use crate::sense::{Sense, SenseKey};

/// Something that happened to the unit or the nexus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitAttention {
    /// POWER ON, RESET, OR BUS DEVICE RESET OCCURRED: a new nexus, as if the unit had just been switched on.
    PowerOn,
    /// BUS DEVICE RESET FUNCTION OCCURRED: LOGICAL UNIT RESET.
    Reset,
    /// I_T NEXUS LOSS OCCURRED.
    NexusLoss,
    /// MODE PARAMETERS CHANGED.
    ModeParametersChanged,
    /// RESERVATIONS RELEASED.
    ReservationsReleased,
    /// RESERVATIONS PREEMPTED.
    ReservationsPreempted,
    /// REGISTRATIONS PREEMPTED.
    RegistrationsPreempted,
    /// CAPACITY DATA HAS CHANGED.
    CapacityChanged,
    /// REPORTED LUNS DATA HAS CHANGED.
    LunsChanged,
    /// COMMANDS CLEARED BY ANOTHER INITIATOR.
    CommandsCleared,
    /// THIN PROVISIONING SOFT THRESHOLD REACHED.
    SpaceThreshold,
}

impl UnitAttention {
    /// As sense data.
    pub const fn sense(self) -> Sense {
        let (asc, ascq) = match self {
            // POWER ON, RESET, OR BUS DEVICE RESET OCCURRED: libiscsi's tools retry after this one, not after 29h/01h.
            UnitAttention::PowerOn => (0x29, 0x00),
            UnitAttention::Reset => (0x29, 0x03),
            UnitAttention::NexusLoss => (0x29, 0x07),
            UnitAttention::ModeParametersChanged => (0x2a, 0x01),
            UnitAttention::ReservationsPreempted => (0x2a, 0x03),
            UnitAttention::ReservationsReleased => (0x2a, 0x04),
            UnitAttention::RegistrationsPreempted => (0x2a, 0x05),
            UnitAttention::CapacityChanged => (0x2a, 0x09),
            UnitAttention::CommandsCleared => (0x2f, 0x00),
            UnitAttention::SpaceThreshold => (0x38, 0x07),
            UnitAttention::LunsChanged => (0x3f, 0x0e),
        };
        Sense::new(SenseKey::UnitAttention, asc, ascq)
    }
}

/// The attentions that one nexus has not been told of yet, oldest first.
#[derive(Clone, Debug, Default)]
pub struct UnitAttentions {
    pending: VecDeque<UnitAttention>,
}

impl UnitAttentions {
    /// Upper bound on attentions kept for one nexus. There are fewer kinds than this, and a kind is kept once.
    pub const LIMIT: usize = 16;

    /// Of a nexus that has just come to be.
    pub fn at_power_on() -> UnitAttentions {
        UnitAttentions { pending: VecDeque::from([UnitAttention::PowerOn]) }
    }

    /// Adds one, unless the same is already waiting.
    pub fn establish(&mut self, attention: UnitAttention) {
        // SAM-5 §5.14.1: power on and reset take the place of everything less that waits.
        if matches!(attention, UnitAttention::PowerOn | UnitAttention::Reset) {
            self.pending.clear();
        }
        if !self.pending.contains(&attention) && self.pending.len() < Self::LIMIT {
            self.pending.push_back(attention);
        }
    }

    /// What `command` must be answered with instead of being done, if anything; it is then forgotten.
    ///
    /// INQUIRY and REPORT LUNS are done in any case; REQUEST SENSE takes it by [`UnitAttentions::take`].
    pub fn intercept(&mut self, command: &Command) -> Option<Sense> {
        let exempt =
            matches!(command, Command::Inquiry { .. } | Command::ReportLuns { .. } | Command::RequestSense { .. });
        if exempt { None } else { self.take() }
    }

    /// The oldest attention, which is then forgotten.
    pub fn take(&mut self) -> Option<Sense> {
        self.pending.pop_front().map(UnitAttention::sense)
    }

    /// The oldest one, which stays.
    pub fn peek(&self) -> Option<Sense> {
        self.pending.front().copied().map(UnitAttention::sense)
    }

    /// Whether nothing is waiting.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn told_once_and_never_to_inquiry() {
        let mut attentions = UnitAttentions::at_power_on();
        let inquiry = Command::Inquiry { vpd_page: None, allocation_len: 36 };
        assert_eq!(attentions.intercept(&inquiry), None);
        assert_eq!(attentions.intercept(&Command::TestUnitReady), Some(UnitAttention::PowerOn.sense()));
        assert_eq!(attentions.intercept(&Command::TestUnitReady), None);
    }

    #[test]
    fn bounded_without_repeats_and_reset_wins() {
        let mut attentions = UnitAttentions::default();
        for _ in 0..100 {
            attentions.establish(UnitAttention::CapacityChanged);
            attentions.establish(UnitAttention::ModeParametersChanged);
        }
        assert_eq!(attentions.pending.len(), 2);
        attentions.establish(UnitAttention::Reset);
        assert_eq!(attentions.take(), Some(UnitAttention::Reset.sense()));
        assert!(attentions.is_empty());
    }
}
