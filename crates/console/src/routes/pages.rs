//! The pages that only show.

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html as markup};

use super::{ConsoleState, Fields, User, html};
use crate::target::TargetProblem;
use crate::view::layout::{Frame, Section, page};
use crate::view::volume::VolumeView;
use crate::view::{figures, notices, overview as overview_view, sessions as sessions_view, volumes as volumes_view};

/// Longest text that a list is filtered by, in bytes.
const FILTER_BYTES_MAX: usize = 256;

/// A page, or in its place what is wrong with the target.
pub(super) fn answer(
    state: &ConsoleState,
    user: &User,
    (section, title): (Section, &str),
    content: Result<Markup, TargetProblem>,
) -> Response {
    let is_here = content.is_ok();
    let frame = Frame { base: &state.base, form_token: &user.0, section, is_here };
    let status = if is_here { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let content = content.unwrap_or_else(|problem| notices::problem(&problem));
    html(status, page(&frame, title, &content))
}

pub(super) async fn overview(State(state): State<Arc<ConsoleState>>, Extension(user): Extension<User>) -> Response {
    let content = async {
        let history = state.target.history().await?;
        let listing = state.target.volumes().await?;
        Ok(overview_view::content(&state.base, &history, &listing))
    };
    let content = content.await;
    answer(&state, &user, (Section::Overview, "Overview"), content)
}

pub(super) async fn volumes(
    State(state): State<Arc<ConsoleState>>,
    Extension(user): Extension<User>,
    Extension(fields): Extension<Fields>,
) -> Response {
    let content = async {
        let history = state.target.history().await?;
        let listing = state.target.volumes().await?;
        Ok(volumes_view::content(&state.base, history.now(), &listing, filter(&fields)))
    };
    let content = content.await;
    answer(&state, &user, (Section::Volumes, "Volumes"), content)
}

pub(super) async fn volume(
    State(state): State<Arc<ConsoleState>>,
    Extension(user): Extension<User>,
    Extension(fields): Extension<Fields>,
) -> Response {
    let name = fields.one("name");
    let title = format!("Volume {}", figures::text(name));
    let content = async {
        let history = state.target.history().await?;
        let listing = state.target.volumes().await?;
        let Some(listed) = listing.iter().find(|volume| volume.name() == name) else { return Ok(None) };
        let is_open = history.now().volumes.iter().any(|volume| volume.name == name);
        // One that was closed meanwhile, or whose store is busy with something longer, is shown without.
        let contents = if is_open { state.target.describe(name).await.ok() } else { None };
        let view = VolumeView { base: &state.base, history: &history, listed, contents: contents.as_deref() };
        Ok(Some(view.content()))
    };
    match content.await {
        Ok(None) => unknown(State(Arc::clone(&state)), Extension(user)).await,
        Ok(Some(content)) => answer(&state, &user, (Section::Volumes, &title), Ok(content)),
        Err(problem) => answer(&state, &user, (Section::Volumes, &title), Err(problem)),
    }
}

pub(super) async fn sessions(
    State(state): State<Arc<ConsoleState>>,
    Extension(user): Extension<User>,
    Extension(fields): Extension<Fields>,
) -> Response {
    let history = state.target.history().await;
    let content = history.map(|history| sessions_view::content(&state.base, &history, filter(&fields)));
    answer(&state, &user, (Section::Sessions, "Sessions"), content)
}

/// Of something that is not there, or not any more.
pub(super) async fn unknown(State(state): State<Arc<ConsoleState>>, Extension(user): Extension<User>) -> Response {
    let frame = Frame { base: &state.base, form_token: &user.0, section: Section::Overview, is_here: true };
    let content = markup! {
        p { "There is no such page or volume; it may have been deleted or renamed." }
        p { a href={ (state.base) "/volumes" } { "All volumes" } }
    };
    html(StatusCode::NOT_FOUND, page(&frame, "Not found", &content))
}

fn filter(fields: &Fields) -> &str {
    let filter = fields.one("filter").trim();
    let end = (0..=filter.len().min(FILTER_BYTES_MAX)).rev().find(|end| filter.is_char_boundary(*end));
    &filter[..end.unwrap_or(0)]
}
