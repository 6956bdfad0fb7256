//! Why an operation on a volume as a whole was not done.

use strongroom_block::GeometryError;
use strongroom_store::{OpError, StreamError};

use crate::error::CatalogueError;

/// Why an operation was not done, in words for the person who asked for it.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    /// The volume, its description or its store.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// The store refused or failed it.
    #[error(transparent)]
    Store(#[from] OpError),
    /// The stream of a snapshot ends.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A size that the volume cannot have.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Pruning without a rule.
    #[error("say what to keep: without a rule every snapshot would go")]
    NothingToKeep,
    /// There is no snapshot of that name.
    #[error("'{volume}' has no snapshot '{snapshot}'; `strongroom volume snapshot list` shows what there is")]
    NoSnapshot {
        /// The volume.
        volume: String,
        /// The snapshot.
        snapshot: String,
    },
    /// Sessions use the volume or snapshot.
    #[error("{} '{export}'; detach first, or see `strongroom drain` and `strongroom session drop`", users(*sessions))]
    InUse {
        /// The volume or snapshot.
        export: String,
        /// How many sessions use it.
        sessions: usize,
    },
    /// A snapshot on which a stream that is being received builds.
    #[error("a snapshot that is being received builds on it; it stays until that is whole or given up")]
    BaseOfReception,
    /// A snapshot of which a stream is being made, or on which one builds.
    #[error("it is being sent, or what was written since it")]
    BeingSent,
    /// A volume without a wrapping key at the target.
    #[error("there is no key of '{volume}' here to destroy (only custody 'target' has one)")]
    NoWrappingKey {
        /// The volume.
        volume: String,
    },
    /// A cryptographic erase of a volume that no target serves now.
    #[error("nobody here destroys the key; use `strongroom volume erase --crypto`")]
    NoKeyRenewer,
    /// An erase of a clone.
    #[error("'{volume}' is a clone and shares its blocks with '{store}'; delete it instead")]
    EraseOfClone {
        /// The clone.
        volume: String,
        /// The volume that has the store.
        store: String,
    },
    /// An erase of a volume with snapshots or clones.
    #[error(
        "'{volume}' has snapshots or clones, of which an erase would leave nothing; delete those first (`strongroom volume \
         snapshot list {volume}` shows them)"
    )]
    EraseWithViews {
        /// The volume.
        volume: String,
    },
    /// A clone has its volume's size.
    #[error("'{volume}' is a clone and has the size of '{store}'; resize that")]
    ResizeOfClone {
        /// The clone.
        volume: String,
        /// The volume that has the store.
        store: String,
    },
    /// A smaller size.
    #[error("a volume does not shrink; make a smaller one and `strongroom copy` to it")]
    Shrink,
    /// A clone of a name that is taken.
    #[error("there is a volume '{name}' already; choose another name")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// Deleting a volume as a clone.
    #[error("'{volume}' is no clone; use `strongroom volume delete`")]
    NotAClone {
        /// The volume.
        volume: String,
    },
    /// A clone was made from the snapshot.
    #[error(
        "the clone '{clone}' depends on the snapshot '{snapshot}'; delete it first: strongroom volume delete {clone}"
    )]
    DependentClone {
        /// The clone.
        clone: String,
        /// The snapshot.
        snapshot: String,
    },
    /// The same, of a clone that has no description: a crash left it, or its directory was removed.
    #[error(
        "what is left of the clone '{clone}', which has no description any more, depends on '{export}'; to remove it, create it \
         again and delete it: strongroom volume clone {export} {clone}, then strongroom volume delete {clone}"
    )]
    DependentRemains {
        /// The clone.
        clone: String,
        /// The snapshot.
        export: String,
    },
    /// The operation is done in the store, and its description is not.
    #[error(
        "what was asked for is done, but could not be written down in the description of '{volume}', which happens when the \
         volume is opened the next time: {source}"
    )]
    NotDescribed {
        /// The volume.
        volume: String,
        /// Why.
        source: CatalogueError,
    },
    /// No name is left for a snapshot by schedule.
    #[error("every name for this time is taken")]
    NoFreeName,
    /// No thread for a run of a schedule.
    #[error("no thread could be started: {0}")]
    NoThread(#[source] std::io::Error),
    /// The worker that has the store does not answer.
    #[error("the store does not answer; look into the target's log")]
    StoreSilent,
    /// The volume could not be opened.
    #[error("the volume '{volume}' cannot be opened; the target's log says why")]
    NotOpened {
        /// The volume.
        volume: String,
    },
    /// The store's outcome is of another operation.
    #[error("the store answered another question; this is a defect, please report it")]
    OtherOutcome,
}

fn users(sessions: usize) -> String {
    if sessions == 1 { "a session uses".to_owned() } else { format!("{sessions} sessions use") }
}
