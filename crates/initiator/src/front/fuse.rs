//! The front end that any program can use: a volume as one file in a FUSE mount.
//!
//! The file is named after the volume and has its size, also when that grows ([`ShownSize`]). Direct I/O only: nothing is cached between
//! initiators, and what a program wrote is with the target when its `write` returns. Requests are answered in any order, so the kernel can
//! keep many in flight: by the device's thread, where that is the shorter way, or by one that takes its completions.
//! Absent: any knowledge of the network. This room sees a [`BlockDevice`].
//!
//! A file system on a loop device on this file can deadlock under memory pressure unless the process was prepared by
//! [`crate::safety::prepare_process`] first.

mod filesystem;
mod pending;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuser::{Config, MountOption, Notifier, Session, SessionACL};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{UnmountFlags, unmount};
use strongroom_block::{BlockDevice, DeviceError};

use crate::blocking::flush_blocking;
use crate::front::event::Event;
use crate::front::mounts::FUSE_SOURCE_PREFIX;
use filesystem::{FILE, VolumeFile};
use pending::Pending;

/// Largest write or read that the kernel sends in one piece, in bytes: its own limit is 256 pages by default.
const MAX_WRITE_BYTES: u32 = 1 << 20;
/// How long to wait for the kernel to let go of a file that was closed already.
const RELEASE_PATIENCE: Duration = Duration::from_millis(300);
/// How many event threads at most. Each holds a 16 MiB request buffer.
const THREADS_MAX: usize = 8;

/// How the file appears.
#[derive(Clone, Debug)]
pub struct FuseOptions {
    /// The file's name: the volume's ([`crate::VolumeUrl::file_name`]).
    pub file_name: String,
    /// No program may write.
    pub read_only: bool,
    /// Users other than ours may open the file, as its mode (0600) and their rights allow.
    pub allow_other: bool,
    /// Threads that take requests from the kernel (and copy and seal what is written).
    pub threads: usize,
}

impl FuseOptions {
    /// A writable file called `file_name`.
    pub fn new(file_name: impl Into<String>) -> FuseOptions {
        FuseOptions { file_name: file_name.into(), read_only: false, allow_other: false, threads: 2 }
    }
}

/// Why a volume could not be shown as a file, or the file not be taken away.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// The name is not one of a file.
    #[error("'{0}' cannot be a file's name; give a name without '/'")]
    FileName(String),
    /// The directory is not there, or is no directory.
    #[error(
        "{path}: not a directory that one can mount on: {source}; make it with mkdir, or unmount what is left there"
    )]
    MountPoint {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused the mount.
    #[error(
        "cannot mount FUSE on {path}: {source}; it needs /dev/fuse (modprobe fuse) and root, or fusermount3 (apt install fuse3)"
    )]
    Mount {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something still uses the file.
    #[error("{path} is in use; close what uses it (see `fuser -vm {path}`), then unmount it again")]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// Unmounting or serving failed.
    #[error("FUSE on {path}: {source}")]
    Serve {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The last flush failed.
    #[error("what was written last may not be durable: {0}")]
    Flush(#[from] DeviceError),
}

/// A volume shown as a file, until unmounted.
#[derive(Debug)]
pub struct FuseMount {
    mount_point: PathBuf,
    shown: ShownSize,
    device: DeviceHandle,
    session: Option<JoinHandle<io::Result<()>>>,
    replies: Option<JoinHandle<()>>,
    pending: Arc<Pending>,
    /// Readable once the kernel ended the mount, from inside or outside.
    ended: Arc<Event>,
}

/// What the kernel knows of the file's size.
#[derive(Clone, Debug)]
pub struct ShownSize {
    notifier: Notifier,
    file_path: PathBuf,
}

impl ShownSize {
    /// Has the kernel ask again, after the device has grown; returns what the file has then, in bytes.
    ///
    /// # Errors
    /// What the kernel says; so if the mount has ended.
    pub fn refresh(&self) -> io::Result<u64> {
        // Attributes alone: of data nothing is cached.
        self.notifier.inval_inode(FILE, -1, 0)?;
        Ok(self.file_path.metadata()?.len())
    }
}

struct DeviceHandle(Arc<dyn BlockDevice>);

impl std::fmt::Debug for DeviceHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0.geometry())
    }
}

impl FuseMount {
    /// Mounts on `mount_point` and serves from threads of its own. Takes over the device's completions.
    ///
    /// # Errors
    /// [`FuseError`] if the directory or the kernel refuses.
    pub fn start(
        device: Arc<dyn BlockDevice>,
        mount_point: &Path,
        options: &FuseOptions,
    ) -> Result<FuseMount, FuseError> {
        let name = &options.file_name;
        if name.is_empty() || name.contains(['/', '\0']) || name == "." || name == ".." {
            return Err(FuseError::FileName(name.clone()));
        }
        let at = |source| FuseError::MountPoint { path: mount_point.to_owned(), source };
        let mount_point = mount_point.canonicalize().map_err(at)?;
        if !mount_point.is_dir() {
            return Err(at(io::Error::from(io::ErrorKind::NotADirectory)));
        }
        let failed = |source| FuseError::Mount { path: mount_point.clone(), source };

        let pending = Arc::new(Pending::default());
        device.offer_completions(pending.clone());
        let file = VolumeFile::new(device.clone(), pending.clone(), options);
        let session = Session::new(file, &mount_point, &session_config(options)).map_err(failed)?;
        let shown = ShownSize { notifier: session.notifier(), file_path: mount_point.join(name) };
        let ended = Arc::new(Event::new().map_err(failed)?);
        let replies = {
            let (device, pending) = (device.clone(), pending.clone());
            let body = move || pending.reply_until_stopped(&*device);
            std::thread::Builder::new().name("fuse-replies".into()).spawn(body).map_err(failed)?
        };
        let serve = {
            let ended = ended.clone();
            let body = move || {
                let result = unless_unmounted(session.run());
                ended.signal();
                result
            };
            std::thread::Builder::new().name("fuse-session".into()).spawn(body).map_err(failed)?
        };
        tracing::info!(file = %shown.file_path.display(), bytes = device.geometry().bytes(), "volume attached as a file");
        Ok(FuseMount {
            mount_point,
            shown,
            device: DeviceHandle(device),
            session: Some(serve),
            replies: Some(replies),
            pending,
            ended,
        })
    }

    /// The volume's file.
    pub fn file_path(&self) -> &Path {
        &self.shown.file_path
    }

    /// The file's size, to be refreshed when the device has grown, from any thread.
    pub fn shown_size(&self) -> ShownSize {
        self.shown.clone()
    }

    /// The directory that was mounted on.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// A descriptor that becomes readable when the mount has ended, also when somebody else unmounted it.
    pub fn ended_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Waits until the mount has ended (true) or the time is over (false).
    pub fn wait_ended(&self, timeout: Option<Duration>) -> bool {
        let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        let mut fds = [PollFd::new(&*self.ended, PollFlags::IN)];
        matches!(poll(&mut fds, timeout.as_ref()), Ok(count) if count > 0)
    }

    /// Opens the volume's file, for direct I/O.
    pub fn open_file(&self, read_only: bool) -> io::Result<File> {
        use std::os::unix::fs::OpenOptionsExt;
        File::options()
            .read(true)
            .write(!read_only)
            .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC)
            .open(self.file_path())
    }

    /// Asks the kernel to end the mount, without waiting. With `lazy` the directory is freed at once and the file goes on
    /// serving those who have it open.
    ///
    /// # Errors
    /// [`FuseError::Busy`] while the file is open, unless `lazy`.
    pub fn request_unmount(&self, lazy: bool) -> Result<(), FuseError> {
        self.unmount_within(lazy, RELEASE_PATIENCE)
    }

    fn unmount_within(&self, lazy: bool, patience: Duration) -> Result<(), FuseError> {
        if self.wait_ended(Some(Duration::ZERO)) {
            return Ok(());
        }
        let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        let until = Instant::now() + patience;
        loop {
            match unmount(&self.mount_point, flags) {
                // A loop device or a closed file may just be on its way out: the kernel lets go of files a little later.
                Err(rustix::io::Errno::BUSY) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                outcome => break self.unmount_outcome(outcome),
            }
        }
    }

    fn unmount_outcome(&self, outcome: Result<(), rustix::io::Errno>) -> Result<(), FuseError> {
        match outcome {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::BUSY) => Err(FuseError::Busy { path: self.mount_point.clone() }),
            // Not mounted any more: somebody was faster.
            Err(rustix::io::Errno::INVAL) => Ok(()),
            Err(error) => Err(FuseError::Serve { path: self.mount_point.clone(), source: error.into() }),
        }
    }

    /// Unmounts (unless that has happened), answers what is still in flight, and makes everything written durable.
    ///
    /// # Errors
    /// [`FuseError::Busy`] hands the mount back in working order; the other errors come after it has ended.
    #[expect(clippy::result_large_err, reason = "once at the end of a mount; the caller gets the whole mount back")]
    pub fn finish(self) -> Result<(), (Option<FuseMount>, FuseError)> {
        self.finish_within(RELEASE_PATIENCE)
    }

    /// As [`FuseMount::finish`], but waits for `patience` until nothing uses the file any more.
    ///
    /// # Errors
    /// As [`FuseMount::finish`].
    #[expect(clippy::result_large_err, reason = "once at the end of a mount; the caller gets the whole mount back")]
    pub fn finish_within(mut self, patience: Duration) -> Result<(), (Option<FuseMount>, FuseError)> {
        if let Err(error) = self.unmount_within(false, patience) {
            return Err((Some(self), error));
        }
        self.stop().map_err(|error| (None, error))
    }

    fn stop(&mut self) -> Result<(), FuseError> {
        let served = match self.session.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(source))) => Err(source),
            Some(Err(_)) => Err(io::Error::other("the serving thread panicked")),
        };
        self.pending.stop();
        if let Some(replies) = self.replies.take() {
            let _ = replies.join();
            // From here on nobody else takes completions.
            flush_blocking(&*self.device.0)?;
        }
        served.map_err(|source| FuseError::Serve { path: self.mount_point.clone(), source })
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        if self.session.is_some() {
            // Lazily: a drop must not wait for a stranger to close the file.
            if let Err(error) = self.request_unmount(true) {
                tracing::warn!(%error, "could not unmount");
            }
            self.pending.stop();
        }
    }
}

/// What serving came to. A reader of /dev/fuse gets ENODEV once the connection is gone, which fuser takes for the end
/// that it is, but ECONNABORTED if it goes while a request is being handed over: the RELEASE of a file closed just before.
fn unless_unmounted(served: io::Result<()>) -> io::Result<()> {
    served.or_else(|error| if error.kind() == io::ErrorKind::ConnectionAborted { Ok(()) } else { Err(error) })
}

fn session_config(options: &FuseOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(format!("{FUSE_SOURCE_PREFIX}{}", options.file_name.replace(',', "_"))),
        MountOption::Subtype("strongroom".into()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoExec,
        if options.read_only { MountOption::RO } else { MountOption::RW },
    ];
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(options.threads.clamp(1, THREADS_MAX));
    // A queue of its own for each thread, whose lock no other one takes.
    config.clone_fd = true;
    config
}
