//! `strongroom attach`: a volume as a file or a block device, and if wanted the file system in it, until detached.
//!
//! Without `--foreground` a copy of this program stays behind and serves; this one returns when the volume is there.

mod block_use;
mod front_end;
mod nbd_device;
mod supervisor;

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use strongroom_initiator::front::fuse::FuseOptions;
use strongroom_initiator::front::kernel_nbd;
use strongroom_initiator::front::leftovers::Leftovers;
use strongroom_initiator::front::mount_options::MountOptions;
use strongroom_initiator::front::mounts;
use strongroom_initiator::safety::Memory;
use strongroom_initiator::{RemoteDevice, VolumeUrl};

use super::detach;
use crate::attachment_process::{ServingArgs, VolumeUse};
use crate::attachments::{self, AttachmentState};
use crate::runtime_dir::RuntimeDir;
use crate::stable_name;
use block_use::{BlockUse, FileSystemOptions, MakeFileSystem};
use front_end::FileFrontEnd;
use nbd_device::{NbdAttachment, NbdDeviceFrontEnd, Predecessor};

/// Tells the process in the background where its log is, so that it can remove it at a clean end.
const LOG_VARIABLE: &str = "STRONGROOM_ATTACH_LOG";

/// Attach a volume: as a file that any program can use, and if wanted with the file system on it mounted.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct AttachCommand {
    #[command(subcommand)]
    list: Option<ListCommand>,
    #[command(flatten)]
    args: AttachArgs,
}

#[derive(Subcommand)]
enum ListCommand {
    /// List what is attached, how it is doing, and what is left of attachments that ended badly.
    List(ListArgs),
}

/// `attach list`.
#[derive(Args)]
struct ListArgs {
    /// As JSON, for programs: an array with an object for each.
    #[arg(long)]
    json: bool,
}

/// What `attach` needs to know.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom attach strongroom://storage/vault --key-file ~/vault.key --to /run/vault --mount /mnt/vault --mkfs ext4\n  \
    strongroom attach strongroom://storage/vault --key-file ~/vault.key --to /run/vault --mount /mnt/vault\n  \
    strongroom attach strongroom://storage/vault --key-file ~/vault.key --to /run/vault\n  \
    strongroom attach strongroom://storage/vault --key-file ~/vault.key --nbd --mount /mnt/vault\n  \
    strongroom attach list\n\n\
    End it with: strongroom detach /run/vault")]
pub(crate) struct AttachArgs {
    /// The volume: strongroom://HOST/VOLUME, ecl://HOST/VOLUME (the same by UDP, docs/ecl.md), ecl+tcp://HOST/VOLUME (ECL where UDP is
    /// blocked), or iscsi://HOST/TARGET/LUN for a plain one; HOST can have a :PORT.
    #[arg(required = true)]
    url: Option<VolumeUrl>,
    /// An empty directory, in which the volume appears as a file; made if missing.
    #[arg(long, value_name = "DIR", required_unless_present = "nbd")]
    to: Option<PathBuf>,
    /// Instead of a file, make a block device, /dev/nbdN, by the kernel's NBD client (modprobe nbd). It outlives a crash of the process that
    /// serves it, which is started again in the background. Needs root.
    #[arg(long, conflicts_with_all = ["to", "block_device", "allow_other"])]
    nbd: bool,
    /// Mount the file system in the volume here, from a loop device on the file, or with --nbd from that device; made if missing; needs root.
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// The type of the file system, if it is not recognised.
    #[arg(long, value_name = "TYPE", requires = "mount")]
    fstype: Option<String>,
    /// Make a file system of this type (ext4, xfs, …) before it is mounted. Refused unless the volume is blank.
    #[arg(long, value_name = "TYPE", requires = "mount", conflicts_with_all = ["fstype", "read_only"])]
    mkfs: Option<String>,
    /// The same if the volume is blank; else the file system that is on it is mounted.
    #[arg(long, value_name = "TYPE", requires = "mount", conflicts_with_all = ["fstype", "mkfs", "read_only"])]
    mkfs_if_blank: Option<String>,
    /// Options of that mount, as mount(8) has them, with commas between. Without `dev` and `suid`, devices and set-user-id programs do not count.
    #[arg(long, value_name = "OPTIONS", requires = "mount", default_value = "", hide_default_value = true)]
    mount_options: MountOptions,
    /// Also make a loop device on the file: a block device, for programs that want one. It grows with the volume; needs root.
    #[arg(long, conflicts_with = "mount")]
    block_device: bool,
    /// The volume's name below /dev/strongroom, which leads to the block device or else to the file [default: the name of the volume, if that
    /// is free]. If NAME is not available, nothing is attached.
    #[arg(long, value_name = "NAME", value_parser = stable_name::parse)]
    name: Option<String>,
    /// Let other users open the file, as its permissions allow.
    #[arg(long)]
    allow_other: bool,
    /// Stay in the foreground and log to standard error.
    #[arg(long)]
    foreground: bool,
    #[command(flatten)]
    serving: ServingArgs,
}

/// File systems that several machines have mounted at once.
const CLUSTER_FILE_SYSTEMS: [&str; 3] = ["gfs2", "ocfs2", "lustre"];

impl AttachArgs {
    fn url(&self) -> &VolumeUrl {
        self.url.as_ref().expect("required, but for `attach list`")
    }

    /// Where the file is, if there is one.
    fn to(&self) -> Option<&Path> {
        self.to.as_deref()
    }

    /// The file.
    fn file(&self) -> Option<PathBuf> {
        self.to().map(|to| to.join(self.url().file_name()))
    }

    /// For people at another initiator who want the volume too.
    fn purpose(&self) -> String {
        match (&self.mount, self.to()) {
            (Some(mount), _) => format!("attach, mounted on {}", mount.display()),
            (None, Some(to)) => format!("attach, as a file in {}", to.display()),
            (None, None) => "attach, as an NBD device".to_owned(),
        }
    }

    /// The file system that is wanted.
    fn file_system(&self) -> Option<BlockUse<'_>> {
        let make = match (&self.mkfs, &self.mkfs_if_blank) {
            (Some(name), _) => MakeFileSystem::Always(name),
            (None, Some(name)) => MakeFileSystem::IfBlank(name),
            (None, None) => MakeFileSystem::Never,
        };
        let directory = self.mount.as_deref()?;
        let (file_system, options) = (self.fstype.as_deref(), &self.mount_options);
        Some(BlockUse::FileSystem(FileSystemOptions { directory, make, file_system, options }))
    }

    /// Whether only this machine uses the file system that is mounted.
    fn is_mounted_here(&self) -> bool {
        let is_of_a_cluster = self.fstype.as_deref().is_some_and(|name| CLUSTER_FILE_SYSTEMS.contains(&name));
        self.mount.is_some() && !is_of_a_cluster
    }
}

/// Runs the command.
pub(crate) fn run(command: AttachCommand) -> Result<()> {
    match command.list {
        Some(ListCommand::List(ListArgs { json: true })) => detach::list_as_json(),
        Some(ListCommand::List(ListArgs { json: false })) => detach::list(),
        None if command.args.foreground && supervisor::is_wanted() => supervisor::run(),
        None if command.args.foreground => serve(command.args),
        None => start_in_background(&command.args),
    }
}

fn serve(mut args: AttachArgs) -> Result<()> {
    let predecessor = if args.nbd { find_predecessor(&args)? } else { None };
    match &predecessor {
        Some(predecessor) => args.serving.succeed(predecessor.pid()),
        None => {
            check_name(&args)?;
            make_directories(&args)?;
        }
    }
    let log = std::env::var_os(LOG_VARIABLE).map(PathBuf::from);
    // The kernel writes back to a block device of its own while it is short of memory, as to a file system.
    let is_written_back_to = args.mount.is_some() || args.nbd;
    let memory = if is_written_back_to { Memory::LockedAndSetAside } else { Memory::Locked };
    let (url, is_mounted_here) = (args.url(), args.is_mounted_here());
    let (purpose, name) = (args.purpose(), args.name.as_deref());
    let volume = VolumeUse { url, purpose, is_mounted_here, memory, log: log.clone(), name };
    let losses = if args.nbd {
        args.serving.serve(&volume, |device| show_as_nbd_device(&args, device, predecessor))?
    } else {
        args.serving.serve(&volume, |device| show(&args, device))?
    };
    match losses {
        None => {
            if let Some(log) = log {
                // What went well needs no log any more.
                let _ = fs::remove_file(log);
            }
            Ok(())
        }
        Some(losses) => bail!("detached, but {losses}"),
    }
}

/// A process that had the volume as an NBD device in the same way, and has died.
fn find_predecessor(args: &AttachArgs) -> Result<Option<Predecessor>> {
    kernel_nbd::check()?;
    let predecessor = Predecessor::find(&args.url().route(), args.mount.as_deref())?;
    if predecessor.is_none() && supervisor::must_succeed() {
        bail!("{} was detached meanwhile", args.url());
    }
    Ok(predecessor)
}

/// Checks `--name` before anything is attached. A default name that is taken is no error.
fn check_name(args: &AttachArgs) -> Result<()> {
    let Some(name) = &args.name else { return Ok(()) };
    stable_name::may_make().context("--name")?;
    match attachments::who_has(&stable_name::path_of(name))? {
        Some(why) => bail!(why),
        None => Ok(()),
    }
}

fn make_directories(args: &AttachArgs) -> Result<()> {
    for directory in args.to().into_iter().chain(args.mount.as_deref()) {
        refuse_mounted(directory)?;
        fs::create_dir_all(directory).with_context(|| format!("cannot make the directory {}", directory.display()))?;
    }
    let Some(to) = args.to() else { return Ok(()) };
    let mut inside = fs::read_dir(to).with_context(|| format!("cannot look into {}", to.display()))?;
    if inside.next().is_some() {
        bail!("{} is not empty: it holds files that the volume would hide; choose an empty directory", to.display());
    }
    Ok(())
}

/// A second mount would hide the first one, and what is written to either would be in the way of the other.
fn refuse_mounted(directory: &Path) -> Result<()> {
    let directory = attachments::absolute(&directory.to_string_lossy());
    let shown = directory.display();
    let Some(mount) = mounts::mounts_on(&directory).context("cannot read the table of mounts")?.pop() else {
        return Ok(());
    };
    let attachment =
        attachments::list()?.into_iter().find(|attachment| attachment.is_called(&directory.to_string_lossy()));
    match attachment {
        Some(attachment) if attachment.state() == AttachmentState::Serving => bail!(
            "{} is attached at {shown} already, by process {}; end that first: strongroom detach {shown}",
            attachment.url,
            attachment.pid
        ),
        Some(attachment) => bail!(
            "process {}, which had {} attached at {shown}, has died; remove what it left: strongroom detach {shown}",
            attachment.pid,
            attachment.url
        ),
        None if Leftovers::directory_of(&directory)?.is_some() => {
            bail!(
                "an attachment is mounted on {shown} that another user made or whose process has died; end it: strongroom detach {shown}"
            )
        }
        None => {
            bail!("{shown} is in use: {} is mounted there; choose another directory, or unmount it", mount.file_system)
        }
    }
}

/// Shows the device as a file, and mounts what is on it if that is wanted.
fn show(args: &AttachArgs, device: Arc<RemoteDevice>) -> Result<FileFrontEnd> {
    let mut options = FuseOptions::new(args.url().file_name());
    options.read_only = args.serving.is_read_only(args.url());
    options.allow_other = args.allow_other;
    let block_use = args.file_system().or(args.block_device.then_some(BlockUse::Device));
    let directory = args.to().expect("required without --nbd");
    FileFrontEnd::start(device, directory, &options, block_use.as_ref())
}

/// Shows the device as one of the kernel's NBD client, and mounts what is on it if that is wanted.
fn show_as_nbd_device(
    args: &AttachArgs,
    device: Arc<RemoteDevice>,
    predecessor: Option<Predecessor>,
) -> Result<NbdDeviceFrontEnd> {
    let attachment = NbdAttachment {
        volume: args.url().route(),
        export_name: args.url().file_name(),
        read_only: args.serving.is_read_only(args.url()),
        block_use: args.file_system().unwrap_or(BlockUse::Device),
    };
    NbdDeviceFrontEnd::start(device, &attachment, predecessor)
}

/// Starts a copy of this program that stays, and waits until the volume is there.
fn start_in_background(args: &AttachArgs) -> Result<()> {
    if args.nbd {
        kernel_nbd::check()?;
    }
    let directory = RuntimeDir::open()?;
    let log_name = format!("{}-{}.log", args.url().file_name(), std::process::id());
    let log_path = directory.path_of(&log_name);
    let socket_path = directory.path_of(&format!("{}.notify", std::process::id()));
    let _ = fs::remove_file(&socket_path);
    let socket = UnixDatagram::bind(&socket_path).context("cannot make a notification socket")?;
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut log = directory.create(&log_name)?;
    // What goes wrong could not be told in a log that has no room.
    let has_room = writeln!(log, "attaching {}", args.url());
    has_room.with_context(|| format!("cannot write {}; make room there", log_path.display()))?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(std::env::args_os().skip(1))
        .arg("--foreground")
        .env("NOTIFY_SOCKET", &socket_path)
        .env(LOG_VARIABLE, &log_path)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0);
    if args.nbd {
        command.env(supervisor::VARIABLE, "1");
    }
    let mut child = command.spawn().context("cannot start the serving process")?;
    if let Err(error) = attachments::prune_logs(&directory) {
        tracing::debug!(error = format!("{error:#}"), "old logs stay");
    }
    let outcome = wait_until_ready(&socket, &mut child);
    let _ = fs::remove_file(&socket_path);
    if !outcome? {
        let log = fs::read_to_string(&log_path).unwrap_or_default();
        // The copy has said what is wrong in its last line; the same words serve here.
        let reason = log.lines().rev().find_map(|line| line.strip_prefix("strongroom: ")).unwrap_or(log.trim());
        bail!("{reason}\nits log is {}", log_path.display());
    }
    say_where(args, &child, &log_path)
}

/// Whether the copy says that the volume is there, before it ends.
fn wait_until_ready(socket: &UnixDatagram, child: &mut Child) -> Result<bool> {
    loop {
        let mut message = [0; 4096];
        if let Ok(len) = socket.recv(&mut message) {
            if message.starts_with(b"READY=1") {
                return Ok(true);
            }
            if let Some(status) = message[..len].strip_prefix(b"STATUS=") {
                eprintln!("{}", String::from_utf8_lossy(status));
            }
        }
        if child.try_wait()?.is_some() {
            return Ok(false);
        }
    }
}

/// Says where the volume is, and who has it. An NBD device is served by a child of the process that was started.
fn say_where(args: &AttachArgs, child: &Child, log: &Path) -> Result<()> {
    let attached = attachments::list()?.into_iter().find(|attachment| attachment.log.as_deref() == Some(log));
    let device = attached.as_ref().and_then(|attachment| attachment.device.clone());
    for path in args.file().or(device).iter().chain(&args.mount) {
        println!("{}", path.display());
    }
    let pid = attached.as_ref().map_or_else(|| child.id(), |attachment| attachment.pid);
    if let Some(name) = attached.and_then(|attachment| attachment.stable_name) {
        eprintln!("its name is {}", name.path().display());
    }
    eprintln!("attached by process {pid}; its log is {}", log.display());
    Ok(())
}
