//! `strongroom volume`: makes, lists, shows and deletes volumes on the target's machine; formats and recovers them from
//! an initiator's.
//!
//! Absent: what a volume is (the target's catalogue) and how one is sealed (the initiator).

mod create;
mod show;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};

use super::{check, contents, erase, format, receive, recover, reseal, send, verify};
use crate::root_args::RootArgs;

/// Make, list, show, delete, format or recover volumes.
#[derive(Subcommand)]
pub(crate) enum VolumeCommand {
    /// Make a volume on this target.
    #[command(after_help = "Examples:\n  \
        strongroom volume create vault --size 10GiB --peer alice --root /srv/strongroom\n  \
        strongroom volume create scratch --size 1GiB --plain --initiator '*'\n  \
        strongroom volume create fast --size 1TiB --peer alice --medium device:/dev/nvme0n1\n\n\
        A volume with --medium memory loses everything when the target closes it: use it for benchmarks and tests only.\n\n\
        A sealed volume must be formatted once, from an initiator that has its key: strongroom volume format URL --yes")]
    Create(create::CreateArgs),
    /// List the volumes of this target.
    #[command(after_help = "Example: strongroom volume list --root /srv/strongroom")]
    List(show::ListArgs),
    /// Show one volume of this target.
    #[command(after_help = "Example: strongroom volume show vault --root /srv/strongroom")]
    Show(show::ShowArgs),
    Check(check::CheckArgs),
    /// Delete a volume of this target, and everything in it.
    #[command(after_help = "Example: strongroom volume delete vault --yes --root /srv/strongroom")]
    Delete(DeleteArgs),
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
    target: RootArgs,
}

/// Runs the command.
pub(crate) fn run(command: VolumeCommand) -> Result<()> {
    match command {
        VolumeCommand::Create(args) => create::create(args),
        VolumeCommand::List(args) => show::list(&args),
        VolumeCommand::Show(args) => show::show(&args),
        VolumeCommand::Check(args) => check::check(&args),
        VolumeCommand::Delete(args) => delete(&args),
        VolumeCommand::Erase(args) => erase::erase(&args),
        VolumeCommand::Snapshot(command) => contents::snapshot(command),
        VolumeCommand::Clone(args) => contents::clone(args),
        VolumeCommand::Resize(args) => contents::resize(&args),
        VolumeCommand::Access(args) => contents::access(args),
        VolumeCommand::Send(args) => send::send(&args),
        VolumeCommand::Receive(args) => receive::receive(&args),
        VolumeCommand::Grow(args) => format::grow(&args),
        VolumeCommand::Format(args) => format::run(args),
        VolumeCommand::Recover(args) => recover::run(&args),
        VolumeCommand::Reseal(args) => reseal::run(&args),
        VolumeCommand::Verify(args) => verify::run(&args),
    }
}

fn delete(args: &DeleteArgs) -> Result<()> {
    let catalogue = args.target.open()?;
    if !args.yes {
        bail!("this deletes '{}' and everything in it, for ever; if that is meant, add --yes", args.name);
    }
    contents::delete(&args.target, &catalogue, &args.name).with_context(|| format!("cannot delete '{}'", args.name))?;
    println!("deleted '{}'", args.name);
    Ok(())
}
