//! The Node service: attaches volumes to this node, mounts them, and shows them to pods.
//!
//! It keeps no state: `strongroom attach list` says what is attached, and the kernel what is mounted. An attachment is a process of its
//! own, which a restart of the driver does not end. Each part of the service is in a file of its own below.

mod expand;
mod publish;
mod stage;
mod stats;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use strongroom_target::names::VolumeName;
use strongroom_target::operators::OperatorDestination;
use tonic::{Request, Response, Status};

use crate::blocking::Blocking;
use crate::in_flight::InFlight;
use crate::names::volume_of;
use crate::parameters::topology;
use crate::program::{AttachmentEntry, EntryState, Program};
use crate::secrets::{SecretDir, Secrets};
use crate::spec::node_server::Node;
use crate::spec::node_service_capability::rpc::Type;
use crate::spec::node_service_capability::{self, Rpc};
use crate::spec::{self, NodeServiceCapability};

/// What a node does beyond what every one must.
const CAPABILITIES: [Type; 5] = [
    Type::StageUnstageVolume,
    Type::GetVolumeStats,
    Type::ExpandVolume,
    Type::SingleNodeMultiWriter,
    Type::GetVolumeHealth,
];

/// See the module.
#[derive(Clone)]
pub(crate) struct NodeService {
    host: Arc<NodeHost>,
    in_flight: InFlight,
    blocking: Blocking,
}

/// What every request needs.
pub(crate) struct NodeHost {
    pub(crate) node_id: String,
    pub(crate) target: Arc<OperatorDestination>,
    pub(crate) target_name: String,
    pub(crate) program: Program,
    pub(crate) state_dir: PathBuf,
    pub(crate) secrets: SecretDir,
}

impl NodeHost {
    /// Where a volume is attached as a file.
    fn directory_of(&self, volume: &VolumeName) -> PathBuf {
        self.state_dir.join("volumes").join(volume.as_str())
    }

    fn log_of(&self, volume: &VolumeName) -> PathBuf {
        self.state_dir.join("logs").join(format!("{volume}.log"))
    }

    /// The attachment of a volume, in any state.
    fn attachment(&self, volume: &VolumeName) -> Result<Option<AttachmentEntry>, Status> {
        let directory = self.directory_of(volume);
        let resolved = crate::mounts::resolved(&directory);
        let is_it = |entry: &AttachmentEntry| entry.directory == directory || entry.directory == resolved;
        Ok(self.program.attachments()?.into_iter().find(is_it))
    }

    /// The attachment of a volume that programs can use.
    fn serving(&self, volume: &VolumeName) -> Result<AttachmentEntry, Status> {
        let attachment = self.attachment(volume)?;
        attachment
            .filter(|entry| entry.state == EntryState::Serving)
            .ok_or_else(|| Status::not_found(format!("the volume '{volume}' is not staged on this node")))
    }

    /// The file that an attached volume is.
    fn file_of(&self, volume: &VolumeName) -> PathBuf {
        self.directory_of(volume).join(volume.as_str())
    }

    fn url_of(&self, volume: &VolumeName) -> String {
        let host = &self.target.host;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        format!("strongroom://{host}:{}/{volume}", self.target.port)
    }
}

impl NodeService {
    pub(crate) fn new(host: NodeHost, blocking: Blocking) -> NodeService {
        NodeService { host: Arc::new(host), in_flight: InFlight::default(), blocking }
    }

    /// Does the work on a volume, beside the runtime.
    async fn run<T: Send + 'static>(
        &self,
        volume: VolumeName,
        work: impl FnOnce(&NodeHost, &VolumeName) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let turn = self.in_flight.begin([volume.to_string()])?;
        let host = self.host.clone();
        let outcome = self.blocking.run(move || {
            let outcome = work(&host, &volume);
            drop(turn);
            outcome
        });
        outcome.await.map(Response::new)
    }
}

/// Whether two paths are the same place, as far as the kernel's table tells.
fn is_same_place(listed: &Path, asked: &Path) -> bool {
    listed == asked || listed == crate::mounts::resolved(asked)
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_get_capabilities(
        &self,
        _request: Request<spec::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<spec::NodeGetCapabilitiesResponse>, Status> {
        let capabilities = CAPABILITIES.map(|kind| NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(Rpc { r#type: kind.into() })),
        });
        Ok(Response::new(spec::NodeGetCapabilitiesResponse { capabilities: capabilities.into() }))
    }

    async fn node_get_info(
        &self,
        _request: Request<spec::NodeGetInfoRequest>,
    ) -> Result<Response<spec::NodeGetInfoResponse>, Status> {
        Ok(Response::new(spec::NodeGetInfoResponse {
            node_id: self.host.node_id.clone(),
            max_volumes_per_node: 0,
            accessible_topology: Some(topology(&self.host.target_name)),
        }))
    }

    async fn node_stage_volume(
        &self,
        request: Request<spec::NodeStageVolumeRequest>,
    ) -> Result<Response<spec::NodeStageVolumeResponse>, Status> {
        let mut request = request.into_inner();
        let secrets = Secrets::take(&mut request.secrets);
        let volume = volume_of(&request.volume_id)?;
        let staging = stage::Staging::of(&request)?;
        self.run(volume, move |host, volume| staging.run(host, volume, &secrets)).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<spec::NodeUnstageVolumeRequest>,
    ) -> Result<Response<spec::NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = volume_of(&request.volume_id)?;
        let staging = crate::mounts::checked_path(&request.staging_target_path, "staging_target_path")?;
        self.run(volume, move |host, volume| stage::end(host, volume, &staging)).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<spec::NodePublishVolumeRequest>,
    ) -> Result<Response<spec::NodePublishVolumeResponse>, Status> {
        let mut request = request.into_inner();
        drop(Secrets::take(&mut request.secrets));
        let volume = volume_of(&request.volume_id)?;
        let publication = publish::Publication::of(&request)?;
        self.run(volume, move |host, volume| publication.run(host, volume)).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<spec::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<spec::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = volume_of(&request.volume_id)?;
        let target = crate::mounts::checked_path(&request.target_path, "target_path")?;
        self.run(volume, move |_, _| publish::end(&target)).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<spec::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<spec::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        let volume = volume_of(&request.volume_id)?;
        if request.volume_path.is_empty() {
            return Err(Status::invalid_argument("volume_path is missing"));
        }
        let host = self.host.clone();
        let work = move || stats::usage(&host, &volume, &request.volume_path);
        self.blocking.run(work).await.map(Response::new)
    }

    async fn node_get_volume_health(
        &self,
        request: Request<spec::NodeGetVolumeHealthRequest>,
    ) -> Result<Response<spec::NodeGetVolumeHealthResponse>, Status> {
        let volume = volume_of(&request.get_ref().volume_id)?;
        let host = self.host.clone();
        let work = move || stats::health(&host, &volume);
        self.blocking.run(work).await.map(Response::new)
    }

    async fn node_expand_volume(
        &self,
        request: Request<spec::NodeExpandVolumeRequest>,
    ) -> Result<Response<spec::NodeExpandVolumeResponse>, Status> {
        let mut request = request.into_inner();
        drop(Secrets::take(&mut request.secrets));
        let volume = volume_of(&request.volume_id)?;
        if request.volume_path.is_empty() {
            return Err(Status::invalid_argument("volume_path is missing"));
        }
        let range = crate::sizes::SizeRange::of(request.capacity_range.as_ref())?;
        let path = request.volume_path;
        self.run(volume, move |host, volume| expand::run(host, volume, &path, range)).await
    }
}
