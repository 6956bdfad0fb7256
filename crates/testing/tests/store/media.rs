//! Proves that a store is the same on every medium: a file in its directory, a preallocated file, a raw device, memory.
//!
//! The raw device is a loop device; without root, or without loop devices, that part passes over itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use strongroom_block::{BlockSize, Buffer, Geometry, Lba, Token, VolumeId};
use strongroom_store::backend::{Io, IoDone};
use strongroom_store::{
    Backend, CheckReport, CreateOptions, Extent, IoChoice, IoKind, Medium, Op, OpError, OpenOptions, Outcome,
    SharedMemory, Store, StoreError, UnitKind, Waker,
};
use strongroom_testing::Random;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 512;

fn options(medium: Medium) -> CreateOptions {
    let geometry = Geometry { block_size: BlockSize::new(BLOCK as u64).unwrap(), blocks: BLOCKS };
    let mut options = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
    options.segment_bytes = 64 << 10;
    options.medium = medium;
    options
}

fn open(dir: &Path) -> Result<Store, StoreError> {
    open_by(dir, IoChoice::Auto)
}

fn open_by(dir: &Path, io: IoChoice) -> Result<Store, StoreError> {
    Store::open(dir, &OpenOptions { io, ..OpenOptions::default() }, Arc::new(|| {}))
}

fn write(store: &mut Store, lba: u64, byte: u8) {
    let data = vec![Buffer::copy_from(&[byte; BLOCK])];
    store.execute(Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None }).unwrap();
}

/// The first byte of every block.
fn bytes(store: &mut Store) -> Vec<u8> {
    let read = store.execute(Op::Read { lba: Lba(0), count: BLOCKS as u32 }).unwrap();
    let Outcome::Read(extents) = read else { panic!("{read:?}") };
    let mut bytes = Vec::new();
    for extent in extents {
        match extent {
            Extent::Blocks { data, .. } => bytes.extend(data.chunks(BLOCK).map(|block| block[0])),
            Extent::Hole { count, .. } => bytes.extend(std::iter::repeat_n(0, count as usize)),
        }
    }
    bytes
}

/// Overwrites a volume so often that cleaning and every segment have had their turn.
fn work(store: &mut Store) -> Vec<u8> {
    let mut expected = vec![0; BLOCKS as usize];
    for step in 0..4 * BLOCKS {
        let lba = step * 37 % BLOCKS;
        expected[lba as usize] = step as u8 | 1;
        write(store, lba, step as u8 | 1);
    }
    store.execute(Op::Discard { lba: Lba(10), count: 20 }).unwrap();
    expected[10..30].fill(0);
    store.execute(Op::Flush).unwrap();
    assert_eq!(bytes(store), expected);
    expected
}

fn there_and_back(dir: &Path, medium: Medium) {
    Store::create(dir, &options(medium)).unwrap();
    let mut store = open(dir).unwrap();
    assert!(matches!(open(dir), Err(StoreError::InUse(_))));
    let expected = work(&mut store);
    store.close().unwrap();
    assert_eq!(bytes(&mut open(dir).unwrap()), expected);
    assert!(CheckReport::of(dir, &mut |_, _| ()).unwrap().is_sound());
    assert_eq!(Store::inspect(dir).unwrap().geometry.blocks, BLOCKS);
}

#[test]
fn a_file_in_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    there_and_back(&dir.path().join("store"), Medium::Directory);
}

#[test]
fn a_preallocated_file_keeps_its_space() {
    use std::os::unix::fs::MetadataExt as _;
    let dir = tempfile::tempdir().unwrap();
    let (path, store) = (dir.path().join("elsewhere"), dir.path().join("store"));
    there_and_back(&store, Medium::File(path.clone()));
    let metadata = std::fs::metadata(&path).unwrap();
    assert!(
        metadata.blocks() * 512 >= metadata.len(),
        "space was given back: {} of {}",
        metadata.blocks(),
        metadata.len()
    );
    // Another directory that leads to the same log does not open it a second time.
    let other = dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::os::unix::fs::symlink(&path, other.join("log")).unwrap();
    let held = open(&store).unwrap();
    let refused = open(&other).err();
    assert!(matches!(refused, Some(StoreError::InUse(_))), "{refused:?}");
    drop(held);
    Store::remove_outside(&store).unwrap();
    assert!(!path.exists());
}

#[test]
fn a_file_that_cannot_be_made_leaves_nothing_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log-elsewhere");
    // Somebody else's.
    std::fs::write(&path, "theirs").unwrap();
    let store = dir.path().join("store");
    assert!(matches!(Store::create(&store, &options(Medium::File(path.clone()))), Err(StoreError::Io { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
    assert!(!Store::exists(&store));
    std::fs::remove_file(&path).unwrap();
    // More than any file system here has.
    let mut large = options(Medium::File(path.clone()));
    large.geometry.blocks = 1 << 34;
    large.segment_bytes = 4 << 20;
    let error = Store::create(&store, &large).unwrap_err().to_string();
    assert!(error.contains("log-elsewhere"), "{error}");
    assert!(!path.exists() && !Store::exists(&store), "what was begun is gone again");
    there_and_back(&store, Medium::File(path));
}

#[test]
fn memory_is_fresh_every_time() {
    let mut first = Store::open_in_memory(&options(Medium::Memory), &OpenOptions::default(), Arc::new(|| {})).unwrap();
    work(&mut first);
    let second = Store::open_in_memory(&options(Medium::Memory), &OpenOptions::default(), Arc::new(|| {}));
    let mut second = second.unwrap();
    assert_eq!(bytes(&mut second), vec![0; BLOCKS as usize]);
    assert_ne!(first.info().open_epoch, second.info().open_epoch, "who knew the first must see that this is another");
    assert_ne!(first.info().store_id, second.info().store_id);
}

/// Whether files in `dir` can be read and written past the page cache, as most file systems can.
fn direct_works(dir: &Path) -> bool {
    use std::os::unix::fs::OpenOptionsExt as _;
    const O_DIRECT: i32 = 0o40000;
    std::fs::File::options().create(true).append(true).custom_flags(O_DIRECT).open(dir.join("probe")).is_ok()
}

#[test]
fn every_way_to_do_io_leaves_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    Store::create(&store, &options(Medium::Directory)).unwrap();
    let ways = [
        (IoChoice::Buffered, IoKind::Buffered),
        (IoChoice::Direct, IoKind::Direct),
        (IoChoice::DirectUring, IoKind::DirectUring),
    ];
    if !direct_works(dir.path()) {
        eprintln!("passed over: no direct I/O on the file system of temporary files");
        return;
    }
    let mut expected = vec![0; BLOCKS as usize];
    for (choice, kind) in ways.into_iter().chain(ways.into_iter().rev()) {
        // What one way left the next one finds.
        let mut opened = open_by(&store, choice).unwrap();
        assert_eq!(opened.io_kind(), kind);
        assert_eq!(bytes(&mut opened), expected, "{choice}");
        expected = work(&mut opened);
        if choice == IoChoice::Direct {
            opened.close().unwrap();
        }
    }
    assert_ne!(open(&store).unwrap().io_kind(), IoKind::Buffered);
}

/// Many requests at once, of pieces cut anywhere and of blocks smaller than the medium's: what is not aligned is staged.
#[test]
fn nothing_has_to_be_aligned() {
    for io in [IoChoice::Auto, IoChoice::Direct, IoChoice::Buffered] {
        let dir = tempfile::tempdir().unwrap();
        let mut create = options(Medium::Directory);
        create.geometry = Geometry { block_size: BlockSize::new(512).unwrap(), blocks: BLOCKS };
        Store::create(dir.path(), &create).unwrap();
        let mut store = open_by(dir.path(), io).unwrap();
        let (mut done, mut expected) = (Vec::new(), vec![0; BLOCKS as usize * 512]);
        for step in 0..200usize {
            let (lba, count) = (step * 31 % 480, 1 + step % 32);
            let content: Vec<u8> = (0..count * 512).map(|at| (at + step) as u8).collect();
            expected[lba * 512..][..content.len()].copy_from_slice(&content);
            let (head, tail) = content.split_at(1 + step * 7 % (content.len() - 1));
            let data = vec![Buffer::copy_from(head), Buffer::copy_from(&[0; 3]).slice(..0), Buffer::copy_from(tail)];
            store.submit(
                Token(step as u64),
                Op::Write { lba: Lba(lba as u64), data, records: Vec::new(), fua: step % 9 == 0, origin: None },
            );
            if step % 20 == 19 {
                while store.ops_in_flight() > 0 {
                    store.poll_completions(&mut done);
                    store.wait();
                }
            }
        }
        store.poll_completions(&mut done);
        assert!(done.len() == 200 && done.iter().all(|completion| completion.result.is_ok()), "{io}");
        for at in (0..BLOCKS as usize - 7).step_by(5) {
            let read = store.execute(Op::Read { lba: Lba(at as u64), count: 7 }).unwrap();
            let Outcome::Read(extents) = read else { panic!("{read:?}") };
            let read: Vec<u8> = extents
                .iter()
                .flat_map(|extent| match extent {
                    Extent::Blocks { data, .. } => data.to_vec(),
                    Extent::Hole { count, .. } => vec![0; *count as usize * 512],
                })
                .collect();
            assert!(read == expected[at * 512..][..7 * 512], "block {at}, {io}");
        }
    }
}

/// Memory of which a sync takes as long as this many looks.
struct SlowSyncs {
    memory: SharedMemory,
    looks: u32,
    /// What waits, and how many looks more.
    sync: Option<(u64, u32)>,
}

impl Backend for SlowSyncs {
    fn set_waker(&mut self, waker: Waker) {
        self.memory.set_waker(waker);
    }

    fn submit(&mut self, token: u64, io: Io) {
        match io {
            Io::Sync => assert!(self.sync.replace((token, self.looks)).is_none(), "one at a time"),
            other => self.memory.submit(token, other),
        }
    }

    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        let before = done.len();
        match &mut self.sync {
            Some((_, left @ 1..)) => *left -= 1,
            Some((token, 0)) => {
                self.memory.submit(*token, Io::Sync);
                self.sync = None;
            }
            None => {}
        }
        self.memory.poll(done);
        done.len() - before
    }

    fn wait(&mut self) {}
}

/// Segments are free only after a table and a superblock are durable. Meanwhile cleaning must leave the room that these need, or a write
/// is told that there is no space though there is a lot.
#[test]
fn slow_syncs_cost_no_write_its_space() {
    for (depth, looks) in [1, 32].into_iter().flat_map(|depth| [100, 1000, 3000, 10_000].map(|looks| (depth, looks))) {
        let memory = SharedMemory::default();
        let slow = || Box::new(SlowSyncs { memory: memory.clone(), looks, sync: None });
        Store::create_on(slow(), &options(Medium::Memory)).unwrap();
        let mut store = Store::open_on(slow(), &OpenOptions::default(), Arc::new(|| {})).unwrap();
        overwrite(&mut store, depth);
    }
}

/// Overwrites a full volume at random with this many writes under way.
fn overwrite(store: &mut Store, depth: usize) {
    let mut random = Random::new(1);
    let mut done = Vec::new();
    for step in 0..16 * BLOCKS {
        let lba = if step < BLOCKS { step } else { random.below(BLOCKS) };
        let data = vec![Buffer::copy_from(&[step as u8; BLOCK])];
        store.submit(Token(step), Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None });
        while store.ops_in_flight() >= depth {
            store.poll_completions(&mut done);
        }
        for completion in done.drain(..) {
            assert!(completion.result.is_ok(), "{:?} at {step} with {depth}: {:?}", completion.result, store.stats());
        }
    }
}

/// A loop device, or `None` where there is none to be had.
struct Loop(PathBuf);

impl Loop {
    fn on(file: &Path, bytes: u64) -> Option<Loop> {
        std::fs::File::create(file).unwrap().set_len(bytes).unwrap();
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let name = String::from_utf8(output.stdout).unwrap();
        (output.status.success() && !name.trim().is_empty()).then(|| Loop(name.trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn a_raw_device() {
    let dir = tempfile::tempdir().unwrap();
    let Some(device) = Loop::on(&dir.path().join("disk"), 64 << 20) else {
        eprintln!("passed over: no loop device is to be had here");
        return;
    };
    let store = dir.path().join("store");
    let medium = Medium::Device(device.0.clone());
    let mut large = options(medium.clone());
    large.geometry.blocks = 1 << 20;
    let error = Store::create(&store, &large).unwrap_err().to_string();
    assert!(error.contains("smaller"), "{error}");
    there_and_back(&store, medium.clone());
    // What is in use for a store, or for anything else, is not overwritten.
    let error = Store::create(&dir.path().join("other"), &options(medium.clone())).unwrap_err().to_string();
    assert!(error.contains("something on the device"), "{error}");
    // Nor is it made larger than it is.
    let mut opened = open(&store).unwrap();
    assert_eq!(opened.execute(Op::Grow { blocks: 1 << 20 }), Err(OpError::NoSpace));
    write(&mut opened, 3, 3);
    opened.close().unwrap();
    Store::remove_outside(&store).unwrap();
    there_and_back(&dir.path().join("third"), medium);
    let not_a_device = options(Medium::Device(dir.path().join("disk")));
    let error = Store::create(&dir.path().join("fourth"), &not_a_device).unwrap_err().to_string();
    assert!(error.contains("not a block device"), "{error}");
}

/// A caller that polls only after its own requests and when it is woken must see every write end: nothing may wait for the
/// next one, or for an idle moment.
#[test]
fn one_write_after_the_other_ends_without_a_further_look() {
    let (called, calls) = sync_channel(1);
    let waker: Waker = Arc::new(move || {
        let _ = called.try_send(());
    });
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut stores =
        vec![Store::open_in_memory(&options(Medium::Memory), &OpenOptions::default(), waker.clone()).unwrap()];
    for (dir, io) in dirs.iter().zip([IoChoice::Auto, IoChoice::Buffered]) {
        Store::create(dir.path(), &options(Medium::Directory)).unwrap();
        let open_options = OpenOptions { io, ..OpenOptions::default() };
        stores.push(Store::open(dir.path(), &open_options, waker.clone()).unwrap());
    }
    for store in &mut stores {
        for step in 0..2 * BLOCKS {
            let data = vec![Buffer::copy_from(&[step as u8; BLOCK])];
            store.submit(
                Token(step),
                Op::Write { lba: Lba(step * 37 % BLOCKS), data, records: Vec::new(), fua: false, origin: None },
            );
            let mut done = Vec::new();
            while store.poll_completions(&mut done) == 0 {
                calls.recv_timeout(Duration::from_secs(60)).expect("a write waits and nobody is called");
            }
            assert_eq!(done.len(), 1);
            assert!(done[0].result.is_ok(), "{done:?}");
        }
    }
}
