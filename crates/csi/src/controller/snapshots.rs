//! Snapshots: taking, deleting and listing those that this driver has made.

use std::collections::BTreeMap;

use prost_types::Timestamp;
use strongroom_target::admin::{Description, Operation, SnapshotReport, VolumeInfo};
use strongroom_target::names::VolumeName;
use tonic::{Code, Status};

use super::ControllerContext;
use crate::names::{SnapshotId, snapshot_of, volume_of};
use crate::paging::page;
use crate::parameters::check_names;
use crate::sizes::signed;
use crate::spec::list_snapshots_response::Entry;
use crate::spec::{self, ListSnapshotsRequest, ListSnapshotsResponse};
use crate::target::Conversation;

/// Longest name that the specification allows, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// A snapshot to be taken.
pub(super) struct NewSnapshot {
    volume: VolumeName,
    snapshot: String,
}

impl NewSnapshot {
    pub(super) fn of(request: &spec::CreateSnapshotRequest, shared: &ControllerContext) -> Result<NewSnapshot, Status> {
        if request.name.is_empty() || request.name.len() > NAME_BYTES_MAX {
            return Err(Status::invalid_argument(format!("a snapshot has a name of 1 to {NAME_BYTES_MAX} bytes")));
        }
        check_names(&request.parameters, &[])?;
        Ok(NewSnapshot { volume: volume_of(&request.source_volume_id)?, snapshot: shared.names.of(&request.name) })
    }

    /// What nobody else may change meanwhile: also the name, which is one for all volumes.
    pub(super) fn touches(&self) -> Vec<String> {
        vec![self.volume.to_string(), format!("@{}", self.snapshot)]
    }

    pub(super) fn run(&self, shared: &ControllerContext) -> Result<spec::CreateSnapshotResponse, Status> {
        let mut target = shared.ask()?;
        let volumes = target.volumes()?;
        let has_it = |info: &&VolumeInfo| info.snapshots.contains(&self.snapshot);
        if let Some(other) = volumes.iter().filter(has_it).find(|info| info.name != self.volume.as_str()) {
            return Err(Status::already_exists(format!(
                "there is a snapshot of that name of another volume, '{}'",
                other.name
            )));
        }
        let info = volumes.iter().find(|info| info.name == self.volume.as_str());
        let info =
            info.ok_or_else(|| Status::not_found(format!("there is no volume '{}' at the target", self.volume)))?;
        let operation = match info.snapshots.contains(&self.snapshot) {
            true => Operation::Describe,
            false => Operation::SnapshotCreate { snapshot: self.snapshot.clone() },
        };
        let description = target.operate(&info.name, operation)?;
        let id = SnapshotId { volume: self.volume.clone(), snapshot: self.snapshot.clone() };
        let snapshot = to_spec(&id, info, &description).ok_or_else(crate::error::unexpected)?;
        Ok(spec::CreateSnapshotResponse { snapshot: Some(snapshot) })
    }
}

pub(super) fn delete(shared: &ControllerContext, id: &SnapshotId) -> Result<spec::DeleteSnapshotResponse, Status> {
    if !shared.names.is_ours(&id.snapshot) || shared.names.is_of_clone(&id.snapshot) {
        return Err(Status::failed_precondition(
            "that snapshot was not made by CreateSnapshot; delete it with `strongroom volume snapshot delete`, if that is meant",
        ));
    }
    let operation = Operation::SnapshotDelete { snapshot: id.snapshot.clone() };
    match shared.ask()?.operate(id.volume.as_str(), operation) {
        Err(status) if status.code() != Code::NotFound => Err(status),
        _ => Ok(spec::DeleteSnapshotResponse {}),
    }
}

pub(super) fn list(
    shared: &ControllerContext,
    request: &ListSnapshotsRequest,
) -> Result<ListSnapshotsResponse, Status> {
    let mut target = shared.ask()?;
    let volumes: BTreeMap<String, VolumeInfo> =
        target.volumes()?.into_iter().map(|info| (info.name.clone(), info)).collect();
    let is_wanted = |id: &SnapshotId| {
        (request.source_volume_id.is_empty() || request.source_volume_id == id.volume.as_str())
            && (request.snapshot_id.is_empty() || request.snapshot_id == id.to_string())
    };
    let is_ours = |snapshot: &str| shared.names.is_ours(snapshot) && !shared.names.is_of_clone(snapshot);
    let mut ids: Vec<SnapshotId> = volumes
        .values()
        .flat_map(|info| info.snapshots.iter().filter_map(|snapshot| snapshot_of(&format!("{}@{snapshot}", info.name))))
        .filter(|id| is_ours(&id.snapshot) && is_wanted(id))
        .collect();
    ids.sort_by_key(ToString::to_string);
    let is_token = |token: &str| snapshot_of(token).is_some();
    let (ids, next_token) = page(ids, ToString::to_string, &request.starting_token, request.max_entries, is_token)?;
    let mut described = BTreeMap::new();
    let mut entries = Vec::new();
    for id in ids {
        let info = &volumes[id.volume.as_str()];
        let snapshot = to_spec(&id, info, describe(&mut target, &mut described, &info.name)?);
        // One that has gone meanwhile is not listed.
        entries.extend(snapshot.map(|snapshot| Entry { snapshot: Some(snapshot) }));
    }
    Ok(ListSnapshotsResponse { entries, next_token })
}

/// What a volume's store has in it, asked for once.
fn describe<'a>(
    target: &mut Conversation,
    described: &'a mut BTreeMap<String, Description>,
    volume: &str,
) -> Result<&'a Description, Status> {
    if !described.contains_key(volume) {
        described.insert(volume.to_owned(), target.operate(volume, Operation::Describe)?);
    }
    Ok(&described[volume])
}

/// A snapshot as the specification has it, if it is there.
fn to_spec(id: &SnapshotId, info: &VolumeInfo, description: &Description) -> Option<spec::Snapshot> {
    // A volume's description has the snapshots of its clones in it too.
    let is_clone = info.clone_of.is_some();
    let is_it = |report: &&SnapshotReport| report.name == id.snapshot && (is_clone || report.clone.is_none());
    let report = description.snapshots.iter().find(is_it)?;
    let seconds = i64::try_from(report.created_seconds).unwrap_or(i64::MAX);
    Some(spec::Snapshot {
        // What a volume that is made from it has.
        size_bytes: signed(info.shape.size_bytes),
        snapshot_id: id.to_string(),
        source_volume_id: id.volume.to_string(),
        creation_time: Some(Timestamp { seconds, nanos: 0 }),
        ready_to_use: true,
        ..Default::default()
    })
}
