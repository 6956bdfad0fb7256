//! `strongroom volume recover`: brings back the newest version of a block that still opens. Explicit, and logged.

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::json;
use strongroom_block::Lba;
use strongroom_initiator::{LeaseMode, Recovered, RemoteDevice, VolumeUrl, WriterRole, writers};

use crate::access::AccessArgs;
use crate::progress::{ProgressArgs, ProgressReporter, ProgressUnit};
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
    progress: ProgressArgs,
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
    let progress = args.progress.begin("recovering", ProgressUnit::Blocks, Some(args.count));
    let mut blocks = Vec::new();
    let outcome = (args.lba..end).try_for_each(|lba| {
        blocks.push(args.recover(&device, lba, &progress)?);
        progress.set_position(lba + 1 - args.lba);
        Ok::<_, anyhow::Error>(())
    });
    progress.finish();
    // Also those before one that was not recovered: they have changed.
    args.progress.print_result(&json!({ "blocks": blocks }), || {});
    outcome?;
    device.detach()?;
    Ok(())
}

impl RecoverArgs {
    /// Recovers one block, and tells people what became of it; returns that for programs.
    fn recover(&self, device: &RemoteDevice, lba: u64, progress: &ProgressReporter) -> Result<serde_json::Value> {
        let recovered = device.recover(Lba(lba), self.accept_absence);
        let (words, result) = match recovered.with_context(|| format!("block {lba} was not recovered"))? {
            Recovered::NothingToDo { .. } => (
                format!("block {lba}: its newest version opens; nothing was changed"),
                json!({ "lba": lba, "result": "unchanged" }),
            ),
            Recovered::WroteBack { sequence, bad_versions, was_absent } => {
                let what = if was_absent { "absent then, so it reads as zeros" } else { "which opens" };
                tracing::warn!(lba, version = sequence.0, bad_versions, url = %self.url, "an older version was written back");
                let versions = if bad_versions == 1 { "version" } else { "versions" };
                let are = if bad_versions == 1 { "is" } else { "are" };
                (
                    format!(
                        "block {lba}: {bad_versions} newer {versions} did not open and {are} given up; version {sequence} ({what}) is back"
                    ),
                    json!({
                        "lba": lba, "result": "wrote_back", "version": sequence.0, "given_up_versions": bad_versions,
                        "was_absent": was_absent,
                    }),
                )
            }
        };
        if !self.progress.is_json() {
            progress.suspend(|| println!("{words}"));
        }
        Ok(result)
    }
}
