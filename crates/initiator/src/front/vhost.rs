//! The front end for virtual machines: a vhost-user-blk back end at a Unix socket, for qemu and cloud-hypervisor. The guest's virtio disk is the
//! volume; its queues and its memory are shared with this process, and the host needs no kernel module.
//!
//! ```text
//! control thread      accepts one front end after the other, and executes its messages (`connection`, `session`)
//! a queue thread      takes requests from the guest's queues (`queues`, `vring`, `chain`)  ->  device (`disk`)
//! the device's thread answers short requests (`disk`), a thread of ours those with much data
//! ```
//!
//! The guest is not trusted: what it says is checked where it is read, and the memory for its requests is limited. The front end is: it belongs
//! to the same user. Requests that a killed back end has not answered are in the in-flight buffer (`inflight`), and are executed again by the
//! next one. Absent: live migration, and any knowledge of the network behind the device.

mod chain;
mod channel;
mod config;
mod connection;
mod disk;
mod inflight;
mod mapping;
mod queues;
mod request;
mod session;
#[cfg(test)]
mod tests;
mod vring;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use strongroom_block::{BlockDevice, DeviceError};
use strongroom_unix_socket::{SocketName, listen};

use crate::blocking::flush_blocking;
use crate::front::event::Event;
use crate::front::pending::Pending;
use connection::{ConnectedFrontEnd, FrontEndConnection};
use disk::ServedDisk;

pub use config::VhostOptions;
pub use disk::fuzz_guest;

/// Who can connect can read and write the volume: this user alone.
const SOCKET_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// How long a front end may take for a message when the server ends.
const END_PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// After a failed accept, so that a lack of descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a volume is not served.
#[derive(Debug, thiserror::Error)]
pub enum VhostServerError {
    /// The options contradict the specification.
    #[error("{0}")]
    Options(&'static str),
    /// The socket is taken, or cannot be had.
    #[error("cannot listen for front ends at {path}: {source}; choose another path, or stop what listens there")]
    Listen {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The system gives no thread or descriptor.
    #[error(
        "cannot start the vhost-user server: {0}; raise the limits of processes and open files (ulimit -u, ulimit -n)"
    )]
    System(#[from] io::Error),
    /// The last flush failed.
    #[error("what was written last may not be durable: {0}")]
    Flush(#[from] DeviceError),
}

/// A volume that is served, until finished.
pub struct VhostServer {
    path: PathBuf,
    disk: Arc<ServedDisk>,
    front_end: Arc<ConnectedFrontEnd>,
    /// Writable, and by that the control thread ends.
    stop: Arc<Event>,
    /// Readable once the control thread has ended.
    ended: Arc<Event>,
    controlling: Option<JoinHandle<()>>,
    answering: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for VhostServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VhostServer").field("path", &self.path).finish_non_exhaustive()
    }
}

impl VhostServer {
    /// Listens at `path`, and serves from threads of its own. Takes over the device's completions.
    ///
    /// # Errors
    /// [`VhostServerError`]: the path is taken, or the options are wrong.
    pub fn start(
        device: Arc<dyn BlockDevice>,
        path: &Path,
        options: VhostOptions,
    ) -> Result<VhostServer, VhostServerError> {
        check(&options).map_err(VhostServerError::Options)?;
        let listen_error = |source| VhostServerError::Listen { path: path.to_owned(), source };
        let (name, socket) = listen(path, SOCKET_MODE).map_err(listen_error)?;
        rustix::io::ioctl_fionbio(&socket, true).map_err(io::Error::from)?;
        let path = path.canonicalize().map_err(listen_error)?;
        let (stop, ended) = (Arc::new(Event::new()?), Arc::new(Event::new()?));
        let pending = Arc::new(Pending::new());
        device.offer_completions(pending.clone());
        let disk = Arc::new(ServedDisk { device, pending, options });
        let front_end = Arc::new(ConnectedFrontEnd::default());
        let answering = {
            let disk = disk.clone();
            let body = move || disk.pending.answer_until_stopped(&*disk.device);
            std::thread::Builder::new().name("vhost-answers".into()).spawn(body)?
        };
        let control = Control {
            _name: name,
            socket,
            stop: stop.clone(),
            disk: disk.clone(),
            front_end: front_end.clone(),
            previous: None,
        };
        let controlling = {
            let ended = ended.clone();
            let body = move || {
                control.run();
                ended.signal();
            };
            std::thread::Builder::new().name("vhost-control".into()).spawn(body)?
        };
        tracing::info!(path = %path.display(), bytes = disk.limits().size_bytes, "volume served over vhost-user");
        let (controlling, answering) = (Some(controlling), Some(answering));
        Ok(VhostServer { path, disk, front_end, stop, ended, controlling, answering })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A descriptor that becomes readable when no front end is served any more.
    pub fn ended_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Counts the front ends that are connected: one at most.
    pub fn client_counter(&self) -> impl Fn() -> usize + Send + Sync + 'static + use<> {
        let front_end = self.front_end.clone();
        move || front_end.count()
    }

    /// Tells the guest that the volume has grown.
    pub fn growth_follower(&self) -> impl Fn() + Send + 'static + use<> {
        let front_end = self.front_end.clone();
        move || front_end.config_changed()
    }

    /// Answers what the guest has asked for, takes nothing more, and makes everything written durable. Requests that the guest makes from here
    /// on wait in its queues for another back end.
    ///
    /// # Errors
    /// What the last flush says.
    pub fn finish(mut self) -> Result<(), VhostServerError> {
        self.stop();
        // From here on nobody else takes completions.
        flush_blocking(&*self.disk.device)?;
        Ok(())
    }

    /// Ends at once. For a device that was given up: nothing is waited for but its errors.
    pub fn abandon(mut self) {
        self.front_end.break_off();
        self.stop();
    }

    fn stop(&mut self) {
        self.stop.signal();
        // A front end may be in the middle of a message.
        let _ = poll(&mut [PollFd::new(&*self.ended, PollFlags::IN)], Some(&END_PATIENCE));
        self.front_end.disconnect();
        if let Some(controlling) = self.controlling.take() {
            let _ = controlling.join();
        }
        self.disk.pending.stop();
        if let Some(answering) = self.answering.take() {
            let _ = answering.join();
        }
    }
}

impl Drop for VhostServer {
    fn drop(&mut self) {
        if self.answering.is_some() {
            self.stop.signal();
            self.front_end.break_off();
            self.disk.pending.stop();
        }
    }
}

fn check(options: &VhostOptions) -> Result<(), &'static str> {
    if !(1..=256).contains(&options.queues_max) {
        return Err("a disk has from 1 to 256 queues: --queues");
    }
    if !options.queue_size_max.is_power_of_two() || !(2..=1024).contains(&options.queue_size_max) {
        return Err("a queue has a power of two of entries, from 2 to 1024: --queue-size");
    }
    let is_block = |bytes: u32| bytes.is_power_of_two() && (512..=4096).contains(&bytes);
    if options.logical_block_bytes.is_some_and(|bytes| !is_block(bytes)) {
        return Err("a logical block has 512, 1024, 2048 or 4096 bytes: --logical-block-size");
    }
    Ok(())
}

/// The control thread. The socket goes away with it.
struct Control {
    /// Removed with the socket, and before it.
    _name: SocketName,
    socket: OwnedFd,
    stop: Arc<Event>,
    disk: Arc<ServedDisk>,
    front_end: Arc<ConnectedFrontEnd>,
    /// Ends when nothing of the front end before is in flight.
    previous: Option<JoinHandle<()>>,
}

impl Control {
    fn run(mut self) {
        let mut connection = None;
        while let Some(events) = self.wait(connection.as_ref()) {
            // First, so that a front end that connects again finds its old connection ended.
            if events.has_message {
                connection = self.handle_message(connection);
            }
            if events.has_connection {
                connection = self.accept(connection);
            }
        }
        if let Some(connection) = connection {
            connection.finish();
            self.previous = Some(connection.end());
        }
        if let Some(previous) = self.previous.take() {
            let _ = previous.join();
        }
    }

    /// `None`: it is to end.
    fn wait(&self, connection: Option<&FrontEndConnection>) -> Option<ControlEvents> {
        let mut fds = vec![PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&self.socket, PollFlags::IN)];
        fds.extend(connection.map(|connection| PollFd::new(connection, PollFlags::IN)));
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "no more front ends are served");
                return None;
            }
        }
        let is_ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        (!is_ready(0)).then(|| ControlEvents { has_connection: is_ready(1), has_message: is_ready(2) })
    }

    fn handle_message(&mut self, connection: Option<FrontEndConnection>) -> Option<FrontEndConnection> {
        let mut connection = connection?;
        match connection.handle_message() {
            Ok(()) => return Some(connection),
            Err(vhost::vhost_user::Error::Disconnected) => tracing::info!("the front end has disconnected"),
            Err(error) => tracing::warn!(%error, "the connection of the front end ends"),
        }
        self.previous = Some(connection.end());
        None
    }

    fn accept(&mut self, connection: Option<FrontEndConnection>) -> Option<FrontEndConnection> {
        let accepted = accept_with(&self.socket, SocketFlags::CLOEXEC);
        match (accepted, connection) {
            (Ok(_), Some(connection)) => {
                tracing::warn!("a second front end is refused: a disk is one guest's");
                Some(connection)
            }
            (Ok(fd), None) => {
                let started = FrontEndConnection::start(fd, &self.disk, &self.front_end, self.previous.take());
                match &started {
                    Ok(_) => tracing::info!("a front end has connected"),
                    Err(error) => tracing::error!(%error, "cannot serve a front end"),
                }
                started.ok()
            }
            (Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED), connection) => connection,
            (Err(error), connection) => {
                tracing::warn!(%error, "cannot accept a front end");
                std::thread::sleep(ACCEPT_PAUSE);
                connection
            }
        }
    }
}

struct ControlEvents {
    has_message: bool,
    has_connection: bool,
}
