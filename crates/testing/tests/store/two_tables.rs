//! Proves that neither a damaged segment table nor a damaged superblock copy costs anything: the store opens with everything that was
//! flushed, opens again after that, and the check says what it found.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use strongroom_block::{BlockSize, Buffer, Geometry, Lba, VolumeId};
use strongroom_store::backend::{Backend, Io, IoDone};
use strongroom_store::{
    CheckReport, CreateOptions, Extent, Op, OpenOptions, Outcome, SharedMemory, Store, StoreError, UnitKind, Waker,
};

const BLOCKS: u64 = 512;
const SEGMENT: u64 = 64 << 10;
const LOG_START: u64 = 1 << 20;
const SUPERBLOCKS: [u64; 2] = [0, 512 << 10];

fn open_on(backend: Box<dyn Backend>) -> Result<Store, StoreError> {
    // Without checkpoints every unit that the tables list is read.
    let options = OpenOptions { checkpoint_log_bytes: Some(u64::MAX), ..OpenOptions::default() };
    Store::open_on(backend, &options, Arc::new(|| {}))
}

fn open(disk: &SharedMemory) -> Store {
    open_on(Box::new(disk.clone())).unwrap()
}

fn write(store: &mut Store, lba: u64, value: u8) {
    let data = vec![Buffer::copy_from(&[value; 4096])];
    store.execute(Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None }).unwrap();
}

fn check_all(store: &mut Store, values: &[u8]) {
    for (lba, &value) in (0..).zip(values) {
        let read = store.execute(Op::Read { lba: Lba(lba), count: 1 }).unwrap();
        let Outcome::Read(extents) = read else { panic!("{read:?}") };
        match &extents[0] {
            Extent::Blocks { data, .. } => assert!(data[..] == [value; 4096], "block {lba}"),
            Extent::Hole { .. } => assert_eq!(value, 0, "block {lba}"),
        }
    }
}

fn number(disk: &SharedMemory, at: u64, bytes: usize) -> u64 {
    let mut number = [0; 8];
    disk.read_at(at, &mut number[8 - bytes..]);
    u64::from_be_bytes(number)
}

fn copy(disk: &SharedMemory) -> SharedMemory {
    let (copy, mut piece) = (SharedMemory::default(), vec![0; SEGMENT as usize]);
    for at in (0..LOG_START + 200 * SEGMENT).step_by(SEGMENT as usize) {
        disk.read_at(at, &mut piece);
        if piece.iter().any(|&byte| byte != 0) {
            copy.write_at(at, &piece);
        }
    }
    copy
}

/// What the superblock with the larger serial says: the first units of both tables, and the last one of the second.
fn tables(disk: &SharedMemory) -> (u64, u64, u64) {
    let at = SUPERBLOCKS.into_iter().max_by_key(|at| number(disk, at + 24, 8)).unwrap();
    assert_eq!(number(disk, at + 184, 8) & 4, 4, "it names two tables");
    (number(disk, at + 144, 8), number(disk, at + 232, 8), number(disk, at + 248, 8))
}

/// Where record blocks of these units are.
fn record_blocks(disk: &SharedMemory, lsns: Range<u64>) -> Vec<u64> {
    let is_one = |&at: &u64| {
        let mut magic = [0; 4];
        disk.read_at(at, &mut magic);
        magic == *b"SRrb" && lsns.contains(&number(disk, at + 24, 8))
    };
    (LOG_START..LOG_START + 200 * SEGMENT).step_by(4096).filter(is_one).collect()
}

/// A store that was used, with this many snapshots with long names (which are in every table), and what its blocks hold. `more` is written
/// and flushed behind the last tables.
fn used(snapshots: u32, more: u64, end: fn(Store)) -> (SharedMemory, Vec<u8>) {
    let disk = SharedMemory::default();
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
    let create = CreateOptions {
        segment_bytes: SEGMENT as u32,
        segments: Some(200),
        ..CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain)
    };
    Store::create_on(Box::new(disk.clone()), &create).unwrap();
    let mut values = vec![0; BLOCKS as usize];
    let mut store = open(&disk);
    for at in 0..snapshots {
        store.execute(Op::SnapshotCreate { name: format!("{at:0128}") }).unwrap();
    }
    for round in 1..4 {
        for lba in (0..BLOCKS).step_by(round) {
            values[lba as usize] = round as u8;
            write(&mut store, lba, round as u8);
        }
    }
    store.execute(Op::Flush).unwrap();
    // A round ends in it.
    store.execute(Op::Grow { blocks: BLOCKS + 16 }).unwrap();
    for lba in 0..more {
        values[lba as usize] = 9;
        write(&mut store, lba, 9);
    }
    store.execute(Op::Flush).unwrap();
    end(store);
    (disk, values)
}

/// Damages it, and looks at it: it opens, and opens again.
fn survives(disk: &SharedMemory, values: &[u8], what: &str, damage: impl FnOnce(&SharedMemory)) {
    let disk = copy(disk);
    damage(&disk);
    let report = CheckReport::of_backend(&mut disk.clone()).unwrap();
    assert!(
        report.is_sound() && report.notes.len() == 1 && report.notes[0].contains("not whole"),
        "{what}: {report:?}"
    );
    let mut store = open_on(Box::new(disk.clone())).unwrap_or_else(|error| panic!("{what}: {error}"));
    check_all(&mut store, values);
    let mut values = values.to_vec();
    values[3..9].fill(50);
    for lba in 3..9 {
        write(&mut store, lba, 50);
    }
    store.execute(Op::Flush).unwrap();
    drop(store);
    let report = CheckReport::of_backend(&mut disk.clone()).unwrap();
    assert!(report.is_sound() && report.notes.is_empty(), "{what}: the opening has put it right: {report:?}");
    check_all(&mut open(&disk), &values);
}

const CLOSED: fn(Store) = |store| store.close().unwrap();
const KILLED: fn(Store) = drop;

#[test]
fn a_damaged_table_costs_nothing() {
    // Tables of one block; of several; of more than a segment, in which the log goes on in the segment that the second one ends in.
    for (snapshots, most) in [(0, 2), (60, 10), (400, 60)] {
        for more in [0, 1, 40] {
            for end in [CLOSED, KILLED] {
                let (disk, values) = used(snapshots, more, end);
                let (first, second, last) = tables(&disk);
                let blocks = record_blocks(&disk, first..last + 1);
                assert!(
                    (most / 2..=most).contains(&blocks.len()),
                    "{} blocks with {snapshots} snapshots",
                    blocks.len()
                );
                let of_first = record_blocks(&disk, first..second).len();
                assert!((1..blocks.len()).contains(&of_first), "there are two");
                for &at in &blocks {
                    let what = format!("byte {at}, {snapshots} snapshots, {more} more");
                    survives(&disk, &values, &what, |disk| disk.write_at(at, &[0x5a; 4096]));
                }
            }
        }
    }
}

/// All of one, not only a block: no other unit tells where the log goes on.
#[test]
fn a_table_that_is_gone_costs_nothing() {
    for more in [0, 1, 40] {
        let (disk, values) = used(400, more, KILLED);
        let (first, second, last) = tables(&disk);
        for lsns in [first..second, second..last + 1] {
            let what = format!("units {lsns:?}, {more} more");
            let erase = |disk: &SharedMemory| {
                record_blocks(disk, lsns).into_iter().for_each(|at| disk.write_at(at, &[0; 4096]));
            };
            survives(&disk, &values, &what, erase);
        }
    }
}

#[test]
fn a_damaged_superblock_costs_nothing() {
    for (more, end) in [(0, CLOSED), (0, KILLED), (40, KILLED)] {
        let (disk, values) = used(0, more, end);
        for at in SUPERBLOCKS {
            survives(&disk, &values, &format!("superblock at {at}"), |disk| disk.write_at(at + 100, &[0x5a; 4]));
        }
    }
}

/// One is damaged, and a record block of data behind both: that is damage to what was flushed, and nothing else passes for a table.
#[test]
fn what_follows_the_tables_is_missed() {
    // The last write tells that those before it were flushed.
    let (disk, _) = used(0, 40, |mut store| write(&mut store, 0, 9));
    let (_, second, last) = tables(&disk);
    for lost in [vec![last + 1], vec![second, last + 1]] {
        let disk = copy(&disk);
        for lsn in lost {
            record_blocks(&disk, lsn..lsn + 1).into_iter().for_each(|at| disk.write_at(at, &[0x5a; 4096]));
        }
        let refused = open_on(Box::new(disk)).err().expect("it does not open");
        assert!(matches!(refused, StoreError::Damaged { .. }), "{refused}");
    }
}

/// A medium with a place that cannot be read until it is written.
struct BadPlace {
    disk: SharedMemory,
    bad: Arc<Mutex<Option<u64>>>,
    failed: Vec<IoDone>,
}

impl Backend for BadPlace {
    fn set_waker(&mut self, _waker: Waker) {}
    fn submit(&mut self, token: u64, io: Io) {
        let mut bad = self.bad.lock().unwrap();
        let within = |offset: u64, len: usize| bad.is_some_and(|at| (offset..offset + len as u64).contains(&at));
        match &io {
            Io::Read { offset, buffer } if within(*offset, buffer.len()) => {
                self.failed.push(IoDone { token, result: Err(io::Error::other("a bad place")) });
                return;
            }
            Io::Write { offset, buffers } if within(*offset, buffers.iter().map(|buffer| buffer.len()).sum()) => {
                *bad = None;
            }
            _ => {}
        }
        self.disk.submit(token, io);
    }
    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        let failed = self.failed.len();
        done.append(&mut self.failed);
        failed + self.disk.poll(done)
    }
    fn wait(&mut self) {
        self.disk.wait();
    }
}

#[test]
fn a_table_that_cannot_be_read_costs_nothing() {
    for snapshots in [0, 400] {
        let (disk, values) = used(snapshots, 40, KILLED);
        let (first, _, last) = tables(&disk);
        for at in record_blocks(&disk, first..last + 1) {
            let disk = copy(&disk);
            let bad = Arc::new(Mutex::new(Some(at)));
            for _ in 0..2 {
                let backend = BadPlace { disk: disk.clone(), bad: bad.clone(), failed: Vec::new() };
                check_all(
                    &mut open_on(Box::new(backend)).unwrap_or_else(|error| panic!("byte {at}: {error}")),
                    &values,
                );
            }
        }
    }
}
