//! One volume: space, snapshots, keys, what goes on in the background, blocks that fail and the commands that bring them back.

use maud::{Markup, html};
use strongroom_target::admin::{
    Description, LeaseReport, SealingInfo, SessionReport, StatusReport, VolumeEntry, VolumeInfo, VolumeReport,
};

use super::attention;
use super::commands::{quoted, recover, runs, url, verify};
use super::figures::{count, counted, moment, percent, size, text, texts};
use super::sessions::sessions;
use super::table::{Column, ROWS_MAX, facts, table};
use super::volumes::{path, used_bytes};
use crate::history::History;

/// Commands that are shown at most.
const COMMANDS_MAX: usize = 20;

/// What is known of a volume.
pub(crate) struct VolumeView<'a> {
    pub(crate) base: &'a str,
    pub(crate) history: &'a History,
    pub(crate) listed: &'a VolumeEntry,
    /// What its store has in it, if it is open.
    pub(crate) contents: Option<&'a Description>,
}

impl VolumeView<'_> {
    fn status(&self) -> &StatusReport {
        self.history.now()
    }

    fn open(&self, name: &str) -> Option<&VolumeReport> {
        self.status().volumes.iter().find(|open| open.name == name)
    }

    /// The page's content.
    pub(crate) fn content(&self) -> Markup {
        let name = self.listed.name();
        let open = self.open(name);
        let concerns = open.map(attention::of_volume).unwrap_or_default();
        html! {
            div #live-concerns data-live {
                @if let Some(problem) = self.listed.problem() {
                    section.notice.bad role="alert" { p { "Its description cannot be read: " (text(problem)) } p { code { "strongroom store check DIR" } " says more." } }
                }
                @if !concerns.is_empty() {
                    section.notice.bad { h2 { "Attention" } ul.concerns { @for concern in &concerns { li { "This volume: " (concern.what) } } } }
                }
            }
            @if let Some(info) = self.listed.info() {
                div #live-failed data-live { (self.failed_blocks(info, open)) }
                section aria-labelledby="space" { h2 #space { "Space" } div #live-space data-live { (self.space(info, open)) } }
                section aria-labelledby="work" { h2 #work { "In the background" } div #live-work data-live { (self.work(info, open)) } }
                section aria-labelledby="keys" { h2 #keys { "Keys" } div #live-keys data-live { (keys(name, info)) } }
                section aria-labelledby="snapshots" { h2 #snapshots { "Snapshots and clones" } div #live-snapshots data-live { (self.snapshots(info)) } }
                section aria-labelledby="users" { h2 #users { "Sessions" } div #live-users data-live { (self.users()) } }
            }
        }
    }

    /// Blocks that do not open, or cannot be read, and the command for each run of them.
    fn failed_blocks(&self, info: &VolumeInfo, open: Option<&VolumeReport>) -> Markup {
        let unopened = open.and_then(|open| open.verification.as_ref()).map_or(&[][..], |done| &done.bad_blocks);
        let damaged = open.map_or(&[][..], |open| &open.bad_blocks);
        let url = url(&self.status().addresses, self.listed.name());
        html! {
            @if !unopened.is_empty() {
                section.notice.bad aria-labelledby="unopened" {
                    h2 #unopened { (counted(unopened.len() as u64, "block")) " failed authentication" }
                    p { "What is stored there is not what was sealed. Older versions are kept. On an initiator, this brings back the newest one that opens:" }
                    (commands(&url, unopened, info))
                }
            }
            @if !damaged.is_empty() {
                section.notice.bad aria-labelledby="damaged" {
                    h2 #damaged { (counted(damaged.len() as u64, "block")) " cannot be read" }
                    p { "Scrubbing found that the medium returns other bytes than were written. " code { "strongroom store check" } " says where they lie." }
                    (commands(&url, damaged, info))
                }
            }
        }
    }

    fn space(&self, info: &VolumeInfo, open: Option<&VolumeReport>) -> Markup {
        let mut rows = vec![
            ("Kind", html! { (text(&info.kind)) }),
            ("Size", html! { (size(info.shape.size_bytes)) ", blocks of " (size(info.shape.block_size)) }),
            ("On the host", html! { (size(info.on_disk_bytes)) }),
        ];
        match open {
            None => rows.push(("State", html! { "not open: nobody uses it, so its store is not looked into" })),
            Some(open) => {
                let store = &open.store;
                let used = used_bytes(open);
                rows.extend([
                    ("Used", html! {
                        (size(used)) " (" (percent(used, open.size_bytes)) ") "
                        meter min="0" max=(open.size_bytes.max(1)) value=(used.min(open.size_bytes)) aria-label="Used of the volume" {}
                    }),
                    ("Free", html! {
                        "about " (size(store.room_bytes)) " more can be written: " (size(store.log_free_bytes)) " in the store"
                        @if let Some(host) = store.host_free_bytes { ", " (size(host)) " on the host's file system" }
                    }),
                    ("Versions", html! {
                        (count(store.versions_retained)) " older versions of blocks are kept, of at most " (count(open.retention_blocks))
                        "; " (count(store.versions_pinned)) " more for snapshots"
                    }),
                    ("I/O", html! { (text(&open.io)) @if let Some(why) = &open.io_reason { ", because " (text(why)) } "; " (open.in_flight) " in flight" }),
                ]);
            }
        }
        if let Some(schedule) = self.status().schedules.iter().find(|one| one.volume == self.listed.name()) {
            rows.push(("Schedule", html! { "next snapshot at " (moment(schedule.next_seconds)) @if let Some(error) = &schedule.error { "; the last one failed: " (text(error)) } }));
        }
        facts(&rows)
    }

    /// Scrubbing, verification, resealing, erasing: how far they are.
    fn work(&self, info: &VolumeInfo, open: Option<&VolumeReport>) -> Markup {
        let mut rows: Vec<(&str, Markup)> = Vec::new();
        if let Some(open) = open {
            let store = &open.store;
            rows.push(("Scrub", html! {
                (progress("Scrubbed in this pass", open.activity.scrub.into(), 65536))
                "; " (counted(store.scrub_passes, "pass").replace("passs", "passes")) " since it was opened, " (size(store.scrubbed_bytes)) " read"
            }));
            match &open.verification {
                Some(done) if done.is_done => rows.push((
                    "Verify",
                    html! { "all of it; " (counted(done.opened, "block")) " opened since the volume was opened" },
                )),
                Some(done) => {
                    let blocks = open.size_bytes / u64::from(open.block_size.max(1));
                    rows.push(("Verify", html! { (progress("Verified in this pass", done.next, blocks)) "; " (counted(done.opened, "block")) " opened" }));
                }
                None => {}
            }
            if let Some(erasing) = store.erasing {
                rows.push(("Erase", progress("Erased", erasing.into(), 65536)));
            }
            rows.extend(open.activity.leases.iter().map(|lease| ("Writer", self.lease(lease, open))));
        }
        if open.is_none_or(|open| open.verification.is_none())
            && let Some(sealing) = &info.sealed
        {
            rows.push((
                "Verify",
                html! {
                    "this target has no key to open its blocks; where there is one: "
                    code { (verify(&url(&self.status().addresses, self.listed.name()), sealing)) }
                },
            ));
        }
        if let Some(successor) = &info.successor {
            rows.push(("Reseal", self.reseal(self.listed.name(), successor)));
        }
        if let Some(succeeds) = &info.succeeds {
            rows.push(("Reseal", self.reseal(succeeds, self.listed.name())));
        }
        html! { @if rows.is_empty() { p { "Nothing: the volume is not open." } } @else { (facts(&rows)) } }
    }

    /// Of a volume whose contents are written into another one, which then takes its place.
    fn reseal(&self, from: &str, into: &str) -> Markup {
        let names = html! { a href=(path(self.base, from)) { (text(from)) } " into " a href=(path(self.base, into)) { (text(into)) } };
        match (self.open(from), self.open(into)) {
            (Some(one), Some(other)) => {
                html! { (names) ": " (progress("Resealed", used_bytes(other), used_bytes(one))) }
            }
            _ => {
                html! { (names) ": not running now; continue it at an initiator with " code { "strongroom volume reseal" } }
            }
        }
    }

    /// Who may write. One that verifies or reseals says so, and its sessions tell how much it has read.
    fn lease(&self, lease: &LeaseReport, open: &VolumeReport) -> Markup {
        let is_its = |session: &&SessionReport| {
            session.initiator == lease.initiator && session.volume.as_deref() == Some(&open.name)
        };
        let read =
            self.status().sessions.iter().filter(is_its).map(|session| session.bytes_read).fold(0, u64::saturating_add);
        let reads_all = ["volume verify", "volume reseal"].iter().any(|purpose| lease.description.ends_with(purpose));
        html! {
            (text(&lease.initiator)) ", " (text(&lease.mode)) @if !lease.connected { ", away" }
            @if !lease.description.is_empty() { br; span.small { (text(&lease.description)) } }
            @if reads_all { br; "has read " (size(read)) ", and " (size(used_bytes(open))) " are stored: " (progress("Read", read, used_bytes(open))) }
        }
    }

    fn snapshots(&self, info: &VolumeInfo) -> Markup {
        html! {
            @if let Some(origin) = &info.clone_of { p { "It is a clone of " (text(&origin.snapshot)) "." } }
            @match self.contents {
                Some(contents) if !contents.snapshots.is_empty() || !contents.clones.is_empty() => {
                    (snapshot_table(contents))
                    @if !contents.clones.is_empty() {
                        p { "Clones: " @for (at, clone) in contents.clones.iter().enumerate() {
                            @if at > 0 { ", " } a href=(path(self.base, &clone.name)) { (text(&clone.name)) } " of " (text(&clone.snapshot))
                        } }
                    }
                },
                None if !info.snapshots.is_empty() => p { (texts(&info.snapshots)) },
                _ => p { "None." },
            }
        }
    }

    fn users(&self) -> Markup {
        let name = self.listed.name();
        let uses = |session: &&SessionReport| {
            session.volume.as_deref().and_then(|volume| volume.split('@').next()) == Some(name)
        };
        let found: Vec<&SessionReport> = self.status().sessions.iter().filter(uses).collect();
        html! { @if found.is_empty() { p { "Nobody uses it." } } @else { (sessions(self.base, self.history, &found)) } }
    }
}

fn snapshot_table(contents: &Description) -> Markup {
    let columns = [
        Column::Text("Snapshot"),
        Column::Text("Taken"),
        Column::Number("Written before it"),
        Column::Number("Deleting it frees"),
    ];
    let rows: Vec<Vec<Markup>> = contents
        .snapshots
        .iter()
        .take(ROWS_MAX)
        .map(|snapshot| {
            vec![
                html! { (text(&snapshot.name)) @if let Some(clone) = &snapshot.clone { " (of the clone " (text(clone)) ")" } },
                html! { (moment(snapshot.created_seconds)) },
                html! { (size(snapshot.bytes_written)) },
                html! { (size(snapshot.bytes_pinned)) },
            ]
        })
        .collect();
    table("Snapshots", &columns, &rows)
}

/// A command for each run of blocks.
fn commands(url: &str, blocks: &[u64], info: &VolumeInfo) -> Markup {
    let runs = runs(blocks);
    html! {
        @match &info.sealed {
            Some(sealing) => {
                pre { code { @for (first, blocks) in runs.iter().take(COMMANDS_MAX) { (recover(url, *first, *blocks, sealing)) "\n" } } }
                @if runs.len() > COMMANDS_MAX { p.note { "and " (runs.len() - COMMANDS_MAX) " more of them" } }
            },
            None => {
                p { "The volume is plain: it has no older versions that could be checked. Write these blocks again from a backup: "
                    (runs.iter().take(COMMANDS_MAX).map(|(first, blocks)| if *blocks > 1 { format!("{first} to {}", first + (blocks - 1)) } else { first.to_string() }).collect::<Vec<_>>().join(", ")) }
            },
        }
    }
}

fn keys(name: &str, info: &VolumeInfo) -> Markup {
    let Some(sealing) = &info.sealed else {
        return html! { p { "None: the volume is plain, and this target and its disk can read it." } };
    };
    let SealingInfo { custody, suite, domain, epoch, wrapping_key, opened_with, .. } = sealing;
    let mut rows = vec![
        ("Custody", html! { (text(custody)) ": " (custody_in_words(custody)) }),
        ("Cipher", html! { (text(suite)) }),
        ("Sealing domain", html! { code.key { (text(domain)) } }),
        (
            "Epoch",
            html! {
                @if custody == "keyserver" { "at the key server: " code { "strongroom key show " (quoted(name)) " --key-server KEY-SERVER" } } @else { (epoch) }
            },
        ),
    ];
    if let Some(path) = wrapping_key {
        rows.push(("Wrapping key", html! { code { (text(path)) } }));
    }
    if opened_with.is_some() {
        rows.push((
            "Opened here",
            html! { span.tag.bad { "plaintext at rest" } " blocks are opened when they arrive" },
        ));
    }
    facts(&rows)
}

fn custody_in_words(custody: &str) -> &'static str {
    match custody {
        "keyfile" => "initiators have the key; this target cannot open a block",
        "keyserver" => "a key server lends the keys; this target cannot open a block",
        "target" => "this target keeps a key for each block, wrapped",
        _ => "not known to this console",
    }
}

/// A bar, and the same in percent.
fn progress(label: &str, done: u64, all: u64) -> Markup {
    let all = all.max(1);
    let done = done.min(all);
    html! { progress max=(all) value=(done) aria-label=(label) {} " " (percent(done, all)) }
}
