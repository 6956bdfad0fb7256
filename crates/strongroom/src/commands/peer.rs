//! `strongroom peer`: the peers of a running target. Those that have joined by invitation are changed here, and at once; those of the
//! configuration are shown.

use anyhow::{Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use strongroom_block::foreign;
use strongroom_target::PeerRole;
use strongroom_target::admin::{PeerOperation, PeerOrigin, Reply, Request};

use super::status;
use crate::admin::{AdminArgs, AdminListArgs, ask};
use crate::table::Table;

/// List the peers of a running target, and change those that have joined by invitation.
#[derive(Subcommand)]
pub(crate) enum PeerCommand {
    /// List who may come through a channel, and for which volumes.
    #[command(after_help = "Example: strongroom peer list")]
    List(AdminListArgs),
    /// Remove a peer. Its sessions end at once.
    #[command(after_help = "Example: strongroom peer remove alice")]
    Remove(NamedArgs),
    /// Give a peer another name.
    #[command(after_help = "Example: strongroom peer rename alice alice-laptop")]
    Rename(RenameArgs),
    /// Let a peer use further volumes, or change whether it may write.
    #[command(
        after_help = "Examples:\n  strongroom peer allow alice --volume logs\n  strongroom peer allow alice --read-only"
    )]
    Allow(AllowArgs),
    /// Make a peer an operator, which makes and changes volumes from its machine, or an initiator again. Counts at once.
    #[command(after_help = "Examples:\n  strongroom peer role ops operator\n  strongroom peer role ops initiator")]
    Role(RoleArgs),
    /// Take volumes from a peer. Its sessions with them end at once.
    #[command(after_help = "Example: strongroom peer deny alice --volume logs")]
    Deny(DenyArgs),
}

/// A peer.
#[derive(Args)]
pub(crate) struct NamedArgs {
    /// The peer.
    name: String,
    #[command(flatten)]
    target: AdminArgs,
}

/// `peer rename`.
#[derive(Args)]
pub(crate) struct RenameArgs {
    /// The peer.
    name: String,
    /// Its new name.
    to: String,
    #[command(flatten)]
    target: AdminArgs,
}

/// `peer allow`.
#[derive(Args)]
#[group(id = "what", required = true, multiple = true, args = ["volumes", "read_only", "read_write"])]
pub(crate) struct AllowArgs {
    /// The peer.
    name: String,
    /// A volume that it may use, too; can be repeated; '*' is all of them.
    #[arg(long = "volume", value_name = "NAME")]
    volumes: Vec<String>,
    /// From now on it may only read.
    #[arg(long)]
    read_only: bool,
    /// From now on it may write.
    #[arg(long, conflicts_with = "read_only")]
    read_write: bool,
    #[command(flatten)]
    target: AdminArgs,
}

/// `peer role`.
#[derive(Args)]
pub(crate) struct RoleArgs {
    /// The peer.
    name: String,
    /// What it is from now on.
    role: RoleArg,
    #[command(flatten)]
    target: AdminArgs,
}

/// What a peer is to the target.
#[derive(Clone, Copy, ValueEnum)]
enum RoleArg {
    /// It uses volumes.
    Initiator,
    /// It also makes, changes and deletes them, and says which peers may use them.
    Operator,
}

/// `peer deny`.
#[derive(Args)]
pub(crate) struct DenyArgs {
    /// The peer.
    name: String,
    /// A volume that it may not use any more, as it was allowed; can be repeated.
    #[arg(long = "volume", value_name = "NAME", required = true)]
    volumes: Vec<String>,
    #[command(flatten)]
    target: AdminArgs,
}

/// Runs the command.
pub(crate) fn run(command: PeerCommand) -> Result<()> {
    match command {
        PeerCommand::List(args) => list(&args),
        PeerCommand::Remove(args) => change(&args.target, args.name, PeerOperation::Remove),
        PeerCommand::Rename(args) => change(&args.target, args.name, PeerOperation::Rename { to: args.to }),
        PeerCommand::Allow(args) => {
            let read_only = (args.read_only || args.read_write).then_some(args.read_only);
            change(&args.target, args.name, PeerOperation::Allow { volumes: args.volumes, read_only })
        }
        PeerCommand::Role(args) => {
            let role = match args.role {
                RoleArg::Initiator => PeerRole::Initiator,
                RoleArg::Operator => PeerRole::Operator,
            };
            change(&args.target, args.name, PeerOperation::Role { role })
        }
        PeerCommand::Deny(args) => change(&args.target, args.name, PeerOperation::Deny { volumes: args.volumes }),
    }
}

fn list(args: &AdminListArgs) -> Result<()> {
    let Reply::Peers(peers) = ask(&mut args.target.connect()?, &Request::Peers)? else {
        bail!("the target answered something else; it is of another version, restart it");
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&peers)?);
        return Ok(());
    }
    let mut table = Table::new(&["NAME", "KEY", "BY", "ROLE", "RIGHT", "VOLUMES"]);
    for peer in peers {
        let origin = match peer.origin {
            PeerOrigin::Configuration => "configuration",
            PeerOrigin::Invitation => "invitation",
            PeerOrigin::Overridden => "overridden by the configuration",
        };
        let right = if peer.read_only { "read" } else { "write" };
        let name = foreign(&peer.name).to_string();
        let (role, volumes) = (peer.role.to_string(), peer.volumes.join(" "));
        table.row(vec![name, peer.key, origin.to_owned(), role, right.to_owned(), volumes]);
    }
    print!("{table}");
    Ok(())
}

fn change(target: &AdminArgs, name: String, operation: PeerOperation) -> Result<()> {
    let ends_a_right =
        matches!(operation, PeerOperation::Remove | PeerOperation::Rename { .. } | PeerOperation::Deny { .. });
    let request = Request::Peer { name: name.clone(), operation };
    let Reply::Peer { sessions, named_by } = ask(&mut target.connect()?, &request)? else {
        bail!("the target answered something else; it is of another version, restart it");
    };
    println!("done; {} ended or changed", status::sessions(sessions));
    ensure!(
        !ends_a_right || named_by.is_empty(),
        "these volumes name '{}' themselves, and let in the peer of that name as before, or a later one: {}; to end that: strongroom volume access",
        foreign(&name),
        named_by.join(", ")
    );
    Ok(())
}
