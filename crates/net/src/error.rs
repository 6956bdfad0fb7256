//! What can go wrong on the way to and from the network, in words for the person who must do something about it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// A call of ours that could not be done: the machine refuses, or the caller asked for something impossible.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// Another socket listens there already.
    #[error(
        "{address} is already taken: stop the other program (`ss -ltnp sport = :{}` names it) or listen on another port",
        address.port()
    )]
    AddressTaken {
        /// Where we wanted to listen.
        address: SocketAddr,
    },
    /// The address is not one of this machine's.
    #[error(
        "{address} is not an address of this machine: `ip address` lists those that are; 0.0.0.0 or [::] means all"
    )]
    AddressNotOurs {
        /// Where we wanted to listen.
        address: SocketAddr,
    },
    /// Ports below 1024 need a privilege.
    #[error("not allowed to listen on {address}: use a port of 1024 or more, or grant CAP_NET_BIND_SERVICE")]
    AddressForbidden {
        /// Where we wanted to listen.
        address: SocketAddr,
    },
    /// Another socket has the UDP port.
    #[error(
        "the UDP port {} at {} is already taken, and ECL needs it beside the TCP port of the same number: stop the other program \
         (`ss -lunp sport = :{}` names it), listen on another port, or switch ECL off (ecl = false in the configuration)",
        address.port(), address.ip(), address.port()
    )]
    UdpPortTaken {
        /// Where we wanted to receive.
        address: SocketAddr,
    },
    /// Listening failed for another reason.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where we wanted to listen.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The host name has no address.
    #[error("cannot find an address for '{host}' ({source}): check the name's spelling and this machine's DNS")]
    Resolve {
        /// The host as given.
        host: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// This runtime holds as many streams as it may.
    #[error("{streams_max} connections are open, the most allowed: close some or raise the limit (`streams_max`)")]
    TooManyStreams {
        /// The limit.
        streams_max: usize,
    },
    /// The stream named does not exist (any more).
    #[error("the connection has ended already")]
    NoSuchStream,
    /// The kernel refuses a thing that every Linux of our age can do.
    #[error("cannot {what}: {source}")]
    System {
        /// What we tried, as a verb and its object.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// io_uring was asked for by name and is not to be had.
    #[error(
        "io_uring is not permitted here ({source}): choose `auto` or `epoll`, or allow it (kernel.io_uring_disabled=0, \
         and in a container a seccomp profile that admits io_uring)"
    )]
    IoUringRefused {
        /// What the kernel said.
        source: io::Error,
    },
}

impl NetError {
    pub(crate) fn system(what: &'static str, source: impl Into<io::Error>) -> NetError {
        NetError::System { what, source: source.into() }
    }
}

/// Why a stream ended without its owner asking for it.
#[derive(Debug, thiserror::Error)]
pub enum StreamFailure {
    /// No process listens at the address.
    #[error("{peer} refused the connection: check that the target runs there and that the port is right")]
    Refused {
        /// Whom we called.
        peer: SocketAddr,
    },
    /// No way there.
    #[error("{peer} cannot be reached ({source}): check the network, the route and firewalls")]
    Unreachable {
        /// Whom we called.
        peer: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The connection was not made in time.
    #[error("{peer} did not answer within {} s: check the address and firewalls", .after.as_secs_f32())]
    ConnectTimedOut {
        /// Whom we called.
        peer: SocketAddr,
        /// How long we waited.
        after: Duration,
    },
    /// The peer's kernel dropped the connection.
    #[error("{peer} dropped the connection: see its log for the reason")]
    Reset {
        /// Who dropped it.
        peer: SocketAddr,
    },
    /// Keepalive probes or sent bytes stayed unanswered.
    #[error("{peer} no longer answers: the machine or the network between is down")]
    Silent {
        /// Who fell silent.
        peer: SocketAddr,
    },
    /// The peer takes nothing of what we owe it.
    #[error("{peer} takes no data: {queued_bytes} bytes wait for it, more than the {queued_bytes_max} allowed")]
    NotReading {
        /// Who does not read.
        peer: SocketAddr,
        /// What waits, in bytes.
        queued_bytes: usize,
        /// The limit.
        queued_bytes_max: usize,
    },
    /// Anything else.
    #[error("the connection with {peer} failed: {source}")]
    Other {
        /// The other end.
        peer: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
}

impl StreamFailure {
    /// The kernel's error, as a reason.
    pub(crate) fn from_io(peer: SocketAddr, source: io::Error) -> StreamFailure {
        match source.kind() {
            io::ErrorKind::ConnectionRefused => StreamFailure::Refused { peer },
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => {
                StreamFailure::Unreachable { peer, source }
            }
            io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe => {
                StreamFailure::Reset { peer }
            }
            io::ErrorKind::TimedOut => StreamFailure::Silent { peer },
            _ => StreamFailure::Other { peer, source },
        }
    }
}
