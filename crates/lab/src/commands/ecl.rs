//! `strongroom-lab ecl`: the transport ECL beside iSCSI over TCP.
//!
//! Absent: what the experiments measure (`strongroom_lab::ecl`).

use anyhow::{Context, Result, bail};
use clap::Args;
use strongroom_lab::Machine;
use strongroom_lab::ecl::{self, EclExperiment, EclPlan};

use super::results::{ResultsArgs, seconds};
use strongroom::units::parse_size;

/// ECL beside iSCSI over TCP: what was asked of it, the quanta paper's Figures 5 to 10, lossy and shared links. Needs root.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom-lab ecl goals --json ecl.jsonl\n  \
    strongroom-lab ecl --json ecl.jsonl && strongroom-lab report ecl.jsonl --ecl ecl.md --plots plots\n  \
    strongroom-lab ecl loss fairness --runs 3 --json ecl.jsonl --append\n\n\
    goals: the target's CPU time per GiB and per 4 KiB I/O, and latency at depth 1\n  \
    figures: throughput over packets of 1500 to 16000 bytes, with and without offloads, beside the local disk, ECL as UDP and as Ethernet frames, and quanta of 512 to 4096\n  \
    depths: 4 KiB I/Os at depth 1 to 128\n  \
    loss: 4 KiB reads over links that lose packets, and writes over a long one\n  \
    fairness: beside a TCP connection, and 1 to 8 initiators, through 100 Mbit/s\n  \
    flood: 4 KiB reads while the target's UDP port is flooded\n  \
    files: bonnie++ on the local disk and on file systems on volumes, whose stores are there (--work-dir, else in the temporary directory)\n  \
    verify: reads and writes that are compared, over a cable and a link that loses packets, as UDP and as Ethernet frames")]
pub(crate) struct EclArgs {
    /// Which experiments: goals, figures, depths, loss, fairness, flood, files, verify [default: all].
    #[arg(value_name = "EXPERIMENT")]
    experiments: Vec<EclExperiment>,
    /// How long one measurement lasts; over links several times as long.
    #[arg(long, default_value_t = 0.7)]
    seconds: f64,
    /// How long I/O runs before it.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2)]
    warm_up: f64,
    /// How often each is repeated; experiments with many measurements repeat them half as often.
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    runs: u32,
    /// Bytes of each volume.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    volume_size: u64,
    /// How often volumes are written before the first measurement: a target that has just started still takes memory for its caches.
    #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    fills: u32,
    #[command(flatten)]
    results: ResultsArgs,
}

/// Runs the command.
pub(crate) fn run(args: &EclArgs) -> Result<()> {
    if args.runs == 0 || args.seconds < 0.05 {
        bail!("that measures nothing; give at least --seconds 0.05 and --runs 1");
    }
    ecl::check()?;
    let placement = args.results.placement()?;
    let site = args.results.site(None)?;
    // Not in memory, as usual: that is what a disk is for.
    let disk = args.results.site(Some(&std::env::temp_dir()))?;
    let plan = EclPlan {
        experiments: if args.experiments.is_empty() { EclExperiment::ALL.to_vec() } else { args.experiments.clone() },
        lab_binary: std::env::current_exe().context("cannot find this program's own file")?,
        directory: site.directory("ecl")?,
        disk_directory: disk.directory("ecl")?,
        placement: placement.clone(),
        runs: args.runs,
        time: seconds(args.seconds, "a measurement")?,
        warm_up: seconds(args.warm_up, "a warm-up")?,
        volume_bytes: args.volume_size,
        fills: args.fills,
    };
    let mut progress = args.results.progress(Machine::look(), &placement)?;
    let outcome = ecl::run(&plan, &mut progress);
    args.results.conclude(progress, outcome)
}
