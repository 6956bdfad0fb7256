//! Publishing: a volume names the nodes that may use it, and no other one. Taking a node from that list ends its sessions at once, so a node that
//! is cut off writes nothing more.

use strongroom_target::admin::{Reply, Request};
use strongroom_target::names::VolumeName;
use tonic::{Code, Status};

use super::ControllerContext;
use crate::capabilities::VolumeUse;
use crate::error::unexpected;
use crate::names::volume_of;
use crate::spec;
use crate::target::Conversation;

/// Longest node id, in bytes: as long as the specification allows.
const NODE_ID_BYTES_MAX: usize = 256;

/// A volume that a node is to use.
pub(super) struct Publication {
    volume: VolumeName,
    node_id: String,
    wanted: VolumeUse,
}

impl Publication {
    pub(super) fn of(request: &spec::ControllerPublishVolumeRequest) -> Result<Publication, Status> {
        let volume = volume_of(&request.volume_id)?;
        if request.node_id.is_empty() || request.node_id.len() > NODE_ID_BYTES_MAX {
            return Err(Status::invalid_argument("name the node: node_id is empty or too long"));
        }
        let wanted = VolumeUse::of(request.volume_capability.as_ref())?;
        if request.readonly && !wanted.mode.is_read_only() {
            return Err(Status::invalid_argument(
                "read-only publishing to a node is asked for by the access mode ReadOnlyMany",
            ));
        }
        if request.node_id == "*" {
            return Err(Status::not_found("there is no node of that name, and there cannot be one"));
        }
        Ok(Publication { volume, node_id: request.node_id.clone(), wanted })
    }

    pub(super) fn volume(&self) -> String {
        self.volume.to_string()
    }

    pub(super) fn run(&self, shared: &ControllerContext) -> Result<spec::ControllerPublishVolumeResponse, Status> {
        let mut target = shared.ask()?;
        let info = target.volume(self.volume.as_str())?;
        let elsewhere = info.access.peers.iter().find(|peer| **peer != self.node_id);
        if let Some(other) = elsewhere.filter(|_| !self.wanted.mode.is_of_several_nodes()) {
            return Err(Status::failed_precondition(format!(
                "'{}' is published to the node '{other}'; unpublish it there first. If that node is lost for good, unpublish it all the \
                 same: its sessions end at once",
                self.volume
            )));
        }
        let (volume, peer) = (self.volume.to_string(), self.node_id.clone());
        let granted = target.ask(&Request::VolumeGrant { volume, peer }).map_err(|status| match status.code() {
            Code::NotFound => Status::not_found(format!(
                "the target knows no peer '{}', or the volume is gone; invite the node by its name, or give it one in a [[peer]]",
                self.node_id
            )),
            _ => status,
        })?;
        match granted {
            Reply::Access { .. } => Ok(spec::ControllerPublishVolumeResponse::default()),
            _ => Err(unexpected()),
        }
    }
}

/// Ends the use of a volume by a node, or by all nodes if none is named.
pub(super) fn end(
    shared: &ControllerContext,
    volume: &VolumeName,
    node_id: &str,
) -> Result<spec::ControllerUnpublishVolumeResponse, Status> {
    let mut target = shared.ask()?;
    if let Some(info) = target.find(volume.as_str())? {
        let nodes = if node_id.is_empty() { info.access.peers } else { vec![node_id.to_owned()] };
        nodes.iter().try_for_each(|node| revoke(&mut target, volume, node))?;
    }
    Ok(spec::ControllerUnpublishVolumeResponse {})
}

fn revoke(target: &mut Conversation, volume: &VolumeName, node: &str) -> Result<(), Status> {
    match target.ask(&Request::VolumeRevoke { volume: volume.to_string(), peer: node.to_owned() }) {
        Ok(Reply::Access { may_use_because: Some(because), .. }) => {
            tracing::warn!(%volume, node, because, "a node that a volume was taken from may still use it: it is not fenced");
            Ok(())
        }
        Ok(Reply::Access { .. }) => Ok(()),
        Ok(_) => Err(unexpected()),
        Err(status) if status.code() == Code::NotFound => Ok(()),
        Err(status) => Err(status),
    }
}
