//! Direct I/O through io_uring: everything submitted between two polls goes to the kernel in one call, and nothing waits
//! for anything else. Two rules keep the kernel and us from touching the same memory: what a submitted entry points to
//! stays in its slot until the completion is seen, and a backend that is dropped waits for all completions first.

#![allow(unsafe_code)] // Submission entries carry raw pointers.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, Probe, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use strongroom_block::Buffer;

use super::direct::{Alignment, Reading};
use super::kind::IoKind;
use super::positioned::{data_from, grow, host_free_bytes};
use super::{Backend, Io, IoDone, Waker};

/// Entries of the submission queue; when it is full it is submitted early.
const SUBMISSIONS: u32 = 256;
/// Entries of the completion queue.
const COMPLETIONS: u32 = 1024;
/// Upper bound on what the kernel has at a time: the completion queue never overflows.
const IN_FLIGHT_MAX: usize = COMPLETIONS as usize;

/// An I/O in the kernel's hands, with all memory that it uses.
enum RingRequest {
    Read { reading: Reading, done: usize },
    Write { offset: u64, done: usize, _buffers: Vec<Buffer>, slices: Vec<libc::iovec>, first: usize },
    Sync,
    Discard { offset: u64, len: u64 },
    Allocate { offset: u64, len: u64 },
}

struct Slot {
    token: u64,
    work: RingRequest,
}

// SAFETY: the raw pointers in `RingRequest::Write` lead to buffers that are in the same value, shared and constant; neither is
// bound to a thread.
unsafe impl Send for RingRequest {}

/// One file, read and written past the page cache through a ring of its own.
pub struct UringBackend {
    ring: IoUring,
    file: File,
    alignment: Alignment,
    keeps_space: bool,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    in_flight: usize,
    /// Beyond [`IN_FLIGHT_MAX`].
    waiting: VecDeque<(u64, RingRequest)>,
    /// Entries in the submission queue that the kernel has not been told of.
    untold: usize,
    /// Completed without the kernel.
    ready: Vec<IoDone>,
    /// `None` once an eventfd of the caller's is counted up instead.
    watcher: Option<Watcher>,
}

/// The thread that turns the ring's eventfd into calls of the waker.
struct Watcher {
    eventfd: Arc<OwnedFd>,
    waker: Arc<Mutex<Option<Waker>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl UringBackend {
    /// On `file`, whose I/O is direct already.
    pub(super) fn new(file: &File, alignment: Alignment, keeps_space: bool) -> io::Result<UringBackend> {
        let ring = IoUring::builder().setup_clamp().setup_cqsize(COMPLETIONS).build(SUBMISSIONS)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [opcode::Read::CODE, opcode::Writev::CODE, opcode::Fsync::CODE, opcode::Fallocate::CODE];
        if !needed.iter().all(|&code| probe.is_supported(code)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // Here, where a failure means that another way of doing I/O is chosen, and not where nobody would be woken.
        let watcher = Watcher::start()?;
        ring.submitter().register_eventfd(watcher.eventfd.as_raw_fd())?;
        Ok(UringBackend {
            ring,
            file: file.try_clone()?,
            alignment,
            keeps_space,
            slots: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            waiting: VecDeque::new(),
            untold: 0,
            ready: Vec::new(),
            watcher: Some(watcher),
        })
    }

    fn start(&mut self, token: u64, work: RingRequest) {
        if self.in_flight == IN_FLIGHT_MAX {
            return self.waiting.push_back((token, work));
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[at] = Some(Slot { token, work });
        self.in_flight += 1;
        self.push(at);
    }

    /// Hands the slot's work, or what is left of it, to the ring.
    fn push(&mut self, at: usize) {
        let fd = Fd(self.file.as_raw_fd());
        let slot = self.slots[at].as_mut().expect("in flight");
        let entry = match &mut slot.work {
            RingRequest::Read { reading, done } => {
                let rest = &mut reading.into[*done..];
                opcode::Read::new(fd, rest.as_mut_ptr(), rest.len() as u32)
                    .offset(reading.offset + *done as u64)
                    .build()
            }
            RingRequest::Write { offset, done, slices, first, .. } => {
                let rest = &slices[*first..];
                opcode::Writev::new(fd, rest.as_ptr(), rest.len() as u32).offset(*offset + *done as u64).build()
            }
            RingRequest::Sync => sync_entry(fd),
            RingRequest::Discard { offset, len } => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                opcode::Fallocate::new(fd, *len).offset(*offset).mode(mode.bits() as i32).build()
            }
            RingRequest::Allocate { offset, len } => {
                let mode = FallocateFlags::KEEP_SIZE;
                opcode::Fallocate::new(fd, *len).offset(*offset).mode(mode.bits() as i32).build()
            }
        };
        let entry = entry.user_data(at as u64);
        loop {
            // SAFETY: what the entry points to is in the slot, on the heap, and stays there until its completion is seen
            // (`Drop` waits for all of them).
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                self.untold += 1;
                return;
            }
            self.tell(0);
        }
    }

    /// Submits what is queued, and waits for this many completions.
    fn tell(&mut self, want: usize) {
        loop {
            match self.ring.submit_and_wait(want) {
                Ok(_) => break,
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                // Memory is short for a moment.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EAGAIN)) => {
                    std::thread::yield_now();
                }
                Err(error) => panic!("io_uring_enter failed on a ring that was set up: {error}"),
            }
        }
        self.untold = self.ring.submission().len();
    }

    fn take(&mut self, done: &mut Vec<IoDone>) {
        loop {
            let Some(entry) = self.ring.completion().next() else { return };
            let at = entry.user_data() as usize;
            let slot = self.slots[at].as_mut().expect("completes once");
            if let Some(result) = outcome(&mut slot.work, entry.result()) {
                let Slot { token, work } = self.slots[at].take().expect("just seen");
                self.free.push(at);
                self.in_flight -= 1;
                let result = result.map(|()| match work {
                    RingRequest::Read { reading, .. } => Some(reading.finish()),
                    _ => None,
                });
                done.push(IoDone { token, result });
                if let Some((token, work)) = self.waiting.pop_front() {
                    self.start(token, work);
                }
            } else {
                self.push(at);
            }
        }
    }
}

/// What a completion means; `None`: the rest has to be submitted again.
fn outcome(work: &mut RingRequest, result: i32) -> Option<io::Result<()>> {
    if result < 0 {
        let errno = Errno::from_raw_os_error(-result);
        return match (work, errno) {
            // Cancelled: the thread that submitted it ended before the kernel had begun; the store is in another one now.
            (_, Errno::INTR | Errno::AGAIN | Errno::CANCELED) => None,
            // Neither is needed for correctness: see `positioned`.
            (
                RingRequest::Discard { .. } | RingRequest::Allocate { .. },
                Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV,
            ) => Some(Ok(())),
            (_, errno) => Some(Err(errno.into())),
        };
    }
    let count = result as usize;
    match work {
        RingRequest::Read { reading, done } => {
            *done += count;
            if count == 0 {
                reading.into[*done..].fill(0); // Past the end.
            } else if *done < reading.into.len() {
                return None;
            }
        }
        RingRequest::Write { done, slices, first, .. } => {
            *done += count;
            advance(slices, first, count);
            if *first < slices.len() {
                return if count == 0 { Some(Err(io::ErrorKind::WriteZero.into())) } else { None };
            }
        }
        RingRequest::Sync | RingRequest::Discard { .. } | RingRequest::Allocate { .. } => {}
    }
    Some(Ok(()))
}

fn advance(slices: &mut [libc::iovec], first: &mut usize, mut count: usize) {
    while let Some(slice) = slices.get_mut(*first) {
        if slice.iov_len > count {
            slice.iov_base = slice.iov_base.wrapping_byte_add(count);
            slice.iov_len -= count;
            return;
        }
        count -= slice.iov_len;
        *first += 1;
    }
}

fn sync_entry(fd: Fd) -> squeue::Entry {
    opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build()
}

impl Backend for UringBackend {
    fn set_waker(&mut self, waker: Waker) {
        if let Some(watcher) = &self.watcher {
            *watcher.waker.lock().expect("a waker does not panic") = Some(waker);
        }
    }

    fn set_completion_fd(&mut self, fd: &OwnedFd) -> bool {
        let submitter = self.ring.submitter();
        if submitter.unregister_eventfd().is_err() {
            return false;
        }
        if submitter.register_eventfd(fd.as_raw_fd()).is_ok() {
            self.watcher = None;
            return true;
        }
        if let Some(watcher) = &self.watcher {
            let again = submitter.register_eventfd(watcher.eventfd.as_raw_fd());
            again.expect("the kernel had this eventfd a moment ago");
        }
        false
    }

    fn size_bytes(&mut self) -> io::Result<Option<u64>> {
        crate::medium::device_bytes(&self.file).map(Some)
    }

    fn kind(&self) -> IoKind {
        IoKind::DirectUring
    }

    fn host_free_bytes(&mut self) -> Option<u64> {
        host_free_bytes(&self.file, self.keeps_space)
    }

    fn grow(&mut self, bytes: u64) -> io::Result<()> {
        grow(&self.file, bytes, self.keeps_space)
    }

    fn data_from(&mut self, from: u64) -> Option<Range<u64>> {
        data_from(&self.file, from)
    }

    fn submit(&mut self, token: u64, io: Io) {
        let work = match io {
            Io::Read { buffer, .. } if buffer.is_empty() => {
                return self.ready.push(IoDone { token, result: Ok(Some(buffer)) });
            }
            Io::Read { offset, buffer } => {
                RingRequest::Read { reading: self.alignment.widened(offset, buffer), done: 0 }
            }
            Io::Write { offset, buffers } => {
                let buffers: Vec<Buffer> = buffers.into_iter().filter(|buffer| !buffer.is_empty()).collect();
                let buffers = match self.alignment.gathered(offset, buffers) {
                    Ok(buffers) if buffers.is_empty() => return self.ready.push(IoDone { token, result: Ok(None) }),
                    Ok(buffers) => buffers,
                    Err(error) => return self.ready.push(IoDone { token, result: Err(error) }),
                };
                let slice = |buffer: &Buffer| libc::iovec {
                    iov_base: buffer.as_ptr().cast_mut().cast(),
                    iov_len: buffer.len(),
                };
                let slices = buffers.iter().map(slice).collect();
                RingRequest::Write { offset, done: 0, _buffers: buffers, slices, first: 0 }
            }
            Io::Sync => RingRequest::Sync,
            Io::Discard { .. } if self.keeps_space => return self.ready.push(IoDone { token, result: Ok(None) }),
            Io::Discard { offset, len } => RingRequest::Discard { offset, len },
            Io::Allocate { offset, len } => RingRequest::Allocate { offset, len },
        };
        self.start(token, work);
    }

    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        let before = done.len();
        done.append(&mut self.ready);
        if self.untold > 0 {
            self.tell(0);
        }
        self.take(done);
        // What has to go on goes on now.
        if self.untold > 0 {
            self.tell(0);
        }
        done.len() - before
    }

    fn wait(&mut self) {
        if self.ready.is_empty() && self.in_flight > 0 && self.ring.completion().is_empty() {
            self.tell(1);
        }
    }
}

impl Drop for UringBackend {
    /// The kernel must let go of all memory before it is freed.
    fn drop(&mut self) {
        let mut done = Vec::new();
        while self.in_flight > 0 {
            self.tell(1);
            self.take(&mut done);
        }
        let _ = self.ring.submitter().unregister_eventfd();
    }
}

impl Watcher {
    fn start() -> io::Result<Watcher> {
        let eventfd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let waker: Arc<Mutex<Option<Waker>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name("store-waker".to_owned()).spawn({
            let (eventfd, stop, waker) = (Arc::clone(&eventfd), Arc::clone(&stop), Arc::clone(&waker));
            move || {
                let mut counter = [0; 8];
                while rustix::io::read(eventfd.as_fd(), &mut counter).is_ok() && !stop.load(Ordering::Acquire) {
                    let waker = waker.lock().expect("a waker does not panic").clone();
                    if let Some(waker) = waker {
                        waker();
                    }
                }
            }
        })?;
        Ok(Watcher { eventfd, waker, stop, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = rustix::io::write(&*self.eventfd, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_of(lens: &[usize]) -> Vec<libc::iovec> {
        let slice = |&len: &usize| libc::iovec { iov_base: std::ptr::without_provenance_mut(4096), iov_len: len };
        lens.iter().map(slice).collect()
    }

    #[test]
    fn a_short_write_goes_on_where_it_stopped() {
        let mut work = RingRequest::Write {
            offset: 0,
            done: 0,
            _buffers: Vec::new(),
            slices: made_of(&[100, 200, 300]),
            first: 0,
        };
        assert!(outcome(&mut work, 150).is_none());
        let RingRequest::Write { done, slices, first, .. } = &work else { unreachable!() };
        assert_eq!((*done, *first, slices[1].iov_len, slices[1].iov_base as usize), (150, 1, 150, 4096 + 50));
        assert!(outcome(&mut work, -libc::EAGAIN).is_none());
        assert!(outcome(&mut work, 150).is_none());
        assert!(outcome(&mut work, 300).unwrap().is_ok());
        let mut stuck =
            RingRequest::Write { offset: 0, done: 0, _buffers: Vec::new(), slices: made_of(&[100]), first: 0 };
        assert_eq!(outcome(&mut stuck, 0).unwrap().unwrap_err().kind(), io::ErrorKind::WriteZero);
    }

    /// Where there is no ring, or no direct I/O, there is nothing to test.
    #[test]
    fn a_waker_is_called_until_an_eventfd_takes_its_place() {
        let path = std::env::temp_dir().join(format!("strongroom-uring-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let made = super::super::direct::make_direct(&file).and_then(|found| UringBackend::new(&file, found, false));
        let Ok(mut backend) = made else { return };
        let (sender, woken) = std::sync::mpsc::channel();
        let sender = Mutex::new(sender);
        backend.set_waker(Arc::new(move || {
            let _ = sender.lock().unwrap().send(());
        }));
        let sync = |backend: &mut UringBackend| {
            backend.submit(1, Io::Sync);
            backend.poll(&mut Vec::new());
            backend.wait();
            backend.poll(&mut Vec::new());
        };
        let no_eventfd = OwnedFd::from(File::open("/dev/null").unwrap());
        assert!(!backend.set_completion_fd(&no_eventfd), "that counts nothing");
        sync(&mut backend);
        woken.recv_timeout(std::time::Duration::from_secs(20)).expect("the waker is still called");
        let counter = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        assert!(backend.set_completion_fd(&counter));
        sync(&mut backend);
        assert_eq!(rustix::io::read(&counter, &mut [0; 8]), Ok(8), "it was counted up");
    }

    #[test]
    fn only_housekeeping_may_be_unsupported() {
        assert!(outcome(&mut RingRequest::Discard { offset: 0, len: 1 }, -libc::EOPNOTSUPP).unwrap().is_ok());
        assert!(outcome(&mut RingRequest::Allocate { offset: 0, len: 1 }, -libc::ENOSPC).unwrap().is_err());
        assert!(outcome(&mut RingRequest::Sync, -libc::EOPNOTSUPP).unwrap().is_err());
        assert_eq!(outcome(&mut RingRequest::Sync, -libc::EIO).unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
    }
}
