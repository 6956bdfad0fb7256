//! A volume attached for the demo: as a file, and mounted. Absent: what is done with it (the acts).

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;

use super::act_keys::{Cast, Initiator, VAULT, utf8};
use super::files::Checksum;
use super::stage::{Background, MountGuard, Stage};

/// Files with their checksums, by path on the volume.
pub(super) type Checksums = BTreeMap<PathBuf, Checksum>;

/// Attaches a volume as a file; its file system too if `mount` is wanted.
pub(super) fn attach(stage: &Stage, cast: &Cast, who: &Initiator, mount: bool, more: &[&str]) -> Result<Attached> {
    let directory = stage.make_dir(&format!("{}/attached", who.name))?;
    let mounted = stage.make_dir(&format!("{}/mounted", who.name))?;
    let url = cast.url(VAULT);
    let mut arguments = vec!["attach", url.as_str(), "--foreground", "--to", utf8(&directory)?];
    if mount {
        arguments.extend(["--mount", utf8(&mounted)?]);
    }
    arguments.extend(more);
    let guards = [MountGuard(mounted.clone()), MountGuard(directory.clone())];
    let process = stage.start(&format!("{}.attach", who.name), cast.command(stage, who, &arguments)?)?;
    Ok(Attached { file: directory.join(VAULT), mounted, process, _guards: guards })
}

/// An attached volume. Dropped, it is detached, and unmounted by force if that did not do.
pub(super) struct Attached {
    /// The volume as a file.
    pub(super) file: PathBuf,
    /// Its file system.
    pub(super) mounted: PathBuf,
    /// The process that serves it. Before the guards: it is to end first.
    pub(super) process: Background,
    _guards: [MountGuard; 2],
}

impl Attached {
    /// Detaches cleanly.
    pub(super) fn detach(self) -> Result<()> {
        self.process.stop()
    }
}
