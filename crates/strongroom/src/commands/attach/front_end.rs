//! The front end of `attach`: the volume as a file in FUSE, and if wanted the file system in it, mounted from a loop device on that file.
//!
//! It is given an open device and knows nothing of how it was opened. Another front end is another module like this one and a command
//! that chooses it (`commands::nbd`).

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use strongroom_block::{BlockDevice, BlockSize};
use strongroom_initiator::front::file_system::FileSystemMount;
use strongroom_initiator::front::fuse::{FuseMount, FuseOptions};
use strongroom_initiator::front::loop_device::{self, LoopDevice};

use crate::attachment_process::{FrontEnd, NotEnded};
use crate::attachments::AttachmentPlace;

/// How long a forced end waits for the kernel to end the mount.
const FORCED_PATIENCE: Duration = Duration::from_millis(500);

/// What is mounted besides the file.
pub(super) struct FileSystemOptions<'a> {
    pub(super) directory: &'a Path,
    /// Made before it is mounted.
    pub(super) make: Option<&'a str>,
    /// Its type, if it is not recognised.
    pub(super) file_system: Option<&'a str>,
}

/// What programs see of a device; undone in the reverse order, each step only if the one before it went well.
pub(super) struct FileFrontEnd {
    file_system: Option<FileSystemMount>,
    fuse: FuseMount,
    /// The file system was shut down, or that was tried.
    is_shut_down: bool,
}

impl FileFrontEnd {
    /// Shows the device as a file in `directory`, and mounts what is on it if that is wanted.
    pub(super) fn start(
        device: Arc<dyn BlockDevice>,
        directory: &Path,
        options: &FuseOptions,
        mount: Option<&FileSystemOptions<'_>>,
    ) -> Result<FileFrontEnd> {
        let block_size = device.geometry().block_size;
        let fuse = FuseMount::start(device, directory, options)?;
        let file_system =
            mount.map(|mount| mount_file_system(&fuse, block_size, options.read_only, mount)).transpose()?;
        Ok(FileFrontEnd { file_system, fuse, is_shut_down: false })
    }
}

impl FrontEnd for FileFrontEnd {
    fn place(&self) -> AttachmentPlace {
        let directory = self.fuse.mount_point().to_owned();
        let mount = self.file_system.as_ref().map(|file_system| file_system.directory().to_owned());
        AttachmentPlace::Directory { directory, mount }
    }

    /// Becomes readable when the kernel has ended the mount.
    fn ended_fd(&self) -> BorrowedFd<'_> {
        self.fuse.ended_fd().as_fd()
    }

    /// What to do when the device has grown: the file, and the loop device on it, grow with it. To be called from a thread of its own: the
    /// kernel asks the file for its size.
    fn growth_follower(&self) -> impl Fn() + Send + 'static {
        let file = self.fuse.shown_size();
        let loop_path = self.file_system.as_ref().map(|file_system| file_system.device().path().to_owned());
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

    /// Once the volume is somebody else's: what the kernel keeps of the file system may be out of date, and what is not written back never
    /// will be. Programs get errors instead. (The file in FUSE is not cached.)
    fn drop_caches(&mut self, why: &str) {
        let Some(file_system) = self.file_system.as_ref().filter(|_| !self.is_shut_down) else { return };
        self.is_shut_down = true;
        let directory = file_system.directory().display();
        match file_system.shut_down() {
            Ok(()) => tracing::error!(%directory, why, "the file system is shut down: every access to it fails"),
            Err(error) => tracing::error!(
                %directory, why, %error,
                "the file system cannot be shut down: what is read from it may be out of date, and what is written is lost; unmount it"
            ),
        }
    }

    /// Ends it and makes everything durable, unless something still uses it.
    fn finish(mut self) -> Result<(), NotEnded<Self>> {
        if let Some(file_system) = self.file_system.take()
            && let Err((file_system, reason)) = file_system.unmount()
        {
            self.file_system = Some(file_system);
            return Err((Some(Box::new(self)), reason.into()));
        }
        self.fuse.finish().map_err(|(fuse, reason)| {
            (fuse.map(|fuse| Box::new(FileFrontEnd { file_system: None, fuse, is_shut_down: true })), reason.into())
        })
    }

    /// Ends it although something uses it, after the device was given up: mounts leave their directories at once, and programs that use
    /// what was on them get errors.
    fn end_by_force(mut self) {
        if let Some(file_system) = self.file_system.take() {
            file_system.unmount_lazily();
        }
        if let Err(error) = self.fuse.request_unmount(true) {
            tracing::warn!(%error, "cannot unmount");
        }
        // What nothing uses any more ends by itself; the rest when this process does.
        self.fuse.wait_ended(Some(FORCED_PATIENCE));
    }
}

fn mount_file_system(
    fuse: &FuseMount,
    block_size: BlockSize,
    read_only: bool,
    options: &FileSystemOptions<'_>,
) -> Result<FileSystemMount> {
    let file = fuse.open_file(read_only).context("cannot open the volume's file")?;
    let device = LoopDevice::attach(&file, fuse.file_path(), block_size.bytes(), read_only)?;
    if let Some(file_system) = options.make {
        device.make_file_system(file_system)?;
    }
    Ok(FileSystemMount::mount(device, options.directory, options.file_system, read_only)?)
}
