//! Sending: packets of one length in a row as one train.

#![allow(unsafe_code)] // A call with control messages that no library knows.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::address::RawAddress;
use super::control::Control;
use super::packet::{UdpCounters, UdpSent, UdpTransmit};

/// Most packets in a train: what every kernel with this offload takes.
const TRAIN_PACKETS_MAX: usize = 64;
/// Most bytes in a train: with headers, an IP packet has at most 65535.
const TRAIN_BYTES_MAX: usize = 65_000;

/// To whom (`None`: the socket knows), and from which of our addresses.
type Path = (Option<SocketAddr>, Option<IpAddr>);

/// How a socket sends.
#[derive(Debug)]
pub(super) struct Sender {
    /// Most packets that go together; 1 where there is no offload.
    pub(super) train_packets_max: usize,
}

impl Default for Sender {
    fn default() -> Sender {
        Sender { train_packets_max: TRAIN_PACKETS_MAX }
    }
}

impl Sender {
    pub(super) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        path: Path,
        queue: &mut VecDeque<UdpTransmit>,
        counters: &mut UdpCounters,
    ) -> UdpSent {
        while !queue.is_empty() {
            let count = self.train_packets(queue);
            counters.sends += 1;
            match send_train(socket, path, queue, count) {
                Ok(()) => {
                    counters.packets_sent += count as u64;
                    queue.drain(..count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => return UdpSent::Full,
                Err(errno) if count > 1 => {
                    tracing::debug!(%errno, "a train of packets was not taken; sending them one by one");
                    if self.send_singly(socket, path, queue, (count, &mut *counters)) == UdpSent::Full {
                        return UdpSent::Full;
                    }
                }
                Err(errno) => {
                    tracing::trace!(%errno, "a packet was not taken, and counts as lost");
                    counters.packets_refused += 1;
                    queue.pop_front();
                }
            }
        }
        UdpSent::All
    }

    /// Packets at the front of the queue that can go together: all of one length, but the last may be shorter.
    fn train_packets(&self, queue: &VecDeque<UdpTransmit>) -> usize {
        let segment_bytes = queue[0].len_bytes();
        let (mut count, mut train_bytes) = (1, segment_bytes);
        for next in queue.iter().take(self.train_packets_max).skip(1).map(UdpTransmit::len_bytes) {
            train_bytes += next;
            if next > segment_bytes || train_bytes > TRAIN_BYTES_MAX {
                break;
            }
            count += 1;
            if next < segment_bytes {
                break;
            }
        }
        count
    }

    /// After a train was refused: because there is no such offload here, or because packets of this length do not go.
    fn send_singly(
        &mut self,
        socket: BorrowedFd<'_>,
        path: Path,
        queue: &mut VecDeque<UdpTransmit>,
        (count, counters): (usize, &mut UdpCounters),
    ) -> UdpSent {
        let mut is_refused = false;
        for _ in 0..count {
            counters.sends += 1;
            match send_train(socket, path, queue, 1) {
                Ok(()) => counters.packets_sent += 1,
                Err(Errno::AGAIN | Errno::NOBUFS) => return UdpSent::Full,
                Err(_) => {
                    counters.packets_refused += 1;
                    is_refused = true;
                }
            }
            queue.pop_front();
        }
        if !is_refused {
            tracing::info!("UDP has no segmentation offload here; packets go one by one");
            self.train_packets_max = 1;
        }
        UdpSent::All
    }
}

/// Sends `count` packets from the front of the queue in one call.
fn send_train(socket: BorrowedFd<'_>, path: Path, queue: &VecDeque<UdpTransmit>, count: usize) -> Result<(), Errno> {
    let (peer, source) = path;
    let mut pieces = Vec::with_capacity(2 * count);
    for packet in queue.iter().take(count) {
        pieces.push(IoSlice::new(&packet.head));
        pieces.push(IoSlice::new(&packet.payload));
    }
    let mut control = Control::new();
    if count > 1 {
        control.push_segment_bytes(u16::try_from(queue[0].len_bytes()).expect("a train is shorter than 64 KiB"));
    }
    if let Some(source) = source {
        control.push_source(source);
    }
    let mut peer = peer.map(RawAddress::new);
    // SAFETY: an all-zero msghdr is a valid, empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    if let Some(peer) = &mut peer {
        message.msg_namelen = peer.len_bytes();
        message.msg_name = (&raw mut *peer).cast();
    }
    // An IoSlice is an iovec.
    message.msg_iov = pieces.as_mut_ptr().cast();
    message.msg_iovlen = pieces.len() as _;
    let len_bytes = control.len_bytes();
    if len_bytes > 0 {
        message.msg_control = control.room().as_mut_ptr().cast();
        message.msg_controllen = len_bytes as _;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message leads to memory that lives until the call returns and is as long as is said; the kernel only reads it.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    match sent {
        0.. => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
