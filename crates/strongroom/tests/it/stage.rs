//! A small world for tests of the binary: a work directory, identities, a target as a real process. Absent: the tests.

mod command_output;
mod machine;

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};
use rustix::process::Pid;
use tempfile::TempDir;

pub(crate) use command_output::CommandOutput;
pub(crate) use machine::{Machine, on_target};

/// Below those of outgoing connections (net.ipv4.ip_local_port_range).
const FIRST_PORT: u32 = 10_000;
const PORTS: u32 = 22_000;
/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// In a target's configuration, likewise; a test about less replaces it.
pub(crate) const LOGIN_TIMEOUT: &str = "login_timeout_s = 60";

/// A directory, and the identities in it. For root it is a mount point whose mounts and unmounts propagate to mount namespaces that are made
/// meanwhile ([`unshare`]): with a copy of its own, such a namespace would keep each file system of other tests in use.
pub(crate) struct TestDirectory(TempDir);

/// A directory with an initiator called alice, and a target that knows her.
pub(crate) struct World {
    directory: TestDirectory,
    pub(crate) port: u16,
    transport: Transport,
}

/// What carries the commands of sealed volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Iscsi,
    Ecl,
    EclTcp,
}

/// A test by ECL over TCP, beside [`over_both`].
macro_rules! over_tcp_too {
    ($($test:ident as $name:ident),+ $(,)?) => {
        $(#[test]
        fn $name() {
            $test(crate::stage::Transport::EclTcp);
        })+
    };
}

pub(crate) use over_tcp_too;

/// A test by each transport: a function of a [`Transport`], by its name.
macro_rules! over_both {
    ($($test:ident),+ $(,)?) => {
        $(mod $test {
            #[test]
            fn over_iscsi() {
                super::$test(crate::stage::Transport::Iscsi);
            }

            #[test]
            fn over_ecl() {
                super::$test(crate::stage::Transport::Ecl);
            }
        })+
    };
}

pub(crate) use over_both;

/// A target process; killed when dropped.
pub(crate) struct Server {
    child: Child,
    log: PathBuf,
}

/// The binary under test.
pub(crate) fn strongroom(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strongroom"));
    command.args(arguments).stdin(Stdio::null());
    for variable in ["STRONGROOM_IDENTITY", "STRONGROOM_KEY_FILE", "STRONGROOM_KNOWN_TARGETS", "STRONGROOM_LOG"] {
        command.env_remove(variable);
    }
    command
}

/// Runs the binary to its end.
pub(crate) fn run(arguments: &[&str]) -> CommandOutput {
    CommandOutput::new(strongroom(arguments).output().expect("the binary runs"))
}

/// Runs a command on a terminal, where somebody types this. All that it says is its standard output.
pub(crate) fn on_a_terminal(command: &Command, typed: &str) -> CommandOutput {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted = words.map(|word| format!("'{}'", word.to_str().expect("tests use text").replace('\'', r"'\''")));
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &quoted.collect::<Vec<_>>().join(" "), "/dev/null"]);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    script.env("SHELL", "/bin/sh").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = script.spawn().unwrap();
    let mut keyboard = child.stdin.take().expect("it is piped");
    keyboard.write_all(typed.as_bytes()).unwrap();
    drop(keyboard);
    CommandOutput::new(child.wait_with_output().unwrap())
}

/// What `attach list` says of the attachment at `directory`; nothing if there is none.
pub(crate) fn listed_at(directory: &str) -> String {
    let all = run(&["attach", "list"]).ok();
    // The lines below another attachment may name this one, where both would have the same name.
    let is_it = |line: &&str| line.contains(directory) && !line.starts_with("  ");
    let mut lines = all.lines().skip_while(|line| !is_it(line));
    let first = lines.next().unwrap_or_default().to_owned();
    lines.take_while(|line| line.starts_with("  ")).fold(first, |text, line| text + "\n" + line)
}

/// The process of the attachment at `directory`, if there is one.
pub(crate) fn process_at(directory: &str) -> Option<Pid> {
    let listed = listed_at(directory);
    let digits = listed.split("(process ").nth(1)?.split(')').next()?;
    Pid::from_raw(digits.parse().expect("a process has a number"))
}

/// A command in a mount namespace of its own; with more of unshare's options before its words. It follows what is unmounted outside, see
/// [`TestDirectory`].
pub(crate) fn unshare(arguments: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "slave"]).args(arguments);
    command
}

/// Waits for something to become true.
#[track_caller]
pub(crate) fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_true() {
        assert!(started.elapsed() < PATIENCE, "gave up waiting: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Whether this machine lets us mount; says so if not.
pub(crate) fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        eprintln!("passed over: needs root and /dev/fuse");
    }
    can
}

/// Whether a program is installed; says so if not.
pub(crate) fn has(program: &str) -> bool {
    let has = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(program).exists()));
    if !has {
        eprintln!("passed over: {program} is not installed");
    }
    has
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

impl TestDirectory {
    /// With an identity of each of these names.
    pub(crate) fn with_identities(names: &[&str]) -> TestDirectory {
        let directory = TestDirectory(TempDir::new().unwrap());
        // Who may not mount has no namespaces either.
        let place = directory.0.path();
        let _ = mount_bind(place, place).and_then(|()| mount_change(place, MountPropagationFlags::SHARED));
        for name in names {
            run(&["identity", "new", "--out", &directory.text(&format!("{name}.identity"))]).ok();
        }
        directory
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("temporary paths are UTF-8").to_owned()
    }

    /// The public line of an identity made with that name.
    pub(crate) fn public_key(&self, name: &str) -> String {
        run(&["identity", "show", &self.text(&format!("{name}.identity"))]).ok().trim().to_owned()
    }
}

impl std::ops::Deref for World {
    type Target = TestDirectory;

    fn deref(&self) -> &TestDirectory {
        &self.directory
    }
}

impl World {
    /// With a configuration that lets alice use every volume through a channel, and anyone plain ones.
    pub(crate) fn new() -> World {
        World::over(Transport::Iscsi)
    }

    /// The same, whose sealed volumes are used by this transport.
    pub(crate) fn over(transport: Transport) -> World {
        let directory = TestDirectory::with_identities(&["target", "alice"]);
        let world = World { directory, port: free_port(), transport };
        run(&["key", "new", "--out", &world.text("volume.key")]).ok();
        fs::create_dir(world.path("volumes")).unwrap();
        let alice = world.public_key("alice");
        world.write_config(&format!(
            "[[peer]]\nname = \"alice\"\nkey = \"{alice}\"\ninitiators = [\"iqn.2026-11.test:alice\"]\nvolumes = [\"*\"]\n\n\
             [[plain]]\ninitiators = [\"*\"]\nvolumes = [\"*\"]\n"
        ));
        world
    }

    pub(crate) fn write_config(&self, rules: &str) {
        let text = format!(
            "root = \"{}\"\nlisten = [\"127.0.0.1:{}\"]\nnode_key = \"{}\"\n\n[limits]\n{LOGIN_TIMEOUT}\nidle_close_s = 1\n\n{rules}",
            self.text("volumes"),
            self.port,
            self.text("target.identity")
        );
        fs::write(self.path("strongroom.toml"), text).unwrap();
    }

    /// `strongroom volume create` with these arguments.
    pub(crate) fn create(&self, arguments: &[&str]) -> CommandOutput {
        let root = self.text("volumes");
        run(&[&["volume", "create"], arguments, &["--root", &root]].concat())
    }

    /// A sealed volume, served and formatted.
    pub(crate) fn sealed(name: &str, size: &str) -> (World, Server) {
        World::sealed_over(Transport::Iscsi, name, size)
    }

    /// The same by this transport.
    pub(crate) fn sealed_over(transport: Transport, name: &str, size: &str) -> (World, Server) {
        let world = World::over(transport);
        world.create(&[name, "--size", size]).ok();
        let server = world.serve();
        world.alice(&["volume", "format", &world.url(name), "--yes"]).ok();
        (world, server)
    }

    /// Starts the target and waits until it serves.
    pub(crate) fn serve(&self) -> Server {
        self.serve_with(&[])
    }

    /// The same, with more on its command line.
    pub(crate) fn serve_with(&self, arguments: &[&str]) -> Server {
        // Of one that was killed, the kernel closes the sockets that its io_uring holds when it comes to it.
        eventually("the target's port is free", || TcpListener::bind(("127.0.0.1", self.port)).is_ok());
        let log = self.path("serve.log");
        let file = fs::File::options().create(true).append(true).open(&log).unwrap();
        let child = strongroom(&["serve", "--config", &self.text("strongroom.toml")])
            .args(arguments)
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        let mut server = Server { child, log };
        let served_before = server.log().matches("serving on").count();
        eventually("the target serves", || {
            assert!(server.child.try_wait().unwrap().is_none(), "the target ended: {}", server.log());
            std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
                && server.log().matches("serving on").count() >= served_before.max(1)
        });
        server
    }

    pub(crate) fn url(&self, volume: &str) -> String {
        let scheme = match self.transport {
            Transport::Iscsi => "strongroom",
            Transport::Ecl => "ecl",
            Transport::EclTcp => "ecl+tcp",
        };
        format!("{scheme}://127.0.0.1:{}/{volume}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn plain_url(&self, volume: &str) -> String {
        format!("iscsi://127.0.0.1:{}/iqn.2026-11.org.strongroom:{volume}/0", self.port)
    }

    /// A command of an initiator with this identity, initiator name and volume key.
    pub(crate) fn initiator(
        &self,
        identity: &str,
        initiator_name: &str,
        key_file: &str,
        arguments: &[&str],
    ) -> Command {
        let mut command = self.initiator_without_key(identity, initiator_name, arguments);
        command.args(["--key-file", &self.text(key_file)]);
        command
    }

    fn initiator_without_key(&self, identity: &str, initiator_name: &str, arguments: &[&str]) -> Command {
        let mut command = strongroom(arguments);
        command
            .args(["--identity", &self.text(identity)])
            .args(["--initiator-name", initiator_name])
            .args(["--target-key", &self.public_key("target")])
            .args(["--connect-timeout", "60s"])
            .env("XDG_CONFIG_HOME", self.path("config"));
        command
    }

    /// A command of alice, not yet run.
    pub(crate) fn alice_command(&self, arguments: &[&str]) -> Command {
        self.initiator("alice.identity", "iqn.2026-11.test:alice", "volume.key", arguments)
    }

    /// A command of alice, run to its end.
    pub(crate) fn alice(&self, arguments: &[&str]) -> CommandOutput {
        CommandOutput::new(self.alice_command(arguments).output().unwrap())
    }

    /// The same without a volume key, not yet run.
    pub(crate) fn alice_command_without_key(&self, arguments: &[&str]) -> Command {
        self.initiator_without_key("alice.identity", "iqn.2026-11.test:alice", arguments)
    }

    /// The same, without a volume key.
    pub(crate) fn alice_without_key(&self, arguments: &[&str]) -> CommandOutput {
        self.finish(self.alice_command_without_key(arguments))
    }

    /// Runs a command made with [`World::initiator`].
    pub(crate) fn finish(&self, mut command: Command) -> CommandOutput {
        CommandOutput::new(command.output().unwrap())
    }
}

impl Server {
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGTERM, and a clean end.
    #[track_caller]
    pub(crate) fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut status = None;
        eventually("the target stops", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success(), "it ended badly: {}", self.log());
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
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

/// A port that nothing listens on. Not one of those that the kernel gives to connections on their way out: a server that is killed and
/// started again would find it taken.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..PORTS {
        let number = std::process::id().wrapping_mul(61).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = (FIRST_PORT + number % PORTS) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}

/// Bytes that neither compress nor repeat.
pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(bytes).collect()
}
