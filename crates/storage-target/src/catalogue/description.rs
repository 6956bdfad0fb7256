//! Changing a volume's description: one at a time, and seen whole or not at all.
//!
//! Absent: what is in it (`volume`), and who changes it for what.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use super::{Catalogue, DESCRIPTION, DESCRIPTION_LOCK, random_u64, sync_dir, write_synced};
use crate::error::CatalogueError;
use crate::names::VolumeName;
use crate::volume::Volume;

impl Catalogue {
    /// Changes a volume's description; seen whole or not at all. Others that change it, in this process or another, wait: nobody's
    /// change is lost. What it is then.
    ///
    /// # Errors
    /// [`CatalogueError`].
    pub(crate) fn change(&self, name: &VolumeName, change: impl FnOnce(&mut Volume)) -> Result<Volume, CatalogueError> {
        self.try_change(name, |volume| {
            change(volume);
            Ok(())
        })
    }

    /// The same; nothing changes if it cannot be.
    pub(super) fn try_change(
        &self,
        name: &VolumeName,
        change: impl FnOnce(&mut Volume) -> Result<(), CatalogueError>,
    ) -> Result<Volume, CatalogueError> {
        let name = name.volume();
        let dir = self.dir(&name);
        let _turn = self.description_turn(&name)?;
        let before = self.load(&name)?;
        let mut volume = before.clone();
        change(&mut volume)?;
        if volume == before {
            return Ok(volume);
        }
        let temporary = self.write_beside(&volume)?;
        let path = dir.join(DESCRIPTION);
        if let Err(source) = fs::rename(&temporary, &path) {
            let _ = fs::remove_file(&temporary);
            return Err(CatalogueError::Io { what: "replace", path, source });
        }
        sync_dir(&dir)?;
        Ok(volume)
    }

    /// Whether a volume's description could be rewritten now, before anything is done that must be recorded there.
    ///
    /// # Errors
    /// [`CatalogueError::Io`]: why not.
    pub(crate) fn rehearse_change(&self, name: &VolumeName) -> Result<(), CatalogueError> {
        let _turn = self.description_turn(&name.volume())?;
        let temporary = self.write_beside(&self.load(&name.volume())?)?;
        fs::remove_file(&temporary).map_err(CatalogueError::io("delete", &temporary))
    }

    /// Writes a description into a file beside the one that counts.
    fn write_beside(&self, volume: &Volume) -> Result<PathBuf, CatalogueError> {
        // A name of its own: an older build writes without the lock.
        let temporary = self.dir(&volume.name).join(format!(".{DESCRIPTION}-{:016x}", random_u64()));
        if let Err(error) = write_synced(&temporary, volume.to_toml().as_bytes()) {
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        Ok(temporary)
    }

    /// While it lives nobody else changes a volume's description.
    pub(super) fn description_turn(&self, name: &VolumeName) -> Result<File, CatalogueError> {
        let lock = self.dir(name).join(DESCRIPTION_LOCK);
        let turn = match File::options().create(true).append(true).mode(0o600).open(&lock) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(self.missing(name)),
            Err(source) => return Err(CatalogueError::Io { what: "lock", path: lock, source }),
        };
        turn.lock().map_err(CatalogueError::io("lock", &lock))?;
        Ok(turn)
    }
}
