//! Reading a log forward: at a place, and ahead of it where units are small.
//!
//! Between many small units lies little that is not wanted. There the log is read as a whole, piece by piece: the next ones
//! are on their way while one is taken in, also across segments where it is known which one follows. Absent: what the bytes
//! mean, which is `scan`'s.

use std::collections::{HashMap, VecDeque};
use std::io;

use strongroom_block::{Buffer, BufferMut};

use crate::backend::{Backend, Io, IoDone};
use crate::error::StoreError;
use crate::layout::{Layout, RECORD_BLOCK};

/// What is read ahead at first, and behind units that are not small, in 4 KiB blocks: the record blocks of most units.
const AHEAD_LEAST_BLOCKS: u32 = 4;
/// What is read ahead behind many small units in a row, in 4 KiB blocks. Each doubles it: between units that are not small lies data,
/// which is not wanted.
const PIECE_BLOCKS: u32 = 256;
/// Then this many pieces are on their way or there.
const PIECES: usize = 4;

/// Reads of one log that go forward, mostly.
pub(super) struct Reader<'a> {
    backend: &'a mut dyn Backend,
    layout: Layout,
    /// How much is read ahead, in 4 KiB blocks.
    ahead: u32,
    /// Which segment comes after one, where that is known.
    follows: HashMap<u32, u32>,
    /// In the order of the log; what is read next is in the first.
    pieces: VecDeque<Piece>,
    next_token: u64,
    in_flight: usize,
    arrived: HashMap<u64, io::Result<Option<BufferMut>>>,
}

/// Bytes of one segment, read ahead.
struct Piece {
    segment: u32,
    /// In 4 KiB blocks.
    first: u32,
    blocks: u32,
    bytes: Bytes,
}

enum Bytes {
    Coming(u64),
    /// `None`: they cannot be read in one. Perhaps in smaller pieces.
    There(Option<Buffer>),
}

impl Piece {
    fn has(&self, segment: u32, block: u32) -> bool {
        self.segment == segment && (self.first..self.first + self.blocks).contains(&block)
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(backend: &'a mut dyn Backend, layout: Layout) -> Reader<'a> {
        Reader {
            backend,
            layout,
            ahead: AHEAD_LEAST_BLOCKS,
            follows: HashMap::new(),
            pieces: VecDeque::new(),
            next_token: 0,
            in_flight: 0,
            arrived: HashMap::new(),
        }
    }

    /// What is below, with nothing in flight.
    pub(super) fn backend(&mut self) -> &mut dyn Backend {
        while self.in_flight > 0 {
            self.take();
        }
        self.backend
    }

    /// These segments will be read one after the other.
    pub(super) fn expect(&mut self, segments: impl Iterator<Item = u32> + Clone) {
        self.follows = segments.clone().zip(segments.skip(1)).collect();
    }

    /// A small unit was read, or one that is not.
    pub(super) fn seen(&mut self, small: bool) {
        self.ahead = if small { (self.ahead * 2).min(PIECE_BLOCKS) } else { AHEAD_LEAST_BLOCKS };
    }

    /// Everything is wanted that follows.
    pub(super) fn read_all_ahead(&mut self) {
        self.ahead = PIECE_BLOCKS;
    }

    /// Whether what follows is being read as a whole.
    pub(super) fn reads_all_ahead(&self) -> bool {
        self.ahead == PIECE_BLOCKS
    }

    /// This many 4 KiB blocks from a place in a segment on.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`].
    pub(super) fn read(&mut self, segment: u32, block: u32, blocks: u32) -> Result<Buffer, StoreError> {
        match self.read_ahead(segment, block, blocks) {
            Some(bytes) => Ok(bytes),
            // What cannot be read ahead may yet be read one by one.
            None => self.read_now(segment, block, blocks),
        }
    }

    fn read_ahead(&mut self, segment: u32, block: u32, blocks: u32) -> Option<Buffer> {
        while self.pieces.front().is_some_and(|piece| !piece.has(segment, block)) {
            self.leave_first();
        }
        if self.pieces.is_empty() {
            let ahead = self.ahead.min(self.layout.segment_blocks() - block);
            if ahead <= blocks {
                return None;
            }
            self.start(segment, block, ahead);
        }
        while self.reads_all_ahead()
            && self.pieces.len() < PIECES
            && let Some((segment, block)) = self.after_pieces()
        {
            self.start(segment, block, PIECE_BLOCKS.min(self.layout.segment_blocks() - block));
        }
        let piece = self.pieces.front()?;
        let at = (block - piece.first) as usize * RECORD_BLOCK;
        let bytes = match &piece.bytes {
            Bytes::There(bytes) => bytes.clone(),
            &Bytes::Coming(token) => {
                let bytes = self.finish(token).ok().map(BufferMut::freeze);
                self.pieces.front_mut()?.bytes = Bytes::There(bytes.clone());
                bytes
            }
        };
        bytes
            .filter(|bytes| at + blocks as usize * RECORD_BLOCK <= bytes.len())
            .map(|bytes| bytes.slice(at..at + blocks as usize * RECORD_BLOCK))
    }

    /// Where the log goes on after what is read ahead.
    fn after_pieces(&self) -> Option<(u32, u32)> {
        let last = self.pieces.back()?;
        let end = last.first + last.blocks;
        match end < self.layout.segment_blocks() {
            true => Some((last.segment, end)),
            false => Some((*self.follows.get(&last.segment)?, 0)),
        }
    }

    fn start(&mut self, segment: u32, first: u32, blocks: u32) {
        let bytes = Bytes::Coming(self.submit(segment, first, blocks));
        self.pieces.push_back(Piece { segment, first, blocks, bytes });
    }

    /// The first piece is not needed, or not any more.
    fn leave_first(&mut self) {
        if let Some(Piece { bytes: Bytes::Coming(token), .. }) = self.pieces.pop_front() {
            let _ = self.finish(token);
        }
    }

    /// As [`Reader::read`], and nothing ahead of it.
    pub(super) fn read_now(&mut self, segment: u32, block: u32, blocks: u32) -> Result<Buffer, StoreError> {
        let token = self.submit(segment, block, blocks);
        let offset = u64::from(block) * RECORD_BLOCK as u64;
        let unreadable = |source| StoreError::Unreadable { segment, offset, source };
        self.finish(token).map(BufferMut::freeze).map_err(unreadable)
    }

    fn submit(&mut self, segment: u32, block: u32, blocks: u32) -> u64 {
        let (token, offset) = (self.next_token, self.layout.block_at(segment, block));
        let buffer = BufferMut::to_fill(blocks as usize * RECORD_BLOCK);
        self.next_token += 1;
        self.in_flight += 1;
        self.backend.submit(token, Io::Read { offset, buffer });
        token
    }

    fn finish(&mut self, token: u64) -> io::Result<BufferMut> {
        loop {
            if let Some(result) = self.arrived.remove(&token) {
                return result.map(|buffer| buffer.expect("reads return their buffer"));
            }
            self.take();
        }
    }

    fn take(&mut self) {
        let mut done = Vec::new();
        if self.backend.poll(&mut done) == 0 {
            self.backend.wait();
        }
        self.in_flight -= done.len();
        self.arrived.extend(done.into_iter().map(|IoDone { token, result }| (token, result)));
    }
}

impl Drop for Reader<'_> {
    /// Leaves nothing in flight for the next user of the backend.
    fn drop(&mut self) {
        self.backend();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Waker;

    const LAYOUT: Layout = Layout { segment_bytes: 4 << 20, segments: 8, block_bytes: 4096, item_bytes: 8 };

    /// Every 4 KiB block holds its offset. What was submitted last completes first; what holds `bad` fails.
    #[derive(Default)]
    struct Medium {
        bad: Option<u64>,
        waiting: Vec<(u64, u64, BufferMut)>,
        reads: Vec<(u64, usize)>,
        most_in_flight: usize,
    }

    impl Backend for Medium {
        fn set_waker(&mut self, _waker: Waker) {}
        fn submit(&mut self, token: u64, io: Io) {
            let Io::Read { offset, buffer } = io else { panic!("only reads") };
            self.reads.push((offset, buffer.len()));
            self.waiting.push((token, offset, buffer));
            self.most_in_flight = self.most_in_flight.max(self.waiting.len());
        }
        fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
            let Some((token, offset, mut buffer)) = self.waiting.pop() else { return 0 };
            let holds = |bad: u64| (offset..offset + buffer.len() as u64).contains(&bad);
            let result = if self.bad.is_some_and(holds) {
                Err(io::Error::other("a bad block"))
            } else {
                for (at, block) in buffer.chunks_exact_mut(RECORD_BLOCK).enumerate() {
                    block[..8].copy_from_slice(&(offset + (at * RECORD_BLOCK) as u64).to_be_bytes());
                }
                Ok(Some(buffer))
            };
            done.push(IoDone { token, result });
            1
        }
        fn wait(&mut self) {
            assert!(!self.waiting.is_empty(), "nothing would come");
        }
    }

    /// Reads units of one block, and checks what comes.
    fn read_units(reader: &mut Reader<'_>, segment: u32, blocks: std::ops::Range<u32>) -> Result<(), StoreError> {
        for block in blocks {
            let bytes = reader.read(segment, block, 1)?;
            assert_eq!(bytes[..8], LAYOUT.block_at(segment, block).to_be_bytes(), "block {block} of segment {segment}");
            reader.seen(true);
        }
        Ok(())
    }

    #[test]
    fn many_small_units_are_read_in_pieces_ahead_of_need_and_into_the_next_segment() {
        let mut medium = Medium::default();
        let mut reader = Reader::new(&mut medium, LAYOUT);
        reader.expect([1, 5, 2].into_iter());
        for segment in [1, 5] {
            read_units(&mut reader, segment, 0..LAYOUT.segment_blocks()).unwrap();
        }
        drop(reader);
        assert!(medium.waiting.is_empty(), "nothing is left on its way");
        assert_eq!(medium.most_in_flight, PIECES);
        let of = |segment: u32| {
            let from = LAYOUT.segment_at(segment);
            medium
                .reads
                .iter()
                .filter(move |(at, _)| (from..from + u64::from(LAYOUT.segment_bytes)).contains(at))
                .count()
        };
        assert!(of(1) <= 12, "{:?}", medium.reads);
        assert_eq!(of(5), 4, "{:?}", medium.reads);
        assert!((1..=3).contains(&of(2)), "{:?}", medium.reads);
        let bytes: usize = medium.reads.iter().map(|&(_, len)| len).sum();
        assert!(bytes <= 3 * LAYOUT.segment_bytes as usize, "nothing is read twice");
    }

    #[test]
    fn behind_units_that_are_not_small_little_is_read() {
        let mut medium = Medium::default();
        let mut reader = Reader::new(&mut medium, LAYOUT);
        reader.expect([0, 1].into_iter());
        for at in 0..16 {
            reader.read(0, at * 64, 1).unwrap();
            reader.seen(false);
        }
        drop(reader);
        assert!(medium.reads.iter().all(|&(_, len)| len == 4 * RECORD_BLOCK), "{:?}", medium.reads);
        assert_eq!(medium.reads.len(), 16);
    }

    #[test]
    fn around_a_bad_block_everything_is_read_and_the_bad_block_is_named() {
        let bad = LAYOUT.block_at(1, 700);
        let mut medium = Medium { bad: Some(bad), ..Medium::default() };
        let mut reader = Reader::new(&mut medium, LAYOUT);
        reader.expect([1, 2].into_iter());
        read_units(&mut reader, 1, 0..700).unwrap();
        let error = reader.read(1, 700, 1).unwrap_err();
        assert!(matches!(error, StoreError::Unreadable { segment: 1, offset, .. } if offset == 700 * 4096), "{error}");
        read_units(&mut reader, 1, 701..1024).unwrap();
        read_units(&mut reader, 2, 0..8).unwrap();
        // More than what is ahead holds of it, and back again.
        assert_eq!(reader.read(2, 250, 20).unwrap().len(), 20 * RECORD_BLOCK);
        read_units(&mut reader, 1, 3..9).unwrap();
    }
}
