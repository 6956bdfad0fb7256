//! Proves what the store promises to its caller, request by request: versions, conditions, repetitions, holes, flushes,
//! full disks, failing syncs, bad requests; each also after reopening where that matters.

use std::sync::Arc;

use strongroom_block::{
    AttachId, BlockSize, Buffer, Custody, Geometry, HoleRecord, Lba, Mode, RecordFlags, SealRecord, SealingDomain,
    Stamp, StoreSequence, Suite, Token, VolumeId, keyless_checksum,
};
use strongroom_store::{
    Completion, CreateOptions, Extent, MemoryBackend, Op, OpError, OpenOptions, Outcome, Store, StoreError, UnitKind,
};
use strongroom_testing::{Faults, SimDisk};

const BLOCKS: u64 = 64;

fn sealed() -> UnitKind {
    UnitKind::Sealed { domain: SealingDomain([9; 16]), custody: Custody::KeyFile }
}

fn options(kind: UnitKind) -> CreateOptions {
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
    CreateOptions { segment_bytes: 64 << 10, ..CreateOptions::new(VolumeId([1; 16]), geometry, kind) }
}

fn disk(kind: UnitKind) -> SimDisk {
    let disk = SimDisk::new(1);
    Store::create_on(Box::new(disk.backend(true)), &options(kind)).unwrap();
    disk
}

fn open(disk: &SimDisk) -> Store {
    try_open(disk).unwrap()
}

fn try_open(disk: &SimDisk) -> Result<Store, StoreError> {
    Store::open_on(Box::new(disk.backend(true)), &OpenOptions::default(), Arc::new(|| {}))
}

fn block(fill: u8) -> Vec<u8> {
    vec![fill; 4096]
}

fn stamp(counter: u64) -> Stamp {
    Stamp { attach_id: AttachId([5; 16]), counter }
}

fn record(counter: u64, data: Option<&[u8]>) -> SealRecord {
    let (flags, sum) = data.map_or((RecordFlags::HOLE, 0), |data| (0, keyless_checksum(data)));
    SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(flags), 0, stamp(counter), sum, [0; 16])
}

fn write(lba: u64, data: &[u8], counter: u64) -> Op {
    let records = data.chunks(4096).enumerate().map(|(i, b)| record(counter + i as u64, Some(b))).collect();
    Op::Write { lba: Lba(lba), data: vec![Buffer::copy_from(data)], records, fua: false, origin: None }
}

fn plain(lba: u64, data: &[u8]) -> Op {
    Op::Write { lba: Lba(lba), data: vec![Buffer::copy_from(data)], records: Vec::new(), fua: false, origin: None }
}

fn format(store: &mut Store) -> StoreSequence {
    let hole = HoleRecord { start: Lba(0), count: BLOCKS, record: record(1, None) };
    first(store.execute(Op::Hole { holes: vec![hole], origin: None }))
}

fn first(result: Result<Outcome, OpError>) -> StoreSequence {
    match result {
        Ok(Outcome::Written { first, .. }) => first,
        other => panic!("not written: {other:?}"),
    }
}

fn read(store: &mut Store, lba: u64, count: u32) -> Vec<Extent> {
    match store.execute(Op::Read { lba: Lba(lba), count }) {
        Ok(Outcome::Read(extents)) => extents,
        other => panic!("not read: {other:?}"),
    }
}

/// The bytes of a plain read.
fn bytes(store: &mut Store, lba: u64, count: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for extent in read(store, lba, count) {
        match extent {
            Extent::Blocks { data, .. } => bytes.extend_from_slice(&data),
            Extent::Hole { count, hole: None, .. } => bytes.resize(bytes.len() + count as usize * 4096, 0),
            Extent::Hole { .. } => panic!("a sealed hole on a plain unit"),
        }
    }
    bytes
}

fn version(store: &mut Store, lba: u64, older_than: StoreSequence) -> Result<Extent, OpError> {
    match store.execute(Op::ReadVersion { lba: Lba(lba), older_than })? {
        Outcome::Read(mut extents) => Ok(extents.remove(0)),
        other => panic!("not read: {other:?}"),
    }
}

fn fill_of(extent: &Extent) -> u8 {
    match extent {
        Extent::Blocks { data, .. } => data[0],
        Extent::Hole { .. } => panic!("a hole"),
    }
}

#[test]
fn a_plain_volume_starts_as_zeros_and_keeps_what_is_written() {
    let disk = disk(UnitKind::Plain);
    let mut store = open(&disk);
    assert_eq!(bytes(&mut store, 0, BLOCKS as u32), vec![0; BLOCKS as usize * 4096]);
    let data: Vec<u8> = (0..3 * 4096).map(|at| at as u8).collect();
    store.execute(plain(5, &data)).unwrap();
    store.execute(Op::Flush).unwrap();
    assert_eq!(bytes(&mut store, 4, 5), [vec![0; 4096], data.clone(), vec![0; 4096]].concat());
    drop(store);
    disk.crash();
    let mut store = open(&disk);
    assert_eq!(bytes(&mut store, 5, 3), data);
    store.execute(Op::Discard { lba: Lba(6), count: 1 }).unwrap();
    store.close().unwrap();
    let mut store = open(&disk);
    assert_eq!(bytes(&mut store, 5, 3), [&data[..4096], &block(0), &data[8192..]].concat());
    assert_eq!(store.stats().blocks_mapped, 2);
}

#[test]
fn data_may_come_in_pieces_cut_anywhere() {
    let disk = disk(UnitKind::Plain);
    let mut store = open(&disk);
    let data: Vec<u8> = (0..4 * 4096u32).map(|at| (at / 7) as u8).collect();
    let pieces = [&data[..100], &data[100..5000], &data[5000..5000], &data[5000..]];
    let data_op = pieces.iter().map(|piece| Buffer::copy_from(piece)).collect();
    store.execute(Op::Write { lba: Lba(0), data: data_op, records: Vec::new(), fua: true, origin: None }).unwrap();
    assert_eq!(bytes(&mut store, 0, 4), data);
}

#[test]
fn a_sealed_volume_is_never_zeros() {
    let disk = disk(sealed());
    let mut store = open(&disk);
    let unformatted = store.execute(Op::Read { lba: Lba(3), count: 1 });
    assert_eq!(unformatted, Err(OpError::NotFormatted { lba: Lba(3) }));
    let sequence = format(&mut store);
    store.execute(write(3, &block(7), 10)).unwrap();
    store.close().unwrap();
    let mut store = open(&disk);
    let extents = read(&mut store, 2, 3);
    let hole = HoleRecord { start: Lba(0), count: BLOCKS, record: record(1, None) };
    let absent = |lba| Extent::Hole { lba: Lba(lba), count: 1, sequence, hole: Some(hole.clone()) };
    assert_eq!((&extents[0], &extents[2]), (&absent(2), &absent(4)));
    match &extents[1] {
        Extent::Blocks { records, data, .. } => {
            assert_eq!(records[..], [record(10, Some(&block(7)))]);
            assert_eq!(data[..], block(7));
        }
        Extent::Hole { .. } => panic!("a block"),
    }
}

#[test]
fn older_versions_are_kept_until_verified_and_survive_reopening() {
    let disk = disk(sealed());
    let mut store = open(&disk);
    let formatted = format(&mut store);
    let sequences: Vec<StoreSequence> =
        (1..=3).map(|at| first(store.execute(write(9, &block(at), u64::from(at) * 10)))).collect();
    store.close().unwrap();

    let mut store = open(&disk);
    assert_eq!(store.stats().versions_retained, 2);
    assert_eq!(fill_of(&version(&mut store, 9, StoreSequence(0)).unwrap()), 3);
    assert_eq!(fill_of(&version(&mut store, 9, sequences[2]).unwrap()), 2);
    assert_eq!(fill_of(&version(&mut store, 9, sequences[1]).unwrap()), 1);
    let hole = version(&mut store, 9, sequences[0]).unwrap();
    assert!(matches!(hole, Extent::Hole { sequence, .. } if sequence == formatted));
    assert_eq!(version(&mut store, 9, formatted), Err(OpError::NoVersion { lba: Lba(9) }));

    let verified = |store: &mut Store, sequence| store.execute(Op::Verified { pairs: vec![(Lba(9), sequence)] });
    assert_eq!(verified(&mut store, StoreSequence(999)), Ok(Outcome::Verified { released: 0 }), "unknown");
    assert_eq!(verified(&mut store, sequences[1]), Ok(Outcome::Verified { released: 1 }), "strictly older only");
    assert_eq!(fill_of(&version(&mut store, 9, sequences[2]).unwrap()), 2);
    assert_eq!(verified(&mut store, sequences[2]), Ok(Outcome::Verified { released: 1 }));
    assert_eq!(store.stats().versions_retained, 0);
}

#[test]
fn the_retention_budget_never_fails_a_write() {
    let disk = disk(sealed());
    let mut store = open(&disk);
    format(&mut store);
    for round in 0..10 {
        for lba in 0..BLOCKS {
            store.execute(write(lba, &block(round), 100 + u64::from(round) * BLOCKS + lba)).unwrap();
        }
    }
    let stats = store.stats();
    assert_eq!(stats.versions_retained, store.info().retention_blocks);
    assert_eq!(stats.versions_evicted, 9 * BLOCKS - store.info().retention_blocks);
}

#[test]
fn plain_volumes_keep_no_versions() {
    let mut store = open(&disk(UnitKind::Plain));
    store.execute(plain(1, &block(1))).unwrap();
    let second = first(store.execute(plain(1, &block(2))));
    assert!(version(&mut store, 1, second).is_err());
    assert_eq!(store.stats().versions_retained, 0);
}

/// A request without an operation id is executed each time it is sent, with any stamps: `operations` has those with one.
#[test]
fn a_request_without_an_operation_is_executed_each_time() {
    let mut store = open(&disk(sealed()));
    format(&mut store);
    let op = write(4, &[block(1), block(2)].concat(), 50);
    let written = first(store.execute(op.clone()));
    assert!(first(store.execute(op)) > written);
}

#[test]
fn an_absence_is_resealed_where_there_is_no_data_also_over_a_snapshots() {
    let disk = disk(sealed());
    let mut store = open(&disk);
    format(&mut store);
    let hole = |start, count, counter| HoleRecord { start: Lba(start), count, record: record(counter, None) };
    let conditional = |start, count, counter| Op::ConditionalHole { hole: hole(start, count, counter), origin: None };
    store.execute(write(5, &block(7), 10)).unwrap();
    assert_eq!(store.execute(conditional(0, BLOCKS, 20)), Err(OpError::NotAbsent { lba: Lba(0) }));
    assert!(matches!(read(&mut store, 5, 1)[0], Extent::Blocks { .. }), "nothing was done");
    first(store.execute(conditional(6, BLOCKS - 6, 21)));
    // In a snapshot there is data, which a hole hides since: that range is absent.
    store.execute(Op::SnapshotCreate { name: "s".into() }).unwrap();
    assert_eq!(store.execute(conditional(4, 2, 22)), Err(OpError::NotAbsent { lba: Lba(4) }));
    store.execute(Op::Hole { holes: vec![hole(5, 1, 23)], origin: None }).unwrap();
    first(store.execute(conditional(0, BLOCKS, 24)));
    store.close().unwrap();
    let mut store = open(&disk);
    let found = read(&mut store, 0, BLOCKS as u32);
    let newest = record(24, None).stamp();
    let stamps = found.iter().map(|extent| match extent {
        Extent::Hole { hole: Some(hole), .. } => hole.record.stamp(),
        other => panic!("not absent: {other:?}"),
    });
    assert!(stamps.into_iter().all(|stamp| stamp == newest));
}

#[test]
fn a_conditional_write_needs_the_stamp() {
    let mut store = open(&disk(sealed()));
    format(&mut store);
    let conditional = |expected, fill: u8, counter| {
        let data = block(fill);
        let record = record(counter, Some(&data));
        Op::ConditionalWrite {
            lba: Lba(2),
            expected,
            data: vec![Buffer::copy_from(&data)],
            record,
            fua: false,
            origin: None,
        }
    };
    assert!(matches!(
        store.execute(conditional(Some(stamp(7)), 1, 20)),
        Err(OpError::StampDiffers { lba: Lba(2), found: None })
    ));
    store.execute(conditional(None, 1, 21)).unwrap();
    let found = Some(stamp(21));
    assert_eq!(store.execute(conditional(None, 2, 22)), Err(OpError::StampDiffers { lba: Lba(2), found }));
    // Two at once: exactly one wins.
    store.submit(Token(1), conditional(found, 3, 23));
    store.submit(Token(2), conditional(found, 4, 24));
    let mut done = Vec::new();
    while done.len() < 2 {
        store.poll_completions(&mut done);
    }
    assert_eq!(done.iter().filter(|completion| completion.result.is_ok()).count(), 1);
    assert_eq!(fill_of(&read(&mut store, 2, 1)[0]), 3);
}

#[test]
fn compare_and_write_compares_holes_as_zeros() {
    let mut store = open(&disk(UnitKind::Plain));
    let compare_and_write = |compare: &[u8], data: &[u8]| Op::CompareAndWrite {
        lba: Lba(10),
        compare: Buffer::copy_from(compare),
        data: Buffer::copy_from(data),
        fua: false,
    };
    let zeros = vec![0; 8192];
    let mut ours = vec![1; 8192];
    store.execute(compare_and_write(&zeros, &ours)).unwrap();
    assert_eq!(bytes(&mut store, 10, 2), ours);
    let lost = store.execute(compare_and_write(&zeros, &vec![2; 8192]));
    assert_eq!(lost, Err(OpError::Miscompare { offset_bytes: 0 }));
    let mut nearly = ours.clone();
    nearly[5000] = 7;
    let lost = store.execute(compare_and_write(&nearly, &zeros));
    assert_eq!(lost, Err(OpError::Miscompare { offset_bytes: 5000 }));
    store.execute(compare_and_write(&ours.clone(), &nearly)).unwrap();
    ours = nearly;
    assert_eq!(bytes(&mut store, 10, 2), ours);
}

#[test]
fn overlapping_flushes_share_a_sync() {
    let mut store = open(&disk(UnitKind::Plain));
    store.execute(plain(0, &block(1))).unwrap();
    let before = store.stats().syncs;
    for token in 0..10 {
        store.submit(Token(token), Op::Flush);
    }
    let mut done: Vec<Completion> = Vec::new();
    while done.len() < 10 {
        store.poll_completions(&mut done);
    }
    assert_eq!(store.stats().syncs, before + 1);
    store.execute(Op::Flush).unwrap();
    assert_eq!(store.stats().syncs, before + 1, "nothing was written since");
}

#[test]
fn after_a_failed_sync_writes_are_refused_until_reopened() {
    let disk = disk(UnitKind::Plain);
    let mut store = open(&disk);
    store.execute(plain(0, &block(1))).unwrap();
    store.execute(Op::Flush).unwrap();
    disk.set_faults(Faults { failing_sync_once_in: 1, ..Faults::default() });
    store.execute(plain(1, &block(2))).unwrap();
    assert!(matches!(store.execute(Op::Flush), Err(OpError::WritesRefused { .. })));
    disk.set_faults(Faults::default());
    for op in [Op::Flush, plain(2, &block(3)), Op::Discard { lba: Lba(0), count: 1 }] {
        assert!(matches!(store.execute(op), Err(OpError::WritesRefused { .. })));
    }
    assert_eq!(bytes(&mut store, 0, 1), block(1), "reads go on");
    assert!(store.stats().writes_refused);
    assert!(store.close().is_err());
    let mut store = open(&disk);
    assert_eq!(bytes(&mut store, 0, 1), block(1));
    store.execute(plain(2, &block(3))).unwrap();
    store.execute(Op::Flush).unwrap();
}

#[test]
fn a_full_disk_fails_writes_cleanly() {
    let disk = disk(UnitKind::Plain);
    let mut store = open(&disk);
    for lba in 0..20 {
        store.execute(plain(lba, &block(lba as u8 + 1))).unwrap();
    }
    store.execute(Op::Flush).unwrap();
    disk.set_faults(Faults { pages_max: disk.pages() + 2, ..Faults::default() });
    let failed = (0..40).filter(|&lba| store.execute(plain(lba % 20, &block(99))) == Err(OpError::NoSpace)).count();
    assert!(failed > 30, "{failed}");
    assert!(!store.stats().writes_refused);
    store.execute(Op::Flush).unwrap();
    disk.set_faults(Faults::default());
    store.execute(plain(30, &block(77))).unwrap();
    store.close().unwrap();
    let mut store = open(&disk);
    assert_eq!(bytes(&mut store, 30, 1), block(77));
    for lba in 0..20 {
        let found = bytes(&mut store, lba, 1);
        assert!(found == block(lba as u8 + 1) || found == block(99), "block {lba}");
    }
}

#[test]
fn a_large_write_spans_units_and_segments() {
    let disk = disk(UnitKind::Plain);
    let mut store = open(&disk);
    let data: Vec<u8> = (0..BLOCKS as usize * 4096).map(|at| (at / 911) as u8).collect();
    for _ in 0..5 {
        store.execute(plain(0, &data)).unwrap();
    }
    store.close().unwrap();
    let mut store = open(&disk);
    assert!(bytes(&mut store, 0, BLOCKS as u32) == data);
}

#[test]
fn bad_requests_are_answered() {
    let mut store = open(&disk(UnitKind::Plain));
    let hole = HoleRecord { start: Lba(0), count: 1, record: record(1, None) };
    let bad = [
        Op::Read { lba: Lba(BLOCKS), count: 1 },
        Op::Read { lba: Lba(u64::MAX), count: 2 },
        Op::Read { lba: Lba(0), count: 0 },
        plain(BLOCKS - 1, &[0; 8192]),
        plain(0, &[0; 100]),
        plain(0, &[]),
        write(0, &block(1), 1),
        Op::Hole { holes: vec![hole], origin: None },
        Op::Discard { lba: Lba(1), count: BLOCKS },
        Op::Discard { lba: Lba(1), count: 0 },
        Op::ReadVersion { lba: Lba(BLOCKS), older_than: StoreSequence(0) },
    ];
    for op in bad {
        let result = store.execute(op.clone());
        assert!(matches!(result, Err(OpError::OutOfRange { .. } | OpError::Misuse(_))), "{op:?}: {result:?}");
    }
    let mut store = open(&disk(sealed()));
    for op in [plain(0, &block(1)), Op::Discard { lba: Lba(0), count: 1 }, Op::Hole { holes: Vec::new(), origin: None }]
    {
        assert!(matches!(store.execute(op), Err(OpError::Misuse(_))));
    }
}

#[test]
fn the_queue_is_bounded() {
    let disk = disk(UnitKind::Plain);
    let options = OpenOptions { queue_ops_max: 4, ..OpenOptions::default() };
    let mut store = Store::open_on(Box::new(disk.backend(true)), &options, Arc::new(|| {})).unwrap();
    for token in 0..6 {
        store.submit(Token(token), plain(0, &block(1)));
    }
    let mut done = Vec::new();
    while done.len() < 6 {
        store.poll_completions(&mut done);
    }
    assert_eq!(done.iter().filter(|completion| completion.result == Err(OpError::Busy)).count(), 2);
    assert_eq!(store.ops_in_flight(), 0);
}

#[test]
fn a_full_volume_is_overwritten_for_ever() {
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 2048 };
    let mut options = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
    options.segment_bytes = 128 << 10;
    let disk = SimDisk::new(3);
    Store::create_on(Box::new(disk.backend(true)), &options).unwrap();
    let mut store = open(&disk);
    let mut random = strongroom_testing::Random::new(4);
    for round in 0..8u8 {
        for _ in 0..256 {
            for token in 0..8 {
                store.submit(Token(token), plain(random.below(2048), &block(round)));
            }
            let mut done = Vec::new();
            while done.len() < 8 {
                store.poll_completions(&mut done);
            }
            assert!(done.iter().all(|completion| completion.result.is_ok()));
        }
    }
    let stats = store.stats();
    let total = stats.appended_bytes + stats.cleaned_bytes + stats.table_bytes;
    let amplification = total as f64 / stats.written_bytes as f64;
    assert!(stats.cleaned_bytes > 0 && amplification < 4.0, "{amplification}: {stats:?}");
    store.close().unwrap();
    assert_eq!(open(&disk).stats().blocks_mapped, stats.blocks_mapped);
}

#[test]
fn the_memory_backend_serves() {
    let mut backend = MemoryBackend::new();
    backend.write_at(100, b"x");
    let options = options(UnitKind::Plain);
    let disk = SimDisk::new(1);
    Store::create_on(Box::new(disk.backend(true)), &options).unwrap();
    let mut image = vec![0; 2 << 20];
    disk.read(0, &mut image);
    backend.write_at(0, &image);
    let mut store = Store::open_on(Box::new(backend), &OpenOptions::default(), Arc::new(|| {})).unwrap();
    store.execute(plain(3, &block(5))).unwrap();
    assert_eq!(bytes(&mut store, 3, 1), block(5));
}

#[test]
fn a_directory_holds_one_store_open_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    let open = || Store::open(&path, &OpenOptions::default(), Arc::new(|| {}));
    assert!(matches!(open(), Err(StoreError::Missing(_))));
    Store::create(&path, &options(sealed())).unwrap();
    assert!(matches!(Store::create(&path, &options(sealed())), Err(StoreError::Exists(_))));
    let info = Store::inspect(&path).unwrap();
    assert_eq!((info.kind, info.geometry.blocks), (sealed(), BLOCKS));
    let store = open().unwrap();
    assert!(matches!(open(), Err(StoreError::InUse(_))));
    assert_eq!(Store::inspect(&path).unwrap().open_epoch, 1);
    store.close().unwrap();
    open().unwrap().close().unwrap();
    std::fs::write(path.join("log"), b"not a store").unwrap();
    assert!(matches!(open(), Err(StoreError::Superblock(_))));
    assert!(matches!(Store::inspect(&path), Err(StoreError::Superblock(_))));
}

#[test]
fn a_store_on_a_real_file_gives_space_back() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 8192 };
    let create =
        CreateOptions { segment_bytes: 256 << 10, ..CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain) };
    Store::create(dir.path(), &create).unwrap();
    let space = || std::fs::metadata(dir.path().join("log")).unwrap().blocks() * 512;
    let mut store = Store::open(dir.path(), &OpenOptions::default(), Arc::new(|| {})).unwrap();
    for lba in (0..8192).step_by(256) {
        store.execute(plain(lba, &vec![1; 256 * 4096])).unwrap();
    }
    store.execute(Op::Flush).unwrap();
    let full = space();
    assert!(full >= 32 << 20, "{full}");
    store.execute(Op::Discard { lba: Lba(0), count: 8192 }).unwrap();
    store.idle();
    store.execute(Op::Flush).unwrap();
    store.close().unwrap();
    assert!(space() < full / 3, "{} of {full} bytes are still taken", space());
}

/// Called idle once, as a target does. What was kept for the next writes goes back as well, though not all in that call.
#[test]
fn an_idle_store_keeps_little_host_space_for_writes() {
    use std::os::unix::fs::MetadataExt;
    const SEGMENT: u32 = 64 << 10;
    let dir = tempfile::tempdir().unwrap();
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 16384 };
    let create =
        CreateOptions { segment_bytes: SEGMENT, ..CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain) };
    Store::create(dir.path(), &create).unwrap();
    let segments = || std::fs::metadata(dir.path().join("log")).unwrap().blocks() * 512 / u64::from(SEGMENT);
    let mut store = Store::open(dir.path(), &OpenOptions::default(), Arc::new(|| {})).unwrap();
    for lba in (0..16384).step_by(256) {
        store.execute(plain(lba, &vec![1; 256 * 4096])).unwrap();
    }
    store.execute(Op::Discard { lba: Lba(0), count: 16384 }).unwrap();
    store.idle();
    let started = std::time::Instant::now();
    while segments() >= 24 {
        assert!(started.elapsed().as_secs() < 60, "{} segments have host space", segments());
        store.poll_completions(&mut Vec::new());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
