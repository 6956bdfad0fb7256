//! ECL's packets as Ethernet frames, the form that the quanta paper gives them: a packet socket that stands in for UDP in both ends' processes.
//!
//! A frame is an Ethernet header of a type of our own and a packet, nothing between: no IP, no UDP, and none of their offloads, so that
//! each quantum is a frame of its own for the kernel; many are handed over in one call. No packet is so short that a device would pad its
//! frame. The login stays on TCP, and so does the rule that packets come from the address of the login: a MAC address is made of the IPv4
//! address of its end ([`mac_address`]).
//!
//! Absent: congestion marks, and frames across a router. Every process at an end receives the frames of all.

#![allow(unsafe_code)] // Calls that no library has: many frames at once, and addresses of frames.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::Command;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use strongroom_block::{Buffer, BufferMut};
use strongroom_net::{PacketSocket, PacketSplit, UdpCounters, UdpPacket, UdpSent, UdpTransmit, substitute_udp};

/// In the environment of a process whose ECL packets are Ethernet frames.
const VARIABLE: &str = "STRONGROOM_LAB_ETHERNET";
/// For experiments within a site (IEEE Std 802-2014 §9.2.4).
const ETHER_TYPE: u16 = 0x88b5;
const MAC_BYTES: usize = 6;
/// What begins our MAC addresses: of local administration, for one station.
const MAC_PREFIX: [u8; 2] = [2, 0];
/// Frames in one call, either way.
const FRAMES_MAX: usize = 64;
/// What waits in the kernel, each way, in bytes: as much as for UDP.
const BUFFER_BYTES: usize = 8 << 20;
/// Room for what is longer than was expected: more than the longest packet that the experiments have.
const SPILL_BYTES: usize = 16 << 10;
/// Until a socket is told another one: a header, a seal record and a tag, and the usual block.
const SPLIT_DEFAULT: PacketSplit = PacketSplit { head_bytes: 136, quantum_bytes: 4096 };

/// Has `command` start a process whose ECL packets are frames.
pub(crate) fn apply(command: &mut Command) {
    command.env(VARIABLE, "1");
}

/// Makes this process one, if it was started so. Before it makes a socket.
pub fn substitute_if_asked() {
    if std::env::var_os(VARIABLE).is_some() {
        substitute_udp(open);
    }
}

/// Of the end of a cable that has this address.
pub(crate) fn mac_address(ip: Ipv4Addr) -> [u8; MAC_BYTES] {
    let ([first, second], [a, b, c, d]) = (MAC_PREFIX, ip.octets());
    [first, second, a, b, c, d]
}

fn open(local: IpAddr, peer: Option<SocketAddr>) -> io::Result<(OwnedFd, Box<dyn PacketSocket>)> {
    let IpAddr::V4(ip) = local else { return Err(io::Error::other("frames are for ends with IPv4 addresses")) };
    let interface = interface_of(mac_address(ip))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)?;
    sockopt::set_socket_recv_buffer_size_force(&fd, BUFFER_BYTES)?;
    sockopt::set_socket_send_buffer_size_force(&fd, BUFFER_BYTES)?;
    bind(fd.as_fd(), &link_address(interface, [0; MAC_BYTES]))?;
    // A target takes packets from any port of the login's address.
    let port = peer.map_or(1, |peer| peer.port());
    let slots = (0..FRAMES_MAX).map(|_| Slot::new(SPLIT_DEFAULT)).collect();
    Ok((fd, Box::new(FrameSocket { interface, port, split: SPLIT_DEFAULT, slots })))
}

/// The number of the interface with this address.
fn interface_of(mac: [u8; MAC_BYTES]) -> io::Result<i32> {
    let wanted = mac.map(|byte| format!("{byte:02x}")).join(":");
    for entry in fs::read_dir("/sys/class/net")? {
        let path = entry?.path();
        if fs::read_to_string(path.join("address")).is_ok_and(|address| address.trim() == wanted) {
            let index = fs::read_to_string(path.join("ifindex"))?;
            return index.trim().parse().map_err(io::Error::other);
        }
    }
    Err(io::Error::other(format!("no interface here has the address {wanted}")))
}

fn link_address(interface: i32, mac: [u8; MAC_BYTES]) -> libc::sockaddr_ll {
    let mut address = [0; 8];
    address[..MAC_BYTES].copy_from_slice(&mac);
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::sa_family_t,
        sll_protocol: ETHER_TYPE.to_be(),
        sll_ifindex: interface,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: MAC_BYTES as u8,
        sll_addr: address,
    }
}

fn bind(socket: BorrowedFd<'_>, address: &libc::sockaddr_ll) -> io::Result<()> {
    let len_bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel reads the address, which is as long as is said.
    let outcome = unsafe { libc::bind(socket.as_raw_fd(), (&raw const *address).cast(), len_bytes) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// One end of a cable.
#[derive(Debug)]
struct FrameSocket {
    interface: i32,
    /// Frames have no ports: each says that it comes from this one.
    port: u16,
    split: PacketSplit,
    slots: Vec<Slot>,
}

/// Memory for one frame: what is in front of a quantum, the quantum, and what is longer than expected.
#[derive(Debug)]
struct Slot {
    head: Vec<u8>,
    quantum: BufferMut,
    spill: Vec<u8>,
}

impl PacketSocket for FrameSocket {
    fn expect(&mut self, split: PacketSplit) {
        if self.split != split {
            self.split = split;
            self.slots.iter_mut().for_each(|slot| *slot = Slot::new(split));
        }
    }

    fn receive(&mut self, socket: BorrowedFd<'_>, packets: &mut Vec<UdpPacket>, counters: &mut UdpCounters) -> bool {
        counters.receives += 1;
        let Ok(frames) = self.receive_frames(socket) else { return false };
        for (slot, (len_bytes, source)) in self.slots.iter_mut().zip(frames) {
            // Of others, or longer than anything that is sent here.
            let Some(source) = source else { continue };
            counters.packets_received += 1;
            let (head, rest) = slot.take(len_bytes, self.split);
            counters.packets_placed += u64::from(!rest.is_empty());
            packets.push(UdpPacket { source: SocketAddr::new(source.into(), self.port), ecn: 0, head, rest });
        }
        true
    }

    fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        peer: SocketAddr,
        queue: &mut VecDeque<UdpTransmit>,
        counters: &mut UdpCounters,
    ) -> UdpSent {
        let mac = match peer.ip() {
            IpAddr::V4(ip) => mac_address(ip),
            IpAddr::V6(_) => unreachable!("both ends have IPv4 addresses"),
        };
        let address = link_address(self.interface, mac);
        while !queue.is_empty() {
            counters.sends += 1;
            match send_frames(socket, address, queue) {
                Ok(count) => {
                    counters.packets_sent += count as u64;
                    queue.drain(..count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => return UdpSent::Full,
                // Too long for the cable.
                Err(_) => {
                    counters.packets_refused += 1;
                    queue.pop_front();
                }
            }
        }
        UdpSent::All
    }
}

impl FrameSocket {
    /// For each frame that came, in order, its length and whose it is.
    fn receive_frames(&mut self, socket: BorrowedFd<'_>) -> Result<Vec<(usize, Option<Ipv4Addr>)>, Errno> {
        let mut addresses = vec![link_address(0, [0; MAC_BYTES]); self.slots.len()];
        let mut pieces: Vec<[IoSliceMut<'_>; 3]> = self.slots.iter_mut().map(Slot::pieces).collect();
        let frame = |(pieces, address): (&mut [IoSliceMut<'_>; 3], &mut libc::sockaddr_ll)| {
            // SAFETY: an all-zero mmsghdr is a valid, empty one.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_name = (&raw mut *address).cast();
            message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            // An IoSliceMut is an iovec.
            message.msg_hdr.msg_iov = pieces.as_mut_ptr().cast();
            message.msg_hdr.msg_iovlen = pieces.len() as _;
            message
        };
        let mut messages: Vec<libc::mmsghdr> = pieces.iter_mut().zip(&mut addresses).map(frame).collect();
        let (flags, none) = (libc::MSG_DONTWAIT, std::ptr::null_mut());
        // SAFETY: the messages lead to memory that is ours alone, lives until the call returns, and is as long as is said.
        let received =
            unsafe { libc::recvmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), messages.len() as u32, flags, none) };
        let count = usize::try_from(received).map_err(|_| last_error())?;
        let is_whole = |message: &libc::mmsghdr| message.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
        let told: Vec<(usize, bool)> =
            messages.iter().take(count).map(|message| (message.msg_len as usize, is_whole(message))).collect();
        drop(messages);
        let source = |(address, (len_bytes, is_whole)): (&libc::sockaddr_ll, (usize, bool))| {
            (len_bytes, ip_address(address.sll_addr).filter(|_| is_whole))
        };
        Ok(addresses.iter().zip(told).map(source).collect())
    }
}

/// Whose MAC address it is, if it is one of ours.
fn ip_address(mac: [u8; 8]) -> Option<Ipv4Addr> {
    let [first, second, a, b, c, d, ..] = mac;
    ([first, second] == MAC_PREFIX).then(|| Ipv4Addr::new(a, b, c, d))
}

impl Slot {
    fn new(split: PacketSplit) -> Slot {
        Slot {
            head: vec![0; split.head_bytes],
            quantum: BufferMut::zeroed(split.quantum_bytes),
            spill: vec![0; SPILL_BYTES],
        }
    }

    fn pieces(&mut self) -> [IoSliceMut<'_>; 3] {
        [&mut self.head[..], &mut self.quantum[..], &mut self.spill[..]].map(IoSliceMut::new)
    }

    /// The packet that is in it. A quantum that lies as it should is handed over, and its place gets other memory.
    fn take(&mut self, len_bytes: usize, split: PacketSplit) -> (Vec<u8>, Buffer) {
        if len_bytes == split.head_bytes + split.quantum_bytes {
            let quantum = std::mem::replace(&mut self.quantum, BufferMut::to_fill(split.quantum_bytes));
            return (self.head.clone(), quantum.freeze());
        }
        let mut whole = Vec::with_capacity(len_bytes);
        for piece in [&self.head[..], &self.quantum[..], &self.spill[..]] {
            whole.extend_from_slice(&piece[..piece.len().min(len_bytes - whole.len())]);
        }
        (whole, Buffer::empty())
    }
}

/// Sends packets from the front of the queue in one call; how many went.
fn send_frames(
    socket: BorrowedFd<'_>,
    mut address: libc::sockaddr_ll,
    queue: &VecDeque<UdpTransmit>,
) -> Result<usize, Errno> {
    let mut pieces: Vec<[IoSlice<'_>; 2]> = queue
        .iter()
        .take(FRAMES_MAX)
        .map(|packet| [IoSlice::new(&packet.head), IoSlice::new(&packet.payload)])
        .collect();
    let frame = |pieces: &mut [IoSlice<'_>; 2]| {
        // SAFETY: an all-zero mmsghdr is a valid, empty one.
        let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        message.msg_hdr.msg_name = (&raw mut address).cast();
        message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // An IoSlice is an iovec.
        message.msg_hdr.msg_iov = pieces.as_mut_ptr().cast();
        message.msg_hdr.msg_iovlen = pieces.len() as _;
        message
    };
    let mut messages: Vec<libc::mmsghdr> = pieces.iter_mut().map(frame).collect();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the messages lead to memory that lives until the call returns and is as long as is said; of it the kernel only reads.
    let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), messages.len() as u32, flags) };
    usize::try_from(sent).map_err(|_| last_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_frames_are_those_of_logins() {
        let ip = Ipv4Addr::new(10, 213, 0, 2);
        let address = link_address(3, mac_address(ip));
        assert_eq!(ip_address(address.sll_addr), Some(ip));
        assert_eq!(ip_address([0, 0, 10, 213, 0, 2, 0, 0]), None, "not one of ours");
        assert!(interface_of([2; MAC_BYTES]).unwrap_err().to_string().contains("02:02:02"));
    }

    #[test]
    fn quanta_are_placed_and_everything_else_is_gathered() {
        let split = PacketSplit { head_bytes: 8, quantum_bytes: 512 };
        let mut slot = Slot::new(split);
        slot.head.fill(1);
        slot.quantum.fill(2);
        slot.spill.fill(3);
        let (head, rest) = slot.take(10, split);
        assert_eq!((head, rest.len()), (vec![1, 1, 1, 1, 1, 1, 1, 1, 2, 2], 0));
        let (head, _) = slot.take(8 + 512 + 2, split);
        assert_eq!((head.len(), &head[519..]), (522, &[2, 3, 3][..]));
        let at = slot.quantum.as_ptr();
        let (head, rest) = slot.take(8 + 512, split);
        assert_eq!((head, rest.as_ptr(), &rest[..2]), (vec![1; 8], at, &[2, 2][..]));
    }
}
