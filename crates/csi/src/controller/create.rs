//! Volumes: making one, empty or from a snapshot or another volume; deleting, enlarging and validating it.

use strongroom_target::Access;
use strongroom_target::admin::{Operation, Reply, Request, VolumeInfo};
use strongroom_target::names::VolumeName;
use tonic::{Code, Status};

use super::ControllerContext;
use crate::capabilities::VolumeUse;
use crate::error::unexpected;
use crate::names::{SnapshotId, snapshot_of, volume_of};
use crate::parameters::{ClassParameters, KeyCustody, TOPOLOGY_KEY, VolumeContext, check_names};
use crate::sizes::{SizeRange, signed};
use crate::spec::validate_volume_capabilities_response::Confirmed;
use crate::spec::volume_content_source::{SnapshotSource, Type, VolumeSource};
use crate::spec::{self, TopologyRequirement, VolumeContentSource};
use crate::target::Conversation;

/// Longest name that the specification allows, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// A volume to be made.
pub(super) struct Creation {
    name: String,
    size: SizeRange,
    class: ClassParameters,
    from: Option<Source>,
}

/// What it begins with.
enum Source {
    Snapshot(SnapshotId),
    Volume(VolumeName),
}

impl Source {
    fn of(source: &VolumeContentSource) -> Result<Source, Status> {
        match &source.r#type {
            Some(Type::Snapshot(SnapshotSource { snapshot_id })) => {
                let missing = || Status::not_found("there is no snapshot of that id, and there cannot be one");
                snapshot_of(snapshot_id).map(Source::Snapshot).ok_or_else(missing)
            }
            Some(Type::Volume(VolumeSource { volume_id })) => volume_of(volume_id).map(Source::Volume),
            None => Err(Status::invalid_argument("the content source is neither a snapshot nor a volume")),
        }
    }

    fn volume(&self) -> &VolumeName {
        match self {
            Source::Snapshot(id) => &id.volume,
            Source::Volume(volume) => volume,
        }
    }

    fn to_spec(&self) -> VolumeContentSource {
        let kind = match self {
            Source::Snapshot(id) => Type::Snapshot(SnapshotSource { snapshot_id: id.to_string() }),
            Source::Volume(volume) => Type::Volume(VolumeSource { volume_id: volume.to_string() }),
        };
        VolumeContentSource { r#type: Some(kind) }
    }
}

impl Creation {
    pub(super) fn of(request: spec::CreateVolumeRequest, shared: &ControllerContext) -> Result<Creation, Status> {
        if request.name.is_empty() || request.name.len() > NAME_BYTES_MAX {
            return Err(Status::invalid_argument(format!("a volume has a name of 1 to {NAME_BYTES_MAX} bytes")));
        }
        VolumeUse::of_all(&request.volume_capabilities)?;
        check_topology(request.accessibility_requirements.as_ref(), &shared.target_name)?;
        check_names(&request.mutable_parameters, &[])?;
        Ok(Creation {
            name: shared.names.of(&request.name),
            size: SizeRange::of(request.capacity_range.as_ref())?,
            class: ClassParameters::parse(&request.parameters)?,
            from: request.volume_content_source.as_ref().map(Source::of).transpose()?,
        })
    }

    /// What nobody else may change meanwhile.
    pub(super) fn touches(&self) -> Vec<String> {
        let source = self.from.as_ref().map(|source| source.volume().to_string());
        let mut all: Vec<String> = std::iter::once(self.name.clone()).chain(source).collect();
        all.dedup();
        all
    }

    pub(super) fn run(&self, shared: &ControllerContext) -> Result<spec::CreateVolumeResponse, Status> {
        let mut target = shared.ask()?;
        let info = match target.find(&self.name)? {
            Some(info) => self.same(info, shared)?,
            None => match self.make(&mut target, shared) {
                // Made meanwhile by another controller: what counts is what it is.
                Err(status) if status.code() == Code::AlreadyExists => self.same(target.volume(&self.name)?, shared)?,
                made => made?,
            },
        };
        let volume = shared.volume(&info, self.from.as_ref().map(Source::to_spec))?;
        Ok(spec::CreateVolumeResponse { volume: Some(volume) })
    }

    /// A volume of that name, if it is what is asked for.
    fn same(&self, info: VolumeInfo, shared: &ControllerContext) -> Result<VolumeInfo, Status> {
        let other = |what: &str| Err(Status::already_exists(format!("there is a volume '{}' of {what}", self.name)));
        if !self.size.includes(info.shape.size_bytes) {
            return other(&format!("{} bytes, which is not the size that is asked for", info.shape.size_bytes));
        }
        if KeyCustody::of(&info)? != self.class.custody {
            return other("another custody");
        }
        let made_from = info.clone_of.as_ref().map(|of| of.snapshot.as_str());
        let asked_for = self.from.as_ref().map(|source| self.snapshot_of(source, shared));
        if made_from != asked_for.as_deref() {
            return other("other contents");
        }
        Ok(info)
    }

    /// The snapshot that it is a clone of.
    fn snapshot_of(&self, source: &Source, shared: &ControllerContext) -> String {
        match source {
            Source::Snapshot(id) => id.snapshot.clone(),
            Source::Volume(_) => shared.names.of_clone(&VolumeName::new(&self.name).expect("derived names are legal")),
        }
    }

    fn make(&self, target: &mut Conversation, shared: &ControllerContext) -> Result<VolumeInfo, Status> {
        let Some(source) = &self.from else {
            let volume = self.class.volume(self.name.clone(), self.size.choose(self.class.block_bytes)?);
            return match target.ask(&Request::VolumeCreate { volume })? {
                Reply::Created(info) => Ok(*info),
                _ => Err(unexpected()),
            };
        };
        let from = target.volume(source.volume().as_str())?;
        self.check_source(&from)?;
        let snapshot = self.snapshot_of(source, shared);
        let has_it = from.snapshots.contains(&snapshot);
        match source {
            Source::Snapshot(id) if !has_it => {
                return Err(Status::not_found(format!("there is no snapshot '{id}' at the target")));
            }
            Source::Volume(_) if !has_it => {
                target.operate(&from.name, Operation::SnapshotCreate { snapshot: snapshot.clone() })?;
            }
            _ => {}
        }
        // Nobody may use it before it is published: not those either who may use its source.
        let operation = Operation::Clone { snapshot, name: self.name.clone(), access: Some(Access::default()) };
        target.operate(&from.name, operation)?;
        target.volume(&self.name)
    }

    /// A clone has its source's size, and its keys.
    fn check_source(&self, from: &VolumeInfo) -> Result<(), Status> {
        let size_bytes = from.shape.size_bytes;
        if !self.size.includes(size_bytes) {
            return Err(Status::out_of_range(format!(
                "a clone has the size of its source, {size_bytes} bytes; for another one make an empty volume and copy"
            )));
        }
        if KeyCustody::of(from)? != self.class.custody {
            return Err(Status::invalid_argument(
                "a clone has the custody of its source; use a class with the same one",
            ));
        }
        Ok(())
    }
}

/// Refuses a topology that does not include this target.
fn check_topology(requirement: Option<&TopologyRequirement>, target_name: &str) -> Result<(), Status> {
    let Some(requirement) = requirement else { return Ok(()) };
    let here = |topology: &spec::Topology| topology.segments.get(TOPOLOGY_KEY).is_none_or(|name| name == target_name);
    if requirement.requisite.is_empty() || requirement.requisite.iter().any(here) {
        return Ok(());
    }
    Err(Status::resource_exhausted(format!("this driver makes volumes at {TOPOLOGY_KEY}={target_name} only")))
}

/// Deletes a volume of this driver's, and the snapshot that was made for it alone.
pub(super) fn delete(shared: &ControllerContext, volume: &VolumeName) -> Result<spec::DeleteVolumeResponse, Status> {
    let mut target = shared.ask()?;
    let volumes = target.volumes()?;
    let of_clone = shared.names.of_clone(volume);
    if let Some(info) = volumes.iter().find(|info| info.name == volume.as_str()) {
        if !shared.names.is_ours(&info.name) {
            return Err(Status::failed_precondition(format!(
                "'{volume}' was not made by this driver; delete it with `strongroom volume delete`, if that is meant"
            )));
        }
        delete_with_remains(shared, &mut target, info)?;
    }
    // Also if an earlier request deleted it but did not get this far.
    for source in volumes.iter().filter(|info| info.snapshots.contains(&of_clone)) {
        match target.operate(&source.name, Operation::SnapshotDelete { snapshot: of_clone.clone() }) {
            Err(status) if status.code() != Code::NotFound => return Err(status),
            _ => {}
        }
    }
    Ok(spec::DeleteVolumeResponse {})
}

fn delete_with_remains(shared: &ControllerContext, target: &mut Conversation, info: &VolumeInfo) -> Result<(), Status> {
    let (made_for_clones, real): (Vec<_>, Vec<_>) =
        info.snapshots.iter().partition(|snapshot| shared.names.is_of_clone(snapshot));
    if let Some(snapshot) = real.first() {
        return Err(Status::failed_precondition(format!(
            "'{}' has snapshots, '{snapshot}' for one, which would go with it; delete them first",
            info.name
        )));
    }
    // Left by a clone that did not come about; one that has a clone is refused, and so is the volume.
    for snapshot in made_for_clones {
        target.operate(&info.name, Operation::SnapshotDelete { snapshot: snapshot.clone() })?;
    }
    match target.ask(&Request::VolumeDelete { volume: info.name.clone() }) {
        Ok(Reply::Done) => Ok(()),
        Ok(_) => Err(unexpected()),
        Err(status) if status.code() == Code::NotFound => Ok(()),
        Err(status) => Err(status),
    }
}

pub(super) fn expand(
    shared: &ControllerContext,
    volume: &VolumeName,
    request: &spec::ControllerExpandVolumeRequest,
) -> Result<spec::ControllerExpandVolumeResponse, Status> {
    let range = request.capacity_range.as_ref();
    let range = range.ok_or_else(|| Status::invalid_argument("there is no capacity range"))?;
    let range = SizeRange::of(Some(range))?;
    let mut target = shared.ask()?;
    let info = target.volume(volume.as_str())?;
    let size_bytes = range.choose(info.shape.block_size)?.max(info.shape.size_bytes);
    if !range.includes(size_bytes) {
        return Err(Status::out_of_range(format!(
            "the volume has {} bytes, which is above the limit; a volume does not shrink",
            info.shape.size_bytes
        )));
    }
    if size_bytes > info.shape.size_bytes {
        target.operate(volume.as_str(), Operation::Resize { size_bytes })?;
    }
    // What it grew by is sealed on the node, and then the file system grows.
    let (capacity_bytes, node_expansion_required) = (signed(size_bytes), true);
    Ok(spec::ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required })
}

pub(super) fn validate(
    shared: &ControllerContext,
    request: spec::ValidateVolumeCapabilitiesRequest,
) -> Result<spec::ValidateVolumeCapabilitiesResponse, Status> {
    let volume = volume_of(&request.volume_id)?;
    if request.volume_capabilities.is_empty() {
        return Err(Status::invalid_argument("there are no volume capabilities"));
    }
    let info = shared.ask()?.volume(volume.as_str())?;
    let unconfirmed = |message: String| spec::ValidateVolumeCapabilitiesResponse { confirmed: None, message };
    if let Err(status) = VolumeUse::of_all(&request.volume_capabilities) {
        return Ok(unconfirmed(status.message().to_owned()));
    }
    let context = VolumeContext::of(&info)?.to_map();
    if request.volume_context.iter().any(|(name, value)| context.get(name).is_some_and(|known| known != value)) {
        return Ok(unconfirmed("the volume context is not that of the volume".to_owned()));
    }
    if ClassParameters::parse(&request.parameters).is_err() {
        return Ok(unconfirmed("the parameters are not those of a volume of this driver".to_owned()));
    }
    let confirmed = Confirmed {
        volume_context: request.volume_context,
        volume_capabilities: request.volume_capabilities,
        parameters: request.parameters,
        mutable_parameters: request.mutable_parameters,
    };
    Ok(spec::ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_made_where_they_are_wanted_or_not_at_all() {
        let requirement = |names: &[&str]| TopologyRequirement {
            requisite: names.iter().map(|name| crate::parameters::topology(name)).collect(),
            preferred: Vec::new(),
        };
        assert!(check_topology(None, "a").is_ok());
        assert!(check_topology(Some(&requirement(&[])), "a").is_ok());
        assert!(check_topology(Some(&requirement(&["b", "a"])), "a").is_ok());
        let refused = check_topology(Some(&requirement(&["b"])), "a").unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        let of_another_kind = spec::Topology { segments: [("zone".to_owned(), "x".to_owned())].into() };
        let any = TopologyRequirement { requisite: vec![of_another_kind], preferred: Vec::new() };
        assert!(check_topology(Some(&any), "a").is_ok());
    }
}
