//! Builds of a program that an experiment compares as releases: what `--program` takes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use clap::Args;
use strongroom_lab::Machine;

/// A build of a program, and what results call it.
#[derive(Clone, Debug)]
pub(super) struct ReleaseProgram {
    /// Its file's name, unless another one was given.
    name: String,
    is_named: bool,
    path: PathBuf,
}

/// Builds of this program that are compared.
#[derive(Args, Debug)]
pub(super) struct LabProgramArgs {
    /// A build of strongroom-lab whose targets and initiators are measured: PATH, or NAME=PATH to name it in results. Several are releases that are
    /// compared, the last one is judged [default: this program].
    #[arg(long = "program", value_name = "[NAME=]PATH")]
    programs: Vec<ReleaseProgram>,
}

impl FromStr for ReleaseProgram {
    type Err = String;

    fn from_str(text: &str) -> Result<ReleaseProgram, String> {
        let named = text.split_once('=').filter(|(name, _)| !name.contains('/'));
        let path = Path::new(named.map_or(text, |(_, path)| path));
        let file_name = || path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = named.map_or_else(file_name, |(name, _)| name.to_owned());
        if name.is_empty() || name.contains(' ') {
            return Err(format!("'{text}' has no name for results; write NAME=PATH"));
        }
        let path = path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(ReleaseProgram { name, is_named: named.is_some(), path })
    }
}

/// Names and programs; the name of only one is empty, unless it was given.
///
/// # Errors
/// If two have one name.
pub(super) fn named(programs: &[ReleaseProgram]) -> Result<Vec<(String, PathBuf)>> {
    let names: BTreeSet<&str> = programs.iter().map(|release| release.name.as_str()).collect();
    if names.len() < programs.len() {
        bail!("two programs have one name; tell them apart with --program NAME=PATH");
    }
    let has_names = programs.len() > 1;
    let release = |release: &ReleaseProgram| {
        let name = if has_names || release.is_named { release.name.clone() } else { String::new() };
        (name, release.path.clone())
    };
    Ok(programs.iter().map(release).collect())
}

/// Adds what each says of its version.
///
/// # Errors
/// If one cannot be run.
pub(super) fn add_versions(programs: &[ReleaseProgram], machine: &mut Machine) -> Result<()> {
    for ReleaseProgram { name, path, .. } in programs {
        let said = std::process::Command::new(path).arg("--version").output();
        let said = said.with_context(|| format!("cannot run {}", path.display()))?;
        machine.programs.push(format!("{name}: {}", String::from_utf8_lossy(&said.stdout).trim()));
    }
    Ok(())
}

impl LabProgramArgs {
    /// Whether any was given.
    pub(super) fn is_given(&self) -> bool {
        !self.programs.is_empty()
    }

    /// Names and programs, in the order in which they were given; this program if none was.
    ///
    /// # Errors
    /// If two have one name.
    pub(super) fn releases(&self) -> Result<Vec<(String, PathBuf)>> {
        if self.programs.is_empty() {
            let own = std::env::current_exe().context("cannot find this program's own file")?;
            return Ok(vec![(String::new(), own)]);
        }
        named(&self.programs)
    }

    /// This machine, with what each program says of its version.
    ///
    /// # Errors
    /// If one cannot be run.
    pub(super) fn machine(&self) -> Result<Machine> {
        let mut machine = Machine::look();
        add_versions(&self.programs, &mut machine)?;
        Ok(machine)
    }
}
