//! Secrets of requests: taken out of the request at once, given to commands as files of mode 0600 on a file system in memory, and wiped when the
//! request is done.
//!
//! What gRPC itself has kept of a request meanwhile is freed without being wiped. Absent: reading keys; only commands do.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use tonic::Status;
use zeroize::{Zeroize as _, Zeroizing};

use crate::error::of_system;

/// The text of a key file, for volumes of custody `keyfile`.
pub(crate) const KEY_FILE: &str = "keyFile";
/// The text of an identity, as which the key server is asked, instead of the node's.
pub(crate) const KEY_SERVER_IDENTITY: &str = "keyServerIdentity";
/// Largest secret, in bytes.
const SECRET_BYTES_MAX: usize = 64 << 10;
const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// The secrets of one request. Wiped when dropped.
pub(crate) struct Secrets(HashMap<String, Zeroizing<String>>);

impl Secrets {
    /// Takes the secrets of a request.
    pub(crate) fn take(secrets: &mut HashMap<String, String>) -> Secrets {
        Secrets(std::mem::take(secrets).into_iter().map(|(name, value)| (name, Zeroizing::new(value))).collect())
    }

    /// Writes one into a file of its own, if it is there.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for one that is too large; what the system says.
    pub(crate) fn file(&self, name: &str, dir: &SecretDir) -> Result<Option<SecretFile>, Status> {
        let Some(secret) = self.0.get(name) else { return Ok(None) };
        if secret.is_empty() || secret.len() > SECRET_BYTES_MAX {
            return Err(Status::invalid_argument(format!(
                "the secret's entry {name} is empty or larger than {SECRET_BYTES_MAX} bytes; it has the text of a file"
            )));
        }
        dir.write(secret.as_bytes()).map(Some).map_err(|error| of_system("write a secret for a command", error))
    }
}

/// The directory for such files.
#[derive(Clone, Debug)]
pub(crate) struct SecretDir {
    path: PathBuf,
}

/// A file with a secret. Wiped and removed when dropped.
#[derive(Debug)]
pub(crate) struct SecretFile {
    path: PathBuf,
}

impl SecretDir {
    /// Makes the directory, empty: what a killed driver has left there is wiped.
    ///
    /// # Errors
    /// If it is not in memory, belongs to somebody else, or cannot be made.
    pub(crate) fn prepare(path: PathBuf) -> io::Result<SecretDir> {
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let metadata = fs::symlink_metadata(&path)?;
        let is_ours = metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw();
        if !is_ours || metadata.mode() & 0o077 != 0 {
            return Err(io::Error::other("it is not a directory of this user alone (mode 0700)"));
        }
        let kind = rustix::fs::statfs(&path)?.f_type;
        #[allow(clippy::unnecessary_cast)] // Not the same type everywhere.
        if ![TMPFS_MAGIC, RAMFS_MAGIC].contains(&(kind as i64)) {
            return Err(io::Error::other("it is not on a tmpfs, so secrets would reach a disk"));
        }
        for entry in fs::read_dir(&path)? {
            drop(SecretFile { path: entry?.path() });
        }
        Ok(SecretDir { path })
    }

    fn write(&self, secret: &[u8]) -> io::Result<SecretFile> {
        let mut name = [0; 16];
        getrandom::fill(&mut name).map_err(io::Error::other)?;
        let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        let file = SecretFile { path: self.path.join(name) };
        let mut open = File::options();
        open.write(true).create_new(true).mode(0o600).custom_flags(libc_nofollow());
        open.open(&file.path)?.write_all(secret)?;
        Ok(file)
    }
}

fn libc_nofollow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}

impl SecretFile {
    /// Where it is, for a command.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn wipe(&self) -> io::Result<()> {
        let metadata = fs::symlink_metadata(&self.path)?;
        if metadata.is_file() {
            // A command may have replaced the file, with what it records in it.
            let mut zeros = vec![0_u8; metadata.len().min(1 << 20) as usize];
            File::options().write(true).custom_flags(libc_nofollow()).open(&self.path)?.write_all(&zeros)?;
            zeros.zeroize();
        }
        Ok(())
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        if let Err(error) = self.wipe().and_then(|()| fs::remove_file(&self.path))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "a file with a secret cannot be removed from memory");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// On a tmpfs, which a machine may not have elsewhere.
    fn in_memory() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    #[test]
    fn a_secret_is_a_private_file_until_it_is_dropped() {
        let root = in_memory();
        let dir = SecretDir::prepare(root.path().join("keys")).unwrap();
        let mut map = HashMap::from([(KEY_FILE.to_owned(), "a key".to_owned())]);
        let secrets = Secrets::take(&mut map);
        assert!(map.is_empty());
        let file = secrets.file(KEY_FILE, &dir).unwrap().unwrap();
        assert_eq!(fs::read(file.path()).unwrap(), b"a key");
        assert_eq!(fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
        let path = file.path().to_owned();
        drop(file);
        assert!(!path.exists());
        assert!(secrets.file(KEY_SERVER_IDENTITY, &dir).unwrap().is_none());
        // What a killed driver has left.
        fs::write(root.path().join("keys/left"), "a key").unwrap();
        SecretDir::prepare(root.path().join("keys")).unwrap();
        assert_eq!(fs::read_dir(root.path().join("keys")).unwrap().count(), 0);
    }

    #[test]
    fn an_empty_or_huge_secret_is_refused_without_showing_it() {
        let root = in_memory();
        let dir = SecretDir::prepare(root.path().join("keys")).unwrap();
        for text in [String::new(), "k".repeat(SECRET_BYTES_MAX + 1)] {
            let mut map = HashMap::from([(KEY_FILE.to_owned(), text)]);
            let refused = Secrets::take(&mut map).file(KEY_FILE, &dir).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument);
            assert!(!refused.message().contains("kkk"));
        }
    }

    /// Somebody else's directory, one that others can enter, a link, or a disk.
    #[test]
    fn attack_csi_secrets_in_a_planted_directory() {
        let root = in_memory();
        let path = root.path().join("keys");
        let elsewhere = root.path().join("elsewhere");
        DirBuilder::new().mode(0o700).create(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(SecretDir::prepare(path.clone()).is_err(), "a symbolic link");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(SecretDir::prepare(path).is_err(), "others can enter it");
        let on_disk = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let refused = SecretDir::prepare(on_disk.path().join("keys")).unwrap_err();
        assert!(refused.to_string().contains("tmpfs"), "{refused}");
    }
}
