//! Waking a runtime from another thread, by an eventfd that coalesces any number of wakes into one.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use crate::NetError;

/// Makes the runtime it belongs to return from `poll` with `Event::Woken`. Cheap to clone, usable from any thread, and
/// still harmless after the runtime is gone.
///
/// Make it *before* the runtime (which lives in one thread) with [`Waker::new`] and hand it in with
/// [`Runtime::with_waker`](super::Runtime::with_waker), or take it from a runtime with
/// [`Runtime::waker`](super::Runtime::waker).
#[derive(Clone)]
pub struct Waker(Arc<WakerShared>);

struct WakerShared {
    eventfd: OwnedFd,
    /// Set from `wake` to the runtime's taking note: while set, further wakes cost no system call.
    pending: AtomicBool,
}

impl Waker {
    /// A waker for a runtime that is still to be made.
    pub fn new() -> Result<Waker, NetError> {
        // Blocking, because io_uring would not wait for a non-blocking one. We read only what is there.
        let eventfd =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|source| NetError::system("make an eventfd", source))?;
        Ok(Waker(Arc::new(WakerShared { eventfd, pending: AtomicBool::new(false) })))
    }

    /// Wakes the runtime: work published before this call is visible to it when it sees `Event::Woken`.
    pub fn wake(&self) {
        if !self.0.pending.swap(true, Ordering::AcqRel) {
            // Cannot block: `pending` keeps the counter at one.
            let _ = rustix::io::write(&self.0.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// This waker as the callback that completion-based devices and stores take.
    pub fn callback(&self) -> Arc<dyn Fn() + Send + Sync> {
        let waker = self.clone();
        Arc::new(move || waker.wake())
    }

    /// The eventfd beneath, for the kernel to count up: the runtime then returns from `poll` with `Event::Woken`, as after
    /// [`Waker::wake`].
    pub fn eventfd(&self) -> &OwnedFd {
        &self.0.eventfd
    }

    /// Takes note of all wakes up to now. The eventfd's counter must be drained before.
    pub(super) fn acknowledge(&self) {
        // Acquire as well: what was published before a coalesced `wake` must be visible from here on.
        self.0.pending.swap(false, Ordering::AcqRel);
    }

    /// Empties the eventfd's counter (epoll; io_uring reads it by itself).
    pub(super) fn drain(&self) {
        let mut counter = [0u8; 8];
        let _ = rustix::io::read(&self.0.eventfd, &mut counter);
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.eventfd.as_fd()
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}
