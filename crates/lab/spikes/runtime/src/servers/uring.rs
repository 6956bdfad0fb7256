//! Our own loop on io_uring: multishot accept and receive into provided buffers, vectored sends, reads as completions;
//! one system call per turn of the loop submits everything and waits.

use std::alloc::{Layout, alloc_zeroed};
use std::collections::VecDeque;
use std::fs::File;
use std::io::IoSlice;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Instant;

use bytes::Bytes;
use io_uring::types::{BufRingEntry, Fd};
use io_uring::{IoUring, cqueue, opcode, squeue};

use super::Reads;
use crate::protocol::{Input, Offsets, Output, SLICES_MAX};

const BUFFERS: u16 = 64;
const BUFFER_BYTES: usize = 16 << 10;

const ACCEPT: u64 = 0;
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
const READ: u64 = 3;

fn ring(entries: u32) -> IoUring {
    IoUring::builder()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_defer_taskrun()
        .setup_cqsize(entries * 4)
        .build(entries)
        .expect("io_uring is permitted")
}

/// Receive buffers that the kernel picks from.
struct Provided {
    entries: *mut BufRingEntry,
    memory: Vec<u8>,
    tail: u16,
}

impl Provided {
    fn new(ring: &IoUring) -> Provided {
        let layout = Layout::from_size_align(usize::from(BUFFERS) * size_of::<BufRingEntry>(), 4096).unwrap();
        // SAFETY: the layout is not empty; the memory is never freed, so it outlives the ring.
        let entries = unsafe { alloc_zeroed(layout) }.cast::<BufRingEntry>();
        // SAFETY: as many entries as stated lie there, for ever.
        unsafe { ring.submitter().register_buf_ring_with_flags(entries as u64, BUFFERS, 0, 0) }.unwrap();
        let mut provided = Provided { entries, memory: vec![0; usize::from(BUFFERS) * BUFFER_BYTES], tail: 0 };
        (0..BUFFERS).for_each(|id| provided.give(id));
        provided
    }

    fn give(&mut self, id: u16) {
        let memory = self.memory[usize::from(id) * BUFFER_BYTES..].as_mut_ptr();
        // SAFETY: the index is inside the ring; the kernel reads the entry only after the tail has moved.
        unsafe {
            let entry = &mut *self.entries.add(usize::from(self.tail % BUFFERS));
            entry.set_addr(memory as u64);
            entry.set_len(BUFFER_BYTES as u32);
            entry.set_bid(id);
            self.tail = self.tail.wrapping_add(1);
            let tail = BufRingEntry::tail(self.entries).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }

    fn bytes(&self, id: u16, len_bytes: usize) -> &[u8] {
        &self.memory[usize::from(id) * BUFFER_BYTES..][..len_bytes]
    }
}

/// A reply that is ready or still being read from the file.
enum Reply {
    Ready(Bytes),
    Reading { serial: u64, bytes: Vec<u8> },
}

struct Connection {
    fd: OwnedFd,
    input: Input,
    replies: VecDeque<Reply>,
    first_serial: u64,
    output: Output,
    slices: Vec<IoSlice<'static>>,
    message: Box<libc::msghdr>,
    sending: bool,
}

pub fn serve(listener: TcpListener, file: File) -> ! {
    let mut ring = ring(1024);
    let mut provided = Provided::new(&ring);
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut completions: Vec<cqueue::Entry> = Vec::new();
    let accept = opcode::AcceptMulti::new(Fd(listener.as_raw_fd())).build().user_data(ACCEPT);
    push(&mut ring, accept);
    loop {
        ring.submit_and_wait(1).unwrap();
        completions.extend(ring.completion());
        for completion in completions.drain(..) {
            let (kind, index) = (completion.user_data() & 3, (completion.user_data() >> 2 & 0xffff) as usize);
            match kind {
                ACCEPT => accepted(&mut ring, &mut connections, completion.result()),
                RECEIVE => received(&mut ring, &mut provided, &mut connections, index, &completion, &file),
                SEND => {
                    let Some(connection) = &mut connections[index] else { continue };
                    connection.sending = false;
                    match completion.result() {
                        sent @ 0.. => connection.output.advance(sent as usize),
                        _ => connections[index] = None,
                    }
                }
                _ => {
                    let serial = completion.user_data() >> 18;
                    let Some(connection) = &mut connections[index] else { continue };
                    let reply = &mut connection.replies[(serial - connection.first_serial) as usize];
                    let Reply::Reading { bytes, .. } = reply else { unreachable!() };
                    assert_eq!(completion.result() as usize, bytes.len());
                    *reply = Reply::Ready(Bytes::from(std::mem::take(bytes)));
                }
            }
            send(&mut ring, &mut connections, index);
        }
    }
}

fn push(ring: &mut IoUring, entry: squeue::Entry) {
    // SAFETY: everything an entry points to lives in its connection until its completion.
    while unsafe { ring.submission().push(&entry) }.is_err() {
        ring.submit().unwrap();
    }
}

fn receive(ring: &mut IoUring, fd: RawFd, index: usize) {
    push(ring, opcode::RecvMulti::new(Fd(fd), 0).build().user_data(RECEIVE | (index as u64) << 2));
}

fn accepted(ring: &mut IoUring, connections: &mut Vec<Option<Connection>>, fd: i32) {
    assert!(fd >= 0, "accept: {}", std::io::Error::from_raw_os_error(-fd));
    // SAFETY: the kernel just gave us this descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let one: i32 = 1;
    // SAFETY: the option's value outlives the call.
    unsafe {
        let value = (&raw const one).cast();
        libc::setsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, value, 4);
    }
    receive(ring, fd.as_raw_fd(), connections.len());
    connections.push(Some(Connection {
        fd,
        input: Input::default(),
        replies: VecDeque::new(),
        first_serial: 0,
        output: Output::default(),
        slices: Vec::with_capacity(SLICES_MAX),
        // SAFETY: an all-zero msghdr is an empty one.
        message: Box::new(unsafe { std::mem::zeroed() }),
        sending: false,
    }));
}

fn received(
    ring: &mut IoUring,
    provided: &mut Provided,
    connections: &mut [Option<Connection>],
    index: usize,
    completion: &cqueue::Entry,
    file: &File,
) {
    let buffer = cqueue::buffer_select(completion.flags());
    let Some(connection) = &mut connections[index] else { return };
    match (completion.result(), buffer) {
        (len_bytes @ 1.., Some(id)) => {
            let Connection { input, replies, first_serial, .. } = connection;
            input.feed(provided.bytes(id, len_bytes as usize), |request| {
                let serial = *first_serial + replies.len() as u64;
                replies.push_back(match request.at_once() {
                    Some(bytes) => Reply::Ready(bytes),
                    None => {
                        let mut bytes = vec![0; request.len_bytes];
                        let read = opcode::Read::new(Fd(file.as_raw_fd()), bytes.as_mut_ptr(), bytes.len() as u32);
                        let user_data = READ | (index as u64) << 2 | serial << 18;
                        push(ring, read.offset(request.offset).build().user_data(user_data));
                        Reply::Reading { serial, bytes }
                    }
                });
            });
            provided.give(id);
            if !cqueue::more(completion.flags()) {
                receive(ring, connection.fd.as_raw_fd(), index);
            }
        }
        (error, _) if error == -libc::ENOBUFS => receive(ring, connection.fd.as_raw_fd(), index),
        _ => connections[index] = None,
    }
}

fn send(ring: &mut IoUring, connections: &mut [Option<Connection>], index: usize) {
    let Some(Some(connection)) = connections.get_mut(index) else { return };
    while let Some(Reply::Ready(_)) = connection.replies.front() {
        let Some(Reply::Ready(bytes)) = connection.replies.pop_front() else { unreachable!() };
        connection.first_serial += 1;
        connection.output.push(bytes);
    }
    if let Some(Reply::Reading { serial, .. }) = connection.replies.front() {
        debug_assert_eq!(*serial, connection.first_serial);
    }
    if connection.sending || connection.output.is_empty() {
        return;
    }
    connection.slices.clear();
    // SAFETY: the output keeps the bytes until the send's completion has advanced it; the slices are not used after.
    let output: &'static Output = unsafe { &*(&raw const connection.output) };
    output.fill(&mut connection.slices);
    connection.message.msg_iov = connection.slices.as_mut_ptr().cast();
    connection.message.msg_iovlen = connection.slices.len();
    connection.sending = true;
    let message = &raw const *connection.message;
    let entry = opcode::SendMsg::new(Fd(connection.fd.as_raw_fd()), message).flags(libc::MSG_NOSIGNAL as u32);
    push(ring, entry.build().user_data(SEND | (index as u64) << 2));
}

pub fn reads(file: File, work: Reads) -> u64 {
    let mut ring = ring(256);
    let mut offsets = Offsets::new(0);
    let mut buffers: Vec<Vec<u8>> = (0..work.depth).map(|_| vec![0; work.len_bytes]).collect();
    let mut read = |ring: &mut IoUring, index: usize| {
        let entry = opcode::Read::new(Fd(file.as_raw_fd()), buffers[index].as_mut_ptr(), work.len_bytes as u32);
        push(ring, entry.offset(offsets.next(work.len_bytes)).build().user_data(index as u64));
    };
    (0..work.depth).for_each(|index| read(&mut ring, index));
    let (mut count, mut in_flight) = (0, work.depth);
    let mut done: Vec<cqueue::Entry> = Vec::new();
    while in_flight > 0 {
        ring.submit_and_wait(1).unwrap();
        done.extend(ring.completion());
        let goes_on = Instant::now() < work.until;
        for completion in done.drain(..) {
            assert_eq!(completion.result() as usize, work.len_bytes);
            count += 1;
            if goes_on {
                read(&mut ring, completion.user_data() as usize);
            } else {
                in_flight -= 1;
            }
        }
    }
    count
}
