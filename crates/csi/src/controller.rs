//! The Controller service: makes, deletes, enlarges and lists volumes and snapshots at the target, and says which node may use one.
//!
//! It has no keys, and could not open a volume. Nothing is remembered here: what there is, the target says. A volume's own list of peers is where
//! it is published. Each part of the service is in a file of its own below.

mod create;
mod listing;
mod publish;
mod snapshots;

use std::sync::Arc;

use strongroom_target::admin::VolumeInfo;
use strongroom_target::names::VolumeName;
use strongroom_target::operators::OperatorDestination;
use tonic::{Request, Response, Status};

use crate::blocking::Blocking;
use crate::in_flight::InFlight;
use crate::names::Names;
use crate::parameters::{VolumeContext, topology};
use crate::sizes::signed;
use crate::spec::controller_server::Controller;
use crate::spec::controller_service_capability::rpc::Type;
use crate::spec::controller_service_capability::{self, Rpc};
use crate::spec::{self, ControllerServiceCapability};
use crate::target::Conversation;

/// What the controller does beyond what every one must.
const CAPABILITIES: [Type; 10] = [
    Type::CreateDeleteVolume,
    Type::PublishUnpublishVolume,
    Type::ListVolumes,
    Type::ListVolumesPublishedNodes,
    Type::CreateDeleteSnapshot,
    Type::ListSnapshots,
    Type::CloneVolume,
    Type::ExpandVolume,
    Type::GetVolume,
    Type::SingleNodeMultiWriter,
];

/// See the module.
#[derive(Clone)]
pub(crate) struct ControllerService {
    shared: Arc<ControllerContext>,
    in_flight: InFlight,
    blocking: Blocking,
}

/// What every request needs.
pub(crate) struct ControllerContext {
    pub(crate) target: Arc<OperatorDestination>,
    pub(crate) target_name: String,
    pub(crate) names: Names,
}

impl ControllerContext {
    fn ask(&self) -> Result<Conversation, Status> {
        Conversation::begin(&self.target)
    }

    /// A volume, as the specification has it.
    fn volume(&self, info: &VolumeInfo, source: Option<spec::VolumeContentSource>) -> Result<spec::Volume, Status> {
        Ok(spec::Volume {
            capacity_bytes: signed(info.shape.size_bytes),
            volume_id: info.name.clone(),
            volume_context: VolumeContext::of(info)?.to_map(),
            content_source: source,
            accessible_topology: vec![topology(&self.target_name)],
        })
    }
}

impl ControllerService {
    pub(crate) fn new(shared: ControllerContext, blocking: Blocking) -> ControllerService {
        ControllerService { shared: Arc::new(shared), in_flight: InFlight::default(), blocking }
    }

    /// Does the work on what has these names, beside the runtime.
    async fn run<T: Send + 'static>(
        &self,
        names: Vec<String>,
        work: impl FnOnce(&ControllerContext) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let turn = self.in_flight.begin(names)?;
        let shared = self.shared.clone();
        let outcome = self.blocking.run(move || {
            let outcome = work(&shared);
            drop(turn);
            outcome
        });
        outcome.await.map(Response::new)
    }
}

/// The name in a request that succeeds if there is no such thing; `None` if the id cannot be a name.
fn possible(id: &str, what: &str) -> Result<Option<VolumeName>, Status> {
    if id.is_empty() {
        return Err(Status::invalid_argument(format!("name the {what}: its id is empty")));
    }
    Ok(VolumeName::new(id).ok())
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn controller_get_capabilities(
        &self,
        _request: Request<spec::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<spec::ControllerGetCapabilitiesResponse>, Status> {
        let capabilities = CAPABILITIES.map(|kind| ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(Rpc { r#type: kind.into() })),
        });
        Ok(Response::new(spec::ControllerGetCapabilitiesResponse { capabilities: capabilities.into() }))
    }

    async fn create_volume(
        &self,
        request: Request<spec::CreateVolumeRequest>,
    ) -> Result<Response<spec::CreateVolumeResponse>, Status> {
        let new = create::Creation::of(request.into_inner(), &self.shared)?;
        self.run(new.touches(), move |shared| new.run(shared)).await
    }

    async fn delete_volume(
        &self,
        request: Request<spec::DeleteVolumeRequest>,
    ) -> Result<Response<spec::DeleteVolumeResponse>, Status> {
        let Some(volume) = possible(&request.get_ref().volume_id, "volume")? else {
            return Ok(Response::new(spec::DeleteVolumeResponse {}));
        };
        self.run(vec![volume.to_string()], move |shared| create::delete(shared, &volume)).await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<spec::ControllerPublishVolumeRequest>,
    ) -> Result<Response<spec::ControllerPublishVolumeResponse>, Status> {
        let wanted = publish::Publication::of(request.get_ref())?;
        self.run(vec![wanted.volume()], move |shared| wanted.run(shared)).await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<spec::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<spec::ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let Some(volume) = possible(&request.volume_id, "volume")? else {
            return Ok(Response::new(spec::ControllerUnpublishVolumeResponse {}));
        };
        self.run(vec![volume.to_string()], move |shared| publish::end(shared, &volume, &request.node_id)).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<spec::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<spec::ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        self.run(Vec::new(), move |shared| create::validate(shared, request)).await
    }

    async fn list_volumes(
        &self,
        request: Request<spec::ListVolumesRequest>,
    ) -> Result<Response<spec::ListVolumesResponse>, Status> {
        let request = request.into_inner();
        self.run(Vec::new(), move |shared| listing::volumes(shared, &request)).await
    }

    async fn controller_get_volume(
        &self,
        request: Request<spec::ControllerGetVolumeRequest>,
    ) -> Result<Response<spec::ControllerGetVolumeResponse>, Status> {
        let volume = crate::names::volume_of(&request.get_ref().volume_id)?;
        self.run(Vec::new(), move |shared| listing::volume(shared, &volume)).await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<spec::ControllerExpandVolumeRequest>,
    ) -> Result<Response<spec::ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = crate::names::volume_of(&request.volume_id)?;
        self.run(vec![volume.to_string()], move |shared| create::expand(shared, &volume, &request)).await
    }

    async fn create_snapshot(
        &self,
        request: Request<spec::CreateSnapshotRequest>,
    ) -> Result<Response<spec::CreateSnapshotResponse>, Status> {
        let new = snapshots::NewSnapshot::of(request.get_ref(), &self.shared)?;
        self.run(new.touches(), move |shared| new.run(shared)).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<spec::DeleteSnapshotRequest>,
    ) -> Result<Response<spec::DeleteSnapshotResponse>, Status> {
        let id = &request.get_ref().snapshot_id;
        if id.is_empty() {
            return Err(Status::invalid_argument("name the snapshot: snapshot_id is empty"));
        }
        let Some(snapshot) = crate::names::snapshot_of(id) else {
            return Ok(Response::new(spec::DeleteSnapshotResponse {}));
        };
        self.run(vec![snapshot.volume.to_string()], move |shared| snapshots::delete(shared, &snapshot)).await
    }

    async fn list_snapshots(
        &self,
        request: Request<spec::ListSnapshotsRequest>,
    ) -> Result<Response<spec::ListSnapshotsResponse>, Status> {
        let request = request.into_inner();
        self.run(Vec::new(), move |shared| snapshots::list(shared, &request)).await
    }
}
