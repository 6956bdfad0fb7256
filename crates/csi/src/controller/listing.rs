//! Lists volumes, in pages, and describes one.

use strongroom_target::admin::VolumeInfo;
use strongroom_target::names::VolumeName;
use tonic::Status;

use super::ControllerContext;
use crate::paging::page;
use crate::parameters::KeyCustody;
use crate::spec::controller_get_volume_response::VolumeStatus;
use crate::spec::list_volumes_response::{Entry, VolumeStatus as ListedStatus};
use crate::spec::{self, ListVolumesRequest, ListVolumesResponse};

pub(super) fn volumes(shared: &ControllerContext, request: &ListVolumesRequest) -> Result<ListVolumesResponse, Status> {
    let is_ours = |info: &VolumeInfo| shared.names.is_ours(&info.name) && KeyCustody::of(info).is_ok();
    let volumes = shared.ask()?.volumes()?.into_iter().filter(is_ours).collect();
    let is_token = |token: &str| shared.names.is_ours(token) && VolumeName::new(token).is_ok();
    let (volumes, next_token) =
        page(volumes, |info| info.name.clone(), &request.starting_token, request.max_entries, is_token)?;
    let entry = |info: &VolumeInfo| {
        let status = ListedStatus { published_node_ids: info.access.peers.clone() };
        Ok(Entry { volume: Some(shared.volume(info, None)?), status: Some(status) })
    };
    let entries = volumes.iter().map(entry).collect::<Result<_, Status>>()?;
    Ok(ListVolumesResponse { entries, next_token })
}

pub(super) fn volume(
    shared: &ControllerContext,
    volume: &VolumeName,
) -> Result<spec::ControllerGetVolumeResponse, Status> {
    let info = shared.ask()?.volume(volume.as_str())?;
    let volume = Some(shared.volume(&info, None)?);
    let status = Some(VolumeStatus { published_node_ids: info.access.peers });
    Ok(spec::ControllerGetVolumeResponse { volume, status })
}
