//! Directories of volumes that are being made or deleted: under names that no process opens, and locked while the work is going on. What a crash
//! left of them is nobody's.
//!
//! Absent: logs outside of the volumes' directory. Whose such a file or device is now cannot be told from what is left.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::{Catalogue, UNFINISHED, random_u64};
use crate::error::CatalogueError;
use crate::names::VolumeName;

/// Holds the directory of a volume that is being made or deleted, under any name, until the returned file is dropped.
pub(super) fn hold(dir: &Path) -> Result<File, CatalogueError> {
    File::open(dir).and_then(|held| held.lock().map(|()| held)).map_err(CatalogueError::io("lock", dir))
}

impl Catalogue {
    /// A name for a volume's directory that no one opens.
    pub(super) fn unfinished(&self, name: &VolumeName) -> PathBuf {
        self.root.join(format!("{UNFINISHED}{name}-{:016x}", random_u64()))
    }

    /// Removes, when a target starts, what a crash left of volumes that were being made or deleted; what somebody is at stays.
    ///
    /// # Errors
    /// [`CatalogueError::Io`] if the directory itself cannot be read.
    pub(crate) fn clear_unfinished(&self) -> Result<(), CatalogueError> {
        let failed = |source| CatalogueError::Io { what: "list", path: self.root.clone(), source };
        for entry in fs::read_dir(&self.root).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            if !entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                continue;
            }
            let Ok(dir) = File::open(&path) else { continue };
            if dir.try_lock().is_err() {
                continue;
            }
            match fs::remove_dir_all(&path) {
                Ok(()) => {
                    tracing::info!(path = %path.display(), "removed what was left of a volume that was being made or deleted")
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => tracing::error!(path = %path.display(), %error, "what is left of a volume takes space"),
            }
        }
        Ok(())
    }
}
