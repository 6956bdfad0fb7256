//! SANITIZE and cryptographic erase of a unit: whether one is running or has failed, the discard that waits until earlier commands have
//! ended, and the destruction of the key that wraps block keys.
//!
//! The store erases its blocks; an erase can also be ordered at the target, or continue from before a restart.

use std::sync::Arc;

use strongroom_block::{BlockKeyWrap, Token};
use strongroom_scsi::transport::target::Response;
use strongroom_scsi::{Command, Sense, UnitKind, opcode};
use strongroom_store::{Op, OpError};

use super::key_renewal::{KeyRenewal, Renewed, UnknownKey};
use super::plan::Plan;
use super::response::check_condition;
use crate::names::VolumeName;
use crate::store_handle::StoreHandle;
use crate::volume::Volume;

/// Whether SANITIZE keeps the medium from being used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SanitizeStatus {
    #[default]
    Idle,
    /// Only commands that ask what the unit is are executed.
    InProgress,
    /// The medium is not used until another SANITIZE succeeds, or until EXIT FAILURE MODE.
    Failed,
}

/// The erase of one unit.
#[derive(Default)]
pub(super) struct Sanitizer {
    status: SanitizeStatus,
    /// The store was being erased when it was polled last.
    is_erasing: bool,
    /// The initiator that asked for the erase has had the keys destroyed for which the store waits.
    keys_destroyed: bool,
    /// The key could not be destroyed for the cryptographic erase that is running.
    key_survived: bool,
    /// The store's erase, until all commands from before it have ended.
    held_back: Option<(Token, Op)>,
    /// Custody `target`: destroys the key that wraps block keys.
    renewal: Option<KeyRenewal>,
}

/// How the store's erase has proceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EraseEvent {
    None,
    /// No crash can undo it any more.
    Certain,
    Ended,
}

/// The key of a cryptographic erase was destroyed, or could not be.
pub(super) struct KeyEvent {
    pub(super) is_destroyed: bool,
    /// What wraps block keys from now on, if that has changed.
    pub(super) wrap: Option<Arc<dyn BlockKeyWrap>>,
}

impl Sanitizer {
    /// `renewal` destroys the key that wraps block keys, if there is one.
    pub(super) fn set_renewal(&mut self, renewal: Option<KeyRenewal>) {
        self.renewal = renewal;
    }

    pub(super) fn status(&self) -> SanitizeStatus {
        self.status
    }

    #[cfg(test)]
    pub(super) fn set_status(&mut self, status: SanitizeStatus) {
        self.status = status;
    }

    #[cfg(test)]
    pub(super) fn is_erasing(&self) -> bool {
        self.is_erasing
    }

    /// Why a command is refused now, if it is. `progress`: how far the store's erase is.
    pub(super) fn refusal(&self, command: &Command, progress: Option<u16>) -> Option<Sense> {
        if self.status == SanitizeStatus::Failed {
            let touches_medium = command.reads_medium() || command.writes_medium();
            let refused = touches_medium && !matches!(command, Command::Sanitize { .. });
            return refused.then_some(Sense::SANITIZE_FAILED);
        }
        let sense = self.in_progress(progress)?;
        (!is_allowed_while_sanitizing(command)).then_some(sense)
    }

    /// The sense data of a running erase, if one is running.
    pub(super) fn in_progress(&self, progress: Option<u16>) -> Option<Sense> {
        let is_running = self.status == SanitizeStatus::InProgress || progress.is_some();
        is_running.then(|| Sense::SANITIZE_IN_PROGRESS.so_far(progress.unwrap_or(0)))
    }

    /// SANITIZE. `keys_destroyed`: see [`Sanitizer::start`].
    pub(super) fn plan(
        &mut self,
        action: u8,
        keys_destroyed: Option<u32>,
        immediate: bool,
        volume: &Volume,
        store: &StoreHandle,
    ) -> Result<Plan<()>, Sense> {
        Ok(match self.start(action, keys_destroyed, volume, store)? {
            None => Plan::Answer(Response::good()),
            Some(op) if immediate => Plan::WhenCertain((), op),
            Some(op) => Plan::Start((), op),
        })
    }

    /// Begins: the operation of the store; `None` for EXIT FAILURE MODE. `keys_destroyed`: the epoch before which the initiator says that all
    /// keys are destroyed.
    fn start(
        &mut self,
        action: u8,
        keys_destroyed: Option<u32>,
        volume: &Volume,
        store: &StoreHandle,
    ) -> Result<Option<Op>, Sense> {
        if action == opcode::SA_SANITIZE_EXIT_FAILURE_MODE {
            // SBC-3 §4.11.3: without a failure there is nothing to leave. An erase that has begun cannot be taken back.
            if store.erase().progress().is_some() {
                return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(4)));
            }
            self.status = SanitizeStatus::Idle;
            return Ok(None);
        }
        // Snapshots and clones have their blocks in the same log and would be erased too. They must be deleted first.
        if volume.clone_of.is_some() || !store.snapshots().is_empty() || store.branches().len() > 1 {
            tracing::warn!(volume = %volume.name, "SANITIZE refused: there are snapshots or clones; delete those first");
            return Err(Sense::COMMAND_SEQUENCE);
        }
        let by_key = action == opcode::SA_SANITIZE_CRYPTO_ERASE;
        if by_key {
            self.check_key(keys_destroyed, volume)?;
        }
        self.status = SanitizeStatus::InProgress;
        self.key_survived = false;
        tracing::warn!(volume = %volume.name, "SANITIZE: everything that is stored goes");
        Ok(Some(if by_key { Op::CryptoErase } else { Op::Erase }))
    }

    /// Whether the keys are destroyed, or can be.
    fn check_key(&mut self, keys_destroyed: Option<u32>, volume: &Volume) -> Result<(), Sense> {
        if volume.unit_kind() == UnitKind::SealedWithKeyServer {
            // The keys are at a key server; only the initiator that had them destroyed knows.
            let Some(epoch) = keys_destroyed else {
                tracing::warn!(volume = %volume.name, "SANITIZE refused: its keys are at a key server, and nobody said that they are destroyed; use 'strongroom volume erase URL --crypto'");
                return Err(Sense::COMMAND_SEQUENCE);
            };
            tracing::warn!(volume = %volume.name, epoch, "an initiator had the keys of every epoch before this one destroyed");
            self.keys_destroyed = true;
        } else if !self.can_destroy_key(volume) {
            tracing::warn!(volume = %volume.name, "SANITIZE refused: its wrapping key is another volume's too, or cannot be destroyed from here");
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(4)));
        }
        Ok(())
    }

    /// Whether the key that wraps block keys can be destroyed, and wraps nothing of another volume.
    pub(super) fn can_destroy_key(&self, volume: &Volume) -> bool {
        self.renewal.as_ref().is_some_and(|renewal| renewal.is_possible(volume))
    }

    /// Whether that key is being destroyed.
    pub(super) fn is_renewing_key(&self) -> bool {
        self.renewal.as_ref().is_some_and(KeyRenewal::is_running)
    }

    /// Keeps the erase until [`Sanitizer::release`].
    pub(super) fn hold_back(&mut self, token: Token, op: Op) {
        self.held_back = Some((token, op));
    }

    /// The erase that was held back: everything before it has ended.
    pub(super) fn release(&mut self) -> Option<(Token, Op)> {
        self.held_back.take()
    }

    /// The store has erased everything, durably. A cryptographic erase has failed all the same if the key still exists.
    pub(super) fn erased(&mut self) -> Response {
        if self.key_survived {
            self.status = SanitizeStatus::Failed;
            return check_condition(Sense::SANITIZE_FAILED);
        }
        self.status = SanitizeStatus::Idle;
        Response::good()
    }

    /// The store has refused the erase, or it broke off.
    pub(super) fn erase_failed(&mut self, volume: &VolumeName, error: &OpError) -> Response {
        self.keys_destroyed = false;
        if matches!(error, OpError::Depended(_)) {
            self.status = SanitizeStatus::Idle;
            return check_condition(Sense::COMMAND_SEQUENCE);
        }
        tracing::error!(%volume, %error, "SANITIZE failed");
        self.status = SanitizeStatus::Failed;
        check_condition(Sense::SANITIZE_FAILED)
    }

    /// Follows the store's erase. When one has ended, no failure of an earlier one remains; one that the medium stopped has failed.
    pub(super) fn poll_erase(&mut self, store: &StoreHandle) -> EraseEvent {
        let is_erasing = store.erase().progress().is_some();
        let was_erasing = std::mem::replace(&mut self.is_erasing, is_erasing);
        match (was_erasing, is_erasing) {
            (false, false) => return EraseEvent::None,
            (true, false) => {
                self.status = if self.key_survived { SanitizeStatus::Failed } else { SanitizeStatus::Idle };
                return EraseEvent::Ended;
            }
            (false, true) => self.key_survived = false,
            (true, true) => {}
        }
        if store.stats().writes_refused {
            self.status = SanitizeStatus::Failed;
            return EraseEvent::None;
        }
        if store.erase().is_certain() { EraseEvent::Certain } else { EraseEvent::None }
    }

    /// Destroys the key when the store waits for that. A renewal that has begun is completed even if the store does not wait any more.
    /// Without a renewal this is the unit of a clone or snapshot on the same store, and another unit does it.
    pub(super) fn poll_key(&mut self, volume: &Arc<Volume>, store: &mut StoreHandle) -> Option<KeyEvent> {
        if !store.erase().awaits_key() && !self.is_renewing_key() {
            return None;
        }
        if std::mem::take(&mut self.keys_destroyed) {
            store.erase().key_destroyed(true);
            return None;
        }
        let renewed = self.renewal.as_mut().and_then(|renewal| renewal.poll(volume))?;
        let is_destroyed = matches!(renewed, Renewed::Destroyed(_));
        let wrap = wrap_after(&volume.name, renewed);
        self.key_survived = !is_destroyed;
        store.erase().key_destroyed(is_destroyed);
        Some(KeyEvent { is_destroyed, wrap })
    }

    /// The store continues an erase from before it was opened that may have been a cryptographic one, and the key still exists.
    pub(super) fn resume_with_key(&mut self) {
        (self.is_erasing, self.key_survived, self.status) = (true, true, SanitizeStatus::Failed);
    }

    /// Continues with the status from before the unit was closed. An erase that had failed is running again.
    pub(super) fn resume(&mut self, before: SanitizeStatus, store: &StoreHandle) {
        self.status = if store.erase().progress().is_some() { SanitizeStatus::Idle } else { before };
    }
}

/// What wraps block keys after a renewal, if that has changed.
fn wrap_after(volume: &VolumeName, renewed: Renewed) -> Option<Arc<dyn BlockKeyWrap>> {
    match renewed {
        Renewed::Destroyed(wrap) => {
            tracing::warn!(%volume, "the key that wrapped the block keys is destroyed");
            Some(wrap)
        }
        Renewed::Untouched(problem) => {
            tracing::error!(%volume, %problem, "the key that wraps the block keys was not destroyed: overwriting instead");
            None
        }
        Renewed::Unknown { error, wrap } => {
            tracing::error!(%volume, problem = %error, "the key that wraps the block keys could not be destroyed: overwriting instead");
            Some(wrap.unwrap_or_else(|problem| {
                let lost =
                    "its wrapping key cannot be read: nothing is written or read until the volume is opened again";
                tracing::error!(%volume, %problem, lost);
                Arc::new(UnknownKey)
            }))
        }
    }
}

/// What goes on during a SANITIZE (SBC-3 §4.11.2).
fn is_allowed_while_sanitizing(command: &Command) -> bool {
    matches!(command, Command::Vendor(vendor) if vendor.is_about_leases())
        || matches!(
            command,
            Command::Inquiry { .. }
                | Command::ReportLuns { .. }
                | Command::RequestSense { .. }
                | Command::LogSense { .. }
                | Command::ModeSense { .. }
                | Command::ReportSupportedOperationCodes { .. }
                | Command::ReportSupportedTmfs { .. }
                | Command::ReportTargetPortGroups { .. }
                | Command::PersistentReserveIn { .. }
                | Command::ReadCapacity10
                | Command::ReadCapacity16 { .. }
        )
}
