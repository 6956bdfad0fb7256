//! Who else on the machine can reach the files of volumes: nobody. Making files and directories so, and finding those that others
//! can reach because an earlier version or a person made them.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::Catalogue;

/// What the group and others may do.
const OTHERS: u32 = 0o077;

/// Makes a directory for its owner alone; it must not exist.
pub(crate) fn make_new_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// The same with its parents; one that exists stays as it is.
pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Makes an empty file for its owner alone, or empties the one that is there.
pub(crate) fn make_file(path: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// What other users can reach, if the directories above let them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct OpenModes {
    /// Below the catalogue's directory, or that itself.
    pub(crate) inside: Vec<PathBuf>,
    /// Files elsewhere that hold a volume's log.
    pub(crate) outside: Vec<PathBuf>,
}

impl Catalogue {
    /// Logs which files of volumes other users can reach, and how to end that.
    pub(crate) fn warn_of_open_modes(&self) {
        let open = self.open_modes();
        if let Some(first) = open.inside.first() {
            tracing::warn!(
                path = %first.display(),
                paths = open.inside.len(),
                "other users of this machine can reach files of volumes; end it with: chmod -R go= {}",
                self.root.display()
            );
        }
        for path in open.outside {
            tracing::warn!(
                "other users of this machine can reach a volume's log; end it with: chmod go= {}",
                path.display()
            );
        }
    }

    /// What has a mode wider than this version gives it.
    pub(crate) fn open_modes(&self) -> OpenModes {
        let mut open = OpenModes::default();
        let mut directories = vec![self.root.clone()];
        while let Some(directory) = directories.pop() {
            if fs::metadata(&directory).is_ok_and(|metadata| metadata.mode() & OTHERS != 0) {
                open.inside.push(directory.clone());
            }
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
                let is_open = fs::metadata(&path).is_ok_and(|found| found.is_file() && found.mode() & OTHERS != 0);
                if kind.is_dir() {
                    directories.push(path);
                } else if is_open && kind.is_symlink() {
                    // chmod -R does not follow it.
                    open.outside.push(fs::canonicalize(&path).unwrap_or(path));
                } else if is_open {
                    open.inside.push(path);
                }
            }
        }
        open
    }
}
