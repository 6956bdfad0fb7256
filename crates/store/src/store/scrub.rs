//! Scrubbing: segment after segment is read and compared with its keyless checksums, so that rot is found before a block is needed.
//!
//! One segment for each call of [`Scrub::begin_segment`]: the caller decides the rate. A bad block is logged and counted; it is left as it
//! is, and reads of it go on failing. Absent: the newest segment, which is still written to.

use std::collections::BTreeSet;

use strongroom_block::{Buffer, BufferMut, Lba};

use super::access::ReadAccess;
use super::io::{IoResult, Purpose};
use super::live::{Live, Pieces, live_of};
use super::read_parts::{Owner, Wanted};
use super::reader::Reader;
use crate::backend::Io;
use crate::catalogue::NodeId;
use crate::index::Version;
use crate::layout::{Layout, RECORD_BLOCK};
use crate::map::BlockMap;
use crate::op::{Extent, OpError};
use crate::segments::SegmentState;
use crate::steps;

/// Upper bound on the bad blocks that are remembered.
const BAD_BLOCKS_MAX: usize = 1000;
/// Blocks of the index that one poll looks at while it searches for those in a damaged segment.
const SEARCHED_PER_POLL: usize = 4096;
/// Blocks of a damaged segment that are read at a time.
const BLOCK_READS_MAX: usize = 32;

/// How far scrubbing is, and what it has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// How much of the pass that is under way is done, in 65536ths.
    pub position: u16,
    /// The blocks found to be bad in the last pass and in this one so far, a thousand of each at most.
    pub bad_blocks: Vec<Lba>,
}

/// The progress of scrubbing.
#[derive(Default)]
pub(super) struct Scrub {
    /// Where passes begin: at another segment each time the store is opened, so that short openings get everywhere.
    start: u64,
    /// How many segments of this pass are done.
    done: u32,
    /// Bytes in which a segment is read.
    piece_bytes: usize,
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
    pub(super) fn starting_at(start: u64, piece_bytes: usize) -> Scrub {
        Scrub { start, piece_bytes, ..Scrub::default() }
    }

    pub(super) fn new_poll(&mut self) {
        self.may_search = true;
    }

    /// Whether a segment is being read, or searched for blocks that can still be read.
    pub(super) fn is_busy(&self) -> bool {
        self.reading.is_some() || self.search.is_some() || self.block_reads > 0
    }

    /// Whether a search has more to do, and nothing that it waits for is in flight.
    pub(super) fn goes_on(&self) -> bool {
        self.search.is_some() && self.block_reads == 0
    }

    pub(super) fn report(&self, layout: &Layout) -> ScrubReport {
        let share = u64::from(self.done) * 65536 / u64::from(layout.segments.max(1));
        let bad_blocks = self.found.union(&self.found_before).map(|&lba| Lba(lba)).collect();
        ScrubReport { position: share.min(u16::MAX.into()) as u16, bad_blocks }
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

    /// Begins to read the next segment that was written.
    pub(super) fn begin_segment(&mut self, access: &mut ReadAccess<'_>) {
        let count = access.medium.volume.layout.segments;
        for _ in 0..SEARCHED_PER_POLL {
            if self.done >= count {
                self.done = 0;
                self.passes += 1;
                self.found_before = std::mem::take(&mut self.found);
                return;
            }
            let segment = ((self.start % u64::from(count) + u64::from(self.done)) % u64::from(count)) as u32;
            self.done += 1;
            steps::count(1);
            let entry = access.medium.segments.segment(segment);
            if entry.state == SegmentState::Closed && entry.end > 0 {
                let (reopened, len) = (entry.reopened, entry.end as usize * RECORD_BLOCK);
                access.medium.segments.pin(segment);
                self.read_piece(access, SegmentRead { segment, reopened, len, pieces: Vec::new() });
                return;
            }
        }
    }

    fn read_piece(&mut self, access: &mut ReadAccess<'_>, read: SegmentRead) {
        let at = read.pieces.len() * self.piece_bytes;
        let buffer = BufferMut::to_fill(self.piece_bytes.min(read.len - at));
        let offset = access.medium.volume.layout.segment_at(read.segment) + at as u64;
        self.reading = Some(read);
        access.medium.io.start(Purpose::Scrub, Io::Read { offset, buffer });
    }

    /// A piece of the segment was read. `stopped`: the store is being closed or erased.
    pub(super) fn piece_read(&mut self, access: &mut ReadAccess<'_>, stopped: bool, result: IoResult) {
        let mut read = self.reading.take().expect("a segment is being read");
        let result = result.map(|buffer| read.pieces.push(buffer.expect("reads return their buffer").freeze()));
        if result.is_ok() && !stopped && read.pieces.len() * self.piece_bytes < read.len {
            return self.read_piece(access, read);
        }
        let SegmentRead { segment, reopened, len, pieces } = read;
        access.medium.segments.unpin(segment);
        if stopped || access.medium.segments.segment(segment).reopened != reopened {
            // Written to while it was read. The next pass reads it.
            return;
        }
        let read = result.map_err(|error| error.to_string());
        let live = read.and_then(|()| {
            let bytes = Pieces::new(pieces, self.piece_bytes, len);
            live_of(segment, &bytes, access.map, &access.medium.segments, &access.medium.volume)
                .map(|live| (bytes, live))
        });
        match live {
            Ok((bytes, live)) => self.verify(access, &bytes, &live),
            Err(reason) => {
                let volume = access.medium.volume.info.volume_id;
                tracing::error!(%volume, segment, reason, "scrubbing found a damaged segment");
                self.search = Some(BlockSearch { segment, at: SearchAt::Index { node: 0, lba: 0 } });
            }
        }
    }

    fn verify(&mut self, access: &ReadAccess<'_>, bytes: &Pieces, live: &[Live]) {
        self.bytes += bytes.len() as u64;
        for live in live {
            let &Live::Block { lba, item_at, data_at, .. } = live else { continue };
            if bytes.block(item_at, data_at, &access.medium.volume).is_none() {
                let volume = access.medium.volume.info.volume_id;
                tracing::error!(%volume, lba, "scrubbing found a bad block: it does not match its checksum");
                self.note(lba);
            }
        }
    }

    /// Goes on with the search through a damaged segment, a slice in each poll: every version in it is read by itself. Whether anything was
    /// done.
    pub(super) fn advance(&mut self, access: &mut ReadAccess<'_>, reader: &mut Reader, stopped: bool) -> bool {
        if !self.may_search || self.block_reads > 0 {
            return false;
        }
        if stopped {
            self.search = None;
        }
        let Some(search) = self.search.take() else { return false };
        self.may_search = false;
        let (here, next) = search.next(access.map, &access.medium.volume.layout);
        self.search = next.map(|at| BlockSearch { at, ..search });
        self.block_reads += here.len();
        for version in here {
            reader.start_versions(access, Owner::Scrub, &[version], Wanted::DataOfMedium);
        }
        true
    }

    pub(super) fn block_read(&mut self, extents: Result<Vec<Extent>, OpError>) {
        self.block_reads -= 1;
        if let Err(OpError::Medium { lba, .. }) = extents {
            self.note(lba.0);
        }
    }
}

impl BlockSearch {
    /// The next versions in the segment, and where to go on; `None`: that was all.
    fn next(&self, map: &BlockMap, layout: &Layout) -> (Vec<(u64, Version)>, Option<SearchAt>) {
        let mut here: Vec<(u64, Version)> = Vec::new();
        let is_here = |version: Version| version.segment(layout) == self.segment;
        let mut left = SEARCHED_PER_POLL;
        match self.at {
            SearchAt::Index { node, lba } => {
                let Some((at, table)) = map.table_from(node) else {
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
                for (_, lba, version) in map.versions.from(lba, sequence) {
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
}
