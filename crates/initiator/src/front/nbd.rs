//! The front end for programs that speak NBD: qemu, libnbd, kernels. A volume as one export, to any number of connections.
//!
//! ```text
//! accept thread       one connection after the other, up to a limit
//! a thread each       receives: negotiation, requests, data (`connection`)  ->  device (`volume`)
//! the device's thread sends short replies (`answer`, `outbox`)
//! a thread each       sends what a client does not take at once (`outbox`)
//! ```
//!
//! Each client may have a limited amount in flight (`credit`); one that does not read its replies is not read from any more, and no other one
//! waits for it. Absent: the protocol itself (`strongroom-nbd`), and any knowledge of the network behind the device.

mod address;
mod answer;
mod connection;
mod connections;
mod input;
mod outbox;
mod service;
mod socket_server;
mod stream;
#[cfg(test)]
mod tests;
mod tls;
mod volume;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use strongroom_block::DeviceError;

use crate::blocking::flush_blocking;
use crate::copy::SparseDevice;
use crate::front::event::Event;
use address::ListeningSocket;
use connection::Beginning;
use connections::Connections;
use service::Service;
use volume::ServedVolume;

pub use address::NbdAddress;
pub use socket_server::NbdSocketServer;
pub use tls::{CertificateError, NbdCertificates};
pub use volume::NbdOptions;

/// After a failed accept, so that a lack of descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a volume is not served.
#[derive(Debug, thiserror::Error)]
pub enum NbdServerError {
    /// Others could reach it.
    #[error(
        "{0} can be reached from other machines, and without TLS anyone there could read and write the volume; give certificates \
         (docs/nbd.md), or listen at a Unix socket or the loopback (127.0.0.1)"
    )]
    NotLocal(NbdAddress),
    /// The address is taken, or cannot be had.
    #[error("cannot listen for NBD clients at {address}: {source}; choose another address, or stop what listens there")]
    Listen {
        /// Where.
        address: NbdAddress,
        /// Why.
        source: io::Error,
    },
    /// The system gives no thread or descriptor.
    #[error("cannot start the NBD server: {0}; raise the limits of processes and open files (ulimit -u, ulimit -n)")]
    System(#[from] io::Error),
    /// The last flush failed.
    #[error("what was written last may not be durable: {0}")]
    Flush(#[from] DeviceError),
}

/// A volume that is served, until finished.
pub struct NbdServer {
    address: NbdAddress,
    has_tls: bool,
    service: Service,
    /// By this the accept thread ends.
    stop: Arc<Event>,
    /// The accept thread has ended.
    ended: Arc<Event>,
    accepting: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for NbdServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NbdServer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl NbdServer {
    /// Listens, and serves from threads of its own. Takes over the device's completions.
    ///
    /// # Errors
    /// [`NbdServerError`]: the address is refused or taken.
    pub fn start(
        device: Arc<dyn SparseDevice>,
        address: &NbdAddress,
        options: NbdOptions,
    ) -> Result<NbdServer, NbdServerError> {
        let has_tls = options.certificates.is_some();
        if !address.is_local() && !has_tls {
            return Err(NbdServerError::NotLocal(address.clone()));
        }
        let listen = |source| NbdServerError::Listen { address: address.clone(), source };
        let socket = ListeningSocket::open(address).map_err(listen)?;
        let address = socket.address.clone();
        let (stop, ended) = (Arc::new(Event::new()?), Arc::new(Event::new()?));
        let connections = Connections::new(options.connections_max);
        let service = Service::start(device, options, connections)?;
        let (connections, volume) = (service.connections.clone(), service.volume.clone());
        let acceptor = Acceptor { socket, stop: stop.clone(), connections, volume };
        let accepting = {
            let ended = ended.clone();
            let body = move || {
                acceptor.run();
                ended.signal();
            };
            std::thread::Builder::new().name("nbd-accept".into()).spawn(body)?
        };
        tracing::info!(%address, has_tls, bytes = service.volume.size_bytes(), "volume served over NBD");
        Ok(NbdServer { address, has_tls, service, stop, ended, accepting: Some(accepting) })
    }

    /// Where it listens.
    pub fn address(&self) -> &NbdAddress {
        &self.address
    }

    /// What clients are given.
    pub fn uri(&self) -> String {
        self.address.uri(&self.service.volume.options.export_name, self.has_tls)
    }

    /// A descriptor that becomes readable when no more clients are accepted.
    pub fn ended_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// How many clients are connected.
    #[cfg(test)]
    fn connection_count(&self) -> usize {
        self.service.connections.count()
    }

    /// Counts the clients that are connected.
    pub fn client_counter(&self) -> impl Fn() -> usize + Send + Sync + 'static + use<> {
        let connections = Arc::clone(&self.service.connections);
        move || connections.count()
    }

    /// Accepts no more clients, answers what they have asked for, ends their connections, and makes everything written durable. Clients that
    /// do not read their replies are waited for a few seconds only.
    ///
    /// # Errors
    /// What the last flush says.
    pub fn finish(mut self) -> Result<(), NbdServerError> {
        self.stop();
        // From here on nobody else takes completions.
        flush_blocking(&*self.service.volume.device)?;
        Ok(())
    }

    /// Ends every connection at once. For a device that was given up: nothing is waited for but its errors.
    pub fn abandon(mut self) {
        self.service.connections.break_off();
        self.stop();
    }

    fn stop(&mut self) {
        self.stop.signal();
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        self.service.end();
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.stop.signal();
    }
}

/// The accept thread. The socket goes away with it.
struct Acceptor {
    socket: ListeningSocket,
    stop: Arc<Event>,
    connections: Arc<Connections>,
    volume: Arc<ServedVolume>,
}

impl Acceptor {
    fn run(self) {
        loop {
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&*self.stop, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return tracing::error!(%error, "no more NBD clients are accepted"),
            }
            if !fds[1].revents().is_empty() {
                return;
            }
            match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(fd) => self.connections.serve(fd, &self.volume, Beginning::Negotiation),
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an NBD client");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }
}
