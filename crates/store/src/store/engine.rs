//! The engine of an open store: it wires the parts, each of which owns its state and decides about it, and carries out what concerns
//! several of them. Here: the poll, finished I/O, and requests on their way in; `append` has what goes into the log next, and `erase` the
//! erase.
//!
//! Everything that changes the index happens when an append completes, in the order of the log. What is queued while one is
//! in flight goes into the next one together (group commit); only when much is queued are several in flight.

use std::io;

use strongroom_block::Token;

use super::access::{LogMedium, ReadAccess};
use super::appender::{Appender, NoSegment};
use super::checkpointer::Checkpointer;
use super::compactor::Compactor;
use super::durability::Durability;
use super::erasure::Erasure;
use super::io::{IoQueue, IoResult, Purpose};
use super::opening::Opening;
use super::policy::SegmentCounts;
use super::queue::WriteQueue;
use super::read_parts::{Owner, Wanted};
use super::reader::{FinishedRead, Reader};
use super::reclaimer::{Reclaimer, SpaceAccess};
use super::refusal::WriteRefusal;
use super::request::{Content, UnitLimits, WriteRequest};
use super::requests::Requests;
use super::round::Round;
use super::scrub::Scrub;
use super::space::Space;
use super::submit::{check, check_range, check_runs, op_bytes, write_of};
use super::superblocks::Superblocks;
use super::syncs::{Syncs, Waiter};
use super::views::Views;
use super::volume::Volume;
use crate::backend::{Backend, IoKind, Waker};
use crate::catalogue::NodeId;
use crate::error::StoreError;
use crate::op::{Op, OpError, Outcome};
use crate::options::OpenOptions;
use crate::planted::PlantedFault;
use crate::recover::Recovered;
use crate::view::{BranchId, View};

/// The parts of an open store.
pub(super) struct Engine {
    pub(super) opening: Opening,
    pub(super) requests: Requests,
    pub(super) medium: LogMedium,
    pub(super) views: Views,
    pub(super) reader: Reader,
    pub(super) scrub: Scrub,
    pub(super) writes: WriteQueue,
    pub(super) log: Appender,
    pub(super) durability: Durability,
    pub(super) reclaimer: Reclaimer,
    pub(super) erasure: Option<Erasure>,
}

impl Engine {
    pub(super) fn new(backend: Box<dyn Backend>, options: OpenOptions, waker: Waker, recovered: Recovered) -> Engine {
        let Recovered { mut superblock, superblock_copy, map, segments, operations, head, checkpoint, .. } = recovered;
        let from_checkpoint = superblock.checkpoint.is_some();
        let open_id = head.open_id;
        let constant = options.planted.has(PlantedFault::ConstantIncarnation);
        if superblock.incarnation == 0 || !superblock.clean && !constant {
            // 0 says that none was drawn.
            superblock.incarnation = open_id.max(1);
        }
        superblock.bases_from.get_or_insert(head.next_sequence);
        let volume = Volume::new(&superblock, options.planted);
        let volume_id = volume.info.volume_id;
        // Elsewhere the kernel has it in memory already.
        let direct = matches!(backend.kind(), IoKind::DirectUring | IoKind::Direct);
        let data_cache_bytes = if direct { options.data_cache_bytes } else { 0 };
        let piece_bytes = options.cleaning_piece_bytes as usize;
        let limits = UnitLimits::new(&volume.layout, options.append_unit_bytes_max);
        Engine {
            requests: Requests::new(&options),
            views: Views::new(map),
            reader: Reader::new(options.record_cache_bytes, data_cache_bytes, volume.block_bytes()),
            scrub: Scrub::starting_at(open_id, piece_bytes),
            writes: WriteQueue::new(operations, head.next_sequence),
            log: Appender::new(head, limits),
            durability: Durability {
                syncs: Syncs::default(),
                round: Round::default(),
                superblocks: Superblocks::new(superblock, superblock_copy),
                checkpointer: Checkpointer::new(&volume, options.checkpoint_log_bytes, checkpoint),
                growth: None,
            },
            reclaimer: Reclaimer { space: Space::new(volume_id), compactor: Compactor::new(piece_bytes) },
            erasure: None,
            opening: Opening::new(options, from_checkpoint),
            medium: LogMedium {
                segments,
                io: IoQueue::new(backend, waker),
                volume,
                refusal: WriteRefusal::none(volume_id),
            },
        }
    }

    /// The first round of an opening: takes the recovered state over into a new epoch, durably, before any write.
    pub(super) fn begin_epoch(&mut self) -> Result<(), StoreError> {
        self.durability.round.begin_opening();
        self.durability.round.note_catalogue(&self.views.map.catalogue);
        let counts = self.counts();
        let LogMedium { segments, io, volume, .. } = &mut self.medium;
        self.reclaimer.space.find_reserve(io, segments, &counts, volume)?;
        let counts = self.counts();
        self.reclaimer.space.update_state(&counts);
        while self.durability.round.is_opening() || !self.durability.round.is_over() {
            self.drive();
            if let Some(reason) = self.medium.refusal.reason() {
                return Err(StoreError::io("opening the store")(io::Error::other(reason.to_owned())));
            }
            if self.durability.round.is_blocked() {
                let error = io::Error::from(io::ErrorKind::StorageFull);
                return Err(match (self.medium.segments.free_count(), self.medium.segments.avoided) {
                    (0, 0) => StoreError::NoFreeSegment,
                    (0, unreadable) => StoreError::FreeUnreadable { unreadable },
                    _ => StoreError::io("opening the store")(error),
                });
            }
            self.medium.io.wait();
        }
        Ok(())
    }

    /// Counts of segments, as of now.
    pub(super) fn counts(&self) -> SegmentCounts {
        self.reclaimer.counts_of(&self.medium, &self.durability, &self.writes)
    }

    /// Lets the reclaimer work on the parts that take or give space.
    pub(super) fn reclaim<T>(&mut self, work: impl FnOnce(&mut Reclaimer, &mut SpaceAccess<'_>) -> T) -> T {
        let Engine { medium, views, log, durability, writes, reclaimer, .. } = self;
        work(reclaimer, &mut SpaceAccess { medium, views, log, durability, writes })
    }
}

/// The poll.
impl Engine {
    pub(super) fn new_poll(&mut self) {
        self.medium.io.new_poll();
        self.writes.new_poll();
        self.reclaimer.compactor.new_poll();
        self.durability.round.new_poll();
        self.durability.checkpointer.new_poll();
        self.scrub.new_poll();
        let unsliced = self.medium.volume.has_planted(PlantedFault::UnslicedHiding);
        self.views.hiding.new_poll(if unsliced { u64::MAX } else { self.opening.options.hide_blocks_per_poll });
        if let Some(erasure) = &mut self.erasure {
            erasure.new_poll();
        }
    }

    /// Advances everything as far as this poll allows.
    pub(super) fn drive(&mut self) {
        loop {
            let mut progress = self.take_io() | self.drive_erase();
            if !self.erasure.as_ref().is_some_and(Erasure::is_exclusive) {
                progress |= self.drive_append();
                progress |= self.views.advance_hiding(&mut self.requests, &mut self.medium);
                progress |= self.reclaim(Reclaimer::advance);
                progress |= self.drive_durability();
                progress |= self.reclaim(Reclaimer::allocate_ahead);
                let stopped = self.background_is_stopped();
                let access = &mut ReadAccess { map: &self.views.map, medium: &mut self.medium };
                progress |= self.scrub.advance(access, &mut self.reader, stopped);
                self.deliver_reads();
            }
            progress |= self.medium.io.take_started();
            if !progress {
                break;
            }
        }
        // In any case: a slice of merging is done here.
        let goes_on = self.wants_poll();
        if goes_on || self.medium.io.has_finished() {
            self.medium.io.wake();
        }
    }

    /// Rounds, checkpoints and syncs.
    fn drive_durability(&mut self) -> bool {
        let mut progress = self.durability.advance_round(&mut self.medium, &self.log.head);
        progress |= self.reclaim(Reclaimer::free_segments);
        let is_refused = self.medium.refusal.is_active();
        if !is_refused && !self.durability.round.is_opening() && !self.reclaimer.compactor.is_stopped() {
            let reserve = self.counts().reserve();
            let access = &mut ReadAccess { map: &self.views.map, medium: &mut self.medium };
            progress |= self.durability.advance_checkpoint(access, &mut self.log, reserve);
        }
        if !is_refused {
            progress |= self.durability.advance_syncs(&mut self.medium.io, &self.log.head);
        }
        progress
    }

    /// Whether work that is done in slices goes on in the next poll.
    fn wants_poll(&mut self) -> bool {
        let is_refused = self.medium.refusal.is_active();
        if let Some(erasure) = self.erasure.as_ref().filter(|_| self.writes.is_empty()) {
            return !is_refused && erasure.goes_on() || self.views.hiding.is_busy();
        }
        let is_stopped = self.reclaimer.compactor.is_stopped();
        let checkpoint = self.durability.checkpointer.goes_on() && !is_stopped && !is_refused;
        let awaited = self.reclaimer.space.room.awaits_slices()
            && (!self.writes.is_empty() || self.reclaim(|reclaimer, access| reclaimer.wants_relief(access)));
        let awaited = awaited || self.scrub.goes_on();
        let may_merge = !is_refused && !self.durability.round.is_opening();
        may_merge && self.views.merge_nodes(&mut self.medium)
            || self.reclaimer.compactor.is_held_back()
            || checkpoint
            || self.views.hiding.is_busy()
            || awaited
    }

    /// Processes finished I/Os.
    fn take_io(&mut self) -> bool {
        self.medium.io.poll();
        let mut progress = false;
        while let Some((purpose, result)) = self.medium.io.next_finished() {
            progress = true;
            self.io_done(purpose, result);
        }
        progress
    }

    fn io_done(&mut self, purpose: Purpose, result: IoResult) {
        let (medium, durability) = (&mut self.medium, &mut self.durability);
        let access = &mut ReadAccess { map: &self.views.map, medium };
        match purpose {
            Purpose::ReadData { read, part, before } => self.reader.data_done(access, read, part, before, result),
            Purpose::ReadRecord { key, segment } => self.reader.record_done(access, key, segment, result),
            Purpose::Scrub => {
                let stopped = self.erasure.is_some() || self.reclaimer.compactor.is_stopped();
                self.scrub.piece_read(access, stopped, result);
            }
            Purpose::Compact { segment, piece } => {
                self.reclaim(|reclaimer, access| reclaimer.piece_read(access, (segment, piece), result));
            }
            Purpose::Append { lsn } => self.append_done(lsn, result.map(drop)),
            Purpose::Allocate => {
                let allocated = self.reclaim(|reclaimer, access| reclaimer.head_allocated(access, result.map(drop)));
                if let Err(NoSegment) = allocated {
                    self.out_of_space();
                }
            }
            Purpose::Reserve { segment } => {
                self.reclaim(|reclaimer, access| reclaimer.allocated(access, segment, result.map(drop)));
            }
            Purpose::Discard { segment } => {
                self.reclaim(|reclaimer, access| reclaimer.discarded(access, segment, result.map(drop)));
            }
            Purpose::Sync => {
                durability.sync_done(&mut self.requests, &mut self.log.head, access.medium, result.map(drop));
            }
            Purpose::Superblock => durability.superblock_done(access.medium, result.map(drop)),
            Purpose::Checkpoint => {
                durability.checkpoint_written(access.medium, self.log.counters.log_bytes(), result.map(drop));
            }
            Purpose::Erase => self.erase_io_done(result.map(drop)),
        }
        if matches!(purpose, Purpose::ReadData { .. } | Purpose::ReadRecord { .. }) {
            self.deliver_reads();
        }
    }

    /// Drives until nothing is in flight.
    pub(super) fn settle(&mut self) {
        loop {
            self.new_poll();
            self.drive();
            if self.medium.io.is_idle() {
                return;
            }
            self.medium.io.wait();
        }
    }

    /// Drives until a request is answered; answers of others stay to be polled.
    pub(super) fn wait_for(&mut self, token: Token) -> Result<Outcome, OpError> {
        loop {
            self.new_poll();
            self.drive();
            if let Some(result) = self.requests.take_result(token) {
                return result;
            }
            let erases = !self.medium.refusal.is_active() && self.erasure.as_ref().is_some_and(Erasure::goes_on);
            let more = self.reclaimer.compactor.is_held_back() || erases || self.views.hiding.is_busy();
            let more = more || self.reclaimer.space.room.awaits_slices();
            assert!(!self.medium.io.is_idle() || more, "a request waits for nothing");
            self.medium.io.wait();
        }
    }

    /// Marks both copies of the superblock as closed in order, one after the other. Nothing else may be in flight.
    pub(super) fn mark_closed(&mut self) {
        self.durability.round.close();
        for _ in 0..2 {
            self.durability.sync_superblock();
            self.settle();
            if self.medium.refusal.is_active() {
                return;
            }
            self.durability.write_closing_superblock(&mut self.medium, &self.log.head);
            self.settle();
        }
        self.durability.sync_superblock();
        self.settle();
    }

    /// Whether the store is being closed or erased: then scrubbing does not go on.
    pub(super) fn background_is_stopped(&self) -> bool {
        self.erasure.is_some() || self.reclaimer.compactor.is_stopped()
    }
}

/// Requests on their way in.
impl Engine {
    /// Accepts a request, or answers it.
    pub(super) fn submit(&mut self, token: Token, view: View, op: Op) {
        let bytes = op_bytes(&op, self.medium.volume.block_bytes());
        if !self.requests.has_room_for(bytes) || !self.requests.admits(&op) {
            self.requests.reject(token, OpError::Busy);
            return;
        }
        self.requests.accept(bytes);
        if let Err(error) = self.take_in(token, view, op, bytes) {
            self.requests.complete(token, bytes, Err(error));
        }
    }

    fn take_in(&mut self, token: Token, view: View, op: Op, bytes: usize) -> Result<(), OpError> {
        if let Some(erasure) = &mut self.erasure {
            self.medium.refusal.check_writable()?;
            let is_erase = matches!(op, Op::Erase | Op::CryptoErase);
            return if is_erase { erasure.join(token, bytes) } else { Err(OpError::Erasing) };
        }
        let shown = self.opening.options.planted.shown(token, view, matches!(op, Op::Read { .. }));
        let node = self.views.map.catalogue.node(shown).ok_or(OpError::NoSuchView)?;
        let writable = match view {
            View::Head(BranchId(branch)) => Ok(branch),
            View::Snapshot(_) => Err(OpError::ReadOnly),
        };
        match op {
            Op::Read { .. } | Op::ReadMedium { .. } | Op::ReadRuns { .. } | Op::ReadVersion { .. } => {
                self.take_in_read(Owner::Caller { token, bytes }, node, op)
            }
            Op::Write { .. }
            | Op::ConditionalWrite { .. }
            | Op::CompareAndWrite { .. }
            | Op::Hole { .. }
            | Op::ConditionalHole { .. }
            | Op::RegisterAttachment { .. }
            | Op::Discard { .. } => {
                let request = write_of(&self.medium.volume, token, writable, op, bytes)?;
                self.writes.enqueue(&self.medium, request)
            }
            Op::Flush => {
                self.medium.refusal.check_writable()?;
                let waiter = Waiter { lsn: self.log.head.completed_lsn, token, bytes, outcome: Outcome::Flushed };
                self.durability.answer_when_durable(&mut self.requests, &self.log.head, &self.medium, waiter);
                Ok(())
            }
            Op::Verified { pairs } => {
                check(pairs.len() <= Op::VERIFIED_MAX, "more than Op::VERIFIED_MAX pairs of feedback")?;
                let released = self.views.verified(&mut self.medium.segments, node, pairs);
                self.requests.complete(token, bytes, Ok(Outcome::Verified { released }));
                Ok(())
            }
            Op::Grow { blocks } => {
                self.durability.start_grow(&mut self.requests, &mut self.medium, (token, bytes), blocks)
            }
            Op::Erase => self.start_erase(token, writable?, bytes, false),
            Op::CryptoErase => self.start_erase(token, writable?, bytes, true),
            Op::SnapshotCreate { .. }
            | Op::SnapshotDelete { .. }
            | Op::Rollback { .. }
            | Op::CloneCreate { .. }
            | Op::CloneDelete { .. } => {
                let (branch, created) = (writable?, (self.opening.options.clock_seconds)());
                let change = self.views.change_of(op, branch, created, self.log.head.open_id)?;
                let content = Content::Change(Box::new(change));
                // Its answer waits until it is durable.
                let request = WriteRequest::new(token, branch, content, bytes).durable_if(true);
                self.writes.enqueue(&self.medium, request)
            }
        }
    }

    fn take_in_read(&mut self, owner: Owner, node: NodeId, op: Op) -> Result<(), OpError> {
        let volume = &self.medium.volume;
        let (runs, wanted) = match op {
            Op::Read { lba, count } => (&[(lba, count)][..], Wanted::Data),
            Op::ReadMedium { lba, count } => (&[(lba, count)][..], Wanted::DataOfMedium),
            Op::ReadRuns { ref runs } => {
                check((1..=Op::RUNS_MAX).contains(&runs.len()), "none or too many ranges")?;
                (&runs[..], Wanted::Data)
            }
            Op::ReadVersion { lba, older_than } => {
                check_range(volume, lba, 1)?;
                let below = if older_than.0 == 0 { u64::MAX } else { older_than.0 };
                let access = &mut ReadAccess { map: &self.views.map, medium: &mut self.medium };
                self.reader.start_older(access, owner, node, lba.0, below);
                self.deliver_reads();
                return Ok(());
            }
            _ => unreachable!("not a read"),
        };
        check_runs(volume, runs)?;
        let access = &mut ReadAccess { map: &self.views.map, medium: &mut self.medium };
        self.reader.start(access, owner, node, runs, wanted);
        self.deliver_reads();
        Ok(())
    }

    /// Delivers finished reads to those that they are for.
    pub(super) fn deliver_reads(&mut self) {
        while let Some(FinishedRead { owner, extents, bases }) = self.reader.next_finished() {
            match owner {
                Owner::Caller { token, bytes } => self.requests.complete(token, bytes, extents.map(Outcome::Read)),
                Owner::Gate(ticket) => {
                    if let Some(answer) = self.writes.condition_read(ticket, extents, &bases) {
                        self.answer_condition(answer);
                    }
                }
                Owner::Scrub => self.scrub.block_read(extents),
            }
        }
    }
}
