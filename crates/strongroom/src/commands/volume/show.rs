//! `strongroom volume list` and `strongroom volume show`: what volumes there are, and what one is like. Absent: how a running target is
//! doing (`status`).

use anyhow::Result;
use clap::Args;
use serde_json::json;
use strongroom_block::{Custody, WRAPPED_KEY_BYTES};
use strongroom_store::Medium;
use strongroom_target::admin::{Client, Reply, Request, VolumeReport};
use strongroom_target::{Protection, Sealed, Volume, VolumeStatus};

use crate::admin::ask;
use crate::commands::space::{free_text, space_text};
use crate::root_args::RootArgs;
use crate::table::Table;
use crate::units::show_size;

/// `volume list`.
#[derive(Args)]
pub(crate) struct ListArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: RootArgs,
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
    let mut volumes = args.target.open()?.list()?;
    let clones: Vec<_> = volumes.iter_mut().filter_map(|(_, status)| status.as_mut().ok()).collect();
    tell_clones_in_use(&args.target, clones);
    if args.json {
        let rows: Vec<_> = volumes
            .iter()
            .map(|(name, status)| match status {
                Ok(status) => as_json(status),
                Err(error) => json!({ "name": name.to_string(), "error": error.to_string() }),
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    let mut table = Table::new(&["NAME", ">SIZE", ">BLOCK", "KIND", ">ON DISK", "IN USE"]);
    for (name, status) in &volumes {
        table.row(match status {
            Ok(status) => vec![
                name.to_string(),
                show_size(status.volume.geometry.bytes()),
                status.volume.geometry.block_size.to_string(),
                status.volume.kind_text(),
                show_size(status.host_bytes),
                if status.in_use { "yes" } else { "no" }.to_owned(),
            ],
            Err(error) => vec![name.to_string(), format!("damaged: {error}")],
        });
    }
    print!("{table}");
    Ok(())
}

pub(super) fn show(args: &ShowArgs) -> Result<()> {
    let mut status = args.target.open()?.show(&args.name)?;
    tell_clones_in_use(&args.target, vec![&mut status]);
    let served = served(&args.target, &status)?;
    if args.json {
        let mut shown = as_json(&status);
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

fn as_json(status: &VolumeStatus) -> serde_json::Value {
    let volume = &status.volume;
    json!({
        "name": volume.name.to_string(),
        "volume_id": volume.id.to_string(),
        "size_bytes": volume.geometry.bytes(),
        "block_size": volume.geometry.block_size.bytes(),
        "sealed": volume.sealed.as_ref().map(|sealed| json!({
            "custody": sealed.custody.to_string(),
            "domain": sealed.domain.to_string(),
            "suite": sealed.suite.name(),
            "epoch": sealed.epoch,
            "record_bytes": record_cost(volume).0,
            "record_bytes_in_all": record_cost(volume).1,
            "wrapping_key": sealed.wrapping_key,
            "opened_with": sealed.opened_with,
        })),
        "medium": volume.medium.to_string(),
        "io": volume.io.to_string(),
        "retention_percent": volume.retention_percent,
        "spare_percent": volume.spare_percent,
        "clone_of": volume.clone_of,
        "snapshots": volume.snapshots,
        "successor": volume.successor.as_ref().map(ToString::to_string),
        "succeeds": volume.succeeds.as_ref().map(ToString::to_string),
        "access": volume.access,
        "on_disk_bytes": status.host_bytes,
        "in_use": status.in_use,
    })
}
