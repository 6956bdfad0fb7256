//! `strongroom-lab initiator`: the process in which a benchmark's initiator runs. For the runner, not for people.

use std::io::{BufReader, stdin, stdout};

use anyhow::Result;
use clap::Args;

/// An initiator under orders from its standard input, as JSON lines. `bench rawio` starts these.
#[derive(Args)]
#[command(hide = true)]
pub(crate) struct InitiatorArgs {}

/// Runs the command.
pub(crate) fn run() -> Result<()> {
    strongroom_lab::driver::serve(BufReader::new(stdin()), stdout().lock())?;
    Ok(())
}
