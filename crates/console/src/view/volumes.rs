//! The list of volumes, open or not.

use maud::{Markup, html};
use strongroom_target::admin::{StatusReport, VolumeEntry, VolumeReport};

use super::attention;
use super::figures::{count, percent, size, text};
use super::table::{Column, ROWS_MAX, table};

/// Where a volume's page is.
pub(crate) fn path(base: &str, name: &str) -> String {
    let name: String = form_urlencoded::byte_serialize(name.as_bytes()).collect();
    format!("{base}/volume?name={name}")
}

/// The page's content: those whose name has `filter` in it.
pub(crate) fn content(base: &str, status: &StatusReport, listing: &[VolumeEntry], filter: &str) -> Markup {
    let found: Vec<&VolumeEntry> = listing.iter().filter(|volume| volume.name().contains(filter)).collect();
    html! {
        (filter_form(base, "volumes", "Volumes with this in their name", filter))
        div #live-volumes data-live {
            @if listing.is_empty() {
                p { "There are no volumes yet: " code { "strongroom volume create NAME --size 10GiB" } }
            } @else if found.is_empty() {
                p { "No volume has this in its name." }
            } @else {
                (volumes(base, status, &found))
                (shown_of(found.len(), "volumes"))
            }
        }
    }
}

/// A field that makes a list shorter; it works without a script.
pub(crate) fn filter_form(base: &str, path: &str, label: &str, filter: &str) -> Markup {
    html! {
        form.filter method="get" action={ (base) "/" (path) } role="search" {
            label for="filter" { (label) }
            input #filter name="filter" type="search" value=(filter) maxlength="64" autocomplete="off" spellcheck="false";
            button { "Filter" }
        }
    }
}

/// Says so if a list is cut.
pub(crate) fn shown_of(all: usize, what: &str) -> Markup {
    html! {
        @if all > ROWS_MAX { p.note { (ROWS_MAX) " of " (all) " " (what) " are shown; a filter finds the others." } }
    }
}

fn volumes(base: &str, status: &StatusReport, found: &[&VolumeEntry]) -> Markup {
    let columns = [
        Column::Text("Volume"),
        Column::Text("Kind"),
        Column::Number("Size"),
        Column::Number("Used"),
        Column::Number("On the host"),
        Column::Number("Versions"),
        Column::Number("Snapshots"),
        Column::Number("Sessions"),
        Column::Text("State"),
    ];
    let row = |volume: &&VolumeEntry| {
        let open = status.volumes.iter().find(|open| open.name == volume.name());
        let info = volume.info();
        let or_dash = |shown: Option<String>| html! { (shown.unwrap_or_else(|| "–".to_owned())) };
        vec![
            html! { a href=(path(base, volume.name())) { (text(volume.name())) } },
            or_dash(info.map(|info| text(&info.kind))),
            or_dash(info.map(|info| size(info.shape.size_bytes))),
            or_dash(open.map(|open| percent(used_bytes(open), open.size_bytes))),
            or_dash(info.map(|info| size(info.on_disk_bytes))),
            or_dash(open.map(|open| count(open.store.versions_retained))),
            or_dash(info.map(|info| info.snapshots.len().to_string())),
            or_dash(open.map(|open| open.sessions.to_string())),
            state(volume, open),
        ]
    };
    let rows: Vec<Vec<Markup>> = found.iter().take(ROWS_MAX).map(row).collect();
    table("Volumes of this target; of one that is not open, the store is not looked into", &columns, &rows)
}

/// What is stored in blocks of the volume.
pub(crate) fn used_bytes(volume: &VolumeReport) -> u64 {
    volume.store.blocks_mapped.saturating_mul(volume.block_size.into())
}

/// In a word.
fn state(volume: &VolumeEntry, open: Option<&VolumeReport>) -> Markup {
    let moves = volume.info().is_some_and(|info| info.successor.is_some() || info.succeeds.is_some());
    html! {
        @if volume.problem().is_some() { span.tag.bad { "damaged description" } }
        @else if open.is_some_and(attention::is_needed) { span.tag.bad { "needs attention" } }
        @else if open.is_some_and(|open| open.store.erasing.is_some()) { span.tag { "being erased" } }
        @else if moves { span.tag { "being resealed" } }
        @else if open.is_some() { span.tag.good { "open" } }
        @else { span.tag { "not open" } }
    }
}
