//! Proves that the owner of a store can bound its memory: the store reports what it holds, caches shrink on demand, and while
//! requests are not admitted everything that was accepted before is finished.

use std::sync::Arc;

use strongroom_block::{BlockSize, Buffer, Geometry, Lba, Token, VolumeId};
use strongroom_store::{Admission, Completion, CreateOptions, Op, OpError, OpenOptions, Outcome, Store, UnitKind};

const BLOCKS: u64 = 65536;

fn store(blocks: u64, options: &OpenOptions) -> Store {
    let geometry = Geometry { block_size: BlockSize::new(512).unwrap(), blocks };
    let create = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
    Store::open_in_memory(&create, options, Arc::new(|| {})).unwrap()
}

fn write(lba: u64, count: usize) -> Op {
    let data = vec![Buffer::copy_from(&vec![7; 512 * count])];
    Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None }
}

#[test]
fn what_is_not_admitted_is_busy_and_what_was_accepted_is_finished() {
    let mut store = store(BLOCKS, &OpenOptions::default());
    store.execute(write(0, 64)).unwrap();
    let mut done: Vec<Completion> = Vec::new();
    store.submit(Token(1), write(64, 64));
    store.set_admission(Admission::NoGrowth);
    assert_eq!(store.execute(write(0, 1)), Err(OpError::Busy));
    assert_eq!(store.execute(Op::Grow { blocks: 2 * BLOCKS }), Err(OpError::Busy));
    assert!(matches!(store.execute(Op::Read { lba: Lba(0), count: 1 }), Ok(Outcome::Read(_))));
    store.execute(Op::Discard { lba: Lba(0), count: 8 }).unwrap();
    store.set_admission(Admission::Essential);
    assert_eq!(store.execute(Op::Read { lba: Lba(0), count: 1 }), Err(OpError::Busy));
    assert_eq!(store.execute(Op::Discard { lba: Lba(0), count: 8 }), Err(OpError::Busy));
    assert_eq!(store.execute(Op::Flush), Ok(Outcome::Flushed));
    store.poll_completions(&mut done);
    assert!(matches!(&done[..], [Completion { token: Token(1), result: Ok(_) }]), "{done:?}");
    store.set_admission(Admission::All);
    store.execute(write(0, 1)).unwrap();
}

#[test]
fn memory_is_reported_and_caches_shrink() {
    let mut store = store(BLOCKS, &OpenOptions::default());
    let empty = store.memory();
    for lba in (0..BLOCKS).step_by(128) {
        store.execute(write(lba, 128)).unwrap();
    }
    let full = store.memory();
    assert!(full.index_bytes >= empty.index_bytes + 16 * BLOCKS, "{full:?}");
    assert!(full.cache_bytes > 1 << 20, "record blocks of what was written are cached: {full:?}");
    assert_eq!(store.memory().total(), full.total());
    assert_eq!(store.stats().memory_bytes, full.total());
    store.set_cache_bytes(64 << 10, 0);
    let shrunk = store.memory();
    assert!(shrunk.cache_bytes < 80 << 10, "{shrunk:?}");
    assert_eq!(store.stats().record_cache_bytes_max, 64 << 10);
    assert!(matches!(store.execute(Op::Read { lba: Lba(0), count: 128 }), Ok(Outcome::Read(_))));

    store.submit(Token(1), write(0, 128));
    assert_eq!(store.memory().request_bytes, 128 * 512);
    store.poll_completions(&mut Vec::new());
    assert_eq!(store.memory().request_bytes, 0);
}
