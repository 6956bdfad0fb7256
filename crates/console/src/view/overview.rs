//! The first page: what needs attention, what the target does now, how long it takes, and what it is.

use maud::{Markup, html};
use strongroom_target::admin::{StatusReport, VolumeEntry};

use super::attention;
use super::figures::{at_most, count, counted, duration, micros, percent, size, text};
use super::sparkline::sparkline;
use super::table::{Column, facts, table};
use crate::history::{History, Rates};

/// The page's content.
pub(crate) fn content(base: &str, history: &History, listing: &[VolumeEntry]) -> Markup {
    let status = history.now();
    html! {
        section aria-labelledby="attention" {
            h2 #attention { "Attention" }
            div #live-attention data-live { (attention::list(base, &attention::concerns(status, listing))) }
        }
        section aria-labelledby="now" {
            h2 #now { "Now" }
            div.cards #live-cards data-live {
                (rate_card("Read", history, |rates| rates.read_bytes, |rate| format!("{}/s", size(rate as u64))))
                (rate_card("Written", history, |rates| rates.written_bytes, |rate| format!("{}/s", size(rate as u64))))
                (rate_card("Commands", history, |rates| rates.commands, |rate| format!("{rate:.0}/s")))
                (memory_card(status))
            }
        }
        section aria-labelledby="latency" {
            h2 #latency { "Latency" }
            div #live-latency data-live { (latencies(history)) }
        }
        section aria-labelledby="about" {
            h2 #about { "Target" }
            div #live-about data-live { (about(status, listing)) }
        }
    }
}

fn rate_card(name: &str, history: &History, of: fn(&Rates) -> f64, show: impl Fn(f64) -> String) -> Markup {
    let values: Vec<f64> = history.rates().map(of).collect();
    let now = values.last().map_or_else(|| "…".to_owned(), |rate| show(*rate));
    let top = values.iter().copied().fold(0.0, f64::max);
    let label = format!("{name}, the last three minutes; at most {}", show(top));
    html! {
        div.card {
            h3 { (name) }
            p.value { (now) }
            (sparkline(&label, &values))
            p.note { "at most " (show(top)) }
        }
    }
}

fn memory_card(status: &StatusReport) -> Markup {
    let memory = &status.memory;
    let parts = [memory.sessions_bytes, memory.commands_bytes, memory.caches_bytes, memory.stores_bytes];
    let used = parts.into_iter().fold(0, u64::saturating_add);
    html! {
        div.card {
            h3 { "Memory" }
            p.value { (size(used)) }
            meter min="0" max=(memory.budget_bytes.max(1)) value=(used.min(memory.budget_bytes)) aria-label="Memory used of the budget" {}
            p.note { (percent(used, memory.budget_bytes)) " of the budget of " (size(memory.budget_bytes)) }
        }
    }
}

fn latencies(history: &History) -> Markup {
    let columns = [
        Column::Text("Operation"),
        Column::Number("Operations"),
        Column::Number("Mean"),
        Column::Number("Median"),
        Column::Number("99 %"),
    ];
    let rows = history.latencies().into_iter().map(|latency| {
        let known = |shown: String| if latency.count > 0 { shown } else { "–".to_owned() };
        [
            text(&latency.operation).replace('_', " "),
            count(latency.count),
            known(micros(latency.mean_us)),
            known(at_most(latency.median_us)),
            known(at_most(latency.p99_us)),
        ]
    });
    let rows: Vec<Vec<Markup>> = rows.map(|row| row.map(|cell| html! { (cell) }).into()).collect();
    html! {
        @if rows.is_empty() {
            p { "No command was executed since the target started." }
        } @else {
            (table("Commands of the last half minute", &columns, &rows))
        }
    }
}

fn about(status: &StatusReport, listing: &[VolumeEntry]) -> Markup {
    let counters = &status.counters;
    let addresses: Vec<String> = status.addresses.iter().map(ToString::to_string).collect();
    facts(&[
        ("Version", html! { (text(&status.version)) ", process " (status.pid) ", up " (duration(status.uptime_s)) }),
        ("Listens on", html! { (addresses.join(", ")) }),
        ("Volumes in", html! { (text(&status.root)) }),
        (
            "Serves",
            html! {
                (counted(listing.len() as u64, "volume")) ", " (counters.volumes_open) " open; "
                (counted(status.sessions.len() as u64, "session")) " over " (counted(counters.connections, "connection")) "; "
                (counted(status.workers as u64, "worker"))
            },
        ),
        (
            "Channels",
            html! { @if status.channels { "encrypted and plain" } @else { "plain only: this target has no identity" } },
        ),
        (
            "Logins",
            html! {
                (count(counters.logins)) " since the start, " (count(counters.logins_refused)) " refused; "
                (count(counters.setups_failed)) " set-ups failed, " (count(counters.misbehaved)) " peers misbehaved"
            },
        ),
        (
            "Moved",
            html! {
                (size(counters.bytes_read)) " read, " (size(counters.bytes_written)) " written, " (count(counters.commands)) " commands"
            },
        ),
    ])
}
