//! Sockets and their options: listening, calling, accepting. No waiting here.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrAny, SocketFlags, SocketType, ipproto, sockopt};

use crate::NetError;

/// How every stream's socket is set up.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// No Nagle delay: a PDU leaves when it is ready.
    pub nodelay: bool,
    /// Size of the kernel's send buffer in bytes; `None` leaves it to the kernel, which grows it as the link needs.
    pub send_buffer_bytes: Option<usize>,
    /// Size of the kernel's receive buffer in bytes; `None` leaves it to the kernel.
    pub receive_buffer_bytes: Option<usize>,
    /// After this long without traffic the kernel asks whether the peer is there; `None` switches it off.
    pub keepalive_idle: Option<Duration>,
    /// Time between such questions.
    pub keepalive_interval: Duration,
    /// Unanswered questions until the connection is given up.
    pub keepalive_probes: u32,
    /// How long sent bytes may stay unacknowledged until the connection is given up; `None` leaves it to the kernel,
    /// which takes about a quarter of an hour.
    pub unanswered_timeout: Option<Duration>,
}

impl Default for StreamOptions {
    fn default() -> StreamOptions {
        StreamOptions {
            nodelay: true,
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
            keepalive_idle: Some(Duration::from_secs(30)),
            keepalive_interval: Duration::from_secs(10),
            keepalive_probes: 3,
            unanswered_timeout: Some(Duration::from_secs(60)),
        }
    }
}

impl StreamOptions {
    pub(super) fn apply(&self, socket: impl AsFd) -> io::Result<()> {
        let socket = socket.as_fd();
        sockopt::set_tcp_nodelay(socket, self.nodelay)?;
        if let Some(bytes) = self.send_buffer_bytes {
            sockopt::set_socket_send_buffer_size(socket, bytes)?;
        }
        if let Some(bytes) = self.receive_buffer_bytes {
            sockopt::set_socket_recv_buffer_size(socket, bytes)?;
        }
        if let Some(idle) = self.keepalive_idle {
            sockopt::set_socket_keepalive(socket, true)?;
            sockopt::set_tcp_keepidle(socket, idle.max(Duration::from_secs(1)))?;
            sockopt::set_tcp_keepintvl(socket, self.keepalive_interval.max(Duration::from_secs(1)))?;
            sockopt::set_tcp_keepcnt(socket, self.keepalive_probes.max(1))?;
        }
        if let Some(timeout) = self.unanswered_timeout {
            let milliseconds = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
            sockopt::set_tcp_user_timeout(socket, milliseconds.max(1))?;
        }
        Ok(())
    }
}

/// A listening socket, not yet (or not only) in a runtime: bind it first, so that a taken port is told before any
/// thread starts, then clone it into as many runtimes as shall accept from it.
#[derive(Debug)]
pub struct Listener {
    pub(super) fd: OwnedFd,
    local_address: SocketAddr,
}

/// Connections that the kernel completes before we accept them.
const BACKLOG: i32 = 1024;

impl Listener {
    /// Listens at `address`. Port 0 lets the kernel choose: [`Listener::local_address`] tells. An IPv6 address never
    /// takes IPv4 connections as well: listen on both `0.0.0.0` and `[::]` for that.
    pub fn bind(address: SocketAddr) -> Result<Listener, NetError> {
        let explain = |errno: Errno| match errno {
            Errno::ADDRINUSE => NetError::AddressTaken { address },
            Errno::ADDRNOTAVAIL => NetError::AddressNotOurs { address },
            Errno::ACCESS | Errno::PERM => NetError::AddressForbidden { address },
            other => NetError::Listen { address, source: other.into() },
        };
        let fd = socket_for(address).map_err(explain)?;
        // A restarted target takes its port back at once although old connections linger in TIME_WAIT.
        sockopt::set_socket_reuseaddr(&fd, true).map_err(explain)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&fd, true).map_err(explain)?;
        }
        rustix::net::bind(&fd, &address).map_err(explain)?;
        rustix::net::listen(&fd, BACKLOG).map_err(explain)?;
        let local_address = rustix::net::getsockname(&fd)
            .and_then(|name| SocketAddr::try_from(name).map_err(|_| Errno::AFNOSUPPORT))
            .map_err(explain)?;
        Ok(Listener { fd, local_address })
    }

    /// Where it listens, with the true port.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// The same socket once more, for another runtime.
    pub fn try_clone(&self) -> Result<Listener, NetError> {
        let fd = self.fd.try_clone().map_err(|source| NetError::system("duplicate a listening socket", source))?;
        Ok(Listener { fd, local_address: self.local_address })
    }
}

/// The addresses of `host` (a name or a literal IPv4 or IPv6 address, with or without brackets). Blocks while the
/// system's resolver works: never call it in a runtime's loop.
pub fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, NetError> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let explain = |source| NetError::Resolve { host: host.to_owned(), source };
    let found: Vec<SocketAddr> = (bare, port).to_socket_addrs().map_err(explain)?.collect();
    if found.is_empty() {
        return Err(explain(io::Error::from(io::ErrorKind::NotFound)));
    }
    Ok(found)
}

/// A non-blocking TCP socket of the address's family.
pub(super) fn socket_for(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
}

/// One waiting connection, or `None` when none waits.
pub(super) fn accept(listener: impl AsFd) -> Result<Option<(OwnedFd, SocketAddr)>, Errno> {
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::acceptfrom_with(&listener, flags) {
            Ok((fd, peer)) => match peer.and_then(to_socket_addr) {
                Some(peer) => return Ok(Some((fd, peer))),
                None => continue, // It is gone again.
            },
            Err(Errno::AGAIN) => return Ok(None),
            // accept(2): errors of the new connection, not of the listener.
            Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO | Errno::NETDOWN | Errno::HOSTUNREACH) => continue,
            Err(errno) => return Err(errno),
        }
    }
}

/// The other end of a connection, unless it is gone.
pub(super) fn peer_of(fd: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getpeername(fd).ok().flatten().and_then(to_socket_addr)
}

fn to_socket_addr(address: SocketAddrAny) -> Option<SocketAddr> {
    SocketAddr::try_from(address).ok()
}
