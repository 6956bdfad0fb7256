//! `btio`: the lazy-crypto paper's Table 3. The I/O of NAS BTIO, from several initiators to one shared volume.
//!
//! Every fifth time step each process writes its cells of the solution, row by row, to a file that all share; here the file is
//! the volume itself, and nobody gathers rows for others (BTIO's `simple` mode, not its collective one). The arithmetic
//! between dumps is left out: only I/O is timed. Afterwards one initiator reads the file and compares every byte.

mod partition;
mod rank;

use std::time::{Duration, Instant};

use strongroom_block::BlockDevice;

pub use partition::{Problem, is_possible};

use crate::cell::{CellKey, Throughput};
use crate::cpu::Placement;
use crate::protocol::{BtioJob, Order, Outcome};
use crate::schedule::{MeasurementStep, Watch, interleaved, measure_all};
use crate::{BenchError, Cell, Contender, InitiatorProcess, Latencies, Window};

/// How long one process may take.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// Bytes of a block of the shared volume.
pub const BLOCK_BYTES: u64 = 4096;

/// What to measure.
#[derive(Clone, Debug)]
pub struct BtioPlan {
    /// How large.
    pub problem: Problem,
    /// How many processes at once, one measurement each: square numbers.
    pub initiators: Vec<u32>,
    /// Writes in flight for each process.
    pub depth: u32,
    /// Repetitions.
    pub runs: u32,
    /// Who runs where.
    pub placement: Placement,
}

/// Carries out one process's part.
///
/// # Errors
/// If there is no such problem, or it does not fit.
pub(crate) fn carry_out(device: &dyn BlockDevice, job: &BtioJob) -> Result<Outcome, String> {
    let problem = Problem::of_class(job.class).ok_or_else(|| format!("BTIO has no class {}", job.class))?;
    let problem = Problem { dumps: job.dumps, ..problem };
    if !is_possible(&problem, job.count) || job.rank >= job.count {
        return Err(format!("{} processes cannot share class {}", job.count, job.class));
    }
    if problem.file_bytes() > device.geometry().bytes() {
        return Err(format!("the volume is smaller than the file of {} bytes", problem.file_bytes()));
    }
    let begun = Instant::now();
    let done = if job.verify {
        rank::verify(device, &problem, (job.run, job.depth))
    } else {
        rank::write(device, &problem, (job.rank, job.count), (job.run, job.depth))
    }?;
    Ok(Outcome {
        elapsed_ns: begun.elapsed().as_nanos() as u64,
        ios: done.ios,
        bytes: done.bytes,
        latency: done.latencies.counts(),
        verified: job.verify.then_some(done.bytes / 512),
        ..Outcome::default()
    })
}

impl BtioPlan {
    /// Looks at every value.
    ///
    /// # Errors
    /// [`BenchError::Asked`], which says what can be asked for.
    pub fn check(&self) -> Result<(), BenchError> {
        if let Some(count) = self.initiators.iter().find(|count| !is_possible(&self.problem, **count)) {
            return Err(BenchError::Asked(format!(
                "{count} processes cannot share BTIO's cube; give square numbers, as 1, 4, 9, of at most {} processes",
                self.problem.points.pow(2)
            )));
        }
        if self.depth == 0 || self.problem.dumps == 0 {
            return Err(BenchError::Asked("at least one write has to be in flight, and one dump to be written".into()));
        }
        Ok(())
    }
}

/// Measures all of it, interleaved. A measurement that fails, or whose file is not right afterwards, is kept as one that failed.
///
/// # Errors
/// [`BenchError::Asked`] for a plan that cannot be, [`BenchError::Stopped`], or what the watcher says.
pub fn run(plan: &BtioPlan, contenders: &mut [Box<dyn Contender>], watch: &mut dyn Watch) -> Result<(), BenchError> {
    plan.check()?;
    let names: Vec<String> = contenders.iter().map(|contender| contender.identity().contender.clone()).collect();
    let steps = interleaved(plan.initiators.len(), contenders.len(), plan.runs);
    let class = plan.problem.class;
    let name = |step: &MeasurementStep| {
        format!("{}: BTIO class {class}, {} initiators", names[step.contender], plan.initiators[step.point])
    };
    measure_all(
        &steps,
        watch,
        name,
        |_| 1.0,
        |step, _| {
            let contender = &mut *contenders[step.contender];
            let count = plan.initiators[step.point];
            let identity = contender.identity();
            let cell = Cell::empty(CellKey {
                bench: "btio".into(),
                contender: identity.contender.clone(),
                scheme: identity.scheme.clone(),
                medium: identity.medium.clone(),
                pattern: format!("btio-{class}"),
                // The rows of a cell: what one access is, before the volume's blocks cut it.
                size: plan.problem.points.div_ceil(u64::from(count).isqrt()) * partition::POINT_BYTES,
                depth: plan.depth,
                initiators: count,
                run: step.run,
                ..CellKey::default()
            });
            let salt = step.run * plan.initiators.len() as u32 + step.point as u32 + 1;
            Ok(measure(plan, contender, salt, cell.clone()).unwrap_or_else(|error| cell.failed(error)))
        },
    )
}

fn measure(plan: &BtioPlan, contender: &mut dyn Contender, salt: u32, mut cell: Cell) -> Result<Cell, BenchError> {
    let count = cell.key.initiators;
    let target_pids = contender.target_pids();
    let initiators = contender.initiators(count, BLOCK_BYTES)?;
    cell.key.suite.clone_from(&initiators[0].volume.suite);
    let pids: Vec<u32> = initiators.iter().map(InitiatorProcess::pid).collect();
    let order = |rank: u32, verify: bool| {
        let Problem { class, dumps, .. } = plan.problem;
        Order::Btio(BtioJob { class, dumps, rank, count, depth: plan.depth, run: salt, verify })
    };
    let window = Window::open(&target_pids, &pids, Some(&plan.placement))?;
    let begun = Instant::now();
    for (rank, initiator) in (0..).zip(initiators.iter_mut()) {
        initiator.say(&order(rank, false))?;
    }
    let mut outcomes = Vec::new();
    for initiator in initiators.iter_mut() {
        outcomes.push(initiator.wait_stopped_within(TIMEOUT)?);
    }
    let elapsed_s = begun.elapsed().as_secs_f64();
    let used = window.close()?;

    let mut latencies = Latencies::default();
    outcomes.iter().for_each(|outcome| latencies.add(&outcome.latency));
    let bytes: u64 = outcomes.iter().map(|outcome| outcome.bytes).sum();
    if bytes != plan.problem.file_bytes() {
        return Err(BenchError::process("btio", format!("{bytes} bytes were written, not the whole file")));
    }
    let ios = outcomes.iter().map(|outcome| outcome.ios).sum();
    cell.set_measured(Throughput::new(ios, bytes, elapsed_s), &latencies, &used);
    initiators[0].say(&order(0, true))?;
    cell.verified = initiators[0].wait_stopped_within(TIMEOUT)?.verified;
    Ok(cell)
}
