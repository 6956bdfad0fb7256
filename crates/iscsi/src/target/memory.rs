//! The memory that one initiator can pin by a session: reserved for solicited writes, used by unsolicited data, and by read data that
//! was not sent yet.

use std::collections::VecDeque;

use crate::slots::Key;

/// What a session's data takes, in bytes.
#[derive(Debug)]
pub(super) struct SessionMemory {
    /// Upper bound on solicited and, separately, on unsolicited data; at most `configured_max`.
    max: u64,
    configured_max: u64,
    /// Reserved for solicited writes.
    reserved: u64,
    /// For what commands may send, or have sent, unsolicited.
    unsolicited: u64,
    /// Read data of responses that were not sent yet.
    unsent: u64,
    /// Writes that wait for memory before their first R2T, in order.
    waiting: VecDeque<Key>,
}

/// Whether data was requested by an R2T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Solicitation {
    Solicited,
    Unsolicited,
}

impl SessionMemory {
    pub(super) fn new(max: u64) -> SessionMemory {
        SessionMemory { max, configured_max: max, reserved: 0, unsolicited: 0, unsent: 0, waiting: VecDeque::new() }
    }

    /// Sets a smaller bound than the configured one; true if it grew.
    pub(super) fn set_max(&mut self, max: u64) -> bool {
        let before = std::mem::replace(&mut self.max, max.min(self.configured_max));
        self.max > before
    }

    pub(super) fn total(&self) -> u64 {
        self.reserved + self.unsolicited + self.unsent
    }

    pub(super) fn unsent(&self) -> u64 {
        self.unsent
    }

    pub(super) fn add_unsent(&mut self, bytes: u64) {
        self.unsent += bytes;
    }

    pub(super) fn release_unsent(&mut self, bytes: u64) {
        self.unsent -= bytes;
    }

    /// Whether there is so much unsolicited data that no more should be read.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.unsolicited > self.max - self.max / 4
    }

    /// Counts unsolicited data of a new command; false if there is no memory for it. A command that is alone is admitted.
    pub(super) fn admit_unsolicited(&mut self, bytes: u64) -> bool {
        if bytes > 0 && self.unsolicited > 0 && self.unsolicited + bytes > self.max {
            return false;
        }
        self.unsolicited += bytes;
        true
    }

    /// Counts `bytes` of data that arrived for a task, beyond the `counted` bytes that were set aside for it, of which `used` are used. More
    /// is needed where data comes in short PDUs. False: there is no more. For solicited data the bound is twice as high, since it
    /// had to be admitted before it was seen. A write that is alone is admitted.
    pub(super) fn grow(&mut self, kind: Solicitation, used: &mut u64, counted: &mut u64, bytes: u64) -> bool {
        let (all, max) = match kind {
            Solicitation::Unsolicited => (&mut self.unsolicited, self.max),
            Solicitation::Solicited => (&mut self.reserved, self.max.saturating_mul(2)),
        };
        *used += bytes;
        let more = used.saturating_sub(*counted);
        if more > 0 && *all > *counted && *all + more > max {
            return false;
        }
        *counted += more;
        *all += more;
        true
    }

    /// Has a write wait for memory.
    pub(super) fn wait(&mut self, key: Key) {
        self.waiting.push_back(key);
    }

    /// The write that has waited longest.
    pub(super) fn first_waiting(&self) -> Option<Key> {
        self.waiting.front().copied()
    }

    pub(super) fn stop_waiting(&mut self) {
        self.waiting.pop_front();
    }

    /// Reserves memory for a solicited write; false if it has to wait. One larger than the limit is admitted when it is alone.
    pub(super) fn reserve(&mut self, bytes: u64) -> bool {
        if self.reserved > 0 && self.reserved + bytes > self.max {
            return false;
        }
        self.reserved += bytes;
        true
    }

    pub(super) fn release_reserved(&mut self, bytes: u64) {
        self.reserved -= bytes;
    }

    pub(super) fn release_unsolicited(&mut self, bytes: u64) {
        self.unsolicited -= bytes;
    }

    pub(super) fn clear(&mut self) {
        (self.reserved, self.unsolicited, self.unsent) = (0, 0, 0);
        self.waiting.clear();
    }
}
