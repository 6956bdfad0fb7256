//! Watches how much space the store has left, logs when it gets scarce, and says when initiators must be told.

use strongroom_store::SpaceState;

use crate::names::VolumeName;
use crate::store_handle::StoreHandle;

/// Fill levels of a store that are logged, in percent of what it can have.
const LEVELS_PERCENT: [u8; 2] = [95, 80];
/// The fill level must fall by more than this before the same level is logged again.
const HYSTERESIS_PERCENT: u8 = 5;

/// What was reported last about the space of a store.
pub(super) struct SpaceWatch {
    reported: SpaceState,
    /// The highest of [`LEVELS_PERCENT`] that was logged; 0: none.
    logged_level_percent: u8,
}

impl Default for SpaceWatch {
    fn default() -> SpaceWatch {
        SpaceWatch { reported: SpaceState::Ample, logged_level_percent: 0 }
    }
}

impl SpaceWatch {
    /// Logs changes. Whether space has become scarce since the last call: then users get a unit attention (SBC-3 §4.7.3.7), once each time.
    pub(super) fn poll(&mut self, volume: &VolumeName, store: &StoreHandle) -> bool {
        self.log_level(volume, store);
        let now = store.space();
        if now == self.reported {
            return false;
        }
        let before = std::mem::replace(&mut self.reported, now);
        match now {
            SpaceState::Full => tracing::error!(
                %volume,
                host_free_bytes = store.stats().host_free_bytes,
                log_free_bytes = store.stats().log_free_bytes,
                "the store is full, and new data is refused. What is written can be read, written again and discarded, so a file system on \
                 the volume can still be mounted: delete files there and run fstrim, or delete snapshots, or make room where the store is \
                 (docs/admin.md, \"Space\")"
            ),
            SpaceState::NearlyFull => tracing::warn!(%volume, "the store is nearly full: make room before writes fail"),
            SpaceState::Ample => tracing::info!(%volume, "the store has room again"),
        }
        before == SpaceState::Ample
    }

    /// Logs once when the store reaches 80 and 95 percent of what it can have.
    fn log_level(&mut self, volume: &VolumeName, store: &StoreHandle) {
        let percent = store.space_percent();
        let level = LEVELS_PERCENT.into_iter().find(|&level| percent >= level).unwrap_or(0);
        if level > self.logged_level_percent {
            let room_bytes = store.stats().room_bytes;
            tracing::warn!(
                %volume, percent, room_bytes,
                "the store is nearly full: make room where it is, or delete files on the volume and run fstrim, before writes fail"
            );
        }
        if level > self.logged_level_percent || percent.saturating_add(HYSTERESIS_PERCENT) < self.logged_level_percent {
            self.logged_level_percent = level;
        }
    }
}
