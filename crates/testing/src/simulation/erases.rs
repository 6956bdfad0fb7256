//! What is known of erases of the volume.

use strongroom_store::{Store, StoreId};

use crate::{Faults, Random};

/// The erases of a run that has them.
pub(super) struct Erases {
    /// The store that there was last.
    pub(super) store_id: StoreId,
    /// One was asked for, and what came of it is not known.
    pub(super) asked: bool,
}

impl Erases {
    /// What goes wrong beside that, in one round. `fills_up`: the disk may be full. The faults, and whether writes fail.
    pub(super) fn rare_faults(faults: Faults, fills_up: bool, random: &mut Random) -> (Faults, bool) {
        let failing_writes = random.once_in(8);
        let faults = Faults {
            failing_write_once_in: if failing_writes { 60 } else { 0 },
            failing_allocation_once_in: if fills_up { 3 } else { 0 },
            failing_discard_once_in: if random.once_in(3) { 2 } else { 0 },
            ..faults
        };
        (faults, failing_writes)
    }

    /// The key of a cryptographic erase goes, or cannot be destroyed.
    pub(super) fn destroy_key(store: &mut Store, random: &mut Random) {
        if store.erase_awaits_key() {
            store.key_destroyed(random.once_in(2));
        }
    }
}
