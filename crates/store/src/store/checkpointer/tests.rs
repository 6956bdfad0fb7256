//! Proves that checkpoints keep up with the log.

use std::sync::Arc;

use strongroom_block::{BlockSize, Buffer, Geometry, Lba, Token, VolumeId};

use super::super::Store;
use crate::op::Op;
use crate::options::{CreateOptions, OpenOptions, UnitKind};

const BLOCKS: u64 = 32768;

fn write(store: &mut Store, lba: u64, count: usize) {
    let data = vec![Buffer::copy_from(&vec![1; count * 4096])];
    store.submit(Token(lba), Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None });
}

/// However much is written in each poll: a checkpoint of 160 KiB is whole before the log has grown by 4 MiB.
#[test]
fn the_log_does_not_run_away_from_a_checkpoint() {
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
    let create = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
    let never = OpenOptions { checkpoint_log_bytes: Some(u64::MAX), ..OpenOptions::default() };
    let mut store = Store::open_in_memory(&create, &never, Arc::new(|| {})).unwrap();
    let mut answers = Vec::new();
    // In an order in which no two blocks lie side by side.
    for at in 0..BLOCKS {
        write(&mut store, at * 2731 % BLOCKS, 1);
        if at % 32 == 31 {
            store.poll_completions(&mut answers);
        }
    }
    store.engine.durability.checkpointer.set_log_bytes_least(1);
    let (mut begin, mut at) = (None, 0);
    while !store.engine.durability.checkpointer.wants_round() && store.stats().checkpoints == 0 {
        for _ in 0..16 {
            write(&mut store, at, 16);
            at = (at + 16) % BLOCKS;
        }
        store.poll_completions(&mut answers);
        if store.engine.durability.checkpointer.is_writing() {
            begin.get_or_insert(store.engine.log.counters.log_bytes());
        }
    }
    assert!(answers.iter().all(|answer| answer.result.is_ok()));
    assert!(store.stats().checkpoint_bytes > 140 << 10, "{:?}", store.stats());
    let grown = store.engine.log.counters.log_bytes() - begin.expect("one was begun");
    assert!(grown < 4 << 20, "the log grew by {grown} bytes");
}
