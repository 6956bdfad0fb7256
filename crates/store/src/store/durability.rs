//! What makes the log durable: syncs, rounds, the superblock, checkpoints, and a growth that a round makes durable.

use super::access::ReadAccess;
use super::checkpointer::{CheckpointContext, Checkpointer};
use super::growth::Growth;
use super::io::IoQueue;
use super::round::{Round, RoundReasons};
use super::superblocks::Superblocks;
use super::syncs::Syncs;
use super::table::{TableWriter, Tables};
use super::volume::Volume;
use crate::head::Head;
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
    pub(super) fn round_reasons(&self, head: &Head, segments_since_table: u32, is_urgent: bool) -> RoundReasons {
        let limit = self.superblocks.current().sequence_limit;
        RoundReasons {
            wanted: self.growth_wants_round() || self.checkpointer.wants_round(),
            sequences_low: head.next_sequence + SEQUENCES_AHEAD / 2 > limit,
            segments_since_table,
            is_urgent,
        }
    }

    /// A round begins with its tables.
    pub(super) fn begin_round(&mut self, segments: &mut Segments, tables: TableWriter) {
        self.checkpointer.round_begins();
        if let Some(growth) = &mut self.growth {
            growth.round_begins();
        }
        self.round.begin(segments, tables);
    }

    /// Starts a sync if one is wanted and none is in flight.
    pub(super) fn advance_syncs(&mut self, io: &mut IoQueue, head: &Head) -> bool {
        let is_dirty = self.superblocks.is_dirty();
        let for_round = self.round.needs_sync(head.durable_lsn, is_dirty);
        self.syncs.advance(io, (head.completed_lsn, head.durable_lsn), is_dirty, for_round)
    }

    /// Writes the next superblock. `clean`: it marks the store as closed in order.
    pub(super) fn write_superblock(&mut self, io: &mut IoQueue, head: &Head, volume: &Volume, clean: bool) {
        let Tables { first, second } = self.round.named();
        let ahead = if clean { 0 } else { SEQUENCES_AHEAD };
        let too_early = volume.has_planted(PlantedFault::CheckpointTooEarly);
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
        self.superblocks.start_write(io, superblock);
    }

    /// Whether a note of what is durable is to be written now.
    pub(super) fn begins_note(&mut self) -> bool {
        !self.superblocks.is_writing() && !self.superblocks.is_dirty() && self.round.begins_note()
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

    /// Both copies of the superblock name the tables of a round.
    pub(super) fn round_ended(&mut self, segments: &mut Segments) {
        let mut released = Vec::new();
        self.checkpointer.round_ended(segments, &mut released);
        self.round.release(released);
    }

    /// Goes on with a checkpoint, or begins one that is due.
    pub(super) fn advance_checkpoint(
        &mut self,
        access: &mut ReadAccess<'_>,
        head: &mut Head,
        context: &CheckpointContext,
    ) -> bool {
        let mut released = Vec::new();
        let progress = self.checkpointer.advance(access, head, context, &mut released);
        self.round.release(released);
        progress
    }

    /// A piece of a checkpoint was written, or not.
    ///
    /// # Errors
    /// The result's, if it is not want of space.
    pub(super) fn checkpoint_written(
        &mut self,
        segments: &mut Segments,
        log_bytes: u64,
        result: std::io::Result<()>,
    ) -> std::io::Result<()> {
        let mut released = Vec::new();
        let written = self.checkpointer.piece_written(segments, log_bytes, result, &mut released);
        self.round.release(released);
        written
    }

    /// Checkpoints make way for a request.
    pub(super) fn drop_checkpoint(&mut self, segments: &mut Segments, log_bytes: u64) {
        let mut released = Vec::new();
        self.checkpointer.drop_for_space(segments, log_bytes, &mut released);
        self.round.release(released);
    }
}
