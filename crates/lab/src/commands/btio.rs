//! `strongroom-lab btio`: the I/O of NAS BTIO on one shared volume, for every scheme.

use anyhow::{Context, Result};
use clap::Args;
use strongroom_lab::btio::{self, BtioPlan, Problem};
use strongroom_lab::{Contender, Hosts, Machine, Ours, OursOptions, SchemeChoice, Setup};

use super::results::ResultsArgs;

/// Room beside the file.
const SPARE_BYTES: u64 = 16 << 20;

/// NAS BTIO's I/O: several initiators write one shared solution in short rows (the lazy-crypto paper's Table 3).
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom-lab btio --schemes S0,S2-5 --initiators 1,4,9 --json btio.jsonl\n  \
    strongroom-lab btio --class S --initiators 4 --runs 1\n\n\
    Class A writes 40 dumps of 10 MiB. Afterwards one initiator compares every byte of the file.")]
pub(crate) struct BtioArgs {
    /// The schemes to compare, by the paper's names, or 'all'.
    #[arg(long, value_name = "LIST", default_value = "all")]
    schemes: String,
    /// The size of the problem: S, W, A or B.
    #[arg(long, default_value = "A", value_parser = parse_class)]
    class: Problem,
    /// How often the solution is written [default: as the class says, 40 for A].
    #[arg(long, value_name = "COUNT")]
    dumps: Option<u32>,
    /// Initiators at once: square numbers.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,4,9")]
    initiators: Vec<u32>,
    /// Writes in flight for each initiator.
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    depth: u32,
    /// How often each is repeated.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    runs: u32,
    /// What lies beneath the target's store, as `volume create` takes it.
    #[arg(long, default_value = "memory")]
    medium: String,
    #[command(flatten)]
    results: ResultsArgs,
}

fn parse_class(text: &str) -> Result<Problem, String> {
    let mut letters = text.chars();
    let problem = letters.next().and_then(|letter| Problem::of_class(letter.to_ascii_uppercase()));
    problem.filter(|_| letters.next().is_none()).ok_or_else(|| format!("'{text}' is no class; choose S, W, A or B"))
}

/// Runs the command.
pub(super) fn run(args: &BtioArgs) -> Result<()> {
    let problem = Problem { dumps: args.dumps.unwrap_or(args.class.dumps), ..args.class };
    let placement = args.results.placement()?;
    let plan = BtioPlan {
        problem,
        initiators: args.initiators.clone(),
        depth: args.depth,
        runs: args.runs,
        placement: placement.clone(),
    };
    plan.check()?;
    let site = args.results.site(None)?;
    let lab_binary = std::env::current_exe().context("cannot find this program's own file")?;
    let mut progress = args.results.progress(Machine::look(), &placement)?;
    let mut contenders: Vec<Box<dyn Contender>> = Vec::new();
    for scheme in SchemeChoice::list(&args.schemes)? {
        contenders.push(Box::new(Ours::start(OursOptions {
            lab_binary: lab_binary.clone(),
            product: None,
            setup: Setup::new(scheme),
            medium: args.medium.clone(),
            volume_bytes: (problem.file_bytes() + SPARE_BYTES).next_multiple_of(1 << 20),
            block_sizes: vec![btio::BLOCK_BYTES],
            further_volumes: Vec::new(),
            placement: placement.clone(),
            directory: site.directory(scheme.name())?,
            serve_args: Vec::new(),
            hosts: Hosts::default(),
        })?));
    }
    let outcome = btio::run(&plan, &mut contenders, &mut progress);
    drop(contenders);
    args.results.conclude(progress, outcome)
}
