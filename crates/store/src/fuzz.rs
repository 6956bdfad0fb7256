//! For fuzzing: every decoder of the store, given any bytes as if their checksums fitted. None may panic, hang, or take memory
//! beyond what the medium's size allows.

use std::sync::Arc;

use strongroom_block::{
    AttachId, Buffer, HoleRecord, Lba, Mode, RecordFlags, SealRecord, Stamp, Suite, keyless_checksum,
};

use crate::backend::{Backend, Io, IoDone, MemoryBackend, SharedMemory, Waker};
use crate::catalogue::{Catalogue, Change, Replay};
use crate::check::CheckReport;
use crate::checkpoint;
use crate::layout::{Layout, RECORD_BLOCK, SEQUENCE_MAX, SUPERBLOCK_AT, be_u32, be_u64};
use crate::op::{Extent, Op, Origin, Outcome};
use crate::operations::{Operations, Standing};
use crate::options::{OpenOptions, StoreId};
use crate::repair::{RepairOptions, RepairPlan};
use crate::store::Store;
use crate::superblock::{self, Superblock};
use crate::survey::Survey;
use crate::unit::{self, LogAddress, decode_entries, decode_header};
use crate::view::View;

/// How large a medium the image lies on, in bytes.
const IMAGE_BYTES: u64 = 4 << 20;
/// How many blocks a store is read at a time, in how many views, and for how long it is left to itself.
const PIECE_BLOCKS: u64 = 64;
const VIEWS: usize = 6;
const IDLE_ROUNDS: usize = 4;

/// A unit: a record block, and more of them.
pub fn fuzz_unit(bytes: &[u8]) {
    let layout = Layout { segment_bytes: 1 << 20, segments: 4, block_bytes: 4096, item_bytes: 56 };
    let place = LogAddress { store_id: StoreId([0; 16]), segment: 0, block: 0 };
    let mut bytes = bytes[..bytes.len() / RECORD_BLOCK * RECORD_BLOCK].to_vec();
    for (at, block) in bytes.chunks_exact_mut(RECORD_BLOCK).enumerate() {
        unit::fit_checksum(block, LogAddress { block: at as u32, ..place });
    }
    let Some(header) = bytes.get(..RECORD_BLOCK).and_then(|first| decode_header(first, place, &layout)) else { return };
    let len = usize::from(header.record_blocks) * RECORD_BLOCK;
    if let Some(records) = bytes.get(..len) {
        let _ = decode_entries(records, &header, place, &layout);
    }
}

/// A superblock.
pub fn fuzz_superblock(bytes: &[u8]) {
    let mut block = bytes.to_vec();
    block.resize(RECORD_BLOCK, 0);
    superblock::fit_checksum(&mut block, 0);
    if let Ok(decoded) = Superblock::decode(&block, 0) {
        let _ = (decoded.info(), decoded.layout(), decoded.encode(1));
    }
}

/// A catalogue; else a change of a new one; else a catalogue and changes of it, each behind its length (2 bytes) and, changes, the
/// branch and the sequence that their entry of the log names (4 and 8 bytes).
pub fn fuzz_catalogue(bytes: &[u8]) {
    let new = || Catalogue::new(strongroom_block::VolumeId([0; 16]));
    if let Some(mut catalogue) = Catalogue::decode(bytes) {
        return catalogue.collapse();
    }
    if let Some(change) = Change::decode(u32::from(bytes.first().copied().unwrap_or(0) % 4), bytes) {
        let _ = new().apply(&change, 5);
        return;
    }
    let mut rest = bytes;
    let catalogue = piece(&mut rest).and_then(Catalogue::decode).unwrap_or_else(new);
    let mut replay = Replay::new(catalogue);
    while let Some((head, tail)) = rest.split_at_checked(12) {
        rest = tail;
        let Some(change) = piece(&mut rest).and_then(|bytes| Change::decode(be_u32(head, 0), bytes)) else { break };
        let _ = replay.apply(&change, be_u64(head, 4) % SEQUENCE_MAX);
    }
    let catalogue = replay.finish();
    for node in catalogue.nodes() {
        assert!(catalogue.path(node).count() <= catalogue.nodes().count(), "parents go round in a circle");
    }
    assert!(catalogue.head(0).is_some_and(|node| catalogue.nodes().any(|of| of == node)), "the volume is in no node");
}

/// Operation windows, of a store with small segments.
pub fn fuzz_operations(bytes: &[u8]) {
    const SEGMENT_BYTES: u32 = 64 << 10;
    let Some(mut operations) = Operations::decode(bytes, SEGMENT_BYTES) else { return };
    assert_eq!(operations.encode(), bytes);
    let stamp = Stamp { attach_id: AttachId([0x66; 16]), counter: 5 };
    operations.register(0, stamp.attach_id);
    operations.note(0, stamp, 3);
    assert!(operations.standing(0, stamp, 3) != Standing::New);
    assert!(Operations::decode(&operations.encode(), SEGMENT_BYTES).is_some());
}

/// What follows its length.
fn piece<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, tail) = rest.split_first_chunk::<2>()?;
    let (piece, tail) = tail.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
    *rest = tail;
    Some(piece)
}

/// What a block of a checkpoint says.
pub fn fuzz_checkpoint(bytes: &[u8]) {
    let mut block = bytes.to_vec();
    block.resize(RECORD_BLOCK, 0);
    let layout = Layout { segment_bytes: 1 << 20, segments: 4, block_bytes: 4096, item_bytes: 56 };
    let place = LogAddress { store_id: StoreId([0; 16]), segment: 0, block: 0 };
    let Some(decoded) = checkpoint::Block::decode_content(&block, &layout) else { return };
    if let checkpoint::Content::Runs(runs) = &decoded.content
        && runs.iter().all(|run| run.first.possible(&layout))
    {
        let mut again = checkpoint::Runs::new(layout);
        let taken = runs.iter().take_while(|run| again.push(run.lba, run.first)).count();
        let content = checkpoint::Content::Runs(again.runs);
        let written = checkpoint::Block { content, ..decoded.clone() }.encode(place, &layout);
        assert!(taken == 0 || checkpoint::Block::decode_content(&written, &layout).is_some());
    }
}

/// A whole store, as a list of offset (8 bytes), length (4 bytes), bytes: surveyed, checked, and its repair planned.
pub fn fuzz_image(bytes: &[u8]) {
    let memory = image(bytes);
    let _ = Survey::of_backend(&mut Medium(copy(&memory)));
    let _ = CheckReport::of_backend(&mut Medium(copy(&memory)));
    let _ = RepairPlan::carry_out_on(
        Box::new(Medium(memory)),
        RepairOptions::default(),
        &mut |_, _| Ok(()),
        &mut |_, _| (),
    );
}

/// As [`fuzz_image`]; but the store is opened, used in every way, closed, and opened again.
pub fn fuzz_use(bytes: &[u8]) {
    let memory = SharedMemory::default();
    let bytes = {
        let image = image(bytes);
        let mut bytes = vec![0; IMAGE_BYTES as usize];
        image.read_at(0, &mut bytes);
        bytes
    };
    memory.write_at(0, &bytes);
    for opening in 1..3 {
        let options = OpenOptions { open_id: Some(opening), record_cache_bytes: 64 << 10, ..OpenOptions::default() };
        let backend = Box::new(Medium(memory.clone()));
        let Ok(mut store) = Store::open_on(backend, &options, Arc::new(|| {})) else { return };
        use_store(&mut store, opening);
        if store.close().is_err() {
            return;
        }
    }
}

/// Submits every kind of request; any answer will do.
fn use_store(store: &mut Store, opening: u64) {
    let info = store.info().clone();
    let (blocks, block_bytes) = (info.geometry.blocks, info.geometry.block_size.bytes() as usize);
    let snapshots: Vec<View> = store.index().snapshots().iter().map(|snapshot| View::Snapshot(snapshot.id)).collect();
    let branches: Vec<View> = store.index().branches().iter().map(|branch| View::Head(branch.id)).collect();
    let views: Vec<View> = [View::default()].into_iter().chain(branches).chain(snapshots).take(VIEWS).collect();
    let places = [0, blocks / 2, blocks.saturating_sub(PIECE_BLOCKS)];
    let record = |flags, counter, sum| {
        let stamp = Stamp { attach_id: AttachId([0x66; 16]), counter: (opening << 32) + counter };
        SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(flags), 0, stamp, sum, [0x77; 16])
    };
    let origin = |record: &SealRecord| Some(Origin { operation: record.stamp(), replay: None });
    let data = vec![opening as u8; block_bytes];
    let sum = keyless_checksum(&data);
    for (number, &view) in views.iter().enumerate() {
        let mut sequences = Vec::new();
        let _ = store.execute_on(view, Op::RegisterAttachment { attach_id: AttachId([0x66; 16]) });
        for lba in places.map(Lba) {
            let count = PIECE_BLOCKS.min(blocks - lba.0) as u32;
            if let Ok(Outcome::Read(extents)) = store.execute_on(view, Op::Read { lba, count }) {
                let mut at = lba.0;
                for extent in &extents {
                    match extent {
                        Extent::Blocks { sequences: found, .. } => {
                            sequences.extend((at..).map(Lba).zip(found.iter().copied()));
                            at += found.len() as u64;
                        }
                        Extent::Hole { count, .. } => at += count,
                    }
                }
            }
            let _ = store.execute_on(view, Op::ReadMedium { lba, count });
            let counter = 10 * number as u64 + 1;
            let (records, hole) = match info.kind.is_sealed() {
                true => {
                    let hole = HoleRecord { start: lba, count: 1, record: record(RecordFlags::HOLE, counter, 0) };
                    (vec![record(0, counter + 1, sum)], Op::Hole { origin: origin(&hole.record), holes: vec![hole] })
                }
                false => (Vec::new(), Op::Discard { lba, count: blocks - lba.0 }),
            };
            let origin = records.first().and_then(origin);
            let write = Op::Write { lba, data: vec![Buffer::copy_from(&data)], records, fua: true, origin };
            let _ = store.execute_on(view, write);
            let _ = store.execute_on(view, hole);
            let _ = store.execute_on(view, Op::Read { lba, count: 1 });
        }
        sequences.truncate(Op::VERIFIED_MAX);
        let _ = store.execute_on(view, Op::Verified { pairs: sequences });
    }
    use_snapshots(store, opening, views);
    let stats = store.stats();
    assert!(stats.segments_free <= stats.segments_total, "more is free than there is");
}

/// Makes and deletes snapshots, and lets the store finish what follows from it.
fn use_snapshots(store: &mut Store, opening: u64, views: Vec<View>) {
    let made = store.execute(Op::SnapshotCreate { name: format!("fuzz {opening}") });
    for _ in 0..IDLE_ROUNDS {
        store.idle();
    }
    if let Ok(Outcome::SnapshotCreated { id }) = made {
        let _ = store.execute(Op::Rollback { to: id });
        let _ = store.execute(Op::SnapshotDelete { id });
    }
    for view in views {
        if let View::Snapshot(id) = view {
            let _ = store.execute(Op::SnapshotDelete { id });
        }
    }
    let _ = store.execute(Op::Flush);
    for _ in 0..IDLE_ROUNDS {
        store.idle();
    }
}

fn image(bytes: &[u8]) -> MemoryBackend {
    let mut memory = MemoryBackend::new();
    let mut rest = bytes;
    while let Some((head, tail)) = rest.split_at_checked(12) {
        let offset = u64::from_be_bytes(head[..8].try_into().expect("8 bytes")) % IMAGE_BYTES;
        let len = u32::from_be_bytes(head[8..].try_into().expect("4 bytes")) as usize;
        let len = len.min(tail.len()).min((IMAGE_BYTES - offset) as usize);
        memory.write_at(offset, &tail[..len]);
        rest = &tail[len..];
    }
    fit_checksums(&mut memory);
    memory
}

fn fit_checksums(memory: &mut MemoryBackend) {
    let mut block = vec![0; RECORD_BLOCK];
    let mut found = None;
    for (copy, at) in SUPERBLOCK_AT.into_iter().enumerate() {
        memory.read_at(at, &mut block);
        superblock::fit_checksum(&mut block, copy);
        memory.write_at(at, &block);
        found = found.or(Superblock::decode(&block, copy).ok());
    }
    let Some(superblock) = found else { return };
    let layout = superblock.layout();
    for segment in 0..layout.segments {
        for position in 0..layout.segment_blocks() {
            let at = layout.block_at(segment, position);
            if at + RECORD_BLOCK as u64 > IMAGE_BYTES {
                return;
            }
            memory.read_at(at, &mut block);
            let place = LogAddress { store_id: superblock.store_id, segment, block: position };
            match block[..4].try_into().expect("4 bytes") {
                unit::MAGIC => unit::fit_checksum(&mut block, place),
                checkpoint::MAGIC => checkpoint::fit_checksum(&mut block, place),
                _ => continue,
            }
            memory.write_at(at, &block);
        }
    }
}

fn copy(memory: &MemoryBackend) -> MemoryBackend {
    let mut bytes = vec![0; IMAGE_BYTES as usize];
    memory.read_at(0, &mut bytes);
    let mut copy = MemoryBackend::new();
    copy.write_at(0, &bytes);
    copy
}

/// Memory that knows its size.
struct Medium<B>(B);

impl<B: Backend> Backend for Medium<B> {
    fn set_waker(&mut self, waker: Waker) {
        self.0.set_waker(waker);
    }

    fn size_bytes(&mut self) -> std::io::Result<Option<u64>> {
        Ok(Some(IMAGE_BYTES))
    }

    fn submit(&mut self, token: u64, io: Io) {
        self.0.submit(token, io);
    }

    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        self.0.poll(done)
    }

    fn wait(&mut self) {
        self.0.wait();
    }
}
