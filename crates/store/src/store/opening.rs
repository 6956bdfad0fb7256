//! How a store was opened: the options, and where it is.

use std::path::{Path, PathBuf};

use super::directory::StoreLock;
use crate::options::OpenOptions;

/// The options and the place of an open store.
pub(super) struct Opening {
    pub(super) options: OpenOptions,
    /// Held as long as the store is open: nobody else can open it.
    _lock: Option<StoreLock>,
    /// The directory, if it is in one.
    pub(super) dir: Option<PathBuf>,
    /// Why its I/O is not done in a better way; `None`: there is none.
    pub(super) io_reason: Option<String>,
    /// Opening began at a checkpoint instead of reading every record block.
    pub(super) from_checkpoint: bool,
}

impl Opening {
    pub(super) fn new(options: OpenOptions, from_checkpoint: bool) -> Opening {
        Opening { options, _lock: None, dir: None, io_reason: None, from_checkpoint }
    }

    /// The store is in this directory, under this lock.
    pub(super) fn locked(&mut self, lock: StoreLock, dir: &Path, io_reason: Option<String>) {
        (self._lock, self.dir, self.io_reason) = (Some(lock), Some(dir.to_owned()), io_reason);
    }
}
