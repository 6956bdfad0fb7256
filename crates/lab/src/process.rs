//! Processes of a benchmark: started on their processors, with a log, always stopped when dropped.

#![allow(unsafe_code)] // What a child does between fork and exec is libc's.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::{BenchError, cpu};

/// How long a process may take to stop before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// How often it is asked: an attachment stays while a program has its file open, and does not try again by itself.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How often to look.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How much of a log to show, in lines.
const LOG_TAIL_LINES: usize = 12;

/// A command that runs `program`, in a network namespace if one is named.
pub(crate) fn command_in(namespace: Option<&str>, program: &Path) -> Command {
    let Some(namespace) = namespace else { return Command::new(program) };
    let mut command = crate::programs::program("ip", &[]);
    command.args(["netns", "exec", namespace]).arg(program);
    command
}

/// Commands of `strongroom` from this program's own binary, before what they are: `lab_binary product serve …`.
pub const PRODUCT: &str = "product";

/// The product that an experiment runs: this program's own, or another build of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    program: PathBuf,
    /// The program is the lab, which has the product behind [`PRODUCT`].
    is_in_lab: bool,
}

impl Product {
    /// The one in the lab's own program.
    pub fn of_lab(lab_binary: &Path) -> Product {
        Product { program: lab_binary.to_owned(), is_in_lab: true }
    }

    /// A program of its own: a `strongroom` of this or of another release.
    pub fn at(program: &Path) -> Product {
        Product { program: program.to_owned(), is_in_lab: false }
    }

    /// The program's file.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// A command of it, without arguments yet; in a network namespace if one is named.
    pub(crate) fn command(&self, namespace: Option<&str>) -> Command {
        let mut command = command_in(namespace, &self.program);
        if self.is_in_lab {
            command.arg(PRODUCT);
        }
        command
    }
}

/// A server in the background: a target, or what stands in front of one.
#[derive(Debug)]
pub struct Background {
    name: String,
    child: Child,
    log: PathBuf,
    /// Asking it to stop does nothing.
    is_deaf: bool,
}

impl Background {
    /// Starts it on `cpus` (anywhere, if there are none), in a process group of its own, its output in a log in `directory`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(name: &str, mut command: Command, cpus: &[usize], directory: &Path) -> Result<Background, BenchError> {
        let log = directory.join(format!("{name}.log"));
        let file =
            File::options().create(true).append(true).open(&log).map_err(|error| BenchError::file(&log, error))?;
        let error_file = file.try_clone().map_err(|error| BenchError::file(&log, error))?;
        command.stdin(Stdio::null()).stdout(file).stderr(error_file);
        detach(&mut command);
        let program = command.get_program().to_string_lossy().into_owned();
        let spawned = if cpus.is_empty() { command.spawn() } else { cpu::on_cpus(cpus, || command.spawn())? };
        let child = spawned.map_err(|error| BenchError::process(name, format!("cannot run {program}: {error}")))?;
        Ok(Background { name: name.to_owned(), child, log, is_deaf: false })
    }

    /// Kills it when it is dropped, without asking: for what does not listen.
    #[must_use]
    pub(crate) fn deaf(mut self) -> Background {
        self.is_deaf = true;
        self
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// It and what it started.
    pub fn pids(&self) -> Vec<u32> {
        cpu::descendants(self.pid())
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until `ready` says something of it.
    ///
    /// # Errors
    /// If it ends, or `timeout` passes, with the end of its log.
    pub fn wait_until<T>(
        &mut self,
        timeout: Duration,
        mut ready: impl FnMut(&Background) -> Option<T>,
    ) -> Result<T, BenchError> {
        let begun = Instant::now();
        loop {
            if let Some(found) = ready(self) {
                return Ok(found);
            }
            if let Some(status) = self.child.try_wait().map_err(|error| BenchError::system("cannot wait", error))? {
                return Err(self.problem(&format!("it ended ({status}) before it was ready")));
            }
            if begun.elapsed() > timeout {
                return Err(self.problem(&format!("it was not ready after {timeout:?}")));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits until something listens at `address`.
    ///
    /// # Errors
    /// As [`Background::wait_until`].
    pub fn wait_for_port(&mut self, address: SocketAddr, timeout: Duration) -> Result<(), BenchError> {
        self.wait_until(timeout, |_| std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok())
            .map(drop)
    }

    /// An error of it, with the end of its log.
    pub fn problem(&self, problem: &str) -> BenchError {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n");
        BenchError::process(&self.name, format!("{problem}\n{tail}").trim_end())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if self.is_deaf {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        end(&mut self.child);
    }
}

/// Gives what is started a process group of its own (Ctrl-C is for the runner), lets it be stopped by signals that the runner
/// holds back for itself, and has it asked to stop if the runner vanishes.
pub(crate) fn detach(command: &mut Command) {
    command.process_group(0);
    // SAFETY: only system calls that may be made after a fork, on memory of this frame.
    unsafe {
        command.pre_exec(|| {
            let mut none = std::mem::MaybeUninit::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        });
    }
}

/// Asks a process and what is in its group to stop, and kills it if it does not.
pub(crate) fn end(child: &mut Child) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let signal = |signal| group.map(|group| kill_process_group(group, signal));
    if matches!(child.try_wait(), Ok(Some(_))) {
        return;
    }
    let begun = Instant::now();
    let mut asked = 0;
    while !matches!(child.try_wait(), Ok(Some(_))) {
        if begun.elapsed() >= ASK_EVERY * asked {
            signal(Signal::TERM);
            asked += 1;
        }
        if begun.elapsed() > STOP_TIMEOUT {
            signal(Signal::KILL);
            let _ = child.wait();
            return;
        }
        thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn stopped_when_dropped_with_all_that_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Background::start("server", shell("sleep 100 & echo ready; wait"), &[], dir.path()).unwrap();
        server.wait_until(Duration::from_secs(10), |server| server.log().contains("ready").then_some(())).unwrap();
        let pids = server.pids();
        assert!(pids.len() >= 2);
        drop(server);
        let begun = Instant::now();
        while pids.iter().any(|pid| cpu::process_time(*pid).is_ok_and(|_| !is_zombie(*pid))) {
            assert!(begun.elapsed() < Duration::from_secs(5), "{pids:?} still run");
            thread::sleep(LOOK_EVERY);
        }
    }

    fn is_zombie(pid: u32) -> bool {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z"))
    }

    #[test]
    fn signals_that_the_runner_holds_back_reach_what_it_starts() {
        let dir = tempfile::tempdir().unwrap();
        // SAFETY: the mask of this test's thread alone.
        unsafe {
            let mut set = std::mem::MaybeUninit::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        }
        let mut sleeper = Background::start("sleeper", shell("echo ready; exec sleep 100"), &[], dir.path()).unwrap();
        sleeper.wait_until(Duration::from_secs(10), |it| it.log().contains("ready").then_some(())).unwrap();
        let begun = Instant::now();
        drop(sleeper);
        assert!(begun.elapsed() < STOP_TIMEOUT / 2, "it had to be killed");
    }

    /// As an attachment does whose file is open.
    #[test]
    fn one_that_refuses_at_first_is_asked_again() {
        let dir = tempfile::tempdir().unwrap();
        let script =
            "trap 'asked=$((asked + 1)); [ $asked -lt 2 ] || exit' TERM; echo ready; while :; do sleep 0.05; done";
        let mut attachment = Background::start("attachment", shell(script), &[], dir.path()).unwrap();
        attachment.wait_until(Duration::from_secs(10), |it| it.log().contains("ready").then_some(())).unwrap();
        let begun = Instant::now();
        drop(attachment);
        assert!(begun.elapsed() < STOP_TIMEOUT / 2, "it had to be killed");
    }

    #[test]
    fn one_that_ends_early_is_reported_with_its_words() {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Background::start("server", shell("echo the port is taken; exit 3"), &[], dir.path()).unwrap();
        let error = server.wait_until(Duration::from_secs(10), |_| None::<()>).unwrap_err().to_string();
        assert!(error.contains("server") && error.contains("the port is taken"), "{error}");
        let missing = Background::start("peer", Command::new("no-such-program"), &[], dir.path()).unwrap_err();
        assert!(missing.to_string().contains("no-such-program"), "{missing}");
    }
}
