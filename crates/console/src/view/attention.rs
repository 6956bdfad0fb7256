//! What somebody should look at: said on the overview, and of each volume on its own page.

use maud::{Markup, html};
use strongroom_target::admin::{SpaceReport, StatusReport, VolumeEntry, VolumeReport};

use super::figures::{self, counted, text};

/// Something to look at: of which volume, and what it is.
pub(crate) struct Concern {
    pub(crate) volume: Option<String>,
    pub(crate) what: String,
}

impl Concern {
    fn of_volume(name: &str, what: impl Into<String>) -> Concern {
        Concern { volume: Some(name.to_owned()), what: what.into() }
    }
}

/// Of the whole target.
pub(crate) fn concerns(status: &StatusReport, listing: &[VolumeEntry]) -> Vec<Concern> {
    let open = status.volumes.iter().flat_map(|volume| failed_blocks(volume).into_iter().chain(of_volume(volume)));
    let damaged = listing
        .iter()
        .filter_map(|volume| volume.problem().map(|problem| Concern::of_volume(volume.name(), text(problem))));
    let schedules = status.schedules.iter().filter_map(|schedule| {
        let error = schedule.error.as_deref()?;
        Some(Concern::of_volume(&schedule.volume, format!("its scheduled snapshots fail: {}", text(error))))
    });
    let drains = status.drains.iter().map(|drain| Concern {
        volume: drain.volume.clone(),
        what: match &drain.to {
            Some(to) => {
                format!("is being drained: initiators are sent to {}; strongroom drain --end ends that", text(to))
            }
            None => "is being drained: logins are refused".to_owned(),
        },
    });
    open.chain(damaged).chain(schedules).chain(drains).collect()
}

/// Of one volume that is open: blocks that do not open, or cannot be read.
pub(crate) fn failed_blocks(volume: &VolumeReport) -> Vec<Concern> {
    let name = volume.name.as_str();
    let mut found = Vec::new();
    if let Some(done) = volume.verification.as_ref().filter(|done| !done.bad_blocks.is_empty()) {
        let blocks = counted(done.bad_blocks.len() as u64, "block");
        found.push(Concern::of_volume(name, format!("{blocks} failed authentication")));
    }
    if !volume.bad_blocks.is_empty() {
        let blocks = counted(volume.bad_blocks.len() as u64, "block");
        found.push(Concern::of_volume(
            name,
            format!("{blocks} cannot be read: scrubbing found them damaged on the medium"),
        ));
    }
    found
}

/// Of one volume that is open: all else.
pub(crate) fn of_volume(volume: &VolumeReport) -> Vec<Concern> {
    let (name, store) = (volume.name.as_str(), &volume.store);
    let mut found = Vec::new();
    if store.writes_refused {
        found.push(Concern::of_volume(
            name,
            "refuses writes since its medium failed; it tries again when it is opened again",
        ));
    }
    match store.space {
        SpaceReport::Full => found.push(Concern::of_volume(name, "is full: new data is refused")),
        _ if store.space_percent >= 80 => found.push(Concern::of_volume(
            name,
            format!(
                "{} % of its space is used; about {} more can be written",
                store.space_percent,
                figures::size(store.room_bytes)
            ),
        )),
        _ => {}
    }
    if let Some(waiting) = &volume.waiting {
        found.push(Concern::of_volume(name, text(&waiting.to_string())));
    }
    found
}

/// Whether one volume that is open needs any.
pub(crate) fn is_needed(volume: &VolumeReport) -> bool {
    !failed_blocks(volume).is_empty() || !of_volume(volume).is_empty()
}

/// As a list; of volumes with links to them.
pub(crate) fn list(base: &str, concerns: &[Concern]) -> Markup {
    html! {
        @if concerns.is_empty() {
            p.good { "Nothing needs attention." }
        } @else {
            ul.concerns {
                @for concern in concerns {
                    li {
                        @match &concern.volume {
                            Some(name) => { a href=(super::volumes::path(base, name)) { (text(name)) } ": " },
                            None => { "The target " },
                        }
                        (concern.what)
                    }
                }
            }
        }
    }
}
