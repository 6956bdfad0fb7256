//! `strongroom-lab rawio`: the grid of patterns, sizes, depths and initiators, for every scheme or any URL.

use std::num::NonZeroU32;

use anyhow::{Context, Result, bail};
use clap::Args;
use strongroom_block::Custody;
use strongroom_initiator::VolumeUrl;
use strongroom_lab::engine::{AttachSettings, ChannelSettings, SealingSettings};
use strongroom_lab::rawio::{self, RawioPlan};
use strongroom_lab::{Contender, Elsewhere, SchemeChoice, Setup};

use super::ciphers::CipherArgs;
use super::own_target::{GridArgs, OwnTargetArgs};
use super::site::Site;
use super::{PlacementArgs, RunArgs, parse_io_size};
use strongroom::AccessArgs;
use strongroom::units::parse_size;

/// Longest block that ECL carries.
const QUANTUM_BYTES_MAX: u64 = 4096;

/// Sequential and random reads and writes (the lazy-crypto paper's Figure 6).
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom-lab rawio --schemes S0,S2-5 --patterns randread --sizes 4k --depths 16 --seconds 2 --runs 3\n  \
    strongroom-lab rawio --schemes S2-5,ECL-S2-5 --sizes 4k --depths 1,16,64 --seconds 2 --runs 5\n  \
    strongroom-lab rawio --schemes all --sizes 512,4k,8k,64k,1m --depths 1,16,128 --initiators 1,2,4,8 --json grid.jsonl\n  \
    strongroom-lab rawio --url strongroom://storage/vault --key-file ~/vault.key --patterns randread\n\n\
    Starts its own target in a process of its own, kept on a processor of its own, unless a --url is given.")]
pub(crate) struct RawioArgs {
    /// The schemes to compare, by the paper's names or by what they do, or 'all'; ECL-S1-2 and ECL-S2-5 are over ECL instead of iSCSI.
    #[arg(long, value_name = "LIST", default_value = "all", conflicts_with = "url")]
    schemes: String,
    #[command(flatten)]
    ciphers: CipherArgs,
    #[command(flatten)]
    keys: KeyArgs,
    #[command(flatten)]
    grid: GridArgs,
    /// Compare every block that is read with what must be there, and read back what was written.
    #[arg(long)]
    verify: bool,
    /// Measure what the target can do, not how fast initiators seal: before each measurement they seal this many bytes of writes, together,
    /// really and each for its own place, and send these; what they read they have opened once before, and only fetch. The wire and the
    /// target see what they see otherwise. A measurement is shorter if all is sent before its time is over.
    #[arg(long, value_name = "SIZE", num_args = 0..=1, default_missing_value = "1GiB", value_parser = parse_size, conflicts_with = "seal_bytes")]
    sealed_beforehand: Option<u64>,
    /// I/Os that each initiator begins in a second, as long as no more than --depths are in flight; how long one took counts from when it was
    /// due. 0: each begins when another one has completed.
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    rate: u32,
    /// Measure targets and initiators that have just started: both are started again for each measurement, on a volume that nobody has written, and
    /// it begins with their first I/O. Writes only; --warm-up and --fills do not count.
    #[arg(long, conflicts_with_all = ["url", "verify", "sealed_beforehand"])]
    just_started: bool,
    /// Measure this volume, wherever it is, instead of a target of our own.
    #[arg(long)]
    url: Option<VolumeUrl>,
    /// With --url: fill the volume first and allow writes. Its contents are lost.
    #[arg(long, requires = "url")]
    destroy_data: bool,
    #[command(flatten)]
    own_target: OwnTargetArgs,
    /// What results call this grid, so that a report keeps several apart.
    #[arg(long, default_value = "rawio")]
    name: String,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Block keys and seal records of sealed volumes.
#[derive(Args)]
struct KeyArgs {
    /// Who has the keys of sealed volumes: keyfile, target, or both. With `target` each block has a key of its own, which its seal record
    /// carries and the target wraps and keeps: what keeping keys costs is the difference.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "keyfile", value_parser = parse_custody)]
    custody: Vec<Custody>,
    /// Seal this many bytes as one, at any size of I/O; can be several. A smaller I/O then reads the rest of its block, and a
    /// write changes it, reseals it and writes it on the condition that no other write came between.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_io_size)]
    seal_bytes: Vec<u64>,
    /// Custody target: this many consecutive blocks share a key; can be several. For benchmarks only: the key of one block then opens
    /// the blocks beside it.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    blocks_per_key: Vec<NonZeroU32>,
    /// What the target keeps of seal records in memory, as 0 or 32MiB; can be several. Block data is not kept then.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    record_cache: Vec<u64>,
}

fn parse_custody(text: &str) -> Result<Custody, String> {
    let found = [Custody::KeyFile, Custody::Target].into_iter().find(|custody| custody.to_string() == text);
    found.ok_or_else(|| format!("'{text}' is no custody that can be measured; there are keyfile and target"))
}

/// Runs the command.
pub(crate) fn run(args: &RawioArgs) -> Result<()> {
    let plan = args.plan()?;
    let setups = if args.url.is_some() { Vec::new() } else { args.setups()? };
    let mut progress = args.run.progress_on(args.own_target.programs.machine()?, plan.placement.as_ref())?;
    let site = Site::new(args.run.work_dir.as_deref())?;
    let session = &args.access.session;
    let busy_poll = session.busy_poll.to_string();
    let plans = args.own_target.plans(&setups, &plan, &site, session.connections, &busy_poll)?;
    if args.just_started {
        let outcome = strongroom_lab::measure_just_started(&plan, &plans, &mut progress);
        return args.run.conclude(progress, outcome);
    }
    let mut contenders = match &args.url {
        Some(url) => vec![args.elsewhere(url, &site)?],
        None => args.own_target.start(&plans)?,
    };
    let outcome = rawio::run(&plan, &mut contenders, &mut progress);
    drop(contenders);
    args.run.conclude(progress, outcome)
}

impl RawioArgs {
    fn plan(&self) -> Result<RawioPlan> {
        let (time, warm_up) = self.run.times()?;
        let grid = self.grid.grid()?;
        if self.url.is_some() && self.own_target.is_chosen() {
            bail!(
                "--target-quota, --target-process and --program are about a target that this command starts; leave --url or them out"
            );
        }
        if self.url.is_some() && !self.destroy_data && (self.verify || grid.patterns.iter().any(|p| p.is_write())) {
            bail!(
                "writing to, or verifying, the volume at --url means to overwrite all of it; if that is meant, add \
                 --destroy-data, else read only: --patterns seqread,randread"
            );
        }
        Ok(RawioPlan {
            bench: self.name.clone(),
            grid,
            runs: self.run.runs,
            time,
            warm_up,
            verify: self.verify,
            parts: !self.keys.seal_bytes.is_empty(),
            sealed_beforehand_bytes: self.sealed_beforehand,
            rate: self.rate,
            is_prorated: false,
            placement: if self.url.is_some() { None } else { Some(self.placement.placement()?) },
        })
    }

    fn setups(&self) -> Result<Vec<Setup>> {
        let schemes = SchemeChoice::list(&self.schemes)?;
        let processes = self.ciphers.processes_for(&self.schemes)?;
        let seal_bytes: Vec<Option<u64>> = self.keys.seal_bytes.iter().copied().map(Some).collect();
        let seal_bytes = if seal_bytes.is_empty() { vec![None] } else { seal_bytes };
        for bytes in seal_bytes.iter().flatten() {
            if !bytes.is_power_of_two() || !(512..=65536).contains(bytes) {
                bail!("blocks of {bytes} bytes cannot be sealed; give powers of two from 512 to 64k");
            }
            if *bytes > QUANTUM_BYTES_MAX && schemes.iter().any(|scheme| scheme.is_ecl()) {
                bail!("ECL carries no blocks of {bytes} bytes; with ECL give --seal-bytes from 512 to 4k");
            }
        }
        let blocks_per_key: Vec<_> = self.keys.blocks_per_key.iter().copied().map(Some).collect();
        let blocks_per_key = if blocks_per_key.is_empty() { vec![None] } else { blocks_per_key };
        if !self.keys.blocks_per_key.is_empty() && !self.keys.custody.contains(&Custody::Target) {
            bail!("--blocks-per-key is about the keys that a target keeps for blocks: add --custody target");
        }
        let caches: Vec<Option<u64>> = self.keys.record_cache.iter().copied().map(Some).collect();
        let caches = if caches.is_empty() { vec![None] } else { caches };
        let suites = &self.ciphers.suites;
        let setups =
            Setup::all(&schemes, suites, &self.keys.custody, &processes, &seal_bytes, &blocks_per_key, &caches);
        self.own_target.on_terms(setups)
    }

    fn elsewhere(&self, url: &VolumeUrl, site: &Site) -> Result<Box<dyn Contender>> {
        let mut settings = AttachSettings {
            url: url.to_string(),
            initiator_name: self.access.names.initiator_name.clone(),
            base_name: self.access.names.base_name.clone(),
            channel: ChannelSettings {
                scheme: self.access.channel.scheme.map(|scheme| scheme.name().to_owned()),
                suite: self.access.channel.suite.map(|suite| suite.name().to_owned()),
                ..ChannelSettings::default()
            },
            sealing: SealingSettings {
                key_file: self.access.key_file.clone(),
                authenticate_only: self.access.authenticate_only,
                ..SealingSettings::default()
            },
            read_only: !self.destroy_data,
            connections: self.access.session.connections,
            pipeline: self.access.pipeline.map(|pipeline| pipeline.to_string()),
            busy_poll: Some(self.access.session.busy_poll.to_string()),
            ..AttachSettings::default()
        };
        if settings.initiator_name.is_some() && self.grid.initiators().iter().any(|count| *count > 1) {
            bail!("several initiators cannot go by one name; leave --initiator-name out");
        }
        if url.is_channel() {
            settings.channel.identity = Some(self.access.identity_file());
            let known = self.access.keys_of_target(url.host(), url.port())?;
            settings.channel.target_keys = known.iter().map(ToString::to_string).collect();
        }
        let lab_binary = std::env::current_exe().context("cannot find this program's own file")?;
        let directory = site.directory("elsewhere")?;
        Ok(Box::new(Elsewhere::new(&lab_binary, &directory, settings, self.destroy_data)?))
    }
}
