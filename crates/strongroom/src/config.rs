//! The target's configuration file, and what the command line changes in it. Absent: what the settings mean.

use std::fs;
use std::path::Path;

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
