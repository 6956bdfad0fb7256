//! The pages that manage peers: all that can be changed here.

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use maud::html as markup;
use strongroom_target::PeerRole;
use strongroom_target::admin::{InvitationReport, PeerOperation, PeerReport, Reply, Request};

use super::pages::{answer, unknown};
use super::{ConsoleState, Fields, User, html};
use crate::target::{Target, TargetProblem, other_answer};
use crate::view::layout::{Frame, Section, page};
use crate::view::notices;
use crate::view::peers::{self as view, InviteForm};

/// For how long an invitation is good unless something else is chosen, in seconds.
const EXPIRES_S: u64 = 3600;

pub(super) async fn peers(State(state): State<Arc<ConsoleState>>, Extension(user): Extension<User>) -> Response {
    show(&state, &user, InviteForm { expires_s: EXPIRES_S, ..InviteForm::default() }).await
}

/// Peers, invitations, and the form, with what was in it.
async fn show(state: &ConsoleState, user: &User, form: InviteForm) -> Response {
    let was_refused = form.refused.is_some();
    let content = async {
        let (peers, invitations) = (ask_peers(&state.target).await?, ask_invitations(&state.target).await?);
        let listing = state.target.volumes().await?;
        let frame = frame(state, user);
        Ok(view::content(&frame, (&peers, &invitations), &listing, &form))
    };
    let content = content.await;
    let mut response = answer(state, user, (Section::Peers, "Peers"), content);
    if was_refused && response.status() == StatusCode::OK {
        *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    }
    response
}

fn frame<'a>(state: &'a ConsoleState, user: &'a User) -> Frame<'a> {
    Frame { base: &state.base, form_token: &user.0, section: Section::Peers, is_here: true }
}

async fn ask_peers(target: &Target) -> Result<Vec<PeerReport>, TargetProblem> {
    match target.ask(Request::Peers).await? {
        Reply::Peers(peers) => Ok(peers),
        _ => Err(other_answer()),
    }
}

async fn ask_invitations(target: &Target) -> Result<Vec<InvitationReport>, TargetProblem> {
    match target.ask(Request::Invitations).await? {
        Reply::Invitations(invitations) => Ok(invitations),
        _ => Err(other_answer()),
    }
}

pub(super) async fn invite(
    State(state): State<Arc<ConsoleState>>,
    Extension(user): Extension<User>,
    Extension(fields): Extension<Fields>,
) -> Response {
    let names = fields.all("volume").chain(fields.one("volumes").split([' ', ',']));
    let mut form = InviteForm {
        name: fields.one("name").trim().to_owned(),
        volumes: names.filter(|name| !name.is_empty()).map(str::to_owned).collect(),
        read_only: fields.one("read_only") == "yes",
        expires_s: fields.one("expires_s").parse().unwrap_or(EXPIRES_S),
        address: fields.one("address").trim().to_owned(),
        refused: None,
    };
    let request = Request::Invite {
        name: form.name.clone(),
        volumes: form.volumes.clone(),
        read_only: form.read_only,
        role: PeerRole::Initiator,
        expires_s: form.expires_s,
        addresses: Some(form.address.clone()).filter(|address| !address.is_empty()).into_iter().collect(),
    };
    match state.target.ask(request).await {
        Ok(Reply::Invited { invitation, addresses, expires_at }) => {
            tracing::info!(name = form.name, "gave out an invitation through the console");
            let frame = frame(&state, &user);
            let content = view::invited(&frame, &form.name, &invitation, &addresses, expires_at);
            html(StatusCode::OK, page(&frame, "Invitation", &content))
        }
        Ok(_) => refuse(&state, &user, &other_answer()),
        Err(TargetProblem::Refused(why)) => {
            form.refused = Some(why);
            show(&state, &user, form).await
        }
        Err(problem) => refuse(&state, &user, &problem),
    }
}

/// To the list; also from the address of a form, which shows nothing by itself.
pub(super) async fn back(State(state): State<Arc<ConsoleState>>) -> Response {
    Redirect::to(&format!("{}/peers", state.base)).into_response()
}

pub(super) async fn revoke(
    State(state): State<Arc<ConsoleState>>,
    Extension(user): Extension<User>,
    Extension(fields): Extension<Fields>,
) -> Response {
    match state.target.ask(Request::Revoke { name: fields.one("name").to_owned() }).await {
        Ok(Reply::Done) => back(State(state)).await,
        Ok(_) => refuse(&state, &user, &other_answer()),
        Err(problem) => refuse(&state, &user, &problem),
    }
}

pub(super) async fn ask_to_remove(
    State(state): State<Arc<ConsoleState>>,
    Extension(user): Extension<User>,
    Extension(fields): Extension<Fields>,
) -> Response {
    match ask_peers(&state.target).await {
        Ok(peers) => match peers.iter().find(|peer| peer.name == fields.one("name")) {
            Some(peer) => {
                let content = view::confirm_removal(&frame(&state, &user), peer);
                answer(&state, &user, (Section::Peers, "Remove a peer"), Ok(content))
            }
            None => unknown(State(Arc::clone(&state)), Extension(user)).await,
        },
        Err(problem) => refuse(&state, &user, &problem),
    }
}

pub(super) async fn remove(
    State(state): State<Arc<ConsoleState>>,
    Extension(user): Extension<User>,
    Extension(fields): Extension<Fields>,
) -> Response {
    let name = fields.one("name");
    let request = Request::Peer { name: name.to_owned(), operation: PeerOperation::Remove };
    match state.target.ask(request).await {
        Ok(Reply::Peer { sessions, named_by }) => {
            tracing::info!(name = strongroom_block::foreign(name).to_string(), "removed a peer through the console");
            let content = view::removed(&frame(&state, &user), name, sessions, &named_by);
            answer(&state, &user, (Section::Peers, "Peer removed"), Ok(content))
        }
        Ok(_) => refuse(&state, &user, &other_answer()),
        Err(problem) => refuse(&state, &user, &problem),
    }
}

/// What was asked for was not done, and why.
fn refuse(state: &ConsoleState, user: &User, problem: &TargetProblem) -> Response {
    let frame = frame(state, user);
    let content = markup! {
        (notices::refused(&problem.to_string()))
        p { a href={ (state.base) "/peers" } { "Back to the peers" } }
    };
    let status = match problem {
        TargetProblem::Refused(_) => StatusCode::CONFLICT,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    html(status, page(&frame, "Not done", &content))
}
