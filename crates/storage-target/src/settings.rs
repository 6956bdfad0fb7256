//! The settings in force: a configuration with the access rules made from it. A reload replaces both together or not at all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::access::{AccessRules, ChapSecrets};
use crate::config::Config;
use crate::error::{ConfigError, ProviderError};

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
        let mut new = Settings::new(config, secrets, has_identity)?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let needs_restart = new.config.keep_constants_of(&current.config);
        let changed = new.config.differences(&current.config);
        *current = Arc::new(new);
        Ok(ChangedSettings { changed, needs_restart })
    }
}
