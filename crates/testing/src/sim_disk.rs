//! A disk in memory that crashes. It has a durable and a live image; what was not synced survives a crash in part:
//! whole writes, single sectors of them, later ones without earlier ones, or nothing.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use strongroom_block::{Buffer, BufferMut};
use strongroom_store::backend::{Backend, Io, IoDone};
use strongroom_store::{IoKind, Waker};

use crate::Random;
use crate::image::{Forgetful, PAGE};

/// What goes wrong besides crashes. All off by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Once in how many syncs the sync fails (0: never).
    pub failing_sync_once_in: u64,
    /// Most pages that may hold data; more is ENOSPC (0: no bound).
    pub pages_max: usize,
    /// Once in how many reads the read fails (0: never).
    pub failing_read_once_in: u64,
    /// Once in how many writes the write fails, and has arrived in part (0: never).
    pub failing_write_once_in: u64,
    /// Once in how many times there is no space to be taken ahead of need (0: never).
    pub failing_allocation_once_in: u64,
    /// Once in how many times space is not given back (0: never).
    pub failing_discard_once_in: u64,
    /// The planted fault: syncs complete and do nothing.
    pub syncs_do_nothing: bool,
    /// The planted fault: what is left of a short write goes to a wrong place.
    pub wrong_resumption: bool,
}

/// What a stray write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stray {
    /// It arrives elsewhere, and not where it should.
    Misdirected,
    /// It arrives nowhere.
    Lost,
}

/// How many writes before a misdirected one it does not hit: together they might be all that tells of each other.
const RECENT_WRITES: usize = 24;

struct DiskState {
    bytes: Forgetful,
    /// After this many writes one goes astray.
    stray: Option<(u64, Stray)>,
    strayed: bool,
    /// Where the last writes went.
    recent: VecDeque<(u64, u64)>,
    /// Where the last byte ever written lies.
    end: u64,
    random: Random,
    faults: Faults,
    /// I/Os until the disk is cut off.
    ios_left: Option<u64>,
    cut_off: bool,
    ios: u64,
    /// It tells where nothing was written.
    sparse: bool,
    /// Its name in its directory is not durable: a crash may take the whole file.
    nameless: bool,
}

/// The disk; clones are the same one. It outlives the store that uses it.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<DiskState>>);

impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64) -> SimDisk {
        SimDisk(Arc::new(Mutex::new(DiskState {
            bytes: Forgetful::default(),
            stray: None,
            strayed: false,
            recent: VecDeque::new(),
            end: 0,
            random: Random::new(seed),
            faults: Faults::default(),
            ios_left: None,
            cut_off: false,
            ios: 0,
            sparse: false,
            nameless: false,
        })))
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().expect("no test thread panics while it holds the disk")
    }

    /// A way to the disk for one opening of a store. `orderly`: every I/O completes at once.
    pub fn backend(&self, orderly: bool) -> SimBackend {
        let seed = self.state().random.number();
        SimBackend { disk: self.clone(), random: Random::new(seed), orderly, in_flight: Vec::new(), hurry: false }
    }

    /// What goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// From now on once in this many reads fails (0: never).
    pub fn set_failing_reads(&self, once_in: u64) {
        self.state().faults.failing_read_once_in = once_in;
    }

    /// Nobody has synced the directory of the file that the disk is: a crash takes it.
    pub fn leave_out_directory_sync(&self) {
        self.state().nameless = true;
    }

    /// From now on the disk tells where nothing was written.
    pub fn set_sparse(&self) {
        self.state().sparse = true;
    }

    /// Cuts the disk off after this many more I/Os: they and all later ones fail, and [`SimDisk::crash`] is due.
    pub fn cut_off_after(&self, ios: u64) {
        self.state().ios_left = Some(ios);
    }

    /// One write goes astray, silently, after this many others.
    pub fn stray_after(&self, writes: u64, stray: Stray) {
        self.state().stray = Some((writes, stray));
    }

    /// Whether a write went astray.
    pub fn has_strayed(&self) -> bool {
        self.state().strayed
    }

    /// Gives chance another course.
    pub fn stir(&self, with: u64) {
        let state = &mut *self.state();
        state.random = Random::new(state.random.number() ^ with);
    }

    /// Whether the disk was cut off.
    pub fn is_cut_off(&self) -> bool {
        self.state().cut_off
    }

    /// How many I/Os were done.
    pub fn ios(&self) -> u64 {
        self.state().ios
    }

    /// How many pages hold data.
    pub fn pages(&self) -> usize {
        self.state().bytes.pages()
    }

    /// The power goes and comes back. What was not synced survives as the seed has it.
    pub fn crash(&self) {
        let state = &mut *self.state();
        match std::mem::take(&mut state.nameless) {
            true => state.bytes = Forgetful::default(),
            false => state.bytes.crash(&mut state.random),
        }
        state.cut_off = false;
        state.ios_left = None;
    }

    /// Flips one bit of what the disk holds, live and durable.
    pub fn flip(&self, offset: u64, bit: u8) {
        let mut byte = [0];
        self.read(offset, &mut byte);
        self.overwrite(offset, &[byte[0] ^ 1 << bit]);
    }

    /// Where the disk holds these bytes now, at whole sectors.
    pub fn places_of(&self, bytes: &[u8]) -> Vec<u64> {
        self.state().bytes.places_of(bytes)
    }

    /// Flips one bit somewhere in what was written, live and durable.
    pub fn flip_anywhere(&self, chance: u64) {
        let pages = self.state().bytes.written_pages();
        let mut random = Random::new(chance);
        if let Some(page) = pages.get(random.below(pages.len().max(1) as u64) as usize) {
            self.flip(page + random.below(PAGE as u64), random.below(8) as u8);
        }
    }

    /// Reads what the disk holds now.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) {
        self.state().bytes.read(offset, bytes);
    }

    /// Writes past every cache.
    pub fn overwrite(&self, offset: u64, bytes: &[u8]) {
        self.state().bytes.overwrite(offset, bytes);
    }
}

impl DiskState {
    /// Counts an I/O; false if the disk is cut off.
    fn admit(&mut self) -> bool {
        self.ios += 1;
        if let Some(left) = &mut self.ios_left {
            if *left == 0 {
                self.cut_off = true;
            } else {
                *left -= 1;
            }
        }
        !self.cut_off
    }

    fn perform(&mut self, io: Io, mark: usize) -> io::Result<Option<BufferMut>> {
        if !self.admit() {
            if let Io::Write { offset, buffers } = io {
                self.bytes.write_unseen(offset, concat(&buffers));
            }
            return Err(io::Error::other("the simulated disk is cut off"));
        }
        match io {
            Io::Read { offset, mut buffer } => {
                let every = self.faults.failing_read_once_in;
                if every > 0 && self.random.once_in(every) {
                    return Err(io::Error::other("the simulated read failed"));
                }
                self.bytes.read(offset, &mut buffer);
                return Ok(Some(buffer));
            }
            Io::Write { offset, buffers } => {
                self.fail_now_and_then(self.faults.failing_write_once_in, io::ErrorKind::Other).inspect_err(|_| {
                    self.bytes.write_unseen(offset, concat(&buffers));
                })?;
                self.write(offset, concat(&buffers))?;
            }
            Io::Discard { offset, len } => {
                self.fail_now_and_then(self.faults.failing_discard_once_in, io::ErrorKind::Other)?;
                self.bytes.punch(offset, len);
            }
            Io::Allocate { .. } => {
                self.fail_now_and_then(self.faults.failing_allocation_once_in, io::ErrorKind::StorageFull)?;
            }
            Io::Sync => self.sync(mark)?,
        }
        Ok(None)
    }

    fn fail_now_and_then(&mut self, every: u64, kind: io::ErrorKind) -> io::Result<()> {
        if every > 0 && self.random.once_in(every) { Err(kind.into()) } else { Ok(()) }
    }

    fn write(&mut self, offset: u64, mut bytes: Vec<u8>) -> io::Result<()> {
        let Some(offset) = self.destination(offset, bytes.len() as u64) else { return Ok(()) };
        if self.faults.wrong_resumption && bytes.len() > PAGE && self.random.once_in(20) {
            // What is left goes where the first part ended in the buffer, but not on the medium.
            let rest = bytes.split_off(PAGE);
            self.bytes.write(offset + 2 * PAGE as u64, rest);
        }
        let free = self.faults.pages_max.saturating_sub(self.bytes.pages());
        if self.faults.pages_max == 0 || self.bytes.new_pages(offset, bytes.len()) <= free {
            self.bytes.write(offset, bytes);
            return Ok(());
        }
        // As on a real disk, a part may have arrived.
        bytes.truncate(self.random.below(free as u64 + 1) as usize * PAGE);
        self.bytes.write(offset, bytes);
        Err(io::ErrorKind::StorageFull.into())
    }

    /// Where a write really goes; `None`: nowhere.
    fn destination(&mut self, offset: u64, len: u64) -> Option<u64> {
        let due = self.stray.as_mut().and_then(|(writes, stray)| {
            let due = (*writes == 0).then_some(*stray);
            *writes = writes.saturating_sub(1);
            due
        });
        let mut to = Some(offset);
        if let Some(stray) = due {
            (self.stray, self.strayed) = (None, true);
            to = (stray == Stray::Misdirected).then(|| self.elsewhere(offset, len)).flatten();
        }
        self.end = self.end.max(offset + len);
        self.recent.push_back((offset, offset + len));
        if self.recent.len() > RECENT_WRITES {
            self.recent.pop_front();
        }
        to
    }

    /// Somewhere on the disk, but not on what was written just now.
    fn elsewhere(&mut self, offset: u64, len: u64) -> Option<u64> {
        (0..100).find_map(|_| {
            let to = self.random.below(self.end / PAGE as u64 + 1) * PAGE as u64;
            let free = |&(start, end): &(u64, u64)| to >= end || to + len <= start;
            (to != offset && self.recent.iter().all(free)).then_some(to)
        })
    }

    /// Makes durable what was done before the sync was submitted; what came after may or may not be.
    fn sync(&mut self, mark: usize) -> io::Result<()> {
        if self.faults.syncs_do_nothing {
            return Ok(());
        }
        let every = self.faults.failing_sync_once_in;
        if every > 0 && self.random.once_in(every) {
            return Err(io::Error::other("the simulated sync failed"));
        }
        self.bytes.sync(mark, &mut self.random);
        Ok(())
    }
}

fn concat(buffers: &[Buffer]) -> Vec<u8> {
    buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect()
}

struct InFlight {
    token: u64,
    io: Io,
    /// How many changes were unsynced when it was submitted.
    mark: usize,
}

/// One opening's way to the disk: I/Os complete late and in any order.
pub struct SimBackend {
    disk: SimDisk,
    random: Random,
    orderly: bool,
    in_flight: Vec<InFlight>,
    hurry: bool,
}

impl Backend for SimBackend {
    fn set_waker(&mut self, _waker: Waker) {}

    /// As if past every cache: so the store uses its own.
    fn kind(&self) -> IoKind {
        IoKind::Direct
    }

    fn data_from(&mut self, from: u64) -> Option<Range<u64>> {
        let state = self.disk.state();
        if state.sparse { state.bytes.data_from(from) } else { Some(from..u64::MAX) }
    }

    fn submit(&mut self, token: u64, io: Io) {
        let mark = self.disk.state().bytes.unsynced();
        self.in_flight.push(InFlight { token, io, mark });
    }

    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        let before = done.len();
        let count = self.in_flight.len() as u64;
        let mut finish = if self.orderly { count } else { self.random.below(count + 1) };
        if std::mem::take(&mut self.hurry) {
            finish = finish.max(1);
        }
        for _ in 0..finish.min(count) {
            let at = if self.orderly { 0 } else { self.random.below(self.in_flight.len() as u64) as usize };
            let InFlight { token, io, mark } = self.in_flight.remove(at);
            let mut state = self.disk.state();
            let synced = matches!(io, Io::Sync);
            let before = state.bytes.unsynced();
            let result = state.perform(io, mark);
            let drained = before.saturating_sub(state.bytes.unsynced());
            drop(state);
            if synced {
                for other in &mut self.in_flight {
                    other.mark = other.mark.saturating_sub(drained);
                }
            }
            done.push(IoDone { token, result });
        }
        done.len() - before
    }

    fn wait(&mut self) {
        self.hurry = true;
    }
}

impl Drop for SimBackend {
    /// The process is gone; what it had in flight may have arrived in part.
    fn drop(&mut self) {
        let mut state = self.disk.state();
        for InFlight { io, .. } in self.in_flight.drain(..) {
            if let Io::Write { offset, buffers } = io {
                state.bytes.write_unseen(offset, concat(&buffers));
            }
        }
    }
}
