//! What tests of the lab share: running it to its end, and a target of the product as a process. Absent: the tests.

#[path = "../../../strongroom/tests/it/stage/command_output.rs"]
mod command_output;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use command_output::CommandOutput;

/// How long a target may take to serve before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// The binary under test.
pub(crate) fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strongroom-lab"));
    command.args(arguments).stdin(Stdio::null());
    for variable in ["STRONGROOM_IDENTITY", "STRONGROOM_KEY_FILE", "STRONGROOM_KNOWN_TARGETS", "STRONGROOM_LOG"] {
        command.env_remove(variable);
    }
    command
}

/// Runs the binary to its end.
pub(crate) fn run(arguments: &[&str]) -> CommandOutput {
    CommandOutput::new(lab(arguments).output().expect("the binary runs"))
}

/// A directory with volumes, and other files of a test.
pub(crate) struct World(TempDir);

/// A target process; killed when dropped.
pub(crate) struct Server {
    child: Child,
    log: PathBuf,
    address: String,
}

impl World {
    pub(crate) fn new() -> World {
        World(TempDir::new().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("temporary paths are UTF-8").to_owned()
    }

    /// `strongroom volume create` with these arguments.
    pub(crate) fn create(&self, arguments: &[&str]) -> CommandOutput {
        let root = self.text("volumes");
        run(&[&["product", "volume", "create"], arguments, &["--root", &root]].concat())
    }

    /// Starts a target that lets anyone use plain volumes, and waits until it serves.
    pub(crate) fn serve(&self) -> Server {
        let log = self.path("serve.log");
        let file = fs::File::create(&log).unwrap();
        let root = self.text("volumes");
        let child = lab(&["product", "serve", "--root", &root, "--listen", "127.0.0.1:0"])
            .args(["--plain", "initiators=*; volumes=*"])
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        let mut server = Server { child, log, address: String::new() };
        let started = Instant::now();
        while server.address.is_empty() {
            assert!(server.child.try_wait().unwrap().is_none(), "the target ended: {}", server.log());
            assert!(started.elapsed() < PATIENCE, "the target does not serve: {}", server.log());
            thread::sleep(Duration::from_millis(20));
            let log = server.log();
            let whole_lines = log.rfind('\n').map_or("", |end| &log[..end]);
            let served = whole_lines.lines().find_map(|line| line.strip_prefix("serving on "));
            server.address = served.unwrap_or_default().to_owned();
        }
        server
    }
}

impl Server {
    pub(crate) fn plain_url(&self, volume: &str) -> String {
        format!("iscsi://{}/iqn.2026-11.org.strongroom:{volume}/0", self.address)
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the target's log:\n{}", self.log());
        }
    }
}
