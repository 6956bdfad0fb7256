//! The front end of `attach --nbd`: the volume as a block device of the kernel's NBD client, and if wanted the file system on it, mounted.
//!
//! If the process dies, the kernel keeps the device for a while; another process with the same arguments goes on with it ([`Predecessor`]).
//! Absent: who starts that one (`supervisor`, or a service manager).

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use strongroom_block::BlockDevice;
use strongroom_initiator::front::block_node::BlockDeviceNode;
use strongroom_initiator::front::kernel_nbd::{self, FoundDevice, NbdDevice, NbdDeviceError, NbdDeviceOptions};
use strongroom_initiator::front::nbd::{NbdOptions, NbdSocketServer};
use strongroom_initiator::{RemoteDevice, flush_blocking};

use super::block_use::{BlockUse, UsedDevice};
use crate::attachment_process::{FrontEnd, NotEnded};
use crate::attachments::{self, Attachment, AttachmentPlace, AttachmentState};

/// How soon the kernel ends a connection that it does not take, because another process serves the device.
const TAKEN_PATIENCE: Duration = Duration::from_millis(200);

/// What is attached, how.
pub(super) struct NbdAttachment<'a> {
    /// The volume, as attachments are listed.
    pub(super) volume: String,
    pub(super) export_name: &'a str,
    pub(super) read_only: bool,
    pub(super) block_use: BlockUse<'a>,
}

/// A process that had the volume attached in the same way, and has died: its device waits in the kernel.
pub(super) struct Predecessor {
    attachment: Attachment,
    device: FoundDevice,
}

impl Predecessor {
    /// The one whose volume was mounted there, or not at all.
    pub(super) fn find(volume: &str, mount: Option<&Path>) -> Result<Option<Predecessor>> {
        let mount = mount.map(|mount| attachments::absolute(&mount.to_string_lossy()));
        let is_its = |attachment: &Attachment| {
            let is_dead = attachment.state() == AttachmentState::Died;
            is_dead && attachment.url == volume && attachment.mount == mount
        };
        let found = attachments::list()?.into_iter().filter(is_its).find_map(|attachment| {
            let device = attachment.found_nbd_device()?;
            Some(Predecessor { attachment, device })
        });
        Ok(found)
    }

    pub(super) fn pid(&self) -> u32 {
        self.attachment.pid
    }
}

/// What programs see of a device; undone in the reverse order, each step only if the one before it went well.
pub(super) struct NbdDeviceFrontEnd {
    used: UsedDevice,
    device: Arc<NbdDevice>,
    server: NbdSocketServer,
    volume: Arc<RemoteDevice>,
}

impl NbdDeviceFrontEnd {
    /// Has the kernel make a device, or go on with the predecessor's; and mounts what is on it, if that is wanted.
    pub(super) fn start(
        volume: Arc<RemoteDevice>,
        attachment: &NbdAttachment<'_>,
        predecessor: Option<Predecessor>,
    ) -> Result<NbdDeviceFrontEnd> {
        if predecessor.is_some() {
            // What the predecessor was acknowledged may be in the target's cache only, and nobody has a copy any more.
            flush_blocking(&*volume).context("cannot make durable what was written before")?;
        }
        let sector_bytes = kernel_nbd::sector_bytes(&*volume)?;
        let mut options = NbdOptions::new(attachment.export_name);
        options.read_only = attachment.read_only;
        let (server, socket) =
            NbdSocketServer::start(volume.clone(), options).context("cannot serve the volume to the kernel")?;
        let mount = match &attachment.block_use {
            BlockUse::FileSystem(options) => Some(attachments::absolute(&options.directory.to_string_lossy())),
            BlockUse::Device => None,
        };
        let options = NbdDeviceOptions {
            identifier: kernel_nbd::identifier(&attachment.volume, mount.as_deref()),
            size_bytes: volume.geometry().bytes(),
            sector_bytes,
            transmission_flags: server.transmission_flags(),
            read_only: attachment.read_only,
        };
        let (device, used) = match &predecessor {
            None => {
                let device = Arc::new(NbdDevice::connect(socket, options)?);
                let used = UsedDevice::start(device.clone(), &attachment.block_use, attachment.read_only);
                (device.clone(), used.inspect_err(|_| device.disconnect())?)
            }
            Some(predecessor) => {
                let device = Arc::new(NbdDevice::reconnect(&predecessor.device, socket, options)?);
                if server.ends_within(TAKEN_PATIENCE) {
                    bail!(NbdDeviceError::Served { path: device.path().to_owned() });
                }
                let used = UsedDevice::adopt(device.clone(), &attachment.block_use)?;
                predecessor.hand_over(device.path())?;
                (device, used)
            }
        };
        Ok(NbdDeviceFrontEnd { used, device, server, volume })
    }
}

impl Predecessor {
    fn hand_over(&self, device: &Path) -> Result<()> {
        let (pid, device) = (self.attachment.pid, device.display());
        match &self.attachment.health.losses {
            None => tracing::warn!(%device, "process {pid} has died; this one goes on with its device"),
            Some(losses) => {
                tracing::error!(%device, losses, "process {pid} has died; this one goes on with its device")
            }
        }
        self.attachment.hand_over()
    }
}

impl FrontEnd for NbdDeviceFrontEnd {
    fn place(&self) -> AttachmentPlace {
        let mount = self.used.mount().map(Path::to_owned);
        AttachmentPlace::NbdDevice { device: self.device.path().to_owned(), mount }
    }

    fn device(&self) -> Option<PathBuf> {
        Some(self.device.path().to_owned())
    }

    /// Becomes readable when the kernel has ended the device: something else has told it to.
    fn ended_fd(&self) -> BorrowedFd<'_> {
        self.server.ended_fd()
    }

    fn growth_follower(&self) -> impl Fn() + Send + 'static {
        let (grow, volume) = (self.device.growth_follower(), Arc::downgrade(&self.volume));
        let path = self.device.path().to_owned();
        move || {
            let Some(volume) = volume.upgrade() else { return };
            let device = path.display();
            match grow(volume.geometry().bytes()) {
                Ok(()) => tracing::info!(%device, "the NBD device has grown, and can be filled: resize2fs, xfs_growfs"),
                Err(error) => {
                    tracing::warn!(%device, %error, "the NBD device keeps its size until the volume is attached again");
                }
            }
        }
    }

    fn drop_caches(&mut self, why: &str) {
        self.used.drop_caches(why);
    }

    /// Ends it and makes everything durable, unless something still uses it.
    fn finish(self) -> Result<(), NotEnded<Self>> {
        let NbdDeviceFrontEnd { used, device, server, volume } = self;
        if server.ends_within(Duration::ZERO) {
            // Something else has ended the device: there is nothing to go on with.
            used.end_by_force();
            return server.finish().map_err(|error| (None, error.into()));
        }
        if let Err((used, reason)) = used.finish() {
            return Err((Some(Box::new(NbdDeviceFrontEnd { used, device, server, volume })), reason));
        }
        let device = Arc::into_inner(device).expect("only what has ended had it too");
        if let Err((device, reason)) = device.disconnect_unless_open() {
            let device = Arc::new(device);
            let used = UsedDevice::alone(device.clone());
            return Err((Some(Box::new(NbdDeviceFrontEnd { used, device, server, volume })), reason.into()));
        }
        server.finish().map_err(|error| (None, error.into()))
    }

    /// Ends it although something uses it, after the device was given up: mounts leave their directories at once, and programs that use
    /// what was on them get errors.
    fn end_by_force(self) {
        self.used.end_by_force();
        self.device.disconnect();
        self.server.abandon();
    }
}
