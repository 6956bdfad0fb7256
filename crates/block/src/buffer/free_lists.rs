//! Freed memory of buffers, kept for the next buffer of the same length.
//!
//! Each thread has lists of its own, so most buffers cost no lock. Data is often filled on one thread and dropped on another (a
//! submitter seals, the thread of the connection frees what was sent): what a thread has too much of goes to shared lists, and a
//! thread that has none takes from there, a batch at a time.

use std::alloc::dealloc;
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use super::BufferMut;

/// Lengths of which freed memory is kept, in bytes: asking the system for large memory, and for cleared memory, costs more than most
/// of what is done with it.
const KEPT_LEN: std::ops::RangeInclusive<usize> = 4096..=8 << 20;
/// From this length on memory is kept apart: so that many small buffers do not take the place of the few large ones, which cost
/// most to allocate again.
const LARGE_LEN: usize = 1 << 20;
/// Upper bound on what one set of lists keeps of small and of large buffers, in bytes each.
const KEPT_BYTES_MAX: usize = 16 << 20;
/// Upper bound on the lengths of each that one set of lists keeps apart.
const KEPT_LENGTHS_MAX: usize = 8;
/// What threads hand to each other at a time, in bytes, or one buffer if that is larger.
const BATCH_BYTES: usize = 256 << 10;
/// Batches of a length that a thread keeps to itself: one that frees as much as it allocates seldom takes the lock.
const BATCHES_KEPT: usize = 4;

thread_local! {
    static OWN: RefCell<FreeLists> = const { RefCell::new(FreeLists::new()) };
}

static SHARED: Mutex<FreeLists> = Mutex::new(FreeLists::new());

/// Memory of this length that is free, if there is any. What is in it is anything that was in a buffer before.
pub(super) fn take(len_bytes: usize) -> Option<NonNull<u8>> {
    if !KEPT_LEN.contains(&len_bytes) {
        return None;
    }
    // Not while the thread ends and has let go of what it kept.
    OWN.try_with(|own| {
        let own = &mut *own.borrow_mut();
        own.take(len_bytes).or_else(|| {
            own.add_batch(len_bytes, shared().take_batch(len_bytes));
            own.take(len_bytes)
        })
    })
    .ok()?
    .map(|memory| memory.0)
}

/// Keeps memory that is free; false if there is enough of it: then it is still the caller's.
pub(super) fn keep(len_bytes: usize, pointer: NonNull<u8>) -> bool {
    if !KEPT_LEN.contains(&len_bytes) {
        return false;
    }
    OWN.try_with(|own| {
        let own = &mut *own.borrow_mut();
        if own.count(len_bytes) >= BATCHES_KEPT * batch_count(len_bytes) {
            let batch = own.take_batch(len_bytes);
            shared().add_batch(len_bytes, batch);
        }
        own.keep(len_bytes, FreeMemory(pointer)).is_none()
    })
    .unwrap_or(false)
}

fn shared() -> std::sync::MutexGuard<'static, FreeLists> {
    // Nothing panics between two changes that belong together.
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many buffers of this length are a batch.
fn batch_count(len_bytes: usize) -> usize {
    (BATCH_BYTES / len_bytes).max(1)
}

/// One piece of memory that nobody refers to.
struct FreeMemory(NonNull<u8>);

// SAFETY: the value owns the memory, and nothing else refers to it.
unsafe impl Send for FreeMemory {}

/// Free memory by length: small buffers and large ones.
struct FreeLists([LengthLists; 2]);

struct LengthLists {
    lengths: Vec<(usize, Vec<FreeMemory>)>,
    bytes: usize,
}

impl FreeLists {
    const fn new() -> FreeLists {
        FreeLists([const { LengthLists { lengths: Vec::new(), bytes: 0 } }; 2])
    }

    fn of(&mut self, len_bytes: usize) -> &mut LengthLists {
        &mut self.0[usize::from(len_bytes >= LARGE_LEN)]
    }

    fn count(&mut self, len_bytes: usize) -> usize {
        self.of(len_bytes).list(len_bytes).map_or(0, |free| free.len())
    }

    fn take(&mut self, len_bytes: usize) -> Option<FreeMemory> {
        let lists = self.of(len_bytes);
        let memory = lists.list(len_bytes)?.pop()?;
        lists.bytes -= len_bytes;
        Some(memory)
    }

    /// Keeps memory; returns it if there is enough.
    fn keep(&mut self, len_bytes: usize, memory: FreeMemory) -> Option<FreeMemory> {
        self.of(len_bytes).keep(len_bytes, memory)
    }

    fn take_batch(&mut self, len_bytes: usize) -> Vec<FreeMemory> {
        let lists = self.of(len_bytes);
        let Some(free) = lists.list(len_bytes) else { return Vec::new() };
        let batch = free.split_off(free.len().saturating_sub(batch_count(len_bytes)));
        lists.bytes -= batch.len() * len_bytes;
        batch
    }

    fn add_batch(&mut self, len_bytes: usize, batch: Vec<FreeMemory>) {
        for memory in batch {
            if let Some(memory) = self.keep(len_bytes, memory) {
                free(len_bytes, memory);
            }
        }
    }
}

impl LengthLists {
    fn list(&mut self, len_bytes: usize) -> Option<&mut Vec<FreeMemory>> {
        self.lengths.iter_mut().find(|(len, _)| *len == len_bytes).map(|(_, free)| free)
    }

    fn keep(&mut self, len_bytes: usize, memory: FreeMemory) -> Option<FreeMemory> {
        if self.bytes + len_bytes > KEPT_BYTES_MAX {
            return Some(memory);
        }
        let at = match self.lengths.iter().position(|(len, _)| *len == len_bytes) {
            Some(at) => at,
            None if self.lengths.len() < KEPT_LENGTHS_MAX => {
                self.lengths.push((len_bytes, Vec::new()));
                self.lengths.len() - 1
            }
            // A length of which there is nothing left makes room.
            None => match self.lengths.iter().position(|(_, free)| free.is_empty()) {
                Some(at) => {
                    self.lengths[at].0 = len_bytes;
                    at
                }
                None => return Some(memory),
            },
        };
        self.lengths[at].1.push(memory);
        self.bytes += len_bytes;
        None
    }
}

impl Drop for FreeLists {
    fn drop(&mut self) {
        for (len_bytes, list) in self.0.iter_mut().flat_map(|lists| lists.lengths.drain(..)) {
            for memory in list {
                free(len_bytes, memory);
            }
        }
    }
}

fn free(len_bytes: usize, memory: FreeMemory) {
    // SAFETY: allocated by `BufferMut` with this very layout, and not shared.
    unsafe { dealloc(memory.0.as_ptr(), BufferMut::layout(len_bytes)) }
}

#[cfg(test)]
mod tests {
    //! Proves that the lists stay within their bounds, and that memory that one thread frees serves another one.
    use super::*;

    fn check(lists: &FreeLists) {
        for lists in &lists.0 {
            let bytes: usize = lists.lengths.iter().map(|(len, free)| len * free.len()).sum();
            assert_eq!(lists.bytes, bytes);
            assert!(bytes <= KEPT_BYTES_MAX && lists.lengths.len() <= KEPT_LENGTHS_MAX);
        }
    }

    #[test]
    fn what_is_kept_has_bounds() {
        let other = std::thread::spawn(|| BufferMut::copy_from(&[8; 8192])).join().unwrap();
        drop(other);
        drop((0..100).map(|_| BufferMut::zeroed(1 << 20)).collect::<Vec<_>>());
        drop((1..40).map(|at| BufferMut::zeroed(at * 4096)).collect::<Vec<_>>());
        // Small ones, however many, leave the large ones their place.
        drop((0..2 * KEPT_BYTES_MAX / 4096).map(|_| BufferMut::copy_from(&[1; 4096])).collect::<Vec<_>>());
        let large = BufferMut::zeroed(3 << 20);
        let at = large.as_ptr();
        drop(large);
        assert_eq!(BufferMut::to_fill(3 << 20).as_ptr(), at);
        OWN.with_borrow(check);
        OWN.with_borrow_mut(|own| assert!(own.count(4096) <= BATCHES_KEPT * batch_count(4096)));
        check(&shared());
    }

    #[test]
    fn a_thread_uses_what_another_one_freed() {
        // A length of this test alone: tests share the lists.
        const LEN: usize = 17 * 4096;
        let count = BATCHES_KEPT * batch_count(LEN) + batch_count(LEN) + 1;
        let filled: Vec<_> = (0..count).map(|_| BufferMut::copy_from(&[3; LEN])).collect();
        let freed: Vec<usize> = filled.iter().map(|buffer| buffer.as_ptr() as usize).collect();
        std::thread::spawn(move || {
            drop(filled);
            OWN.with_borrow_mut(|own| assert!(own.count(LEN) + batch_count(LEN) <= count, "it keeps them all"));
        })
        .join()
        .unwrap();
        let again: Vec<_> = (0..batch_count(LEN)).map(|_| BufferMut::to_fill(LEN)).collect();
        assert!(again.iter().all(|buffer| freed.contains(&(buffer.as_ptr() as usize)) && buffer[0] == 3));
    }
}
