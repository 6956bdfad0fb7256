//! Durability: what syncs, rounds, superblocks and checkpoints do to the store.

use std::io;

use strongroom_block::Token;

use super::Store;
use super::appender::UnitContent;
use super::checkpointer::CheckpointContext;
use super::reading::read_access;
use super::round::{RoundStep, SuperblockSynced};
use super::space::copies_have_room;
use super::syncs::Waiter;
use super::table::{TableWriter, has_room_for_second};
use super::update::GroupKind;
use crate::error::StoreError;
use crate::op::{OpError, Outcome};
use crate::planted::PlantedFault;

/// Tables that take whole segments may take this share of what a request that waits for space may cost in copies.
const TABLE_FUTILE_SHARE: u64 = 8;
impl Store {
    /// The first round of an opening: takes the recovered state over into a new epoch, durably, before any write.
    pub(crate) fn begin_epoch(&mut self) -> Result<(), StoreError> {
        self.durability.round.begin_opening();
        self.note_catalogue();
        let counts = self.counts();
        self.space.find_reserve(&mut self.io, &mut self.segments, &counts, &self.volume)?;
        let counts = self.counts();
        self.space.update_state(&counts);
        while self.durability.round.is_opening() || !self.durability.round.is_over() {
            self.drive();
            if let Some(reason) = self.requests.refusal_reason() {
                return Err(StoreError::io("opening the store")(io::Error::other(reason.to_owned())));
            }
            if self.durability.round.is_blocked() {
                let error = io::Error::from(io::ErrorKind::StorageFull);
                return Err(match (self.segments.free_count(), self.segments.avoided) {
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
            self.durability.syncs.wait(Waiter { lsn, token, bytes, outcome });
        }
    }

    /// Fails all requests that wait to be durable.
    pub(super) fn fail_waiters(&mut self, refusal: &OpError) -> bool {
        let waiters = self.durability.syncs.take_all();
        for waiter in &waiters {
            self.requests.complete(waiter.token, waiter.bytes, Err(refusal.clone()));
        }
        !waiters.is_empty()
    }

    pub(super) fn drive_syncs(&mut self) -> bool {
        if self.requests.is_refused() {
            return false;
        }
        self.durability.advance_syncs(&mut self.io, &self.log.head)
    }

    pub(super) fn sync_done(&mut self, result: io::Result<()>) {
        let synced = self.durability.syncs.done();
        if let Err(error) = result {
            self.requests.refuse_writes("syncing the log", &error);
            return;
        }
        self.durability.syncs.count += 1;
        if synced.superblock {
            // While it was dirty no other was written, so this sync was for the one that waits now.
            self.durability.superblocks.synced();
        }
        self.log.head.durable_lsn = self.log.head.durable_lsn.max(synced.lsn);
        for waiter in self.durability.syncs.take_ready(synced.lsn) {
            self.requests.complete(waiter.token, waiter.bytes, Ok(waiter.outcome));
        }
        if synced.superblock && self.durability.round.awaits_superblock_sync() {
            self.growth_synced();
            let one_for_both = self.volume.has_planted(PlantedFault::OneSuperblockForBoth);
            match self.durability.round.superblock_synced(one_for_both) {
                SuperblockSynced::Nothing => {}
                SuperblockSynced::WriteOther => {
                    self.durability.write_superblock(&mut self.io, &self.log.head, &self.volume, false)
                }
                SuperblockSynced::Ended => self.durability.round_ended(&mut self.segments),
            }
        }
    }

    /// Whether a segment table should be the next thing appended.
    pub(super) fn wants_table(&mut self) -> bool {
        if !self.durability.round.may_begin() {
            return false;
        }
        let counts = self.counts();
        let is_urgent = self.space.room.is_urgent();
        let segments_since_table = self.log.segments_since_table;
        let reasons = self.durability.round_reasons(&self.log.head, segments_since_table, is_urgent);
        self.durability.round.is_worth_it(&counts, &reasons)
            // Nothing else makes room for the request that waits.
            || counts.dead > 0
                && is_urgent
                && !self.durability.round.is_releasing(&self.segments)
                && !(copies_have_room(&counts) && {
                    let context = self.compaction_context();
                    self.compactor.can_free(&self.segments, &context)
                })
    }

    /// Appends the next unit of a table; the first one begins a round.
    pub(super) fn append_table(&mut self) -> bool {
        let begins = !self.log.group.open;
        if self.durability.round.is_writing_tables()
            && begins
            && !has_room_for_second(&self.counts(), self.log.blocks_left())
        {
            let lsn = self.durability.round.tables.first_end().expect("the first table comes first");
            self.tables_written(lsn);
            return true;
        }
        let Some(limit) = self.unit_limit(2) else { return true };
        if begins {
            self.begin_table();
        }
        let (unit, last) = self.durability.round.tables.next_unit(&self.segments, self.volume.layout, limit);
        self.append_unit(unit, UnitContent::default(), GroupKind::Table, last);
        true
    }

    /// Every segment that is needed is listed, up to where the first table begins.
    fn begin_table(&mut self) {
        if self.durability.round.is_writing_tables() {
            self.durability.round.tables.begin_second(&self.log.head);
            return;
        }
        self.log.segments_since_table = 0;
        let catalogue = &self.views.map.catalogue;
        let catalogue = if catalogue.is_trivial() { Vec::new() } else { catalogue.encode() };
        let operations = self.writes.operations.encode();
        let tables = TableWriter::begin(&self.log.head, &self.segments, catalogue, operations);
        self.durability.begin_round(&mut self.segments, tables);
        let counts = self.counts();
        let whole = u64::from(counts.table_segments()) * counts.segment_bytes;
        self.space.room.note_copied(TABLE_FUTILE_SHARE * whole);
    }

    /// A table is complete.
    pub(super) fn table_written(&mut self, lsn: u64) {
        if self.durability.round.tables.table_written(&self.log.head, &self.segments, lsn) {
            self.tables_written(lsn);
        }
    }

    fn tables_written(&mut self, lsn: u64) {
        let too_soon = self.volume.has_planted(PlantedFault::SegmentReusedTooSoon);
        self.durability.round.tables_written(lsn, too_soon);
    }

    /// A table found no space. The first one is enough, if it is complete.
    pub(super) fn table_failed(&mut self) {
        if let Some(lsn) = self.durability.round.tables.first_end() {
            return self.tables_written(lsn);
        }
        if self.durability.growth.as_ref().is_some_and(super::growth::Growth::is_in_round) {
            // It does not wait for another round, which would meet the same end for as long as the medium is full.
            self.fail_growth(OpError::NoSpace);
        }
        self.durability.round.fail(&mut self.segments);
    }

    /// A segment that a table was to go on in found no space.
    pub(super) fn tables_out_of_space(&mut self) {
        self.durability.round.tables.drop_rows();
        // Before its first unit there is no group that fails.
        if self.durability.round.is_writing_tables() {
            self.table_failed();
        }
    }

    /// The catalogue may be longer than it was.
    pub(super) fn note_catalogue(&mut self) {
        let catalogue = &self.views.map.catalogue;
        let bytes = if catalogue.is_trivial() { 0 } else { catalogue.encode().len() as u64 };
        self.durability.round.set_catalogue_bytes(bytes);
    }

    pub(super) fn drive_round(&mut self) -> bool {
        let mut progress = false;
        let (is_dirty, is_writing) = (self.durability.superblocks.is_dirty(), self.durability.superblocks.is_writing());
        let too_early = self.volume.has_planted(PlantedFault::TableTooEarly);
        match self.durability.round.next_step(self.log.head.durable_lsn, is_dirty, is_writing, too_early) {
            RoundStep::WriteSuperblock if !self.requests.is_refused() => {
                self.durability.round.begin_superblock();
                self.durability.write_superblock(&mut self.io, &self.log.head, &self.volume, false);
                progress = true;
            }
            RoundStep::Sync => self.durability.syncs.force(),
            RoundStep::WriteSuperblock | RoundStep::Nothing => {}
        }
        if !self.requests.is_refused() && self.durability.begins_note() {
            self.durability.write_superblock(&mut self.io, &self.log.head, &self.volume, false);
            progress = true;
        }
        progress | self.free_segments()
    }

    pub(super) fn superblock_done(&mut self, result: io::Result<()>) {
        self.durability.superblocks.write_done(result.is_ok());
        if let Err(error) = result {
            self.requests.refuse_writes("writing the superblock", &error);
            return;
        }
        if self.durability.growth.is_none() {
            self.volume.info = self.durability.superblocks.current().info();
        }
        self.durability.round.superblock_written();
    }

    /// Marks both copies of the superblock as closed in order, one after the other. Nothing else may be in flight.
    pub(super) fn mark_closed(&mut self) {
        self.durability.round.close();
        for _ in 0..2 {
            self.durability.sync_superblock();
            self.settle();
            if self.requests.is_refused() {
                return;
            }
            self.durability.round.begin_closing_note();
            self.durability.write_superblock(&mut self.io, &self.log.head, &self.volume, true);
            self.durability.syncs.force();
            self.settle();
        }
        self.durability.sync_superblock();
        self.settle();
    }

    pub(super) fn drive_checkpointer(&mut self) -> bool {
        if self.requests.is_refused() || self.durability.round.is_opening() || self.compactor.is_stopped() {
            return false;
        }
        let context = CheckpointContext {
            log_bytes: self.log.counters.log_bytes(),
            applied_generation: self.log.applied_generation,
            reserve: self.counts().reserve(),
        };
        self.durability.advance_checkpoint(&mut read_access!(self), &mut self.log.head, &context)
    }

    pub(super) fn checkpoint_written(&mut self, result: io::Result<()>) {
        let log_bytes = self.log.counters.log_bytes();
        if let Err(error) = self.durability.checkpoint_written(&mut self.segments, log_bytes, result) {
            self.requests.refuse_writes("writing a checkpoint", &error);
        }
    }
}
