//! Clones in the catalogue: directories with a description and no store, for their blocks lie in that of the volume they were made from.
//!
//! Absent: the blocks, and how they are shared (the store's).

use std::fs::{self, File};

use super::unfinished::hold;
use super::{Catalogue, DESCRIPTION, LOCK, sync_dir, write_synced};
use crate::error::CatalogueError;
use crate::names::VolumeName;
use crate::volume::Volume;

impl Catalogue {
    /// The clones whose blocks lie in this volume's store.
    ///
    /// # Errors
    /// [`CatalogueError::Io`].
    pub fn clones_of(&self, name: &VolumeName) -> Result<Vec<Volume>, CatalogueError> {
        let volumes = self.names()?.into_iter().filter_map(|other| self.load(&other).ok());
        Ok(volumes.filter(|other| other.store_name() == *name && other.name != *name).collect())
    }

    /// Removes the directory of a clone; its blocks are the store's to let go.
    ///
    /// # Errors
    /// [`CatalogueError::Io`].
    pub(crate) fn remove_clone(&self, volume: &Volume) -> Result<(), CatalogueError> {
        let (dir, doomed) = (self.dir(&volume.name), self.unfinished(&volume.name));
        let _held = hold(&dir)?;
        fs::rename(&dir, &doomed).map_err(CatalogueError::io("delete", &dir))?;
        sync_dir(&self.root)?;
        fs::remove_dir_all(&doomed).map_err(CatalogueError::io("delete", &doomed))
    }

    /// Makes the directory of a clone, which has a description and no store.
    ///
    /// # Errors
    /// [`CatalogueError`]; nothing is left behind.
    pub(crate) fn add_clone(&self, volume: &Volume) -> Result<(), CatalogueError> {
        self.place(volume, |dir| {
            let lock = dir.join(LOCK);
            File::create(&lock).map_err(CatalogueError::io("make", &lock))?;
            write_synced(&dir.join(DESCRIPTION), volume.to_toml().as_bytes())?;
            sync_dir(dir)
        })
    }
}
