//! `ecl`: the transport ECL beside iSCSI over TCP, both ends in network namespaces of their own. What was asked of ECL, the quanta paper's
//! Figures 5 to 10, queues of every depth, and packets that are late or lost.
//!
//! An experiment is one or more series; a series starts its contenders once and measures them by turns, over one path after the other
//! (`series`, `path`). Absent: how a cell is measured (`rawio`), and what the results say (`report`).

pub(crate) mod ethernet;
mod files;
mod flood;
mod local_disk;
mod path;
mod series;
mod shared_link;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::cell::CellKey;
use crate::cpu::Placement;
use crate::rawio;
use crate::schedule::Watch;
use crate::{BenchError, Cell};
use flood::FloodSite;
use path::NetworkPath;
use series::{Company, Series, Trial};

pub use ethernet::substitute_if_asked;
pub(crate) use flood::DISCARDED;
pub use flood::{discard, flood};
pub(crate) use series::{IN_FRAMES, lossy_rate};

/// One of the experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EclExperiment {
    /// The figures that were asked for and need no loss.
    Goals,
    /// The quanta paper's Figures 6 to 10: throughput over the length of packets and quanta.
    Figures,
    /// 4 KiB I/Os at depth 1 to 128.
    Depths,
    /// Packets that are lost, at several round trips, and a long link.
    Loss,
    /// Beside a TCP connection, and several initiators at once, through one bottleneck.
    Fairness,
    /// While the target's UDP port is flooded.
    Flood,
    /// bonnie++ on a file system on each, and on the local disk: the quanta paper's Figure 5.
    Files,
    /// Everything that is read compared with what was written.
    Verify,
}

impl EclExperiment {
    /// All of them, in the order in which they run.
    pub const ALL: [EclExperiment; 8] = [
        EclExperiment::Goals,
        EclExperiment::Figures,
        EclExperiment::Depths,
        EclExperiment::Loss,
        EclExperiment::Fairness,
        EclExperiment::Flood,
        EclExperiment::Files,
        EclExperiment::Verify,
    ];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            EclExperiment::Goals => "goals",
            EclExperiment::Figures => "figures",
            EclExperiment::Depths => "depths",
            EclExperiment::Loss => "loss",
            EclExperiment::Fairness => "fairness",
            EclExperiment::Flood => "flood",
            EclExperiment::Files => "files",
            EclExperiment::Verify => "verify",
        }
    }
}

impl fmt::Display for EclExperiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EclExperiment {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<EclExperiment, BenchError> {
        EclExperiment::ALL.into_iter().find(|experiment| experiment.name() == text).ok_or_else(|| {
            let names = EclExperiment::ALL.map(EclExperiment::name).join(", ");
            BenchError::Asked(format!("'{text}' is no experiment about ECL; choose from {names}"))
        })
    }
}

/// What to measure, and for how long.
#[derive(Clone, Debug)]
pub struct EclPlan {
    /// Which experiments.
    pub experiments: Vec<EclExperiment>,
    /// This program.
    pub lab_binary: PathBuf,
    /// Where to work; must exist.
    pub directory: PathBuf,
    /// The same on a disk, for the stores of volumes with file systems.
    pub disk_directory: PathBuf,
    /// Who runs where.
    pub placement: Placement,
    /// Repetitions; experiments with many cells have half as many.
    pub runs: u32,
    /// How long each measurement lasts; several times as long where few I/Os fit into it.
    pub time: Duration,
    /// How long I/O runs before it.
    pub warm_up: Duration,
    /// Bytes of each volume.
    pub volume_bytes: u64,
    /// How often each is written before the first measurement.
    pub fills: u32,
}

/// Holds that both ends can have namespaces of their own, before anything is started.
///
/// # Errors
/// [`BenchError::Asked`], which says what is missing.
pub fn check() -> Result<(), BenchError> {
    if !rustix::process::geteuid().is_root() {
        return Err(BenchError::Asked(
            "the experiments about ECL put both ends into network namespaces, which takes root; without root \
             `strongroom-lab rawio --schemes S2-5,ECL-S2-5` compares them over loopback"
                .into(),
        ));
    }
    for (program, package) in [("ip", "iproute2"), ("ethtool", "ethtool")] {
        if !crate::programs::is_installed(program) {
            return Err(BenchError::Asked(format!(
                "there is no {program}; install it with scripts/deps.sh --bench (Debian: {package})"
            )));
        }
    }
    Ok(())
}

/// Measures all of it. A cell that fails is kept as one that failed, and so is a series that cannot be started; the others go on.
///
/// # Errors
/// [`BenchError::Asked`] for what cannot be here, [`BenchError::Stopped`], or what the watcher says.
pub fn run(plan: &EclPlan, watch: &mut dyn Watch) -> Result<(), BenchError> {
    check()?;
    let all: Vec<Series> = plan.experiments.iter().flat_map(|experiment| series::of(*experiment)).collect();
    let total = all.iter().map(|series| series.steps(plan)).sum();
    let mut progress = Progress { done: 0, total, begun: Instant::now() };
    for series in &all {
        let outcome = run_series(plan, series, &mut progress, watch);
        keep_failed(series.bench, outcome, watch)?;
    }
    if plan.experiments.contains(&EclExperiment::Files) {
        let outcome = files::run(plan, watch);
        keep_failed(files::BENCH, outcome, watch)?;
    }
    Ok(())
}

/// A series that failed becomes a cell that says so.
fn keep_failed(bench: &str, outcome: Result<(), BenchError>, watch: &mut dyn Watch) -> Result<(), BenchError> {
    match outcome {
        Err(error) if !matches!(error, BenchError::Stopped) => {
            let key = CellKey { bench: bench.to_owned(), contender: "all".into(), ..CellKey::default() };
            watch.cell(&Cell::empty(key).failed(error))
        }
        stopped_or_done => stopped_or_done,
    }
}

fn run_series(
    plan: &EclPlan,
    series: &Series,
    progress: &mut Progress,
    watch: &mut dyn Watch,
) -> Result<(), BenchError> {
    let after = progress.done + series.steps(plan);
    // Before the contenders: they end first.
    let path = NetworkPath::open(&series.trials[0].path)?;
    let hosts = path.hosts();
    let mut contenders = series.start(plan, &hosts)?;
    for trial in &series.trials {
        path.change(&trial.path)?;
        contenders.iter_mut().for_each(|contender| contender.reconnect());
        let rawio = series.rawio(plan, trial);
        let mut watch = TrialWatch { watch: &mut *watch, trial, progress: &*progress };
        match (&path, series.company) {
            (NetworkPath::Link(lab), Company::TcpConnection) => {
                shared_link::run(&rawio, lab, &mut contenders, &mut watch)?;
            }
            (_, Company::Flood) => {
                let EclPlan { lab_binary, directory, placement, .. } = plan;
                let site = FloodSite { lab_binary, directory, placement, hosts: &hosts };
                flood::run(&rawio, &site, &mut contenders, &mut watch)?;
            }
            _ => rawio::run(&rawio, &mut contenders, &mut watch)?,
        }
        if series.is_beside_disk {
            local_disk::run(&rawio, plan, contenders.len(), &mut watch)?;
        }
        progress.done += series.steps_of(plan, trial);
    }
    progress.done = after;
    Ok(())
}

/// How many measurements of all series are made.
struct Progress {
    done: usize,
    total: usize,
    begun: Instant,
}

/// Passes on what a trial measures, with the path that it was measured over.
struct TrialWatch<'a> {
    watch: &'a mut dyn Watch,
    trial: &'a Trial,
    progress: &'a Progress,
}

impl Watch for TrialWatch<'_> {
    fn step(&mut self, done: usize, _total: usize, _left: Option<Duration>, what: &str) {
        let Progress { done: before, total, begun } = *self.progress;
        let done = before + done;
        let left = (done > 0).then(|| begun.elapsed().mul_f64(total.saturating_sub(done) as f64 / done as f64));
        self.watch.step(done, total, left, &format!("{what}{}", self.trial.in_words()));
    }

    fn cell(&mut self, cell: &Cell) -> Result<(), BenchError> {
        let mut cell = cell.clone();
        self.trial.describe(&mut cell);
        self.watch.cell(&cell)
    }

    fn is_stopped(&self) -> bool {
        self.watch.is_stopped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_are_found_by_their_names() {
        for experiment in EclExperiment::ALL {
            assert_eq!(experiment.to_string().parse::<EclExperiment>().unwrap(), experiment);
            assert_eq!(series::of(experiment).is_empty(), experiment == EclExperiment::Files);
            for series in series::of(experiment) {
                assert!(series.bench.starts_with("ecl-") && !series.trials.is_empty(), "{}", series.bench);
                series.trials.iter().for_each(|trial| trial.grid.check().unwrap());
            }
        }
        let error = "goal".parse::<EclExperiment>().unwrap_err().to_string();
        assert!(error.contains("goals, figures"), "{error}");
    }
}
