//! A stock initiator as a block device: libiscsi, the library beneath QEMU and fio, loaded when it is wanted.
//!
//! Loaded at run time, so that no build of Strongroom needs its headers or links to it; where it is missing, the error
//! says what to install. Everything happens on the thread that calls [`BlockDevice::wait`], as in any program that uses
//! libiscsi. Deliberately absent: reconnecting (a lost connection fails everything in flight, and the measurement with
//! it), and what no benchmark asks for (parts of blocks, discard).

#![allow(unsafe_code)] // A C library: every call into it is one.

mod api;

use std::ffi::{CString, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use strongroom_block::{
    BlockDevice, BlockSize, Buffer, BufferMut, Completion, DeviceError, DeviceErrorKind, Geometry, Lba, Request, Token,
};

pub use self::api::NotInstalled;
use self::api::{Api, Context, IoVec, Task};

/// How long one command may take before libiscsi gives it up, in seconds.
const COMMAND_TIMEOUT_S: c_int = 60;
/// The longest sleep before libiscsi is asked to look at its time-outs.
const TICK: Duration = Duration::from_millis(500);

/// Why libiscsi could not be used.
#[derive(Debug, thiserror::Error)]
pub enum LibiscsiError {
    /// It is not installed.
    #[error(transparent)]
    Missing(#[from] NotInstalled),
    /// It could not log in, or the unit did not answer.
    #[error("libiscsi cannot use {url}: {reason}")]
    Attach {
        /// What was to be attached.
        url: String,
        /// What libiscsi says.
        reason: String,
    },
}

/// Where a unit is, and what must be said at login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibiscsiOptions {
    /// `address:port`.
    pub portal: String,
    /// The target's iSCSI name.
    pub target_name: String,
    /// The logical unit.
    pub lun: u16,
    /// Our own iSCSI name.
    pub initiator_name: String,
    /// Offer InitialR2T=Yes: istgt refuses the login otherwise. libiscsi's own default is No.
    pub initial_r2t: bool,
}

/// One session of libiscsi with one logical unit.
pub struct LibiscsiDevice {
    api: &'static Api,
    lun: c_int,
    geometry: Geometry,
    session: Mutex<Session>,
    finished: Arc<Mutex<Vec<Completion>>>,
}

/// The C library's context; null once it is gone.
struct Session {
    context: *mut Context,
    lost: Option<String>,
}

// SAFETY: the context is used by one thread at a time, under the mutex around this; libiscsi binds nothing to a thread.
unsafe impl Send for Session {}

/// A command in flight. Boxed: libiscsi has pointers to the buffers and to `iov` until it calls back.
struct Pending {
    token: Token,
    lba: Lba,
    iov: IoVec,
    read: Option<BufferMut>,
    /// Only kept alive.
    _write: Option<Buffer>,
    finished: Arc<Mutex<Vec<Completion>>>,
}

/// Whether libiscsi is here.
///
/// # Errors
/// [`LibiscsiError::Missing`], with what to install.
pub fn available() -> Result<(), LibiscsiError> {
    Ok(Api::load().map(drop)?)
}

impl LibiscsiDevice {
    /// Logs in and reads the capacity.
    ///
    /// # Errors
    /// If libiscsi is missing, the login fails, or the unit has a shape that we do not know.
    pub fn attach(options: &LibiscsiOptions) -> Result<LibiscsiDevice, LibiscsiError> {
        let api = Api::load()?;
        let url = format!("iscsi://{}/{}/{}", options.portal, options.target_name, options.lun);
        let failed = |reason: String| LibiscsiError::Attach { url: url.clone(), reason };
        let text = |text: &str| CString::new(text).map_err(|_| failed(format!("'{text}' holds a zero byte")));
        let (name, target, portal) =
            (text(&options.initiator_name)?, text(&options.target_name)?, text(&options.portal)?);
        // SAFETY: plain calls with strings that outlive them; the context is used by nobody else yet.
        let context = unsafe { (api.create_context)(name.as_ptr()) };
        if context.is_null() {
            return Err(failed("it has no memory for a context".into()));
        }
        let session = Session { context, lost: None };
        let lun = c_int::from(options.lun);
        // From here on dropping the device destroys the context. The shape is not known yet.
        let mut device = LibiscsiDevice {
            api,
            lun,
            geometry: Geometry { block_size: BlockSize::new(512).expect("a block size"), blocks: 0 },
            session: Mutex::new(session),
            finished: Arc::default(),
        };
        // SAFETY: as above; `context` is not null.
        let connected = unsafe {
            (api.set_targetname)(context, target.as_ptr());
            (api.set_session_type)(context, api::SESSION_NORMAL);
            (api.set_header_digest)(context, api::HEADER_DIGEST_NONE);
            (api.set_initial_r2t)(context, c_int::from(options.initial_r2t));
            (api.set_noautoreconnect)(context, 1);
            (api.set_timeout)(context, COMMAND_TIMEOUT_S);
            (api.full_connect_sync)(context, portal.as_ptr(), lun)
        };
        if connected != 0 {
            return Err(failed(api.error_text(context)));
        }
        device.geometry = capacity(api, context, lun).map_err(failed)?;
        Ok(device)
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_finished(&self) -> bool {
        !lock(&self.finished).is_empty()
    }

    /// Hands a command to libiscsi, which sends it when `wait` next runs.
    fn start(&self, pending: Pending, command: Command) {
        let session = self.session();
        let (token, lba) = (pending.token, pending.lba);
        if let Some(reason) = &session.lost {
            let result = Err(device_error(lba, reason.clone()));
            return lock(&self.finished).push(Completion { token, result });
        }
        let private = Box::into_raw(Box::new(pending));
        let block = self.geometry.block_size.bytes() as c_int;
        // SAFETY: the context is alive (not `lost`); the box stays until the callback, which runs exactly once for every
        // task that was queued; its buffers do not move.
        let task = unsafe {
            let (api, context, iov) = (self.api, session.context, &raw mut (*private).iov);
            let bytes = (*iov).bytes as u32;
            match command {
                Command::Read => (api.read16_iov)(
                    context,
                    self.lun,
                    lba.0,
                    bytes,
                    block,
                    0,
                    0,
                    0,
                    0,
                    0,
                    completed,
                    private.cast(),
                    iov,
                    1,
                ),
                Command::Write { fua } => {
                    let fua = c_int::from(fua);
                    (api.write16)(
                        context,
                        self.lun,
                        lba.0,
                        (*iov).base.cast(),
                        bytes,
                        block,
                        0,
                        0,
                        fua,
                        0,
                        0,
                        completed,
                        private.cast(),
                    )
                }
                Command::Flush => (api.synchronize_cache16)(context, self.lun, 0, 0, 0, 0, completed, private.cast()),
            }
        };
        if task.is_null() {
            // SAFETY: nothing was queued, so the callback will not run and the box is ours again.
            drop(unsafe { Box::from_raw(private) });
            let result = Err(device_error(lba, self.api.error_text(session.context)));
            lock(&self.finished).push(Completion { token, result });
        }
    }

    /// Lets libiscsi send and receive for at most `timeout`.
    fn service(&self, session: &mut Session, timeout: Duration) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        // SAFETY: the context is alive; the descriptor is borrowed for this call only, during which nothing closes it.
        let (events, fd) = unsafe {
            let context = session.context;
            ((self.api.which_events)(context), rustix::fd::BorrowedFd::borrow_raw((self.api.get_fd)(context)))
        };
        let wanted = PollFlags::from_bits_truncate(events as u16);
        let mut fds = [PollFd::new(&fd, wanted)];
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        // Interrupted or timed out: no events, and libiscsi looks at its clock.
        let _ = poll(&mut fds, Some(&timeout));
        let happened = c_int::from(fds[0].revents().bits());
        // SAFETY: as above. Callbacks run in here, on this thread; they take only the lock of `finished`.
        let result = unsafe { (self.api.service)(session.context, happened) };
        if result < 0 {
            session.lose(self.api);
        }
    }
}

/// What to send.
#[derive(Clone, Copy)]
enum Command {
    Read,
    Write { fua: bool },
    Flush,
}

impl Session {
    /// The connection is gone: everything in flight fails, and every later request.
    fn lose(&mut self, api: &Api) {
        if self.lost.is_none() {
            self.lost = Some(format!("the connection was lost: {}", api.error_text(self.context)));
            self.destroy(api);
        }
    }

    fn destroy(&mut self, api: &Api) {
        // SAFETY: called once: afterwards the pointer is null. Calls back for every task in flight.
        unsafe { (api.destroy_context)(self.context) };
        self.context = std::ptr::null_mut();
    }
}

impl Drop for LibiscsiDevice {
    fn drop(&mut self) {
        let session = self.session.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !session.context.is_null() {
            if self.geometry.blocks > 0 {
                // SAFETY: the context is alive and used by nobody else. A refused logout changes nothing.
                unsafe { (self.api.logout_sync)(session.context) };
            }
            session.destroy(self.api);
        }
    }
}

impl BlockDevice for LibiscsiDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&self, token: Token, request: Request) {
        let finished = Arc::clone(&self.finished);
        let empty = IoVec { base: std::ptr::null_mut(), bytes: 0 };
        match request {
            Request::Read { lba, mut buffer } => {
                let iov = IoVec { base: buffer.as_mut_ptr().cast(), bytes: buffer.len() };
                self.start(Pending { token, lba, iov, read: Some(buffer), _write: None, finished }, Command::Read);
            }
            Request::Write { lba, data, fua } => {
                // libiscsi only reads from it, though its prototype says otherwise.
                let iov = IoVec { base: data.as_ptr().cast_mut().cast(), bytes: data.len() };
                let pending = Pending { token, lba, iov, read: None, _write: Some(data), finished };
                self.start(pending, Command::Write { fua });
            }
            Request::Flush => {
                let pending = Pending { token, lba: Lba(0), iov: empty, read: None, _write: None, finished };
                self.start(pending, Command::Flush);
            }
            Request::WritePart { lba, .. } | Request::Discard { lba, .. } => {
                let result = Err(device_error(lba, "this driver has reads, writes and flushes only".into()));
                lock(&finished).push(Completion { token, result });
            }
        }
    }

    fn poll_completions(&self, completions: &mut Vec<Completion>) -> usize {
        let mut finished = lock(&self.finished);
        let count = finished.len();
        completions.append(&mut finished);
        count
    }

    fn wait(&self, timeout: Option<Duration>) -> bool {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut session = self.session();
        loop {
            if self.has_finished() {
                return true;
            }
            let left = deadline.map_or(TICK, |deadline| deadline.saturating_duration_since(Instant::now()).min(TICK));
            if session.lost.is_some() {
                // Nothing is in flight any more, so nothing will come.
                std::thread::sleep(left);
            } else {
                self.service(&mut session, left);
            }
            if !self.has_finished() && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return false;
            }
        }
    }
}

/// READ CAPACITY (16).
fn capacity(api: &Api, context: *mut Context, lun: c_int) -> Result<Geometry, String> {
    // SAFETY: the context is alive and used by nobody else; the task is freed below, after the last look at its data.
    let task = unsafe { (api.read_capacity16_sync)(context, lun) };
    if task.is_null() {
        return Err(api.error_text(context));
    }
    // SAFETY: the task is complete; what is unmarshalled belongs to it. Null if the answer is not what was asked for.
    let found = unsafe { (api.datain_unmarshall)(task).cast::<api::ReadCapacity16>().as_ref() }
        .map(|answer| (answer.last_lba.saturating_add(1), u64::from(answer.block_bytes)));
    // SAFETY: the task came from libiscsi and is not used again.
    unsafe { (api.free_task)(task) };
    let (blocks, block_bytes) = found.ok_or("it does not answer READ CAPACITY (16)")?;
    let block_size = BlockSize::new(block_bytes).map_err(|error| error.to_string())?;
    Ok(Geometry { block_size, blocks })
}

/// libiscsi's callback: a command has ended, one way or the other.
extern "C" fn completed(context: *mut Context, status: c_int, task: *mut c_void, private: *mut c_void) {
    // SAFETY: `private` is the box that was handed over with this task, and this is its only callback.
    let pending = unsafe { Box::from_raw(private.cast::<Pending>()) };
    let api = Api::load().expect("it is calling us");
    let result = if status == api::STATUS_GOOD {
        Ok(pending.read)
    } else {
        Err(device_error(pending.lba, format!("SCSI status {status:#x}: {}", api.error_text(context))))
    };
    if !task.is_null() {
        // SAFETY: a finished task is the application's to free; nothing of it is used again.
        unsafe { (api.free_task)(task.cast::<Task>()) };
    }
    lock(&pending.finished).push(Completion { token: pending.token, result });
}

fn device_error(lba: Lba, message: String) -> DeviceError {
    DeviceError { kind: DeviceErrorKind::Hardware, lba: Some(lba), message }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
