//! What a worker has of a volume while its store is open.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::catalogue::VolumeLock;
use crate::server::Shared;
use crate::stats::Counters;

/// A volume whose store is open: locked, and counted until this goes, even if its worker fails.
pub(super) struct Held {
    shared: Arc<Shared>,
    _lock: VolumeLock,
}

impl Held {
    pub(super) fn new(shared: &Arc<Shared>, lock: VolumeLock) -> Held {
        Counters::count(&shared.counters.volumes_open);
        Held { shared: Arc::clone(shared), _lock: lock }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.counters.volumes_open.fetch_sub(1, Ordering::Relaxed);
    }
}
