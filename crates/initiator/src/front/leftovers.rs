//! What an attachment leaves in the kernel whose process has died: the file system on its loop device, the loop device, and the FUSE mount
//! whose every file gives an error (ENOTCONN); or an NBD device and the file system on it. Finds it from the kernel's tables, not from notes, and removes it.
//!
//! Absent: which attachments there were; ending a process.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::front::kernel_nbd::{self, FoundDevice};
use crate::front::loop_device;
use crate::front::mounts::mounts;

/// What is left of an attachment, in the order in which it has to go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Where file systems are mounted from its block devices.
    pub file_systems: Vec<PathBuf>,
    /// The NBD device.
    pub nbd_device: Option<FoundDevice>,
    /// `/dev/loopN` on its file.
    pub loop_devices: Vec<PathBuf>,
    /// How many FUSE mounts there are on its directory.
    pub fuse_mounts: usize,
    directory: PathBuf,
}

impl Leftovers {
    /// What there is of the attachment in `directory`. It may also be one that is alive: ask for that first.
    ///
    /// # Errors
    /// If `/proc` or `/sys` cannot be read.
    pub fn of(directory: &Path) -> io::Result<Leftovers> {
        let mounts = mounts()?;
        let loops = loop_device::on_files_in(directory)?;
        let numbers: Vec<u32> = loops.iter().map(|(number, _)| *number).collect();
        let on_loops = mounts
            .iter()
            .filter(|mount| mount.device.0 == loop_device::LOOP_MAJOR && numbers.contains(&mount.device.1))
            .map(|mount| mount.directory.clone());
        Ok(Leftovers {
            file_systems: on_loops.collect(),
            nbd_device: None,
            loop_devices: loops.into_iter().map(|(_, path)| path).collect(),
            fuse_mounts: mounts.iter().filter(|mount| mount.directory == directory && mount.is_attachment()).count(),
            directory: directory.to_owned(),
        })
    }

    /// What there is of an attachment that has the NBD device at `path`, if the kernel knows that by `identifier`. It may also be alive.
    ///
    /// # Errors
    /// As [`Leftovers::of`].
    pub fn of_nbd_device(path: &Path, identifier: &str) -> io::Result<Leftovers> {
        let Some(found) = kernel_nbd::find(path, identifier) else { return Ok(Leftovers::default()) };
        let numbers = found.numbers()?;
        let on_it = mounts()?.into_iter().filter(|mount| mount.device == numbers).map(|mount| mount.directory);
        Ok(Leftovers { file_systems: on_it.collect(), nbd_device: Some(found), ..Leftovers::default() })
    }

    /// The directory of the attachment whose file system is mounted on `mount`, or which is that directory itself.
    ///
    /// # Errors
    /// If `/proc` or `/sys` cannot be read.
    pub fn directory_of(mount: &Path) -> io::Result<Option<PathBuf>> {
        for found in mounts()?.into_iter().rev().filter(|found| found.directory == mount) {
            if found.is_attachment() {
                return Ok(Some(found.directory));
            }
            if found.device.0 == loop_device::LOOP_MAJOR
                && let Some(file) = loop_device::backing_file(found.device.1)
                && let Some(directory) = file.parent()
                && Leftovers::of(directory)?.fuse_mounts > 0
            {
                return Ok(Some(directory.to_owned()));
            }
        }
        Ok(None)
    }

    /// Nothing is left.
    pub fn is_empty(&self) -> bool {
        self.file_systems.is_empty()
            && self.loop_devices.is_empty()
            && self.nbd_device.is_none()
            && self.fuse_mounts == 0
    }

    /// Removes it. What a program still uses is detached lazily: it leaves the directory at once, and the kernel lets go of it when the
    /// program does. Returns what was done, for people.
    ///
    /// # Errors
    /// What could not be removed, and how to do it by hand.
    pub fn remove(&self) -> io::Result<Vec<String>> {
        let mut done = Vec::new();
        if let Some(device) = &self.nbd_device {
            // First: what waits for the dead would make each of the next steps wait.
            let shown = device.path().display();
            device.disconnect().map_err(|error| by_hand(io::Error::other(error), format!("nbd-client -d {shown}")))?;
            done.push(format!("ended {shown}"));
        }
        for directory in self.file_systems.iter().rev() {
            let shown = directory.display();
            match unmount(directory, UnmountFlags::empty()) {
                Ok(()) | Err(Errno::INVAL) => done.push(format!("unmounted {shown}")),
                // In use, or it cannot write back to what is dead: it ends when nobody uses it any more.
                Err(_) => {
                    unmount(directory, UnmountFlags::DETACH)
                        .map_err(|error| by_hand(error.into(), format!("umount -l {shown}")))?;
                    done.push(format!("unmounted {shown} lazily: programs still use it, and get errors"));
                }
            }
        }
        for device in &self.loop_devices {
            let shown = device.display();
            loop_device::release(device).map_err(|error| by_hand(error, format!("losetup -d {shown}")))?;
            done.push(format!("freed {shown}"));
        }
        for _ in 0..self.fuse_mounts {
            let shown = self.directory.display();
            unmount_fuse(&self.directory).map_err(|error| by_hand(error, format!("umount -l {shown}")))?;
            done.push(format!("unmounted {shown}"));
        }
        Ok(done)
    }
}

fn by_hand(error: io::Error, command: String) -> io::Error {
    io::Error::new(error.kind(), format!("{error}; try as root: {command}"))
}

/// Lazily, since the dead need not agree; by the helper of FUSE where this user may not unmount.
fn unmount_fuse(directory: &Path) -> io::Result<()> {
    match unmount(directory, UnmountFlags::DETACH) {
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(Errno::PERM) => {
            let mut helper = Command::new("fusermount3");
            helper
                .args(["-u", "-z", "--"])
                .arg(directory)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            match helper.status() {
                Ok(status) if status.success() => Ok(()),
                _ => Err(Errno::PERM.into()),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Has the kernel fail every request of the FUSE mounts on `directory`, also those that it waits for now. Needs root and fusectl.
///
/// # Errors
/// If there is no control file system, or the connection is not ours.
pub fn abort_fuse(directory: &Path) -> io::Result<()> {
    for mount in mounts()?.into_iter().filter(|mount| mount.directory == directory && mount.is_attachment()) {
        fs::write(format!("/sys/fs/fuse/connections/{}/abort", mount.device.1), b"1")?;
    }
    Ok(())
}
