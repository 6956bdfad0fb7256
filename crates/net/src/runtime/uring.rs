//! The io_uring driver: completions. One system call per turn of the loop submits everything and waits; receives are
//! multishot into buffers the kernel picks; sends are vectored and keep their buffers until they complete.
//!
//! Two rules keep the kernel and us from touching the same memory: what a submitted entry points to stays in its
//! [`Stream`] until the completion is seen (a stream that ends before is `Phase::Dead` meanwhile), and a receive buffer
//! belongs to the kernel from [`Provided::give`] until a completion names it.

#![allow(unsafe_code)] // Submission entries carry raw pointers, and receive buffers are shared with the kernel.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Submitter, cqueue, opcode, squeue};
use rustix::io::Errno;
use rustix::net::Shutdown;

use super::busy_poll::{BusyPoller, Look};
use super::event::{DatagramId, ListenerId, StreamId};
use super::provided::Provided;
use super::send_queue::SLICES_MAX;
use super::socket;
use super::stream::{Phase, Stream};
use super::table::{Pending, Table};
use super::uring_stream::SendOperation;
use super::waker::Waker;
use crate::NetError;

/// Entries of the submission queue; when it is full it is submitted early, so this bounds nothing but batching.
const SUBMISSIONS: u32 = 256;
/// Entries of the completion queue; the kernel keeps what overflows it.
const COMPLETIONS: u32 = 4096;
/// `IORING_ENTER_GETEVENTS` of the kernel's interface: run what is deferred, and post completions.
const ENTER_GETEVENTS: u32 = 1;
/// How long the end of all operations is awaited when a runtime is dropped.
const QUIESCE: Duration = Duration::from_secs(2);

/// What an operation is, in the highest bits of its token; the rest names a stream (31 bits of generation, 28 of index).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Receive = 1,
    Send = 2,
    Connect = 3,
    Accept = 4,
    Wake = 5,
    Cancel = 6,
    Datagrams = 7,
}

const INDEX_BITS: u32 = 28;
const OPERATION_SHIFT: u32 = 60;

fn token(operation: Operation, index: u32, generation: u32) -> u64 {
    debug_assert!(index < 1 << INDEX_BITS, "streams_max is capped");
    (operation as u64) << OPERATION_SHIFT | u64::from(generation) << INDEX_BITS | u64::from(index)
}

fn stream_token(operation: Operation, id: StreamId) -> u64 {
    token(operation, id.index, id.generation)
}

pub(super) struct Uring {
    ring: IoUring,
    provided: Provided,
    /// Told last and borrowed by the caller; goes back to the kernel with the next call.
    lent: Option<u16>,
    /// Where the kernel puts the waker's counter.
    wake_counter: Box<u64>,
    /// Accepting operations in flight: which listener, and the serial that its token carries.
    accepting: Vec<(ListenerId, u32)>,
    accept_serial: u32,
    in_flight: usize,
    /// The runtime is being dropped: nothing new is begun.
    ending: bool,
    completions: Vec<cqueue::Entry>,
    /// Sends that completed, kept for the next ones.
    #[allow(clippy::vec_box)] // The boxes move into streams as they are.
    spare_sends: Vec<Box<SendOperation>>,
    /// Streams to receive on again, when the buffers told of are given back.
    rearm: Vec<StreamId>,
    /// Datagram sockets to look at again: with the next wait, when what was told of is taken.
    rearm_datagrams: Vec<DatagramId>,
}

impl fmt::Debug for Uring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uring").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

impl Uring {
    pub(super) fn new(waker: &Waker, receive_bytes_max: usize) -> io::Result<Uring> {
        // Linux 6.1 or later: completions run when we ask for them, in this thread, without interrupting it.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(COMPLETIONS)
            .build(SUBMISSIONS)?;
        let provided = Provided::register(&ring, receive_bytes_max)?;
        let mut uring = Uring {
            ring,
            provided,
            lent: None,
            wake_counter: Box::new(0),
            accepting: Vec::new(),
            accept_serial: 0,
            in_flight: 0,
            ending: false,
            completions: Vec::with_capacity(256),
            spare_sends: Vec::new(),
            rearm: Vec::new(),
            rearm_datagrams: Vec::new(),
        };
        uring.watch_waker(waker);
        Ok(uring)
    }

    pub(super) fn provided_bytes(&self, buffer: u16, len_bytes: u32) -> &[u8] {
        self.provided.bytes(buffer, len_bytes as usize)
    }

    /// The caller gets `buffer` lent until the next call.
    pub(super) fn lend(&mut self, buffer: u16) {
        self.lent = Some(buffer);
    }

    pub(super) fn give_back_lent(&mut self) {
        if let Some(buffer) = self.lent.take() {
            self.provided.give(buffer);
        }
    }

    pub(super) fn give_back(&mut self, buffer: u16) {
        self.provided.give(buffer);
    }

    pub(super) fn add_listener(&mut self, table: &mut Table, id: ListenerId) {
        self.accept_serial = (self.accept_serial + 1) & 0x7fff_ffff;
        let fd = Fd(table.listeners[id.0 as usize].fd.as_raw_fd());
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let entry = opcode::AcceptMulti::new(fd).flags(flags).build();
        self.accepting.push((id, self.accept_serial));
        self.push(table, entry.user_data(token(Operation::Accept, id.0, self.accept_serial)));
    }

    /// Ends accepting for good, so that the port is free when the caller drops the socket.
    pub(super) fn remove_listener(&mut self, table: &mut Table, waker: &Waker, id: ListenerId) {
        let Some(&(_, serial)) = self.accepting.iter().find(|(other, _)| *other == id) else { return };
        self.cancel(table, token(Operation::Accept, id.0, serial));
        self.settle(table, waker, |uring, _| uring.accepting.iter().all(|(other, _)| *other != id));
    }

    /// Looks for packets from the next wait on.
    pub(super) fn add_datagrams(&mut self, id: DatagramId) {
        self.rearm_datagrams.push(id);
    }

    /// The kernel lets go of the socket by itself; a completion that is under way is ignored.
    pub(super) fn remove_datagrams(&mut self, table: &mut Table, id: DatagramId) {
        self.rearm_datagrams.retain(|other| *other != id);
        self.cancel(table, token(Operation::Datagrams, id.0, 0));
    }

    pub(super) fn accept_again(&mut self, table: &mut Table) {
        table.accept_paused = false;
        let listeners: Vec<ListenerId> = table.listeners.iter().map(|(index, _)| ListenerId(index as u32)).collect();
        for id in listeners {
            if self.accepting.iter().all(|(other, _)| *other != id) {
                self.add_listener(table, id);
            }
        }
    }

    pub(super) fn add_stream(&mut self, table: &mut Table, id: StreamId) {
        let Some(stream) = table.stream(id) else { return };
        if stream.phase == Phase::Connecting {
            stream.uring.connecting = true;
            let fd = Fd(stream.fd.as_raw_fd());
            let entry = opcode::PollAdd::new(fd, libc::POLLOUT as u32).build();
            self.push(table, entry.user_data(stream_token(Operation::Connect, id)));
        } else {
            self.update_receiving(table, id);
        }
    }

    /// Begins or ends receiving as the stream's state calls for.
    pub(super) fn update_receiving(&mut self, table: &mut Table, id: StreamId) {
        let Some(stream) = table.stream(id) else { return };
        let wanted =
            stream.receiving && !stream.peer_end.has_come() && !matches!(stream.phase, Phase::Connecting | Phase::Dead);
        if wanted && !stream.uring.receiving {
            stream.uring.receiving = true;
            let entry = opcode::RecvMulti::new(Fd(stream.fd.as_raw_fd()), Provided::GROUP).build();
            self.push(table, entry.user_data(stream_token(Operation::Receive, id)));
        } else if !wanted && stream.uring.receiving && !stream.uring.cancelling {
            stream.uring.cancelling = true;
            self.cancel(table, stream_token(Operation::Receive, id));
        }
    }

    /// Submits one send of the queue's front, unless one is under way: its completion goes on.
    pub(super) fn flush(&mut self, table: &mut Table, id: StreamId, at_once: bool) {
        let Some(stream) = table.stream(id) else { return };
        let ready = matches!(stream.phase, Phase::Open | Phase::Lingering);
        if stream.uring.send.is_none() && !stream.queue.is_empty() && ready {
            let entry = begin_send(stream, self.spare_sends.pop());
            self.push(table, entry.user_data(stream_token(Operation::Send, id)));
        }
        if at_once {
            self.submit(table);
        }
    }

    /// The stream is over. True if its slot may go now; otherwise it goes when the kernel has let go.
    pub(super) fn forget_stream(&mut self, table: &mut Table, id: StreamId) -> bool {
        let Some(stream) = table.stream(id) else { return false };
        if stream.uring.is_idle() {
            return true;
        }
        let _ = rustix::net::shutdown(&stream.fd, Shutdown::Both);
        table.counters.system_calls += 1;
        table.bury(id);
        self.cancel_all_of(table, id);
        false
    }

    /// Ends all operations on a stream and keeps what they brought in `Stream::early`, so that it can move elsewhere.
    pub(super) fn take_back(&mut self, table: &mut Table, waker: &Waker, id: StreamId) {
        self.give_back_lent();
        self.cancel_all_of(table, id);
        // Without this, a completion would start the next operation.
        let Some(stream) = table.stream(id) else { return };
        let receiving = std::mem::replace(&mut stream.receiving, false);
        self.settle(table, waker, |_, table| table.stream(id).is_none_or(|stream| stream.uring.is_idle()));
        let mut kept = Vec::new();
        table.pending.retain(|pending| match pending {
            Pending::Provided { stream, buffer, len_bytes } if *stream == id => {
                kept.push((*buffer, *len_bytes));
                false
            }
            _ => true,
        });
        for (buffer, len_bytes) in kept {
            let bytes = self.provided.bytes(buffer, len_bytes as usize).to_vec();
            self.provided.give(buffer);
            if let Some(stream) = table.stream(id) {
                stream.early.push_back(bytes);
            }
        }
        if let Some(stream) = table.stream(id) {
            stream.receiving = receiving;
        }
    }

    /// Submits what is to be done, waits, and notes what completed.
    pub(super) fn wait(&mut self, table: &mut Table, waker: &Waker, timeout: Option<Duration>) -> Result<(), NetError> {
        self.rearm(table);
        let timeout = if waker.fall_asleep() { timeout } else { Some(Duration::ZERO) };
        let entered = match timeout {
            None => self.enter(table, |submitter| submitter.submit_and_wait(1)),
            // A time-out of zero would have the kernel arm a timer, which costs more than all else in this call.
            Some(Duration::ZERO) => self.collect(table),
            Some(timeout) => {
                let timeout = Timespec::from(timeout);
                self.enter(table, |submitter| submitter.submit_with_args(1, &SubmitArgs::new().timespec(&timeout)))
            }
        };
        waker.rise();
        entered?;
        self.complete(table, waker);
        Ok(())
    }

    /// As [`Driver::look`](super::driver::Driver::look). What completes by itself without anything to tell, as a send does, does not end it.
    pub(super) fn look(
        &mut self,
        table: &mut Table,
        waker: &Waker,
        poller: &mut BusyPoller,
        limit: Duration,
    ) -> Result<bool, NetError> {
        self.rearm(table);
        if !self.ring.submission().is_empty() {
            self.collect(table)?;
        }
        let mut entered = Ok(());
        let outcome = poller.look(limit, || {
            if self.ring.submission().taskrun() {
                entered = self.collect(table);
            }
            if waker.is_notified() || !self.ring.completion().is_empty() {
                self.complete(table, waker);
            }
            entered.is_err() || !table.pending.is_empty()
        });
        entered?;
        Ok(outcome == Look::Hit)
    }

    /// Submits what is to be done and has the kernel finish what has arrived, without waiting.
    fn collect(&mut self, table: &mut Table) -> Result<(), NetError> {
        let to_submit = self.ring.submission().len() as u32;
        // SAFETY: no argument is passed; what the entries point to lives as long as `push_entry` says.
        self.enter(table, |submitter| unsafe { submitter.enter::<libc::sigset_t>(to_submit, 0, ENTER_GETEVENTS, None) })
    }

    fn enter(
        &mut self,
        table: &mut Table,
        system_call: impl FnOnce(&Submitter<'_>) -> io::Result<usize>,
    ) -> Result<(), NetError> {
        table.counters.system_calls += 1;
        match system_call(&self.ring.submitter()) {
            Err(error) if !is_harmless(&error) => Err(NetError::system("wait for completions", error)),
            _ => Ok(()),
        }
    }

    fn rearm(&mut self, table: &mut Table) {
        for id in std::mem::take(&mut self.rearm) {
            self.update_receiving(table, id);
        }
        for id in std::mem::take(&mut self.rearm_datagrams) {
            if let Some(socket) = table.datagrams.get(id.0 as usize) {
                let entry = opcode::PollAdd::new(Fd(socket.as_raw_fd()), libc::POLLIN as u32).build();
                self.push(table, entry.user_data(token(Operation::Datagrams, id.0, 0)));
            }
        }
    }

    /// Ends everything, so that the memory of `table` may go. False if the kernel still holds some of it.
    pub(super) fn quiesce(&mut self, table: &mut Table, waker: &Waker) -> bool {
        self.ending = true;
        self.accepting.clear();
        let entry = opcode::AsyncCancel2::new(io_uring::types::CancelBuilder::any().all()).build();
        let ids: Vec<StreamId> = table.ids().collect();
        ids.into_iter().for_each(|id| table.bury(id));
        self.push(table, entry.user_data(token(Operation::Cancel, 0, 0)));
        self.settle(table, waker, |uring, _| uring.in_flight == 0);
        self.in_flight == 0
    }

    /// Turns the loop until `done`, without telling anything; gives up after a while.
    fn settle(&mut self, table: &mut Table, waker: &Waker, done: impl Fn(&Uring, &mut Table) -> bool) {
        let deadline = std::time::Instant::now() + QUIESCE;
        while !done(self, table) {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() || self.wait(table, waker, Some(left)).is_err() {
                tracing::error!("io_uring does not end its operations; please report this with the kernel's version");
                return;
            }
        }
    }

    fn watch_waker(&mut self, waker: &Waker) {
        let entry = opcode::Read::new(Fd(waker.fd().as_raw_fd()), (&raw mut *self.wake_counter).cast(), 8).build();
        self.in_flight += 1;
        self.push_entry(&entry.user_data(token(Operation::Wake, 0, 0)));
    }

    fn cancel(&mut self, table: &mut Table, which: u64) {
        let entry = opcode::AsyncCancel::new(which).build();
        self.push(table, entry.user_data(token(Operation::Cancel, 0, 0)));
    }

    fn cancel_all_of(&mut self, table: &mut Table, id: StreamId) {
        let Some(stream) = table.stream(id) else { return };
        let (receiving, connecting, sending) =
            (stream.uring.receiving, stream.uring.connecting, stream.uring.send.is_some());
        for (under_way, operation) in
            [(receiving, Operation::Receive), (connecting, Operation::Connect), (sending, Operation::Send)]
        {
            if under_way {
                self.cancel(table, stream_token(operation, id));
            }
        }
    }

    fn push(&mut self, table: &mut Table, entry: squeue::Entry) {
        self.in_flight += 1;
        table.counters.system_calls += self.push_entry(&entry);
    }

    fn push_entry(&mut self, entry: &squeue::Entry) -> u64 {
        let mut system_calls = 0;
        // SAFETY: what entries point to (the module's first rule) outlives them: message, slices and bytes of a send
        // live in its stream, the wake counter and the provided buffers in `self`, all until completion or `quiesce`.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            system_calls += 1;
            if let Err(error) = self.ring.submit() {
                tracing::trace!(%error, "submission queue full");
            }
        }
        system_calls
    }

    fn submit(&mut self, table: &mut Table) {
        table.counters.system_calls += 1;
        if let Err(error) = self.ring.submit() {
            // The entries stay queued and go with the next wait.
            tracing::trace!(%error, "not submitted yet");
        }
    }

    fn complete(&mut self, table: &mut Table, waker: &Waker) {
        if waker.take_notice() {
            table.pending.push_back(Pending::Woken);
        }
        let mut completions = std::mem::take(&mut self.completions);
        completions.extend(self.ring.completion());
        for completion in completions.drain(..) {
            let user_data = completion.user_data();
            if !cqueue::more(completion.flags()) {
                self.in_flight -= 1;
            }
            let id = StreamId {
                index: (user_data & ((1 << INDEX_BITS) - 1)) as u32,
                generation: (user_data >> INDEX_BITS & 0x7fff_ffff) as u32,
            };
            match user_data >> OPERATION_SHIFT {
                code if code == Operation::Receive as u64 => self.received(table, id, &completion),
                code if code == Operation::Send as u64 => self.sent(table, id, completion.result()),
                code if code == Operation::Connect as u64 => self.connected(table, id),
                code if code == Operation::Accept as u64 => self.accepted(table, id, &completion),
                code if code == Operation::Datagrams as u64 => {
                    self.datagrams(table, DatagramId(id.index), completion.result())
                }
                code if code == Operation::Wake as u64 => self.woken(table, waker, completion.result()),
                _ => {} // The answer to a cancellation; what counts is the cancelled operation's own completion.
            }
            self.release_if_idle(table, id);
        }
        self.completions = completions;
    }

    fn received(&mut self, table: &mut Table, id: StreamId, completion: &cqueue::Entry) {
        let (result, flags) = (completion.result(), completion.flags());
        let buffer = cqueue::buffer_select(flags);
        let Some(stream) = table.stream(id) else {
            // Cannot be: the slot waits for this completion. Keep the buffer in circulation all the same.
            buffer.into_iter().for_each(|buffer| self.provided.give(buffer));
            return;
        };
        if !cqueue::more(flags) {
            (stream.uring.receiving, stream.uring.cancelling) = (false, false);
        }
        if result > 0
            && let Some(buffer) = buffer
        {
            table.counters.received_bytes += result as u64;
            table.pending.push_back(Pending::Provided { stream: id, buffer, len_bytes: result as u32 });
        } else {
            buffer.into_iter().for_each(|buffer| self.provided.give(buffer));
            let Some(stream) = table.stream(id) else { return };
            match -result {
                0 => {
                    stream.peer_end.note();
                    table.pending.push_back(Pending::Finished(id));
                }
                libc::ECANCELED | libc::ENOBUFS | libc::EINTR | libc::EAGAIN => {}
                code => {
                    let error = io::Error::from_raw_os_error(code);
                    table.pending.push_back(Pending::Failed { stream: id, error });
                    return;
                }
            }
        }
        if !cqueue::more(flags) {
            self.rearm.push(id);
        }
    }

    fn sent(&mut self, table: &mut Table, id: StreamId, result: i32) {
        let Some(stream) = table.stream(id) else { return };
        if let Some(mut operation) = stream.uring.send.take() {
            operation.slices.clear();
            self.spare_sends.push(operation);
        }
        match result {
            sent @ 0.. => {
                table.sent(id, sent as usize);
                self.flush(table, id, false);
            }
            error if [libc::ECANCELED, libc::EINTR, libc::EAGAIN].contains(&-error) => {
                // Cancelled because the stream moves or ends; otherwise another attempt.
                if error != -libc::ECANCELED {
                    self.flush(table, id, false);
                }
            }
            error => {
                let error = io::Error::from_raw_os_error(-error);
                if let Some(failed) = table.send_failed(id, error) {
                    table.pending.push_back(Pending::Failed { stream: failed.0, error: failed.1 });
                }
            }
        }
    }

    fn connected(&mut self, table: &mut Table, id: StreamId) {
        let Some(stream) = table.stream(id) else { return };
        stream.uring.connecting = false;
        if stream.phase != Phase::Connecting {
            return;
        }
        match table.connect_result(id) {
            Ok(()) => {
                table.connected(id);
                self.update_receiving(table, id);
                self.flush(table, id, false);
            }
            Err(error) => table.pending.push_back(Pending::Failed { stream: id, error }),
        }
    }

    fn accepted(&mut self, table: &mut Table, token: StreamId, completion: &cqueue::Entry) {
        let listener = ListenerId(token.index);
        let current = self.accepting.contains(&(listener, token.generation));
        if !cqueue::more(completion.flags()) {
            self.accepting.retain(|entry| *entry != (listener, token.generation));
        }
        match completion.result() {
            fd @ 0.. => {
                // SAFETY: the kernel made this descriptor for us, and tells of it once.
                let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
                // Gone again before we could ask for its name: let it go.
                let Some(peer) = socket::peer_of(&fd) else { return };
                table.counters.system_calls += 1;
                if current && let Some(id) = table.accepted(listener, fd, peer) {
                    self.add_stream(table, id);
                }
            }
            error => match -error {
                libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM => {
                    table.accept_failed(Errno::from_raw_os_error(-error));
                    return; // Again after the pause.
                }
                libc::ECANCELED => return,
                _ => {} // Of the connection, not of the listener.
            },
        }
        if current && !cqueue::more(completion.flags()) && table.listeners.contains(listener.0 as usize) {
            self.add_listener(table, listener);
        }
    }

    fn woken(&mut self, table: &mut Table, waker: &Waker, result: i32) {
        if self.ending || result == -libc::ECANCELED {
            return;
        }
        waker.acknowledge();
        table.pending.push_back(Pending::Woken);
        self.watch_waker(waker);
    }

    /// A datagram socket has packets, or an error to report.
    fn datagrams(&mut self, table: &mut Table, id: DatagramId, result: i32) {
        if !self.ending && result >= 0 && table.datagrams.contains(id.0 as usize) {
            table.pending.push_back(Pending::Datagrams(id));
            self.rearm_datagrams.push(id);
        }
    }

    fn release_if_idle(&mut self, table: &mut Table, id: StreamId) {
        if table.stream(id).is_some_and(|stream| stream.phase == Phase::Dead && stream.uring.is_idle()) {
            table.remove(id);
        }
    }
}

/// The time is over; a signal came; completions wait to be taken before more is submitted.
fn is_harmless(error: &io::Error) -> bool {
    let harmless = [Errno::TIME, Errno::INTR, Errno::BUSY, Errno::AGAIN].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| harmless.contains(&code))
}

/// Prepares one send of the queue's front; the stream keeps all that the entry points to.
fn begin_send(stream: &mut Stream, spare: Option<Box<SendOperation>>) -> squeue::Entry {
    let mut operation = spare.unwrap_or_else(|| {
        // SAFETY: an all-zero msghdr is a valid, empty one.
        let message: libc::msghdr = unsafe { std::mem::zeroed() };
        Box::new(SendOperation { message, slices: Vec::with_capacity(SLICES_MAX) })
    });
    let parts = stream.queue.parts();
    operation
        .slices
        .extend(parts.map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() }));
    operation.message.msg_iov = operation.slices.as_mut_ptr();
    operation.message.msg_iovlen = operation.slices.len();
    let fd = Fd(stream.fd.as_raw_fd());
    // Into the box, which stays where it is when the stream's other parts move.
    let message = &raw const stream.uring.send.insert(operation).message;
    opcode::SendMsg::new(fd, message).flags(libc::MSG_NOSIGNAL as u32).build()
}
