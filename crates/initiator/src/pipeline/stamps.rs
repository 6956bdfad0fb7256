//! Stamps for one attachment: the operating system's randomness, and the detection of a fork.
//!
//! A stamp used twice under one key would be catastrophic, so everything that could repeat this process's state draws a new
//! attach id: each attach, each lost connection (a virtual machine that was resumed from a snapshot loses its own), every
//! 64 GiB (in `seal`), and a fork, which the kernel tells by wiping a page of ours in the child. The child holds the
//! parent's counters, so it refuses to seal at all.

#![allow(unsafe_code)] // A page that the kernel wipes on fork.

use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use strongroom_block::{AttachId, Stamp};
use strongroom_seal::{StampRun, StampSource};

const PAGE_BYTES: usize = 4096;

/// This process is a fork of the one that attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forked;

/// The stamps of one attachment.
#[derive(Debug)]
pub(crate) struct Stamps {
    source: StampSource,
    canary: Option<ForkCanary>,
}

impl Stamps {
    /// Stamps under a fresh attach id.
    pub(crate) fn new() -> Stamps {
        Stamps { source: StampSource::new(fresh_attach_id), canary: ForkCanary::new() }
    }

    /// Stamps for `count` blocks of `bytes_each`.
    pub(crate) fn run(&mut self, count: u32, bytes_each: u64) -> Result<StampRun, Forked> {
        self.check()?;
        Ok(self.source.take_run(count, bytes_each))
    }

    /// A stamp for a record of `bytes`.
    pub(crate) fn one(&mut self, bytes: u64) -> Result<Stamp, Forked> {
        self.check()?;
        Ok(self.source.take(bytes))
    }

    /// From now on under a new attach id.
    pub(crate) fn renew(&mut self) {
        self.source.renew();
    }

    fn check(&self) -> Result<(), Forked> {
        match &self.canary {
            Some(canary) if !canary.is_alive() => Err(Forked),
            _ => Ok(()),
        }
    }
}

fn fresh_attach_id() -> AttachId {
    AttachId(random())
}

/// Bytes from the operating system's generator.
///
/// # Panics
/// If the kernel has none: sealing without randomness would be worse than stopping.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    fill_random(&mut bytes);
    bytes
}

/// As [`random`], into a slice.
pub(crate) fn fill_random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the kernel's random generator works once the machine is up");
}

/// A page with a mark in it that the kernel wipes in a forked child.
#[derive(Debug)]
struct ForkCanary {
    page: NonNull<u8>,
}

// SAFETY: the page is owned by this value and is only read after construction.
unsafe impl Send for ForkCanary {}
// SAFETY: as above; volatile reads from several threads of memory that nobody writes.
unsafe impl Sync for ForkCanary {}

impl ForkCanary {
    /// `None` where the kernel cannot do it (before Linux 4.14).
    fn new() -> Option<ForkCanary> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous private mapping at an address of the kernel's choice touches no existing memory.
        let address = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, access, MapFlags::PRIVATE) }.ok()?;
        let canary = ForkCanary { page: NonNull::new(address.cast())? };
        // SAFETY: the page was mapped above and is ours; the advice only concerns children.
        unsafe { madvise(address, PAGE_BYTES, Advice::LinuxWipeOnFork) }.ok()?;
        // SAFETY: one byte inside the page that was mapped writable above.
        unsafe { canary.page.as_ptr().write_volatile(1) };
        Some(canary)
    }

    fn is_alive(&self) -> bool {
        // SAFETY: one byte inside a page that stays mapped as long as `self`. Volatile: the kernel changes it.
        unsafe { self.page.as_ptr().read_volatile() == 1 }
    }
}

impl Drop for ForkCanary {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, unmapped once, and nothing refers to it any more.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), PAGE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    //! Proves that ids differ and that a forked child cannot take a stamp.
    use super::*;

    #[test]
    fn every_attachment_and_renewal_has_its_own_id() {
        let (mut one, mut other) = (Stamps::new(), Stamps::new());
        let first = one.one(0).unwrap();
        assert_ne!(first.attach_id, other.one(0).unwrap().attach_id);
        one.renew();
        assert_ne!(first.attach_id, one.one(0).unwrap().attach_id);
    }

    #[test]
    fn a_fork_cannot_take_a_stamp() {
        let mut stamps = Stamps::new();
        // SAFETY: the child only reads a page, touches plain memory and leaves by _exit: async-signal-safe.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = if stamps.one(0) == Err(Forked) { 7 } else { 8 };
            // SAFETY: ends the child at once, without running anything of the parent's.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: our own child, and a valid place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7);
        assert!(stamps.one(0).is_ok(), "the parent goes on");
    }
}
