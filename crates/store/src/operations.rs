//! Operation windows: which requests of which attach id were executed, so that none of them is executed twice.
//!
//! A request of a sealed unit is named by an attach id and as many counters as it has blocks. Of each attach id that is
//! registered on a branch the exact set of executed counters is kept, and written with the data: in every segment table, and in
//! the log behind it. Absent: what is answered, which is `store/operations.rs`.

mod window;

use std::collections::HashMap;

use rustc_hash::FxHashMap;
use strongroom_block::{AttachId, Stamp};
use window::Window;

use crate::layout::{be_u32, be_u64};

/// Upper bound on attach ids that are known at a time.
pub(crate) const ATTACH_IDS_MAX: usize = 1024;
/// Upper bound on the bytes of all windows in a segment table, for any size of segments.
pub(crate) const OPERATIONS_BYTES_MAX: usize = 1 << 20;
/// The windows take at most this share of a segment, so that a segment table stays small.
const SEGMENT_SHARE: u32 = 16;
/// Bytes in front of the windows.
const HEADER: usize = 8;
/// Bytes of a window in front of its intervals: branch, count of intervals, attach id, floor.
const WINDOW_HEADER: usize = 32;
/// Bytes of an interval.
const INTERVAL: usize = 16;

/// What is known of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// None of it was executed.
    New,
    /// All of it was executed.
    Completed,
    /// Some of its counters were executed.
    Overlaps,
    /// Nothing is known: the attach id is not registered, or its window no longer reaches back so far.
    Unknown,
}

/// The window of one attach id on one branch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Attachment {
    window: Window,
    /// When it was registered or executed anything last: the smallest is forgotten first.
    used: u64,
}

/// All windows of a store.
#[derive(Clone, Debug)]
pub(crate) struct Operations {
    /// Hashed without a secret: initiators choose the ids, but of no more than [`ATTACH_IDS_MAX`].
    attachments: FxHashMap<(u32, AttachId), Attachment>,
    /// Handed out as [`Attachment::used`].
    next_use: u64,
    /// What they take in a segment table, in bytes, and may take.
    bytes: usize,
    bytes_max: usize,
}

impl Operations {
    /// None, for a store with segments of this size.
    pub(crate) fn new(segment_bytes: u32) -> Operations {
        let bytes_max = ((segment_bytes / SEGMENT_SHARE) as usize).min(OPERATIONS_BYTES_MAX);
        Operations { attachments: FxHashMap::default(), next_use: 0, bytes: HEADER, bytes_max }
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.attachments.is_empty()
    }

    /// What they take in a segment table, in bytes.
    pub(crate) fn encoded_bytes(&self) -> u64 {
        if self.is_empty() { 0 } else { self.bytes as u64 }
    }

    pub(crate) fn is_registered(&self, branch: u32, id: AttachId) -> bool {
        self.attachments.contains_key(&(branch, id))
    }

    /// Makes an attach id known. If there are too many, the least recently used one of the branch that has most is forgotten: so
    /// the writers of one branch cannot push out those of another.
    pub(crate) fn register(&mut self, branch: u32, id: AttachId) {
        if self.is_registered(branch, id) {
            return;
        }
        while self.attachments.len() >= ATTACH_IDS_MAX || self.bytes + weight(&Window::default()) > self.bytes_max {
            let Some(oldest) = self.least_recently_used() else { return };
            self.forget(oldest);
        }
        self.insert(branch, id, Window::default());
    }

    /// A registration was not written after all.
    pub(crate) fn unregister(&mut self, branch: u32, id: AttachId) {
        self.forget((branch, id));
    }

    /// A branch is gone, and its windows with it.
    pub(crate) fn forget_branch(&mut self, branch: u32) {
        let gone: Vec<_> = self.attachments.keys().filter(|(of, _)| *of == branch).copied().collect();
        gone.into_iter().for_each(|key| self.forget(key));
    }

    /// What is known of `count` counters from an operation's on.
    pub(crate) fn standing(&self, branch: u32, operation: Stamp, count: u64) -> Standing {
        let attachment = self.attachments.get(&(branch, operation.attach_id));
        attachment.map_or(Standing::Unknown, |attachment| attachment.window.standing(operation.counter, count))
    }

    /// Notes `count` counters as executed. An attach id that is not known stays unknown.
    pub(crate) fn note(&mut self, branch: u32, operation: Stamp, count: u64) {
        let Some(attachment) = self.attachments.get_mut(&(branch, operation.attach_id)) else { return };
        attachment.used = self.next_use;
        self.next_use += 1;
        let before = weight(&attachment.window);
        attachment.window.note(operation.counter, count);
        self.bytes = self.bytes - before + weight(&attachment.window);
        while self.bytes > self.bytes_max {
            self.shrink();
        }
    }

    /// An operation that was noted was not executed after all.
    pub(crate) fn take_back(&mut self, branch: u32, operation: Stamp, count: u64) {
        let Some(attachment) = self.attachments.get_mut(&(branch, operation.attach_id)) else { return };
        let before = weight(&attachment.window);
        attachment.window.remove(operation.counter, count);
        self.bytes = self.bytes - before + weight(&attachment.window);
        while self.bytes > self.bytes_max {
            self.shrink();
        }
    }

    fn insert(&mut self, branch: u32, id: AttachId, window: Window) {
        self.bytes += weight(&window);
        self.attachments.insert((branch, id), Attachment { window, used: self.next_use });
        self.next_use += 1;
    }

    fn forget(&mut self, key: (u32, AttachId)) {
        if let Some(attachment) = self.attachments.remove(&key) {
            self.bytes -= weight(&attachment.window);
        }
    }

    /// Of the branch that has most attach ids.
    fn least_recently_used(&self) -> Option<(u32, AttachId)> {
        let mut of_branch: HashMap<u32, usize> = HashMap::new();
        self.attachments.keys().for_each(|(branch, _)| *of_branch.entry(*branch).or_default() += 1);
        let branch = of_branch.into_iter().max_by_key(|&(branch, count)| (count, branch))?.0;
        let mine = self.attachments.iter().filter(|((of, _), _)| *of == branch);
        mine.min_by_key(|(_, attachment)| attachment.used).map(|(&key, _)| key)
    }

    /// The window with most intervals forgets its lowest one.
    fn shrink(&mut self) {
        let largest = self.attachments.values_mut().max_by_key(|attachment| (attachment.window.len(), attachment.used));
        let Some(attachment) = largest else { return };
        let before = weight(&attachment.window);
        attachment.window.forget_lowest();
        self.bytes = self.bytes - before + weight(&attachment.window);
    }

    /// Their bytes in a segment table; none if there are none. Least recently used first.
    pub(crate) fn encode(&self) -> Vec<u8> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut all: Vec<_> = self.attachments.iter().collect();
        all.sort_unstable_by_key(|(_, attachment)| attachment.used);
        let mut out = Vec::with_capacity(self.bytes);
        out.extend_from_slice(&(all.len() as u64).to_be_bytes());
        for ((branch, id), Attachment { window, .. }) in all {
            out.extend_from_slice(&branch.to_be_bytes());
            out.extend_from_slice(&(window.len() as u32).to_be_bytes());
            out.extend_from_slice(&id.0);
            out.extend_from_slice(&window.floor().to_be_bytes());
            for (from, to) in window.intervals() {
                out.extend_from_slice(&from.to_be_bytes());
                out.extend_from_slice(&to.to_be_bytes());
            }
        }
        out
    }

    /// From their bytes, of a store with segments of this size. `None` if they are not possible.
    pub(crate) fn decode(bytes: &[u8], segment_bytes: u32) -> Option<Operations> {
        let mut operations = Operations::new(segment_bytes);
        if bytes.is_empty() {
            return Some(operations);
        }
        let (count, mut rest) = bytes.split_at_checked(HEADER)?;
        let count = be_u64(count, 0);
        if count == 0 || count > ATTACH_IDS_MAX as u64 {
            return None;
        }
        for _ in 0..count {
            let (header, tail) = rest.split_at_checked(WINDOW_HEADER)?;
            let (branch, intervals, floor) = (be_u32(header, 0), be_u32(header, 4) as usize, be_u64(header, 24));
            let id = AttachId(header[8..24].try_into().expect("16 bytes"));
            let (list, tail) = tail.split_at_checked(intervals.checked_mul(INTERVAL)?)?;
            let list = list.chunks_exact(INTERVAL).map(|interval| (be_u64(interval, 0), be_u64(interval, 8)));
            let window = Window::from_parts(floor, list.collect())?;
            if operations.is_registered(branch, id) {
                return None;
            }
            operations.insert(branch, id, window);
            rest = tail;
        }
        (rest.is_empty() && operations.bytes <= operations.bytes_max).then_some(operations)
    }
}

/// What a window takes of the budget, in bytes. One interval is always paid for: so the first operation finds its room.
fn weight(window: &Window) -> usize {
    WINDOW_HEADER + window.len().max(1) * INTERVAL
}

#[cfg(test)]
mod tests;
