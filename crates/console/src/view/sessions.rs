//! Who is logged in, with what, how it is protected, and how fast it is.

use maud::{Markup, html};
use strongroom_target::admin::SessionReport;

use super::figures::{counted, duration, size, text};
use super::table::{Column, ROWS_MAX, table};
use super::volumes::{filter_form, path, shown_of};
use crate::history::History;

/// The page's content: those of whose peer, initiator or volume `filter` is a part.
pub(crate) fn content(base: &str, history: &History, filter: &str) -> Markup {
    let all = &history.now().sessions;
    let fits = |session: &&SessionReport| {
        [session.peer.as_ref(), session.volume.as_ref(), Some(&session.initiator)]
            .into_iter()
            .flatten()
            .any(|name| name.contains(filter))
    };
    let found: Vec<&SessionReport> = all.iter().filter(fits).collect();
    html! {
        (filter_form(base, "sessions", "Sessions with this in the name of peer, initiator or volume", filter))
        div #live-sessions data-live {
            @if all.is_empty() {
                p { "Nobody is logged in." }
            } @else if found.is_empty() {
                p { "No session has this in its names." }
            } @else {
                (sessions(base, history, &found))
                (shown_of(found.len(), "sessions"))
            }
        }
    }
}

/// A table of sessions.
pub(crate) fn sessions(base: &str, history: &History, found: &[&SessionReport]) -> Markup {
    let columns = [
        Column::Text("Initiator"),
        Column::Text("Volume"),
        Column::Text("From"),
        Column::Text("Protected by"),
        Column::Number("Read"),
        Column::Number("Written"),
        Column::Number("Commands"),
        Column::Number("In flight"),
        Column::Number("Since"),
    ];
    let row = |session: &&SessionReport| {
        let rates = history.of_session(session);
        let rate = |of: fn(&crate::history::Rates) -> f64| {
            rates.as_ref().map_or_else(|| "…".to_owned(), |rates| format!("{}/s", size(of(rates) as u64)))
        };
        let busy = session.in_flight.saturating_add(session.waiting);
        vec![
            html! {
                @if let Some(peer) = &session.peer { strong { (text(peer)) } br; }
                span.small { (text(&session.initiator)) }
            },
            html! {
                @match &session.volume {
                    Some(volume) => { a href=(path(base, volume.split('@').next().unwrap_or_default())) { (text(volume)) } @if session.read_only { " (read only)" } },
                    None => { "discovery" },
                }
            },
            html! { (session.address) },
            protection(session),
            html! { (rate(|rates| rates.read_bytes)) },
            html! { (rate(|rates| rates.written_bytes)) },
            html! { @match &rates { Some(rates) => { (format!("{:.0}/s", rates.commands)) }, None => { "…" } } },
            html! { (busy) },
            html! { (duration(session.age_s)) },
        ]
    };
    let rows: Vec<Vec<Markup>> = found.iter().take(ROWS_MAX).map(row).collect();
    table("Sessions", &columns, &rows)
}

/// Scheme and cipher, and how often the channel's keys were changed.
fn protection(session: &SessionReport) -> Markup {
    let mut ciphers: Vec<&str> = session.connections.iter().filter_map(|one| one.suite.as_deref()).collect();
    ciphers.sort_unstable();
    ciphers.dedup();
    let connections = session.connections.iter().map(|one| one.rekeys.saturating_add(one.peer_rekeys));
    let rekeys =
        connections.fold(session.ecl.map_or(0, |ecl| ecl.rekeys.saturating_add(ecl.peer_rekeys)), u64::saturating_add);
    html! {
        @if session.scheme == "S0" {
            span.tag.bad { "nothing" }
        } @else {
            (text(&session.scheme)) " " (ciphers.iter().map(|cipher| text(cipher)).collect::<Vec<_>>().join(", "))
            @if rekeys > 0 { br; span.small { "keys changed " (counted(rekeys, "time")) } }
        }
        @if session.transport != "iscsi" { br; span.small { "over " (text(&session.transport)) } }
    }
}
