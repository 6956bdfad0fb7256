//! What the program asks of its allocator.
//!
//! glibc takes large buffers from the kernel one by one and gives each back when it is freed; the next one faults in every page
//! anew. Segments are cleaned through buffers of megabytes: random 64 KiB writes cost the target a third of its time for that
//! (`strongroom bench rawio --patterns randwrite --sizes 64k`, with `GLIBC_TUNABLES=glibc.malloc.mmap_threshold=…` to compare).
#![allow(unsafe_code)] // mallopt is libc's.

/// Buffers up to this come from the heap, and stay there: the largest value that glibc takes on 64-bit machines.
#[cfg(target_env = "gnu")]
const MMAP_THRESHOLD_BYTES: libc::c_int = 32 << 20;

/// What the heap keeps of freed memory before it gives it back.
#[cfg(target_env = "gnu")]
const TRIM_THRESHOLD_BYTES: libc::c_int = 64 << 20;

/// Tells the allocator; before any thread is started. What is set in `GLIBC_TUNABLES` is left as it is.
#[cfg(target_env = "gnu")]
pub(crate) fn keep_large_buffers() {
    if std::env::var("GLIBC_TUNABLES").is_ok_and(|set| set.contains("glibc.malloc.")) {
        return;
    }
    for (parameter, bytes) in
        [(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES), (libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)]
    {
        // SAFETY: mallopt takes two integers and changes how the allocator behaves, nothing that lives. One that does not know
        // the parameter says so, and nothing is lost.
        unsafe { libc::mallopt(parameter, bytes) };
    }
}

/// Other allocators keep what they need.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn keep_large_buffers() {}
