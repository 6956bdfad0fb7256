//! Clones in the catalogue: directories with a description and no store, for their blocks lie in that of the volume they were made from.
//!
//! Absent: the blocks, and how they are shared (the store's).

use std::fs;

use strongroom_store::Store;

use super::unfinished::hold;
use super::{Catalogue, DESCRIPTION, LOCK, modes, sync_dir, write_synced};
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

    /// Writes down of a volume and its clones what their store has, where a crash came between the store's step and theirs. The
    /// volume's description then.
    ///
    /// # Errors
    /// [`CatalogueError`].
    pub(crate) fn mend(&self, volume: &Volume, store: &Store) -> Result<Volume, CatalogueError> {
        let (info, snapshots) = (store.info(), store.index().snapshots());
        let mend = |before: &Volume| {
            let mut mended = before.clone();
            if !mended.take_from(info, &snapshots) {
                return Ok(mended);
            }
            let written = self.change(&before.name, |found| {
                found.take_from(info, &snapshots);
            });
            match written {
                // What is full or cannot be written to can still be read.
                Err(CatalogueError::Io { what, path, source }) => {
                    let path = path.display();
                    tracing::warn!(volume = %mended.name, what, %path, error = %source, "a description is not what the store is");
                    Ok(mended)
                }
                outcome => outcome,
            }
        };
        for branch in store.index().branches() {
            // Of one without a description, or with one that cannot be read, there is nothing to mend.
            let clone = VolumeName::new(&branch.name).ok().and_then(|name| self.load(&name).ok());
            let is_it = |clone: &Volume| clone.id == branch.volume_id && clone.clone_of.is_some();
            if let Some(clone) = clone.filter(|clone| is_it(clone) && clone.store_name() == volume.name) {
                mend(&clone)?;
            }
        }
        mend(volume)
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
            modes::make_file(&lock).map_err(CatalogueError::io("make", &lock))?;
            write_synced(&dir.join(DESCRIPTION), volume.to_toml().as_bytes())?;
            sync_dir(dir)
        })
    }
}
