//! The program's allocator.
//!
//! mimalloc, because a target takes and frees buffers all the time, of 4 KiB up to megabytes, beside small ones for headers and
//! records: glibc's allocator splits and joins chunks for that, a fifth of a target's time at 4 KiB (`strongroom bench rawio --sizes 4k
//! --depths 128 --initiators 2`, perf). It keeps large buffers as well, for which glibc asks the kernel each time.
#![allow(unsafe_code)] // mimalloc's options are C.

use libmimalloc_sys::{mi_option_set, mi_option_t};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_arena_reserve` of mimalloc.h, which the crate does not name: how much address space is taken at a time, in KiB. By default 1 GiB,
/// which whoever searches a process for what must not be in it has to read.
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
        drop(black_box(vec![1_u8; BYTES]));
        // Many times the time after which it would go back; what other tests do meanwhile only adds to it.
        std::thread::sleep(Duration::from_millis(500));
        drop(black_box(vec![1_u8; 1 << 20]));
        assert!(resident_bytes() >= BYTES, "{} bytes", resident_bytes());
    }
}
