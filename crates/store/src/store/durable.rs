//! Durability: what syncs, rounds, superblocks and checkpoints do to the store.

use std::io;

use strongroom_block::Token;

use super::Store;
use super::appender::UnitContent;
use super::checkpointer::CheckpointContext;
use super::reading::read_access;
use super::round::{RoundReasons, RoundStep, SuperblockSynced};
use super::space::copies_have_room;
use super::syncs::Waiter;
use super::table::{TableWriter, Tables, has_room_for_second};
use super::update::GroupKind;
use crate::error::StoreError;
use crate::op::{OpError, Outcome};
use crate::planted::PlantedFault;
use crate::superblock::Superblock;

/// Tables that take whole segments may take this share of what a request that waits for space may cost in copies.
const TABLE_FUTILE_SHARE: u64 = 8;
/// How many store sequences a superblock allows beyond those in use.
const SEQUENCES_AHEAD: u64 = 1 << 32;

impl Store {
    /// The first round of an opening: takes the recovered state over into a new epoch, durably, before any write.
    pub(crate) fn begin_epoch(&mut self) -> Result<(), StoreError> {
        self.round.begin_opening();
        self.note_catalogue();
        let counts = self.counts();
        self.space.find_reserve(&mut self.io, &mut self.segments, &counts, &self.volume)?;
        let counts = self.counts();
        self.space.update_state(&counts);
        while self.round.is_opening() || !self.round.is_over() {
            self.drive();
            if let Some(reason) = self.requests.refusal_reason() {
                return Err(StoreError::io("opening the store")(io::Error::other(reason.to_owned())));
            }
            if self.round.is_blocked() {
                let error = io::Error::from(io::ErrorKind::StorageFull);
                return Err(match (self.segments.free_count(), self.segments.avoided()) {
                    (0, 0) => StoreError::NoFreeSegment,
                    (0, unreadable) => StoreError::FreeUnreadable { unreadable },
                    _ => StoreError::io("opening the store")(error),
                });
            }
            self.io.wait();
        }
        Ok(())
    }

    /// Completes a request when the log is durable up to a unit.
    pub(super) fn answer_when_durable(&mut self, lsn: u64, token: Token, bytes: usize, outcome: Outcome) {
        if lsn <= self.log.head.durable_lsn || self.volume.has_planted(PlantedFault::SyncLeftOut) {
            self.requests.complete(token, bytes, Ok(outcome));
        } else {
            self.syncs.wait(Waiter { lsn, token, bytes, outcome });
        }
    }

    /// Fails all requests that wait to be durable.
    pub(super) fn fail_waiters(&mut self, refusal: &OpError) -> bool {
        let waiters = self.syncs.take_all();
        for waiter in &waiters {
            self.requests.complete(waiter.token, waiter.bytes, Err(refusal.clone()));
        }
        !waiters.is_empty()
    }

    pub(super) fn drive_syncs(&mut self) -> bool {
        if self.requests.is_refused() {
            return false;
        }
        let (head, is_dirty) = (&self.log.head, self.superblocks.is_dirty());
        let for_round = self.round.needs_sync(head.durable_lsn, is_dirty);
        self.syncs.advance(&mut self.io, (head.completed_lsn, head.durable_lsn), is_dirty, for_round)
    }

    pub(super) fn sync_done(&mut self, result: io::Result<()>) {
        let synced = self.syncs.done();
        if let Err(error) = result {
            self.requests.refuse_writes("syncing the log", &error);
            return;
        }
        self.syncs.count += 1;
        if synced.superblock {
            // While it was dirty no other was written, so this sync was for the one that waits now.
            self.superblocks.synced();
        }
        self.log.head.durable_lsn = self.log.head.durable_lsn.max(synced.lsn);
        for waiter in self.syncs.take_ready(synced.lsn) {
            self.requests.complete(waiter.token, waiter.bytes, Ok(waiter.outcome));
        }
        if synced.superblock && self.round.awaits_superblock_sync() {
            self.growth_synced();
            let one_for_both = self.volume.has_planted(PlantedFault::OneSuperblockForBoth);
            match self.round.superblock_synced(one_for_both) {
                SuperblockSynced::Nothing => {}
                SuperblockSynced::WriteOther => self.write_superblock(false),
                SuperblockSynced::Ended => {
                    let mut released = Vec::new();
                    self.checkpointer.round_ended(&mut self.segments, &mut released);
                    self.round.release(released);
                }
            }
        }
    }

    /// Whether no round is in progress, nor a superblock being written.
    pub(super) fn no_round(&self) -> bool {
        self.round.is_over() && !self.superblocks.is_writing()
    }

    /// Whether a segment table should be the next thing appended.
    pub(super) fn wants_table(&mut self) -> bool {
        if !self.round.may_begin() {
            return false;
        }
        let counts = self.counts();
        let is_urgent = self.room.is_urgent();
        let reasons = RoundReasons {
            wanted: self.growth_wants_round() || self.checkpointer.wants_round(),
            sequences_low: self.log.head.next_sequence + SEQUENCES_AHEAD / 2
                > self.superblocks.current().sequence_limit,
            segments_since_table: self.log.segments_since_table,
            is_urgent,
        };
        self.round.is_worth_it(&counts, &reasons)
            // Nothing else makes room for the request that waits.
            || counts.dead > 0
                && is_urgent
                && !self.round.is_releasing(&self.segments)
                && !(copies_have_room(&counts) && {
                    let context = self.compaction_context();
                    self.compactor.can_free(&self.segments, &context)
                })
    }

    /// Appends the next unit of a table; the first one begins a round.
    pub(super) fn append_table(&mut self) -> bool {
        let begins = !self.log.group.open;
        if self.round.is_writing_tables() && begins && !has_room_for_second(&self.counts(), self.log.blocks_left()) {
            let lsn = self.round.tables.first_end().expect("the first table comes first");
            self.tables_written(lsn);
            return true;
        }
        let Some(limit) = self.unit_limit(2) else { return true };
        if begins {
            self.begin_table();
        }
        let (unit, last) = self.round.tables.next_unit(&self.segments, self.volume.layout, limit);
        self.append_unit(unit, UnitContent::default(), GroupKind::Table, last);
        true
    }

    /// Every segment that is needed is listed, up to where the first table begins.
    fn begin_table(&mut self) {
        if self.round.is_writing_tables() {
            self.round.tables.begin_second(&self.log.head);
            return;
        }
        self.checkpointer.round_begins();
        if let Some(growth) = &mut self.growth {
            growth.round_begins();
        }
        self.log.segments_since_table = 0;
        let catalogue = &self.map.catalogue;
        let catalogue = if catalogue.is_trivial() { Vec::new() } else { catalogue.encode() };
        let operations = self.writes.operations.encode();
        let tables = TableWriter::begin(&self.log.head, &self.segments, catalogue, operations);
        self.round.begin(&mut self.segments, tables);
        let counts = self.counts();
        let whole = u64::from(counts.table_segments()) * counts.segment_bytes;
        self.room.note_copied(TABLE_FUTILE_SHARE * whole);
    }

    /// A table is complete.
    pub(super) fn table_written(&mut self, lsn: u64) {
        if self.round.tables.table_written(&self.log.head, &self.segments, lsn) {
            self.tables_written(lsn);
        }
    }

    fn tables_written(&mut self, lsn: u64) {
        let too_soon = self.volume.has_planted(PlantedFault::SegmentReusedTooSoon);
        self.round.tables_written(lsn, too_soon);
    }

    /// A table found no space. The first one is enough, if it is complete.
    pub(super) fn table_failed(&mut self) {
        if let Some(lsn) = self.round.tables.first_end() {
            return self.tables_written(lsn);
        }
        if self.growth.as_ref().is_some_and(super::growth::Growth::is_in_round) {
            // It does not wait for another round, which would meet the same end for as long as the medium is full.
            self.fail_growth(OpError::NoSpace);
        }
        self.round.fail(&mut self.segments);
    }

    /// A segment that a table was to go on in found no space.
    pub(super) fn tables_out_of_space(&mut self) {
        self.round.tables.drop_rows();
        // Before its first unit there is no group that fails.
        if self.round.is_writing_tables() {
            self.table_failed();
        }
    }

    /// The catalogue may be longer than it was.
    pub(super) fn note_catalogue(&mut self) {
        let catalogue = &self.map.catalogue;
        let bytes = if catalogue.is_trivial() { 0 } else { catalogue.encode().len() as u64 };
        self.round.set_catalogue_bytes(bytes);
    }

    pub(super) fn drive_round(&mut self) -> bool {
        let mut progress = false;
        let (is_dirty, is_writing) = (self.superblocks.is_dirty(), self.superblocks.is_writing());
        let too_early = self.volume.has_planted(PlantedFault::TableTooEarly);
        match self.round.next_step(self.log.head.durable_lsn, is_dirty, is_writing, too_early) {
            RoundStep::WriteSuperblock if !self.requests.is_refused() => {
                self.round.begin_superblock();
                self.write_superblock(false);
                progress = true;
            }
            RoundStep::Sync => self.syncs.force(),
            RoundStep::WriteSuperblock | RoundStep::Nothing => {}
        }
        progress | self.drive_note() | self.free_segments()
    }

    fn write_superblock(&mut self, clean: bool) {
        let Tables { first, second } = self.round.named();
        let ahead = if clean { 0 } else { SEQUENCES_AHEAD };
        let too_early = self.volume.has_planted(PlantedFault::CheckpointTooEarly);
        let current = self.superblocks.current();
        let checkpoint = if self.round.is_note() && !too_early {
            current.checkpoint
        } else {
            self.checkpointer.named_by_round(current.checkpoint, too_early)
        };
        let head = &self.log.head;
        let mut superblock = Superblock {
            checkpoint,
            open_epoch: head.open_epoch,
            open_id: head.open_id,
            table_segment: first.segment,
            table_block: first.block,
            table_lsn: first.lsn,
            second_table: second,
            sequence_limit: head.next_sequence + ahead,
            next_generation: head.next_generation,
            durable_lsn: head.durable_lsn,
            clean,
            ..current.clone()
        };
        if !self.round.is_note()
            && let Some(growth) = &mut self.growth
        {
            growth.change_superblock(&mut superblock);
        }
        self.superblocks.start_write(&mut self.io, superblock);
    }

    pub(super) fn superblock_done(&mut self, result: io::Result<()>) {
        self.superblocks.write_done(result.is_ok());
        if let Err(error) = result {
            self.requests.refuse_writes("writing the superblock", &error);
            return;
        }
        if self.growth.is_none() {
            self.volume.info = self.superblocks.current().info();
        }
        self.round.superblock_written();
    }

    /// Asks for a note in a superblock of what is durable. It is not synced: losing it costs only the note.
    pub(super) fn note_durable(&mut self) {
        let wanted = self.superblocks.current().durable_lsn < self.log.head.durable_lsn;
        self.round.want_note(wanted);
        if wanted && self.superblocks.is_dirty() {
            // The superblock before must be durable first.
            self.syncs.force();
        }
        self.drive();
    }

    fn drive_note(&mut self) -> bool {
        let busy = self.superblocks.is_writing() || self.superblocks.is_dirty() || self.requests.is_refused();
        if busy || !self.round.begins_note() {
            return false;
        }
        self.write_superblock(false);
        true
    }

    /// Marks both copies of the superblock as closed in order, one after the other. Nothing else may be in flight.
    pub(super) fn mark_closed(&mut self) {
        self.round.close();
        for _ in 0..2 {
            self.sync_superblock();
            if self.requests.is_refused() {
                return;
            }
            self.round.begin_closing_note();
            self.write_superblock(true);
            self.syncs.force();
            self.settle();
        }
        self.sync_superblock();
    }

    fn sync_superblock(&mut self) {
        if self.superblocks.is_dirty() {
            self.syncs.force();
        }
        self.settle();
    }

    pub(super) fn drive_checkpointer(&mut self) -> bool {
        if self.requests.is_refused() || self.round.is_opening() || self.compactor.is_stopped() {
            return false;
        }
        let context = CheckpointContext {
            log_bytes: self.log.counters.log_bytes(),
            applied_generation: self.log.applied_generation,
            reserve: self.counts().reserve(),
        };
        let mut released = Vec::new();
        let access = &mut read_access!(self);
        let progress = self.checkpointer.advance(access, &mut self.log.head, &context, &mut released);
        self.round.release(released);
        progress
    }

    pub(super) fn checkpoint_written(&mut self, result: io::Result<()>) {
        let (log_bytes, mut released) = (self.log.counters.log_bytes(), Vec::new());
        let written = self.checkpointer.piece_written(&mut self.segments, log_bytes, result, &mut released);
        self.round.release(released);
        if let Err(error) = written {
            self.requests.refuse_writes("writing a checkpoint", &error);
        }
    }

    /// Checkpoints make way for a request.
    pub(super) fn drop_checkpoint(&mut self) {
        let (log_bytes, mut released) = (self.log.counters.log_bytes(), Vec::new());
        self.checkpointer.drop_for_space(&mut self.segments, log_bytes, &mut released);
        self.round.release(released);
    }
}
