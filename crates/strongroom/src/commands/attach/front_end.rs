//! The front end of `attach`: the volume as a file in FUSE, and if wanted the file system in it, mounted from a loop device on that file.
//!
//! It is given an open device and knows nothing of how it was opened. Another front end is another module like this one and a command
//! that chooses it (`nbd_device`, `commands::nbd`).

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use strongroom_block::{BlockDevice, BlockSize};
use strongroom_initiator::front::fuse::{FuseMount, FuseOptions};
use strongroom_initiator::front::loop_device::{self, LoopDevice};

use super::block_use::{BlockUse, UsedDevice};
use crate::attachment_process::{FrontEnd, NotEnded};
use crate::attachments::AttachmentPlace;

/// How long a forced end waits for the kernel to end the mount.
const FORCED_PATIENCE: Duration = Duration::from_millis(500);

/// What programs see of a device; undone in the reverse order, each step only if the one before it went well.
pub(super) struct FileFrontEnd {
    /// The loop device, where there is one.
    used: Option<UsedDevice>,
    fuse: FuseMount,
}

impl FileFrontEnd {
    /// Shows the device as a file in `directory`; and mounts what is on it, or has a loop device on it, if that is wanted.
    pub(super) fn start(
        device: Arc<dyn BlockDevice>,
        directory: &Path,
        options: &FuseOptions,
        block_use: Option<&BlockUse<'_>>,
    ) -> Result<FileFrontEnd> {
        let block_size = device.geometry().block_size;
        let fuse = FuseMount::start(device, directory, options)?;
        let start = |block_use| {
            UsedDevice::start(loop_device(&fuse, block_size, options.read_only)?, block_use, options.read_only)
        };
        let used = block_use.map(start).transpose()?;
        Ok(FileFrontEnd { used, fuse })
    }

    /// The path of the loop device, if there is one.
    fn loop_path(&self) -> Option<PathBuf> {
        self.used.as_ref().map(|used| used.node().path().to_owned())
    }
}

impl FrontEnd for FileFrontEnd {
    fn place(&self) -> AttachmentPlace {
        let directory = self.fuse.mount_point().to_owned();
        let mount = self.used.as_ref().and_then(UsedDevice::mount).map(Path::to_owned);
        AttachmentPlace::Directory { directory, mount, device: self.loop_path() }
    }

    /// The loop device if there is one, else the file.
    fn device(&self) -> Option<PathBuf> {
        Some(self.loop_path().unwrap_or_else(|| self.fuse.file_path().to_owned()))
    }

    /// Becomes readable when the kernel has ended the mount.
    fn ended_fd(&self) -> BorrowedFd<'_> {
        self.fuse.ended_fd()
    }

    /// What to do when the device has grown: the file, and the loop device on it, grow with it. To be called from a thread of its own: the
    /// kernel asks the file for its size.
    fn growth_follower(&self) -> impl Fn() + Send + 'static {
        let file = self.fuse.shown_size();
        let loop_path = self.loop_path();
        move || {
            if let Err(error) = file.refresh() {
                return tracing::warn!(%error, "the file keeps its size until the volume is attached again");
            }
            let Some(path) = &loop_path else { return };
            let device = path.display();
            match loop_device::refresh_size(path) {
                Ok(()) => {
                    tracing::info!(%device, "the loop device has grown too, and can be filled: resize2fs, xfs_growfs")
                }
                Err(error) => tracing::warn!(%device, %error, "the loop device keeps its size; try losetup -c"),
            }
        }
    }

    /// (The file in FUSE is not cached.)
    fn drop_caches(&mut self, why: &str) {
        if let Some(used) = &mut self.used {
            used.drop_caches(why);
        }
    }

    /// Ends it and makes everything durable, unless something still uses it.
    fn finish(mut self) -> Result<(), NotEnded<Self>> {
        // What still has the device open keeps the file in use.
        if let Some(used) = self.used.take()
            && let Err((used, reason)) = used.finish()
        {
            self.used = Some(used);
            return Err((Some(Box::new(self)), reason));
        }
        self.fuse
            .finish()
            .map_err(|(fuse, reason)| (fuse.map(|fuse| Box::new(FileFrontEnd { used: None, fuse })), reason.into()))
    }

    /// Ends it although something uses it, after the device was given up: mounts leave their directories at once, and programs that use
    /// what was on them get errors.
    fn end_by_force(self) {
        if let Some(used) = self.used {
            used.end_by_force();
        }
        if let Err(error) = self.fuse.request_unmount(true) {
            tracing::warn!(%error, "cannot unmount");
        }
        // What nothing uses any more ends by itself; the rest when this process does.
        self.fuse.wait_ended(Some(FORCED_PATIENCE));
    }
}

fn loop_device(fuse: &FuseMount, block_size: BlockSize, read_only: bool) -> Result<LoopDevice> {
    let file = fuse.open_file(read_only).context("cannot open the volume's file")?;
    Ok(LoopDevice::attach(&file, fuse.file_path(), block_size.bytes(), read_only)?)
}
