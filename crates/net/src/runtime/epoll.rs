//! The epoll driver: readiness, one receive per ready stream into one staging buffer, one vectored write per flush.
//!
//! Level-triggered: what is not read now is reported again, so there is no state to get wrong, and each ready stream gets
//! one receive per turn, so that no peer can keep the others, or the loop itself, waiting. Write interest exists only
//! while a queue is stuck.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use super::busy_poll::{BusyPoller, Look};
use super::event::{DatagramId, ListenerId, StreamId};
use super::send_queue::SLICES_MAX;
use super::socket;
use super::stream::Phase;
use super::table::{Failed, Pending, Table};
use super::waker::Waker;
use crate::{NetError, StreamFailure};

/// Events fetched in one call.
const EVENTS_MAX: usize = 256;

/// Connections accepted in a row before other work gets its turn.
const ACCEPTS_IN_A_ROW: usize = 64;

const WAKER_TOKEN: u64 = u64::MAX;
const LISTENER_BIT: u64 = 1 << 63;
/// With the one before: a datagram socket.
const DATAGRAM_BITS: u64 = LISTENER_BIT | 1 << 62;

const READ: epoll::EventFlags = epoll::EventFlags::IN;
const WRITE: epoll::EventFlags = epoll::EventFlags::OUT;

pub(super) struct Epoll {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    staging: Vec<u8>,
}

impl fmt::Debug for Epoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoll").field("staging_bytes", &self.staging.len()).finish_non_exhaustive()
    }
}

/// What one receive brought.
pub(super) enum Received {
    Bytes(usize),
    Finished,
    Nothing,
    Failed(io::Error),
}

impl Epoll {
    pub(super) fn new(waker: &Waker, staging_bytes: usize) -> Result<Epoll, NetError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|source| NetError::system("make an epoll instance", source))?;
        epoll::add(&epoll, waker.fd(), epoll::EventData::new_u64(WAKER_TOKEN), READ)
            .map_err(|source| NetError::system("watch the waker", source))?;
        Ok(Epoll { epoll, events: Vec::with_capacity(EVENTS_MAX), staging: vec![0; staging_bytes] })
    }

    pub(super) fn staging(&self, len_bytes: usize) -> &[u8] {
        &self.staging[..len_bytes]
    }

    pub(super) fn add_listener(&mut self, table: &mut Table, id: ListenerId) -> Result<(), NetError> {
        let token = epoll::EventData::new_u64(LISTENER_BIT | u64::from(id.0));
        // Exclusive: one of the runtimes that share the socket wakes, not all of them.
        epoll::add(&self.epoll, &table.listeners[id.0 as usize].fd, token, READ | epoll::EventFlags::EXCLUSIVE)
            .map_err(|source| NetError::system("watch a listening socket", source))
    }

    pub(super) fn add_datagrams(&mut self, table: &Table, id: DatagramId) -> Result<(), NetError> {
        let token = epoll::EventData::new_u64(DATAGRAM_BITS | u64::from(id.0));
        epoll::add(&self.epoll, &table.datagrams[id.0 as usize], token, READ)
            .map_err(|source| NetError::system("watch a UDP socket", source))
    }

    pub(super) fn remove_datagrams(&mut self, table: &Table, id: DatagramId) {
        if let Some(socket) = table.datagrams.get(id.0 as usize) {
            let _ = epoll::delete(&self.epoll, socket);
        }
    }

    /// Watches a stream that is connecting or connected.
    pub(super) fn add_stream(&mut self, table: &mut Table, id: StreamId) -> Result<(), NetError> {
        let stream = table.stream(id).ok_or(NetError::NoSuchStream)?;
        let interest = if stream.phase == Phase::Connecting { WRITE } else { READ };
        stream.epoll.interest = interest.bits();
        epoll::add(&self.epoll, &stream.fd, epoll::EventData::new_u64(id.token()), interest)
            .map_err(|source| NetError::system("watch a connection", source))
    }

    pub(super) fn forget_stream(&mut self, table: &mut Table, id: StreamId) {
        if let Some(stream) = table.stream(id) {
            let _ = epoll::delete(&self.epoll, &stream.fd);
            table.counters.system_calls += 1;
        }
    }

    /// Asks for what the stream's state calls for.
    pub(super) fn update_interest(&mut self, table: &mut Table, id: StreamId) {
        let Some(stream) = table.stream(id) else { return };
        let mut interest = epoll::EventFlags::empty();
        if stream.phase == Phase::Connecting {
            interest |= WRITE;
        } else {
            if stream.receiving && !stream.peer_end.has_come() {
                interest |= READ;
            }
            if !stream.queue.is_empty() && !stream.dirty {
                interest |= WRITE;
            }
        }
        if stream.epoll.interest != interest.bits() {
            stream.epoll.interest = interest.bits();
            let _ = epoll::modify(&self.epoll, &stream.fd, epoll::EventData::new_u64(id.token()), interest);
            table.counters.system_calls += 1;
        }
    }

    /// Hands as much of the queue to the kernel as it takes.
    pub(super) fn flush(&mut self, table: &mut Table, id: StreamId) -> Result<(), Failed> {
        loop {
            let Some(stream) = table.stream(id) else { return Ok(()) };
            if stream.queue.is_empty() || stream.phase == Phase::Connecting {
                break;
            }
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = stream.queue.fill(&mut slices);
            let offered: usize = slices[..count].iter().map(|slice| slice.len()).sum();
            let mut no_control = SendAncillaryBuffer::default();
            let outcome = rustix::net::sendmsg(&stream.fd, &slices[..count], &mut no_control, SendFlags::NOSIGNAL);
            table.counters.system_calls += 1;
            match outcome {
                Ok(sent) => {
                    table.sent(id, sent);
                    if sent < offered {
                        break; // The send buffer is full.
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => match table.send_failed(id, errno.into()) {
                    Some(failed) => return Err(failed),
                    None => break,
                },
            }
        }
        self.update_interest(table, id);
        Ok(())
    }

    /// One receive into the staging buffer.
    pub(super) fn receive(&mut self, table: &mut Table, id: StreamId) -> Received {
        let Some(stream) = table.stream(id) else { return Received::Nothing };
        stream.epoll.readable_pending = false;
        if !stream.receiving || stream.peer_end.has_come() {
            return Received::Nothing;
        }
        loop {
            table.counters.system_calls += 1;
            let Some(stream) = table.stream(id) else { return Received::Nothing };
            return match rustix::net::recv(&stream.fd, &mut self.staging[..], RecvFlags::empty()) {
                Ok((_, 0)) => {
                    stream.peer_end.note();
                    self.update_interest(table, id);
                    Received::Finished
                }
                Ok((_, len_bytes)) => {
                    table.counters.received_bytes += len_bytes as u64;
                    Received::Bytes(len_bytes)
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Received::Nothing,
                Err(errno) => Received::Failed(errno.into()),
            };
        }
    }

    /// As [`Driver::wait`](super::driver::Driver::wait).
    pub(super) fn wait(
        &mut self,
        table: &mut Table,
        waker: &Waker,
        timeout: Option<Duration>,
        failed: &mut Vec<Failed>,
    ) -> Result<(), NetError> {
        let timeout = if waker.fall_asleep() { timeout } else { Some(Duration::ZERO) };
        let fetched = self.fetch(table, timeout);
        waker.rise();
        fetched?;
        self.note(table, waker, failed);
        Ok(())
    }

    /// As [`Driver::look`](super::driver::Driver::look).
    pub(super) fn look(
        &mut self,
        table: &mut Table,
        waker: &Waker,
        poller: &mut BusyPoller,
        limit: Duration,
        failed: &mut Vec<Failed>,
    ) -> Result<bool, NetError> {
        let mut fetched = Ok(());
        let outcome = poller.look(limit, || {
            if waker.is_notified() {
                return true;
            }
            fetched = self.fetch(table, Some(Duration::ZERO));
            fetched.is_err() || !self.events.is_empty()
        });
        fetched?;
        if outcome == Look::Hit {
            self.note(table, waker, failed);
        }
        Ok(outcome == Look::Hit)
    }

    fn fetch(&mut self, table: &mut Table, timeout: Option<Duration>) -> Result<(), NetError> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        self.events.clear();
        table.counters.system_calls += 1;
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(NetError::system("wait for events", errno)),
        }
    }

    /// Takes note of what was fetched.
    fn note(&mut self, table: &mut Table, waker: &Waker, failed: &mut Vec<Failed>) {
        if waker.take_notice() {
            table.pending.push_back(Pending::Woken);
        }
        for index in 0..self.events.len() {
            let (token, flags) = (self.events[index].data.u64(), self.events[index].flags);
            if token == WAKER_TOKEN {
                waker.drain();
                waker.acknowledge();
                table.counters.system_calls += 1;
                table.pending.push_back(Pending::Woken);
            } else if token & DATAGRAM_BITS == DATAGRAM_BITS {
                table.pending.push_back(Pending::Datagrams(DatagramId(token as u32)));
            } else if token & LISTENER_BIT != 0 {
                self.accept(table, ListenerId(token as u32));
            } else if let Err(failure) = self.ready(table, StreamId::from_token(token), flags) {
                failed.push(failure);
            }
        }
        // The next look may find a wake before it fetches anything.
        self.events.clear();
    }

    fn ready(&mut self, table: &mut Table, id: StreamId, flags: epoll::EventFlags) -> Result<(), Failed> {
        let Some(stream) = table.stream(id) else { return Ok(()) };
        let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        if stream.phase == Phase::Connecting {
            table.connect_result(id).map_err(|error| Failed(id, error))?;
            if broken {
                return Err(Failed(id, io::Error::from(io::ErrorKind::ConnectionReset)));
            }
            table.connected(id);
            return self.flush(table, id);
        }
        if flags.contains(WRITE) || broken {
            self.flush(table, id)?;
        }
        let Some(stream) = table.stream(id) else { return Ok(()) };
        if stream.receiving && !stream.peer_end.has_come() {
            if (flags.contains(READ) || broken) && !stream.epoll.readable_pending {
                stream.epoll.readable_pending = true;
                table.pending.push_back(Pending::Readable(id));
            }
        } else if broken {
            // It is not read any more, and level-triggered errors would be reported forever.
            let error = table.connect_result(id).err();
            return Err(Failed(id, error.unwrap_or_else(|| io::ErrorKind::ConnectionReset.into())));
        }
        Ok(())
    }

    fn accept(&mut self, table: &mut Table, listener: ListenerId) {
        for _ in 0..ACCEPTS_IN_A_ROW {
            let Some(socket) = table.listeners.get(listener.0 as usize) else { return };
            table.counters.system_calls += 1;
            match socket::accept(&socket.fd) {
                Ok(None) => return,
                Ok(Some((fd, peer))) => {
                    if let Some(id) = table.accepted(listener, fd, peer)
                        && let Err(error) = self.add_stream(table, id)
                    {
                        table.remove(id);
                        let failure = StreamFailure::Other { peer, source: io::Error::other(error) };
                        table.pending.push_back(Pending::Closed { stream: id, failure });
                    }
                }
                Err(errno) => {
                    table.accept_failed(errno);
                    if let Some(socket) = table.listeners.get(listener.0 as usize) {
                        let _ = epoll::delete(&self.epoll, &socket.fd);
                    }
                    return;
                }
            }
        }
    }

    /// Watches the listeners again after a pause.
    pub(super) fn accept_again(&mut self, table: &mut Table) {
        table.accept_paused = false;
        for index in table.listeners.iter().map(|(index, _)| index).collect::<Vec<_>>() {
            let id = ListenerId(index as u32);
            // One that was not paused is still watched: adding it again fails, harmlessly.
            if let Err(error) = self.add_listener(table, id) {
                tracing::trace!(%error, "listener still watched");
            }
        }
    }

    pub(super) fn remove_listener(&mut self, table: &mut Table, id: ListenerId) {
        if let Some(listener) = table.listeners.get(id.0 as usize) {
            let _ = epoll::delete(&self.epoll, &listener.fd);
        }
    }
}
