//! Direct I/O without a ring: a few threads, each doing one I/O at a time.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use super::direct::Alignment;
use super::kind::IoKind;
use super::positioned::{allocate, data_from, discard, grow, host_free_bytes, read_padded, sync, write_gathered};
use super::{Backend, Io, IoDone, Waker};

/// How many I/Os can be under way.
const THREADS: usize = 8;

#[derive(Default)]
struct Completions {
    state: Mutex<FinishedIo>,
    arrived: Condvar,
}

#[derive(Default)]
struct FinishedIo {
    done: Vec<IoDone>,
    waker: Option<Waker>,
}

/// One file, read and written past the page cache by threads.
pub struct PoolBackend {
    file: Arc<File>,
    keeps_space: bool,
    requests: Option<Sender<(u64, Io)>>,
    shared: Arc<Completions>,
    in_flight: usize,
    threads: Vec<JoinHandle<()>>,
}

impl PoolBackend {
    /// Takes over `file`, whose I/O is direct already.
    pub(super) fn new(file: File, alignment: Alignment, keeps_space: bool) -> io::Result<PoolBackend> {
        let (file, shared) = (Arc::new(file), Arc::new(Completions::default()));
        let (requests, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let mut threads = Vec::new();
        for _ in 0..THREADS {
            let (file, shared, receiver) = (Arc::clone(&file), Arc::clone(&shared), Arc::clone(&receiver));
            let body = move || serve(&file, alignment, keeps_space, &shared, &receiver);
            threads.push(std::thread::Builder::new().name("store-io".to_owned()).spawn(body)?);
        }
        Ok(PoolBackend { file, keeps_space, requests: Some(requests), shared, in_flight: 0, threads })
    }
}

impl Backend for PoolBackend {
    fn set_waker(&mut self, waker: Waker) {
        self.shared.state.lock().expect("no I/O thread panics").waker = Some(waker);
    }

    fn size_bytes(&mut self) -> io::Result<Option<u64>> {
        crate::medium::device_bytes(&self.file).map(Some)
    }

    fn kind(&self) -> IoKind {
        IoKind::Direct
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
        self.in_flight += 1;
        let requests = self.requests.as_ref().expect("present until dropped");
        requests.send((token, io)).expect("the threads live as long as the sender");
    }

    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        if self.in_flight == 0 {
            return 0;
        }
        let mut state = self.shared.state.lock().expect("no I/O thread panics");
        let count = state.done.len();
        done.append(&mut state.done);
        self.in_flight -= count;
        count
    }

    fn wait(&mut self) {
        let mut state = self.shared.state.lock().expect("no I/O thread panics");
        while state.done.is_empty() && self.in_flight > 0 {
            state = self.shared.arrived.wait(state).expect("no I/O thread panics");
        }
    }
}

impl Drop for PoolBackend {
    fn drop(&mut self) {
        drop(self.requests.take());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve(
    file: &File,
    alignment: Alignment,
    keeps_space: bool,
    shared: &Completions,
    requests: &Mutex<Receiver<(u64, Io)>>,
) {
    loop {
        let request = requests.lock().expect("no I/O thread panics").recv();
        let Ok((token, io)) = request else { return };
        let result = match io {
            Io::Read { offset, buffer } => {
                let mut reading = alignment.widened(offset, buffer);
                read_padded(file, reading.offset, &mut reading.into).map(|()| Some(reading.finish()))
            }
            Io::Write { offset, buffers } => alignment
                .gathered(offset, buffers)
                .and_then(|buffers| write_gathered(file, offset, &buffers))
                .map(|()| None),
            Io::Sync => sync(file).map(|()| None),
            Io::Discard { .. } if keeps_space => Ok(None),
            Io::Discard { offset, len } => discard(file, offset, len).map(|()| None),
            Io::Allocate { offset, len } => allocate(file, offset, len).map(|()| None),
        };
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
