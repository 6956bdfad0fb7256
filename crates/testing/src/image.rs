//! Bytes of which only the synced ones are sure to survive.

use std::collections::HashMap;
use std::ops::Range;

use crate::Random;

/// Bytes of a page: what space is counted in.
pub(crate) const PAGE: usize = 4096;
/// Bytes that a medium writes whole or not at all.
const SECTOR: usize = 512;

/// Sparse bytes.
#[derive(Clone, Default)]
struct Image(HashMap<u64, Box<[u8; PAGE]>>);

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

    /// Makes whole pages zeros again.
    fn punch(&mut self, offset: u64, len: u64) {
        for page in offset.div_ceil(PAGE as u64)..(offset + len) / PAGE as u64 {
            self.0.remove(&page);
        }
    }
}

/// Page, offset within it, and range of the caller's bytes.
fn pages(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
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

/// A live and a durable image, and what was done since the last sync.
#[derive(Default)]
pub(crate) struct Forgetful {
    live: Image,
    durable: Image,
    unsynced: Vec<Change>,
}

/// What survives of unsynced changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Survives {
    Nothing,
    Everything,
    WholeWrites,
    SingleSectors,
    AllButAFewSectors,
    /// Of every sector that was touched either nothing, or what was written there last: also where only an earlier write
    /// was on its way (a page cache writes a page as it is then).
    LatestContent,
}

impl Forgetful {
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) {
        self.live.read(offset, bytes);
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: Vec<u8>) {
        self.live.write(offset, &bytes);
        self.unsynced.push(Change::Write { offset, bytes });
    }

    /// A write that was under way when the power went: seen by nobody, but may have arrived in part.
    pub(crate) fn write_unseen(&mut self, offset: u64, bytes: Vec<u8>) {
        self.unsynced.push(Change::Write { offset, bytes });
    }

    pub(crate) fn punch(&mut self, offset: u64, len: u64) {
        self.live.punch(offset, len);
        self.unsynced.push(Change::Punch { offset, len });
    }

    /// Past every cache.
    pub(crate) fn overwrite(&mut self, offset: u64, bytes: &[u8]) {
        self.live.write(offset, bytes);
        self.durable.write(offset, bytes);
    }

    /// Where the pages that hold data begin, in bytes.
    pub(crate) fn written_pages(&self) -> Vec<u64> {
        let mut pages: Vec<u64> = self.live.0.keys().map(|page| page * PAGE as u64).collect();
        pages.sort_unstable();
        pages
    }

    /// Where these bytes lie, within one page and at whole sectors.
    pub(crate) fn places_of(&self, bytes: &[u8]) -> Vec<u64> {
        let mut places = Vec::new();
        for (page, data) in &self.live.0 {
            let sectors = (0..PAGE - (bytes.len() - 1)).step_by(SECTOR);
            let here = sectors.filter(|at| data[*at..].starts_with(bytes));
            places.extend(here.map(|at| page * PAGE as u64 + at as u64));
        }
        places.sort_unstable();
        places
    }

    /// Makes the first `count` unsynced changes durable.
    pub(crate) fn sync(&mut self, count: usize, random: &mut Random) {
        for change in self.unsynced.drain(..count.min(self.unsynced.len())) {
            survive(&mut self.durable, change, Survives::Everything, random);
        }
    }

    /// The first run of pages at or after `from` that were written.
    pub(crate) fn data_from(&self, from: u64) -> Option<Range<u64>> {
        let first = self.live.0.keys().copied().filter(|page| (page + 1) * PAGE as u64 > from).min()?;
        let end = (first..).find(|page| !self.live.0.contains_key(page)).expect("fewer live pages than that");
        Some((first * PAGE as u64).max(from)..end * PAGE as u64)
    }

    /// How many changes are not synced.
    pub(crate) fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    /// The power goes and comes back: what was not synced survives as chance has it; every kind of chance comes up.
    pub(crate) fn crash(&mut self, random: &mut Random) {
        let survives = match random.below(6) {
            0 => Survives::Nothing,
            1 => Survives::Everything,
            2 => Survives::WholeWrites,
            3 => Survives::SingleSectors,
            4 => Survives::AllButAFewSectors,
            _ => Survives::LatestContent,
        };
        if survives == Survives::LatestContent {
            self.bring_up_to_date();
        }
        for change in std::mem::take(&mut self.unsynced) {
            survive(&mut self.durable, change, survives, random);
        }
        self.live = self.durable.clone();
    }

    /// Every unsynced write gets the content that its place has now.
    fn bring_up_to_date(&mut self) {
        for change in &mut self.unsynced {
            if let Change::Write { offset, bytes } = change {
                self.live.read(*offset, bytes);
            }
        }
    }

    /// Everything not synced is gone.
    pub(crate) fn forget(&mut self) {
        self.unsynced.clear();
        self.live = self.durable.clone();
    }

    /// How many pages hold data.
    pub(crate) fn pages(&self) -> usize {
        self.live.0.len()
    }

    /// How many pages more would hold data after a write.
    pub(crate) fn new_pages(&self, offset: u64, len: usize) -> usize {
        pages(offset, len).filter(|(page, ..)| !self.live.0.contains_key(page)).count()
    }
}

fn survive(durable: &mut Image, change: Change, survives: Survives, random: &mut Random) {
    let whole = match survives {
        Survives::Nothing => false,
        Survives::Everything => true,
        _ => random.once_in(2),
    };
    match change {
        Change::Punch { offset, len } if whole => durable.punch(offset, len),
        Change::Punch { .. } => {}
        Change::Write { offset, bytes } => {
            for (at, sector) in bytes.chunks(SECTOR).enumerate() {
                let this = match survives {
                    Survives::SingleSectors | Survives::LatestContent => random.once_in(2),
                    Survives::AllButAFewSectors => !random.once_in(64),
                    _ => whole,
                };
                if this {
                    durable.write(offset + (at * SECTOR) as u64, sector);
                }
            }
        }
    }
}
