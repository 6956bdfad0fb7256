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
mod packet;
mod receive;
mod send;
mod substitute;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

pub use self::packet::{PacketSplit, UdpCounters, UdpPacket, UdpPath, UdpSent, UdpTransmit};
pub use self::substitute::{PacketSocket, PacketSocketOpener, substitute_udp};

use crate::NetError;
use receive::ReceiveBuffers;
use send::Sender;

/// A UDP socket. It can be bound before the thread starts that uses it.
#[derive(Debug)]
pub struct UdpSocket {
    fd: OwnedFd,
    local_address: SocketAddr,
    /// It has one peer, which the kernel knows.
    is_connected: bool,
    sender: Sender,
    receiver: ReceiveBuffers,
    /// Sends and receives instead of both, where packets do not travel by UDP.
    substitute: Option<Box<dyn PacketSocket>>,
    counters: UdpCounters,
}

impl UdpSocket {
    /// A socket for one peer: the kernel drops what comes from elsewhere. `local`: the address of ours that it has.
    ///
    /// # Errors
    /// [`NetError::System`].
    pub fn connect(peer: SocketAddr, local: Option<IpAddr>) -> Result<UdpSocket, NetError> {
        if let (Some(opener), Some(local)) = (substitute::opener(), local) {
            let opened =
                opener(local, Some(peer)).map_err(|source| NetError::system("make a packet socket", source))?;
            return Ok(UdpSocket::substituted(SocketAddr::new(local, 0), opened));
        }
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
        if let Some(opener) = substitute::opener() {
            // Each would receive all packets.
            let opened = if workers == 1 { opener(address.ip(), None) } else { Err(Errno::NOTSUP.into()) };
            let opened = opened.map_err(|source| NetError::Listen { address, source })?;
            return Ok(vec![UdpSocket::substituted(address, opened)]);
        }
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
            substitute: None,
            counters: UdpCounters::default(),
        })
    }

    fn substituted(local_address: SocketAddr, (fd, substitute): (OwnedFd, Box<dyn PacketSocket>)) -> UdpSocket {
        UdpSocket {
            fd,
            local_address,
            is_connected: false,
            sender: Sender::default(),
            receiver: ReceiveBuffers::default(),
            substitute: Some(substitute),
            counters: UdpCounters::default(),
        }
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
        match &mut self.substitute {
            None => self.receiver.expect(split),
            Some(substitute) => substitute.expect(split),
        }
    }

    /// Takes what one call brings, at most 64 KiB. False: nothing is waiting.
    pub fn receive(&mut self, packets: &mut Vec<UdpPacket>) -> bool {
        match &mut self.substitute {
            None => self.receiver.receive(self.fd.as_fd(), packets, &mut self.counters),
            Some(substitute) => substitute.receive(self.fd.as_fd(), packets, &mut self.counters),
        }
    }

    /// Sends packets, the first ones first, until the queue is empty or the kernel takes no more. What the kernel refuses is gone.
    pub fn send(&mut self, path: UdpPath, queue: &mut VecDeque<UdpTransmit>) -> UdpSent {
        if let Some(substitute) = &mut self.substitute {
            return substitute.send(self.fd.as_fd(), path.peer, queue, &mut self.counters);
        }
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
