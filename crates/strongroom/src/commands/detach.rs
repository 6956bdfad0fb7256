//! `strongroom detach`: ends an attachment, cleanly or not at all.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use crate::attachments::{self, Detached};
use crate::units::parse_duration;

/// Detach a volume: unmount its file system, write everything back, end the session.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  strongroom detach /mnt/vault\n  strongroom detach --list\n  strongroom detach --force /mnt/vault"
)]
pub(crate) struct DetachArgs {
    /// The attachment: its directory, its mount point, or its URL.
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// Do not wait for a target that is away: what was not written to it is lost, and programs that use the volume get errors.
    #[arg(long, conflicts_with = "list")]
    force: bool,
    /// How long to wait for what is still to be written.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    timeout: Duration,
    /// List what is attached instead.
    #[arg(long, conflicts_with = "name")]
    list: bool,
}

/// Runs the command.
pub(crate) fn run(args: &DetachArgs) -> Result<()> {
    let attached = attachments::list()?;
    let Some(name) = &args.name else {
        for attachment in attached {
            let mount = attachment.mount.map(|mount| format!(", mounted on {}", mount.display())).unwrap_or_default();
            println!("{} at {}{mount} (process {})", attachment.url, attachment.directory.display(), attachment.pid);
            attachment.keys.iter().for_each(|keys| println!("  keys: {keys}"));
        }
        return Ok(());
    };
    let Some(attachment) = attached.into_iter().find(|attachment| attachment.is_called(name)) else {
        bail!("nothing is attached as '{name}'; `strongroom detach --list` shows what is");
    };
    match attachment.detach(args.timeout, args.force) {
        Detached::Ended => Ok(()),
        Detached::Refused(reason) => bail!("still attached: {reason}"),
        Detached::TimedOut => bail!(
            "process {} is still writing back after {:?}; the target may be unreachable. Wait and detach again, or give \
             up what is not written with: strongroom detach --force {name}",
            attachment.pid,
            args.timeout,
        ),
    }
}
