//! Where volume keys come from: a trait for the real seam (a file, a key server), and the file.
//!
//! Asked once at an attach, and then, where keys are only lent, again and again while it lasts (`pipeline::key_renewal`); always from a
//! thread that may block. Absent: the text format of keys (`seal`), and what is done with them.

#![allow(unsafe_code)] // mlock of the page that the text is read into.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use strongroom_block::{BufferMut, Custody, SealingDomain, VolumeId};
use strongroom_seal::{KEY_FILE_BYTES_MAX, KeyFileError, KeyPurpose, VolumeKeyFile};
use zeroize::Zeroize;

/// For which volume keys are wanted. Claims of the target, all of it: a key source may check them, not believe them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRequest {
    /// The volume's name, from the URL.
    pub volume: String,
    /// The volume's identifier.
    pub volume_id: VolumeId,
    /// The sealing domain.
    pub domain: SealingDomain,
}

/// Keys as their source gives them out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeKeys {
    /// Of every epoch that the caller may use; the one that new writes are sealed under is among them.
    pub keys: VolumeKeyFile,
    /// The domain that the volume is sealed in, if its initiator has drawn it; `None`: the one that the target claims.
    pub domain: Option<SealingDomain>,
    /// The epoch that new writes are sealed under.
    pub current_epoch: u32,
    /// The caller may write, not only read.
    pub may_seal: bool,
    /// Another one whenever any of this has changed.
    pub revision: u64,
    /// How long all of it may be used from the moment at which it was asked for; `None`: as long as the attachment lasts.
    pub lease: Option<Duration>,
}

/// Gives out volume keys, by file or by policy. Blocking: never called on the data path.
pub trait KeySource: Send + Sync {
    /// The custody of the volumes that it has keys of.
    fn custody(&self) -> Custody;

    /// The keys of the volume.
    ///
    /// # Errors
    /// [`KeySourceError`], whose message says what to do.
    fn volume_keys(&self, request: &KeyRequest) -> Result<VolumeKeys, KeySourceError>;

    /// Waits until the keys are of another revision than `seen`, and gives those; `None` if they are not within `wait`, which
    /// renews the lease as new keys would. Only asked where there is a lease.
    ///
    /// # Errors
    /// As [`KeySource::volume_keys`].
    fn changed_keys(
        &self,
        request: &KeyRequest,
        seen: u64,
        wait: Duration,
    ) -> Result<Option<VolumeKeys>, KeySourceError>;

    /// Begins a new epoch and destroys the keys of all before it, for good; the new epoch's number.
    ///
    /// # Errors
    /// `Refused` by every source that cannot, or may not; then, or if it could not be asked, some may be destroyed.
    fn destroy_keys(&self, request: &KeyRequest) -> Result<u32, KeySourceError> {
        Err(KeySourceError::Refused(format!("the keys of '{}' are not a key server's to destroy", request.volume)))
    }
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeySourceError {
    /// The file cannot be read.
    #[error("cannot read the key file {path}: {source}; give the right path, or make a key with 'strongroom key new'")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others could read it.
    #[error("others can read the key file {path} (mode {mode:03o}); run: chmod 600 {path}")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Somebody else owns it, who could change it.
    #[error("the key file {path} belongs to user {owner}; take it over with: chown {user} {path}")]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner's number.
        owner: u32,
        /// Our user's number.
        user: u32,
    },
    /// It is not a key file, or not this volume's.
    #[error("key file {path}: {source}")]
    Content {
        /// The file.
        path: PathBuf,
        /// Why.
        source: KeyFileError,
    },
    /// It holds less than it did: sealing under it would go back to a retired key.
    #[error(
        "the newest key in {path} is of epoch {epoch}, and this process has used epoch {before}: the file was replaced by an older copy; \
         give the current key file"
    )]
    WentBack {
        /// The file.
        path: PathBuf,
        /// Its newest epoch now.
        epoch: u32,
        /// Its newest epoch before.
        before: u32,
    },
    /// A key source of another kind refused.
    #[error("{0}")]
    Refused(String),
    /// A key source of another kind could not be asked. Trying again may help.
    #[error("{0}")]
    Unreachable(String),
}

/// Keys from a text file that only its owner can read. New writes are sealed under its newest epoch, even if a target names another.
#[derive(Clone, Debug)]
pub struct KeyFileSource {
    path: PathBuf,
    /// The newest epoch that was given out; clones share it.
    newest_epoch: Arc<AtomicU32>,
}

impl KeyFileSource {
    /// Keys from the file at `path`, read again each time.
    pub fn new(path: impl Into<PathBuf>) -> KeyFileSource {
        KeyFileSource { path: path.into(), newest_epoch: Arc::default() }
    }

    /// The domain that the volume is sealed in, as the file records it; `None` if it records nothing at all (version 1).
    ///
    /// The target claims a label, and the file says what that label stands for under the name by which the volume is attached. So a
    /// target can neither have two volumes sealed in one domain, nor show one of them in the place of the other.
    fn domain_of(&self, keys: &VolumeKeyFile, request: &KeyRequest) -> Result<Option<SealingDomain>, KeySourceError> {
        let volumes = keys.volumes();
        let Some(first) = volumes.first() else {
            tracing::debug!("the key file records no volumes: the target says in which domain this one is sealed");
            return Ok(None);
        };
        let name = request.volume.split('@').next().unwrap_or_default();
        if let Some(record) = volumes.iter().find(|known| known.name == name && known.claimed == request.domain) {
            return Ok(Some(record.domain));
        }
        let is_named = volumes.iter().any(|known| known.name == name);
        // Where the file is of one volume, that is meant, under any name: a clone, or received by another target.
        let is_of_one = volumes.iter().all(|known| (known.claimed, known.domain) == (first.claimed, first.domain));
        if !is_named && is_of_one && first.claimed == request.domain {
            return Ok(Some(first.domain));
        }
        let path = self.path.display();
        let claimed = request.domain;
        let as_another = volumes.iter().find(|known| known.claimed == claimed);
        Err(KeySourceError::Refused(match (is_named, as_another) {
            (true, _) => format!(
                "the target shows another volume than '{name}', which the key file {path} records: do not trust this target, unless the \
                 volume was created again (then format it with --forget-volume) or resealed under another key file, which alone opens it now"
            ),
            (false, Some(other)) => format!(
                "the target shows as '{name}' what the key file {path} records as '{}'; if it is a clone of it, or was received elsewhere \
                 under this name, say so with: strongroom key record strongroom://HOST/{name} --same-as {} --key-file {path}; and do not trust this \
                 target if not",
                other.name, other.name
            ),
            (false, None) => format!(
                "the key file {path} records the volumes that are sealed with it, and '{name}' is none of them; if it is new, format it \
                 with: strongroom volume format strongroom://HOST/{name} --key-file {path}; if it was formatted with another copy of the file, \
                 give that, or run: strongroom key record strongroom://HOST/{name} --key-file {path} (with \
                 --formatted-before if that was before key files recorded volumes)"
            ),
        }))
    }

    fn read(&self) -> Result<VolumeKeyFile, KeySourceError> {
        let failed = |source| KeySourceError::Read { path: self.path.clone(), source };
        let mut file = File::open(&self.path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(failed(io::Error::other("not a regular file")));
        }
        if metadata.mode() & 0o077 != 0 {
            return Err(KeySourceError::Exposed { path: self.path.clone(), mode: metadata.mode() & 0o777 });
        }
        let user = rustix::process::geteuid().as_raw();
        if metadata.uid() != user && metadata.uid() != 0 {
            return Err(KeySourceError::Owner { path: self.path.clone(), owner: metadata.uid(), user });
        }
        let text = LockedText::read(&mut file, &self.path)?;
        VolumeKeyFile::parse(text.as_str(&self.path)?)
            .map_err(|source| KeySourceError::Content { path: self.path.clone(), source })
    }
}

impl KeySource for KeyFileSource {
    fn custody(&self) -> Custody {
        Custody::KeyFile
    }

    fn volume_keys(&self, request: &KeyRequest) -> Result<VolumeKeys, KeySourceError> {
        let keys = self.read()?;
        let content = |source| KeySourceError::Content { path: self.path.clone(), source };
        if keys.purpose() != KeyPurpose::Volume {
            return Err(content(KeyFileError::Purpose { found: keys.purpose(), needed: KeyPurpose::Volume }));
        }
        let epoch = keys.epochs().last().expect("a key file has at least one epoch");
        let before = self.newest_epoch.fetch_max(epoch, Ordering::Relaxed);
        if epoch < before {
            return Err(KeySourceError::WentBack { path: self.path.clone(), epoch, before });
        }
        let domain = self.domain_of(&keys, request)?;
        Ok(VolumeKeys { keys, domain, current_epoch: epoch, may_seal: true, revision: 0, lease: None })
    }

    fn changed_keys(&self, _: &KeyRequest, _: u64, _: Duration) -> Result<Option<VolumeKeys>, KeySourceError> {
        Ok(None)
    }
}

/// The text of a key file in pages that are not swapped (where the kernel lets us) and are wiped afterwards.
struct LockedText {
    pages: BufferMut,
    len_bytes: usize,
}

impl LockedText {
    fn read(file: &mut File, path: &Path) -> Result<LockedText, KeySourceError> {
        // Whole pages, so that unlocking them cannot unlock a neighbour's. One byte more than a key file may have.
        let mut text = LockedText { pages: BufferMut::zeroed(KEY_FILE_BYTES_MAX + 4096), len_bytes: 0 };
        // SAFETY: the range is our own allocation; locking changes no contents. Failure (a low limit) only means that
        // the pages may be swapped in the moment that they exist.
        let _ = unsafe { rustix::mm::mlock(text.pages.as_mut_ptr().cast(), text.pages.len()) };
        loop {
            match file.read(&mut text.pages[text.len_bytes..]) {
                Ok(0) => return Ok(text),
                Ok(bytes) => text.len_bytes += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(KeySourceError::Read { path: path.to_owned(), source }),
            }
            if text.len_bytes > KEY_FILE_BYTES_MAX {
                return Err(KeySourceError::Content { path: path.to_owned(), source: KeyFileError::TooLong });
            }
        }
    }

    fn as_str(&self, path: &Path) -> Result<&str, KeySourceError> {
        std::str::from_utf8(&self.pages[..self.len_bytes])
            .map_err(|_| KeySourceError::Content { path: path.to_owned(), source: KeyFileError::NotAKeyFile })
    }
}

impl Drop for LockedText {
    fn drop(&mut self) {
        // Not unlocked: these pages go back to the allocator, and in a process that has locked all its memory
        // (`safety`) unlocking them would let pages of later buffers be swapped.
        self.pages.zeroize();
    }
}

#[cfg(test)]
mod tests {
    //! Proves that a key file is used only if nobody else can read it, and that every refusal says what to do.
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn request() -> KeyRequest {
        KeyRequest { volume: "v".into(), volume_id: VolumeId([1; 16]), domain: SealingDomain([2; 16]) }
    }

    fn write(text: &str, mode: u32) -> (tempfile::TempDir, KeyFileSource) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume.key");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (dir, KeyFileSource::new(path))
    }

    #[test]
    fn a_private_file_gives_its_keys() {
        let keys = VolumeKeyFile::new(KeyPurpose::Volume, &[7; 32]);
        let (_dir, source) = write(&keys.to_text(), 0o600);
        assert_eq!(source.volume_keys(&request()).unwrap().keys, keys);
    }

    #[test]
    fn the_newest_epoch_seals_and_an_older_file_is_refused() {
        let old = VolumeKeyFile::new(KeyPurpose::Volume, &[7; 32]).to_text();
        let newer = VolumeKeyFile::new(KeyPurpose::Volume, &[8; 32]).to_text().replace("epoch 1", "epoch 2");
        let both = format!("{}{}\n", &*old, newer.lines().last().unwrap());
        let (_dir, source) = write(&both, 0o600);
        let keys = source.volume_keys(&request()).unwrap();
        assert_eq!((keys.current_epoch, keys.keys.epochs().collect::<Vec<_>>()), (2, vec![1, 2]));
        std::fs::write(&source.path, &*old).unwrap();
        let error = source.clone().volume_keys(&request()).unwrap_err().to_string();
        assert!(error.contains("replaced by an older copy"), "{error}");
        std::fs::write(&source.path, &both).unwrap();
        assert_eq!(source.volume_keys(&request()).unwrap().current_epoch, 2);
    }

    #[test]
    fn a_readable_file_and_the_wrong_kind_are_refused() {
        let keys = VolumeKeyFile::new(KeyPurpose::Volume, &[7; 32]);
        let wrapping = VolumeKeyFile::new(KeyPurpose::Wrapping, &[7; 32]);
        for (text, mode, part) in [
            (keys.to_text().to_string(), 0o640, "chmod 600"),
            (keys.to_text().to_string(), 0o604, "chmod 600"),
            (wrapping.to_text().to_string(), 0o600, "volume key is needed"),
            ("hello".into(), 0o600, "strongroom key new"),
            ("x".repeat(KEY_FILE_BYTES_MAX + 1), 0o600, "at most 256 KiB"),
        ] {
            let (_dir, source) = write(&text, mode);
            let error = source.volume_keys(&request()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let error = KeyFileSource::new("/nonexistent/key").volume_keys(&request()).unwrap_err().to_string();
        assert!(error.contains("strongroom key new"), "{error}");
    }
}
