//! Proves that stores written by every format version so far stay readable: small images, committed, opened and compared.
//!
//! An image file is a list of (offset, length, bytes) of what is not zeros. `STRONGROOM_WRITE_GOLDEN=1` rewrites the image
//! of the current version, which is right only together with a new format version.

use std::path::PathBuf;
use std::sync::Arc;

use strongroom_block::{
    AttachId, BlockSize, Buffer, BufferMut, Custody, Geometry, HoleRecord, Lba, Mode, RecordFlags, SealRecord,
    SealingDomain, Stamp, StoreSequence, Suite, VolumeId, keyless_checksum,
};
use strongroom_store::{
    CheckReport, CreateOptions, Extent, Op, OpError, OpenOptions, Origin, Outcome, Receiver, Sender, SharedMemory,
    Store, StoreId, StreamInfo, StreamSealing, UnitKind, View,
};

const BLOCKS: u64 = 32;
const PAGE: usize = 512;

const SEALED: UnitKind = UnitKind::Sealed { domain: SealingDomain([0x33; 16]), custody: Custody::KeyFile };

fn record(counter: u64, data: Option<&[u8]>) -> SealRecord {
    let stamp = Stamp { attach_id: ATTACH_ID, counter };
    let (flags, sum) = data.map_or((RecordFlags::HOLE, 0), |data| (0, keyless_checksum(data)));
    SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(flags), 0, stamp, sum, [0x55; 16])
}

fn open(backend: &SharedMemory) -> Store {
    open_with(backend, None)
}

fn open_with(backend: &SharedMemory, checkpoint_log_bytes: Option<u64>) -> Store {
    let clock_seconds = || 1_700_000_000;
    let open_id = Some(0x0102_0304_0506_0708);
    let options = OpenOptions { open_id, clock_seconds, checkpoint_log_bytes, ..OpenOptions::default() };
    Store::open_on(Box::new(backend.clone()), &options, Arc::new(|| {})).unwrap()
}

const ATTACH_ID: AttachId = AttachId([0x44; 16]);

/// Sealed requests are known by the stamp of their first record.
fn origin_of(records: &[SealRecord]) -> Option<Origin> {
    records.first().map(|record| Origin { operation: record.stamp(), replay: None })
}

/// A store with everything that version 1 has: holes, blocks, an older version, tables, two openings; and what came with
/// version 2: a snapshot, a clone, feedback, and checkpoints if the log need grow by so little between them; and, sealed, operations: in a segment table, and behind it.
fn make(kind: UnitKind, checkpoint_log_bytes: Option<u64>) -> SharedMemory {
    let backend = SharedMemory::default();
    let geometry = Geometry { block_size: BlockSize::new(512).unwrap(), blocks: BLOCKS };
    let options = CreateOptions {
        segment_bytes: 64 << 10,
        // How many a volume is given is no part of the format.
        segments: Some(32),
        store_id: Some(StoreId([0x11; 16])),
        retention_percent: 100,
        ..CreateOptions::new(VolumeId([0x22; 16]), geometry, kind)
    };
    Store::create_on(Box::new(backend.clone()), &options).unwrap();
    // The first checkpoint comes at the end, and has everything.
    let mut store = open_with(&backend, Some(u64::MAX));
    if kind.is_sealed() {
        let hole = HoleRecord { start: Lba(0), count: BLOCKS, record: record(0, None) };
        store.execute(Op::Hole { holes: vec![hole], origin: None }).unwrap();
        store.execute(Op::RegisterAttachment { attach_id: ATTACH_ID }).unwrap();
    }
    for round in 0..2u8 {
        let data: Vec<u8> = (0..3 * 512u32).map(|at| (at / 512) as u8 + 16 * round + 1).collect();
        let record = |(at, block): (usize, &[u8])| record(u64::from(round) * 10 + at as u64 + 1, Some(block));
        let records = if kind.is_sealed() { data.chunks(512).enumerate().map(record).collect() } else { Vec::new() };
        let origin = origin_of(&records);
        store
            .execute(Op::Write { lba: Lba(4), data: vec![Buffer::copy_from(&data)], records, fua: true, origin })
            .unwrap();
    }
    let Outcome::Read(newest) = store.execute(Op::Read { lba: Lba(5), count: 1 }).unwrap() else { panic!() };
    let Extent::Blocks { sequences, .. } = &newest[0] else { panic!() };
    store.execute(Op::Verified { pairs: vec![(Lba(5), sequences[0])] }).unwrap();
    let snapshot = store.execute(Op::SnapshotCreate { name: "golden".to_owned() }).unwrap();
    let Outcome::SnapshotCreated { id } = snapshot else { panic!("{snapshot:?}") };
    let clone = Op::CloneCreate { from: id, name: "copy".to_owned(), volume_id: VolumeId([0x66; 16]) };
    let Outcome::CloneCreated { branch } = store.execute(clone).unwrap() else { panic!() };
    let (data, records) = match kind.is_sealed() {
        true => (Buffer::copy_from(&[40; 512]), vec![record(50, Some(&[40; 512]))]),
        false => (Buffer::copy_from(&[40; 512]), Vec::new()),
    };
    let write = Op::Write { lba: Lba(5), data: vec![data], records, fua: true, origin: None };
    store.execute_on(View::Head(branch), write).unwrap();
    store.close().unwrap();
    let mut store = open_with(&backend, checkpoint_log_bytes);
    let gone = match kind.is_sealed() {
        true => {
            let record = record(99, None);
            let origin = origin_of(std::slice::from_ref(&record));
            Op::Hole { holes: vec![HoleRecord { start: Lba(6), count: 4, record }], origin }
        }
        false => Op::Discard { lba: Lba(6), count: 4 },
    };
    store.execute(gone).unwrap();
    if kind.is_sealed() {
        for (counter, expected) in [(200, None), (201, Some(Stamp { attach_id: ATTACH_ID, counter: 200 }))] {
            let block = [counter as u8; 512];
            let (data, record) = (vec![Buffer::copy_from(&block)], record(counter, Some(&block)));
            store
                .execute(Op::ConditionalWrite { lba: Lba(20), expected, data, record, fua: true, origin: None })
                .unwrap();
        }
        let hole = HoleRecord { start: Lba(24), count: 4, record: record(210, None) };
        store.execute(Op::ConditionalHole { hole, origin: None }).unwrap();
    }
    while checkpoint_log_bytes.is_some() && store.stats().checkpoints == 0 {
        store.poll_completions(&mut Vec::new());
    }
    store.close().unwrap();
    backend
}

fn check(backend: &SharedMemory, kind: UnitKind) {
    let mut probe = backend.clone();
    let report = CheckReport::of_backend(&mut probe).unwrap();
    assert!(report.is_sound(), "{report:?}");
    let mut store = open(backend);
    assert_eq!((store.info().kind, store.info().geometry.blocks), (kind, BLOCKS));
    let Outcome::Read(extents) = store.execute(Op::Read { lba: Lba(3), count: 4 }).unwrap() else { panic!() };
    let [Extent::Hole { count: 1, hole, .. }, Extent::Blocks { data, records, sequences, .. }, Extent::Hole { .. }] =
        &extents[..]
    else {
        panic!("{extents:?}")
    };
    assert_eq!(data[..], [[17; 512], [18; 512]].concat());
    assert_eq!((hole.is_some(), records.len()), if kind.is_sealed() { (true, 2) } else { (false, 0) });
    if kind.is_sealed() {
        assert_eq!(records[1], record(12, Some(&[18; 512])));
        let older = store.execute(Op::ReadVersion { lba: Lba(4), older_than: sequences[0] }).unwrap();
        let Outcome::Read(older) = older else { panic!() };
        assert!(matches!(&older[0], Extent::Blocks { data, .. } if data[..] == [1; 512]));
    }
    assert!(sequences[0] > StoreSequence(0));
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn dump(backend: &SharedMemory) -> Vec<u8> {
    let mut out = Vec::new();
    for at in 0..(4 << 20) / PAGE {
        let mut page = BufferMut::zeroed(PAGE);
        backend.read_at((at * PAGE) as u64, &mut page);
        if page.iter().any(|&byte| byte != 0) {
            let len = PAGE - page.iter().rev().take_while(|&&byte| byte == 0).count();
            out.extend_from_slice(&((at * PAGE) as u64).to_be_bytes());
            out.extend_from_slice(&(len as u32).to_be_bytes());
            out.extend_from_slice(&page[..len]);
        }
    }
    out
}

fn load(image: &[u8]) -> SharedMemory {
    let backend = SharedMemory::default();
    let mut rest = image;
    while let Some((head, tail)) = rest.split_at_checked(12) {
        let offset = u64::from_be_bytes(head[..8].try_into().unwrap());
        let len = u32::from_be_bytes(head[8..].try_into().unwrap()) as usize;
        backend.write_at(offset, &tail[..len]);
        rest = &tail[len..];
    }
    backend
}

#[test]
fn every_version_stays_readable() {
    for (name, kind, checkpoint_log_bytes) in CURRENT {
        if std::env::var_os("STRONGROOM_WRITE_GOLDEN").is_some() {
            std::fs::write(path(name), dump(&make(kind, checkpoint_log_bytes))).unwrap();
        }
    }
    for (name, kind, checkpoint_log_bytes) in
        VERSION_2.into_iter().chain(VERSION_3).chain(OPERATIONS).chain(TABLES).chain(CURRENT)
    {
        let image = load(&std::fs::read(path(name)).unwrap());
        assert_eq!(open(&load(&dump(&image))).stats().opened_from_checkpoint, checkpoint_log_bytes.is_some());
        check_branches(&image, kind);
        check(&image, kind);
        if kind.is_sealed() {
            check_operations(&image, name);
            check_bases(&load(&std::fs::read(path(name)).unwrap()), name);
        }
        become_current(&image);
    }
    for (name, kind) in [("v1-plain.image", UnitKind::Plain), ("v1-sealed.image", SEALED)] {
        let image = load(&std::fs::read(path(name)).unwrap());
        check(&image, kind);
        become_current(&image);
    }
}

/// Opening makes the newest version of any, in both copies of the superblock: a build that knows only an older one says so.
fn become_current(image: &SharedMemory) {
    open(image).close().unwrap();
    for copy in [0, 512 << 10] {
        let mut version = [0; 4];
        image.read_at(copy + 8, &mut version);
        assert_eq!(u32::from_be_bytes(version), 3);
        // And the features that builds without operations, or without a second table, refuse.
        let mut features = [0; 8];
        image.read_at(copy + 184, &mut features);
        assert_eq!(u64::from_be_bytes(features), 14);
    }
}

/// What was executed is known, in the segment table and behind it; stores of builds before that know no attach ids.
fn check_operations(image: &SharedMemory, name: &str) {
    let mut store = open(image);
    let data = [[17; 512], [18; 512], [19; 512]].concat();
    let records: Vec<SealRecord> =
        (11..).zip(data.chunks(512)).map(|(counter, block)| record(counter, Some(block))).collect();
    let (write, hole) = (origin_of(&records), origin_of(&[record(99, None)]));
    let again = [
        Op::Write { lba: Lba(4), data: vec![Buffer::copy_from(&data)], records, fua: false, origin: write },
        Op::Hole { holes: vec![HoleRecord { start: Lba(6), count: 4, record: record(99, None) }], origin: hole },
    ];
    for (op, count) in again.into_iter().zip([3, 1]) {
        let expected = match name.contains("operations") {
            true => Ok(Outcome::Written { first: StoreSequence(0), repeated: count, superseded: 0 }),
            false => Err(OpError::UnknownAttachment { attach_id: ATTACH_ID }),
        };
        assert_eq!(store.execute(op), expected, "{name}");
    }
}

/// A replay passes for superseded only if it is known that what is newer was not written on a condition.
fn check_bases(image: &SharedMemory, name: &str) {
    let mut store = open(image);
    let newest = |store: &mut Store, lba| match store.execute(Op::Read { lba: Lba(lba), count: 1 }) {
        Ok(Outcome::Read(extents)) => match &extents[0] {
            Extent::Blocks { sequences, .. } => sequences[0],
            Extent::Hole { sequence, .. } => *sequence,
        },
        other => panic!("{other:?}"),
    };
    let attach_id = AttachId([0x55; 16]);
    store.execute(Op::RegisterAttachment { attach_id }).unwrap();
    let mut replay = |lba, before: u64, counter| {
        let newest = newest(&mut store, lba);
        let operation = Stamp { attach_id, counter };
        let origin = Some(Origin { operation, replay: Some(StoreSequence(newest.0 - before)) });
        let (data, records) = (vec![Buffer::copy_from(&[7; 512])], vec![record(300, Some(&[7; 512]))]);
        store.execute(Op::Write { lba: Lba(lba), data, records, fua: false, origin })
    };
    let superseded = |result: &Result<Outcome, OpError>| matches!(result, Ok(Outcome::Written { superseded: 1, .. }));
    let is_lost = |result: &Result<Outcome, OpError>| matches!(result, Err(OpError::ReplayLost { .. }));
    // There is a hole, written unconditionally.
    let blind = replay(6, 1, 1);
    match name.contains("bases") {
        true => {
            assert!(superseded(&blind), "{name}: {blind:?}");
            let kept = replay(20, 1, 2);
            assert!(superseded(&kept), "{name}: it is there, beneath: {kept:?}");
            let conditional = [replay(20, 2, 3), replay(24, 1, 4)];
            assert!(conditional.iter().all(is_lost), "{name}: {conditional:?}");
        }
        false => assert!(is_lost(&blind), "{name}: {blind:?}"),
    }
}

/// The images of version 2, which this build does not write any more.
const VERSION_2: [(&str, UnitKind, Option<u64>); 4] = [
    ("v2-plain.image", UnitKind::Plain, None),
    ("v2-sealed.image", SEALED, None),
    ("v2-checkpoint-plain.image", UnitKind::Plain, Some(1)),
    ("v2-checkpoint-sealed.image", SEALED, Some(1)),
];

/// The images of this build, and how they are made.
const CURRENT: [(&str, UnitKind, Option<u64>); 4] = [
    ("v3-operations-tables-bases-plain.image", UnitKind::Plain, None),
    ("v3-operations-tables-bases-sealed.image", SEALED, None),
    ("v3-operations-tables-bases-checkpoint-plain.image", UnitKind::Plain, Some(1)),
    ("v3-operations-tables-bases-checkpoint-sealed.image", SEALED, Some(1)),
];

/// The images of version 3 that do not tell what was written on a condition, which this build does not write any more.
const TABLES: [(&str, UnitKind, Option<u64>); 4] = [
    ("v3-operations-tables-plain.image", UnitKind::Plain, None),
    ("v3-operations-tables-sealed.image", SEALED, None),
    ("v3-operations-tables-checkpoint-plain.image", UnitKind::Plain, Some(1)),
    ("v3-operations-tables-checkpoint-sealed.image", SEALED, Some(1)),
];

/// The images of version 3 with operations and one segment table, which this build does not write any more.
const OPERATIONS: [(&str, UnitKind, Option<u64>); 4] = [
    ("v3-operations-plain.image", UnitKind::Plain, None),
    ("v3-operations-sealed.image", SEALED, None),
    ("v3-operations-checkpoint-plain.image", UnitKind::Plain, Some(1)),
    ("v3-operations-checkpoint-sealed.image", SEALED, Some(1)),
];

/// The images of version 3 without, which this build does not write any more.
const VERSION_3: [(&str, UnitKind, Option<u64>); 4] = [
    ("v3-plain.image", UnitKind::Plain, None),
    ("v3-sealed.image", SEALED, None),
    ("v3-checkpoint-plain.image", UnitKind::Plain, Some(1)),
    ("v3-checkpoint-sealed.image", SEALED, Some(1)),
];

/// What version 2 has besides.
fn check_branches(backend: &SharedMemory, kind: UnitKind) {
    let mut store = open(backend);
    let (snapshots, branches) = (store.index().snapshots(), store.index().branches());
    assert_eq!((snapshots[0].name.as_str(), snapshots[0].created_seconds), ("golden", 1_700_000_000));
    assert_eq!((branches[1].name.as_str(), branches[1].volume_id), ("copy", VolumeId([0x66; 16])));
    let mut first_byte = |view, lba| match store.execute_on(view, Op::Read { lba: Lba(lba), count: 1 }).unwrap() {
        Outcome::Read(extents) => match &extents[0] {
            Extent::Blocks { data, .. } => data[0],
            Extent::Hole { .. } => 0,
        },
        other => panic!("{other:?}"),
    };
    assert_eq!(first_byte(View::Head(branches[1].id), 5), 40);
    assert_eq!(first_byte(View::Head(branches[1].id), 6), 19);
    assert_eq!(
        [first_byte(View::Snapshot(snapshots[0].id), 5), first_byte(View::Snapshot(snapshots[0].id), 6)],
        [18, 19]
    );
    assert_eq!(first_byte(View::default(), 6), 0);
    // The reader's feedback of block 5 outlived the opening.
    if kind.is_sealed() {
        let older = |lba| Op::ReadVersion { lba: Lba(lba), older_than: StoreSequence(5) };
        assert!(store.execute(older(4)).is_ok());
        assert!(
            matches!(&store.execute(older(5)), Ok(Outcome::Read(extents)) if matches!(extents[0], Extent::Hole { .. }))
        );
    }
}

/// The bytes of today are the bytes of version 3: a change of format needs a new version, and a new image.
#[test]
fn this_build_writes_version_3() {
    for (name, kind, checkpoint_log_bytes) in CURRENT {
        let image = std::fs::read(path(name)).unwrap();
        assert!(
            dump(&make(kind, checkpoint_log_bytes)) == image,
            "{name}: the format changed; bump its version and add an image"
        );
    }
}

/// A snapshot as it is sent: the stream of version 2 stays what it is, and is received; that of version 1 is, too.
#[test]
fn the_stream_stays_readable() {
    let sealing = Some(StreamSealing { suite: Suite::Aes256Gcm, mode: Mode::AuthenticateOnly, epoch: 3 });
    for (version, name, kind) in
        [(1, "plain", UnitKind::Plain), (1, "sealed", SEALED), (2, "plain", UnitKind::Plain), (2, "sealed", SEALED)]
    {
        let mut store = open(&load(&std::fs::read(path(&format!("v2-{name}.image"))).unwrap()));
        let id = store.index().snapshots()[0].id;
        let name = format!("send-v{version}-{name}.stream");
        let (mut sender, mut stream) = (Sender::new(None, id, 0).sealed_as(sealing), Vec::new());
        while let Some(bytes) = sender.send(&mut store).unwrap() {
            stream.extend(bytes);
        }
        if version == 2 && std::env::var_os("STRONGROOM_WRITE_GOLDEN").is_some() {
            std::fs::write(path(&name), &stream).unwrap();
        }
        let golden = std::fs::read(path(&name)).unwrap();
        assert!(
            version == 1 || stream == golden,
            "{name}: the stream changed; bump its version and keep reading this one"
        );
        let info = StreamInfo::peek(&golden).unwrap().unwrap();
        assert_eq!((info.version, info.kind, info.to), (version, kind, id));
        assert_eq!(info.sealing, sealing.filter(|_| version == 2 && kind.is_sealed()));
        let backend = SharedMemory::default();
        let geometry = Geometry { block_size: BlockSize::new(512).unwrap(), blocks: BLOCKS };
        let options =
            CreateOptions { segment_bytes: 64 << 10, ..CreateOptions::new(VolumeId([0x22; 16]), geometry, kind) };
        Store::create_on(Box::new(backend.clone()), &options).unwrap();
        let mut to = open(&backend);
        let mut receiver = Receiver::new();
        receiver.receive(&mut to, &golden).unwrap();
        assert!(receiver.is_done());
        let read = to.execute_on(View::Snapshot(id), Op::Read { lba: Lba(5), count: 1 }).unwrap();
        let Outcome::Read(extents) = read else { panic!() };
        assert!(matches!(&extents[0], Extent::Blocks { data, .. } if data[..] == [18; 512]));
    }
}
