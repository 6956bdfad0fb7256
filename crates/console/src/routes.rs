//! Which request gets which page. Everything but the login lies under a path that only who is logged in knows: the cookie is for that path,
//! so a browser shows it to no other server on this machine, although cookies do not tell ports apart.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::http::header::{CONTENT_TYPE, COOKIE, HeaderMap, SET_COOKIE};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use maud::Markup;

use crate::assets;
use crate::guard::guard;
use crate::login::{LoginRefused, Logins, Secret};
use crate::target::Target;
use crate::view::notices;

mod pages;
mod peers;

/// A form, in bytes.
const FORM_BYTES_MAX: usize = 16 << 10;
/// For a form to arrive.
const FORM_PATIENCE: Duration = Duration::from_secs(10);
/// Fields of a form.
const FIELDS_MAX: usize = 256;
/// The cookie of a session.
const COOKIE_NAME: &str = "strongroom_console";

/// What all requests share.
pub(crate) struct ConsoleState {
    pub(crate) target: Target,
    logins: Mutex<Logins>,
    /// What the paths of pages begin with.
    base: String,
}

impl ConsoleState {
    /// `name`: unguessable.
    pub(crate) fn new(socket: PathBuf, name: String, idle: Duration) -> ConsoleState {
        let base = format!("/console-{name}");
        ConsoleState { target: Target::new(socket), logins: Mutex::new(Logins::new(idle)), base }
    }

    pub(crate) fn logins(&self) -> MutexGuard<'_, Logins> {
        self.logins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who is logged in: what their forms must bring along.
#[derive(Clone)]
struct User(Secret);

/// The fields of a form, or those behind a `?`.
#[derive(Clone, Default)]
struct Fields(Arc<Vec<(String, String)>>);

impl Fields {
    fn parse(text: &[u8]) -> Fields {
        let fields = form_urlencoded::parse(text).take(FIELDS_MAX);
        Fields(Arc::new(fields.map(|(name, value)| (name.into_owned(), value.into_owned())).collect()))
    }

    fn query(request: &Request) -> Fields {
        Fields::parse(request.uri().query().unwrap_or_default().as_bytes())
    }

    /// The first of this name, or nothing.
    fn one(&self, name: &str) -> &str {
        self.0.iter().find(|(other, _)| other == name).map_or("", |(_, value)| value)
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// All of it.
pub(crate) fn router(state: &Arc<ConsoleState>) -> Router {
    let at = |path: &str| format!("{}{path}", state.base);
    let pages = Router::new()
        .route(&at("/"), get(pages::overview))
        .route(&at("/volumes"), get(pages::volumes))
        .route(&at("/volume"), get(pages::volume))
        .route(&at("/sessions"), get(pages::sessions))
        .route(&at("/peers"), get(peers::peers))
        .route(&at("/peers/invite"), get(peers::back).post(peers::invite))
        .route(&at("/peers/revoke"), get(peers::back).post(peers::revoke))
        .route(&at("/peers/remove"), get(peers::ask_to_remove).post(peers::remove))
        .route(&at("/logout"), get(peers::back).post(log_out))
        .route(&at("/{*rest}"), any(pages::unknown))
        .layer(from_fn_with_state(Arc::clone(state), who_is_logged_in));
    assets::add_to(pages)
        .route("/login", get(login_page).post(log_in))
        .fallback(not_logged_in)
        .method_not_allowed_fallback(not_logged_in)
        .with_state(Arc::clone(state))
        .layer(from_fn(guard))
}

/// A page.
fn html(status: StatusCode, page: Markup) -> Response {
    (status, [(CONTENT_TYPE, "text/html; charset=utf-8")], page.into_string()).into_response()
}

async fn not_logged_in() -> Response {
    html(StatusCode::UNAUTHORIZED, notices::not_logged_in())
}

async fn login_page() -> Response {
    html(StatusCode::OK, notices::login())
}

/// Takes a link's token; the answer is where to go.
async fn log_in(State(state): State<Arc<ConsoleState>>, request: Request) -> Response {
    let fields = match form(request.into_body()).await {
        Ok(fields) => fields,
        Err(response) => return response,
    };
    let outcome = state.logins().log_in(fields.one("token"), Instant::now());
    match outcome {
        Ok(cookie) => {
            let base = &state.base;
            // No Max-Age: it ends with the browser. No Secure: the loopback is not encrypted.
            let cookie = format!("{COOKIE_NAME}={}; HttpOnly; SameSite=Strict; Path={base}", cookie.reveal());
            tracing::info!("a browser has logged in to the console");
            ([(SET_COOKIE, cookie)], format!("{base}/")).into_response()
        }
        Err(LoginRefused::Link) => {
            tracing::warn!("a login to the console was refused");
            let why = "This link was used already, has expired, or is of another console. Press Enter in the terminal where strongroom console \
                       runs, or run it again, for a new one.";
            (StatusCode::UNAUTHORIZED, why).into_response()
        }
        Err(LoginRefused::TooMany) => (
            StatusCode::TOO_MANY_REQUESTS,
            "Too many logins were tried just now. Wait some seconds, and open the link again.",
        )
            .into_response(),
    }
}

async fn log_out(State(state): State<Arc<ConsoleState>>, Extension(user): Extension<User>) -> Response {
    state.logins().log_out(&user.0);
    not_logged_in().await
}

/// Admits requests with a session's cookie, and forms only with that session's form token.
async fn who_is_logged_in(State(state): State<Arc<ConsoleState>>, mut request: Request, next: Next) -> Response {
    // A page that refreshes itself is no sign of a person.
    let is_use = !request.headers().contains_key("x-console-refresh");
    let now = Instant::now();
    let found = cookies(request.headers()).find_map(|cookie| state.logins().session(cookie, now, is_use));
    let Some(form_token) = found else { return not_logged_in().await };
    let mut fields = Fields::query(&request);
    if request.method() == Method::POST {
        let body = std::mem::replace(request.body_mut(), Body::empty());
        fields = match form(body).await {
            Ok(fields) => fields,
            Err(response) => return response,
        };
        if !form_token.is(fields.one("token")) {
            let why =
                "This form is not of a page of this login. Go back, load the page again, and send it once more.\n";
            return (StatusCode::FORBIDDEN, why).into_response();
        }
    }
    request.extensions_mut().insert(fields);
    request.extensions_mut().insert(User(form_token));
    next.run(request).await
}

/// The values of our cookie.
fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let all = headers.get_all(COOKIE).iter().filter_map(|header| header.to_str().ok()).flat_map(|text| text.split(';'));
    all.filter_map(|cookie| cookie.trim().strip_prefix(COOKIE_NAME)?.strip_prefix('='))
}

/// The fields of a form, which must be small and arrive in time.
async fn form(body: Body) -> Result<Fields, Response> {
    match tokio::time::timeout(FORM_PATIENCE, to_bytes(body, FORM_BYTES_MAX)).await {
        Ok(Ok(bytes)) => Ok(Fields::parse(&bytes)),
        Ok(Err(_)) => {
            Err((StatusCode::PAYLOAD_TOO_LARGE, "The form is larger than 16 KiB, or was cut off.\n").into_response())
        }
        Err(_) => Err((StatusCode::REQUEST_TIMEOUT, "The form took too long to arrive.\n").into_response()),
    }
}
