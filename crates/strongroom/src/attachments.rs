//! Which volumes are attached on this machine: one small file per attachment, so that `detach` finds the process.
//!
//! Absent: attaching; the directory of these files (`runtime_dir`).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::runtime_dir::RuntimeDir;

/// How often to look whether an attachment has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// One attached volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attachment {
    /// The process that serves it.
    pub(crate) pid: u32,
    /// When that process started, in the kernel's ticks: a process id alone may have been given to another.
    pub(crate) started: u64,
    /// What is attached.
    pub(crate) url: String,
    /// The FUSE directory.
    pub(crate) directory: PathBuf,
    /// Where the file system on it is mounted.
    pub(crate) mount: Option<PathBuf>,
    /// Why the last wish to detach was refused.
    pub(crate) refused: Option<String>,
    /// How many wishes to detach were refused.
    pub(crate) refusals: u64,
    /// How its keys stand, for people, if a server lends them.
    #[serde(default)]
    pub(crate) keys: Option<String>,
}

/// The file of one attachment; removed when dropped.
pub(crate) struct Registration {
    dir: RuntimeDir,
    name: String,
    attachment: Attachment,
}

fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Field 22; the name, field 2, may hold anything but ends at the last parenthesis.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

impl Registration {
    /// Registers this process.
    pub(crate) fn new(url: String, directory: &Path, mount: Option<&Path>) -> Result<Registration> {
        let pid = std::process::id();
        let attachment = Attachment {
            pid,
            started: start_ticks(pid).unwrap_or(0),
            url,
            directory: directory.to_owned(),
            mount: mount.map(Path::to_owned),
            refused: None,
            refusals: 0,
            keys: None,
        };
        let registration = Registration { dir: RuntimeDir::open()?, name: format!("{pid}.json"), attachment };
        registration.write()?;
        Ok(registration)
    }

    /// Tells whoever asked to detach why that cannot be now.
    pub(crate) fn refuse(&mut self, reason: String) {
        self.attachment.refused = Some(reason);
        self.attachment.refusals += 1;
        if let Err(error) = self.write() {
            tracing::warn!(error = format!("{error:#}"), "cannot tell why detaching was refused");
        }
    }

    /// Notes how the attachment's keys stand.
    pub(crate) fn note_keys(&mut self, keys: Option<String>) {
        if self.attachment.keys != keys {
            self.attachment.keys = keys;
            if let Err(error) = self.write() {
                tracing::warn!(error = format!("{error:#}"), "cannot tell how the keys stand");
            }
        }
    }

    fn write(&self) -> Result<()> {
        self.dir.write(&self.name, &serde_json::to_vec(&self.attachment)?)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.dir.remove(&self.name);
    }
}

/// All live attachments of this user; files of dead ones are removed.
pub(crate) fn list() -> Result<Vec<Attachment>> {
    let Some(dir) = RuntimeDir::find()? else { return Ok(Vec::new()) };
    let mut attachments = Vec::new();
    for name in dir.names("json")? {
        let Ok(content) = dir.read(&name) else { continue };
        let Ok(attachment) = serde_json::from_slice::<Attachment>(&content) else { continue };
        if attachment.is_alive() {
            attachments.push(attachment);
        } else {
            dir.remove(&name);
        }
    }
    attachments.sort_by(|a, b| a.directory.cmp(&b.directory));
    Ok(attachments)
}

/// What came of asking an attachment to end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Detached {
    /// It has ended.
    Ended,
    /// It goes on, for this reason.
    Refused(String),
    /// It neither ended nor refused in time.
    TimedOut,
}

impl Attachment {
    /// Whether the process is still the one that registered.
    fn is_alive(&self) -> bool {
        start_ticks(self.pid) == Some(self.started)
    }

    /// Whether a person may mean this one by `name`: its directory, its mount point, its file, or its URL.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let path = fs::canonicalize(name).unwrap_or_else(|_| PathBuf::from(name));
        self.url == name
            || self.directory == path
            || self.mount.as_deref() == Some(path.as_path())
            || path.parent() == Some(self.directory.as_path())
    }

    /// Asks the process to detach, and waits for what comes of it. `force`: without writing back what cannot be now.
    pub(crate) fn detach(&self, timeout: Duration, force: bool) -> Detached {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Detached::Ended };
        if kill_process(pid, if force { Signal::USR1 } else { Signal::TERM }).is_err() {
            return Detached::Ended;
        }
        let asked = Instant::now();
        while asked.elapsed() < timeout {
            if !self.is_alive() {
                return Detached::Ended;
            }
            let now = list().unwrap_or_default().into_iter().find(|other| other.pid == self.pid);
            if let Some(now) = now
                && now.refusals > self.refusals
            {
                return Detached::Refused(now.refused.unwrap_or_default());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Detached::TimedOut
    }
}
