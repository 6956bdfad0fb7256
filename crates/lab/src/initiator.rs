//! The runner's end of an initiator's process: orders in, answers out, each within a time.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use crate::protocol::{Answer, IoJob, Order, Outcome, Volume};
use crate::{BenchError, cpu, process};

/// How long an order may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long filling a volume may take.
const FILL_TIMEOUT: Duration = Duration::from_secs(600);

/// A process that speaks [`crate::protocol`], kept on one processor. Ended when dropped.
#[derive(Debug)]
pub struct InitiatorProcess {
    name: String,
    child: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
    log: PathBuf,
    /// What it has attached.
    pub volume: Volume,
}

impl InitiatorProcess {
    /// Starts `command` on processor `cpu`; what it says on its standard error goes into a log in `directory`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(name: &str, mut command: Command, cpu: Option<usize>, directory: &Path) -> Result<Self, BenchError> {
        let log = directory.join(format!("{name}.log"));
        let file =
            File::options().create(true).append(true).open(&log).map_err(|error| BenchError::file(&log, error))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file);
        process::detach(&mut command);
        let spawned = match cpu {
            Some(cpu) => cpu::on_cpus(&[cpu], || command.spawn())?,
            None => command.spawn(),
        };
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = spawned.map_err(|error| BenchError::process(name, format!("cannot run {program}: {error}")))?;
        let orders = child.stdin.take();
        let output = child.stdout.take().expect("it was just made a pipe");
        let (sender, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(InitiatorProcess { name: name.to_owned(), child, orders, answers, log, volume: Volume::default() })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Attaches a volume.
    ///
    /// # Errors
    /// What it says.
    pub fn attach(&mut self, how: serde_json::Value) -> Result<&Volume, BenchError> {
        match self.ask(&Order::Attach { how }, ANSWER_TIMEOUT)? {
            Answer::Attached(volume) => self.volume = volume,
            other => return Err(self.strange(&other)),
        }
        Ok(&self.volume)
    }

    /// Writes the whole volume once.
    ///
    /// # Errors
    /// What it says.
    pub fn fill(&mut self) -> Result<(), BenchError> {
        match self.ask(&Order::Fill, FILL_TIMEOUT)? {
            Answer::Filled => Ok(()),
            other => Err(self.strange(&other)),
        }
    }

    /// Begins doing I/O.
    ///
    /// # Errors
    /// What it says.
    pub fn begin(&mut self, job: IoJob) -> Result<(), BenchError> {
        // All of its part of the volume is sealed or opened before it begins.
        let timeout = if job.sealed_beforehand_bytes > 0 { FILL_TIMEOUT } else { ANSWER_TIMEOUT };
        match self.ask(&Order::Start(job), timeout)? {
            Answer::Started => Ok(()),
            other => Err(self.strange(&other)),
        }
    }

    /// Lets begin what waits for it.
    ///
    /// # Errors
    /// If it has gone.
    pub fn go(&mut self) -> Result<(), BenchError> {
        self.say(&Order::Go)
    }

    /// Ends the warm-up. In two steps, so that all initiators get there together: say it to all, then wait for all.
    ///
    /// # Errors
    /// If it has gone.
    pub fn say_mark(&mut self) -> Result<(), BenchError> {
        self.say(&Order::Mark)
    }

    /// Waits for the answer to [`InitiatorProcess::say_mark`].
    ///
    /// # Errors
    /// What it says.
    pub fn wait_marked(&mut self) -> Result<(), BenchError> {
        match self.hear(ANSWER_TIMEOUT)? {
            Answer::Marked => Ok(()),
            other => Err(self.strange(&other)),
        }
    }

    /// Whether it has said that it is running out of what it sealed beforehand.
    ///
    /// # Errors
    /// What else it says.
    pub fn is_spent(&mut self) -> Result<bool, BenchError> {
        match self.answers.try_recv() {
            Err(TryRecvError::Empty) => Ok(false),
            Err(TryRecvError::Disconnected) => Err(self.problem("it has ended")),
            Ok(line) => match self.understand(&line)? {
                Answer::Spent => Ok(true),
                other => Err(self.strange(&other)),
            },
        }
    }

    /// Ends the measurement.
    ///
    /// # Errors
    /// If it has gone.
    pub fn say_stop(&mut self) -> Result<(), BenchError> {
        self.say(&Order::Stop)
    }

    /// Waits for the answer to [`InitiatorProcess::say_stop`].
    ///
    /// # Errors
    /// What it says.
    pub fn wait_stopped(&mut self) -> Result<Outcome, BenchError> {
        self.wait_stopped_within(ANSWER_TIMEOUT)
    }

    /// The same, for what takes longer.
    ///
    /// # Errors
    /// What it says.
    pub(crate) fn wait_stopped_within(&mut self, timeout: Duration) -> Result<Outcome, BenchError> {
        match self.hear(timeout)? {
            Answer::Stopped(outcome) => Ok(outcome),
            // Said before it heard that it is to stop.
            Answer::Spent => self.wait_stopped_within(timeout),
            other => Err(self.strange(&other)),
        }
    }

    fn ask(&mut self, order: &Order, timeout: Duration) -> Result<Answer, BenchError> {
        self.say(order)?;
        self.hear(timeout)
    }

    /// Gives an order, and does not wait for the answer.
    pub(crate) fn say(&mut self, order: &Order) -> Result<(), BenchError> {
        let mut line = serde_json::to_string(order).expect("orders are plain data");
        line.push('\n');
        let written = self.orders.as_mut().map(|orders| orders.write_all(line.as_bytes()));
        match written {
            Some(Ok(())) => Ok(()),
            _ => Err(self.problem("it has ended")),
        }
    }

    fn hear(&mut self, timeout: Duration) -> Result<Answer, BenchError> {
        let line = match self.answers.recv_timeout(timeout) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => return Err(self.problem(&format!("it did not answer in {timeout:?}"))),
            Err(RecvTimeoutError::Disconnected) => return Err(self.problem("it has ended")),
        };
        self.understand(&line)
    }

    fn understand(&self, line: &str) -> Result<Answer, BenchError> {
        match serde_json::from_str(line) {
            Ok(Answer::Failed { message }) => Err(BenchError::process(&self.name, message)),
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.problem(&format!("it said something strange ({error}): {line}"))),
        }
    }

    fn strange(&self, answer: &Answer) -> BenchError {
        self.problem(&format!("it answered something else than was asked: {answer:?}"))
    }

    fn problem(&self, problem: &str) -> BenchError {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let last = log.lines().next_back().unwrap_or_default();
        BenchError::process(&self.name, format!("{problem} {last}").trim_end())
    }
}

impl Drop for InitiatorProcess {
    fn drop(&mut self) {
        // The end of its input asks it to end by itself.
        self.orders = None;
        process::end(&mut self.child);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saying(script: &str) -> (InitiatorProcess, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        (InitiatorProcess::start("alice", command, None, dir.path()).unwrap(), dir)
    }

    #[test]
    fn answers_are_matched_to_orders() {
        let attached = r#"{"answer":"attached","bytes":8192,"block_bytes":512,"suite":"none"}"#;
        let (mut alice, _dir) = saying(&format!("read line; echo '{attached}'; read line; echo '{attached}'"));
        assert_eq!(alice.attach(serde_json::json!({})).unwrap().block_bytes, 512);
        let error = alice.fill().unwrap_err().to_string();
        assert!(error.contains("something else"), "{error}");
    }

    #[test]
    fn what_is_spent_is_told_before_or_while_it_is_asked_to_stop() {
        let stopped = r#"{"answer":"stopped","ios":3}"#;
        let spent = r#"{"answer":"spent"}"#;
        let (mut alice, _dir) = saying(&format!("echo '{spent}'; read line; echo '{spent}'; echo '{stopped}'"));
        let begun = std::time::Instant::now();
        while !alice.is_spent().unwrap() {
            assert!(begun.elapsed() < Duration::from_secs(30));
            thread::yield_now();
        }
        assert!(!alice.is_spent().unwrap(), "told once");
        alice.say_stop().unwrap();
        assert_eq!(alice.wait_stopped().unwrap().ios, 3);
    }

    #[test]
    fn failures_and_ends_are_told() {
        let (mut alice, _dir) = saying(r#"read line; echo '{"answer":"failed","message":"no route"}'; echo gone >&2"#);
        assert_eq!(alice.fill().unwrap_err().to_string(), "alice: no route");
        let error = alice.wait_marked().unwrap_err().to_string();
        assert!(error.contains("it has ended gone"), "{error}");
    }
}
