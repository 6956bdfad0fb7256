//! Strongroom as a contender: a target of this same binary in a process of its own, or one elsewhere, by URL; and our own
//! initiator, in processes too.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use strongroom_block::Mode;
use strongroom_initiator::{DEFAULT_BASE_IQN, VolumeUrl};

use crate::cpu::Placement;
use crate::ecl::ethernet;
use crate::engine::{AttachSettings, ChannelSettings, Engine, SealingSettings};
use crate::process::{Product, command_in};
use crate::{Background, BenchError, Contender, CpuQuota, Identity, InitiatorProcess, ProcessKind, Setup, TargetWork};

/// How long a target may take to start.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the target writes its counters.
const STATS_EVERY: &str = "250ms";
/// Bytes of a block of further volumes: ext4 on one then never writes part of a block.
pub const FURTHER_BLOCK_BYTES: u64 = 4096;
/// What our initiators are called, before their number.
const INITIATOR_NAME: &str = "iqn.2026-11.org.strongroom:bench";

/// How to start a target of ours.
#[derive(Clone, Debug)]
pub struct OursOptions {
    /// This program.
    pub lab_binary: PathBuf,
    /// The product that serves and makes volumes; `None`: the one in this program.
    pub product: Option<Product>,
    /// What it speaks, and what its volumes are like.
    pub setup: Setup,
    /// What lies beneath the store, as `volume create --medium` takes it.
    pub medium: String,
    /// Bytes of each volume.
    pub volume_bytes: u64,
    /// Block sizes of the volumes to make, one each.
    pub block_sizes: Vec<u64>,
    /// Names and bytes of further volumes, with blocks of [`FURTHER_BLOCK_BYTES`].
    pub further_volumes: Vec<(String, u64)>,
    /// Who runs where.
    pub placement: Placement,
    /// Where to work; must exist, and is left as it is.
    pub directory: PathBuf,
    /// Further arguments of `strongroom serve`.
    pub serve_args: Vec<String>,
    /// Where both ends are.
    pub hosts: Hosts,
}

/// In which network namespaces both ends run.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    /// The target's, and the address that it listens on there; `None`: the machine's own, on loopback.
    pub target: Option<(String, IpAddr)>,
    /// The initiators'.
    pub initiators: Option<String>,
}

/// A target of ours and its initiators. Stopped when dropped.
#[derive(Debug)]
pub struct Ours {
    identity: Identity,
    options: OursOptions,
    /// First, so that they leave before the target stops.
    initiators: InitiatorPool,
    target: Background,
    /// After the target, so that it is empty when it is removed.
    quota: Option<CpuQuota>,
    address: String,
    stats: PathBuf,
    target_key: String,
    connections: u16,
    /// How initiators poll, as on the command line; as usual if none is given.
    busy_poll: Option<String>,
}

impl Ours {
    /// Makes identities, keys and volumes in the directory, and starts the target.
    ///
    /// # Errors
    /// If any of it fails, with what the command said.
    pub fn start(options: OursOptions) -> Result<Ours, BenchError> {
        let at = |name: &str| options.directory.join(name);
        let target_key = options.run(&["identity", "new", "--out", text(&at("target.identity"))?])?;
        let initiator_key = options.run(&["identity", "new", "--out", text(&at("initiator.identity"))?])?;
        options.run(&["key", "new", "--out", text(&at("volume.key"))?])?;
        options.run(&["key", "new", "--for", "wrapping", "--out", text(&at("wrapping.key"))?])?;
        options.create_volumes()?;
        let stats = at("stats.json");
        let configuration = options.configuration()?;
        let namespace = options.hosts.target.as_ref().map(|(namespace, _)| namespace.as_str());
        let address = options.hosts.target.as_ref().map_or(IpAddr::from([127, 0, 0, 1]), |(_, address)| *address);
        let listen = SocketAddr::new(address, 0).to_string();
        let mut command = options.product().command(namespace);
        command.args(["--log", "warn", "serve", "--root", text(&at("volumes"))?, "--listen", &listen]);
        command.args(["--node-key", text(&at("target.identity"))?, "--workers", "1", "--idle-close", "1h"]);
        command.args(["--stats-file", text(&stats)?, "--stats-every", STATS_EVERY]);
        command.args(["--plain", "initiators=*; volumes=*"]);
        command.arg("--peer").arg(format!("name=bench; key={}; initiators=*; volumes=*", initiator_key.trim()));
        command.args(&options.serve_args);
        if let Some(path) = &configuration {
            command.args(["--config", text(path)?]);
        }
        if options.setup.suite.is_for_benchmarks_only() {
            command.arg("--benchmark-suites");
        }
        options.setup.target_process().apply(&mut command);
        if options.setup.has_frames {
            ethernet::apply(&mut command);
        }
        let name = format!("target-{}", options.setup.file_name());
        let quota = options.setup.target.quota_percent.map(CpuQuota::create).transpose()?;
        let mut target = Background::start(&name, command, &options.placement.target, &options.directory)?;
        if let Some(quota) = &quota {
            quota.add(target.pid())?;
            // Until it is measured.
            quota.lift()?;
        }
        let address = target.wait_until(READY_TIMEOUT, |target| {
            target.log().lines().find_map(|line| line.strip_prefix("serving on ").map(str::to_owned))
        })?;
        let setup = options.setup;
        let placement = Some(options.placement.clone()).filter(Placement::is_pinned);
        let initiators = InitiatorPool::new(&options.lab_binary, &options.directory, placement, &setup.file_name());
        let identity = options.identity();
        let initiators = initiators.of_kind(setup.process).in_namespace(options.hosts.initiators.clone());
        let initiators = if setup.has_frames { initiators.with_frames() } else { initiators };
        let target_key = target_key.trim().to_owned();
        let (connections, busy_poll) = (1, None);
        Ok(Ours { identity, options, initiators, target, quota, address, stats, target_key, connections, busy_poll })
    }

    /// The same under another name in results.
    #[must_use]
    pub fn named(mut self, contender: &str, medium: &str) -> Ours {
        contender.clone_into(&mut self.identity.contender);
        medium.clone_into(&mut self.identity.medium);
        self
    }

    /// The same as one of several releases.
    #[must_use]
    pub fn of_release(mut self, release: &str) -> Ours {
        self.identity = self.identity.of_release(release);
        self
    }

    /// Where the target listens, `address:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The name of the volume with blocks of this many bytes.
    pub fn volume_name(block_size: u64) -> String {
        format!("bench-{block_size}")
    }

    /// Initiators use this many TCP connections for a session.
    #[must_use]
    pub fn with_connections(mut self, connections: u16) -> Ours {
        self.connections = connections;
        self
    }

    /// Initiators poll like that (`--busy-poll`); the target does as its arguments say.
    #[must_use]
    pub fn with_busy_poll(mut self, busy_poll: &str) -> Ours {
        self.busy_poll = Some(busy_poll.to_owned());
        self
    }

    /// Volumes are written so often before the first measurement, not once: a target that has been at work for a while has its caches full
    /// and its memory.
    #[must_use]
    pub fn with_fills(mut self, fills: u32) -> Ours {
        self.initiators.fills = fills;
        self
    }

    /// The product that serves.
    pub(crate) fn product(&self) -> Product {
        self.options.product()
    }

    /// The target's process.
    pub fn target(&self) -> &Background {
        &self.target
    }

    /// What the target says that it has done so far.
    pub fn work(&self) -> Option<TargetWork> {
        let text = fs::read_to_string(&self.stats).ok()?;
        let stats: serde_json::Value = serde_json::from_str(&text).ok()?;
        let number = |value: &serde_json::Value| value.as_u64();
        let crypto = ["encrypted_bytes", "decrypted_bytes", "mac_made_bytes", "mac_checked_bytes"];
        Some(TargetWork {
            crypto_bytes: crypto.iter().map(|name| number(&stats["crypto"][name])).sum::<Option<u64>>()?,
            data_bytes: number(&stats["bytes_read"])? + number(&stats["bytes_written"])?,
        })
    }

    /// How our initiator attaches the volume with blocks of this many bytes.
    pub fn attach_settings(&self, block_size: u64) -> AttachSettings {
        self.attach_settings_of(&Self::volume_name(block_size))
    }

    /// The same of the volume with this name.
    pub fn attach_settings_of(&self, volume: &str) -> AttachSettings {
        let file = |name: &str| Some(self.options.directory.join(name));
        let Some(scheme) = self.options.setup.scheme.channel() else {
            let url = format!("iscsi://{}/{DEFAULT_BASE_IQN}:{volume}/0", self.address);
            let (connections, busy_poll) = (self.connections, self.busy_poll.clone());
            return AttachSettings { url, connections, busy_poll, ..AttachSettings::default() };
        };
        let setup = self.options.setup;
        let sealing = setup.scheme.sealing();
        let protocol = if setup.scheme.is_ecl() { "ecl" } else { "strongroom" };
        let parity = setup.parity.map_or(String::new(), |(quanta, parity)| format!("?parity={quanta}+{parity}"));
        AttachSettings {
            url: format!("{protocol}://{}/{volume}{parity}", self.address),
            channel: ChannelSettings {
                identity: file("initiator.identity"),
                target_keys: vec![self.target_key.clone()],
                scheme: Some(scheme.name().to_owned()),
                suite: Some(setup.suite.name().to_owned()),
                benchmark_suites: true,
            },
            sealing: SealingSettings {
                key_file: sealing.filter(|_| setup.custody.is_blind()).and_then(|_| file("volume.key")),
                blocks_per_key: setup.blocks_per_key,
                authenticate_only: sealing == Some(Mode::AuthenticateOnly),
            },
            connections: self.connections,
            busy_poll: self.busy_poll.clone(),
            ..AttachSettings::default()
        }
    }

    /// The largest block size of ours that divides `size`.
    pub(crate) fn block_size_for(&self, size: u64) -> Result<u64, BenchError> {
        if let Some(bytes) = self.options.setup.seal_bytes {
            return Ok(bytes);
        }
        let fitting = self.options.block_sizes.iter().copied().filter(|block_size| size.is_multiple_of(*block_size));
        fitting.max().ok_or_else(|| BenchError::Asked(format!("there is no volume for I/Os of {size} bytes")))
    }
}

impl Contender for Ours {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn target_pids(&self) -> Vec<u32> {
        self.target.pids()
    }

    fn initiators(&mut self, count: u32, size: u64) -> Result<&mut [InitiatorProcess], BenchError> {
        let block_size = self.block_size_for(size)?;
        let settings = self.attach_settings(block_size);
        let is_sealed = self.options.setup.scheme.sealing().is_some();
        // Volumes are filled at full speed; what is measured is limited.
        self.quota.as_ref().map_or(Ok(()), CpuQuota::lift)?;
        let attached =
            self.initiators.attach(count, &settings, |settings, is_new| settings.format = is_new && is_sealed, true)?;
        self.quota.as_ref().map_or(Ok(()), CpuQuota::limit)?;
        Ok(attached)
    }

    fn target_work(&mut self) -> Option<TargetWork> {
        self.work()
    }

    fn reconnect(&mut self) {
        self.initiators.reconnect();
    }

    fn address(&self) -> Option<SocketAddr> {
        self.address.parse().ok()
    }
}

impl OursOptions {
    /// What it is called in results.
    pub fn identity(&self) -> Identity {
        let setup = self.setup;
        Identity {
            contender: setup.label(),
            scheme: setup.scheme.name().to_owned(),
            row: setup.row().to_owned(),
            process: setup.process.name().to_owned(),
            target_process: setup.target.process.map_or_else(String::new, |kind| kind.name().to_owned()),
            target_quota_percent: setup.target.quota_percent,
            medium: self.medium.split(':').next().unwrap_or_default().to_owned(),
            release: String::new(),
        }
    }

    /// A file with what no argument can say, if there is such a thing.
    fn configuration(&self) -> Result<Option<PathBuf>, BenchError> {
        let Some(bytes) = self.setup.record_cache else { return Ok(None) };
        let path = self.directory.join("strongroom.toml");
        let root = self.directory.join("volumes");
        // Data is not kept either: else what is read again needs no record.
        let limits = format!("record_cache_bytes = {bytes}\ndata_cache_bytes = 0");
        fs::write(&path, format!("root = {:?}\n\n[limits]\n{limits}\n", text(&root)?))
            .map_err(|error| BenchError::file(&path, error))?;
        Ok(Some(path))
    }

    /// The product that is measured.
    pub(crate) fn product(&self) -> Product {
        self.product.clone().unwrap_or_else(|| Product::of_lab(&self.lab_binary))
    }

    fn create_volumes(&self) -> Result<(), BenchError> {
        let sealed_at_once = self.setup.seal_bytes.map(|bytes| vec![bytes]);
        for &block_size in sealed_at_once.as_ref().unwrap_or(&self.block_sizes) {
            self.create_volume(&Ours::volume_name(block_size), self.volume_bytes, block_size)?;
        }
        for (name, bytes) in &self.further_volumes {
            self.create_volume(name, *bytes, FURTHER_BLOCK_BYTES)?;
        }
        Ok(())
    }

    fn create_volume(&self, name: &str, bytes: u64, block_size: u64) -> Result<(), BenchError> {
        let root = self.directory.join("volumes");
        let (size, block_size) = (bytes.to_string(), block_size.to_string());
        let wrapping_key = self.directory.join("wrapping.key");
        let mut arguments = vec!["volume", "create", name, "--size", &size, "--block-size", &block_size];
        arguments.extend(["--root", text(&root)?]);
        arguments.extend(if self.setup.scheme.is_channel() { ["--peer", "*"] } else { ["--initiator", "*"] });
        match self.setup.scheme.sealing() {
            None => arguments.push("--plain"),
            Some(mode) => {
                arguments.extend(["--suite", self.setup.suite.name()]);
                if mode == Mode::AuthenticateOnly {
                    arguments.push("--authenticate-only");
                }
                if !self.setup.custody.is_blind() {
                    arguments.extend(["--custody", "target", "--wrapping-key", text(&wrapping_key)?]);
                }
            }
        }
        arguments.extend(["--medium", &self.medium]);
        self.run(&arguments).map(drop)
    }

    /// Runs the binary to its end; what it printed.
    fn run(&self, arguments: &[&str]) -> Result<String, BenchError> {
        let product = self.product();
        let output = product.command(None).args(arguments).output();
        let output = output.map_err(|error| BenchError::file(product.program(), error))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(BenchError::process(format!("strongroom {}", arguments.join(" ")), said))
    }
}

/// A target that runs already, by URL. Nothing is known of its processes.
#[derive(Debug)]
pub struct Elsewhere {
    identity: Identity,
    settings: AttachSettings,
    fill: bool,
    initiators: InitiatorPool,
}

impl Elsewhere {
    /// Initiators for the volume that `settings` names. It is filled first only if `fill`, which overwrites its contents.
    ///
    /// # Errors
    /// If the URL is none.
    pub fn new(
        lab_binary: &Path,
        directory: &Path,
        settings: AttachSettings,
        fill: bool,
    ) -> Result<Elsewhere, BenchError> {
        let url: VolumeUrl = settings
            .url
            .parse()
            .map_err(|error: strongroom_initiator::UrlError| BenchError::Asked(error.to_string()))?;
        let chosen = settings.channel.scheme.as_deref().unwrap_or(strongroom_channel::Scheme::default().name());
        let scheme = if url.is_channel() { chosen.to_owned() } else { "S0".to_owned() };
        let identity = Identity {
            contender: scheme.clone(),
            scheme: scheme.clone(),
            medium: format!("at {}", url.host()),
            ..Identity::default()
        };
        Ok(Elsewhere { identity, settings, fill, initiators: InitiatorPool::new(lab_binary, directory, None, &scheme) })
    }
}

impl Contender for Elsewhere {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn target_pids(&self) -> Vec<u32> {
        Vec::new()
    }

    fn initiators(&mut self, count: u32, _size: u64) -> Result<&mut [InitiatorProcess], BenchError> {
        self.initiators.attach(count, &self.settings, |_, _| (), self.fill)
    }
}

/// Initiators' processes, started as they are needed; what each has attached, and which volumes are filled.
#[derive(Debug)]
pub struct InitiatorPool {
    lab_binary: PathBuf,
    directory: PathBuf,
    placement: Option<Placement>,
    name: String,
    kind: ProcessKind,
    has_frames: bool,
    namespace: Option<String>,
    processes: Vec<InitiatorProcess>,
    attached: Vec<Option<String>>,
    filled: Vec<String>,
    /// How often a volume is written when it is filled.
    fills: u32,
}

impl InitiatorPool {
    /// None started yet. `name` tells them from those of another contender, in logs.
    pub fn new(lab_binary: &Path, directory: &Path, placement: Option<Placement>, name: &str) -> InitiatorPool {
        InitiatorPool {
            lab_binary: lab_binary.to_owned(),
            directory: directory.to_owned(),
            placement,
            name: name.to_owned(),
            kind: ProcessKind::default(),
            has_frames: false,
            namespace: None,
            processes: Vec::new(),
            attached: Vec::new(),
            filled: Vec::new(),
            fills: 1,
        }
    }

    /// The same, of processes with or without the processor's AES instructions.
    #[must_use]
    pub fn of_kind(mut self, kind: ProcessKind) -> InitiatorPool {
        self.kind = kind;
        self
    }

    /// The same, of processes whose ECL packets are Ethernet frames.
    #[must_use]
    fn with_frames(mut self) -> InitiatorPool {
        self.has_frames = true;
        self
    }

    /// The same, of processes in a network namespace.
    #[must_use]
    pub fn in_namespace(mut self, namespace: Option<String>) -> InitiatorPool {
        self.namespace = namespace;
        self
    }

    /// `count` of them, attached to `volume` (a name of the caller's) by `engine`, which is given the initiator's index, and
    /// whether this is the first use of the volume. The first also fills it, if `fill`. Initiators that are not needed detach: an idle
    /// session must not take part.
    ///
    /// # Errors
    /// If one cannot be started or attached.
    pub fn attach_with(
        &mut self,
        count: u32,
        volume: &str,
        fill: bool,
        engine: impl Fn(usize, bool) -> Engine,
    ) -> Result<&mut [InitiatorProcess], BenchError> {
        for index in 0..count as usize {
            let is_new = !self.filled.iter().any(|filled| filled == volume);
            if index == self.processes.len() {
                self.start_one(index)?;
            }
            if self.attached[index].as_deref() == Some(volume) {
                continue;
            }
            self.attached[index] = None;
            let process = &mut self.processes[index];
            process.attach(serde_json::to_value(engine(index, is_new)).expect("plain data"))?;
            if is_new && fill {
                (0..self.fills).try_for_each(|_| process.fill())?;
            }
            if is_new {
                self.filled.push(volume.to_owned());
            }
            self.attached[index] = Some(volume.to_owned());
        }
        self.processes.truncate(count as usize);
        self.attached.truncate(count as usize);
        Ok(&mut self.processes)
    }

    /// The next call attaches all of them again, by new connections.
    pub fn reconnect(&mut self) {
        self.attached.iter_mut().for_each(|attached| *attached = None);
    }

    /// The same with our own initiator, by URL; `prepare` changes the settings for the first use of the volume.
    fn attach(
        &mut self,
        count: u32,
        settings: &AttachSettings,
        prepare: impl Fn(&mut AttachSettings, bool),
        fill: bool,
    ) -> Result<&mut [InitiatorProcess], BenchError> {
        self.attach_with(count, &settings.url, fill, |index, is_new| {
            let mut settings = settings.clone();
            settings.initiator_name.get_or_insert_with(|| format!("{INITIATOR_NAME}-{index}"));
            prepare(&mut settings, is_new);
            Engine::Strongroom(Box::new(settings))
        })
    }

    fn start_one(&mut self, index: usize) -> Result<(), BenchError> {
        let mut command = command_in(self.namespace.as_deref(), &self.lab_binary);
        command.args(["--log", "error", "initiator"]);
        self.kind.apply(&mut command);
        if self.has_frames {
            ethernet::apply(&mut command);
        }
        let cpu = self.placement.as_ref().map(|placement| placement.initiator(index));
        let name = format!("initiator-{}-{index}", self.name);
        self.processes.push(InitiatorProcess::start(&name, command, cpu, &self.directory)?);
        self.attached.push(None);
        Ok(())
    }
}

fn text(path: &Path) -> Result<&str, BenchError> {
    path.to_str()
        .ok_or_else(|| BenchError::Asked(format!("{} is not UTF-8; work in another directory", path.display())))
}
