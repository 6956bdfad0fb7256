//! What becomes of requests when the writer lease is lost: those that change the volume fail, and so does every later one.
//!
//! A reservation conflict or a unit attention only says that something stands against us. Who it is, is asked meanwhile; what was refused waits for
//! the answer.

use strongroom_block::DeviceError;

use super::Engine;
use super::command::CommandKind;

/// What the engine knows of the writer lease of the attachment.
#[derive(Debug, Default)]
pub(super) struct LeaseWatch {
    is_held: bool,
    is_doubted: bool,
    /// Commands that were refused, and with what, while it is asked whose the lease is.
    parked: Vec<(usize, DeviceError)>,
    lost: Option<DeviceError>,
}

impl LeaseWatch {
    /// Why nothing more may be written.
    pub(super) fn lost(&self) -> Option<&DeviceError> {
        self.lost.as_ref()
    }

    /// The connection is gone: what was parked is tried again over a new one.
    pub(super) fn disconnected(&mut self) {
        self.parked.clear();
        self.is_doubted = false;
    }

    /// Something stands against us: whether that is news.
    pub(super) fn doubt(&mut self) {
        self.is_doubted |= self.is_held && self.lost.is_none();
    }
}

impl CommandKind {
    /// Whether it is of no use, or must not be sent, without the right to write.
    pub(super) fn changes(self) -> bool {
        use CommandKind as K;
        let tells = matches!(self, K::Flush { .. } | K::Verified | K::TakePlace | K::Register | K::CryptoErase);
        tells || self.writes()
    }
}

impl Engine {
    /// The attachment has the lease now.
    pub(crate) fn lease_held(&mut self) {
        self.lease.is_held = true;
        self.lease.is_doubted = false;
        // It was something else that stood against these.
        for (key, error) in std::mem::take(&mut self.lease.parked) {
            self.fail_command(key, error);
        }
    }

    /// Whether it is to be asked whose the lease is.
    pub(crate) fn doubts_lease(&self) -> bool {
        self.lease.is_doubted
    }

    /// The lease is lost for good: every request that changes the volume fails, those that wait and those to come. What was acknowledged is
    /// not sent again.
    pub(crate) fn lease_lost(&mut self, error: &DeviceError) {
        if self.lease.lost.is_some() {
            return;
        }
        tracing::error!(%error, "the writer lease is lost");
        self.lease.lost = Some(error.clone());
        (self.lease.is_held, self.lease.is_doubted) = (false, false);
        self.log.give_up();
        for (key, _) in std::mem::take(&mut self.lease.parked) {
            self.fail_command(key, error.clone());
        }
    }

    /// A command was refused because of a reservation, or a lease. Whether it waits until it is known whose.
    pub(super) fn waits_for_lease(&mut self, key: usize, error: &DeviceError) -> bool {
        if !self.lease.is_held || self.lease.lost.is_some() || !self.commands[key].kind.changes() {
            return false;
        }
        self.lease.doubt();
        self.lease.parked.push((key, error.clone()));
        true
    }

    /// The error of a command that must not be sent any more.
    pub(super) fn kept_from(&self, kind: CommandKind) -> Option<DeviceError> {
        self.lease.lost().filter(|_| kind.changes()).cloned()
    }
}
