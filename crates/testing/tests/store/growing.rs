//! Proves that a volume grows while it is open, that a crash at any moment of that leaves the old size or the new one with everything
//! that was flushed, and that the new room can be used like the old.

use std::sync::{Arc, Mutex};

use strongroom_block::{BlockSize, Buffer, Custody, Geometry, Lba, SealingDomain, Token, VolumeId};
use strongroom_store::backend::{Backend, Io, IoDone};
use strongroom_store::{
    CreateOptions, Extent, MemoryBackend, Op, OpError, OpenOptions, Outcome, Store, StoreError, UnitKind, Waker,
};
use strongroom_testing::{Faults, SimDisk};

const BLOCKS: u64 = 256;
const GROWN: u64 = 4 * BLOCKS;

fn disk(kind: UnitKind, seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
    let options = CreateOptions { segment_bytes: 64 << 10, ..CreateOptions::new(VolumeId([1; 16]), geometry, kind) };
    Store::create_on(Box::new(disk.backend(true)), &options).unwrap();
    disk
}

#[test]
fn a_store_with_more_to_spare_keeps_its_proportion_when_it_grows() {
    let segments = |spare_percent| {
        let disk = SimDisk::new(1);
        let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 64 * BLOCKS };
        let options = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
        let options = CreateOptions { segment_bytes: 64 << 10, spare_percent, ..options };
        Store::create_on(Box::new(disk.backend(true)), &options)?;
        let mut store = try_open(&disk)?;
        let before = store.info().segments;
        assert_eq!(store.execute(Op::Grow { blocks: 64 * GROWN }), Ok(Outcome::Changed));
        Ok::<_, StoreError>((f64::from(before), f64::from(store.info().segments)))
    };
    let (usual, roomy) = (segments(25).unwrap(), segments(100).unwrap());
    for (usual, roomy) in [(usual.0, roomy.0), (usual.1, roomy.1)] {
        assert!((1.4..1.6).contains(&(roomy / usual)), "twice what is stored, and 1.25 times: {roomy} and {usual}");
    }
    for refused in [0, 24, 401] {
        assert!(matches!(segments(refused), Err(StoreError::Options(_))), "{refused}");
    }
}

fn try_open(disk: &SimDisk) -> Result<Store, StoreError> {
    Store::open_on(Box::new(disk.backend(true)), &OpenOptions::default(), Arc::new(|| {}))
}

fn write(store: &mut Store, lba: u64, fill: u8) -> Result<Outcome, OpError> {
    let data = vec![Buffer::copy_from(&[fill; 4096])];
    store.execute(Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: true, origin: None })
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

/// The segment table that would come with it does not get onto the medium, in however many polls.
#[test]
fn a_growth_on_a_full_medium_is_answered() {
    let disk = disk(UnitKind::Plain, 1);
    let mut store = try_open(&disk).unwrap();
    write(&mut store, 3, 9).unwrap();
    disk.set_faults(Faults { pages_max: disk.pages(), ..Faults::default() });
    assert_eq!(store.execute(Op::Grow { blocks: GROWN }), Err(OpError::NoSpace));
    assert_eq!(store.info().geometry.blocks, BLOCKS);
    disk.set_faults(Faults::default());
    assert_eq!(store.execute(Op::Grow { blocks: GROWN }), Ok(Outcome::Changed));
    write(&mut store, GROWN - 1, 6).unwrap();
    drop(store);
    let mut store = try_open(&disk).unwrap();
    assert_eq!((fill_at(&mut store, 3), fill_at(&mut store, GROWN - 1)), (Some(9), Some(6)));
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
                    store.submit(
                        Token(2),
                        Op::Write { lba: Lba(GROWN - 1), data, records: Vec::new(), fua: false, origin: None },
                    );
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Grown,
    Sync,
    /// A superblock that tells the new size.
    NewSize,
}

/// Notes in which order the medium is asked for what; its syncs take a while.
struct Slow {
    medium: MemoryBackend,
    events: Arc<Mutex<Vec<Event>>>,
    /// Syncs on their way, and how many polls they still take.
    syncs: Vec<(u64, u32)>,
}

impl Backend for Slow {
    fn set_waker(&mut self, _waker: Waker) {}
    fn grow(&mut self, bytes: u64) -> std::io::Result<()> {
        self.events.lock().unwrap().push(Event::Grown);
        self.medium.grow(bytes)
    }
    fn submit(&mut self, token: u64, io: Io) {
        match &io {
            Io::Sync => {
                self.events.lock().unwrap().push(Event::Sync);
                return self.syncs.push((token, 4));
            }
            Io::Write { offset: 0 | 0x8_0000, buffers } if buffers[0].to_vec()[88..96] == GROWN.to_be_bytes() => {
                self.events.lock().unwrap().push(Event::NewSize);
            }
            _ => {}
        }
        self.medium.submit(token, io);
    }
    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        let before = done.len();
        self.medium.poll(done);
        self.syncs.retain_mut(|(token, polls)| {
            *polls -= 1;
            if *polls == 0 {
                done.push(IoDone { token: *token, result: Ok(None) });
            }
            *polls > 0
        });
        done.len() - before
    }
    fn wait(&mut self) {}
}

/// Outlives the making of the store.
#[derive(Clone)]
struct SharedBackend(Arc<Mutex<Slow>>);

impl Backend for SharedBackend {
    fn set_waker(&mut self, _waker: Waker) {}
    fn grow(&mut self, bytes: u64) -> std::io::Result<()> {
        self.0.lock().unwrap().grow(bytes)
    }
    fn submit(&mut self, token: u64, io: Io) {
        self.0.lock().unwrap().submit(token, io);
    }
    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        self.0.lock().unwrap().poll(done)
    }
    fn wait(&mut self) {}
}

/// A round that was on its way when the medium grew may have synced before: its superblock does not tell the new size.
#[test]
fn no_superblock_tells_the_new_size_before_a_sync_of_the_longer_medium() {
    for start in 0..BLOCKS {
        let events = Arc::new(Mutex::new(Vec::new()));
        let slow = Slow { medium: MemoryBackend::default(), events: events.clone(), syncs: Vec::new() };
        let backend = SharedBackend(Arc::new(Mutex::new(slow)));
        let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
        let options = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
        let options = CreateOptions { segment_bytes: 64 << 10, ..options };
        Store::create_on(Box::new(backend.clone()), &options).unwrap();
        let mut store = Store::open_on(Box::new(backend), &OpenOptions::default(), Arc::new(|| {})).unwrap();
        (0..BLOCKS).for_each(|lba| drop(write(&mut store, lba, 1).unwrap()));
        // Segments die: rounds come and go.
        let mut done = Vec::new();
        for lba in 0..start {
            let data = vec![Buffer::copy_from(&[2; 4096])];
            store.submit(Token(0), Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None });
            store.poll_completions(&mut done);
        }
        store.submit(Token(1), Op::Grow { blocks: GROWN });
        while !done.iter().any(|done| done.token == Token(1)) {
            store.poll_completions(&mut done);
        }
        assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
        let events = events.lock().unwrap();
        let after = |of| events.iter().rposition(|&event| event == of).expect("it grew");
        let told = events.iter().position(|&event| event == Event::NewSize).expect("it tells");
        let between = &events[after(Event::Grown)..told];
        assert!(between.contains(&Event::Sync), "grown after {start} writes");
    }
}
