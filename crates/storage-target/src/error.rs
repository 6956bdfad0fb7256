//! What can go wrong in this room, in words for the person who must do something about it.

use std::fmt::{self, Display};
use std::io;
use std::path::PathBuf;

use strongroom_block::{Custody, GeometryError};
use strongroom_net::NetError;
use strongroom_store::StoreError;

use crate::pairing::PeerDatabaseError;
use crate::protection::ProtectionError;
use crate::schedule::error::ScheduleError;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not TOML, an unknown key, or a value of the wrong kind; the message shows the line.
    #[error("the configuration cannot be read: {0}\nCompare it with the commented example in examples/.")]
    Syntax(#[from] toml::de::Error),
    /// A value that cannot be.
    #[error("configuration: {field}: {problem}")]
    Value {
        /// Where, as a dotted path.
        field: String,
        /// What is wrong and what to do.
        problem: String,
    },
}

impl ConfigError {
    pub(crate) fn value(field: impl Into<String>, problem: impl Into<String>) -> ConfigError {
        ConfigError::Value { field: field.into(), problem: problem.into() }
    }
}

/// A volume that cannot be made, found, opened or deleted.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// Not a name for a volume.
    #[error(
        "'{name}' cannot name a volume: use 1 to {max} of a-z, 0-9, '-' and '.', starting with a letter or digit",
        max = crate::names::VOLUME_NAME_BYTES_MAX
    )]
    Name {
        /// What was given, shortened.
        name: String,
    },
    /// There is one of that name.
    #[error("there is a volume '{name}' already; choose another name, or `strongroom volume delete {name}` first")]
    Exists {
        /// The name.
        name: String,
    },
    /// There is none of that name.
    #[error("there is no volume '{name}' under {}; `strongroom volume list` shows what there is", root.display())]
    Missing {
        /// The name.
        name: String,
        /// The catalogue's directory.
        root: PathBuf,
    },
    /// Clones share its store.
    #[error("the volume '{name}' has clones, '{clone}' for one; delete them first")]
    HasClones {
        /// The volume.
        name: String,
        /// One of them.
        clone: String,
    },
    /// Something that was to be done to a volume as a whole, and why it was not.
    #[error("{0}")]
    Operation(String),
    /// A clone or snapshot that its description tells of, and its store does not.
    #[error("'{name}' is not in its volume's store any more; `strongroom volume show` tells what is")]
    NotInStore {
        /// Its name.
        name: String,
    },
    /// So many clones and snapshots of it are attached that no further one can be.
    #[error("too many clones and snapshots of '{name}' are attached at the same time; detach some, and try again")]
    TooManyViews {
        /// The volume that has the store.
        name: String,
    },
    /// Its contents are being moved between it and another one.
    #[error(
        "the contents of '{name}' are being resealed, between it and '{other}': let `strongroom volume reseal URL` end, or give it \
         up with `strongroom volume reseal VOLUME --abandon`"
    )]
    Moving {
        /// The volume.
        name: String,
        /// The other one.
        other: String,
    },
    /// Its successor has taken its place, and its directory has not yet.
    #[error(
        "'{name}' is just being replaced by what it was resealed as; try again in a moment, or start its target if that was \
         stopped meanwhile: it finishes that"
    )]
    Succeeded {
        /// The volume.
        name: String,
    },
    /// The host has too little room.
    #[error(
        "a second copy of '{name}' needs up to {needed} bytes beside it, and the file system has {free}; make room, or choose another \
         place with --medium"
    )]
    Room {
        /// The volume.
        name: String,
        /// What it may need, in bytes.
        needed: u64,
        /// What there is, in bytes.
        free: u64,
    },
    /// A process has it open.
    #[error("the volume '{name}' is in use: detach its initiators, or stop the target that serves it, and try again")]
    InUse {
        /// The name.
        name: String,
    },
    /// The size and the block size do not fit.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Something that this kind of volume cannot have.
    #[error("{0}")]
    Kind(&'static str),
    /// What the volume asks of connections cannot be had.
    #[error("what the volume asks of its sessions cannot be had: {0}")]
    Protection(ProtectionError),
    /// Its schedule of snapshots cannot be kept to.
    #[error("that schedule cannot be: {0}")]
    Schedule(ScheduleError),
    /// Its description, or another file beside it, cannot be used.
    #[error("{}: {problem}; restore the file from a backup, or delete the volume", path.display())]
    Description {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: Box<DescriptionError>,
    },
    /// The key that wraps its block keys is not to be had.
    #[error("the wrapping key of volume '{name}' cannot be used: {problem}")]
    WrappingKey {
        /// The volume.
        name: String,
        /// What is wrong.
        problem: KeyError,
    },
    /// What opens its blocks when they arrive is not to be had.
    #[error("volume '{name}' is opened at the target, and its key cannot be used: {problem}")]
    OpeningKey {
        /// The volume.
        name: String,
        /// What is wrong.
        problem: KeyError,
    },
    /// The store.
    #[error("volume '{name}': {source}")]
    Store {
        /// The volume.
        name: String,
        /// What it said.
        source: StoreError,
    },
    /// The file system.
    #[error("cannot {what} {}: {source}; check the path, its permissions and the space left", path.display())]
    Io {
        /// As a verb.
        what: &'static str,
        /// Which file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Why the description of a volume, or another file beside it, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
    /// Not TOML, an unknown key, or a value of the wrong kind; the message shows the line.
    #[error(transparent)]
    Syntax(#[from] toml::de::Error),
    /// A newer build wrote it.
    #[error("its version is {found} and this build knows {known}; use a newer Strongroom")]
    Version {
        /// The file's.
        found: u32,
        /// This build's.
        known: u32,
    },
    /// It cannot be what we wrote.
    #[error("it is far too large")]
    TooLarge,
    /// It was put beside another volume.
    #[error("it describes the volume '{0}'")]
    OtherVolume(String),
    /// The store was put beside another volume.
    #[error("{field} is {described} here and {stored} in the store; the store belongs to another volume")]
    OtherStore {
        /// What differs.
        field: &'static str,
        /// As it is described.
        described: String,
        /// As the store says.
        stored: String,
    },
    /// A size that a volume cannot have.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A name that a volume cannot have.
    #[error(transparent)]
    Name(Box<CatalogueError>),
    /// A value that a field cannot have.
    #[error("{field}: {problem}")]
    Value {
        /// The field, as a dotted path.
        field: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// A field that belongs to one custody.
    #[error("sealed.{field} belongs to custody '{custody}', and only to it")]
    Custody {
        /// The field.
        field: &'static str,
        /// The custody.
        custody: Custody,
    },
    /// Another file beside the description.
    #[error("{problem}; {remedy}")]
    Contents {
        /// What is wrong.
        problem: String,
        /// What to do.
        remedy: &'static str,
    },
}

impl DescriptionError {
    pub(crate) fn value(field: &'static str, problem: impl Display) -> DescriptionError {
        DescriptionError::Value { field, problem: problem.to_string() }
    }

    /// In a file.
    pub(crate) fn at(self, path: impl Into<PathBuf>) -> CatalogueError {
        CatalogueError::Description { path: path.into(), problem: Box::new(self) }
    }
}

/// Why a key or a configuration is not to be had, as the program says that runs the target. Shows the causes too.
#[derive(Debug)]
pub struct ProviderError(Box<dyn std::error::Error + Send + Sync>);

impl ProviderError {
    /// What the program found.
    pub fn new(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ProviderError {
        ProviderError(error.into())
    }
}

impl Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl std::error::Error for ProviderError {}

impl From<String> for ProviderError {
    fn from(problem: String) -> ProviderError {
        ProviderError::new(problem)
    }
}

impl From<&str> for ProviderError {
    fn from(problem: &str) -> ProviderError {
        ProviderError::new(problem)
    }
}

/// Why a key of a volume cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Nothing was handed to the target that could.
    #[error("this target was started without access to {0}")]
    NoAccess(&'static str),
    /// What the program says about the key.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The key of a cryptographic erase from before, which was not destroyed.
    #[error("{0}")]
    Renewal(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl CatalogueError {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> CatalogueError {
        let path = path.into();
        move |source| CatalogueError::Io { what, path, source }
    }
}

/// A target that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The volumes' directory.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// The peers that have joined by invitation.
    #[error(transparent)]
    PeerDatabase(#[from] PeerDatabaseError),
    /// A port, or the kernel.
    #[error(transparent)]
    Net(#[from] NetError),
    /// A thread.
    #[error("cannot start a thread: {0}; raise the limit of processes (ulimit -u, TasksMax)")]
    Thread(io::Error),
    /// The admin socket.
    #[error("cannot listen for the keeper's commands at {}: {source}", path.display())]
    AdminSocket {
        /// The socket.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
}
