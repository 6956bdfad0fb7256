//! Proves that damage to stored bytes is never served: flipped bits, zeroed blocks, blocks put elsewhere, old segments put
//! back. After any change of the log, a read answers with the newest data or with an error, or the store does not open.

use std::sync::Arc;

use strongroom_block::{BlockSize, Buffer, Geometry, HoleRecord, Lba, VolumeId};
use strongroom_block::{Custody, SealingDomain};
use strongroom_store::{
    CheckReport, CreateOptions, Extent, Op, OpError, OpenOptions, Outcome, Store, StoreError, UnitKind,
};
use strongroom_testing::{Random, SimDisk, block_bytes, record_for};

const BLOCKS: u64 = 48;
const SEGMENT: u64 = 64 << 10;
const LOG_START: u64 = 1 << 20;

/// A store that was used and closed, its bytes, and what each block must hold.
struct Sample {
    image: Vec<u8>,
    newest: Vec<u64>,
    kind: UnitKind,
}

fn open(disk: &SimDisk) -> Result<Store, StoreError> {
    let options = OpenOptions { open_id: Some(5), ..OpenOptions::default() };
    Store::open_on(Box::new(disk.backend(true)), &options, Arc::new(|| {}))
}

/// How the last use of a sample ended, after a flush.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    /// Killed, with one more write on its way: what it wrote tells that the flush went well.
    Killed,
    /// Killed some time after it had nothing to do.
    KilledWhenIdle,
}

fn sample(kind: UnitKind, end: End) -> Sample {
    let disk = SimDisk::new(1);
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
    let options =
        CreateOptions { segment_bytes: SEGMENT as u32, ..CreateOptions::new(VolumeId([1; 16]), geometry, kind) };
    Store::create_on(Box::new(disk.backend(true)), &options).unwrap();
    let mut random = Random::new(2);
    let mut newest = vec![0; BLOCKS as usize];
    let (mut op, mut segments) = (1, 0);
    for opening in 0..3 {
        let mut store = open(&disk).unwrap();
        segments = store.info().segments;
        if opening == 0 && kind.is_sealed() {
            let hole = HoleRecord { start: Lba(0), count: BLOCKS, record: record_for(0, 0, None) };
            store.execute(Op::Hole { holes: vec![hole], origin: None }).unwrap();
        }
        for _ in 0..60 {
            let lba = random.below(BLOCKS);
            let bytes = block_bytes(op, lba, BlockSize::DEFAULT);
            let records = if kind.is_sealed() { vec![record_for(op, 0, Some(&bytes))] } else { Vec::new() };
            store
                .execute(Op::Write {
                    lba: Lba(lba),
                    data: vec![Buffer::copy_from(&bytes)],
                    records,
                    fua: op % 5 == 0,
                    origin: None,
                })
                .unwrap();
            newest[lba as usize] = op;
            op += 1;
        }
        store.execute(Op::Flush).unwrap();
        match end {
            _ if opening < 2 => store.close().unwrap(),
            End::Closed => store.close().unwrap(),
            End::KilledWhenIdle => {
                store.idle();
                for _ in 0..5 {
                    store.poll_completions(&mut Vec::new());
                }
            }
            End::Killed => {
                let bytes = block_bytes(op, 0, BlockSize::DEFAULT);
                let records = if kind.is_sealed() { vec![record_for(op, 0, Some(&bytes))] } else { Vec::new() };
                let data = vec![Buffer::copy_from(&bytes)];
                store.execute(Op::Write { lba: Lba(0), data, records, fua: false, origin: None }).unwrap();
            }
        }
    }
    let mut image = vec![0; (LOG_START + u64::from(segments) * SEGMENT) as usize];
    disk.read(0, &mut image);
    Sample { image, newest, kind }
}

impl Sample {
    /// Puts the damaged bytes on a disk and checks everything that the store then says. Returns how it went.
    fn check(&self, image: &[u8], what: &str) -> &'static str {
        let disk = SimDisk::new(3);
        disk.overwrite(0, image);
        let report = CheckReport::of_backend(&mut disk.backend(true));
        let mut store = match open(&disk) {
            Ok(store) => store,
            Err(StoreError::Damaged { .. } | StoreError::Superblock(_) | StoreError::Version { .. }) => {
                let named = report.is_ok_and(|report| report.unopenable.is_none());
                assert!(!named, "{what}: it does not open, and the check does not say so");
                return "refused";
            }
            Err(other) => panic!("{what}: {other}"),
        };
        let mut bad = Vec::new();
        for lba in 0..BLOCKS {
            match store.execute(Op::Read { lba: Lba(lba), count: 1 }) {
                Ok(Outcome::Read(extents)) => self.check_block(lba, &extents[0], what),
                Err(OpError::Medium { lba: named, .. }) => {
                    assert_eq!(named, Lba(lba));
                    bad.push(named);
                }
                other => panic!("{what}: block {lba}: {other:?}"),
            }
        }
        // The offline check names exactly the blocks that cannot be read.
        let report = report.unwrap_or_else(|error| panic!("{what}: it opens, but the check says {error}"));
        assert_eq!(report.bad_blocks, bad, "{what}");
        if bad.is_empty() { "unharmed" } else { "medium errors" }
    }

    fn check_block(&self, lba: u64, extent: &Extent, what: &str) {
        let newest = self.newest[lba as usize];
        match extent {
            // Block 0 may have been written once more, unflushed.
            Extent::Blocks { data, .. } => {
                let found = u64::from_be_bytes(data[..8].try_into().unwrap());
                assert!(found == newest || lba == 0 && found > newest, "{what}: block {lba}: {found}, not {newest}");
                assert!(data[..] == block_bytes(found, lba, BlockSize::DEFAULT), "{what}: block {lba} is wrong");
            }
            Extent::Hole { hole, .. } => {
                assert_eq!(newest, 0, "{what}: block {lba} became a hole");
                assert_eq!(hole.is_some(), self.kind.is_sealed());
            }
        }
    }
}

fn samples() -> Vec<Sample> {
    let sealed = UnitKind::Sealed { domain: SealingDomain([9; 16]), custody: Custody::KeyFile };
    let ends = [(UnitKind::Plain, End::Closed), (sealed, End::KilledWhenIdle), (sealed, End::Killed)];
    ends.into_iter().map(|(kind, end)| sample(kind, end)).collect()
}

/// Places worth damaging: everything that is not zeros, by 4 KiB.
fn used_blocks(image: &[u8]) -> Vec<usize> {
    (0..image.len() / 4096).filter(|at| image[at * 4096..(at + 1) * 4096].iter().any(|&byte| byte != 0)).collect()
}

#[test]
fn a_flipped_bit_is_never_served() {
    let mut outcomes = std::collections::BTreeMap::new();
    for (number, sample) in samples().iter().enumerate() {
        let mut random = Random::new(7);
        for at in used_blocks(&sample.image) {
            for _ in 0..3 {
                let mut image = sample.image.clone();
                let byte = at * 4096 + random.below(4096) as usize;
                image[byte] ^= 1 << random.below(8);
                *outcomes.entry(sample.check(&image, &format!("sample {number}, byte {byte}"))).or_insert(0) += 1;
            }
        }
    }
    assert_eq!(outcomes.len(), 3, "every way out is taken: {outcomes:?}");
}

#[test]
fn a_zeroed_block_is_never_served() {
    for (number, sample) in samples().iter().enumerate() {
        for at in used_blocks(&sample.image) {
            let mut image = sample.image.clone();
            image[at * 4096..(at + 1) * 4096].fill(0);
            sample.check(&image, &format!("sample {number}, block {at} zeroed"));
        }
    }
}

#[test]
fn a_block_from_elsewhere_is_never_served() {
    for (number, sample) in samples().iter().enumerate() {
        let used = used_blocks(&sample.image);
        let mut random = Random::new(8);
        for &to in &used {
            let from = used[random.below(used.len() as u64) as usize];
            let mut image = sample.image.clone();
            image.copy_within(from * 4096..(from + 1) * 4096, to * 4096);
            sample.check(&image, &format!("sample {number}, block {from} at {to}"));
        }
    }
}

/// Not for the sample that was killed right after a flush: that the flush went well stands only in the segment that was
/// written last, so its loss as a whole cannot be told from a flush that never was.
#[test]
fn a_misplaced_or_lost_segment_is_never_served() {
    for (number, sample) in samples()[..2].iter().enumerate() {
        let segments = (sample.image.len() as u64 - LOG_START) / SEGMENT;
        let range =
            |segment: u64| (LOG_START + segment * SEGMENT) as usize..(LOG_START + (segment + 1) * SEGMENT) as usize;
        for to in 0..segments {
            let mut image = sample.image.clone();
            image[range(to)].fill(0);
            sample.check(&image, &format!("sample {number}, segment {to} lost"));
            let mut image = sample.image.clone();
            image.copy_within(range((to + 1) % segments), range(to).start);
            sample.check(&image, &format!("sample {number}, segment {to} replaced"));
        }
    }
}

#[test]
fn one_superblock_is_enough_and_none_is_refused() {
    for sample in samples() {
        for (lost, outcome) in [(&[0][..], "unharmed"), (&[512 << 10], "unharmed"), (&[0, 512 << 10], "refused")] {
            let mut image = sample.image.clone();
            for &at in lost {
                image[at..at + 4096].fill(0xee);
            }
            assert_eq!(sample.check(&image, "superblocks lost"), outcome);
        }
    }
}

#[test]
fn garbage_is_not_a_store() {
    let mut random = Random::new(9);
    for _ in 0..50 {
        let image: Vec<u8> = (0..1 << 17).flat_map(|_| random.number().to_be_bytes()).collect();
        let disk = SimDisk::new(1);
        disk.overwrite(0, &image);
        assert!(matches!(open(&disk), Err(StoreError::Superblock(_))));
    }
}
