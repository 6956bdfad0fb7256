//! A volume that the product attaches as a person would do it, as a file in FUSE, if wanted with ext4 on it mounted, or at an NBD socket, until
//! dropped.
//!
//! Absent: the target and its volumes (`Ours`), and what uses the file or the file system.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};
use strongroom_initiator::VolumeUrl;

use crate::engine::AttachSettings;
use crate::ours::FURTHER_BLOCK_BYTES;
use crate::process::Product;
use crate::programs::{is_installed, program, run};
use crate::{Background, BenchError};

/// How long an attachment may take to be there.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether volumes can be attached here; with a file system on them if `mounts`. `what` needs it.
///
/// # Errors
/// [`BenchError::Asked`], with what is missing and how to get it.
pub(crate) fn check(what: &str, mounts: bool) -> Result<(), BenchError> {
    let asked = |text: String| Err(BenchError::Asked(text));
    if mounts && !is_installed("mkfs.ext4") {
        return asked("there is no mkfs.ext4; install it with scripts/deps.sh (Debian: e2fsprogs)".into());
    }
    if !rustix::process::geteuid().is_root() {
        return asked(format!("{what} attaches volumes and mounts file systems, which takes root"));
    }
    if !Path::new("/dev/fuse").exists() {
        return asked(
            "there is no /dev/fuse, so nothing can be attached here; load the kernel's fuse module (modprobe fuse)"
                .into(),
        );
    }
    Ok(())
}

/// What to attach, by which program, and how.
#[derive(Clone, Debug)]
pub(crate) struct AttachmentOptions {
    /// The product that attaches.
    pub(crate) product: Product,
    /// The volume, and the keys to it.
    pub(crate) settings: AttachSettings,
    /// Further arguments of `attach`.
    pub(crate) arguments: Vec<String>,
    /// Its own directory, for the file, the mount, the log, and what the product remembers; must exist.
    pub(crate) directory: PathBuf,
    /// Processors to run on; anywhere, if there are none.
    pub(crate) cpus: Vec<usize>,
}

/// How an attachment is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `attach`.
    File,
    /// `attach --mount`.
    Mounted,
    /// `nbd serve`.
    Nbd,
}

/// An attached volume. Fields in the order in which they have to go.
#[derive(Debug)]
pub(crate) struct Attachment {
    process: Background,
    _mount_points: [MountPoint; 2],
    path: PathBuf,
    options: AttachmentOptions,
}

/// A directory on which nothing may stay mounted.
#[derive(Debug)]
struct MountPoint(PathBuf);

impl Drop for MountPoint {
    fn drop(&mut self) {
        // Nothing mounted is the usual case, and an error that says so.
        while unmount(&self.0, UnmountFlags::empty()).is_ok() || unmount(&self.0, UnmountFlags::DETACH).is_ok() {}
    }
}

impl Attachment {
    /// Formats the volume, and attaches it as a file.
    ///
    /// # Errors
    /// If any of it fails, with what was said.
    pub(crate) fn file(options: AttachmentOptions) -> Result<Attachment, BenchError> {
        options.format()?;
        Attachment::start(options, Form::File)
    }

    /// Formats the volume, and serves it by NBD at a Unix socket.
    ///
    /// # Errors
    /// If any of it fails, with what was said.
    pub(crate) fn nbd(options: AttachmentOptions) -> Result<Attachment, BenchError> {
        options.format()?;
        Attachment::start(options, Form::Nbd)
    }

    /// Formats the volume, makes ext4 on it, and mounts that. The volume has blocks of [`FURTHER_BLOCK_BYTES`], as ext4 then has.
    ///
    /// # Errors
    /// If any of it fails, with what was said.
    pub(crate) fn ext4(options: AttachmentOptions) -> Result<Attachment, BenchError> {
        options.format()?;
        let attached = Attachment::start(options, Form::File)?;
        let mut make = program("mkfs.ext4", &[]);
        // Nothing is left for the kernel to initialise while we measure.
        make.args(["-q", "-b", &FURTHER_BLOCK_BYTES.to_string(), "-E", "lazy_itable_init=0,lazy_journal_init=0"]);
        make.arg(&attached.path);
        run(make)?;
        let options = attached.options.clone();
        drop(attached);
        Attachment::start(options, Form::Mounted)
    }

    fn start(options: AttachmentOptions, form: Form) -> Result<Attachment, BenchError> {
        let name = options.settings.url.parse::<VolumeUrl>().map_err(|error| BenchError::Asked(error.to_string()))?;
        let (file_at, mounted_at) = (options.directory.join("attached"), options.directory.join("mounted"));
        let mount_points = [MountPoint(mounted_at.clone()), MountPoint(file_at.clone())];
        let socket = options.directory.join("nbd.sock");
        let mut command = options.command(if form == Form::Nbd { &["nbd", "serve"] } else { &["attach"] });
        match form {
            Form::Nbd => command.arg("--socket").arg(&socket),
            Form::File | Form::Mounted => command.args(["--foreground", "--to"]).arg(&file_at),
        };
        if form == Form::Mounted {
            command.arg("--mount").arg(&mounted_at);
        }
        if options.settings.connections > 1 {
            command.args(["--connections", &options.settings.connections.to_string()]);
        }
        if let Some(busy_poll) = &options.settings.busy_poll {
            command.args(["--busy-poll", busy_poll]);
        }
        command.args(&options.arguments);
        let mut process = Background::start("attach", command, &options.cpus, &options.directory)?;
        process.wait_until(READY_TIMEOUT, |_| {
            let is_there = match form {
                Form::File => is_mounted(&file_at),
                Form::Mounted => is_mounted(&mounted_at),
                Form::Nbd => UnixStream::connect(&socket).is_ok(),
            };
            is_there.then_some(())
        })?;
        let path = if form == Form::Nbd { socket } else { file_at.join(name.file_name()) };
        Ok(Attachment { process, _mount_points: mount_points, path, options })
    }

    /// The volume as a file, or the socket of its NBD server.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where its file system is mounted, if it is.
    pub(crate) fn mounted_path(&self) -> PathBuf {
        self.options.directory.join("mounted")
    }

    /// Its directory, for logs.
    pub(crate) fn directory(&self) -> &Path {
        &self.options.directory
    }

    /// Its processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.process.pids()
    }

    /// An error of the process that attaches, if that has ended.
    pub(crate) fn check_alive(&mut self) -> Result<(), BenchError> {
        if self.process.has_ended() { Err(self.process.problem("the attachment has ended")) } else { Ok(()) }
    }

    /// Writes back what the kernel keeps of the file system.
    ///
    /// # Errors
    /// What `sync` says.
    pub(crate) fn sync(&self) -> Result<(), BenchError> {
        let mut sync = program("sync", &[]);
        sync.arg("-f").arg(self.mounted_path());
        run(sync).map(drop)
    }
}

impl AttachmentOptions {
    /// A command of the product for this volume.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.product.command(None);
        command.args(["--log", "warn"]).args(arguments).arg(&self.settings.url);
        // What it remembers of volumes and attachments is forgotten with this directory.
        for variable in ["HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"] {
            command.env(variable, &self.directory);
        }
        add_access(&mut command, &self.settings);
        command
    }

    fn format(&self) -> Result<(), BenchError> {
        if self.settings.sealing.key_file.is_none() {
            return Ok(());
        }
        let mut format = self.command(&["volume", "format"]);
        // A volume of this name may have been made with the same key file before.
        format.args(["--yes", "--forget-volume"]);
        run(format).map(drop)
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
