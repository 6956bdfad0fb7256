//! What was read of the log, in memory: record blocks, so that a random read need not fetch a checksum or seal record from the
//! medium each time, and small pieces of data, which direct I/O would fetch again.
//!
//! Both hold only what matched its checksum when it was read or written. What lies at a place of the log never changes as
//! long as its segment has its generation, and generations are never reused: so nothing has to be taken out.

use std::hash::Hash;

use rustc_hash::FxHashMap;
use strongroom_block::Buffer;

/// Names a record block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RecordKey {
    pub(crate) generation: u64,
    /// In 4 KiB blocks from the start of the segment.
    pub(crate) block: u32,
}

/// Names the data of one of the volume's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DataKey {
    pub(crate) generation: u64,
    /// In bytes from the start of the log file.
    pub(crate) offset: u64,
}

struct Slot<K> {
    key: K,
    block: Buffer,
    used: bool,
}

/// A clock over blocks of one length, bounded in bytes.
pub(crate) struct Cache<K> {
    slots: Vec<Slot<K>>,
    by_key: FxHashMap<K, u32>,
    hand: usize,
    slots_max: usize,
    block_bytes: usize,
}

impl<K: Copy + Eq + Hash> Cache<K> {
    /// At most `bytes_max` bytes of blocks; nothing at all if that is less than one.
    pub(crate) fn new(bytes_max: usize, block_bytes: usize) -> Cache<K> {
        let slots_max = (bytes_max / block_bytes).min(u32::MAX as usize);
        Cache { slots: Vec::new(), by_key: FxHashMap::default(), hand: 0, slots_max, block_bytes }
    }

    /// Whether it keeps anything.
    pub(crate) fn is_on(&self) -> bool {
        self.slots_max > 0
    }

    /// What it holds, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.slots.len() as u64 * self.block_bytes as u64
    }

    /// Memory taken, in bytes: the blocks, their slots and their keys.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let slots = self.slots.capacity() * size_of::<Slot<K>>();
        let keys = self.by_key.capacity() * (size_of::<(K, u32)>() + 1);
        self.bytes() + (slots + keys) as u64
    }

    /// Another bound. What is over it goes; which blocks does not matter.
    pub(crate) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.slots_max = (bytes_max / self.block_bytes).min(u32::MAX as usize);
        if self.slots.len() > self.slots_max {
            for slot in self.slots.drain(self.slots_max..) {
                self.by_key.remove(&slot.key);
            }
            self.slots.shrink_to_fit();
            self.by_key.shrink_to_fit();
        }
        // The hand moves only while the cache is full.
        self.hand = 0;
    }

    /// What it holds at most, in bytes.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.slots_max as u64 * self.block_bytes as u64
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Cache::new(self.slots_max * self.block_bytes, self.block_bytes);
    }

    pub(crate) fn find(&mut self, key: K) -> Option<Buffer> {
        let slot = &mut self.slots[*self.by_key.get(&key)? as usize];
        slot.used = true;
        Some(slot.block.clone())
    }

    pub(crate) fn insert(&mut self, key: K, block: Buffer) {
        debug_assert_eq!(block.len(), self.block_bytes);
        let slot = Slot { key, block, used: false };
        // A place is written again after a voided group: the newer bytes count.
        if let Some(&at) = self.by_key.get(&key) {
            self.slots[at as usize] = slot;
            return;
        }
        if self.slots.len() < self.slots_max {
            self.by_key.insert(key, self.slots.len() as u32);
            self.slots.push(slot);
            return;
        }
        if self.slots_max == 0 {
            return;
        }
        while std::mem::take(&mut self.slots[self.hand].used) {
            self.hand = (self.hand + 1) % self.slots_max;
        }
        self.by_key.remove(&self.slots[self.hand].key);
        self.by_key.insert(key, self.hand as u32);
        self.slots[self.hand] = slot;
        self.hand = (self.hand + 1) % self.slots_max;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::RECORD_BLOCK;

    #[test]
    fn stays_within_its_bound_and_keeps_what_is_used() {
        let mut cache = Cache::new(3 * RECORD_BLOCK, RECORD_BLOCK);
        let key = |block| RecordKey { generation: 1, block };
        for block in 0..3 {
            cache.insert(key(block), Buffer::copy_from(&[block as u8; RECORD_BLOCK]));
        }
        assert_eq!(cache.find(key(0)).unwrap()[0], 0);
        cache.insert(key(3), Buffer::copy_from(&[3; RECORD_BLOCK]));
        assert!(cache.find(key(0)).is_some(), "used since the hand passed");
        assert!(cache.find(key(1)).is_none());
        assert_eq!((cache.slots.len(), cache.bytes()), (3, 3 * RECORD_BLOCK as u64));
        cache.insert(key(3), Buffer::copy_from(&[9; RECORD_BLOCK]));
        assert_eq!(cache.find(key(3)).unwrap()[0], 9, "the newer bytes count");
    }

    #[test]
    fn a_smaller_bound_takes_effect_at_once_and_a_larger_one_makes_room() {
        let mut cache = Cache::new(8 * RECORD_BLOCK, RECORD_BLOCK);
        let key = |block| RecordKey { generation: 1, block };
        let fill = |cache: &mut Cache<RecordKey>, blocks: std::ops::Range<u32>| {
            blocks.for_each(|block| cache.insert(key(block), Buffer::copy_from(&[block as u8; RECORD_BLOCK])));
        };
        fill(&mut cache, 0..12);
        let before = cache.memory_bytes();
        cache.set_bytes_max(2 * RECORD_BLOCK);
        assert_eq!((cache.bytes(), cache.bytes_max()), (2 * RECORD_BLOCK as u64, 2 * RECORD_BLOCK as u64));
        assert!(cache.memory_bytes() < before / 2);
        fill(&mut cache, 20..25);
        assert_eq!(cache.bytes(), 2 * RECORD_BLOCK as u64);
        let found = |cache: &mut Cache<RecordKey>| (0..50).filter(|&block| cache.find(key(block)).is_some()).count();
        assert_eq!(found(&mut cache), 2, "the keys are those of the blocks");
        cache.set_bytes_max(4 * RECORD_BLOCK);
        fill(&mut cache, 30..34);
        assert_eq!((cache.bytes(), found(&mut cache)), (4 * RECORD_BLOCK as u64, 4));
        cache.set_bytes_max(0);
        fill(&mut cache, 40..44);
        assert_eq!((cache.bytes(), cache.is_on()), (0, false));
    }

    #[test]
    fn without_room_for_a_block_it_is_off() {
        let mut cache = Cache::new(RECORD_BLOCK - 1, RECORD_BLOCK);
        let key = RecordKey { generation: 1, block: 0 };
        cache.insert(key, Buffer::copy_from(&[1; RECORD_BLOCK]));
        assert!(!cache.is_on() && cache.find(key).is_none() && cache.bytes() == 0);
    }
}
