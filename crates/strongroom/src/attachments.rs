//! Which volumes are attached on this machine: one small file per attachment, so that `detach` finds the process. It outlives a process
//! that died, or that ended after writes had failed, until `detach` has reported that.
//!
//! Absent: attaching; the directory of these files (`runtime_dir`); what a dead process leaves in the kernel (`initiator::front::leftovers`).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use strongroom_initiator::front::kernel_nbd::{self, FoundDevice};
use strongroom_initiator::front::leftovers::Leftovers;

use crate::runtime_dir::RuntimeDir;
use crate::stable_name::{self, NotMade, StableName};

/// How often to look whether an attachment has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a process may take to end that is killed.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// How many logs are kept of attachments that failed and are not listed any more.
const OLD_LOGS_MAX: usize = 16;

/// One attached volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attachment {
    /// The process that serves it.
    pub(crate) pid: u32,
    /// When that process started, in the kernel's ticks: a process id alone may have been given to another.
    pub(crate) started: u64,
    /// What is attached.
    pub(crate) url: String,
    /// The FUSE directory, or the socket of an NBD or vhost-user server; empty if that has none, and of an NBD device.
    pub(crate) directory: PathBuf,
    /// Where the file system on it is mounted.
    pub(crate) mount: Option<PathBuf>,
    /// Its block device, if it has one.
    #[serde(default)]
    pub(crate) device: Option<PathBuf>,
    /// What clients are given, of an NBD server.
    #[serde(default)]
    pub(crate) nbd: Option<String>,
    /// The socket of a vhost-user server.
    #[serde(default)]
    pub(crate) vhost_user: Option<PathBuf>,
    /// Where its log is, if it has one of its own.
    #[serde(default)]
    pub(crate) log: Option<PathBuf>,
    /// The name in /dev that leads to it.
    #[serde(default)]
    pub(crate) stable_name: Option<StableName>,
    /// Why it has none.
    #[serde(default)]
    pub(crate) unnamed: Option<String>,
    /// Why the last request to detach was refused.
    pub(crate) refused: Option<String>,
    /// How many requests to detach were refused.
    pub(crate) refusals: u64,
    /// What may change while it serves.
    #[serde(flatten)]
    pub(crate) health: Health,
    /// It is detached; only what was lost is still to be reported.
    #[serde(default)]
    pub(crate) is_detached: bool,
}

/// Where programs find an attached volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttachmentPlace {
    /// As a file in this directory, and if so mounted on the other one, from a block device.
    Directory { directory: PathBuf, mount: Option<PathBuf>, device: Option<PathBuf> },
    /// As an NBD device, and if so mounted from it.
    NbdDevice { device: PathBuf, mount: Option<PathBuf> },
    /// At an NBD server.
    Nbd { uri: String, socket: Option<PathBuf> },
    /// At the socket of a vhost-user server.
    VhostUser { socket: PathBuf },
}

impl AttachmentPlace {
    /// What `strongroom detach` can be given.
    pub(crate) fn name(&self) -> String {
        match self {
            AttachmentPlace::Directory { directory, .. } => directory.display().to_string(),
            AttachmentPlace::NbdDevice { device, .. } => device.display().to_string(),
            AttachmentPlace::Nbd { socket: Some(socket), .. } => socket.display().to_string(),
            AttachmentPlace::Nbd { uri, socket: None } => uri.clone(),
            AttachmentPlace::VhostUser { socket } => socket.display().to_string(),
        }
    }
}

/// How an attachment is doing, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Health {
    /// How its packets do, over ECL.
    #[serde(default)]
    pub(crate) transport: Option<String>,
    /// How its keys stand, if a server lends them.
    #[serde(default)]
    pub(crate) keys: Option<String>,
    /// Why it is not connected to its target.
    #[serde(default)]
    pub(crate) disconnected: Option<String>,
    /// Why nothing more can be written: another initiator has the volume, or has fenced this one.
    #[serde(default)]
    pub(crate) kept_out: Option<String>,
    /// Writes that were lost.
    #[serde(default)]
    pub(crate) losses: Option<String>,
}

/// What there is of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachmentState {
    /// Its process serves it.
    Serving,
    /// It has ended, and writes had failed.
    EndedWithLosses,
    /// Its process ended without detaching.
    Died,
}

/// The file of this process's attachment; removed when dropped.
pub(crate) struct Registration {
    dir: RuntimeDir,
    name: String,
    attachment: Attachment,
}

fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Field 22; the name, field 2, may hold anything but ends at the last parenthesis.
    let fields = stat.rsplit_once(')')?.1;
    let mut fields = fields.split_ascii_whitespace();
    // A zombie serves nothing.
    let is_alive = !matches!(fields.next()?, "Z" | "X");
    is_alive.then(|| fields.nth(18)?.parse().ok()).flatten()
}

impl Registration {
    /// Registers this process.
    pub(crate) fn new(url: String, place: AttachmentPlace, log: Option<PathBuf>) -> Result<Registration> {
        let pid = std::process::id();
        let (mut mount, mut device, mut nbd, mut vhost_user) = (None, None, None, None);
        let directory = match place {
            AttachmentPlace::Directory { directory, mount: mounted, device: block_device } => {
                (mount, device) = (mounted, block_device);
                directory
            }
            AttachmentPlace::NbdDevice { device: block_device, mount: mounted } => {
                (mount, device) = (mounted, Some(block_device));
                PathBuf::new()
            }
            AttachmentPlace::Nbd { uri, socket } => {
                nbd = Some(uri);
                socket.unwrap_or_default()
            }
            AttachmentPlace::VhostUser { socket } => {
                vhost_user = Some(socket.clone());
                socket
            }
        };
        let attachment = Attachment {
            pid,
            started: start_ticks(pid).unwrap_or(0),
            url,
            directory,
            mount,
            device,
            nbd,
            vhost_user,
            log,
            stable_name: None,
            unnamed: None,
            refused: None,
            refusals: 0,
            health: Health::default(),
            is_detached: false,
        };
        let registration = Registration { dir: RuntimeDir::open()?, name: file_name(pid), attachment };
        registration.write()?;
        Ok(registration)
    }

    /// Reports why it cannot be detached now.
    pub(crate) fn refuse(&mut self, reason: String) {
        self.attachment.refused = Some(reason);
        self.attachment.refusals += 1;
        if let Err(error) = self.write() {
            tracing::warn!(error = format!("{error:#}"), "cannot report why detaching was refused");
        }
    }

    /// Notes how the attachment is doing.
    pub(crate) fn note(&mut self, health: Health) {
        if self.attachment.health != health {
            self.attachment.health = health;
            if let Err(error) = self.write() {
                tracing::warn!(error = format!("{error:#}"), "cannot report how the attachment is doing");
            }
        }
    }

    /// Gives the attachment its name in /dev.
    ///
    /// # Errors
    /// It cannot have this one, and why.
    pub(crate) fn give_name(&mut self, name: StableName) -> Result<()> {
        // Noted first, so that a process that dies in between leaves nothing that nobody knows of.
        self.attachment.stable_name = Some(name.clone());
        self.write()?;
        let made = name.make().map_err(|error| match error {
            NotMade::Failed(error) => error,
            NotMade::Taken => taken(name.path()),
        });
        if let Err(error) = made {
            self.attachment.stable_name = None;
            self.go_unnamed(format!("{error:#}"));
            return Err(error);
        }
        self.attachment.unnamed = None;
        Ok(())
    }

    /// It has no name in /dev, for this reason.
    pub(crate) fn go_unnamed(&mut self, why: String) {
        self.attachment.unnamed = Some(why);
        if let Err(error) = self.write() {
            tracing::warn!(error = format!("{error:#}"), "cannot report why there is no stable name");
        }
    }

    /// Takes the name away before what it leads to goes: that may be another volume's soon.
    pub(crate) fn suspend_name(&self) {
        if let Some(name) = &self.attachment.stable_name {
            name.remove();
        }
    }

    /// What it leads to stays after all.
    pub(crate) fn resume_name(&mut self) {
        if let Some(name) = self.attachment.stable_name.clone()
            && let Err(error) = self.give_name(name)
        {
            tracing::warn!(error = format!("{error:#}"), "the attachment has lost its stable name");
        }
    }

    /// Ends the registration. What was lost stays there until `detach` has reported it.
    pub(crate) fn end(mut self, losses: Option<String>) -> Result<()> {
        let Some(losses) = losses else { return Ok(()) };
        self.attachment.health = Health { losses: Some(losses), ..Health::default() };
        self.attachment.is_detached = true;
        (self.attachment.stable_name, self.attachment.unnamed) = (None, None);
        let written = self.write();
        std::mem::forget(self);
        written
    }

    fn write(&self) -> Result<()> {
        self.dir.write(&self.name, &serde_json::to_vec(&self.attachment)?)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.suspend_name();
        self.dir.remove(&self.name);
    }
}

fn file_name(pid: u32) -> String {
    format!("{pid}.json")
}

/// All attachments of this user, by directory; one that died and left nothing is forgotten.
pub(crate) fn list() -> Result<Vec<Attachment>> {
    let Some(dir) = RuntimeDir::find()? else { return Ok(Vec::new()) };
    let mut attachments = Vec::new();
    for name in dir.names("json")? {
        let Ok(content) = dir.read(&name) else { continue };
        let Ok(attachment) = serde_json::from_slice::<Attachment>(&content) else { continue };
        let leaves_nothing = || attachment.leftovers().is_ok_and(|leftovers| leftovers.is_empty());
        if attachment.state() == AttachmentState::Died && attachment.health.losses.is_none() && leaves_nothing() {
            if let Some(name) = &attachment.stable_name {
                name.remove();
            }
            dir.remove(&name);
        } else {
            attachments.push(attachment);
        }
    }
    attachments.sort_by(|a, b| a.directory.cmp(&b.directory));
    Ok(attachments)
}

/// Removes the oldest logs of attachments that are not listed any more.
pub(crate) fn prune_logs(dir: &RuntimeDir) -> Result<()> {
    let listed = list()?;
    let mut logs = Vec::new();
    for name in dir.names("log")? {
        let path = dir.path_of(&name);
        let Ok(modified) = fs::metadata(&path).and_then(|metadata| metadata.modified()) else { continue };
        if !listed.iter().any(|attachment| attachment.log.as_ref() == Some(&path)) {
            logs.push((modified, name));
        }
    }
    logs.sort_unstable();
    let excess = logs.len().saturating_sub(OLD_LOGS_MAX);
    logs.iter().take(excess).for_each(|(_, name)| dir.remove(name));
    Ok(())
}

/// What came of asking an attachment to end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Detached {
    /// It has ended, and everything written is at the target.
    Ended,
    /// It has ended, and this was lost.
    EndedWithLosses(String),
    /// It goes on, for this reason.
    Refused(String),
    /// Its process ended without detaching.
    Died,
    /// It neither ended nor refused in time.
    TimedOut,
}

impl Attachment {
    /// What there is of it.
    pub(crate) fn state(&self) -> AttachmentState {
        if self.is_detached {
            AttachmentState::EndedWithLosses
        } else if self.is_alive() {
            AttachmentState::Serving
        } else {
            AttachmentState::Died
        }
    }

    /// Whether the process is still the one that registered.
    fn is_alive(&self) -> bool {
        start_ticks(self.pid) == Some(self.started)
    }

    /// Where programs find it.
    pub(crate) fn place(&self) -> AttachmentPlace {
        if let Some(device) = self.nbd_device() {
            return AttachmentPlace::NbdDevice { device: device.to_owned(), mount: self.mount.clone() };
        }
        match (&self.nbd, &self.vhost_user) {
            (None, None) => AttachmentPlace::Directory {
                directory: self.directory.clone(),
                mount: self.mount.clone(),
                device: self.device.clone(),
            },
            (None, Some(socket)) => AttachmentPlace::VhostUser { socket: socket.clone() },
            (Some(uri), _) => {
                let socket = Some(self.directory.clone()).filter(|path| !path.as_os_str().is_empty());
                AttachmentPlace::Nbd { uri: uri.clone(), socket }
            }
        }
    }

    /// The NBD device that is all of it.
    fn nbd_device(&self) -> Option<&Path> {
        let is_device = self.nbd.is_none() && self.directory.as_os_str().is_empty();
        self.device.as_deref().filter(|_| is_device)
    }

    /// Its NBD device, if it has one that the kernel still has for it.
    pub(crate) fn found_nbd_device(&self) -> Option<FoundDevice> {
        kernel_nbd::find(self.nbd_device()?, &self.nbd_identifier())
    }

    /// What the kernel knows its NBD device by.
    fn nbd_identifier(&self) -> String {
        kernel_nbd::identifier(&self.url, self.mount.as_deref())
    }

    /// Whether it is a file in a FUSE directory, and not at a socket.
    fn is_file(&self) -> bool {
        self.nbd.is_none() && self.vhost_user.is_none()
    }

    /// Whether a person may mean this one by `name`: its directory, its mount point, its file, its socket, its NBD device, or its URL.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        // It is no path, as the directory of who has none.
        if name.is_empty() {
            return false;
        }
        let path = absolute(name);
        self.url == name
            || self.nbd.as_deref() == Some(name)
            || self.directory == path
            || self.mount.as_deref() == Some(path.as_path())
            || self.nbd_device() == Some(Path::new(name))
            || self.stable_name.as_ref().is_some_and(|stable| stable.path() == Path::new(name))
            || path.parent() == Some(self.directory.as_path())
    }

    /// What it leaves in the kernel, if its process is dead.
    pub(crate) fn leftovers(&self) -> std::io::Result<Leftovers> {
        if let Some(device) = self.nbd_device() {
            return Leftovers::of_nbd_device(device, &self.nbd_identifier());
        }
        if !self.is_file() {
            // The name of its socket, which the next one replaces.
            return Ok(Leftovers::default());
        }
        Leftovers::of(&self.directory)
    }

    /// Forgets it: its file, and its log if nothing was lost.
    pub(crate) fn forget(&self) -> Result<()> {
        if let Some(dir) = RuntimeDir::find()? {
            dir.remove(&file_name(self.pid));
        }
        if self.health.losses.is_none()
            && let Some(log) = &self.log
        {
            let _ = fs::remove_file(log);
        }
        Ok(())
    }

    /// Leaves what its dead process had to another one, which registers itself: its name and its file go, and its log stays.
    pub(crate) fn hand_over(&self) -> Result<()> {
        if let Some(name) = &self.stable_name {
            name.remove();
        }
        if let Some(dir) = RuntimeDir::find()? {
            dir.remove(&file_name(self.pid));
        }
        Ok(())
    }

    /// Removes what its dead process has left, and forgets it. Returns what was done, for people.
    pub(crate) fn clean_up(&self) -> Result<Vec<String>> {
        let mut done = Vec::new();
        if let Some(name) = self.stable_name.as_ref().filter(|name| name.remove()) {
            done.push(format!("removed {}", name.path().display()));
        }
        let removed = self.leftovers().and_then(|leftovers| leftovers.remove());
        done.extend(removed.with_context(|| format!("cannot remove what process {} left", self.pid))?);
        self.forget()?;
        Ok(done)
    }

    fn signal(&self, signal: Signal) -> bool {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        self.is_alive() && pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    /// Asks the process to detach, and waits for what comes of it. `force`: without writing back what cannot be now.
    pub(crate) fn detach(&self, timeout: Duration, force: bool) -> Detached {
        self.signal(if force { Signal::USR1 } else { Signal::TERM });
        let asked = Instant::now();
        while asked.elapsed() < timeout {
            // In this order: what a process writes, it writes before it ends.
            let is_alive = self.is_alive();
            match self.read_again() {
                Some(now) if now.is_detached && !is_alive => {
                    return Detached::EndedWithLosses(now.health.losses.unwrap_or_default());
                }
                Some(now) if now.refusals > self.refusals && !force => {
                    return Detached::Refused(now.refused.unwrap_or_default());
                }
                Some(_) if !is_alive => return Detached::Died,
                None if !is_alive => return Detached::Ended,
                _ => std::thread::sleep(LOOK_EVERY),
            }
        }
        Detached::TimedOut
    }

    /// What its file says now; `None` if it is gone.
    fn read_again(&self) -> Option<Attachment> {
        let content = RuntimeDir::find().ok()??.read(&file_name(self.pid)).ok()?;
        serde_json::from_slice(&content).ok()
    }

    /// Kills the process, even while requests are in flight, and removes what it leaves behind. Returns what was done, for people.
    pub(crate) fn kill(&self) -> Result<Vec<String>> {
        // Requests that the kernel waits for would keep the process from ending.
        if let Some(device) = self.found_nbd_device() {
            // And nobody is to go on with the device: what is not registered is not started again.
            self.hand_over()?;
            let _ = device.disconnect();
        } else if self.is_file() {
            let _ = strongroom_initiator::front::leftovers::abort_fuse(&self.directory);
        }
        self.signal(Signal::KILL);
        let asked = Instant::now();
        while self.is_alive() && asked.elapsed() < KILL_PATIENCE {
            std::thread::sleep(LOOK_EVERY);
        }
        self.clean_up()
    }
}

/// Why an attachment cannot have the name at `path`, and what a person can do.
fn taken(path: &Path) -> anyhow::Error {
    match who_has(path) {
        Ok(Some(occupant)) => anyhow!(occupant),
        // It has gone in between.
        Ok(None) => anyhow!("something else had the name {}; detach, and attach again", path.display()),
        Err(error) => error,
    }
}

/// What has the name at `path`, and what a person can do about it; `None` if it is free.
pub(crate) fn who_has(path: &Path) -> Result<Option<String>> {
    let shown = path.display();
    let has = |attachment: &Attachment| attachment.stable_name.as_ref().is_some_and(|name| name.path() == path);
    // Forgets those that left nothing else.
    let listed = list()?.into_iter().find(|attachment| attachment.pid != std::process::id() && has(attachment));
    let Some(occupant) = stable_name::occupant(path)? else { return Ok(None) };
    Ok(Some(match listed {
        Some(other) if other.state() == AttachmentState::Died => format!(
            "{shown} is left of process {}, which had {} attached and has died; remove what it left: strongroom detach {}",
            other.pid,
            other.url,
            other.place().name()
        ),
        Some(other) => format!(
            "{shown} is the name of {}, attached by process {}; choose another one for this volume: --name NAME",
            other.url, other.pid
        ),
        None => format!("{occupant}; look what it is and remove it, or choose another name: --name NAME"),
    }))
}

/// A path as the kernel's tables have it. What is dead cannot be resolved: of that the parent is.
pub(crate) fn absolute(name: &str) -> PathBuf {
    let path = std::path::absolute(name).unwrap_or_else(|_| PathBuf::from(name));
    fs::canonicalize(&path).unwrap_or_else(|_| match (path.parent().map(fs::canonicalize), path.file_name()) {
        (Some(Ok(parent)), Some(last)) => parent.join(last),
        _ => path.clone(),
    })
}

#[cfg(test)]
mod tests {
    //! Proves that an NBD device is told from the other places, and what people may call it.
    use super::*;

    #[test]
    fn an_nbd_device_is_a_place_of_its_own() {
        let record = |directory: &str, device: &str| {
            let record = serde_json::json!({
                "pid": 1, "started": 0, "url": "strongroom://storage/vault", "directory": directory, "mount": "/mnt/vault",
                "device": device, "refused": null, "refusals": 0,
            });
            serde_json::from_value::<Attachment>(record).unwrap()
        };
        let attachment = record("", "/dev/nbd3");
        let mount = Some(PathBuf::from("/mnt/vault"));
        assert_eq!(attachment.place(), AttachmentPlace::NbdDevice { device: "/dev/nbd3".into(), mount: mount.clone() });
        assert_eq!(attachment.place().name(), "/dev/nbd3");
        assert_eq!(attachment.nbd_identifier(), "strongroom:strongroom://storage/vault /mnt/vault");
        for name in ["/dev/nbd3", "/mnt/vault", "strongroom://storage/vault"] {
            assert!(attachment.is_called(name), "{name}");
        }
        for name in ["/dev/nbd30", "nbd3", "/mnt", "", "/"] {
            assert!(!attachment.is_called(name), "{name}");
        }
        let attachment = record("/run/vault", "/dev/loop3");
        let directory = PathBuf::from("/run/vault");
        assert_eq!(
            attachment.place(),
            AttachmentPlace::Directory { directory, mount, device: Some("/dev/loop3".into()) }
        );
        assert!(!attachment.is_called("/dev/loop3") && attachment.found_nbd_device().is_none());
    }
}
