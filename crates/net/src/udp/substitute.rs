//! Packets that travel some other way than by UDP, though nothing above the socket knows: how the laboratory sends them as Ethernet frames.
//!
//! A process chooses that once, before it makes its first socket ([`substitute_udp`]). The product's programs never do.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use super::packet::{PacketSplit, UdpCounters, UdpPacket, UdpSent, UdpTransmit};

/// Sends and receives by a descriptor that is readable while packets wait. The rules are those of a [`UdpSocket`](super::UdpSocket).
pub trait PacketSocket: fmt::Debug + Send {
    /// Most packets from now on will be split so.
    fn expect(&mut self, split: PacketSplit);

    /// Takes what one call brings. False: nothing is waiting.
    fn receive(&mut self, socket: BorrowedFd<'_>, packets: &mut Vec<UdpPacket>, counters: &mut UdpCounters) -> bool;

    /// Sends packets, the first ones first, until the queue is empty or the kernel takes no more.
    fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        peer: SocketAddr,
        queue: &mut VecDeque<UdpTransmit>,
        counters: &mut UdpCounters,
    ) -> UdpSent;
}

/// Makes a socket at an address of ours; for one peer, if one is named.
pub type PacketSocketOpener = fn(IpAddr, Option<SocketAddr>) -> io::Result<(OwnedFd, Box<dyn PacketSocket>)>;

static OPENER: OnceLock<PacketSocketOpener> = OnceLock::new();

/// From now on every [`UdpSocket`](super::UdpSocket) of this process carries its packets by what `opener` makes. The first call decides.
pub fn substitute_udp(opener: PacketSocketOpener) {
    OPENER.get_or_init(|| opener);
}

pub(super) fn opener() -> Option<PacketSocketOpener> {
    OPENER.get().copied()
}
