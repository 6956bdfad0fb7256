//! `strongroom volume check`: reads what a volume's store holds against its checksums. Absent: whether sealed blocks open.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::store::{read_all, report_as_json};
use crate::progress::ProgressArgs;
use crate::root_args::RootArgs;

/// Read everything that a volume's store holds and check it against its checksums. Nothing is changed.
#[derive(Args)]
#[command(after_help = "Example: strongroom volume check vault --root /srv/strongroom\n\n\
        Nobody may use the volume meanwhile. Whether a sealed block opens can be told only by who has its key.")]
pub(crate) struct CheckArgs {
    /// The volume's name.
    name: String,
    #[command(flatten)]
    progress: ProgressArgs,
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
    let report = read_all(&store, args.progress).with_context(|| format!("cannot check '{}'", args.name))?;
    if args.progress.is_json() {
        println!("{:#}", report_as_json(&report));
        ensure!(report.is_sound(), "'{}' is damaged", args.name);
        return Ok(());
    }
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
