//! What pages load beside themselves, from within the binary.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;

/// Where they are, what they are, and their text.
const ASSETS: [(&str, &str, &str); 4] = [
    ("/assets/console.css", "text/css; charset=utf-8", include_str!("assets/console.css")),
    ("/assets/console.js", "text/javascript; charset=utf-8", include_str!("assets/console.js")),
    ("/assets/login.js", "text/javascript; charset=utf-8", include_str!("assets/login.js")),
    ("/assets/icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
];

/// Adds a route for each.
pub(crate) fn add_to<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    ASSETS.into_iter().fold(router, |router, (path, kind, text)| {
        router.route(path, get(move || async move { ([(CONTENT_TYPE, kind)], text) }))
    })
}
