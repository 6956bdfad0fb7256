//! Packets, where they go, and what a socket has done with them.

use std::net::{IpAddr, SocketAddr};

use strongroom_block::Buffer;

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
