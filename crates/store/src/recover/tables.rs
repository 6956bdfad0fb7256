//! The two segment tables that a superblock names: either will do, and the log is followed although one is damaged.
//!
//! Both have the same rows, and nothing but tables lies between the first unit of the first and the last unit of the second: so passing
//! over a damaged one loses nothing. What is left of it is filled when the store is opened, because the segment that it is in is read
//! unit by unit at the next opening.

use strongroom_block::Buffer;

use super::rebuild::fill;
use super::recovered::{Filler, Recovered};
use super::scan::{Chain, Scanner};
use super::{Extent, Tail};
use crate::backend::{Backend, Io, blocking};
use crate::catalogue::{CATALOGUE_BYTES_MAX, Catalogue};
use crate::error::StoreError;
use crate::layout::{be_u32, be_u64};
use crate::operations::{OPERATIONS_BYTES_MAX, Operations};
use crate::superblock::{SecondTable, Superblock};
use crate::unit::{Entry, NO_SEGMENT, TABLE_ROW, flag};

/// Segments that a table lists, and how far they count.
pub(super) type Rows = Vec<(u32, Extent)>;

/// A segment table.
pub(super) struct Table {
    /// The number of its last unit.
    pub(super) end_lsn: u64,
    pub(super) rows: Rows,
    pub(super) catalogue: Catalogue,
    pub(super) operations: Operations,
}

/// Reads the segment tables that the superblock names: the second one only if the first is not whole. Also tells, in words, which one
/// is not.
///
/// # Errors
/// [`StoreError`] of the first, if neither is whole.
pub(super) fn read_tables(scanner: &mut Scanner<'_>) -> Result<(Table, Vec<String>), StoreError> {
    let error = match read_table(scanner, scanner.chain()) {
        Ok(table) => return Ok((table, Vec::new())),
        Err(error) => error,
    };
    let Some(second) = scanner.second_chain() else { return Err(error) };
    match read_table(scanner, second) {
        Ok(table) => Ok((table, vec![note(&scanner.superblock, true)])),
        Err(_) => Err(error),
    }
}

/// That a table is not whole.
fn note(superblock: &Superblock, first: bool) -> String {
    let (segment, block) = match superblock.second_table {
        Some(second) if !first => (second.segment, second.block),
        _ => (superblock.table_segment, superblock.table_block),
    };
    let at = superblock.layout().block_at(segment, block);
    let which = if first { "first" } else { "second" };
    format!(
        "the {which} segment table, at byte {at} of the log, is not whole; the other one is, and the next opening rewrites both"
    )
}

fn read_table(scanner: &mut Scanner<'_>, mut chain: Chain) -> Result<Table, StoreError> {
    let (mut rows, mut catalogue, mut windows) = (Vec::new(), Vec::new(), Vec::new());
    let start_lsn = chain.start_lsn;
    loop {
        let Some(unit) = scanner.next(&mut chain)? else {
            return Err(chain.damaged("the segment table that the superblock names"));
        };
        if !unit.header.has(flag::TABLE) || unit.header.has(flag::FIRST) != (unit.header.lsn == start_lsn) {
            return Err(chain.damaged("a unit of the segment table"));
        }
        for entry in unit.entries(&scanner.layout) {
            if let Entry::Catalogue { at, total, bytes } = entry {
                if at != catalogue.len() as u64 || total > CATALOGUE_BYTES_MAX as u64 {
                    return Err(chain.damaged("the next piece of the catalogue"));
                }
                catalogue.extend_from_slice(bytes);
            }
            if let Entry::Windows { at, total, bytes } = entry {
                if at != windows.len() as u64 || total > OPERATIONS_BYTES_MAX as u64 {
                    return Err(chain.damaged("the next piece of the operation windows"));
                }
                windows.extend_from_slice(bytes);
            }
            let Entry::Table { rows: bytes } = entry else { continue };
            for row in bytes.chunks_exact(TABLE_ROW) {
                let (segment, end, generation) = (be_u32(row, 0), be_u32(row, 4), be_u64(row, 8));
                if segment >= scanner.layout.segments || end > scanner.layout.segment_blocks() {
                    return Err(chain.damaged("a possible row of the segment table"));
                }
                rows.push((segment, Extent { generation, end }));
            }
        }
        if rows.len() > scanner.layout.segments as usize {
            return Err(chain.damaged("a segment table without repetitions"));
        }
        if unit.header.has(flag::LAST) {
            rows.sort_unstable_by_key(|&(segment, _): &(u32, Extent)| segment);
            if rows.windows(2).any(|pair| pair[0].0 == pair[1].0) {
                return Err(chain.damaged("a segment table without repetitions"));
            }
            let catalogue = match &catalogue[..] {
                [] => Catalogue::new(scanner.superblock.volume_id),
                bytes => Catalogue::decode(bytes).ok_or_else(|| chain.damaged("a possible catalogue"))?,
            };
            let operations = Operations::decode(&windows, scanner.layout.segment_bytes);
            let operations = operations.ok_or_else(|| chain.damaged("possible operation windows"))?;
            return Ok(Table { end_lsn: unit.header.lsn, rows, catalogue, operations });
        }
    }
}

/// A table, or the rest of one, that was passed over.
pub(super) struct TableGap {
    /// It is the first of the two.
    first: bool,
    /// Where it begins in the segment in which the log goes on, and the unit before, as far as that is known.
    from: (u32, Option<u64>),
    /// Where the log goes on.
    to: (u32, u32),
    /// Its last unit.
    pub(super) last_lsn: u64,
}

impl TableGap {
    /// What it is, in words.
    pub(super) fn note(&self, superblock: &Superblock) -> String {
        note(superblock, self.first)
    }
}

impl Scanner<'_> {
    /// Where the chain stopped amid the tables that the superblock names, which were durable: it goes on behind the one that is damaged.
    pub(super) fn pass_table(&self, chain: &mut Chain) -> Option<TableGap> {
        let SecondTable { lsn, end, .. } = self.superblock.second_table?;
        let last = chain.last_lsn();
        let (next, last_lsn) = match () {
            () if last + 1 < lsn => (self.second_chain()?, lsn - 1),
            () if last < end.lsn => {
                let named = Some(end.next_segment).filter(|&next| next != NO_SEGMENT);
                (Chain::at(end.segment, end.block, end.generation, end.lsn, named), end.lsn)
            }
            () => return None,
        };
        let same = chain.segment == next.segment;
        let from = if same { (chain.block, chain.last.map(|(_, lsn)| lsn)) } else { (0, None) };
        let gap = TableGap { first: last_lsn < lsn, from, to: (next.segment, next.block), last_lsn };
        *chain = next;
        Some(gap)
    }
}

/// What fills the places of tables that were passed over, where units that count follow in the same segment. `before`: the unit before the
/// first table, if it is in the same segment.
pub(super) fn fillers(scanner: &Scanner<'_>, tail: &Tail, before: Option<u64>) -> Vec<Filler> {
    let mut fillers = Vec::new();
    for gap in &tail.gaps {
        let (segment, block) = gap.to;
        let behind = tail.accepted.iter().map(|unit| unit.found);
        let Some(behind) = behind.into_iter().find(|unit| (unit.segment, unit.block) == (segment, block)) else {
            continue;
        };
        let (from, last_lsn) = gap.from;
        let first = from > 0 && gap.first;
        fill(scanner, &behind, from, last_lsn.or(before.filter(|_| first)), &mut fillers);
    }
    fillers
}

impl Recovered {
    /// Writes over what is left of a damaged table: to be done before the first table of an opening, which makes it durable.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(crate) fn fill_tables(&self, backend: &mut dyn Backend) -> Result<(), StoreError> {
        for note in &self.notes {
            tracing::warn!(volume = %self.superblock.volume_id, "{note}");
        }
        for Filler { offset, bytes } in &self.fillers {
            let write = Io::Write { offset: *offset, buffers: vec![Buffer::copy_from(bytes)] };
            blocking(backend, write).map_err(StoreError::io("writing over what is left of a damaged segment table"))?;
        }
        Ok(())
    }
}
