//! A volume served to one client of this machine that was told beforehand what an NBD negotiation would tell it: the kernel. It gets one end
//! of a pair of sockets on which requests can follow at once.
//!
//! Absent: the kernel's side (`kernel_nbd`); clients that connect by themselves (`NbdServer`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use strongroom_nbd::{ReplyFormat, Transmission};

use super::NbdServerError;
use super::connection::Beginning;
use super::connections::Connections;
use super::service::Service;
use super::volume::NbdOptions;
use crate::blocking::flush_blocking;
use crate::copy::SparseDevice;
use crate::front::event::Event;

/// See the module.
pub struct NbdSocketServer {
    service: Service,
    /// The client has ended the connection.
    ended: Arc<Event>,
}

impl std::fmt::Debug for NbdSocketServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NbdSocketServer")
            .field("export", &self.service.volume.options.export_name)
            .finish_non_exhaustive()
    }
}

impl NbdSocketServer {
    /// Serves from threads of its own. Takes over the device's completions. The second value is the client's end of the connection.
    ///
    /// # Errors
    /// [`NbdServerError::System`].
    pub fn start(
        device: Arc<dyn SparseDevice>,
        options: NbdOptions,
    ) -> Result<(NbdSocketServer, OwnedFd), NbdServerError> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(io::Error::from)?;
        let ended = Arc::new(Event::new()?);
        let connections = Connections::new(1).signalling(ended.clone());
        let read_only = options.read_only;
        let service = Service::start(device, options, connections)?;
        let transmission =
            Transmission { format: ReplyFormat::Simple, has_allocation: false, read_only, fast_zero: false };
        service.serve(ours, Beginning::Transmission(transmission));
        tracing::info!(bytes = service.volume.size_bytes(), "volume served over NBD, to the kernel");
        Ok((NbdSocketServer { service, ended }, theirs))
    }

    /// The transmission flags that a negotiation would tell.
    pub fn transmission_flags(&self) -> u16 {
        self.service.volume.export().flags(ReplyFormat::Simple)
    }

    /// Whether the client ends its connection within this time.
    pub fn ends_within(&self, patience: Duration) -> bool {
        let patience = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        poll(&mut [PollFd::new(&*self.ended, PollFlags::IN)], Some(&patience)).is_ok_and(|ready| ready > 0)
    }

    /// Becomes readable when the client has ended the connection.
    pub fn ended_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Answers what was asked for, ends the connection, and makes everything written durable.
    ///
    /// # Errors
    /// What the last flush says.
    pub fn finish(mut self) -> Result<(), NbdServerError> {
        self.service.end();
        flush_blocking(&*self.service.volume.device)?;
        Ok(())
    }

    /// Ends the connection at once. For a device that was given up: nothing is waited for but its errors.
    pub fn abandon(mut self) {
        self.service.connections.break_off();
        self.service.end();
    }
}
