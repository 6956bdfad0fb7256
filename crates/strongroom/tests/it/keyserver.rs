//! A key server as a process, and its standby, with identities and a master key. The tests are in the modules.

mod commands;
mod custody;
mod failover;
mod moving;
mod writer;

use std::fs;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Child;

use crate::stage::{CommandOutput, TestDirectory, eventually, free_port, run, strongroom};

/// A directory with a key server's configuration, its master key, and the identities `server`, `standby`, `admin`, `alice` and `bob`.
pub(crate) struct KeySite {
    directory: TestDirectory,
    pub(crate) port: u16,
    pub(crate) standby_port: u16,
}

/// The process; killed when dropped.
pub(crate) struct KeyProcess {
    child: Child,
    log: PathBuf,
}

impl Deref for KeySite {
    type Target = TestDirectory;

    fn deref(&self) -> &TestDirectory {
        &self.directory
    }
}

impl KeySite {
    pub(crate) fn new() -> KeySite {
        let directory = TestDirectory::with_identities(&["server", "standby", "admin", "alice", "bob"]);
        let site = KeySite { directory, port: free_port(), standby_port: free_port() };
        run(&["key", "new", "--for", "master", "--out", &site.text("master.key")]).ok();
        site.configure("");
        site
    }

    /// Writes the configuration; `more` is appended to it, such as more identities.
    pub(crate) fn configure(&self, more: &str) {
        self.configure_with("", more);
    }

    /// The same, with settings of the server's own.
    pub(crate) fn configure_with(&self, settings: &str, more: &str) {
        self.write_config("keyserver.toml", "keys", "server", self.port, settings, more);
    }

    /// A pair of which the first changes nothing without the second.
    pub(crate) fn configure_pair(&self) {
        let standby = format!(
            "[[identity]]\nname = \"standby\"\nkey = \"{}\"\nroles = [\"standby\"]\n",
            self.public_key("standby")
        );
        self.write_config("keyserver.toml", "keys", "server", self.port, "standby_required = true\n", &standby);
        let following =
            format!("standby_of = \"127.0.0.1:{}\"\nprimary_key = \"{}\"\n", self.port, self.public_key("server"));
        self.write_config("standby.toml", "standby-keys", "standby", self.standby_port, &following, "");
    }

    fn write_config(&self, file: &str, directory: &str, identity: &str, port: u16, settings: &str, more: &str) {
        let text = format!(
            "directory = \"{}\"\nlisten = [\"127.0.0.1:{port}\"]\nnode_key = \"{}\"\nmaster_key = \"{}\"\nmetrics_file = \"{}\"\n\
             lease_margin_s = 0\n{settings}\n[[identity]]\nname = \"admin\"\nkey = \"{}\"\nroles = [\"administrator\"]\n{more}",
            self.text(directory),
            self.text(&format!("{identity}.identity")),
            self.text("master.key"),
            self.text(&format!("{directory}.prom")),
            self.public_key("admin"),
        );
        fs::write(self.path(file), text).unwrap();
    }

    /// Starts the server and waits until it serves.
    pub(crate) fn start(&self) -> KeyProcess {
        self.start_from("keyserver.toml")
    }

    /// The same with another configuration.
    pub(crate) fn start_from(&self, config: &str) -> KeyProcess {
        let log = self.path(&format!("{config}.log"));
        let file = fs::File::options().create(true).append(true).open(&log).unwrap();
        let begun = fs::read_to_string(&log).unwrap_or_default().len();
        let mut process = KeyProcess { child: self.spawn(config, &file), log };
        eventually("the key server serves", || {
            assert!(process.child.try_wait().unwrap().is_none(), "it ended: {}", process.log());
            process.log()[begun..].contains("key server on")
        });
        process
    }

    fn spawn(&self, config: &str, log: &fs::File) -> Child {
        let mut command = strongroom(&["keyserver", "--config", &self.text(config)]);
        command.stdout(log.try_clone().unwrap()).stderr(log.try_clone().unwrap()).spawn().unwrap()
    }

    /// `strongroom key …` as somebody, at the primary.
    pub(crate) fn key(&self, name: &str, arguments: &[&str]) -> CommandOutput {
        self.key_at(&[self.port], name, arguments)
    }

    /// The same at the servers on these ports.
    pub(crate) fn key_at(&self, ports: &[u16], name: &str, arguments: &[&str]) -> CommandOutput {
        let servers: Vec<String> = ports.iter().map(|port| format!("keyserver://127.0.0.1:{port}")).collect();
        let keys = ["server", "standby"].map(|name| self.public_key(name));
        let identity = self.text(&format!("{name}.identity"));
        let mut all = vec!["key"];
        all.extend(arguments);
        all.extend(["--identity", &identity]);
        servers.iter().for_each(|server| all.extend(["--key-server", server]));
        keys.iter().for_each(|key| all.extend(["--key-server-key", key]));
        run(&all)
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
