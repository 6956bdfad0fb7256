//! What a unit remembers while it is closed: a volume that nobody uses need not stay open, and locked, for what its initiators have set.
//! In memory: a restart of the target is to a unit what power on is to a disk.

use std::collections::HashMap;

use strongroom_block::VolumeId;
use strongroom_scsi::mode::ModeState;
use strongroom_scsi::persistent::PersistentReservations;

use super::{Sanitize, Unit};
use crate::names::VolumeName;
use crate::volume::Volume;

/// What outlives the sessions of a unit, but neither the target nor the volume.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    persistent: PersistentReservations,
    mode: ModeState,
    started: bool,
    sanitize: Sanitize,
}

/// The units that are closed with something to remember. At most one for each volume that there is.
#[derive(Debug, Default)]
pub(crate) struct Resting(HashMap<VolumeName, (VolumeId, Rest)>);

impl Unit {
    /// What is to be remembered when the unit is closed.
    pub(crate) fn rest(&self) -> Rest {
        let Unit { persistent, mode, started, sanitize, .. } = self;
        Rest { persistent: persistent.clone(), mode: *mode, started: *started, sanitize: *sanitize }
    }

    /// Goes on as it was when it was closed.
    pub(crate) fn resume(&mut self, rest: Rest) {
        // What is on disk counts, if somebody has changed it meanwhile.
        if rest.persistent.to_keep() == self.persistent.to_keep() {
            self.persistent = rest.persistent;
        }
        (self.mode, self.started, self.sanitize) = (rest.mode, rest.started, rest.sanitize);
        // What failed goes on.
        if self.store.erase_progress().is_some() {
            self.sanitize = Sanitize::Idle;
        }
    }
}

impl Resting {
    /// Remembers a unit that is being closed, and forgets those whose volumes are gone; `load` knows which there are.
    pub(crate) fn put(&mut self, volume: &Volume, rest: Rest, load: impl Fn(&VolumeName) -> Option<Volume>) {
        self.0.insert(volume.name.clone(), (volume.id, rest));
        self.0.retain(|name, (id, _)| load(name).is_some_and(|volume| volume.id == *id));
    }

    /// What is remembered of a volume; nothing of another one that had its name before.
    pub(crate) fn take(&mut self, volume: &Volume) -> Option<Rest> {
        self.0.remove(&volume.name).filter(|(id, _)| *id == volume.id).map(|(_, rest)| rest)
    }
}
