//! The runtime: one per thread, it owns sockets and tells what happens on them. No protocol, no locks, no task system.
//!
//! ```text
//! loop {
//!     runtime.poll(timeout)?;                          // writes what was queued, waits, notes what happened
//!     while let Some(event) = runtime.next_event() {   // tells it, one thing at a time
//!         ...                                          // feeds machines, queues their output with `send`
//!     }
//! }
//! ```
//!
//! Whether epoll or io_uring is beneath is the runtime's own business ([`Flavour`] says which, for the log): the same
//! calls, the same events, the same limits. Timers are the caller's: hand the time until the earliest one to
//! [`Runtime::poll`]. Name resolution blocks and is apart ([`resolve`]).
//!
//! A runtime stays in the thread that made it. What crosses threads are the [`Waker`], a bound [`Listener`], and a
//! [`DetachedStream`] that moves a connection to another thread's runtime without losing a byte.

mod busy_poll;
mod driver;
mod epoll;
mod event;
mod options;
mod path;
mod provided;
mod send_queue;
mod socket;
mod stream;
mod table;
mod uring;
mod uring_stream;
mod waker;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use strongroom_block::Buffer;

pub use self::busy_poll::{BusyPoll, BusyPollError, BusyPoller, Look, PollCounters, WaitEstimator};
pub use self::event::{DatagramId, Event, ListenerId, RuntimeCounters, SendState, StreamId};
pub use self::options::{Flavour, FlavourChoice, RuntimeOptions};
pub use self::path::PathInfo;
pub use self::socket::{Listener, StreamOptions, resolve};
pub use self::waker::Waker;

use self::driver::Driver;
use self::epoll::Received;
use self::send_queue::SendQueue;
use self::stream::{PeerEnd, Phase, Stream};
use self::table::{Deadline, Failed, Pending, Table};
use crate::{NetError, StreamFailure, UdpSocket};

/// Queued bytes after which a stream is flushed at once instead of at the next `poll`.
const FLUSH_AT_ONCE_BYTES: usize = 256 << 10;

/// A connection outside any runtime, with all that was not yet sent and not yet read. Give it to another runtime's
/// [`Runtime::attach`]; dropping it ends the connection.
#[derive(Debug)]
pub struct DetachedStream {
    fd: OwnedFd,
    peer: SocketAddr,
    queue: SendQueue,
    early: VecDeque<Vec<u8>>,
    peer_end: PeerEnd,
}

impl DetachedStream {
    /// A stream made elsewhere.
    pub fn from_std(stream: TcpStream) -> Result<DetachedStream, NetError> {
        let peer = stream.peer_addr().map_err(|source| NetError::system("name a connection's peer", source))?;
        stream.set_nonblocking(true).map_err(|source| NetError::system("make a socket non-blocking", source))?;
        Ok(DetachedStream {
            fd: stream.into(),
            peer,
            queue: SendQueue::default(),
            early: VecDeque::new(),
            peer_end: PeerEnd::default(),
        })
    }

    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The connection for a thread that waits on it, with what was queued for sending and what was read already, both in order.
    ///
    /// # Errors
    /// [`NetError`], if the socket cannot be made one that waits.
    pub fn into_std(self) -> Result<(TcpStream, Vec<u8>, Vec<u8>), NetError> {
        let stream = TcpStream::from(self.fd);
        stream.set_nonblocking(false).map_err(|source| NetError::system("make a socket wait", source))?;
        Ok((stream, self.queue.into_bytes(), self.early.into_iter().flatten().collect()))
    }
}

/// One thread's sockets. See the module's text for the loop around it.
#[derive(Debug)]
pub struct Runtime {
    table: Table,
    driver: Driver,
    waker: Waker,
    /// Early bytes lent by the event told last.
    lent: Vec<u8>,
    failed: Vec<Failed>,
    poller: BusyPoller,
    /// io_uring insists on one thread; epoll does not mind, and both shall behave alike.
    stays_in_its_thread: PhantomData<*const ()>,
}

/// What `next_event` found, before bytes are lent.
enum Found {
    Staged(StreamId, usize),
    Provided(StreamId, u16, u32),
    Early(StreamId),
    Told(Event<'static>),
}

impl Runtime {
    /// A runtime for the calling thread.
    pub fn new(options: RuntimeOptions) -> Result<Runtime, NetError> {
        Runtime::with_waker(options, Waker::new()?)
    }

    /// A runtime for the calling thread, woken by a waker that others hold already.
    pub fn with_waker(options: RuntimeOptions, waker: Waker) -> Result<Runtime, NetError> {
        let driver = Driver::new(&options, &waker)?;
        Ok(Runtime {
            poller: BusyPoller::new(options.busy_poll),
            table: Table::new(options),
            driver,
            waker,
            lent: Vec::new(),
            failed: Vec::new(),
            stays_in_its_thread: PhantomData,
        })
    }

    /// What lies beneath.
    pub fn flavour(&self) -> Flavour {
        self.driver.flavour()
    }

    /// Wakes this runtime from any thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// What it has done so far.
    pub fn counters(&self) -> RuntimeCounters {
        RuntimeCounters { busy_poll: self.poller.counters, ..self.table.counters }
    }

    /// Streams held now, those that are still handing over their last bytes included.
    pub fn streams_count(&self) -> usize {
        self.table.streams.len()
    }

    /// Accepts from a bound socket; [`Event::Accepted`] tells of each connection.
    pub fn listen(&mut self, listener: Listener) -> Result<ListenerId, NetError> {
        let index = self.table.listeners.insert(listener);
        let id = ListenerId(u32::try_from(index).expect("far fewer listeners than 2^32"));
        if let Err(error) = self.driver.add_listener(&mut self.table, id) {
            self.table.listeners.remove(index);
            return Err(error);
        }
        Ok(id)
    }

    /// Stops accepting; streams accepted before stay.
    pub fn stop_listening(&mut self, id: ListenerId) {
        self.driver.remove_listener(&mut self.table, &self.waker, id);
        self.table.listeners.try_remove(id.0 as usize);
    }

    /// Watches a datagram socket: [`Event::DatagramsReady`] is told again and again while packets wait in it.
    pub fn watch_datagrams(&mut self, socket: &UdpSocket) -> Result<DatagramId, NetError> {
        let watched = socket.as_fd().try_clone_to_owned();
        let watched = watched.map_err(|source| NetError::system("duplicate a UDP socket", source))?;
        let index = self.table.datagrams.insert(watched);
        let id = DatagramId(u32::try_from(index).expect("far fewer sockets than 2^32"));
        self.driver.add_datagrams(&self.table, id).inspect_err(|_| drop(self.table.datagrams.remove(index)))?;
        Ok(id)
    }

    /// Watches it no longer.
    pub fn ignore_datagrams(&mut self, id: DatagramId) {
        self.driver.remove_datagrams(&mut self.table, id);
        self.table.datagrams.try_remove(id.0 as usize);
        self.table.pending.retain(|pending| !matches!(pending, Pending::Datagrams(other) if *other == id));
    }

    /// Calls a peer: [`Event::Connected`] or [`Event::Closed`] follows. Bytes may be queued at once.
    pub fn connect(&mut self, peer: SocketAddr) -> Result<StreamId, NetError> {
        let fd = socket::socket_for(peer).map_err(|source| NetError::system("make a socket", source))?;
        self.table.options.stream.apply(&fd).map_err(|source| NetError::system("set socket options", source))?;
        let outcome = rustix::net::connect(&fd, &peer);
        let id = self.table.insert(fd, peer, Phase::Connecting)?;
        self.table.counters.system_calls += 2;
        if let Err(errno) = outcome
            && errno != Errno::INPROGRESS
        {
            self.fail(id, errno.into());
            return Ok(id);
        }
        let after = self.table.options.connect_timeout;
        self.table.arm(after, Deadline::Connect(id));
        self.driver.add_stream(&mut self.table, id).inspect_err(|_| drop(self.table.remove(id)))?;
        Ok(id)
    }

    /// Takes in a connection from another runtime or from elsewhere. What it had received but not told comes first.
    pub fn attach(&mut self, detached: DetachedStream) -> Result<StreamId, NetError> {
        let DetachedStream { fd, peer, queue, early, peer_end } = detached;
        self.table.options.stream.apply(&fd).map_err(|source| NetError::system("set socket options", source))?;
        let id = self.table.insert(fd, peer, Phase::Open)?;
        let stream = self.table.stream(id).expect("inserted above");
        (stream.queue, stream.early, stream.peer_end) = (queue, early, peer_end);
        self.driver.add_stream(&mut self.table, id).inspect_err(|_| drop(self.table.remove(id)))?;
        self.driver.update(&mut self.table, id);
        self.table.tell_early(id);
        self.mark_dirty(id);
        Ok(id)
    }

    /// Lets go of a stream so that another runtime can [`attach`](Runtime::attach) it: nothing queued or received is
    /// lost, and no more events of it are told here.
    pub fn detach(&mut self, id: StreamId) -> Result<DetachedStream, NetError> {
        if !self.table.owned(id).is_some_and(|stream| stream.phase == Phase::Open) {
            return Err(NetError::NoSuchStream);
        }
        self.driver.take_back(&mut self.table, &self.waker, id);
        let Stream { fd, peer, queue, early, peer_end, .. } = self.table.remove(id).expect("looked up above");
        Ok(DetachedStream { fd, peer, queue, early, peer_end })
    }

    /// The other end of a stream.
    pub fn peer(&mut self, id: StreamId) -> Option<SocketAddr> {
        self.table.owned(id).map(|stream| stream.peer)
    }

    /// This end of a stream.
    pub fn local(&mut self, id: StreamId) -> Option<SocketAddr> {
        let name = rustix::net::getsockname(&self.table.owned(id)?.fd).ok()?;
        SocketAddr::try_from(name).ok()
    }

    /// Queues all of `buffers` (left empty) for sending, by reference. They leave with the next [`Runtime::poll`], all
    /// streams' in as few calls as possible, or at once when many bytes wait. A stream that is gone takes nothing: its
    /// `Closed` is on the way or told.
    pub fn send(&mut self, id: StreamId, buffers: &mut Vec<Buffer>) -> SendState {
        let (high_water, queue_max) =
            (self.table.options.send_high_water_bytes, self.table.options.send_queue_bytes_max);
        let Some(stream) = self.table.owned(id) else {
            buffers.clear();
            return SendState::Ready;
        };
        stream.unflushed_bytes += stream.queue.append(buffers);
        let flush_now = stream.unflushed_bytes >= FLUSH_AT_ONCE_BYTES && stream.phase == Phase::Open;
        self.mark_dirty(id);
        if flush_now {
            self.flush(id, true);
        }
        let Some(stream) = self.table.owned(id) else { return SendState::Ready };
        let queued_bytes = stream.queue.len_bytes();
        if queued_bytes > queue_max {
            let failure = StreamFailure::NotReading { peer: stream.peer, queued_bytes, queued_bytes_max: queue_max };
            self.end(id, failure);
            return SendState::Ready;
        }
        if queued_bytes > high_water {
            stream.above_high_water = true;
            return SendState::Full;
        }
        SendState::Ready
    }

    /// What the kernel knows of the way that a stream takes; `None` where it does not tell, and before it has measured.
    pub fn path(&self, id: StreamId) -> Option<PathInfo> {
        let slot = self.table.streams.get(id.index as usize).filter(|slot| slot.generation == id.generation)?;
        path::info(slot.stream.fd.as_fd())
    }

    /// Bytes queued on a stream that the kernel has not taken yet.
    pub fn queued_bytes(&self, id: StreamId) -> usize {
        self.table
            .streams
            .get(id.index as usize)
            .filter(|slot| slot.generation == id.generation)
            .map_or(0, |slot| slot.stream.queue.len_bytes())
    }

    /// Stops (`false`) or resumes (`true`) receiving: while stopped, no bytes are told and the peer is soon held back
    /// by TCP's window. The peer's end, or a failure of the connection, may be told only after receiving is resumed.
    pub fn set_receiving(&mut self, id: StreamId, receiving: bool) {
        let Some(stream) = self.table.owned(id) else { return };
        if stream.receiving != receiving {
            stream.receiving = receiving;
            if receiving {
                self.table.tell_early(id);
            }
            self.driver.update(&mut self.table, id);
        }
    }

    /// Ends a stream in order: what is queued still goes out, then the end of the stream, and the peer has time to
    /// take it as long as it does. No more events of it.
    pub fn close(&mut self, id: StreamId) {
        if self.table.owned(id).is_some() {
            self.flush(id, false);
        }
        if self.table.owned(id).is_some() {
            let over = self.table.begin_linger(id);
            if over {
                self.release(id);
            } else {
                self.driver.update(&mut self.table, id);
            }
        }
    }

    /// Ends a stream at once by a reset; what is queued is lost, in the kernel too. No more events of it.
    pub fn abort(&mut self, id: StreamId) {
        if let Some(stream) = self.table.owned(id) {
            // Disconnecting resets at once (RFC 9293 §3.10.5), before anything ends the stream in order. Where it cannot, closing does.
            let _ = rustix::net::sockopt::set_socket_linger(&stream.fd, Some(Duration::ZERO));
            let _ = rustix::net::connect_unspec(&stream.fd);
            self.release(id);
        }
    }

    /// Writes what was queued, then waits until something happens, at most `timeout` (`None`: for ever). Returns at
    /// once while events are still to be told. Call [`Runtime::next_event`] until it has none, then poll again.
    pub fn poll(&mut self, timeout: Option<Duration>) -> Result<(), NetError> {
        if let Driver::Uring(uring) = &mut self.driver {
            uring.give_back_lent();
        }
        self.flush_dirty();
        self.expire();
        self.wait(timeout)?;
        for Failed(id, error) in std::mem::take(&mut self.failed) {
            self.fail(id, error);
        }
        self.finish_lingering();
        self.expire();
        Ok(())
    }

    /// Waits, where it is worth it by looking for work before it sleeps.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), NetError> {
        let Runtime { table, driver, waker, poller, failed, .. } = self;
        let mut timeout = table.wait_at_most(timeout);
        if timeout != Some(Duration::ZERO)
            && let Some(limit) = poller.begin()
        {
            let begun = Instant::now();
            let limit = timeout.map_or(limit, |timeout| timeout.min(limit));
            if driver.look(table, waker, poller, limit, failed)? {
                poller.end(true);
                return Ok(());
            }
            timeout = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
        }
        driver.wait(table, waker, timeout, failed)?;
        poller.end(!table.pending.is_empty());
        Ok(())
    }

    /// The next thing that happened, if any.
    pub fn next_event(&mut self) -> Option<Event<'_>> {
        let found = self.find_event()?;
        Some(match (found, &self.driver) {
            (Found::Told(event), _) => event,
            (Found::Early(stream), _) => Event::Received { stream, bytes: &self.lent },
            (Found::Staged(stream, len_bytes), Driver::Epoll(epoll)) => {
                Event::Received { stream, bytes: epoll.staging(len_bytes) }
            }
            (Found::Provided(stream, buffer, len_bytes), Driver::Uring(uring)) => {
                Event::Received { stream, bytes: uring.provided_bytes(buffer, len_bytes) }
            }
            _ => unreachable!("each driver finds its own kind"),
        })
    }

    fn find_event(&mut self) -> Option<Found> {
        if let Driver::Uring(uring) = &mut self.driver {
            uring.give_back_lent();
        }
        loop {
            let told = match self.table.pending.pop_front()? {
                Pending::Readable(id) => match self.receive(id) {
                    Some(found) => return Some(found),
                    None => continue,
                },
                Pending::Provided { stream, buffer, len_bytes } => match self.provided(stream, buffer, len_bytes) {
                    Some(found) => return Some(found),
                    None => continue,
                },
                Pending::Failed { stream, error } => {
                    self.fail(stream, error);
                    continue;
                }
                Pending::Early(id) => {
                    let Some(stream) = self.table.owned(id).filter(|stream| stream.receiving) else { continue };
                    match stream.early.pop_front() {
                        Some(bytes) => {
                            self.lent = bytes;
                            return Some(Found::Early(id));
                        }
                        None => continue,
                    }
                }
                Pending::Finished(id) => match self.finished(id) {
                    Some(event) => event,
                    None => continue,
                },
                Pending::Accepted { listener, stream, peer } => {
                    // Told even if the stream has failed since: its `Closed` follows.
                    Event::Accepted { listener, stream, peer }
                }
                Pending::Connected(id) if self.table.owned(id).is_some() => Event::Connected { stream: id },
                Pending::SendLow(id) if self.table.owned(id).is_some() => Event::SendLow { stream: id },
                Pending::Connected(_) | Pending::SendLow(_) => continue,
                Pending::Closed { stream, failure } => Event::Closed { stream, failure },
                Pending::Datagrams(socket) => Event::DatagramsReady { socket },
                Pending::Woken => Event::Woken,
            };
            return Some(Found::Told(told));
        }
    }

    /// epoll: reads from a ready stream.
    fn receive(&mut self, id: StreamId) -> Option<Found> {
        let Driver::Epoll(epoll) = &mut self.driver else { return None };
        let lingering = self.table.stream(id)?.phase == Phase::Lingering;
        match epoll.receive(&mut self.table, id) {
            Received::Bytes(len_bytes) if !lingering => return Some(Found::Staged(id, len_bytes)),
            Received::Finished => return self.finished(id).map(Found::Told),
            Received::Failed(error) => self.fail(id, error),
            Received::Bytes(_) | Received::Nothing => {}
        }
        None
    }

    /// io_uring: bytes that arrived before, lent now, or put aside while the owner does not receive.
    fn provided(&mut self, id: StreamId, buffer: u16, len_bytes: u32) -> Option<Found> {
        let Driver::Uring(uring) = &mut self.driver else { return None };
        let Some(stream) = self.table.owned(id) else {
            uring.give_back(buffer);
            return None;
        };
        if stream.receiving && stream.early.is_empty() {
            uring.lend(buffer);
            return Some(Found::Provided(id, buffer, len_bytes));
        }
        stream.early.push_back(uring.provided_bytes(buffer, len_bytes).to_vec());
        let tell = stream.receiving;
        uring.give_back(buffer);
        if tell {
            self.table.pending.push_back(Pending::Early(id));
        }
        None
    }

    /// The peer has sent its last byte.
    fn finished(&mut self, id: StreamId) -> Option<Event<'static>> {
        let stream = self.table.stream(id)?;
        if stream.phase == Phase::Lingering {
            if self.table.finish_sending(id) {
                self.release(id);
            }
            return None;
        }
        if stream.phase != Phase::Open || !stream.receiving || stream.peer_end == PeerEnd::Reported {
            return None;
        }
        if !stream.early.is_empty() {
            // Behind what came before it; that is in the row already.
            self.table.pending.push_back(Pending::Finished(id));
            return None;
        }
        if let Some(error) = stream.send_failure.take() {
            self.fail(id, error);
            return None;
        }
        stream.peer_end = PeerEnd::Reported;
        Some(Event::PeerFinished { stream: id })
    }

    fn mark_dirty(&mut self, id: StreamId) {
        let Some(stream) = self.table.stream(id) else { return };
        if !stream.dirty && !stream.queue.is_empty() {
            stream.dirty = true;
            self.table.dirty.push(id);
        }
    }

    fn flush_dirty(&mut self) {
        let mut dirty = std::mem::take(&mut self.table.dirty);
        for id in dirty.drain(..) {
            self.flush(id, false);
        }
        // Flushing marks nothing dirty: keep the allocation.
        self.table.dirty = dirty;
    }

    fn flush(&mut self, id: StreamId, at_once: bool) {
        let Some(stream) = self.table.stream(id) else { return };
        stream.dirty = false;
        stream.unflushed_bytes = 0;
        if let Err(Failed(id, error)) = self.driver.flush(&mut self.table, id, at_once) {
            self.fail(id, error);
        }
    }

    /// Lets go of lingering streams whose last byte went out.
    fn finish_lingering(&mut self) {
        if self.table.lingering_count == 0 {
            return;
        }
        let lingering: Vec<StreamId> = self.table.lingering().collect();
        for id in lingering {
            if self.table.finish_sending(id) {
                self.release(id);
            }
        }
    }

    fn expire(&mut self) {
        while let Some(deadline) = self.table.due() {
            match deadline {
                Deadline::Connect(id) => {
                    if let Some(stream) = self.table.stream(id).filter(|stream| stream.phase == Phase::Connecting) {
                        let peer = stream.peer;
                        let after = self.table.options.connect_timeout;
                        self.end(id, StreamFailure::ConnectTimedOut { peer, after });
                    }
                }
                Deadline::Linger(id) => {
                    if self.table.linger_expired(id) {
                        self.release(id);
                    }
                }
                Deadline::AcceptAgain => self.driver.accept_again(&mut self.table),
            }
        }
    }

    fn fail(&mut self, id: StreamId, error: io::Error) {
        let Some(stream) = self.table.stream(id) else { return };
        let failure = StreamFailure::from_io(stream.peer, error);
        self.end(id, failure);
    }

    /// The stream is over; its owner, if it still has one, is told why.
    fn end(&mut self, id: StreamId, failure: StreamFailure) {
        if self.table.owned(id).is_some() {
            self.table.pending.push_back(Pending::Closed { stream: id, failure });
        }
        self.release(id);
    }

    fn release(&mut self, id: StreamId) {
        if self.driver.forget_stream(&mut self.table, id) {
            self.table.remove(id);
        }
    }
}

impl Drop for Runtime {
    /// The kernel must let go of all memory before it is freed.
    fn drop(&mut self) {
        if let Driver::Uring(uring) = &mut self.driver
            && !uring.quiesce(&mut self.table, &self.waker)
        {
            // It did not: better to lose the memory than to have it written after it is freed.
            let forgotten = Table::new(self.table.options.clone());
            std::mem::forget(std::mem::replace(&mut self.table, forgotten));
            if let Ok(epoll) = epoll::Epoll::new(&self.waker, 4096) {
                std::mem::forget(std::mem::replace(&mut self.driver, Driver::Epoll(epoll)));
            }
        }
    }
}
