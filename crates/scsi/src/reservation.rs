//! RESERVE (6) and RELEASE (6) (SPC-2 §5.5): one nexus has the unit to itself. [`crate::persistent`] has the
//! others.

use crate::command::Command;
use crate::nexus::NexusId;

/// The reservation of one unit.
#[derive(Clone, Debug, Default)]
pub struct Reservation {
    holder: Option<NexusId>,
}

impl Reservation {
    /// RESERVE (6): true if `nexus` has it now.
    #[must_use]
    pub fn reserve(&mut self, nexus: &NexusId) -> bool {
        match &self.holder {
            Some(holder) => holder == nexus,
            None => {
                self.holder = Some(nexus.clone());
                true
            }
        }
    }

    /// RELEASE (6); from another nexus than the holder it does nothing and is good (SPC-2 §7.22).
    pub fn release(&mut self, nexus: &NexusId) {
        if self.holder.as_ref() == Some(nexus) {
            self.holder = None;
        }
    }

    /// The unit was reset.
    pub fn clear(&mut self) {
        self.holder = None;
    }

    /// Whether `nexus` may do `command` now; otherwise it is a reservation conflict.
    pub fn allows(&self, nexus: &NexusId, command: &Command) -> bool {
        let Some(holder) = &self.holder else { return true };
        holder == nexus
            || matches!(command, Command::Vendor(vendor) if vendor.is_about_leases())
            || matches!(
                command,
                // SPC-2 table 9: what every initiator may do.
                Command::Inquiry { .. }
                    | Command::ReportLuns { .. }
                    | Command::RequestSense { .. }
                    | Command::Release
                    | Command::ReportSupportedOperationCodes { .. }
                    | Command::ReportSupportedTmfs { .. }
                    | Command::ReportTargetPortGroups { .. }
                    | Command::PreventAllowMediumRemoval { prevent: 0 }
            )
    }

    /// Who has it.
    pub fn holder(&self) -> Option<&NexusId> {
        self.holder.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_and_only_it_releases() {
        let nexus = |name: &str| NexusId { initiator_name: name.into(), isid: [0; 6], target_portal_group: 1 };
        let (a, b) = (nexus("a"), nexus("b"));
        let mut reservation = Reservation::default();
        assert!(reservation.reserve(&a) && reservation.reserve(&a));
        assert!(!reservation.reserve(&b));
        assert!(!reservation.allows(&b, &Command::TestUnitReady));
        assert!(reservation.allows(&b, &Command::Inquiry { vpd_page: None, allocation_len: 36 }));
        assert!(reservation.allows(&a, &Command::TestUnitReady));
        reservation.release(&b);
        assert_eq!(reservation.holder(), Some(&a));
        reservation.release(&a);
        assert!(reservation.reserve(&b));
    }
}
