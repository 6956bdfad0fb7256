//! The Identity service: who the driver is, what it has, and whether its target answers.

use std::sync::Arc;

use strongroom_target::operators::{OperatorClient, OperatorDestination};
use tonic::{Request, Response, Status};

use crate::blocking::Blocking;
use crate::error::of_target;
use crate::options::Services;
use crate::spec::identity_server::Identity;
use crate::spec::plugin_capability::{self, service, volume_expansion};
use crate::spec::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};
use crate::target::Conversation;

/// See the module.
pub(crate) struct IdentityService {
    pub(crate) driver_name: String,
    pub(crate) services: Services,
    pub(crate) target: Arc<OperatorDestination>,
    pub(crate) blocking: Blocking,
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _request: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let (name, vendor_version) = (self.driver_name.clone(), env!("CARGO_PKG_VERSION").to_owned());
        Ok(Response::new(GetPluginInfoResponse { name, vendor_version, ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _request: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let of_service =
            |kind: service::Type| plugin_capability::Type::Service(plugin_capability::Service { r#type: kind.into() });
        let online = volume_expansion::Type::Online.into();
        // Of the driver as a whole: its controller may be another process.
        let types = [
            of_service(service::Type::ControllerService),
            of_service(service::Type::VolumeAccessibilityConstraints),
            plugin_capability::Type::VolumeExpansion(plugin_capability::VolumeExpansion { r#type: online }),
        ];
        let capabilities = types.into_iter().map(|kind| PluginCapability { r#type: Some(kind) }).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    /// A controller must be an operator of the target; a node must be known to it, and its key be the one that we expect.
    async fn probe(&self, _request: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let (target, is_operator) = (self.target.clone(), self.services.has_controller());
        self.blocking
            .run(move || match is_operator {
                true => Conversation::begin(&target)?.probe(),
                false => OperatorClient::connect(&target).map(drop).map_err(|error| of_target(&error)),
            })
            .await?;
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
