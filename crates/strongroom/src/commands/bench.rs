//! `strongroom bench`: the papers' experiments and today's, from the command line to a file of results and a report.
//!
//! Absent: how anything is measured (`strongroom_bench`).

mod initiator;
mod progress;
mod rawio;
mod site;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use strongroom_bench::{Placement, cpu};

use crate::units::parse_size;

/// Measure this machine's Strongroom, or a target elsewhere: the papers' experiments, and today's.
#[derive(Subcommand)]
#[command(after_help = "Examples:\n  \
    strongroom bench rawio --schemes S0,S2-5 --patterns randread --sizes 4k --depths 16 --seconds 2 --runs 3 --json r.jsonl\n\n\
    Numbers of different runs must not be compared: a run interleaves what it compares, and only that is fair.")]
pub(crate) enum BenchCommand {
    Rawio(rawio::RawioArgs),
    Initiator(initiator::InitiatorArgs),
}

/// Runs the command.
pub(crate) fn run(command: BenchCommand) -> Result<()> {
    match command {
        BenchCommand::Rawio(args) => rawio::run(&args),
        BenchCommand::Initiator(_) => initiator::run(),
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
