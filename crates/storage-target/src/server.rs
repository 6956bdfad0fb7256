//! The target as a whole: started from a configuration, running in its workers, stopped in order.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use strongroom_handshake::{NodeKey, PublicKey};
use strongroom_net::{Listener, NetError, UdpSocket, Waker, affinity};

use crate::access::ChapSecrets;
use crate::admin::{self, AdminSocket, ReloadError, Reloaded};
use crate::catalogue::Catalogue;
use crate::config::{Config, Portal};
use crate::connection_handlers::ConnectionHandlers;
use crate::endpoint::Endpoint;
use crate::error::{CatalogueError, StartError};
use crate::metrics::{Metrics, MetricsReport};
use crate::pairing::PeerRegistry;
use crate::schedule_runner;
use crate::services::TargetServices;
use crate::settings::{ConfigReader, LiveSettings, Settings};
use crate::stats::{SessionInfo, Stats};
use crate::volume_keys::{OpenerFactory, ResealerFactory, VolumeKeys, WrapFactory};
use crate::worker::Worker;
use crate::worker::message::{Message, WorkerLink, WorkerMail};
use crate::worker::network::PortalSockets;
use crate::worker_directory::Mailbox;

/// What a target is started with: its configuration, and what the binary has read from files for it.
pub struct TargetOptions {
    /// The configuration.
    pub config: Config,
    /// This target's identity; without it there are no channels.
    pub node_key: Option<NodeKey>,
    /// For volumes of custody `target`; without it they cannot be opened.
    pub wraps: Option<WrapFactory>,
    /// For volumes of custody `target`; without it they are not verified in the background.
    pub openers: Option<OpenerFactory>,
    /// For volumes that are opened at the target; without it they cannot be opened.
    pub resealers: Option<ResealerFactory>,
    /// Destroys the wrapping key of such a volume for ever and hands out what wraps under a fresh one: cryptographic erase. May be
    /// called again after a crash. Fails only if the old key may still be there; then `wraps` is asked again what wraps from now on.
    pub renew_wrap: Option<WrapFactory>,
    /// For reloads; without it there are none.
    pub reread: Option<ConfigReader>,
    /// The secrets of the `[[chap]]` users.
    pub chap_secrets: ChapSecrets,
}

impl TargetOptions {
    /// A target without identity.
    pub fn new(config: Config) -> TargetOptions {
        TargetOptions {
            config,
            node_key: None,
            wraps: None,
            openers: None,
            resealers: None,
            renew_wrap: None,
            reread: None,
            chap_secrets: ChapSecrets::default(),
        }
    }
}

impl fmt::Debug for TargetOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetOptions").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Serves volumes.
#[derive(Debug)]
pub struct Target;

impl Target {
    /// Listens and starts the workers. When this returns the target serves.
    ///
    /// # Errors
    /// [`StartError`]: a configuration that cannot be, a port that is taken, a directory that is not there. Nothing runs then.
    pub fn start(options: TargetOptions) -> Result<TargetHandle, StartError> {
        let TargetOptions { config, node_key, wraps, openers, resealers, renew_wrap, reread, chap_secrets } = options;
        let settings = Settings::new(config, &chap_secrets, node_key.is_some())?;
        let catalogue = open_catalogue(&settings.config)?;
        let peers = PeerRegistry::open(&settings.config.root)?;
        let settings = settings.with_database(peers.peers());
        let config = &settings.config;
        let workers = config.workers.unwrap_or(affinity::available_cpus().len()).max(1);
        let (sockets, portals) = listen(config, workers, node_key.is_some())?;
        let admin_path = config.admin_socket.clone().unwrap_or_else(|| admin::default_socket(&config.root));
        let metrics = Metrics::new(workers);
        let counters = Arc::clone(&metrics.background_crypto);
        let services = Arc::new(TargetServices::new(
            LiveSettings::new(settings, reread),
            (catalogue, peers),
            VolumeKeys { wraps, openers, resealers, renew_wrap, counters },
            metrics,
            Endpoint::new(node_key, portals),
            workers,
        ));
        let handlers = Arc::new(ConnectionHandlers::new());
        let workers = start_workers(&services, &handlers, sockets)?;
        // Dropped with an error, it stops the workers.
        let mut handle = TargetHandle { services, handlers, workers, admin: None, scheduler: None };
        handle.admin = Some(AdminSocket::start(&admin_path, Arc::clone(&handle.services))?);
        handle.scheduler = Some(schedule_runner::start(&handle.services).map_err(StartError::Thread)?);
        let services = &handle.services;
        tracing::info!(
            root = %services.catalogue.root().display(),
            addresses = ?services.endpoint.addresses(),
            admin = %admin_path.display(),
            workers = services.workers.count(),
            memory_bytes = services.budget.report().budget_bytes,
            channels = services.endpoint.has_identity(),
            "serving"
        );
        Ok(handle)
    }
}

/// The catalogue, with what an earlier process left unfinished completed or removed.
fn open_catalogue(config: &Config) -> Result<Catalogue, CatalogueError> {
    let catalogue = Catalogue::open(&config.root)?;
    catalogue.warn_of_open_modes();
    catalogue.successions().settle_all()?;
    catalogue.clear_unfinished()?;
    Ok(catalogue)
}

/// Listens at every portal, for each worker; the portals get the ports that the system has assigned. ECL has the UDP ports of the same numbers,
/// where there are channels.
fn listen(
    config: &Config,
    workers: usize,
    has_identity: bool,
) -> Result<(Vec<PortalSockets>, Vec<Portal>), StartError> {
    let mut portals = config.portals();
    let none = || PortalSockets { listeners: Vec::new(), datagrams: Vec::new() };
    let mut sockets: Vec<PortalSockets> = (0..workers).map(|_| none()).collect();
    for portal in &mut portals {
        let (listener, datagrams) = bind(portal.address, workers, config.ecl && has_identity)?;
        portal.address = listener.local_address();
        for own in &mut sockets {
            own.listeners.push(listener.try_clone()?);
        }
        sockets.iter_mut().zip(datagrams).for_each(|(own, socket)| own.datagrams.push(socket));
    }
    Ok((sockets, portals))
}

/// How often another port is tried, where the system assigns one.
const PORTS_TRIED: usize = 16;

fn bind(address: SocketAddr, workers: usize, has_ecl: bool) -> Result<(Listener, Vec<UdpSocket>), NetError> {
    let mut tries = 0;
    loop {
        let listener = Listener::bind(address)?;
        if !has_ecl {
            return Ok((listener, Vec::new()));
        }
        match UdpSocket::bind_group(listener.local_address(), workers) {
            Ok(group) => return Ok((listener, group)),
            // The system knows only that the TCP port is free.
            Err(NetError::UdpPortTaken { .. }) if address.port() == 0 && tries < PORTS_TRIED => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

fn start_workers(
    services: &Arc<TargetServices>,
    handlers: &Arc<ConnectionHandlers>,
    sockets: Vec<PortalSockets>,
) -> Result<Vec<JoinHandle<()>>, StartError> {
    let cpus = affinity::available_cpus();
    let is_pinned = services.settings().config.pin_workers;
    let count = services.workers.count();
    let channels: Vec<(Sender<Message>, Receiver<Message>)> = (0..count).map(|_| mpsc::channel()).collect();
    let wakers = (0..count).map(|_| Waker::new()).collect::<Result<Vec<Waker>, _>>()?;
    let senders: Vec<Sender<Message>> = channels.iter().map(|(sender, _)| sender.clone()).collect();
    let mailboxes = senders.iter().zip(&wakers).map(|(sender, waker)| Mailbox::new(sender.clone(), waker.clone()));
    services.workers.set_mailboxes(mailboxes.collect());
    let mut workers = Vec::with_capacity(count);
    let (started, outcome) = mpsc::channel();
    for (index, ((_, inbox), own)) in channels.into_iter().zip(sockets).enumerate() {
        let cpu = is_pinned.then(|| cpus[index % cpus.len()]);
        let (services, started, waker) = (Arc::clone(services), started.clone(), wakers[index].clone());
        let links = senders.iter().zip(&wakers).map(|(sender, waker)| WorkerLink::new(sender.clone(), waker.clone()));
        let (mail, handlers) = (WorkerMail::new(inbox, links.collect()), Arc::clone(handlers));
        let body = move || {
            // Dropped after the worker, also when that panics.
            let _end = WorkerEnd { services: Arc::clone(&services), index };
            match Worker::new(index, (services, handlers), own, mail, waker) {
                Ok(worker) => {
                    let _ = started.send(Ok(()));
                    drop(started);
                    worker.run();
                }
                Err(error) => drop(started.send(Err(error))),
            }
        };
        workers.push(affinity::spawn_on_cpu(affinity::thread_name("target", index), cpu, body)?);
    }
    drop(started);
    // A runtime that cannot be made is a failure to start; the others are told to stop.
    if let Some(error) = outcome.iter().take(count).find_map(Result::err) {
        services.tell_all(|| Message::Stop { grace: Duration::ZERO });
        workers.into_iter().for_each(|worker| drop(worker.join()));
        return Err(error.into());
    }
    Ok(workers)
}

/// Tells the other workers when one has ended: in order, because its runtime failed, or by a panic.
struct WorkerEnd {
    services: Arc<TargetServices>,
    index: usize,
}

impl Drop for WorkerEnd {
    fn drop(&mut self) {
        self.services.workers.worker_ended(self.index);
    }
}

/// A running target. Dropping it stops it at once; [`TargetHandle::stop`] does so in order.
pub struct TargetHandle {
    pub(crate) services: Arc<TargetServices>,
    handlers: Arc<ConnectionHandlers>,
    workers: Vec<JoinHandle<()>>,
    admin: Option<AdminSocket>,
    scheduler: Option<JoinHandle<()>>,
}

impl fmt::Debug for TargetHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetHandle")
            .field("local_addresses", &self.services.endpoint.addresses())
            .finish_non_exhaustive()
    }
}

/// Reports on a target, also while it stops.
#[derive(Clone)]
pub struct TargetReporter(Arc<TargetServices>);

impl fmt::Debug for TargetReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetReporter").finish_non_exhaustive()
    }
}

impl TargetReporter {
    /// What the target is and does. Asks every worker, and waits for the slowest; one that is stuck is left out after five seconds.
    pub fn report(&self) -> MetricsReport {
        let status = admin::status(&self.0);
        self.0.metrics.report(status)
    }
}

impl TargetHandle {
    /// Where it listens, with true ports: first the first portal group, then the others in the configuration's order.
    pub fn local_addresses(&self) -> &[SocketAddr] {
        self.services.endpoint.addresses()
    }

    /// This target's public key, for initiators to expect; `None` without identity.
    pub fn public_key(&self) -> Option<PublicKey> {
        self.services.endpoint.public_key()
    }

    /// The volumes that it serves. Volumes may be made and deleted meanwhile.
    pub fn catalogue(&self) -> &Catalogue {
        &self.services.catalogue
    }

    /// What it has done and is doing.
    pub fn stats(&self) -> Stats {
        self.services.stats()
    }

    /// Who is logged in.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.services.metrics.counters.sessions()
    }

    /// What a metrics server asks, in a thread of its own.
    pub fn reporter(&self) -> TargetReporter {
        TargetReporter(Arc::clone(&self.services))
    }

    /// Whether every worker still answers, within `patience`: for a watchdog. A worker that has ended counts as if it did, for the others
    /// have taken over its volumes.
    pub fn workers_answer(&self, patience: Duration) -> bool {
        admin::workers_answer(&self.services, patience)
    }

    /// Reads the configuration again and puts it in force, as a whole or not at all.
    ///
    /// # Errors
    /// [`ReloadError`]: nothing was changed.
    pub fn reload(&self) -> Result<Reloaded, ReloadError> {
        admin::reload(&self.services)
    }

    /// Stops in order: takes nobody new, asks initiators to log out, lets what is in flight finish, ends every channel with an
    /// authenticated CLOSE, syncs and closes every store. Takes at most `limits.stop_timeout_s` and a moment.
    pub fn stop(mut self) {
        self.end(Duration::from_secs(self.services.settings().config.limits.stop_timeout_s));
    }

    fn end(&mut self, grace: Duration) {
        if self.workers.is_empty() {
            return;
        }
        self.admin = None;
        self.services.scheduler.stop();
        if let Some(thread) = self.scheduler.take() {
            let _ = thread.join();
        }
        self.handlers.transfers.stop();
        self.handlers.operators.stop();
        self.services.tell_all(|| Message::Stop { grace });
        for worker in self.workers.drain(..) {
            if worker.join().is_err() {
                tracing::error!("a worker panicked; this is a defect, please report it");
            }
        }
        tracing::info!("stopped");
    }
}

impl Drop for TargetHandle {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}
