//! `strongroom volume`: makes, lists, shows and deletes volumes on the target's machine; formats and recovers them from
//! an initiator's.
//!
//! Absent: what a volume is (the target's catalogue) and how one is sealed (the initiator).

mod create;
mod show;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};

use strongroom_target::admin::{Client, Reply, Request};

use super::{check, contents, erase, format, prepare, receive, recover, reseal, send, status, verify};
use crate::admin::ask;
use crate::target_args::{TargetArgs, unexpected};

/// Make, list, show, delete, format or recover volumes.
#[derive(Subcommand)]
pub(crate) enum VolumeCommand {
    /// Make a volume on this target.
    #[command(after_help = "Examples:\n  \
        strongroom volume create vault --size 10GiB --peer alice --root /srv/strongroom\n  \
        strongroom volume create scratch --size 1GiB --plain --initiator '*'\n  \
        strongroom volume create vault --size 10GiB --target storage.example\n  \
        strongroom volume create fast --size 1TiB --peer alice --medium device:/dev/nvme0n1\n\n\
        A volume with --medium memory loses everything when the target closes it: use it for benchmarks and tests only.\n\n\
        A sealed volume must be formatted once, from an initiator that has its key: strongroom volume format URL --yes")]
    Create(create::CreateArgs),
    /// List the volumes of this target.
    #[command(
        after_help = "Examples:\n  strongroom volume list --root /srv/strongroom\n  strongroom volume list --target storage.example"
    )]
    List(show::ListArgs),
    /// Show one volume of this target.
    #[command(after_help = "Example: strongroom volume show vault --root /srv/strongroom")]
    Show(show::ShowArgs),
    Check(check::CheckArgs),
    /// Delete a volume of this target, and everything in it.
    #[command(after_help = "Example: strongroom volume delete vault --yes --root /srv/strongroom")]
    Delete(DeleteArgs),
    /// Let a peer use a volume of a running target.
    #[command(
        after_help = "Examples:\n  strongroom volume grant vault alice\n  strongroom volume grant vault alice --target storage.example"
    )]
    Grant(GrantArgs),
    /// Take a volume of a running target from a peer. Its sessions with it end at once.
    #[command(after_help = "Example: strongroom volume revoke vault alice")]
    Revoke(GrantArgs),
    Erase(erase::EraseArgs),
    #[command(subcommand)]
    Snapshot(contents::SnapshotCommand),
    /// Make a volume that begins as a snapshot and shares its blocks.
    Clone(contents::CloneArgs),
    /// Make a volume of this target larger, while it is used.
    Resize(contents::ResizeArgs),
    /// Say who may use a volume of this target.
    Access(contents::AccessArgs),
    Send(send::SendArgs),
    Receive(receive::ReceiveArgs),
    Grow(format::GrowArgs),
    Format(format::FormatArgs),
    Prepare(prepare::PrepareArgs),
    Recover(recover::RecoverArgs),
    Reseal(reseal::ResealArgs),
    Verify(verify::VerifyArgs),
}

/// `volume delete`.
#[derive(Args)]
pub(crate) struct DeleteArgs {
    /// The volume's name.
    name: String,
    /// Really delete it; there is no way back.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    target: TargetArgs,
}

/// `volume grant` and `volume revoke`.
#[derive(Args)]
pub(crate) struct GrantArgs {
    /// The volume's name.
    name: String,
    /// The peer, as `strongroom peer list` names it.
    peer: String,
    #[command(flatten)]
    target: TargetArgs,
}

/// Runs the command.
pub(crate) fn run(command: VolumeCommand) -> Result<()> {
    match command {
        VolumeCommand::Create(args) => create::create(args),
        VolumeCommand::List(args) => show::list(&args),
        VolumeCommand::Show(args) => show::show(&args),
        VolumeCommand::Check(args) => check::check(&args),
        VolumeCommand::Delete(args) => delete(&args),
        VolumeCommand::Grant(args) => grant(&args),
        VolumeCommand::Revoke(args) => revoke(&args),
        VolumeCommand::Erase(args) => erase::erase(&args),
        VolumeCommand::Snapshot(command) => contents::snapshot(command),
        VolumeCommand::Clone(args) => contents::clone(args),
        VolumeCommand::Resize(args) => contents::resize(&args),
        VolumeCommand::Access(args) => contents::access(args),
        VolumeCommand::Send(args) => send::send(&args),
        VolumeCommand::Receive(args) => receive::receive(&args),
        VolumeCommand::Grow(args) => format::grow(&args),
        VolumeCommand::Format(args) => format::run(args),
        VolumeCommand::Prepare(args) => prepare::run(&args),
        VolumeCommand::Recover(args) => recover::run(&args),
        VolumeCommand::Reseal(args) => reseal::run(&args),
        VolumeCommand::Verify(args) => verify::run(&args),
    }
}

fn delete(args: &DeleteArgs) -> Result<()> {
    if !args.yes {
        bail!("this deletes '{}' and everything in it, for ever; if that is meant, add --yes", args.name);
    }
    delete_from(&args.target, &args.name).with_context(|| format!("cannot delete '{}'", args.name))?;
    println!("deleted '{}'", args.name);
    Ok(())
}

fn delete_from(target: &TargetArgs, name: &str) -> Result<()> {
    let request = Request::VolumeDelete { volume: name.to_owned() };
    let reply = if let Some(mut remote) = target.remote()? {
        remote.ask(&request)?
    } else if let Some(mut client) = Client::connect(&target.here.admin_socket()?)? {
        ask(&mut client, &request)?
    } else {
        return Ok(target.here.open()?.delete(name)?);
    };
    match reply {
        Reply::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}

fn grant(args: &GrantArgs) -> Result<()> {
    let (volume, peer) = (args.name.clone(), args.peer.clone());
    let (sessions, _) = access(&args.target, &Request::VolumeGrant { volume, peer })?;
    println!("'{}' may use '{}'{}", args.peer, args.name, changed(sessions));
    Ok(())
}

fn revoke(args: &GrantArgs) -> Result<()> {
    let (volume, peer) = (args.name.clone(), args.peer.clone());
    let (sessions, because) = access(&args.target, &Request::VolumeRevoke { volume, peer })?;
    if let Some(because) = because {
        bail!("'{}' may still use '{}': {because}", args.peer, args.name);
    }
    println!("'{}' may not use '{}' any more{}", args.peer, args.name, changed(sessions));
    Ok(())
}

/// What a change of rights came to: how many sessions, and why the peer may use the volume.
fn access(target: &TargetArgs, request: &Request) -> Result<(usize, Option<String>)> {
    match target.ask_running(request)? {
        Reply::Access { sessions, may_use_because } => Ok((sessions, may_use_because)),
        other => Err(unexpected(&other)),
    }
}

fn changed(sessions: usize) -> String {
    if sessions == 0 { String::new() } else { format!("; {} ended or changed", status::sessions(sessions)) }
}
