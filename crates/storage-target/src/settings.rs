//! The settings in force: a configuration with the access rules made from it. A reload replaces both together or not at all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::access::{AccessRules, ChapSecrets};
use crate::config::Config;
use crate::error::{ConfigError, ProviderError};
use crate::pairing::PairedPeer;

/// Reads the configuration again, and the secrets that it names, for a reload.
pub type ConfigReader = Arc<dyn Fn() -> Result<(Config, ChapSecrets), ProviderError> + Send + Sync>;

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) config: Config,
    pub(crate) rules: AccessRules,
}

impl Settings {
    /// Checks all of a configuration.
    pub(crate) fn new(config: Config, secrets: &ChapSecrets, has_identity: bool) -> Result<Settings, ConfigError> {
        config.check()?;
        let rules = AccessRules::new(&config, secrets)?;
        if !has_identity && !config.peers.is_empty() {
            let problem = "is needed to serve the [[peer]]s; make one with `strongroom identity new` and name its file";
            return Err(ConfigError::value("node_key", problem));
        }
        Ok(Settings { config, rules })
    }

    /// The same with these peers of the database. Tells the log which of them the configuration overrides.
    pub(crate) fn with_database(self, database: Arc<[PairedPeer]>) -> Settings {
        let rules = self.rules.with_database(database);
        for peer in rules.database().iter().filter(|peer| rules.overrides(peer)) {
            tracing::warn!(
                name = %peer.name,
                "the configuration has a peer of this name or key, too, and that one counts; end the other with: strongroom peer remove {}",
                peer.name
            );
        }
        Settings { config: self.config, rules }
    }
}

/// The settings in force, and what a reload reads. Workers hold a handle on the settings, so that they do not lock for each login.
pub(crate) struct LiveSettings {
    current: RwLock<Arc<Settings>>,
    reader: Option<ConfigReader>,
    reloading: Mutex<()>,
}

/// What a reload changed: names of settings.
pub(crate) struct ChangedSettings {
    pub(crate) changed: Vec<String>,
    /// They differ in the file, and hold only after a restart.
    pub(crate) needs_restart: Vec<String>,
}

impl LiveSettings {
    /// `reader`: without it there are no reloads.
    pub(crate) fn new(settings: Settings, reader: Option<ConfigReader>) -> LiveSettings {
        LiveSettings { current: RwLock::new(Arc::new(settings)), reader, reloading: Mutex::new(()) }
    }

    pub(crate) fn current(&self) -> Arc<Settings> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What reads the configuration again; the guard admits one reload at a time, so that the later of two reads what is newest.
    pub(crate) fn reader(&self) -> Option<(&ConfigReader, MutexGuard<'_, ()>)> {
        let reader = self.reader.as_ref()?;
        Some((reader, self.reloading.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Puts a configuration in force, once all of it was found to be valid. What cannot change while the target runs keeps its value.
    pub(crate) fn replace(
        &self,
        config: Config,
        secrets: &ChapSecrets,
        has_identity: bool,
    ) -> Result<ChangedSettings, ConfigError> {
        let new = Settings::new(config, secrets, has_identity)?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let mut new = new.with_database(Arc::clone(current.rules.database()));
        let needs_restart = new.config.keep_constants_of(&current.config);
        let changed = new.config.differences(&current.config);
        *current = Arc::new(new);
        Ok(ChangedSettings { changed, needs_restart })
    }

    /// Puts the peers of the database in force. They are read in here: of two who do this, the later one reads what is newest.
    pub(crate) fn replace_database(&self, read: impl FnOnce() -> Arc<[PairedPeer]>) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let rules = current.rules.clone().with_database(read());
        *current = Arc::new(Settings { config: current.config.clone(), rules });
    }
}
