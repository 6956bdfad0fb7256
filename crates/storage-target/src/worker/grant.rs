//! What an admitted login is granted: a volume, the rights to it, and the address of its unit.

use std::sync::Arc;

use strongroom_scsi::NexusId;

use super::session_machine::SessionMachine;
use crate::names::VolumeName;
use crate::store_queue::StoreQueue;

/// Where a session's unit is, and where the session is.
#[derive(Clone, Debug)]
pub(super) struct UnitAddress {
    /// The worker that has the unit.
    pub(super) unit_worker: usize,
    /// The worker that has the session.
    pub(super) session_worker: usize,
    pub(super) volume: Arc<VolumeName>,
    /// Of a sealed volume: the lengths of a block and of what accompanies it in a PDU, in bytes.
    pub(super) sealed: Option<(u32, usize)>,
    /// Headers of commands and responses carry block keys.
    pub(super) has_block_keys: bool,
    /// The queue of its store.
    pub(super) queue: Arc<StoreQueue>,
}

impl UnitAddress {
    pub(super) fn is_remote(&self) -> bool {
        self.unit_worker != self.session_worker
    }

    /// Most sealed blocks that a PDU of a session takes.
    pub(super) fn sealed_blocks_max(&self, machine: &SessionMachine) -> usize {
        self.sealed.map_or(0, |(block_bytes, entry_bytes)| machine.sealed_blocks_max(block_bytes, entry_bytes))
    }
}

#[derive(Clone)]
pub(super) struct LoginGrant {
    pub(super) nexus: NexusId,
    pub(super) initiator_name: String,
    /// `None` for discovery.
    pub(super) volume: Option<VolumeName>,
    /// With the volume, unless the login joins a session.
    pub(super) unit: Option<UnitAddress>,
    pub(super) read_only: bool,
}
