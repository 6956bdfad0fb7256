//! A file in which long work notes how far it is: read whole, replaced whole or not at all, readable by its owner alone.
//!
//! Absent: what is noted, and who must not be able to change it.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// See the module.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
    bytes_max: u64,
}

impl StateFile {
    /// The file at `path`; one of more than `bytes_max` is not read.
    pub fn new(path: impl Into<PathBuf>, bytes_max: u64) -> StateFile {
        StateFile { path: path.into(), bytes_max }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What an earlier run left; `None`: there is no file.
    ///
    /// # Errors
    /// `FileTooLarge`; what the kernel says.
    pub fn read(&self) -> io::Result<Option<Vec<u8>>> {
        match fs::metadata(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Ok(metadata) if metadata.len() > self.bytes_max => Err(ErrorKind::FileTooLarge.into()),
            _ => fs::read(&self.path).map(Some),
        }
    }

    /// Replaces it; durable when this returns.
    ///
    /// # Errors
    /// What the kernel says; the file is as it was then.
    pub fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        let mut beside = self.path.clone().into_os_string();
        beside.push(".new");
        // A link, or a file of another user, is not written to; what an interrupted attempt left goes.
        let _ = fs::remove_file(&beside);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, &self.path)?;
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }

    /// The work is done: there is nothing to go on with.
    ///
    /// # Errors
    /// What the kernel says, unless there is no file.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
