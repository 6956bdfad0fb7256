//! `strongroom volume check`: reads what a volume's store holds against its checksums. Absent: whether sealed blocks open.

use crate::root_args::RootArgs;
use anyhow::{Context, Result, bail};
use clap::Args;
use strongroom_store::CheckReport;

/// Read everything that a volume's store holds and check it against its checksums. Nothing is changed.
#[derive(Args)]
#[command(after_help = "Example: strongroom volume check vault --root /srv/strongroom\n\n\
        Nobody may use the volume meanwhile. Whether a sealed block opens can be told only by who has its key.")]
pub(crate) struct CheckArgs {
    /// The volume's name.
    name: String,
    #[command(flatten)]
    target: RootArgs,
}

/// Runs the command.
pub(crate) fn check(args: &CheckArgs) -> Result<()> {
    let catalogue = args.target.open()?;
    let volume = catalogue.show(&args.name)?.volume;
    let store = catalogue.root().join(volume.name.as_str()).join("store");
    if !volume.medium.is_durable() {
        bail!("'{}' lies in memory: while no target serves it there is nothing to check", args.name);
    }
    if let Some(clone) = &volume.clone_of {
        bail!("'{}' is a clone, its blocks lie in the store of '{}'; check that", args.name, clone.volume);
    }
    let bar = super::store::progress_bar(false);
    let report = CheckReport::of(&store, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let report = report.with_context(|| format!("cannot check '{}'", args.name))?;
    if let Some(why) = &report.unopenable {
        bail!("'{}' does not open: {why}. All that is damaged: strongroom store check {}", args.name, store.display());
    }
    println!(
        "'{}': {} blocks, {} older versions and {} holes were read",
        args.name, report.blocks, report.versions, report.holes
    );
    if report.is_sound() {
        println!("all are as they were written");
        return Ok(());
    }
    for problem in &report.problems {
        println!("{problem}");
    }
    bail!(
        "{} blocks and {} older versions are damaged; for a sealed volume an initiator can bring an older version of a \
         block back (strongroom volume recover URL --lba N), else restore them from a backup",
        report.bad_blocks.len(),
        report.bad_versions.len()
    );
}
