//! Rebuilding: what recovery refuses to open is read without its segment table, from all units that are intact.
//!
//! Only for repair, and only with consent: what a lost unit wrote is not known, so blocks may go back to what they held
//! before. Gaps in segments are closed with fillers (units that say nothing), so that the units behind them count again.

use std::collections::BTreeMap;

use super::load::Loader;
use super::recovered::{CheckpointExtent, Filler, Recovered};
use super::scan::{Found, Scanner};
use super::{Extent, check_size};
use crate::backend::Backend;
use crate::catalogue::{CATALOGUE_BYTES_MAX, Catalogue, Change, Replay};
use crate::error::StoreError;
use crate::head::Head;
use crate::layout::{RECORD_BLOCK, SEQUENCE_MAX};
use crate::segments::Segments;
use crate::superblock::Superblock;
use crate::unit::{Entry, LogAddress, NO_SEGMENT, RECORD_BLOCKS_MAX, UnitBuilder, UnitHeader, flag};

/// What can be made of a log without its table.
pub(crate) struct Rebuilt {
    pub(crate) recovered: Recovered,
    /// What is given up, in words.
    pub(crate) losses: Vec<String>,
}

/// Reads every intact unit and plans a store of them; tells now and then how many bytes of how many it has read. Writes nothing.
///
/// # Errors
/// [`StoreError`] if the medium cannot be read, or is not as large as the log: no repair would make that open, and what
/// is kept in memory per segment would be bounded by nothing.
pub(crate) fn rebuild(
    backend: &mut dyn Backend,
    superblock: &Superblock,
    superblock_copy: usize,
    open_id: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Rebuilt, StoreError> {
    check_size(backend, superblock)?;
    let mut scanner = Scanner::new(backend, superblock);
    let mut losses = Vec::new();
    let units = intact_units(&mut scanner, &mut losses, progress);
    let highest = |of: fn(&UnitHeader) -> u64| units.iter().map(|unit| of(&unit.header)).max().unwrap_or(0);
    let (highest_lsn, highest_epoch) = (highest(|header| header.lsn), highest(|header| header.open_epoch));
    let highest_generation = highest(|header| header.generation);
    let durable = highest(|header| header.durable_lsn).max(superblock.durable_lsn);
    let chained = in_chain(units, &mut losses);
    let kept = whole_groups(&mut scanner, chained, durable, &mut losses)?;
    if durable > kept.last().map_or(0, |unit| unit.header.lsn) {
        losses.push(format!("units of the log up to {durable}, which were synced, and are not there"));
    }

    let (fillers, extents, mut to_load) = closed_segments(&scanner, kept, &mut losses);
    to_load.sort_unstable_by_key(|unit| unit.header.lsn);
    let catalogue = newest_catalogue(&mut scanner, &to_load, &mut losses)?;
    let mut loader = Loader::new(superblock, catalogue);
    for found in &to_load {
        let unit = scanner.unit_again(found)?;
        loader.load(&unit)?;
    }
    let mut segments = Segments::new(superblock.layout());
    segments.adopt(extents.iter().map(|&(segment, extent)| (segment, extent.generation, extent.end)));
    let head = Head {
        segment: NO_SEGMENT,
        block: 0,
        prev_segment: NO_SEGMENT,
        prev_end: 0,
        next_lsn: highest_lsn.max(durable).max(superblock.table_lsn) + 1,
        last_lsn: 0,
        completed_lsn: highest_lsn,
        durable_lsn: highest_lsn,
        next_sequence: superblock.sequence_limit.max(loader.next_sequence),
        next_generation: superblock.next_generation.max(highest_generation + 1),
        open_id,
        open_epoch: highest_epoch.max(superblock.open_epoch) + 1,
    };
    // Which operations were lost is not known: so no attach id is known, and nothing that is sent again is executed twice.
    let (map, operations) = loader.finish(&mut segments);
    // All was read from the log, and what is missing may have been acknowledged.
    let superblock = Superblock { checkpoint: None, clean: false, ..superblock.clone() };
    let checkpoint = CheckpointExtent::default();
    let notes = Vec::new();
    let recovered =
        Recovered { superblock, superblock_copy, map, segments, operations, head, checkpoint, fillers, notes };
    Ok(Rebuilt { recovered, losses })
}

/// Closes the gaps between the units of each segment: fillers, the extents of segments, and the units that count.
fn closed_segments(
    scanner: &Scanner<'_>,
    units: Vec<Found>,
    losses: &mut Vec<String>,
) -> (Vec<Filler>, Vec<(u32, Extent)>, Vec<Found>) {
    let mut by_segment: BTreeMap<u32, Vec<Found>> = BTreeMap::new();
    for unit in units {
        by_segment.entry(unit.segment).or_default().push(unit);
    }
    let (mut fillers, mut extents, mut to_load) = (Vec::new(), Vec::new(), Vec::new());
    for (segment, units) in by_segment {
        let kept = close_gaps(scanner, &units, &mut fillers);
        if kept < units.len() {
            losses
                .push(format!("{} units of segment {segment} behind a gap that cannot be closed", units.len() - kept));
        }
        let Some(last) = units[..kept].last() else { continue };
        let end = last.block + last.header.blocks();
        extents.push((segment, Extent { generation: last.header.generation, end }));
        to_load.extend_from_slice(&units[..kept]);
    }
    (fillers, extents, to_load)
}

/// Every intact unit of the newest generation of each segment, in the order of the log.
fn intact_units(scanner: &mut Scanner<'_>, losses: &mut Vec<String>, progress: &mut dyn FnMut(u64, u64)) -> Vec<Found> {
    let mut all = Vec::new();
    let mut next = 0;
    let layout = scanner.layout;
    let bytes = |segments: u32| u64::from(segments) * u64::from(layout.segment_bytes);
    while let Some(segment) = scanner.next_with_data(next) {
        progress(bytes(segment), bytes(layout.segments));
        next = segment + 1;
        let mut here: Vec<Found> = Vec::new();
        let (mut block, mut unreadable) = (0, None);
        while block < scanner.layout.segment_blocks() {
            match scanner.unit_at(segment, block) {
                Ok(Some(unit)) => {
                    here.push(unit.found());
                    block += unit.header.blocks();
                }
                Ok(None) => block += 1,
                Err(_) => {
                    unreadable.get_or_insert(block);
                    block += 1;
                }
            }
        }
        if let Some(block) = unreadable {
            let at = u64::from(block) * RECORD_BLOCK as u64;
            losses.push(format!("what segment {segment} has where it cannot be read, from byte {at} on"));
        }
        let newest = here.iter().map(|unit| unit.header.generation).max();
        all.extend(here.into_iter().filter(|unit| Some(unit.header.generation) == newest));
    }
    progress(bytes(layout.segments), bytes(layout.segments));
    all.sort_unstable_by_key(|unit| (unit.header.open_epoch, unit.header.lsn));
    all
}

/// Leaves out units that a later one passes by: failed ones, and tails that an opening did not accept.
fn in_chain(units: Vec<Found>, losses: &mut Vec<String>) -> Vec<Found> {
    let mut chained: Vec<Found> = Vec::new();
    // From the newest to the oldest: what comes before `bound` may count.
    let (mut bound, mut epoch) = (u64::MAX, None);
    for unit in units.into_iter().rev() {
        let header = unit.header;
        let same_epoch = epoch == Some(header.open_epoch);
        if header.lsn > bound {
            continue;
        }
        if same_epoch && header.lsn < bound {
            losses.push(format!("what units {} to {bound} of the log wrote", header.lsn + 1));
        }
        // An opening continues the numbers of the one before: its first unit has no predecessor.
        bound = if header.prev_lsn == 0 { header.lsn - 1 } else { header.prev_lsn };
        epoch = Some(header.open_epoch);
        chained.push(unit);
    }
    chained.reverse();
    chained
}

/// Leaves out groups of which units are missing, and everything from the first bad group on that was not durable.
fn whole_groups(
    scanner: &mut Scanner<'_>,
    units: Vec<Found>,
    durable: u64,
    losses: &mut Vec<String>,
) -> Result<Vec<Found>, StoreError> {
    let (mut kept, mut group): (Vec<Found>, Vec<Found>) = (Vec::new(), Vec::new());
    for unit in units {
        let header = unit.header;
        let continues = group.last().is_some_and(|last| header.prev_lsn == last.header.lsn);
        if header.has(flag::FIRST) || !continues {
            note_cut(&mut group, losses);
        }
        if !header.has(flag::FIRST) && group.is_empty() {
            losses.push(format!("what unit {} of the log wrote: its request is not whole", header.lsn));
            continue;
        }
        if header.lsn > durable && !scanner.data_intact(&unit).unwrap_or(false) {
            return Ok(kept);
        }
        group.push(unit);
        if header.has(flag::LAST) {
            kept.append(&mut group);
        }
    }
    note_cut(&mut group, losses);
    Ok(kept)
}

fn note_cut(group: &mut Vec<Found>, losses: &mut Vec<String>) {
    if let (Some(first), Some(last)) = (group.first(), group.last()) {
        let (first, last) = (first.header.lsn, last.header.lsn);
        losses.push(format!("what units {first} to {last} of the log wrote: their request is not whole"));
    }
    group.clear();
}

/// The catalogue of the newest whole table, and what changed it since.
fn newest_catalogue(
    scanner: &mut Scanner<'_>,
    units: &[Found],
    losses: &mut Vec<String>,
) -> Result<Catalogue, StoreError> {
    let is_first = |unit: &&Found| unit.header.has(flag::TABLE) && unit.header.has(flag::FIRST);
    let from = units.iter().filter(is_first).map(|unit| unit.header.lsn).next_back().unwrap_or(0);
    let mut replay = Replay::new(Catalogue::new(scanner.superblock.volume_id));
    if from == 0 {
        losses.push("snapshots and clones: no segment table is left that names them".to_owned());
    }
    let mut bytes = Vec::new();
    for found in units.iter().filter(|unit| unit.header.lsn >= from) {
        let unit = scanner.unit_again(found)?;
        for entry in unit.entries(&scanner.layout) {
            match entry {
                Entry::Catalogue { at, total, bytes: piece }
                    if at == bytes.len() as u64 && total <= CATALOGUE_BYTES_MAX as u64 =>
                {
                    bytes.extend_from_slice(piece);
                    if bytes.len() as u64 == total {
                        replay = Catalogue::decode(&bytes).map_or(replay, Replay::new);
                    }
                }
                Entry::Change { branch, sequence, bytes } if sequence < SEQUENCE_MAX => {
                    let applied = Change::decode(branch, bytes).map(|change| replay.apply(&change, sequence));
                    if !matches!(applied, Some(Ok(_))) {
                        losses.push(format!("a change of snapshots or clones, in unit {}", found.header.lsn));
                    }
                }
                _ => {}
            }
        }
    }
    Ok(replay.finish())
}

/// Plans fillers for the gaps of one segment; returns how many of its units can be reached with them.
fn close_gaps(scanner: &Scanner<'_>, units: &[Found], fillers: &mut Vec<Filler>) -> usize {
    let (mut at, mut last_lsn) = (0, None);
    for (index, unit) in units.iter().enumerate() {
        // Later in the log and yet before it in the segment: not of one history.
        let Some(gap) = unit.block.checked_sub(at) else { return index };
        // A unit may also be reached over the end of the segment before: then nothing is missing here.
        let joins = last_lsn.is_none_or(|lsn| unit.header.prev_lsn == lsn);
        let needed = u64::from(gap).div_ceil(RECORD_BLOCKS_MAX as u64);
        let first_lsn = (unit.header.prev_lsn + 1).saturating_sub(needed);
        if gap == 0 && !joins || gap > 0 && first_lsn <= last_lsn.unwrap_or(0) {
            return index;
        }
        fill(scanner, unit, at, last_lsn, fillers);
        (at, last_lsn) = (unit.block + unit.header.blocks(), Some(unit.header.lsn));
    }
    units.len()
}

/// Plans fillers from a block of a segment up to a unit in it. Their numbers are the last ones before its own; there must be as many
/// behind `last_lsn`, the unit before the gap.
pub(super) fn fill(
    scanner: &Scanner<'_>,
    behind: &Found,
    mut from: u32,
    mut last_lsn: Option<u64>,
    fillers: &mut Vec<Filler>,
) {
    let needed = u64::from(behind.block - from).div_ceil(RECORD_BLOCKS_MAX as u64);
    let mut lsn = (behind.header.prev_lsn + 1).saturating_sub(needed);
    while from < behind.block {
        let blocks = (behind.block - from).min(RECORD_BLOCKS_MAX as u32);
        let header = UnitHeader {
            lsn,
            prev_lsn: last_lsn.unwrap_or(lsn - 1),
            durable_lsn: 0,
            flags: flag::FIRST | flag::LAST,
            prev_segment: NO_SEGMENT,
            prev_end: 0,
            next_segment: NO_SEGMENT,
            ..behind.header
        };
        let place = LogAddress { store_id: scanner.superblock.store_id, segment: behind.segment, block: from };
        let (_, bytes) = UnitBuilder::filler(scanner.layout, blocks).finish(header, place);
        debug_assert_eq!(bytes.len(), blocks as usize * RECORD_BLOCK);
        fillers.push(Filler { offset: scanner.layout.block_at(behind.segment, from), bytes });
        (from, last_lsn) = (from + blocks, Some(lsn));
        lsn += 1;
    }
}
