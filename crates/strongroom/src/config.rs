//! Configuration files: the target's, and the directory of a person's own. Absent: what the settings mean.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use strongroom_target::Config;

/// Reads a configuration.
///
/// # Errors
/// If it is not there or something in it is wrong; the message names the place and says what to write.
pub(crate) fn read(path: &Path) -> Result<Config> {
    let text = fs::read_to_string(path).with_context(|| {
        format!("cannot read the configuration {}; examples/strongroom.toml explains one", path.display())
    })?;
    Config::parse(&text).with_context(|| format!("configuration {}", path.display()))
}

/// Where a person's own settings are: `$XDG_CONFIG_HOME/strongroom` or `~/.config/strongroom`.
pub(crate) fn personal_dir() -> PathBuf {
    let base = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from);
    base.unwrap_or_else(|| home().join(".config")).join("strongroom")
}
