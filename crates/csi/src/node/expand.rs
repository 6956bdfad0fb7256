//! Expansion on the node: waits until the attachment has followed the volume's growth, then enlarges the file system.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use strongroom_target::names::VolumeName;
use tonic::Status;

use super::NodeHost;
use super::stats::{Published, published};
use crate::error::of_system;
use crate::mounts;
use crate::sizes::{SizeRange, signed};
use crate::spec;

/// How long an attachment may take to follow: it asks the target every few seconds, and seals what is new.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub(super) fn run(
    host: &NodeHost,
    volume: &VolumeName,
    path: &str,
    range: SizeRange,
) -> Result<spec::NodeExpandVolumeResponse, Status> {
    let attachment = host.serving(volume)?;
    let path = mounts::checked_path(path, "volume_path")?;
    let published = published(&attachment, &path)?;
    let device = match published {
        Published::Device => attachment.device,
        Published::FileSystem => mounts::on(&path)?.map(|mount| mount.source.into()),
    };
    let device = device.ok_or_else(|| Status::internal("the volume's block device is not known"))?;
    let bytes = wait_for_growth(host, volume, &device, range)?;
    if let (Published::FileSystem, Some(mount)) = (published, mounts::on(&path)?) {
        enlarge(host, &mount.file_system, &device, &path)?;
    }
    Ok(spec::NodeExpandVolumeResponse { capacity_bytes: signed(bytes) })
}

/// The size of the volume, once it and its device are as large as is asked for.
fn wait_for_growth(host: &NodeHost, volume: &VolumeName, device: &Path, range: SizeRange) -> Result<u64, Status> {
    let began = Instant::now();
    loop {
        let of_file = fs::metadata(host.file_of(volume)).map_err(|error| of_system("look at the volume", error))?.len();
        let of_device = device_bytes(device)?;
        if range.is_reached_by(of_file) && of_device == of_file {
            return Ok(of_file);
        }
        if began.elapsed() > PATIENCE {
            return Err(Status::unavailable(format!(
                "the attachment still has {of_file} bytes, and its device {of_device}; `strongroom attach list` and its log say why"
            )));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn device_bytes(device: &Path) -> Result<u64, Status> {
    let failed = |error: std::io::Error| of_system("look at the block device", error);
    let name = device.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let sectors = fs::read_to_string(Path::new("/sys/class/block").join(name).join("size")).map_err(failed)?;
    let sectors: u64 = sectors.trim().parse().map_err(|_| of_system("look at the block device", "it has no size"))?;
    // The kernel counts in these on every device.
    Ok(sectors * 512)
}

/// Enlarges a mounted file system to its device.
fn enlarge(host: &NodeHost, file_system: &str, device: &Path, path: &Path) -> Result<(), Status> {
    match file_system {
        "ext4" | "ext3" => host.program.run_tool("resize2fs", &[device.as_os_str()]),
        "xfs" => host.program.run_tool("xfs_growfs", &["-d".as_ref(), path.as_os_str()]),
        other => Err(Status::failed_precondition(format!(
            "the volume has grown, and its file system, {other}, is not one that this driver enlarges"
        ))),
    }
}
