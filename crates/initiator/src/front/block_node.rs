//! A block device that the kernel makes of an attached volume, whichever driver it has: its node, its queue, what is on it, and what the kernel
//! has cached of it. Absent: how it is made (`loop_device`, `kernel_nbd`); mounting (`file_system`).

#![allow(unsafe_code)] // The cache of a block device is dropped by an ioctl.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::io::Errno;

const BLKFLSBUF: libc::c_ulong = 0x1261;
/// Blocks of a new ext4, in bytes: the largest that every machine mounts.
const EXT_BLOCK_BYTES: u32 = 4096;
/// How much of a device's start tells which file system is on it, in bytes.
pub(super) const START_BYTES: usize = 0x10_0A0;
/// How much of a device's end is looked at before a file system is made on it, in bytes: there are signatures of RAID and ZFS there.
const END_BYTES: u64 = 1 << 20;
/// How far the kernel reads ahead of a sequential reader of the file system, in KiB: four requests, so that the network has the next ones
/// while one is copied.
const READ_AHEAD_KIB: u32 = 4096;
/// Requests of the device's queue, in KiB: no larger than one FUSE request, or each would be split into a large and a small one.
const REQUEST_KIB: u32 = 1024;

/// Why there is no file system on a block device, or why it stays mounted.
#[derive(Debug, thiserror::Error)]
pub enum FileSystemError {
    /// Nothing known on the volume.
    #[error(
        "no ext4, xfs or btrfs on {volume}; to make one add --mkfs ext4, or name the type of another one with --fstype"
    )]
    NoFileSystem {
        /// The volume's file.
        volume: PathBuf,
    },
    /// A file system is to be made where there may be something.
    #[error(
        "there is {found} on {volume}, which making a file system would destroy; leave --mkfs out to mount it, or make every block \
         absent first (strongroom volume format)"
    )]
    NotBlank {
        /// The volume's file.
        volume: PathBuf,
        /// What is there.
        found: String,
    },
    /// `mkfs` failed.
    #[error("cannot make a file system: {command}: {problem}")]
    Make {
        /// The program and its arguments.
        command: String,
        /// What it said.
        problem: String,
    },
    /// The first blocks could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The block device.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// `mount` failed.
    #[error("cannot mount {file_system} on {directory}: {source}; `dmesg | tail` says more")]
    Mount {
        /// The file system's type.
        file_system: String,
        /// The directory.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something still uses the file system.
    #[error("{directory} is in use; close what uses it (see `fuser -vm {directory}`), then detach again")]
    Busy {
        /// The directory.
        directory: PathBuf,
    },
    /// `umount` failed.
    #[error("cannot unmount {directory}: {source}")]
    Unmount {
        /// The directory.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// See the module.
pub trait BlockDeviceNode: fmt::Debug + Send {
    /// `/dev/loopN`, `/dev/nbdN`.
    fn path(&self) -> &Path;

    /// What people know the volume by: its file, or the device itself.
    fn volume(&self) -> &Path;

    /// The device, open.
    fn device(&self) -> &File;

    /// The sector size that the kernel took, in bytes.
    fn sector_bytes(&self) -> u32;

    /// Which file system is on it, by its magic.
    ///
    /// # Errors
    /// [`FileSystemError`] if its blocks cannot be read or hold nothing known.
    fn detect_file_system(&self) -> Result<&'static str, FileSystemError> {
        let start = read_start(self.device())
            .map_err(|source| FileSystemError::Read { path: self.path().to_owned(), source })?;
        file_system_magic(&start).ok_or_else(|| FileSystemError::NoFileSystem { volume: self.volume().to_owned() })
    }

    /// Makes a file system of that type (`mkfs.TYPE`) on a device that is blank at its start and its end.
    ///
    /// # Errors
    /// [`FileSystemError::NotBlank`] if anything is there; if there is no such program, or it fails.
    fn make_file_system(&self, file_system: &str) -> Result<(), FileSystemError> {
        let not_blank =
            |found: &str| FileSystemError::NotBlank { volume: self.volume().to_owned(), found: found.to_owned() };
        let failed = |source| FileSystemError::Read { path: self.volume().to_owned(), source };
        let start = read_start(self.device()).map_err(failed)?;
        if let Some(found) = file_system_magic(&start) {
            return Err(not_blank(&format!("a file system ({found})")));
        }
        let end = read_end(self.device()).map_err(failed)?;
        if start.iter().chain(&end).any(|&byte| byte != 0) {
            return Err(not_blank("something"));
        }
        let program = format!("mkfs.{file_system}");
        let mut command = std::process::Command::new(&program);
        command.arg("-q");
        if matches!(file_system, "ext3" | "ext4") && self.sector_bytes() <= EXT_BLOCK_BYTES {
            // A small one would get blocks of 1 KiB, and every write would read first.
            command.args(["-b", &EXT_BLOCK_BYTES.to_string()]);
        }
        command.arg(self.path()).stdin(std::process::Stdio::null());
        tracing::info!(file_system, device = %self.path().display(), "making a file system");
        let made = |problem: String| FileSystemError::Make {
            command: format!("{program} {}", self.path().display()),
            problem,
        };
        let output = command.output().map_err(|error| made(format!("{error}; is {program} installed?")))?;
        if !output.status.success() {
            return Err(made(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        Ok(())
    }

    /// Drops what the kernel has cached of the device itself, after it has tried to write back what is dirty (`BLKFLSBUF`).
    ///
    /// # Errors
    /// What the kernel says.
    fn drop_cached(&self) -> io::Result<()> {
        // SAFETY: BLKFLSBUF takes no argument; the descriptor is open.
        match unsafe { libc::ioctl(self.device().as_raw_fd(), BLKFLSBUF) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl<D: BlockDeviceNode + Sync> BlockDeviceNode for Arc<D> {
    fn path(&self) -> &Path {
        (**self).path()
    }

    fn volume(&self) -> &Path {
        (**self).volume()
    }

    fn device(&self) -> &File {
        (**self).device()
    }

    fn sector_bytes(&self) -> u32 {
        (**self).sector_bytes()
    }
}

/// The device's node; made if nobody did (a container has no udev).
pub(super) fn device_node(name: &str, major: u32, minor: u32) -> io::Result<PathBuf> {
    let path = Path::new("/dev").join(name);
    if !path.exists() {
        match mknodat(CWD, &path, FileType::BlockDevice, Mode::from_raw_mode(0o600), makedev(major, minor)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(path)
}

/// Has the kernel use large requests, and read far ahead. Without it the device is slower, no more.
pub(super) fn tune_queue(name: &str) {
    set_queue(name, "max_sectors_kb", REQUEST_KIB);
    set_queue(name, "read_ahead_kb", READ_AHEAD_KIB);
}

/// Sets one of the queue's attributes (Documentation/ABI/stable/sysfs-block).
pub(super) fn set_queue(name: &str, attribute: &str, value: u32) {
    let path = format!("/sys/class/block/{name}/queue/{attribute}");
    if let Err(error) = std::fs::write(&path, value.to_string()) {
        tracing::debug!(path, value, %error, "the kernel keeps its own value");
    }
}

/// The largest sector size that the file system takes whose first bytes these are, in bytes; at most `block_bytes`, the volume's.
pub(super) fn sector_bytes_max(start: &[u8], block_bytes: u32) -> u32 {
    let sector_bytes_max = file_system_block_bytes(start).map_or(block_bytes, |bytes| bytes.min(block_bytes));
    if sector_bytes_max < block_bytes {
        tracing::warn!(
            file_system_block = sector_bytes_max,
            volume_block = block_bytes,
            "the file system's blocks are smaller than the volume's: every write reads first; \
             mkfs with blocks as large as the volume's is faster"
        );
    }
    sector_bytes_max
}

/// As much of the start of a device as tells which file system is on it.
pub(super) fn read_start(device: &File) -> io::Result<Vec<u8>> {
    let mut start = vec![0; START_BYTES];
    let mut filled = 0;
    while filled < start.len() {
        match device.read_at(&mut start[filled..], filled as u64)? {
            0 => break,
            bytes => filled += bytes,
        }
    }
    start.truncate(filled);
    Ok(start)
}

/// The end of a device.
fn read_end(device: &File) -> io::Result<Vec<u8>> {
    use std::io::{Seek, SeekFrom};
    let mut device = device;
    let bytes = device.seek(SeekFrom::End(0))?;
    let mut end = vec![0; bytes.min(END_BYTES) as usize];
    device.read_exact_at(&mut end, bytes - bytes.min(END_BYTES))?;
    Ok(end)
}

/// The smallest unit, in bytes, that the file system whose first bytes these are reads and writes: the kernel mounts it
/// on no larger sectors. `None` if there is none, or its superblock makes no sense.
fn file_system_block_bytes(start: &[u8]) -> Option<u32> {
    let field = |at: usize| start.get(at..at + 4)?.try_into().ok();
    let bytes = match file_system_magic(start)? {
        // s_log_block_size.
        "ext4" => 1024_u32.checked_shl(u32::from_le_bytes(field(0x418)?))?,
        // sb_sectsize.
        "xfs" => u32::from_be_bytes(field(102)?) >> 16,
        // sectorsize.
        _ => u32::from_le_bytes(field(0x10_090)?),
    };
    (bytes.is_power_of_two() && (512..=65536).contains(&bytes)).then_some(bytes)
}

/// The type of the file system whose first bytes these are.
fn file_system_magic(start: &[u8]) -> Option<&'static str> {
    let has = |at: usize, magic: &[u8]| start.get(at..at + magic.len()) == Some(magic);
    if has(0x438, &[0x53, 0xEF]) {
        Some("ext4")
    } else if has(0, b"XFSB") {
        Some("xfs")
    } else if has(0x10_040, b"_BHRfS_M") {
        Some("btrfs")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    //! Proves that the file system types and their block sizes are told from the first bytes. (The loop device itself is
    //! tested with FUSE.)
    use super::*;

    #[test]
    fn magic() {
        let mut start = vec![0; 0x10_080];
        assert_eq!(file_system_magic(&start), None);
        assert_eq!(file_system_magic(&[]), None);
        start[0x10_040..0x10_048].copy_from_slice(b"_BHRfS_M");
        assert_eq!(file_system_magic(&start), Some("btrfs"));
        start[..4].copy_from_slice(b"XFSB");
        assert_eq!(file_system_magic(&start), Some("xfs"));
        start[0x438..0x43a].copy_from_slice(&[0x53, 0xEF]);
        assert_eq!(file_system_magic(&start), Some("ext4"));
    }

    #[test]
    fn block_sizes() {
        let mut ext4 = vec![0; 0x10_0A0];
        assert_eq!(file_system_block_bytes(&ext4), None);
        ext4[0x438..0x43a].copy_from_slice(&[0x53, 0xEF]);
        assert_eq!(file_system_block_bytes(&ext4), Some(1024));
        ext4[0x418] = 2;
        assert_eq!(file_system_block_bytes(&ext4), Some(4096));
        ext4[0x418] = 200;
        assert_eq!(file_system_block_bytes(&ext4), None, "nonsense is no block size");
        let mut xfs = vec![0; 512];
        xfs[..4].copy_from_slice(b"XFSB");
        xfs[102..104].copy_from_slice(&512_u16.to_be_bytes());
        xfs[104..106].copy_from_slice(&[1, 0]);
        assert_eq!(file_system_block_bytes(&xfs), Some(512));
    }
}
