//! `strongroom volume recover`: brings back the newest version of a block that still opens. Explicit, and logged.

use anyhow::{Context, Result, bail};
use clap::Args;
use strongroom_block::Lba;
use strongroom_initiator::{LeaseMode, Recovered, VolumeUrl, WriterRole, writers};

use crate::access::AccessArgs;
use crate::writer;

/// Most blocks of one call: a recovery is for damage that a person knows of.
const BLOCKS_MAX: u64 = 1 << 20;

/// Bring back the previous version of a block that no longer opens. What was written last to it is given up.
#[derive(Args)]
#[command(
    after_help = "Example: strongroom volume recover strongroom://storage/vault --lba 1234 --key-file ~/vault.key --yes\n\n\
    The number is in the error that the reader logged. Detach other initiators first, and check what uses the block \
    afterwards: it is older than what is around it."
)]
pub(crate) struct RecoverArgs {
    /// The volume.
    url: VolumeUrl,
    /// The block's number, as the error named it.
    #[arg(long, value_name = "NUMBER")]
    lba: u64,
    /// How many blocks, starting there.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=BLOCKS_MAX))]
    count: u64,
    /// If the block was absent before what does not open, let it read as zeros.
    #[arg(long)]
    accept_absence: bool,
    /// Really write an older version back.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    access: AccessArgs,
}

/// Runs the command.
pub(crate) fn run(args: &RecoverArgs) -> Result<()> {
    if !args.yes {
        bail!(
            "this replaces the newest version of a block that does not open by an older one; if that is meant, add --yes"
        );
    }
    let end = args.lba.checked_add(args.count).context("that is past the end of every volume")?;
    let mut options = args.access.options(&args.url)?;
    // Beside a writer each block is only replaced if it is still what was read. What the target itself cannot read takes more.
    let others = writers(options.clone()).with_context(|| format!("cannot ask who uses {}", args.url))?;
    let is_alone = !others.iter().any(|writer| matches!(writer.role, WriterRole::Holder(_)));
    let mode = if is_alone { LeaseMode::Exclusive } else { LeaseMode::Maintenance };
    options.lease = writer::lease(mode, "volume recover");
    let device = args.access.attach(options)?;
    for lba in args.lba..end {
        match device.recover(Lba(lba), args.accept_absence).with_context(|| format!("block {lba} was not recovered"))? {
            Recovered::NothingToDo { .. } => println!("block {lba}: its newest version opens; nothing was changed"),
            Recovered::WroteBack { sequence, bad_versions, was_absent } => {
                let what = if was_absent { "absent then, so it reads as zeros" } else { "which opens" };
                tracing::warn!(lba, version = sequence.0, bad_versions, url = %args.url, "an older version was written back");
                println!(
                    "block {lba}: {bad_versions} newer {} did not open and {} given up; version {sequence} ({what}) is back",
                    if bad_versions == 1 { "version" } else { "versions" },
                    if bad_versions == 1 { "is" } else { "are" },
                );
            }
        }
    }
    device.detach()?;
    Ok(())
}
