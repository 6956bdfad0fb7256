//! The listening socket. That of a Unix socket goes away with it, and one that a killed process has left is replaced.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::address::MetricsAddress;

/// Who is in the group of the process may collect metrics, too.
const SOCKET_MODE: u32 = 0o660;

/// A socket that listens, not blocking.
#[derive(Debug)]
pub(crate) struct ListeningSocket {
    pub(crate) fd: OwnedFd,
    /// With the port that the system has chosen.
    pub(crate) address: MetricsAddress,
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
    pub(crate) fn open(address: &MetricsAddress) -> io::Result<ListeningSocket> {
        match address {
            MetricsAddress::Loopback(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                let address = MetricsAddress::Loopback(listener.local_addr()?);
                Ok(ListeningSocket { fd: listener.into(), address, _file: None })
            }
            MetricsAddress::Unix(path) => {
                remove_abandoned(path)?;
                let listener = UnixListener::bind(path)?;
                let file = SocketFile(path.clone());
                listener.set_nonblocking(true)?;
                fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
                Ok(ListeningSocket { fd: listener.into(), address: address.clone(), _file: Some(file) })
            }
        }
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
