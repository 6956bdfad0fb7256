//! Proves that a thin store whose host file system is full loses nothing, refuses writes cleanly, goes on reading and discarding, can
//! be closed and opened, and takes writes again as soon as there is room. On real file systems with a size: tmpfs, and ext4 in a loop device.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use strongroom_block::{
    AttachId, BlockSize, Buffer, Custody, Geometry, HoleRecord, Lba, Mode, RecordFlags, SealRecord, SealingDomain,
    Stamp, Suite, VolumeId, keyless_checksum,
};
use strongroom_store::{
    CheckReport, CreateOptions, Extent, Op, OpError, OpenOptions, Outcome, SpaceState, Store, UnitKind,
};

/// Larger than the file system beneath.
const BLOCKS: u64 = 64 << 20 >> 12;
const HOST: &str = "30m";

/// A small file system; unmounted when dropped.
struct Host {
    at: PathBuf,
    _dir: tempfile::TempDir,
}

fn run(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).status().is_ok_and(|status| status.success())
}

impl Host {
    fn tmpfs() -> Option<Host> {
        Host::mounted(|_, at| run("mount", &["-t", "tmpfs", "-o", &format!("size={HOST}"), "tmpfs", at]))
    }

    fn ext4() -> Option<Host> {
        Host::mounted(|dir, at| {
            let image = dir.join("image");
            let image = image.to_str().unwrap();
            run("truncate", &["-s", HOST, image])
                && run("mkfs.ext4", &["-q", "-m", "0", "-O", "^has_journal", image])
                && run("mount", &["-o", "loop", image, at])
        })
    }

    fn mounted(mount: impl FnOnce(&Path, &str) -> bool) -> Option<Host> {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("mounted");
        fs::create_dir(&at).unwrap();
        if !mount(dir.path(), at.to_str().unwrap()) {
            eprintln!("passed over: needs root, mount and mkfs.ext4");
            return None;
        }
        Some(Host { at, _dir: dir })
    }

    fn store(&self) -> PathBuf {
        self.at.join("store")
    }

    fn open(&self) -> Store {
        Store::open(&self.store(), &OpenOptions::default(), Arc::new(|| {})).unwrap()
    }

    /// Takes all the space that is left.
    fn fill(&self, name: &str) {
        let mut piece = 1 << 20;
        let mut file = fs::File::create(self.at.join(name)).unwrap();
        while piece >= 4096 {
            if std::io::Write::write_all(&mut file, &vec![1; piece]).is_err() {
                piece /= 2;
            }
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        run("umount", &[self.at.to_str().unwrap()]);
    }
}

fn fill_of(lba: u64, round: u8) -> u8 {
    (lba % 250) as u8 ^ round
}

fn write(store: &mut Store, lba: u64, round: u8) -> Result<Outcome, OpError> {
    let data = vec![Buffer::copy_from(&[fill_of(lba, round); 4096])];
    store.execute(Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None })
}

/// 64 blocks in one request.
fn write_large(store: &mut Store, lba: u64) -> Result<Outcome, OpError> {
    let data = (lba..lba + 64).map(|lba| Buffer::copy_from(&[fill_of(lba, 0); 4096])).collect();
    store.execute(Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None })
}

fn check(store: &mut Store, blocks: std::ops::Range<u64>, round: u8) {
    for lba in blocks {
        match store.execute(Op::Read { lba: Lba(lba), count: 1 }) {
            Ok(Outcome::Read(extents)) => match &extents[..] {
                [Extent::Blocks { data, .. }] => assert_eq!(data[0], fill_of(lba, round), "block {lba}"),
                other => panic!("block {lba}: {other:?}"),
            },
            other => panic!("block {lba}: {other:?}"),
        }
    }
}

fn a_full_host(host: &Host) {
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
    let mut create = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
    create.segment_bytes = 1 << 20;
    Store::create(&host.store(), &create).unwrap();
    fs::write(host.at.join("others"), vec![1; 10 << 20]).unwrap();
    let mut store = host.open();
    store.idle();
    assert_ne!(store.space(), SpaceState::Full);
    let stats = store.stats();
    assert!(stats.space_percent < 80 && (4 << 20..25 << 20).contains(&stats.room_bytes), "{stats:?}");
    let large = (0..BLOCKS).step_by(64).find(|&lba| write_large(&mut store, lba) == Err(OpError::NoSpace));
    let large = large.expect("the host is smaller");
    assert!(large > 1500, "most of the host is of use: {large} blocks, {:?}", store.stats());
    assert_eq!(store.space(), SpaceState::Full);
    let stats = store.stats();
    assert!(stats.space_percent >= 95 && stats.room_bytes < 2 << 20, "{stats:?}");
    // A file system can still write down where its files are: small writes go on where large ones are refused, ...
    let mut taken = (large..BLOCKS).find(|&lba| write(&mut store, lba, 0) == Err(OpError::NoSpace)).expect("as above");
    assert!(taken - large > 200, "only {} blocks in small writes", taken - large);
    assert_eq!(write_large(&mut store, taken), Err(OpError::NoSpace));
    store.execute(Op::Flush).unwrap();
    host.fill("rest");
    // ... and what has been written can be written again, as often as one likes: a journal is replayed.
    for round in 1..6 {
        for lba in (0..1000).chain((0..taken).step_by(7)).chain((large..taken).rev()) {
            write(&mut store, lba, 0).unwrap_or_else(|error| panic!("block {lba} again in round {round}: {error}"));
        }
    }
    // Compaction has gained a little on the way.
    let before = taken;
    while write(&mut store, taken, 0) != Err(OpError::NoSpace) {
        taken += 1;
    }
    assert!(taken - before < 1000, "{} blocks more than there was room for", taken - before);
    check(&mut store, 0..taken, 0);
    // Closed and opened while there is nothing left, as often as one likes.
    for _ in 0..3 {
        store.close().unwrap();
        store = host.open();
        check(&mut store, taken - 100..taken, 0);
        // A new head has a little room that the old one had not.
        while write(&mut store, taken, 0) != Err(OpError::NoSpace) {
            taken += 1;
        }
        assert_eq!(store.space(), SpaceState::Full);
    }
    // A kill: nothing of the reserve was lost by it.
    drop(store);
    let mut store = host.open();
    // Many small discards, each of its own: they need room in the log, and make some.
    for lba in (0..1000).step_by(2) {
        store.execute(Op::Discard { lba: Lba(lba), count: 1 }).unwrap_or_else(|error| panic!("discard {lba}: {error}"));
    }
    store.execute(Op::Discard { lba: Lba(0), count: 1000 }).unwrap();
    for _ in 0..20 {
        store.idle();
    }
    for lba in 0..200 {
        write(&mut store, lba, 2).unwrap_or_else(|error| panic!("write {lba} after discards: {error}"));
    }
    check(&mut store, 0..200, 2);
    check(&mut store, 1000..taken, 0);
    // Others make room: at once there is more.
    while write(&mut store, taken, 3).is_ok() && store.space() != SpaceState::Full {
        for lba in taken + 1..taken + 500 {
            if write(&mut store, lba, 3).is_err() {
                break;
            }
        }
    }
    fs::remove_file(host.at.join("others")).unwrap();
    write(&mut store, 500, 4).unwrap();
    // It is asked for ahead of need when nothing else is going on.
    for _ in 0..20 {
        store.idle();
        store.execute(Op::Flush).unwrap();
    }
    assert_ne!(store.space(), SpaceState::Full, "{:?}", store.stats());
    store.close().unwrap();
    check(&mut host.open(), 1000..taken, 0);
    assert!(CheckReport::of(&host.store(), &mut |_, _| ()).unwrap().is_sound());
}

/// Not only a store that has nothing to do: a user who fills the host leaves it no such moment.
#[test]
fn a_host_that_fills_up_is_nearly_full_before_it_is_full() {
    let Some(host) = Host::tmpfs() else { return };
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
    let mut create = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
    create.segment_bytes = 256 << 10;
    Store::create(&host.store(), &create).unwrap();
    let mut store = host.open();
    let mut told_at = None;
    let refused = (0..BLOCKS).step_by(32).find(|&lba| {
        let data = vec![Buffer::copy_from(&[1; 32 * 4096])];
        let taken =
            store.execute(Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None }).is_ok();
        if store.space() == SpaceState::NearlyFull {
            told_at.get_or_insert(lba);
        }
        !taken
    });
    let (told_at, refused) = (told_at.expect("it is told"), refused.expect("the host is smaller"));
    // A twentieth of the log is more than 3 MiB, and half of that at most is ahead of need already.
    assert!(told_at > 4096 && refused - told_at > 384, "nearly full at block {told_at}, full at {refused}");
}

/// One after the other: a child process of one test holds the locks of the other's store for a moment.
#[test]
fn a_full_tmpfs_and_a_full_ext4() {
    for host in [Host::tmpfs(), Host::ext4()].into_iter().flatten() {
        a_full_host(&host);
    }
}

fn record(counter: u64, data: Option<&[u8]>) -> SealRecord {
    let (flags, sum) = data.map_or((RecordFlags::HOLE, 0), |data| (0, keyless_checksum(data)));
    let stamp = Stamp { attach_id: AttachId([5; 16]), counter };
    SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(flags), 0, stamp, sum, [0; 16])
}

/// Older versions that nobody verified are kept while there is room, and never cost a write.
#[test]
fn a_full_host_costs_older_versions_before_it_costs_writes() {
    const SEALED_BLOCKS: u64 = 12 << 20 >> 12;
    let Some(host) = Host::tmpfs() else { return };
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: SEALED_BLOCKS };
    let kind = UnitKind::Sealed { domain: SealingDomain([9; 16]), custody: Custody::KeyFile };
    let mut create = CreateOptions::new(VolumeId([1; 16]), geometry, kind);
    (create.segment_bytes, create.retention_percent) = (256 << 10, 100);
    Store::create(&host.store(), &create).unwrap();
    // Room for every block and a reserve, and not for every block twice.
    fs::write(host.at.join("others"), vec![1; 10 << 20]).unwrap();
    let mut store = host.open();
    let all = HoleRecord { start: Lba(0), count: SEALED_BLOCKS, record: record(1, None) };
    store.execute(Op::Hole { holes: vec![all], origin: None }).unwrap();
    for round in 1..=4 {
        for lba in 0..SEALED_BLOCKS {
            let data = [fill_of(lba, round); 4096];
            let records = vec![record(u64::from(round) * SEALED_BLOCKS + lba, Some(&data))];
            let op =
                Op::Write { lba: Lba(lba), data: vec![Buffer::copy_from(&data)], records, fua: false, origin: None };
            store
                .execute(op)
                .unwrap_or_else(|error| panic!("block {lba} in round {round}: {error}, {:?}", store.stats()));
        }
        check(&mut store, 0..SEALED_BLOCKS, round);
    }
    let stats = store.stats();
    assert!(stats.versions_evicted > 0 && stats.versions_retained < store.info().retention_blocks, "{stats:?}");
    // With room again the budget is what it was.
    fs::remove_file(host.at.join("others")).unwrap();
    store.close().unwrap();
    assert!(CheckReport::of(&host.store(), &mut |_, _| ()).unwrap().is_sound());
}

/// What was discarded on a full host is kept as older versions. They make room as soon as there is time, not only when a write wants it: a
/// user who trims a file system sees that it helped.
#[test]
fn what_was_discarded_on_a_full_host_makes_room_without_a_write() {
    let Some(host) = Host::ext4() else { return };
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
    let kind = UnitKind::Sealed { domain: SealingDomain([9; 16]), custody: Custody::KeyFile };
    let mut create = CreateOptions::new(VolumeId([1; 16]), geometry, kind);
    (create.segment_bytes, create.retention_percent) = (1 << 20, 100);
    Store::create(&host.store(), &create).unwrap();
    let mut store = host.open();
    let all = HoleRecord { start: Lba(0), count: BLOCKS, record: record(1, None) };
    store.execute(Op::Hole { holes: vec![all], origin: None }).unwrap();
    // 16 blocks in one request; how many blocks there was room for.
    let fill = |store: &mut Store, round: u8| {
        let is_refused = |&lba: &u64| {
            let blocks = lba..lba + 16;
            let data: Vec<[u8; 4096]> = blocks.clone().map(|lba| [fill_of(lba, round); 4096]).collect();
            let stamps = blocks.map(|lba| u64::from(round) * BLOCKS + lba);
            let records = stamps.zip(&data).map(|(stamp, data)| record(stamp, Some(data))).collect();
            let data = data.iter().map(|data| Buffer::copy_from(data)).collect();
            store.execute(Op::Write { lba: Lba(lba), data, records, fua: false, origin: None }) == Err(OpError::NoSpace)
        };
        (0..BLOCKS).step_by(16).find(is_refused).expect("the host is smaller")
    };
    let taken = fill(&mut store, 1);
    assert_eq!(store.space(), SpaceState::Full);
    // All but the first blocks are deleted and trimmed.
    let most = HoleRecord { start: Lba(64), count: BLOCKS - 64, record: record(5 * BLOCKS, None) };
    store.execute(Op::Hole { holes: vec![most], origin: None }).unwrap();
    assert_eq!(store.space(), SpaceState::Full, "nobody has had time yet");
    let kept = store.stats().versions_retained;
    assert!(kept > taken / 2, "{kept} of {taken}");
    store.idle();
    let started = std::time::Instant::now();
    while store.space() == SpaceState::Full {
        assert!(started.elapsed() < std::time::Duration::from_secs(60), "{:?}", store.stats());
        store.poll_completions(&mut Vec::new());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let stats = store.stats();
    assert!(stats.versions_retained > 0, "no more go than is needed: {stats:?}");
    check(&mut store, 0..64, 1);
    // As much can be written as at first, at once.
    let again = fill(&mut store, 2);
    assert!(again > taken * 9 / 10, "{again} blocks, {taken} at first");
    check(&mut store, 0..again, 2);
    store.close().unwrap();
    assert!(CheckReport::of(&host.store(), &mut |_, _| ()).unwrap().is_sound());
}
