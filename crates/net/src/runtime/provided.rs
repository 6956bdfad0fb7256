//! Receive buffers shared with the kernel: it picks one per receive, we give it back when its bytes are told.

#![allow(unsafe_code)] // Memory that the kernel writes, and a ring whose tail it reads.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;
use strongroom_block::BufferMut;

/// How many buffers there are: a power of two.
const COUNT: u16 = 64;
/// Largest buffer. One receive of this size is far above what amortises its cost, and all of them together are what a
/// runtime pins: 4 MiB.
const BYTES_MAX: usize = 64 << 10;

pub(super) struct Provided {
    /// Owns the entries' memory; touched only through `entries`.
    _ring_memory: BufferMut,
    /// Owns the buffers' memory; touched only through `buffers`.
    _buffer_memory: BufferMut,
    entries: *mut BufRingEntry,
    buffers: *mut u8,
    buffer_bytes: usize,
    tail: u16,
}

impl Provided {
    /// The buffer group that receives name.
    pub(super) const GROUP: u16 = 0;

    /// Makes the buffers known to `ring`, which must be dropped before them.
    pub(super) fn register(ring: &IoUring, receive_bytes_max: usize) -> io::Result<Provided> {
        let buffer_bytes = receive_bytes_max.clamp(4096, BYTES_MAX);
        let mut ring_memory = BufferMut::zeroed(usize::from(COUNT) * size_of::<BufRingEntry>());
        let mut buffer_memory = BufferMut::zeroed(usize::from(COUNT) * buffer_bytes);
        let entries = ring_memory.as_mut_ptr().cast::<BufRingEntry>();
        let buffers = buffer_memory.as_mut_ptr();
        // SAFETY: page-aligned zeroes for as many entries as stated, kept by `Provided`, which its driver drops after
        // the ring.
        unsafe { ring.submitter().register_buf_ring_with_flags(entries as u64, COUNT, Self::GROUP, 0)? };
        let mut provided = Provided {
            _ring_memory: ring_memory,
            _buffer_memory: buffer_memory,
            entries,
            buffers,
            buffer_bytes,
            tail: 0,
        };
        (0..COUNT).for_each(|buffer| provided.give(buffer));
        Ok(provided)
    }

    /// Lets the kernel use `buffer` (again).
    pub(super) fn give(&mut self, buffer: u16) {
        assert!(buffer < COUNT, "the kernel names only buffers it was given");
        // SAFETY: both indices are inside their memory; the kernel reads the entry only after the tail has moved past it,
        // and an entry's slot is free because there are as many slots as buffers.
        unsafe {
            let memory = self.buffers.add(usize::from(buffer) * self.buffer_bytes);
            let entry = &mut *self.entries.add(usize::from(self.tail & (COUNT - 1)));
            entry.set_addr(memory as u64);
            entry.set_len(self.buffer_bytes as u32);
            entry.set_bid(buffer);
            self.tail = self.tail.wrapping_add(1);
            let tail = BufRingEntry::tail(self.entries).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }

    /// The bytes that a completion said lie in `buffer`, which is ours until [`Provided::give`].
    pub(super) fn bytes(&self, buffer: u16, len_bytes: usize) -> &[u8] {
        assert!(buffer < COUNT && len_bytes <= self.buffer_bytes, "the kernel fills only what it was given");
        // SAFETY: inside the memory, initialised (zeroed, then written by the kernel), and not the kernel's now.
        unsafe { std::slice::from_raw_parts(self.buffers.add(usize::from(buffer) * self.buffer_bytes), len_bytes) }
    }
}
