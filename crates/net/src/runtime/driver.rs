//! One door for the two drivers, and the choice between them.

use std::sync::Once;
use std::time::Duration;

use super::busy_poll::BusyPoller;
use super::epoll::Epoll;
use super::event::{DatagramId, ListenerId, StreamId};
use super::options::{Flavour, FlavourChoice, RuntimeOptions};
use super::table::{Failed, Table};
use super::uring::Uring;
use super::waker::Waker;
use crate::NetError;

#[derive(Debug)]
pub(super) enum Driver {
    Epoll(Epoll),
    Uring(Box<Uring>),
}

impl Driver {
    /// What `options` ask for. `Auto` is io_uring where it is permitted; a log line tells, once, where it is not.
    pub(super) fn new(options: &RuntimeOptions, waker: &Waker) -> Result<Driver, NetError> {
        static TOLD: Once = Once::new();
        let receive_bytes_max = options.receive_bytes_max.max(4096);
        if options.flavour != FlavourChoice::Epoll {
            match Uring::new(waker, receive_bytes_max) {
                Ok(uring) => return Ok(Driver::Uring(Box::new(uring))),
                Err(source) if options.flavour == FlavourChoice::IoUring => {
                    return Err(NetError::IoUringRefused { source });
                }
                Err(error) => TOLD.call_once(|| {
                    tracing::warn!(
                        %error,
                        "io_uring is not to be had here (it needs Linux 6.1, kernel.io_uring_disabled=0 and, in a \
                         container, a seccomp profile that admits it): using epoll, which does the same at a little \
                         more CPU per operation"
                    );
                }),
            }
        }
        Ok(Driver::Epoll(Epoll::new(waker, receive_bytes_max)?))
    }

    pub(super) fn flavour(&self) -> Flavour {
        match self {
            Driver::Epoll(_) => Flavour::Epoll,
            Driver::Uring(_) => Flavour::IoUring,
        }
    }

    pub(super) fn add_listener(&mut self, table: &mut Table, id: ListenerId) -> Result<(), NetError> {
        match self {
            Driver::Epoll(epoll) => epoll.add_listener(table, id),
            Driver::Uring(uring) => {
                uring.add_listener(table, id);
                Ok(())
            }
        }
    }

    pub(super) fn remove_listener(&mut self, table: &mut Table, waker: &Waker, id: ListenerId) {
        match self {
            Driver::Epoll(epoll) => epoll.remove_listener(table, id),
            Driver::Uring(uring) => uring.remove_listener(table, waker, id),
        }
    }

    pub(super) fn add_datagrams(&mut self, table: &Table, id: DatagramId) -> Result<(), NetError> {
        match self {
            Driver::Epoll(epoll) => epoll.add_datagrams(table, id),
            Driver::Uring(uring) => {
                uring.add_datagrams(id);
                Ok(())
            }
        }
    }

    pub(super) fn remove_datagrams(&mut self, table: &mut Table, id: DatagramId) {
        match self {
            Driver::Epoll(epoll) => epoll.remove_datagrams(table, id),
            Driver::Uring(uring) => uring.remove_datagrams(table, id),
        }
    }

    pub(super) fn accept_again(&mut self, table: &mut Table) {
        match self {
            Driver::Epoll(epoll) => epoll.accept_again(table),
            Driver::Uring(uring) => uring.accept_again(table),
        }
    }

    pub(super) fn add_stream(&mut self, table: &mut Table, id: StreamId) -> Result<(), NetError> {
        match self {
            Driver::Epoll(epoll) => epoll.add_stream(table, id),
            Driver::Uring(uring) => {
                uring.add_stream(table, id);
                Ok(())
            }
        }
    }

    /// The stream is over. True if its slot may go now.
    pub(super) fn forget_stream(&mut self, table: &mut Table, id: StreamId) -> bool {
        match self {
            Driver::Epoll(epoll) => {
                epoll.forget_stream(table, id);
                true
            }
            Driver::Uring(uring) => uring.forget_stream(table, id),
        }
    }

    /// Nothing of the stream is in the kernel's or this driver's hands any more.
    pub(super) fn take_back(&mut self, table: &mut Table, waker: &Waker, id: StreamId) {
        match self {
            Driver::Epoll(epoll) => epoll.forget_stream(table, id),
            Driver::Uring(uring) => uring.take_back(table, waker, id),
        }
    }

    /// The stream's wish to receive, or its queue, changed.
    pub(super) fn update(&mut self, table: &mut Table, id: StreamId) {
        match self {
            Driver::Epoll(epoll) => epoll.update_interest(table, id),
            Driver::Uring(uring) => uring.update_receiving(table, id),
        }
    }

    /// Hands the queue to the kernel: with the next wait, or `at_once`.
    pub(super) fn flush(&mut self, table: &mut Table, id: StreamId, at_once: bool) -> Result<(), Failed> {
        match self {
            Driver::Epoll(epoll) => epoll.flush(table, id),
            Driver::Uring(uring) => {
                uring.flush(table, id, at_once);
                Ok(())
            }
        }
    }

    /// Waits for the kernel and notes what it reports. A wake that came while the runtime was awake ends the wait as well.
    pub(super) fn wait(
        &mut self,
        table: &mut Table,
        waker: &Waker,
        timeout: Option<Duration>,
        failed: &mut Vec<Failed>,
    ) -> Result<(), NetError> {
        match self {
            Driver::Epoll(epoll) => epoll.wait(table, waker, timeout, failed),
            Driver::Uring(uring) => uring.wait(table, waker, timeout),
        }
    }

    /// Looks for `limit` at most whether there is something to do, without sleeping. True if so, and it is noted then.
    pub(super) fn look(
        &mut self,
        table: &mut Table,
        waker: &Waker,
        poller: &mut BusyPoller,
        limit: Duration,
        failed: &mut Vec<Failed>,
    ) -> Result<bool, NetError> {
        match self {
            Driver::Epoll(epoll) => epoll.look(table, waker, poller, limit, failed),
            Driver::Uring(uring) => uring.look(table, waker, poller, limit),
        }
    }
}
