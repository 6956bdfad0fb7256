//! The local disk as a contender: the same I/O on a file, without a target, sealing or a network.

use std::fs;

use super::EclPlan;
use crate::cell::CellKey;
use crate::fio::{FioJob, FioLength, FioOutcome, FioVolume};
use crate::rawio::RawioPlan;
use crate::schedule::Watch;
use crate::{BenchError, Cell, Point};

/// As in results.
pub(super) const LOCAL_DISK: &str = "local disk";

/// Measures all points of a grid; `before`: how many other contenders were. A measurement that fails is kept as one that failed.
///
/// # Errors
/// [`BenchError::Stopped`], or what the watcher says.
pub(super) fn run(rawio: &RawioPlan, plan: &EclPlan, before: usize, watch: &mut dyn Watch) -> Result<(), BenchError> {
    let points = rawio.grid.points();
    let (runs, others) = (rawio.runs as usize, points.len() * before * rawio.runs as usize);
    for run in 0..runs {
        for (at, point) in points.iter().enumerate() {
            let done = others + run * points.len() + at;
            watch.step(done, others + points.len() * runs, None, &format!("{LOCAL_DISK}: {}", point.pattern));
            let empty = Cell::empty(CellKey {
                bench: rawio.bench.clone(),
                contender: LOCAL_DISK.into(),
                medium: "directory".into(),
                pattern: point.pattern.name().into(),
                size: point.size,
                depth: point.depth,
                initiators: point.initiators,
                run: run as u32,
                ..CellKey::default()
            });
            let cell = match measure(rawio, plan, *point, run as u64, watch) {
                Ok(outcome) => Cell { throughput: outcome.throughput, latency: outcome.latency, ..empty },
                Err(BenchError::Stopped) => return Err(BenchError::Stopped),
                Err(error) => empty.failed(error),
            };
            watch.cell(&cell)?;
        }
    }
    Ok(())
}

fn measure(
    rawio: &RawioPlan,
    plan: &EclPlan,
    point: Point,
    seed: u64,
    watch: &dyn Watch,
) -> Result<FioOutcome, BenchError> {
    if !crate::programs::is_installed("fio") {
        return Err(BenchError::Asked("there is no fio; install it with scripts/deps.sh --bench (Debian: fio)".into()));
    }
    let directory = plan.disk_directory.join("fio");
    fs::create_dir_all(&directory).map_err(|error| BenchError::file(&directory, error))?;
    let job = FioJob {
        volume: FioVolume::File(directory.join("file")),
        volume_bytes: plan.volume_bytes,
        pattern: point.pattern,
        size: point.size,
        depth: point.depth,
        is_direct: true,
        length: FioLength::Timed { warm_up: rawio.warm_up, time: rawio.time },
        seed,
    };
    job.start(&plan.placement.initiators, &directory)?.finish(watch)
}
