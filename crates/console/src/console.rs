//! A console as the command line has it: it listens, gives out links, and ends when it is dropped.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::login::random_name;
use crate::routes::ConsoleState;
use crate::server::serve;

/// What a console needs to know.
#[derive(Clone, Debug)]
pub struct ConsoleOptions {
    /// Where to listen: an address of the loopback.
    pub listen: SocketAddr,
    /// The admin socket of the target. It need not be there yet.
    pub socket: PathBuf,
    /// How long a login lasts while nobody does anything with it.
    pub idle: Duration,
}

/// Why there is no console.
#[derive(Debug, thiserror::Error)]
pub enum ConsoleError {
    /// Others could reach it.
    #[error(
        "{0} can be reached from other machines, and the console is for the loopback only: use 127.0.0.1 or [::1], and from elsewhere \
         an SSH tunnel: ssh -L {port}:127.0.0.1:{port} THIS-MACHINE", port = .0.port()
    )]
    NotLoopback(SocketAddr),
    /// It cannot listen.
    #[error(
        "cannot listen at {address}: {source}; if another console runs there, stop it, or choose another port: \
         --listen {ip}:{other}", ip = if address.is_ipv6() { "[::1]" } else { "127.0.0.1" }, other = address.port().wrapping_add(1).max(1024)
    )]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The system gives no thread or descriptor.
    #[error("cannot start the console: {0}; raise the limits of processes and open files (ulimit -u, ulimit -n)")]
    Start(io::Error),
}

/// A console that runs; ends when it is dropped.
pub struct Console {
    address: SocketAddr,
    state: Arc<ConsoleState>,
    /// Its end ends the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Console {
    /// Listens, and serves in a thread of its own.
    ///
    /// # Errors
    /// [`ConsoleError`].
    pub fn start(options: &ConsoleOptions) -> Result<Console, ConsoleError> {
        if !options.listen.ip().is_loopback() {
            return Err(ConsoleError::NotLoopback(options.listen));
        }
        let failed = |source| ConsoleError::Listen { address: options.listen, source };
        let listener = TcpListener::bind(options.listen).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        // One thread: what it does takes microseconds, and it must not take processors from a target beside it. Questions to the target
        // wait in a second one.
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(1).build().map_err(ConsoleError::Start)?;
        let state = Arc::new(ConsoleState::new(options.socket.clone(), random_name(), options.idle));
        let served = Arc::clone(&state);
        let (stop, stopped) = oneshot::channel();
        let body = move || {
            runtime.block_on(serve(listener, served, stopped));
            // A question to a target that does not answer must not keep the process.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("console".to_owned()).spawn(body).map_err(ConsoleError::Start)?;
        Ok(Console { address, state, stop: Some(stop), thread: Some(thread) })
    }

    /// A link that logs in one browser, once, within ten minutes. One that was given out before and not used is no longer good. A secret:
    /// for the terminal of who started the console, and no log.
    pub fn login_link(&self) -> String {
        let token = self.state.logins().new_link(Instant::now());
        // A fragment is not sent: it is in no request, Referer or log. The page's script sends it in a body.
        format!("http://{}/login#{token}", self.address)
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the console's thread panicked; this is a defect, please report it");
        }
    }
}
