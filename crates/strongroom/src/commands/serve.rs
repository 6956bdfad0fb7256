//! `strongroom serve`: runs a target until it is asked to stop.
//!
//! Reads the files that the target itself must not know (identities and wrapping keys) and hands on what is in them.

mod init;
mod rules;

use std::fs::DirBuilder;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use strongroom_block::{CryptoCounters, Opener, Resealer, Suite};
use strongroom_metrics::MetricsAddress;
use strongroom_seal::{BlockKeys, SealContext, VolumeSealer};
use strongroom_target::config::{Limits, RuntimeKind};
use strongroom_target::{
    BusyPoll, Catalogue, Config, ConfigReader, ProviderError, Target, TargetHandle, TargetOptions, Volume,
};

use crate::root_args::DEFAULT_CONFIG;
use crate::sd_notify::{self, Watchdog};
use crate::signals::StopSignals;
use crate::units::{parse_duration, parse_size};
use crate::{keys, memory, metrics, process, stats_file, wrapping};

use rules::RuleArgs;

/// Serve the volumes of this machine, until SIGTERM or SIGINT.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom serve --init                       for the first time: makes /etc/strongroom/strongroom.toml and an identity\n  \
    strongroom serve --config /etc/strongroom/strongroom.toml\n  \
    strongroom serve --root /srv/strongroom --listen 127.0.0.1:3260 --plain 'initiators=*; volumes=scratch'\n\n\
    examples/strongroom.toml explains every setting. A flag overrides the file.")]
pub(crate) struct ServeArgs {
    /// The configuration [default: /etc/strongroom/strongroom.toml, unless --root is given].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The directory with the volumes.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Where to listen; can be repeated.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,
    /// What discovery tells initiators to connect to; can be repeated.
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Vec<String>,
    /// What target names begin with.
    #[arg(long, value_name = "IQN")]
    base_name: Option<String>,
    /// The file with this target's identity.
    #[arg(long, visible_alias = "identity", value_name = "FILE")]
    node_key: Option<PathBuf>,
    /// The socket for `strongroom status` and the like [default: .admin.sock among the volumes].
    #[arg(long, value_name = "FILE")]
    admin_socket: Option<PathBuf>,
    /// Where to answer collectors of metrics: an address of the loopback (127.0.0.1:9464), or a socket (unix:/run/strongroom-target/metrics.sock).
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<MetricsAddress>,
    #[command(flatten)]
    workers: WorkerArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    rules: RuleArgs,
    /// Admit channels of the cipher suites that are for benchmarks alone, too: they protect nothing today.
    #[arg(long, hide = true)]
    benchmark_suites: bool,
    #[command(flatten)]
    stats: StatsArgs,
    /// If there is no configuration yet, make one, and an identity beside it. One that is there stays as it is.
    #[arg(long, conflicts_with_all = ["root", "node_key"])]
    init: bool,
    /// Check the configuration, and end.
    #[arg(long)]
    check: bool,
}

/// Counters in a file.
#[derive(Args)]
struct StatsArgs {
    /// Write counters to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    stats_file: Option<PathBuf>,
    /// How often to write them.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    stats_every: Duration,
}

/// The threads that serve volumes.
#[derive(Args)]
struct WorkerArgs {
    /// Threads that serve volumes.
    #[arg(long, value_name = "COUNT")]
    workers: Option<usize>,
    /// Keep each of them on its processor.
    #[arg(long)]
    pin_workers: bool,
    /// What lies beneath them.
    #[arg(long)]
    runtime: Option<RuntimeArg>,
    /// Do not serve over ECL, and leave the UDP ports alone.
    #[arg(long)]
    no_ecl: bool,
    /// Have them look for work for a short while before they sleep: `off`, `auto` (while the expected wait is below 200 microseconds), or
    /// the longest expected wait in microseconds. Saves the wake-up of each I/O where few are in flight; costs a processor meanwhile.
    #[arg(long, value_name = "WAIT", env = "STRONGROOM_BUSY_POLL")]
    busy_poll: Option<BusyPoll>,
}

/// Limits on sessions, and how long things may take.
#[derive(Args)]
struct LimitArgs {
    /// Connections at most.
    #[arg(long, value_name = "COUNT")]
    connections_max: Option<usize>,
    /// From a connection's first byte to the end of its login.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    login_timeout: Option<Duration>,
    /// Commands in flight for each session.
    #[arg(long, value_name = "COUNT")]
    queue_depth: Option<u16>,
    /// Write data that one session can pin in memory.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    write_memory: Option<u64>,
    /// Read data that one session can pin in memory.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    read_memory: Option<u64>,
    /// A silent connection is pinged after this time.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    ping_after: Option<Duration>,
    /// A volume that nobody uses is closed after this time.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    idle_close: Option<Duration>,
    /// How long a graceful stop waits for initiators.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    stop_timeout: Option<Duration>,
}

/// What lies beneath the workers.
#[derive(Clone, Copy, ValueEnum)]
enum RuntimeArg {
    /// The better one, with the other as fallback.
    Auto,
    /// epoll.
    Epoll,
    /// io_uring, or an error.
    IoUring,
}

/// Runs the command.
pub(crate) fn run(args: ServeArgs) -> Result<()> {
    // Before any thread exists: they inherit it.
    let signals = StopSignals::block().context("cannot wait for signals")?;
    if args.init {
        init::make_configuration(args.config.as_deref().unwrap_or(Path::new(DEFAULT_CONFIG)))?;
    }
    let args = Arc::new(args);
    let config = args.configuration()?;
    config.check()?;
    let node_key = config.node_key.as_deref().map(keys::read_identity).transpose()?;
    let chap_secrets = keys::read_chap_secrets(&config)?;
    if args.check {
        println!("the configuration is in order");
        return Ok(());
    }
    make_root(&config.root)?;
    let (root, metrics_address) = (config.root.clone(), config.metrics.clone());
    memory::bound_page_faults();
    // Each connection needs a descriptor, each open volume several.
    process::raise_file_limit();
    let options = TargetOptions {
        config,
        node_key,
        wraps: Some(wrapping::opening()),
        renew_wrap: Some(wrapping::renewing()),
        openers: Some(Arc::new(opener)),
        resealers: Some(Arc::new(resealer)),
        chap_secrets,
        reread: Some(reader(&args)),
    };
    let handle = Target::start(options)?;
    let reporter = handle.reporter();
    let measure = move || metrics::target::exposition(&reporter.report());
    let collected = metrics::start(metrics_address.as_ref(), measure)?;
    announce(&handle, &root)?;
    sd_notify::notify("READY=1");
    let mut watchdog = Watchdog::from_environment();
    let signal = loop {
        write_stats(args.stats.stats_file.as_deref(), &handle);
        watchdog.notify(|patience| handle.workers_answer(patience));
        match signals.wait(watchdog.limit(args.stats.stats_every.max(Duration::from_millis(10)))) {
            Some(signal) if signal.is_hangup() => reload(&handle),
            Some(signal) => break signal,
            None => {}
        }
    };
    tracing::info!(signal = signal.name(), "stopping");
    sd_notify::notify("STOPPING=1");
    write_stats(args.stats.stats_file.as_deref(), &handle);
    drop(collected);
    handle.stop();
    Ok(())
}

/// Says where it serves, and what to do if there is nothing to serve.
fn announce(handle: &TargetHandle, root: &Path) -> Result<()> {
    for address in handle.local_addresses() {
        println!("serving on {address}");
    }
    if Catalogue::open(root)?.names()?.is_empty() {
        println!(
            "there are no volumes in {root} yet; make one with: strongroom volume create NAME --size 10GiB --root {root}",
            root = root.display()
        );
    }
    Ok(())
}

/// Reads the configuration again.
fn reader(args: &Arc<ServeArgs>) -> ConfigReader {
    let args = Arc::clone(args);
    Arc::new(move || {
        let config = args.configuration().map_err(ProviderError::new)?;
        let secrets = keys::read_chap_secrets(&config).map_err(ProviderError::new)?;
        Ok((config, secrets))
    })
}

/// A target that starts for the first time makes its directory; not those above it, which a slip of the pen would make too.
fn make_root(root: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(root) {
        Ok(()) => println!("made {}", root.display()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => {
            return Err(error)
                .with_context(|| format!("cannot make the directory of volumes, {}; correct `root`", root.display()));
        }
    }
    Ok(())
}

fn reload(handle: &TargetHandle) {
    // What it came to, the target tells itself.
    sd_notify::notify("RELOADING=1");
    if let Err(problem) = handle.reload() {
        tracing::error!(%problem, "the configuration was not read again; the old one stays in force");
    }
    sd_notify::notify("READY=1");
}

/// What opens the blocks of a volume of custody `target`, to verify them: its block keys come with them, unwrapped.
fn opener(volume: &Volume, counters: Arc<CryptoCounters>) -> Result<Arc<dyn Opener>, ProviderError> {
    let sealed = volume.sealed.as_ref().ok_or("a plain volume has no seals")?;
    let context = SealContext::new(sealed.domain, volume.geometry.block_size, sealed.epoch)
        .with_mode(sealed.mode)
        .with_suite(sealed.suite);
    let keys = BlockKeys::new(context, Box::new(|_| unreachable!("what only opens draws no keys")), counters);
    Ok(Arc::new(VolumeSealer::BlockKeys(Box::new(keys))))
}

/// What opens the blocks of a volume when they arrive, under the key in the file that its description names.
fn resealer(volume: &Volume, counters: Arc<CryptoCounters>) -> Result<Arc<dyn Resealer>, ProviderError> {
    let sealed = volume.sealed.as_ref().ok_or("a plain volume has no seals")?;
    let path = sealed.opened_with.as_deref().ok_or("its description names no key")?;
    process::lock_memory();
    let keys = strongroom_keyfiles::read_key_file(path).map_err(|error| error.to_string())?;
    // The initiator that formatted it may have drawn the domain, and recorded it in the file.
    let records = || keys.volumes().iter().filter(|known| known.claimed == sealed.domain);
    let record = records().find(|known| known.name == volume.name.as_str()).or_else(|| records().next());
    let domain = record.map_or(sealed.domain, |record| record.domain);
    let context = SealContext::new(domain, volume.geometry.block_size, sealed.epoch)
        .with_mode(sealed.mode)
        .with_suite(sealed.suite);
    let sealer =
        VolumeSealer::blind(&keys, context, counters).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Arc::new(sealer))
}

fn write_stats(path: Option<&Path>, handle: &TargetHandle) {
    if let Some(path) = path {
        stats_file::write(path, &handle.stats());
    }
}

impl ServeArgs {
    /// The file, and what the flags change in it.
    fn configuration(&self) -> Result<Config> {
        let mut config = match (&self.config, &self.root) {
            (Some(path), _) => crate::config::read(path)?,
            (None, Some(root)) => Config::new(root),
            (None, None) => crate::config::read(Path::new(DEFAULT_CONFIG))?,
        };
        set(&mut config.root, self.root.clone());
        set(&mut config.base_name, self.base_name.clone());
        config.node_key = self.node_key.clone().or(config.node_key);
        config.admin_socket = self.admin_socket.clone().or(config.admin_socket);
        config.metrics = self.metrics.clone().or(config.metrics);
        if !self.listen.is_empty() {
            config.listen.clone_from(&self.listen);
        }
        if !self.advertise.is_empty() {
            config.advertise.clone_from(&self.advertise);
        }
        self.workers.apply(&mut config);
        self.limits.apply(&mut config.limits);
        self.rules.apply(&mut config);
        if self.benchmark_suites && !Suite::ALL.into_iter().any(Suite::is_for_benchmarks_only) {
            bail!("--benchmark-suites: this program has no cipher suites for benchmarks; strongroom-lab has");
        }
        config.suites.benchmarks = self.benchmark_suites;
        Ok(config)
    }
}

impl WorkerArgs {
    fn apply(&self, config: &mut Config) {
        config.workers = self.workers.or(config.workers);
        config.pin_workers |= self.pin_workers;
        config.ecl &= !self.no_ecl;
        let runtime = self.runtime.map(|runtime| match runtime {
            RuntimeArg::Auto => RuntimeKind::Auto,
            RuntimeArg::Epoll => RuntimeKind::Epoll,
            RuntimeArg::IoUring => RuntimeKind::IoUring,
        });
        set(&mut config.runtime, runtime);
        set(&mut config.busy_poll, self.busy_poll);
    }
}

impl LimitArgs {
    fn apply(&self, limits: &mut Limits) {
        let seconds = |duration: Duration| duration.as_secs().max(1);
        set(&mut limits.connections_max, self.connections_max);
        set(&mut limits.login_timeout_s, self.login_timeout.map(seconds));
        set(&mut limits.queue_depth, self.queue_depth);
        set(&mut limits.write_memory_bytes, self.write_memory);
        set(&mut limits.read_memory_bytes, self.read_memory);
        set(&mut limits.ping_after_s, self.ping_after.map(seconds));
        set(&mut limits.idle_close_s, self.idle_close.map(seconds));
        set(&mut limits.stop_timeout_s, self.stop_timeout.map(seconds));
    }
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_configuration_is_one() {
        let example = include_str!("../../../../examples/strongroom.toml");
        let config = Config::parse(example).unwrap();
        assert_eq!(config.peers[0].name, "alice");
        // What stands there as a comment is a setting with its default.
        let uncommented: String = example
            .lines()
            .map(|line| if line.starts_with('#') && line.contains(" = ") { &line[1..] } else { line })
            .map(|line| format!("{line}\n"))
            .collect();
        let all = Config::parse(&uncommented.replace("#[[", "[[")).unwrap();
        // Its default is the machine's.
        let limits = Limits { memory_bytes: None, ..all.limits.clone() };
        assert_eq!((limits, all.limits.memory_bytes), (config.limits, Some(8 << 30)));
        assert_eq!((all.listen, all.base_name, all.runtime), (config.listen, config.base_name, config.runtime));
    }
}
