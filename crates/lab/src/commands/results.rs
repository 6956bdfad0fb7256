//! What every experiment of `strongroom-lab` takes and leaves: where results go, and how it ends.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use strongroom_lab::{BenchError, Machine, Placement, report};

use super::PlacementArgs;
use super::progress::Progress;
use super::site::Site;

/// Where to work and where results go.
#[derive(Args, Clone, Debug)]
pub(super) struct ResultsArgs {
    /// Write one JSON object for each cell and run to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Add to that file instead of replacing it.
    #[arg(long, requires = "json")]
    append: bool,
    /// Where to work; disk-backed volumes are there.
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    /// No progress bar, and no table at the end.
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    placement: PlacementArgs,
}

impl ResultsArgs {
    /// Which processors.
    pub(super) fn placement(&self) -> Result<Placement> {
        self.placement.placement()
    }

    /// Which processors, if any were chosen.
    pub(super) fn placement_unless_unpinned(&self) -> Result<Placement> {
        self.placement.placement_unless_unpinned()
    }

    /// A progress bar that keeps results.
    pub(super) fn progress(&self, mut machine: Machine, placement: &Placement) -> Result<Progress> {
        machine.pinning = placement.in_words();
        Progress::new(self.json.as_deref(), self.append, machine, self.quiet)
    }

    /// Shows what came out, and says how it went.
    pub(super) fn conclude(&self, progress: Progress, outcome: Result<(), BenchError>) -> Result<()> {
        conclude(self.quiet, progress, outcome)
    }

    /// A directory to work in: the person's, or `usual`.
    pub(super) fn site(&self, usual: Option<&Path>) -> Result<Site> {
        Site::new(self.work_dir.as_deref().or(usual))
    }
}

/// A length of time that a person gave in seconds.
pub(super) fn seconds(seconds: f64, what: &str) -> Result<Duration> {
    if !(0.0..=3600.0).contains(&seconds) {
        bail!("{what} of {seconds} seconds is not possible; give 0 to 3600");
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Ends the progress bar, shows what came out, and says how it went.
pub(super) fn conclude(quiet: bool, progress: Progress, outcome: Result<(), BenchError>) -> Result<()> {
    let results = progress.finish();
    if !quiet && !results.cells.is_empty() {
        print!("{}", report::tables(&results));
    }
    match outcome {
        Ok(()) => {}
        Err(BenchError::Stopped) => eprintln!("{}", BenchError::Stopped),
        Err(error) => return Err(error.into()),
    }
    let failed = results.cells.iter().filter(|cell| cell.error.is_some()).count();
    if failed > 0 {
        bail!("{failed} of {} cells failed; they are in the results as such, with the reason", results.cells.len());
    }
    Ok(())
}
