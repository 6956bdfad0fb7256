//! `strongroom-lab dbench`: the real dbench on ext4 on an attached volume, for every scheme.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use strongroom_lab::dbench::{self, DbenchPlan, Mounted};
use strongroom_lab::{FURTHER_BLOCK_BYTES, Hosts, Machine, Ours, OursOptions, SchemeChoice, Setup};

use super::results::{ResultsArgs, seconds};
use strongroom::units::parse_size;

/// dbench, the load of a file server, on ext4 on an attached volume (the lazy-crypto paper's Table 4). Needs root.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom-lab dbench --schemes S0,S2-5 --clients 1,2,4,8 --seconds 60 --json dbench.jsonl\n  \
    strongroom-lab dbench --sync yes --clients 1 --seconds 10 --runs 1")]
pub(crate) struct DbenchArgs {
    /// The schemes to compare, by the paper's names, or 'all'.
    #[arg(long, value_name = "LIST", default_value = "all")]
    schemes: String,
    /// Clients at once.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8")]
    clients: Vec<u32>,
    /// With every write synchronous (dbench's -s), without, or both.
    #[arg(long, default_value = "both")]
    sync: SyncArg,
    /// How long one measurement lasts, in whole seconds; dbench warms up in the first fifth of it.
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// How often each is repeated.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    runs: u32,
    /// dbench's load file, if not the one that it finds by itself.
    #[arg(long, value_name = "FILE")]
    load_file: Option<PathBuf>,
    /// What lies beneath the target's store, as `volume create` takes it.
    #[arg(long, default_value = "memory")]
    medium: String,
    /// Bytes of the volume.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    volume_size: u64,
    #[command(flatten)]
    results: ResultsArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum SyncArg {
    /// With -s.
    Yes,
    /// Without.
    No,
    /// One after the other.
    Both,
}

/// Runs the command.
pub(super) fn run(args: &DbenchArgs) -> Result<()> {
    let placement = args.results.placement()?;
    let sync = match args.sync {
        SyncArg::Yes => vec![true],
        SyncArg::No => vec![false],
        SyncArg::Both => vec![false, true],
    };
    let plan = DbenchPlan {
        clients: args.clients.clone(),
        sync,
        time: seconds(args.seconds, "a measurement")?,
        runs: args.runs,
        load_file: args.load_file.clone(),
        placement: placement.clone(),
    };
    plan.check()?;
    dbench::check()?;
    let site = args.results.site(None)?;
    let lab_binary = std::env::current_exe().context("cannot find this program's own file")?;
    let mut machine = Machine::look();
    machine.add_program("dbench", &["--help"]);
    let mut progress = args.results.progress(machine, &placement)?;
    let mut mounted = Vec::new();
    for scheme in SchemeChoice::list(&args.schemes)? {
        let directory = site.directory(scheme.name())?;
        let ours = Ours::start(OursOptions {
            lab_binary: lab_binary.clone(),
            product: None,
            setup: Setup::new(scheme),
            medium: args.medium.clone(),
            volume_bytes: args.volume_size,
            block_sizes: vec![FURTHER_BLOCK_BYTES],
            further_volumes: Vec::new(),
            placement: placement.clone(),
            directory: directory.clone(),
            serve_args: Vec::new(),
            hosts: Hosts::default(),
        })?;
        mounted.push(Mounted::start(&directory, &placement, ours)?);
    }
    let outcome = dbench::run(&plan, &mounted, &mut progress);
    drop(mounted);
    args.results.conclude(progress, outcome)
}
