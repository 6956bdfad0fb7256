//! How UDP sockets are set up, and which socket of a group gets a packet.

#![allow(unsafe_code)] // Options that no library has.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

/// What waits in the kernel, each way, in bytes: some trains of packets for each of many associations.
const BUFFER_BYTES: usize = 8 << 20;
/// ECT(0) in the traffic class of an IP header (RFC 3168 §5).
const ECT_0: i32 = 2;
/// Never fragments, and ignores what others claim that the path takes: `IP_PMTUDISC_PROBE`, the same number for both versions of IP.
const PMTUDISC_PROBE: i32 = 3;

/// A non-blocking UDP socket of the address's family.
pub(super) fn socket_for(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
    let socket = fd.as_fd();
    let (level, discover, class, tell_class) = match address.is_ipv4() {
        true => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_TOS, libc::IP_RECVTOS),
        false => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_TCLASS, libc::IPV6_RECVTCLASS),
    };
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(socket, true)?;
    }
    set(socket, level, discover, PMTUDISC_PROBE)?;
    // What follows makes packets cheaper or congestion visible; without it they flow all the same.
    for (level, option, value) in [(libc::SOL_UDP, libc::UDP_GRO, 1), (level, class, ECT_0), (level, tell_class, 1)] {
        if let Err(errno) = set(socket, level, option, value) {
            tracing::debug!(%errno, option, "a socket option is not to be had");
        }
    }
    for (forced, usual) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
        // Beyond the system's limit only with a privilege.
        if set(socket, libc::SOL_SOCKET, forced, BUFFER_BYTES as i32).is_err() {
            let _ = set(socket, libc::SOL_SOCKET, usual, BUFFER_BYTES as i32);
        }
    }
    Ok(fd)
}

fn set(socket: BorrowedFd<'_>, level: i32, option: i32, value: i32) -> Result<(), Errno> {
    // SAFETY: the kernel reads `value`, which has as many bytes as are said.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The sockets that share a port get the packets whose second word (the connection id), modulo their number, is their place in the order in
/// which they were bound. One that is too short for that goes to the first.
pub(super) fn steer(socket: BorrowedFd<'_>, count: u32) -> Result<(), Errno> {
    let step = |code: u32, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 4),
        step(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, count),
        step(libc::BPF_RET | libc::BPF_A, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel reads the structure and the steps that it points to, which live until the call returns, and copies them.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(last_error()) }
}
