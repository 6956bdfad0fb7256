//! The files that a unit keeps beside its volume's description, and what replaces them in simulations and for units without files.

use std::path::Path;
use std::sync::{Arc, Mutex};

use strongroom_scsi::persistent::SavedReservations;

use super::image::Pin;
use super::leases::table::LeaseRecord;
use super::persistent_file::PersistentFile;
use crate::error::CatalogueError;

/// A unit's files, with the contents that were read from them.
pub(crate) struct UnitFiles {
    pub(super) reservations: (PersistentFile<SavedReservations>, SavedReservations),
    pub(super) leases: (PersistentFile<Vec<LeaseRecord>>, Vec<LeaseRecord>),
    pub(super) image: (PersistentFile<Option<Pin>>, Option<Pin>),
}

impl UnitFiles {
    /// Reads the files in `dir`. `wake` is called when a write has ended.
    ///
    /// # Errors
    /// [`CatalogueError`] for a file that exists and cannot be understood.
    pub(crate) fn open(dir: &Path, wake: &Arc<dyn Fn() + Send + Sync>) -> Result<UnitFiles, CatalogueError> {
        let reservations = PersistentFile::open(dir.to_owned(), Arc::clone(wake))?;
        let leases = PersistentFile::open(dir.to_owned(), Arc::clone(wake))?;
        let image = PersistentFile::open(dir.to_owned(), Arc::clone(wake))?;
        Ok(UnitFiles { reservations, leases, image })
    }

    /// No session comes back for the pinned image. Waits for the disk.
    ///
    /// # Errors
    /// [`CatalogueError::Io`].
    pub(crate) fn release_image(&mut self) -> Result<(), CatalogueError> {
        let (file, pin) = &mut self.image;
        if pin.take().is_none() {
            return Ok(());
        }
        file.write_now(None)
    }

    /// For simulations: files in memory.
    pub(crate) fn simulated(files: &SimulatedFiles) -> UnitFiles {
        let SimulatedFiles { reservations, leases, image } = files;
        let (reservations, leases) = (PersistentFile::in_memory(reservations), PersistentFile::in_memory(leases));
        UnitFiles { reservations, leases, image: PersistentFile::in_memory(image) }
    }

    /// For a unit that nobody may write to, so that nobody can reserve it.
    pub(crate) fn discarded() -> UnitFiles {
        let (reservations, leases) = (PersistentFile::discarded(), PersistentFile::discarded());
        UnitFiles { reservations, leases, image: PersistentFile::discarded() }
    }
}

/// Stands for the files of a unit in a simulation, and outlives the unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimulatedFiles {
    pub(crate) reservations: Arc<Mutex<SavedReservations>>,
    pub(crate) leases: Arc<Mutex<Vec<LeaseRecord>>>,
    image: Arc<Mutex<Option<Pin>>>,
}
