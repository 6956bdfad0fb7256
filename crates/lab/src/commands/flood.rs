//! `strongroom-lab flood` and `discard`: the processes of the experiment about floods (`strongroom-lab ecl flood`), not for people.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use clap::Args;
use strongroom_lab::ecl;

/// Floods a UDP port until it is ended.
#[derive(Args)]
#[command(hide = true)]
pub(crate) struct FloodArgs {
    /// The port.
    to: SocketAddr,
}

/// Discards what comes to a UDP port until it is ended.
#[derive(Args)]
#[command(hide = true)]
pub(crate) struct DiscardArgs {
    /// The port.
    at: SocketAddr,
}

pub(crate) fn flood(args: &FloodArgs) -> Result<()> {
    ecl::flood(args.to).with_context(|| format!("cannot send to {}", args.to))
}

pub(crate) fn discard(args: &DiscardArgs) -> Result<()> {
    ecl::discard(args.at).with_context(|| format!("cannot receive at {}", args.at))
}
