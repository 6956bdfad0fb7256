//! A key server as a process, with identities and a master key. Its tests are in the modules; the file beside `stage` holds none.

mod commands;

use std::fs;
use std::path::PathBuf;
use std::process::Child;

use tempfile::TempDir;

use crate::stage::{Said, eventually, run, strongroom};

/// A directory with a key server's configuration, its master key, and three identities: `admin`, `alice`, `bob`.
pub(crate) struct KeySite {
    dir: TempDir,
    pub(crate) port: u16,
}

/// The process; killed when dropped.
pub(crate) struct KeyProcess {
    child: Child,
    log: PathBuf,
}

impl KeySite {
    pub(crate) fn new() -> KeySite {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let site = KeySite { dir: TempDir::new().unwrap(), port };
        for name in ["server", "admin", "alice", "bob"] {
            run(&["identity", "new", "--out", &site.text(&format!("{name}.identity"))]).ok();
        }
        run(&["key", "new", "--for", "master", "--out", &site.text("master.key")]).ok();
        site.configure("");
        site
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("temporary paths are UTF-8").to_owned()
    }

    pub(crate) fn public_key(&self, name: &str) -> String {
        run(&["identity", "show", &self.text(&format!("{name}.identity"))]).ok().trim().to_owned()
    }

    /// Writes the configuration, with more identities or whatever else comes last in it.
    pub(crate) fn configure(&self, more: &str) {
        let text = format!(
            "directory = \"{}\"\nlisten = [\"127.0.0.1:{}\"]\nnode_key = \"{}\"\nmaster_key = \"{}\"\nmetrics_file = \"{}\"\n\n\
             [[identity]]\nname = \"admin\"\nkey = \"{}\"\nroles = [\"administrator\"]\n{more}",
            self.text("keys"),
            self.port,
            self.text("server.identity"),
            self.text("master.key"),
            self.text("keys.prom"),
            self.public_key("admin"),
        );
        fs::write(self.path("keyserver.toml"), text).unwrap();
    }

    /// Starts the server and waits until it serves.
    pub(crate) fn start(&self) -> KeyProcess {
        let log = self.path("keyserver.log");
        let file = fs::File::options().create(true).append(true).open(&log).unwrap();
        let child = strongroom(&["keyserver", "--config", &self.text("keyserver.toml")])
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        let mut process = KeyProcess { child, log };
        let before = process.log().matches("key server on").count();
        eventually("the key server serves", || {
            assert!(process.child.try_wait().unwrap().is_none(), "it ended: {}", process.log());
            process.log().matches("key server on").count() > before.saturating_sub(1)
                && std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
        process
    }

    /// `strongroom key …` as somebody.
    pub(crate) fn key(&self, name: &str, arguments: &[&str]) -> Said {
        let server = format!("keyserver://127.0.0.1:{}", self.port);
        let identity = self.text(&format!("{name}.identity"));
        let (server_key, call) = (self.public_key("server"), ["--key-server", &server, "--identity", &identity]);
        run(&[&["key"], arguments, &call, &["--key-server-key", &server_key]].concat())
    }
}

impl KeyProcess {
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// SIGTERM, and a clean end.
    pub(crate) fn stop(mut self) {
        self.signal(rustix::process::Signal::TERM);
        let mut status = None;
        eventually("the key server stops", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success(), "it ended badly: {}", self.log());
    }
}

impl Drop for KeyProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
