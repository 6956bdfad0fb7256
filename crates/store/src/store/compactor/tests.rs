//! Proves that copies go by age, that skewed overwrites cost few of them, and that what they will fill is kept for them.

use std::sync::Arc;

use strongroom_block::{BlockSize, Buffer, Geometry, Lba, Token, VolumeId};

use super::super::Store;
use super::super::space::{POOL_RESERVE_SHARE, POOL_RESERVE_SHARE_LOW};
use super::*;
use crate::index::Version;
use crate::op::{Op, OpError};
use crate::options::{CreateOptions, OpenOptions, UnitKind};

const LAYOUT: Layout = Layout { segment_bytes: 1 << 20, segments: 64, block_bytes: 4096, item_bytes: 8 };

fn store_of(blocks: u64, segment_bytes: u32) -> Store {
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks };
    let create = CreateOptions { segment_bytes, ..CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain) };
    Store::open_in_memory(&create, &OpenOptions::default(), Arc::new(|| {})).unwrap()
}

fn blocks(segment: u32, sequences: &[u64]) -> Vec<Live> {
    let block = |&sequence: &u64| {
        let version = Version::new(&LAYOUT, sequence, segment, 4096, 128);
        Live::Block { branch: 0, lba: sequence, version, item_at: 128, data_at: 4096, base: None }
    };
    sequences.iter().map(block).collect()
}

fn take(pool: &mut Pool, count: usize) -> Vec<u64> {
    let taken: Vec<Pooled> = (0..count).map(|_| pool.live.pop().expect("there is one more")).collect();
    if let Some(last) = taken.last() {
        (pool.turn, pool.sequence) = (last.turn, last.live.sequence());
    }
    taken.iter().map(|pooled| pooled.live.sequence()).collect()
}

#[test]
fn copies_go_by_age_across_victims_and_what_is_older_waits_for_the_next_turn() {
    let bytes = || Pieces::whole(Buffer::copy_from(&[0]));
    let mut pool = Pool::default();
    pool.add(1, bytes(), blocks(1, &[50, 10, 70]));
    pool.add(2, bytes(), blocks(2, &[20, 60]));
    assert_eq!(take(&mut pool, 3), [10, 20, 50]);
    pool.add(3, bytes(), blocks(3, &[5, 65, 80, 30]));
    assert_eq!(take(&mut pool, 4), [60, 65, 70, 80], "younger ones come in the same turn");
    assert_eq!(take(&mut pool, 2), [5, 30]);
    assert!(pool.live.is_empty());
}

/// Nine in ten writes go to a tenth of the blocks: what is live of many victims is sorted by age, so that what is seldom overwritten
/// comes to lie by itself.
#[test]
fn what_is_seldom_overwritten_is_not_copied_again_and_again() {
    const BLOCKS: u64 = 32768;
    let mut store = store_of(BLOCKS, 64 << 10);
    let (mut done, mut random) = (Vec::new(), 1_u64);
    let mut below = |most: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % most
    };
    let data = Buffer::copy_from(&[7; 64 * 4096]);
    let write = |store: &mut Store, lba: u64, count: usize| {
        let data = vec![data.slice(..count * 4096)];
        store.submit(Token(0), Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None });
    };
    for lba in (0..BLOCKS).step_by(64) {
        write(&mut store, lba, 64);
        store.poll_completions(&mut done);
    }
    let mut before = store.stats();
    for at in 0..4 * BLOCKS {
        let lba = if below(10) < 9 { below(BLOCKS / 10) * 10 } else { below(BLOCKS) };
        write(&mut store, lba, 1);
        if at % 14 == 0 {
            store.poll_completions(&mut done);
        }
        if at == 3 * BLOCKS {
            before = store.stats();
        }
    }
    let stats = store.stats();
    let copied = (stats.cleaned_bytes - before.cleaned_bytes) as f64;
    let share = copied / (stats.written_bytes - before.written_bytes) as f64;
    assert!(share < 0.55, "{share} copies of each block");
}

#[test]
fn segments_that_copies_will_fill_are_kept_for_them() {
    let mut store = store_of(32768, 1 << 20);
    let reserved = store.engine.medium.volume.layout.reserved_segments();
    assert_eq!(
        pool_segments_max(&store.engine.counts()),
        reserved / POOL_RESERVE_SHARE_LOW,
        "no host space is made sure of yet"
    );
    store
        .execute(Op::Write {
            lba: Lba(0),
            data: vec![Buffer::copy_from(&[7; 4096])],
            records: Vec::new(),
            fua: false,
            origin: None,
        })
        .unwrap();
    assert_eq!(store.engine.counts().copy_segments, 0);
    let sequences: Vec<u64> = (0..u64::from(reserved / POOL_RESERVE_SHARE) * 255).collect();
    store.engine.reclaimer.compactor.pool.add(1, Pieces::whole(Buffer::copy_from(&[0])), blocks(1, &sequences));
    let kept = reserved / POOL_RESERVE_SHARE - reserved / POOL_RESERVE_SHARE_LOW;
    assert_eq!(store.engine.counts().copy_segments, kept);
}

/// A segment that could not be read, and is not worth cleaning either, holds up no request: with no space left it is told so.
#[test]
fn a_request_does_not_wait_for_a_segment_that_cleaning_will_not_take() {
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 4096 };
    let create = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
    let create = CreateOptions { segment_bytes: 64 << 10, segments: Some(280), ..create };
    let mut store = Store::open_in_memory(&create, &OpenOptions::default(), Arc::new(|| {})).unwrap();
    let refused = (0..4096).find_map(|lba| {
        // The head is no victim.
        store.engine.reclaimer.compactor.unread.insert(store.engine.log.head.segment, u64::MAX);
        store.engine.reclaimer.space.room.allow_unread_retry();
        let data = vec![Buffer::copy_from(&[1; 4096])];
        store.execute(Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None }).err()
    });
    assert_eq!(refused, Some(OpError::NoSpace));
}
