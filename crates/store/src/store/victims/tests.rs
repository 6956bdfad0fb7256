//! Proves that victims are taken in their order, complete, and that one that was written to meanwhile is not taken for damaged.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use strongroom_block::{BlockSize, Geometry, Lba, Token, VolumeId};

use super::super::Store;
use super::super::live::Pieces;
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
    let create =
        CreateOptions { segment_bytes: 1 << 20, ..CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain) };
    Store::create_on(Box::new(slow.clone()), &create).unwrap();
    let mut store = Store::open_on(Box::new(slow.clone()), &OpenOptions::default(), Arc::new(|| {})).unwrap();
    store.execute(write(0, 100)).unwrap();
    let (first, second) = (store.engine.log.head.segment, store.engine.medium.segments.next().unwrap());
    {
        let mut slow = slow.lock().unwrap();
        let begin = store.engine.medium.volume.layout.segment_at(second);
        (slow.holds_reads, slow.holds_writes, slow.full) = (true, true, begin..begin + (1 << 20));
    }
    let mut done = Vec::new();
    store.submit(Token(1), write(1000, 300));
    for _ in 0..10 {
        store.poll_completions(&mut done);
    }
    assert_eq!(store.engine.log.head.segment, second);
    store.engine.reclaimer.space.room.begin();
    store.poll_completions(&mut done);
    assert!(store.engine.reclaimer.compactor.has_victim(first), "what of it counts is little");
    slow.lock().unwrap().holds_writes = false;
    for _ in 0..10 {
        store.poll_completions(&mut done);
    }
    assert!(matches!(&done[..], [completion] if completion.result == Err(OpError::NoSpace)), "{done:?}");
    for lba in 2000..2040 {
        store.execute(write(lba, 1)).unwrap();
    }
    assert_eq!(store.engine.log.head.segment, first);
    assert!(store.engine.reclaimer.compactor.has_victim(first), "it is still being read");
    slow.lock().unwrap().holds_reads = false;
    for _ in 0..10 {
        store.idle();
        store.poll_completions(&mut done);
    }
    let entry = *store.engine.medium.segments.segment(first);
    assert_eq!((entry.damaged, entry.pins), (false, 0));
    assert!(!store.engine.reclaimer.compactor.has_victim(first));
}

/// However large segments are: one victim at least can be copied, and where there is room for more one is read meanwhile.
#[test]
fn some_victims_are_read_while_others_are_copied() {
    let counts = |mib: u32| {
        let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 4096 };
        let create = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
        let create = CreateOptions { segment_bytes: mib << 20, ..create };
        let store = Store::open_in_memory(&create, &OpenOptions::default(), Arc::new(|| {})).unwrap();
        {
            let bytes = store.engine.medium.volume.segment_bytes();
            (victims_max(bytes) - victims_ahead(bytes), victims_ahead(bytes))
        }
    };
    assert_eq!([1, 2, 4, 8, 16].map(counts), [(12, 4), (9, 3), (4, 2), (2, 1), (1, 0)]);
}

#[test]
fn what_lies_in_two_pieces_is_put_together() {
    let bytes: Vec<u8> = (0..1000u32).map(|at| at as u8).collect();
    let pieces = bytes.chunks(64).map(Buffer::copy_from).collect();
    let pieces = Pieces::new(pieces, 64, 1000);
    for (start, end) in [(0, 64), (64, 128), (3, 9), (60, 70), (60, 300), (0, 1000), (960, 1000), (128, 128)] {
        assert_eq!(pieces.slice(start..end)[..], bytes[start..end], "{start}..{end}");
    }
    let whole = Pieces::whole(Buffer::copy_from(&bytes));
    assert_eq!(whole.slice(0..1000)[..], bytes[..]);
}

#[test]
fn a_victim_is_taken_when_all_of_it_is_there_and_in_its_turn() {
    let victim = |segment, pieces, in_flight| Victim {
        segment,
        reopened: 0,
        len: 2,
        piece_bytes: 1,
        pieces,
        next: 2,
        in_flight,
        failed: None,
    };
    let piece = Some(Buffer::copy_from(&[1]));
    let mut victims = Victims::new(1);
    victims.victims.push_back(victim(5, vec![piece.clone(), None], 1));
    victims.victims.push_back(victim(6, vec![piece.clone(), piece.clone()], 0));
    assert!(victims.take_next().is_none(), "a piece of the first is on its way");
    victims.victims[0].failed = Some("bad".to_owned());
    assert!(victims.take_next().is_none(), "its piece will still come");
    victims.victims[0].in_flight = 0;
    assert_eq!(victims.take_next().unwrap().into_bytes().err().as_deref(), Some("bad"));
    assert_eq!(victims.take_next().unwrap().into_bytes().unwrap().len(), 2);
    assert!(victims.is_empty());
}
