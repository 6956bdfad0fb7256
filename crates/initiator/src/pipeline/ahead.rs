//! Sequential reads, fetched before they are asked for. No device, no threads: what is to be fetched comes out, what arrived goes in.
//!
//! A read that goes on where one ended makes a stream; from the second on blocks are fetched ahead of it, twice as many with each read
//! until they are what the caller says that a way holds ([`ReadAhead::set_bytes_max`], a multiple of bandwidth times delay). Reads at
//! random find no stream and fetch nothing. What was fetched is given once. What a write overlaps is dropped when it is
//! submitted and again when it has ended, and what is being fetched meanwhile worthless: a read that comes after a write's end never
//! sees what was before it.
//!
//! What was fetched is as old as its fetch. Another initiator's write in between is not seen, which a block device must not do; so this
//! is for those who know that they are alone, or that nothing changes ([`crate::AttachOptions::readahead`]).

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use strongroom_block::{BufferMut, Lba, Token};

/// Streams that are followed at once; the one that rested longest makes way.
const STREAMS_MAX: usize = 4;
/// The first fetches and the smallest, in bytes; also what is fetched ahead on a short way.
const FETCH_BYTES_MIN: u64 = 128 << 10;
/// The largest fetch, in bytes.
const FETCH_BYTES_MAX: u64 = 1 << 20;

/// Names a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FetchId(u64);

#[cfg(test)]
impl FetchId {
    /// For tests of what answers fetches.
    pub(crate) const FIRST: FetchId = FetchId(0);
}

/// Blocks to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fetch {
    pub(crate) id: FetchId,
    pub(crate) lba: Lba,
    pub(crate) count: u64,
}

/// A read of the device's user.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) token: Token,
    pub(crate) lba: Lba,
    pub(crate) buffer: BufferMut,
}

/// What becomes of a read.
#[derive(Debug)]
pub(crate) enum Served {
    /// Its buffer is full.
    Now(Read),
    /// It comes out of [`ReadAhead::arrived`].
    Later,
    /// It is to be read as if nothing were fetched ahead.
    Not(Read),
}

/// Reads that waited and do so no longer.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// Their buffers are full.
    pub(crate) served: Vec<Read>,
    /// They are to be read as if nothing had been fetched.
    pub(crate) lost: Vec<Read>,
}

#[derive(Debug)]
struct Piece {
    id: FetchId,
    start: u64,
    end: u64,
    /// `None` until it has arrived.
    data: Option<BufferMut>,
}

/// Blocks in a row.
#[derive(Debug)]
struct Stream {
    /// Where the next read is expected.
    next: u64,
    /// Bytes to keep fetched ahead.
    window_bytes: u64,
    /// Without a gap.
    pieces: VecDeque<Piece>,
    used_at: u64,
}

impl Stream {
    fn covers(&self, start: u64, end: u64) -> bool {
        self.pieces.front().is_some_and(|first| first.start <= start) && self.fetched_until() >= end
    }

    fn fetched_until(&self) -> u64 {
        self.pieces.back().map_or(self.next, |last| last.end)
    }
}

/// Streams, and what was fetched for them.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    shift: u32,
    /// Of the volume.
    blocks: u64,
    bytes_max: u64,
    streams: Vec<Stream>,
    waiting: Vec<Read>,
    /// Writes that have not ended: from, to.
    writes: FxHashMap<Token, (u64, u64)>,
    next_id: u64,
    clock: u64,
}

impl ReadAhead {
    /// For a volume of this many blocks of `1 << shift` bytes.
    pub(crate) fn new(shift: u32, blocks: u64) -> ReadAhead {
        ReadAhead {
            shift,
            blocks,
            bytes_max: FETCH_BYTES_MAX,
            streams: Vec::new(),
            waiting: Vec::new(),
            writes: FxHashMap::default(),
            next_id: 0,
            clock: 0,
        }
    }

    /// Bytes of a block.
    pub(crate) fn block_bytes(&self) -> usize {
        1 << self.shift
    }

    /// The volume has this many blocks now.
    pub(crate) fn grow_to(&mut self, blocks: u64) {
        self.blocks = self.blocks.max(blocks);
    }

    /// How much is fetched ahead of a stream at most.
    pub(crate) fn set_bytes_max(&mut self, bytes: u64) {
        self.bytes_max = bytes.max(FETCH_BYTES_MAX);
    }

    /// Takes a read in; `fetches` gets what is to be fetched now.
    pub(crate) fn read(&mut self, read: Read, fetches: &mut Vec<Fetch>) -> Served {
        self.clock += 1;
        let clock = self.clock;
        let (start, end) = (read.lba.0, read.lba.0 + (read.buffer.len() as u64 >> self.shift));
        let goes_on = |stream: &Stream| stream.next == start || stream.covers(start, end);
        let Some(at) = self.streams.iter().position(goes_on) else {
            self.begin(end);
            return Served::Not(read);
        };
        let stream = &mut self.streams[at];
        let is_covered = stream.covers(start, end);
        stream.used_at = clock;
        stream.next = stream.next.max(end);
        if !is_covered {
            // What is there does not reach, or there is nothing yet: from behind this read on.
            stream.pieces.clear();
        }
        let bytes = (end - start) << self.shift;
        let wanted = 2 * stream.window_bytes.max(bytes / 2);
        // All streams together hold no more than one may.
        let others =
            self.streams.iter().enumerate().filter(|(other, stream)| *other != at && !stream.pieces.is_empty());
        let share = (self.bytes_max / (1 + others.count() as u64)).max(FETCH_BYTES_MIN);
        self.streams[at].window_bytes = wanted.clamp(FETCH_BYTES_MIN, share);
        self.fetch(at, fetches);
        if !is_covered {
            return Served::Not(read);
        }
        match self.give(read) {
            Ok(read) => Served::Now(read),
            Err(read) => {
                self.waiting.push(read);
                Served::Later
            }
        }
    }

    /// A fetch has ended, with data or without.
    pub(crate) fn arrived(&mut self, id: FetchId, data: Option<BufferMut>) -> Settled {
        for stream in &mut self.streams {
            let Some(at) = stream.pieces.iter().position(|piece| piece.id == id) else { continue };
            match data {
                Some(data) => stream.pieces[at].data = Some(data),
                // Not the whole stream fails with it, but what follows would have a gap before it.
                None => stream.pieces.truncate(at),
            }
            break;
        }
        self.settle()
    }

    /// A write is submitted.
    pub(crate) fn writing(&mut self, token: Token, lba: Lba, count: u64) -> Settled {
        let range = (lba.0, lba.0.saturating_add(count));
        self.writes.insert(token, range);
        self.forget(range)
    }

    /// It has ended, if `token` is one of a write.
    pub(crate) fn written(&mut self, token: Token) -> Settled {
        self.writes.remove(&token).map(|range| self.forget(range)).unwrap_or_default()
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) -> Settled {
        self.forget((0, u64::MAX))
    }

    fn forget(&mut self, (start, end): (u64, u64)) -> Settled {
        for stream in &mut self.streams {
            if let Some(at) = stream.pieces.iter().position(|piece| piece.start < end && start < piece.end) {
                stream.pieces.truncate(at);
            }
        }
        self.settle()
    }

    fn settle(&mut self) -> Settled {
        let mut settled = Settled::default();
        for read in std::mem::take(&mut self.waiting) {
            let (start, end) = (read.lba.0, read.lba.0 + (read.buffer.len() as u64 >> self.shift));
            if !self.streams.iter().any(|stream| stream.covers(start, end)) {
                settled.lost.push(read);
                continue;
            }
            match self.give(read) {
                Ok(read) => settled.served.push(read),
                Err(read) => self.waiting.push(read),
            }
        }
        settled
    }

    /// Fills the buffer of a read that a stream covers, if all of it has arrived; what lies before its end has served then.
    fn give(&mut self, mut read: Read) -> Result<Read, Read> {
        let shift = self.shift;
        let (start, end) = (read.lba.0, read.lba.0 + (read.buffer.len() as u64 >> shift));
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.covers(start, end)) else { return Err(read) };
        let is_of_it = |piece: &&Piece| piece.start < end && start < piece.end;
        if stream.pieces.iter().filter(is_of_it).any(|piece| piece.data.is_none()) {
            return Err(read);
        }
        for piece in stream.pieces.iter().filter(is_of_it) {
            let (from, to) = (piece.start.max(start), piece.end.min(end));
            let place = |at: u64, of: u64| ((at - of) << shift) as usize;
            let data = piece.data.as_ref().expect("looked at above");
            read.buffer[place(from, start)..place(to, start)]
                .copy_from_slice(&data[place(from, piece.start)..place(to, piece.start)]);
        }
        let others = self.waiting.iter().map(|other| other.lba.0).min().unwrap_or(u64::MAX);
        while stream.pieces.front().is_some_and(|piece| piece.end <= end.min(others)) {
            stream.pieces.pop_front();
        }
        Ok(read)
    }

    /// A read that goes on nowhere may be the first of a stream.
    fn begin(&mut self, next: u64) {
        let stream = Stream { next, window_bytes: 0, pieces: VecDeque::new(), used_at: self.clock };
        if self.streams.len() < STREAMS_MAX {
            return self.streams.push(stream);
        }
        // Not one that somebody waits for.
        let waiting = &self.waiting;
        let is_free = |stream: &&mut Stream| waiting.iter().all(|read| !stream.covers(read.lba.0, read.lba.0 + 1));
        if let Some(oldest) = self.streams.iter_mut().filter(is_free).min_by_key(|stream| stream.used_at) {
            *oldest = stream;
        }
    }

    /// Fetches as far ahead as the stream's window says, in pieces that grow with it.
    fn fetch(&mut self, at: usize, fetches: &mut Vec<Fetch>) {
        let stream = &mut self.streams[at];
        let piece_blocks = (stream.window_bytes / 4).clamp(FETCH_BYTES_MIN, FETCH_BYTES_MAX) >> self.shift;
        let until = (stream.next + (stream.window_bytes >> self.shift)).min(self.blocks);
        // A fetch costs a command: whole pieces, but for the volume's last.
        if stream.fetched_until() < stream.next {
            // Forgotten since; there must be no gap.
            stream.pieces.clear();
        }
        let mut from = stream.fetched_until();
        while from < until && (until - from >= piece_blocks || until == self.blocks) {
            let end = (from + piece_blocks.max(1)).min(until);
            // What is just being written would be worthless.
            if self.writes.values().any(|(start, to)| *start < end && from < *to) {
                break;
            }
            let id = FetchId(self.next_id);
            self.next_id += 1;
            stream.pieces.push_back(Piece { id, start: from, end, data: None });
            fetches.push(Fetch { id, lba: Lba(from), count: end - from });
            from = end;
        }
    }
}
