//! Proves that images which no store wrote, but whose checksums fit, are opened or refused, and never more than that.

use std::sync::{Arc, Mutex};

use strongroom_block::{BlockSize, Geometry, VolumeId};

use crate::backend::{Backend, Io, IoDone};
use crate::error::StoreError;
use crate::layout::{RECORD_BLOCK, SUPERBLOCK_AT};
use crate::options::{CreateOptions, OpenOptions, UnitKind};
use crate::superblock::Superblock;
use crate::unit::{LogAddress, NO_SEGMENT, UnitBuilder, UnitHeader, flag};
use crate::{CheckReport, MemoryBackend, RepairOptions, RepairPlan, Store, Survey, Waker};

/// A medium in memory that outlives the store, and may be too small.
#[derive(Clone, Default)]
struct OutlivingMedium(Arc<Mutex<MemoryBackend>>, Option<u64>);

impl Backend for OutlivingMedium {
    fn set_waker(&mut self, _waker: Waker) {}
    fn size_bytes(&mut self) -> std::io::Result<Option<u64>> {
        Ok(self.1)
    }
    fn submit(&mut self, token: u64, io: Io) {
        self.0.lock().unwrap().submit(token, io);
    }
    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        self.0.lock().unwrap().poll(done)
    }
    fn wait(&mut self) {}
}

fn made() -> (OutlivingMedium, Superblock) {
    let backend = OutlivingMedium::default();
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 64 };
    let options =
        CreateOptions { segment_bytes: 64 << 10, ..CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain) };
    Store::create_on(Box::new(backend.clone()), &options).unwrap();
    let mut copy = [0; RECORD_BLOCK];
    backend.0.lock().unwrap().read_at(SUPERBLOCK_AT[1], &mut copy);
    (backend, Superblock::decode(&copy, 1).unwrap())
}

fn open(backend: &OutlivingMedium) -> Result<(), StoreError> {
    Store::open_on(Box::new(backend.clone()), &OpenOptions::default(), Arc::new(|| {})).map(drop)
}

/// Of a table that an opening begins with, alone.
fn table_header(superblock: &Superblock) -> UnitHeader {
    UnitHeader {
        record_blocks: 0,
        generation: 1,
        lsn: 1,
        prev_lsn: 0,
        open_id: superblock.open_id,
        open_epoch: superblock.open_epoch,
        durable_lsn: 0,
        next_sequence: 2,
        data_bytes: 0,
        entries: 0,
        flags: flag::FIRST | flag::LAST | flag::TABLE,
        prev_segment: NO_SEGMENT,
        prev_end: 0,
        next_segment: NO_SEGMENT,
    }
}

/// Puts a table and superblocks that name it in place of everything.
fn open_with(
    change: impl FnOnce(&mut Superblock, &mut UnitHeader),
    rows: &[(u32, u32, u64)],
) -> Result<(), StoreError> {
    let (backend, mut superblock) = made();
    superblock.durable_lsn = 1;
    let mut header = table_header(&superblock);
    change(&mut superblock, &mut header);
    let mut unit = UnitBuilder::new(superblock.layout(), 16);
    let row = |&(segment, end, generation): &(u32, u32, u64)| {
        [&segment.to_be_bytes()[..], &end.to_be_bytes(), &generation.to_be_bytes()].concat()
    };
    unit.push_table(&rows.iter().flat_map(row).collect::<Vec<u8>>());
    let place = LogAddress { store_id: superblock.store_id, segment: 0, block: 0 };
    let (_, table) = unit.finish(header, place);
    let mut medium = backend.0.lock().unwrap();
    medium.discard(superblock.layout().segment_at(0), 64 << 10);
    medium.write_at(superblock.layout().segment_at(0), &table);
    for (copy, at) in SUPERBLOCK_AT.into_iter().enumerate() {
        medium.write_at(at, &superblock.encode(copy));
    }
    drop(medium);
    open(&backend)
}

#[test]
fn a_table_alone_is_a_store() {
    open_with(|_, _| {}, &[(0, 0, 1)]).unwrap();
}

/// What an opening left that was cut off before its superblock was durable, with another unit behind its table.
fn open_behind_a_newer_table(behind: impl FnOnce(&mut UnitHeader)) -> Result<(), StoreError> {
    let (backend, superblock) = made();
    let (layout, segment) = (superblock.layout(), 1);
    let table = UnitHeader {
        generation: 2,
        lsn: superblock.table_lsn + 1,
        open_id: superblock.open_id + 2,
        open_epoch: superblock.open_epoch + 2,
        ..table_header(&superblock)
    };
    let mut next = UnitHeader { lsn: table.lsn + 1, prev_lsn: table.lsn, flags: flag::FIRST | flag::LAST, ..table };
    behind(&mut next);
    let mut builder = UnitBuilder::new(layout, 16);
    builder.push_table(&[]);
    let place = |block| LogAddress { store_id: superblock.store_id, segment, block };
    let (table, bytes) = builder.finish(table, place(0));
    backend.0.lock().unwrap().write_at(layout.block_at(segment, 0), &bytes);
    let (_, bytes) = UnitBuilder::filler(layout, 1).finish(next, place(table.blocks()));
    backend.0.lock().unwrap().write_at(layout.block_at(segment, table.blocks()), &bytes);
    open(&backend)
}

#[test]
fn an_opening_that_did_more_than_begin_needs_its_superblock() {
    let refused = open_behind_a_newer_table(|_| {}).unwrap_err();
    assert!(refused.to_string().contains("the superblock of the newest opening"), "{refused}");
}

/// Units go side by side: of the opening before, the second one of a segment may be on the medium without the first. Nobody saw
/// the segment's generation then, and the next opening gives it, and the number of the first unit, once more.
#[test]
fn what_an_older_opening_left_behind_a_newer_table_is_not_taken_for_its_next_unit() {
    open_behind_a_newer_table(|unit| (unit.open_id, unit.open_epoch) = (unit.open_id - 1, unit.open_epoch - 1))
        .unwrap();
}

#[test]
fn counters_at_their_end_are_refused() {
    let end = u64::MAX;
    let cases: [fn(&mut Superblock, &mut UnitHeader); 5] = [
        |superblock, header| (superblock.table_lsn, header.lsn) = (u64::MAX, u64::MAX),
        |_, header| header.next_sequence = u64::MAX - 5,
        |_, header| header.generation = u64::MAX,
        |superblock, header| (superblock.open_epoch, header.open_epoch) = (u64::MAX, u64::MAX),
        |superblock, _| superblock.serial = u64::MAX,
    ];
    for change in cases {
        assert!(open_with(change, &[(0, 0, 1)]).is_err());
    }
    assert!(open_with(|_, _| {}, &[(0, 0, 1), (1, 1, end)]).is_err());
}

#[test]
fn a_table_that_names_a_segment_twice_is_refused() {
    let refused = open_with(|_, _| {}, &[(0, 0, 1), (0, 0, 1)]);
    assert!(matches!(refused, Err(StoreError::Damaged { .. })));
    assert!(matches!(open_with(|_, _| {}, &[(0, 1, 1); 200]), Err(StoreError::Damaged { .. })));
}

#[test]
fn a_log_larger_than_its_medium_is_refused() {
    let (mut backend, superblock) = made();
    let needed = superblock.layout().segment_at(superblock.segments);
    backend.1 = Some(needed - 1);
    assert!(matches!(open(&backend), Err(StoreError::Damaged { .. })));
    backend.1 = Some(needed);
    open(&backend).unwrap();
}

/// Neither a check nor a repair takes memory or time by what a superblock claims; what to do is said.
#[test]
fn attack_store_claim_more_segments_than_the_medium_has() {
    let (mut backend, superblock) = made();
    backend.1 = Some(superblock.layout().segment_at(superblock.segments));
    // As many as can be addressed.
    let claims = Superblock { segments: u32::MAX, serial: superblock.serial + 1, ..superblock };
    backend.0.lock().unwrap().write_at(SUPERBLOCK_AT[0], &claims.encode(0));
    let repair = RepairPlan::carry_out_on(
        Box::new(backend.clone()),
        RepairOptions::default(),
        &mut |_, _| Ok(()),
        &mut |_, _| (),
    );
    for refused in
        [open(&backend).unwrap_err(), CheckReport::of_backend(&mut backend).unwrap_err(), repair.unwrap_err()]
    {
        let said = refused.to_string();
        assert!(matches!(refused, StoreError::Damaged { .. }) && said.contains("truncate -s 2814749"), "{said}");
    }
    assert!(Survey::of_backend(&mut backend).contents.is_err());
}
