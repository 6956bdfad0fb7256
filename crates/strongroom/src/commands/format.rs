//! `strongroom volume format`: an initiator with the key makes a new sealed volume usable; and one that is in use, or holds what this key does
//! not open, only if that is really meant.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use strongroom_block::Lba;
use strongroom_initiator::{LeaseMode, RemoteDevice, VolumeContents, VolumeUrl, unsealed_part};

use crate::access::AccessArgs;
use crate::confirmation::{self, Confirmation};
use crate::units::{parse_size, show_size};
use crate::writer::{self, WayOut};
use strongroom_keyfiles::volume_records::{self, Domain, Others};
use strongroom_seal::KeyPurpose;

/// Make every block of a volume absent, sealed so on a sealed one: once, from an initiator with its key. All data goes.
///
/// A key file records the volume from then on, with a sealing domain that is drawn here: copies of the file are to be made afterwards.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom volume format strongroom://storage/vault --new-key ~/vault.key --yes\n  \
    strongroom volume format strongroom://storage/vault --key-file ~/vault.key --yes\n\n\
    A volume that any initiator uses, readers too, is not formatted: detach it there first. Nor is one that is formatted already, unless you say \
    --reformat and have the key that opens it. Without that key: strongroom volume erase VOLUME, on the target's machine; or --force.")]
pub(crate) struct FormatArgs {
    /// The volume.
    url: VolumeUrl,
    /// Make this key file first, and format the volume with it; it must not exist yet. Keep a copy in a safe place: without it the data is gone.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key_file", "key_servers", "opened_at_target", "reformat"])]
    new_key: Option<PathBuf>,
    /// Really format it; its contents are lost.
    #[arg(long)]
    yes: bool,
    /// The volume is formatted already: what is on it, and opens with this key, is to go.
    #[arg(long)]
    reformat: bool,
    /// The volume was made with `--open-at-target`: its target has the key file too, and is not to be told of a domain that is drawn here.
    #[arg(long, requires = "key_file")]
    opened_at_target: bool,
    #[command(flatten)]
    force: confirmation::ForceArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Make the part of a sealed volume usable by which it grew: seal it as absent. What was there before stays.
#[derive(Args)]
#[command(
    after_help = "Example: strongroom volume grow strongroom://storage/vault --key-file ~/vault.key --from 10GiB\n\n\
    After `strongroom volume resize` on the target's machine, which says what to give here. Without --from the target is asked which blocks nobody \
    has written or sealed; one that lies can have others made absent, so say it where you know it."
)]
pub(crate) struct GrowArgs {
    /// The volume.
    url: VolumeUrl,
    /// The size that it had before, for instance 10GiB [default: what the target says is neither written nor sealed].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    from: Option<u64>,
    #[command(flatten)]
    access: AccessArgs,
}

/// Runs `volume grow`.
pub(crate) fn grow(args: &GrowArgs) -> Result<()> {
    let mut options = args.access.options(&args.url)?;
    // Beside the writer that uses the part from before.
    options.lease = writer::lease(LeaseMode::Maintenance, "volume grow");
    let device = args.access.attach(options)?;
    let unit = device.unit();
    let block_bytes = u64::from(unit.geometry.block_size.bytes());
    if unit.sealed.is_none() {
        bail!("{} is plain: what it grew by is usable already", args.url);
    }
    let from = match args.from {
        Some(from) if !from.is_multiple_of(block_bytes) => {
            bail!("the volume's blocks have {block_bytes} bytes; it never had a size of {from} bytes")
        }
        Some(from) => Some(Lba(from / block_bytes)),
        None => unsealed_part(&device).with_context(|| format!("cannot tell from where on {} grew", args.url))?,
    };
    if let Some(from) = from {
        device.format_grown(from).with_context(|| format!("cannot grow {}", args.url))?;
    }
    println!("{} is usable up to {}", args.url, show_size(unit.geometry.bytes()));
    device.detach()?;
    Ok(())
}

/// Runs the command.
pub(crate) fn run(mut args: FormatArgs) -> Result<()> {
    if !args.yes {
        bail!("formatting makes everything on {} unreadable, for ever; if that is meant, add --yes", args.url);
    }
    let Some(path) = args.new_key.take() else { return format(&args) };
    super::key::make(&path, KeyPurpose::Volume)?;
    let made = format!("{} was made all the same; the next time: --key-file {}", path.display(), path.display());
    args.access.key_file = Some(path);
    format(&args).context(made)
}

fn format(args: &FormatArgs) -> Result<()> {
    args.access.forget_if_asked(&args.url)?;
    // Before the key file is changed.
    let confirmation = args.force.ask(&args.access, &args.url)?;
    let was_recorded = args.is_recorded()?;
    let domain = if args.opened_at_target { Domain::Claimed } else { Domain::Formatting };
    let others = if args.access.forget_volume { Others::Forget } else { Others::Refuse };
    args.access.record_volume(&args.url, &[args.url.file_name()], domain, others)?;
    let device = attach_alone(&args.access, &args.url, confirmation, "volume format")
        .and_then(|device| args.check_contents(&device, confirmation).map(|()| device));
    let device = match (device, &args.access.key_file) {
        (Ok(device), _) => device,
        (Err(error), Some(path)) if !was_recorded => {
            // It may be the wrong one.
            volume_records::forget(path, args.url.file_name())?;
            return Err(error);
        }
        (Err(error), _) => return Err(error),
    };
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

/// A command that destroys everything needs the volume to itself, or takes it from all others, if that was confirmed.
pub(super) fn attach_alone(
    access: &AccessArgs,
    url: &VolumeUrl,
    confirmation: Confirmation,
    purpose: &str,
) -> Result<Arc<RemoteDevice>> {
    let mut options = access.options(url)?;
    options.lease = writer::lease(LeaseMode::Exclusive, purpose);
    match confirmation {
        Confirmation::NotForced => options.lease.sole = true,
        Confirmation::Given => options.lease.take_over = true,
    }
    let way_out =
        WayOut::of("to go on all the same, and destroy what is used there: --force, which asks for their names");
    access.attach_with(options, way_out)
}

impl FormatArgs {
    fn is_recorded(&self) -> Result<bool> {
        match &self.access.key_file {
            Some(path) => Ok(volume_records::is_recorded(path, self.url.file_name())?),
            None => Ok(false),
        }
    }

    /// Whether what is on the volume may go.
    fn check_contents(&self, device: &RemoteDevice, confirmation: Confirmation) -> Result<()> {
        if confirmation == Confirmation::Given {
            return Ok(());
        }
        let url = &self.url;
        match device.contents().with_context(|| format!("cannot look at what is on {url}"))? {
            VolumeContents::Empty => Ok(()),
            VolumeContents::Opens | VolumeContents::KeysDestroyed if self.reformat => Ok(()),
            VolumeContents::KeysDestroyed => {
                bail!("{url} is formatted, and its keys are destroyed: nothing on it opens any more; add --reformat")
            }
            VolumeContents::Opens => bail!(
                "{url} is formatted already, and this key opens what is on it; if all of that is to go, for ever, add --reformat"
            ),
            VolumeContents::DoesNotOpen => bail!(
                "{url} is formatted already, and this key does not open it: give the one that it was formatted with. If that is lost, so is \
                 everything on the volume; then, on the target's machine: strongroom volume erase {} --yes; or, from here: --force",
                url.file_name()
            ),
        }
    }
}
