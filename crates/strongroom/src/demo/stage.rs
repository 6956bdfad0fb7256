//! Where the demo plays: a work directory, child processes, and the promise that nothing of it stays behind.
//!
//! Everything that must be undone is undone by dropping a value of this file, on success, on failure, and on Ctrl-C
//! (which only makes the next step fail). Absent: what is being shown.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::signals::StopSignals;

/// How long a child may take to say that it is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a child may take to stop before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// How often to look at children and for Ctrl-C.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How much of a failed child's log to show, in lines.
const LOG_TAIL_LINES: usize = 15;

/// The work directory, the binary to run, and whether somebody asked to stop.
pub(super) struct Stage {
    directory: TempDir,
    binary: PathBuf,
    stopped: Arc<AtomicBool>,
}

impl Stage {
    /// Sets up in a new directory below `parent`. From here on Ctrl-C stops the demo between steps.
    pub(super) fn new(parent: &Path) -> Result<Stage> {
        let signals = StopSignals::block().context("cannot wait for Ctrl-C")?;
        let directory = tempfile::Builder::new()
            .prefix("strongroom-demo-")
            .tempdir_in(parent)
            .with_context(|| format!("cannot work in {}; choose another place with --work-dir", parent.display()))?;
        let binary = std::env::current_exe().context("cannot find this program's own file")?;
        let stopped = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stopped);
        thread::Builder::new().name("signals".into()).spawn(move || {
            while signals.wait(Duration::from_secs(3600)).is_none() {}
            seen.store(true, Ordering::Relaxed);
            eprintln!("\n  stopping; cleaning up …");
        })?;
        Ok(Stage { directory, binary, stopped })
    }

    /// A path in the work directory.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A new directory in the work directory.
    pub(super) fn make_dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// Fails if somebody pressed Ctrl-C. Called between steps and inside long ones.
    pub(super) fn check(&self) -> Result<()> {
        if self.stopped.load(Ordering::Relaxed) {
            bail!("stopped on request; nothing is left behind");
        }
        Ok(())
    }

    /// This program with `arguments`, in a process group of its own so that Ctrl-C reaches only the demo.
    pub(super) fn strongroom(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments).process_group(0).stdin(Stdio::null()).env_remove("STRONGROOM_LOG");
        command
    }

    /// Another program of the system.
    pub(super) fn program(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(name);
        command.args(arguments).process_group(0).stdin(Stdio::null());
        // Root's path may lack the directories of mkfs and mount.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
        command
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// If it fails, with what it said.
    pub(super) fn run(&self, command: Command) -> Result<String> {
        let shown = show(&command);
        let (status, output) = self.try_run(command)?;
        if !status.success() {
            bail!("`{shown}` failed ({status}):\n{}", output.trim_end());
        }
        Ok(output)
    }

    /// Runs a command to its end; its exit status and all that it said, whichever way it went.
    pub(super) fn try_run(&self, mut command: Command) -> Result<(ExitStatus, String)> {
        self.check()?;
        let shown = show(&command);
        let (mut reader, writer) = std::io::pipe()?;
        command.stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn().with_context(|| format!("cannot run `{shown}`; `make deps` installs it"))?;
        // The command holds writing ends of the pipe; only when they are gone does the reader see its end.
        drop(command);
        let collect = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = reader.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if let Err(stopped) = self.check() {
                let _ = child.kill();
                let _ = child.wait();
                return Err(stopped);
            }
            thread::sleep(LOOK_EVERY);
        };
        Ok((status, collect.join().unwrap_or_default()))
    }

    /// Starts a server of ours in the background and waits until it says that it is ready.
    ///
    /// # Errors
    /// If it ends or says nothing in time, with the end of its log.
    pub(super) fn start(&self, name: &str, mut command: Command) -> Result<Background> {
        self.check()?;
        let log = self.path(&format!("{name}.log"));
        let socket_path = self.path(&format!("{name}.notify"));
        let _ = fs::remove_file(&socket_path);
        let socket = UnixDatagram::bind(&socket_path).context("cannot make a notification socket")?;
        socket.set_nonblocking(true)?;
        let file = File::options().create(true).append(true).open(&log)?;
        command.env("NOTIFY_SOCKET", &socket_path).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("cannot run `{}`", show(&command)))?;
        let mut background = Background { name: name.to_owned(), child, log };
        let started = Instant::now();
        let mut message = [0; 512];
        loop {
            if let Ok(length) = socket.recv(&mut message)
                && message[..length].starts_with(b"READY=1")
            {
                return Ok(background);
            }
            if let Some(status) = background.child.try_wait()? {
                bail!("{name} ended ({status}) before it was ready:\n{}", background.log_tail());
            }
            if started.elapsed() > READY_TIMEOUT {
                bail!("{name} was not ready after {READY_TIMEOUT:?}:\n{}", background.log_tail());
            }
            self.check()?;
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// A server or attachment in the background. Dropped, it is stopped: asked first, killed if it does not listen.
pub(super) struct Background {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Background {
    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything that it logged so far.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    /// CPU time that the process has used, its ended threads included.
    pub(super) fn cpu_time(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        // The name, in parentheses, may hold anything; user and system time are the 12th and 13th field after it.
        let after_name = stat.rsplit_once(')').context("an unknown form of /proc/PID/stat")?.1;
        let ticks: u64 =
            after_name.split_ascii_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum();
        Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }

    /// Asks it to stop and waits for its end.
    ///
    /// # Errors
    /// If it has to be killed or ends with an error.
    pub(super) fn stop(mut self) -> Result<()> {
        let status = self.end()?;
        if !status.success() {
            bail!("{} ended badly ({status}):\n{}", self.name, self.log_tail());
        }
        Ok(())
    }

    fn end(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let asked = Instant::now();
        while asked.elapsed() < STOP_TIMEOUT {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(LOOK_EVERY);
        }
        self.child.kill()?;
        self.child.wait()?;
        bail!("{} did not stop within {STOP_TIMEOUT:?} and was killed:\n{}", self.name, self.log_tail())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("  {error:#}");
        }
    }
}

/// A mount point that must be free again. Dropping it unmounts what is still mounted there, lazily if necessary.
pub(super) struct MountGuard(pub(super) PathBuf);

impl Drop for MountGuard {
    fn drop(&mut self) {
        use rustix::mount::{UnmountFlags, unmount};
        // Nothing mounted is the usual case, and an error that says so.
        while unmount(&self.0, UnmountFlags::empty()).is_ok() || unmount(&self.0, UnmountFlags::DETACH).is_ok() {}
    }
}

fn show(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let arguments = command.get_args().map(|argument| argument.to_string_lossy().into_owned());
    std::iter::once(name).chain(arguments).collect::<Vec<_>>().join(" ")
}
