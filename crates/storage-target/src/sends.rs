//! The snapshots that streams are being made of.

use std::sync::{Mutex, MutexGuard, PoisonError};

use strongroom_store::SnapshotId;

/// Each snapshot once for every stream: those that are sent, and those that the streams build on.
#[derive(Debug, Default)]
pub(crate) struct SendsUnderWay(Mutex<Vec<SnapshotId>>);

impl SendsUnderWay {
    /// Whether a stream would end if this snapshot were deleted.
    pub(crate) fn concern(&self, snapshot: SnapshotId) -> bool {
        self.list().contains(&snapshot)
    }

    /// Counts a stream's snapshots until the returned entry is dropped.
    pub(crate) fn begin(&self, snapshots: Vec<SnapshotId>) -> SendUnderWay<'_> {
        self.list().extend(&snapshots);
        SendUnderWay { all: self, snapshots }
    }

    fn list(&self) -> MutexGuard<'_, Vec<SnapshotId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct SendUnderWay<'a> {
    all: &'a SendsUnderWay,
    snapshots: Vec<SnapshotId>,
}

impl Drop for SendUnderWay<'_> {
    fn drop(&mut self) {
        let mut list = self.all.list();
        for snapshot in &self.snapshots {
            if let Some(at) = list.iter().position(|listed| listed == snapshot) {
                list.swap_remove(at);
            }
        }
    }
}
