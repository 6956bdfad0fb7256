//! `rawio`: the lazy-crypto paper's Figure 6. Sequential and random reads and writes of every size, depth and number of
//! initiators, through every contender, interleaved.

use std::time::{Duration, Instant};

use crate::cell::{CellKey, CryptoPerByte, ProgramAccess, Throughput};
use crate::cpu::Placement;
use crate::protocol::{IoJob, Outcome, ProratedCounts};
use crate::schedule::{MeasurementStep, Watch, interleaved, measure_all, pause};
use crate::{BenchError, Cell, Contender, Grid, Identity, InitiatorProcess, Latencies, Point, TargetWork, Window};
use strongroom::units::long_size;

/// How long to wait at most for targets to finish what they do in the background (cleaning) before a measurement.
const SETTLE_MAX: Duration = Duration::from_secs(3);
/// A target that uses less than this share of a processor is at rest.
const SETTLED: f64 = 0.03;
/// A measurement that ends so soon says nothing.
const MEASURED_MIN: Duration = Duration::from_millis(20);
/// How often it is looked whether initiators run out of what they sealed beforehand.
const SPENT_LOOK: Duration = Duration::from_millis(2);
/// How long to look.
const SETTLE_LOOK: Duration = Duration::from_millis(60);

/// What to measure, and for how long.
#[derive(Clone, Debug)]
pub struct RawioPlan {
    /// The name in results: `rawio`, or that of the experiment that uses this grid.
    pub bench: String,
    /// The combinations.
    pub grid: Grid,
    /// Repetitions.
    pub runs: u32,
    /// How long each measurement lasts.
    pub time: Duration,
    /// How long I/O runs before it.
    pub warm_up: Duration,
    /// Compare data.
    pub verify: bool,
    /// I/Os may be smaller than what is sealed as one.
    pub parts: bool,
    /// Initiators together seal this many bytes of writes before each measurement, and open nothing in it; a measurement ends early when
    /// these are used up. `None`: they seal and open as they go.
    pub sealed_beforehand_bytes: Option<u64>,
    /// I/Os that each initiator begins in a second; 0: as many as complete.
    pub rate: u32,
    /// I/Os count with the share of their time that lies in the measurement ([`ProratedCounts`]), not when they complete.
    pub is_prorated: bool,
    /// Who runs where; `None`: not ours to say.
    pub placement: Option<Placement>,
}

/// Measures all of it. A cell that fails is kept as one that failed.
///
/// # Errors
/// [`BenchError::Asked`] for a grid that cannot be, [`BenchError::Stopped`], or what the watcher says.
pub fn run(plan: &RawioPlan, contenders: &mut [Box<dyn Contender>], watch: &mut dyn Watch) -> Result<(), BenchError> {
    run_with(plan, contenders, watch, |contender, point, cell, watch| measure(plan, contender, point, cell, watch))
}

/// The same, with each measurement made by `measure`, which is given an empty cell.
pub(crate) fn run_with(
    plan: &RawioPlan,
    contenders: &mut [Box<dyn Contender>],
    watch: &mut dyn Watch,
    mut measure: impl FnMut(&mut dyn Contender, Point, Cell, &dyn Watch) -> Result<Cell, BenchError>,
) -> Result<(), BenchError> {
    plan.grid.check()?;
    let points = plan.grid.points();
    let names: Vec<String> = contenders.iter().map(|contender| contender.identity().contender.clone()).collect();
    let steps = interleaved(points.len(), contenders.len(), plan.runs);
    let name = |step: &MeasurementStep| format!("{}: {}", names[step.contender], in_words(points[step.point]));
    measure_all(
        &steps,
        watch,
        name,
        |_| 1.0,
        |step, watch| {
            settle(contenders, watch)?;
            let point = points[step.point];
            let contender = &mut *contenders[step.contender];
            let empty = empty_cell(plan, contender, point, step.run);
            empty.clone().or_failed(measure(contender, point, empty, watch))
        },
    )
}

/// `4 KiB randread, depth 16, 1 initiator`.
pub(crate) fn in_words(point: Point) -> String {
    let plural = if point.initiators == 1 { "" } else { "s" };
    let Point { pattern, size, depth, initiators } = point;
    format!("{} {pattern}, depth {depth}, {initiators} initiator{plural}", long_size(size))
}

pub(crate) fn empty_cell(plan: &RawioPlan, contender: &dyn Contender, point: Point, run: u32) -> Cell {
    empty_cell_of(plan, contender.identity(), point, run)
}

/// The same of a contender that is not there yet.
pub(crate) fn empty_cell_of(plan: &RawioPlan, identity: &Identity, point: Point, run: u32) -> Cell {
    let access = ProgramAccess { release: identity.release.clone(), ..ProgramAccess::default() };
    let key = CellKey {
        bench: plan.bench.clone(),
        contender: identity.contender.clone(),
        scheme: identity.scheme.clone(),
        row: identity.row.clone(),
        process: identity.process.clone(),
        target_process: identity.target_process.clone(),
        target_quota_percent: identity.target_quota_percent,
        medium: identity.medium.clone(),
        pattern: point.pattern.name().into(),
        size: point.size,
        depth: point.depth,
        initiators: point.initiators,
        run,
        ..CellKey::default()
    };
    Cell { access, ..Cell::empty(key) }
}

/// Waits until no target works on what an earlier measurement left it, but not for ever.
pub(crate) fn settle(contenders: &[Box<dyn Contender>], watch: &dyn Watch) -> Result<(), BenchError> {
    let pids: Vec<u32> = contenders.iter().flat_map(|contender| contender.target_pids()).collect();
    settle_processes(&pids, watch)
}

/// The same by the targets' processes.
pub(crate) fn settle_processes(pids: &[u32], watch: &dyn Watch) -> Result<(), BenchError> {
    let begun = Instant::now();
    // A target that has ended is found out, and told, by its next measurement.
    while let Ok(window) = Window::open(pids, &[], None) {
        if pids.is_empty() || begun.elapsed() > SETTLE_MAX {
            break;
        }
        pause(SETTLE_LOOK, watch)?;
        let Ok(used) = window.close() else { break };
        if used.target_cpu_s.unwrap_or(0.0) / used.wall_s < SETTLED {
            break;
        }
    }
    Ok(())
}

/// The processes of both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends<'a> {
    pub(crate) target: &'a [u32],
    pub(crate) initiators: &'a [u32],
}

/// One measurement: start all initiators, warm up, count for a while, stop.
pub(crate) fn measure(
    plan: &RawioPlan,
    contender: &mut dyn Contender,
    point: Point,
    cell: Cell,
    watch: &dyn Watch,
) -> Result<Cell, BenchError> {
    measure_and(plan, contender, point, cell, watch, |_| Ok(()))
}

/// The same, with `look` between the warm-up and the measurement.
pub(crate) fn measure_and(
    plan: &RawioPlan,
    contender: &mut dyn Contender,
    point: Point,
    mut cell: Cell,
    watch: &dyn Watch,
    look: impl FnOnce(Ends<'_>) -> Result<(), BenchError>,
) -> Result<Cell, BenchError> {
    let target_pids = contender.target_pids();
    let side_pids = contender.initiator_side_pids();
    let work_before = contender.target_work();
    let initiators = contender.initiators(point.initiators, point.size)?;
    let initiator_pids: Vec<u32> = initiators.iter().map(InitiatorProcess::pid).chain(side_pids).collect();
    cell.key.suite.clone_from(&initiators[0].volume.suite);

    for (index, job) in jobs(plan, point, initiators[0].volume.bytes, cell.key.run).into_iter().enumerate() {
        initiators[index].begin(job)?;
    }
    if plan.sealed_beforehand_bytes.is_some() {
        initiators.iter_mut().try_for_each(InitiatorProcess::go)?;
    }
    pause(plan.warm_up, watch)?;
    look(Ends { target: &target_pids, initiators: &initiator_pids })?;
    initiators.iter_mut().try_for_each(InitiatorProcess::say_mark)?;
    initiators.iter_mut().try_for_each(InitiatorProcess::wait_marked)?;
    let window = Window::open(&target_pids, &initiator_pids, plan.placement.as_ref())?;
    match plan.sealed_beforehand_bytes {
        Some(_) => pause_unless_spent(plan.time, initiators, watch)?,
        None => pause(plan.time, watch)?,
    }
    let used = window.close()?;
    initiators.iter_mut().try_for_each(InitiatorProcess::say_stop)?;

    let mut totals = Totals::default();
    for initiator in initiators.iter_mut() {
        totals.add(initiator.wait_stopped()?, plan.is_prorated);
    }
    if let Some(problem) = totals.problem(plan) {
        return Ok(cell.failed(problem));
    }
    let mut throughput = Throughput::new(totals.ios, totals.moved.bytes, totals.elapsed_s);
    if plan.is_prorated {
        throughput.iops = Some(totals.moved.bytes as f64 / point.size as f64 / totals.elapsed_s);
    }
    throughput.fairness = totals.fairness();
    cell.set_measured(throughput, &totals.latencies, &used);
    cell.verified = totals.verified;
    let work = work_before.zip(contender.target_work());
    let target_crypto_per_byte = work.and_then(|work| target_crypto_per_byte(work, totals.moved.bytes));
    cell.crypto = CryptoPerByte { target_crypto_per_byte, ..totals.crypto_per_byte() };
    Ok(cell)
}

/// What all initiators of a measurement did together.
struct Totals {
    ios: u64,
    moved: ProratedCounts,
    /// Bytes that each initiator moved.
    shares: Vec<u64>,
    /// Of the initiator that took longest.
    elapsed_s: f64,
    latencies: Latencies,
    errors: u64,
    first_error: Option<String>,
    /// Whether every initiator counts its cryptography, and how much of it was encryption.
    counts_crypto: bool,
    counts_encryption: bool,
    /// `None`: one of them compared nothing.
    verified: Option<u64>,
}

impl Default for Totals {
    fn default() -> Totals {
        Totals {
            ios: 0,
            moved: ProratedCounts::default(),
            shares: Vec::new(),
            elapsed_s: 0.0,
            latencies: Latencies::default(),
            errors: 0,
            first_error: None,
            counts_crypto: true,
            counts_encryption: true,
            verified: Some(0),
        }
    }
}

impl Totals {
    fn add(&mut self, outcome: Outcome, is_prorated: bool) {
        let completed = ProratedCounts {
            bytes: outcome.bytes,
            crypto_bytes: outcome.crypto_bytes.unwrap_or(0),
            encrypted_bytes: outcome.encrypted_bytes.unwrap_or(0),
        };
        let moved = if is_prorated { outcome.prorated } else { completed };
        self.ios += outcome.ios;
        self.moved.bytes += moved.bytes;
        self.shares.push(moved.bytes);
        self.moved.crypto_bytes += moved.crypto_bytes;
        self.moved.encrypted_bytes += moved.encrypted_bytes;
        self.counts_crypto &= outcome.crypto_bytes.is_some();
        self.counts_encryption &= outcome.encrypted_bytes.is_some();
        self.elapsed_s = self.elapsed_s.max(outcome.elapsed_ns as f64 / 1e9);
        self.errors += outcome.errors;
        self.first_error = self.first_error.take().or(outcome.first_error);
        self.latencies.add(&outcome.latency);
        self.verified = self.verified.zip(outcome.verified).map(|(sum, sectors)| sum + sectors);
    }

    /// Why these numbers must not be used.
    fn problem(&self, plan: &RawioPlan) -> Option<String> {
        if self.errors > 0 {
            let what = self.first_error.as_deref().unwrap_or_default();
            return Some(format!("{} I/Os failed, the first with: {what}", self.errors));
        }
        if plan.sealed_beforehand_bytes.is_some() && self.elapsed_s < MEASURED_MIN.as_secs_f64() {
            return Some(
                "nearly all that was sealed beforehand was sent in the warm-up; give more --sealed-beforehand, or less --warm-up"
                    .into(),
            );
        }
        (self.moved.bytes == 0)
            .then(|| "no I/O completed in the time of the measurement; give more --seconds".to_owned())
    }

    /// Jain's index (Jain, Chiu, Hawe, DEC-TR-301) of several initiators' shares.
    fn fairness(&self) -> Option<f64> {
        let sum = |of: fn(f64) -> f64| self.shares.iter().map(|share| of(*share as f64)).sum::<f64>();
        let squares = sum(|share| share * share) * self.shares.len() as f64;
        (self.shares.len() > 1 && squares > 0.0).then(|| sum(|share| share).powi(2) / squares)
    }

    /// The initiators' part.
    fn crypto_per_byte(&self) -> CryptoPerByte {
        let per_byte = |is_counted: bool, bytes: u64| is_counted.then(|| bytes as f64 / self.moved.bytes as f64);
        CryptoPerByte {
            initiator_crypto_per_byte: per_byte(self.counts_crypto, self.moved.crypto_bytes),
            initiator_encrypted_per_byte: per_byte(self.counts_encryption, self.moved.encrypted_bytes),
            ..CryptoPerByte::default()
        }
    }
}

/// Waits, but no longer than each initiator has something to write.
fn pause_unless_spent(
    time: Duration,
    initiators: &mut [InitiatorProcess],
    watch: &dyn Watch,
) -> Result<(), BenchError> {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        for initiator in initiators.iter_mut() {
            if initiator.is_spent()? {
                return Ok(());
            }
        }
        pause(left.min(SPENT_LOOK), watch)?;
    }
}

/// From what the target said before and after. Both of its numbers are of one moment, so their ratio holds whenever that was;
/// but if that was before most of the `moved` bytes, it tells of logins, not of I/O.
fn target_crypto_per_byte((before, after): (TargetWork, TargetWork), moved: u64) -> Option<f64> {
    let data_bytes = after.data_bytes.checked_sub(before.data_bytes).filter(|bytes| *bytes > moved / 2)?;
    Some(after.crypto_bytes.checked_sub(before.crypto_bytes)? as f64 / data_bytes as f64)
}

/// Each initiator has a part of the volume for itself.
pub(crate) fn jobs(plan: &RawioPlan, point: Point, volume_bytes: u64, run: u32) -> Vec<IoJob> {
    // Whole I/Os, on boundaries that suit every size up to 1 MiB.
    let unit = point.size.max(1 << 20).min(volume_bytes.max(1));
    let len = volume_bytes / u64::from(point.initiators) / unit * unit;
    let job = |index: u32| IoJob {
        pattern: point.pattern,
        size: point.size,
        depth: point.depth,
        start: u64::from(index) * len,
        len,
        verify: plan.verify,
        parts: plan.parts,
        sealed_beforehand_bytes: plan
            .sealed_beforehand_bytes
            .map_or(0, |bytes| bytes.div_ceil(point.initiators.into())),
        rate: plan.rate,
        seed: (u64::from(run) << 16) | (u64::from(index) + 1),
    };
    (0..point.initiators).map(job).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pattern;

    #[test]
    fn jobs_do_not_overlap_and_hold_whole_ios() {
        let grid = Grid { patterns: Pattern::ALL.to_vec(), sizes: vec![4096], depths: vec![1], initiators: vec![3] };
        let point = grid.points()[0];
        let plan = RawioPlan {
            bench: "rawio".into(),
            grid,
            runs: 1,
            time: Duration::ZERO,
            warm_up: Duration::ZERO,
            verify: false,
            parts: false,
            sealed_beforehand_bytes: None,
            rate: 0,
            is_prorated: false,
            placement: None,
        };
        let jobs = jobs(&plan, point, 100 << 20, 2);
        for pair in jobs.windows(2) {
            assert!(pair[0].start + pair[0].len <= pair[1].start && pair[0].seed != pair[1].seed);
        }
        assert!(jobs.iter().all(|job| job.len.is_multiple_of(1 << 20) && job.len > 30 << 20));
        assert_eq!(in_words(point), "4 KiB seqread, depth 1, 3 initiators");
    }

    #[test]
    fn shares_are_fair_if_they_are_alike() {
        let of = |shares: &[u64]| Totals { shares: shares.to_vec(), ..Totals::default() }.fairness();
        assert_eq!((of(&[5, 5, 5, 5]), of(&[8, 0, 0, 0]), of(&[1, 3])), (Some(1.0), Some(0.25), Some(0.8)));
        assert_eq!((of(&[7]), of(&[0, 0])), (None, None), "nothing is shared");
    }

    #[test]
    fn the_targets_cryptography_is_told_for_each_byte_of_data() {
        let work = |crypto_bytes, data_bytes| TargetWork { crypto_bytes, data_bytes };
        assert_eq!(target_crypto_per_byte((work(100, 1000), work(200, 3000)), 2000), Some(0.05));
        assert_eq!(
            target_crypto_per_byte((work(100, 1000), work(100, 1000)), 0),
            None,
            "it did not write them meanwhile"
        );
        assert_eq!(target_crypto_per_byte((work(100, 1000), work(200, 1100)), 2000), None, "it wrote them too early");
    }
}
