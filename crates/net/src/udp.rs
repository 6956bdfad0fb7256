//! Datagrams: UDP sockets that send and receive many packets in one call, split each quantum from what is in front of it, and say what the
//! network marked.
//!
//! A train of packets of one length leaves in one call (UDP_SEGMENT) and arrives in one (UDP_GRO). What arrives is scattered over pieces of
//! memory as long as a [`PacketSplit`] says: where all packets of a train are that long, each quantum lies in memory of its own, page-aligned,
//! and is handed over without a copy. Everything else is gathered. Where a kernel or a device has no such offload, packets go one by one.
//!
//! Packets are never fragmented (IP_PMTUDISC_PROBE), are sent as ECN-capable (ECT(0)), and one that the kernel does not take, because it is too
//! long for the device or has no route, counts as lost on the way. Whether there is something to receive is told by a [`Runtime`](crate::Runtime)
//! ([`Runtime::watch_datagrams`](crate::Runtime::watch_datagrams)).
//!
//! Deliberately absent: what is in a packet, who may send one, and when to send it again.

mod address;
mod control;
mod options;
mod receive;
mod send;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use strongroom_block::Buffer;

use crate::NetError;
use receive::ReceiveBuffers;
use send::Sender;

/// A packet as it arrived.
#[derive(Debug)]
pub struct UdpPacket {
    /// Where it says that it comes from.
    pub source: SocketAddr,
    /// The two ECN bits of its IP header.
    pub ecn: u8,
    /// Its first bytes, as many as the [`PacketSplit`] says; all of it, if it is shorter or has another length than was expected.
    pub head: Vec<u8>,
    /// The quantum, in memory of its own.
    pub rest: Buffer,
}

/// A packet to send: head and payload one after the other.
#[derive(Debug)]
pub struct UdpTransmit {
    /// The first bytes.
    pub head: Vec<u8>,
    /// What follows, where it lies.
    pub payload: Buffer,
}

impl UdpTransmit {
    /// Bytes in the packet.
    pub fn len_bytes(&self) -> usize {
        self.head.len() + self.payload.len()
    }
}

/// Where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpPath {
    /// To whom.
    pub peer: SocketAddr,
    /// Which of our addresses they come from; `None` leaves that to the kernel.
    pub local: Option<IpAddr>,
}

/// How long the two pieces are that most packets are received in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketSplit {
    /// Bytes in front of a quantum.
    pub head_bytes: usize,
    /// Bytes in a quantum.
    pub quantum_bytes: usize,
}

/// Whether the kernel took everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what was not sent stays in the queue"]
pub enum UdpSent {
    /// It did.
    All,
    /// Its send buffer is full; a device sends what is in it within a millisecond.
    Full,
}

/// What a socket has done, for tests and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpCounters {
    /// Calls that sent.
    pub sends: u64,
    /// Packets that the kernel took.
    pub packets_sent: u64,
    /// Packets that it did not take, and that count as lost.
    pub packets_refused: u64,
    /// Calls that received.
    pub receives: u64,
    /// Packets received.
    pub packets_received: u64,
    /// Of those, how many had their quantum placed in memory of its own.
    pub packets_placed: u64,
}

/// A UDP socket. It can be bound before the thread starts that uses it.
#[derive(Debug)]
pub struct UdpSocket {
    fd: OwnedFd,
    local_address: SocketAddr,
    /// It has one peer, which the kernel knows.
    is_connected: bool,
    sender: Sender,
    receiver: ReceiveBuffers,
    counters: UdpCounters,
}

impl UdpSocket {
    /// A socket for one peer: the kernel drops what comes from elsewhere. `local`: the address of ours that it has.
    ///
    /// # Errors
    /// [`NetError::System`].
    pub fn connect(peer: SocketAddr, local: Option<IpAddr>) -> Result<UdpSocket, NetError> {
        let explain = |errno: Errno| NetError::system("make a UDP socket", errno);
        let fd = options::socket_for(peer).map_err(explain)?;
        // A link-local address means nothing without its interface, which the peer's names.
        let is_plain = |local: &IpAddr| !matches!(local, IpAddr::V6(ip) if ip.is_unicast_link_local());
        if let Some(local) = local.filter(is_plain) {
            rustix::net::bind(&fd, &SocketAddr::new(local, 0)).map_err(explain)?;
        }
        rustix::net::connect(&fd, &peer).map_err(explain)?;
        UdpSocket::from_fd(fd, true).map_err(explain)
    }

    /// Sockets that share `address`, one for each of `workers`: a packet goes to the one whose place in the list is its connection id, the
    /// second word of the packet, modulo `workers`. The kernel decides that (`SO_ATTACH_REUSEPORT_CBPF`), so no worker sees what belongs to
    /// another one.
    ///
    /// # Errors
    /// [`NetError`], as for a [`Listener`](crate::Listener); [`NetError::UdpPortTaken`] if another program has the port.
    pub fn bind_group(address: SocketAddr, workers: usize) -> Result<Vec<UdpSocket>, NetError> {
        let explain = |errno: Errno| match errno {
            Errno::ADDRINUSE => NetError::UdpPortTaken { address },
            Errno::ADDRNOTAVAIL => NetError::AddressNotOurs { address },
            Errno::ACCESS | Errno::PERM => NetError::AddressForbidden { address },
            other => NetError::Listen { address, source: other.into() },
        };
        let group = (0..workers).map(|_| {
            let fd = options::socket_for(address)?;
            if workers > 1 {
                rustix::net::sockopt::set_socket_reuseport(&fd, true)?;
            }
            rustix::net::bind(&fd, &address)?;
            UdpSocket::from_fd(fd, false)
        });
        let group: Vec<UdpSocket> = group.collect::<Result<_, Errno>>().map_err(explain)?;
        if workers > 1 {
            options::steer(group[0].fd.as_fd(), workers as u32)
                .map_err(|source| NetError::system("have the kernel distribute UDP packets to workers", source))?;
        }
        Ok(group)
    }

    fn from_fd(fd: OwnedFd, is_connected: bool) -> Result<UdpSocket, Errno> {
        let name = rustix::net::getsockname(&fd)?;
        let local_address = SocketAddr::try_from(name).map_err(|_| Errno::AFNOSUPPORT)?;
        Ok(UdpSocket {
            fd,
            local_address,
            is_connected,
            sender: Sender::default(),
            receiver: ReceiveBuffers::default(),
            counters: UdpCounters::default(),
        })
    }

    /// Where it is bound.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// What it has done so far.
    pub fn counters(&self) -> UdpCounters {
        self.counters
    }

    /// Most packets from now on will be split so. Others arrive as well.
    pub fn expect(&mut self, split: PacketSplit) {
        self.receiver.expect(split);
    }

    /// Takes what one call brings, at most 64 KiB. False: nothing is waiting.
    pub fn receive(&mut self, packets: &mut Vec<UdpPacket>) -> bool {
        self.receiver.receive(self.fd.as_fd(), packets, &mut self.counters)
    }

    /// Sends packets, the first ones first, until the queue is empty or the kernel takes no more. What the kernel refuses is gone.
    pub fn send(&mut self, path: UdpPath, queue: &mut VecDeque<UdpTransmit>) -> UdpSent {
        let peer = (!self.is_connected).then_some(path.peer);
        self.sender.send(self.fd.as_fd(), (peer, path.local), queue, &mut self.counters)
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests;
