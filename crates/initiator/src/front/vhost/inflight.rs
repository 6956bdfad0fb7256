//! The in-flight buffer of vhost-user, for split virtqueues (vhost-user specification, "Inflight I/O tracking"): memory that the front end keeps
//! while the back end is killed and restarted, and that says which requests were taken and not answered.
//!
//! ```text
//! offset  bytes  of a queue's region                 offset  bytes  of a descriptor's entry
//!      0      8  features: none                           0      1  1 while the request is in flight
//!      8      2  version: 1                               1      5  unused
//!     10      2  entries                                  6      2  the entry before in the last batch
//!     12      2  head of the last batch                   8      8  counter: the order in which requests were taken
//!     14      2  index of the used ring
//!     16     16  for each descriptor
//! ```
//!
//! The order of the stores is what makes it safe to kill the process between any two of them. Absent: where the memory comes from.

use std::sync::atomic::Ordering;

use vm_memory::{AtomicAccess, Bytes, VolatileSlice};

const VERSION: u16 = 1;
const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;
/// Alignment of a region.
const REGION_ALIGN: usize = 64;

/// A buffer that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InflightError {
    /// It is for other queues.
    #[error("the in-flight buffer has {found} bytes, and {queues} queues of {queue_size} entries need {needed}")]
    Size {
        /// Its size.
        found: u64,
        /// What is needed.
        needed: u64,
        /// How many queues.
        queues: u16,
        /// Their entries.
        queue_size: u16,
    },
    /// Another program has made it.
    #[error("the in-flight buffer has version {0}, not 1")]
    Version(u16),
    /// It is too small for this ring.
    #[error("the in-flight buffer is for rings of {tracked} entries, and this one has {ring}")]
    Entries {
        /// Entries of the buffer.
        tracked: u16,
        /// Entries of the ring.
        ring: u16,
    },
    /// It contradicts the ring, so that nobody knows which requests were answered.
    #[error("the in-flight buffer and the used ring are {0} requests apart, more than the ring has")]
    Apart(u16),
    /// Its list of the last batch leads outside.
    #[error("the in-flight buffer names descriptor {0}, which the ring does not have")]
    Descriptor(u16),
}

/// How a buffer is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InflightLayout {
    pub(super) queues: u16,
    pub(super) queue_size: u16,
}

impl InflightLayout {
    /// Bytes of one queue's region.
    pub(super) fn region_bytes(self) -> usize {
        (HEADER_BYTES + ENTRY_BYTES * usize::from(self.queue_size)).next_multiple_of(REGION_ALIGN)
    }

    /// Bytes of all of it.
    pub(super) fn total_bytes(self) -> usize {
        self.region_bytes() * usize::from(self.queues)
    }

    /// Whether a buffer of this size is large enough.
    ///
    /// # Errors
    /// [`InflightError::Size`]: it is not.
    pub(super) fn check_size(self, found: u64) -> Result<(), InflightError> {
        let InflightLayout { queues, queue_size } = self;
        let needed = self.total_bytes() as u64;
        if found < needed { Err(InflightError::Size { found, needed, queues, queue_size }) } else { Ok(()) }
    }
}

/// What a restarted back end has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InflightRecovery {
    /// Heads of the requests that have to be executed again, in the order in which they were taken.
    pub(super) heads: Vec<u16>,
    /// The next counter.
    pub(super) counter: u64,
}

/// One queue's region.
#[derive(Debug)]
pub(super) struct InflightQueue<'a> {
    memory: VolatileSlice<'a>,
    entries: u16,
}

impl<'a> InflightQueue<'a> {
    /// A region that was opened or created for a ring of this many entries.
    pub(super) fn at(memory: VolatileSlice<'a>, entries: u16) -> InflightQueue<'a> {
        let needed = HEADER_BYTES + ENTRY_BYTES * usize::from(entries);
        assert!(needed <= memory.len(), "the size was checked before");
        InflightQueue { memory, entries }
    }

    /// A region for a ring of this many entries, in memory that is large enough.
    pub(super) fn create(memory: VolatileSlice<'a>, entries: u16) -> InflightQueue<'a> {
        let queue = InflightQueue::at(memory, entries);
        queue.store(8, VERSION);
        queue.store(10, entries);
        queue
    }

    /// A region that is there, for a ring of `ring` entries.
    ///
    /// # Errors
    /// It is of another version, or for another ring.
    pub(super) fn open(memory: VolatileSlice<'a>, ring: u16) -> Result<InflightQueue<'a>, InflightError> {
        let queue = InflightQueue { memory, entries: ring };
        let (version, tracked) = (queue.load::<u16>(8), queue.load::<u16>(10));
        if version != VERSION {
            return Err(InflightError::Version(version));
        }
        let fits = HEADER_BYTES + ENTRY_BYTES * usize::from(ring) <= queue.memory.len();
        if tracked < ring || !fits {
            return Err(InflightError::Entries { tracked, ring });
        }
        Ok(queue)
    }

    /// A request was taken from the available ring.
    pub(super) fn take(&self, head: u16, counter: u64) {
        self.store(self.entry(head) + 8, counter);
        self.store(self.entry(head), 1_u8);
    }

    /// Its answer is about to go into the used ring, in a batch of its own.
    pub(super) fn begin_answer(&self, head: u16) {
        self.store(self.entry(head) + 6, self.load::<u16>(12));
        self.store(12, head);
    }

    /// The used ring, whose index is `used_index` now, has the answer.
    pub(super) fn end_answer(&self, head: u16, used_index: u16) {
        self.store(self.entry(head), 0_u8);
        self.store(14, used_index);
    }

    /// Goes on where another process was killed; `used_index` is what the ring has now.
    ///
    /// # Errors
    /// The buffer and the ring contradict each other.
    pub(super) fn recover(&self, used_index: u16) -> Result<InflightRecovery, InflightError> {
        let is_taken = |head: &u16| self.load::<u8>(self.entry(*head)) == 1;
        // It was killed between the used ring's index and the entries of that batch.
        let batch = used_index.wrapping_sub(self.load(14));
        if batch > self.entries && (0..self.entries).any(|head| is_taken(&head)) {
            return Err(InflightError::Apart(batch));
        }
        if batch <= self.entries {
            let mut head = self.load::<u16>(12);
            for _ in 0..batch {
                if head >= self.entries {
                    return Err(InflightError::Descriptor(head));
                }
                self.store(self.entry(head), 0_u8);
                head = self.load(self.entry(head) + 6);
            }
        }
        self.store(14, used_index);
        let counter = |head: &u16| self.load::<u64>(self.entry(*head) + 8);
        let mut heads: Vec<u16> = (0..self.entries).filter(is_taken).collect();
        heads.sort_by_key(counter);
        let counter = heads.last().map_or(0, |last| counter(last).wrapping_add(1));
        Ok(InflightRecovery { heads, counter })
    }

    fn entry(&self, head: u16) -> usize {
        assert!(head < self.entries, "heads are checked before they are tracked");
        HEADER_BYTES + ENTRY_BYTES * usize::from(head)
    }

    fn load<T: AtomicAccess>(&self, offset: usize) -> T {
        self.memory.load(offset, Ordering::SeqCst).expect("the size was checked, and regions are aligned")
    }

    fn store<T: AtomicAccess>(&self, offset: usize, value: T) {
        self.memory.store(value, offset, Ordering::SeqCst).expect("the size was checked, and regions are aligned");
    }
}

#[cfg(test)]
mod tests {
    //! Proves, with the process killed between any two stores, that no request is lost and none is executed after it was answered.

    use proptest::prelude::*;
    use vm_memory::{MmapRegion, VolatileMemory};

    use super::*;

    const ENTRIES: u16 = 8;

    fn memory() -> MmapRegion<()> {
        MmapRegion::new(InflightLayout { queues: 1, queue_size: ENTRIES }.total_bytes()).unwrap()
    }

    fn created(memory: &MmapRegion<()>) -> InflightQueue<'_> {
        InflightQueue::create(memory.as_volatile_slice(), ENTRIES)
    }

    fn heads(queue: &InflightQueue<'_>, used_index: u16) -> Vec<u16> {
        queue.recover(used_index).unwrap().heads
    }

    #[test]
    fn the_layout_is_the_specifications() {
        let layout = InflightLayout { queues: 3, queue_size: 128 };
        assert_eq!((layout.region_bytes(), layout.total_bytes()), (16 + 128 * 16 + 48, 3 * 2112));
        assert!(layout.check_size(6336).is_ok());
        assert!(matches!(layout.check_size(6335), Err(InflightError::Size { needed: 6336, .. })));
        let memory = memory();
        let queue = created(&memory);
        queue.take(2, 0x0102_0304);
        queue.take(5, 0x0a0b);
        queue.begin_answer(5);
        queue.end_answer(5, 0x1234);
        let mut bytes = vec![0_u8; 16 + 6 * 16];
        memory.as_volatile_slice().copy_to(&mut bytes);
        let header = [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 8, 0, 5, 0, 0x34, 0x12];
        assert_eq!(bytes[..16], header);
        assert_eq!(bytes[48..64], [1, 0, 0, 0, 0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0]);
        assert_eq!(bytes[96..112], [0, 0, 0, 0, 0, 0, 0, 0, 0x0b, 0x0a, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn requests_are_executed_again_in_their_order() {
        let memory = memory();
        let queue = created(&memory);
        for (counter, head) in [6, 1, 4, 0].into_iter().enumerate() {
            queue.take(head, 100 + counter as u64);
        }
        queue.begin_answer(1);
        queue.end_answer(1, 1);
        let queue = InflightQueue::open(memory.as_volatile_slice(), ENTRIES).unwrap();
        assert_eq!(queue.recover(1), Ok(InflightRecovery { heads: vec![6, 4, 0], counter: 104 }));
        assert_eq!(queue.recover(1).unwrap().heads, [6, 4, 0], "also if it is killed again at once");
    }

    /// The used ring's index is the moment from which the guest has the answer.
    #[test]
    fn what_the_guest_was_answered_is_not_executed_again() {
        let memory = memory();
        let queue = created(&memory);
        queue.take(3, 0);
        queue.take(7, 1);
        assert_eq!(heads(&queue, 0), [3, 7]);
        queue.begin_answer(3);
        assert_eq!(heads(&queue, 0), [3, 7], "killed before the used ring's index");
        queue.begin_answer(3);
        assert_eq!(heads(&queue, 1), [7], "killed after it");
        // A batch of two, of another back end.
        queue.take(0, 2);
        queue.begin_answer(7);
        queue.begin_answer(0);
        assert_eq!(heads(&queue, 3), [] as [u16; 0]);
        // The index wraps around.
        queue.end_answer(0, u16::MAX);
        queue.take(5, 3);
        queue.begin_answer(5);
        assert_eq!(heads(&queue, 0), [] as [u16; 0]);
    }

    #[test]
    fn buffers_that_do_not_fit_are_refused() {
        let memory = memory();
        let open = |entries| InflightQueue::open(memory.as_volatile_slice(), entries).map(|_| ());
        assert_eq!(open(ENTRIES), Err(InflightError::Version(0)));
        let queue = created(&memory);
        assert_eq!(open(ENTRIES + 1), Err(InflightError::Entries { tracked: ENTRIES, ring: ENTRIES + 1 }));
        assert_eq!(open(ENTRIES / 2), Ok(()));
        // Nothing was in flight: a ring that was reset.
        assert_eq!(heads(&queue, 4711), [] as [u16; 0]);
        queue.take(1, 0);
        assert_eq!(queue.recover(0), Err(InflightError::Apart(0_u16.wrapping_sub(4711))));
        queue.store(12, 4711_u16);
        assert_eq!(queue.recover(4712), Err(InflightError::Descriptor(4711)));
    }

    proptest! {
        /// Requests are taken and answered in any order; the process is killed within any step.
        #[test]
        fn no_request_is_lost_or_executed_twice(
            steps in proptest::collection::vec((0..ENTRIES, 0..4_u8), 1..200),
        ) {
            let memory = memory();
            let queue = created(&memory);
            let (mut model, mut used, mut counter) = (Vec::new(), 0_u16, 0);
            for (head, killed_at) in steps {
                if !model.contains(&head) {
                    queue.take(head, counter);
                    counter += 1;
                    model.push(head);
                } else {
                    queue.begin_answer(head);
                    if killed_at > 0 {
                        used = used.wrapping_add(1);
                        model.retain(|other| *other != head);
                    }
                    if killed_at > 1 {
                        queue.end_answer(head, used);
                        continue;
                    }
                    // Killed: without the last steps.
                    let recovery = InflightQueue::open(memory.as_volatile_slice(), ENTRIES).unwrap().recover(used);
                    let recovery = recovery.unwrap();
                    prop_assert_eq!(&recovery.heads, &model);
                    counter = recovery.counter;
                }
            }
            prop_assert_eq!(queue.recover(used).unwrap().heads, model);
        }
    }
}
