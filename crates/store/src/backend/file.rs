//! A file on the host: positioned buffered I/O in place, `fdatasync` on a thread of its own.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use rustix::fs::Advice;

use super::kind::IoKind;
use super::positioned::{allocate, data_from, discard, grow, host_free_bytes, read_padded, sync, write_gathered};
use super::{Backend, Io, IoDone, Waker};

/// What the sync thread has finished, and whom to tell.
#[derive(Default)]
struct SyncThread {
    state: Mutex<FinishedSyncs>,
    arrived: Condvar,
}

#[derive(Default)]
struct FinishedSyncs {
    done: Vec<IoDone>,
    waker: Option<Waker>,
}

/// One file. Reads and writes happen inside `submit`; a sync does not hold the caller up.
pub struct FileBackend {
    file: Arc<File>,
    /// Its space was taken for good when it was made: none is given back.
    keeps_space: bool,
    ready: Vec<IoDone>,
    syncs: Option<Sender<u64>>,
    syncs_in_flight: usize,
    shared: Arc<SyncThread>,
    thread: Option<JoinHandle<()>>,
}

impl FileBackend {
    /// Takes over `file`, open for reading and writing.
    ///
    /// What the page cache holds is written and dropped first, so that what is read afterwards is what the medium
    /// has: after a failed sync the cache may show bytes that never reached it.
    ///
    /// # Errors
    /// If that first sync fails, or no thread can be started.
    pub fn new(file: File) -> io::Result<FileBackend> {
        rustix::fs::fdatasync(&file)?;
        // Advice only: a file system that cannot drop its cache (tmpfs) has no medium behind it either.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        let file = Arc::new(file);
        let shared = Arc::new(SyncThread::default());
        let (syncs, requests) = channel();
        let thread = std::thread::Builder::new().name("store-sync".to_owned()).spawn({
            let (file, shared) = (Arc::clone(&file), Arc::clone(&shared));
            move || sync_loop(&file, &shared, &requests)
        })?;
        Ok(FileBackend {
            file,
            keeps_space: false,
            ready: Vec::new(),
            syncs: Some(syncs),
            syncs_in_flight: 0,
            shared,
            thread: Some(thread),
        })
    }

    /// The file keeps the space that it has: discarding gives nothing back.
    pub fn keeping_space(mut self) -> FileBackend {
        self.keeps_space = true;
        self
    }
}

impl Backend for FileBackend {
    fn set_waker(&mut self, waker: Waker) {
        self.shared.state.lock().expect("the sync thread does not panic").waker = Some(waker);
    }

    fn size_bytes(&mut self) -> io::Result<Option<u64>> {
        // Nothing else uses the position.
        crate::medium::device_bytes(&self.file).map(Some)
    }

    fn kind(&self) -> IoKind {
        IoKind::Buffered
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
        let result = match io {
            Io::Read { offset, mut buffer } => read_padded(&self.file, offset, &mut buffer).map(|()| Some(buffer)),
            Io::Write { offset, buffers } => write_gathered(&self.file, offset, &buffers).map(|()| None),
            Io::Sync => {
                self.syncs_in_flight += 1;
                let sender = self.syncs.as_ref().expect("present until dropped");
                sender.send(token).expect("the sync thread lives as long as its sender");
                return;
            }
            Io::Discard { .. } if self.keeps_space => Ok(None),
            Io::Discard { offset, len } => discard(&self.file, offset, len).map(|()| None),
            Io::Allocate { offset, len } => allocate(&self.file, offset, len).map(|()| None),
        };
        self.ready.push(IoDone { token, result });
    }

    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        let before = done.len();
        done.append(&mut self.ready);
        if self.syncs_in_flight > 0 {
            let mut state = self.shared.state.lock().expect("the sync thread does not panic");
            self.syncs_in_flight -= state.done.len();
            done.append(&mut state.done);
        }
        done.len() - before
    }

    fn wait(&mut self) {
        if !self.ready.is_empty() {
            return;
        }
        let mut state = self.shared.state.lock().expect("the sync thread does not panic");
        while state.done.is_empty() && self.syncs_in_flight > 0 {
            state = self.shared.arrived.wait(state).expect("the sync thread does not panic");
        }
    }
}

impl Drop for FileBackend {
    fn drop(&mut self) {
        drop(self.syncs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn sync_loop(file: &File, shared: &SyncThread, requests: &Receiver<u64>) {
    while let Ok(token) = requests.recv() {
        let result = sync(file).map(|()| None);
        let waker = {
            let mut state = shared.state.lock().expect("the owner does not panic while it holds the lock");
            state.done.push(IoDone { token, result });
            state.waker.clone()
        };
        shared.arrived.notify_all();
        if let Some(waker) = waker {
            waker();
        }
    }
}
