//! Proves that a store is the same on every medium: a file in its directory, a preallocated file, a raw device, memory.
//!
//! The raw device is a loop device; without root, or without loop devices, that part passes over itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use strongroom_block::{BlockSize, Buffer, Geometry, Lba, VolumeId};
use strongroom_store::{CreateOptions, Extent, Medium, Op, OpenOptions, Outcome, Store, StoreError, UnitKind};

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
    Store::open(dir, &OpenOptions::default(), Arc::new(|| {}))
}

fn write(store: &mut Store, lba: u64, byte: u8) {
    let data = vec![Buffer::copy_from(&[byte; BLOCK])];
    store.execute(Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false }).unwrap();
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
    assert!(Store::check(dir).unwrap().is_sound());
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
    assert!(matches!(open(&other), Err(StoreError::InUse(_))));
    drop(held);
    Store::remove_outside(&store).unwrap();
    assert!(!path.exists());
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
    Store::remove_outside(&store).unwrap();
    there_and_back(&dir.path().join("third"), medium);
    let not_a_device = options(Medium::Device(dir.path().join("disk")));
    let error = Store::create(&dir.path().join("fourth"), &not_a_device).unwrap_err().to_string();
    assert!(error.contains("not a block device"), "{error}");
}
