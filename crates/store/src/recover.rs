//! Recovery: from the bytes of a log to the state of a store. `docs/store-format.md`, "Recovery".
//!
//! The newest superblock names a durable segment table. Every segment that the table lists must be whole. From the table
//! on the log is followed unit by unit; what was durable must be there, and of the rest the longest prefix of whole
//! groups whose data checks out is accepted. Anything else is refused: never older data in silence.

mod checkpoint;
mod damage;
mod load;
mod pass_over;
mod reader;
mod rebuild;
mod recovered;
mod scan;
mod tables;

use std::collections::BTreeMap;
use std::ops::Range;

pub use damage::Damage;
use load::Loader;
pub(crate) use rebuild::{Rebuilt, rebuild};
pub(crate) use recovered::{CheckpointExtent, Recovered};
use scan::Found;
pub(crate) use scan::{Scanner, Unit};

use crate::backend::{Backend, Io, blocking};
use crate::catalogue::{Catalogue, Change, Replay};
use crate::error::StoreError;
use crate::head::Head;
use crate::layout::{LOG_START, RECORD_BLOCK, SEQUENCE_MAX, SUPERBLOCK_AT};
use crate::operations::Operations;
use crate::planted::{Planted, PlantedFault};
use crate::segments::Segments;
use crate::superblock::Superblock;
use crate::unit::{Entry, NO_SEGMENT, flag};
use tables::{Rows, Table, TableGap, read_tables};

/// A segment that counts, and how far.
#[derive(Clone, Copy, Debug)]
struct Extent {
    generation: u64,
    end: u32,
}

/// Recovers what `backend` holds. Reads only.
///
/// # Errors
/// [`StoreError`]: no store, a newer format, damage to what was durable, or failing I/O.
pub(crate) fn recover(backend: &mut dyn Backend, open_id: u64, planted: Planted) -> Result<Recovered, StoreError> {
    recover_with(backend, open_id, planted, false).map(|(recovered, _)| recovered)
}

/// As [`recover`]; if `pass_over`, damage to the part of the log that is replayed is passed over and told: what is recovered may then be
/// read, but not written to.
pub(crate) fn recover_with(
    backend: &mut dyn Backend,
    open_id: u64,
    planted: Planted,
    pass_over: bool,
) -> Result<(Recovered, Damage), StoreError> {
    let (superblock, superblock_copy) = read_superblock(backend)?;
    check_size(backend, &superblock)?;
    if superblock.erasing {
        return Err(StoreError::Erasing);
    }
    let mut scanner = Scanner::new(backend, &superblock);
    scanner.planted = planted;
    scanner.damage = pass_over.then(Damage::default);
    scanner.check_no_newer_opening()?;
    let (Table { end_lsn, rows: listed, catalogue, operations }, mut notes) = read_tables(&mut scanner)?;
    let tail = follow_tail(&mut scanner, end_lsn)?;
    notes.extend(
        tail.gaps.iter().map(|gap| gap.note(&superblock)).filter(|note| !notes.contains(note)).collect::<Vec<_>>(),
    );

    let catalogue = apply_changes(&mut scanner, &tail, catalogue)?;
    let listed = in_order_of_log(listed);
    let mut segments: BTreeMap<u32, Extent> = listed.iter().copied().collect();
    for TailUnit { found, .. } in &tail.accepted {
        let end = found.block + found.header.blocks();
        segments.insert(found.segment, Extent { generation: found.header.generation, end });
    }
    let (mut loader, checkpoint, checkpoint_bytes) = load_checkpoint(&mut scanner, &segments, catalogue);
    loader.planted = planted;
    let (replayed, before_table) = replay(&mut scanner, &mut loader, checkpoint.as_ref(), (listed, operations), &tail)?;
    let used = segments.iter().map(|(&segment, extent)| (segment, extent.generation, extent.end));
    let mut state = Segments::new(superblock.layout());
    state.adopt(used);
    let head = head_after(&superblock, &scanner, &tail, loader.next_sequence, open_id);
    let fillers = tables::fillers(&scanner, &tail, before_table);
    let mut superblock = superblock;
    if checkpoint.is_none() {
        superblock.checkpoint = None;
    }
    let rows = checkpoint.as_ref().map_or(&[][..], |description| &description.rows);
    state.adopt_checkpoint(rows.iter().map(|row| (row.segment, row.generation)));
    state.avoid(&scanner.unreadable);
    let segments = rows.iter().map(|row| row.segment).collect();
    let checkpoint = CheckpointExtent { segments, bytes: checkpoint_bytes, replayed };
    let mut damage = scanner.damage.take().unwrap_or_default();
    damage.end();
    let (map, operations) = loader.finish(&mut state);
    let recovered =
        Recovered { superblock, superblock_copy, map, segments: state, operations, head, checkpoint, fillers, notes };
    Ok((recovered, damage))
}

/// Loads the units behind the checkpoint, if there is one, and those of the tail. Returns how many bytes that were, and the unit before
/// the segment table, if it is in the same segment.
fn replay(
    scanner: &mut Scanner<'_>,
    loader: &mut Loader,
    checkpoint: Option<&checkpoint::Description>,
    (listed, operations): (Rows, Operations),
    tail: &Tail,
) -> Result<(u64, Option<u64>), StoreError> {
    let table_segment = scanner.superblock.table_segment;
    let (mut begin_generation, mut replayed, mut before_table) = (0, 0, None);
    if let Some(description) = checkpoint {
        begin_generation = description.begin_generation;
        loader.begin_lsn = description.begin_lsn;
    }
    let to_load = listed.iter().copied().filter(|(_, row)| row.generation >= begin_generation);
    scanner.expect(to_load.clone().map(|(segment, _)| segment));
    for (segment, row) in to_load {
        let last_lsn = load_segment(scanner, loader, segment, row)?;
        before_table = last_lsn.filter(|_| segment == table_segment).or(before_table);
        replayed += u64::from(row.end) * RECORD_BLOCK as u64;
    }
    scanner.expect_chain();
    loader.goes_on_from(operations);
    for (at, TailUnit { found, .. }) in tail.accepted.iter().enumerate() {
        let unit = tail.unit(scanner, at)?;
        scanner.intact(&unit.header);
        loader.load(&unit)?;
        replayed += u64::from(found.header.blocks()) * RECORD_BLOCK as u64;
    }
    Ok((replayed, before_table))
}

/// A loader with everything that the checkpoint has, and about how many bytes the next one takes; an empty one if there is none, or it is
/// damaged.
fn load_checkpoint(
    scanner: &mut Scanner<'_>,
    segments: &BTreeMap<u32, Extent>,
    catalogue: Catalogue,
) -> (Loader, Option<checkpoint::Description>, u64) {
    let superblock = scanner.superblock.clone();
    let empty = |catalogue| Loader::new(&superblock, catalogue);
    if superblock.checkpoint.is_none() {
        return (empty(catalogue), None, 0);
    }
    let mut loader = empty(catalogue.clone());
    let loaded = checkpoint::describe(scanner.backend(), &superblock).and_then(|description| {
        let bytes = checkpoint::load(scanner.backend(), &superblock, &description, segments, &mut loader)?;
        Ok((description, bytes))
    });
    match loaded {
        Ok((description, bytes)) => (loader, Some(description), bytes),
        Err(reason) => {
            tracing::warn!(volume = %superblock.volume_id, reason, "the checkpoint is of no use; reading the whole log");
            (empty(catalogue), None, 0)
        }
    }
}

pub(crate) fn read_superblock(backend: &mut dyn Backend) -> Result<(Superblock, usize), StoreError> {
    let copies = superblock_copies(backend);
    Superblock::choose([&copies[0], &copies[1]])
}

/// What each copy of the superblock says.
pub(crate) fn superblocks(backend: &mut dyn Backend) -> [Result<Superblock, StoreError>; 2] {
    let copies = superblock_copies(backend);
    [Superblock::decode(&copies[0], 0), Superblock::decode(&copies[1], 1)]
}

fn superblock_copies(backend: &mut dyn Backend) -> [strongroom_block::BufferMut; 2] {
    SUPERBLOCK_AT.map(|offset| {
        let buffer = strongroom_block::BufferMut::zeroed(RECORD_BLOCK);
        let read = blocking(backend, Io::Read { offset, buffer });
        // An unreadable copy is as bad as a torn one: the other may do.
        read.ok().flatten().unwrap_or_else(|| strongroom_block::BufferMut::zeroed(RECORD_BLOCK))
    })
}

/// A log that lost its end may have lost what counts; and what is kept in memory per segment is bounded by the medium.
fn check_size(backend: &mut dyn Backend, superblock: &Superblock) -> Result<(), StoreError> {
    let size = backend.size_bytes().map_err(StoreError::io("asking for the size of the log"))?;
    let (layout, size) = (superblock.layout(), size.unwrap_or(u64::MAX));
    let needed = layout.segment_at(layout.segments);
    if size >= needed {
        return Ok(());
    }
    let within = size.saturating_sub(LOG_START);
    let segment = (within / u64::from(layout.segment_bytes)) as u32;
    let what = format!(
        "its end is missing: it has {size} bytes instead of {needed}. If it was cut off, make it as long again (`truncate -s \
         {needed}` on its file) and repair it then"
    );
    Err(StoreError::Damaged { segment, offset: within % u64::from(layout.segment_bytes), what })
}

/// What units of the tail tell may take so much memory until it is loaded, in bytes; more is read again. In tests it is little, so that
/// both are.
const TOLD_BYTES_MAX: usize = if cfg!(test) { 1 << 10 } else { 64 << 20 };

/// What follows from the table on.
struct Tail {
    accepted: Vec<TailUnit>,
    /// What units told, one after the other.
    told: Vec<u8>,
    /// Units with changes of the catalogue; not all of them accepted.
    changes: Vec<u64>,
    /// Segment tables that were passed over.
    gaps: Vec<TableGap>,
    accepted_lsn: u64,
    durable_lsn: u64,
}

struct TailUnit {
    found: Found,
    /// Where in what they told, if it was kept.
    told: Option<Range<usize>>,
    /// Whether its data matches its checksums, if they were looked at.
    intact: Option<bool>,
}

impl Tail {
    fn unit(&self, scanner: &mut Scanner<'_>, at: usize) -> Result<Unit, StoreError> {
        let unit = &self.accepted[at];
        match &unit.told {
            Some(told) => Ok(Unit::told_before(&unit.found, &self.told[told.clone()])),
            None => scanner.unit_again(&unit.found),
        }
    }
}

/// Follows the log from the table on, and decides how much of it counts.
fn follow_tail(scanner: &mut Scanner<'_>, table_end_lsn: u64) -> Result<Tail, StoreError> {
    let mut chain = scanner.chain();
    let (mut found, mut told, mut changes, mut gaps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut durable = scanner.superblock.durable_lsn.max(table_end_lsn);
    durable = durable.max(scanner.superblock.second_table.map_or(0, |second| second.end.lsn));
    scanner.expect_chain();
    loop {
        let unit = match scanner.next(&mut chain) {
            Ok(Some(unit)) => unit,
            stopped => {
                if let Some(gap) = scanner.pass_table(&mut chain) {
                    gaps.push(gap);
                    continue;
                }
                stopped?;
                if !scanner.pass_over(&mut chain, durable)? {
                    break;
                }
                continue;
            }
        };
        scanner.intact(&unit.header);
        durable = durable.max(unit.header.durable_lsn);
        if unit.entries(&scanner.layout).iter().any(|entry| matches!(entry, Entry::Change { .. })) {
            changes.push(unit.header.lsn);
        }
        let intact = if unit.header.lsn > durable { scanner.data_intact_on_the_way(&unit) } else { None };
        let (at, bytes) = (told.len(), unit.told());
        let kept = (at + bytes.len() <= TOLD_BYTES_MAX).then(|| at..at + bytes.len());
        if kept.is_some() {
            told.extend_from_slice(bytes);
        }
        found.push(TailUnit { found: unit.found(), told: kept, intact });
    }
    // Units beyond a gap still tell what was durable: a gap before that is damage, not a torn tail.
    durable = durable.max(scanner.durable_claimed_beyond(&chain)?);
    if let Some(damage) = &mut scanner.damage {
        damage.end();
    }

    let (whole, accepted_lsn) = accepted_units(scanner, &found, &gaps, durable)?;
    if accepted_lsn < durable {
        let what = format!("what follows unit {accepted_lsn} of the log, which was synced through unit {durable},");
        return Err(match found.get(whole) {
            Some(TailUnit { found: unit, .. }) => scan::damaged(unit.segment, unit.block, what),
            None => chain.damaged(what),
        });
    }
    found.truncate(whole);
    // Only copies and tables since the table: their originals are all still there, and what they took is free again. So
    // openings that are cut short, again and again, do not use up the segments that cleaning needs.
    let housekeeping = |unit: &TailUnit| unit.found.header.has(flag::TABLE) || unit.found.header.has(flag::CLEANING);
    if found.iter().all(housekeeping) {
        // What was told to be durable stays: a later recovery, when the rest is overwritten, would miss it.
        found.retain(|unit| unit.found.header.lsn <= durable);
    }
    Ok(Tail { accepted: found, told, changes, gaps, accepted_lsn, durable_lsn: durable })
}

/// How many of the units in the tail count: whole groups that are durable or whose data is intact; and the last of them.
fn accepted_units(
    scanner: &mut Scanner<'_>,
    found: &[TailUnit],
    gaps: &[TableGap],
    durable: u64,
) -> Result<(usize, u64), StoreError> {
    let mut whole = 0;
    let mut accepted_lsn = scanner.superblock.table_lsn - 1;
    for (at, TailUnit { found: unit, intact, .. }) in found.iter().enumerate() {
        if unit.header.lsn > durable
            && !scanner.planted.has(PlantedFault::TailUnchecked)
            && !intact.map_or_else(|| scanner.data_intact(unit), Ok)?
        {
            break;
        }
        if unit.header.has(flag::LAST) || scanner.planted.has(PlantedFault::GroupCut) {
            whole = at + 1;
            accepted_lsn = unit.header.lsn;
        }
    }
    // Tables were passed over as a whole: what is behind them counts, or there is nothing.
    accepted_lsn = accepted_lsn.max(gaps.last().map_or(0, |gap: &TableGap| gap.last_lsn));
    if accepted_lsn < durable && scanner.damage.is_some() {
        // What was synced counts, although groups of it may not be whole.
        whole = whole.max(found.iter().take_while(|unit| unit.found.header.lsn <= durable).count());
        accepted_lsn = durable;
    }
    Ok((whole, accepted_lsn))
}

/// Takes changes of the catalogue since the table in.
fn apply_changes(scanner: &mut Scanner<'_>, tail: &Tail, catalogue: Catalogue) -> Result<Catalogue, StoreError> {
    let mut replay = Replay::new(catalogue);
    for (at, TailUnit { found, .. }) in tail.accepted.iter().enumerate() {
        if tail.changes.binary_search(&found.header.lsn).is_err() {
            continue;
        }
        let unit = tail.unit(scanner, at)?;
        for entry in unit.entries(&scanner.layout) {
            let Entry::Change { branch, sequence, bytes } = entry else { continue };
            let change = Change::decode(branch, bytes);
            let applied = change.filter(|_| sequence < SEQUENCE_MAX).map(|change| replay.apply(&change, sequence));
            if !matches!(applied, Some(Ok(_))) {
                if scanner.damage.is_none() {
                    return Err(scan::damaged(found.segment, found.block, "a possible change of the catalogue"));
                }
                scanner.pass(found.segment, found.block, "a change of snapshots or clones".to_owned());
            }
        }
    }
    Ok(replay.finish())
}

/// Copies that cleaning made come after their originals in the log; so later ones win when loaded in this order. Generations
/// and LSNs grow together.
fn in_order_of_log(mut listed: Rows) -> Rows {
    listed.retain(|(_, row)| row.end > 0); // Else the table is the first thing in it.
    listed.sort_unstable_by_key(|&(_, row)| row.generation);
    listed
}

/// Returns the number of its last unit.
fn load_segment(
    scanner: &mut Scanner<'_>,
    loader: &mut Loader,
    segment: u32,
    row: Extent,
) -> Result<Option<u64>, StoreError> {
    let mut block = 0;
    let mut lsn = None;
    while block < row.end {
        let unit = scanner.unit_at(segment, block)?.filter(|unit| {
            unit.header.generation == row.generation && lsn.is_none_or(|lsn| unit.header.prev_lsn == lsn)
        });
        let Some(unit) = unit else {
            if scanner.damage.is_none() {
                return Err(scan::damaged(segment, block, "a unit of a segment that the segment table lists"));
            }
            let next = scanner.next_intact(segment, block + 1, row.end, row.generation)?.unwrap_or(row.end);
            scanner.pass(segment, block, format!("record blocks of a segment with {} blocks of 4 KiB", next - block));
            (block, lsn) = (next, None);
            continue;
        };
        block += unit.header.blocks();
        lsn = Some(unit.header.lsn);
        scanner.intact(&unit.header);
        loader.load(&unit)?;
    }
    while scanner.planted.has(PlantedFault::StaleUnitReplayed)
        && let Some(unit) = scanner.unit_at(segment, block)?
    {
        block += unit.header.blocks();
        loader.load(&unit)?;
    }
    if block > row.end && !scanner.planted.has(PlantedFault::StaleUnitReplayed) {
        return Err(scan::damaged(segment, row.end, "the end of a segment, as the segment table has it"));
    }
    Ok(lsn)
}

fn head_after(superblock: &Superblock, scanner: &Scanner<'_>, tail: &Tail, next_sequence: u64, open_id: u64) -> Head {
    Head {
        segment: NO_SEGMENT,
        block: 0,
        prev_segment: NO_SEGMENT,
        prev_end: 0,
        next_lsn: tail.accepted_lsn + 1,
        last_lsn: 0,
        completed_lsn: tail.accepted_lsn,
        durable_lsn: tail.durable_lsn,
        // Also what was handed out and lost is never handed out again.
        next_sequence: superblock.sequence_limit.max(next_sequence),
        next_generation: superblock.next_generation.max(scanner.highest_generation() + 1),
        open_id,
        open_epoch: scanner.highest_epoch().max(superblock.open_epoch) + 1,
    }
}

#[cfg(test)]
mod tests;
