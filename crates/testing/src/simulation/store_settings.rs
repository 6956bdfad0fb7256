//! How the store of a run is opened.

use strongroom_store::{OpenOptions, Planted};

use crate::Random;

/// The settings of a run.
pub(super) struct StoreSettings {
    planted: Planted,
    /// The store takes in few requests at a time.
    pub(super) few_requests: bool,
}

impl StoreSettings {
    pub(super) fn new(planted: Planted) -> StoreSettings {
        StoreSettings { planted, few_requests: false }
    }

    /// Those of the next opening.
    pub(super) fn choose(&mut self, random: &mut Random) -> OpenOptions {
        let checkpoint_log_bytes = match random.below(4) {
            0 => None,
            1 => Some(random.below(20_000)),
            2 => Some(100_000),
            _ => Some(400_000),
        };
        self.few_requests = random.once_in(6);
        OpenOptions {
            open_id: Some(random.number()),
            planted: self.planted,
            checkpoint_log_bytes,
            // Small units: then several are often in flight, of which any may reach the disk and any may not.
            append_unit_bytes_max: [12 << 10, 24 << 10, 264 << 10][random.below(3) as usize],
            cleaning_piece_bytes: [16 << 10, 64 << 10, 256 << 10][random.below(3) as usize],
            data_cache_bytes: if random.once_in(2) { 0 } else { 64 << 10 },
            record_cache_bytes: [0, 20_000, 32 << 20][random.below(3) as usize],
            hide_blocks_per_poll: [1, 300, 4096][random.below(3) as usize],
            queue_ops_max: if self.few_requests { 6 } else { 4096 },
            clock_seconds: || 1_700_000_000,
            ..OpenOptions::default()
        }
    }

    /// Those of another store, which takes in as much as it is sent.
    pub(super) fn of_replica(&mut self, random: &mut Random) -> OpenOptions {
        let few_requests = self.few_requests;
        let options = OpenOptions { queue_ops_max: 4096, ..self.choose(random) };
        self.few_requests = few_requests;
        options
    }
}
