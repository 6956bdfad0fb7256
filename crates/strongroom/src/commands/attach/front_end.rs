//! The front end of `attach`: the volume as a file in FUSE, and if wanted the file system in it, mounted from a loop device on that file.
//!
//! It is given an open device and knows nothing of how it was opened. Another front end is another module like this one and a command
//! that chooses it (`commands::nbd`).

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use strongroom_block::{BlockDevice, BlockSize};
use strongroom_initiator::front::file_system::FileSystemMount;
use strongroom_initiator::front::fuse::{FuseMount, FuseOptions};
use strongroom_initiator::front::loop_device::{self, LoopDevice, LoopError};
use strongroom_initiator::front::mount_options::MountOptions;

use crate::attachment_process::{FrontEnd, NotEnded};
use crate::attachments::AttachmentPlace;

/// How long a forced end waits for the kernel to end the mount.
const FORCED_PATIENCE: Duration = Duration::from_millis(500);

/// What there is besides the file, on a loop device.
pub(super) enum BlockUse<'a> {
    /// The device alone.
    Device,
    /// A file system, mounted.
    FileSystem(FileSystemOptions<'a>),
}

/// What is mounted besides the file.
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

/// What programs see of a device; undone in the reverse order, each step only if the one before it went well.
pub(super) struct FileFrontEnd {
    file_system: Option<FileSystemMount>,
    /// The loop device, where there is one without a file system.
    device: Option<LoopDevice>,
    fuse: FuseMount,
    /// That was noticed, and what was cached then has been dealt with.
    has_lost_lease: bool,
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
        let on_a_loop_device = block_use.map(|_| loop_device(&fuse, block_size, options.read_only)).transpose()?;
        let (file_system, device) = match (block_use, on_a_loop_device) {
            (Some(BlockUse::FileSystem(mount)), Some(device)) => {
                (Some(mount_file_system(device, options.read_only, mount)?), None)
            }
            (_, device) => (None, device),
        };
        Ok(FileFrontEnd { file_system, device, fuse, has_lost_lease: false })
    }

    /// The loop device, if there is one.
    fn loop_device(&self) -> Option<&LoopDevice> {
        self.device.as_ref().or(self.file_system.as_ref().map(FileSystemMount::device))
    }
}

impl FrontEnd for FileFrontEnd {
    fn place(&self) -> AttachmentPlace {
        let directory = self.fuse.mount_point().to_owned();
        let mount = self.file_system.as_ref().map(|file_system| file_system.directory().to_owned());
        let device = self.loop_device().map(|device| device.path().to_owned());
        AttachmentPlace::Directory { directory, mount, device }
    }

    /// The loop device if there is one, else the file.
    fn device(&self) -> Option<PathBuf> {
        let file = || self.fuse.file_path().to_owned();
        Some(self.loop_device().map_or_else(file, |device| device.path().to_owned()))
    }

    /// Becomes readable when the kernel has ended the mount.
    fn ended_fd(&self) -> BorrowedFd<'_> {
        self.fuse.ended_fd().as_fd()
    }

    /// What to do when the device has grown: the file, and the loop device on it, grow with it. To be called from a thread of its own: the
    /// kernel asks the file for its size.
    fn growth_follower(&self) -> impl Fn() + Send + 'static {
        let file = self.fuse.shown_size();
        let loop_path = self.loop_device().map(|device| device.path().to_owned());
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
        let is_first = !std::mem::replace(&mut self.has_lost_lease, true);
        match (&self.file_system, &self.device) {
            (Some(file_system), _) if is_first => shut_down(file_system, why),
            // Each time: programs that read the device fill the cache again.
            (None, Some(device)) => {
                if let Err(error) = device.drop_cached()
                    && is_first
                {
                    tracing::warn!(%error, "what the kernel has cached of the block device may be out of date");
                }
            }
            _ => {}
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
        // What still has the device open keeps the file in use.
        drop(self.device);
        self.fuse.finish().map_err(|(fuse, reason)| {
            let remaining = |fuse| FileFrontEnd { file_system: None, device: None, fuse, has_lost_lease: true };
            (fuse.map(|fuse| Box::new(remaining(fuse))), reason.into())
        })
    }

    /// Ends it although something uses it, after the device was given up: mounts leave their directories at once, and programs that use
    /// what was on them get errors.
    fn end_by_force(mut self) {
        if let Some(file_system) = self.file_system.take() {
            file_system.unmount_lazily();
        }
        drop(self.device);
        if let Err(error) = self.fuse.request_unmount(true) {
            tracing::warn!(%error, "cannot unmount");
        }
        // What nothing uses any more ends by itself; the rest when this process does.
        self.fuse.wait_ended(Some(FORCED_PATIENCE));
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

fn loop_device(fuse: &FuseMount, block_size: BlockSize, read_only: bool) -> Result<LoopDevice> {
    let file = fuse.open_file(read_only).context("cannot open the volume's file")?;
    Ok(LoopDevice::attach(&file, fuse.file_path(), block_size.bytes(), read_only)?)
}

fn mount_file_system(device: LoopDevice, read_only: bool, options: &FileSystemOptions<'_>) -> Result<FileSystemMount> {
    match options.make {
        MakeFileSystem::Never => {}
        MakeFileSystem::Always(name) => device.make_file_system(name)?,
        MakeFileSystem::IfBlank(name) => match device.make_file_system(name) {
            Err(LoopError::NotBlank { .. }) => {}
            made => made?,
        },
    }
    Ok(FileSystemMount::mount(device, options.directory, options.file_system, options.options, read_only)?)
}
