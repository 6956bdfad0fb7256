//! What the engine knows of the writer lease of the attachment.
//!
//! A reservation conflict or a unit attention only says that something may have excluded this initiator. The device asks the target who has
//! the lease; commands that were refused wait for the answer.

use strongroom_block::{DeviceError, DeviceErrorKind};

use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::outcome::Outcome;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct LeaseWatch {
    is_held: bool,
    is_doubted: bool,
    /// Commands that were refused, and with what, until it is known who has the lease.
    waiting: Vec<(usize, DeviceError)>,
    lost: Option<DeviceError>,
}

impl LeaseWatch {
    /// Why nothing more may be written.
    pub(super) fn lost(&self) -> Option<&DeviceError> {
        self.lost.as_ref()
    }

    /// Whether the target is to be asked who has the lease.
    pub(crate) fn is_doubted(&self) -> bool {
        self.is_doubted
    }

    /// Something may have excluded us.
    pub(super) fn doubt(&mut self) {
        self.is_doubted |= self.is_held && self.lost.is_none();
    }

    /// The attachment has the lease. Returns the commands that something else has refused.
    pub(super) fn held(&mut self) -> Vec<(usize, DeviceError)> {
        self.is_held = true;
        self.is_doubted = false;
        std::mem::take(&mut self.waiting)
    }

    /// The lease is lost and does not come back. Returns the commands that waited.
    pub(super) fn set_lost(&mut self, error: &DeviceError) -> Vec<(usize, DeviceError)> {
        self.lost = Some(error.clone());
        (self.is_held, self.is_doubted) = (false, false);
        std::mem::take(&mut self.waiting)
    }

    /// A command has ended. Whether it was refused by a reservation and waits until it is known whose that is.
    pub(super) fn keeps(&mut self, key: usize, plan: &CommandPlan, outcome: &Outcome) -> bool {
        let Outcome::Fail(error) = outcome else { return false };
        let is_conflict = error.kind == DeviceErrorKind::ReservationConflict;
        if !is_conflict || !self.is_held || self.lost.is_some() || !plan.needs_write_access() {
            return false;
        }
        self.doubt();
        self.waiting.push((key, error.clone()));
        true
    }

    /// The connection is gone: commands that waited are sent again over a new one.
    pub(super) fn disconnected(&mut self) {
        self.waiting.clear();
        self.is_doubted = false;
    }
}
