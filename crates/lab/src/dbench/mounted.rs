//! A volume of ours with ext4 on it, attached and mounted as a person would do it, until dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};

use crate::cpu::Placement;
use crate::engine::AttachSettings;
use crate::process::PRODUCT;
use crate::programs::{program, run};
use crate::{Background, BenchError, Contender, Identity, Ours};

/// How long an attachment may take to be there.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a block of the volume and of the file system: ext4 then never writes part of one.
pub const BLOCK_BYTES: u64 = 4096;

/// A mounted volume. Fields in the order in which they have to go.
#[derive(Debug)]
pub struct Mounted {
    attachment: Background,
    _mount_points: [MountPoint; 2],
    directory: PathBuf,
    ours: Ours,
}

/// A place that must be free again.
#[derive(Debug)]
struct MountPoint(PathBuf);

impl Drop for MountPoint {
    fn drop(&mut self) {
        // Nothing mounted is the usual case, and an error that says so.
        while unmount(&self.0, UnmountFlags::empty()).is_ok() || unmount(&self.0, UnmountFlags::DETACH).is_ok() {}
    }
}

impl Mounted {
    /// Formats the volume of `ours` with blocks of 4 KiB, makes ext4 on it and mounts it. Works in `directory`.
    ///
    /// # Errors
    /// If any of it fails, with what was said.
    pub fn start(
        lab_binary: &Path,
        directory: &Path,
        placement: &Placement,
        ours: Ours,
    ) -> Result<Mounted, BenchError> {
        let settings = ours.attach_settings(BLOCK_BYTES);
        let ours_again = |arguments: &[&str]| {
            let mut command = Command::new(lab_binary);
            command.args([PRODUCT, "--log", "warn"]).args(arguments).arg(&settings.url);
            // What it remembers of volumes and attachments is forgotten with this directory.
            command.env("HOME", directory).env("XDG_CONFIG_HOME", directory).env("XDG_RUNTIME_DIR", directory);
            add_access(&mut command, &settings);
            command
        };
        if settings.sealing.key_file.is_some() {
            let mut format = ours_again(&["volume", "format"]);
            // A volume of this name may have been made with the same key file before.
            format.args(["--yes", "--forget-volume"]);
            run(format)?;
        }
        let (file_at, mounted_at) = (directory.join("attached"), directory.join("mounted"));
        let mount_points = [MountPoint(mounted_at.clone()), MountPoint(file_at.clone())];
        let attach = |mount: bool| {
            let mut command = ours_again(&["attach"]);
            command.args(["--foreground", "--to"]).arg(&file_at);
            if mount {
                command.arg("--mount").arg(&mounted_at);
            }
            let mut process = Background::start("attach", command, &placement.initiators, directory)?;
            let wanted = if mount { &mounted_at } else { &file_at };
            process.wait_until(READY_TIMEOUT, |_| is_mounted(wanted).then_some(()))?;
            Ok::<Background, BenchError>(process)
        };
        let attachment = attach(false)?;
        let name = settings
            .url
            .parse::<strongroom_initiator::VolumeUrl>()
            .map_err(|error| BenchError::Asked(error.to_string()))?;
        let mut make = program("mkfs.ext4", &[]);
        // Nothing is left for the kernel to initialise while we measure.
        make.args(["-q", "-b", &BLOCK_BYTES.to_string(), "-E", "lazy_itable_init=0,lazy_journal_init=0"]);
        make.arg(file_at.join(name.file_name()));
        run(make)?;
        drop(attachment);
        let attachment = attach(true)?;
        Ok(Mounted { attachment, _mount_points: mount_points, directory: directory.to_owned(), ours })
    }

    pub(super) fn identity(&self) -> &Identity {
        self.ours.identity()
    }

    /// What its blocks are sealed with.
    pub(super) fn suite(&self) -> &'static str {
        if self.ours.attach_settings(BLOCK_BYTES).sealing.key_file.is_some() { "aes-256-gcm" } else { "none" }
    }

    pub(super) fn target_pids(&self) -> Vec<u32> {
        self.ours.target_pids()
    }

    /// The attachment's; dbench itself is the application, not the initiator.
    pub(super) fn initiator_pids(&self) -> Vec<u32> {
        self.attachment.pids()
    }

    pub(super) fn log_directory(&self) -> &Path {
        &self.directory
    }

    /// An empty directory in the file system, and nothing left to be written from before.
    pub(super) fn fresh_directory(&self) -> Result<PathBuf, BenchError> {
        let mounted = self.directory.join("mounted");
        let path = mounted.join("dbench");
        let failed = |error| BenchError::file(&path, error);
        if path.exists() {
            fs::remove_dir_all(&path).map_err(failed)?;
        }
        fs::create_dir(&path).map_err(failed)?;
        let mut sync = program("sync", &[]);
        sync.arg("-f").arg(&mounted);
        run(sync)?;
        Ok(path)
    }
}

fn add_access(command: &mut Command, settings: &AttachSettings) {
    for (flag, path) in [("--identity", &settings.channel.identity), ("--key-file", &settings.sealing.key_file)] {
        if let Some(path) = path {
            command.arg(flag).arg(path);
        }
    }
    for key in &settings.channel.target_keys {
        command.arg("--target-key").arg(key);
    }
    if let Some(scheme) = &settings.channel.scheme {
        command.args(["--scheme", scheme]);
    }
    if settings.sealing.authenticate_only {
        command.arg("--authenticate-only");
    }
}

fn is_mounted(path: &Path) -> bool {
    let path = path.display().to_string();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(path.as_str()))
}
