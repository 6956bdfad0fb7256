//! Being durable: syncs and who waits for them, and rounds: two segment tables, a sync, a superblock, a sync, its other copy, a sync;
//! then the segments that the tables do not list any more are free.

use std::collections::VecDeque;
use std::io;

use strongroom_block::Token;

use super::table::{TableWriter, Tables};
use super::{Purpose, Store};
use crate::backend::Io;
use crate::error::StoreError;
use crate::layout::SUPERBLOCK_AT;
use crate::op::{OpError, Outcome};
use crate::planted::PlantedFault;
use crate::superblock::Superblock;
use crate::unit::TABLE_ROW;

/// How many segments may be opened before a new table: bounds what recovery has to follow unit by unit. A large table comes more seldom.
const SEGMENTS_PER_TABLE: u32 = 256;
/// So many dead segments are worth a table in any case, ...
const ROUND_SEGMENTS_MAX: u32 = 32;
/// ... or, if that is more, as many as so many tables take.
const ROUND_TABLES: u64 = 32;
/// Where space is wanted as many as so many tables take do.
const ROUND_TABLES_LEAST: u32 = 8;
/// Tables that take whole segments may take this share of what a request that waits for space may cost in copies.
const TABLE_FUTILE_SHARE: u64 = 8;
/// Bytes of rows or catalogue that a record block of a table holds, at least.
const TABLE_BLOCK_BYTES: u64 = 3900;
/// Discards of free segments under way at a time: they share the medium with what somebody waits for.
const DISCARDS_MAX: u32 = 4;
/// How many store sequences a superblock allows beyond those handed out.
const SEQUENCES_AHEAD: u64 = 1 << 32;

struct Waiter {
    lsn: u64,
    token: Token,
    bytes: usize,
    outcome: Outcome,
}

/// Who waits for a sync.
#[derive(Default)]
pub(super) struct Syncs {
    /// What the sync in flight covers: units up to this one, and whether a superblock.
    in_flight: Option<(u64, bool)>,
    waiters: Vec<Waiter>,
    /// A superblock was written and is not known to be durable. No other may be written until it is: so one copy is
    /// always whole.
    superblock_dirty: bool,
    /// Sync although nobody waits.
    pub(super) force: bool,
}

impl Syncs {
    /// Whether no sync is in flight, and nobody waits for one.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.waiters.is_empty()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    /// The tables are on their way.
    Table,
    /// The tables must become durable.
    TableSync { lsn: u64 },
    /// A superblock that names them is on its way; `other`: into the other copy, after the first.
    Superblock { other: bool },
    /// That must become durable.
    SuperblockSync { other: bool },
}

/// A round: what makes dead segments free.
#[derive(Default)]
pub(super) struct Round {
    phase: Phase,
    /// The first round of an opening.
    pub(super) opening: bool,
    /// Nothing else is going on: whatever a round frees beyond what its table takes is worth it.
    pub(super) idle: bool,
    /// There was no space for a table; not again in this poll.
    pub(super) blocked: bool,
    /// What is being written.
    pub(super) tables: TableWriter,
    /// How long the catalogue is now.
    pub(super) catalogue_bytes: u64,
    /// Where the newest durable tables are.
    named: Tables,
    dying: Vec<u32>,
    /// Free but for reads in flight.
    pub(super) releasing: VecDeque<u32>,
    discards_in_flight: u32,
    /// Segments opened since the last table.
    pub(super) segments_since: u32,
    /// The store is being marked as closed in order: no superblock may follow that says otherwise.
    closed: bool,
    /// A superblock shall note what is durable.
    note_wanted: bool,
    /// The superblock being written is only a note.
    note: bool,
    writing: Option<Superblock>,
}

impl Round {
    /// The store is being opened.
    pub(super) fn is_opening(&self) -> bool {
        self.opening
    }

    /// None is on its way, nor anything of one.
    pub(super) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle && self.writing.is_none()
    }

    /// How many segments are on their way to be free.
    pub(super) fn coming(&self) -> u32 {
        (self.dying.len() + self.releasing.len()) as u32 + self.discards_in_flight
    }
}

impl Store {
    /// The first round of an opening: takes the accepted state over into a new epoch, durably, before any write.
    pub(crate) fn begin_epoch(&mut self) -> Result<(), StoreError> {
        self.round.opening = true;
        self.note_catalogue();
        self.find_reserve()?;
        while self.round.opening || self.round.phase != Phase::Idle {
            self.drive();
            if let Some(reason) = &self.refused {
                return Err(StoreError::io("opening the store")(io::Error::other(reason.clone())));
            }
            if self.round.blocked {
                let error = io::Error::from(io::ErrorKind::StorageFull);
                return Err(match (self.segments.free_count(), self.segments.avoided()) {
                    (0, 0) => StoreError::NoFreeSegment,
                    (0, unreadable) => StoreError::FreeUnreadable { unreadable },
                    _ => StoreError::io("opening the store")(error),
                });
            }
            self.wait_for_io();
        }
        Ok(())
    }

    pub(super) fn complete_when_durable(&mut self, lsn: u64, token: Token, bytes: usize, outcome: Outcome) {
        if lsn <= self.head.durable_lsn || self.options.planted.has(PlantedFault::SyncLeftOut) {
            self.complete(token, bytes, Ok(outcome));
        } else {
            self.syncs.waiters.push(Waiter { lsn, token, bytes, outcome });
        }
    }

    pub(super) fn fail_waiters(&mut self, refusal: &OpError) -> bool {
        let waiters = std::mem::take(&mut self.syncs.waiters);
        let progress = !waiters.is_empty();
        for waiter in waiters {
            self.complete(waiter.token, waiter.bytes, Err(refusal.clone()));
        }
        progress
    }

    pub(super) fn drive_syncs(&mut self) -> bool {
        if self.syncs.in_flight.is_some() || self.refused.is_some() {
            return false;
        }
        let round = match self.round.phase {
            Phase::TableSync { lsn } => lsn > self.head.durable_lsn,
            Phase::SuperblockSync { .. } => self.syncs.superblock_dirty,
            _ => false,
        };
        let wanted = round || self.syncs.force || self.syncs.waiters.iter().any(|w| w.lsn > self.head.durable_lsn);
        if wanted {
            self.syncs.force = false;
            self.syncs.in_flight = Some((self.head.completed_lsn, self.syncs.superblock_dirty));
            self.start_io(Purpose::Sync, Io::Sync);
        }
        wanted
    }

    pub(super) fn sync_done(&mut self, result: io::Result<()>) {
        let (lsn, superblock) = self.syncs.in_flight.take().expect("one sync is in flight");
        if let Err(error) = result {
            self.refuse_writes("syncing the log", &error);
            return;
        }
        self.stats.syncs += 1;
        // While it was dirty no other was written, so this sync was for the one that waits now.
        self.syncs.superblock_dirty &= !superblock;
        self.head.durable_lsn = self.head.durable_lsn.max(lsn);
        let (ready, waiting) = std::mem::take(&mut self.syncs.waiters).into_iter().partition(|w| w.lsn <= lsn);
        self.syncs.waiters = waiting;
        let ready: Vec<Waiter> = ready;
        for waiter in ready {
            self.complete(waiter.token, waiter.bytes, Ok(waiter.outcome));
        }
        if let Phase::SuperblockSync { other } = self.round.phase
            && superblock
        {
            self.grow_synced();
            if other || self.options.planted.has(PlantedFault::OneSuperblockForBoth) {
                self.end_round();
            } else {
                self.round.phase = Phase::Superblock { other: true };
                self.write_superblock(false);
            }
        }
    }

    /// Both copies of the superblock name the new tables, durably: what only older ones list is free.
    fn end_round(&mut self) {
        self.round.phase = Phase::Idle;
        (self.round.opening, self.round.idle) = (false, false);
        let dying = std::mem::take(&mut self.round.dying);
        self.round.releasing.extend(dying);
        self.checkpoint_named();
    }

    /// Whether a segment table should be the next thing appended.
    pub(super) fn wants_table(&mut self) -> bool {
        if self.round.phase != Phase::Idle || self.round.blocked || self.round.closed {
            return false;
        }
        let dead = self.segments.dead_count();
        // Those that a round before this one frees count: otherwise a table follows for the few that died meanwhile.
        let scarce = self.segments.free_count() + self.round.coming() <= self.reserved_segments();
        let sequences_low = self.head.next_sequence + SEQUENCES_AHEAD / 2 > self.superblock.sequence_limit;
        self.round.opening
            || self.grow_wants_round()
            || self.checkpoints.wants_round()
            || sequences_low
            || self.round.segments_since >= SEGMENTS_PER_TABLE.max(self.round_segments_max())
            || dead >= self.round_segments()
            || dead >= self.round_segments_least() && (scarce || self.round.idle || self.cleaner.urgent)
            // Nothing else makes room for the request that waits.
            || dead > 0
                && self.cleaner.urgent
                && !self.is_releasing()
                && !(self.copies_have_room() && self.cleaning_possible())
    }

    /// How many 4 KiB blocks the two tables of a round take.
    pub(super) fn table_blocks(&self) -> u64 {
        let rows = u64::from(self.segments.used_count() + 1) * TABLE_ROW as u64;
        2 * (rows + self.round.catalogue_bytes + self.operations.encoded_bytes()).div_ceil(TABLE_BLOCK_BYTES)
    }

    /// How many whole segments these take; none in most stores.
    pub(super) fn table_segments(&self) -> u32 {
        (self.table_blocks() / u64::from(self.layout.segment_blocks() - 1)) as u32
    }

    fn round_segments_max(&self) -> u32 {
        let tables = ROUND_TABLES * self.table_blocks() / u64::from(self.layout.segment_blocks());
        (tables as u32).max(ROUND_SEGMENTS_MAX)
    }

    /// How many dead segments are worth a segment table (which lets them go), though there is no want of space.
    pub(super) fn round_segments(&self) -> u32 {
        (self.layout.segments / 64).clamp(1, self.round_segments_max())
    }

    /// How many are worth one where space is wanted: any, unless a table takes whole segments itself.
    fn round_segments_least(&self) -> u32 {
        (ROUND_TABLES_LEAST * self.table_segments()).clamp(1, self.round_segments())
    }

    /// How many segments only cleaning, tables and opening may use: half of them, which is what discards leave, hold a table.
    pub(super) fn reserved_segments(&self) -> u32 {
        self.layout.reserved_segments() + 2 * self.table_segments()
    }

    /// The catalogue may be longer than it was.
    pub(super) fn note_catalogue(&mut self) {
        let trivial = self.map.catalogue.is_trivial();
        self.round.catalogue_bytes = if trivial { 0 } else { self.map.catalogue.encode().len() as u64 };
    }

    /// Whether segments that a round let go will be free in a moment.
    pub(super) fn is_releasing(&self) -> bool {
        let unpinned = |&segment: &u32| self.segments.segment(segment).pins == 0;
        self.round.discards_in_flight > 0 || self.round.releasing.iter().any(unpinned)
    }

    /// Whether segments are on their way to be free without cleaning having to go on. (What is being cleaned may wait for just that.)
    pub(super) fn round_pending(&self) -> bool {
        self.round.phase != Phase::Idle
            || self.round.discards_in_flight > 0
            || (self.segments.dead_count() > 0 && !self.round.blocked)
    }

    /// Whether segments are on their way to be free, or can be made so.
    pub(super) fn reclaim_possible(&mut self) -> bool {
        let round = self.round.phase != Phase::Idle || !self.round.releasing.is_empty();
        round
            || self.round.discards_in_flight > 0
            || (self.segments.dead_count() > 0 && !self.round.blocked)
            || self.cleaning_possible()
    }

    /// Whether the tables of a round are being written: then nothing else is appended.
    pub(super) fn is_writing_tables(&self) -> bool {
        self.round.phase == Phase::Table
    }

    /// The tables are on their way. What is dead is left out of them.
    pub(super) fn round_begins(&mut self) {
        self.round.phase = Phase::Table;
        self.checkpoint_at_table();
        self.grow_at_table();
        self.round.segments_since = 0;
        self.round.dying = self.segments.take_dead();
        let whole = u64::from(self.table_segments()) * u64::from(self.layout.segment_bytes);
        self.cleaner.copied_for_front += TABLE_FUTILE_SHARE * whole;
    }

    /// The tables are written, up to this unit.
    pub(super) fn tables_written(&mut self, lsn: u64) {
        if self.options.planted.has(PlantedFault::SegmentReusedTooSoon) {
            self.round.releasing.extend(std::mem::take(&mut self.round.dying));
        }
        self.round.phase = Phase::TableSync { lsn };
    }

    /// There was no room even for one.
    pub(super) fn round_failed(&mut self) {
        self.round.phase = Phase::Idle;
        self.grow_table_failed();
        for segment in std::mem::take(&mut self.round.dying) {
            self.segments.spare(segment);
        }
    }

    pub(super) fn drive_round(&mut self) -> bool {
        let mut progress = false;
        if let Phase::TableSync { lsn } = self.round.phase {
            let free = !self.syncs.superblock_dirty && self.round.writing.is_none();
            let too_early = self.options.planted.has(PlantedFault::TableTooEarly);
            if (lsn <= self.head.durable_lsn || too_early) && free && self.refused.is_none() {
                self.round.phase = Phase::Superblock { other: false };
                self.round.named = self.round.tables.written();
                self.write_superblock(false);
                progress = true;
            } else if lsn <= self.head.durable_lsn && self.syncs.superblock_dirty {
                self.syncs.force = true;
            }
        }
        progress | self.drive_note() | self.release_segments()
    }

    fn write_superblock(&mut self, clean: bool) {
        let Tables { first, second } = self.round.named;
        let ahead = if clean { 0 } else { SEQUENCES_AHEAD };
        let note = self.round.note;
        let note = note && !self.options.planted.has(PlantedFault::CheckpointTooEarly);
        let checkpoint = if note { self.superblock.checkpoint } else { self.checkpoint_for_superblock() };
        let mut superblock = Superblock {
            checkpoint,
            serial: self.superblock.serial + 1,
            open_epoch: self.head.open_epoch,
            open_id: self.head.open_id,
            table_segment: first.segment,
            table_block: first.block,
            table_lsn: first.lsn,
            second_table: second,
            sequence_limit: self.head.next_sequence + ahead,
            next_generation: self.head.next_generation,
            durable_lsn: self.head.durable_lsn,
            clean,
            ..self.superblock.clone()
        };
        if !self.round.note {
            self.grow_in(&mut superblock);
        }
        let copy = self.superblock_copy ^ 1;
        let buffers = vec![superblock.encode(copy).freeze()];
        self.round.writing = Some(superblock);
        self.start_io(Purpose::Superblock, Io::Write { offset: SUPERBLOCK_AT[copy], buffers });
    }

    pub(super) fn superblock_done(&mut self, result: io::Result<()>) {
        let superblock = self.round.writing.take().expect("one superblock is being written");
        if let Err(error) = result {
            self.refuse_writes("writing the superblock", &error);
            return;
        }
        self.superblock = superblock;
        self.superblock_copy ^= 1;
        if self.growing.is_none() {
            self.info = self.superblock.info();
        }
        self.syncs.superblock_dirty = true;
        if std::mem::take(&mut self.round.note) {
            return;
        }
        if let Phase::Superblock { other } = self.round.phase {
            self.round.phase = Phase::SuperblockSync { other };
        }
    }

    /// Asks for a note in a superblock of what is durable. Not synced: a note lost is only a note lost.
    pub(super) fn note_durable(&mut self) {
        self.round.note_wanted = self.superblock.durable_lsn < self.head.durable_lsn;
        // The superblock before must be durable first.
        self.syncs.force |= self.round.note_wanted && self.syncs.superblock_dirty;
        self.drive();
    }

    fn drive_note(&mut self) -> bool {
        let busy = self.round.phase != Phase::Idle || self.round.writing.is_some() || self.refused.is_some();
        if !self.round.note_wanted || busy || self.syncs.superblock_dirty {
            return false;
        }
        self.round.note_wanted = false;
        self.round.note = true;
        self.write_superblock(false);
        true
    }

    /// Marks both copies of the superblock as closed in order, one after the other. Nothing else may be in flight.
    pub(super) fn mark_closed(&mut self) {
        // Neither a table (the sequences that such a superblock allows are used up) nor a note.
        (self.round.closed, self.round.note_wanted) = (true, false);
        for _ in 0..2 {
            self.syncs.force = self.syncs.superblock_dirty;
            self.settle();
            if self.refused.is_some() {
                return;
            }
            self.round.note = true;
            self.write_superblock(true);
            self.syncs.force = true;
            self.settle();
        }
        self.syncs.force = self.syncs.superblock_dirty;
        self.settle();
    }

    /// Frees what nothing reads any more; gives the space of most of it back to the host, a few segments at a time.
    fn release_segments(&mut self) -> bool {
        let mut progress = false;
        for _ in 0..self.round.releasing.len() {
            let Some(segment) = self.round.releasing.pop_front() else { break };
            let entry = self.segments.segment(segment);
            let stays_warm = entry.whole && self.segments.warm_count() < self.warm_max();
            if entry.pins > 0 {
                self.round.releasing.push_back(segment);
                continue;
            }
            if stays_warm {
                self.segments.release(segment, true);
                self.space_came();
            } else if self.round.discards_in_flight < DISCARDS_MAX {
                self.round.discards_in_flight += 1;
                let (offset, len) = (self.layout.segment_at(segment), u64::from(self.layout.segment_bytes));
                self.start_io(Purpose::Discard { segment }, Io::Discard { offset, len });
            } else {
                self.round.releasing.push_front(segment);
                break;
            }
            progress = true;
        }
        progress
    }

    pub(super) fn discard_done(&mut self, segment: u32, result: io::Result<()>) {
        self.round.discards_in_flight -= 1;
        if let Err(error) = result {
            tracing::warn!(volume = %self.info.volume_id, segment, %error, "space of a free segment was not given back");
        }
        self.segments.release(segment, false);
        self.space_came();
    }
}
