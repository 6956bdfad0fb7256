//! A browser, as far as the console sees one: requests over plain TCP, with the headers that browsers send. And the console's process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::stage::{World, strongroom};

const PATIENCE: Duration = Duration::from_secs(60);

/// A console's process; killed when dropped.
pub(super) struct ConsoleProcess {
    child: Child,
    /// `127.0.0.1:PORT`.
    pub(super) address: String,
    /// What its link ends with.
    pub(super) token: String,
}

/// What a console answers.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl ConsoleProcess {
    pub(super) fn of(world: &World) -> ConsoleProcess {
        ConsoleProcess::start(&["--config", &world.text("strongroom.toml")])
    }

    pub(super) fn start(arguments: &[&str]) -> ConsoleProcess {
        let arguments = [&["console", "--listen", "127.0.0.1:0"], arguments].concat();
        let mut child = strongroom(&arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let link = lines.find(|line| line.starts_with("http://")).expect("it prints a link");
        let (address, token) = link["http://".len()..].split_once("/login#").expect("a link to log in");
        ConsoleProcess { address: address.to_owned(), token: token.to_owned(), child }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// One request, as it is.
    pub(super) fn send(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // It may have answered, and closed, before it has read all.
        let _ = stream.write_all(request.as_bytes());
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line");
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    pub(super) fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(&request("GET", path, &self.with_host(headers), ""))
    }

    pub(super) fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.send(&request("POST", path, &self.with_host(headers), body))
    }

    fn with_host<'a>(&'a self, headers: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let has_host = headers.iter().any(|(name, _)| *name == "Host");
        let host = (!has_host).then_some(("Host", self.address.as_str()));
        host.into_iter().chain(headers.iter().copied()).collect()
    }

    pub(super) fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Uses the link, as its page's script does.
    pub(super) fn try_to_log_in(&self, token: &str) -> Answer {
        self.post("/login", &[("Origin", &self.origin())], &format!("token={token}"))
    }

    pub(super) fn log_in(&self) -> Browser<'_> {
        let answer = self.try_to_log_in(&self.token);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let cookie = answer.header("set-cookie").expect("a cookie");
        let cookie = cookie.split(';').next().expect("its name and value").to_owned();
        let base = answer.body.trim_end_matches('/').to_owned();
        Browser { console: self, cookie, base }
    }
}

impl Drop for ConsoleProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Answer {
    /// The first header of this name, in lower case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    #[track_caller]
    pub(super) fn has(&self, parts: &[&str]) -> &Answer {
        for part in parts {
            assert!(self.body.contains(part), "{part:?} is missing in: {}", self.body);
        }
        self
    }
}

/// One that is logged in.
pub(super) struct Browser<'a> {
    pub(super) console: &'a ConsoleProcess,
    pub(super) cookie: String,
    pub(super) base: String,
}

impl Browser<'_> {
    pub(super) fn path(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    pub(super) fn get(&self, path: &str) -> Answer {
        self.console.get(&self.path(path), &[("Cookie", &self.cookie)])
    }

    #[track_caller]
    pub(super) fn page(&self, path: &str) -> Answer {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer
    }

    /// What forms of its pages have in them.
    pub(super) fn form_token(&self) -> String {
        let page = self.get("/peers").body;
        let (_, rest) = page.split_once("name=\"token\" value=\"").expect("a form");
        rest.split('"').next().expect("it ends").to_owned()
    }

    /// Sends a form of its pages.
    pub(super) fn submit(&self, path: &str, fields: &str) -> Answer {
        let body = format!("token={}&{fields}", self.form_token());
        self.console.post(&self.path(path), &[("Cookie", &self.cookie), ("Origin", &self.console.origin())], &body)
    }
}

/// The text of a request.
pub(super) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = if method == "POST" { format!("Content-Length: {}\r\n", body.len()) } else { String::new() };
    format!(
        "{method} {path} HTTP/1.1\r\n{headers}{length}Content-Type: application/x-www-form-urlencoded\r\nConnection: close\r\n\r\n{body}"
    )
}
