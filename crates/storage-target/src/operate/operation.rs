//! The operations on a volume as a whole, as an administrator names them.

use serde::{Deserialize, Serialize};

use crate::retention::Retention;
use crate::volume::Access;

/// One operation on a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Operation {
    /// What its store has in it.
    Describe,
    /// Makes it larger.
    Resize {
        /// The new size in bytes.
        size_bytes: u64,
    },
    /// Keeps it as it is now.
    SnapshotCreate {
        /// The snapshot's name.
        snapshot: String,
    },
    /// Lets a snapshot go.
    SnapshotDelete {
        /// The snapshot's name.
        snapshot: String,
    },
    /// Deletes the snapshots that no rule keeps, and tells what stays and why.
    Prune {
        /// What to keep; not empty.
        keep: Retention,
        /// Only snapshots whose names begin so; others stay, and do not count.
        #[serde(default)]
        prefix: Option<String>,
        /// Only tell.
        #[serde(default)]
        dry_run: bool,
    },
    /// Makes it what it was when a snapshot was taken.
    Rollback {
        /// The snapshot's name.
        snapshot: String,
    },
    /// Makes a volume that begins as a snapshot and shares its blocks.
    Clone {
        /// The snapshot's name.
        snapshot: String,
        /// The new volume's name.
        name: String,
        /// Who may use it; without it the same as the volume.
        #[serde(default)]
        access: Option<Access>,
    },
    /// Deletes a clone.
    DeleteClone,
    /// Begins to erase it: everything in its store goes, for good. The description's `erasing` tells how far it is.
    Erase,
    /// The same of a volume of custody `target` by destroying the key that wraps its block keys, instead of overwriting.
    CryptoErase,
}
