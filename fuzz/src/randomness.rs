//! Random bytes that are the same in each run: with them a run of libFuzzer depends on its seed and its corpus alone.
//!
//! The standard library (for the keys of hash tables) and the crate `getrandom` ask the C library's function of that name; the definition
//! here takes its place in this program. The cryptographic library has a source of its own, which stays random.

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

static STATE: AtomicU64 = AtomicU64::new(0);

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): enough to tell names apart, which is all that a fuzzed decoder needs.
fn next() -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut mixed = STATE.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// getrandom(2). Never fails.
///
/// # Safety
/// `buffer` points to `len` bytes that may be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, len: usize, _flags: c_uint) -> isize {
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), len) };
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&next().to_le_bytes()[..chunk.len()]);
    }
    len as isize
}
