//! Entries that name the requests in a unit: operations that were executed, and attach ids that were registered.

use strongroom_block::{AttachId, Stamp};

use super::{ENTRY_HEADER, Entry, KIND_OPERATION, KIND_REGISTRATION, KIND_WINDOWS, UnitBuilder, UnitFault};
use crate::layout::be_u64;

/// Bytes of an attach id.
const ATTACH_ID: usize = 16;
/// Entries of operations that the next ones may join, at most: as many writers share a unit without an entry for each of their requests.
const JOINED_MAX: usize = 8;
/// Bytes of one entry.
pub(crate) const OPERATION_BYTES: usize = ENTRY_HEADER + ATTACH_ID;

/// An entry of operations that can still grow.
pub(super) struct OpenOperation {
    entry_at: usize,
    branch: u32,
    /// What would continue it.
    next: Stamp,
}

impl UnitBuilder {
    /// Adds the name of an executed operation with as many counters; false if the unit is full.
    pub(crate) fn push_operation(&mut self, branch: u32, operation: Stamp, count: u64) -> bool {
        let mut open = self.operations.iter_mut();
        if let Some(before) = open.find(|open| open.branch == branch && open.next == operation) {
            before.next.counter += count;
            let count_at = before.entry_at + 16;
            let count = be_u64(&self.records, count_at) + count;
            self.records[count_at..count_at + 8].copy_from_slice(&count.to_be_bytes());
            return true;
        }
        if self.room(OPERATION_BYTES, OPERATION_BYTES, 0).is_none() {
            return false;
        }
        let entry_at = self.at;
        self.start_entry(KIND_OPERATION, ATTACH_ID as u16, branch, operation.counter, count);
        self.put_padded(&operation.attach_id.0);
        if self.operations.len() == JOINED_MAX {
            self.operations.remove(0);
        }
        let next = Stamp { counter: operation.counter + count, ..operation };
        self.operations.push(OpenOperation { entry_at, branch, next });
        true
    }

    /// Adds the registration of an attach id; false if the unit is full.
    pub(crate) fn push_registration(&mut self, branch: u32, id: AttachId) -> bool {
        let fits = self.room(OPERATION_BYTES, OPERATION_BYTES, 0).is_some();
        if fits {
            self.start_entry(KIND_REGISTRATION, ATTACH_ID as u16, branch, 0, 0);
            self.put_padded(&id.0);
        }
        fits
    }

    /// Adds a piece of the operation windows, which are `total` bytes long; it begins at `at`. Returns how many bytes went in.
    pub(crate) fn push_windows(&mut self, at: usize, total: usize, bytes: &[u8]) -> usize {
        self.push_pieces(KIND_WINDOWS, at, total, bytes)
    }
}

/// Reads an entry of an operation or a registration.
pub(super) fn decode<'a>(kind: u8, branch: u32, numbers: (u64, u64), item: &[u8]) -> Result<Entry<'a>, UnitFault> {
    let id = item.try_into().map_err(|_| UnitFault("an attach id of another length"))?;
    let (attach_id, (counter, count)) = (AttachId(id), numbers);
    if kind == KIND_REGISTRATION {
        let plain = counter == 0 && count == 0;
        return plain
            .then_some(Entry::Registration { branch, attach_id })
            .ok_or(UnitFault("an impossible registration"));
    }
    let possible = counter.checked_add(count).is_some_and(|_| count > 0);
    let operation = Stamp { attach_id, counter };
    possible.then_some(Entry::Operation { branch, operation, count }).ok_or(UnitFault("an impossible operation"))
}
