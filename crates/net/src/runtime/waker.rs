//! Waking a runtime from another thread: by a flag while it is awake, by an eventfd while it sleeps; any number of wakes coalesce into one.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

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
    state: AtomicU8,
}

/// The runtime does not sleep: before it does, it looks here. A wake costs no system call.
const AWAKE: u8 = 0;
/// As `AWAKE`, and a wake is still to be told.
const NOTIFIED: u8 = 1;
/// The runtime sleeps, or is about to: it must be woken through the eventfd.
const ASLEEP: u8 = 2;
/// The eventfd was written for it: further wakes cost no system call.
const SIGNALLED: u8 = 3;

impl Waker {
    /// A waker for a runtime that is still to be made.
    pub fn new() -> Result<Waker, NetError> {
        // Blocking, because io_uring would not wait for a non-blocking one. We read only what is there.
        let eventfd =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|source| NetError::system("make an eventfd", source))?;
        Ok(Waker(Arc::new(WakerShared { eventfd, state: AtomicU8::new(AWAKE) })))
    }

    /// Wakes the runtime: work published before this call is visible to it when it sees `Event::Woken`.
    pub fn wake(&self) {
        // Written even where it stays as it is: what was published before a coalesced wake must be visible as well.
        let before = self.change(|state| match state {
            AWAKE | NOTIFIED => NOTIFIED,
            _ => SIGNALLED,
        });
        if before == ASLEEP {
            // Cannot block: the counter is far from its end.
            let _ = rustix::io::write(&self.0.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// Changes the state; returns the one before.
    fn change(&self, to: impl Fn(u8) -> u8) -> u8 {
        let changed = self.0.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| Some(to(state)));
        changed.unwrap_or_else(|state| state)
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

    /// Whether there is a wake that came while the runtime was awake; it is told now.
    pub(super) fn take_notice(&self) -> bool {
        self.is_notified() && self.change(|state| if state == NOTIFIED { AWAKE } else { state }) == NOTIFIED
    }

    /// Whether [`Waker::take_notice`] has something to take: cheap enough to be asked again and again.
    pub(super) fn is_notified(&self) -> bool {
        self.0.state.load(Ordering::Acquire) == NOTIFIED
    }

    /// The runtime is about to sleep: wakes go through the eventfd from here on. False if one has come before, and it must not.
    pub(super) fn fall_asleep(&self) -> bool {
        self.change(|state| if state == AWAKE { ASLEEP } else { state }) != NOTIFIED
    }

    /// The runtime sleeps no more. What the eventfd was written for is still to be read from it.
    pub(super) fn rise(&self) {
        self.change(|state| if state == ASLEEP { AWAKE } else { state });
    }

    /// Takes note of all wakes up to now. The eventfd's counter must be drained before.
    pub(super) fn acknowledge(&self) {
        self.change(|_| AWAKE);
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

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_signalled(waker: &Waker) -> bool {
        let mut fds = [PollFd::new(&waker.0.eventfd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn the_eventfd_is_for_those_who_sleep() {
        let waker = Waker::new().unwrap();
        waker.wake();
        waker.wake();
        assert!(!is_signalled(&waker), "awake: a flag does");
        assert!(!waker.fall_asleep(), "it must be told first");
        assert!(waker.take_notice() && !waker.take_notice(), "told once");
        assert!(waker.fall_asleep());
        waker.wake();
        assert!(is_signalled(&waker) && !waker.take_notice());
        waker.rise();
        waker.wake();
        assert!(!waker.take_notice(), "the eventfd tells of it");
        waker.drain();
        waker.acknowledge();
        assert!(!is_signalled(&waker), "written once");
        waker.wake();
        assert!(waker.take_notice());
        assert!(waker.fall_asleep());
        waker.rise();
        waker.wake();
        assert!(!is_signalled(&waker) && waker.take_notice(), "it sleeps no more");
    }
}
