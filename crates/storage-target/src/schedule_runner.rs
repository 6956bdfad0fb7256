//! Runs the schedules of snapshots: a thread that waits, and a small pool in which each run asks the volume's worker for one snapshot.
//!
//! Absent: what a run does (`operate::scheduled`), when one is due (`schedule`), and what is known of earlier runs (`scheduler`).

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::operate::{OperationError, run_scheduled};
use crate::pool::Pool;
use crate::scheduler::now_seconds;
use crate::services::TargetServices;

/// Runs at the same time: one that waits for a store must not delay all others.
const RUNS_MAX: usize = 4;
/// How often descriptions and the clock, which may be set, are read again.
const REFRESH_EVERY: Duration = Duration::from_secs(30);

/// Starts to run the schedules of a target's volumes, until the scheduler is stopped.
pub(crate) fn start(services: &Arc<TargetServices>) -> io::Result<JoinHandle<()>> {
    let services = Arc::clone(services);
    std::thread::Builder::new().name("schedules".to_owned()).spawn(move || run(&services))
}

fn run(services: &Arc<TargetServices>) {
    let pool = Pool::new("snapshots", RUNS_MAX);
    let scheduler = &services.scheduler;
    let mut refreshed: Option<Instant> = None;
    loop {
        let is_outdated = scheduler.take_outdated();
        if is_outdated || refreshed.is_none_or(|refreshed| refreshed.elapsed() >= REFRESH_EVERY) {
            refreshed = Some(Instant::now());
            let index = services.queries.index.refresh(Instant::now());
            scheduler.replace_schedules(&index.volumes, now_seconds());
        }
        let now = now_seconds();
        for (volume, schedule) in scheduler.take_due(now) {
            let (own, name) = (Arc::clone(services), volume.clone());
            let submitted = pool.submit(move || {
                let outcome = run_scheduled(&own, &name, &schedule, now);
                own.scheduler.finished(&name, schedule, now, outcome);
            });
            if let Err(error) = submitted {
                scheduler.finished(&volume, schedule, now, Err(OperationError::NoThread(error)));
            }
        }
        if !scheduler.wait(now, REFRESH_EVERY) {
            return;
        }
    }
}
