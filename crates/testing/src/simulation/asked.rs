//! Requests that were sent to the store and not answered yet, with what their answers are compared with.

use std::collections::HashMap;

use strongroom_block::Stamp;
use strongroom_store::OpError;

/// What was asked and not answered.
pub(super) enum Asked {
    Write { fua: bool },
    Condition(Condition),
    Hole,
    Read { branch: u32, lba: u64, floor: Vec<u64> },
    Version { lba: u64, older_than: u64, must: Option<u64> },
    Flush { mark: u64 },
    SnapshotCreate { branch: u32, floor: Vec<u64> },
    SnapshotDelete { id: u64 },
    Change,
    Grow,
    Erase,
    Verified,
}

/// All requests that were not answered.
pub(super) struct PendingRequests {
    asked: HashMap<u64, Asked>,
    next_op: u64,
}

impl PendingRequests {
    pub(super) fn new() -> PendingRequests {
        PendingRequests { asked: HashMap::new(), next_op: 1 }
    }

    /// The name of the next request.
    pub(super) fn upcoming_op(&self) -> u64 {
        self.next_op
    }

    /// Names a request.
    pub(super) fn next_op(&mut self) -> u64 {
        self.next_op += 1;
        self.next_op - 1
    }

    /// Names a request, which is sent now.
    pub(super) fn ask(&mut self, asked: Asked) -> u64 {
        let op = self.next_op();
        self.insert(op, asked);
        op
    }

    pub(super) fn insert(&mut self, op: u64, asked: Asked) {
        self.asked.insert(op, asked);
    }

    /// A request was answered.
    pub(super) fn take(&mut self, op: u64) -> Asked {
        self.asked.remove(&op).expect("asked once, answered once")
    }

    /// A crash: nothing is answered any more.
    pub(super) fn forget(&mut self) {
        self.asked.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.asked.len()
    }
}

/// A condition, and what it meets if nothing comes in between.
pub(super) struct Condition {
    pub(super) fua: bool,
    /// Nobody ever wrote what it wants.
    pub(super) impossible: bool,
    /// It holds now.
    pub(super) holds: bool,
    /// Where what is there differs first, in bytes.
    pub(super) differs_at: u64,
    /// The stamp that is there.
    pub(super) stamp: Option<Stamp>,
}

impl Condition {
    /// The write was done.
    pub(super) fn was_met(&self, contended: bool) {
        assert!(!self.impossible, "written although nothing meets its condition");
        assert!(contended || self.holds, "written although its condition did not hold");
    }

    /// The write was refused.
    pub(super) fn was_not_met(&self, contended: bool, error: &OpError) {
        if contended {
            return;
        }
        assert!(!self.holds, "refused although its condition held: {error}");
        match *error {
            OpError::Miscompare { offset_bytes } => assert_eq!(offset_bytes, self.differs_at, "where it differs"),
            OpError::StampDiffers { found, .. } => assert_eq!(found, self.stamp, "what is there"),
            ref other => panic!("{other:?} is not about a condition"),
        }
    }
}
