//! Which part of the volume each I/O of a load goes to. A part of the length of one I/O is a *slot*, counted from the start of the load's
//! part of the volume.

use std::collections::HashSet;

use crate::pattern;
use crate::protocol::IoJob;

/// The order of slots, and those that are in flight.
pub(super) struct Addresses {
    is_random: bool,
    /// What is verified must not be in flight twice.
    is_exclusive: bool,
    slots: u64,
    random: u64,
    next: u64,
    in_flight: HashSet<u64>,
}

impl Addresses {
    pub(super) fn new(job: &IoJob) -> Addresses {
        Addresses {
            is_random: job.pattern.is_random(),
            is_exclusive: job.verify,
            slots: job.len / job.size,
            random: pattern::mix(job.seed),
            next: 0,
            in_flight: HashSet::new(),
        }
    }

    /// The slot of the next I/O; [`Addresses::release`] it when that has completed.
    pub(super) fn claim(&mut self) -> u64 {
        loop {
            let slot = self.next();
            if !self.is_exclusive || self.in_flight.insert(slot) {
                return slot;
            }
        }
    }

    pub(super) fn release(&mut self, slot: u64) {
        self.in_flight.remove(&slot);
    }

    /// The next slot in order, in flight or not.
    pub(super) fn next(&mut self) -> u64 {
        if !self.is_random {
            let slot = self.next;
            self.next = (slot + 1) % self.slots;
            return slot;
        }
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // The high half of the product is uniform enough for any number of slots.
        ((u128::from(pattern::mix(self.random)) * u128::from(self.slots)) >> 64) as u64
    }
}
