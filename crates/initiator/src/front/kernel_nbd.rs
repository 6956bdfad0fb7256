//! A block device, `/dev/nbdN`, that the kernel's NBD client makes from a connected socket. On the other end of it this process serves the
//! volume ([`NbdSocketServer`](super::nbd::NbdSocketServer)).
//!
//! The device outlives the process: the kernel keeps it, and the requests on it, until another process brings a new connection
//! ([`NbdDevice::reconnect`]) or it is told to end. There is one connection, and no limit to the time of a request: after such a limit, or as
//! soon as there are several connections, the driver sends a request again elsewhere while the server still has it, and the older copy
//! could then be executed after a newer write.
//!
//! Absent: who serves; which process of a dead one takes its device over.

mod message;
mod netlink;
mod sysfs;

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use strongroom_block::{BlockDevice, DeviceError, Lba};

use super::block_node::{self, BlockDeviceNode};
use crate::blocking::read_blocking;
use message::{Attribute, DISCONNECT_ON_CLOSE};
use netlink::Driver;

/// How long the kernel holds requests back while no process serves the device. After that they fail.
pub const RECOVERY_PATIENCE: Duration = Duration::from_secs(300);
/// How often the kernel looks whether the connection is another one by now than the one that a request was sent on, and sends it again if
/// so, in milliseconds. (It logs each request that it finds waiting.)
const REQUEST_CHECK_MS: u32 = 10_000;
/// How long the device's node may take to appear, and programs such as udev's to close the device.
const NODE_PATIENCE: Duration = Duration::from_secs(10);
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How the names of our devices begin, and how long they are at most, in bytes.
const IDENTIFIER_PREFIX: &str = "strongroom:";
const IDENTIFIER_BYTES_MAX: usize = 255;

/// Why there is no NBD device, or why it stays.
#[derive(Debug, thiserror::Error)]
pub enum NbdDeviceError {
    /// The kernel cannot do it.
    #[error(
        "this kernel has no NBD client: load it (modprobe nbd), or use a kernel that has it (CONFIG_BLK_DEV_NBD), or leave --nbd out: \
         --to has the volume as a file, and with --mount or --block-device on a loop device"
    )]
    NoDriver,
    /// It is for root.
    #[error("only root may make a block device; run it as root, or leave --nbd out for a file that this user can use")]
    NotRoot,
    /// The kernel refuses it.
    #[error("the kernel's NBD client does not {action}: {source}; `dmesg | tail` says more")]
    Driver {
        /// What was asked of it.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The node cannot be used.
    #[error("cannot use {path}: {source}")]
    Node {
        /// `/dev/nbdN`.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The node is not what was made.
    #[error("{path} did not have the volume's size within {} s; `dmesg | tail` says more", NODE_PATIENCE.as_secs())]
    Size {
        /// `/dev/nbdN`.
        path: PathBuf,
    },
    /// The first blocks cannot be read.
    #[error("cannot read the volume: {0}")]
    Read(#[from] DeviceError),
    /// Programs use it.
    #[error("{path} is in use; close what uses it (see `fuser -v {path}`), then detach again")]
    InUse {
        /// `/dev/nbdN`.
        path: PathBuf,
    },
    /// The connection has not ended.
    #[error("{path} has a process that serves it already")]
    Served {
        /// `/dev/nbdN`.
        path: PathBuf,
    },
}

impl NbdDeviceError {
    fn driver(action: &'static str) -> impl Fn(io::Error) -> NbdDeviceError {
        move |source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => NbdDeviceError::NotRoot,
            _ => NbdDeviceError::Driver { action, source },
        }
    }
}

/// Whether this process can have the kernel make such devices.
///
/// # Errors
/// [`NbdDeviceError::NoDriver`], [`NbdDeviceError::NotRoot`].
pub fn check() -> Result<(), NbdDeviceError> {
    driver()?;
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(NbdDeviceError::NotRoot) }
}

fn driver() -> Result<Driver, NbdDeviceError> {
    let found = Driver::find().map_err(NbdDeviceError::driver("answer"))?;
    found.ok_or(NbdDeviceError::NoDriver)
}

/// What the kernel knows the device of an attachment by: the volume, and where a file system on it is mounted.
pub fn identifier(volume: &str, mount: Option<&Path>) -> String {
    let mount = mount.map(|mount| format!(" {}", mount.display())).unwrap_or_default();
    let mut identifier = format!("{IDENTIFIER_PREFIX}{volume}{mount}");
    while identifier.len() > IDENTIFIER_BYTES_MAX {
        identifier.pop();
    }
    identifier
}

/// The device at `path`, if it is connected and known by that name. Its process may be alive.
pub fn find(path: &Path, identifier: &str) -> Option<FoundDevice> {
    let index = sysfs::index_of(path)?;
    let found = || FoundDevice { index, path: path.to_owned() };
    (sysfs::backend(index)? == identifier).then(found)
}

/// A device that some process has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDevice {
    index: u32,
    path: PathBuf,
}

impl FoundDevice {
    /// `/dev/nbdN`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its major and minor number.
    pub(crate) fn numbers(&self) -> io::Result<(u32, u32)> {
        sysfs::numbers(self.index)
    }

    /// Ends it: every request fails, from now on and those that wait.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn disconnect(&self) -> Result<(), NbdDeviceError> {
        driver()?.disconnect(self.index).map_err(NbdDeviceError::driver("end the device"))
    }
}

/// What a device is made from.
#[derive(Clone, Debug)]
pub struct NbdDeviceOptions {
    /// What it is known by: [`identifier`].
    pub identifier: String,
    /// Of the volume, in bytes.
    pub size_bytes: u64,
    /// Of its sectors, in bytes: [`sector_bytes`].
    pub sector_bytes: u32,
    /// What the server can do (NBD_FLAG_…).
    pub transmission_flags: u16,
    /// It is never written to.
    pub read_only: bool,
}

impl NbdDeviceOptions {
    fn attributes(&self) -> [Attribute<'_>; 3] {
        [
            Attribute::SizeBytes(self.size_bytes),
            Attribute::DeadConnectionTimeoutS(RECOVERY_PATIENCE.as_secs()),
            Attribute::BackendIdentifier(&self.identifier),
        ]
    }
}

/// The sector size for a device on that volume, in bytes: its block size, if the kernel and the file system on it take that, else the largest
/// smaller one that they take. The caller must be the only consumer of the device's completions.
///
/// # Errors
/// [`NbdDeviceError::Read`].
pub fn sector_bytes(device: &dyn BlockDevice) -> Result<u32, NbdDeviceError> {
    let geometry = device.geometry();
    let block_bytes = geometry.block_size.bytes();
    let blocks =
        (block_node::START_BYTES as u64).div_ceil(block_bytes.into()).min(geometry.bytes() / u64::from(block_bytes));
    let start = read_blocking(device, Lba(0), blocks)?;
    // The driver takes no sectors that are larger than a page.
    let page_bytes = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
    Ok(block_node::sector_bytes_max(&start, block_bytes).min(page_bytes))
}

/// A device of ours. Dropped, it stays in the kernel and waits for another process: it is ended explicitly, because that can be refused.
#[derive(Debug)]
pub struct NbdDevice {
    driver: Driver,
    index: u32,
    path: PathBuf,
    device: File,
    options: NbdDeviceOptions,
}

impl NbdDevice {
    /// Has the kernel make a device from `socket`, behind which requests are answered already, and waits for its node.
    ///
    /// # Errors
    /// [`NbdDeviceError`]; there is no device then.
    pub fn connect(socket: OwnedFd, options: NbdDeviceOptions) -> Result<NbdDevice, NbdDeviceError> {
        let driver = driver()?;
        let more = [
            Attribute::BlockBytes(options.sector_bytes.into()),
            Attribute::TimeoutS(0),
            Attribute::ServerFlags(options.transmission_flags),
        ];
        let attributes = [&options.attributes()[..], &more].concat();
        let index = driver.connect(&attributes, socket.as_fd()).map_err(NbdDeviceError::driver("make a device"))?;
        // The kernel has its own reference; with ours the server would not notice that it lets go.
        drop(socket);
        let opened = open(index, &options);
        let opened = opened.inspect_err(|_| {
            let _ = driver.disconnect(index);
        });
        let (path, device) = opened?;
        let name = sysfs::name(index);
        block_node::tune_queue(&name);
        block_node::set_queue(&name, "io_timeout", REQUEST_CHECK_MS);
        tracing::info!(device = %path.display(), sector_bytes = options.sector_bytes, "NBD device on the volume");
        Ok(NbdDevice { driver, index, path, device, options })
    }

    /// Goes on with a device whose process has died, on a new connection. The kernel sends the requests again that were under way.
    ///
    /// # Errors
    /// [`NbdDeviceError`]; the device is as it was.
    pub fn reconnect(
        found: &FoundDevice,
        socket: OwnedFd,
        options: NbdDeviceOptions,
    ) -> Result<NbdDevice, NbdDeviceError> {
        let driver = driver()?;
        let attributes = [&[Attribute::Index(found.index)][..], &options.attributes()].concat();
        let new = driver.reconfigure(&attributes, Some(socket.as_fd()));
        new.map_err(NbdDeviceError::driver("take another connection"))?;
        drop(socket);
        let (path, device) = open(found.index, &options)?;
        tracing::info!(device = %path.display(), "the NBD device goes on");
        Ok(NbdDevice { driver, index: found.index, path, device, options })
    }

    /// `/dev/nbdN`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What to do when the volume has grown, with its new size in bytes.
    pub fn growth_follower(&self) -> impl Fn(u64) -> Result<(), NbdDeviceError> + Send + 'static + use<> {
        let (index, identifier) = (self.index, self.options.identifier.clone());
        move |bytes| {
            let attributes =
                [Attribute::Index(index), Attribute::SizeBytes(bytes), Attribute::BackendIdentifier(&identifier)];
            driver()?.reconfigure(&attributes, None).map_err(NbdDeviceError::driver("change the device's size"))
        }
    }

    /// Writes back what the kernel has cached of the device, and ends it, unless a program has it open.
    ///
    /// # Errors
    /// [`NbdDeviceError::InUse`] and the others hand it back in working order.
    #[expect(clippy::result_large_err, reason = "once at the end of an attachment; the caller gets the device back")]
    pub fn disconnect_unless_open(self) -> Result<(), (NbdDevice, NbdDeviceError)> {
        if !self.options.read_only
            && let Err(error) = self.device.sync_all()
        {
            // The volume's own device counts what was lost.
            tracing::error!(device = %self.path.display(), %error, "what the kernel has cached of it cannot be written back");
        }
        // The kernel ends it when the last one closes it: nobody can open it in between.
        if let Err(error) = self.set_client_flags(DISCONNECT_ON_CLOSE) {
            return if self.is_connected() { Err((self, error)) } else { Ok(()) };
        }
        let NbdDevice { driver, index, path, device, options } = self;
        drop(device);
        let until = Instant::now() + CLOSE_PATIENCE;
        while is_connected(index, &options.identifier) {
            if Instant::now() < until {
                std::thread::sleep(LOOK_EVERY);
                continue;
            }
            return match File::options().read(true).write(!options.read_only).open(&path) {
                Ok(device) => {
                    let device = NbdDevice { driver, index, path, device, options };
                    device.stay()
                }
                // It has ended after all.
                Err(error) => {
                    tracing::debug!(%error, path = %path.display(), "the device has ended late");
                    Ok(())
                }
            };
        }
        Ok(())
    }

    /// It is in use: the kernel does not end it any more when it is closed.
    #[expect(clippy::result_large_err, reason = "once at the end of an attachment; the caller gets the device back")]
    fn stay(self) -> Result<(), (NbdDevice, NbdDeviceError)> {
        match self.set_client_flags(0) {
            Ok(()) => {
                let path = self.path.clone();
                Err((self, NbdDeviceError::InUse { path }))
            }
            Err(_) if !self.is_connected() => Ok(()),
            Err(error) => Err((self, error)),
        }
    }

    fn set_client_flags(&self, flags: u64) -> Result<(), NbdDeviceError> {
        let identifier = Attribute::BackendIdentifier(&self.options.identifier);
        let attributes = [Attribute::Index(self.index), Attribute::ClientFlags(flags), identifier];
        self.driver.reconfigure(&attributes, None).map_err(NbdDeviceError::driver("end the device"))
    }

    fn is_connected(&self) -> bool {
        is_connected(self.index, &self.options.identifier)
    }

    /// Ends it although programs use it: every request fails.
    pub fn disconnect(&self) {
        if let Err(error) = self.driver.disconnect(self.index) {
            let device = self.path.display();
            tracing::warn!(%device, %error, "the kernel does not end the NBD device; try nbd-client -d");
        }
    }
}

impl BlockDeviceNode for NbdDevice {
    fn path(&self) -> &Path {
        &self.path
    }

    fn volume(&self) -> &Path {
        &self.path
    }

    fn device(&self) -> &File {
        &self.device
    }

    fn sector_bytes(&self) -> u32 {
        self.options.sector_bytes
    }
}

fn is_connected(index: u32, identifier: &str) -> bool {
    sysfs::backend(index).is_some_and(|backend| backend == identifier)
}

/// Opens the device once its node is there and has the size that was asked for.
fn open(index: u32, options: &NbdDeviceOptions) -> Result<(PathBuf, File), NbdDeviceError> {
    let path = Path::new("/dev").join(sysfs::name(index));
    let until = Instant::now() + NODE_PATIENCE;
    loop {
        match try_open(index, options.read_only) {
            Ok((device, bytes)) if bytes == options.size_bytes => return Ok((path, device)),
            Ok(_) if Instant::now() >= until => return Err(NbdDeviceError::Size { path }),
            Err(source) if Instant::now() >= until => return Err(NbdDeviceError::Node { path, source }),
            Ok(_) | Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

/// The device, and its size in bytes.
fn try_open(index: u32, read_only: bool) -> io::Result<(File, u64)> {
    let (major, minor) = sysfs::numbers(index)?;
    let path = block_node::device_node(&sysfs::name(index), major, minor)?;
    let mut device = File::options().read(true).write(!read_only).open(path)?;
    let bytes = device.seek(SeekFrom::End(0))?;
    Ok((device, bytes))
}

#[cfg(test)]
mod tests {
    //! Proves what devices are known by, and what is said where the kernel has none. (What it does with them: scripts/test-nbd.sh.)
    use super::*;

    #[test]
    fn a_device_is_known_by_its_volume_and_its_mount_point() {
        assert_eq!(identifier("strongroom://storage/vault", None), "strongroom:strongroom://storage/vault");
        let mounted = identifier("strongroom://storage/vault", Some(Path::new("/mnt/vault")));
        assert_eq!(mounted, "strongroom:strongroom://storage/vault /mnt/vault");
        let long = identifier("x", Some(Path::new(&"\u{e9}".repeat(300))));
        assert!(long.len() <= IDENTIFIER_BYTES_MAX && long.starts_with("strongroom:x \u{e9}"), "{long}");
    }

    #[test]
    fn a_device_of_another_one_is_not_found() {
        assert_eq!(find(Path::new("/dev/nbd4095"), &identifier("vault", None)), None);
        assert_eq!(find(Path::new("/dev/loop0"), &identifier("vault", None)), None);
    }

    #[test]
    fn a_kernel_without_the_driver_is_named() {
        match check() {
            Ok(()) => eprintln!("this kernel has the driver"),
            Err(error @ NbdDeviceError::NoDriver) => {
                let words = error.to_string();
                assert!(words.contains("modprobe nbd") && words.contains("CONFIG_BLK_DEV_NBD"), "{words}");
            }
            Err(NbdDeviceError::NotRoot) => assert!(!rustix::process::geteuid().is_root()),
            Err(error) => panic!("{error}"),
        }
    }
}
