//! Snapshots, clones and rollbacks: changes of the catalogue are queued like writes, each in a group of its own; what no
//! view needs afterwards is merged or dropped in slices.

use strongroom_block::{Lba, StoreSequence};

use super::access::LogMedium;
use super::hiding::Hiding;
use super::requests::Requests;
use super::retention::Retention;
use crate::catalogue::{Change, NodeId};
use crate::map::{BlockMap, Gone};
use crate::op::{Op, OpError};
use crate::segments::Segments;

/// How many blocks or holes of nodes are merged or dropped in one poll.
const MERGED_PER_POLL: usize = 4096;
/// Upper bound on versions that one request with feedback releases.
const RELEASED_PER_REQUEST: usize = 16384;

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
    pub(super) fn evict(&mut self, medium: &mut LogMedium) -> bool {
        self.retention.evict(&mut self.map, &mut medium.segments, &medium.volume)
    }

    /// Hides what holes cover, as much as this poll allows, and answers requests for holes; whether that was anything.
    pub(super) fn advance_hiding(&mut self, requests: &mut Requests, medium: &mut LogMedium) -> bool {
        let LogMedium { segments, volume, .. } = medium;
        let mut progress = self.hiding.advance(&mut self.map, segments, &mut self.retention, volume);
        while let Some(finished) = self.hiding.next_answered() {
            requests.complete(finished.token, finished.bytes, finished.answer());
            progress = true;
        }
        progress
    }

    /// Feedback of a reader on blocks of a view, as pairs of block and sequence. Returns the number of versions that it released.
    pub(super) fn verified(&mut self, segments: &mut Segments, node: NodeId, pairs: Vec<(Lba, StoreSequence)>) -> u64 {
        let mut fuel = RELEASED_PER_REQUEST;
        let mut released = 0;
        for (lba, sequence) in pairs {
            released += self.retention.verified(&mut self.map, segments, node, (lba.0, sequence.0), &mut fuel);
        }
        released
    }

    /// # Errors
    /// [`OpError::Depended`] if there is more than the volume itself.
    pub(super) fn check_none(&self) -> Result<(), OpError> {
        let catalogue = &self.map.catalogue;
        if catalogue.snapshots.is_empty() && catalogue.branches.len() == 1 {
            return Ok(());
        }
        let depended = "the volume has snapshots or clones (or one is being received), and an erase would leave nothing of \
                        them; delete those first";
        Err(OpError::Depended(depended))
    }

    /// The change of the catalogue that a request asks for.
    ///
    /// # Errors
    /// [`OpError::Misuse`] if it asks for another thing.
    pub(super) fn change_of(&mut self, op: Op, branch: u32, created: u64, open_id: u64) -> Result<Change, OpError> {
        Ok(match op {
            Op::SnapshotCreate { name } => {
                Change::SnapshotCreate { id: self.new_snapshot_id(open_id), branch, created, name }
            }
            Op::SnapshotDelete { id } => Change::SnapshotDelete { id: id.0 },
            Op::Rollback { to } => Change::Rollback { to: to.0 },
            Op::CloneCreate { from, name, volume_id } => {
                Change::CloneCreate { branch: 0, from: from.0, created, volume_id, name }
            }
            Op::CloneDelete { branch } => Change::CloneDelete { branch: branch.0 },
            _ => return Err(OpError::Misuse("no change of the catalogue")),
        })
    }

    /// Retained versions make way for a request: whether the limit is lower than before, and whether any were dropped.
    pub(super) fn drop_versions(&mut self, medium: &mut LogMedium) -> (bool, bool) {
        let before = self.map.versions.len();
        let is_lower = self.retention.lower_limit(&self.map, &medium.volume);
        let any = self.evict(medium) || self.map.versions.len() < before;
        (is_lower, any)
    }

    /// Whether nodes are to be merged or dropped.
    pub(super) fn has_merging(&self) -> bool {
        !self.map.catalogue.is_trivial() && self.map.has_work()
    }

    /// Merges and drops nodes, a slice; whether there is more to do.
    pub(super) fn merge_nodes(&mut self, medium: &mut LogMedium) -> bool {
        let excess = self.evict(medium);
        if self.map.catalogue.is_trivial() {
            return excess;
        }
        if self.hiding.is_busy() {
            return true;
        }
        let mut gone = Vec::new();
        self.map.work(MERGED_PER_POLL, &mut gone);
        let LogMedium { segments, volume, .. } = &mut *medium;
        for gone in gone {
            match gone {
                Gone::Block { branch: Some(branch), lba, version } if volume.is_sealed() => {
                    self.map.versions.keep(branch, lba, version, version.sequence());
                }
                Gone::Block { version, .. } | Gone::Version(version) => segments.sub_live_block(version),
                Gone::Hole(hole) => segments.sub_live(hole.place.segment, hole.live_bytes()),
            }
        }
        self.evict(medium) || self.map.has_work()
    }
}
