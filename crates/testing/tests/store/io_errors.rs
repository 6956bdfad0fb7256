//! Proves that every way of doing I/O tells its errors, and that the store does with each what it promises: a failed read is
//! that block's error, want of space fails the write and nothing else, a failed write, sync or allocation refuses writes until
//! reopened, a failed discard costs space alone, and what cannot grow stays as it is.
//!
//! The errors come from a file system (FUSE), so they go through the kernel like a real disk's. Needs root and /dev/fuse.

use std::path::Path;
use std::sync::Arc;

use strongroom_block::{BlockSize, Buffer, Geometry, Lba, VolumeId};
use strongroom_store::{CreateOptions, IoChoice, Op, OpError, OpenOptions, Outcome, Store, StoreError, UnitKind};
use strongroom_testing::{FailingIo, ForgettingDisk};

const CHOICES: [IoChoice; 3] = [IoChoice::Buffered, IoChoice::Direct, IoChoice::DirectUring];

fn open(dir: &Path, io: IoChoice) -> Result<Store, StoreError> {
    Store::open(dir, &OpenOptions { io, ..OpenOptions::default() }, Arc::new(|| {}))
}

fn write(store: &mut Store, lba: u64, byte: u8, fua: bool) -> Result<Outcome, OpError> {
    let data = vec![Buffer::copy_from(&[byte; 4096])];
    store.execute(Op::Write { lba: Lba(lba), data, records: Vec::new(), fua, origin: None })
}

fn first_byte(store: &mut Store, lba: u64) -> Result<u8, OpError> {
    let Outcome::Read(extents) = store.execute(Op::Read { lba: Lba(lba), count: 1 })? else { panic!("a read") };
    match &extents[0] {
        strongroom_store::Extent::Blocks { data, .. } => Ok(data[0]),
        strongroom_store::Extent::Hole { .. } => Ok(0),
    }
}

/// Runs `test` with each way of doing I/O that works here, on a store of its own; at least one does.
fn with_each(test: impl Fn(&ForgettingDisk, &dyn Fn() -> Result<Store, StoreError>)) {
    let mut tested = 0;
    for (number, io) in CHOICES.into_iter().enumerate() {
        let mount_point = tempfile::tempdir().unwrap();
        let disk = ForgettingDisk::mount(mount_point.path(), number as u64).expect("FUSE can be mounted");
        let dir = disk.path().join("volume");
        let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 256 };
        let mut options = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
        options.segment_bytes = 64 << 10;
        Store::create(&dir, &options).unwrap();
        match open(&dir, io) {
            Ok(store) => store.close().unwrap(),
            Err(error) => {
                println!("{io}: not here: {error}");
                continue;
            }
        }
        println!("{io}");
        tested += 1;
        test(&disk, &|| open(&dir, io));
        disk.fail(None);
    }
    assert!(tested > 0, "no way of doing I/O works here");
}

#[test]
fn a_failed_read_is_that_reads_error() {
    with_each(|disk, open| {
        let mut store = open().unwrap();
        write(&mut store, 5, 7, true).unwrap();
        disk.fail(Some(FailingIo::Reads));
        assert!(matches!(first_byte(&mut store, 5), Err(OpError::Medium { lba: Lba(5), .. })));
        assert!(write(&mut store, 6, 8, true).is_ok(), "writes go on");
        disk.fail(None);
        assert_eq!(first_byte(&mut store, 5), Ok(7), "and reads, once they can");
        store.close().unwrap();
        disk.fail(Some(FailingIo::Reads));
        assert!(open().is_err(), "a store that cannot be read does not open");
        disk.fail(None);
        assert_eq!(first_byte(&mut open().unwrap(), 6), Ok(8));
    });
}

#[test]
fn want_of_space_fails_the_write_and_nothing_else() {
    with_each(|disk, open| {
        let mut store = open().unwrap();
        write(&mut store, 5, 7, true).unwrap();
        disk.fail(Some(FailingIo::Space));
        assert_eq!(write(&mut store, 5, 8, false), Err(OpError::NoSpace));
        assert_eq!(first_byte(&mut store, 5), Ok(7), "it was not changed");
        disk.fail(None);
        write(&mut store, 5, 9, true).unwrap();
        assert_eq!(first_byte(&mut store, 5), Ok(9));
        store.close().unwrap();
        assert_eq!(first_byte(&mut open().unwrap(), 5), Ok(9));
    });
}

#[test]
fn a_failed_write_or_sync_refuses_writes_until_reopened() {
    for failing in [FailingIo::Writes, FailingIo::Syncs] {
        with_each(|disk, open| {
            let mut store = open().unwrap();
            write(&mut store, 5, 7, true).unwrap();
            disk.fail(Some(failing));
            assert!(matches!(write(&mut store, 6, 8, true), Err(OpError::WritesRefused { .. })));
            disk.fail(None);
            assert!(matches!(write(&mut store, 6, 8, true), Err(OpError::WritesRefused { .. })), "still");
            assert_eq!(first_byte(&mut store, 5), Ok(7), "reads go on");
            assert!(store.stats().writes_refused);
            assert!(store.close().is_err(), "closing tells");
            let mut store = open().unwrap();
            assert_eq!(first_byte(&mut store, 5), Ok(7), "what was flushed is there");
            write(&mut store, 6, 9, true).unwrap();
            disk.fail(Some(failing));
            assert!(store.close().is_err());
            assert!(open().is_err(), "opening writes too");
        });
    }
}

#[test]
fn a_failed_allocation_refuses_writes_until_reopened() {
    with_each(|disk, open| {
        let mut store = open().unwrap();
        write(&mut store, 5, 7, true).unwrap();
        disk.fail(Some(FailingIo::Allocations));
        // As soon as another segment is needed.
        let failed = (0..64).find_map(|_| write(&mut store, 6, 8, false).err());
        assert!(matches!(failed, Some(OpError::WritesRefused { .. })), "{failed:?}");
        assert_eq!(first_byte(&mut store, 5), Ok(7), "reads go on");
        assert!(store.close().is_err(), "closing tells");
        disk.fail(None);
        let mut store = open().unwrap();
        assert_eq!(first_byte(&mut store, 5), Ok(7));
        write(&mut store, 6, 9, true).unwrap();
    });
}

#[test]
fn a_failed_discard_costs_space_and_nothing_else() {
    with_each(|disk, open| {
        let mut store = open().unwrap();
        disk.fail(Some(FailingIo::Discards));
        // Several times what the log has room for: segments become free, and are used again.
        for round in 0..4 {
            for lba in 0..256 {
                write(&mut store, lba, round * 16 + lba as u8 % 16, false).unwrap();
            }
        }
        store.idle();
        store.close().unwrap();
        let mut store = open().unwrap();
        for lba in 0..256 {
            assert_eq!(first_byte(&mut store, lba), Ok(48 + lba as u8 % 16));
        }
    });
}

#[test]
fn what_cannot_grow_stays_as_it_is() {
    with_each(|disk, open| {
        let mut store = open().unwrap();
        write(&mut store, 5, 7, true).unwrap();
        disk.fail(Some(FailingIo::Growth));
        assert_eq!(store.execute(Op::Grow { blocks: 4096 }), Err(OpError::NoSpace));
        assert_eq!(store.info().geometry.blocks, 256);
        write(&mut store, 255, 8, true).unwrap();
        disk.fail(None);
        store.execute(Op::Grow { blocks: 4096 }).unwrap();
        write(&mut store, 4095, 9, true).unwrap();
        drop(store);
        let mut store = open().unwrap();
        assert_eq!([5, 255, 4095].map(|lba| first_byte(&mut store, lba)), [Ok(7), Ok(8), Ok(9)]);
    });
}

#[test]
fn cleaning_tries_a_segment_again_that_could_not_be_read_for_a_while() {
    with_each(|disk, open| {
        let mut store = open().unwrap();
        // Every segment is half garbage.
        for (round, step) in [(1u8, 1usize), (2, 2), (3, 2)] {
            for lba in (0..256).step_by(step) {
                write(&mut store, lba, round, false).unwrap();
            }
        }
        disk.fail(Some(FailingIo::Reads));
        // Until cleaning is needed for space, and cannot read anything.
        for at in 0..2000u64 {
            let _ = write(&mut store, at * 37 % 256, 3, false);
        }
        let failing = store.stats();
        assert!(failing.cleaning_io_errors > 0, "{failing:?}");
        disk.fail(None);
        // Several times what the log has room for: it does not fit unless every segment is cleaned again.
        for round in 4..12u8 {
            for lba in 0..256 {
                write(&mut store, lba, round, false).unwrap_or_else(|error| panic!("round {round}: {error}"));
            }
        }
        assert!(store.stats().cleaned_bytes > failing.cleaned_bytes, "{:?}", store.stats());
        store.close().unwrap();
        assert_eq!(first_byte(&mut open().unwrap(), 77), Ok(11));
    });
}
