//! The target as a whole: started from a configuration, running in its workers, stopped in order.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use strongroom_block::{BlockKeyWrap, CryptoCounters, Opener, Resealer};
use strongroom_handshake::{NodeKey, PublicKey};
use strongroom_net::{Admission, FlavourChoice, LinkOptions, Listener, RuntimeOptions, Waker, affinity};

use crate::access::{AccessRules, ChapSecrets};
use crate::admin::{self, AdminSocket, Drain, Reloaded, SendsUnderWay};
use crate::budget::MemoryBudget;
use crate::catalogue::{Catalogue, CatalogueIndex};
use crate::config::{Config, Portal, RuntimeKind};
use crate::error::{ConfigError, StartError};
use crate::iterations::{IterationCounts, IterationTimes};
use crate::names::VolumeName;
use crate::places::Places;
use crate::pool::Pool;
use crate::reception::ReceptionsUnderWay;
use crate::scheduler::Scheduler;
use crate::stats::{Counters, SessionInfo, Stats};
use crate::transfers::Transfers;
use crate::turns::VolumeTurns;
use crate::unit::{ClosedUnits, KeyRenewer, SessionKey, TargetEnvironment};
use crate::volume::Volume;
use crate::worker::{ConnectionKey, Message, Road, Worker};

/// Hands out what wraps block keys of a volume of custody `target` on their way to rest. The error is for people.
pub type WrapFactory = Arc<dyn Fn(&Volume) -> Result<Arc<dyn BlockKeyWrap>, String> + Send + Sync>;

/// Hands out what opens the blocks of a volume of custody `target`, for background verification; the bytes that it opens are counted
/// where it is told. The error is for people.
pub type OpenerFactory = Arc<dyn Fn(&Volume, Arc<CryptoCounters>) -> Result<Arc<dyn Opener>, String> + Send + Sync>;

/// Hands out what opens the blocks of a volume when they arrive, and seals them again when they are read (open-at-target); the bytes are
/// counted where it is told. The error is for people.
pub type ResealerFactory = Arc<dyn Fn(&Volume, Arc<CryptoCounters>) -> Result<Arc<dyn Resealer>, String> + Send + Sync>;

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

/// Reads the configuration again, and the secrets that it names, for a reload. The error is for people.
pub type ConfigReader = Arc<dyn Fn() -> Result<(Config, ChapSecrets), String> + Send + Sync>;

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

/// A configuration with the rules made of it; replaced together or not at all.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) config: Config,
    pub(crate) rules: AccessRules,
}

impl Settings {
    /// Checks all of a configuration.
    fn new(config: Config, secrets: &ChapSecrets, has_identity: bool) -> Result<Settings, ConfigError> {
        config.check()?;
        let rules = AccessRules::new(&config, secrets)?;
        if !has_identity && !config.peers.is_empty() {
            let problem = "is needed to serve the [[peer]]s; make one with `strongroom identity new` and name its file";
            return Err(ConfigError::value("node_key", problem));
        }
        Ok(Settings { config, rules })
    }
}

/// Stores that are opened or closed at the same time. More would only share the same disks and processors, and each recovery takes memory.
const OPENERS_MAX: usize = 8;

/// What [`Shared::placed`] shows of a worker that has ended: more than of any other.
const ENDED: usize = usize::MAX / 2;

/// What all workers share: read on the control path (accept, login, logout), never on the data path.
pub(crate) struct Shared {
    /// What a reload replaces as a whole. Workers keep their own handle on it.
    settings: RwLock<Arc<Settings>>,
    pub(crate) catalogue: Catalogue,
    pub(crate) wraps: Option<WrapFactory>,
    pub(crate) openers: Option<OpenerFactory>,
    pub(crate) resealers: Option<ResealerFactory>,
    pub(crate) renew_wrap: Option<WrapFactory>,
    pub(crate) reread: Option<ConfigReader>,
    /// Held while a reload is on its way.
    pub(crate) reloading: Mutex<()>,
    /// Taken while an operation on a volume as a whole is on its way.
    pub(crate) turns: VolumeTurns,
    pub(crate) sends: SendsUnderWay,
    pub(crate) receptions: ReceptionsUnderWay,
    pub(crate) transfers: Transfers,
    pub(crate) scheduler: Scheduler,
    /// Opens and closes stores.
    pub(crate) store_pool: Pool,
    /// Answers what takes a look at every volume.
    pub(crate) query_pool: Pool,
    pub(crate) index: CatalogueIndex,
    pub(crate) places: Arc<Places>,
    pub(crate) budget: Arc<MemoryBudget>,
    /// By worker.
    pub(crate) iterations: Vec<IterationCounts>,
    drain: Mutex<Drain>,
    resting: Mutex<ClosedUnits>,
    pub(crate) started: Instant,
    pub(crate) local_addresses: Vec<SocketAddr>,
    /// The same with their groups.
    pub(crate) portals: Vec<Portal>,
    /// What every unit knows of the target.
    pub(crate) environment: Arc<TargetEnvironment>,
    pub(crate) counters: Counters,
    pub(crate) crypto: Arc<CryptoCounters>,
    /// What background verification and opening at the target do.
    pub(crate) background_crypto: Arc<CryptoCounters>,
    identity: Option<Arc<NodeKey>>,
    mailboxes: OnceLock<Vec<Mailbox>>,
    /// Which worker owns which volume, while it is open or being opened.
    owners: Mutex<HashMap<VolumeName, usize>>,
    /// How many sessions with a volume each worker has; [`ENDED`] or about as many: it takes none any more.
    pub(crate) placed: Vec<AtomicUsize>,
    next_key: AtomicU64,
    next_tsih: AtomicU16,
}

/// A way to reach a worker.
pub(crate) struct Mailbox {
    sender: Mutex<Sender<Message>>,
    waker: Waker,
}

impl Target {
    /// Listens and starts the workers. When this returns the target serves.
    ///
    /// # Errors
    /// [`StartError`]: a configuration that cannot be, a port that is taken, a directory that is not there. Nothing runs then.
    pub fn start(options: TargetOptions) -> Result<TargetHandle, StartError> {
        let TargetOptions { config, node_key, wraps, openers, resealers, renew_wrap, reread, chap_secrets } = options;
        let settings = Settings::new(config, &chap_secrets, node_key.is_some())?;
        let config = &settings.config;
        let workers = config.workers.unwrap_or(affinity::available_cpus().len()).max(1);
        let catalogue = Catalogue::open(&config.root)?;
        catalogue.warn_of_open_modes();
        catalogue.settle_successions()?;
        catalogue.clear_unfinished()?;
        let mut portals = config.portals();
        let listeners: Vec<Listener> =
            portals.iter().map(|portal| Listener::bind(portal.address)).collect::<Result<_, _>>()?;
        let local_addresses: Vec<SocketAddr> = listeners.iter().map(Listener::local_address).collect();
        portals.iter_mut().zip(&local_addresses).for_each(|(portal, address)| portal.address = *address);
        let environment = Arc::new(TargetEnvironment::of(config));
        let budget = Arc::new(MemoryBudget::new(MemoryBudget::bytes_of(&config.limits)));
        let admin_path = config.admin_socket.clone().unwrap_or_else(|| admin::default_socket(&config.root));
        let shared = Arc::new(Shared {
            settings: RwLock::new(Arc::new(settings)),
            index: CatalogueIndex::new(catalogue.clone()),
            catalogue,
            wraps,
            openers,
            resealers,
            renew_wrap,
            reread,
            reloading: Mutex::new(()),
            turns: VolumeTurns::default(),
            sends: SendsUnderWay::default(),
            receptions: ReceptionsUnderWay::default(),
            transfers: Transfers::new(),
            scheduler: Scheduler::default(),
            store_pool: Pool::new("volume-open", OPENERS_MAX),
            query_pool: Pool::new("catalogue", 1),
            places: Arc::new(Places::new(workers)),
            budget,
            iterations: (0..workers).map(|_| IterationCounts::default()).collect(),
            drain: Mutex::new(Drain::default()),
            resting: Mutex::new(ClosedUnits::default()),
            started: Instant::now(),
            local_addresses,
            portals,
            environment,
            counters: Counters::default(),
            crypto: Arc::new(CryptoCounters::new()),
            background_crypto: Arc::new(CryptoCounters::new()),
            identity: node_key.map(Arc::new),
            mailboxes: OnceLock::new(),
            owners: Mutex::new(HashMap::new()),
            placed: (0..workers).map(|_| AtomicUsize::new(0)).collect(),
            next_key: AtomicU64::new(1),
            next_tsih: AtomicU16::new(1),
        });
        let workers = start_workers(&shared, &listeners)?;
        // Dropped with an error, it stops the workers.
        let mut handle = TargetHandle { shared, workers, admin: None, scheduler: None };
        handle.admin = Some(AdminSocket::start(&admin_path, Arc::clone(&handle.shared))?);
        handle.scheduler = Some(Scheduler::start(&handle.shared).map_err(StartError::Thread)?);
        let shared = &handle.shared;
        tracing::info!(
            root = %shared.catalogue.root().display(),
            addresses = ?shared.local_addresses,
            admin = %admin_path.display(),
            workers = shared.workers(),
            memory_bytes = shared.budget.report().budget_bytes,
            channels = shared.identity.is_some(),
            "serving"
        );
        Ok(handle)
    }
}

fn start_workers(shared: &Arc<Shared>, listeners: &[Listener]) -> Result<Vec<JoinHandle<()>>, StartError> {
    let cpus = affinity::available_cpus();
    let settings = shared.settings();
    let count = shared.placed.len();
    let mut mailboxes = Vec::with_capacity(count);
    let mut inboxes = Vec::with_capacity(count);
    let mut roads = Vec::with_capacity(count);
    for _ in 0..count {
        let (sender, inbox) = mpsc::channel();
        let waker = Waker::new()?;
        roads.push((sender.clone(), waker.clone()));
        mailboxes.push(Mailbox { sender: Mutex::new(sender), waker: waker.clone() });
        inboxes.push((inbox, waker));
    }
    if shared.mailboxes.set(mailboxes).is_err() {
        unreachable!("the shared state was made by this call");
    }
    let mut workers = Vec::with_capacity(count);
    let (told, outcome) = mpsc::channel();
    for (index, (inbox, waker)) in inboxes.into_iter().enumerate() {
        let own = listeners.iter().map(Listener::try_clone).collect::<Result<Vec<_>, _>>()?;
        let cpu = settings.config.pin_workers.then(|| cpus[index % cpus.len()]);
        let (shared, told) = (Arc::clone(shared), told.clone());
        let roads = roads.iter().map(|(sender, waker)| Road::new(sender.clone(), waker.clone())).collect();
        let body = move || {
            // Dropped after the worker, whatever that ends by.
            let _ending = Ending { shared: Arc::clone(&shared), index };
            match Worker::new(index, shared, own, (inbox, roads), waker) {
                Ok(worker) => {
                    let _ = told.send(Ok(()));
                    drop(told);
                    worker.run();
                }
                Err(error) => drop(told.send(Err(error))),
            }
        };
        workers.push(affinity::spawn_on_cpu(affinity::thread_name("target", index), cpu, body)?);
    }
    drop(told);
    // A runtime that cannot be made is a failure to start; the others are told to go.
    if let Some(error) = outcome.iter().take(count).find_map(Result::err) {
        shared.tell_all(|| Message::Stop { grace: Duration::ZERO });
        workers.into_iter().for_each(|worker| drop(worker.join()));
        return Err(error.into());
    }
    Ok(workers)
}

/// Lets the others know when a worker has ended: in order, or because its runtime failed, or by a panic. Nothing goes there any more.
struct Ending {
    shared: Arc<Shared>,
    index: usize,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let mut owners = self.shared.owners.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.placed[self.index].store(ENDED, Ordering::Relaxed);
        owners.retain(|_, worker| *worker != self.index);
        drop(owners);
        self.shared.tell_all(|| Message::Ended { worker: self.index });
    }
}

/// A running target. Dropping it stops it at once; [`TargetHandle::stop`] does so in order.
pub struct TargetHandle {
    pub(crate) shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    admin: Option<AdminSocket>,
    scheduler: Option<JoinHandle<()>>,
}

impl fmt::Debug for TargetHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetHandle").field("local_addresses", &self.shared.local_addresses).finish_non_exhaustive()
    }
}

impl TargetHandle {
    /// Where it listens, with true ports: first the first portal group, then the others in the configuration's order.
    pub fn local_addresses(&self) -> &[SocketAddr] {
        &self.shared.local_addresses
    }

    /// This target's public key, for initiators to expect; `None` without identity.
    pub fn public_key(&self) -> Option<PublicKey> {
        self.shared.identity.as_ref().map(|identity| identity.public())
    }

    /// The volumes that it serves. Volumes may be made and deleted meanwhile.
    pub fn catalogue(&self) -> &Catalogue {
        &self.shared.catalogue
    }

    /// What it has done and is doing.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Who is logged in.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.shared.counters.sessions()
    }

    /// Reads the configuration again and puts it in force, as a whole or not at all.
    ///
    /// # Errors
    /// Why nothing was changed, for people.
    pub fn reload(&self) -> Result<Reloaded, String> {
        self.shared.reload()
    }

    /// Stops in order: takes nobody new, asks initiators to log out, lets what is in flight finish, ends every channel with an
    /// authenticated CLOSE, syncs and closes every store. Takes at most `limits.stop_timeout_s` and a moment.
    pub fn stop(mut self) {
        self.end(Duration::from_secs(self.shared.settings().config.limits.stop_timeout_s));
    }

    fn end(&mut self, grace: Duration) {
        if self.workers.is_empty() {
            return;
        }
        self.admin = None;
        self.shared.scheduler.stop();
        if let Some(thread) = self.scheduler.take() {
            let _ = thread.join();
        }
        self.shared.transfers.stop();
        self.shared.tell_all(|| Message::Stop { grace });
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

impl Shared {
    /// What destroys wrapping keys, if the target is given that.
    pub(crate) fn key_renewer(&self) -> Option<KeyRenewer> {
        let (renew, open) = (self.renew_wrap.clone()?, self.wraps.clone()?);
        Some(KeyRenewer { renew, open, catalogue: self.catalogue.clone() })
    }

    /// How many workers there are.
    pub(crate) fn workers(&self) -> usize {
        self.mailboxes().len()
    }

    /// Whether channels are offered.
    pub(crate) fn has_identity(&self) -> bool {
        self.identity.is_some()
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut iterations = IterationTimes::default();
        self.iterations.iter().for_each(|worker| worker.add_to(&mut iterations));
        self.counters.snapshot(self.places.connections(), &self.crypto, &self.background_crypto, iterations)
    }

    /// Which volumes initiators are sent away from.
    pub(crate) fn drain(&self) -> MutexGuard<'_, Drain> {
        self.drain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What initiators have set on volumes that are closed.
    pub(crate) fn resting(&self) -> MutexGuard<'_, ClosedUnits> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what initiators had set on some volumes that are gone. Reads a few descriptions: not for a worker.
    pub(crate) fn forget_resting(&self) {
        let next = self.resting().next_to_check();
        for (name, id) in next {
            if !self.catalogue.load(&name).is_ok_and(|volume| volume.id == id) {
                self.resting().forget(&name, id);
            }
        }
    }

    /// Puts a configuration in force, once all of it was found to be in order. What cannot change while the target runs
    /// keeps its value. Tells what changed, and what would after a restart.
    pub(crate) fn replace_settings(
        &self,
        config: Config,
        secrets: &ChapSecrets,
    ) -> Result<(Vec<String>, Vec<String>), ConfigError> {
        let mut new = Settings::new(config, secrets, self.has_identity())?;
        let mut held = self.settings.write().unwrap_or_else(PoisonError::into_inner);
        let needs_restart = new.config.keep_constants_of(&held.config);
        let changed = new.config.differences(&held.config);
        self.budget.set_total(MemoryBudget::bytes_of(&new.config.limits));
        *held = Arc::new(new);
        Ok((changed, needs_restart))
    }

    /// What holds now.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the port admits.
    pub(crate) fn admission(self: &Arc<Self>) -> Admission {
        let shared = Arc::clone(self);
        Admission {
            identity: self.identity.clone(),
            peers: Arc::new(move |key: &PublicKey| shared.settings().rules.knows(key)),
            // Whether a plain session may use a certain volume is told at login, with a reason that the initiator can show.
            allow_plain: self.admits_plain(),
        }
    }

    /// Whether plain iSCSI leads anywhere: there is a rule for it, or a plain volume, which may name initiators itself.
    fn admits_plain(self: &Arc<Self>) -> bool {
        if !self.settings().config.plain.is_empty() {
            return true;
        }
        if self.index.is_outdated() {
            let shared = Arc::clone(self);
            let asked = Instant::now();
            // Until that is done it counts as possible.
            let _ = self.query_pool.submit(move || drop(shared.index.refresh(asked)));
        }
        self.index.may_have_plain()
    }

    pub(crate) fn link_options(&self) -> LinkOptions {
        let config = &self.settings().config;
        LinkOptions {
            setup_timeout: config.limits.login_timeout(),
            schemes: config.channel_schemes().expect("a configuration is checked before it holds"),
            suites: config.channel_suites().expect("a configuration is checked before it holds"),
            transfers: strongroom_net::Transfers::Admitted,
            counters: Arc::clone(&self.crypto),
            channel: config.limits.channel(),
            rekey_after: Duration::from_secs(config.limits.rekey_after_s),
            ..LinkOptions::default()
        }
    }

    pub(crate) fn runtime_options(&self) -> RuntimeOptions {
        let settings = self.settings();
        RuntimeOptions {
            flavour: match settings.config.runtime {
                RuntimeKind::Auto => FlavourChoice::Auto,
                RuntimeKind::Epoll => FlavourChoice::Epoll,
                RuntimeKind::IoUring => FlavourChoice::IoUring,
            },
            // The bound on connections is shared by all workers; this one only must not be in its way.
            streams_max: usize::MAX,
            ..RuntimeOptions::default()
        }
    }

    pub(crate) fn connection_key(&self) -> ConnectionKey {
        ConnectionKey(self.next_key.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn session_key(&self) -> SessionKey {
        SessionKey(self.next_key.fetch_add(1, Ordering::Relaxed))
    }

    /// A session handle: not 0, and not the same again soon.
    pub(crate) fn tsih(&self) -> u16 {
        loop {
            let tsih = self.next_tsih.fetch_add(1, Ordering::Relaxed);
            if tsih != 0 {
                return tsih;
            }
        }
    }

    fn has_ended(&self, worker: usize) -> bool {
        // Sessions that it had may still be counted off.
        self.placed[worker].load(Ordering::Relaxed) > ENDED / 2
    }

    /// The worker that owns a volume; if none does, the one with the fewest volumes from now on.
    pub(crate) fn owner(&self, volume: &VolumeName) -> usize {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(worker) = owners.get(volume) {
            return *worker;
        }
        let count = self.mailboxes().len();
        let mut load = vec![0usize; count];
        owners.values().for_each(|worker| load[*worker] += 1);
        let there = (0..count).filter(|worker| !self.has_ended(*worker));
        let worker = there.min_by_key(|worker| load[*worker]).unwrap_or(0);
        owners.insert(volume.clone(), worker);
        worker
    }

    /// A volume is closed; whoever asks next may own it.
    pub(crate) fn disown(&self, volume: &VolumeName) {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner).remove(volume);
    }

    /// Sends a message to a worker. One that has ended hears nothing; what was sent is dropped.
    pub(crate) fn tell(&self, worker: usize, message: Message) {
        let mailbox = &self.mailboxes()[worker];
        let _ = mailbox.sender.lock().unwrap_or_else(PoisonError::into_inner).send(message);
        mailbox.waker.wake();
    }

    pub(crate) fn tell_all(&self, message: impl Fn() -> Message) {
        (0..self.mailboxes().len()).for_each(|worker| self.tell(worker, message()));
    }

    fn mailboxes(&self) -> &[Mailbox] {
        self.mailboxes.get().expect("set before the first worker starts")
    }
}
