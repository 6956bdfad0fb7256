//! Owned, page-aligned, reference-counted memory for block data.

#![allow(unsafe_code)] // One aligned allocation: std's Vec cannot ask for an alignment.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;

/// Alignment of every buffer, in bytes: what direct I/O wants on any medium we know.
pub const BUFFER_ALIGN: usize = 4096;

/// Lengths of which freed memory is kept for the next buffer of the same length: asking the system for large memory, and
/// for cleared memory, costs more than most of what is done with it.
const KEPT_LEN: std::ops::RangeInclusive<usize> = 4096..=8 << 20;
/// Up to this length, clearing kept memory is cheaper than page faults on fresh memory.
const CLEARED_LEN_MAX: usize = 1 << 20;
/// From this length on memory is kept apart: so that many small buffers do not take the place of the few large ones, which cost
/// most to allocate again.
const LARGE_LEN: usize = 1 << 20;
/// Upper bound on what one thread keeps of each, in bytes.
const KEPT_BYTES_MAX: usize = 16 << 20;
/// Upper bound on the lengths of each that one thread keeps apart.
const KEPT_LENGTHS_MAX: usize = 8;

/// Freed memory of one thread, by length.
struct FreeLists {
    lengths: Vec<(usize, Vec<NonNull<u8>>)>,
    bytes: usize,
}

thread_local! {
    static KEPT: RefCell<[FreeLists; 2]> =
        const { RefCell::new([FreeLists { lengths: Vec::new(), bytes: 0 }, FreeLists { lengths: Vec::new(), bytes: 0 }]) };
}

/// Whether small buffers or large ones.
fn kind_of(len_bytes: usize) -> usize {
    usize::from(len_bytes >= LARGE_LEN)
}

impl FreeLists {
    fn take(&mut self, len_bytes: usize) -> Option<NonNull<u8>> {
        let (_, free) = self.lengths.iter_mut().find(|(len, _)| *len == len_bytes)?;
        let pointer = free.pop()?;
        self.bytes -= len_bytes;
        Some(pointer)
    }

    /// Keeps memory; false if there is enough of it.
    fn keep(&mut self, len_bytes: usize, pointer: NonNull<u8>) -> bool {
        if self.bytes + len_bytes > KEPT_BYTES_MAX {
            return false;
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
                None => return false,
            },
        };
        self.lengths[at].1.push(pointer);
        self.bytes += len_bytes;
        true
    }
}

impl Drop for FreeLists {
    fn drop(&mut self) {
        for (len_bytes, free) in self.lengths.drain(..) {
            for pointer in free {
                // SAFETY: allocated by `BufferMut` with this very layout, and not shared.
                unsafe { dealloc(pointer.as_ptr(), BufferMut::layout(len_bytes)) }
            }
        }
    }
}

/// Unique, writable, aligned memory. Freeze it into a [`Buffer`] to share it.
pub struct BufferMut {
    pointer: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the memory is owned by this value alone and holds plain bytes, so it may move between threads.
unsafe impl Send for BufferMut {}
// SAFETY: shared access only reads, exclusive access is through &mut.
unsafe impl Sync for BufferMut {}

impl BufferMut {
    /// `len_bytes` zero bytes.
    pub fn zeroed(len_bytes: usize) -> BufferMut {
        if len_bytes == 0 {
            return BufferMut { pointer: NonNull::dangling(), len_bytes };
        }
        if len_bytes <= CLEARED_LEN_MAX
            && let Some(mut buffer) = Self::kept(len_bytes)
        {
            buffer.fill(0);
            return buffer;
        }
        let layout = Self::layout(len_bytes);
        // SAFETY: the layout's size is not zero.
        let raw = unsafe { alloc_zeroed(layout) };
        let pointer = NonNull::new(raw).unwrap_or_else(|| handle_alloc_error(layout));
        BufferMut { pointer, len_bytes }
    }

    /// Memory to be filled: what is in it is anything that was in a buffer before, or zeros. The caller fills all
    /// of it before passing it on.
    pub fn to_fill(len_bytes: usize) -> BufferMut {
        Self::kept(len_bytes).unwrap_or_else(|| Self::zeroed(len_bytes))
    }

    /// Memory that this thread kept.
    fn kept(len_bytes: usize) -> Option<BufferMut> {
        if !KEPT_LEN.contains(&len_bytes) {
            return None;
        }
        // Not while the thread ends and has let go of what it kept.
        let pointer = KEPT.try_with(|kept| kept.borrow_mut()[kind_of(len_bytes)].take(len_bytes)).ok()??;
        Some(BufferMut { pointer, len_bytes })
    }

    /// A copy of `bytes`.
    pub fn copy_from(bytes: &[u8]) -> BufferMut {
        let mut buffer = Self::to_fill(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// Ends writing; from here on the bytes are shared and constant.
    pub fn freeze(self) -> Buffer {
        Buffer(Bytes::from_owner(self))
    }

    fn layout(len_bytes: usize) -> Layout {
        Layout::from_size_align(len_bytes, BUFFER_ALIGN).expect("block buffers are far smaller than the address space")
    }
}

impl Drop for BufferMut {
    fn drop(&mut self) {
        let keep = || {
            let keep = |kept: &mut [FreeLists; 2]| kept[kind_of(self.len_bytes)].keep(self.len_bytes, self.pointer);
            KEPT.try_with(|kept| keep(&mut kept.borrow_mut())).unwrap_or(false)
        };
        if KEPT_LEN.contains(&self.len_bytes) && keep() {
            return;
        }
        if self.len_bytes > 0 {
            // SAFETY: allocated in `zeroed` with this very layout, and freed once.
            unsafe { dealloc(self.pointer.as_ptr(), Self::layout(self.len_bytes)) }
        }
    }
}

impl Deref for BufferMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len_bytes` initialised bytes live at `pointer` (or none, with a dangling pointer).
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for BufferMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len_bytes) }
    }
}

impl AsRef<[u8]> for BufferMut {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for BufferMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferMut({} bytes)", self.len_bytes)
    }
}

/// Shared, constant, reference-counted bytes. Cloning and slicing copy no data.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Buffer(Bytes);

impl Buffer {
    /// No bytes.
    pub const fn empty() -> Buffer {
        Buffer(Bytes::new())
    }

    /// A copy of `bytes`, aligned.
    pub fn copy_from(bytes: &[u8]) -> Buffer {
        BufferMut::copy_from(bytes).freeze()
    }

    /// A part of it, sharing the memory.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Buffer {
        Buffer(self.0.slice(range))
    }

    /// The same bytes as [`Bytes`].
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl From<Bytes> for Buffer {
    fn from(bytes: Bytes) -> Buffer {
        Buffer(bytes)
    }
}

impl From<BufferMut> for Buffer {
    fn from(buffer: BufferMut) -> Buffer {
        buffer.freeze()
    }
}

/// Memory that others have too: it cannot be written while this exists.
impl From<Arc<BufferMut>> for Buffer {
    fn from(bytes: Arc<BufferMut>) -> Buffer {
        struct SharedBytes(Arc<BufferMut>);
        impl AsRef<[u8]> for SharedBytes {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        Buffer(Bytes::from_owner(SharedBytes(bytes)))
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_and_zeroed() {
        let buffer = BufferMut::zeroed(12_345);
        assert_eq!(buffer.as_ptr() as usize % BUFFER_ALIGN, 0);
        assert!(buffer.iter().all(|&byte| byte == 0));
        assert!(BufferMut::zeroed(0).is_empty());
    }

    #[test]
    fn freed_memory_is_used_again_within_bounds() {
        let first = BufferMut::copy_from(&[7; 4096]);
        let at = first.as_ptr();
        drop(first);
        let again = BufferMut::to_fill(4096);
        assert_eq!((again.as_ptr(), again.len()), (at, 4096));
        assert!(again.iter().all(|&byte| byte == 7), "as it was left");
        drop(again);
        assert!(BufferMut::zeroed(4096).iter().all(|&byte| byte == 0), "zeroed means zeroed");
        let other = std::thread::spawn(|| BufferMut::copy_from(&[8; 8192])).join().unwrap();
        drop(other);
        drop((0..100).map(|_| BufferMut::zeroed(1 << 20)).collect::<Vec<_>>());
        drop((1..40).map(|at| BufferMut::zeroed(at * 4096)).collect::<Vec<_>>());
        KEPT.with_borrow(|kept| {
            for kept in kept {
                let bytes: usize = kept.lengths.iter().map(|(len, free)| len * free.len()).sum();
                assert_eq!(kept.bytes, bytes);
                assert!(bytes <= KEPT_BYTES_MAX && kept.lengths.len() <= KEPT_LENGTHS_MAX);
            }
        });
        // Small ones, however many, leave the large ones their place.
        drop((0..KEPT_BYTES_MAX / 4096 + 1).map(|_| BufferMut::copy_from(&[1; 4096])).collect::<Vec<_>>());
        let large = BufferMut::zeroed(3 << 20);
        let at = large.as_ptr();
        drop(large);
        assert_eq!(BufferMut::to_fill(3 << 20).as_ptr(), at);
        assert!(BufferMut::to_fill(0).is_empty());
    }

    #[test]
    fn slices_share_the_memory() {
        let mut buffer = BufferMut::zeroed(8192);
        buffer[4096] = 9;
        let shared = buffer.freeze();
        let tail = shared.slice(4096..);
        assert_eq!(tail[0], 9);
        assert_eq!(tail.as_ptr() as usize, shared.as_ptr() as usize + 4096);
    }
}
