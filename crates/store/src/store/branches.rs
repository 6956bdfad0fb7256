//! Snapshots, clones and rollbacks: changes of the catalogue are queued like writes, each in a group of its own; what no
//! view needs afterwards is merged or dropped in slices. And feedback, noted in the log so that it outlives an opening.

use std::collections::{BTreeMap, VecDeque};

use strongroom_block::{Lba, Token};

use super::Store;
use super::append::{Content, WriteOp};
use super::gate::Gate;
use super::group::GroupKind;
use crate::catalogue::{Change, NodeId};
use crate::index::Version;
use crate::map::Gone;
use crate::op::{Op, OpError};
use crate::unit::{UnitBuilder, VERIFIED_PAIR};
use crate::versions::Unverified;
use crate::view::{BranchId, BranchInfo, SnapshotId, SnapshotInfo};

/// How many blocks or holes of nodes are merged or dropped in one poll.
const WORK_PER_POLL: usize = 4096;
/// Upper bound on older versions that one search for unverified blocks looks at.
const VERSIONS_LOOKED_AT_MAX: usize = 16 * 1024;
/// Upper bound on feedback that waits for a unit to go with; the oldest is forgotten, which costs only space.
const FEEDBACK_MAX: usize = 65536;

/// Feedback that released something and is not in the log yet: branch, block, sequence.
#[derive(Default)]
pub(super) struct Feedback {
    pairs: VecDeque<(u32, u64, u64)>,
    /// Nothing else is going on: it may have a unit of its own.
    pub(super) wanted: bool,
}

impl Feedback {
    /// Memory taken, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.pairs.capacity() * size_of::<(u32, u64, u64)>()
    }
}

impl Store {
    /// Every snapshot, in the order in which they were taken.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        let catalogue = &self.map.catalogue;
        let weight = self.layout.live_block_bytes();
        let info = |snapshot: &crate::catalogue::Snapshot| {
            let table = self.map.table(snapshot.node);
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

    /// The volume and every clone.
    pub fn branches(&self) -> Vec<BranchInfo> {
        let weight = self.layout.live_block_bytes();
        let own = self.map.catalogue.branches.iter().filter(|(_, branch)| branch.receiving == 0);
        own.map(|(&id, branch)| BranchInfo {
            id: BranchId(id),
            name: branch.name.clone(),
            volume_id: branch.volume_id,
            from: Some(SnapshotId(branch.from)).filter(|from| from.0 != 0),
            created_seconds: branch.created,
            bytes_written: self.map.table(branch.node).index.len() * weight,
            is_kept: self.is_kept(branch.node),
        })
        .collect()
    }

    /// Whether nothing was written to the node of a branch, neither blocks nor holes, and a snapshot has what is below it.
    fn is_kept(&self, node: NodeId) -> bool {
        let (catalogue, table) = (&self.map.catalogue, self.map.table(node));
        let is_empty = table.index.len() == 0 && table.holes.len() == 0;
        let has_snapshot = |parent| catalogue.snapshots.iter().any(|snapshot| snapshot.node == parent);
        is_empty && catalogue.parent(node).is_none_or(has_snapshot)
    }

    /// Takes in a change of the catalogue. Its answer waits until it is durable.
    pub(super) fn take_in_change(&mut self, token: Token, branch: u32, op: Op, bytes: usize) -> Result<(), OpError> {
        let created = (self.options.clock_seconds)();
        let change = match op {
            Op::SnapshotCreate { name } => Change::SnapshotCreate { id: self.new_snapshot_id(), branch, created, name },
            Op::SnapshotDelete { id } => Change::SnapshotDelete { id: id.0 },
            Op::Rollback { to } => Change::Rollback { to: to.0 },
            Op::CloneCreate { from, name, volume_id } => {
                Change::CloneCreate { branch: 0, from: from.0, created, volume_id, name }
            }
            Op::CloneDelete { branch } => Change::CloneDelete { branch: branch.0 },
            _ => return Err(OpError::Misuse("no change of the catalogue")),
        };
        self.enqueue(token, branch, Content::Change(Box::new(change)), Gate::Open, true, bytes)
    }

    /// Differs from every other, also of other stores: an opening's random number and how many it gave before.
    fn new_snapshot_id(&mut self) -> u64 {
        self.snapshots_named += 1;
        let mut mixed = self.head.open_id ^ self.snapshots_named.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).max(1)
    }

    /// Why a queued request can never go on: its branch is gone, or its change cannot be made.
    pub(super) fn cannot_go_on(&mut self) -> Option<OpError> {
        let next_branch = self.map.catalogue.next_branch();
        if let Content::Change(change) = &mut self.queue.front_mut()?.content
            && let Change::CloneCreate { branch, .. } | Change::ReceiveBegin { branch, .. } = &mut **change
        {
            *branch = next_branch;
        }
        let op: &WriteOp = self.queue.front()?;
        match &op.content {
            Content::Change(change) => self.map.catalogue.check(change).err().or_else(|| self.would_lose(change)),
            _ => self.map.catalogue.head(op.branch).is_none().then_some(OpError::NoSuchView),
        }
    }

    /// A change is in the log.
    pub(super) fn apply_change(&mut self, change: &Change, sequence: u64) {
        self.map.catalogue.apply(change, sequence).expect("checked before it was written, alone in its group");
        if let Change::CloneDelete { branch } = *change {
            self.operations.forget_branch(branch);
        }
        self.map.grown();
        self.note_catalogue();
    }

    /// Whether nodes are being merged or dropped, or are going to be: that gives space.
    pub(super) fn nodes_go_on(&self) -> bool {
        let may = !self.round.is_opening() && self.refused.is_none();
        may && !self.map.catalogue.is_trivial() && self.map.has_work()
    }

    /// Merges and drops nodes, a slice; whether there is more to do.
    pub(super) fn work_on_nodes(&mut self) -> bool {
        if self.round.is_opening() || self.refused.is_some() {
            return false;
        }
        let excess = self.evict_over_budget();
        if self.map.catalogue.is_trivial() {
            return excess;
        }
        if self.hiding.is_busy() {
            return true;
        }
        let mut gone = Vec::new();
        self.map.work(WORK_PER_POLL, &mut gone);
        let sealed = self.info.kind.is_sealed();
        for gone in gone {
            match gone {
                Gone::Block { branch: Some(branch), lba, version } if sealed => {
                    self.map.versions.keep(branch, lba, version, version.sequence());
                }
                Gone::Block { version, .. } | Gone::Version(version) => self.live_sub(version),
                Gone::Hole(hole) => self.segments.sub_live(hole.place.segment, hole.live_bytes()),
            }
        }
        self.evict_over_budget() || self.map.has_work()
    }

    /// What to verify next, for whoever can: blocks of a branch, from `from` on and at most `blocks_max`, of each of which an older
    /// version is kept that feedback could release.
    pub fn unverified(&self, branch: BranchId, from: Lba, blocks_max: u32) -> Unverified {
        self.map.versions.run_from(branch.0, from.0, blocks_max, VERSIONS_LOOKED_AT_MAX)
    }

    /// Feedback released something: the log shall say so.
    pub(super) fn note_feedback(&mut self, branch: u32, lba: u64, sequence: u64) {
        if self.feedback.pairs.len() == FEEDBACK_MAX {
            self.feedback.pairs.pop_front();
        }
        self.feedback.pairs.push_back((branch, lba, sequence));
    }

    /// Appends feedback that no write took along.
    pub(super) fn append_feedback(&mut self) -> bool {
        self.feedback.wanted &= !self.feedback.pairs.is_empty();
        // It is worth a unit, not the reserve.
        if !self.feedback.wanted || self.segments.free_count() <= self.reserved_segments() {
            return false;
        }
        let Some(limit) = self.unit_limit(self.least_unit_blocks()) else { return true };
        let mut unit = UnitBuilder::new(self.layout, limit);
        self.push_feedback(&mut unit);
        self.append_unit(unit, Vec::new(), Vec::new(), GroupKind::Writes, true);
        true
    }

    /// Puts feedback into what is left of a unit's last record block: so it costs nothing.
    pub(super) fn push_feedback(&mut self, unit: &mut UnitBuilder) {
        while let Some(&(branch, ..)) = self.feedback.pairs.front() {
            let same = self.feedback.pairs.iter().take_while(|(of, ..)| *of == branch);
            let pairs: Vec<u8> = same
                .take(crate::layout::RECORD_BLOCK / VERIFIED_PAIR)
                .flat_map(|(_, lba, sequence)| [lba.to_be_bytes(), sequence.to_be_bytes()])
                .flatten()
                .collect();
            let taken = unit.push_verified(branch, &pairs);
            if taken == 0 {
                return;
            }
            self.feedback.pairs.drain(..taken);
        }
    }
}

/// Of recovery: the newest sequence of each block that a reader verified.
#[derive(Default)]
pub(crate) struct Verified(BTreeMap<(u32, u64), u64>);

impl Verified {
    pub(crate) fn note(&mut self, branch: u32, lba: u64, sequence: u64) {
        let newest = self.0.entry((branch, lba)).or_default();
        *newest = sequence.max(*newest);
    }

    /// Releases what it says.
    pub(crate) fn release(self, map: &mut crate::map::BlockMap) {
        let (mut released, mut fuel): (Vec<Version>, usize) = (Vec::new(), usize::MAX);
        for ((branch, lba), sequence) in self.0 {
            let catalogue = &map.catalogue;
            let Some(node) = catalogue.node_of(branch, sequence) else { continue };
            let same = |branch, sequence| catalogue.node_of(branch, sequence) == Some(node);
            map.versions.release_below(lba, sequence, &mut fuel, same, |version| released.push(version));
        }
    }
}
