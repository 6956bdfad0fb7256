//! Which target a command on the storage host means: its configuration, or its directory of volumes.
//!
//! Absent: what is done with it.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use strongroom_target::admin::default_socket;
use strongroom_target::{Catalogue, Config};

use crate::config;

/// Where a target's configuration is unless told otherwise.
pub(crate) const DEFAULT_CONFIG: &str = "/etc/strongroom/strongroom.toml";

/// Which target: its directory of volumes, or its configuration.
#[derive(Args)]
pub(crate) struct RootArgs {
    /// The directory with the target's volumes.
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    root: Option<PathBuf>,
    /// The target's configuration, which names that directory.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
}

impl RootArgs {
    /// The directory with the volumes.
    pub(crate) fn root(&self) -> Result<PathBuf> {
        match self.configuration()? {
            Some(config) => Ok(config.root),
            None => Ok(self.root.clone().expect("without it there is a configuration, or an error")),
        }
    }

    /// The path of the configuration, whether it exists or not.
    pub(crate) fn config_file(&self) -> &Path {
        &self.config
    }

    /// The configuration, unless the directory itself was named.
    pub(crate) fn configuration(&self) -> Result<Option<Config>> {
        if self.root.is_some() {
            return Ok(None);
        }
        if !self.config.exists() {
            bail!(
                "there is no configuration {}; say which directory holds the volumes with --root DIR, or which \
                 configuration with --config FILE",
                self.config.display()
            );
        }
        Ok(Some(config::read(&self.config)?))
    }

    /// Where wrapping keys are made: beside the configuration, else among a person's own settings.
    pub(crate) fn wrapping_keys(&self) -> PathBuf {
        let beside = self.config.parent().filter(|_| self.root.is_none() && self.config.exists());
        beside.map_or_else(config::personal_dir, Path::to_owned).join("wrapping-keys")
    }

    /// The catalogue of its volumes.
    pub(crate) fn open(&self) -> Result<Catalogue> {
        Ok(Catalogue::open(self.root()?)?)
    }

    /// Where the admin socket of this target is.
    pub(crate) fn admin_socket(&self) -> Result<PathBuf> {
        match self.configuration()? {
            Some(config) => Ok(config.admin_socket.unwrap_or_else(|| default_socket(&config.root))),
            None => Ok(default_socket(&self.root()?)),
        }
    }
}
