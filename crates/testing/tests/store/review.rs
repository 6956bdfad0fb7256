//! Proves that the store's work for one request is bounded, in time and memory, in every state of the log: cleaning that
//! gains nothing ends, reads are counted, many pieces and large holes cost what their bytes cost.

use std::sync::Arc;

use strongroom_block::{
    AttachId, BlockSize, Buffer, Custody, Geometry, HoleRecord, Lba, Mode, RecordFlags, SealRecord, SealingDomain,
    Stamp, Suite, Token, VolumeId, keyless_checksum,
};
use strongroom_store::{CreateOptions, Op, OpError, OpenOptions, Origin, Outcome, SharedMemory, Store, UnitKind};
use strongroom_testing::Random;

/// A backend whose bytes can be reached beside the store.
fn sealed() -> UnitKind {
    UnitKind::Sealed { domain: SealingDomain([9; 16]), custody: Custody::KeyFile }
}

fn made(kind: UnitKind, blocks: u64, block_bytes: u64, segment_bytes: u32) -> (SharedMemory, Store) {
    let backend = SharedMemory::default();
    let geometry = Geometry { block_size: BlockSize::new(block_bytes).unwrap(), blocks };
    let options = CreateOptions { segment_bytes, ..CreateOptions::new(VolumeId([1; 16]), geometry, kind) };
    Store::create_on(Box::new(backend.clone()), &options).unwrap();
    let store = Store::open_on(Box::new(backend.clone()), &OpenOptions::default(), Arc::new(|| {})).unwrap();
    (backend, store)
}

fn plain(lba: u64, data: Buffer) -> Op {
    Op::Write { lba: Lba(lba), data: vec![data], records: Vec::new(), fua: false, origin: None }
}

fn record(counter: u64, data: Option<&[u8]>) -> SealRecord {
    let stamp = Stamp { attach_id: AttachId([2; 16]), counter };
    let (flags, sum) = data.map_or((RecordFlags::HOLE, 0), |data| (0, keyless_checksum(data)));
    SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(flags), 0, stamp, sum, [0; 16])
}

/// Segments that cannot be read are not cleaned, so the store may have less space than it was made with. A write is then
/// told that there is none; it does not keep the cleaner at work for ever, and no poll copies without bound.
#[test]
fn cleaning_that_gains_nothing_ends() {
    const SEGMENT: u64 = 256 << 10;
    let mut refused = 0;
    for damaged in [20, 40, 60, 80] {
        let blocks = (16 << 20) / 4096;
        let (backend, mut store) = made(UnitKind::Plain, blocks, 4096, SEGMENT as u32);
        let data = Buffer::copy_from(&[7; 4096]);
        for lba in 0..blocks {
            store.execute(plain(lba, data.clone())).unwrap();
        }
        for at in 0..damaged {
            backend.write_at((1 << 20) + (1 + at) * SEGMENT, &[0; 4096]);
        }
        let mut random = Random::new(5);
        let mut done = Vec::new();
        let whole = Buffer::copy_from(&vec![8; 16 << 20]);
        for round in 0..2100 {
            let large = round >= 1500 && round % 100 == 0;
            let (lba, data) = if large { (0, &whole) } else { (random.below(blocks), &data) };
            store.submit(Token(1), plain(lba, data.clone()));
            while done.is_empty() {
                let before = store.stats().cleaned_bytes;
                store.poll_completions(&mut done);
                let copied = store.stats().cleaned_bytes - before;
                assert!(copied <= 17 << 20, "{copied} bytes copied in one poll");
            }
            match done.pop().unwrap().result {
                Ok(_) => {}
                Err(OpError::NoSpace) => {
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(refused > 0, "no sample ran out of space");
}

/// What reads hold in memory counts against the same limit as what writes hold.
#[test]
fn reads_are_counted() {
    let (_, mut store) = made(UnitKind::Plain, 16384, 4096, 4 << 20);
    let limit = OpenOptions::default().queue_bytes_max;
    let blocks = (Op::READ_BYTES_MAX / 4096) as u32;
    store.execute(plain(0, Buffer::copy_from(&vec![7; 1 << 20]))).unwrap();
    let fit = limit / Op::READ_BYTES_MAX;
    let mut done = Vec::new();
    for _ in 0..3 {
        for token in 0..fit as u64 + 2 {
            store.submit(Token(token), Op::Read { lba: Lba(0), count: blocks });
        }
        while done.len() < fit + 2 {
            store.poll_completions(&mut done);
        }
        let busy = done.drain(..).filter(|completion| completion.result == Err(OpError::Busy)).count();
        assert_eq!(busy, 2);
    }
    let (_, mut store) = made(UnitKind::Plain, 1 << 12, 65536, 4 << 20);
    assert!(matches!(store.execute(Op::Read { lba: Lba(0), count: 1025 }), Err(OpError::Misuse(_))));
    assert!(store.execute(Op::Read { lba: Lba(0), count: 1024 }).is_ok());
}

/// Writes of one writer that arrive out of order still share appends; one that arrives again is still known.
#[test]
fn stamps_out_of_order_share_appends() {
    let (_, mut store) = made(sealed(), 4096, 4096, 1 << 20);
    store
        .execute(Op::Hole {
            holes: vec![HoleRecord { start: Lba(0), count: 4096, record: record(0, None) }],
            origin: None,
        })
        .unwrap();
    let data = Buffer::copy_from(&[7; 4096]);
    let attach_id = record(0, None).stamp().attach_id;
    store.execute(Op::RegisterAttachment { attach_id }).unwrap();
    let write = |counter: u64| {
        let records = vec![record(counter, Some(&data))];
        let origin = Some(Origin { operation: records[0].stamp(), replay: None });
        Op::Write { lba: Lba(counter % 4096), data: vec![data.clone()], records, fua: false, origin }
    };
    let mut random = Random::new(9);
    for batch in 0..50 {
        let mut counters: Vec<u64> = (0..32).map(|at| 1 + batch * 32 + at).collect();
        for at in (1..32).rev() {
            counters.swap(at, random.below(at as u64 + 1) as usize);
        }
        for counter in counters {
            store.submit(Token(counter), write(counter));
        }
        let mut done = Vec::new();
        while done.len() < 32 {
            store.poll_completions(&mut done);
        }
        assert!(done.iter().all(|completion| completion.result.is_ok()));
    }
    let stats = store.stats();
    assert!(stats.appended_bytes < stats.written_bytes * 5 / 4, "{stats:?}");
    assert!(matches!(store.execute(write(5)), Ok(Outcome::Written { repeated: 1, .. })));
}

/// A volume, and how many requests are in flight.
struct Full {
    kind: UnitKind,
    block_bytes: u64,
    blocks: u64,
    segment_bytes: u32,
    depth: u64,
}

impl Full {
    /// Fills the volume in no order, so that no two blocks share an entry, and overwrites it for long.
    fn overwrite(&self, segments: Option<u32>) {
        let Full { kind, block_bytes, blocks, segment_bytes, depth } = *self;
        let geometry = Geometry { block_size: BlockSize::new(block_bytes).unwrap(), blocks };
        let options =
            CreateOptions { segment_bytes, segments, ..CreateOptions::new(VolumeId([1; 16]), geometry, kind) };
        let mut store = Store::open_in_memory(&options, &OpenOptions::default(), Arc::new(|| {})).unwrap();
        let data = Buffer::copy_from(&vec![7; block_bytes as usize]);
        if kind.is_sealed() {
            let hole = HoleRecord { start: Lba(0), count: blocks, record: record(1, None) };
            store.execute(Op::Hole { holes: vec![hole], origin: None }).unwrap();
        }
        let (mut random, mut done, mut sent) = (Random::new(blocks), Vec::new(), 0);
        while sent < 3 * blocks {
            for _ in 0..depth {
                let lba = match sent {
                    // 2731 is a prime, and divides no count of blocks.
                    _ if sent < blocks => sent * 2731 % blocks,
                    _ => random.below(blocks),
                };
                let records = if kind.is_sealed() { vec![record(10 + sent, Some(&data))] } else { Vec::new() };
                store.submit(
                    Token(sent),
                    Op::Write { lba: Lba(lba), data: vec![data.clone()], records, fua: false, origin: None },
                );
                sent += 1;
            }
            while store.ops_in_flight() > 0 {
                store.poll_completions(&mut done);
            }
            for answer in done.drain(..) {
                assert!(
                    answer.result.is_ok(),
                    "{:?} after {sent}: {:?}, {:?}",
                    answer.result,
                    store.info(),
                    store.stats()
                );
            }
        }
        // The largest write finds its room, too.
        if segments.is_none() && !kind.is_sealed() {
            let bytes = (Op::WRITE_BYTES_MAX as u64).min(blocks * block_bytes);
            for _ in 0..2 {
                store.execute(plain(0, Buffer::copy_from(&vec![8; bytes as usize]))).unwrap();
            }
        }
        if segments.is_none() {
            // Now without the room for it, which small volumes have in plenty.
            let bytes = (Op::WRITE_BYTES_MAX as u64).min(blocks * block_bytes);
            self.overwrite(Some(store.info().segments - (bytes / u64::from(segment_bytes)) as u32));
        }
    }
}

/// However small the segments, however scattered what lives, sealed with the largest records or plain: a full volume can be
/// overwritten for ever. What is set aside is not part of its size, so that full never means stuck.
#[test]
fn overwriting_a_full_volume_always_finds_space() {
    let custody = Custody::Target;
    let largest = UnitKind::Sealed { domain: SealingDomain([9; 16]), custody };
    assert_eq!(largest.record_bytes(), 96);
    for kind in [UnitKind::Plain, largest] {
        for (block_bytes, segment_bytes, blocks) in
            [(512, 64 << 10, 2048), (4096, 64 << 10, 384), (4096, 256 << 10, 1024), (4096, 1 << 20, 4096)]
        {
            for depth in [1, 32] {
                Full { kind, block_bytes, blocks, segment_bytes, depth }.overwrite(None);
            }
        }
    }
}

/// A checkpoint of a volume that was discarded block by block is large, and takes its room when there is plenty. When the volume is full
/// again the checkpoint goes before a write is told that there is no space.
#[test]
fn a_checkpoint_gives_way_to_data() {
    const SEGMENTS: u32 = 26;
    let geometry = Geometry { block_size: BlockSize::new(512).unwrap(), blocks: 2048 };
    let create = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
    let create = CreateOptions { segment_bytes: 64 << 10, segments: Some(SEGMENTS), ..create };
    let options = OpenOptions { checkpoint_log_bytes: Some(1), ..OpenOptions::default() };
    let mut store = Store::open_in_memory(&create, &options, Arc::new(|| {})).unwrap();
    let mut done = Vec::new();
    let mut all = |store: &mut Store, op: &dyn Fn(u64) -> Op| {
        for at in 0..geometry.blocks {
            store.submit(Token(at), op(at * 2731 % geometry.blocks));
            if at % 8 == 7 {
                while store.ops_in_flight() > 0 {
                    store.poll_completions(&mut done);
                }
                for answer in done.drain(..) {
                    assert!(answer.result.is_ok(), "{:?} after {at}: {:?}", answer.result, store.stats());
                }
            }
        }
    };
    let data = Buffer::copy_from(&[7; 512]);
    let write = |lba| plain(lba, data.clone());
    all(&mut store, &write);
    // Every other block: holes that touch become one.
    all(&mut store, &|lba| Op::Discard { lba: Lba(lba / 2 * 2), count: 1 });
    let discarded = store.stats();
    assert!(discarded.holes > 1000 && discarded.checkpoints > 0, "{discarded:?}");
    for _ in 0..3 {
        all(&mut store, &write);
    }
    assert_eq!(store.stats().blocks_mapped, geometry.blocks);
}
