//! `strongroom attach`: a volume as a file, and if wanted the file system in it, until detached.
//!
//! Without `--foreground` a copy of this program stays behind and serves; this one returns when the volume is there.

mod front_end;

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use rustix::process::{Signal, getpid, kill_process};
use strongroom_initiator::front::fuse::FuseOptions;
use strongroom_initiator::front::leftovers::Leftovers;
use strongroom_initiator::front::mounts;
use strongroom_initiator::safety::{self, Memory};
use strongroom_initiator::{KeyStatus, RemoteDevice, VolumeUrl};
use strongroom_metrics::MetricsAddress;

use super::detach;
use crate::access::AccessArgs;
use crate::attachments::{self, AttachmentState, Health, Registration};
use crate::memory;
use crate::metrics::{self, attachment::AttachmentSource};
use crate::runtime_dir::RuntimeDir;
use crate::sd_notify;
use crate::signals::{ForceSignal, StopSignals, Waited};
use crate::stats_file::{AttachmentStatsFile, packets_in_words};
use crate::writer::WriterArgs;
use front_end::{FileFrontEnd, FileSystemOptions};

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
    List,
}

/// What `attach` needs to know.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom attach strongroom://storage/vault --key-file ~/vault.key --to /run/vault --mount /mnt/vault --mkfs ext4\n  \
    strongroom attach strongroom://storage/vault --key-file ~/vault.key --to /run/vault --mount /mnt/vault\n  \
    strongroom attach strongroom://storage/vault --key-file ~/vault.key --to /run/vault\n  \
    strongroom attach list\n\n\
    End it with: strongroom detach /run/vault")]
pub(crate) struct AttachArgs {
    /// The volume: strongroom://HOST/VOLUME, ecl://HOST/VOLUME (the same by UDP, docs/ecl.md), ecl+tcp://HOST/VOLUME (ECL where UDP is
    /// blocked), or iscsi://HOST/TARGET/LUN for a plain one; HOST can have a :PORT.
    #[arg(required = true)]
    url: Option<VolumeUrl>,
    /// An empty directory, in which the volume appears as a file; made if missing.
    #[arg(long, value_name = "DIR", required = true)]
    to: Option<PathBuf>,
    /// Also make a loop device and mount the file system in the volume here; made if missing; needs root.
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// The type of the file system, if it is not recognised.
    #[arg(long, value_name = "TYPE", requires = "mount")]
    fstype: Option<String>,
    /// Make a file system of this type (ext4, xfs, …) before it is mounted. Refused unless the volume is blank.
    #[arg(long, value_name = "TYPE", requires = "mount", conflicts_with_all = ["fstype", "read_only"])]
    mkfs: Option<String>,
    /// Nobody may write. A snapshot is always so; of a file system that was in use when it was taken, what was written last may be missing
    /// (clone the snapshot to mount all of it).
    #[arg(long)]
    read_only: bool,
    /// Fetch blocks ahead of sequential reads. What another initiator writes meanwhile is not seen, so `auto` does it for a snapshot, and
    /// for a file system that is mounted with --mount, unless it is one for clusters.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    readahead: ReadaheadArg,
    /// Let other users open the file, as its permissions allow.
    #[arg(long)]
    allow_other: bool,
    /// Write counters (connection, cryptography, keys changed, damaged blocks) to this file as JSON, every second.
    #[arg(long, value_name = "FILE")]
    stats_file: Option<PathBuf>,
    /// Where to answer collectors of metrics: an address of the loopback (127.0.0.1:9465), or a socket (unix:/run/vault-metrics.sock).
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<MetricsAddress>,
    /// Stay in the foreground and log to standard error.
    #[arg(long)]
    foreground: bool,
    /// Do not lock this process's memory: keys and data may then reach the swap, and a file system on the volume can hang when memory
    /// runs out. (Where it is locked, --mount sets 160 MiB aside for that file system.)
    #[arg(long)]
    no_memory_lock: bool,
    #[command(flatten)]
    writer: WriterArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// When blocks are fetched ahead.
#[derive(Clone, Copy, ValueEnum)]
enum ReadaheadArg {
    /// Where nobody else can write.
    Auto,
    /// Nobody else writes.
    On,
    /// Never.
    Off,
}

/// File systems that several machines have mounted at once.
const CLUSTER_FILE_SYSTEMS: [&str; 3] = ["gfs2", "ocfs2", "lustre"];

impl AttachArgs {
    fn url(&self) -> &VolumeUrl {
        self.url.as_ref().expect("required, but for `attach list`")
    }

    fn to(&self) -> &Path {
        self.to.as_deref().expect("required, but for `attach list`")
    }

    /// For people at another initiator who want the volume too.
    fn purpose(&self) -> String {
        match &self.mount {
            Some(mount) => format!("attach, mounted on {}", mount.display()),
            None => format!("attach, as a file in {}", self.to().display()),
        }
    }

    fn fetches_ahead(&self) -> bool {
        let is_of_a_cluster = self.fstype.as_deref().is_some_and(|name| CLUSTER_FILE_SYSTEMS.contains(&name));
        match self.readahead {
            ReadaheadArg::On => true,
            ReadaheadArg::Off => false,
            ReadaheadArg::Auto => self.url().is_snapshot() || (self.mount.is_some() && !is_of_a_cluster),
        }
    }
}

/// Runs the command.
pub(crate) fn run(command: AttachCommand) -> Result<()> {
    let AttachCommand { list: None, args } = command else { return detach::list() };
    if args.foreground { serve(args) } else { start_in_background(&args) }
}

/// How often the state that `attach list` shows is updated.
const NOTE_HEALTH_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked whether a device has been given up, and how many times at most.
const ABANDON_LOOK_EVERY: Duration = Duration::from_millis(10);
const ABANDON_LOOKS_MAX: u32 = 500;
/// How long it waits for a target that is there to make everything durable.
const FORCED_FLUSH_PATIENCE: Duration = Duration::from_secs(5);

/// What is attached: a device, and what programs see of it.
struct Attached {
    front_end: FileFrontEnd,
    device: Arc<RemoteDevice>,
    read_only: bool,
}

impl AttachArgs {
    fn memory(&self) -> Memory {
        match (self.no_memory_lock, &self.mount) {
            (true, _) => Memory::Unlocked,
            (false, None) => Memory::Locked,
            (false, Some(_)) => Memory::LockedAndSetAside,
        }
    }
}

fn serve(args: AttachArgs) -> Result<()> {
    // Before any thread exists: they inherit all of it.
    let signals = StopSignals::block().context("cannot wait for signals")?;
    let force = ForceSignal::block().context("cannot wait for signals")?;
    let memory = args.memory();
    if memory == Memory::LockedAndSetAside {
        memory::keep_what_is_freed();
    }
    safety::prepare_process(memory);
    make_directories(&args)?;
    args.access.forget_if_asked(args.url())?;
    let mut options = args.access.options(args.url())?;
    options.read_only = args.read_only;
    options.readahead = args.fetches_ahead();
    options.lease = args.writer.options(&args.purpose());
    let counters = options.counters.clone();
    let device = args.access.attach_for_use(options, args.writer.way_out())?;
    let source = AttachmentSource::new(args.url(), &device, counters.clone());
    let stats = args.stats_file.clone().map(|path| AttachmentStatsFile::start(path, &device, counters)).transpose()?;
    let detach = |_: &anyhow::Error| {
        // Ends the session, and with it the lease: the next attachment would wait for that.
        let _ = device.detach();
    };
    let collected = metrics::start(args.metrics.as_ref(), move || source.exposition()).inspect_err(detach)?;
    let forced = end_when_forced(force, &device)?;
    let attached = show(&args, device.clone()).inspect_err(detach)?;
    if !args.url().is_snapshot() {
        attached.follow_growth()?;
    }
    let directory = attached.front_end.directory().to_owned();
    let mount = args.mount.as_ref().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone()));
    let log = std::env::var_os(LOG_VARIABLE).map(PathBuf::from);
    let mut registration = Registration::new(args.url().route(), &directory, mount.as_deref(), log.clone())?;
    registration.note(attached.health());
    tracing::info!(url = %args.url(), file = %attached.front_end.file_path().display(), "attached");
    sd_notify::notify("READY=1");
    let ended = wait_and_detach(attached, &signals, &forced, &mut registration);
    drop((stats, collected));
    let losses = match ended {
        Ok(None) => {
            if let Some(log) = log {
                // What went well needs no log any more.
                let _ = fs::remove_file(log);
            }
            return Ok(());
        }
        Ok(Some(losses)) => losses,
        Err(error) => format!("{error:#}"),
    };
    registration.end(Some(losses.clone()))?;
    bail!("detached, but {losses}");
}

fn make_directories(args: &AttachArgs) -> Result<()> {
    for directory in std::iter::once(args.to()).chain(args.mount.as_deref()) {
        refuse_mounted(directory)?;
        fs::create_dir_all(directory).with_context(|| format!("cannot make the directory {}", directory.display()))?;
    }
    let mut inside = fs::read_dir(args.to()).with_context(|| format!("cannot look into {}", args.to().display()))?;
    if inside.next().is_some() {
        bail!(
            "{} is not empty: it holds files that the volume would hide; choose an empty directory",
            args.to().display()
        );
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
fn show(args: &AttachArgs, device: Arc<RemoteDevice>) -> Result<Attached> {
    // Nobody writes to a snapshot, and what is mounted must know that.
    let read_only = args.read_only || args.url().is_snapshot();
    let mut options = FuseOptions::new(args.url().file_name());
    options.read_only = read_only;
    options.allow_other = args.allow_other;
    let mount = args.mount.as_deref().map(|directory| FileSystemOptions {
        directory,
        make: args.mkfs.as_deref(),
        file_system: args.fstype.as_deref(),
    });
    let front_end = FileFrontEnd::start(device.clone(), args.to(), &options, mount.as_ref())?;
    Ok(Attached { front_end, device, read_only: args.read_only })
}

/// Serves until it is asked to end, and can. Returns what was lost, for people; an error is a loss as well.
fn wait_and_detach(
    mut attached: Attached,
    signals: &StopSignals,
    forced: &AtomicBool,
    registration: &mut Registration,
) -> Result<Option<String>> {
    let mut is_unmounted = false;
    loop {
        match signals.wait_or(attached.front_end.ended_fd(), NOTE_HEALTH_EVERY) {
            Waited::Signal(signal) => tracing::info!(signal = signal.name(), "asked to detach"),
            // It stays so while the target is away: that was reported.
            Waited::Ended if is_unmounted && attached.would_wait().is_some() => {
                registration.note(attached.health());
                std::thread::sleep(NOTE_HEALTH_EVERY);
                continue;
            }
            Waited::Ended => {
                tracing::info!("unmounted from outside");
                is_unmounted = true;
            }
            Waited::InVain => {
                attached.heed_lease();
                registration.note(attached.health());
                continue;
            }
        }
        if forced.load(Ordering::Acquire) {
            sd_notify::notify("STOPPING=1");
            return Ok(attached.detach_by_force());
        }
        if let Some(reason) = attached.would_wait() {
            tracing::warn!(%reason, "still attached");
            registration.refuse(reason);
            continue;
        }
        sd_notify::notify("STOPPING=1");
        match attached.detach() {
            Ended::Detached(losses) => {
                match &losses {
                    None => tracing::info!("detached"),
                    Some(losses) => tracing::error!(losses, "detached, but writes were lost"),
                }
                return Ok(losses);
            }
            Ended::Refused(still, reason) => {
                tracing::warn!(%reason, "still attached");
                registration.refuse(crate::in_words(&reason));
                attached = *still;
            }
        }
    }
}

/// How keys that a server lends stand.
fn in_words(keys: &KeyStatus) -> String {
    let trouble = keys.trouble.as_ref().map(|trouble| format!("; {trouble}")).unwrap_or_default();
    if keys.epochs.is_empty() {
        return format!("none, the last epoch was {}{trouble}", keys.epoch);
    }
    let all = keys.epochs.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let until = SystemTime::now() + keys.lease_left;
    let seconds = until.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()) % 86_400;
    let clock = format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("epoch {} (of {all}), lent until {clock}{trouble}", keys.epoch)
}

/// Lets `strongroom detach --force` through, even while an ordinary detach hangs. The flag is set once that was asked for.
fn end_when_forced(force: ForceSignal, device: &Arc<RemoteDevice>) -> Result<Arc<AtomicBool>> {
    let device = Arc::downgrade(device);
    let forced = Arc::new(AtomicBool::new(false));
    let is_forced = forced.clone();
    std::thread::Builder::new().name("force".into()).spawn(move || {
        loop {
            force.wait();
            tracing::warn!("asked to detach by force: what is not written is lost");
            if let Some(device) = device.upgrade() {
                give_up(&device);
            }
            is_forced.store(true, Ordering::Release);
            let _ = kill_process(getpid(), Signal::TERM);
        }
    })?;
    Ok(forced)
}

/// Fails all requests of a device, from now on. What a target that is there has acknowledged is made durable before.
fn give_up(device: &Arc<RemoteDevice>) {
    let status = device.status();
    if status.is_connected && status.unflushed_bytes > 0 {
        let (sender, flushed) = std::sync::mpsc::channel();
        let flushing = device.clone();
        std::thread::spawn(move || sender.send(flushing.flush()));
        let _ = flushed.recv_timeout(FORCED_FLUSH_PATIENCE);
    }
    let unflushed_bytes = device.status().unflushed_bytes;
    if unflushed_bytes > 0 {
        tracing::warn!(unflushed_bytes, "the target acknowledged these writes, and may not have made them durable");
    }
    device.abandon();
    // The device's own thread has to have seen it, or the detach would still be refused.
    for _ in 0..ABANDON_LOOKS_MAX {
        if device.status().is_abandoned {
            break;
        }
        std::thread::sleep(ABANDON_LOOK_EVERY);
    }
}

/// What came of detaching.
enum Ended {
    /// It has ended; what was lost meanwhile, for people.
    Detached(Option<String>),
    /// Something still uses it: it works on, for that reason.
    Refused(Box<Attached>, anyhow::Error),
}

impl Attached {
    /// Why a detach could not be done now but would wait for the target, if that is so.
    fn would_wait(&self) -> Option<String> {
        let status = self.device.status();
        if status.is_connected || status.is_abandoned || self.read_only {
            return None;
        }
        let why = status.last_loss.unwrap_or_default();
        let bytes = status.unflushed_bytes;
        Some(format!(
            "the target is away ({why}); {bytes} bytes written so far are not known to be safe there, and what programs still \
             have to write is not counted in that. Wait until it is back, or give them up with: strongroom detach --force {}",
            self.front_end.directory().display()
        ))
    }

    /// Lets what programs see grow with the volume, in a thread of its own.
    fn follow_growth(&self) -> Result<()> {
        let grow = self.front_end.growth_follower();
        self.device.follow_growth(move |_| grow())?;
        Ok(())
    }

    /// How it is doing, for `attach list`.
    fn health(&self) -> Health {
        let status = self.device.status();
        let disconnected =
            (!status.is_connected).then(|| status.last_loss.unwrap_or_else(|| "the connection is lost".to_owned()));
        Health {
            transport: status.packets.as_ref().map(packets_in_words),
            keys: self.device.key_status().map(|keys| in_words(&keys)),
            disconnected,
            losses: losses(&self.device),
        }
    }

    /// Nothing may be cached any more once somebody else can write.
    fn heed_lease(&mut self) {
        if let Some(why) = self.device.status().lease_lost {
            self.front_end.drop_caches(&why);
        }
    }

    /// Undoes the attachment, unless something still uses it.
    fn detach(self) -> Ended {
        let Attached { front_end, device, read_only } = self;
        let finished = match front_end.finish() {
            // The front end has flushed; this one ends the session.
            Ok(()) => device.detach().map_err(anyhow::Error::from),
            Err((Some(front_end), reason)) => {
                let attached = Attached { front_end: *front_end, device, read_only };
                return Ended::Refused(Box::new(attached), reason);
            }
            Err((None, error)) => Err(error),
        };
        Ended::Detached(losses(&device).or_else(|| Some(crate::in_words(&finished.err()?))))
    }

    /// Undoes the attachment even if it is still in use, after the device was given up.
    fn detach_by_force(self) -> Option<String> {
        let Attached { front_end, device, .. } = self;
        front_end.end_by_force();
        let _ = device.detach();
        tracing::info!("detached by force");
        losses(&device)
    }
}

/// Writes that a device has lost, for people.
fn losses(device: &RemoteDevice) -> Option<String> {
    let losses = device.losses();
    (!losses.is_empty()).then(|| losses.to_string())
}

/// Starts a copy of this program that stays, and waits until the volume is there.
fn start_in_background(args: &AttachArgs) -> Result<()> {
    let directory = RuntimeDir::open()?;
    let log_name = format!("{}-{}.log", args.url().file_name(), std::process::id());
    let log_path = directory.path_of(&log_name);
    let socket_path = directory.path_of(&format!("{}.notify", std::process::id()));
    let _ = fs::remove_file(&socket_path);
    let socket = UnixDatagram::bind(&socket_path).context("cannot make a notification socket")?;
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    let log = directory.create(&log_name)?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .arg("--foreground")
        .env("NOTIFY_SOCKET", &socket_path)
        .env(LOG_VARIABLE, &log_path)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .context("cannot start the serving process")?;
    if let Err(error) = attachments::prune_logs(&directory) {
        tracing::debug!(error = format!("{error:#}"), "old logs stay");
    }
    let outcome = loop {
        let mut message = [0; 4096];
        if let Ok(len) = socket.recv(&mut message) {
            if message.starts_with(b"READY=1") {
                break Ok(());
            }
            if let Some(status) = message[..len].strip_prefix(b"STATUS=") {
                eprintln!("{}", String::from_utf8_lossy(status));
            }
        }
        if let Some(status) = child.try_wait()? {
            break Err(status);
        }
    };
    let _ = fs::remove_file(&socket_path);
    if outcome.is_err() {
        let log = fs::read_to_string(&log_path).unwrap_or_default();
        // The copy has said what is wrong in its last line; the same words serve here.
        let reason = log.lines().rev().find_map(|line| line.strip_prefix("strongroom: ")).unwrap_or(log.trim());
        bail!("{reason}\nits log is {}", log_path.display());
    }
    println!("{}", args.to().join(args.url().file_name()).display());
    if let Some(mount) = &args.mount {
        println!("{}", mount.display());
    }
    eprintln!("attached by process {}; its log is {}", child.id(), log_path.display());
    Ok(())
}
