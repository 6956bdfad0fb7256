//! A loop device on the volume's file: what `attach --mount` adds to the FUSE file, and mounts the file system from.
//!
//! The loop device gets the volume's block size as its sector size where the kernel allows that, so that file systems
//! send whole blocks, and direct I/O, so that nothing is cached twice. Absent: mounting ([`super::file_system`]); finding volumes.

#![allow(unsafe_code)] // The loop driver speaks ioctl.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::block_node::{BlockDeviceNode, device_node, read_start, sector_bytes_max, tune_queue};

const LOOP_SET_STATUS64_BYTES: usize = 232;
const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
const LOOP_SET_CAPACITY: libc::c_ulong = 0x4C07;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_DIRECT_IO: u32 = 16;
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

/// Why there is no loop device on the volume's file.
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
    /// The first blocks could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The loop device.
        path: PathBuf,
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
        let sector_bytes_max = sector_bytes_max(&start, block_bytes);
        let control = File::options().read(true).write(true).open("/dev/loop-control").map_err(LoopError::NoDevice)?;
        let mut last = io::Error::from_raw_os_error(libc::EBUSY);
        for _ in 0..GET_FREE_TRIES {
            // SAFETY: LOOP_CTL_GET_FREE takes no argument; the descriptor is open.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(LoopError::NoDevice(io::Error::last_os_error()));
            }
            let name = format!("loop{number}");
            let device_path = device_node(&name, LOOP_MAJOR, number as u32).map_err(LoopError::NoDevice)?;
            let device =
                File::options().read(true).write(!read_only).open(&device_path).map_err(LoopError::NoDevice)?;
            match configure(&device, backing, path, sector_bytes_max, read_only) {
                Ok(sector_bytes) => {
                    tune_queue(&name);
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
}

impl BlockDeviceNode for LoopDevice {
    fn path(&self) -> &Path {
        &self.path
    }

    fn volume(&self) -> &Path {
        &self.volume
    }

    fn device(&self) -> &File {
        &self.device
    }

    fn sector_bytes(&self) -> u32 {
        self.sector_bytes
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
    debug_assert!([LOOP_CLR_FD, LOOP_SET_CAPACITY].contains(&request));
    // SAFETY: neither of them takes an argument; the descriptor is open.
    match unsafe { libc::ioctl(device.as_raw_fd(), request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
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
