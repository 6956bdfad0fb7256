//! What `attach` does with a block device on the volume, whichever driver it has: a file system made, mounted, shut down and unmounted, or
//! the device alone. Absent: how the device comes to be (`front_end`, `nbd_device`).

use std::path::Path;

use anyhow::Result;
use strongroom_initiator::front::block_node::{BlockDeviceNode, FileSystemError};
use strongroom_initiator::front::file_system::FileSystemMount;
use strongroom_initiator::front::mount_options::MountOptions;

/// What a block device is wanted for.
pub(super) enum BlockUse<'a> {
    /// The device alone.
    Device,
    /// A file system, mounted.
    FileSystem(FileSystemOptions<'a>),
}

/// What is mounted.
pub(super) struct FileSystemOptions<'a> {
    pub(super) directory: &'a Path,
    /// Made before it is mounted.
    pub(super) make: MakeFileSystem<'a>,
    /// Its type, if it is not recognised.
    pub(super) file_system: Option<&'a str>,
    pub(super) options: &'a MountOptions,
}

/// Whether a file system is made, of which type.
#[derive(Clone, Copy)]
pub(super) enum MakeFileSystem<'a> {
    Never,
    /// Refused where anything is.
    Always(&'a str),
    /// Where anything is, that is mounted.
    IfBlank(&'a str),
}

/// A block device that is used.
pub(super) struct UsedDevice {
    device_use: DeviceUse,
    /// That was noticed, and what was cached then has been dealt with.
    has_lost_lease: bool,
}

enum DeviceUse {
    Alone(Box<dyn BlockDeviceNode>),
    Mounted(FileSystemMount),
}

impl UsedDevice {
    /// Mounts what is on the device, if that is wanted.
    pub(super) fn start(
        device: impl BlockDeviceNode + 'static,
        block_use: &BlockUse<'_>,
        read_only: bool,
    ) -> Result<UsedDevice> {
        let BlockUse::FileSystem(options) = block_use else { return Ok(UsedDevice::alone(device)) };
        let device_use = DeviceUse::Mounted(mount_file_system(device, read_only, options)?);
        Ok(UsedDevice { device_use, has_lost_lease: false })
    }

    /// Without a file system.
    pub(super) fn alone(device: impl BlockDeviceNode + 'static) -> UsedDevice {
        UsedDevice { device_use: DeviceUse::Alone(Box::new(device)), has_lost_lease: false }
    }

    /// The same as [`UsedDevice::start`], where the device goes on that a process has left which has died: what was mounted from it still is.
    pub(super) fn adopt(device: impl BlockDeviceNode + 'static, block_use: &BlockUse<'_>) -> Result<UsedDevice> {
        let BlockUse::FileSystem(options) = block_use else { return Ok(UsedDevice::alone(device)) };
        let device_use = DeviceUse::Mounted(FileSystemMount::adopt(device, options.directory)?);
        Ok(UsedDevice { device_use, has_lost_lease: false })
    }

    /// The device.
    pub(super) fn node(&self) -> &dyn BlockDeviceNode {
        match &self.device_use {
            DeviceUse::Alone(device) => &**device,
            DeviceUse::Mounted(file_system) => file_system.device(),
        }
    }

    /// Where the file system is mounted, if there is one.
    pub(super) fn mount(&self) -> Option<&Path> {
        match &self.device_use {
            DeviceUse::Alone(_) => None,
            DeviceUse::Mounted(file_system) => Some(file_system.directory()),
        }
    }

    /// Once the volume is somebody else's: what the kernel keeps of the file system may be out of date, and what is not written back never
    /// will be. Programs get errors instead.
    pub(super) fn drop_caches(&mut self, why: &str) {
        let is_first = !std::mem::replace(&mut self.has_lost_lease, true);
        match &self.device_use {
            DeviceUse::Mounted(file_system) if is_first => shut_down(file_system, why),
            DeviceUse::Mounted(_) => {}
            // Each time: programs that read the device fill the cache again.
            DeviceUse::Alone(device) => {
                if let Err(error) = device.drop_cached()
                    && is_first
                {
                    tracing::warn!(%error, "what the kernel has cached of the block device may be out of date");
                }
            }
        }
    }

    /// Unmounts the file system, which writes everything back, and drops the device. What is in use goes on.
    pub(super) fn finish(self) -> Result<(), (UsedDevice, anyhow::Error)> {
        match self.device_use {
            DeviceUse::Alone(device) => drop(device),
            DeviceUse::Mounted(file_system) => {
                if let Err((file_system, reason)) = file_system.unmount() {
                    return Err((UsedDevice { device_use: DeviceUse::Mounted(file_system), ..self }, reason.into()));
                }
            }
        }
        Ok(())
    }

    /// Takes the file system from its directory although programs use it, and drops the device.
    pub(super) fn end_by_force(self) {
        match self.device_use {
            DeviceUse::Alone(device) => drop(device),
            DeviceUse::Mounted(file_system) => file_system.unmount_lazily(),
        }
    }
}

/// Programs get errors from now on.
fn shut_down(file_system: &FileSystemMount, why: &str) {
    let directory = file_system.directory().display();
    match file_system.shut_down() {
        Ok(()) => tracing::error!(%directory, why, "the file system is shut down: every access to it fails"),
        Err(error) => tracing::error!(
            %directory, why, %error,
            "the file system cannot be shut down: what is read from it may be out of date, and what is written is lost; unmount it"
        ),
    }
}

fn mount_file_system(
    device: impl BlockDeviceNode + 'static,
    read_only: bool,
    options: &FileSystemOptions<'_>,
) -> Result<FileSystemMount> {
    match options.make {
        MakeFileSystem::Never => {}
        MakeFileSystem::Always(name) => device.make_file_system(name)?,
        MakeFileSystem::IfBlank(name) => match device.make_file_system(name) {
            Err(FileSystemError::NotBlank { .. }) => {}
            made => made?,
        },
    }
    Ok(FileSystemMount::mount(device, options.directory, options.file_system, options.options, read_only)?)
}
