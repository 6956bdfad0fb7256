//! Peers and invitations, and the forms that change them: the only ones of the console.

use maud::{Markup, html};
use strongroom_target::PeerRole;
use strongroom_target::admin::{InvitationReport, InvitationText, PeerOrigin, PeerReport, VolumeEntry};

use super::figures::{counted, duration, moment, text, texts};
use super::layout::{Frame, form};
use super::notices::refused;
use super::table::{Column, table};

/// Volumes that have a box each; where there are more, their names are typed.
const BOXES_MAX: usize = 60;
/// For how long an invitation is good, in seconds.
const EXPIRIES: [(&str, &str); 4] =
    [("600", "10 minutes"), ("3600", "an hour"), ("86400", "a day"), ("604800", "a week")];

/// What the form of an invitation has in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct InviteForm {
    pub(crate) name: String,
    pub(crate) volumes: Vec<String>,
    pub(crate) read_only: bool,
    pub(crate) expires_s: u64,
    pub(crate) address: String,
    /// Why it was refused.
    pub(crate) refused: Option<String>,
}

/// The page's content.
pub(crate) fn content(
    frame: &Frame<'_>,
    (peers, invitations): (&[PeerReport], &[InvitationReport]),
    listing: &[VolumeEntry],
    invite: &InviteForm,
) -> Markup {
    html! {
        @if let Some(why) = &invite.refused { (refused(why)) }
        section aria-labelledby="peers" {
            h2 #peers { "Who may come" }
            div #live-peers data-live { (peer_table(frame, peers)) }
        }
        section aria-labelledby="invitations" {
            h2 #invitations { "Invitations that can be used" }
            div #live-invitations data-live { (invitation_table(frame, invitations)) }
        }
        section aria-labelledby="invite" {
            h2 #invite { "Invite a machine" }
            (form(frame, "/peers/invite", &invite_fields(listing, invite)))
        }
    }
}

fn right(read_only: bool, role: PeerRole) -> &'static str {
    match (role, read_only) {
        (PeerRole::Operator, true) => "operator, read",
        (PeerRole::Operator, false) => "operator, read and write",
        (PeerRole::Initiator, true) => "read",
        (PeerRole::Initiator, false) => "read and write",
    }
}

fn peer_table(frame: &Frame<'_>, peers: &[PeerReport]) -> Markup {
    let columns = [
        Column::Text("Name"),
        Column::Text("Volumes"),
        Column::Text("Right"),
        Column::Text("By"),
        Column::Text("Public key"),
        Column::Text("Change"),
    ];
    let row = |peer: &PeerReport| {
        let origin = match peer.origin {
            PeerOrigin::Configuration => "the configuration",
            PeerOrigin::Invitation => "invitation",
            PeerOrigin::Overridden => "invitation; overridden by the configuration",
        };
        let name: String = form_urlencoded::byte_serialize(peer.name.as_bytes()).collect();
        vec![
            html! { strong { (text(&peer.name)) } },
            html! { @if peer.volumes.is_empty() { "those that name it" } @else { (texts(&peer.volumes)) } },
            html! { (right(peer.read_only, peer.role)) },
            html! { (origin) @if let Some(since) = peer.since { br; span.small { (moment(since)) } } },
            html! { code.key { (text(&peer.key)) } },
            html! {
                @if peer.origin == PeerOrigin::Configuration { span.small { "in the configuration" } }
                @else { a.button href={ (frame.base) "/peers/remove?name=" (name) } { "Remove " span.hidden { (text(&peer.name)) } } }
            },
        ]
    };
    let rows: Vec<Vec<Markup>> = peers.iter().map(row).collect();
    html! {
        @if rows.is_empty() { p { "No machine is a peer yet. Invite one below." } }
        @else { (table("Peers of this target", &columns, &rows)) }
    }
}

fn invitation_table(frame: &Frame<'_>, invitations: &[InvitationReport]) -> Markup {
    let columns = [
        Column::Text("For"),
        Column::Text("Volumes"),
        Column::Text("Right"),
        Column::Number("Expires in"),
        Column::Text("Change"),
    ];
    let row = |invitation: &InvitationReport| {
        let button = html! {
            input type="hidden" name="name" value=(invitation.name);
            button { "Revoke " span.hidden { "the invitation of " (text(&invitation.name)) } }
        };
        vec![
            html! { strong { (text(&invitation.name)) } },
            html! { (texts(&invitation.volumes)) },
            html! { (right(invitation.read_only, invitation.role)) },
            html! { (duration(invitation.expires_in_s as f64)) },
            form(frame, "/peers/revoke", &button),
        ]
    };
    let rows: Vec<Vec<Markup>> = invitations.iter().map(row).collect();
    html! {
        @if rows.is_empty() { p { "None." } }
        @else { (table("Invitations that were given out and not used", &columns, &rows)) }
    }
}

fn invite_fields(listing: &[VolumeEntry], invite: &InviteForm) -> Markup {
    let chosen = |name: &str| invite.volumes.iter().any(|volume| volume == name);
    html! {
        div.field {
            label for="name" { "What it is called here" }
            input #name name="name" value=(invite.name) required maxlength="64" autocomplete="off" autocapitalize="none" spellcheck="false";
        }
        @if listing.len() <= BOXES_MAX {
            fieldset {
                legend { "Volumes that it may use" }
                @for (at, volume) in listing.iter().enumerate() {
                    div.choice {
                        input id={ "volume-" (at) } type="checkbox" name="volume" value=(volume.name()) checked[chosen(volume.name())];
                        label for={ "volume-" (at) } { (text(volume.name())) }
                    }
                }
                div.choice {
                    input #volume-all type="checkbox" name="volume" value="*" checked[chosen("*")];
                    label for="volume-all" { "all, those that are made later too" }
                }
            }
        } @else {
            div.field {
                label for="volumes" { "Volumes that it may use: their names, or * for all" }
                input #volumes name="volumes" value=(invite.volumes.join(" ")) required autocomplete="off" spellcheck="false";
            }
        }
        div.choice {
            input #read-only type="checkbox" name="read_only" value="yes" checked[invite.read_only];
            label for="read-only" { "It may only read" }
        }
        div.field {
            label for="expires" { "The invitation is good for" }
            select #expires name="expires_s" {
                @for (seconds, words) in EXPIRIES {
                    option value=(seconds) selected[seconds == invite.expires_s.to_string()] { (words) }
                }
            }
        }
        div.field {
            label for="address" { "Where it reaches this target: " code { "HOST" } " or " code { "HOST:PORT" } " (empty: as the target knows it)" }
            input #address name="address" value=(invite.address) autocomplete="off" autocapitalize="none" spellcheck="false";
        }
        button.primary { "Make an invitation" }
    }
}

/// The invitation, this once.
pub(crate) fn invited(
    frame: &Frame<'_>,
    name: &str,
    invitation: &InvitationText,
    addresses: &[String],
    expires_at: u64,
) -> Markup {
    html! {
        section.notice.good role="status" {
            p { "This line lets one machine join as " strong { (text(name)) } ", until " (moment(expires_at)) ". It is shown this once, and is a secret: give it to nobody else." }
        }
        div.field {
            label for="invitation" { "Invitation" }
            textarea #invitation readonly rows="5" autocomplete="off" spellcheck="false" { (invitation.0) }
            button.copy type="button" data-copy="invitation" hidden { "Copy the invitation" }
        }
        p { "On that machine, run this and paste the line:" }
        pre { code #join { "strongroom join" } }
        p { "It will connect to " (texts(addresses)) "; if it reaches the target elsewhere: " code { "strongroom join --address HOST" } "." }
        p { a href={ (frame.base) "/peers" } { "Back to the peers" } }
    }
}

/// Asks before a peer is removed.
pub(crate) fn confirm_removal(frame: &Frame<'_>, peer: &PeerReport) -> Markup {
    let fields = html! {
        input type="hidden" name="name" value=(peer.name);
        button.danger { "Remove " (text(&peer.name)) }
        " "
        a.button href={ (frame.base) "/peers" } { "Keep it" }
    };
    html! {
        p { strong { (text(&peer.name)) } " may use " (texts(&peer.volumes)) ". If it is removed, its sessions end at once, and what it has not written yet is lost. It needs another invitation to come back." }
        (form(frame, "/peers/remove", &fields))
    }
}

/// A peer was removed.
pub(crate) fn removed(frame: &Frame<'_>, name: &str, sessions: usize, named_by: &[String]) -> Markup {
    html! {
        section.notice.good role="status" {
            p { strong { (text(name)) } " is no peer any more; " (counted(sessions as u64, "session")) " ended." }
        }
        @if !named_by.is_empty() {
            section.notice.bad role="alert" {
                p { "These volumes name it themselves, and let in a later peer of that name: " (texts(named_by)) ". To end that: " code { "strongroom volume access" } "." }
            }
        }
        p { a href={ (frame.base) "/peers" } { "Back to the peers" } }
    }
}
