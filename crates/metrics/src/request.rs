//! What a collector asks, and the head of the answer: as much of HTTP/1.1 (RFC 9112) as one resource needs. Every answer ends the connection.

use std::fmt::Write;

/// Upper bound on a request, up to the end of its header, in bytes.
pub(crate) const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Upper bound on the fields of its header.
const FIELDS_MAX: usize = 64;

/// The resource.
const METRICS_PATH: &str = "/metrics";
/// What it is.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok,
    BadRequest,
    NotFound,
    MethodNotAllowed,
    TooLarge,
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Status::Ok => "200 OK",
            Status::BadRequest => "400 Bad Request",
            Status::NotFound => "404 Not Found",
            Status::MethodNotAllowed => "405 Method Not Allowed",
            Status::TooLarge => "431 Request Header Fields Too Large",
        }
    }

    /// What the body of an answer other than [`Status::Ok`] says.
    pub(crate) fn explanation(self) -> &'static str {
        match self {
            Status::Ok => "",
            Status::BadRequest => "this is no HTTP request; ask for GET /metrics\n",
            Status::NotFound => "there is nothing here but /metrics\n",
            Status::MethodNotAllowed => "only GET and HEAD are answered\n",
            Status::TooLarge => "the request is too long\n",
        }
    }
}

/// What is known of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestState {
    /// More is to come.
    Incomplete,
    /// It is to be answered; without a body if only its head was asked for.
    Complete { status: Status, is_head: bool },
}

/// Reads what has arrived of a request.
pub(crate) fn read_request(bytes: &[u8]) -> RequestState {
    let answer = |status| RequestState::Complete { status, is_head: false };
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < REQUEST_BYTES_MAX => return RequestState::Incomplete,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => return answer(Status::TooLarge),
        Err(_) => return answer(Status::BadRequest),
    }
    let is_head = request.method == Some("HEAD");
    if request.method != Some("GET") && !is_head {
        return answer(Status::MethodNotAllowed);
    }
    let path = request.path.and_then(|target| target.split('?').next());
    let status = if path == Some(METRICS_PATH) { Status::Ok } else { Status::NotFound };
    RequestState::Complete { status, is_head }
}

/// The head of an answer with a body of this many bytes.
pub(crate) fn response_head(status: Status, body_bytes: usize) -> String {
    let content_type = if status == Status::Ok { METRICS_TYPE } else { "text/plain; charset=utf-8" };
    let mut head =
        format!("HTTP/1.1 {}\r\nContent-Type: {content_type}\r\nContent-Length: {body_bytes}\r\n", status.line());
    if status == Status::MethodNotAllowed {
        head.push_str("Allow: GET, HEAD\r\n");
    }
    write!(head, "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n")
        .expect("a string takes everything");
    head
}

/// For the fuzzer: any bytes are a request, the beginning of one, or an error, and what was read does not change when more arrives.
#[doc(hidden)]
pub fn fuzz_request(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(REQUEST_BYTES_MAX)];
    let state = read_request(bytes);
    if state == RequestState::Incomplete {
        assert!(bytes.len() < REQUEST_BYTES_MAX);
    } else if bytes.len() < REQUEST_BYTES_MAX {
        assert_eq!(read_request(&[bytes, b"x"].concat()), state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(text: &str) -> Option<Status> {
        match read_request(text.as_bytes()) {
            RequestState::Complete { status, .. } => Some(status),
            RequestState::Incomplete => None,
        }
    }

    #[test]
    fn one_resource_is_served() {
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), Some(Status::Ok));
        assert_eq!(status("GET /metrics?name=x HTTP/1.0\r\n\r\n"), Some(Status::Ok));
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), Some(Status::NotFound));
        assert_eq!(status("GET /metrics/ HTTP/1.1\r\n\r\n"), Some(Status::NotFound));
        assert_eq!(status("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), Some(Status::MethodNotAllowed));
        assert_eq!(
            read_request(b"HEAD /metrics HTTP/1.1\r\n\r\n"),
            RequestState::Complete { status: Status::Ok, is_head: true }
        );
    }

    #[test]
    fn what_is_no_request_is_an_error_and_what_is_none_yet_is_waited_for() {
        let whole = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(status(&whole[..end]), None, "{end}");
        }
        for garbage in [
            "\0",
            "GET\r\n\r\n",
            "\u{16}\u{3}\u{1}",
            "GET /metrics HTTP/9.9\r\n\r\n",
            "GET /metrics HTTP/1.1\r\n:\r\n\r\n",
        ] {
            assert_eq!(status(garbage), Some(Status::BadRequest), "{garbage:?}");
        }
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(FIELDS_MAX + 1));
        assert_eq!(status(&many), Some(Status::TooLarge));
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(REQUEST_BYTES_MAX));
        assert_eq!(status(&long[..REQUEST_BYTES_MAX]), Some(Status::TooLarge));
        assert_eq!(status(&long[..REQUEST_BYTES_MAX - 1]), None);
    }

    #[test]
    fn an_answer_says_how_long_it_is() {
        let head = response_head(Status::Ok, 12);
        assert!(head.starts_with(
            "HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"
        ));
        assert!(head.contains("\r\nContent-Length: 12\r\n") && head.ends_with("\r\nConnection: close\r\n\r\n"));
        assert!(response_head(Status::MethodNotAllowed, 0).contains("\r\nAllow: GET, HEAD\r\n"));
    }
}
