//! What makes the log durable: syncs, rounds with their tables, the superblock, checkpoints, and a growth that a round makes durable.

use std::io;

use strongroom_block::Token;

use super::access::{LogMedium, ReadAccess};
use super::appender::{Appender, NoSegment, UnitContent};
use super::checkpointer::{CheckpointContext, Checkpointer};
use super::growth::Growth;
use super::io::IoQueue;
use super::policy::SegmentCounts;
use super::requests::Requests;
use super::round::{Round, RoundReasons, RoundStep, SuperblockSynced};
use super::superblocks::Superblocks;
use super::syncs::{Syncs, Waiter};
use super::table::{TableWriter, Tables, has_room_for_second};
use super::update::GroupKind;
use super::volume::Volume;
use crate::catalogue::Catalogue;
use crate::head::Head;
use crate::layout::Layout;
use crate::op::{OpError, Outcome};
use crate::operations::Operations;
use crate::planted::PlantedFault;
use crate::segments::Segments;
use crate::superblock::Superblock;

/// How many store sequences a superblock allows beyond those in use.
const SEQUENCES_AHEAD: u64 = 1 << 32;

/// The parts of durability; a round connects them.
pub(super) struct Durability {
    pub(super) syncs: Syncs,
    pub(super) round: Round,
    pub(super) superblocks: Superblocks,
    pub(super) checkpointer: Checkpointer,
    pub(super) growth: Option<Growth>,
}

impl Durability {
    /// Whether no round is in progress, nor a superblock being written.
    pub(super) fn is_idle(&self) -> bool {
        self.round.is_over() && !self.superblocks.is_writing()
    }

    /// Whether a growth waits for a round.
    pub(super) fn growth_wants_round(&self) -> bool {
        self.growth.as_ref().is_some_and(Growth::wants_round)
    }

    /// Why a round may be worth its tables.
    pub(super) fn round_reasons(&self, log: &Appender, is_urgent: bool) -> RoundReasons {
        let limit = self.superblocks.current().sequence_limit;
        RoundReasons {
            wanted: self.growth_wants_round() || self.checkpointer.wants_round(),
            sequences_low: log.head.next_sequence + SEQUENCES_AHEAD / 2 > limit,
            segments_since_table: log.segments_since_table,
            is_urgent,
        }
    }
}

/// Syncs and superblocks.
impl Durability {
    /// Starts a sync if one is wanted and none is in flight.
    pub(super) fn advance_syncs(&mut self, io: &mut IoQueue, head: &Head) -> bool {
        let is_dirty = self.superblocks.is_dirty();
        let for_round = self.round.needs_sync(head.durable_lsn, is_dirty);
        self.syncs.advance(io, (head.completed_lsn, head.durable_lsn), is_dirty, for_round)
    }

    /// The sync in flight has ended: requests that waited for it complete, and the round goes on.
    pub(super) fn sync_done(
        &mut self,
        requests: &mut Requests,
        head: &mut Head,
        medium: &mut LogMedium,
        result: io::Result<()>,
    ) {
        let synced = self.syncs.done();
        if let Err(error) = result {
            medium.refusal.begin("syncing the log", &error);
            return;
        }
        self.syncs.count += 1;
        if synced.superblock {
            // While it was dirty no other was written, so this sync was for the one that waits now.
            self.superblocks.synced();
        }
        head.durable_lsn = head.durable_lsn.max(synced.lsn);
        for waiter in self.syncs.take_ready(synced.lsn) {
            requests.complete(waiter.token, waiter.bytes, Ok(waiter.outcome));
        }
        if synced.superblock && self.round.awaits_superblock_sync() {
            self.growth_synced(requests, medium);
            let one_for_both = medium.volume.has_planted(PlantedFault::OneSuperblockForBoth);
            match self.round.superblock_synced(one_for_both) {
                SuperblockSynced::Nothing => {}
                SuperblockSynced::WriteOther => self.write_superblock(medium, head, false),
                SuperblockSynced::Ended => {
                    let mut released = Vec::new();
                    self.checkpointer.round_ended(&mut medium.segments, &mut released);
                    self.round.release(released);
                }
            }
        }
    }

    /// Completes a request when the log is durable up to its unit.
    pub(super) fn answer_when_durable(
        &mut self,
        requests: &mut Requests,
        head: &Head,
        medium: &LogMedium,
        waiter: Waiter,
    ) {
        if waiter.lsn <= head.durable_lsn || medium.volume.has_planted(PlantedFault::SyncLeftOut) {
            requests.complete(waiter.token, waiter.bytes, Ok(waiter.outcome));
        } else {
            self.syncs.wait(waiter);
        }
    }

    /// Fails all requests that wait to be durable.
    pub(super) fn fail_waiters(&mut self, requests: &mut Requests, refusal: &OpError) -> bool {
        let waiters = self.syncs.take_all();
        for waiter in &waiters {
            requests.complete(waiter.token, waiter.bytes, Err(refusal.clone()));
        }
        !waiters.is_empty()
    }

    /// Writes the next superblock. `clean`: it marks the store as closed in order.
    pub(super) fn write_superblock(&mut self, medium: &mut LogMedium, head: &Head, clean: bool) {
        let Tables { first, second } = self.round.named();
        let ahead = if clean { 0 } else { SEQUENCES_AHEAD };
        let too_early = medium.volume.has_planted(PlantedFault::CheckpointTooEarly);
        let current = self.superblocks.current();
        let checkpoint = if self.round.is_note() && !too_early {
            current.checkpoint
        } else {
            self.checkpointer.named_by_round(current.checkpoint, too_early)
        };
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
        self.superblocks.start_write(&mut medium.io, superblock);
    }

    /// A superblock was written, or not.
    pub(super) fn superblock_done(&mut self, medium: &mut LogMedium, result: io::Result<()>) {
        self.superblocks.write_done(result.is_ok());
        if let Err(error) = result {
            medium.refusal.begin("writing the superblock", &error);
            return;
        }
        if self.growth.is_none() {
            medium.volume.info = self.superblocks.current().info();
        }
        self.round.superblock_written();
    }

    /// Asks for a note in a superblock of what is durable. It is not synced: losing it costs only the note.
    pub(super) fn want_note(&mut self, durable_lsn: u64) {
        let wanted = self.superblocks.current().durable_lsn < durable_lsn;
        self.round.want_note(wanted);
        if wanted {
            // The superblock before must be durable first.
            self.sync_superblock();
        }
    }

    /// Asks for a sync if a superblock is not durable.
    pub(super) fn sync_superblock(&mut self) {
        if self.superblocks.is_dirty() {
            self.syncs.force();
        }
    }

    /// Writes a superblock that marks the store as closed in order, and asks for a sync.
    pub(super) fn write_closing_superblock(&mut self, medium: &mut LogMedium, head: &Head) {
        self.round.begin_closing_note();
        self.write_superblock(medium, head, true);
        self.syncs.force();
    }
}

/// Rounds and their tables.
impl Durability {
    /// Appends the next unit of a table; the first one begins a round, which is what it returns.
    ///
    /// # Errors
    /// [`NoSegment`].
    pub(super) fn append_table(
        &mut self,
        log: &mut Appender,
        medium: &mut LogMedium,
        counts: &SegmentCounts,
        catalogue: &Catalogue,
        operations: &Operations,
    ) -> Result<bool, NoSegment> {
        let begins = !log.group.open;
        let is_second = self.round.is_writing_tables();
        if is_second && begins && !has_room_for_second(counts, log.blocks_left()) {
            let lsn = self.round.tables.first_end().expect("the first table comes first");
            self.tables_written(&medium.volume, lsn);
            return Ok(false);
        }
        let Some(limit) = log.unit_space(medium, 2)? else { return Ok(false) };
        if begins && is_second {
            self.round.tables.begin_second(&log.head);
        } else if begins {
            self.begin_round(log, &mut medium.segments, catalogue, operations);
        }
        let (unit, last) = self.round.tables.next_unit(&medium.segments, medium.volume.layout, limit);
        log.append(medium, unit, UnitContent::default(), GroupKind::Table, last);
        Ok(begins && !is_second)
    }

    /// A round begins with its tables. Every segment that is needed is listed, up to where the first table begins.
    fn begin_round(
        &mut self,
        log: &mut Appender,
        segments: &mut Segments,
        catalogue: &Catalogue,
        operations: &Operations,
    ) {
        log.segments_since_table = 0;
        let catalogue = if catalogue.is_trivial() { Vec::new() } else { catalogue.encode() };
        let tables = TableWriter::begin(&log.head, segments, catalogue, operations.encode());
        self.checkpointer.round_begins();
        if let Some(growth) = &mut self.growth {
            growth.round_begins();
        }
        self.round.begin(segments, tables);
    }

    /// A table is complete.
    pub(super) fn table_written(&mut self, head: &Head, medium: &LogMedium, lsn: u64) {
        if self.round.tables.table_written(head, &medium.segments, lsn) {
            self.tables_written(&medium.volume, lsn);
        }
    }

    fn tables_written(&mut self, volume: &Volume, lsn: u64) {
        let too_soon = volume.has_planted(PlantedFault::SegmentReusedTooSoon);
        self.round.tables_written(lsn, too_soon);
    }

    /// A table found no space. The first one is enough, if it is complete.
    pub(super) fn table_failed(&mut self, requests: &mut Requests, medium: &mut LogMedium) {
        if let Some(lsn) = self.round.tables.first_end() {
            return self.tables_written(&medium.volume, lsn);
        }
        if self.growth.as_ref().is_some_and(Growth::is_in_round) {
            // It does not wait for another round, which would meet the same end for as long as the medium is full.
            self.fail_growth(requests, OpError::NoSpace);
        }
        self.round.fail(&mut medium.segments);
    }

    /// A segment that a table was to go on in found no space.
    pub(super) fn tables_out_of_space(&mut self, requests: &mut Requests, medium: &mut LogMedium) {
        self.round.tables.drop_rows();
        // Before its first unit there is no group that fails.
        if self.round.is_writing_tables() {
            self.table_failed(requests, medium);
        }
        if self.growth_wants_round() {
            self.fail_growth(requests, OpError::NoSpace);
        }
    }

    /// Writes the superblock of a round, or a note, if it can be written now.
    pub(super) fn advance_round(&mut self, medium: &mut LogMedium, head: &Head) -> bool {
        let mut progress = false;
        let (is_dirty, is_writing) = (self.superblocks.is_dirty(), self.superblocks.is_writing());
        let too_early = medium.volume.has_planted(PlantedFault::TableTooEarly);
        match self.round.next_step(head.durable_lsn, is_dirty, is_writing, too_early) {
            RoundStep::WriteSuperblock if !medium.refusal.is_active() => {
                self.round.begin_superblock();
                self.write_superblock(medium, head, false);
                progress = true;
            }
            RoundStep::Sync => self.syncs.force(),
            RoundStep::WriteSuperblock | RoundStep::Nothing => {}
        }
        if !medium.refusal.is_active() && self.begins_note() {
            self.write_superblock(medium, head, false);
            progress = true;
        }
        progress
    }

    /// Whether a note of what is durable is to be written now.
    fn begins_note(&mut self) -> bool {
        !self.superblocks.is_writing() && !self.superblocks.is_dirty() && self.round.begins_note()
    }
}

/// Checkpoints. Segments that they give up become free like those of a round.
impl Durability {
    /// Goes on with a checkpoint, or begins one that is due. `reserve`: free segments that it leaves alone.
    pub(super) fn advance_checkpoint(&mut self, access: &mut ReadAccess<'_>, log: &mut Appender, reserve: u32) -> bool {
        let context = CheckpointContext {
            log_bytes: log.counters.log_bytes(),
            applied_generation: log.applied_generation,
            reserve,
        };
        let mut released = Vec::new();
        let progress = self.checkpointer.advance(access, &mut log.head, &context, &mut released);
        self.round.release(released);
        progress
    }

    /// A piece of a checkpoint was written, or not.
    pub(super) fn checkpoint_written(&mut self, medium: &mut LogMedium, log_bytes: u64, result: io::Result<()>) {
        let mut released = Vec::new();
        let written = self.checkpointer.piece_written(&mut medium.segments, log_bytes, result, &mut released);
        self.round.release(released);
        if let Err(error) = written {
            medium.refusal.begin("writing a checkpoint", &error);
        }
    }

    /// Checkpoints make way for a request.
    pub(super) fn drop_checkpoint(&mut self, segments: &mut Segments, log_bytes: u64) {
        let mut released = Vec::new();
        self.checkpointer.drop_for_space(segments, log_bytes, &mut released);
        self.round.release(released);
    }
}

/// Growing the volume.
impl Durability {
    /// Begins to grow the volume to `blocks`: the medium first.
    pub(super) fn start_grow(
        &mut self,
        requests: &mut Requests,
        medium: &mut LogMedium,
        (token, bytes): (Token, usize),
        blocks: u64,
    ) -> Result<(), OpError> {
        medium.refusal.check_writable()?;
        if self.growth.is_some() {
            return Err(OpError::Busy);
        }
        let old = self.superblocks.current();
        if blocks < old.geometry.blocks {
            return Err(OpError::Misuse("a volume does not shrink; make a smaller one and copy"));
        }
        if blocks == old.geometry.blocks {
            requests.complete(token, bytes, Ok(Outcome::Changed));
            return Ok(());
        }
        let growth = Growth::plan(token, bytes, blocks, old)?;
        let layout = Layout { segments: growth.segments, ..medium.volume.layout };
        if let Err(error) = medium.io.grow(layout.segment_at(growth.segments)) {
            if error.kind() != io::ErrorKind::StorageFull {
                tracing::error!(volume = %medium.volume.info.volume_id, %error, "the medium does not grow");
            }
            return Err(OpError::NoSpace);
        }
        self.growth = Some(growth);
        Ok(())
    }

    /// A superblock of a round is durable.
    fn growth_synced(&mut self, requests: &mut Requests, medium: &mut LogMedium) {
        if let Some(growth) = self.growth.take_if(Growth::superblock_synced) {
            medium.volume.layout.segments = growth.segments;
            medium.segments.grow(growth.segments);
            medium.volume.info = self.superblocks.current().info();
            requests.complete(growth.token, growth.bytes, Ok(Outcome::Changed));
        }
    }

    /// Fails a growth in progress. One that has reached a superblock may yet be found after a crash.
    pub(super) fn fail_growth(&mut self, requests: &mut Requests, error: OpError) -> bool {
        let Some(growth) = self.growth.take() else { return false };
        requests.complete(growth.token, growth.bytes, Err(error));
        true
    }
}
