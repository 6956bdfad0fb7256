//! The listening socket. That of a Unix socket goes away with it, and one that a killed process has left is replaced.

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;

use rustix::fs::Mode;
use strongroom_unix_socket::{SocketName, listen};

use crate::address::MetricsAddress;

/// Who is in the group of the process may collect metrics, too.
const SOCKET_MODE: Mode = Mode::RUSR.union(Mode::WUSR).union(Mode::RGRP).union(Mode::WGRP);

/// A socket that listens, not blocking.
#[derive(Debug)]
pub(crate) struct ListeningSocket {
    /// Removed with it, and before it.
    _name: Option<SocketName>,
    pub(crate) fd: OwnedFd,
    /// With the port that the system has chosen.
    pub(crate) address: MetricsAddress,
}

impl ListeningSocket {
    pub(crate) fn open(address: &MetricsAddress) -> io::Result<ListeningSocket> {
        let (name, fd, address) = match address {
            MetricsAddress::Loopback(address) => {
                let listener = TcpListener::bind(address)?;
                let address = MetricsAddress::Loopback(listener.local_addr()?);
                (None, listener.into(), address)
            }
            MetricsAddress::Unix(path) => {
                let (name, fd) = listen(path, SOCKET_MODE)?;
                (Some(name), fd, address.clone())
            }
        };
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(ListeningSocket { _name: name, fd, address })
    }
}
