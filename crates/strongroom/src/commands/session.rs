//! `strongroom session`: who is logged in, and an end to it.

use anyhow::Result;
use clap::{Args, Subcommand};
use strongroom_target::admin::Request;

use super::status;
use crate::admin::{AdminArgs, AdminListArgs, ask_status};

/// List or drop the sessions of a running target.
#[derive(Subcommand)]
pub(crate) enum SessionCommand {
    /// List who is logged in.
    #[command(after_help = "Example: strongroom session list --root /srv/strongroom")]
    List(AdminListArgs),
    /// End sessions. Initiators may log in again, if the rules still admit them.
    #[command(after_help = "Examples:\n  strongroom session drop 17\n  strongroom session drop --peer alice")]
    Drop(DropArgs),
}

/// `session drop`.
#[derive(Args)]
#[group(id = "which", required = true, multiple = true, args = ["id", "initiator", "peer", "volume"])]
pub(crate) struct DropArgs {
    /// The session's number, as `session list` shows it.
    id: Option<u64>,
    /// Every session of this initiator name.
    #[arg(long, value_name = "IQN")]
    initiator: Option<String>,
    /// Every session of this peer.
    #[arg(long, value_name = "NAME")]
    peer: Option<String>,
    /// Every session with this volume.
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
    #[command(flatten)]
    target: AdminArgs,
}

/// Runs the command.
pub(crate) fn run(command: SessionCommand) -> Result<()> {
    match command {
        SessionCommand::List(args) => {
            let report = ask_status(&mut args.target.connect()?)?;
            if args.json {
                println!("{}", serde_json::to_string_pretty(&report.sessions)?);
            } else {
                status::print_sessions(&report, None);
            }
            Ok(())
        }
        SessionCommand::Drop(args) => {
            let DropArgs { id, initiator, peer, volume, target } = args;
            let count = target.sessions(&Request::SessionDrop { id, initiator, peer, volume })?;
            anyhow::ensure!(count > 0, "no session is like that; `strongroom session list` shows what there is");
            println!("dropped {}", status::sessions(count));
            Ok(())
        }
    }
}
