//! Snapshots, clones and rollbacks: changes of the catalogue are queued like writes, each in a group of its own; what no
//! view needs afterwards is merged or dropped in slices.

use strongroom_block::{Lba, Token};

use super::Store;
use super::hiding::Hiding;
use super::request::{Content, WriteRequest};
use super::retention::Retention;
use super::volume::Volume;
use crate::catalogue::{Change, NodeId};
use crate::map::{BlockMap, Gone};
use crate::op::{Op, OpError};
use crate::segments::Segments;
use crate::versions::Unverified;
use crate::view::{BranchId, BranchInfo, SnapshotId, SnapshotInfo};

/// How many blocks or holes of nodes are merged or dropped in one poll.
const MERGED_PER_POLL: usize = 4096;
/// Upper bound on older versions that one search for unverified blocks looks at.
const VERSIONS_SEARCHED_MAX: usize = 16 * 1024;

/// The views of a volume: the map of what each has, the versions retained for them, and what holes have still to hide.
pub(super) struct Views {
    pub(super) map: BlockMap,
    pub(super) retention: Retention,
    pub(super) hiding: Hiding,
    /// How many identities of snapshots this opening has given.
    snapshots_named: u64,
}

impl Views {
    pub(super) fn new(map: BlockMap) -> Views {
        Views { map, retention: Retention::default(), hiding: Hiding::default(), snapshots_named: 0 }
    }

    /// Differs from every other, also of other stores: derived from an opening's random number and how many it gave before.
    fn new_snapshot_id(&mut self, open_id: u64) -> u64 {
        self.snapshots_named += 1;
        let mut mixed = open_id ^ self.snapshots_named.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).max(1)
    }

    /// Evicts retained versions over the budget, a slice of them; whether there are more.
    pub(super) fn evict(&mut self, segments: &mut Segments, volume: &Volume) -> bool {
        self.retention.evict(&mut self.map, segments, volume)
    }

    /// Hides what holes cover, as much as this poll allows; whether that was anything.
    pub(super) fn advance_hiding(&mut self, segments: &mut Segments, volume: &Volume) -> bool {
        self.hiding.advance(&mut self.map, segments, &mut self.retention, volume)
    }

    /// Whether nodes are to be merged or dropped.
    fn has_merging(&self) -> bool {
        !self.map.catalogue.is_trivial() && self.map.has_work()
    }

    /// Merges and drops nodes, a slice; whether there is more to do.
    fn merge_nodes(&mut self, segments: &mut Segments, volume: &Volume) -> bool {
        let excess = self.evict(segments, volume);
        if self.map.catalogue.is_trivial() {
            return excess;
        }
        if self.hiding.is_busy() {
            return true;
        }
        let mut gone = Vec::new();
        self.map.work(MERGED_PER_POLL, &mut gone);
        for gone in gone {
            match gone {
                Gone::Block { branch: Some(branch), lba, version } if volume.is_sealed() => {
                    self.map.versions.keep(branch, lba, version, version.sequence());
                }
                Gone::Block { version, .. } | Gone::Version(version) => segments.sub_live_block(version),
                Gone::Hole(hole) => segments.sub_live(hole.place.segment, hole.live_bytes()),
            }
        }
        self.evict(segments, volume) || self.map.has_work()
    }
}

impl Store {
    /// Every snapshot, in the order in which they were taken.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        let catalogue = &self.views.map.catalogue;
        let weight = self.volume.layout.live_block_bytes();
        let info = |snapshot: &crate::catalogue::Snapshot| {
            let table = self.views.map.table(snapshot.node);
            SnapshotInfo {
                id: SnapshotId(snapshot.id),
                name: snapshot.name.clone(),
                branch: BranchId(snapshot.branch),
                created_seconds: snapshot.created,
                bytes_written: table.index.len() * weight,
                clones: catalogue.clones_of(snapshot.id),
            }
        };
        catalogue.snapshots.iter().map(info).collect()
    }

    /// A number that changes whenever the contents of a branch are replaced (a rollback, a reception), and only then: not with writes, and not
    /// with snapshots that are taken or deleted. It orders nothing. `None`: there is no such branch.
    pub fn image_of(&self, branch: BranchId) -> Option<u64> {
        self.views.map.catalogue.unbroken_since(branch.0)
    }

    /// The volume and every clone.
    pub fn branches(&self) -> Vec<BranchInfo> {
        let weight = self.volume.layout.live_block_bytes();
        let own = self.views.map.catalogue.branches.iter().filter(|(_, branch)| branch.receiving == 0);
        own.map(|(&id, branch)| BranchInfo {
            id: BranchId(id),
            name: branch.name.clone(),
            volume_id: branch.volume_id,
            from: Some(SnapshotId(branch.from)).filter(|from| from.0 != 0),
            created_seconds: branch.created,
            bytes_written: self.views.map.table(branch.node).index.len() * weight,
            is_kept: self.is_kept(branch.node),
        })
        .collect()
    }

    /// Whether nothing was written to the node of a branch, neither blocks nor holes, and a snapshot has what is below it.
    fn is_kept(&self, node: NodeId) -> bool {
        let (catalogue, table) = (&self.views.map.catalogue, self.views.map.table(node));
        let is_empty = table.index.len() == 0 && table.holes.len() == 0;
        let has_snapshot = |parent| catalogue.snapshots.iter().any(|snapshot| snapshot.node == parent);
        is_empty && catalogue.parent(node).is_none_or(has_snapshot)
    }

    /// Takes in a change of the catalogue. Its answer waits until it is durable.
    pub(super) fn take_in_change(&mut self, token: Token, branch: u32, op: Op, bytes: usize) -> Result<(), OpError> {
        let created = (self.opening.options.clock_seconds)();
        let change = match op {
            Op::SnapshotCreate { name } => {
                Change::SnapshotCreate { id: self.views.new_snapshot_id(self.log.head.open_id), branch, created, name }
            }
            Op::SnapshotDelete { id } => Change::SnapshotDelete { id: id.0 },
            Op::Rollback { to } => Change::Rollback { to: to.0 },
            Op::CloneCreate { from, name, volume_id } => {
                Change::CloneCreate { branch: 0, from: from.0, created, volume_id, name }
            }
            Op::CloneDelete { branch } => Change::CloneDelete { branch: branch.0 },
            _ => return Err(OpError::Misuse("no change of the catalogue")),
        };
        self.enqueue(WriteRequest::new(token, branch, Content::Change(Box::new(change)), bytes).durable_if(true))
    }

    /// Whether nodes are being merged or dropped, or are going to be: that frees space.
    pub(super) fn nodes_go_on(&self) -> bool {
        !self.durability.round.is_opening() && !self.requests.is_refused() && self.views.has_merging()
    }

    /// Merges and drops nodes, a slice; whether there is more to do.
    pub(super) fn merge_views(&mut self) -> bool {
        let halted = self.durability.round.is_opening() || self.requests.is_refused();
        !halted && self.views.merge_nodes(&mut self.segments, &self.volume)
    }

    /// What to verify next: blocks of a branch, from `from` on and at most `blocks_max`, of each of which an older version is retained
    /// that feedback could release.
    pub fn unverified(&self, branch: BranchId, from: Lba, blocks_max: u32) -> Unverified {
        self.views.map.versions.run_from(branch.0, from.0, blocks_max, VERSIONS_SEARCHED_MAX)
    }
}
