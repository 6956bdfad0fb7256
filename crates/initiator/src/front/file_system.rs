//! The file system on a volume's block device, mounted, unmounted and shut down. Absent: the block device.

#![allow(unsafe_code)] // A file system is shut down by an ioctl.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::block_node::{BlockDeviceNode, FileSystemError};
use super::mount_options::MountOptions;
use super::umount_helper;

/// Between tries to unmount a file system that is in use.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// `FS_IOC_SHUTDOWN` of linux/fs.h (ext4, xfs, btrfs, f2fs): the file system fails everything from then on.
const FS_IOC_SHUTDOWN: libc::c_ulong = 0x8004_587D;
/// Without writing its log first, which nobody would take.
const FS_SHUTDOWN_FLAGS_NOLOGFLUSH: u32 = 2;

/// A file system mounted from a block device. Dropped, it is *not* unmounted: [`FileSystemMount::unmount`] is explicit,
/// because it can be refused.
#[derive(Debug)]
pub struct FileSystemMount {
    directory: PathBuf,
    device: Box<dyn BlockDeviceNode>,
    /// Whether umount(8) was told to run our helper for it.
    has_helper: bool,
}

impl FileSystemMount {
    /// Mounts what is on `device` on `directory`, with these options; `file_system` names the type, else it is detected.
    ///
    /// # Errors
    /// [`FileSystemError`]; the device is dropped then.
    pub fn mount(
        device: impl BlockDeviceNode + 'static,
        directory: &Path,
        file_system: Option<&str>,
        options: &MountOptions,
        read_only: bool,
    ) -> Result<FileSystemMount, FileSystemError> {
        let file_system = match file_system {
            Some(name) => name.to_owned(),
            None => device.detect_file_system()?.to_owned(),
        };
        let mut flags = options.flags();
        if read_only {
            flags |= MountFlags::RDONLY;
        }
        let failed = |source| FileSystemError::Mount {
            file_system: file_system.clone(),
            directory: directory.to_owned(),
            source,
        };
        let directory = directory.canonicalize().map_err(failed)?;
        let mount_with = |more: Option<&CStr>| {
            mount(device.path(), &directory, file_system.as_str(), flags, options.data(more).as_deref())
        };
        let mounted = match (mount_with(None), without_replay(&file_system)) {
            // What was in use when it was kept has a journal to be replayed, which cannot be written.
            (Err(Errno::ROFS), Some(option)) if read_only => {
                let mounted = mount_with(Some(option));
                if mounted.is_ok() {
                    tracing::warn!(
                        option = %option.to_string_lossy(),
                        "the file system was in use when this was kept, and its journal cannot be replayed here: what was written \
                         last may be missing or torn. For all of it clone the snapshot and mount the clone, or freeze the file \
                         system (fsfreeze) before the next snapshot"
                    );
                }
                mounted
            }
            (mounted, _) => mounted,
        };
        mounted.map_err(|error| failed(error.into()))?;
        tracing::info!(file_system, directory = %directory.display(), "file system mounted");
        let has_helper = umount_helper::is_installed();
        if has_helper {
            umount_helper::register(&directory, &file_system, device.path());
        }
        Ok(FileSystemMount { directory, device: Box::new(device), has_helper })
    }

    /// The file system on `device` that is mounted on `directory` already: by a process that has died, and whose device goes on.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn adopt(device: impl BlockDeviceNode + 'static, directory: &Path) -> io::Result<FileSystemMount> {
        let directory = directory.canonicalize()?;
        Ok(FileSystemMount { directory, device: Box::new(device), has_helper: umount_helper::is_installed() })
    }

    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The block device underneath.
    pub fn device(&self) -> &dyn BlockDeviceNode {
        &*self.device
    }

    /// Has the file system fail every access from now on, to what the kernel keeps of its files as well; what was not written back is lost.
    ///
    /// # Errors
    /// What the kernel says; so of a file system that cannot do it.
    pub fn shut_down(&self) -> io::Result<()> {
        let directory = File::open(&self.directory)?;
        let flags: u32 = FS_SHUTDOWN_FLAGS_NOLOGFLUSH;
        // SAFETY: FS_IOC_SHUTDOWN reads the u32 that its argument points to, which outlives the call; the descriptor is open.
        match unsafe { libc::ioctl(directory.as_raw_fd(), FS_IOC_SHUTDOWN, &raw const flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Takes the file system from its directory at once. Programs that use it go on until they close it; then the kernel frees the loop
    /// device too.
    pub fn unmount_lazily(self) {
        if let Err(error) = unmount(&self.directory, UnmountFlags::DETACH)
            && error != Errno::INVAL
        {
            tracing::warn!(directory = %self.directory.display(), %error, "cannot unmount");
        }
        self.forget_helper();
    }

    fn forget_helper(&self) {
        if self.has_helper {
            umount_helper::forget(&self.directory);
        }
    }

    /// Unmounts the file system (which writes everything back), then drops the device.
    ///
    /// # Errors
    /// [`FileSystemError::Busy`] hands it back in working order.
    pub fn unmount(self) -> Result<(), (FileSystemMount, FileSystemError)> {
        self.unmount_within(Duration::ZERO)
    }

    /// As [`FileSystemMount::unmount`], but waits for `patience` until nothing uses the file system any more.
    ///
    /// # Errors
    /// As [`FileSystemMount::unmount`].
    pub fn unmount_within(mut self, patience: Duration) -> Result<(), (FileSystemMount, FileSystemError)> {
        let until = Instant::now() + patience;
        loop {
            match self.unmount_now() {
                Err((busy, FileSystemError::Busy { .. })) if Instant::now() < until => {
                    std::thread::sleep(BUSY_PAUSE);
                    self = busy;
                }
                outcome => return outcome,
            }
        }
    }

    fn unmount_now(self) -> Result<(), (FileSystemMount, FileSystemError)> {
        match unmount(&self.directory, UnmountFlags::empty()) {
            // Not mounted any more: somebody was faster.
            Ok(()) | Err(Errno::INVAL) => {
                self.forget_helper();
                Ok(())
            }
            Err(Errno::BUSY) => {
                let directory = self.directory.clone();
                Err((self, FileSystemError::Busy { directory }))
            }
            Err(error) => {
                let directory = self.directory.clone();
                Err((self, FileSystemError::Unmount { directory, source: error.into() }))
            }
        }
    }
}

/// How a file system is mounted without writing to it at all.
fn without_replay(file_system: &str) -> Option<&'static CStr> {
    match file_system {
        "ext3" | "ext4" => Some(c"noload"),
        "xfs" => Some(c"norecovery"),
        "btrfs" => Some(c"rescue=nologreplay"),
        _ => None,
    }
}
