//! The units of a target that are open, and the operations that they request of each other: EXTENDED COPY moves blocks between units of
//! different workers by [`CrossUnitRequest`]s, one operation each.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use strongroom_block::{BlockSize, Token, VolumeId};
use strongroom_channel::Scheme;
use strongroom_scsi::{UnitKind, inquiry};
use strongroom_store::{Op, OpError, Outcome};

use crate::access::Identity;
use crate::names::VolumeName;
use crate::volume::Volume;

/// The units that are open, in every worker. Used when a session begins, when a unit is opened or closed, and by EXTENDED COPY.
#[derive(Debug, Default)]
pub(crate) struct OpenUnits(Mutex<HashMap<VolumeName, OpenUnitEntry>>);

/// An open unit.
#[derive(Clone, Debug)]
struct OpenUnitEntry {
    id: VolumeId,
    block_size: BlockSize,
    kind: UnitKind,
    worker: usize,
}

/// The origin of a session: what the access rules check beside its initiator name.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) identity: Identity,
    pub(crate) from: IpAddr,
    /// What protects its commands in transit; `None`: plain iSCSI.
    pub(crate) scheme: Option<Scheme>,
}

/// Who requests an operation: the session whose command it is part of.
#[derive(Clone, Debug)]
pub(crate) struct Requester {
    pub(crate) initiator_name: Arc<str>,
    pub(crate) origin: Origin,
}

/// An operation on another unit than the one that a command was sent to.
pub(crate) struct CrossUnitRequest {
    pub(crate) volume: VolumeName,
    pub(crate) requester: Requester,
    pub(crate) op: Op,
    pub(crate) reply: CrossUnitReply,
}

/// The outcome of such an operation.
pub(crate) type CrossUnitResult = Result<Outcome, CrossUnitError>;

/// The outcome of an operation, on its way to the unit that requested it.
pub(crate) struct CrossUnitOutcome {
    pub(crate) volume: VolumeName,
    /// The opening of the unit that requested it: another opening knows nothing of it.
    pub(crate) opening: u64,
    pub(crate) token: Token,
    pub(crate) result: CrossUnitResult,
}

/// Why such an operation failed.
#[derive(Debug)]
pub(crate) enum CrossUnitError {
    /// There is no such unit, or not for this initiator, or not now.
    NotReachable,
    /// The store failed it.
    Store(OpError),
}

/// Takes the outcome. Dropped without one, it reports that the unit was not reached.
pub(crate) struct CrossUnitReply(Option<Box<dyn FnOnce(CrossUnitResult) + Send>>);

impl CrossUnitReply {
    pub(crate) fn new(tell: impl FnOnce(CrossUnitResult) + Send + 'static) -> CrossUnitReply {
        CrossUnitReply(Some(Box::new(tell)))
    }

    pub(crate) fn tell(mut self, result: CrossUnitResult) {
        if let Some(tell) = self.0.take() {
            tell(result);
        }
    }
}

impl Drop for CrossUnitReply {
    fn drop(&mut self) {
        if let Some(tell) = self.0.take() {
            tell(Err(CrossUnitError::NotReachable));
        }
    }
}

impl OpenUnits {
    pub(crate) fn enter(&self, volume: &Volume, worker: usize) {
        let (id, block_size, kind) = (volume.id, volume.geometry.block_size, volume.unit_kind());
        self.lock().insert(volume.name.clone(), OpenUnitEntry { id, block_size, kind, worker });
    }

    pub(crate) fn leave(&self, name: &VolumeName) {
        self.lock().remove(name);
    }

    /// The plain unit with blocks of this size that a designator of page 83h names.
    pub(crate) fn find(&self, kind: u8, designator: &[u8], block_size: BlockSize) -> Option<VolumeName> {
        let units = self.lock();
        let fits = |unit: &OpenUnitEntry| unit.kind == UnitKind::Plain && unit.block_size == block_size;
        let named = |unit: &OpenUnitEntry| inquiry::designates(unit.id, kind, designator);
        units.iter().find(|(_, unit)| fits(unit) && named(unit)).map(|(name, _)| name.clone())
    }

    /// The worker that has a unit open.
    pub(crate) fn worker_of(&self, name: &VolumeName) -> Option<usize> {
        self.lock().get(name).map(|unit| unit.worker)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<VolumeName, OpenUnitEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
