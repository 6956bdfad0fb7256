//! What keeps an attached volume alive under memory pressure, and secrets out of the swap.
//!
//! A file system whose disk is served by a process of the same machine can deadlock: the kernel, short of memory, writes
//! dirty pages to that disk, and the process that should take them asks for memory itself. Four things prevent it:
//! `PR_SET_IO_FLUSHER` (the kernel will not start I/O on behalf of our allocations, and gives us the reserve), memory
//! locked and, where a file system is mounted, set aside from the start (no page of ours must be found or read back first), queues with
//! a limit in bytes, and an
//! `oom_score_adj` that makes the out-of-memory killer look elsewhere. Absent: any I/O on a volume; signals (the binary's).

#![allow(unsafe_code)] // prctl has no safe wrapper for this option.

use std::io;

/// linux/prctl.h; the `libc` crate does not name it.
const PR_SET_IO_FLUSHER: libc::c_int = 57;
/// What the out-of-memory killer is told: -1000 is "never". A killed attach takes the file system on it along.
const OOM_SCORE_ADJ: &str = "-1000";

/// Memory that is set aside, in bytes: requests in flight (plain and sealed) and the log of unflushed writes, by default.
const SET_ASIDE_BYTES: usize = 160 << 20;
const SET_ASIDE_PIECE_BYTES: usize = 1 << 20;

/// What could be had. A missing piece is a warning, not an error: without root an attach still works, less safely.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// One line for each thing that the kernel refused, with what to do.
    pub warnings: Vec<String>,
}

/// What is done with the memory of a process that serves a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Nothing: keys and plaintext may reach the swap.
    Unlocked,
    /// All of it, present and future, is locked as it is touched. (The process needs `CAP_IPC_LOCK`, or an unlimited `RLIMIT_MEMLOCK`.)
    Locked,
    /// The same, and what may be needed to write is set aside and read in beforehand: for a volume that has a file system mounted on this
    /// machine, whose kernel frees memory by writing to it. What is set aside stays only if the program's allocator keeps what is freed:
    /// tell it so before.
    LockedAndSetAside,
}

/// Prepares the calling thread, and the threads that it starts from now on, to serve a disk that this machine's own
/// kernel may write to. Call it first thing, before any thread exists.
pub fn prepare_process(memory: Memory) -> Prepared {
    let mut warnings = Vec::new();
    // SAFETY: takes integers only and changes nothing but a flag of this thread, which its children inherit.
    if unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) } != 0 {
        let error = io::Error::last_os_error();
        warnings.push(format!(
            "PR_SET_IO_FLUSHER: {error}; a file system on this volume may hang under memory pressure; run as root"
        ));
    }
    if memory != Memory::Unlocked
        && let Err(error) = lock_all_memory(memory)
    {
        warnings
            .push(format!("mlockall: {error}; run as root or set `ulimit -l unlimited`, or keys may reach the swap"));
    }
    if memory == Memory::LockedAndSetAside {
        // Touched, and so locked, in pieces that an allocator puts where the next ones of any size can go; the black box keeps them from
        // being optimised away.
        let pieces: Vec<_> =
            (0..SET_ASIDE_BYTES / SET_ASIDE_PIECE_BYTES).map(|_| vec![1_u8; SET_ASIDE_PIECE_BYTES]).collect();
        drop(std::hint::black_box(pieces));
    }
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ) {
        warnings.push(format!("oom_score_adj: {error}; run as root, or the out-of-memory killer may end this attach"));
    }
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    Prepared { warnings }
}

/// Locks pages as they are first touched, since an allocator may have far more addresses than memory. Where memory is set aside, what
/// comes from files, the program itself most of all, is read in at once.
fn lock_all_memory(memory: Memory) -> io::Result<()> {
    use rustix::mm::{Advice, MlockAllFlags, madvise, mlockall};
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)?;
    if memory != Memory::LockedAndSetAside {
        return Ok(());
    }
    for line in std::fs::read_to_string("/proc/self/maps")?.lines() {
        let mut fields = line.split_whitespace();
        let (Some(range), Some(rights), Some(path)) = (fields.next(), fields.next(), fields.nth(3)) else { continue };
        let Some((start, end)) = range.split_once('-') else { continue };
        let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16)) else { continue };
        if path.starts_with('/') && rights.starts_with('r') {
            // SAFETY: it only reads pages of a mapping in. One that is gone by now is an error, and no harm.
            let read_in = unsafe { madvise(start as *mut _, end - start, Advice::LinuxPopulateRead) };
            if let Err(error) = read_in {
                tracing::warn!("{path} is not read in beforehand (Linux 5.14 can): {error}");
                break;
            }
        }
    }
    Ok(())
}
