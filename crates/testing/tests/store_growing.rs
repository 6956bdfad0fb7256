//! Proves that a volume grows while it is open, that a crash at any moment of that leaves the old size or the new one with everything
//! that was flushed, and that the new room can be used like the old.

use std::sync::Arc;

use strongroom_block::{BlockSize, Buffer, Custody, Geometry, Lba, SealingDomain, Token, VolumeId};
use strongroom_store::{CreateOptions, Extent, Op, OpError, OpenOptions, Outcome, Store, StoreError, UnitKind};
use strongroom_testing::SimDisk;

const BLOCKS: u64 = 256;
const GROWN: u64 = 4 * BLOCKS;

fn disk(kind: UnitKind, seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
    let options = CreateOptions { segment_bytes: 64 << 10, ..CreateOptions::new(VolumeId([1; 16]), geometry, kind) };
    Store::create_on(Box::new(disk.backend(true)), &options).unwrap();
    disk
}

fn try_open(disk: &SimDisk) -> Result<Store, StoreError> {
    Store::open_on(Box::new(disk.backend(true)), &OpenOptions::default(), Arc::new(|| {}))
}

fn write(store: &mut Store, lba: u64, fill: u8) -> Result<Outcome, OpError> {
    let data = vec![Buffer::copy_from(&[fill; 4096])];
    store.execute(Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: true })
}

fn fill_at(store: &mut Store, lba: u64) -> Option<u8> {
    let Ok(Outcome::Read(extents)) = store.execute(Op::Read { lba: Lba(lba), count: 1 }) else { panic!("not read") };
    match &extents[..] {
        [Extent::Blocks { data, .. }] => Some(data[0]),
        [Extent::Hole { hole: None, .. }] => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_plain_volume_grows_and_its_new_blocks_are_zeros() {
    let disk = disk(UnitKind::Plain, 1);
    let mut store = try_open(&disk).unwrap();
    write(&mut store, 7, 1).unwrap();
    assert!(matches!(write(&mut store, GROWN - 1, 2), Err(OpError::OutOfRange { .. })));
    let segments = store.info().segments;
    assert_eq!(store.execute(Op::Grow { blocks: GROWN }), Ok(Outcome::Changed));
    assert_eq!(store.info().geometry.blocks, GROWN);
    assert!(store.info().segments > 2 * segments, "room for four times as much: {}", store.info().segments);
    assert_eq!(fill_at(&mut store, GROWN - 1), None);
    // As much as it promises, several times over: the new segments are used and cleaned like the old ones.
    for round in 0..3 {
        (0..GROWN).for_each(|lba| drop(write(&mut store, lba, (lba % 251) as u8 ^ round).unwrap()));
    }
    let mut store = match store.close() {
        Ok(()) => try_open(&disk).unwrap(),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(store.info().geometry.blocks, GROWN);
    for lba in 0..GROWN {
        assert_eq!(fill_at(&mut store, lba), Some((lba % 251) as u8 ^ 2), "block {lba}");
    }
    store.execute(Op::Discard { lba: Lba(BLOCKS - 1), count: 2 }).unwrap();
    assert_eq!((fill_at(&mut store, BLOCKS - 1), fill_at(&mut store, BLOCKS)), (None, None));
}

#[test]
fn what_is_no_growth_is_refused() {
    let disk = disk(UnitKind::Plain, 1);
    let mut store = try_open(&disk).unwrap();
    assert_eq!(store.execute(Op::Grow { blocks: BLOCKS }), Ok(Outcome::Changed));
    assert!(matches!(store.execute(Op::Grow { blocks: BLOCKS - 1 }), Err(OpError::Misuse(_))));
    assert!(matches!(store.execute(Op::Grow { blocks: u64::MAX / 4096 }), Err(OpError::TooMany(_))));
    store.submit(Token(1), Op::Grow { blocks: GROWN });
    store.submit(Token(2), Op::Grow { blocks: GROWN });
    let mut done = Vec::new();
    while done.len() < 2 {
        store.poll_completions(&mut done);
    }
    assert!(done.iter().any(|done| done.result == Err(OpError::Busy)), "one at a time: {done:?}");
    assert_eq!(store.info().geometry.blocks, GROWN);
}

#[test]
fn the_new_blocks_of_a_sealed_volume_are_not_formatted() {
    let kind = UnitKind::Sealed { domain: SealingDomain([9; 16]), custody: Custody::KeyFile };
    let disk = disk(kind, 1);
    let mut store = try_open(&disk).unwrap();
    let retained = store.info().retention_blocks;
    store.execute(Op::Grow { blocks: GROWN }).unwrap();
    let read = store.execute(Op::Read { lba: Lba(GROWN - 1), count: 1 });
    assert_eq!(read, Err(OpError::NotFormatted { lba: Lba(GROWN - 1) }));
    assert_eq!(store.info().retention_blocks, 4 * retained);
}

#[test]
fn sim_a_crash_at_any_moment_leaves_one_size_or_the_other() {
    let (mut old, mut new) = (0, 0);
    for cut in 0..12 {
        for seed in 0..25 {
            let disk = disk(UnitKind::Plain, seed * 1000 + cut);
            let mut store = try_open(&disk).unwrap();
            write(&mut store, 3, 9).unwrap();
            disk.cut_off_after(cut);
            store.submit(Token(1), Op::Grow { blocks: GROWN });
            let (mut done, mut completed) = (Vec::new(), false);
            for _ in 0..100 {
                store.poll_completions(&mut done);
                completed |= done.drain(..).any(|done| done.result.is_ok());
                if completed {
                    // At once into the new room; what a crash leaves of it, recovery must understand.
                    let data = vec![Buffer::copy_from(&[5; 4096])];
                    store.submit(Token(2), Op::Write { lba: Lba(GROWN - 1), data, records: Vec::new(), fua: false });
                }
                if disk.is_cut_off() {
                    break;
                }
            }
            drop(store);
            disk.crash();
            let mut store = try_open(&disk).unwrap_or_else(|error| panic!("cut {cut} seed {seed}: {error}"));
            let blocks = store.info().geometry.blocks;
            assert!(blocks == GROWN || blocks == BLOCKS && !completed, "cut {cut} seed {seed}: {blocks}");
            assert_eq!(fill_at(&mut store, 3), Some(9), "cut {cut} seed {seed}");
            if blocks == GROWN {
                new += 1;
                assert!(matches!(fill_at(&mut store, GROWN - 1), None | Some(5)));
            } else {
                old += 1;
                // It can be asked for again.
                store.execute(Op::Grow { blocks: GROWN }).unwrap();
            }
            write(&mut store, GROWN - 1, 6).unwrap();
            assert_eq!(fill_at(&mut store, GROWN - 1), Some(6));
        }
    }
    assert!(old > 10 && new > 10, "both happened: {old} old, {new} new");
}
