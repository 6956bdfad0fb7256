//! `strongroom-lab peers`: our volumes beside other people's targets and beside what secures iSCSI today.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use strongroom_lab::peers::{self, Backing, CustomPeer, OursByStock, Peer, PeerKind, PeerOptions};
use strongroom_lab::rawio::{self, RawioPlan};
use strongroom_lab::{BenchError, Contender, Hosts, Machine, Ours, OursOptions, Placement, SchemeChoice, Setup};

use super::own_target::{GridArgs, block_sizes};
use super::releases::LabProgramArgs;
use super::results::{ResultsArgs, seconds};
use super::site::Site;
use strongroom::units::parse_size;

/// Our plain volume, used by the stock initiator.
const OURS_PLAIN: &str = "strongroom";
/// The same, by a target that polls.
const OURS_POLLING: &str = "strongroom-polling";
/// Our sealed volume, used by our own initiator.
const OURS_SEALED: &str = "strongroom-sealed";

/// Other targets, and the stacks that secure them, beside ours (the grid of `bench rawio`, by a stock initiator).
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom-lab peers --patterns seqread,randwrite --sizes 4k,64k --runs 3 --json peers.jsonl\n  \
    strongroom-lab peers --only strongroom-sealed,stunnel,wireguard,qemu-luks --sizes 64k\n  \
    strongroom-lab peers --only strongroom-sealed,tgt --program old=/opt/old/strongroom-lab --program new=target/release/strongroom-lab\n  \
    strongroom-lab peers --only strongroom --peer 'gotgt/1=/opt/run-gotgt {file} {port} {iqn}'\n\n\
    Peers that are not installed are left out, with a word; scripts/deps.sh --bench installs them. Plain targets are used \
    by libiscsi; the sealed volume by our own initiator, and what QEMU offers by NBD.")]
pub(crate) struct PeersArgs {
    /// Whom to compare [default: all that are installed]: strongroom, strongroom-polling, strongroom-sealed, tgt-default, tgt, istgt, stunnel,
    /// wireguard, qemu-raw, qemu-luks.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    only: Vec<String>,
    /// A further target: NAME=COMMAND or NAME/LUN=COMMAND, a command line that serves {file} as {iqn} at {address} (or {host}
    /// and {port}), in blocks of {block} bytes, and stays in the foreground; can be repeated.
    #[arg(long = "peer", value_name = "NAME=COMMAND")]
    custom: Vec<CustomPeer>,
    #[command(flatten)]
    programs: LabProgramArgs,
    /// What volumes lie on: memory, disk (in --work-dir), or both.
    #[arg(long, default_value = "memory")]
    backing: BackingArg,
    #[command(flatten)]
    grid: GridArgs,
    /// How long one measurement lasts.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// How long I/O runs before it.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.3)]
    warm_up: f64,
    /// How often each is repeated.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    runs: u32,
    /// Compare every block that is read with what must be there, and read back what was written.
    #[arg(long)]
    verify: bool,
    /// Bytes of each volume.
    #[arg(long, value_name = "SIZE", default_value = "128MiB", value_parser = parse_size)]
    volume_size: u64,
    #[command(flatten)]
    results: ResultsArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum BackingArg {
    Memory,
    Disk,
    Both,
}

/// Runs the command.
pub(super) fn run(args: &PeersArgs) -> Result<()> {
    let placement = args.results.placement()?;
    let plan = args.plan(&placement)?;
    let chosen = args.chosen()?;
    let releases = args.programs.releases()?;
    let mut machine = args.programs.machine()?;
    chosen.iter().for_each(|(_, whom)| whom.add_programs(&mut machine));
    // Not in memory, as usual: that is what a disk-backed volume is for.
    let site = args.results.site(Some(&std::env::temp_dir()))?;
    let mut progress = args.results.progress(machine, &placement)?;
    let mut contenders: Vec<Box<dyn Contender>> = Vec::new();
    for (backing, whom) in &chosen {
        // Others have no releases that are compared.
        let releases = if matches!(whom, Whom::Peer(_)) { &releases[..1] } else { &releases[..] };
        for release in releases {
            match args.start(whom, release, *backing, &plan, &site) {
                Ok(contender) => contenders.push(contender),
                // A peer that was asked for by name must take part. Any other one that does not start is left out.
                Err(error) if !args.only.is_empty() => return Err(error),
                Err(error) => eprintln!("left out, it does not start: {error:#}"),
            }
        }
    }
    let outcome = rawio::run(&plan, &mut contenders, &mut progress);
    drop(contenders);
    args.results.conclude(progress, outcome)
}

/// Whom to compare.
#[derive(Clone)]
enum Whom {
    OursPlain,
    OursPolling,
    OursSealed,
    Peer(PeerKind),
}

impl Whom {
    fn of_word(word: &str) -> Result<Whom, BenchError> {
        match word {
            OURS_PLAIN => Ok(Whom::OursPlain),
            OURS_POLLING => Ok(Whom::OursPolling),
            OURS_SEALED => Ok(Whom::OursSealed),
            word => PeerKind::of_word(word).map(Whom::Peer),
        }
    }

    fn check(&self) -> Result<(), BenchError> {
        match self {
            Whom::OursPlain | Whom::OursPolling => strongroom_lab::libiscsi::available()
                .map_err(|missing| BenchError::Asked(format!("{OURS_PLAIN}: {missing}"))),
            Whom::OursSealed => Ok(()),
            Whom::Peer(kind) => kind.check(),
        }
    }

    fn add_programs(&self, machine: &mut Machine) {
        if let Whom::Peer(kind) = self {
            kind.add_programs(machine);
        }
    }
}

impl PeersArgs {
    fn plan(&self, placement: &Placement) -> Result<RawioPlan> {
        let grid = self.grid.grid()?;
        if self.runs == 0 {
            bail!("that measures nothing; give at least --runs 1");
        }
        Ok(RawioPlan {
            bench: "peers".into(),
            grid,
            runs: self.runs,
            time: seconds(self.seconds, "a measurement")?,
            warm_up: seconds(self.warm_up, "a warm-up")?,
            parts: false,
            sealed_beforehand_bytes: None,
            rate: 0,
            is_prorated: false,
            verify: self.verify,
            placement: Some(placement.clone()),
        })
    }

    /// Whom to compare, on what. A peer that was named must be installed; of all others, those that are take part.
    fn chosen(&self) -> Result<Vec<(Backing, Whom)>> {
        let mut whom = Vec::new();
        if self.only.is_empty() {
            let words = [OURS_PLAIN, OURS_POLLING, OURS_SEALED].into_iter().map(str::to_owned);
            for word in words.chain(PeerKind::KNOWN.iter().map(|kind| kind.word().to_owned())) {
                let one = Whom::of_word(&word)?;
                match one.check() {
                    Ok(()) => whom.push(one),
                    Err(missing) => eprintln!("left out: {missing}"),
                }
            }
        } else {
            for word in &self.only {
                let one = Whom::of_word(word.trim())?;
                one.check()?;
                whom.push(one);
            }
        }
        whom.extend(self.custom.iter().cloned().map(PeerKind::Custom).map(Whom::Peer));
        let backings: &[Backing] = match self.backing {
            BackingArg::Memory => &[Backing::Memory],
            BackingArg::Disk => &[Backing::Disk],
            BackingArg::Both => &[Backing::Memory, Backing::Disk],
        };
        Ok(backings.iter().flat_map(|backing| whom.iter().map(|one| (*backing, one.clone()))).collect())
    }

    fn start(
        &self,
        whom: &Whom,
        (release, program): &(String, PathBuf),
        backing: Backing,
        plan: &RawioPlan,
        site: &Site,
    ) -> Result<Box<dyn Contender>> {
        let block_sizes = block_sizes(&plan.grid);
        let placement = plan.placement.clone().expect("both ends are ours");
        let options = PeerOptions {
            lab_binary: std::env::current_exe().context("cannot find this program's own file")?,
            backing,
            volume_bytes: self.volume_size,
            block_sizes: block_sizes.clone(),
            placement: placement.clone(),
            directory: site.directory("peers")?,
            memory: memory_directory(),
        };
        let ours = |scheme: SchemeChoice, busy_poll: &str| {
            let medium = match backing {
                Backing::Memory => "memory",
                Backing::Disk => "directory",
            };
            Ok::<Ours, anyhow::Error>(Ours::start(OursOptions {
                lab_binary: program.clone(),
                product: None,
                setup: Setup::new(scheme),
                medium: medium.into(),
                volume_bytes: self.volume_size,
                block_sizes: block_sizes.clone(),
                further_volumes: Vec::new(),
                placement: placement.clone(),
                directory: site.directory(&format!("{}-{}-{busy_poll}-{release}", scheme.name(), backing.name()))?,
                serve_args: vec!["--busy-poll".into(), busy_poll.into()],
                hosts: Hosts::default(),
            })?)
        };
        let by_stock = |busy_poll: &str, name: &str| {
            let ours = OursByStock::new(ours(SchemeChoice::Plain, busy_poll)?, &options)?;
            Ok::<_, anyhow::Error>(Box::new(ours.named(&backing.label(name)).of_release(release)))
        };
        Ok(match whom {
            Whom::OursPlain => by_stock("off", peers::OURS_PLAIN)?,
            Whom::OursPolling => by_stock("auto", peers::OURS_POLLING)?,
            Whom::OursSealed => {
                let sealed = ours(SchemeChoice::list("S2-5")?[0], "off")?;
                Box::new(sealed.named(&backing.label(peers::OURS_SEALED), backing.name()).of_release(release))
            }
            Whom::Peer(kind) => Box::new(Peer::start(kind, &options)?),
        })
    }
}

/// Where files lie in memory.
pub(super) fn memory_directory() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}
