//! Making room: carries out what the policy decides, and gives compaction its turns.

use std::io;

use strongroom_block::BufferMut;

use super::Store;
use super::access::LogAccess;
use super::compactor::CompactionContext;
use super::policy::{CompactionAction, Demand, HostSpace, Pace, SegmentCounts, SpaceSummary, next};
use super::reading::read_access;
use super::request::least_unit_blocks;
use super::space::{copies_have_room, copy_segments, warm_for_tables};
use super::update::GroupKind;
use crate::layout::RECORD_BLOCK;

/// The result of a search for room.
pub(super) enum Room {
    /// Some is on its way.
    Waits,
    /// Something was done that others have to look at before the search goes on.
    GoesOn,
    /// There is none to be had.
    Nothing,
}

impl Store {
    /// Counts of segments, as of now.
    pub(super) fn counts(&self) -> SegmentCounts {
        let (layout, info) = (&self.volume.layout, &self.volume.info);
        let (segment_bytes, base_reserve) = (u64::from(layout.segment_bytes), layout.reserved_segments());
        SegmentCounts {
            total: layout.segments,
            segment_bytes,
            segment_blocks: layout.segment_blocks(),
            free: self.segments.free_count(),
            warm: self.segments.warm_ahead(),
            dead: self.segments.dead_count(),
            coming: self.durability.round.coming(),
            live_bytes: self.segments.live_bytes(),
            full_bytes: (info.geometry.blocks + info.retention_blocks) * layout.live_block_bytes(),
            base_reserve,
            table_blocks: self.durability.round.table_blocks(&self.segments, self.writes.operations.encoded_bytes()),
            copy_segments: copy_segments(self.compactor.pool_bytes(layout), segment_bytes, base_reserve),
        }
    }

    /// How compaction runs at this moment.
    pub(super) fn compaction_context(&self) -> CompactionContext {
        let counts = self.counts();
        let summary =
            SpaceSummary { segments: counts, is_urgent: self.space.room.is_urgent(), ..SpaceSummary::default() };
        let pace = match next(&summary) {
            CompactionAction::Compact(pace) if !self.requests.is_refused() && !self.durability.round.is_opening() => {
                Some(pace)
            }
            _ => None,
        };
        CompactionContext {
            counts,
            pace,
            is_futile: self.space.room.is_futile(&counts),
            now: self.log.head.next_sequence,
            log_bytes: self.log.counters.log_bytes(),
        }
    }

    /// What the next step of a search for room depends on. What takes time to find out is only looked at where it can matter.
    fn space_summary(&mut self, demand: Demand, versions_exhausted: bool) -> SpaceSummary {
        let is_urgent = self.space.room.is_urgent();
        let host = match () {
            () if self.space.is_allocating() => HostSpace::Allocating,
            () if self.space.may_ask_again() => HostSpace::Full,
            () => HostSpace::Available,
        };
        let can_reclaim = is_urgent && host != HostSpace::Allocating && self.can_reclaim();
        SpaceSummary {
            segments: self.counts(),
            demand,
            host,
            is_urgent,
            can_reclaim,
            unread_retried: self.space.room.unread_retried(),
            has_slices: self.nodes_go_on() || self.views.hiding.is_busy(),
            awaited_slices: self.space.room.awaits_slices(),
            checkpoint: self.durability.checkpointer.space(self.durability.round.is_blocked()),
            can_compact: self.compactor.can_run(),
            versions_exhausted,
        }
    }

    /// Whether segments are being freed, or can be.
    fn can_reclaim(&mut self) -> bool {
        self.durability.round.can_free(self.segments.dead_count()) || {
            let context = self.compaction_context();
            self.compactor.can_free(&self.segments, &context)
        }
    }

    /// Takes the next step to make room.
    pub(super) fn make_room(&mut self, demand: Demand) -> Room {
        let mut versions_exhausted = false;
        if !self.space.is_allocating() {
            self.allocate_ahead();
        }
        loop {
            let summary = self.space_summary(demand, versions_exhausted);
            match next(&summary) {
                CompactionAction::Wait => return Room::Waits,
                CompactionAction::Compact(_) => {
                    self.space.room.begin();
                    // Tables and compaction look at this: they come before the request in the next turn.
                    return Room::GoesOn;
                }
                CompactionAction::AskHost => {
                    self.space.ask_again();
                    if self.allocate_ahead() {
                        return Room::Waits;
                    }
                }
                CompactionAction::RetryUnread => {
                    self.space.room.retry_unread();
                    if self.compactor.retry_unread() {
                        // There may be more to compact than a moment ago, or not.
                        return Room::GoesOn;
                    }
                }
                CompactionAction::AwaitSlices => {
                    self.space.room.await_slices();
                    return Room::Waits;
                }
                CompactionAction::CompactAgain => {
                    self.space.room.compact_again();
                    return Room::GoesOn;
                }
                CompactionAction::DropCheckpoint => {
                    let log_bytes = self.log.counters.log_bytes();
                    self.durability.drop_checkpoint(&mut self.segments, log_bytes);
                    return Room::GoesOn;
                }
                CompactionAction::DropVersions => {
                    versions_exhausted = self.drop_versions();
                    if !versions_exhausted {
                        return Room::GoesOn;
                    }
                }
                CompactionAction::GiveUp | CompactionAction::Nothing => return Room::Nothing,
            }
        }
    }

    /// Retained versions make way for a request. Whether there are no more to drop.
    fn drop_versions(&mut self) -> bool {
        let before = self.views.map.versions.len();
        let is_lower = self.views.retention.lower_limit(&self.views.map, &self.volume);
        let any = self.evict_versions() || self.views.map.versions.len() < before;
        self.space.room.versions_made_way(is_lower, any)
    }

    /// No request waits. After the host was full room is made all the same, as for a request: what was discarded becomes free at once,
    /// and the next write does not have to wait for it.
    pub(super) fn relieve(&mut self) -> Option<bool> {
        if self.wants_relief() {
            match self.make_room(Demand::Relief) {
                Room::Waits => return None,
                Room::GoesOn => return Some(true),
                Room::Nothing => {}
            }
        }
        self.space.end_relief();
        self.end_room_search();
        self.space.room.end_slices();
        None
    }

    /// The search for room is over.
    pub(super) fn end_room_search(&mut self) {
        self.space.room.end();
        self.views.retention.restore_limit();
    }

    /// Whether room is to be made though no request waits.
    pub(super) fn wants_relief(&self) -> bool {
        let halted = self.compactor.is_stopped() || self.requests.is_refused() || self.durability.round.is_opening();
        !halted && self.space.wants_relief(&self.counts())
    }

    /// Copies that go before writes, if there are any: `Some` says whether anything was begun.
    pub(super) fn copies_first(&mut self) -> Option<bool> {
        let head_is_full = self.log.head_is_full(&self.volume);
        if self.compactor.fills_own_segment(head_is_full) {
            if self.copies_may_go() {
                return Some(self.append_copies());
            }
            let context = self.compaction_context();
            if self.compactor.expects_copies(&self.segments, &context) {
                return Some(false);
            }
        }
        self.compactor.leave_own_segment();
        if !self.copies_may_go() {
            return None;
        }
        let context = self.compaction_context();
        self.compactor.take_turn(head_is_full, &context).then(|| self.append_copies())
    }

    /// Whether copies may go where writes go: when there is no time to lose, nothing else to do, or much garbage though no need of
    /// space. What is left over when enough space was made waits for the next segment that copies have to themselves.
    pub(super) fn copies_may_mix(&self) -> bool {
        let has_head = self.log.head.segment != crate::unit::NO_SEGMENT;
        !has_head
            || self.durability.round.is_idle()
            || matches!(self.compaction_context().pace, Some(Pace::Idle | Pace::Urgent))
    }

    /// Whether compaction may append: on a full host it waits for the segments that it has emptied before it takes more.
    pub(super) fn copies_may_go(&mut self) -> bool {
        if !self.compactor.has_copies() {
            return false;
        }
        let counts = self.counts();
        let is_releasing = self.durability.round.is_releasing(&self.segments);
        // What a round frees comes without them, however long its syncs take; the table after it must find room.
        if (!self.durability.is_idle() || is_releasing) && !copies_have_room(&counts) {
            return false;
        }
        if counts.warm > warm_for_tables(&counts) || counts.warm == counts.free {
            return true;
        }
        // Not even the room in the head, which a table may need: victims whose copies are in flight will be dead, and what a round
        // lets go will be free, in a moment.
        let coming = self.durability.round.is_pending(counts.dead) || self.log.copies_in_flight() > 0 || is_releasing;
        if coming {
            return false;
        }
        !self.log.head_is_full(&self.volume) || !(self.space.is_allocating() || self.allocate_ahead())
    }

    pub(super) fn drive_compactor(&mut self) -> bool {
        if self.compactor.is_stopped() {
            self.compactor.drop_victims(&mut self.segments, self.log.copies_in_flight());
        }
        if self.requests.is_refused() {
            return false;
        }
        let context = self.compaction_context();
        self.compactor.advance(&mut read_access!(self), &context)
    }

    pub(super) fn victim_read(&mut self, segment: u32, piece: usize, result: io::Result<Option<BufferMut>>) {
        let context = self.compaction_context();
        self.compactor.piece_read(&mut read_access!(self), &context, (segment, piece), result);
    }

    /// Appends the next copies.
    pub(super) fn append_copies(&mut self) -> bool {
        let least = least_unit_blocks(&self.volume.layout);
        let Some(limit) = self.unit_limit(least) else { return true };
        let (lsn, head) = (self.log.head.next_lsn, self.log.head.segment);
        let (unit, content) = self.compactor.fill_unit(&mut read_access!(self), (limit, least), lsn, head);
        self.compactor.end_sources(&mut self.segments, self.log.head.completed_lsn);
        if !unit.is_empty() {
            self.space.room.note_copied(u64::from(unit.blocks()) * RECORD_BLOCK as u64);
            self.append_unit(unit, content, GroupKind::Compaction, true);
        }
        self.fill_pool();
        true
    }

    /// Takes victims that were read into the pool.
    pub(super) fn fill_pool(&mut self) {
        let context = self.compaction_context();
        self.compactor.fill_pool(&mut read_access!(self), &context);
    }

    /// Allocates host space ahead of need.
    pub(super) fn allocate_ahead(&mut self) -> bool {
        if self.requests.is_refused() || self.durability.round.is_opening() {
            return false;
        }
        let counts = self.counts();
        // One in any case, so that there is room before it is wanted.
        let front = self.writes.front().map_or(1, |request| request.segments_more(&self.log.limits) + 2);
        self.space.allocate_ahead(&mut self.io, &self.segments, &counts, front, &self.volume)
    }

    pub(super) fn reserve_done(&mut self, segment: u32, result: io::Result<()>) {
        if result.is_ok() {
            self.segments.warm_up(segment);
        }
        let counts = self.counts();
        if let Err(error) = self.space.allocated(&mut self.io, &counts, result) {
            self.requests.refuse_writes("allocating a segment", &error);
        }
    }

    /// A segment became free, or gave its space back to the host.
    pub(super) fn segment_freed(&mut self) {
        let counts = self.counts();
        self.space.segment_freed(&mut self.io, &counts);
    }

    pub(super) fn look_at_host(&mut self) {
        let counts = self.counts();
        self.space.look_at_host(&mut self.io, &counts);
    }

    /// Frees segments that nothing reads any more.
    pub(super) fn free_segments(&mut self) -> bool {
        let counts = self.counts();
        let warm_max = self.space.warm_max(&counts);
        let access = &mut LogAccess { segments: &mut self.segments, io: &mut self.io, volume: &self.volume };
        let (progress, freed) = self.durability.round.free_segments(access, warm_max);
        if freed > 0 {
            self.segment_freed();
        }
        progress
    }

    pub(super) fn discard_done(&mut self, segment: u32, result: io::Result<()>) {
        self.durability.round.discarded(&mut self.segments, &self.volume, segment, result);
        self.segment_freed();
    }
}
