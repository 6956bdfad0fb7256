//! `strongroom volume snapshot|clone|resize|access`: a volume as a whole, on the target's machine. Through the target if one serves it,
//! else directly.
//!
//! Absent: what these do (the target's `operate`).

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use strongroom_target::Access;
use strongroom_target::admin::{Client, Description, Operation, Reply, Request, VolumeInfo};

use super::new_volume::ProtectionArgs;
use super::space::warn_of_little_space;
use crate::admin::ask;
use crate::root_args::RootArgs;
use crate::table::Table;
use crate::target_args::{TargetArgs, operate, print_lines};
use crate::units::{parse_size, show_size, show_time};

/// `volume snapshot`.
#[derive(Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Keep a volume as it is now, under a name. Takes a moment for a volume of any size.
    #[command(after_help = "Example: strongroom volume snapshot create vault@monday\n\n\
        Initiators that may use the volume can attach it, read-only: strongroom attach strongroom://HOST/vault@monday. A \
        mounted file system is as after a power cut in it, unless it is frozen first (fsfreeze).")]
    Create(SnapshotArgs),
    /// List the snapshots of a volume, and its clones.
    #[command(after_help = "Example: strongroom volume snapshot list vault")]
    List(ListArgs),
    /// Delete a snapshot. What only it kept is freed in the background.
    #[command(after_help = "Example: strongroom volume snapshot delete vault@monday")]
    Delete(SnapshotArgs),
    Prune(super::snapshots::PruneArgs),
    Schedule(super::snapshots::ScheduleArgs),
    /// Make a volume what it was when a snapshot was taken. What was written since is lost; later snapshots stay.
    #[command(after_help = "Example: strongroom volume snapshot rollback vault@monday --yes\n\n\
        Nobody may use the volume meanwhile: detach it first.")]
    Rollback(RollbackArgs),
}

/// `volume snapshot create` and `delete`.
#[derive(Args)]
pub(crate) struct SnapshotArgs {
    /// VOLUME@SNAPSHOT; names have small letters, digits, '.' and '-'.
    #[arg(value_parser = parse_snapshot)]
    snapshot: (String, String),
    #[command(flatten)]
    target: TargetArgs,
}

/// `volume snapshot list`.
#[derive(Args)]
pub(crate) struct ListArgs {
    /// The volume's name.
    volume: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: TargetArgs,
}

/// `volume snapshot rollback`.
#[derive(Args)]
pub(crate) struct RollbackArgs {
    /// VOLUME@SNAPSHOT.
    #[arg(value_parser = parse_snapshot)]
    snapshot: (String, String),
    /// Really go back; what was written since is lost.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    target: RootArgs,
}

/// `volume clone`.
#[derive(Args)]
#[command(after_help = "Example: strongroom volume clone vault@monday vault-test\n\n\
    The clone shares the snapshot's blocks and opens with the same key. `strongroom volume delete` deletes it.")]
pub(crate) struct CloneArgs {
    /// VOLUME@SNAPSHOT to begin as.
    #[arg(value_parser = parse_snapshot)]
    snapshot: (String, String),
    /// The new volume's name.
    name: String,
    /// A peer that may use it; can be repeated. Without any, those of the volume.
    #[arg(long = "peer", value_name = "NAME")]
    peers: Vec<String>,
    /// Plain volumes: an initiator name that may use it; can be repeated.
    #[arg(long = "initiator", value_name = "IQN")]
    initiators: Vec<String>,
    #[command(flatten)]
    target: TargetArgs,
}

/// `volume resize`.
#[derive(Args)]
#[command(after_help = "Example: strongroom volume resize vault --size 20GiB\n\n\
    Initiators are told (CAPACITY DATA HAS CHANGED). The new part of a sealed volume must be sealed as absent by an initiator \
    that has the key: strongroom volume grow URL --from OLD-SIZE")]
pub(crate) struct ResizeArgs {
    /// The volume's name.
    name: String,
    /// The new size, for instance 20GiB; larger than before.
    #[arg(long, value_parser = parse_size)]
    size: u64,
    #[command(flatten)]
    target: TargetArgs,
}

/// `volume access`.
#[derive(Args)]
#[command(after_help = "Example: strongroom volume access vault --peer alice --peer bob\n\n\
    Replaces what the volume itself says; the configuration's rules hold besides. Sessions that nothing admits any more end.")]
pub(crate) struct AccessArgs {
    /// The volume's name.
    name: String,
    /// A peer that may use it; can be repeated; '*' for all of them.
    #[arg(long = "peer", value_name = "NAME")]
    peers: Vec<String>,
    /// Plain volumes: an initiator name that may use it over plain iSCSI; can be repeated; '*' for any.
    #[arg(long = "initiator", value_name = "IQN")]
    initiators: Vec<String>,
    /// Nobody may write to it.
    #[arg(long)]
    read_only: bool,
    /// Sealed volumes: initiators may choose (`--previous-versions`) to read an older version of a block that does not open. An attacker
    /// who can damage blocks on the wire or in the store can then influence which version is read.
    #[arg(long)]
    previous_versions: bool,
    /// If the log is so damaged that the volume does not open, open it read-only, so that what is left can be copied. Blocks may then be
    /// missing or old: `strongroom store damage` says which.
    #[arg(long)]
    read_only_if_damaged: bool,
    #[command(flatten)]
    protection: ProtectionArgs,
    #[command(flatten)]
    target: RootArgs,
}

pub(crate) fn parse_snapshot(text: &str) -> Result<(String, String), String> {
    match text.split_once('@') {
        Some((volume, snapshot)) if !volume.is_empty() && !snapshot.is_empty() => {
            Ok((volume.to_owned(), snapshot.to_owned()))
        }
        _ => Err(format!("'{text}' names no snapshot; write VOLUME@SNAPSHOT, for instance vault@monday")),
    }
}

/// Runs `volume snapshot`.
pub(crate) fn snapshot(command: SnapshotCommand) -> Result<()> {
    match command {
        SnapshotCommand::Create(SnapshotArgs { snapshot: (volume, snapshot), target }) => {
            target.operate(&volume, Operation::SnapshotCreate { snapshot: snapshot.clone() })?;
            println!("made the snapshot {volume}@{snapshot}");
        }
        SnapshotCommand::Delete(SnapshotArgs { snapshot: (volume, snapshot), target }) => {
            target.operate(&volume, Operation::SnapshotDelete { snapshot: snapshot.clone() })?;
            println!("deleted the snapshot {volume}@{snapshot}");
        }
        SnapshotCommand::Prune(args) => super::snapshots::prune(&args)?,
        SnapshotCommand::Schedule(args) => super::snapshots::schedule(&args)?,
        SnapshotCommand::Rollback(RollbackArgs { snapshot: (volume, snapshot), yes, target }) => {
            if !yes {
                bail!("everything written to '{volume}' since {volume}@{snapshot} will be lost; say --yes to go on");
            }
            operate(&target, &volume, Operation::Rollback { snapshot: snapshot.clone() })?;
            println!("{volume} is what it was at {volume}@{snapshot}");
        }
        SnapshotCommand::List(args) => {
            let description = args.target.operate(&args.volume, Operation::Describe)?;
            if args.json {
                print_lines(&serde_json::to_string_pretty(&description)?);
                return Ok(());
            }
            print_contents(&args.volume, &description);
        }
    }
    Ok(())
}

/// Tables of a volume's snapshots and clones.
pub(crate) fn print_contents(volume: &str, description: &Description) {
    if description.snapshots.is_empty() {
        println!("{volume} has no snapshots");
        return;
    }
    let mut table = Table::new(&["SNAPSHOT", "TAKEN", ">WRITTEN", ">PINNED", ">CLONES", "ID"]);
    for snapshot in &description.snapshots {
        let of = snapshot.clone.as_deref().unwrap_or(volume);
        table.row(vec![
            format!("{of}@{}", snapshot.name),
            show_time(snapshot.created_seconds),
            show_size(snapshot.bytes_written),
            show_size(snapshot.bytes_pinned),
            snapshot.clones.to_string(),
            snapshot.id.clone(),
        ]);
    }
    print_lines(&table.to_string());
    if !description.clones.is_empty() {
        println!();
        let mut table = Table::new(&["CLONE", "OF", "MADE", ">WRITTEN"]);
        for clone in &description.clones {
            table.row(vec![
                clone.name.clone(),
                format!("@{}", clone.snapshot),
                show_time(clone.created_seconds),
                show_size(clone.bytes_written),
            ]);
        }
        print_lines(&table.to_string());
    }
}

/// Runs `volume clone`.
pub(crate) fn clone(args: CloneArgs) -> Result<()> {
    let CloneArgs { snapshot: (volume, snapshot), name, peers, initiators, target } = args;
    let given = !peers.is_empty() || !initiators.is_empty();
    // What a volume asks of connections it asks for its clones too; `volume access` changes it.
    let access = given.then(|| Access { peers, initiators, ..Access::default() });
    target.operate(&volume, Operation::Clone { snapshot: snapshot.clone(), name: name.clone(), access })?;
    println!("made the volume '{name}' of {volume}@{snapshot}; it opens with the same key");
    Ok(())
}

/// Runs `volume resize`.
pub(crate) fn resize(args: &ResizeArgs) -> Result<()> {
    let operation = Operation::Resize { size_bytes: args.size };
    let said = || println!("'{}' has {} now", args.name, show_size(args.size));
    let (before, url) = if let Some(mut remote) = args.target.remote()? {
        let before = remote.volume(&args.name)?;
        remote.operate(&args.name, operation)?;
        said();
        (before, remote.url_of(&args.name))
    } else {
        let here = &args.target.here;
        let status = here.open()?.show(&args.name)?;
        operate(here, &args.name, operation)?;
        said();
        let (volume, grown) = (&status.volume, args.size.saturating_sub(status.volume.geometry.bytes()));
        warn_of_little_space(&volume.medium, grown, &here.root()?);
        (VolumeInfo::of(&status), format!("strongroom://HOST/{}", args.name))
    };
    let from = before.shape.size_bytes;
    if from < args.size {
        let once = if before.sealed.is_some() { ", once that is sealed" } else { "" };
        println!("attachments see the new part within seconds{once}");
    }
    if before.sealed.is_some() && from < args.size {
        println!("next, from an initiator with its key: strongroom volume grow {url} --from {from}");
    }
    Ok(())
}

/// Runs `volume access`.
pub(crate) fn access(args: AccessArgs) -> Result<()> {
    let AccessArgs { name, peers, initiators, read_only, previous_versions, read_only_if_damaged, protection, target } =
        args;
    let catalogue = target.open()?;
    let before = catalogue.show(&name)?.volume;
    if before.sealed.is_some() && !initiators.is_empty() {
        bail!("a sealed volume refuses plain sessions; name peers that may use it, not initiators");
    }
    if before.sealed.is_none() && previous_versions {
        bail!(
            "a plain volume has no seals by which a good version could be told from a bad one; leave --previous-versions out"
        );
    }
    let protection = protection.into();
    let access = Access { peers, initiators, read_only, previous_versions, read_only_if_damaged, protection };
    catalogue.set_access(&name, access)?;
    if let Some(mut client) = Client::connect(&target.admin_socket()?)?
        && let Reply::Sessions(count @ 1..) = ask(&mut client, &Request::Refresh { volume: name.clone() })?
    {
        println!("{} ended or have other rights now", super::status::sessions(count));
    }
    println!("who may use '{name}' is set; `strongroom volume show {name}` tells");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_named_with_its_volume() {
        assert_eq!(parse_snapshot("vault@monday"), Ok(("vault".into(), "monday".into())));
        for bad in ["vault", "@monday", "vault@", ""] {
            assert!(parse_snapshot(bad).unwrap_err().contains("VOLUME@SNAPSHOT"), "{bad}");
        }
    }
}
