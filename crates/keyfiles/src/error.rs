//! Why a key file could not be read, written, renewed or changed.

use std::io;
use std::path::PathBuf;

use strongroom_seal::KeyFileError;

/// Why a key file could not be used as asked.
#[derive(Debug, thiserror::Error)]
pub enum KeyStorageError {
    /// The operating system refused.
    #[error("cannot {action}")]
    Io {
        /// What was tried, with the path.
        action: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A new key file would replace an existing file.
    #[error(
        "{} exists already and a key is never overwritten; choose another name with --out, or remove it if nothing needs it any more",
        path.display()
    )]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The path is a directory, a device or the like.
    #[error("the {what} {} is not a file", path.display())]
    NotAFile {
        /// What the file should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The mode of the file lets other users read it.
    #[error("others can read the {what} {path} (mode {mode:03o}); run: chmod 600 {path}", path = path.display())]
    ReadableByOthers {
        /// What the file holds.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file belongs to another user.
    #[error(
        "the {what} {path} belongs to user {owner}, who could change it; take it over with: chown {user} {path}",
        path = path.display()
    )]
    ForeignOwner {
        /// What the file holds.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Who reads it.
        user: u32,
    },
    /// The file is larger than any key file.
    #[error("{} is {bytes} bytes long: that is no {what}", path.display())]
    TooLong {
        /// What the file should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The text is not a key file.
    #[error("{what} {}", path.display())]
    Parse {
        /// What the file should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: KeyFileError,
    },
    /// The key file has no key for this use or epoch.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// No random numbers.
    #[error("the operating system gave no random bytes")]
    Random(#[source] getrandom::Error),
    /// The path has no file name.
    #[error("{} is no file's name", path.display())]
    NoFileName {
        /// The path.
        path: PathBuf,
    },
    /// The name is reserved for keys that are being renewed.
    #[error(
        "{} cannot be a wrapping key: names that end in {suffix} are those of keys being renewed; choose another name",
        path.display()
    )]
    ReservedName {
        /// The path.
        path: PathBuf,
        /// The reserved ending.
        suffix: &'static str,
    },
    /// The old key cannot be read, and a renewal was interrupted before it destroyed that key.
    #[error(
        "this wrapping key was being renewed, and {} is there: first repair the problem named next; only if the old key is lost, rename \
         that file over it",
        successor.display()
    )]
    InterruptedRenewal {
        /// The file with the new key.
        successor: PathBuf,
        /// Why the old key cannot be read.
        source: Box<KeyStorageError>,
    },
    /// The old key is destroyed and the new one is not complete.
    #[error("the old wrapping key is destroyed, and the new one is incomplete")]
    IncompleteSuccessor {
        /// What is wrong with the new key.
        source: Box<KeyStorageError>,
    },
    /// The key file records another volume under this name.
    #[error(
        "the target shows another volume than '{name}', which the key file {} records; if the volume was recreated, add --forget-volume; \
         if there are two of that name, use a key file of its own for each",
        path.display()
    )]
    OtherVolume {
        /// The name.
        name: String,
        /// The key file.
        path: PathBuf,
    },
    /// The target claims the identity that is recorded for another volume.
    #[error(
        "key file {}: the target claims for this volume what is recorded of '{name}'; if it is a clone of it, or was received elsewhere, \
         add --same-as {name}; do not trust this target if not",
        path.display()
    )]
    ClaimedByOther {
        /// The recorded volume.
        name: String,
        /// The key file.
        path: PathBuf,
    },
    /// The volume named with `--same-as` is recorded with another identity.
    #[error("key file {}: the target does not show here what is recorded of '{name}'", path.display())]
    NotTheSame {
        /// The recorded volume.
        name: String,
        /// The key file.
        path: PathBuf,
    },
    /// A volume cannot be recorded.
    #[error("cannot record '{name}' in the key file {}", path.display())]
    Record {
        /// The volume.
        name: String,
        /// The key file.
        path: PathBuf,
        /// Why.
        source: KeyFileError,
    },
    /// The key file cannot be replaced.
    #[error("the key file {} has to record the volume; put it where it can be changed", path.display())]
    Unwritable {
        /// The key file.
        path: PathBuf,
        /// Why.
        source: Box<KeyStorageError>,
    },
}

impl KeyStorageError {
    /// Wraps an error of the operating system; `action` continues "cannot …".
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> KeyStorageError {
        let action = action.into();
        move |source| KeyStorageError::Io { action, source }
    }
}
