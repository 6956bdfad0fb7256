//! Where a benchmark works: a directory that is removed at the end, in memory where the machine has such.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// A directory for targets, keys, logs and volumes.
pub(crate) struct Site {
    directory: TempDir,
}

impl Site {
    /// In `parent`, or else where things lie in memory.
    ///
    /// # Errors
    /// If no directory can be made there.
    pub(crate) fn new(parent: Option<&Path>) -> Result<Site> {
        let memory = Path::new("/dev/shm");
        let usual = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let parent = parent.map_or(usual, Path::to_owned);
        let directory = tempfile::Builder::new()
            .prefix("strongroom-bench-")
            .tempdir_in(&parent)
            .with_context(|| format!("cannot work in {}; choose another place with --work-dir", parent.display()))?;
        Ok(Site { directory })
    }

    /// A new directory in it.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.directory.path().join(name);
        std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }
}
