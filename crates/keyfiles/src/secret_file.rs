//! Files that hold a secret: made once, readable by their owner alone, and refused when others can read them.
//!
//! Absent: what the secret means.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use zeroize::Zeroizing;

use crate::KeyStorageError;

/// Largest secret file that is read, in bytes.
const SECRET_FILE_BYTES_MAX: u64 = 256 * 1024;

/// Writes a new file that only its owner can read, durably.
///
/// # Errors
/// If the file exists already: a key is never overwritten.
pub fn create(path: &Path, text: &str) -> Result<(), KeyStorageError> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(KeyStorageError::io(format!("make the directory {}", parent.display())))?;
    }
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(KeyStorageError::Exists { path: path.to_owned() });
        }
        Err(error) => return Err(KeyStorageError::io(format!("create {}", path.display()))(error)),
    };
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    if let Err(error) = written {
        // Half a key is worse than none.
        let _ = fs::remove_file(path);
        return Err(KeyStorageError::io(format!("write {}", path.display()))(error));
    }
    Ok(())
}

/// Replaces a secret file as a whole, durably; its owner stays the same.
pub fn replace(path: &Path, text: &str) -> Result<(), KeyStorageError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || -> std::io::Result<()> {
        let before = fs::metadata(path)?;
        // Made with the mode 0600.
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        if file.as_file().metadata()?.uid() != before.uid() {
            std::os::unix::fs::fchown(file.as_file(), Some(before.uid()), Some(before.gid()))?;
        }
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        File::open(directory)?.sync_all()
    };
    write().map_err(KeyStorageError::io(format!("write {}", path.display())))
}

/// Keeps other processes of this program from changing files of the same directory, until it is dropped.
pub fn lock_directory_of(path: &Path) -> Result<File, KeyStorageError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let opened = File::open(directory).map_err(KeyStorageError::io(format!("open {}", directory.display())))?;
    rustix::fs::flock(&opened, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|error| KeyStorageError::io(format!("lock {}", directory.display()))(error.into()))?;
    Ok(opened)
}

/// Reads a secret file.
///
/// # Errors
/// If anyone but its owner could read it, if that is neither we nor root, or it is no small text file.
pub fn read(path: &Path, what: &'static str) -> Result<Zeroizing<String>, KeyStorageError> {
    read_unless(path, what, 0o077)
}

/// Reads a secret that systemd hands to the service, in a directory that nobody else can enter. The access list that it may put on
/// the file shows as rights of the group.
///
/// # Errors
/// As [`read`].
pub fn read_credential(path: &Path, what: &'static str) -> Result<Zeroizing<String>, KeyStorageError> {
    read_unless(path, what, 0o037)
}

fn read_unless(path: &Path, what: &'static str, forbidden: u32) -> Result<Zeroizing<String>, KeyStorageError> {
    let file = File::open(path).map_err(KeyStorageError::io(format!("open the {what} {}", path.display())))?;
    let metadata = file.metadata().map_err(KeyStorageError::io(format!("look at {}", path.display())))?;
    let path_buf = || path.to_owned();
    if !metadata.is_file() {
        return Err(KeyStorageError::NotAFile { what, path: path_buf() });
    }
    if metadata.mode() & forbidden != 0 {
        return Err(KeyStorageError::ReadableByOthers { what, path: path_buf(), mode: metadata.mode() & 0o777 });
    }
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user && metadata.uid() != 0 {
        return Err(KeyStorageError::ForeignOwner { what, path: path_buf(), owner: metadata.uid(), user });
    }
    if metadata.len() > SECRET_FILE_BYTES_MAX {
        return Err(KeyStorageError::TooLong { what, path: path_buf(), bytes: metadata.len() });
    }
    let mut text = Zeroizing::new(String::with_capacity(metadata.len() as usize + 1));
    file.take(SECRET_FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(KeyStorageError::io(format!("read the {what} {} as text", path.display())))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn made_once_and_for_the_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/key");
        create(&path, "text").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(read(&path, "key").unwrap().as_str(), "text");
        let again = create(&path, "other").unwrap_err().to_string();
        assert!(again.contains("never overwritten"), "{again}");
        assert_eq!(read(&path, "key").unwrap().as_str(), "text");
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        create(&path, "text").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = read(&path, "volume key").unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }
}
