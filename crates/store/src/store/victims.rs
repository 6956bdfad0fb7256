//! Segments that are to be cleaned, read in pieces: a medium answers in the order in which it is asked, more or less, so that a write
//! would wait for all of a long read before it.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use strongroom_block::{Buffer, BufferMut};

use super::{Purpose, Store};
use crate::backend::Io;
use crate::layout::RECORD_BLOCK;

/// Pieces on their way at a time.
const PIECES_MAX: usize = 6;
/// Victims in memory or being read, at most, ...
const VICTIMS_MAX: usize = 16;
/// ... and their bytes, if that is more than one victim.
const VICTIMS_BYTES_MAX: usize = 24 << 20;
/// So many of them are read while others are copied, ...
const VICTIMS_AHEAD: usize = 2;
/// ... or this share of all, if that is more; half of them at most.
const VICTIMS_AHEAD_SHARE: usize = 4;

/// Bytes of a segment, in pieces of the same length.
pub(super) struct Pieces {
    pieces: Vec<Buffer>,
    piece_bytes: usize,
    len: usize,
}

impl Pieces {
    #[cfg(test)]
    pub(super) fn whole(bytes: Buffer) -> Pieces {
        Pieces { piece_bytes: bytes.len().max(1), len: bytes.len(), pieces: vec![bytes] }
    }

    pub(super) fn new(pieces: Vec<Buffer>, piece_bytes: usize, len: usize) -> Pieces {
        Pieces { pieces, piece_bytes, len }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// These bytes, which are there. What lies in one piece is not copied.
    pub(super) fn slice(&self, range: Range<usize>) -> Buffer {
        let (piece, at) = (range.start / self.piece_bytes, range.start % self.piece_bytes);
        if at + range.len() <= self.piece_bytes {
            return self.pieces[piece].slice(at..at + range.len());
        }
        let mut bytes = Vec::with_capacity(range.len());
        let mut at = range.start;
        while at < range.end {
            let within = at % self.piece_bytes;
            let now = (self.piece_bytes - within).min(range.end - at);
            bytes.extend_from_slice(&self.pieces[at / self.piece_bytes][within..within + now]);
            at += now;
        }
        Buffer::copy_from(&bytes)
    }
}

/// A segment that is to be cleaned. It is pinned.
pub(super) struct Victim {
    pub(super) segment: u32,
    /// As the segment had it when it was chosen.
    pub(super) reopened: u32,
    /// How much of it is written, in bytes.
    len: usize,
    piece_bytes: usize,
    /// `None`: on its way, or not asked for.
    pieces: Vec<Option<Buffer>>,
    /// The first one that was not asked for.
    next: usize,
    on_their_way: usize,
    failed: Option<String>,
}

impl Victim {
    fn is_read(&self) -> bool {
        self.on_their_way == 0 && (self.failed.is_some() || self.next == self.pieces.len())
    }

    /// All of it, or why it could not be read.
    pub(super) fn into_bytes(self) -> Result<Pieces, String> {
        if let Some(reason) = self.failed {
            return Err(reason);
        }
        let pieces = self.pieces.into_iter().map(|piece| piece.expect("all are there")).collect();
        Ok(Pieces { pieces, piece_bytes: self.piece_bytes, len: self.len })
    }
}

/// Those that were chosen, in the order in which they will be copied.
#[derive(Default)]
pub(super) struct Victims {
    victims: VecDeque<Victim>,
    /// Pieces on their way.
    on_their_way: usize,
}

impl Victims {
    pub(super) fn is_empty(&self) -> bool {
        self.victims.is_empty()
    }

    /// Memory of what was read, and of what is on its way, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.victims.iter().map(|victim| (victim.next * victim.piece_bytes).min(victim.len) as u64).sum()
    }

    pub(super) fn has(&self, segment: u32) -> bool {
        self.victims.iter().any(|victim| victim.segment == segment)
    }

    /// Lets all go that are not being read at this moment; which these were.
    pub(super) fn leave(&mut self) -> Vec<u32> {
        let (reading, left) = std::mem::take(&mut self.victims).into_iter().partition(|victim| victim.on_their_way > 0);
        self.victims = reading;
        let left: VecDeque<Victim> = left;
        left.into_iter().map(|victim| victim.segment).collect()
    }

    /// The next one, if it is read.
    pub(super) fn take_next(&mut self) -> Option<Victim> {
        if self.victims.front()?.is_read() { self.victims.pop_front() } else { None }
    }
}

impl Store {
    /// Whether there is room for another victim: more than one is read only where the medium is to be kept busy.
    pub(super) fn victim_fits(&self, copied: usize, hurry: bool) -> bool {
        let count = self.cleaner.victims.victims.len() + copied;
        count == 0 || count < self.victims_max() && hurry
    }

    /// How many victims are in memory or on their way there, at most.
    pub(super) fn victims_max(&self) -> usize {
        (VICTIMS_BYTES_MAX / self.layout.segment_bytes as usize).clamp(1, VICTIMS_MAX)
    }

    /// How many of these are left to be read while others are copied, so that copying does not wait for the medium.
    pub(super) fn victims_ahead(&self) -> usize {
        let most = self.victims_max();
        (most / VICTIMS_AHEAD_SHARE).max(VICTIMS_AHEAD).min(most / 2)
    }

    /// Takes a segment as the next victim but those that were taken before.
    pub(super) fn add_victim(&mut self, segment: u32) {
        self.segments.pin(segment);
        let entry = self.segments.segment(segment);
        let (reopened, len) = (entry.reopened, entry.end as usize * RECORD_BLOCK);
        self.stats.cleaning_read_bytes += len as u64;
        let (piece_bytes, pieces, next) = match self.backend.share(self.layout.segment_at(segment), len) {
            Some(bytes) => (len, vec![Some(bytes)], 1),
            None => {
                let piece_bytes = self.options.cleaning_piece_bytes as usize;
                (piece_bytes, vec![None; len.div_ceil(piece_bytes)], 0)
            }
        };
        let victim = Victim { segment, reopened, len, piece_bytes, pieces, next, on_their_way: 0, failed: None };
        self.cleaner.victims.victims.push_back(victim);
    }

    /// Asks for the next pieces of those that were chosen.
    pub(super) fn read_victims(&mut self) -> bool {
        let mut progress = false;
        while self.cleaner.victims.on_their_way < PIECES_MAX && self.refused.is_none() && !self.cleaner.stop {
            let unread = |victim: &&mut Victim| victim.failed.is_none() && victim.next < victim.pieces.len();
            let Some(victim) = self.cleaner.victims.victims.iter_mut().find(unread) else { break };
            let (segment, piece, at) = (victim.segment, victim.next, victim.next * victim.piece_bytes);
            // No more than was written: what lies behind may be unreadable, and does not count.
            let buffer = BufferMut::to_fill(victim.piece_bytes.min(victim.len - at));
            victim.next += 1;
            victim.on_their_way += 1;
            self.cleaner.victims.on_their_way += 1;
            let offset = self.layout.segment_at(segment) + at as u64;
            self.start_io(Purpose::Clean { segment, piece }, Io::Read { offset, buffer });
            progress = true;
        }
        progress
    }

    pub(super) fn clean_read_done(&mut self, segment: u32, piece: usize, result: io::Result<Option<BufferMut>>) {
        let victims = &mut self.cleaner.victims;
        victims.on_their_way -= 1;
        let victim = victims.victims.iter_mut().find(|victim| victim.segment == segment).expect("it is being read");
        victim.on_their_way -= 1;
        match result {
            Ok(bytes) => victim.pieces[piece] = Some(bytes.expect("reads return their buffer").freeze()),
            Err(error) => victim.failed = Some(error.to_string()),
        }
        self.next_victim();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use strongroom_block::{BlockSize, Geometry, Lba, Token, VolumeId};

    use super::*;
    use crate::backend::{Backend, IoDone};
    use crate::op::{Op, OpError};
    use crate::options::{CreateOptions, OpenOptions, UnitKind};
    use crate::{MemoryBackend, Waker};

    /// A medium that leaves reads undone, and writes to a place that it has no space for, until it is told to go on.
    #[derive(Default)]
    struct Slow {
        memory: MemoryBackend,
        waiting: Vec<(u64, Io)>,
        holds_reads: bool,
        full: Range<u64>,
        holds_writes: bool,
    }

    impl Backend for Arc<Mutex<Slow>> {
        fn set_waker(&mut self, _waker: Waker) {}
        fn submit(&mut self, token: u64, io: Io) {
            self.lock().unwrap().waiting.push((token, io));
        }
        fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
            let before = done.len();
            let slow = &mut *self.lock().unwrap();
            for (token, io) in std::mem::take(&mut slow.waiting) {
                let full = matches!(io, Io::Write { offset, .. } if slow.full.contains(&offset));
                if matches!(io, Io::Read { .. }) && slow.holds_reads || full && slow.holds_writes {
                    slow.waiting.push((token, io));
                } else if full {
                    done.push(IoDone { token, result: Err(io::ErrorKind::StorageFull.into()) });
                } else {
                    slow.memory.submit(token, io);
                }
            }
            slow.memory.poll(done);
            done.len() - before
        }
        fn wait(&mut self) {}
    }

    fn write(lba: u64, count: usize) -> Op {
        let data = vec![Buffer::copy_from(&vec![lba as u8; count * 4096])];
        Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None }
    }

    /// A group over two segments closes the first; there is no space for the second, so the first is the head again, and written to,
    /// while it is read as a victim. That it looks half old and half new is no damage.
    #[test]
    fn a_victim_that_becomes_the_head_again_is_not_taken_for_damaged() {
        let slow = Arc::new(Mutex::new(Slow::default()));
        let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 4096 };
        let create = CreateOptions {
            segment_bytes: 1 << 20,
            ..CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain)
        };
        Store::create_on(Box::new(slow.clone()), &create).unwrap();
        let mut store = Store::open_on(Box::new(slow.clone()), &OpenOptions::default(), Arc::new(|| {})).unwrap();
        store.execute(write(0, 100)).unwrap();
        let (first, second) = (store.head.segment, store.segments.next().unwrap());
        {
            let mut slow = slow.lock().unwrap();
            let begin = store.layout.segment_at(second);
            (slow.holds_reads, slow.holds_writes, slow.full) = (true, true, begin..begin + (1 << 20));
        }
        let mut done = Vec::new();
        store.submit(Token(1), write(1000, 300));
        for _ in 0..10 {
            store.poll_completions(&mut done);
        }
        assert_eq!(store.head.segment, second);
        store.cleaner.urgent = true;
        store.poll_completions(&mut done);
        assert!(store.cleaner.victims.has(first), "what of it counts is little");
        slow.lock().unwrap().holds_writes = false;
        for _ in 0..10 {
            store.poll_completions(&mut done);
        }
        assert!(matches!(&done[..], [completion] if completion.result == Err(OpError::NoSpace)), "{done:?}");
        for lba in 2000..2040 {
            store.execute(write(lba, 1)).unwrap();
        }
        assert_eq!(store.head.segment, first);
        assert!(store.cleaner.victims.has(first), "it is still being read");
        slow.lock().unwrap().holds_reads = false;
        for _ in 0..10 {
            store.idle();
            store.poll_completions(&mut done);
        }
        let entry = *store.segments.segment(first);
        assert_eq!((entry.damaged, entry.pins), (false, 0));
        assert!(!store.cleaner.victims.has(first));
    }

    /// However large segments are: one victim at least can be copied, and where there is room for more one is read meanwhile.
    #[test]
    fn some_victims_are_read_while_others_are_copied() {
        let counts = |mib: u32| {
            let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 4096 };
            let create = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
            let create = CreateOptions { segment_bytes: mib << 20, ..create };
            let store = Store::open_in_memory(&create, &OpenOptions::default(), Arc::new(|| {})).unwrap();
            (store.victims_max() - store.victims_ahead(), store.victims_ahead())
        };
        assert_eq!([1, 2, 4, 8, 16].map(counts), [(12, 4), (9, 3), (4, 2), (2, 1), (1, 0)]);
    }

    #[test]
    fn what_lies_in_two_pieces_is_put_together() {
        let bytes: Vec<u8> = (0..1000u32).map(|at| at as u8).collect();
        let pieces = bytes.chunks(64).map(Buffer::copy_from).collect();
        let pieces = Pieces { pieces, piece_bytes: 64, len: 1000 };
        for (start, end) in [(0, 64), (64, 128), (3, 9), (60, 70), (60, 300), (0, 1000), (960, 1000), (128, 128)] {
            assert_eq!(pieces.slice(start..end)[..], bytes[start..end], "{start}..{end}");
        }
        let whole = Pieces::whole(Buffer::copy_from(&bytes));
        assert_eq!(whole.slice(0..1000)[..], bytes[..]);
    }

    #[test]
    fn a_victim_is_taken_when_all_of_it_is_there_and_in_its_turn() {
        let victim = |segment, pieces, on_their_way| Victim {
            segment,
            reopened: 0,
            len: 2,
            piece_bytes: 1,
            pieces,
            next: 2,
            on_their_way,
            failed: None,
        };
        let piece = Some(Buffer::copy_from(&[1]));
        let mut victims = Victims::default();
        victims.victims.push_back(victim(5, vec![piece.clone(), None], 1));
        victims.victims.push_back(victim(6, vec![piece.clone(), piece.clone()], 0));
        assert!(victims.take_next().is_none(), "a piece of the first is on its way");
        victims.victims[0].failed = Some("bad".to_owned());
        assert!(victims.take_next().is_none(), "its piece will still come");
        victims.victims[0].on_their_way = 0;
        assert_eq!(victims.take_next().unwrap().into_bytes().err().as_deref(), Some("bad"));
        assert_eq!(victims.take_next().unwrap().into_bytes().unwrap().len(), 2);
        assert!(victims.is_empty());
    }
}
