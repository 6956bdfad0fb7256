//! The listening side: a socket of mode 0600 from the moment it is there, a thread per client, bounds on all of it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::net::SocketFlags;
use strongroom_unix_socket::SocketName;

use super::lines::{read_line, send};
use super::{CLIENT_PATIENCE, CLIENTS_MAX, Reply, Request};
use crate::error::StartError;
use crate::services::TargetServices;

/// After a failed accept, so that a lack of descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The socket of a running target; gone when dropped.
pub(crate) struct AdminSocket {
    name: Option<SocketName>,
    listener: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl AdminSocket {
    /// Listens at `path` and answers from `shared`.
    pub(crate) fn start(path: &Path, shared: Arc<TargetServices>) -> Result<AdminSocket, StartError> {
        let failed = |source: io::Error| StartError::AdminSocket { path: path.to_owned(), source };
        let (name, listener) = bind(path).map_err(failed)?;
        let listener = Arc::new(listener);
        let own = Arc::clone(&listener);
        let body = move || accept_clients(&own, &shared);
        let thread = std::thread::Builder::new().name("admin".to_owned()).spawn(body).map_err(failed)?;
        Ok(AdminSocket { name: Some(name), listener, thread: Some(thread) })
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        // Nobody new: first the name goes, then `accept` ends with an error.
        drop(self.name.take());
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Only this user may connect.
fn bind(path: &Path) -> io::Result<(SocketName, OwnedFd)> {
    strongroom_unix_socket::listen(path, Mode::RUSR | Mode::WUSR).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            let problem = "another target answers there; stop it, or give this one another `admin_socket`";
            io::Error::new(io::ErrorKind::AddrInUse, problem)
        }
        _ => error,
    })
}

fn accept_clients(listener: &OwnedFd, shared: &Arc<TargetServices>) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(fd) => UnixStream::from(fd),
            // The end: `shutdown` was called on the listener.
            Err(rustix::io::Errno::INVAL) => return,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => continue,
            Err(error) => {
                tracing::warn!(%error, "the admin socket cannot take a client");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        if clients.fetch_add(1, Ordering::AcqRel) >= CLIENTS_MAX {
            clients.fetch_sub(1, Ordering::AcqRel);
            refuse(stream, "too many admin clients at a time; try again when one has ended");
            continue;
        }
        let (shared, own) = (Arc::clone(shared), Arc::clone(&clients));
        let body = move || {
            serve(stream, &shared);
            own.fetch_sub(1, Ordering::AcqRel);
        };
        if let Err(error) = std::thread::Builder::new().name("admin-client".to_owned()).spawn(body) {
            clients.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!(%error, "an admin client could not be served");
        }
    }
}

/// The file's mode keeps others out already; this holds if somebody changes it.
fn may_ask(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream.as_fd()).is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}

fn refuse(mut stream: UnixStream, why: &str) {
    let _ = stream.set_write_timeout(Some(CLIENT_PATIENCE));
    let _ = send(&mut stream, &Reply::Error(why.to_owned()));
}

/// One client: a line, its answer, the next line.
fn serve(mut stream: UnixStream, shared: &Arc<TargetServices>) {
    if !may_ask(&stream) {
        tracing::warn!("turned an admin client of another user away");
        return refuse(stream, "only the user that runs this target, and root, may ask it");
    }
    if stream.set_write_timeout(Some(CLIENT_PATIENCE)).is_err() {
        return;
    }
    let mut held = Vec::new();
    loop {
        let line = match read_line(&mut stream, &mut held) {
            Ok(Some(line)) => line,
            Ok(None) => return,
            Err(error) => return refuse(stream, &format!("no request in one line: {error}")),
        };
        let reply = match serde_json::from_slice::<Request>(&line) {
            Ok(Request::Send { volume, snapshot, from, resume }) => {
                tracing::info!(volume, snapshot, from, "sending a snapshot to an admin client");
                match super::send::send(&mut stream, shared, (&volume, &snapshot, from.as_deref()), resume.as_ref()) {
                    Ok(reply) => reply,
                    // It went away, or is too slow.
                    Err(_) => return,
                }
            }
            Ok(Request::Receive { volume }) => {
                tracing::info!(volume, "receiving a snapshot from an admin client");
                match super::receive::receive(&mut stream, std::mem::take(&mut held), shared, &volume) {
                    Ok(reply) => reply,
                    Err(_) => return,
                }
            }
            Ok(request) => {
                tracing::debug!(?request, "admin");
                super::answer::answer(shared, request)
            }
            Err(error) => Reply::Error(format!("not a request that this target knows: {error}; see docs/admin.md")),
        };
        if send(&mut stream, &reply).is_err() {
            return;
        }
    }
}
