//! `strongroom volume format`: an initiator with the key makes a new sealed volume usable.

use anyhow::{Context, Result, bail};
use clap::Args;
use strongroom_block::Lba;
use strongroom_initiator::VolumeUrl;

use crate::access::AccessArgs;
use crate::key_record::{Domain, Others};
use crate::units::{parse_size, show_size};

/// Make every block of a volume absent, sealed so on a sealed one: once, from an initiator with its key. All data goes.
///
/// A key file records the volume from then on, with a sealing domain that is drawn here: copies of the file are to be made afterwards.
#[derive(Args)]
#[command(after_help = "Example: strongroom volume format strongroom://storage/vault --key-file ~/vault.key --yes")]
pub(crate) struct FormatArgs {
    /// The volume.
    url: VolumeUrl,
    /// Really format it; whatever it holds is gone.
    #[arg(long)]
    yes: bool,
    /// The volume was made with `--open-at-target`: its target has the key file too, and is not to be told of a domain that is drawn here.
    #[arg(long, requires = "key_file")]
    opened_at_target: bool,
    #[command(flatten)]
    access: AccessArgs,
}

/// Make the part of a sealed volume usable by which it grew: seal it as absent. What was there before stays.
#[derive(Args)]
#[command(
    after_help = "Example: strongroom volume grow strongroom://storage/vault --key-file ~/vault.key --from 10GiB\n\n\
    After `strongroom volume resize` on the target's machine, which says what to give here."
)]
pub(crate) struct GrowArgs {
    /// The volume.
    url: VolumeUrl,
    /// The size that it had before, for instance 10GiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    from: u64,
    #[command(flatten)]
    access: AccessArgs,
}

/// Runs `volume grow`.
pub(crate) fn grow(args: &GrowArgs) -> Result<()> {
    let device = args.access.attach(args.access.options(&args.url)?)?;
    let unit = device.unit();
    let block_bytes = u64::from(unit.geometry.block_size.bytes());
    if unit.sealed.is_none() {
        bail!("{} is plain: what it grew by is usable already", args.url);
    }
    if !args.from.is_multiple_of(block_bytes) {
        bail!("the volume's blocks have {block_bytes} bytes; it never had a size of {} bytes", args.from);
    }
    device.format_grown(Lba(args.from / block_bytes)).with_context(|| format!("cannot grow {}", args.url))?;
    println!("{} is usable up to {}", args.url, show_size(unit.geometry.bytes()));
    device.detach()?;
    Ok(())
}

/// Runs the command.
pub(crate) fn run(args: &FormatArgs) -> Result<()> {
    if !args.yes {
        bail!("formatting makes everything on {} unreadable, for ever; if that is meant, add --yes", args.url);
    }
    args.access.forget_if_asked(&args.url)?;
    let domain = if args.opened_at_target { Domain::Claimed } else { Domain::Formatting };
    let others = if args.access.forget_volume { Others::Forget } else { Others::Refuse };
    args.access.record_volume(&args.url, &[args.url.file_name()], domain, others)?;
    let device = args.access.attach(args.access.options(&args.url)?)?;
    device.format().with_context(|| {
        let hint =
            if args.opened_at_target { "" } else { " (if it was made with --open-at-target, add --opened-at-target)" };
        format!("cannot format {}{hint}", args.url)
    })?;
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
