//! What the workers, the administrative threads and the background threads of one target share: used on the control path (accept, login,
//! logout, administrative requests), never for a command.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use strongroom_handshake::{PairingBinding, PairingProof, PublicKey};
use strongroom_net::{Admission, FlavourChoice, LinkOptions, ProtocolUse, RuntimeOptions};

use crate::access::ChapSecrets;
use crate::admin::Drain;
use crate::budget::MemoryBudget;
use crate::catalogue::{Catalogue, CatalogueIndex};
use crate::config::{Config, RuntimeKind};
use crate::connection_slots::ConnectionSlots;
use crate::endpoint::Endpoint;
use crate::error::ConfigError;
use crate::metrics::Metrics;
use crate::names::VolumeName;
use crate::pairing::{self, Joining, PairingRefusal, PeerRegistry};
use crate::pool::Pool;
use crate::receptions::ReceptionsUnderWay;
use crate::scheduler::Scheduler;
use crate::sends::SendsUnderWay;
use crate::settings::{ChangedSettings, LiveSettings, Settings};
use crate::stats::Stats;
use crate::turns::VolumeTurns;
use crate::unit::{ClosedUnits, KeyRenewer, TargetEnvironment};
use crate::volume_keys::VolumeKeys;
use crate::worker::message::Message;
use crate::worker_directory::WorkerDirectory;

/// Stores that are opened or closed at the same time. More would only share the same disks and processors, and each recovery takes memory.
const OPENERS_MAX: usize = 8;

pub(crate) struct TargetServices {
    settings: LiveSettings,
    pub(crate) catalogue: Catalogue,
    /// Peers that have joined by invitation, and invitations.
    pub(crate) peers: PeerRegistry,
    pub(crate) queries: CatalogueQueries,
    pub(crate) keys: VolumeKeys,
    pub(crate) operations: OperationsUnderWay,
    pub(crate) scheduler: Scheduler,
    /// Opens and closes stores.
    pub(crate) store_pool: Pool,
    pub(crate) slots: Arc<ConnectionSlots>,
    pub(crate) budget: Arc<MemoryBudget>,
    pub(crate) metrics: Metrics,
    resting: Mutex<ClosedUnits>,
    pub(crate) endpoint: Endpoint,
    /// What every unit knows of the target.
    pub(crate) environment: Arc<TargetEnvironment>,
    pub(crate) workers: WorkerDirectory,
}

/// Questions that concern every volume: the catalogue in memory, and the thread that reads it again.
pub(crate) struct CatalogueQueries {
    pub(crate) index: Arc<CatalogueIndex>,
    pub(crate) pool: Pool,
}

/// Operations on volumes as a whole: which are under way, and which volumes initiators are sent away from.
#[derive(Default)]
pub(crate) struct OperationsUnderWay {
    pub(crate) turns: VolumeTurns,
    pub(crate) sends: SendsUnderWay,
    pub(crate) receptions: ReceptionsUnderWay,
    drains: Mutex<Drain>,
}

impl CatalogueQueries {
    fn new(catalogue: Catalogue) -> CatalogueQueries {
        CatalogueQueries { index: Arc::new(CatalogueIndex::new(catalogue)), pool: Pool::new("catalogue", 1) }
    }

    /// Whether there may be a plain volume. Until the catalogue was read again, that counts as possible.
    fn may_have_plain(&self) -> bool {
        if self.index.is_outdated() {
            let (index, asked) = (Arc::clone(&self.index), Instant::now());
            let _ = self.pool.submit(move || drop(index.refresh(asked)));
        }
        self.index.may_have_plain()
    }
}

impl TargetServices {
    pub(crate) fn new(
        settings: LiveSettings,
        (catalogue, peers): (Catalogue, PeerRegistry),
        keys: VolumeKeys,
        metrics: Metrics,
        endpoint: Endpoint,
        workers: usize,
    ) -> TargetServices {
        let current = settings.current();
        let config = &current.config;
        TargetServices {
            queries: CatalogueQueries::new(catalogue.clone()),
            catalogue,
            peers,
            keys,
            operations: OperationsUnderWay::default(),
            scheduler: Scheduler::default(),
            store_pool: Pool::new("volume-open", OPENERS_MAX),
            slots: Arc::new(ConnectionSlots::new(workers)),
            budget: Arc::new(MemoryBudget::new(MemoryBudget::bytes_of(&config.limits))),
            metrics,
            resting: Mutex::new(ClosedUnits::default()),
            endpoint,
            environment: Arc::new(TargetEnvironment::of(config)),
            workers: WorkerDirectory::new(workers),
            settings,
        }
    }

    /// The settings in force.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.current()
    }

    /// What reloads use.
    pub(crate) fn live_settings(&self) -> &LiveSettings {
        &self.settings
    }

    /// Puts a configuration in force.
    pub(crate) fn replace_settings(
        &self,
        config: Config,
        secrets: &ChapSecrets,
    ) -> Result<ChangedSettings, ConfigError> {
        let changed = self.settings.replace(config, secrets, self.endpoint.has_identity())?;
        self.budget.set_total(MemoryBudget::bytes_of(&self.settings().config.limits));
        Ok(changed)
    }

    /// Puts the peers of the database in force, after it was changed.
    pub(crate) fn replace_database(&self) {
        self.settings.replace_database(|| self.peers.peers());
    }

    /// A node brings the proof of an invitation. When this returns it is a peer, or knows why not.
    pub(crate) fn join_peer(
        &self,
        node: PublicKey,
        proof: &PairingProof,
        binding: &PairingBinding,
        now_s: u64,
    ) -> Result<Joining, PairingRefusal> {
        let joining = self.peers.join(node, proof, binding, &self.settings().rules, now_s)?;
        self.replace_database();
        Ok(joining)
    }

    /// What destroys wrapping keys, if the target was started with that.
    pub(crate) fn key_renewer(&self) -> Option<KeyRenewer> {
        let (renew, open) = (self.keys.renew_wrap.clone()?, self.keys.wraps.clone()?);
        Some(KeyRenewer { renew, open, catalogue: self.catalogue.clone() })
    }

    pub(crate) fn stats(&self) -> Stats {
        self.metrics.stats(self.slots.connections())
    }

    /// Which volumes initiators are sent away from.
    pub(crate) fn drain(&self) -> MutexGuard<'_, Drain> {
        self.operations.drains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What initiators have set on volumes that are closed.
    pub(crate) fn resting(&self) -> MutexGuard<'_, ClosedUnits> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what initiators had set on some volumes that no longer exist. Reads a few descriptions: not for a worker.
    pub(crate) fn forget_resting(&self) {
        let next = self.resting().next_to_check();
        for (name, id) in next {
            if !self.catalogue.load(&name).is_ok_and(|volume| volume.id == id) {
                self.resting().forget(&name, id);
            }
        }
    }

    /// What the port admits.
    pub(crate) fn admission(self: &Arc<Self>) -> Admission {
        let services = Arc::clone(self);
        Admission {
            identity: self.endpoint.identity().cloned(),
            peers: Arc::new(move |key: &PublicKey| services.settings().rules.knows(key)),
            // Whether a plain session may use a certain volume is decided at login, with a reason that the initiator can show. Plain iSCSI
            // leads somewhere if there is a rule for it, or a plain volume, which may name initiators itself.
            allow_plain: !self.settings().config.plain.is_empty() || self.queries.may_have_plain(),
        }
    }

    pub(crate) fn link_options(&self) -> LinkOptions {
        let config = &self.settings().config;
        LinkOptions {
            setup_timeout: config.limits.login_timeout(),
            schemes: config.channel_schemes().expect("a configuration is checked before it holds"),
            suites: config.channel_suites().expect("a configuration is checked before it holds"),
            transfers: ProtocolUse::Admitted,
            operators: ProtocolUse::Admitted,
            pairings: match self.peers.is_inviting(pairing::now_s()) {
                true => ProtocolUse::Admitted,
                false => ProtocolUse::Never,
            },
            ecl: if config.ecl { ProtocolUse::Admitted } else { ProtocolUse::Never },
            counters: Arc::clone(&self.metrics.crypto),
            channel: config.limits.channel(),
            rekey_after: Duration::from_secs(config.limits.rekey_after_s),
            ..LinkOptions::default()
        }
    }

    pub(crate) fn runtime_options(&self) -> RuntimeOptions {
        RuntimeOptions {
            flavour: match self.settings().config.runtime {
                RuntimeKind::Auto => FlavourChoice::Auto,
                RuntimeKind::Epoll => FlavourChoice::Epoll,
                RuntimeKind::IoUring => FlavourChoice::IoUring,
            },
            // The bound on connections is shared by all workers; this one only must not be in its way.
            streams_max: usize::MAX,
            busy_poll: self.settings().config.busy_poll,
            ..RuntimeOptions::default()
        }
    }

    /// Sends a message to a worker. Messages to one that has ended are dropped.
    pub(crate) fn tell(&self, worker: usize, message: Message) {
        self.workers.tell(worker, message);
    }

    pub(crate) fn tell_all(&self, message: impl Fn() -> Message) {
        self.workers.tell_all(message);
    }

    /// The worker that owns a volume.
    pub(crate) fn owner(&self, volume: &VolumeName) -> usize {
        self.workers.owner(volume)
    }
}
