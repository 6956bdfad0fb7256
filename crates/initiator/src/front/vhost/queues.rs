//! All queues of one front end, and the thread that takes requests from them, one queue after the other.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::config::VhostOptions;
use super::disk::{Guest, ServedDisk};
use super::vring::{Vring, VringError};

/// Requests that are taken from a queue before it is the next one's turn.
const TURN_REQUESTS_MAX: usize = 16;

/// See the module.
pub(super) struct GuestQueues {
    pub(super) rings: Vec<Arc<Vring>>,
    pub(super) guest: Arc<Guest>,
    /// Writable; the thread looks at all queues again.
    changed: OwnedFd,
    is_ending: AtomicBool,
}

impl GuestQueues {
    /// Queues that the front end has yet to set up.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub(super) fn new(options: &VhostOptions) -> io::Result<GuestQueues> {
        let ring = |index: u16| Arc::new(Vring::new(index.into(), options.queue_size_max));
        Ok(GuestQueues {
            rings: (0..options.queues_max).map(ring).collect(),
            guest: Arc::new(Guest::new()),
            changed: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_ending: AtomicBool::new(false),
        })
    }

    /// Has the thread look at all queues again.
    pub(super) fn look_again(&self) {
        // An eventfd holds any count, so this write cannot fail.
        let _ = rustix::io::write(&self.changed, &1_u64.to_ne_bytes());
    }

    /// Answers what is in flight, takes nothing more, and ends the thread.
    pub(super) fn finish(&self) {
        self.rings.iter().for_each(|ring| ring.pause());
        self.rings.iter().for_each(|ring| ring.wait_until_idle());
        self.close();
    }

    /// Ends the thread without answering anything: the front end is gone.
    pub(super) fn close(&self) {
        self.rings.iter().for_each(|ring| ring.close());
        self.guest.credit.give_up();
        self.is_ending.store(true, Ordering::Release);
        self.look_again();
    }

    /// The thread: takes requests until the queues are closed, and ends when nothing is in flight.
    pub(super) fn serve(&self, disk: &ServedDisk) {
        while !self.is_ending.load(Ordering::Acquire) {
            if let Err(error) = self.wait() {
                return tracing::error!(%error, "no more requests of the guest are taken");
            }
            self.take_all(disk);
        }
        self.rings.iter().for_each(|ring| ring.wait_until_idle());
    }

    /// Waits until the guest or the front end has something to say.
    fn wait(&self) -> io::Result<()> {
        let kicks: Vec<_> = self.rings.iter().filter_map(|ring| Some((ring, ring.kick()?))).collect();
        let fds = kicks.iter().map(|(_, kick)| PollFd::new(&**kick, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = std::iter::once(PollFd::new(&self.changed, PollFlags::IN)).chain(fds).collect();
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let is_ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        if !is_ready[0].is_empty() {
            let _ = rustix::io::read(&self.changed, &mut [0; 8]);
        }
        for ((ring, kick), events) in kicks.iter().zip(&is_ready[1..]) {
            let is_read = match events.contains(PollFlags::IN).then(|| rustix::io::read(&**kick, &mut [0; 8])) {
                None | Some(Err(Errno::AGAIN | Errno::INTR)) => true,
                Some(read) => read.is_ok_and(|len| len > 0),
            };
            if !is_read || events.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
                ring.give_up(&VringError::Kick);
            }
        }
        Ok(())
    }

    /// Takes what there is, and asks to be notified of more.
    fn take_all(&self, disk: &ServedDisk) {
        let mut rings: Vec<&Arc<Vring>> = self.rings.iter().filter(|ring| ring.kick().is_some()).collect();
        while !rings.is_empty() && !self.is_ending.load(Ordering::Acquire) {
            rings.retain(|ring| {
                for _ in 0..TURN_REQUESTS_MAX {
                    match ring.take() {
                        Some((head, chain)) => disk.execute(&self.guest, ring, head, chain),
                        None => return ring.rearm(),
                    }
                }
                true
            });
        }
    }
}
