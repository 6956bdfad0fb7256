//! What every request must be, and what every response says: the name that the browser used (against DNS rebinding), the page that a
//! form comes from (against other sites), and headers that leave a page nothing but this console.

use axum::extract::Request;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Names by which a browser reaches this machine's loopback. Any port: an SSH tunnel may begin at another one.
const HOSTS: [&str; 3] = ["127.0.0.1", "localhost", "[::1]"];

/// What a page may do: load what this console serves, and send forms to it.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 8] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    // Not `no-referrer`: with it browsers say `Origin: null` of a form.
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
];

/// Refuses what no page of this console sends, and has every response say what a page may do.
pub(crate) async fn guard(request: Request, next: Next) -> Response {
    let mut response = match refusal(request.method(), request.uri(), request.headers()) {
        None => next.run(request).await,
        Some((status, why)) => (status, why).into_response(),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn refusal(method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().and_then(|host| host.to_str().ok()).unwrap_or_default();
    if hosts.next().is_some() || uri.authority().is_some() || !is_ours(host) {
        return Some((
            StatusCode::MISDIRECTED_REQUEST,
            "This is the console of a Strongroom target. Open it as http://127.0.0.1:PORT, as its link says.\n",
        ));
    }
    match *method {
        Method::GET | Method::HEAD => None,
        Method::POST if is_same_origin(host, headers) => None,
        Method::POST => Some((StatusCode::FORBIDDEN, "This request does not come from a page of this console.\n")),
        _ => Some((StatusCode::METHOD_NOT_ALLOWED, "The console knows GET and POST.\n")),
    }
}

/// Whether a Host is a name of the loopback. Another site's name can be made to mean 127.0.0.1, but the browser goes on saying that name.
fn is_ours(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        // What is behind the last colon of `[::1]` is no port.
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    HOSTS.contains(&name) && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

/// Whether a form comes from a page of this console: browsers tell it with every POST.
fn is_same_origin(host: &str, headers: &HeaderMap) -> bool {
    let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    origin.and_then(|origin| origin.strip_prefix("http://")) == Some(host)
        && site.is_none_or(|site| site == b"same-origin")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_loopback_are_ours() {
        for host in ["127.0.0.1", "127.0.0.1:8640", "localhost:1", "[::1]:8640", "[::1]"] {
            assert!(is_ours(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:8640",
            "127.0.0.1.evil.example:8640",
            "localhost.evil.example",
            "127.0.0.1:8640:1",
            "127.0.0.1:",
            "127.0.0.1:port",
            "[::1]:99999",
            "[::2]:8640",
            "::1",
            "0.0.0.0:8640",
            "user@127.0.0.1:8640",
            "127.0.0.1:8640, evil.example",
        ] {
            assert!(!is_ours(host), "{host}");
        }
    }
}
