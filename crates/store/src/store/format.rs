//! Formatting: the superblock and the first segment of a new store.

use strongroom_block::Buffer;

use crate::backend::{Backend, Io, blocking};
use crate::catalogue::Catalogue;
use crate::error::StoreError;
use crate::head::Head;
use crate::holes::{Hole, ItemPlace};
use crate::layout::{RECORD_BLOCK, SEGMENT_BLOCKS_MIN, SUPERBLOCK_AT, segments_least, segments_needed};
use crate::map::BlockMap;
use crate::operations::Operations;
use crate::options::{CreateOptions, StoreId, VolumeInfo};
use crate::random::random;
use crate::recover::{CheckpointExtent, Recovered};
use crate::segments::Segments;
use crate::superblock::{Superblock, segment_bytes_valid};
use crate::unit::{LogAddress, NO_SEGMENT, TABLE_ROW, UnitBuilder, UnitHeader, flag};

/// Writes a new store: its first segment, then both superblocks.
pub(super) fn format(backend: &mut dyn Backend, mut superblock: Superblock) -> Result<VolumeInfo, StoreError> {
    let layout = superblock.layout();
    let buffers = first_segment(&superblock).buffers;
    let write = |offset, buffers| Io::Write { offset, buffers };
    let action = "making the store";
    // Like every segment that is opened: so it has its host space when it is free again.
    let whole = Io::Allocate { offset: layout.segment_at(0), len: u64::from(layout.segment_bytes) };
    blocking(backend, whole).map_err(StoreError::io(action))?;
    blocking(backend, write(layout.segment_at(0), buffers)).map_err(StoreError::io(action))?;
    blocking(backend, Io::Sync).map_err(StoreError::io(action))?;
    for (copy, at) in SUPERBLOCK_AT.into_iter().enumerate() {
        superblock.serial += 1;
        let buffers = vec![superblock.encode(copy).freeze()];
        blocking(backend, write(at, buffers)).map_err(StoreError::io(action))?;
        blocking(backend, Io::Sync).map_err(StoreError::io(action))?;
    }
    Ok(superblock.info())
}

/// What a new store has in its first segment, 0.
pub(super) struct FirstSegment {
    pub(super) buffers: Vec<Buffer>,
    /// In 4 KiB blocks.
    end: u32,
    last_lsn: u64,
    /// A plain volume's: one over all of it.
    hole: Option<Hole>,
}

/// The first epoch is an opening that only made the volume: it used the sequence and the generation before the superblock's.
pub(super) fn first_segment(superblock: &Superblock) -> FirstSegment {
    let layout = superblock.layout();
    let place = LogAddress { store_id: superblock.store_id, segment: 0, block: 0 };
    let mut unit = UnitBuilder::new(layout, layout.segment_blocks());
    let mut row = [0; TABLE_ROW];
    row[8..].copy_from_slice(&(superblock.next_generation - 1).to_be_bytes());
    unit.push_table(&row);
    let flags = flag::FIRST | flag::LAST | flag::TABLE;
    let (header, table) = unit.finish(first_header(1, flags, superblock), place);
    let mut first =
        FirstSegment { buffers: vec![table.freeze()], end: header.blocks(), last_lsn: header.lsn, hole: None };
    if !superblock.kind.is_sealed() {
        let mut unit = UnitBuilder::new(layout, layout.segment_blocks());
        let (count, sequence) = (superblock.geometry.blocks, superblock.sequence_limit - 1);
        let item_at = unit.push_hole((0, sequence), 0, count, &[], false).expect("an empty unit has room");
        let place = LogAddress { block: first.end, ..place };
        let (header, records) = unit.finish(first_header(2, flag::FIRST | flag::LAST, superblock), place);
        let item_at = first.end * RECORD_BLOCK as u32 + item_at;
        first.hole = Some(Hole::new(0, count, sequence, None, ItemPlace { segment: 0, item_at }));
        first.buffers.push(records.freeze());
        (first.end, first.last_lsn) = (first.end + header.blocks(), header.lsn);
    }
    first
}

/// What recovery would find of a new store.
pub(super) fn fresh(superblock: Superblock, superblock_copy: usize, open_id: u64) -> Recovered {
    let first = first_segment(&superblock);
    let mut segments = Segments::new(superblock.layout());
    segments.adopt([(0, superblock.next_generation - 1, first.end)].into_iter());
    let mut map = BlockMap::new(Catalogue::new(superblock.volume_id));
    if let Some(hole) = first.hole {
        let node = map.catalogue.head(0).expect("the volume has its branch");
        segments.add_live(0, hole.live_bytes());
        map.table_mut(node).holes.insert(hole, |_, _, _| false, |_| ());
    }
    let head = Head {
        segment: NO_SEGMENT,
        block: 0,
        prev_segment: NO_SEGMENT,
        prev_end: 0,
        next_lsn: first.last_lsn + 1,
        last_lsn: 0,
        completed_lsn: first.last_lsn,
        durable_lsn: first.last_lsn,
        next_sequence: superblock.sequence_limit,
        next_generation: superblock.next_generation,
        open_id,
        open_epoch: superblock.open_epoch + 1,
    };
    let (operations, checkpoint) = (Operations::new(superblock.segment_bytes), CheckpointExtent::default());
    let (fillers, notes) = (Vec::new(), Vec::new());
    Recovered { superblock, superblock_copy, map, segments, operations, head, checkpoint, fillers, notes }
}

/// The superblock of a new store.
pub(super) fn plan(options: &CreateOptions) -> Result<Superblock, StoreError> {
    let bad = |what: String| Err(StoreError::Options(what));
    if !segment_bytes_valid(options.segment_bytes) {
        return bad("a segment is a power of two from 64 KiB to 16 MiB".to_owned());
    }
    if options.segment_bytes / options.geometry.block_size.bytes() < SEGMENT_BLOCKS_MIN {
        return bad("a segment must hold at least 16 blocks; choose larger segments or smaller blocks".to_owned());
    }
    if options.geometry.blocks == 0 {
        return bad("the volume has no blocks".to_owned());
    }
    if options.retention_percent > 100 {
        return bad("at most 100% can be kept for older versions".to_owned());
    }
    let spare = options.spare_percent;
    if !(CreateOptions::SPARE_PERCENT_DEFAULT..=CreateOptions::SPARE_PERCENT_MAX).contains(&spare) {
        return bad(format!(
            "spare space is {} to {} percent of what is stored",
            CreateOptions::SPARE_PERCENT_DEFAULT,
            CreateOptions::SPARE_PERCENT_MAX
        ));
    }
    let retained = retained_blocks(options);
    let segments = planned_segments(options, retained)?;
    let store_id = match options.store_id {
        Some(id) => id,
        None => StoreId(random()?),
    };
    Ok(Superblock {
        serial: 0,
        store_id,
        volume_id: options.volume_id,
        kind: options.kind,
        geometry: options.geometry,
        segment_bytes: options.segment_bytes,
        segments,
        retention_blocks: retained,
        open_epoch: 0,
        open_id: 0,
        table_segment: 0,
        table_block: 0,
        table_lsn: 1,
        second_table: None,
        sequence_limit: 2,
        next_generation: 2,
        durable_lsn: if options.kind.is_sealed() { 1 } else { 2 },
        clean: true,
        checkpoint: None,
        erasing: false,
        incarnation: 0,
        bases_from: Some(0),
    })
}

/// Upper bound on retained versions, in blocks.
fn retained_blocks(options: &CreateOptions) -> u64 {
    let percent = u128::from(options.retention_percent);
    let retained = (u128::from(options.geometry.blocks) * percent).div_ceil(100) as u64;
    if options.kind.is_sealed() { retained } else { 0 }
}

fn planned_segments(options: &CreateOptions, retained: u64) -> Result<u32, StoreError> {
    let bad = |what: String| Err(StoreError::Options(what));
    let needed =
        segments_needed(options.geometry, options.kind, options.segment_bytes, retained, options.spare_percent);
    let Some(segments) = needed else {
        return bad("the volume is too large for one store (about 300 TiB)".to_owned());
    };
    let segments = options.segments.unwrap_or(segments);
    let least = segments_least(options.geometry, options.segment_bytes, segments);
    if u64::from(segments) < least {
        return bad(format!(
            "{segments} segments are too few for the volume and what is set aside: take {least} or more, or leave the \
             count out"
        ));
    }
    Ok(segments)
}

fn first_header(lsn: u64, flags: u32, superblock: &Superblock) -> UnitHeader {
    UnitHeader {
        record_blocks: 0,
        generation: superblock.next_generation - 1,
        lsn,
        prev_lsn: lsn - 1,
        open_id: superblock.open_id,
        open_epoch: superblock.open_epoch,
        durable_lsn: 0,
        next_sequence: superblock.sequence_limit,
        data_bytes: 0,
        entries: 0,
        flags,
        prev_segment: NO_SEGMENT,
        prev_end: 0,
        next_segment: NO_SEGMENT,
    }
}
