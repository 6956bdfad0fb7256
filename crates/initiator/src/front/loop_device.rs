//! A loop device on the volume's file: what `attach --mount` adds to the FUSE file, and mounts the file system from.
//!
//! The loop device gets the volume's block size as its sector size where the kernel allows that, so that file systems
//! send whole blocks, and direct I/O, so that nothing is cached twice. Absent: mounting ([`super::file_system`]); finding volumes.

#![allow(unsafe_code)] // The loop driver speaks ioctl.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

const LOOP_SET_STATUS64_BYTES: usize = 232;
const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
const LOOP_SET_CAPACITY: libc::c_ulong = 0x4C07;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const BLKFLSBUF: libc::c_ulong = 0x1261;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// Blocks of a new ext4, in bytes: the largest that every machine mounts.
const EXT_BLOCK_BYTES: u32 = 4096;
/// How much of a device's end is looked at before a file system is made on it, in bytes: there are signatures of RAID and ZFS there.
const END_BYTES: u64 = 1 << 20;
/// Requests of the loop device's queue, in KiB: no larger than one FUSE request, or each would be split into a large and a small one.
const REQUEST_KIB: u32 = 1024;
/// How far the kernel reads ahead of a sequential reader of the file system, in KiB: four requests, so that the network has the next ones
/// while one is copied.
const READ_AHEAD_KIB: u32 = 4096;
/// How often to look for another free loop device when somebody was faster.
const GET_FREE_TRIES: u32 = 32;
/// Major number of loop devices.
pub(crate) const LOOP_MAJOR: u32 = 7;

/// `struct loop_config` of linux/loop.h, with `struct loop_info64` in the middle.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

const _: () = assert!(std::mem::size_of::<LoopInfo64>() == LOOP_SET_STATUS64_BYTES);
const _: () = assert!(std::mem::size_of::<LoopConfig>() == 304);

/// Why there is no file system on the volume's file.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// No loop device could be had.
    #[error("no loop device: {0}; it needs root and the loop module (modprobe loop)")]
    NoDevice(io::Error),
    /// The kernel refused the volume's file behind a loop device.
    #[error("cannot put a loop device on {path}: {source}")]
    Configure {
        /// The volume's file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
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
        /// The loop device.
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

/// A loop device of ours. Dropped, it lets go of its file.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    /// What it is on.
    volume: PathBuf,
    device: File,
    sector_bytes: u32,
}

impl LoopDevice {
    /// Puts a free loop device on `backing`, opened by the caller, with sectors of `block_bytes` if the kernel and the
    /// file system on it take them, else the largest smaller ones that they take. (A small ext4 has blocks of 1 KiB,
    /// no matter what `mkfs` was told of sectors when it wrote to the file.)
    ///
    /// # Errors
    /// [`LoopError`] if there is no loop device or the kernel refuses the file.
    pub fn attach(backing: &File, path: &Path, block_bytes: u32, read_only: bool) -> Result<LoopDevice, LoopError> {
        let start = read_start(backing).map_err(|source| LoopError::Read { path: path.to_owned(), source })?;
        let sector_bytes_max = file_system_block_bytes(&start).map_or(block_bytes, |bytes| bytes.min(block_bytes));
        if sector_bytes_max < block_bytes {
            tracing::warn!(
                file_system_block = sector_bytes_max,
                volume_block = block_bytes,
                "the file system's blocks are smaller than the volume's: every write reads first; \
                 mkfs with blocks as large as the volume's is faster"
            );
        }
        let control = File::options().read(true).write(true).open("/dev/loop-control").map_err(LoopError::NoDevice)?;
        let mut last = io::Error::from_raw_os_error(libc::EBUSY);
        for _ in 0..GET_FREE_TRIES {
            // SAFETY: LOOP_CTL_GET_FREE takes no argument; the descriptor is open.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(LoopError::NoDevice(io::Error::last_os_error()));
            }
            let device_path = loop_node(number as u32).map_err(LoopError::NoDevice)?;
            let device =
                File::options().read(true).write(!read_only).open(&device_path).map_err(LoopError::NoDevice)?;
            match configure(&device, backing, path, sector_bytes_max, read_only) {
                Ok(sector_bytes) => {
                    tune_queue(number as u32);
                    tracing::info!(device = %device_path.display(), sector_bytes, "loop device on the volume");
                    return Ok(LoopDevice { path: device_path, volume: path.to_owned(), device, sector_bytes });
                }
                // Somebody else took this number between the two calls.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => last = error,
                Err(source) => return Err(LoopError::Configure { path: path.to_owned(), source }),
            }
        }
        Err(LoopError::NoDevice(last))
    }

    /// `/dev/loopN`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The sector size that the kernel took, in bytes.
    pub fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    /// Which file system is on it, by its magic.
    ///
    /// # Errors
    /// [`LoopError`] if its blocks cannot be read or hold nothing known.
    pub fn detect_file_system(&self) -> Result<&'static str, LoopError> {
        let start = read_start(&self.device).map_err(|source| LoopError::Read { path: self.path.clone(), source })?;
        file_system_magic(&start).ok_or_else(|| LoopError::NoFileSystem { volume: self.volume.clone() })
    }

    /// Makes a file system of that type (`mkfs.TYPE`) on a device that is blank at its start and its end.
    ///
    /// # Errors
    /// [`LoopError::NotBlank`] if anything is there; if there is no such program, or it fails.
    pub fn make_file_system(&self, file_system: &str) -> Result<(), LoopError> {
        let not_blank = |found: &str| LoopError::NotBlank { volume: self.volume.clone(), found: found.to_owned() };
        let failed = |source| LoopError::Read { path: self.volume.clone(), source };
        let start = read_start(&self.device).map_err(failed)?;
        if let Some(found) = file_system_magic(&start) {
            return Err(not_blank(&format!("a file system ({found})")));
        }
        let end = read_end(&self.device).map_err(failed)?;
        if start.iter().chain(&end).any(|&byte| byte != 0) {
            return Err(not_blank("something"));
        }
        let program = format!("mkfs.{file_system}");
        let mut command = std::process::Command::new(&program);
        command.arg("-q");
        if matches!(file_system, "ext3" | "ext4") && self.sector_bytes <= EXT_BLOCK_BYTES {
            // A small one would get blocks of 1 KiB, and every write would read first.
            command.args(["-b", &EXT_BLOCK_BYTES.to_string()]);
        }
        command.arg(&self.path).stdin(std::process::Stdio::null());
        tracing::info!(file_system, device = %self.path.display(), "making a file system");
        let made = |problem: String| LoopError::Make { command: format!("{program} {}", self.path.display()), problem };
        let output = command.output().map_err(|error| made(format!("{error}; is {program} installed?")))?;
        if !output.status.success() {
            return Err(made(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        Ok(())
    }
}

impl LoopDevice {
    /// Drops what the kernel has cached of the device itself, after it has tried to write back what is dirty (`BLKFLSBUF`).
    ///
    /// # Errors
    /// What the kernel says.
    pub fn drop_cached(&self) -> io::Result<()> {
        command(&self.device, BLKFLSBUF)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = command(&self.device, LOOP_CLR_FD) {
            tracing::warn!(device = %self.path.display(), %error, "the loop device keeps its file; losetup -d frees it");
        }
    }
}

/// The loop devices on files directly in `directory`, with their numbers.
pub(crate) fn on_files_in(directory: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/class/block")? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.strip_prefix("loop")?.parse().ok()) else { continue };
        if backing_file(number).is_some_and(|file| file.parent() == Some(directory)) {
            found.push((number, PathBuf::from(format!("/dev/loop{number}"))));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The file under a loop device; `None` if it has none.
pub(crate) fn backing_file(number: u32) -> Option<PathBuf> {
    let file = std::fs::read_to_string(format!("/sys/class/block/loop{number}/loop/backing_file")).ok()?;
    let file = file.trim_end_matches('\n');
    Some(PathBuf::from(file.strip_suffix(" (deleted)").unwrap_or(file)))
}

/// Takes the file from a loop device: at once, or when nobody has it open any more.
///
/// # Errors
/// What the kernel says; not if it has no file.
pub(crate) fn release(path: &Path) -> io::Result<()> {
    match command(&File::open(path)?, LOOP_CLR_FD) {
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(()),
        outcome => outcome,
    }
}

/// Gives a loop device, `/dev/loopN`, the size that its file has now.
///
/// # Errors
/// What the kernel says.
pub fn refresh_size(path: &Path) -> io::Result<()> {
    command(&File::open(path)?, LOOP_SET_CAPACITY)
}

/// One of the requests that take no argument.
fn command(device: &File, request: libc::c_ulong) -> io::Result<()> {
    debug_assert!([BLKFLSBUF, LOOP_CLR_FD, LOOP_SET_CAPACITY].contains(&request));
    // SAFETY: neither of them takes an argument; the descriptor is open.
    match unsafe { libc::ioctl(device.as_raw_fd(), request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// As much of the start of a device as tells which file system is on it.
fn read_start(device: &File) -> io::Result<Vec<u8>> {
    let mut start = vec![0; 0x10_0A0];
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

/// The device node; made if nobody did (a container has no udev).
fn loop_node(number: u32) -> io::Result<PathBuf> {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    let path = PathBuf::from(format!("/dev/loop{number}"));
    if !path.exists() {
        match mknodat(CWD, &path, FileType::BlockDevice, Mode::from_raw_mode(0o600), makedev(LOOP_MAJOR, number)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(path)
}

/// Has the kernel use requests that FUSE takes whole, and read far ahead. Without it the device is slower, no more.
fn tune_queue(number: u32) {
    for (name, kib) in [("max_sectors_kb", REQUEST_KIB), ("read_ahead_kb", READ_AHEAD_KIB)] {
        let path = format!("/sys/class/block/loop{number}/queue/{name}");
        if let Err(error) = std::fs::write(&path, kib.to_string()) {
            tracing::debug!(path, kib, %error, "the kernel keeps its own value");
        }
    }
}

/// Tries sector sizes from the largest down, direct I/O before buffered.
fn configure(device: &File, backing: &File, path: &Path, block_bytes: u32, read_only: bool) -> io::Result<u32> {
    let mut refusal = io::Error::from_raw_os_error(libc::EINVAL);
    for direct_io in [LO_FLAGS_DIRECT_IO, 0] {
        let mut sector_bytes = block_bytes;
        while sector_bytes >= 512 {
            let flags = direct_io | if read_only { LO_FLAGS_READ_ONLY } else { 0 };
            match configure_once(device, backing, path, sector_bytes, flags) {
                Ok(()) => {
                    if direct_io == 0 {
                        tracing::warn!("the kernel takes no direct I/O behind this loop device: data is cached twice");
                    }
                    return Ok(sector_bytes);
                }
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refusal = error,
                Err(error) => return Err(error),
            }
            sector_bytes /= 2;
        }
    }
    Err(refusal)
}

fn configure_once(device: &File, backing: &File, path: &Path, sector_bytes: u32, flags: u32) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let mut file_name = [0; 64];
    let name = path.as_os_str().as_bytes();
    let len = name.len().min(file_name.len() - 1);
    file_name[..len].copy_from_slice(&name[..len]);
    let config = LoopConfig {
        fd: backing.as_raw_fd() as u32,
        block_size: sector_bytes,
        info: LoopInfo64 {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags,
            file_name,
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    // SAFETY: `config` has the layout of struct loop_config (its size is asserted above) and outlives the call, which only
    // reads it.
    let code = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
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
