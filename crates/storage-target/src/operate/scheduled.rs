//! One run of a volume's schedule: a snapshot, if anything was written since the last one, and pruning of automatic snapshots.

use std::sync::Arc;

use strongroom_store::{BranchInfo, Op, View};

use super::error::OperationError;
use super::prune::{Pruned, prune};
use super::store_access::{Served, StoreAccess};
use super::{not_moving, note};
use crate::names::VolumeName;
use crate::schedule::{Schedule, automatic_time};
use crate::scheduler::ScheduledRun;
use crate::services::TargetServices;

/// Names that are tried, if clones of the same store have taken some.
const NAMES_MAX: u32 = 300;

/// Runs the schedule of a volume that this target serves, or could, at a time in seconds since 1970.
pub(crate) fn run_scheduled(
    shared: &Arc<TargetServices>,
    volume: &VolumeName,
    schedule: &Schedule,
    now: u64,
) -> Result<ScheduledRun, OperationError> {
    let catalogue = &shared.catalogue;
    let volume = catalogue.load(volume)?;
    let _turn = shared.operations.turns.take([volume.store_name(), volume.name.clone()]);
    let mut served = Served { shared, store: volume.store_name() };
    not_moving(catalogue, &mut served, &volume)?;
    let contents = served.contents()?;
    let own = |branch: &&BranchInfo| branch.id == volume.branch();
    let is_kept = contents.branches.iter().find(own).is_some_and(|branch| branch.is_kept);
    let mut run = ScheduledRun::default();
    if !is_kept {
        catalogue.rehearse_change(&volume.name)?;
        let names = (0..NAMES_MAX).map(|others| schedule.name(now, others));
        let is_free = |name: &String| contents.snapshots.iter().all(|info| info.name != *name);
        let name = names.into_iter().find(is_free).ok_or(OperationError::NoFreeName)?;
        served.run(View::Head(volume.branch()), Op::SnapshotCreate { name: name.clone() })?;
        run.taken = Some(name);
    }
    let is_automatic = |name: &str| automatic_time(name).is_some();
    match prune(catalogue, &mut served, &volume, &schedule.keep, &is_automatic, false) {
        Ok(all) => {
            for snapshot in all {
                match snapshot.outcome {
                    Pruned::Deleted => run.deleted.push(snapshot.name),
                    Pruned::Failed => {
                        run.problem = Some(format!("cannot delete {}: {}", snapshot.name, snapshot.reasons.join(", ")));
                    }
                    Pruned::Kept | Pruned::InUse => {}
                }
            }
        }
        Err(problem) => run.problem = Some(format!("cannot prune: {problem}")),
    }
    if run.taken.is_some() || !run.deleted.is_empty() {
        let noted = served.contents().and_then(|contents| Ok(note(catalogue, &volume, &contents)?));
        if let Err(problem) = noted {
            run.problem = Some(format!("the description of the volume could not be written: {problem}"));
        }
    }
    Ok(run)
}
