//! Publishing: shows a staged volume to a pod, as a directory or a block device, by a bind mount. And back.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use strongroom_target::names::VolumeName;
use tonic::Status;

use super::{NodeHost, is_same_place};
use crate::capabilities::{AccessKind, AccessMode, VolumeUse};
use crate::error::of_system;
use crate::mounts::{self, Mount};
use crate::spec;

/// A volume to be shown to a pod.
pub(super) struct Publication {
    target: PathBuf,
    staging: PathBuf,
    wanted: VolumeUse,
    read_only: bool,
}

impl Publication {
    pub(super) fn of(request: &spec::NodePublishVolumeRequest) -> Result<Publication, Status> {
        let target = mounts::checked_path(&request.target_path, "target_path")?;
        let wanted = VolumeUse::of(request.volume_capability.as_ref())?;
        if request.staging_target_path.is_empty() {
            return Err(Status::failed_precondition("staging_target_path is missing; stage the volume first"));
        }
        let staging = mounts::checked_path(&request.staging_target_path, "staging_target_path")?;
        if request.readonly && wanted.access == AccessKind::Block && !wanted.mode.is_read_only() {
            return Err(Status::invalid_argument(
                "a block device that is attached for writing cannot be shown read-only: use the access mode ReadOnlyMany",
            ));
        }
        let read_only = request.readonly || wanted.mode.is_read_only();
        Ok(Publication { target, staging, wanted, read_only })
    }

    pub(super) fn run(&self, host: &NodeHost, volume: &VolumeName) -> Result<spec::NodePublishVolumeResponse, Status> {
        let entry = host.serving(volume)?;
        match &self.wanted.access {
            AccessKind::Block => {
                let device = entry.device.filter(|_| entry.mount.is_none());
                let device = device.ok_or_else(|| not_staged_so(volume, "a block device"))?;
                self.publish_device(volume, &device)?;
            }
            AccessKind::FileSystem { .. } => {
                let mount = entry.mount.filter(|mount| is_same_place(mount, &self.staging));
                let mount = mount.ok_or_else(|| not_staged_so(volume, "a file system at that staging path"))?;
                self.publish_directory(volume, &mount)?;
            }
        }
        Ok(spec::NodePublishVolumeResponse {})
    }

    fn publish_directory(&self, volume: &VolumeName, staging: &Path) -> Result<(), Status> {
        let staged = mounts::on(staging)?.ok_or_else(|| not_staged_so(volume, "a mounted file system"))?;
        let is_of_it = |mount: &Mount| mount.device == staged.device && mount.root == staged.root;
        if let Some(there) = mounts::on(&self.target)? {
            return match is_of_it(&there) && there.read_only == (self.read_only || staged.read_only) {
                true => Ok(()),
                false => Err(in_the_way()),
            };
        }
        self.check_alone(volume, |mount| is_of_it(mount) && mount.at != staged.at)?;
        fs::create_dir_all(&self.target).map_err(|error| of_system("make the target path", error))?;
        mounts::bind(staging, &self.target, self.read_only)
    }

    fn publish_device(&self, volume: &VolumeName, device: &Path) -> Result<(), Status> {
        let number =
            mounts::block_device(device).ok_or_else(|| not_staged_so(volume, "a block device of this node"))?;
        if mounts::on(&self.target)?.is_some() {
            return if mounts::block_device(&self.target) == Some(number) { Ok(()) } else { Err(in_the_way()) };
        }
        let node = mounts::on_file_system(device)?;
        self.check_alone(volume, |mount| node.as_ref().is_some_and(|node| mount.is_of(node)) && mount.at != *device)?;
        if let Some(parent) = self.target.parent() {
            fs::create_dir_all(parent).map_err(|error| of_system("make the directory of the target path", error))?;
        }
        let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let made =
            File::options().write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(&self.target);
        made.map_err(|error| of_system("make the target path", error))?;
        mounts::bind(device, &self.target, false)
    }

    /// One writer means one place where it is published.
    fn check_alone(&self, volume: &VolumeName, is_publication: impl Fn(&Mount) -> bool) -> Result<(), Status> {
        if self.wanted.mode != AccessMode::SingleWriter {
            return Ok(());
        }
        match mounts::all()?.into_iter().find(is_publication) {
            None => Ok(()),
            Some(_) => Err(Status::failed_precondition(format!(
                "'{volume}' is published on this node already, and its access mode is ReadWriteOncePod"
            ))),
        }
    }
}

fn not_staged_so(volume: &VolumeName, how: &str) -> Status {
    Status::failed_precondition(format!("'{volume}' is not staged on this node as {how}; stage it first"))
}

fn in_the_way() -> Status {
    Status::already_exists(
        "something else is mounted at the target path, or the same in another way; unpublish that first",
    )
}

/// Ends what [`Publication::run`] has made.
pub(super) fn end(target: &Path) -> Result<spec::NodeUnpublishVolumeResponse, Status> {
    mounts::undo(target)?;
    mounts::remove_place(target)?;
    Ok(spec::NodeUnpublishVolumeResponse {})
}
