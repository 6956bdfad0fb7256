//! `strongroom-lab attach`: fio on attached volumes, for every scheme, with one or several releases of the product.
//!
//! Absent: how it is measured (`strongroom_lab::attach`).

mod namespaces;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use strongroom_lab::attach::{self, AttachArguments, AttachPlan, Contenders, Rival, ServeOptions, ServedVolumes, Way};
use strongroom_lab::peers::{Backing, PeerKind, PeerOptions};
use strongroom_lab::{
    BenchError, FURTHER_BLOCK_BYTES, Hosts, Machine, OursOptions, Pattern, Placement, Product, SchemeChoice, Setup,
    StartPlan, Watch,
};

use super::peers::memory_directory;
use super::progress::Progress;
use super::releases::{self, ReleaseProgram};
use super::results::{ResultsArgs, seconds};
use super::site::Site;
use strongroom::units::parse_size;

/// What the quick form takes instead of the usual: is it alive?
const QUICK: Amounts =
    Amounts { seconds: 0.1, warm_up: 0.0, runs: 1, fills: 1, volume_bytes: 16 << 20, ext4_bytes: 64 << 20 };
const USUAL: Amounts =
    Amounts { seconds: 1.0, warm_up: 0.3, runs: 5, fills: 4, volume_bytes: 256 << 20, ext4_bytes: 512 << 20 };
/// How long idle attachments are looked at.
const IDLE_TIME: Duration = Duration::from_secs(10);
const IDLE_TIME_QUICK: Duration = Duration::from_millis(500);
/// The scheme whose attachments idle: a sealed volume's.
const IDLE_SCHEME: &str = "S2-5";
/// Smallest volume for ext4 with a file in it, in bytes.
const EXT4_BYTES_MIN: u64 = 32 << 20;
/// Smallest volume for its file, in bytes: several I/Os of 1 MiB.
const VOLUME_BYTES_MIN: u64 = 8 << 20;

/// fio on an attached volume, as a file in FUSE, by NBD, and as ext4 on --mount, beside our own client, nbdkit, and qemu-nbd with LUKS. Needs root
/// and fio.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom-lab attach --json attach.jsonl && strongroom-lab report attach.jsonl --attach attach.md\n  \
    strongroom-lab attach --program old=/opt/old/strongroom --program new=target/release/strongroom --schemes S2-5\n  \
    strongroom-lab attach --schemes S2-5 --attach-with 'one=' --attach-with 'two=--connections 2' --ways file\n\n\
    The file is used with direct I/O, and NBD at a Unix socket by one connection: 4 KiB random reads and writes at depth 1 and 16, 64 KiB \
    sequential ones at depth 16, 1 MiB at depth 4. In ext4 a whole file is \
    read, and written and made durable, through the page cache, in which nothing of it is at the beginning; 4 KiB random reads are direct, at depth \
    16. Nothing is pinned unless --target-cpus or --initiator-cpus is given (programs then run where initiators do). It runs in namespaces of its \
    own (mounts, network, processes): what is attached is not seen outside, and goes with it.")]
pub(crate) struct AttachArgs {
    /// The product that serves and attaches: PATH, or NAME=PATH to name it in results. Several are releases that are compared [default: the
    /// product in this program].
    #[arg(long = "program", value_name = "[NAME=]PATH")]
    programs: Vec<ReleaseProgram>,
    /// Also attach with these arguments of `strongroom attach`: NAME=ARGUMENTS; each is a contender. NAME= is for no arguments.
    #[arg(long, value_name = "NAME=ARGUMENTS")]
    attach_with: Vec<AttachArguments>,
    /// The schemes to compare, by the paper's names or by what they do, or 'all'.
    #[arg(long, value_name = "LIST", default_value = "S0,S2-1,S2-5")]
    schemes: String,
    /// How programs reach the volume: file, nbd, ext4. With nbd, nbdkit and qemu-nbd with LUKS take part.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "file,nbd,ext4")]
    ways: Vec<Way>,
    /// What programs do: seqread, seqwrite, randread, randwrite.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "seqread,seqwrite,randread,randwrite")]
    patterns: Vec<Pattern>,
    /// What lies beneath the targets' stores, as `volume create` takes it: memory, directory (in --work-dir).
    #[arg(long, default_value = "memory")]
    medium: String,
    /// Then also what this many sealed volumes cost that are attached as files and that nobody uses, with busy polling and without, looked at for 10
    /// seconds in each run.
    #[arg(long, value_name = "VOLUMES", value_parser = clap::value_parser!(u32).range(1..=1000))]
    idle: Option<u32>,
    #[command(flatten)]
    amounts: AmountArgs,
    /// How both ends poll: off, auto or microseconds [default: as usual, without saying so to them].
    #[arg(long, value_name = "WAIT")]
    busy_poll: Option<String>,
    #[command(flatten)]
    results: ResultsArgs,
}

/// How much of everything.
#[derive(Args)]
struct AmountArgs {
    /// Everything once, as small and short as it goes: is it alive? Its numbers say nothing.
    #[arg(long)]
    quick: bool,
    /// How long one measurement lasts [default: 1].
    #[arg(long)]
    seconds: Option<f64>,
    /// How long I/O runs before it [default: 0.3].
    #[arg(long, value_name = "SECONDS")]
    warm_up: Option<f64>,
    /// How often each is repeated [default: 5].
    #[arg(long, value_name = "COUNT")]
    runs: Option<u32>,
    /// How often volumes are written before the first measurement [default: 4].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    fills: Option<u32>,
    /// Bytes of the volumes that are used as a file, and by the client [default: 256MiB].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    volume_size: Option<u64>,
    /// Bytes of the volumes with ext4; three quarters are one file [default: 512MiB].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    ext4_size: Option<u64>,
}

/// The same, with what was not given.
#[derive(Clone, Copy)]
struct Amounts {
    seconds: f64,
    warm_up: f64,
    runs: u32,
    fills: u32,
    volume_bytes: u64,
    ext4_bytes: u64,
}

impl AmountArgs {
    fn amounts(&self) -> Result<Amounts> {
        let usual = if self.quick { QUICK } else { USUAL };
        let amounts = Amounts {
            seconds: self.seconds.unwrap_or(usual.seconds),
            warm_up: self.warm_up.unwrap_or(usual.warm_up),
            runs: self.runs.unwrap_or(usual.runs),
            fills: self.fills.unwrap_or(usual.fills),
            volume_bytes: self.volume_size.unwrap_or(usual.volume_bytes),
            ext4_bytes: self.ext4_size.unwrap_or(usual.ext4_bytes),
        };
        if amounts.seconds < 0.05 || amounts.runs == 0 {
            bail!("that measures nothing; give at least --seconds 0.05 and --runs 1");
        }
        if amounts.volume_bytes < VOLUME_BYTES_MIN || amounts.ext4_bytes < EXT4_BYTES_MIN {
            bail!("such small volumes hold too little; give at least --volume-size 8MiB and --ext4-size 32MiB");
        }
        Ok(amounts)
    }
}

/// Runs the command.
pub(super) fn run(args: &AttachArgs) -> Result<()> {
    let (plan, amounts) = args.plan()?;
    let schemes = SchemeChoice::list(&args.schemes)?;
    let products = args.releases()?;
    let attached_with = args.attached_with()?;
    attach::check(&args.ways)?;
    namespaces::enter()?;
    let mut machine = Machine::look();
    machine.add_program("fio", &["--version"]);
    if args.ways.contains(&Way::Nbd) {
        machine.add_program("nbdkit", &["--version"]);
        PeerKind::QemuLuks.add_programs(&mut machine);
    }
    releases::add_versions(&args.programs, &mut machine)?;
    let site = args.results.site(None)?;
    let mut progress = args.results.progress(machine, &plan.placement)?;
    let mut served = Vec::new();
    let all = schemes.len() * products.len();
    for scheme in schemes {
        for (name, product) in &products {
            let setup = Setup::new(scheme);
            let what = format!("{} {name}: starts, and fills its volumes", setup.label());
            progress.step(served.len(), all, None, &what);
            let target = args.target(setup, name, product.clone(), &plan.placement, amounts, &site)?;
            let options = ServeOptions {
                target,
                release: name.clone(),
                attached_with: attached_with.clone(),
                ways: plan.ways.clone(),
                ext4_bytes: amounts.ext4_bytes,
                fills: amounts.fills,
                busy_poll: args.busy_poll.clone(),
            };
            match ServedVolumes::start(options, &progress) {
                Ok(one) => served.push(one),
                Err(error) => return stopped_or(args, progress, error),
            }
        }
    }
    let mut contenders = Contenders { served, rivals: Vec::new() };
    if plan.ways.contains(&Way::Nbd) {
        match Rival::start_all(&args.rival_options(&plan.placement, amounts, &site)?, &progress) {
            Ok(rivals) => contenders.rivals = rivals,
            Err(error) => return stopped_or(args, progress, error),
        }
    }
    let mut outcome = attach::run(&plan, &mut contenders, &mut progress);
    drop(contenders);
    if outcome.is_ok()
        && let Some(volumes) = args.idle
    {
        let plans = args.idle_plans(&products, &plan.placement, &site)?;
        let time = if args.amounts.quick { IDLE_TIME_QUICK } else { IDLE_TIME };
        outcome = attach::measure_idle(&plans, volumes, plan.runs, time, &mut progress);
    }
    args.results.conclude(progress, outcome)
}

/// The end of a run whose targets do not all stand.
fn stopped_or(args: &AttachArgs, progress: Progress, error: BenchError) -> Result<()> {
    args.results.conclude(progress, Err(error))
}

impl AttachArgs {
    fn plan(&self) -> Result<(AttachPlan, Amounts)> {
        let amounts = self.amounts.amounts()?;
        let mut ways = self.ways.clone();
        ways.sort_by_key(|way| *way == Way::Ext4);
        ways.dedup();
        let time: Duration = seconds(amounts.seconds, "a measurement")?;
        let placement = self.results.placement_unless_unpinned()?;
        let warm_up = seconds(amounts.warm_up, "a warm-up")?;
        let patterns = self.patterns.clone();
        Ok((AttachPlan { runs: amounts.runs, time, warm_up, ways, patterns, placement }, amounts))
    }

    /// Names, and the programs; the name of only one is empty, unless it was given.
    fn releases(&self) -> Result<Vec<(String, Option<Product>)>> {
        if self.programs.is_empty() {
            return Ok(vec![(String::new(), None)]);
        }
        let named = releases::named(&self.programs)?;
        Ok(named.into_iter().map(|(name, path)| (name, Some(Product::at(&path)))).collect())
    }

    fn attached_with(&self) -> Result<Vec<AttachArguments>> {
        if self.attach_with.is_empty() {
            return Ok(vec![AttachArguments::default()]);
        }
        let names: BTreeSet<&str> = self.attach_with.iter().map(|with| with.name.as_str()).collect();
        if names.len() < self.attach_with.len() {
            bail!("two --attach-with have one name; give each its own");
        }
        Ok(self.attach_with.clone())
    }

    /// Targets of idle volumes: of each release, with busy polling and without.
    fn idle_plans(
        &self,
        products: &[(String, Option<Product>)],
        placement: &Placement,
        site: &Site,
    ) -> Result<Vec<StartPlan>> {
        let (setup, amounts) = (Setup::new(SchemeChoice::list(IDLE_SCHEME)?[0]), self.amounts.amounts()?);
        let mut plans = Vec::new();
        for (release, product) in products {
            for busy_poll in attach::IDLE_POLLS {
                let name = format!("idle-{busy_poll}-{release}");
                let mut options = self.target(setup, &name, product.clone(), placement, amounts, site)?;
                options.serve_args = vec!["--busy-poll".into(), busy_poll.into()];
                let (release, busy_poll) = (release.clone(), busy_poll.to_owned());
                plans.push(StartPlan { options, release, connections: 1, busy_poll });
            }
        }
        Ok(plans)
    }

    fn rival_options(&self, placement: &Placement, amounts: Amounts, site: &Site) -> Result<PeerOptions> {
        Ok(PeerOptions {
            lab_binary: std::env::current_exe().context("cannot find this program's own file")?,
            backing: Backing::Memory,
            volume_bytes: amounts.volume_bytes,
            block_sizes: vec![FURTHER_BLOCK_BYTES],
            placement: placement.clone(),
            directory: site.directory("rivals")?,
            memory: memory_directory(),
        })
    }

    fn target(
        &self,
        setup: Setup,
        release: &str,
        product: Option<Product>,
        placement: &Placement,
        amounts: Amounts,
        site: &Site,
    ) -> Result<OursOptions> {
        Ok(OursOptions {
            lab_binary: std::env::current_exe().context("cannot find this program's own file")?,
            product,
            setup,
            medium: self.medium.clone(),
            volume_bytes: amounts.volume_bytes,
            block_sizes: vec![FURTHER_BLOCK_BYTES],
            further_volumes: Vec::new(),
            placement: placement.clone(),
            directory: site.directory(&format!("{}-{release}", setup.file_name()))?,
            serve_args: Vec::new(),
            hosts: Hosts::default(),
        })
    }
}
