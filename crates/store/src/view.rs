//! Names of lines of writes and of points in them: branches, snapshots, and what a request addresses.

use std::fmt;

use strongroom_block::VolumeId;

/// A line of writes: 0 is the volume itself, others are its clones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BranchId(pub u32);

impl BranchId {
    /// The volume itself.
    pub const VOLUME: BranchId = BranchId(0);
}

/// A snapshot. Random, so that it names the same snapshot in the store that it was sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(pub u64);

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What a request addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum View {
    /// The newest state of a branch.
    Head(BranchId),
    /// The state of a branch when the snapshot was taken; read-only.
    Snapshot(SnapshotId),
}

impl Default for View {
    fn default() -> View {
        View::Head(BranchId::VOLUME)
    }
}

/// One snapshot, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its identity.
    pub id: SnapshotId,
    /// Its name, unique in the store.
    pub name: String,
    /// Of which branch.
    pub branch: BranchId,
    /// When it was taken, in seconds since 1970 by the storage host's clock. For people, and for pruning.
    pub created_seconds: u64,
    /// Bytes of blocks and records written between the snapshot before and this one that are still kept.
    pub bytes_written: u64,
    /// How many clones were made from it; it cannot be deleted before they are.
    pub clones: u32,
}

/// One branch, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchInfo {
    /// Its identity.
    pub id: BranchId,
    /// Its name; empty for the volume itself.
    pub name: String,
    /// Its name among machines.
    pub volume_id: VolumeId,
    /// The snapshot that it was cloned from; `None` for the volume itself.
    pub from: Option<SnapshotId>,
    /// When it was made, in seconds since 1970.
    pub created_seconds: u64,
    /// Bytes of blocks and records written to it since its newest snapshot.
    pub bytes_written: u64,
    /// A snapshot has exactly what it has now, or nothing was ever written: another snapshot would hold nothing new.
    pub is_kept: bool,
}
