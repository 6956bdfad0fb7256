//! Writing the segment tables of a round: two with the same rows, one directly behind the other, so that losing one costs nothing.
//!
//! Nothing else is appended between the first unit of the first and the last unit of the second, and no segment begins or ends to count:
//! so the rows are the same, and both are read without looking at the other. Where there is no room for the second, one has to do.

use super::Store;
use super::group::GroupKind;
use crate::layout::RECORD_BLOCK;
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
    /// Rows that are not in a unit yet, for about one unit.
    rows: Vec<u8>,
    /// The segment from which on rows are still to be made; `None`: all were.
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
    /// Its last unit, once it is whole.
    first_end: Option<u64>,
    /// Where the second one begins, once it does.
    second: Option<TableStart>,
    /// The second one, once it is whole.
    whole_second: Option<SecondTable>,
}

impl TableWriter {
    /// What was written.
    pub(super) fn written(&self) -> Tables {
        Tables { first: self.first, second: self.whole_second }
    }

    fn push_row(&mut self, segment: u32, end: u32, generation: u64) {
        self.rows.extend_from_slice(&segment.to_be_bytes());
        self.rows.extend_from_slice(&end.to_be_bytes());
        self.rows.extend_from_slice(&generation.to_be_bytes());
    }

    /// A table begins with its first row.
    fn rewind(&mut self) {
        (self.rows, self.rows_from) = (Vec::new(), Some(0));
        (self.catalogue_done, self.operations_done) = (0, 0);
    }
}

impl Store {
    /// Appends the next unit of a table; the first one begins a round.
    pub(super) fn append_table(&mut self) -> bool {
        if self.is_writing_tables() && !self.group.open && !self.room_for_second() {
            let lsn = self.round.tables.first_end.expect("the first table comes first");
            self.tables_written(lsn);
            return true;
        }
        let Some(limit) = self.unit_limit(2) else { return true };
        if !self.group.open {
            self.begin_table();
        }
        let mut unit = UnitBuilder::new(self.layout, limit);
        self.make_rows(limit as usize * RECORD_BLOCK / TABLE_ROW);
        let tables = &mut self.round.tables;
        let taken = unit.push_table(&tables.rows);
        tables.rows.drain(..taken * TABLE_ROW);
        if tables.rows.is_empty() {
            debug_assert!(tables.rows_from.is_none(), "one row more than fits was made");
            let (done, total) = (tables.catalogue_done, tables.catalogue.len());
            tables.catalogue_done += unit.push_catalogue(done, total, &tables.catalogue[done..]);
        }
        let mut last = tables.rows.is_empty() && tables.catalogue_done == tables.catalogue.len();
        if last {
            let (done, total) = (tables.operations_done, tables.operations.len());
            tables.operations_done += unit.push_windows(done, total, &tables.operations[done..]);
            last = tables.operations_done == total;
        }
        self.append_unit(unit, Vec::new(), Vec::new(), GroupKind::Table, last);
        true
    }

    /// Every segment that is needed is listed, up to where the first table begins.
    fn begin_table(&mut self) {
        let start = TableStart { segment: self.head.segment, block: self.head.block, lsn: self.head.next_lsn };
        if self.is_writing_tables() {
            self.round.tables.rewind();
            self.round.tables.second = Some(start);
            return;
        }
        self.round_begins();
        let trivial = self.map.catalogue.is_trivial();
        self.round.tables = TableWriter {
            rows_from: Some(0),
            rows_below: self.segments.segment(start.segment).generation,
            catalogue: if trivial { Vec::new() } else { self.map.catalogue.encode() },
            operations: self.operations.encode(),
            first: start,
            ..TableWriter::default()
        };
    }

    /// Makes rows of the table until one more is there than a unit takes. What the other segments are does not change before the table
    /// is whole: nothing else is appended meanwhile, and nothing becomes free.
    fn make_rows(&mut self, unit_rows: usize) {
        let tables = &mut self.round.tables;
        while tables.rows.len() <= unit_rows * TABLE_ROW
            && let Some(from) = tables.rows_from
        {
            match self.segments.next_listed(from, tables.rows_below) {
                Some((segment, entry)) => {
                    tables.push_row(segment, entry.end, entry.generation);
                    tables.rows_from = Some(segment + 1);
                }
                None => {
                    let TableStart { segment, block, .. } = tables.first;
                    tables.push_row(segment, block, tables.rows_below);
                    tables.rows_from = None;
                }
            }
        }
    }

    /// Whether the second table surely finds its room without space that somebody else is to have.
    fn room_for_second(&self) -> bool {
        let blocks = self.table_blocks() / 2 + SLACK_BLOCKS;
        let left = u64::from(self.head_left_blocks());
        let more = blocks.saturating_sub(left).div_ceil(u64::from(self.layout.segment_blocks() - 1));
        let more = more + if more > 1 { 1 } else { 0 };
        more == 0 || more < u64::from(self.segments.warm_ahead()) && more < u64::from(self.segments.free_count())
    }

    /// A table is whole.
    pub(super) fn table_written(&mut self, lsn: u64) {
        let head = &self.head;
        let tables = &mut self.round.tables;
        let Some(TableStart { segment, block, lsn: first }) = tables.second else {
            tables.first_end = Some(lsn);
            return;
        };
        let generation = self.segments.segment(head.segment).generation;
        // As its last unit has it: nothing was opened since.
        let next_segment = self.segments.next().unwrap_or(NO_SEGMENT);
        let end = TableEnd { segment: head.segment, block: head.block, lsn, generation, next_segment };
        tables.whole_second = Some(SecondTable { segment, block, lsn: first, end });
        self.tables_written(lsn);
    }

    /// A table found no space. The first one has to do, if it is whole.
    pub(super) fn table_failed(&mut self) {
        match self.round.tables.first_end {
            Some(lsn) => self.tables_written(lsn),
            None => self.round_failed(),
        }
    }

    /// A segment that a table was to go on in found no space.
    pub(super) fn tables_out_of_space(&mut self) {
        self.round.tables.rows.clear();
        // Before its first unit no group tells.
        if self.is_writing_tables() {
            self.table_failed();
        }
    }
}
