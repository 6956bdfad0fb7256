//! The reclaimer: makes room. It carries out what the policy decides, and gives compaction its turns beside writes and tables. Absent: what
//! is decided (`policy`), the accounting of space (`space`), and how segments are compacted (`compactor`).

use std::io;

use strongroom_block::BufferMut;

use super::access::{LogMedium, ReadAccess};
use super::appender::{Appender, NoSegment, UnitContent, is_no_space};
use super::compactor::{CompactionContext, Compactor};
use super::durability::Durability;
use super::policy::{CompactionAction, Demand, HostSpace, Pace, SegmentCounts, SpaceSummary, next};
use super::queue::WriteQueue;
use super::request::{Content, Gate, MakesRoom, WriteRequest, least_unit_blocks};
use super::retention::Retention;
use super::space::{Space, copies_have_room, copy_segments, warm_for_tables};
use super::update::GroupKind;
use super::views::Views;
use crate::layout::RECORD_BLOCK;
use crate::unit::{NO_SEGMENT, UnitBuilder};

/// Tables that take whole segments may take this share of what a request that waits for space may cost in copies.
const TABLE_FUTILE_SHARE: u64 = 8;

/// The result of a search for room.
pub(super) enum Room {
    /// Some is on its way.
    Waits,
    /// Something was done that others have to look at before the search goes on.
    GoesOn,
    /// There is none to be had.
    Nothing,
}

/// The parts that take space or give it: what the reclaimer looks at, and works on.
pub(super) struct SpaceAccess<'a> {
    pub(super) medium: &'a mut LogMedium,
    pub(super) views: &'a mut Views,
    pub(super) log: &'a mut Appender,
    pub(super) durability: &'a mut Durability,
    pub(super) writes: &'a WriteQueue,
}

impl SpaceAccess<'_> {
    fn read(&mut self) -> ReadAccess<'_> {
        ReadAccess { map: &self.views.map, medium: self.medium }
    }

    /// Whether nothing is compacted, allocated or merged: writes are refused, or the store is being opened.
    fn is_halted(&self) -> bool {
        self.medium.refusal.is_active() || self.durability.round.is_opening()
    }
}

/// Space and compaction.
pub(super) struct Reclaimer {
    pub(super) space: Space,
    pub(super) compactor: Compactor,
}

impl Reclaimer {
    /// Counts of segments, as of now.
    pub(super) fn counts_of(&self, medium: &LogMedium, durability: &Durability, writes: &WriteQueue) -> SegmentCounts {
        let (layout, info, segments) = (&medium.volume.layout, &medium.volume.info, &medium.segments);
        let (segment_bytes, base_reserve) = (u64::from(layout.segment_bytes), layout.reserved_segments());
        SegmentCounts {
            total: layout.segments,
            segment_bytes,
            segment_blocks: layout.segment_blocks(),
            free: segments.free_count(),
            warm: segments.warm_ahead(),
            dead: segments.dead_count(),
            coming: durability.round.coming(),
            live_bytes: segments.live_bytes(),
            full_bytes: (info.geometry.blocks + info.retention_blocks) * layout.live_block_bytes(),
            base_reserve,
            table_blocks: durability.round.table_blocks(segments, writes.operations.encoded_bytes()),
            copy_segments: copy_segments(self.compactor.pool_bytes(layout), segment_bytes, base_reserve),
        }
    }

    fn counts(&self, access: &SpaceAccess<'_>) -> SegmentCounts {
        self.counts_of(access.medium, access.durability, access.writes)
    }

    /// How compaction runs at this moment.
    fn context(&self, access: &SpaceAccess<'_>) -> CompactionContext {
        let counts = self.counts(access);
        let summary =
            SpaceSummary { segments: counts, is_urgent: self.space.room.is_urgent(), ..SpaceSummary::default() };
        let pace = match next(&summary) {
            CompactionAction::Compact(pace) if !access.is_halted() => Some(pace),
            _ => None,
        };
        CompactionContext {
            counts,
            pace,
            is_futile: self.space.room.is_futile(&counts),
            now: access.log.head.next_sequence,
            log_bytes: access.log.counters.log_bytes(),
        }
    }
}

/// Searches for room.
impl Reclaimer {
    /// What the next step of a search for room depends on. What takes time to find out is only looked at where it can matter.
    fn summary(&mut self, access: &SpaceAccess<'_>, demand: Demand, versions_exhausted: bool) -> SpaceSummary {
        let is_urgent = self.space.room.is_urgent();
        let host = match () {
            () if self.space.is_allocating() => HostSpace::Allocating,
            () if self.space.may_ask_again() => HostSpace::Full,
            () => HostSpace::Available,
        };
        let can_reclaim = is_urgent && host != HostSpace::Allocating && self.can_reclaim(access);
        let merges = !access.is_halted() && access.views.has_merging();
        SpaceSummary {
            segments: self.counts(access),
            demand,
            host,
            is_urgent,
            can_reclaim,
            unread_retried: self.space.room.unread_retried(),
            has_slices: merges || access.views.hiding.is_busy(),
            awaited_slices: self.space.room.awaits_slices(),
            checkpoint: access.durability.checkpointer.space(access.durability.round.is_blocked()),
            can_compact: self.compactor.can_run(),
            versions_exhausted,
        }
    }

    /// Whether segments are being freed, or can be.
    fn can_reclaim(&mut self, access: &SpaceAccess<'_>) -> bool {
        access.durability.round.can_free(access.medium.segments.dead_count()) || {
            let context = self.context(access);
            self.compactor.can_free(&access.medium.segments, &context)
        }
    }

    /// Takes the next step to make room.
    pub(super) fn make_room(&mut self, access: &mut SpaceAccess<'_>, demand: Demand) -> Room {
        let mut versions_exhausted = false;
        if !self.space.is_allocating() {
            self.allocate_ahead(access);
        }
        loop {
            match next(&self.summary(access, demand, versions_exhausted)) {
                CompactionAction::Wait => return Room::Waits,
                CompactionAction::Compact(_) => {
                    self.space.room.begin();
                    // Tables and compaction look at this: they come before the request in the next turn.
                    return Room::GoesOn;
                }
                CompactionAction::AskHost => {
                    self.space.ask_again();
                    if self.allocate_ahead(access) {
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
                    let log_bytes = access.log.counters.log_bytes();
                    access.durability.drop_checkpoint(&mut access.medium.segments, log_bytes);
                    return Room::GoesOn;
                }
                CompactionAction::DropVersions => {
                    let (is_limit_lower, any) = access.views.drop_versions(access.medium);
                    versions_exhausted = self.space.room.versions_made_way(is_limit_lower, any);
                    if !versions_exhausted {
                        return Room::GoesOn;
                    }
                }
                CompactionAction::GiveUp | CompactionAction::Nothing => return Room::Nothing,
            }
        }
    }

    /// No request waits. After the host was full room is made all the same, as for a request: what was discarded becomes free at once,
    /// and the next write does not have to wait for it. Returns whether anything was done; `None`: there is nothing to do now.
    pub(super) fn relieve(&mut self, access: &mut SpaceAccess<'_>) -> Option<bool> {
        if self.wants_relief(access) {
            match self.make_room(access, Demand::Relief) {
                Room::Waits => return None,
                Room::GoesOn => return Some(true),
                Room::Nothing => {}
            }
        }
        self.space.end_relief();
        self.end_search(&mut access.views.retention);
        self.space.room.end_slices();
        None
    }

    /// Whether room is to be made though no request waits.
    pub(super) fn wants_relief(&self, access: &SpaceAccess<'_>) -> bool {
        !self.compactor.is_stopped() && !access.is_halted() && self.space.wants_relief(&self.counts(access))
    }

    /// The search for room is over.
    fn end_search(&mut self, retention: &mut Retention) {
        self.space.room.end();
        retention.restore_limit();
    }

    /// The first request is appended, or refused for want of space.
    pub(super) fn write_decided(&mut self, access: &mut SpaceAccess<'_>, accepted: bool) {
        self.end_search(&mut access.views.retention);
        if accepted {
            self.compactor.give_turn();
        }
        if self.space.write_decided(accepted) {
            let counts = self.counts(access);
            self.space.note_change(&counts, accepted);
        }
    }
}

/// Room for writes.
impl Reclaimer {
    /// Whether the first request fits without the reserve. While the reserve is used even room in the head is kept for
    /// compaction: so an opening that is cut short never leaves fewer free segments than it found.
    pub(super) fn front_fits(&self, access: &SpaceAccess<'_>) -> bool {
        let Some(request) = access.writes.front() else { return true };
        if access.log.head.next_sequence + request.sequences() >= access.durability.superblocks.current().sequence_limit
        {
            return false;
        }
        let (left, blocks) = (access.log.blocks_left(), request.blocks_at_most(&access.log.limits));
        let more = match request.makes_room() {
            _ if blocks <= left => 0,
            MakesRoom::No => (blocks - left).div_ceil(access.log.limits.segment_blocks - 1) + 1,
            // One small unit.
            MakesRoom::Perhaps | MakesRoom::Surely => 1,
        };
        self.fits(access, request, more)
    }

    /// Whether a request may go into a unit that has others already.
    pub(super) fn may_join(
        &self,
        access: &SpaceAccess<'_>,
        request: &WriteRequest,
        unit: &UnitBuilder,
        limit: u32,
    ) -> bool {
        let blocks = request.blocks_at_most(&access.log.limits);
        let left = limit - unit.blocks();
        let cheap_to_cut = access.log.blocks_left() - unit.blocks() < blocks;
        let more = request.segments_more(&access.log.limits) + 1;
        matches!(request.gate, Gate::Open)
            && !matches!(request.content, Content::Change(_))
            && access.views.map.catalogue.head(request.branch).is_some()
            && access.writes.is_new(request, &access.medium.volume)
            && (blocks <= left || cheap_to_cut)
            && access.log.head.next_sequence + request.sequences()
                < access.durability.superblocks.current().sequence_limit
            && (blocks <= left || self.fits(access, request, more))
    }

    /// Whether the log has `more` segments for a request without its reserve, and the host has given space for them.
    fn fits(&self, access: &SpaceAccess<'_>, request: &WriteRequest, more: u32) -> bool {
        self.space.fits(&self.counts(access), request, more, &access.views.map, &access.medium.volume)
    }
}

/// Turns of compaction and of tables.
impl Reclaimer {
    /// Whether a segment table should be the next thing appended.
    pub(super) fn wants_table(&mut self, access: &SpaceAccess<'_>) -> bool {
        let (durability, segments) = (&*access.durability, &access.medium.segments);
        if !durability.round.may_begin() {
            return false;
        }
        let counts = self.counts(access);
        let is_urgent = self.space.room.is_urgent();
        durability.round.is_worth_it(&counts, &durability.round_reasons(access.log, is_urgent))
            // Nothing else makes room for the request that waits.
            || counts.dead > 0
                && is_urgent
                && !durability.round.is_releasing(segments)
                && !(copies_have_room(&counts) && {
                    let context = self.context(access);
                    self.compactor.can_free(segments, &context)
                })
    }

    /// Appends the next unit of a table. The first table of a round counts among what a search for room may cost.
    ///
    /// # Errors
    /// [`NoSegment`].
    pub(super) fn append_table(&mut self, access: &mut SpaceAccess<'_>) -> Result<bool, NoSegment> {
        let counts = self.counts(access);
        let (catalogue, operations) = (&access.views.map.catalogue, &access.writes.operations);
        if access.durability.append_table(access.log, access.medium, &counts, catalogue, operations)? {
            let counts = self.counts(access);
            let whole = u64::from(counts.table_segments()) * counts.segment_bytes;
            self.space.room.note_copied(TABLE_FUTILE_SHARE * whole);
        }
        Ok(true)
    }

    /// Appends feedback that no write took along: the versions that it let go stay gone.
    ///
    /// # Errors
    /// [`NoSegment`].
    pub(super) fn append_feedback(&mut self, access: &mut SpaceAccess<'_>) -> Result<bool, NoSegment> {
        // It is worth a unit, but not the reserve.
        let free = access.medium.segments.free_count();
        if !access.views.retention.wants_unit() || free <= self.counts(access).reserve() {
            return Ok(false);
        }
        let layout = access.medium.volume.layout;
        let Some(limit) = access.log.unit_space(access.medium, least_unit_blocks(&layout))? else { return Ok(true) };
        let mut unit = UnitBuilder::new(layout, limit);
        access.views.retention.push_feedback(&mut unit);
        access.log.append(access.medium, unit, UnitContent::default(), GroupKind::Writes, true);
        Ok(true)
    }

    /// Copies that go before writes, if there are any: `Some` says whether anything was begun.
    ///
    /// # Errors
    /// [`NoSegment`].
    pub(super) fn copies_first(&mut self, access: &mut SpaceAccess<'_>) -> Result<Option<bool>, NoSegment> {
        let head_is_full = access.log.head_is_full(&access.medium.volume);
        if self.compactor.fills_own_segment(head_is_full) {
            if self.copies_may_go(access) {
                return self.append_copies(access).map(Some);
            }
            let context = self.context(access);
            if self.compactor.expects_copies(&access.medium.segments, &context) {
                return Ok(Some(false));
            }
        }
        self.compactor.leave_own_segment();
        if !self.copies_may_go(access) {
            return Ok(None);
        }
        let context = self.context(access);
        match self.compactor.take_turn(head_is_full, &context) {
            true => self.append_copies(access).map(Some),
            false => Ok(None),
        }
    }

    /// Copies that go after writes.
    ///
    /// # Errors
    /// [`NoSegment`].
    pub(super) fn copies_last(&mut self, access: &mut SpaceAccess<'_>) -> Result<Option<bool>, NoSegment> {
        let may = self.compactor.has_copies() && self.copies_may_mix(access) && self.copies_may_go(access);
        if may { self.append_copies(access).map(Some) } else { Ok(None) }
    }

    /// Copies that go beside units in flight, in a segment that they have to themselves.
    ///
    /// # Errors
    /// [`NoSegment`].
    pub(super) fn copies_along(&mut self, access: &mut SpaceAccess<'_>) -> Result<Option<bool>, NoSegment> {
        let (head, copies) = (access.log.head.segment, access.log.copies_in_flight());
        let head_is_full = access.log.head_is_full(&access.medium.volume);
        let may = !access.log.group.open
            && self.compactor.may_go_along(head, head_is_full, copies)
            && self.copies_may_go(access);
        if may { self.append_copies(access).map(Some) } else { Ok(None) }
    }

    /// Whether copies may go where writes go: when there is no time to lose, nothing else to do, or much garbage though no need of
    /// space. What is left over when enough space was made waits for the next segment that copies have to themselves.
    fn copies_may_mix(&self, access: &SpaceAccess<'_>) -> bool {
        let has_head = access.log.head.segment != NO_SEGMENT;
        !has_head
            || access.durability.round.is_idle()
            || matches!(self.context(access).pace, Some(Pace::Idle | Pace::Urgent))
    }

    /// Whether compaction may append: on a full host it waits for the segments that it has emptied before it takes more.
    fn copies_may_go(&mut self, access: &mut SpaceAccess<'_>) -> bool {
        if !self.compactor.has_copies() {
            return false;
        }
        let counts = self.counts(access);
        let round = &access.durability.round;
        let is_releasing = round.is_releasing(&access.medium.segments);
        // What a round frees comes without them, however long its syncs take; the table after it must find room.
        if (!access.durability.is_idle() || is_releasing) && !copies_have_room(&counts) {
            return false;
        }
        if counts.warm > warm_for_tables(&counts) || counts.warm == counts.free {
            return true;
        }
        // Not even the room in the head, which a table may need: victims whose copies are in flight will be dead, and what a round
        // lets go will be free, in a moment.
        let coming = round.is_pending(counts.dead) || access.log.copies_in_flight() > 0 || is_releasing;
        if coming {
            return false;
        }
        let head_is_full = access.log.head_is_full(&access.medium.volume);
        !head_is_full || !(self.space.is_allocating() || self.allocate_ahead(access))
    }

    /// Reads and chooses victims. Whether anything was begun, or may go on.
    pub(super) fn advance(&mut self, access: &mut SpaceAccess<'_>) -> bool {
        if self.compactor.is_stopped() {
            self.compactor.drop_victims(&mut access.medium.segments, access.log.copies_in_flight());
        }
        if access.medium.refusal.is_active() {
            return false;
        }
        let context = self.context(access);
        self.compactor.advance(&mut access.read(), &context)
    }

    /// A piece of a victim was read, or not.
    pub(super) fn piece_read(
        &mut self,
        access: &mut SpaceAccess<'_>,
        (segment, piece): (u32, usize),
        result: io::Result<Option<BufferMut>>,
    ) {
        let context = self.context(access);
        self.compactor.piece_read(&mut access.read(), &context, (segment, piece), result);
    }

    /// Appends the next copies.
    fn append_copies(&mut self, access: &mut SpaceAccess<'_>) -> Result<bool, NoSegment> {
        let least = least_unit_blocks(&access.medium.volume.layout);
        let Some(limit) = access.log.unit_space(access.medium, least)? else { return Ok(true) };
        let (lsn, head) = (access.log.head.next_lsn, access.log.head.segment);
        let (unit, content) = self.compactor.fill_unit(&mut access.read(), (limit, least), lsn, head);
        self.compactor.end_sources(&mut access.medium.segments, access.log.head.completed_lsn);
        if !unit.is_empty() {
            self.space.room.note_copied(u64::from(unit.blocks()) * RECORD_BLOCK as u64);
            access.log.append(access.medium, unit, content, GroupKind::Compaction, true);
        }
        self.fill_pool(access);
        Ok(true)
    }

    /// Copies in flight have failed.
    pub(super) fn copies_failed(&mut self, access: &mut SpaceAccess<'_>) {
        self.compactor.copies_failed(&mut access.medium.segments);
        self.fill_pool(access);
    }

    /// Takes victims that were read into the pool.
    fn fill_pool(&mut self, access: &mut SpaceAccess<'_>) {
        let context = self.context(access);
        self.compactor.fill_pool(&mut access.read(), &context);
    }
}

/// Free segments, and the host's space for them.
impl Reclaimer {
    /// Allocates host space ahead of need.
    pub(super) fn allocate_ahead(&mut self, access: &mut SpaceAccess<'_>) -> bool {
        if access.is_halted() {
            return false;
        }
        let counts = self.counts(access);
        // One in any case, so that there is room before it is wanted.
        let front = access.writes.front().map_or(1, |request| request.segments_more(&access.log.limits) + 2);
        let LogMedium { segments, io, volume, .. } = &mut *access.medium;
        self.space.allocate_ahead(io, segments, &counts, front, volume)
    }

    /// Host space for the next head was allocated, or not.
    ///
    /// # Errors
    /// [`NoSegment`] if the host has no space for it.
    pub(super) fn head_allocated(
        &mut self,
        access: &mut SpaceAccess<'_>,
        result: io::Result<()>,
    ) -> Result<(), NoSegment> {
        let Err(error) = access.log.allocated(&mut access.medium.segments, result) else { return Ok(()) };
        if !is_no_space(&error) {
            access.medium.refusal.begin("allocating a segment", &error);
            return Ok(());
        }
        let counts = self.counts(access);
        self.space.host_refused(&counts);
        Err(NoSegment)
    }

    /// An allocation ahead of need has ended.
    pub(super) fn allocated(&mut self, access: &mut SpaceAccess<'_>, segment: u32, result: io::Result<()>) {
        if result.is_ok() {
            access.medium.segments.warm_up(segment);
        }
        let counts = self.counts(access);
        if let Err(error) = self.space.allocated(&mut access.medium.io, &counts, result) {
            access.medium.refusal.begin("allocating a segment", &error);
        }
    }

    /// Frees segments that nothing reads any more.
    pub(super) fn free_segments(&mut self, access: &mut SpaceAccess<'_>) -> bool {
        let warm_max = self.space.warm_max(&self.counts(access));
        let (progress, freed) = access.durability.round.free_segments(access.medium, warm_max);
        if freed > 0 {
            self.segment_freed(access);
        }
        progress
    }

    /// The space of a free segment was given back, or not.
    pub(super) fn discarded(&mut self, access: &mut SpaceAccess<'_>, segment: u32, result: io::Result<()>) {
        let LogMedium { segments, volume, .. } = &mut *access.medium;
        access.durability.round.discarded(segments, volume, segment, result);
        self.segment_freed(access);
    }

    /// A segment became free, or gave its space back to the host.
    fn segment_freed(&mut self, access: &mut SpaceAccess<'_>) {
        let counts = self.counts(access);
        self.space.segment_freed(&mut access.medium.io, &counts);
    }

    /// The store is idle: host space that was kept for writes is given back.
    pub(super) fn begin_idle(&mut self, access: &mut SpaceAccess<'_>) {
        let counts = self.counts(access);
        self.space.look_at_host(&mut access.medium.io, &counts);
        self.compactor.retry_unread();
        access.durability.round.set_idle(true);
        let counts = self.counts(access);
        let cooling = self.space.cool(&mut access.medium.segments, &counts);
        access.durability.round.release(cooling);
        if access.writes.is_empty() {
            self.space.begin_relief();
        }
    }
}
