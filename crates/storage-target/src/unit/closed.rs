//! What is remembered of a unit while it is closed, so that a volume that nobody uses need not stay open and locked for what its initiators
//! have set. In memory only: a restart of the target is to a unit what power on is to a disk.

use std::collections::BTreeMap;
use std::ops::Bound;

use strongroom_block::VolumeId;
use strongroom_scsi::mode::ModeState;
use strongroom_scsi::persistent::PersistentReservations;

use super::image::AbsentReaders;
use super::leases::table::LeaseTable;
use super::sanitize::SanitizeStatus;
use crate::names::VolumeName;
use crate::volume::Volume;

/// What outlives the sessions of a unit, but neither the target nor the volume.
#[derive(Clone, Debug)]
pub(crate) struct ClosedUnit {
    pub(super) persistent: PersistentReservations,
    pub(super) mode: ModeState,
    pub(super) started: bool,
    pub(super) sanitize: SanitizeStatus,
    /// With the times since when the holders of leases are gone.
    pub(super) leases: LeaseTable,
    /// Sessions that may come back for the image that they saw.
    pub(super) absent: AbsentReaders,
}

/// How many closed units are checked for each unit that is closed. More are forgotten than are added, so that at most about twice as many
/// remain as there are volumes.
const CHECKED_PER_CLOSE: usize = 2;

/// The closed units of a target.
#[derive(Debug, Default)]
pub(crate) struct ClosedUnits {
    units: BTreeMap<VolumeName, (VolumeId, ClosedUnit)>,
    /// The last one that was checked; `None`: the first one is next.
    checked: Option<VolumeName>,
}

impl ClosedUnits {
    /// Remembers a unit that is being closed.
    pub(crate) fn put(&mut self, volume: &Volume, unit: ClosedUnit) {
        self.units.insert(volume.name.clone(), (volume.id, unit));
    }

    /// The next units whose volumes may have been deleted: all of them in turn.
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
        if self.units.get(name).is_some_and(|(closed, _)| *closed == id) {
            self.units.remove(name);
        }
    }

    /// What is remembered of a volume; nothing of another volume that had its name before.
    pub(crate) fn take(&mut self, volume: &Volume) -> Option<ClosedUnit> {
        self.units.remove(&volume.name).filter(|(id, _)| *id == volume.id).map(|(_, unit)| unit)
    }
}

#[cfg(test)]
mod tests {
    use strongroom_block::Custody;
    use strongroom_scsi::persistent::SavedReservations;

    use super::*;
    use crate::volume::tests::sample;

    fn closed() -> ClosedUnit {
        ClosedUnit {
            persistent: PersistentReservations::restore(SavedReservations::default()),
            mode: ModeState::default(),
            started: true,
            sanitize: SanitizeStatus::default(),
            leases: LeaseTable::default(),
            absent: AbsentReaders::default(),
        }
    }

    /// Each close checks a bounded number of volumes, however many rest, and what is gone is forgotten in the end.
    #[test]
    fn a_close_checks_few_volumes_and_all_are_checked_in_turn() {
        let mut units = ClosedUnits::default();
        let volume = |number: usize| Volume {
            name: VolumeName::new(&format!("v{number}")).unwrap(),
            ..sample(Custody::KeyFile)
        };
        let (mut checks, mut most) = (0, 0);
        // Volumes are made, used and deleted, for ever; ten are there at a time.
        for number in 0..1000 {
            units.put(&volume(number), closed());
            let next = units.next_to_check();
            assert!(next.len() <= CHECKED_PER_CLOSE);
            for (name, id) in next {
                checks += 1;
                let is_there = (number.saturating_sub(9)..=number).any(|there| volume(there).name == name);
                if !is_there {
                    units.forget(&name, id);
                }
            }
            most = most.max(units.units.len());
        }
        assert!(checks <= 2000 && most <= 40, "{checks} checks, {most} units");
        assert!(units.take(&volume(999)).is_some());
    }
}
