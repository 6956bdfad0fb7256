//! Scrubbing: segment after segment is read and compared with its keyless checksums, so that rot is known before somebody needs
//! the block.
//!
//! One segment for each call of [`Store::scrub`] or [`Store::scrub_beside`]: the caller decides the rate. A bad block is logged and
//! counted; it is left as it is, and reads of it go on failing. Absent: the newest segment, which is still written to.

use std::collections::BTreeSet;
use std::io;

use strongroom_block::{Buffer, BufferMut, Lba, keyless_checksum};

use super::clean::Live;
use super::read::item_checksum;
use super::victims::Pieces;
use super::{Purpose, Store};
use crate::backend::Io;
use crate::catalogue::NodeId;
use crate::index::Version;
use crate::layout::RECORD_BLOCK;
use crate::op::{Extent, OpError};
use crate::segments::State;
use crate::steps;

/// Upper bound on the bad blocks that are remembered.
const BAD_BLOCKS_MAX: usize = 1000;
/// Blocks of the index that one poll looks at while it searches for those in a damaged segment.
const SEARCHED_PER_POLL: usize = 4096;
/// Blocks of a damaged segment that are read at a time.
const BLOCK_READS_MAX: usize = 32;

/// How far scrubbing is.
#[derive(Default)]
pub(super) struct Scrub {
    /// Where passes begin: somewhere else each time the store is opened, so that short openings get everywhere.
    start: u64,
    /// How many segments of this pass are done.
    done: u32,
    reading: Option<SegmentRead>,
    search: Option<BlockSearch>,
    /// The search may go on in this poll.
    may_search: bool,
    /// Reads of blocks of the damaged segment that are in flight.
    block_reads: usize,
    /// Found in this pass, and in the one before.
    found: BTreeSet<u64>,
    found_before: BTreeSet<u64>,
    pub(super) passes: u64,
    pub(super) bytes: u64,
}

/// A segment that is being read, piece by piece: a medium would let other requests wait for all of a long read. It is pinned.
struct SegmentRead {
    segment: u32,
    /// As the segment had it when the read began.
    reopened: u32,
    /// How much of it is written, in bytes.
    len: usize,
    pieces: Vec<Buffer>,
}

/// The search for every version in a segment that cannot be read as a whole, through the index and then the older versions.
struct BlockSearch {
    segment: u32,
    at: SearchAt,
}

enum SearchAt {
    Index {
        node: NodeId,
        lba: u64,
    },
    /// Block and sequence.
    Versions((u64, u64)),
}

impl Scrub {
    pub(super) fn starting_at(start: u64) -> Scrub {
        Scrub { start, ..Scrub::default() }
    }

    pub(super) fn new_poll(&mut self) {
        self.may_search = true;
    }

    /// Whether a search has more to do, and nothing that it waits for is in flight.
    pub(super) fn goes_on(&self) -> bool {
        self.search.is_some() && self.block_reads == 0
    }

    /// How many blocks are known to be bad.
    pub(super) fn bad_count(&self) -> u64 {
        self.found.union(&self.found_before).count() as u64
    }

    fn note(&mut self, lba: u64) {
        if self.found.len() < BAD_BLOCKS_MAX {
            self.found.insert(lba);
        }
    }
}

impl Store {
    /// The blocks that the last pass of scrubbing, and this one so far, found to be bad (the first thousand).
    pub fn bad_blocks(&self) -> Vec<Lba> {
        self.scrub.found.union(&self.scrub.found_before).map(|&lba| Lba(lba)).collect()
    }

    /// Begins to read the next segment, unless anything else is going on. To be called when nothing was asked for a while, about
    /// once a second; [`Stats::scrub_passes`](crate::Stats::scrub_passes) tells when everything was read once.
    pub fn scrub(&mut self) {
        if self.ops_in_flight == 0 && self.ios.is_empty() {
            self.scrub_beside();
        }
    }

    /// The same beside requests, for a store that is never idle. The caller keeps to a share of time: it rests in proportion to how long
    /// [`Store::is_scrubbing`] is true.
    pub fn scrub_beside(&mut self) {
        if self.is_scrubbing() || self.erasing.is_some() || self.cleaner.stop {
            return;
        }
        let count = self.layout.segments;
        for _ in 0..SEARCHED_PER_POLL {
            if self.scrub.done >= count {
                self.scrub.done = 0;
                self.scrub.passes += 1;
                self.scrub.found_before = std::mem::take(&mut self.scrub.found);
                return;
            }
            let segment =
                ((self.scrub.start % u64::from(count) + u64::from(self.scrub.done)) % u64::from(count)) as u32;
            self.scrub.done += 1;
            steps::count(1);
            let entry = self.segments.segment(segment);
            if entry.state == State::Closed && entry.end > 0 {
                let (reopened, len) = (entry.reopened, entry.end as usize * RECORD_BLOCK);
                self.segments.pin(segment);
                self.read_scrub_piece(SegmentRead { segment, reopened, len, pieces: Vec::new() });
                return;
            }
        }
    }

    /// How many times scrubbing read the whole store since it was opened.
    pub fn scrub_passes(&self) -> u64 {
        self.scrub.passes
    }

    /// Whether a segment is being read, or searched for blocks that can still be read.
    pub fn is_scrubbing(&self) -> bool {
        self.scrub.reading.is_some() || self.scrub.search.is_some() || self.scrub.block_reads > 0
    }

    fn read_scrub_piece(&mut self, read: SegmentRead) {
        let piece_bytes = self.options.cleaning_piece_bytes as usize;
        let at = read.pieces.len() * piece_bytes;
        let buffer = BufferMut::to_fill(piece_bytes.min(read.len - at));
        let offset = self.layout.segment_at(read.segment) + at as u64;
        self.scrub.reading = Some(read);
        self.start_io(Purpose::Scrub, Io::Read { offset, buffer });
    }

    pub(super) fn scrub_read_done(&mut self, result: io::Result<Option<BufferMut>>) {
        let mut read = self.scrub.reading.take().expect("a segment is being read");
        let result = result.map(|buffer| read.pieces.push(buffer.expect("reads return their buffer").freeze()));
        let piece_bytes = self.options.cleaning_piece_bytes as usize;
        let is_left = self.erasing.is_some() || self.cleaner.stop;
        if result.is_ok() && !is_left && read.pieces.len() * piece_bytes < read.len {
            return self.read_scrub_piece(read);
        }
        let SegmentRead { segment, reopened, len, pieces } = read;
        self.segments.unpin(segment);
        if is_left || self.segments.segment(segment).reopened != reopened {
            // Written to while it was read. It is looked at in the next pass.
            return;
        }
        let read = result.map_err(|error| error.to_string());
        let live = read.and_then(|()| {
            let bytes = Pieces::new(pieces, piece_bytes, len);
            self.live_of(segment, &bytes).map(|live| (bytes, live))
        });
        match live {
            Ok((bytes, live)) => {
                self.scrub.bytes += bytes.len() as u64;
                let (block_bytes, item_bytes) = (self.layout.block_bytes as usize, self.layout.item_bytes as usize);
                for live in live {
                    let Live::Block { lba, item_at, data_at, .. } = live else { continue };
                    let (item, data) =
                        (bytes.slice(item_at..item_at + item_bytes), bytes.slice(data_at..data_at + block_bytes));
                    if keyless_checksum(&data) != item_checksum(&item) {
                        self.found_bad(lba, "it does not match its checksum");
                    }
                }
            }
            Err(reason) => {
                tracing::error!(volume = %self.info.volume_id, segment, reason, "scrubbing found a damaged segment");
                self.scrub.search = Some(BlockSearch { segment, at: SearchAt::Index { node: 0, lba: 0 } });
            }
        }
    }

    fn found_bad(&mut self, lba: u64, reason: &str) {
        tracing::error!(volume = %self.info.volume_id, lba, reason, "scrubbing found a bad block");
        self.scrub.note(lba);
    }

    /// Goes on with the search through a damaged segment, a slice for each poll: every version in it is read by itself.
    pub(super) fn drive_scrub(&mut self) -> bool {
        if !self.scrub.may_search || self.scrub.block_reads > 0 {
            return false;
        }
        if self.erasing.is_some() || self.cleaner.stop {
            self.scrub.search = None;
        }
        let Some(search) = self.scrub.search.take() else { return false };
        self.scrub.may_search = false;
        let (here, next) = self.search_blocks(&search);
        self.scrub.search = next.map(|at| BlockSearch { at, ..search });
        for (lba, version) in here {
            self.scrub.block_reads += 1;
            self.start_scrub_read(lba, version);
        }
        true
    }

    /// The next versions in a segment, and where to go on; `None`: that was all.
    fn search_blocks(&self, search: &BlockSearch) -> (Vec<(u64, Version)>, Option<SearchAt>) {
        let layout = self.layout;
        let mut here: Vec<(u64, Version)> = Vec::new();
        let is_here = |version: Version| version.segment(&layout) == search.segment;
        let mut left = SEARCHED_PER_POLL;
        match search.at {
            SearchAt::Index { node, lba } => {
                let Some((at, table)) = self.map.table_from(node) else {
                    return (here, Some(SearchAt::Versions((0, 0))));
                };
                let mut next = None;
                table.index.visit_from(if at == node { lba } else { 0 }, |lba, version| {
                    if left == 0 || here.len() == BLOCK_READS_MAX {
                        next = Some(lba);
                        return false;
                    }
                    left -= 1;
                    here.extend(is_here(version).then_some((lba, version)));
                    true
                });
                let next = next.map_or((at + 1, 0), |lba| (at, lba));
                (here, Some(SearchAt::Index { node: next.0, lba: next.1 }))
            }
            SearchAt::Versions((lba, sequence)) => {
                for (_, lba, version) in self.map.versions.from(lba, sequence) {
                    if left == 0 || here.len() == BLOCK_READS_MAX {
                        return (here, Some(SearchAt::Versions((lba, version.sequence()))));
                    }
                    left -= 1;
                    steps::count(1);
                    here.extend(is_here(version).then_some((lba, version)));
                }
                (here, None)
            }
        }
    }

    pub(super) fn scrub_block_read(&mut self, extents: Result<Vec<Extent>, OpError>) {
        self.scrub.block_reads -= 1;
        if let Err(OpError::Medium { lba, .. }) = extents {
            self.scrub.note(lba.0);
        }
    }
}
