//! Rounds: two segment tables, a sync, a superblock, a sync, its other copy, a sync; then the segments that the tables do not list any
//! more are free.

use std::collections::VecDeque;
use std::io;

use super::access::LogMedium;
use super::io::Purpose;
use super::policy::SegmentCounts;
use super::table::{TableWriter, Tables};
use super::volume::Volume;
use crate::backend::Io;
use crate::catalogue::Catalogue;
use crate::segments::Segments;
use crate::unit::TABLE_ROW;

/// How many segments may be opened before a new table: limits what recovery has to follow unit by unit. A large table comes less often.
const SEGMENTS_PER_TABLE: u32 = 256;
/// Bytes of rows or catalogue that a record block of a table holds, at least.
const TABLE_BLOCK_BYTES: u64 = 3900;
/// Discards of free segments in flight at a time: they share the medium with I/O that a request waits for.
const DISCARDS_MAX: u32 = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    /// The tables are being written.
    Table,
    /// The tables must become durable.
    TableSync { lsn: u64 },
    /// A superblock that names them is being written; `other`: into the other copy, after the first.
    Superblock { other: bool },
    /// That must become durable.
    SuperblockSync { other: bool },
}

/// Why a round may be worth its tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundReasons {
    /// A growth or a checkpoint needs one.
    pub(super) wanted: bool,
    /// The superblock allows few more store sequences.
    pub(super) sequences_low: bool,
    /// Segments opened since the last table.
    pub(super) segments_since_table: u32,
    /// A request waits for space.
    pub(super) is_urgent: bool,
}

/// What a round does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundStep {
    Nothing,
    /// Writes the first superblock.
    WriteSuperblock,
    /// The superblock before must become durable first.
    Sync,
}

/// What follows from a durable superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SuperblockSynced {
    /// It is none of a round.
    Nothing,
    /// The other copy is to be written.
    WriteOther,
    /// The round is over.
    Ended,
}

/// A round, and the segments that it frees.
#[derive(Default)]
pub(super) struct Round {
    phase: Phase,
    /// The first round of an opening.
    is_opening: bool,
    /// The store is idle: a round is worth it if it frees more than its table takes.
    is_idle: bool,
    /// There was no space for a table; not again in this poll.
    is_blocked: bool,
    /// What is being written.
    pub(super) tables: TableWriter,
    /// The length of the catalogue; 0 if it says nothing.
    catalogue_bytes: u64,
    /// The newest durable tables.
    named: Tables,
    dying: Vec<u32>,
    /// Free when no read of them is in flight any more.
    releasing: VecDeque<u32>,
    discards_in_flight: u32,
    /// The store is being marked as closed in order: no superblock may follow that says otherwise.
    is_closed: bool,
    /// A superblock shall note what is durable.
    note_wanted: bool,
    /// The superblock being written is only such a note.
    is_note: bool,
}

impl Round {
    /// The first round of an opening is to begin.
    pub(super) fn begin_opening(&mut self) {
        self.is_opening = true;
    }

    pub(super) fn new_poll(&mut self) {
        self.is_blocked = false;
    }

    /// Whether the store is being opened.
    pub(super) fn is_opening(&self) -> bool {
        self.is_opening
    }

    /// Whether no round is in progress.
    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Idle
    }

    pub(super) fn set_idle(&mut self, is_idle: bool) {
        self.is_idle = is_idle;
    }

    /// Whether the store is idle.
    pub(super) fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// There was no space for a table.
    pub(super) fn block(&mut self) {
        self.is_blocked = true;
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Segments that are about to be free.
    pub(super) fn coming(&self) -> u32 {
        (self.dying.len() + self.releasing.len()) as u32 + self.discards_in_flight
    }

    /// The catalogue may be longer than it was.
    pub(super) fn note_catalogue(&mut self, catalogue: &Catalogue) {
        self.catalogue_bytes = if catalogue.is_trivial() { 0 } else { catalogue.encode().len() as u64 };
    }

    /// 4 KiB blocks of the two tables of a round.
    pub(super) fn table_blocks(&self, segments: &Segments, operations_bytes: u64) -> u64 {
        let rows = u64::from(segments.used_count() + 1) * TABLE_ROW as u64;
        2 * (rows + self.catalogue_bytes + operations_bytes).div_ceil(TABLE_BLOCK_BYTES)
    }

    /// Whether a table may be the next thing appended.
    pub(super) fn may_begin(&self) -> bool {
        self.phase == Phase::Idle && !self.is_blocked && !self.is_closed
    }

    /// Whether a round is worth its tables.
    pub(super) fn is_worth_it(&self, counts: &SegmentCounts, reasons: &RoundReasons) -> bool {
        let wants_space = counts.reserve_is_touched() || self.is_idle || reasons.is_urgent;
        self.is_opening
            || reasons.wanted
            || reasons.sequences_low
            || reasons.segments_since_table >= SEGMENTS_PER_TABLE.max(counts.round_segments_max())
            || counts.dead >= counts.round_segments()
            || counts.dead >= counts.round_segments_least() && wants_space
    }

    /// Whether segments that a round let go will be free in a moment.
    pub(super) fn is_releasing(&self, segments: &Segments) -> bool {
        let unpinned = |&segment: &u32| segments.segment(segment).pins == 0;
        self.discards_in_flight > 0 || self.releasing.iter().any(unpinned)
    }

    /// Whether segments are about to be free without compaction having to go on. (What is being compacted may wait for just that.)
    pub(super) fn is_pending(&self, dead: u32) -> bool {
        self.phase != Phase::Idle || self.discards_in_flight > 0 || (dead > 0 && !self.is_blocked)
    }

    /// Whether segments are about to be free, or can be by a round.
    pub(super) fn can_free(&self, dead: u32) -> bool {
        self.is_pending(dead) || !self.releasing.is_empty()
    }

    /// Whether the tables are being written: then nothing else is appended.
    pub(super) fn is_writing_tables(&self) -> bool {
        self.phase == Phase::Table
    }

    /// The tables begin. Dead segments are left out of them.
    pub(super) fn begin(&mut self, segments: &mut Segments, tables: TableWriter) {
        self.phase = Phase::Table;
        self.dying = segments.take_dead();
        self.tables = tables;
    }

    /// The tables are written, up to this unit. `too_soon`: a planted fault.
    pub(super) fn tables_written(&mut self, lsn: u64, too_soon: bool) {
        if too_soon {
            self.releasing.extend(std::mem::take(&mut self.dying));
        }
        self.phase = Phase::TableSync { lsn };
    }

    /// There was no room even for one table.
    pub(super) fn fail(&mut self, segments: &mut Segments) {
        self.phase = Phase::Idle;
        for segment in std::mem::take(&mut self.dying) {
            segments.spare(segment);
        }
    }

    /// Whether a round waits for a sync. `is_dirty`: a superblock is not durable.
    pub(super) fn needs_sync(&self, durable_lsn: u64, is_dirty: bool) -> bool {
        match self.phase {
            Phase::TableSync { lsn } => lsn > durable_lsn,
            Phase::SuperblockSync { .. } => is_dirty,
            _ => false,
        }
    }

    /// Decides whether the superblock can be written. `too_early`: a planted fault.
    pub(super) fn next_step(&self, durable_lsn: u64, is_dirty: bool, is_writing: bool, too_early: bool) -> RoundStep {
        match self.phase {
            Phase::TableSync { lsn } if (lsn <= durable_lsn || too_early) && !is_dirty && !is_writing => {
                RoundStep::WriteSuperblock
            }
            Phase::TableSync { lsn } if lsn <= durable_lsn && is_dirty => RoundStep::Sync,
            _ => RoundStep::Nothing,
        }
    }

    /// The superblock of the round is about to be written.
    pub(super) fn begin_superblock(&mut self) {
        self.phase = Phase::Superblock { other: false };
        self.named = self.tables.written();
    }

    /// The tables that a superblock names.
    pub(super) fn named(&self) -> Tables {
        self.named
    }

    /// A superblock was written.
    pub(super) fn superblock_written(&mut self) {
        if std::mem::take(&mut self.is_note) {
            return;
        }
        if let Phase::Superblock { other } = self.phase {
            self.phase = Phase::SuperblockSync { other };
        }
    }

    /// Whether the superblock that becomes durable next is one of the round.
    pub(super) fn awaits_superblock_sync(&self) -> bool {
        matches!(self.phase, Phase::SuperblockSync { .. })
    }

    /// A superblock is durable. `one_for_both`: a planted fault.
    pub(super) fn superblock_synced(&mut self, one_for_both: bool) -> SuperblockSynced {
        let Phase::SuperblockSync { other } = self.phase else { return SuperblockSynced::Nothing };
        if other || one_for_both {
            // Both copies name the new tables, durably: what only older ones list is free.
            self.phase = Phase::Idle;
            (self.is_opening, self.is_idle) = (false, false);
            let dying = std::mem::take(&mut self.dying);
            self.releasing.extend(dying);
            SuperblockSynced::Ended
        } else {
            self.phase = Phase::Superblock { other: true };
            SuperblockSynced::WriteOther
        }
    }

    /// Asks for a note in a superblock of what is durable, or not.
    pub(super) fn want_note(&mut self, wanted: bool) {
        self.note_wanted = wanted;
    }

    /// Whether such a note is to be written now.
    pub(super) fn begins_note(&mut self) -> bool {
        let begins = self.note_wanted && self.phase == Phase::Idle;
        if begins {
            (self.note_wanted, self.is_note) = (false, true);
        }
        begins
    }

    pub(super) fn is_note(&self) -> bool {
        self.is_note
    }

    /// The store is being marked as closed: neither a table may follow (the sequences that such a superblock allows are used up) nor a
    /// note that says otherwise.
    pub(super) fn close(&mut self) {
        (self.is_closed, self.note_wanted) = (true, false);
    }

    /// The superblock that marks the store as closed is about to be written.
    pub(super) fn begin_closing_note(&mut self) {
        self.is_note = true;
    }

    /// These segments are free when no read of them is in flight any more.
    pub(super) fn release(&mut self, segments: impl IntoIterator<Item = u32>) {
        self.releasing.extend(segments);
    }

    /// Frees segments that nothing reads any more; gives the space of all but `warm_max` back to the host, a few segments at a time.
    /// Whether anything was begun, and how many segments are free at once.
    pub(super) fn free_segments(&mut self, medium: &mut LogMedium, warm_max: usize) -> (bool, u32) {
        let (mut progress, mut freed) = (false, 0);
        for _ in 0..self.releasing.len() {
            let Some(segment) = self.releasing.pop_front() else { break };
            let entry = medium.segments.segment(segment);
            if entry.pins > 0 {
                self.releasing.push_back(segment);
                continue;
            }
            if entry.whole && medium.segments.warm_count() < warm_max {
                medium.segments.release(segment, true);
                freed += 1;
            } else if self.discards_in_flight < DISCARDS_MAX {
                self.discards_in_flight += 1;
                let offset = medium.volume.layout.segment_at(segment);
                medium
                    .io
                    .start(Purpose::Discard { segment }, Io::Discard { offset, len: medium.volume.segment_bytes() });
            } else {
                self.releasing.push_front(segment);
                break;
            }
            progress = true;
        }
        (progress, freed)
    }

    /// The space of a free segment was given back, or not.
    pub(super) fn discarded(&mut self, segments: &mut Segments, volume: &Volume, segment: u32, result: io::Result<()>) {
        self.discards_in_flight -= 1;
        if let Err(error) = result {
            let volume = volume.info.volume_id;
            tracing::warn!(%volume, segment, %error, "space of a free segment was not given back");
        }
        segments.release(segment, false);
    }
}
