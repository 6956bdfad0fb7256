//! `strongroom volume format`: an initiator with the key makes a new sealed volume usable.

use anyhow::{Context, Result, bail};
use clap::Args;
use strongroom_initiator::VolumeUrl;

use crate::access::AccessArgs;
use crate::units::show_size;

/// Make every block of a volume absent, sealed so on a sealed one: once, from an initiator with its key. All data goes.
#[derive(Args)]
#[command(after_help = "Example: strongroom volume format strongroom://storage/vault --key-file ~/vault.key --yes")]
pub(crate) struct FormatArgs {
    /// The volume.
    url: VolumeUrl,
    /// Really format it; whatever it holds is gone.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    access: AccessArgs,
}

/// Runs the command.
pub(crate) fn run(args: &FormatArgs) -> Result<()> {
    if !args.yes {
        bail!("formatting makes everything on {} unreadable, for ever; if that is meant, add --yes", args.url);
    }
    args.access.forget_if_asked(&args.url)?;
    let device = args.access.attach(args.access.options(&args.url)?)?;
    device.format().with_context(|| format!("cannot format {}", args.url))?;
    let unit = device.unit();
    let how = if unit.sealed.is_some() { "sealed as absent" } else { "absent" };
    println!(
        "formatted {}: {} in blocks of {}, all {how}",
        args.url,
        show_size(unit.geometry.bytes()),
        unit.geometry.block_size
    );
    device.detach()?;
    Ok(())
}
