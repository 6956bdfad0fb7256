//! The parent of a process that serves an NBD device in the background: starts another one with the same arguments when that one has died,
//! which then goes on with the device (`nbd_device`). It has no part in the volume, so that nothing that ends the one ends the other.
//!
//! Whether there is something to go on with is in the list of attachments: what detaches by force, or cleans up, removes it from there first.

use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use strongroom_initiator::front::kernel_nbd::RECOVERY_PATIENCE;

use crate::attachments::{self, AttachmentState};

/// Says that this process is to be the parent.
pub(super) const VARIABLE: &str = "STRONGROOM_ATTACH_SUPERVISED";
/// Says to its child that there is a device to go on with.
const SUCCEED_VARIABLE: &str = "STRONGROOM_ATTACH_SUCCEED";
/// Before the next try, if the last one did not last as long.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// A child that lives so long has succeeded.
const LASTING: Duration = Duration::from_secs(10);

/// Whether this process is to be the parent.
pub(super) fn is_wanted() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Whether this process is to go on with what another one has left, or else to do nothing.
pub(super) fn must_succeed() -> bool {
    std::env::var_os(SUCCEED_VARIABLE).is_some()
}

/// Runs the child until it ends by itself; ends as it did.
pub(super) fn run() -> Result<()> {
    let log = std::env::var_os(super::LOG_VARIABLE);
    let mut child_command = command()?;
    // Since when there was no child that lasted.
    let mut failing_since: Option<Instant> = None;
    loop {
        let started = Instant::now();
        let mut child = child_command.spawn().context("cannot start the serving process")?;
        let status = child.wait().context("cannot wait for the serving process")?;
        let (pid, lived) = (child.id(), started.elapsed());
        if lived >= LASTING {
            failing_since = None;
        }
        let since = *failing_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= RECOVERY_PATIENCE || !has_left_a_device(log.as_deref())? {
            std::process::exit(exit_code(status));
        }
        tracing::error!(pid, %status, "the process that serves the volume has died; another one is started");
        if lived < RETRY_PAUSE {
            std::thread::sleep(RETRY_PAUSE);
        }
        child_command = command()?;
        child_command.env(SUCCEED_VARIABLE, "1").env_remove("NOTIFY_SOCKET");
    }
}

fn command() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).env_remove(VARIABLE);
    Ok(command)
}

/// Whether a process with this log has died and its device waits.
fn has_left_a_device(log: Option<&std::ffi::OsStr>) -> Result<bool> {
    let is_its = |attachment: &attachments::Attachment| {
        attachment.state() == AttachmentState::Died
            && attachment.log.as_ref().map(|log| log.as_os_str()) == log
            && attachment.found_nbd_device().is_some()
    };
    Ok(attachments::list()?.iter().any(is_its))
}

/// As a shell has it: 128 and the signal's number where a signal has ended it.
fn exit_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn it_ends_as_its_child_did() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
    }
}
