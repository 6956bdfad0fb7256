//! `strongroom-lab stream`: messages through the bare channel, TLS and bare TCP; and the process that receives them.

use anyhow::{Context, Result};
use clap::Args;
use strongroom_lab::stream::{self, Protection, StreamPlan};

use super::ciphers::CipherArgs;
use super::site::Site;
use super::{PlacementArgs, RunArgs, parse_io_size};

/// Messages through one connection: bare, through a channel, through TLS (the lazy-crypto paper's Figure 2).
#[derive(Args)]
#[command(after_help = "Example: strongroom-lab stream --sizes 512,4k,64k,1m --seconds 2 --runs 3 --json stream.jsonl")]
pub(crate) struct StreamArgs {
    /// What to compare: tcp, S1-1, S1-2, S2-1, S2-3, S2-5 (or what they are called), tls.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "tcp,S1-1,S1-2,S2-1,S2-3,S2-5,tls")]
    protections: Vec<Protection>,
    #[command(flatten)]
    ciphers: CipherArgs,
    /// Bytes of a message: powers of two from 512 to 16MiB.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "512,4k,8k,64k,1m", value_parser = parse_io_size)]
    sizes: Vec<u64>,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    placement: PlacementArgs,
}

/// The receiving process. `bench stream` starts it.
#[derive(Args)]
#[command(hide = true)]
pub(crate) struct ReceiverArgs {
    /// What stands between the ends.
    protection: Protection,
}

/// Runs the command.
pub(crate) fn run(args: &StreamArgs) -> Result<()> {
    let placement = args.placement.placement()?;
    let (time, warm_up) = args.run.times()?;
    let mut progress = args.run.progress(Some(&placement))?;
    let site = Site::new(args.run.work_dir.as_deref())?;
    let plan = StreamPlan {
        lab_binary: std::env::current_exe().context("cannot find this program's own file")?,
        protections: args.ciphers.protections(&args.protections),
        processes: args.ciphers.processes()?,
        sizes: args.sizes.clone(),
        runs: args.run.runs,
        time,
        warm_up,
        placement,
        directory: site.directory("stream")?,
    };
    let outcome = stream::run(&plan, &mut progress);
    args.run.conclude(progress, outcome)
}

/// Runs the receiving process, for ever.
pub(crate) fn receive(args: &ReceiverArgs) -> Result<()> {
    stream::receive(args.protection, std::io::stdout())?;
    Ok(())
}
