//! Where clients find the server: a Unix socket of this user, or a TCP port. The socket goes away with the server, and one that a killed
//! process has left is replaced.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::Mode;
use strongroom_unix_socket::{SocketName, listen};

/// Who can connect can read and write the volume: this user alone.
const SOCKET_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// An address to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// An address and a port; with port 0 the system chooses the port.
    Tcp(SocketAddr),
}

impl NbdAddress {
    /// Whether only this machine can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            NbdAddress::Unix(_) => true,
            NbdAddress::Tcp(address) => address.ip().is_loopback(),
        }
    }

    /// What clients are given, such as `nbd+unix:///vault?socket=/run/vault.sock`.
    pub fn uri(&self, export: &str, has_tls: bool) -> String {
        let scheme = if has_tls { "nbds" } else { "nbd" };
        match self {
            NbdAddress::Unix(path) => format!("{scheme}+unix:///{export}?socket={}", path.display()),
            NbdAddress::Tcp(address) => format!("{scheme}://{address}/{export}"),
        }
    }
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NbdAddress::Unix(path) => write!(f, "{}", path.display()),
            NbdAddress::Tcp(address) => address.fmt(f),
        }
    }
}

/// A socket that listens, not blocking.
#[derive(Debug)]
pub(super) struct ListeningSocket {
    /// Removed with it, and before it.
    _name: Option<SocketName>,
    fd: OwnedFd,
    /// With the port that the system has chosen.
    pub(super) address: NbdAddress,
}

impl ListeningSocket {
    pub(super) fn open(address: &NbdAddress) -> io::Result<ListeningSocket> {
        let (name, fd, address) = match address {
            NbdAddress::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                let address = NbdAddress::Tcp(listener.local_addr()?);
                (None, listener.into(), address)
            }
            NbdAddress::Unix(path) => {
                let (name, fd) = listen(path, SOCKET_MODE)?;
                (Some(name), fd, NbdAddress::Unix(path.canonicalize()?))
            }
        };
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(ListeningSocket { _name: name, fd, address })
    }
}

impl AsFd for ListeningSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
