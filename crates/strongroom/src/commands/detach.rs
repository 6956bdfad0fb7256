//! `strongroom detach`: ends an attachment, cleanly or not at all, and says what was lost while there was one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use strongroom_block::with_foreign_parts;
use strongroom_initiator::front::leftovers::Leftovers;

use crate::attachments::{self, Attachment, AttachmentState, Detached};
use crate::stable_name;
use crate::units::{parse_duration, show_duration};

/// The exit status of a detach after which data that programs wrote is not at the target.
pub(crate) const DATA_LOST: u8 = 3;
/// How long a detach waits for what is still to be written, if nothing else is said.
const TIMEOUT: &str = "60s";
/// How long a forced detach may take before the process is killed.
const FORCED_TIMEOUT: Duration = Duration::from_secs(15);

/// Detach a volume: unmount its file system, write everything back, end the session.
///
/// The exit status is 0 if everything that was written is at the target, 3 if the volume is detached and some of it is not, and 1 if it is
/// still attached.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  strongroom detach /mnt/vault\n  strongroom attach list\n  strongroom detach --force /mnt/vault\n  \
        strongroom detach --all"
)]
pub(crate) struct DetachArgs {
    /// The attachment: its directory, its mount point, its name in /dev/strongroom, the socket or URI of its NBD server, or its URL.
    #[arg(required_unless_present_any = ["list", "all"])]
    name: Option<String>,
    /// Every attachment of this user, one after the other.
    #[arg(long, conflicts_with_all = ["name", "list"])]
    all: bool,
    /// Do not wait for a target that is away, nor for programs that use the volume: what was not written to it is lost, and they get errors.
    #[arg(long, conflicts_with = "list")]
    force: bool,
    /// How long to wait for what is still to be written.
    #[arg(long, value_name = "DURATION", default_value = TIMEOUT, value_parser = parse_duration)]
    timeout: Duration,
    /// List what is attached instead, as `strongroom attach list` does.
    #[arg(long, conflicts_with = "name")]
    list: bool,
}

impl DetachArgs {
    /// The arguments that say just this.
    pub(crate) fn of(name: &str, force: bool) -> DetachArgs {
        let timeout = parse_duration(TIMEOUT).expect("it is a duration");
        DetachArgs { name: Some(name.to_owned()), all: false, force, timeout, list: false }
    }
}

/// Shows what is attached, and what is left of attachments that ended badly.
pub(crate) fn list() -> Result<()> {
    for attachment in attachments::list()? {
        let name = attachment.place().name();
        let mount =
            attachment.mount.as_ref().map(|mount| format!(", mounted on {}", mount.display())).unwrap_or_default();
        let device = attachment
            .device
            .as_ref()
            .filter(|device| attachment.mount.is_none() && device.as_path() != Path::new(&name));
        let device = device.map(|device| format!(", block device {}", device.display())).unwrap_or_default();
        println!("{} at {name}{mount}{device} (process {})", attachment.url, attachment.pid);
        match attachment.state() {
            AttachmentState::Serving => {}
            AttachmentState::EndedWithLosses => {
                println!("  detached; to confirm what was lost: strongroom detach {name}")
            }
            AttachmentState::Died => {
                println!("  its process has died; to remove what it left: strongroom detach {name}")
            }
        }
        let health = &attachment.health;
        let vhost_user = attachment.vhost_user.as_ref().map(|socket| socket.display().to_string());
        if let Some(name) = &attachment.stable_name {
            println!("  name: {}", name.path().display());
        }
        let lines = [
            ("no name", &attachment.unnamed),
            ("NBD", &attachment.nbd),
            ("vhost-user", &vhost_user),
            ("ECL", &health.transport),
            ("keys", &health.keys),
            ("not connected", &health.disconnected),
            ("kept out", &health.kept_out),
            ("data lost", &health.losses),
        ];
        for (name, text) in lines {
            text.iter().for_each(|text| println!("  {name}: {}", with_foreign_parts(text)));
        }
        if let (Some(_), Some(log)) = (&health.losses, &attachment.log) {
            println!("  log: {}", log.display());
        }
    }
    Ok(())
}

/// The same as JSON, for programs: what is there, and no more words than there are facts.
pub(crate) fn list_as_json() -> Result<()> {
    let list: Vec<AttachmentJson> = attachments::list()?.into_iter().map(AttachmentJson::from).collect();
    println!("{}", serde_json::to_string(&list)?);
    Ok(())
}

/// An attachment, for programs.
#[derive(Serialize)]
struct AttachmentJson {
    url: String,
    pid: u32,
    directory: PathBuf,
    mount: Option<PathBuf>,
    device: Option<PathBuf>,
    nbd: Option<String>,
    vhost_user: Option<PathBuf>,
    state: &'static str,
    disconnected: Option<String>,
    losses: Option<String>,
}

impl From<Attachment> for AttachmentJson {
    fn from(attachment: Attachment) -> AttachmentJson {
        let state = match attachment.state() {
            AttachmentState::Serving => "serving",
            AttachmentState::EndedWithLosses => "ended-with-losses",
            AttachmentState::Died => "died",
        };
        let Attachment { url, pid, directory, mount, device, nbd, vhost_user, health, .. } = attachment;
        let (disconnected, losses) = (health.disconnected, health.losses);
        AttachmentJson { url, pid, directory, mount, device, nbd, vhost_user, state, disconnected, losses }
    }
}

/// Whether all that programs had written is at the target.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Complete,
    DataLost,
}

/// Runs the command.
pub(crate) fn run(args: &DetachArgs) -> Result<ExitCode> {
    let outcome = match &args.name {
        Some(name) => match attachments::list()?.into_iter().find(|attachment| attachment.is_called(name)) {
            Some(attachment) => detach(args, &attachment, name)?,
            None => clean_up_unlisted(name)?,
        },
        None if args.all => detach_all(args)?,
        None => {
            list()?;
            Outcome::Complete
        }
    };
    Ok(match outcome {
        Outcome::Complete => ExitCode::SUCCESS,
        Outcome::DataLost => ExitCode::from(DATA_LOST),
    })
}

/// One that stays attached keeps none of the others.
fn detach_all(args: &DetachArgs) -> Result<Outcome> {
    let (mut outcome, mut left) = (Outcome::Complete, 0);
    for attachment in attachments::list()? {
        let name = attachment.place().name();
        match detach(args, &attachment, &name) {
            Ok(Outcome::Complete) => {}
            Ok(Outcome::DataLost) => outcome = Outcome::DataLost,
            Err(error) => {
                eprintln!("strongroom: {} at {name}: {error:#}", attachment.url);
                left += 1;
            }
        }
    }
    if left > 0 {
        bail!("{left} still attached; `strongroom attach list` shows what is");
    }
    Ok(outcome)
}

fn detach(args: &DetachArgs, attachment: &Attachment, name: &str) -> Result<Outcome> {
    match attachment.state() {
        AttachmentState::Serving => {}
        AttachmentState::EndedWithLosses => return ended_with_losses(attachment, attachment.health.losses.as_deref()),
        AttachmentState::Died => return clean_up(attachment),
    }
    let timeout = if args.force { args.timeout.min(FORCED_TIMEOUT) } else { args.timeout };
    match attachment.detach(timeout, args.force) {
        Detached::Ended => Ok(Outcome::Complete),
        Detached::EndedWithLosses(losses) => ended_with_losses(attachment, Some(&losses)),
        Detached::Refused(reason) => bail!("still attached: {reason}"),
        Detached::Died => clean_up(attachment),
        Detached::TimedOut if args.force => {
            eprintln!("process {} did not end within {}; it is killed", attachment.pid, show_duration(timeout));
            report(&attachment.kill()?);
            ended_with_losses(attachment, attachment.health.losses.as_deref())
        }
        Detached::TimedOut => bail!(
            "process {} is still writing back after {}; the target may be unreachable. Wait and detach again, or give up what is not \
             written with: strongroom detach --force {name}",
            attachment.pid,
            show_duration(args.timeout),
        ),
    }
}

/// Reports what was lost, and forgets the attachment: it is reported once.
fn ended_with_losses(attachment: &Attachment, losses: Option<&str>) -> Result<Outcome> {
    let losses = losses.map_or_else(
        || "what was not written to the target before is lost".into(),
        |losses| with_foreign_parts(losses).to_string(),
    );
    eprintln!("strongroom: {} is detached, but {losses}", attachment.url);
    if let Some(log) = attachment.log.as_ref().filter(|log| log.exists()) {
        eprintln!("strongroom: its log is {}", log.display());
    }
    attachment.forget()?;
    Ok(Outcome::DataLost)
}

/// Removes what an attachment left whose process died.
fn clean_up(attachment: &Attachment) -> Result<Outcome> {
    eprintln!(
        "strongroom: process {}, which served {}, has died; what programs had written and not flushed (fsync) may be lost",
        attachment.pid, attachment.url
    );
    report(&attachment.clean_up()?);
    match &attachment.health.losses {
        Some(losses) => ended_with_losses(attachment, Some(losses)),
        None => Ok(Outcome::Complete),
    }
}

/// The same, where nothing but the kernel knows of it any more.
fn clean_up_unlisted(name: &str) -> Result<Outcome> {
    let path = attachments::absolute(name);
    let directory = Leftovers::directory_of(&path).context("cannot read the table of mounts")?;
    let dead = directory.filter(|directory| !answers(directory));
    let Some(directory) = dead else {
        bail!("nothing is attached as '{name}'; `strongroom attach list` shows what is");
    };
    let leftovers = Leftovers::of(&directory)?;
    for link in stable_name::remove_leading_to(&leftovers.loop_devices, &directory) {
        eprintln!("strongroom: removed {}", link.display());
    }
    report(&leftovers.remove()?);
    Ok(Outcome::Complete)
}

/// Whether a process serves a FUSE mount. One that hangs answers late, but not with this error.
fn answers(directory: &std::path::Path) -> bool {
    !matches!(std::fs::read_dir(directory), Err(error) if error.raw_os_error() == Some(libc::ENOTCONN))
}

fn report(done: &[String]) {
    done.iter().for_each(|step| eprintln!("strongroom: {step}"));
}
