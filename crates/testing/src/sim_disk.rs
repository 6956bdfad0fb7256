//! A disk in memory that crashes. It has a durable and a live image; what was not synced survives a crash in part:
//! whole writes, single sectors of them, later ones without earlier ones, or nothing.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use strongroom_block::BufferMut;
use strongroom_store::Waker;
use strongroom_store::backend::{Backend, Io, IoDone};

use crate::Random;

const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// What goes wrong besides crashes. All off by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Once in how many syncs the sync fails (0: never).
    pub failing_sync_once_in: u64,
    /// Most pages that may hold data; more is ENOSPC (0: no bound).
    pub pages_max: usize,
    /// The planted fault: syncs complete and do nothing.
    pub syncs_do_nothing: bool,
}

type Page = Box<[u8; PAGE]>;

#[derive(Default)]
struct Image(HashMap<u64, Page>);

impl Image {
    fn read(&self, offset: u64, bytes: &mut [u8]) {
        for (page, within, range) in pages(offset, bytes.len()) {
            match self.0.get(&page) {
                Some(page) => bytes[range.clone()].copy_from_slice(&page[within..within + range.len()]),
                None => bytes[range].fill(0),
            }
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (page, within, range) in pages(offset, bytes.len()) {
            let page = self.0.entry(page).or_insert_with(|| Box::new([0; PAGE]));
            page[within..within + range.len()].copy_from_slice(&bytes[range]);
        }
    }

    fn punch(&mut self, offset: u64, len: u64) {
        for page in offset / PAGE as u64..(offset + len) / PAGE as u64 {
            self.0.remove(&page);
        }
    }
}

/// Page, offset within it, and range of the caller's bytes.
fn pages(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        (at < len).then(|| {
            let position = offset + at as u64;
            let within = (position % PAGE as u64) as usize;
            let count = (PAGE - within).min(len - at);
            at += count;
            (position / PAGE as u64, within, at - count..at)
        })
    })
}

enum Change {
    Write { offset: u64, bytes: Vec<u8> },
    Punch { offset: u64, len: u64 },
}

struct State {
    live: Image,
    durable: Image,
    /// Done since the last sync, in order.
    unsynced: Vec<Change>,
    random: Random,
    faults: Faults,
    /// I/Os until the disk is cut off.
    ios_left: Option<u64>,
    cut_off: bool,
    ios: u64,
}

/// The disk; clones are the same one. It outlives the store that uses it.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64) -> SimDisk {
        SimDisk(Arc::new(Mutex::new(State {
            live: Image::default(),
            durable: Image::default(),
            unsynced: Vec::new(),
            random: Random::new(seed),
            faults: Faults::default(),
            ios_left: None,
            cut_off: false,
            ios: 0,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
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

    /// Cuts the disk off after so many more I/Os: they and all later ones fail, and [`SimDisk::crash`] is due.
    pub fn cut_off_after(&self, ios: u64) {
        self.state().ios_left = Some(ios);
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
        self.state().live.0.len()
    }

    /// The power goes and comes back. What was not synced survives as the seed has it.
    pub fn crash(&self) {
        let state = &mut *self.state();
        let unsynced = std::mem::take(&mut state.unsynced);
        let mode = state.random.below(5);
        for change in unsynced {
            survive(&mut state.durable, change, mode, &mut state.random);
        }
        state.live = Image(state.durable.0.clone());
        state.cut_off = false;
        state.ios_left = None;
    }

    /// Flips one bit of what the disk holds, live and durable.
    pub fn flip(&self, offset: u64, bit: u8) {
        let state = &mut *self.state();
        for image in [&mut state.live, &mut state.durable] {
            let mut byte = [0];
            image.read(offset, &mut byte);
            image.write(offset, &[byte[0] ^ 1 << bit]);
        }
    }

    /// Reads what the disk holds now.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) {
        self.state().live.read(offset, bytes);
    }

    /// Writes past every cache.
    pub fn overwrite(&self, offset: u64, bytes: &[u8]) {
        let state = &mut *self.state();
        state.live.write(offset, bytes);
        state.durable.write(offset, bytes);
    }
}

/// Applies what survives of one unsynced change. Modes: 0 nothing, 1 everything, 2 whole writes by chance,
/// 3 single sectors by chance, 4 nearly everything but one sector here and there.
fn survive(durable: &mut Image, change: Change, mode: u64, random: &mut Random) {
    match change {
        Change::Punch { offset, len } => {
            if mode == 1 || mode > 1 && random.once_in(2) {
                durable.punch(offset, len);
            }
        }
        Change::Write { offset, bytes } => {
            let whole = random.once_in(2);
            for (at, sector) in bytes.chunks(SECTOR).enumerate() {
                let survives = match mode {
                    0 => false,
                    1 => true,
                    2 => whole,
                    3 => random.once_in(2),
                    _ => !random.once_in(64),
                };
                if survives {
                    durable.write(offset + (at * SECTOR) as u64, sector);
                }
            }
        }
    }
}

impl State {
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
            // A write under way when the power went may have arrived in part.
            if let Io::Write { offset, buffers } = io {
                self.unsynced.push(Change::Write { offset, bytes: buffers.concat_bytes() });
            }
            return Err(io::Error::other("the simulated disk is cut off"));
        }
        match io {
            Io::Read { offset, mut buffer } => {
                self.live.read(offset, &mut buffer);
                return Ok(Some(buffer));
            }
            Io::Write { offset, buffers } => {
                let bytes = buffers.concat_bytes();
                let new = pages(offset, bytes.len()).filter(|(page, ..)| !self.live.0.contains_key(page)).count();
                if self.faults.pages_max > 0 && self.live.0.len() + new > self.faults.pages_max {
                    // As on a real disk, a part may have arrived.
                    let part = self.random.below(bytes.len() as u64) as usize / PAGE * PAGE;
                    let fits = part.min((self.faults.pages_max.saturating_sub(self.live.0.len())) * PAGE);
                    self.live.write(offset, &bytes[..fits]);
                    self.unsynced.push(Change::Write { offset, bytes: bytes[..fits].to_vec() });
                    return Err(io::ErrorKind::StorageFull.into());
                }
                self.live.write(offset, &bytes);
                self.unsynced.push(Change::Write { offset, bytes });
            }
            Io::Discard { offset, len } => {
                self.live.punch(offset, len);
                self.unsynced.push(Change::Punch { offset, len });
            }
            Io::Allocate { .. } => {}
            Io::Sync => return self.sync(mark).map(|()| None),
        }
        Ok(None)
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
        for change in self.unsynced.drain(..mark.min(self.unsynced.len())) {
            survive(&mut self.durable, change, 1, &mut self.random);
        }
        Ok(())
    }
}

trait ConcatBytes {
    fn concat_bytes(&self) -> Vec<u8>;
}

impl ConcatBytes for Vec<strongroom_block::Buffer> {
    fn concat_bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|buffer| buffer.iter().copied()).collect()
    }
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

    fn submit(&mut self, token: u64, io: Io) {
        let mark = self.disk.state().unsynced.len();
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
            let before = state.unsynced.len();
            let result = state.perform(io, mark);
            let drained = before.saturating_sub(state.unsynced.len());
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
                state.unsynced.push(Change::Write { offset, bytes: buffers.concat_bytes() });
            }
        }
    }
}
