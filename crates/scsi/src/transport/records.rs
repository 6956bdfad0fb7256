//! Seal records on their way through a transport: entries of one length, one per block, in one piece of memory, so that no block costs
//! an allocation.

use std::fmt;

use bytes::Bytes;
use strongroom_block::{SealRecord, StoreSequence};
use zeroize::Zeroize;

/// Entries of one length, one per block, in order.
///
/// Towards the target an entry is a seal record; towards the initiator a store sequence (u64, big-endian) and a seal record.
#[derive(Clone, PartialEq, Eq)]
pub struct SealRecords {
    entry_bytes: usize,
    entries: Bytes,
}

impl fmt::Debug for SealRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealRecords({} of {} bytes)", self.count(), self.entry_bytes)
    }
}

impl SealRecords {
    /// Entries of `entry_bytes` each, back to back; `None` if they are not whole or there is none.
    pub fn new(entry_bytes: usize, entries: Bytes) -> Option<SealRecords> {
        let is_whole = entry_bytes > 0 && !entries.is_empty() && entries.len().is_multiple_of(entry_bytes);
        is_whole.then_some(SealRecords { entry_bytes, entries })
    }

    /// Bytes in one entry.
    pub fn entry_bytes(&self) -> usize {
        self.entry_bytes
    }

    /// How many entries there are.
    pub fn count(&self) -> usize {
        self.entries.len() / self.entry_bytes
    }

    /// The entries.
    pub fn iter(&self) -> std::slice::ChunksExact<'_, u8> {
        self.entries.chunks_exact(self.entry_bytes)
    }

    /// The entries, back to back.
    pub fn as_bytes(&self) -> &[u8] {
        &self.entries
    }
}

/// The records of stored blocks on their way to the initiator, each behind its store sequence. The memory has room in front and behind
/// for a transport's framing, which therefore copies no record.
pub struct StoredRecords {
    /// The room in front, then the entries. Its capacity covers the room behind.
    memory: Vec<u8>,
    entry_bytes: usize,
    holds_keys: bool,
}

impl fmt::Debug for StoredRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoredRecords({} of {} bytes)", self.count(), self.entry_bytes)
    }
}

impl StoredRecords {
    /// Room in front of the entries, in bytes.
    pub const FRONT_BYTES: usize = 4;
    /// Room behind the entries, in bytes.
    pub const BACK_BYTES: usize = 3;

    /// Entries of `entry_bytes` each, sequence included. `holds_keys`: the records carry block keys, so the memory must be wiped.
    ///
    /// # Panics
    /// If there is no entry, or a record of another length.
    pub fn new<'a>(
        entry_bytes: usize,
        entries: impl ExactSizeIterator<Item = (StoreSequence, &'a SealRecord)>,
        holds_keys: bool,
    ) -> StoredRecords {
        assert!(entries.len() > 0, "at least one entry");
        let len_bytes = entries.len() * entry_bytes;
        // Allocated once: growing would leave a copy of block keys behind.
        let mut memory = Vec::with_capacity(Self::FRONT_BYTES + len_bytes + Self::BACK_BYTES);
        memory.extend_from_slice(&[0; Self::FRONT_BYTES]);
        for (sequence, record) in entries {
            assert_eq!(8 + record.as_bytes().len(), entry_bytes, "whole entries");
            memory.extend_from_slice(&sequence.0.to_be_bytes());
            memory.extend_from_slice(record.as_bytes());
        }
        StoredRecords { memory, entry_bytes, holds_keys }
    }

    /// Bytes in one entry.
    pub fn entry_bytes(&self) -> usize {
        self.entry_bytes
    }

    /// How many entries there are.
    pub fn count(&self) -> usize {
        (self.memory.len() - Self::FRONT_BYTES) / self.entry_bytes
    }

    /// The entries, back to back.
    pub fn as_bytes(&self) -> &[u8] {
        &self.memory[Self::FRONT_BYTES..]
    }

    /// The entries between `front` and `back_bytes` zeros, in the same memory; wiped on release where they hold block keys.
    ///
    /// # Panics
    /// If there is less room behind the entries.
    pub fn framed(mut self, front: [u8; Self::FRONT_BYTES], back_bytes: usize) -> Bytes {
        assert!(back_bytes <= Self::BACK_BYTES, "room was left for at most {} bytes", Self::BACK_BYTES);
        let mut memory = std::mem::take(&mut self.memory);
        memory[..Self::FRONT_BYTES].copy_from_slice(&front);
        memory.resize(memory.len() + back_bytes, 0);
        // Wiping takes longer than filling.
        if self.holds_keys { strongroom_block::wiped(memory) } else { Bytes::from(memory) }
    }
}

impl Drop for StoredRecords {
    fn drop(&mut self) {
        if self.holds_keys {
            self.memory.zeroize();
        }
    }
}
