//! `strongroom volume list` and `strongroom volume show`: what volumes there are, and what one is like. Absent: how a running target is
//! doing (`status`).

use anyhow::Result;
use clap::Args;
use strongroom_block::{Custody, WRAPPED_KEY_BYTES};
use strongroom_store::Medium;
use strongroom_target::admin::{Client, Reply, Request, VolumeEntry, VolumeInfo, VolumeReport};
use strongroom_target::{Protection, Sealed, Volume, VolumeStatus};

use crate::admin::ask;
use crate::commands::space::{free_text, space_text};
use crate::root_args::RootArgs;
use crate::table::Table;
use crate::target_args::{TargetArgs, print_lines};
use crate::units::show_size;

/// `volume list`.
#[derive(Args)]
pub(crate) struct ListArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: TargetArgs,
}

/// `volume show`.
#[derive(Args)]
pub(crate) struct ShowArgs {
    /// The volume's name.
    name: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: RootArgs,
}

pub(super) fn list(args: &ListArgs) -> Result<()> {
    let volumes = match args.target.remote()? {
        Some(mut remote) => remote.volumes(None)?,
        None => volumes_here(&args.target.here)?,
    };
    if args.json {
        print_lines(&serde_json::to_string_pretty(&volumes)?);
        return Ok(());
    }
    let mut table = Table::new(&["NAME", ">SIZE", ">BLOCK", "KIND", ">ON DISK", "IN USE"]);
    for volume in volumes {
        table.row(match volume {
            VolumeEntry::Good(info) => vec![
                info.name,
                show_size(info.shape.size_bytes),
                info.shape.block_size.to_string(),
                info.kind,
                show_size(info.on_disk_bytes),
                if info.in_use { "yes" } else { "no" }.to_owned(),
            ],
            VolumeEntry::Damaged { name, error } => vec![name, format!("damaged: {error}")],
        });
    }
    print_lines(&table.to_string());
    Ok(())
}

fn volumes_here(target: &RootArgs) -> Result<Vec<VolumeEntry>> {
    let mut volumes = target.open()?.list()?;
    let clones: Vec<_> = volumes.iter_mut().filter_map(|(_, status)| status.as_mut().ok()).collect();
    tell_clones_in_use(target, clones);
    Ok(volumes.into_iter().map(VolumeEntry::from).collect())
}

pub(super) fn show(args: &ShowArgs) -> Result<()> {
    let mut status = args.target.open()?.show(&args.name)?;
    tell_clones_in_use(&args.target, vec![&mut status]);
    let served = served(&args.target, &status)?;
    if args.json {
        let mut shown = serde_json::to_value(VolumeInfo::of(&status))?;
        shown["served"] = serde_json::to_value(&served)?;
        println!("{}", serde_json::to_string_pretty(&shown)?);
        return Ok(());
    }
    let volume = &status.volume;
    line("name", volume.name.to_string());
    line("volume id", volume.id.to_string());
    line("size", format!("{} ({} bytes)", show_size(volume.geometry.bytes()), volume.geometry.bytes()));
    line("block size", volume.geometry.block_size.to_string());
    line("kind", volume.kind_text());
    if let Some(sealed) = &volume.sealed {
        show_sealed(volume, sealed);
    }
    if let Some(clone) = &volume.clone_of {
        line("clone of", clone.snapshot.clone());
    }
    if let Some(successor) = &volume.successor {
        line(
            "being moved",
            format!("its contents are being resealed into '{successor}'; it cannot be written until that is done"),
        );
    }
    if let Some(succeeds) = &volume.succeeds {
        line("being filled", format!("takes the place of '{succeeds}' when that is done"));
    }
    if !volume.snapshots.is_empty() {
        line("snapshots", volume.snapshots.join(", "));
    }
    line("peers", or_none(&volume.access.peers));
    if volume.sealed.is_none() {
        line("initiators", or_none(&volume.access.initiators));
    }
    if volume.access.protection != Protection::default() {
        line("asks for", volume.access.protection.to_string());
    }
    if volume.access.previous_versions {
        line("damaged blocks", "initiators may choose to read older versions of them".to_owned());
    }
    if volume.access.read_only_if_damaged {
        line("damaged log", "opened read-only; blocks may be missing or old".to_owned());
    }
    line("read only", if volume.access.read_only { "yes" } else { "no" }.to_owned());
    line("medium", medium_text(&volume.medium));
    line("spare", format!("{} % of what is stored, for cleaning", volume.spare_percent));
    line("I/O", volume.io.to_string());
    if let Some(served) = &served {
        show_served(served);
    }
    line("on disk", show_size(status.host_bytes));
    line("in use", if status.in_use { "yes" } else { "no" }.to_owned());
    Ok(())
}

/// One line of what is shown.
fn line(name: &str, value: String) {
    println!("{name:<16} {value}");
}

fn show_sealed(volume: &Volume, sealed: &Sealed) {
    line("sealing domain", sealed.domain.to_string());
    line("suite", sealed.suite.to_string());
    line("mode", format!("{:?}", sealed.mode));
    let at_the_server = sealed.custody == Custody::KeyServer;
    line("key epoch", if at_the_server { "at the key server".into() } else { sealed.epoch.to_string() });
    if let Some(path) = &sealed.wrapping_key {
        line("wrapping key", path.display().to_string());
    }
    if let Some(path) = &sealed.opened_with {
        line("opened here", format!("with {}; what lies in the store is PLAINTEXT", path.display()));
        line("trust", "this target, its disk and its backups read everything; on the wire it is sealed".to_owned());
    }
    let cost = record_cost(volume);
    let keys = if sealed.custody.is_blind() { 0 } else { volume.geometry.blocks * WRAPPED_KEY_BYTES as u64 };
    let keys = if keys == 0 { String::new() } else { format!("; {} of that are block keys", show_size(keys)) };
    line("seal records", format!("{} bytes a block, {} for all blocks{keys}", cost.0, show_size(cost.1)));
    line("older versions", format!("up to {} % of the size", volume.retention_percent));
}

/// What records take at rest: for one block, and when every block is written once.
fn record_cost(volume: &Volume) -> (u64, u64) {
    let bytes = volume.sealed.as_ref().map_or(0, |sealed| sealed.custody.record_bytes_at_rest() as u64);
    (bytes, bytes * volume.geometry.blocks)
}

/// A clone's blocks lie in another volume's store, so only who serves that knows whether it is in use.
fn tell_clones_in_use(target: &RootArgs, statuses: Vec<&mut VolumeStatus>) {
    let mut clones = statuses.into_iter().filter(|status| status.volume.clone_of.is_some()).peekable();
    if clones.peek().is_none() {
        return;
    }
    let socket = target.admin_socket().ok();
    let Some(mut client) = socket.and_then(|socket| Client::connect(&socket).ok().flatten()) else { return };
    let Ok(Reply::Status(report)) = ask(&mut client, &Request::Status) else { return };
    for clone in clones {
        clone.in_use = report.volumes.iter().any(|volume| volume.name == clone.volume.name.as_str());
    }
}

/// What a running target says of the volume's open store.
fn served(target: &RootArgs, status: &VolumeStatus) -> Result<Option<VolumeReport>> {
    if !status.in_use {
        return Ok(None);
    }
    let Some(mut client) = Client::connect(&target.admin_socket()?)? else { return Ok(None) };
    let Reply::Status(report) = ask(&mut client, &Request::Status)? else { return Ok(None) };
    Ok(report.volumes.into_iter().find(|volume| volume.name == status.volume.name.as_str()))
}

fn show_served(served: &VolumeReport) {
    let because = served.io_reason.as_ref().map(|why| format!(", because {why}")).unwrap_or_default();
    line("I/O now", format!("{}{because}", served.io));
    let store = &served.store;
    line("space", store.space.to_string());
    line("store", free_text(store));
    if let Some(told) = space_text(store) {
        line("", told);
    }
    if let Some(progress) = store.erasing {
        line("erasing", format!("{} %", u32::from(progress) * 100 / 65536));
    }
    if served.retention_blocks > 0 {
        line(
            "versions kept",
            format!(
                "{} of at most {}, and {} for snapshots; since it was opened {} were verified by readers and let go, {} went \
                 for want of room",
                store.versions_retained,
                served.retention_blocks,
                store.versions_pinned,
                store.versions_released,
                store.versions_evicted
            ),
        );
    }
    if let Some(waiting) = &served.waiting {
        line("waiting", waiting.to_string());
    }
    if let Some(done) = &served.verification {
        line("verified here", format!("{} blocks open, {} do not", done.opened, done.bad_blocks.len()));
    }
}

fn medium_text(medium: &Medium) -> String {
    let warning = if medium.is_durable() { "" } else { ": everything is lost when the target closes the volume" };
    format!("{medium}{warning}")
}

fn or_none(names: &[String]) -> String {
    if names.is_empty() { "none here; see the configuration".to_owned() } else { names.join(", ") }
}
