//! Signals as values: a thread waits for SIGTERM, SIGINT or SIGHUP instead of being interrupted by them.
//!
//! Absent: what to do about them.

#![allow(unsafe_code)] // Signal masks and signalfd are libc's.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A signal that asks the process to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopSignal(u32);

impl StopSignal {
    /// SIGHUP: the terminal is gone, or, for a daemon, the configuration is to be read again.
    pub fn is_hangup(self) -> bool {
        self.0 as libc::c_int == libc::SIGHUP
    }

    /// As people know it.
    pub fn name(self) -> &'static str {
        match self.0 as libc::c_int {
            libc::SIGINT => "SIGINT",
            libc::SIGHUP => "SIGHUP",
            _ => "SIGTERM",
        }
    }
}

/// What [`StopSignals::wait_or`] met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// A signal.
    Signal(StopSignal),
    /// What was waited for beside it.
    Ended,
    /// Neither, in time.
    InVain,
}

/// SIGUSR1: to stop at once, even if data is lost by that. Made like [`StopSignals`], and waited for beside them.
pub(crate) struct ForceSignal(OwnedFd);

impl ForceSignal {
    /// Blocks the signal in this thread and those it starts.
    ///
    /// # Errors
    /// If the kernel has no descriptor left.
    pub(crate) fn block() -> io::Result<ForceSignal> {
        hold_back(&[libc::SIGUSR1]).map(ForceSignal)
    }

    /// Waits until it arrives.
    pub(crate) fn wait(&self) {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        while rustix::io::read(&self.0, &mut info).is_err() {
            let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None);
        }
    }
}

fn hold_back(signals: &[libc::c_int]) -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set that the other calls then use.
    let fd = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), ptr::null_mut());
        libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Holds SIGTERM, SIGINT and SIGHUP back for the whole process, so that they can be waited for.
///
/// Make it before any thread is started: threads inherit the mask. Children started with `std::process` do not.
pub struct StopSignals(OwnedFd);

impl StopSignals {
    /// Blocks the signals in this thread and those it starts.
    ///
    /// # Errors
    /// If the kernel has no descriptor left.
    pub fn block() -> io::Result<StopSignals> {
        hold_back(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP]).map(StopSignals)
    }

    /// Waits until one arrives, or for `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<StopSignal> {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        self.poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout));
        self.read()
    }

    /// Waits until one arrives, or `ended` is readable, or for `timeout`.
    pub(crate) fn wait_or(&self, ended: BorrowedFd<'_>, timeout: Duration) -> Waited {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        let mut fds = [PollFd::new(&self.0, PollFlags::IN), PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN)];
        self.poll(&mut fds, Some(&timeout));
        let has_ended = !fds[1].revents().is_empty();
        match self.read() {
            Some(signal) => Waited::Signal(signal),
            None if has_ended => Waited::Ended,
            None => Waited::InVain,
        }
    }

    fn poll(&self, fds: &mut [PollFd<'_>], timeout: Option<&Timespec>) {
        // An interruption or an end of time look the same to the caller: nothing to read.
        let _ = poll(fds, timeout);
    }

    fn read(&self) -> Option<StopSignal> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        let read = rustix::io::read(&self.0, &mut info).ok()?;
        // ssi_signo is the first field.
        (read == info.len()).then(|| StopSignal(u32::from_ne_bytes([info[0], info[1], info[2], info[3]])))
    }
}
