//! `profile`: the CPU time of an I/O by stage, at both ends. A cell of `rawio` that is looked at by perf while it warms up.
//!
//! The CPU time and the I/Os are those of the measurement proper, in which nobody looks; what the looks add are shares of it.

mod perf;
pub(crate) mod shares;
pub mod stages;
mod symbols;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use crate::rawio::{self, Ends, RawioPlan};
use crate::schedule::Watch;
use crate::{BenchError, Cell, Contender, Placement};
use perf::Sample;
use shares::{CellProfile, EndProfile};
use stages::{Kind, Stage, classify};
use symbols::Symbols;

/// The name in results.
pub const BENCH_PROFILE: &str = "profile";
/// How many files and functions are kept of each end.
const PLACES_MAX: usize = 60;
/// Fewer system calls than this for each I/O are not worth a word.
const SYSTEM_CALLS_MIN: f64 = 0.005;

/// What to look at, and for how long.
#[derive(Debug)]
pub struct ProfilePlan {
    /// The grid, with its measurements.
    pub rawio: RawioPlan,
    /// How long perf samples each cell.
    pub look: Duration,
    /// How long it counts system calls.
    pub count: Duration,
    /// Programs of which both ends are processes: this one, or several releases.
    pub binaries: Vec<PathBuf>,
    /// Where samples go; nothing is left there.
    pub directory: PathBuf,
}

/// Holds that perf is there, before anything is started.
///
/// # Errors
/// [`BenchError::Asked`], which says what to install.
pub fn check() -> Result<(), BenchError> {
    perf::check()
}

/// Measures all of it, as [`rawio::run`] does.
///
/// # Errors
/// As [`rawio::run`]; a cell that perf could not look at is one that failed.
pub fn run(plan: &ProfilePlan, contenders: &mut [Box<dyn Contender>], watch: &mut dyn Watch) -> Result<(), BenchError> {
    let mut profiler = Profiler { plan, symbols: Symbols::open(&plan.binaries)? };
    rawio::run_with(&plan.rawio, contenders, watch, |contender, point, cell, watch| {
        let mut looks = None;
        let mut measured = rawio::measure_and(&plan.rawio, contender, point, cell, watch, |ends| {
            looks = Some(profiler.look(ends)?);
            Ok(())
        })?;
        if let (None, Some(looks)) = (&measured.error, looks) {
            measured.profile = Some(Box::new(looks.of(&measured)));
        }
        Ok(measured)
    })
}

/// What looks at the ends of a cell.
struct Profiler<'a> {
    plan: &'a ProfilePlan,
    symbols: Symbols,
}

/// What was seen of both ends.
struct Looks {
    target: Look,
    initiator: Look,
}

/// What was seen of one end: samples by what they count to, and system calls a second.
#[derive(Default)]
struct Look {
    samples: u64,
    stages: BTreeMap<Stage, u64>,
    kinds: BTreeMap<Kind, u64>,
    places: HashMap<String, u64>,
    functions: HashMap<String, u64>,
    system_calls: Option<Vec<(String, f64)>>,
}

impl Profiler<'_> {
    fn look(&mut self, ends: Ends<'_>) -> Result<Looks, BenchError> {
        let file = self.plan.directory.join("perf.data");
        let placement = self.plan.rawio.placement.clone().unwrap_or_else(Placement::usual);
        let mut cpus = [placement.target, placement.initiators].concat();
        cpus.sort_unstable();
        cpus.dedup();
        perf::record(&cpus, self.plan.look, &file)?;
        let pids = [ends.target, ends.initiators].concat();
        let samples = perf::samples(&file, &pids);
        let _ = std::fs::remove_file(&file);
        let (mut target, mut initiator) = (Look::default(), Look::default());
        for sample in samples? {
            let look = if ends.target.contains(&sample.pid) { &mut target } else { &mut initiator };
            look.add(&sample, &mut self.symbols);
        }
        for (look, pids) in [(&mut target, ends.target), (&mut initiator, ends.initiators)] {
            look.system_calls = perf::system_calls(pids, self.plan.count);
        }
        Ok(Looks { target, initiator })
    }
}

impl Looks {
    /// What that means for the I/Os of the measurement that followed.
    fn of(&self, cell: &Cell) -> CellProfile {
        let iops = cell.throughput.iops.unwrap_or(0.0);
        // Milliseconds for 1000 I/Os are microseconds for each.
        CellProfile {
            target: self.target.of(cell.cpu.target_cpu_ms_per_kio.unwrap_or(0.0), iops),
            initiator: self.initiator.of(cell.cpu.initiator_cpu_ms_per_kio.unwrap_or(0.0), iops),
        }
    }
}

impl Look {
    fn add(&mut self, sample: &Sample, symbols: &mut Symbols) {
        let verdict = classify(&symbols.frames(&sample.chain));
        self.samples += 1;
        *self.stages.entry(verdict.stage).or_default() += 1;
        if let Some(kind) = verdict.kind {
            *self.kinds.entry(kind).or_default() += 1;
        }
        *self.places.entry(verdict.place).or_default() += 1;
        if let Some(innermost) = sample.chain.first() {
            let mark = if innermost.is_kernel() { "[k] " } else { "" };
            *self.functions.entry(format!("{mark}{}", innermost.symbol)).or_default() += 1;
        }
    }

    fn of(&self, us_per_io: f64, iops: f64) -> EndProfile {
        let us = |samples: &u64| *samples as f64 / self.samples.max(1) as f64 * us_per_io;
        let largest = |counts: &HashMap<String, u64>| {
            let mut sorted: Vec<_> = counts.iter().collect();
            sorted.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
            sorted.into_iter().take(PLACES_MAX).map(|(name, count)| (name.clone(), us(count))).collect()
        };
        let per_io = |(name, per_s): &(String, f64)| {
            let calls = per_s / iops;
            (calls >= SYSTEM_CALLS_MIN && calls.is_finite()).then(|| (name.clone(), calls))
        };
        EndProfile {
            samples: self.samples,
            stages_us: self.stages.iter().map(|(stage, count)| (stage.name().to_owned(), us(count))).collect(),
            of_which_us: self.kinds.iter().map(|(kind, count)| (kind.name().to_owned(), us(count))).collect(),
            places_us: largest(&self.places),
            functions_us: largest(&self.functions),
            system_calls: self.system_calls.as_ref().map(|calls| calls.iter().filter_map(per_io).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_samples_become_microseconds_of_an_io() {
        let mut look = Look { samples: 4, ..Look::default() };
        look.stages.extend([(Stage::Seal, 3), (Stage::Socket, 1)]);
        look.kinds.insert(Kind::Copying, 2);
        look.places.extend([("seal/src/aead.rs".to_owned(), 3), ("tcp_sendmsg".to_owned(), 1)]);
        look.system_calls = Some(vec![("futex".into(), 500.0), ("mmap".into(), 1.0)]);
        let end = look.of(8.0, 1000.0);
        assert_eq!(end.stages_us, BTreeMap::from([("seal, open".into(), 6.0), ("socket (kernel)".into(), 2.0)]));
        assert_eq!(end.of_which_us, BTreeMap::from([("copying".into(), 4.0)]));
        assert_eq!(end.places_us["seal/src/aead.rs"], 6.0);
        assert_eq!(end.system_calls, Some(BTreeMap::from([("futex".into(), 0.5)])), "one in a thousand is none");
        assert_eq!(Look::default().of(8.0, 0.0).system_calls, None);
    }
}
