//! The service: listens, bounds what strangers can take, and answers those who have proven who they are. A thread a
//! connection: key servers answer few requests, and a watch is a thread that sleeps.

mod service;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strongroom_handshake::{HandshakeError, NodeKey, PublicKey};

use self::service::Service;
use crate::audit::short;
use crate::config::{Config, ConfigError};
use crate::connection::{Connection, ConnectionError};
use crate::database::Database;
use crate::engine::Engine;
use crate::limits::Conduct;
use crate::metrics::{KeyServerReport, Metrics};
use crate::standby::Standby;

/// The stack of a connection's thread: handshakes need most.
const STACK_BYTES: usize = 1 << 20;
/// So many handshakes at a time are for every address, however few connections there may be.
const ALIKE_MIN: usize = 8;
/// How long a stop waits for answers that are under way.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// What a key server starts from.
pub struct ServerOptions {
    /// Checked.
    pub config: Config,
    /// As whom.
    pub node_key: Arc<NodeKey>,
    /// Open.
    pub database: Database,
}

/// Why a key server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Cannot listen.
    #[error("cannot listen on {address}: {source}; choose another address, or stop what listens there")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A setting is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system gives no thread.
    #[error("cannot start a thread: {0}; raise the limit of processes (ulimit -u)")]
    Thread(std::io::Error),
}

struct ServerShared {
    node_key: Arc<NodeKey>,
    service: Service,
    metrics: Arc<Metrics>,
    streams: Mutex<HashMap<u64, TcpStream>>,
    /// In the middle of a handshake, the oldest first, and from where.
    half_open: Mutex<BTreeMap<u64, IpAddr>>,
    next: AtomicU64,
    stopping: AtomicBool,
}

/// A key server that runs; ends when it is dropped or [stopped](KeyServer::stop).
pub struct KeyServer {
    shared: Arc<ServerShared>,
    listeners: Vec<Arc<TcpListener>>,
    accepting: Vec<JoinHandle<()>>,
    following: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for KeyServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyServer").field("addresses", &self.local_addresses()).finish_non_exhaustive()
    }
}

impl KeyServer {
    /// Starts to serve.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(options: ServerOptions) -> Result<KeyServer, StartError> {
        let ServerOptions { config, node_key, database } = options;
        let mut listeners = Vec::new();
        for &address in &config.listen {
            let listener = TcpListener::bind(address).map_err(|source| StartError::Listen { address, source })?;
            listeners.push(Arc::new(listener));
        }
        let metrics = Arc::new(Metrics::default());
        let engine = Engine::start(Arc::new(database), Arc::clone(&metrics)).map_err(StartError::Thread)?;
        let roles = config.roles()?;
        let standby = Standby::new(&config, Arc::clone(&engine), Arc::clone(&node_key))?;
        let service = Service {
            engine,
            metrics: Arc::clone(&metrics),
            config: RwLock::new((Arc::new(config), Arc::new(roles))),
            conduct: Conduct::default(),
            connections: AtomicU64::new(0),
        };
        let shared = Arc::new(ServerShared {
            node_key,
            service,
            metrics,
            streams: Mutex::default(),
            half_open: Mutex::default(),
            next: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        });
        shared.service.heed_config();
        shared.service.note("start".into());
        let mut server = KeyServer { shared, listeners, accepting: Vec::new(), following: None };
        if let Some(standby) = standby {
            let shared = Arc::clone(&server.shared);
            let following = thread::Builder::new().name("key-follows".into());
            let thread = following.spawn(move || standby.run(&shared.stopping)).map_err(StartError::Thread)?;
            server.following = Some(thread);
        }
        for listener in server.listeners.clone() {
            let shared = Arc::clone(&server.shared);
            let accepting = thread::Builder::new().name("key-accepts".into());
            let thread = accepting.spawn(move || shared.accept(&listener)).map_err(StartError::Thread)?;
            server.accepting.push(thread);
        }
        Ok(server)
    }

    /// Where it listens.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Puts roles, limits and the lease of another configuration in force; addresses, keys and directories stay.
    ///
    /// # Errors
    /// [`ConfigError`]; the old one stays in force then.
    pub fn reload(&self, config: Config) -> Result<(), ConfigError> {
        let roles = config.roles()?;
        *self.shared.service.config.write().unwrap_or_else(PoisonError::into_inner) =
            (Arc::new(config), Arc::new(roles));
        self.shared.service.heed_config();
        self.shared.service.note("reload".into());
        self.shared.end_streams_without_identity();
        Ok(())
    }

    /// Counters, as text for Prometheus.
    pub fn metrics(&self) -> String {
        self.shared.metrics.text(&self.shared.service.status())
    }

    /// What a metrics server asks, in a thread of its own.
    pub fn reporter(&self) -> KeyServerReporter {
        KeyServerReporter(Arc::clone(&self.shared))
    }

    /// Whether it cannot continue and must be restarted: a fault of this program, which the log describes.
    pub fn has_failed(&self) -> bool {
        let has_ended = self.accepting.iter().any(JoinHandle::is_finished);
        has_ended || self.shared.service.engine.has_failed()
    }

    /// Whether it still does what it is asked, within `patience`: for a watchdog. Takes the locks that a new connection needs, and a turn of the
    /// thread that stores changes.
    pub fn answers(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let is_held = || {
            let streams = matches!(self.shared.streams.try_lock(), Err(TryLockError::WouldBlock));
            streams || matches!(self.shared.half_open.try_lock(), Err(TryLockError::WouldBlock))
        };
        while is_held() {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.shared.service.engine.answers(deadline.saturating_duration_since(Instant::now()))
    }

    /// Takes no more connections, finishes what is being answered, and ends.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if self.shared.stopping.swap(true, Ordering::SeqCst) {
            return;
        }
        for listener in &self.listeners {
            let _ = rustix::net::shutdown(listener.as_fd(), rustix::net::Shutdown::Both);
        }
        self.shared.service.engine.announce_stop();
        for thread in self.accepting.drain(..).chain(self.following.take()) {
            let _ = thread.join();
        }
        self.shared.shut_down(Shutdown::Read);
        let deadline = Instant::now() + STOP_PATIENCE;
        while !self.shared.streams().is_empty() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        self.shared.shut_down(Shutdown::Both);
        self.shared.service.note("stop".into());
        self.shared.service.engine.stop();
    }
}

/// Reports on a key server, also while it stops.
#[derive(Clone)]
pub struct KeyServerReporter(Arc<ServerShared>);

impl std::fmt::Debug for KeyServerReporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyServerReporter").finish_non_exhaustive()
    }
}

impl KeyServerReporter {
    /// What the server is and has done.
    pub fn report(&self) -> KeyServerReport {
        let service = &self.0.service;
        self.0.metrics.report(service.status(), service.config().lease())
    }
}

impl Drop for KeyServer {
    fn drop(&mut self) {
        self.end();
    }
}

impl ServerShared {
    fn streams(&self) -> std::sync::MutexGuard<'_, HashMap<u64, TcpStream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn half_open(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, IpAddr>> {
        self.half_open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shut_down(&self, how: Shutdown) {
        for stream in self.streams().values() {
            let _ = stream.shutdown(how);
        }
    }

    /// After a reload: all clients reconnect, and those that lost their role are refused then.
    fn end_streams_without_identity(&self) {
        self.shut_down(Shutdown::Read);
    }

    fn accept(self: &Arc<ServerShared>, listener: &TcpListener) {
        loop {
            let accepted = listener.accept();
            if self.stopping.load(Ordering::SeqCst) {
                return;
            }
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot take a connection; raise the limit of open files (ulimit -n) if it says so");
                    thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            self.take(stream);
        }
    }

    /// A thread for the connection, if there is room.
    fn take(self: &Arc<ServerShared>, stream: TcpStream) {
        let limits = self.service.config().limits.clone();
        let (Ok(kept), Ok(peer)) = (stream.try_clone(), stream.peer_addr()) else { return };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        {
            let (mut streams, mut half_open) = (self.streams(), self.half_open());
            let half = limits.connections_max / 2;
            let alike = half_open.values().filter(|from| **from == peer.ip()).count();
            // The oldest one gives way: it had more time than an honest client needs, or it shares the address with many others.
            let oldest = if alike > (half / 4).max(ALIKE_MIN) {
                half_open.iter().find(|(_, from)| **from == peer.ip()).map(|(id, _)| *id)
            } else if half_open.len() >= half || streams.len() >= limits.connections_max {
                half_open.keys().next().copied()
            } else {
                None
            };
            if let Some(oldest) = oldest {
                half_open.remove(&oldest);
                if let Some(stream) = streams.get(&oldest) {
                    let _ = stream.shutdown(Shutdown::Both);
                }
                self.metrics.connection_refused();
            }
            if streams.len() >= limits.connections_max + half {
                self.metrics.connection_refused();
                return;
            }
            streams.insert(id, kept);
            half_open.insert(id, peer.ip());
        }
        self.metrics.connections.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(self);
        let connection = thread::Builder::new().name("key-connection".into()).stack_size(STACK_BYTES);
        let started = connection.spawn(move || {
            let result = shared.shake_hands(stream, Duration::from_secs(limits.setup_timeout_s));
            shared.half_open().remove(&id);
            match result {
                Ok(connection) => shared.service.serve(connection, &shared.stopping),
                Err(error) => shared.not_admitted(&error),
            }
            shared.forget(id);
        });
        if let Err(error) = started {
            tracing::warn!(%error, "no thread for a connection; raise the limit of processes (ulimit -u)");
            self.half_open().remove(&id);
            self.forget(id);
        }
    }

    fn forget(&self, id: u64) {
        self.streams().remove(&id);
        self.metrics.connections.fetch_sub(1, Ordering::Relaxed);
    }

    fn shake_hands(
        self: &Arc<ServerShared>,
        stream: TcpStream,
        timeout: Duration,
    ) -> Result<Connection, ConnectionError> {
        let shared = Arc::clone(self);
        let policy = move |key: &PublicKey| shared.service.admits(key);
        Connection::accept(stream, &self.node_key, Arc::new(policy), Instant::now() + timeout)
    }

    fn not_admitted(&self, error: &ConnectionError) {
        self.metrics.connection_refused();
        if let ConnectionError::Handshake(HandshakeError::UnknownPeer { key }) = error {
            self.service.refused(key, true, &format!("refused connect identity={}", short(key)));
        } else {
            tracing::debug!(%error, "a connection ended in its handshake");
        }
    }
}
