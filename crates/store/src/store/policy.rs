//! The policy of space: from a summary of the store's segments it decides how compaction runs and what makes room for a request that does
//! not fit. Pure functions; the store carries out what they decide.

/// While less is in use than this multiple of what is live, nothing is compacted if space is plentiful.
const GARBAGE_SHARE_LEAST: f64 = 1.5;
/// Segments of garbage that are not worth compaction while space is plentiful.
const GARBAGE_SEGMENTS: u64 = 16;
/// Segments that are kept free for writes ahead of need, if a round frees that many.
const AHEAD_SEGMENTS: u32 = 4;
/// Segments that are copied for a waiting request, besides everything live twice, before it is answered that there is no space.
const FUTILE_SEGMENTS: u64 = 16;
/// So many dead segments are worth a segment table in any case, ...
const ROUND_SEGMENTS_MAX: u32 = 32;
/// ... or, if that is more, the number that this many tables take.
const ROUND_TABLES: u64 = 32;
/// Where space is wanted, the number of segments that this many tables take is enough.
const ROUND_TABLES_LEAST: u32 = 8;

/// Counts of segments, and the reserves that follow from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SegmentCounts {
    pub(super) total: u32,
    pub(super) segment_bytes: u64,
    /// In 4 KiB blocks.
    pub(super) segment_blocks: u32,
    pub(super) free: u32,
    /// Free segments that have host space, the next ones to be used, without a gap.
    pub(super) warm: u32,
    /// Closed segments without live data.
    pub(super) dead: u32,
    /// Segments that a round in progress frees.
    pub(super) coming: u32,
    pub(super) live_bytes: u64,
    /// Bytes that are live when the whole volume and all retained versions are written.
    pub(super) full_bytes: u64,
    /// The reserve of a store whose segment table is small.
    pub(super) base_reserve: u32,
    /// 4 KiB blocks of the two segment tables of a round.
    pub(super) table_blocks: u64,
    /// Segments that the copies in memory will fill beyond what they may fill of the reserve.
    pub(super) copy_segments: u32,
}

impl SegmentCounts {
    pub(super) fn used(&self) -> u32 {
        self.total - self.free
    }

    /// Whole segments that the tables of a round take; none in most stores.
    pub(super) fn table_segments(&self) -> u32 {
        (self.table_blocks / u64::from(self.segment_blocks - 1)) as u32
    }

    /// Segments that only compaction, tables and opening may use. Half of them, which is what discards leave, hold a table.
    pub(super) fn reserve(&self) -> u32 {
        self.base_reserve + 2 * self.table_segments()
    }

    /// Segments that may be opened before a table for that reason alone is worth it.
    pub(super) fn round_segments_max(&self) -> u32 {
        let tables = ROUND_TABLES * self.table_blocks / u64::from(self.segment_blocks);
        (tables as u32).max(ROUND_SEGMENTS_MAX)
    }

    /// Dead segments that are worth a segment table, which frees them, while there is space.
    pub(super) fn round_segments(&self) -> u32 {
        (self.total / 64).clamp(1, self.round_segments_max())
    }

    /// Dead segments that are worth a table when space is wanted: one, unless a table takes whole segments itself.
    pub(super) fn round_segments_least(&self) -> u32 {
        (ROUND_TABLES_LEAST * self.table_segments()).clamp(1, self.round_segments())
    }

    /// Whether no more than the reserve is free, or about to be.
    pub(super) fn reserve_is_touched(&self) -> bool {
        self.free + self.coming <= self.reserve()
    }

    /// Whether so few segments are free, or about to be, that compaction is needed for space.
    pub(super) fn is_low(&self) -> bool {
        let round = self.round_segments();
        // One round's worth is dead and waits for the others of its round, and some are free for writes meanwhile. What is kept free
        // beyond that is missing where it makes compaction cheap.
        let ahead = round.min(AHEAD_SEGMENTS) + self.table_segments();
        self.free + self.dead + self.coming <= self.reserve() + round + ahead
    }

    /// Whether much more is in use than is live: more than the whole log is of a full volume.
    pub(super) fn has_much_garbage(&self) -> bool {
        let share = (u64::from(self.total) * self.segment_bytes) as f64 / self.full_bytes as f64;
        let used = (u64::from(self.used()) * self.segment_bytes) as f64;
        let worth_it = (GARBAGE_SEGMENTS * self.segment_bytes) as f64;
        used > self.live_bytes as f64 * share.max(GARBAGE_SHARE_LEAST) + worth_it
    }

    /// Whether compaction that has copied this many bytes for one request gains nothing any more: about everything live twice over.
    pub(super) fn is_futile(&self, copied_bytes: u64) -> bool {
        copied_bytes > 2 * self.live_bytes + FUTILE_SEGMENTS * self.segment_bytes
    }
}

/// Who needs room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Demand {
    #[default]
    Nobody,
    /// No request waits, but the host was full: room is made ahead.
    Relief,
    /// The first request does not fit.
    Request,
}

/// The host's space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum HostSpace {
    /// It has not refused any.
    #[default]
    Available,
    /// Space for a segment is being allocated.
    Allocating,
    /// It refused space, and was not asked again for this demand.
    Full,
}

/// What a checkpoint contributes to making room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CheckpointSpace {
    /// There is none that could be dropped.
    #[default]
    Nothing,
    /// One is being written and cannot be dropped at the moment.
    Writing,
    /// One can be dropped.
    Droppable,
}

/// Everything on which the next action depends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SpaceSummary {
    pub(super) segments: SegmentCounts,
    pub(super) demand: Demand,
    pub(super) host: HostSpace,
    /// Compaction runs as fast as it can already.
    pub(super) is_urgent: bool,
    /// Segments are being freed, or compaction can free some.
    pub(super) can_reclaim: bool,
    /// Segments that could not be read were tried again for this demand.
    pub(super) unread_retried: bool,
    /// Deleted snapshots are being merged, or holes are hiding blocks: both free space.
    pub(super) has_slices: bool,
    /// Such slices were waited for.
    pub(super) awaited_slices: bool,
    pub(super) checkpoint: CheckpointSpace,
    /// Compaction can use what dropped versions leave.
    pub(super) can_compact: bool,
    /// Dropping versions frees nothing more.
    pub(super) versions_exhausted: bool,
}

/// How fast compaction runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pace {
    /// It collects garbage.
    Idle,
    /// Free segments are running low.
    Replenish,
    /// A request waits for space.
    Urgent,
}

/// What runs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompactionAction {
    /// No compaction.
    Nothing,
    Compact(Pace),
    /// Room is on its way.
    Wait,
    /// The host is asked once more.
    AskHost,
    /// Segments that could not be read are tried once more.
    RetryUnread,
    /// Wait for slices of deleting and hiding.
    AwaitSlices,
    /// Slices are done: there is more to compact than before.
    CompactAgain,
    DropCheckpoint,
    /// Retained versions make way.
    DropVersions,
    /// There is no room to be made.
    GiveUp,
}

/// Decides what runs next. What makes room is tried in the order of its cost; retained versions, which somebody may want to read, come
/// last.
pub(super) fn next(summary: &SpaceSummary) -> CompactionAction {
    if summary.demand == Demand::Nobody {
        return match &summary.segments {
            _ if summary.is_urgent => CompactionAction::Compact(Pace::Urgent),
            counts if counts.is_low() => CompactionAction::Compact(Pace::Replenish),
            counts if counts.has_much_garbage() => CompactionAction::Compact(Pace::Idle),
            _ => CompactionAction::Nothing,
        };
    }
    match summary {
        SpaceSummary { host: HostSpace::Allocating, .. } => CompactionAction::Wait,
        SpaceSummary { is_urgent: false, .. } => CompactionAction::Compact(Pace::Urgent),
        SpaceSummary { can_reclaim: true, .. } => CompactionAction::Wait,
        SpaceSummary { host: HostSpace::Full, .. } => CompactionAction::AskHost,
        SpaceSummary { unread_retried: false, .. } => CompactionAction::RetryUnread,
        SpaceSummary { has_slices: true, .. } => CompactionAction::AwaitSlices,
        SpaceSummary { awaited_slices: true, .. } => CompactionAction::CompactAgain,
        SpaceSummary { checkpoint: CheckpointSpace::Writing, .. } => CompactionAction::Wait,
        SpaceSummary { checkpoint: CheckpointSpace::Droppable, .. } => CompactionAction::DropCheckpoint,
        // If compaction could not use what versions leave, dropping them would cost all of them at once.
        SpaceSummary { can_compact: true, versions_exhausted: false, .. } => CompactionAction::DropVersions,
        _ => CompactionAction::GiveUp,
    }
}

/// The search for room for one request.
#[derive(Debug, Default)]
pub(super) struct RoomSearch {
    is_urgent: bool,
    /// Bytes copied since it began; tables count too.
    copied_bytes: u64,
    unread_retried: bool,
    awaits_slices: bool,
}

impl RoomSearch {
    /// Whether compaction has to hurry.
    pub(super) fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    pub(super) fn begin(&mut self) {
        (self.is_urgent, self.copied_bytes) = (true, 0);
    }

    /// The request fits, or is refused.
    pub(super) fn end(&mut self) {
        (self.is_urgent, self.unread_retried) = (false, false);
    }

    /// Nobody waits for slices any more.
    pub(super) fn end_slices(&mut self) {
        self.awaits_slices = false;
    }

    pub(super) fn note_copied(&mut self, bytes: u64) {
        self.copied_bytes += bytes;
    }

    /// There is more to compact than before.
    pub(super) fn compact_again(&mut self) {
        (self.copied_bytes, self.awaits_slices) = (0, false);
    }

    /// Retained versions were to make way: the limit was lowered or not, and versions were dropped or not. Returns whether dropping
    /// versions frees nothing more. Only what was dropped can be compacted: a lower limit alone must not begin the search again, or a
    /// search in a store without versions would never end.
    pub(super) fn versions_made_way(&mut self, is_limit_lower: bool, any_dropped: bool) -> bool {
        if is_limit_lower && any_dropped {
            self.compact_again();
        }
        !any_dropped
    }

    /// Compaction for the request has copied so much that more gains nothing.
    pub(super) fn is_futile(&self, counts: &SegmentCounts) -> bool {
        self.is_urgent && counts.is_futile(self.copied_bytes)
    }

    pub(super) fn await_slices(&mut self) {
        self.awaits_slices = true;
    }

    /// Whether the first request waits for work that is done in slices, one in each poll.
    pub(super) fn awaits_slices(&self) -> bool {
        self.awaits_slices
    }

    pub(super) fn retry_unread(&mut self) {
        self.unread_retried = true;
    }

    pub(super) fn unread_retried(&self) -> bool {
        self.unread_retried
    }

    #[cfg(test)]
    pub(super) fn allow_unread_retry(&mut self) {
        self.unread_retried = false;
    }
}

#[cfg(test)]
mod tests;
