//! A process that has a volume attached and lets programs use it, by one front end or another, until it is told to detach: what `attach`,
//! `nbd serve` and `vhost-user serve` share.
//!
//! Absent: the front ends, and finding the process (`attachments`).

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use rustix::process::{Signal, getpid, kill_process};
use strongroom_initiator::safety::{self, Memory};
use strongroom_initiator::{KeyStatus, RemoteDevice, UnsealedGrowth, VolumeUrl};
use strongroom_metrics::MetricsAddress;

use crate::access::AccessArgs;
use crate::attachments::{AttachmentPlace, Health, Registration};
use crate::memory;
use crate::metrics::{
    self,
    attachment::{AttachmentSource, ClientCounter},
};
use crate::sd_notify;
use crate::signals::{ForceSignal, StopSignals, Waited};
use crate::stable_name::{self, StableName};
use crate::stats_file::{AttachmentStatsFile, packets_in_words};
use crate::writer::WriterArgs;

/// How often the state that `attach list` shows is updated.
const NOTE_HEALTH_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked whether a device has been given up, and how many times at most.
const ABANDON_LOOK_EVERY: Duration = Duration::from_millis(10);
const ABANDON_LOOKS_MAX: u32 = 500;
/// How long it waits for a target that is there to make everything durable.
const FORCED_FLUSH_PATIENCE: Duration = Duration::from_secs(5);

/// What every such process needs to know.
#[derive(Args)]
pub(crate) struct ServingArgs {
    /// Nobody may write. A snapshot is always so; of a file system that was in use when it was taken, what was written last may be missing
    /// (clone the snapshot to mount all of it).
    #[arg(long)]
    read_only: bool,
    /// Fetch blocks ahead of sequential reads. What another initiator writes meanwhile is not seen, so `auto` does it for a snapshot, and
    /// for a file system that is mounted with `attach --mount`, unless it is one for clusters.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    readahead: ReadaheadArg,
    /// Write counters (connection, cryptography, keys changed, damaged blocks) to this file as JSON, every second.
    #[arg(long, value_name = "FILE")]
    stats_file: Option<PathBuf>,
    /// Where to answer collectors of metrics: an address of the loopback (127.0.0.1:9465), or a socket (unix:/run/vault-metrics.sock).
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<MetricsAddress>,
    /// When the volume has grown, seal the new part as absent, with the volume's key, as `strongroom volume grow` does: it can be used at once.
    #[arg(long, conflicts_with_all = ["read_only", "shared"])]
    seal_growth: bool,
    /// Do not lock this process's memory: keys and data may then reach the swap, and a file system on the volume can hang when memory
    /// runs out. (Where it is locked, `attach --mount` sets 160 MiB aside for that file system.)
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

/// How a volume is used.
pub(crate) struct VolumeUse<'a> {
    pub(crate) url: &'a VolumeUrl,
    /// For people at another initiator who want the volume too.
    pub(crate) purpose: String,
    /// A file system that only this machine uses is mounted from it: blocks can be fetched ahead.
    pub(crate) is_mounted_here: bool,
    /// What is done with the memory of the process, unless it is not to be locked.
    pub(crate) memory: Memory,
    /// Where its log is, if it has one of its own.
    pub(crate) log: Option<PathBuf>,
    /// The stable name that was chosen for it, instead of one made from the volume's.
    pub(crate) name: Option<&'a str>,
}

impl VolumeUse<'_> {
    /// Gives what programs see its stable name.
    ///
    /// # Errors
    /// The chosen name is not available. A missing default name is no error.
    fn give_name(&self, front_end: &impl FrontEnd, registration: &mut Registration) -> Result<()> {
        let Some(device) = front_end.device() else { return Ok(()) };
        if let (Err(error), None) = (stable_name::may_make(), self.name) {
            registration.go_unnamed(error.to_string());
            return Ok(());
        }
        let name = self.name.map_or_else(|| stable_name::escape(self.url.file_name()), str::to_owned);
        match registration.give_name(StableName::new(&name, &device)) {
            Err(error) if self.name.is_none() => {
                tracing::warn!(error = format!("{error:#}"), "the volume is attached without a stable name");
                sd_notify::notify(&format!("STATUS=attached without a stable name: {error:#}"));
                Ok(())
            }
            outcome => outcome,
        }
    }
}

/// What programs see of a device.
pub(crate) trait FrontEnd: Sized {
    /// Where they find it.
    fn place(&self) -> AttachmentPlace;
    /// The block device or file that a stable name leads to; `None` if it has no such thing.
    fn device(&self) -> Option<PathBuf>;
    /// Counts the clients that are connected; `None` if it has none.
    fn client_counter(&self) -> Option<ClientCounter> {
        None
    }
    /// Tells people and scripts, on standard output, where they find it: once it is registered, so that it can be detached.
    fn announce(&self) {}
    /// Becomes readable when it has ended by itself, or from outside.
    fn ended_fd(&self) -> BorrowedFd<'_>;
    /// What to do when the device has grown, in a thread of its own.
    fn growth_follower(&self) -> impl Fn() + Send + 'static;
    /// Another initiator has the volume now: caches may be stale, and what is not written back never will be.
    fn drop_caches(&mut self, why: &str);
    /// Ends it and makes everything durable, unless something still uses it.
    fn finish(self) -> Result<(), NotEnded<Self>>;
    /// Ends it although something uses it, after the device was given up.
    fn end_by_force(self);
}

/// Why a front end could not be ended, and the front end if it works on.
pub(crate) type NotEnded<F> = (Option<Box<F>>, anyhow::Error);

impl ServingArgs {
    /// Goes on where that process of this machine, which has died, left off: takes over its lease.
    pub(crate) fn succeed(&mut self, pid: u32) {
        self.writer.succeed(pid);
    }

    /// Whether programs may not write.
    pub(crate) fn is_read_only(&self, url: &VolumeUrl) -> bool {
        // Nobody writes to a snapshot, and what uses it must know that.
        self.read_only || url.is_snapshot()
    }

    fn fetches_ahead(&self, volume: &VolumeUse<'_>) -> bool {
        match self.readahead {
            ReadaheadArg::On => true,
            ReadaheadArg::Off => false,
            ReadaheadArg::Auto => volume.url.is_snapshot() || volume.is_mounted_here,
        }
    }

    /// Attaches the volume, has programs use it by what `start` makes of it, and serves until it is told to detach. Returns what was lost,
    /// for people; the registration stays then, for `detach` to report.
    pub(crate) fn serve<F: FrontEnd>(
        &self,
        volume: &VolumeUse<'_>,
        start: impl FnOnce(Arc<RemoteDevice>) -> Result<F>,
    ) -> Result<Option<String>> {
        // Before any thread exists: they inherit all of it.
        let signals = StopSignals::block().context("cannot wait for signals")?;
        let force = ForceSignal::block().context("cannot wait for signals")?;
        let memory = if self.no_memory_lock { Memory::Unlocked } else { volume.memory };
        if memory == Memory::LockedAndSetAside {
            memory::keep_what_is_freed();
        }
        safety::prepare_process(memory);
        self.access.forget_if_asked(volume.url)?;
        let mut options = self.access.options(volume.url)?;
        options.read_only = self.read_only;
        options.readahead = self.fetches_ahead(volume);
        options.lease = self.writer.options(&volume.purpose);
        if options.lease.reservation_key.is_some() && self.is_read_only(volume.url) {
            bail!("a read-only attachment has no key: leave out --reservation-key");
        }
        let counters = options.counters.clone();
        let device = self.access.attach_for_use(options, self.writer.way_out())?;
        let source = AttachmentSource::new(volume.url, &device, counters.clone());
        let stats =
            self.stats_file.clone().map(|path| AttachmentStatsFile::start(path, &device, counters)).transpose()?;
        let detach = |_: &anyhow::Error| {
            // Ends the session, and with it the lease: the next attachment would wait for that.
            let _ = device.detach();
        };
        let clients = source.clients();
        let collected = metrics::start(self.metrics.as_ref(), move || source.exposition()).inspect_err(detach)?;
        let forced = end_when_forced(force, &device)?;
        let front_end = start(device.clone()).inspect_err(detach)?;
        if let Some(counter) = front_end.client_counter() {
            let _ = clients.set(counter);
        }
        let attached = Attached { front_end, device, read_only: self.read_only };
        if !volume.url.is_snapshot() {
            attached.follow_growth(if self.seal_growth { UnsealedGrowth::Seal } else { UnsealedGrowth::Report })?;
        }
        let (attached, mut registration) = attached.register(volume)?;
        registration.note(attached.health());
        attached.front_end.announce();
        tracing::info!(url = %volume.url, place = attached.front_end.place().name(), "attached");
        sd_notify::notify("READY=1");
        let ended = wait_and_detach(attached, &signals, &forced, &mut registration);
        drop((stats, collected));
        let losses = ended.unwrap_or_else(|error| Some(format!("{error:#}")));
        if let Err(error) = registration.end(losses.clone()) {
            let lost = losses.as_deref().unwrap_or_default();
            tracing::error!(lost, error = format!("{error:#}"), "losses are reported only here");
        }
        Ok(losses)
    }
}

/// What is attached: a device, and what programs see of it.
struct Attached<F> {
    front_end: F,
    device: Arc<RemoteDevice>,
    read_only: bool,
}

/// Serves until it is asked to end, and can. Returns what was lost, for people; an error is a loss as well.
fn wait_and_detach<F: FrontEnd>(
    mut attached: Attached<F>,
    signals: &StopSignals,
    forced: &AtomicBool,
    registration: &mut Registration,
) -> Result<Option<String>> {
    let mut is_ended = false;
    loop {
        match signals.wait_or(attached.front_end.ended_fd(), NOTE_HEALTH_EVERY) {
            Waited::Signal(signal) => tracing::info!(signal = signal.name(), "asked to detach"),
            // It stays so while the target is away: that was reported.
            Waited::Ended if is_ended && attached.would_wait().is_some() => {
                registration.note(attached.health());
                std::thread::sleep(NOTE_HEALTH_EVERY);
                continue;
            }
            Waited::Ended => {
                tracing::info!("it has ended: unmounted from outside, or by an error");
                is_ended = true;
            }
            Waited::InVain => {
                attached.heed_lease();
                registration.note(attached.health());
                continue;
            }
        }
        if forced.load(Ordering::Acquire) {
            sd_notify::notify("STOPPING=1");
            registration.suspend_name();
            return Ok(attached.detach_by_force());
        }
        if let Some(reason) = attached.would_wait() {
            tracing::warn!(%reason, "still attached");
            registration.refuse(reason);
            continue;
        }
        sd_notify::notify("STOPPING=1");
        registration.suspend_name();
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
                attached = *still;
                registration.resume_name();
                registration.refuse(crate::in_words(&reason));
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
enum Ended<F> {
    /// It has ended; what was lost meanwhile, for people.
    Detached(Option<String>),
    /// Something still uses it: it works on, for that reason.
    Refused(Box<Attached<F>>, anyhow::Error),
}

impl<F: FrontEnd> Attached<F> {
    /// Has `strongroom detach` find it, and gives it its stable name. What cannot be registered is ended: nobody could detach it.
    fn register(self, volume: &VolumeUse<'_>) -> Result<(Attached<F>, Registration)> {
        let place = self.front_end.place();
        let registered = Registration::new(volume.url.route(), place, volume.log.clone());
        let named = registered.and_then(|mut registration| {
            volume.give_name(&self.front_end, &mut registration)?;
            Ok(registration)
        });
        match named {
            Ok(registration) => Ok((self, registration)),
            Err(error) => {
                if let Ended::Refused(still, _) = self.detach() {
                    still.detach_by_force();
                }
                Err(error)
            }
        }
    }

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
            self.front_end.place().name()
        ))
    }

    /// Lets what programs see grow with the volume, in a thread of its own.
    fn follow_growth(&self, unsealed: UnsealedGrowth) -> Result<()> {
        let grow = self.front_end.growth_follower();
        self.device.follow_growth(unsealed, move |_| grow())?;
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
            kept_out: status.lease_lost,
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
    fn detach(self) -> Ended<F> {
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
