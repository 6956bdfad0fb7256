//! Pruning: of a volume's snapshots, those that no rule of retention keeps go, unless something depends on them.

use serde::{Deserialize, Serialize};
use strongroom_store::{Op, SnapshotInfo, View};

use super::error::OperationError;
use super::store_access::StoreAccess;
use super::{export, unused, without_clones};
use crate::catalogue::Catalogue;
use crate::retention::Retention;
use crate::volume::Volume;

/// What became of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pruned {
    /// A rule keeps it.
    Kept,
    /// It is deleted, or would be.
    Deleted,
    /// No rule keeps it, but something that uses it does.
    InUse,
    /// It should have been deleted, and the store could not.
    Failed,
}

/// One snapshot, after pruning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrunedSnapshot {
    /// Its name.
    pub name: String,
    /// When it was taken, in seconds since 1970.
    pub created_seconds: u64,
    /// What became of it.
    pub outcome: Pruned,
    /// Why: the rules that keep it, or what uses it. For people.
    pub reasons: Vec<String>,
}

/// Prunes those of a volume's own snapshots whose names `concerns` says to. Goes on where one cannot be deleted.
pub(super) fn prune(
    catalogue: &Catalogue,
    access: &mut dyn StoreAccess,
    volume: &Volume,
    keep: &Retention,
    concerns: &dyn Fn(&str) -> bool,
    dry_run: bool,
) -> Result<Vec<PrunedSnapshot>, OperationError> {
    let contents = access.contents()?;
    let own = |info: &&SnapshotInfo| info.branch == volume.branch() && concerns(&info.name);
    let mut snapshots: Vec<&SnapshotInfo> = contents.snapshots.iter().filter(own).collect();
    // Oldest first. Of the same second, as the store has them: in the order in which they were taken.
    snapshots.sort_by_key(|info| info.created_seconds);
    let taken: Vec<u64> = snapshots.iter().map(|info| info.created_seconds).collect();
    let mut all = Vec::new();
    for (info, mut reasons) in snapshots.into_iter().zip(keep.reasons(&taken)) {
        let mut outcome = Pruned::Kept;
        if reasons.is_empty() {
            let export = export(volume, &info.name)?;
            outcome = match free(catalogue, access, volume, info) {
                Err(why) => {
                    reasons.push(why.to_string());
                    Pruned::InUse
                }
                Ok(()) if dry_run => Pruned::Deleted,
                Ok(()) => match access.run(View::Head(volume.branch()), Op::SnapshotDelete { id: info.id }) {
                    Ok(_) => {
                        access.gone(&export);
                        Pruned::Deleted
                    }
                    Err(problem) => {
                        reasons.push(problem.to_string());
                        Pruned::Failed
                    }
                },
            };
        }
        let (name, created_seconds) = (info.name.clone(), info.created_seconds);
        all.push(PrunedSnapshot { name, created_seconds, outcome, reasons });
    }
    Ok(all)
}

/// Whether nothing uses a snapshot; otherwise what does.
fn free(
    catalogue: &Catalogue,
    access: &mut dyn StoreAccess,
    volume: &Volume,
    info: &SnapshotInfo,
) -> Result<(), OperationError> {
    let export = export(volume, &info.name)?;
    without_clones(catalogue, info, &export, &*access.contents()?)?;
    if info.clones > 0 {
        return Err(OperationError::BaseOfReception);
    }
    if access.is_sent(info.id) {
        return Err(OperationError::BeingSent);
    }
    unused(access, &export)
}
