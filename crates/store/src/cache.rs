//! Record blocks in memory, so that a random read need not fetch the checksum or seal record from the medium each time.

use std::collections::HashMap;

use strongroom_block::Buffer;

use crate::layout::RECORD_BLOCK;

/// Names a record block: generations are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RecordKey {
    pub(crate) generation: u64,
    /// In 4 KiB blocks from the start of the segment.
    pub(crate) block: u32,
}

struct Slot {
    key: RecordKey,
    block: Buffer,
    used: bool,
}

/// A clock over verified record blocks, bounded in bytes.
pub(crate) struct RecordCache {
    slots: Vec<Slot>,
    by_key: HashMap<RecordKey, usize>,
    hand: usize,
    slots_max: usize,
}

impl RecordCache {
    /// At most `bytes_max` bytes of record blocks (at least one block).
    pub(crate) fn new(bytes_max: usize) -> RecordCache {
        let slots_max = (bytes_max / RECORD_BLOCK).max(1);
        RecordCache { slots: Vec::new(), by_key: HashMap::new(), hand: 0, slots_max }
    }

    pub(crate) fn find(&mut self, key: RecordKey) -> Option<Buffer> {
        let slot = &mut self.slots[*self.by_key.get(&key)?];
        slot.used = true;
        Some(slot.block.clone())
    }

    pub(crate) fn insert(&mut self, key: RecordKey, block: Buffer) {
        debug_assert_eq!(block.len(), RECORD_BLOCK);
        let slot = Slot { key, block, used: false };
        // A place is written again after a voided group: the newer bytes count.
        if let Some(&at) = self.by_key.get(&key) {
            self.slots[at] = slot;
            return;
        }
        if self.slots.len() < self.slots_max {
            self.by_key.insert(key, self.slots.len());
            self.slots.push(slot);
            return;
        }
        while std::mem::take(&mut self.slots[self.hand].used) {
            self.hand = (self.hand + 1) % self.slots_max;
        }
        self.by_key.remove(&self.slots[self.hand].key);
        self.by_key.insert(key, self.hand);
        self.slots[self.hand] = slot;
        self.hand = (self.hand + 1) % self.slots_max;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_within_its_bound_and_keeps_what_is_used() {
        let mut cache = RecordCache::new(3 * RECORD_BLOCK);
        let key = |block| RecordKey { generation: 1, block };
        for block in 0..3 {
            cache.insert(key(block), Buffer::copy_from(&[block as u8; RECORD_BLOCK]));
        }
        assert_eq!(cache.find(key(0)).unwrap()[0], 0);
        cache.insert(key(3), Buffer::copy_from(&[3; RECORD_BLOCK]));
        assert!(cache.find(key(0)).is_some(), "used since the hand passed");
        assert!(cache.find(key(1)).is_none());
        assert_eq!(cache.slots.len(), 3);
        cache.insert(key(3), Buffer::copy_from(&[9; RECORD_BLOCK]));
        assert_eq!(cache.find(key(3)).unwrap()[0], 9, "the newer bytes count");
    }
}
