//! Owned, page-aligned, reference-counted memory for block data.

#![allow(unsafe_code)] // One aligned allocation: std's Vec cannot ask for an alignment.

mod free_lists;

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;

/// Alignment of every buffer, in bytes: what direct I/O wants on any medium we know.
pub const BUFFER_ALIGN: usize = 4096;

/// Up to this length, clearing kept memory is cheaper than page faults on fresh memory.
const CLEARED_LEN_MAX: usize = 1 << 20;

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

    /// Memory that was freed before.
    fn kept(len_bytes: usize) -> Option<BufferMut> {
        free_lists::take(len_bytes).map(|pointer| BufferMut { pointer, len_bytes })
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
        if free_lists::keep(self.len_bytes, self.pointer) {
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
    fn freed_memory_is_used_again() {
        let first = BufferMut::copy_from(&[7; 4096]);
        let at = first.as_ptr();
        drop(first);
        let again = BufferMut::to_fill(4096);
        assert_eq!((again.as_ptr(), again.len()), (at, 4096));
        assert!(again.iter().all(|&byte| byte == 7), "as it was left");
        drop(again);
        assert!(BufferMut::zeroed(4096).iter().all(|&byte| byte == 0), "zeroed means zeroed");
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
