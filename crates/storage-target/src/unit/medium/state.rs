//! What initiators set about the medium of a unit (mode pages, started or stopped, removal prevented), and its counters.

use std::collections::HashSet;

use strongroom_scsi::log::Counters;
use strongroom_scsi::mode::ModeState;

use crate::unit::task::SessionKey;

/// The settings and counters of one unit.
pub(crate) struct MediumState {
    pub(crate) mode: ModeState,
    /// Cleared by START STOP UNIT.
    pub(crate) started: bool,
    /// The sessions that have sent PREVENT MEDIUM REMOVAL.
    preventing: HashSet<SessionKey>,
    /// For LOG SENSE.
    pub(crate) counters: Counters,
}

impl Default for MediumState {
    fn default() -> MediumState {
        MediumState {
            mode: ModeState::default(),
            started: true,
            preventing: HashSet::new(),
            counters: Counters::default(),
        }
    }
}

impl MediumState {
    /// LOGICAL UNIT RESET.
    pub(crate) fn reset(&mut self) {
        *self = MediumState { counters: self.counters, ..MediumState::default() };
    }

    /// PREVENT ALLOW MEDIUM REMOVAL.
    pub(crate) fn prevent_removal(&mut self, key: SessionKey, prevent: bool) {
        if prevent {
            self.preventing.insert(key);
        } else {
            self.preventing.remove(&key);
        }
    }

    pub(crate) fn is_removal_prevented(&self) -> bool {
        !self.preventing.is_empty()
    }

    /// A session has ended.
    pub(crate) fn detach(&mut self, key: SessionKey) {
        self.preventing.remove(&key);
    }

    /// Whether a write must be durable when it is answered: without a write cache (WCE=0) each is.
    pub(crate) fn forces_unit_access(&self, fua: bool) -> bool {
        fua || !self.mode.write_cache
    }

    pub(crate) fn count_read(&mut self, blocks: u32) {
        self.counters.reads += 1;
        self.counters.blocks_sent += u64::from(blocks);
    }

    pub(crate) fn count_write(&mut self, blocks: u32) {
        self.counters.writes += 1;
        self.counters.blocks_received += u64::from(blocks);
    }
}
