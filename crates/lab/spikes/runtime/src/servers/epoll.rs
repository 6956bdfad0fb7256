//! Our own loop on epoll: one receive per ready connection, one vectored write per answer batch, file reads inline.

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use bytes::Bytes;

use super::Reads;
use crate::protocol::{Input, Offsets, Output, REPLY_BYTES_MAX};

struct Connection {
    stream: TcpStream,
    input: Input,
    output: Output,
    wants_write: bool,
}

fn control(epoll: RawFd, operation: i32, fd: RawFd, events: i32) {
    let mut event = libc::epoll_event { events: events as u32, u64: fd as u64 };
    // SAFETY: the event outlives the call.
    assert_eq!(unsafe { libc::epoll_ctl(epoll, operation, fd, &mut event) }, 0);
}

pub fn serve(listener: TcpListener, file: File) -> ! {
    listener.set_nonblocking(true).unwrap();
    // SAFETY: no memory is involved.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    control(epoll, libc::EPOLL_CTL_ADD, listener.as_raw_fd(), libc::EPOLLIN);
    let mut connections: HashMap<RawFd, Connection> = HashMap::new();
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; 256];
    let mut staging = vec![0; 256 << 10];
    loop {
        // SAFETY: `events` has room for as many as are asked for.
        let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), events.len() as i32, -1) };
        for event in &events[..count.max(0) as usize] {
            let fd = event.u64 as RawFd;
            if fd == listener.as_raw_fd() {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).unwrap();
                    stream.set_nodelay(true).unwrap();
                    let fd = stream.as_raw_fd();
                    control(epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN);
                    let connection =
                        Connection { stream, input: Input::default(), output: Output::default(), wants_write: false };
                    connections.insert(fd, connection);
                }
                continue;
            }
            let Some(connection) = connections.get_mut(&fd) else { continue };
            if !ready(epoll, connection, &file, &mut staging) {
                connections.remove(&fd);
            }
        }
    }
}

fn ready(epoll: RawFd, connection: &mut Connection, file: &File, staging: &mut [u8]) -> bool {
    match connection.stream.read(staging) {
        Ok(0) => return false,
        Ok(count) => {
            let output = &mut connection.output;
            connection.input.feed(&staging[..count], |request| {
                output.push(request.at_once().unwrap_or_else(|| {
                    let mut bytes = vec![0; request.len_bytes];
                    file.read_exact_at(&mut bytes, request.offset).unwrap();
                    Bytes::from(bytes)
                }));
            });
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        Err(_) => return false,
    }
    flush(epoll, connection)
}

fn flush(epoll: RawFd, connection: &mut Connection) -> bool {
    let mut stuck = false;
    while !connection.output.is_empty() && !stuck {
        let mut slices = Vec::with_capacity(64);
        connection.output.fill(&mut slices);
        let offered: usize = slices.iter().map(|slice: &IoSlice| slice.len()).sum();
        match connection.stream.write_vectored(&slices) {
            Ok(sent) => {
                drop(slices);
                connection.output.advance(sent);
                stuck = sent < offered;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => stuck = true,
            Err(_) => return false,
        }
    }
    if stuck != connection.wants_write {
        connection.wants_write = stuck;
        let events = libc::EPOLLIN | if stuck { libc::EPOLLOUT } else { 0 };
        control(epoll, libc::EPOLL_CTL_MOD, connection.stream.as_raw_fd(), events);
    }
    true
}

/// There is no readiness of files: positioned reads, one after the other.
pub fn reads(file: File, work: Reads) -> u64 {
    let mut buffer = vec![0; REPLY_BYTES_MAX];
    let mut offsets = Offsets::new(0);
    let mut count = 0;
    while Instant::now() < work.until {
        for _ in 0..64 {
            file.read_exact_at(&mut buffer[..work.len_bytes], offsets.next(work.len_bytes)).unwrap();
        }
        count += 64;
    }
    count
}
