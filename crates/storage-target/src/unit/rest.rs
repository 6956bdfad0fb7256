//! What a unit remembers while it is closed: a volume that nobody uses need not stay open, and locked, for what its initiators have set.
//! In memory: a restart of the target is to a unit what power on is to a disk.

use std::collections::BTreeMap;
use std::ops::Bound;

use strongroom_block::VolumeId;
use strongroom_scsi::mode::ModeState;
use strongroom_scsi::persistent::PersistentReservations;

use super::{Sanitize, Unit, WriterLeases};
use crate::names::VolumeName;
use crate::volume::Volume;

/// What outlives the sessions of a unit, but neither the target nor the volume.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    persistent: PersistentReservations,
    mode: ModeState,
    started: bool,
    sanitize: Sanitize,
    /// Since when which holders of leases are gone.
    leases: WriterLeases,
}

/// How many of these are checked for each that is closed: as more are forgotten than are added, no more stay than about twice as many as
/// there are volumes.
const CHECKED_PER_CLOSE: usize = 2;

/// The units that are closed with something to remember.
#[derive(Debug, Default)]
pub(crate) struct Resting {
    units: BTreeMap<VolumeName, (VolumeId, Rest)>,
    /// The last one that was checked; `None`: the first one is next.
    checked: Option<VolumeName>,
}

impl Unit {
    /// What is to be remembered when the unit is closed.
    pub(crate) fn rest(&self) -> Rest {
        let Unit { persistent, mode, started, sanitize, leases, .. } = self;
        let (persistent, leases) = (persistent.clone(), leases.clone());
        Rest { persistent, mode: *mode, started: *started, sanitize: *sanitize, leases }
    }

    /// Goes on as it was when it was closed.
    pub(crate) fn resume(&mut self, rest: Rest) {
        // What is on disk counts, if somebody has changed it meanwhile.
        if rest.persistent.to_keep() == self.persistent.to_keep() {
            self.persistent = rest.persistent;
        }
        self.leases.resume(rest.leases);
        (self.mode, self.started, self.sanitize) = (rest.mode, rest.started, rest.sanitize);
        // What failed goes on.
        if self.store.erase_progress().is_some() {
            self.sanitize = Sanitize::Idle;
        }
    }
}

impl Resting {
    /// Remembers a unit that is being closed.
    pub(crate) fn put(&mut self, volume: &Volume, rest: Rest) {
        self.units.insert(volume.name.clone(), (volume.id, rest));
    }

    /// The next units to ask whether their volumes are still there: all of them in turn.
    pub(crate) fn next_to_check(&mut self) -> Vec<(VolumeName, VolumeId)> {
        let from = match self.checked.take() {
            Some(last) => Bound::Excluded(last),
            None => Bound::Unbounded,
        };
        let next = self.units.range((from, Bound::Unbounded)).take(CHECKED_PER_CLOSE);
        let next: Vec<_> = next.map(|(name, (id, _))| (name.clone(), *id)).collect();
        self.checked = next.last().filter(|_| next.len() == CHECKED_PER_CLOSE).map(|(name, _)| name.clone());
        next
    }

    /// Forgets a unit whose volume is gone.
    pub(crate) fn forget(&mut self, name: &VolumeName, id: VolumeId) {
        if self.units.get(name).is_some_and(|(resting, _)| *resting == id) {
            self.units.remove(name);
        }
    }

    /// What is remembered of a volume; nothing of another one that had its name before.
    pub(crate) fn take(&mut self, volume: &Volume) -> Option<Rest> {
        self.units.remove(&volume.name).filter(|(id, _)| *id == volume.id).map(|(_, rest)| rest)
    }
}

#[cfg(test)]
mod tests {
    use strongroom_block::Custody;
    use strongroom_scsi::persistent::SavedReservations;

    use super::*;
    use crate::volume::tests::sample;

    fn rest() -> Rest {
        Rest {
            persistent: PersistentReservations::restore(SavedReservations::default()),
            mode: ModeState::default(),
            started: true,
            sanitize: Sanitize::default(),
            leases: WriterLeases::default(),
        }
    }

    /// Each close checks a bounded number of volumes, however many rest, and what is gone is forgotten in the end.
    #[test]
    fn a_close_checks_few_volumes_and_all_are_checked_in_turn() {
        let mut resting = Resting::default();
        let volume = |number: usize| Volume {
            name: VolumeName::new(&format!("v{number}")).unwrap(),
            ..sample(Custody::KeyFile)
        };
        let (mut checks, mut most) = (0, 0);
        // Volumes are made, used and deleted, for ever; ten are there at a time.
        for number in 0..1000 {
            resting.put(&volume(number), rest());
            let next = resting.next_to_check();
            assert!(next.len() <= CHECKED_PER_CLOSE);
            for (name, id) in next {
                checks += 1;
                let is_there = (number.saturating_sub(9)..=number).any(|there| volume(there).name == name);
                if !is_there {
                    resting.forget(&name, id);
                }
            }
            most = most.max(resting.units.len());
        }
        assert!(checks <= 2000 && most <= 40, "{checks} checks, {most} units");
        assert!(resting.take(&volume(999)).is_some());
    }
}
