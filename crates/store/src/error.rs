//! Why a store could not be made or opened.

use std::io;
use std::path::PathBuf;

/// Why a store could not be made, opened or closed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is one already.
    #[error("{} holds a store already; choose another directory or delete that volume first", .0.display())]
    Exists(PathBuf),
    /// There is none.
    #[error("{} holds no store; check the path, or create the volume first", .0.display())]
    Missing(PathBuf),
    /// Another process (or this one) has it open.
    #[error("the store in {} is in use by another process; stop that one first", .0.display())]
    InUse(PathBuf),
    /// The options cannot be met.
    #[error("the store cannot be made so: {0}")]
    Options(String),
    /// Not a store, or its superblock is destroyed.
    #[error(
        "no valid superblock: {0}; this is not a Strongroom store or its start was overwritten; restore it from a backup"
    )]
    Superblock(String),
    /// Written by a newer version.
    #[error("the store has format version {found}, this build knows up to {known}; use a newer Strongroom")]
    Version {
        /// The version found.
        found: u32,
        /// The newest known one.
        known: u32,
    },
    /// Something that was durable is not there any more. Opening it would mean to serve older data silently.
    #[error(
        "the log is damaged in segment {segment} at byte {offset}: {what}. Data that was durable is missing, so the store \
         is not opened; run a check of the store and restore the volume from a backup"
    )]
    Damaged {
        /// Which segment.
        segment: u32,
        /// Where in the segment, in bytes.
        offset: u64,
        /// What should be there.
        what: String,
    },
    /// An erase began and has not ended.
    #[error(
        "the store is being erased: that goes on when the volume is opened; serve it, or run `strongroom volume erase`"
    )]
    Erasing,
    /// The medium fails to read what opening needs. It may be there all the same.
    #[error(
        "segment {segment} of the log cannot be read at byte {offset}: {source}. Check the medium and its connection and try \
         again; if it stays so, a repair of the store tells what would be lost without it, and goes on without it"
    )]
    Unreadable {
        /// Which segment.
        segment: u32,
        /// Where in the segment, in bytes.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// There is nowhere to go on: the medium fails to read every segment that is free.
    #[error(
        "none of the log's {unreadable} free segments can be read, so there is nowhere to write. Check the medium and its \
         connection and try again; if it stays so, copy the store to another medium and open it there"
    )]
    FreeUnreadable {
        /// How many.
        unreadable: u32,
    },
    /// No segment is free to go on in; cannot happen with the geometry that `create` chooses.
    #[error("the store has no free segment left to open; this is a defect, please report it with the store's info")]
    NoFreeSegment,
    /// The operating system failed.
    #[error("{action} failed: {source}{}", remedy(source))]
    Io {
        /// What was tried.
        action: String,
        /// What the system said.
        source: io::Error,
    },
}

/// What to do about what the system said. What we said ourselves tells it already.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        _ if error.raw_os_error().is_none() => "",
        io::ErrorKind::NotFound => "; check the path, and make the directory first",
        io::ErrorKind::AlreadyExists => "; choose another path, or remove what is there if it is not needed",
        io::ErrorKind::NotADirectory => "; a store is named by its directory (`store` in the volume's own)",
        io::ErrorKind::PermissionDenied => "; run it as the user whom the store belongs to, or as root",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; make room there, or choose a smaller size",
        _ => "; check the file system and its medium",
    }
}

impl StoreError {
    /// What is wrong with one copy of the superblock, without what the loss of both would mean.
    pub fn reason(&self) -> String {
        match self {
            StoreError::Superblock(reason) => reason.clone(),
            other => other.to_string(),
        }
    }

    /// An I/O error with what was tried.
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> StoreError {
        let action = action.into();
        move |source| StoreError::Io { action, source }
    }
}
