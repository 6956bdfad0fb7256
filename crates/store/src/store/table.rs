//! Writing the segment tables of a round: two with the same rows, one directly behind the other, so that losing one costs nothing.
//!
//! Nothing else is appended between the first unit of the first and the last unit of the second, and the set of listed segments does not
//! change: so the rows are the same, and each is read without the other. Where there is no room for the second, one is enough.

use super::policy::SegmentCounts;
use crate::head::Head;
use crate::layout::{Layout, RECORD_BLOCK};
use crate::segments::Segments;
use crate::superblock::{SecondTable, TableEnd};
use crate::unit::{NO_SEGMENT, TABLE_ROW, UnitBuilder};

/// Record blocks of a table that its units may leave partly unused, for each of its segments.
const SLACK_BLOCKS: u64 = 2;

/// Where a segment table begins.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TableStart {
    pub(super) segment: u32,
    /// In 4 KiB blocks.
    pub(super) block: u32,
    /// Number of its first unit.
    pub(super) lsn: u64,
}

/// The tables that a superblock names.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tables {
    pub(super) first: TableStart,
    pub(super) second: Option<SecondTable>,
}

/// The tables being written.
#[derive(Default)]
pub(super) struct TableWriter {
    /// Rows that are not in a unit yet, of about one unit.
    rows: Vec<u8>,
    /// The segment from which on rows are missing; `None`: none is missing.
    rows_from: Option<u32>,
    /// Generation of the segment in which the first table begins. Later ones were opened for the tables, and are not in them.
    rows_below: u64,
    /// The catalogue that comes with a table, and how much of it is in units.
    catalogue: Vec<u8>,
    catalogue_done: usize,
    /// The same of the operation windows.
    operations: Vec<u8>,
    operations_done: usize,
    /// Where the first one begins.
    first: TableStart,
    /// Its last unit, once it is complete.
    first_end: Option<u64>,
    /// Where the second one begins, once it does.
    second: Option<TableStart>,
    /// The second one, once it is complete.
    complete_second: Option<SecondTable>,
}

impl TableWriter {
    /// The first table of a round begins at the head.
    pub(super) fn begin(head: &Head, segments: &Segments, catalogue: Vec<u8>, operations: Vec<u8>) -> TableWriter {
        TableWriter {
            rows_from: Some(0),
            rows_below: segments.segment(head.segment).generation,
            catalogue,
            operations,
            first: TableStart::at(head),
            ..TableWriter::default()
        }
    }

    /// The second table begins at the head.
    pub(super) fn begin_second(&mut self, head: &Head) {
        (self.rows, self.rows_from) = (Vec::new(), Some(0));
        (self.catalogue_done, self.operations_done) = (0, 0);
        self.second = Some(TableStart::at(head));
    }

    /// The tables that were written.
    pub(super) fn written(&self) -> Tables {
        Tables { first: self.first, second: self.complete_second }
    }

    /// The last unit of the first table, once it is complete.
    pub(super) fn first_end(&self) -> Option<u64> {
        self.first_end
    }

    /// The next unit of the table, of at most `limit` 4 KiB blocks, and whether it is the last.
    pub(super) fn next_unit(&mut self, segments: &Segments, layout: Layout, limit: u32) -> (UnitBuilder, bool) {
        let mut unit = UnitBuilder::new(layout, limit);
        self.make_rows(segments, limit as usize * RECORD_BLOCK / TABLE_ROW);
        let taken = unit.push_table(&self.rows);
        self.rows.drain(..taken * TABLE_ROW);
        if self.rows.is_empty() {
            debug_assert!(self.rows_from.is_none(), "one row more than fits was made");
            let (done, total) = (self.catalogue_done, self.catalogue.len());
            self.catalogue_done += unit.push_catalogue(done, total, &self.catalogue[done..]);
        }
        let mut last = self.rows.is_empty() && self.catalogue_done == self.catalogue.len();
        if last {
            let (done, total) = (self.operations_done, self.operations.len());
            self.operations_done += unit.push_windows(done, total, &self.operations[done..]);
            last = self.operations_done == total;
        }
        (unit, last)
    }

    /// Makes rows of the table until there is one more than a unit takes. The listed segments do not change before the table is
    /// complete: nothing else is appended meanwhile, and nothing becomes free.
    fn make_rows(&mut self, segments: &Segments, unit_rows: usize) {
        while self.rows.len() <= unit_rows * TABLE_ROW
            && let Some(from) = self.rows_from
        {
            match segments.next_listed(from, self.rows_below) {
                Some((segment, entry)) => {
                    self.push_row(segment, entry.end, entry.generation);
                    self.rows_from = Some(segment + 1);
                }
                None => {
                    let TableStart { segment, block, .. } = self.first;
                    self.push_row(segment, block, self.rows_below);
                    self.rows_from = None;
                }
            }
        }
    }

    fn push_row(&mut self, segment: u32, end: u32, generation: u64) {
        self.rows.extend_from_slice(&segment.to_be_bytes());
        self.rows.extend_from_slice(&end.to_be_bytes());
        self.rows.extend_from_slice(&generation.to_be_bytes());
    }

    /// A table is written, up to unit `lsn`. Whether it was the second one.
    pub(super) fn table_written(&mut self, head: &Head, segments: &Segments, lsn: u64) -> bool {
        let Some(TableStart { segment, block, lsn: first }) = self.second else {
            self.first_end = Some(lsn);
            return false;
        };
        let generation = segments.segment(head.segment).generation;
        // As its last unit has it: nothing was opened since.
        let next_segment = segments.next().unwrap_or(NO_SEGMENT);
        let end = TableEnd { segment: head.segment, block: head.block, lsn, generation, next_segment };
        self.complete_second = Some(SecondTable { segment, block, lsn: first, end });
        true
    }

    /// The table found no space.
    pub(super) fn drop_rows(&mut self) {
        self.rows.clear();
    }
}

impl TableStart {
    fn at(head: &Head) -> TableStart {
        TableStart { segment: head.segment, block: head.block, lsn: head.next_lsn }
    }
}

/// Whether the second table surely finds room without space that is reserved for others. `left`: 4 KiB blocks left of the head.
pub(super) fn has_room_for_second(counts: &SegmentCounts, left: u32) -> bool {
    let blocks = counts.table_blocks / 2 + SLACK_BLOCKS;
    let more = blocks.saturating_sub(left.into()).div_ceil(u64::from(counts.segment_blocks - 1));
    let more = more + if more > 1 { 1 } else { 0 };
    more == 0 || more < u64::from(counts.warm) && more < u64::from(counts.free)
}
