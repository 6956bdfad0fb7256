//! Proves what opening does with a medium that cannot be read everywhere, and with more old versions than it may keep: it needs
//! what counts and is in no checkpoint, says which segment it misses, and pins no more than the snapshots need.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use strongroom_block::{
    BlockSize, Buffer, Custody, Geometry, HoleRecord, Lba, SealingDomain, VolumeId, keyless_checksum,
};
use strongroom_store::backend::{Backend, Io, IoDone};
use strongroom_store::{
    CheckReport, CreateOptions, Extent, MemoryBackend, Op, OpError, OpenOptions, Outcome, RepairOptions, RepairPlan,
    Store, StoreError, Survey, UnitKind, Waker,
};
use strongroom_testing::record_for;

/// A medium with places that cannot be read until they are written again.
#[derive(Clone, Default)]
struct Flawed {
    memory: Arc<Mutex<MemoryBackend>>,
    flaws: Arc<Mutex<BTreeSet<u64>>>,
    failed: Arc<Mutex<Vec<IoDone>>>,
}

impl Backend for Flawed {
    fn set_waker(&mut self, _waker: Waker) {}
    fn submit(&mut self, token: u64, io: Io) {
        let mut flaws = self.flaws.lock().unwrap();
        match &io {
            Io::Read { offset, buffer } if flaws.range(*offset..*offset + buffer.len() as u64).next().is_some() => {
                let result = Err(std::io::Error::other("a bad sector"));
                return self.failed.lock().unwrap().push(IoDone { token, result });
            }
            Io::Write { offset, buffers } => {
                let end = offset + buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
                flaws.retain(|flaw| !(*offset..end).contains(flaw));
            }
            _ => {}
        }
        self.memory.lock().unwrap().submit(token, io);
    }
    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        let failed = std::mem::take(&mut *self.failed.lock().unwrap());
        let count = failed.len() + self.memory.lock().unwrap().poll(done);
        done.extend(failed);
        count
    }
    fn wait(&mut self) {}
}

fn made(options: &CreateOptions) -> Flawed {
    let medium = Flawed::default();
    Store::create_on(Box::new(medium.clone()), options).unwrap();
    medium
}

fn open(medium: &Flawed, options: &OpenOptions) -> Result<Store, StoreError> {
    Store::open_on(Box::new(medium.clone()), options, Arc::new(|| {}))
}

fn block(lba: u64) -> Buffer {
    Buffer::copy_from(&[lba as u8 | 1; 4096])
}

#[test]
fn a_segment_that_cannot_be_read_matters_only_if_it_is_needed() {
    const SEGMENT: u32 = 64 << 10;
    const BLOCKS: u64 = 512;
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
    let options =
        CreateOptions { segment_bytes: SEGMENT, ..CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain) };
    let (mut opened, mut with_losses, mut refused) = (0, 0, 0);
    for segment in 0.. {
        let medium = made(&options);
        let mut store = open(&medium, &OpenOptions::default()).unwrap();
        if segment == store.info().segments {
            break;
        }
        for lba in 0..BLOCKS {
            let write =
                Op::Write { lba: Lba(lba), data: vec![block(lba)], records: Vec::new(), fua: false, origin: None };
            store.execute(write).unwrap();
        }
        store.execute(Op::Flush).unwrap();
        assert!(store.stats().checkpoints > 0);
        drop(store);

        medium.flaws.lock().unwrap().insert((1 << 20) + u64::from(segment) * u64::from(SEGMENT));
        let mut store = match open(&medium, &OpenOptions::default()) {
            Ok(store) => store,
            Err(error) => {
                assert!(matches!(error, StoreError::Unreadable { segment: of, .. } if of == segment), "{error}");
                let plan = RepairPlan::carry_out_on(
                    Box::new(medium),
                    RepairOptions::default(),
                    &mut |_, _| Ok(()),
                    &mut |_, _| (),
                )
                .unwrap();
                let loses = plan.steps[0].loses.join("; ");
                assert!(loses.contains(&format!("segment {segment} ")), "segment {segment}: {loses}");
                refused += 1;
                continue;
            }
        };
        opened += 1;
        let mut losses = 0;
        for lba in 0..BLOCKS {
            match store.execute(Op::Read { lba: Lba(lba), count: 1 }) {
                Ok(Outcome::Read(extents)) => {
                    let [Extent::Blocks { data, .. }] = &extents[..] else { panic!("block {lba} was written") };
                    assert_eq!(data[..], block(lba)[..]);
                }
                Err(OpError::Medium { .. }) => losses += 1,
                other => panic!("block {lba}: {other:?}"),
            }
        }
        drop(store);
        let report = CheckReport::of_backend(&mut medium.clone()).unwrap();
        assert!(losses == 0 || !report.is_sound(), "the check names what segment {segment} lost");
        with_losses += u32::from(losses > 0);
    }
    assert!(opened > 0 && with_losses > 0 && refused > 0, "{opened} opened, {with_losses} with losses, {refused} not");
}

/// What is needed can be read, and nothing that is free: there is nowhere to go on, which is the medium's fault and said so.
#[test]
fn a_medium_whose_free_segments_cannot_be_read_is_named() {
    const SEGMENT: u64 = 64 << 10;
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 64 };
    let options = CreateOptions {
        segment_bytes: SEGMENT as u32,
        ..CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain)
    };
    // Never opened: nothing says yet where the log would go on.
    let medium = made(&options);
    let segments = Survey::of_backend(&mut medium.clone()).info().expect("it was made").segments;
    medium.flaws.lock().unwrap().extend((1..u64::from(segments)).map(|segment| (1 << 20) + segment * SEGMENT));
    let error = open(&medium, &OpenOptions::default()).err().expect("there is nowhere to write");
    assert!(matches!(error, StoreError::FreeUnreadable { unreadable } if unreadable == segments - 1), "{error}");
    assert!(error.to_string().contains("Check the medium"), "{error}");
    // One that can be read is enough.
    medium.flaws.lock().unwrap().pop_last();
    let mut store = open(&medium, &OpenOptions::default()).unwrap();
    assert!(matches!(store.execute(Op::Read { lba: Lba(5), count: 1 }), Ok(Outcome::Read(_))));
}

/// While the log is read, versions are looked at before what came after them is known.
#[test]
fn what_was_pinned_while_loading_is_looked_at_again() {
    let domain = SealingDomain([9; 16]);
    let kind = UnitKind::Sealed { domain, custody: Custody::KeyFile };
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 1 << 16 };
    let options = CreateOptions { retention_percent: 1, ..CreateOptions::new(VolumeId([1; 16]), geometry, kind) };
    let medium = made(&options);
    let whole_log = OpenOptions { checkpoint_log_bytes: Some(u64::MAX), ..OpenOptions::default() };
    let mut store = open(&medium, &whole_log).unwrap();
    let hole = HoleRecord { start: Lba(0), count: geometry.blocks, record: record_for(0, 0, None) };
    store.execute(Op::Hole { holes: vec![hole], origin: None }).unwrap();
    // A thousand blocks twice; this many versions of twenty that those before have to go; the thousand once more.
    let early = (0..1000).chain(0..1000);
    let many = (0..6000).map(|at| if at % 100 == 0 { 10_000 + at } else { 2000 + at % 20 });
    for (op, lba) in (1..).zip(early.chain(many).chain(0..1000)) {
        let (data, records) = (block(lba), vec![record_for(op, 0, Some(&block(lba)))]);
        assert_eq!(records[0].checksum(), keyless_checksum(&data));
        store.execute(Op::Write { lba: Lba(lba), data: vec![data], records, fua: false, origin: None }).unwrap();
    }
    store.execute(Op::SnapshotCreate { name: "kept".to_owned() }).unwrap();
    drop(store);
    let stats = open(&medium, &whole_log).unwrap().stats();
    assert!(!stats.opened_from_checkpoint);
    assert_eq!(stats.versions_retained, 656, "the budget");
    // Of each of the thousand and the twenty the newest old one.
    assert!(stats.versions_pinned <= 1000 + 20, "{} versions are pinned", stats.versions_pinned);
}
