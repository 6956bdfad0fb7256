//! Proves that a request of a sealed unit is executed at most once, however often it is sent, and after any crash; that a replay
//! puts a lost write back where it was in the order, and never over anything newer; and when the incarnation changes.

mod bases;
mod branches;
mod incarnations;
mod repetitions;
mod replays;

use std::sync::Arc;

use strongroom_block::{
    AttachId, BlockSize, Buffer, Custody, Geometry, HoleRecord, Lba, Mode, RecordFlags, SealRecord, SealingDomain,
    Stamp, StoreSequence, Suite, Token, VolumeId, keyless_checksum,
};
use strongroom_store::{
    BranchId, CheckReport, CreateOptions, Extent, Op, OpError, OpenOptions, Origin, Outcome, RepairOptions, RepairPlan,
    SharedMemory, SnapshotId, Store, UnitKind, View,
};
use strongroom_testing::{Faults, SimDisk};

const BLOCKS: u64 = 64;
/// More than any store here takes.
const IMAGE_BYTES: usize = 16 << 20;

const A: AttachId = AttachId([0xa; 16]);
const B: AttachId = AttachId([0xb; 16]);

fn options() -> CreateOptions {
    let kind = UnitKind::Sealed { domain: SealingDomain([9; 16]), custody: Custody::KeyFile };
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
    CreateOptions { segment_bytes: 64 << 10, ..CreateOptions::new(VolumeId([1; 16]), geometry, kind) }
}

fn stamp(attach_id: AttachId, counter: u64) -> Stamp {
    Stamp { attach_id, counter }
}

fn record(stamp: Stamp, data: Option<&[u8]>) -> SealRecord {
    let (flags, sum) = data.map_or((RecordFlags::HOLE, 0), |data| (0, keyless_checksum(data)));
    SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(flags), 0, stamp, sum, [0; 16])
}

/// A write of `count` blocks that hold `fill`, known by `operation`, and sealed under `sealed`.
fn resealed(lba: u64, count: u64, fill: u8, operation: Stamp, sealed: Stamp, replay: Option<StoreSequence>) -> Op {
    let block = [fill; 4096];
    let of = |at| record(Stamp { counter: sealed.counter + at, ..sealed }, Some(&block));
    Op::Write {
        lba: Lba(lba),
        data: (0..count).map(|_| Buffer::copy_from(&block)).collect(),
        records: (0..count).map(of).collect(),
        fua: false,
        origin: Some(Origin { operation, replay }),
    }
}

fn write(lba: u64, count: u64, fill: u8, operation: Stamp) -> Op {
    resealed(lba, count, fill, operation, operation, None)
}

fn replay(lba: u64, count: u64, fill: u8, operation: Stamp, sequence: StoreSequence) -> Op {
    resealed(lba, count, fill, operation, operation, Some(sequence))
}

fn hole(start: u64, count: u64, operation: Stamp) -> Op {
    let holes = vec![HoleRecord { start: Lba(start), count, record: record(operation, None) }];
    Op::Hole { holes, origin: Some(Origin { operation, replay: None }) }
}

fn on(branch: u32) -> View {
    View::Head(BranchId(branch))
}

fn register(store: &mut Store, attach_id: AttachId) {
    assert_eq!(store.execute(Op::RegisterAttachment { attach_id }), Ok(Outcome::Changed));
}

fn first(result: Result<Outcome, OpError>) -> StoreSequence {
    match result {
        Ok(Outcome::Written { first, repeated: 0, superseded: 0 }) => first,
        other => panic!("not written: {other:?}"),
    }
}

fn repeated(count: u32) -> Result<Outcome, OpError> {
    Ok(Outcome::Written { first: StoreSequence(0), repeated: count, superseded: 0 })
}

/// What each block of a range holds: the byte that fills it, or 0 for a hole.
fn fills(store: &mut Store, view: View, lba: u64, count: u32) -> Vec<u8> {
    let Ok(Outcome::Read(extents)) = store.execute_on(view, Op::Read { lba: Lba(lba), count }) else {
        panic!("not read")
    };
    let fills = extents.iter().flat_map(|extent| match extent {
        Extent::Blocks { data, .. } => data.chunks(4096).map(|block| block[0]).collect::<Vec<_>>(),
        Extent::Hole { count, .. } => vec![0; *count as usize],
    });
    fills.collect()
}

fn volume(store: &mut Store, lba: u64, count: u32) -> Vec<u8> {
    fills(store, View::default(), lba, count)
}

fn format(store: &mut Store) {
    let holes = vec![HoleRecord { start: Lba(0), count: BLOCKS, record: record(stamp(AttachId([1; 16]), 0), None) }];
    store.execute(Op::Hole { holes, origin: None }).unwrap();
}

fn clone(store: &mut Store) -> (SnapshotId, BranchId) {
    let Ok(Outcome::SnapshotCreated { id }) = store.execute(Op::SnapshotCreate { name: "s".into() }) else { panic!() };
    let clone = Op::CloneCreate { from: id, name: "c".into(), volume_id: VolumeId([3; 16]) };
    let Ok(Outcome::CloneCreated { branch }) = store.execute(clone) else { panic!() };
    (id, branch)
}

fn open_disk(disk: &SimDisk) -> Result<Store, strongroom_store::StoreError> {
    // Few writes between checkpoints, and small units: so that a cut meets all of them.
    let options =
        OpenOptions { checkpoint_log_bytes: Some(60_000), append_unit_bytes_max: 12 << 10, ..OpenOptions::default() };
    Store::open_on(Box::new(disk.backend(true)), &options, Arc::new(|| {}))
}

/// A disk whose losses are chosen: its image is taken, and put back.
struct Bench {
    memory: SharedMemory,
    options: OpenOptions,
}

impl Bench {
    fn new() -> Bench {
        Bench::with_segments(None)
    }

    fn with_segments(segments: Option<u32>) -> Bench {
        let bench = Bench { memory: SharedMemory::default(), options: OpenOptions::default() };
        Store::create_on(Box::new(bench.memory.clone()), &CreateOptions { segments, ..options() }).unwrap();
        let mut store = bench.open();
        format(&mut store);
        store.close().unwrap();
        bench
    }

    fn open(&self) -> Store {
        Store::open_on(Box::new(self.memory.clone()), &self.options, Arc::new(|| {})).unwrap()
    }

    fn image(&self) -> Vec<u8> {
        let mut image = vec![0; IMAGE_BYTES];
        self.memory.read_at(0, &mut image);
        image
    }

    /// The machine stops, and nothing that was written since the image was taken has arrived.
    fn crash_to(&mut self, store: Store, image: &[u8]) {
        drop(store);
        self.memory = SharedMemory::default();
        self.memory.write_at(0, image);
    }
}
