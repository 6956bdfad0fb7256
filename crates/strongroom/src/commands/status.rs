//! `strongroom status`: what a running target is and does, as a table or as JSON. Rates come from asking twice.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;
use strongroom_target::admin::{ScheduleReport, SessionReport, StatusReport, VolumeReport};

use super::space::space_text;
use crate::admin::{AdminArgs, ask_status};
use crate::stats_file::{percent, received_in_words, reduced_in_words, repaired_in_words, window_in_words};
use crate::table::Table;
use crate::units::{parse_duration, show_duration, show_size, show_time};

/// Show a running target: sessions, what they negotiated, volumes, stores, rates.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
        strongroom status --root /srv/strongroom\n  \
        strongroom status --watch --interval 2s\n  \
        strongroom status --json --interval 0")]
pub(crate) struct StatusArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Measure rates over this time; 0 for none.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
    /// Show it again after each interval, until interrupted; with --json a line each time.
    #[arg(long)]
    watch: bool,
    /// Show what each login settled, too.
    #[arg(long)]
    keys: bool,
    #[command(flatten)]
    target: AdminArgs,
}

/// Runs the command.
pub(crate) fn run(args: &StatusArgs) -> Result<()> {
    if args.watch {
        return watch(args);
    }
    let mut client = args.target.connect()?;
    let mut before = None;
    if !args.interval.is_zero() {
        before = Some(ask_status(&mut client)?);
        thread::sleep(args.interval.min(Duration::from_secs(5)));
    }
    let report = ask_status(&mut client)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&to_json(&report, before.as_ref())?)?);
        return Ok(());
    }
    print(&report, before.as_ref(), args.keys);
    Ok(())
}

/// Goes on while the target is restarted.
fn watch(args: &StatusArgs) -> Result<()> {
    if args.interval.is_zero() {
        bail!("--watch shows rates over --interval, which must not be 0 then");
    }
    let mut client = Some(args.target.connect()?);
    let mut before = None;
    loop {
        let asked = client.take().map_or_else(|| args.target.connect(), Ok).and_then(|mut connected| {
            let report = ask_status(&mut connected)?;
            client = Some(connected);
            Ok(report)
        });
        match asked {
            Ok(report) => {
                show_again(args, &report, before.as_ref())?;
                before = Some(report);
            }
            Err(error) => eprintln!("strongroom: {error:#}; asking again"),
        }
        thread::sleep(args.interval);
    }
}

fn show_again(args: &StatusArgs, report: &StatusReport, before: Option<&StatusReport>) -> Result<()> {
    if args.json {
        println!("{}", to_json(report, before)?);
    } else {
        if io::stdout().is_terminal() {
            // To the upper left corner; what is below goes.
            print!("\x1b[H\x1b[J");
        }
        print(report, before, args.keys);
    }
    Ok(io::stdout().flush()?)
}

fn to_json(report: &StatusReport, before: Option<&StatusReport>) -> Result<serde_json::Value> {
    let mut text = serde_json::to_value(report)?;
    if let Some(before) = before {
        text["rates"] = Rates::between(&before.counters_of_all(), &report.counters_of_all(), before, report).to_json();
    }
    Ok(text)
}

/// `1 session`, `2 sessions`.
pub(crate) fn sessions(count: usize) -> String {
    format!("{count} session{}", if count == 1 { "" } else { "s" })
}

/// Work done up to some moment.
struct Done {
    commands: u64,
    read: u64,
    written: u64,
}

trait CountersOfAll {
    fn counters_of_all(&self) -> Done;
}

impl CountersOfAll for StatusReport {
    fn counters_of_all(&self) -> Done {
        let counters = &self.counters;
        Done { commands: counters.commands, read: counters.bytes_read, written: counters.bytes_written }
    }
}

impl CountersOfAll for SessionReport {
    fn counters_of_all(&self) -> Done {
        Done { commands: self.commands, read: self.bytes_read, written: self.bytes_written }
    }
}

/// Work per second.
struct Rates {
    commands: f64,
    read: f64,
    written: f64,
}

impl Rates {
    fn between(from: &Done, to: &Done, before: &StatusReport, after: &StatusReport) -> Rates {
        // A target that was restarted in between has counters that went back.
        let seconds = (after.uptime_s - before.uptime_s).max(0.001);
        let rate = |from: u64, to: u64| to.saturating_sub(from) as f64 / seconds;
        Rates {
            commands: rate(from.commands, to.commands),
            read: rate(from.read, to.read),
            written: rate(from.written, to.written),
        }
    }

    fn to_json(&self) -> serde_json::Value {
        json!({
            "commands_per_s": self.commands,
            "read_bytes_per_s": self.read,
            "written_bytes_per_s": self.written,
        })
    }
}

fn print(report: &StatusReport, before: Option<&StatusReport>, with_keys: bool) {
    let addresses: Vec<String> = report.addresses.iter().map(ToString::to_string).collect();
    line("target", format!("version {}, process {}, up {}", report.version, report.pid, show_seconds(report.uptime_s)));
    line("volumes in", report.root.clone());
    line("listens on", addresses.join(", "));
    line(
        "serves",
        format!("{} workers, {}", report.workers, if report.channels { "plain and channels" } else { "plain only" }),
    );
    for drain in &report.drains {
        let what = drain.volume.as_deref().unwrap_or("every volume");
        let to = drain.to.as_deref().map_or_else(|| "logins are refused".to_owned(), |to| format!("sent to {to}"));
        line("drains", format!("{what}: {to}"));
    }
    print_activity(report);
    if let Some(before) = before {
        let rates = Rates::between(&before.counters_of_all(), &report.counters_of_all(), before, report);
        line(
            "now",
            format!(
                "{}/s read, {}/s written, {:.0} commands/s",
                show_size(rates.read as u64),
                show_size(rates.written as u64),
                rates.commands
            ),
        );
    }
    println!();
    print_sessions(report, before);
    print_associations(report);
    if with_keys {
        print_session_keys(report);
    }
    println!();
    print_volumes(report);
    print_schedules(report);
}

/// One line of the summary.
fn line(name: &str, value: String) {
    println!("{name:<12} {value}");
}

/// What the target has done since its start, and what it needs for that.
fn print_activity(report: &StatusReport) {
    let counters = &report.counters;
    line(
        "logins",
        format!(
            "{} since the start, {} refused; {} set-ups failed, {} peers misbehaved",
            counters.logins, counters.logins_refused, counters.setups_failed, counters.misbehaved
        ),
    );
    line(
        "moved",
        format!(
            "{} read, {} written, {} commands",
            show_size(counters.bytes_read),
            show_size(counters.bytes_written),
            counters.commands
        ),
    );
    let memory = &report.memory;
    line(
        "memory",
        format!(
            "{} of {} ({} reserved): {} sessions, {} commands, {} caches, {} stores",
            show_size(memory.used_bytes()),
            show_size(memory.budget_bytes),
            show_size(memory.reserve_bytes),
            show_size(memory.sessions_bytes),
            show_size(memory.commands_bytes),
            show_size(memory.caches_bytes),
            show_size(memory.stores_bytes)
        ),
    );
    let iterations = &counters.iterations;
    line(
        "iterations",
        format!(
            "{} of the workers, {} over 1 ms, {} over 10 ms of CPU time; the longest {:.1} ms",
            iterations.count(),
            iterations.longer_than(Duration::from_millis(1)),
            iterations.longer_than(Duration::from_millis(10)),
            iterations.longest_us as f64 / 1000.0
        ),
    );
    let polls = &counters.busy_poll;
    if polls.polls > 0 {
        line(
            "busy polling",
            format!(
                "{} looks for work, {} found some, {} none, {} made way; {:.1} s",
                polls.polls,
                polls.hits,
                polls.misses,
                polls.contended,
                polls.spent_us as f64 / 1e6
            ),
        );
    }
}

/// How the packets of sessions over ECL do.
fn print_associations(report: &StatusReport) {
    let associations = report.sessions.iter().filter_map(|session| Some((session.id, session.ecl?)));
    for (id, ecl) in associations {
        let round_trip = ecl.round_trip_us.map_or_else(|| "-".to_owned(), |us| format!("{:.2} ms", us as f64 / 1000.0));
        println!(
            "  {id}: ECL, quantum {}, packets up to {} bytes{}, {} of {} sent lost ({}){}, {}, round trip {round_trip}, congestion window {}",
            ecl.quantum_bytes,
            ecl.packet_bytes,
            reduced_in_words(ecl.black_holes),
            ecl.packets_lost,
            ecl.packets_sent,
            percent(ecl.packets_lost, ecl.packets_sent),
            repaired_in_words(ecl.quanta_repaired),
            received_in_words(ecl.received_bytes, ecl.copied_bytes),
            window_in_words(ecl.window_bytes)
        );
    }
}

/// What the logins of each session settled, and the state of its channels.
fn print_session_keys(report: &StatusReport) {
    for session in &report.sessions {
        let keys: Vec<String> = session.keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let keys = if keys.is_empty() { "over ECL".to_owned() } else { keys.join(", ") };
        println!("  {}: queue depth {}, {keys}", session.id, session.queue_depth);
        for connection in &session.connections {
            let (header, data) = (&connection.header_digest, &connection.data_digest);
            println!(
                "  {}: connection {} from {}, HeaderDigest={header}, DataDigest={data}",
                session.id, connection.cid, connection.address
            );
            if session.scheme != "S0" {
                println!(
                    "  {}: connection {}: keys changed {} times by us, {} times by the initiator",
                    session.id, connection.cid, connection.rekeys, connection.peer_rekeys
                );
            }
        }
    }
}

/// How the last run of a schedule went, for people.
pub(super) fn last_run(report: &ScheduleReport) -> String {
    let when = report.last_seconds.map(show_time);
    match (&when, &report.error, &report.last_outcome) {
        (None, ..) => "none since the target started".to_owned(),
        (Some(when), Some(error), _) => format!("{when}: FAILED: {error}"),
        (Some(when), None, Some(outcome)) => format!("{when}: {outcome}"),
        (Some(when), None, None) => when.clone(),
    }
}

fn print_schedules(report: &StatusReport) {
    if report.schedules.is_empty() {
        return;
    }
    let mut table = Table::new(&["SNAPSHOTS OF", ">EVERY", "KEEPS", "NEXT", "LAST RUN"]);
    for schedule in &report.schedules {
        table.row(vec![
            schedule.volume.clone(),
            show_duration(Duration::from_secs(schedule.schedule.every_s)),
            schedule.schedule.keep.to_string(),
            show_time(schedule.next_seconds),
            last_run(schedule),
        ]);
    }
    print!("\n{table}");
}

/// The table of sessions; with an earlier report also their rates.
pub(crate) fn print_sessions(report: &StatusReport, before: Option<&StatusReport>) {
    if report.sessions.is_empty() {
        println!("no sessions");
        return;
    }
    let mut columns = vec![
        "ID",
        "INITIATOR",
        "PEER",
        "FROM",
        "VOLUME",
        "ACCESS",
        "OVER",
        "SCHEME",
        "CIPHER",
        "AGE",
        ">BUSY",
        ">READ",
        ">WRITTEN",
    ];
    if before.is_some() {
        columns.extend([">READ/s", ">WRITTEN/s", ">CMD/s"]);
    }
    let mut table = Table::new(&columns);
    for session in &report.sessions {
        let mut row = vec![
            session.id.to_string(),
            session.initiator.clone(),
            session.peer.clone().unwrap_or_else(|| "-".to_owned()),
            session.address.to_string(),
            session.volume.clone().unwrap_or_else(|| "(discovery)".to_owned()),
            if session.read_only { "read" } else { "write" }.to_owned(),
            session.transport.clone(),
            session.scheme.clone(),
            ciphers(session),
            show_seconds(session.age_s),
            (session.in_flight + session.waiting).to_string(),
            show_size(session.bytes_read),
            show_size(session.bytes_written),
        ];
        if let Some(before) = before {
            let same = |other: &&SessionReport| other.id == session.id;
            let earlier = before
                .sessions
                .iter()
                .find(same)
                .map_or(Done { commands: 0, read: 0, written: 0 }, CountersOfAll::counters_of_all);
            let rates = Rates::between(&earlier, &session.counters_of_all(), before, report);
            row.extend([
                show_size(rates.read as u64),
                show_size(rates.written as u64),
                format!("{:.0}", rates.commands),
            ]);
        }
        table.row(row);
    }
    print!("{table}");
}

/// The cipher of a session's channels; they may differ.
fn ciphers(session: &SessionReport) -> String {
    let mut ciphers: Vec<&str> = session.connections.iter().filter_map(|one| one.suite.as_deref()).collect();
    ciphers.sort_unstable();
    ciphers.dedup();
    if ciphers.is_empty() { "-".to_owned() } else { ciphers.join(", ") }
}

fn print_volumes(report: &StatusReport) {
    if report.volumes.is_empty() {
        println!("no volumes open");
        return;
    }
    let mut table = Table::new(&[
        "VOLUME",
        ">SIZE",
        "KIND",
        "I/O",
        ">SESSIONS",
        ">BUSY",
        ">MAPPED",
        ">VERSIONS",
        ">VOLUME FREE",
        ">STORE FREE",
        ">HOST FREE",
        "SPACE",
        ">AMPLIFIED",
        ">SYNCS",
        ">ERRORS",
    ]);
    for volume in &report.volumes {
        let store = &volume.store;
        let appended = store.appended_bytes + store.cleaned_bytes + store.table_bytes;
        let amplified = match store.written_bytes {
            0 => "-".to_owned(),
            written => format!("{:.2}", appended as f64 / written as f64),
        };
        table.row(vec![
            volume.name.clone(),
            show_size(volume.size_bytes),
            volume.kind.clone(),
            volume.io.clone(),
            volume.sessions.to_string(),
            volume.in_flight.to_string(),
            show_size(store.blocks_mapped * u64::from(volume.block_size)),
            store.versions_retained.to_string(),
            show_size(volume.size_bytes.saturating_sub(store.blocks_mapped * u64::from(volume.block_size))),
            show_size(store.log_free_bytes),
            store.host_free_bytes.map_or("-".to_owned(), show_size),
            store.space.to_string(),
            amplified,
            store.syncs.to_string(),
            store.medium_errors.to_string(),
        ]);
    }
    print!("{table}");
    print_memory(report);
    print_volume_notes(report);
}

/// What there is to say about single volumes: space, erasing, I/O, and blocks that cannot be read.
fn print_volume_notes(report: &StatusReport) {
    for volume in &report.volumes {
        if let Some(told) = space_text(&volume.store) {
            println!("{}: {told}", volume.name);
        }
        if let Some(waiting) = &volume.waiting {
            println!("{}: {waiting}", volume.name);
        }
        if let Some(progress) = volume.store.erasing {
            println!("{}: being erased, {} % done", volume.name, u32::from(progress) * 100 / 65536);
        }
        if let Some(why) = &volume.io_reason {
            println!("{}: I/O is {}, because {why}", volume.name, volume.io);
        }
    }
    report.volumes.iter().for_each(tell_of_verification);
    for volume in report.volumes.iter().filter(|volume| !volume.bad_blocks.is_empty()) {
        let listed: Vec<String> = volume.bad_blocks.iter().take(20).map(u64::to_string).collect();
        println!(
            "{}: scrubbing found {} bad blocks ({}{}); reads of them fail. Rewrite them, or see: strongroom store check",
            volume.name,
            volume.bad_blocks.len(),
            listed.join(", "),
            if listed.len() < volume.bad_blocks.len() { ", …" } else { "" }
        );
    }
}

fn tell_of_verification(volume: &VolumeReport) {
    let Some(done) = volume.verification.as_ref().filter(|done| !done.bad_blocks.is_empty()) else { return };
    let listed: Vec<String> = done.bad_blocks.iter().take(20).map(u64::to_string).collect();
    println!(
        "{}: {} blocks do not open ({}{}); older versions of them are kept, see: strongroom volume recover",
        volume.name,
        done.bad_blocks.len(),
        listed.join(", "),
        if listed.len() < done.bad_blocks.len() { ", …" } else { "" }
    );
}

/// What each volume's store has in memory, and how often that helped.
fn print_memory(report: &StatusReport) {
    let mut table = Table::new(&["MEMORY", ">INDEX", ">RECORDS", ">OF", ">FOUND", ">DATA", ">OF", ">FOUND"]);
    let found = |hits: u64, misses: u64| match hits + misses {
        0 => "-".to_owned(),
        all => format!("{} %", hits * 100 / all),
    };
    for volume in &report.volumes {
        let store = &volume.store;
        table.row(vec![
            volume.name.clone(),
            show_size(store.index_bytes),
            show_size(store.record_cache_bytes),
            show_size(store.record_cache_bytes_max),
            found(store.record_cache_hits, store.record_cache_misses),
            show_size(store.data_cache_bytes),
            show_size(store.data_cache_bytes_max),
            found(store.data_cache_hits, store.data_cache_misses),
        ]);
    }
    print!("\n{table}");
}

fn show_seconds(seconds: f64) -> String {
    match seconds as u64 {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        seconds @ 3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        seconds => format!("{}d{:02}h", seconds / 86400, seconds / 3600 % 24),
    }
}
