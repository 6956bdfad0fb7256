//! How full a volume is, and how it does.

use std::fs;
use std::path::Path;

use strongroom_target::names::VolumeName;
use tonic::Status;

use super::NodeHost;
use crate::error::of_system;
use crate::mounts;
use crate::program::{AttachmentEntry, EntryState};
use crate::sizes::signed;
use crate::spec::volume_health::VolumeHealthEntry;
use crate::spec::volume_usage::Unit;
use crate::spec::{self, VolumeHealth, VolumeHealthErrorType, VolumeUsage};

pub(super) fn usage(
    host: &NodeHost,
    volume: &VolumeName,
    path: &str,
) -> Result<spec::NodeGetVolumeStatsResponse, Status> {
    let attachment = host.serving(volume)?;
    let path = mounts::checked_path(path, "volume_path").map_err(|status| Status::not_found(status.message()))?;
    let usage = match published(&attachment, &path)? {
        Published::Device => {
            let bytes =
                fs::metadata(host.file_of(volume)).map_err(|error| of_system("look at the volume", error))?.len();
            vec![VolumeUsage { total: signed(bytes), unit: Unit::Bytes.into(), ..Default::default() }]
        }
        Published::FileSystem => {
            let all = rustix::fs::statvfs(&path).map_err(|error| of_system("look at the file system", error))?;
            let bytes = |blocks: u64| signed(blocks.saturating_mul(all.f_frsize));
            vec![
                VolumeUsage {
                    available: bytes(all.f_bavail),
                    total: bytes(all.f_blocks),
                    used: bytes(all.f_blocks.saturating_sub(all.f_bfree)),
                    unit: Unit::Bytes.into(),
                },
                VolumeUsage {
                    available: signed(all.f_favail),
                    total: signed(all.f_files),
                    used: signed(all.f_files.saturating_sub(all.f_ffree)),
                    unit: Unit::Inodes.into(),
                },
            ]
        }
    };
    Ok(spec::NodeGetVolumeStatsResponse { usage })
}

/// As what a volume is at a path.
pub(super) enum Published {
    Device,
    FileSystem,
}

/// As what this volume, and no other one, is at a path.
pub(super) fn published(attachment: &AttachmentEntry, path: &Path) -> Result<Published, Status> {
    let not_there = || Status::not_found("the volume is not at that path of this node");
    let Some(mount) = &attachment.mount else {
        let number = attachment.device.as_deref().and_then(mounts::block_device).ok_or_else(not_there)?;
        // Where it is staged there is only a directory.
        let is_it = mounts::block_device(path) == Some(number) || path.is_dir();
        return if is_it { Ok(Published::Device) } else { Err(not_there()) };
    };
    let staged = mounts::on(mount)?.ok_or_else(not_there)?;
    let there = mounts::on(path)?.ok_or_else(not_there)?;
    if there.device == staged.device { Ok(Published::FileSystem) } else { Err(not_there()) }
}

pub(super) fn health(host: &NodeHost, volume: &VolumeName) -> Result<spec::NodeGetVolumeHealthResponse, Status> {
    let attachment = host.attachment(volume)?;
    let attachment = attachment.ok_or_else(|| Status::not_found(format!("'{volume}' is not staged on this node")))?;
    let mut found = Vec::new();
    let mut report = |status: VolumeHealthErrorType, reason: &str, message: String| {
        found.push(VolumeHealthEntry { status: status.into(), reason: reason.to_owned(), message });
    };
    if attachment.state != EntryState::Serving {
        let message = "the process that served the volume has ended; restart the pod";
        report(VolumeHealthErrorType::Inaccessible, "AttachmentEnded", message.to_owned());
    }
    if let Some(why) = attachment.disconnected {
        report(VolumeHealthErrorType::Inaccessible, "TargetAway", format!("requests wait for the target: {why}"));
    }
    if let Some(losses) = attachment.losses {
        report(VolumeHealthErrorType::DataLoss, "WritesLost", losses);
    }
    let health = VolumeHealth { volume_id: volume.to_string(), health_statuses: found };
    Ok(spec::NodeGetVolumeHealthResponse { volume_health: Some(health) })
}
