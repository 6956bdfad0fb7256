//! `strongroom invite`: has a running target give out an invitation, which `strongroom join` takes up on the invited machine.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use strongroom_target::PeerRole;
use strongroom_target::admin::{Reply, Request};

use crate::admin::{AdminArgs, AdminListArgs, ask};
use crate::table::Table;
use crate::units::{parse_duration, show_duration};

/// Invite a machine to be a peer of this target: prints one line, which is good for one machine, for a while.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct InviteCommand {
    #[command(subcommand)]
    other: Option<InvitationCommand>,
    #[command(flatten)]
    args: InviteArgs,
}

#[derive(Subcommand)]
enum InvitationCommand {
    /// List the invitations that can still be used.
    List(AdminListArgs),
    /// End an invitation that was not used. A peer that has joined is ended with `strongroom peer remove`.
    Revoke(RevokeArgs),
}

/// What is invited to what.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom invite alice --volume vault\n  \
    strongroom invite alice --volume vault | ssh alice.example strongroom join\n  \
    strongroom invite ops --operator\n  \
    strongroom invite backup --volume '*' --read-only --expires 1d --address storage.example\n  \
    strongroom invite list\n\n\
    The line is a secret until it is used or has expired: send it to nobody else. The invited machine gives it to: strongroom join")]
struct InviteArgs {
    /// What the machine will be called here.
    #[arg(required = true)]
    name: Option<String>,
    /// A volume that it may use; can be repeated; '*' is all of them.
    #[arg(long = "volume", value_name = "NAME", required_unless_present = "operator")]
    volumes: Vec<String>,
    /// It will be an operator: from its machine it may make, change and delete volumes, and say which peers may use them.
    #[arg(long)]
    operator: bool,
    /// It may only read.
    #[arg(long)]
    read_only: bool,
    /// For how long the invitation is good, from 1m to 7d.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    expires: Duration,
    /// Where the machine reaches this target; can be repeated [default: what the configuration advertises, else where it listens, else this
    /// machine's name].
    #[arg(long = "address", value_name = "HOST[:PORT]")]
    addresses: Vec<String>,
    #[command(flatten)]
    target: AdminArgs,
}

/// `invite revoke`.
#[derive(Args)]
struct RevokeArgs {
    /// Whom it is for.
    name: String,
    #[command(flatten)]
    target: AdminArgs,
}

/// Runs the command.
pub(crate) fn run(command: InviteCommand) -> Result<()> {
    match command.other {
        None => invite(command.args),
        Some(InvitationCommand::List(args)) => list(&args),
        Some(InvitationCommand::Revoke(args)) => {
            ask(&mut args.target.connect()?, &Request::Revoke { name: args.name })?;
            println!("the invitation is ended");
            Ok(())
        }
    }
}

fn invite(args: InviteArgs) -> Result<()> {
    let InviteArgs { name, volumes, operator, read_only, expires, addresses, target } = args;
    let role = if operator { PeerRole::Operator } else { PeerRole::Initiator };
    let name = name.expect("required, but for `invite list` and `invite revoke`");
    let request = Request::Invite { name, volumes, read_only, role, expires_s: expires.as_secs(), addresses };
    let Reply::Invited { invitation, addresses, .. } = ask(&mut target.connect()?, &request)? else {
        bail!("the target answered something else; it is of another version, restart it");
    };
    // The line alone goes to standard output, into a pipe perhaps.
    println!("{}", invitation.0);
    eprintln!(
        "good for one machine, for {}; give it to `strongroom join` there, which will connect to {} (else: --address)",
        show_duration(expires),
        addresses.join(", ")
    );
    Ok(())
}

fn list(args: &AdminListArgs) -> Result<()> {
    let Reply::Invitations(invitations) = ask(&mut args.target.connect()?, &Request::Invitations)? else {
        bail!("the target answered something else; it is of another version, restart it");
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&invitations)?);
        return Ok(());
    }
    let mut table = Table::new(&["NAME", ">EXPIRES IN", "ROLE", "RIGHT", "VOLUMES"]);
    for invitation in invitations {
        let right = if invitation.read_only { "read" } else { "write" };
        let expires_in = show_duration(Duration::from_secs(invitation.expires_in_s));
        let (role, volumes) = (invitation.role.to_string(), invitation.volumes.join(" "));
        table.row(vec![invitation.name, expires_in, role, right.to_owned(), volumes]);
    }
    print!("{table}");
    Ok(())
}
