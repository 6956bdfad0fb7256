//! Memory: what an open store holds, and how its owner bounds it. The owner shares one budget between many stores: it reads
//! [`Store::memory`], shrinks caches and stops admitting requests. Absent: the budget itself.

use crate::op::Op;

/// Which requests a store accepts. Others are answered [`OpError::Busy`](crate::OpError::Busy). Requests that were accepted before,
/// cleaning, checkpoints and merging go on in any case, and so do flushes, feedback, deletions, rollbacks and erasing: they free memory
/// or need none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Admission {
    /// All of them.
    #[default]
    All,
    /// None that may make the index larger: no writes, sealed holes, snapshots, clones or growth. Reads and discards are accepted.
    NoGrowth,
    /// None that needs memory: no reads or discards either.
    Essential,
}

impl Admission {
    pub(super) fn admits(self, op: &Op) -> bool {
        let needs = match op {
            Op::Flush
            | Op::Verified { .. }
            | Op::RegisterAttachment { .. }
            | Op::SnapshotDelete { .. }
            | Op::Rollback { .. }
            | Op::CloneDelete { .. }
            | Op::Erase
            | Op::CryptoErase => return true,
            Op::Read { .. }
            | Op::ReadMedium { .. }
            | Op::ReadRuns { .. }
            | Op::ReadVersion { .. }
            | Op::Discard { .. } => Admission::NoGrowth,
            Op::Write { .. }
            | Op::ConditionalWrite { .. }
            | Op::CompareAndWrite { .. }
            | Op::Hole { .. }
            | Op::ConditionalHole { .. }
            | Op::SnapshotCreate { .. }
            | Op::CloneCreate { .. }
            | Op::Grow { .. } => Admission::All,
        };
        self <= needs
    }
}

/// Memory that an open store holds, in bytes. Counted, but for what is marked as estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// The index of mapped blocks, those of snapshots and clones included.
    pub index_bytes: u64,
    /// Holes (estimated from their number).
    pub hole_bytes: u64,
    /// Older versions, retained or pinned (estimated from their number).
    pub version_bytes: u64,
    /// The table of segments.
    pub segment_bytes: u64,
    /// Cached record blocks and data.
    pub cache_bytes: u64,
    /// Data of accepted requests, written or to be read.
    pub request_bytes: u64,
    /// Segments that cleaning has read, or is reading, and the list of what is live in them.
    pub cleaning_bytes: u64,
    /// Queues of feedback, reads and I/O (estimated).
    pub other_bytes: u64,
}

impl MemoryUse {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.index_bytes
            + self.hole_bytes
            + self.version_bytes
            + self.segment_bytes
            + self.cache_bytes
            + self.request_bytes
            + self.cleaning_bytes
            + self.other_bytes
    }
}
