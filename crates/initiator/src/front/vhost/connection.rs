//! The connection of a front end, from when it is accepted until it or the server ends it; and what others may ask of it meanwhile.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use vhost::vhost_user::{BackendReqHandler, Error};

use super::channel::BackendChannel;
use super::disk::ServedDisk;
use super::queues::GuestQueues;
use super::session::Session;
use crate::completion::lock;

/// How long the rest of a message may take.
const MESSAGE_PATIENCE: Duration = Duration::from_secs(5);

/// The front end that is connected, as far as other threads may know it.
#[derive(Default)]
pub(super) struct ConnectedFrontEnd {
    connected: Mutex<Option<SharedConnection>>,
}

struct SharedConnection {
    socket: UnixStream,
    queues: Arc<GuestQueues>,
    channel: Option<BackendChannel>,
}

impl ConnectedFrontEnd {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        lock(&self.connected).iter().count()
    }

    /// Tells it that the volume has grown, if it wants to know.
    pub(super) fn config_changed(&self) {
        if let Some(channel) = lock(&self.connected).as_ref().and_then(|connected| connected.channel.as_ref()) {
            channel.config_changed();
        }
    }

    /// Ends the connection, even within a message. What is in flight is still answered.
    pub(super) fn disconnect(&self) {
        if let Some(connected) = &*lock(&self.connected) {
            let _ = connected.socket.shutdown(Shutdown::Both);
        }
    }

    /// Ends it without answering anything.
    pub(super) fn break_off(&self) {
        if let Some(connected) = &*lock(&self.connected) {
            connected.queues.close();
            let _ = connected.socket.shutdown(Shutdown::Both);
        }
    }
}

/// See the module. One thread owns it.
pub(super) struct FrontEndConnection {
    socket: UnixStream,
    handler: BackendReqHandler<Mutex<Session>>,
    queues: Arc<GuestQueues>,
    taking: JoinHandle<()>,
    shared: Arc<ConnectedFrontEnd>,
}

impl FrontEndConnection {
    /// Serves a front end. No request of its guest is taken before `previous` has ended: that is how long requests of the front end before are
    /// in flight, and they could take effect after those of this one.
    ///
    /// # Errors
    /// The system gives no thread or descriptor.
    pub(super) fn start(
        fd: OwnedFd,
        disk: &Arc<ServedDisk>,
        shared: &Arc<ConnectedFrontEnd>,
        previous: Option<JoinHandle<()>>,
    ) -> io::Result<FrontEndConnection> {
        let socket = UnixStream::from(fd);
        socket.set_read_timeout(Some(MESSAGE_PATIENCE))?;
        socket.set_write_timeout(Some(MESSAGE_PATIENCE))?;
        let queues = Arc::new(GuestQueues::new(&disk.options)?);
        let session = Arc::new(Mutex::new(Session::new(disk.clone(), queues.clone())));
        let handler = BackendReqHandler::from_stream(socket.try_clone()?, session);
        let connected = SharedConnection { socket: socket.try_clone()?, queues: queues.clone(), channel: None };
        let taking = {
            let (disk, queues) = (disk.clone(), queues.clone());
            let body = move || {
                if let Some(previous) = previous {
                    let _ = previous.join();
                }
                queues.serve(&disk);
            };
            std::thread::Builder::new().name("vhost-queues".into()).spawn(body)?
        };
        *lock(&shared.connected) = Some(connected);
        Ok(FrontEndConnection { socket, handler, queues, taking, shared: shared.clone() })
    }

    /// Executes one message of the front end.
    ///
    /// # Errors
    /// The connection has to end: the front end has ended it, or it asks for what cannot be.
    pub(super) fn handle_message(&mut self) -> Result<(), Error> {
        if let Some(channel) = BackendChannel::peek(&self.socket)
            && let Some(connected) = &mut *lock(&self.shared.connected)
        {
            connected.channel = Some(channel);
        }
        self.handler.handle_request()
    }

    /// Answers what is in flight and takes nothing more.
    pub(super) fn finish(&self) {
        self.queues.finish();
    }

    /// Ends it. What is in flight is not answered, but left in the in-flight buffer. Returns the thread that ends with the last of it.
    pub(super) fn end(self) -> JoinHandle<()> {
        self.queues.close();
        lock(&self.shared.connected).take();
        let _ = self.socket.shutdown(Shutdown::Both);
        self.taking
    }
}

impl AsFd for FrontEndConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
