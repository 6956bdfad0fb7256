//! What the units of a target know of each other: which are open where. And what they ask of each other: EXTENDED COPY moves blocks between
//! units of different workers by [`Errand`]s, one operation each.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use strongroom_block::{BlockSize, VolumeId};
use strongroom_channel::Scheme;
use strongroom_scsi::{UnitKind, inquiry};
use strongroom_store::{Op, OpError, Outcome};

use crate::access::Identity;
use crate::names::VolumeName;
use crate::volume::Volume;

/// The units that are open, in every worker. Looked at when a session begins, when a unit is opened or closed, and by EXTENDED COPY.
#[derive(Debug, Default)]
pub(crate) struct Neighbours(Mutex<HashMap<VolumeName, Neighbour>>);

/// An open unit.
#[derive(Clone, Debug)]
struct Neighbour {
    id: VolumeId,
    block_size: BlockSize,
    kind: UnitKind,
    worker: usize,
}

/// Where a session comes from: what the access rules ask beside its initiator name.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) identity: Identity,
    pub(crate) from: IpAddr,
    /// What protects its commands on the way; `None`: plain iSCSI.
    pub(crate) scheme: Option<Scheme>,
}

/// Who asks for an errand: the session whose command it is part of.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    pub(crate) initiator_name: Arc<str>,
    pub(crate) origin: Origin,
}

/// An operation on another unit than the one that a command went to.
pub(crate) struct Errand {
    pub(crate) volume: VolumeName,
    pub(crate) asker: Asker,
    pub(crate) op: Op,
    pub(crate) reply: ErrandReply,
}

/// What came of an errand.
pub(crate) type ErrandResult = Result<Outcome, ErrandError>;

/// Why an errand did nothing.
#[derive(Debug)]
pub(crate) enum ErrandError {
    /// There is no such unit, or not for this initiator, or not now.
    NotReachable,
    /// The store could not.
    Store(OpError),
}

/// The way back of an errand. Dropped without an answer, it says that the unit was not reached.
pub(crate) struct ErrandReply(Option<Box<dyn FnOnce(ErrandResult) + Send>>);

impl ErrandReply {
    pub(crate) fn new(tell: impl FnOnce(ErrandResult) + Send + 'static) -> ErrandReply {
        ErrandReply(Some(Box::new(tell)))
    }

    pub(crate) fn tell(mut self, result: ErrandResult) {
        if let Some(tell) = self.0.take() {
            tell(result);
        }
    }
}

impl Drop for ErrandReply {
    fn drop(&mut self) {
        if let Some(tell) = self.0.take() {
            tell(Err(ErrandError::NotReachable));
        }
    }
}

impl Neighbours {
    pub(crate) fn enter(&self, volume: &Volume, worker: usize) {
        let (id, block_size, kind) = (volume.id, volume.geometry.block_size, volume.unit_kind());
        self.lock().insert(volume.name.clone(), Neighbour { id, block_size, kind, worker });
    }

    pub(crate) fn leave(&self, name: &VolumeName) {
        self.lock().remove(name);
    }

    /// The plain unit with blocks of this size that a designator of page 83h names.
    pub(crate) fn find(&self, kind: u8, designator: &[u8], block_size: BlockSize) -> Option<VolumeName> {
        let units = self.lock();
        let fits = |unit: &Neighbour| unit.kind == UnitKind::Plain && unit.block_size == block_size;
        let named = |unit: &Neighbour| inquiry::designates(unit.id, kind, designator);
        units.iter().find(|(_, unit)| fits(unit) && named(unit)).map(|(name, _)| name.clone())
    }

    /// The worker that has a unit open.
    pub(crate) fn worker_of(&self, name: &VolumeName) -> Option<usize> {
        self.lock().get(name).map(|unit| unit.worker)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<VolumeName, Neighbour>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
