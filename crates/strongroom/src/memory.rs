//! The program's allocator.
//!
//! mimalloc, because a target takes and frees buffers all the time, of 4 KiB up to megabytes, beside small ones for headers and
//! records: glibc's allocator splits and joins chunks for that, a fifth of a target's time at 4 KiB (`strongroom-lab rawio --sizes 4k
//! --depths 128 --initiators 2`, perf). It keeps large buffers as well, for which glibc asks the kernel each time.
#![allow(unsafe_code)] // An allocator is unsafe, and mimalloc's options are C.

use std::alloc::{GlobalAlloc, Layout, System};

use libmimalloc_sys::{mi_option_set, mi_option_t};
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// From this size on memory comes from the kernel and goes back to it at once. fuser has a buffer of 16 MiB for each thread, of which it uses
/// one: mimalloc would write zeros to all of it, and cannot give back what is locked.
const LARGE_BYTES: usize = 8 << 20;

struct Allocator;

// SAFETY: each piece of memory is freed and resized by the allocator that it came from, which its size tells; all else is theirs.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the ones that either allocator asks for; so in the functions below.
        unsafe { if layout.size() < LARGE_BYTES { MiMalloc.alloc(layout) } else { System.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { if layout.size() < LARGE_BYTES { MiMalloc.alloc_zeroed(layout) } else { System.alloc_zeroed(layout) } }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the layout is that of the allocation.
        unsafe {
            if layout.size() < LARGE_BYTES {
                MiMalloc.dealloc(pointer, layout)
            } else {
                System.dealloc(pointer, layout)
            }
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as above. From one allocator to the other it is copied: the sizes differ, and the smaller one bounds the copy.
        unsafe {
            match (layout.size() < LARGE_BYTES, new_size < LARGE_BYTES) {
                (true, true) => MiMalloc.realloc(pointer, layout, new_size),
                (false, false) => System.realloc(pointer, layout, new_size),
                _ => {
                    let new = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
                    if !new.is_null() {
                        std::ptr::copy_nonoverlapping(pointer, new, layout.size().min(new_size));
                        self.dealloc(pointer, layout);
                    }
                    new
                }
            }
        }
    }
}

/// `mi_option_arena_reserve` of mimalloc.h, which the crate does not name: how much address space is reserved at a time, in KiB. By default 1 GiB,
/// all of which a search of a process's memory for keys would have to read.
const ARENA_RESERVE: mi_option_t = 23;
const ARENA_RESERVE_KIB: std::ffi::c_long = 32 << 10;

/// Before anything is allocated, which is before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = set_up;

extern "C" fn set_up() {
    // SAFETY: sets a number that the allocator looks at when it takes memory, and nothing has been taken yet.
    unsafe { mi_option_set(ARENA_RESERVE, ARENA_RESERVE_KIB) };
}

/// `mi_option_purge_delay` likewise: when freed memory goes back, in milliseconds; -1: never.
const PURGE_DELAY: mi_option_t = 15;
/// What a target needs once more within this time it need not take from the kernel again, in milliseconds.
const TARGET_PURGE_DELAY_MS: std::ffi::c_long = 10_000;

/// Keeps the first touch of memory short, for the threads of a target, where everybody waits for the longest iteration: the kernel clears one small
/// page at a time, not 2 MiB at once (2 to 4.5 ms of CPU time in a virtual machine whose host takes free memory back), and memory
/// that was freed a moment ago is not cleared again. To be called before any thread exists.
pub(crate) fn bound_page_faults() {
    // SAFETY: sets a number that the allocator looks at when memory is freed, and changes nothing that lives.
    unsafe { mi_option_set(PURGE_DELAY, TARGET_PURGE_DELAY_MS) };
    // Where the kernel knows no huge pages, none are to be had.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// From now on freed memory stays with the process: what is set aside for an attachment is there when it is needed.
pub(crate) fn keep_what_is_freed() {
    // SAFETY: sets a number that the allocator looks at when memory is freed, and changes nothing that lives.
    unsafe { mi_option_set(PURGE_DELAY, -1) };
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Duration;

    const BYTES: usize = 96 << 20;

    fn resident_bytes() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
    }

    #[test]
    fn freed_memory_stays() {
        super::keep_what_is_freed();
        let pieces: Vec<_> = (0..BYTES >> 20).map(|_| vec![1_u8; 1 << 20]).collect();
        drop(black_box(pieces));
        // Many times the time after which it would go back; what other tests do meanwhile only adds to it.
        std::thread::sleep(Duration::from_millis(500));
        drop(black_box(vec![1_u8; 1 << 20]));
        assert!(resident_bytes() >= BYTES, "{} bytes", resident_bytes());
    }

    #[test]
    fn what_grows_beyond_the_limit_and_shrinks_again_keeps_its_contents() {
        let mut bytes: Vec<u8> = (0..1 << 20).map(|at| at as u8).collect();
        for size in [super::LARGE_BYTES - 1, super::LARGE_BYTES, 3 * super::LARGE_BYTES, super::LARGE_BYTES, 1 << 20] {
            bytes.resize(size.max(bytes.len()), 7);
            bytes.truncate(size);
            bytes.shrink_to_fit();
            assert!((0..1 << 20).all(|at| bytes[at] == at as u8), "{size} bytes");
        }
        assert!(vec![0_u8; 2 * super::LARGE_BYTES].iter().all(|byte| *byte == 0));
    }
}
