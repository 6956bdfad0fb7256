//! Changes of the tree, and how they stand in the log.

use strongroom_block::VolumeId;

use crate::layout::be_u64;

/// Bytes in front of the name.
const FIXED: usize = 48;

/// One change of the tree. It is an entry of the log like a write, with a sequence of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    SnapshotCreate {
        id: u64,
        branch: u32,
        created: u64,
        name: String,
    },
    SnapshotDelete {
        id: u64,
    },
    Rollback {
        to: u64,
    },
    CloneCreate {
        branch: u32,
        from: u64,
        created: u64,
        volume_id: VolumeId,
        name: String,
    },
    CloneDelete {
        branch: u32,
    },
    /// A snapshot is being received, onto a branch of its own. `base`: the snapshot that it builds on, or 0.
    ReceiveBegin {
        branch: u32,
        id: u64,
        base: u64,
        created: u64,
        name: String,
    },
    /// The branch is whole: it becomes the snapshot, and the volume goes on from it.
    ReceiveCommit {
        branch: u32,
    },
}

impl Change {
    /// The branch that it names, for the entry's header.
    pub(crate) fn branch(&self) -> u32 {
        match self {
            Change::SnapshotCreate { branch, .. }
            | Change::CloneCreate { branch, .. }
            | Change::CloneDelete { branch }
            | Change::ReceiveBegin { branch, .. }
            | Change::ReceiveCommit { branch } => *branch,
            Change::SnapshotDelete { .. } | Change::Rollback { .. } => 0,
        }
    }

    /// Its bytes: kind (1), zeros (7), snapshot (8), other snapshot (8), created (8), volume id (16), name.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let none = VolumeId([0; 16]);
        let (kind, id, other, created, volume_id, name) = match self {
            Change::SnapshotCreate { id, created, name, .. } => (1, *id, 0, *created, none, name.as_str()),
            Change::SnapshotDelete { id } => (2, *id, 0, 0, none, ""),
            Change::Rollback { to } => (3, *to, 0, 0, none, ""),
            Change::CloneCreate { from, created, volume_id, name, .. } => {
                (4, *from, 0, *created, *volume_id, name.as_str())
            }
            Change::CloneDelete { .. } => (5, 0, 0, 0, none, ""),
            Change::ReceiveBegin { id, base, created, name, .. } => (6, *id, *base, *created, none, name.as_str()),
            Change::ReceiveCommit { .. } => (7, 0, 0, 0, none, ""),
        };
        let mut bytes = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        for number in [id, other, created] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        bytes.extend_from_slice(&volume_id.0);
        bytes.extend_from_slice(name.as_bytes());
        bytes
    }

    /// From the bytes of an entry and the branch in its header.
    pub(crate) fn decode(branch: u32, bytes: &[u8]) -> Option<Change> {
        if bytes.len() < FIXED || bytes[1..8] != [0; 7] {
            return None;
        }
        let (id, other, created) = (be_u64(bytes, 8), be_u64(bytes, 16), be_u64(bytes, 24));
        let volume_id = VolumeId(bytes[32..48].try_into().ok()?);
        let name = std::str::from_utf8(&bytes[FIXED..]).ok()?.to_owned();
        let change = match bytes[0] {
            1 => Change::SnapshotCreate { id, branch, created, name },
            2 => Change::SnapshotDelete { id },
            3 => Change::Rollback { to: id },
            4 => Change::CloneCreate { branch, from: id, created, volume_id, name },
            5 => Change::CloneDelete { branch },
            6 => Change::ReceiveBegin { branch, id, base: other, created, name },
            7 => Change::ReceiveCommit { branch },
            _ => return None,
        };
        // Nothing that is not said again when it is written.
        (change.encode() == bytes && change.branch() == branch).then_some(change)
    }
}
