//! Where clients find the server: a Unix socket of this user, or a TCP port. The socket goes away with the server, and one that a killed
//! process has left is replaced.

use std::fmt;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Who can connect can read and write the volume: this user alone.
const SOCKET_MODE: u32 = 0o600;

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
    fd: OwnedFd,
    /// With the port that the system has chosen.
    pub(super) address: NbdAddress,
    /// Removed with it.
    _file: Option<SocketFile>,
}

/// The name of a Unix socket; removed when dropped.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl ListeningSocket {
    pub(super) fn open(address: &NbdAddress) -> io::Result<ListeningSocket> {
        match address {
            NbdAddress::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                let address = NbdAddress::Tcp(listener.local_addr()?);
                Ok(ListeningSocket { fd: listener.into(), address, _file: None })
            }
            NbdAddress::Unix(path) => {
                remove_abandoned(path)?;
                let listener = UnixListener::bind(path)?;
                let file = SocketFile(path.clone());
                fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
                listener.set_nonblocking(true)?;
                let address = NbdAddress::Unix(path.canonicalize()?);
                Ok(ListeningSocket { fd: listener.into(), address, _file: Some(file) })
            }
        }
    }
}

impl AsFd for ListeningSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Removes a socket that nobody listens at. Anything else of that name is not ours to remove.
fn remove_abandoned(path: &Path) -> io::Result<()> {
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process answers there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            if fs::symlink_metadata(path)?.file_type().is_socket() {
                fs::remove_file(path)?;
            }
            Ok(())
        }
        Err(_) => Ok(()),
    }
}
