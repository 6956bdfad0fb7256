//! The refusal of writes: after a failure, and in a store that is open read-only because its log is damaged.

use std::io;

use strongroom_block::VolumeId;

use crate::op::OpError;
use crate::recover::Damage;

/// Whether writes are refused, and why. Once they are, they are until the store is opened again.
pub(super) struct WriteRefusal {
    /// For messages.
    volume_id: VolumeId,
    reason: Option<String>,
    /// Why the store is open read-only.
    damage: Option<Damage>,
}

impl WriteRefusal {
    /// Writes are accepted.
    pub(super) fn none(volume_id: VolumeId) -> WriteRefusal {
        WriteRefusal { volume_id, reason: None, damage: None }
    }

    /// A write or a sync failed: from here on nothing more is written.
    pub(super) fn begin(&mut self, what: &str, error: &io::Error) {
        if self.reason.is_none() {
            tracing::error!(volume = %self.volume_id, %error, "{what} failed: refusing writes until reopened");
            self.reason = Some(format!("{what} failed: {error}"));
        }
    }

    /// The store is open read-only because of damage.
    pub(super) fn set_damage(&mut self, damage: Damage) {
        self.reason = Some("the log is damaged and the store was opened read-only".to_owned());
        self.damage = Some(damage);
    }

    pub(super) fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    pub(super) fn is_active(&self) -> bool {
        self.reason.is_some()
    }

    pub(super) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// The answer to a write while writes are refused.
    pub(super) fn answer(&self) -> OpError {
        if self.damage.is_some() {
            return OpError::ReadOnly;
        }
        OpError::WritesRefused { reason: self.reason.clone().unwrap_or_default() }
    }

    /// # Errors
    /// The answer, if writes are refused.
    pub(super) fn check_writable(&self) -> Result<(), OpError> {
        if self.is_active() { Err(self.answer()) } else { Ok(()) }
    }
}
