//! `strongroom-lab profile`: the CPU time of an I/O by stage, at both ends, for every scheme.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use strongroom_block::Custody;
use strongroom_lab::profile::{self, ProfilePlan};
use strongroom_lab::rawio::RawioPlan;
use strongroom_lab::{SchemeChoice, Setup};

use super::ciphers::CipherArgs;
use super::own_target::{GridArgs, OwnTargetArgs};
use super::results::seconds;
use super::site::Site;
use super::{PlacementArgs, RunArgs};

/// Where the CPU time of an I/O goes, by stage, at both ends.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom-lab profile --patterns seqwrite,randread --sizes 4k\n  \
    strongroom-lab profile --schemes S0,S2-5 --runs 5 --json profile.jsonl\n  \
    strongroom-lab report profile.jsonl --profile profile.md\n\n\
    Needs perf, and may sample whole processors: as root, or with the sysctl kernel.perf_event_paranoid below 1. CPU time and I/Os are those of a \
    measurement in which nobody looks; before it, perf samples both ends for --look seconds while they do the same.")]
pub(crate) struct ProfileArgs {
    /// The schemes to compare, by the paper's names or by what they do, or 'all'; ECL-S1-2 and ECL-S2-5 are over ECL instead of iSCSI.
    #[arg(long, value_name = "LIST", default_value = "S0,S2-1,S2-5,ECL-S2-5")]
    schemes: String,
    #[command(flatten)]
    ciphers: CipherArgs,
    #[command(flatten)]
    grid: GridArgs,
    #[command(flatten)]
    own_target: OwnTargetArgs,
    /// How long perf samples in each run.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    look: f64,
    /// How long perf counts system calls in each run.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    count: f64,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    placement: PlacementArgs,
}

/// Runs the command.
pub(crate) fn run(args: &ProfileArgs) -> Result<()> {
    let (time, warm_up) = args.run.times()?;
    let (look, count) = (seconds(args.look, "--look")?, seconds(args.count, "--count")?);
    if look.min(count) < Duration::from_millis(50) {
        bail!("so short a look sees nothing; give at least --look 0.05 and --count 0.05");
    }
    let rawio = RawioPlan {
        bench: profile::BENCH_PROFILE.into(),
        grid: args.grid.grid()?,
        runs: args.run.runs,
        time,
        warm_up,
        verify: false,
        parts: false,
        sealed_beforehand_bytes: None,
        rate: 0,
        is_prorated: false,
        placement: Some(args.placement.placement()?),
    };
    let schemes = SchemeChoice::list(&args.schemes)?;
    let processes = args.ciphers.processes_for(&args.schemes)?;
    let setups = Setup::all(&schemes, &args.ciphers.suites, &[Custody::KeyFile], &processes, &[None], &[None], &[None]);
    let setups = args.own_target.on_terms(setups)?;
    profile::check()?;
    let mut progress = args.run.progress_on(args.own_target.programs.machine()?, rawio.placement.as_ref())?;
    let site = Site::new(args.run.work_dir.as_deref())?;
    let plans = args.own_target.plans(&setups, &rawio, &site, 1, "off")?;
    let mut contenders = args.own_target.start(&plans)?;
    let mut binaries: Vec<PathBuf> = plans.into_iter().map(|plan| plan.options.lab_binary).collect();
    binaries.sort_unstable();
    binaries.dedup();
    let plan = ProfilePlan { rawio, look, count, binaries, directory: site.directory("perf")? };
    let outcome = profile::run(&plan, &mut contenders, &mut progress);
    drop(contenders);
    args.run.conclude(progress, outcome)
}
