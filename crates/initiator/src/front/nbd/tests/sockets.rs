//! Proves that a client that was told beforehand what there is, as the kernel is, is served on a pair of sockets without a negotiation.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use strongroom_block::{BlockSize, Geometry};

use super::super::{NbdOptions, NbdSocketServer};
use super::client::{Client, DISC, FLUSH, FUA, READ, TRIM, WRITE, WRITE_ZEROES};
use super::{PATIENCE, SIZE, pattern};
use crate::MemoryDevice;

/// HAS_FLAGS, SEND_FLUSH, SEND_FUA, CAN_MULTI_CONN; for who may write also SEND_TRIM and SEND_WRITE_ZEROES, or READ_ONLY.
const ALWAYS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 8;
const WRITABLE: u16 = ALWAYS | 1 << 5 | 1 << 6;
const READ_ONLY: u16 = ALWAYS | 1 << 1;

fn served(read_only: bool) -> (NbdSocketServer, Arc<MemoryDevice>, Client<UnixStream>) {
    let device = Arc::new(MemoryDevice::new(Geometry::from_bytes(SIZE, BlockSize::DEFAULT).unwrap()));
    let options = NbdOptions { read_only, ..NbdOptions::new("vault") };
    let (server, socket) = NbdSocketServer::start(device.clone(), options).unwrap();
    let stream = UnixStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let flags = server.transmission_flags();
    (server, device, Client::without_negotiation(stream, SIZE, flags))
}

#[test]
fn requests_follow_at_once() {
    let (server, device, mut client) = served(false);
    assert_eq!(client.flags, WRITABLE);
    let data = pattern(0, 300_000);
    client.write(0, 8192, &data);
    assert!(client.read(8192, 300_000) == data);
    client.write(FUA, 0, &pattern(1, 4096));
    client.done(0, FLUSH, 0, 0);
    assert_eq!((device.counts().flushes, device.counts().forced_writes), (1, 1));
    client.done(0, TRIM, 8192, 8192);
    client.done(0, WRITE_ZEROES, 16384, 4096);
    assert!(client.read(8192, 12288).iter().all(|&byte| byte == 0));
    // It has grown, and the client was told by another way.
    device.grow_to(2 * SIZE / 4096);
    client.write(0, 2 * SIZE - 4096, &pattern(2, 4096));
    assert!(!server.ends_within(Duration::ZERO));
    client.send(0, DISC, 0, 0, b"");
    assert!(server.ends_within(PATIENCE));
    poll(&mut [PollFd::new(&server.ended_fd(), PollFlags::IN)], None).unwrap();
    server.finish().unwrap();
    assert_eq!(device.counts().flushes, 2, "the end makes everything durable");
}

#[test]
fn nothing_is_written_through_a_read_only_one() {
    let (server, _, mut client) = served(true);
    assert_eq!(client.flags, READ_ONLY);
    assert_eq!(client.request(0, WRITE, 0, 4096, &[1; 4096]).error, 1, "EPERM");
    assert_eq!(client.request(0, READ, 0, 4096, b"").error, 0);
    server.abandon();
}

#[test]
fn a_client_that_lets_go_of_its_socket_has_ended() {
    let (server, device, client) = served(false);
    drop(client);
    assert!(server.ends_within(PATIENCE));
    server.finish().unwrap();
    assert_eq!(device.counts().flushes, 1);
}
