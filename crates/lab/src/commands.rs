//! The experiments and the link emulator: from the command line to a file of results and a report.
//!
//! Absent: how anything is measured (`strongroom_lab`).

mod attach;
mod btio;
mod ciphers;
mod dbench;
mod ecl;
mod flood;
mod initiator;
mod keys;
mod link;
mod own_target;
mod peers;
mod profile;
mod progress;
mod rawio;
mod releases;
mod report;
mod results;
mod site;
mod stream;
mod wan;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use strongroom_lab::{BenchError, Machine, Placement, cpu};

use progress::Progress;

use strongroom::units::parse_size;

/// The experiments.
#[derive(Subcommand)]
pub(crate) enum LabCommand {
    Rawio(Box<rawio::RawioArgs>),
    Profile(Box<profile::ProfileArgs>),
    Attach(Box<attach::AttachArgs>),
    Stream(stream::StreamArgs),
    Report(report::ReportArgs),
    Btio(btio::BtioArgs),
    Dbench(dbench::DbenchArgs),
    Ecl(ecl::EclArgs),
    Peers(peers::PeersArgs),
    Wan(Box<wan::WanArgs>),
    Keys(keys::KeysArgs),
    Link(Box<link::LinkCommandArgs>),
    Initiator(initiator::InitiatorArgs),
    Flood(flood::FloodArgs),
    Discard(flood::DiscardArgs),
    Receiver(stream::ReceiverArgs),
    SealRate(ciphers::SealRateArgs),
}

/// Runs the command.
pub(crate) fn run(command: LabCommand) -> Result<()> {
    match command {
        LabCommand::Rawio(args) => rawio::run(&args),
        LabCommand::Profile(args) => profile::run(&args),
        LabCommand::Attach(args) => attach::run(&args),
        LabCommand::Stream(args) => stream::run(&args),
        LabCommand::Report(args) => report::run(&args),
        LabCommand::Btio(args) => btio::run(&args),
        LabCommand::Dbench(args) => dbench::run(&args),
        LabCommand::Ecl(args) => ecl::run(&args),
        LabCommand::Peers(args) => peers::run(&args),
        LabCommand::Wan(args) => wan::run(&args),
        LabCommand::Keys(args) => keys::run(&args),
        LabCommand::Link(args) => link::run(&args),
        LabCommand::Initiator(_) => initiator::run(),
        LabCommand::Flood(args) => flood::flood(&args),
        LabCommand::Discard(args) => flood::discard(&args),
        LabCommand::Receiver(args) => stream::receive(&args),
        LabCommand::SealRate(_) => ciphers::seal_rate(),
    }
}

/// How long, how often, and where results go: the same for every experiment.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    /// How long one measurement lasts.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How long it runs before it is measured.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    warm_up: f64,
    /// How often each is repeated.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    runs: u32,
    /// Write one JSON object for each cell and run to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Add to that file instead of replacing it.
    #[arg(long, requires = "json")]
    append: bool,
    /// Where to work [default: /dev/shm, which is memory].
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    /// No progress bar, and no table at the end.
    #[arg(long)]
    quiet: bool,
}

impl RunArgs {
    /// Length of a measurement, and of the warm-up.
    fn times(&self) -> Result<(Duration, Duration)> {
        for (seconds, what) in [(self.seconds, "--seconds"), (self.warm_up, "--warm-up")] {
            if !(0.0..=3600.0).contains(&seconds) {
                bail!("{what} {seconds} is not possible; give 0 to 3600");
            }
        }
        let time = Duration::from_secs_f64(self.seconds);
        if time < Duration::from_millis(50) || self.runs == 0 {
            bail!("that measures nothing; give at least --seconds 0.05 and --runs 1");
        }
        Ok((time, Duration::from_secs_f64(self.warm_up)))
    }

    /// From here on Ctrl-C ends the benchmark in order.
    fn progress(&self, placement: Option<&Placement>) -> Result<Progress> {
        self.progress_on(Machine::look(), placement)
    }

    /// The same with a machine that has more to say.
    fn progress_on(&self, mut machine: Machine, placement: Option<&Placement>) -> Result<Progress> {
        machine.pinning = placement.map(Placement::in_words).unwrap_or_default();
        Progress::new(self.json.as_deref(), self.append, machine, self.quiet)
    }

    /// Shows what came out, and says how it went.
    fn conclude(&self, progress: Progress, outcome: Result<(), BenchError>) -> Result<()> {
        results::conclude(self.quiet, progress, outcome)
    }
}

/// Which processors both ends are kept on.
#[derive(Args, Clone, Debug)]
pub(crate) struct PlacementArgs {
    /// The processors for the target, as 1 or 1,2 [default: the last].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    target_cpus: Vec<usize>,
    /// The processors for the initiators [default: all others].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    initiator_cpus: Vec<usize>,
}

impl PlacementArgs {
    /// As it was asked for; without that nothing is pinned.
    fn placement_unless_unpinned(&self) -> Result<Placement> {
        match self.target_cpus.is_empty() && self.initiator_cpus.is_empty() {
            true => Ok(Placement::anywhere()),
            false => self.placement(),
        }
    }

    fn placement(&self) -> Result<Placement> {
        let mut placement = Placement::usual();
        let available = cpu::available();
        for (wanted, place) in
            [(&self.target_cpus, &mut placement.target), (&self.initiator_cpus, &mut placement.initiators)]
        {
            if let Some(missing) = wanted.iter().find(|cpu| !available.contains(cpu)) {
                bail!("there is no processor {missing} for us; this machine lets us use {available:?}");
            }
            if !wanted.is_empty() {
                place.clone_from(wanted);
            }
        }
        Ok(placement)
    }
}

/// One of a list of sizes, as `4k` or `64KiB`.
fn parse_io_size(text: &str) -> Result<u64, String> {
    parse_size(text.trim())
}
