//! `strongroom volume prepare`: makes a sealed volume usable with a key, new or not, for programs that do not know whether it is new: the
//! CSI driver (`docs/csi.md`). It can be repeated.
//!
//! Absent: anything that makes data absent. What is formatted stays; what does not open is refused.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use strongroom_block::Lba;
use strongroom_initiator::{LeaseMode, RemoteDevice, VolumeContents, VolumeUrl, unsealed_part};
use strongroom_keyfiles::volume_records::{Domain, Others};

use crate::access::AccessArgs;
use crate::units::show_size;
use crate::writer;

/// Make a sealed volume usable with this key: format it if it is new, seal what it grew by. Data stays; can be repeated.
///
/// A key file is made to record the volume, so that any copy of the file will do, for instance one from a secret store.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom volume prepare strongroom://storage/vault --key-file ~/vault.key\n  \
    strongroom volume prepare strongroom://storage/twin --sealed-as vault --key-file ~/vault.key\n\n\
    For programs. By hand `volume format` and `volume grow --from SIZE` are better: they do not ask the target what is there.")]
pub(crate) struct PrepareArgs {
    /// The volume.
    url: VolumeUrl,
    /// It is a clone, and shares the blocks of the volume of this name, which was sealed with the same key.
    #[arg(long, value_name = "NAME")]
    sealed_as: Option<String>,
    /// It is to be read only: write nothing to it, and refuse one that is not formatted.
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    access: AccessArgs,
}

/// Runs the command.
pub(crate) fn run(args: &PrepareArgs) -> Result<()> {
    let url = &args.url;
    // The domain is drawn for the last name.
    let names: Vec<&str> = std::iter::once(url.file_name()).chain(args.sealed_as.as_deref()).collect();
    args.access.record_volume(url, &names, Domain::Drawn, Others::Refuse)?;
    // What is usable already is only looked at: others may use it.
    let device = args.attach(LeaseMode::Reader)?;
    let needs = Needs::of(&device, url)?;
    let bytes = device.unit().geometry.bytes();
    device.detach()?;
    match needs {
        Needs::Nothing => {}
        _ if args.read_only => bail!("{url} is new or has grown, and is to be read only: write to it first"),
        _ => {
            let device = args.attach(LeaseMode::Exclusive)?;
            // As it is now: another node may have been faster.
            Needs::of(&device, url)?.fulfil(&device, url)?;
            device.detach()?;
        }
    }
    println!("{url} is usable: {}", show_size(bytes));
    Ok(())
}

impl PrepareArgs {
    fn attach(&self, mode: LeaseMode) -> Result<Arc<RemoteDevice>> {
        let mut options = self.access.options(&self.url)?;
        options.read_only = mode == LeaseMode::Reader;
        options.lease = writer::lease(mode, "volume prepare");
        self.access.attach(options)
    }
}

/// What a volume needs to be usable.
enum Needs {
    Nothing,
    /// It is new.
    Format,
    /// It has grown from there.
    Seal(Lba),
}

impl Needs {
    fn of(device: &RemoteDevice, url: &VolumeUrl) -> Result<Needs> {
        if device.unit().sealed.is_none() {
            return Ok(Needs::Nothing);
        }
        match device.contents().with_context(|| format!("cannot look at what is on {url}"))? {
            VolumeContents::Empty => Ok(Needs::Format),
            VolumeContents::Opens => {
                let part = unsealed_part(device).with_context(|| format!("cannot tell from where on {url} grew"))?;
                Ok(part.map_or(Needs::Nothing, Needs::Seal))
            }
            VolumeContents::KeysDestroyed => bail!("the keys of {url} are destroyed: nothing on it opens any more"),
            VolumeContents::DoesNotOpen => {
                bail!("{url} is formatted, and this key does not open it: give the one that it was formatted with")
            }
        }
    }

    fn fulfil(self, device: &RemoteDevice, url: &VolumeUrl) -> Result<()> {
        match self {
            Needs::Nothing => Ok(()),
            Needs::Format => device.format().with_context(|| format!("cannot format {url}")),
            Needs::Seal(from) => device.format_grown(from).with_context(|| format!("cannot grow {url}")),
        }
    }
}
