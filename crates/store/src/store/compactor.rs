//! The compactor: what is live of a segment is copied forward, in bounded steps, so that the segment can be used again.
//!
//! Copies have segments to themselves as long as there is time: what has lived long and what is new do not lie together. While
//! space is wanted the next segments are read during the copying and writing of others, and several units of copies are in flight
//! at a time: the medium is seldom idle, and a write waits for a read only where copies have the segment to themselves
//! and the next victim is not there yet. Absent: how fast it runs, which `policy` decides, and how victims are read (`victims`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use super::access::ReadAccess;
use super::appender::UnitContent;
use super::live::{Live, Pieces, live_of};
use super::policy::{Pace, SegmentCounts};
use super::space::pool_segments_max;
use super::update::UnplacedUpdate;
use super::victims::{Victims, victims_ahead, victims_max};
use crate::layout::{Layout, RECORD_BLOCK};
use crate::segments::Segments;
use crate::unit::UnitBuilder;

/// Upper bound on the bytes that are copied in one poll while nobody waits for space.
const COPIED_PER_POLL_BYTES: u64 = 1 << 20;
/// The same while a write waits for space. The waker asks for the next poll.
const COPIED_PER_URGENT_POLL_BYTES: u64 = 4 << 20;
/// Upper bound on one unit of copies, in 4 KiB blocks: what a write may have to wait for.
const COPY_UNIT_BLOCKS: u32 = (256 << 10) / RECORD_BLOCK as u32;
/// Units of copies in flight at a time.
const COPY_UNITS_MAX: usize = 4;
/// Segments that may turn out to be unreadable in one poll; then the next poll goes on.
const UNREAD_PER_POLL: u32 = 8;

/// A victim that is being copied.
struct Source {
    segment: u32,
    bytes: Pieces,
    /// How many of its entries are not copied yet.
    left: usize,
    /// The last unit with copies of it.
    last_lsn: u64,
}

/// What is to be copied, of several victims, by age: so that what was written at one time, and is likely to live as long, comes to
/// lie together, however it lay before; and units are filled across victims. (Wang et al., Separating Data via Block Invalidation
/// Time Inference for Write Amplification Reduction in Log-Structured Storage, FAST 2022, take the same age to choose among several
/// heads of the log; here one head takes the ages by turns.)
#[derive(Default)]
struct Pool {
    sources: Vec<Source>,
    /// The next one last.
    live: Vec<Pooled>,
    /// How many times it began again with the oldest.
    turn: u64,
    /// Of what was taken last. Younger blocks that are added still come in this turn, older ones in the next.
    sequence: u64,
}

struct Pooled {
    turn: u64,
    segment: u32,
    live: Live,
}

impl Pool {
    fn live_bytes(&self, layout: &Layout) -> u64 {
        self.live.len() as u64 * layout.live_block_bytes()
    }

    /// Whether it can do with another victim. One it can always do with.
    fn takes_more(&self, layout: &Layout, live_bytes_max: u64, sources_max: usize) -> bool {
        self.sources.is_empty() || self.sources.len() < sources_max && self.live_bytes(layout) < live_bytes_max
    }

    /// Adds a victim of which something is live.
    fn add(&mut self, segment: u32, bytes: Pieces, live: Vec<Live>) {
        self.sources.push(Source { segment, bytes, left: live.len(), last_lsn: 0 });
        let turn_of = |live: &Live| self.turn + u64::from(live.sequence() < self.sequence);
        self.live.extend(live.into_iter().map(|live| Pooled { turn: turn_of(&live), segment, live }));
        self.live.sort_by_key(|pooled| Reverse((pooled.turn, pooled.live.sequence())));
    }
}

/// A segment that takes copies and nothing else: what has lived long is likely to live on, and what is new to die soon, so
/// they must not lie together.
#[derive(Clone, Copy, Debug, Default)]
struct ColdHead {
    /// Copies have the segment that is the head, or the one that is opened next, to themselves.
    filling: bool,
    /// Which one it was.
    segment: Option<u32>,
}

/// What the rest of the store tells the compactor about the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompactionContext {
    pub(super) counts: SegmentCounts,
    /// How fast it shall run; `None`: nothing is to be compacted.
    pub(super) pace: Option<Pace>,
    /// Compaction for the waiting request has copied so much that more gains nothing.
    pub(super) is_futile: bool,
    /// The next store sequence: the clock by which the age of segments counts.
    pub(super) now: u64,
    /// How far the log has grown, in bytes: the clock of retries.
    pub(super) log_bytes: u64,
}

impl CompactionContext {
    fn is_urgent(&self) -> bool {
        self.pace == Some(Pace::Urgent)
    }
}

/// Victims, the pool of what is to be copied, and turns with writes.
pub(super) struct Compactor {
    victims: Victims,
    pool: Pool,
    /// All copies of these are in units up to this one, which may still be in flight.
    ending: VecDeque<(u32, u64)>,
    cold: ColdHead,
    /// A write had its turn; copies that must share a segment with writes have the next one.
    has_turn: bool,
    /// The store is being closed or erased.
    stopped: bool,
    /// There was no space for copies; not again in this poll.
    blocked: bool,
    /// It has more to do, but has done enough for one poll.
    held_back: bool,
    copied_in_poll: u64,
    /// Segments that the medium did not read, each with the length of the log from which on it is tried again. An error of the medium
    /// may pass: only a checksum that does not match shows damage.
    unread: BTreeMap<u32, u64>,
    /// How many could not be read in this poll.
    unread_in_poll: u32,
    /// Reads that the medium failed, since the store was opened.
    pub(super) io_errors: u64,
}

impl Compactor {
    /// `piece_bytes`: in which victims are read.
    pub(super) fn new(piece_bytes: usize) -> Compactor {
        Compactor {
            victims: Victims::new(piece_bytes),
            pool: Pool::default(),
            ending: VecDeque::new(),
            cold: ColdHead::default(),
            has_turn: false,
            stopped: false,
            blocked: false,
            held_back: false,
            copied_in_poll: 0,
            unread: BTreeMap::new(),
            unread_in_poll: 0,
            io_errors: 0,
        }
    }

    /// The log begins again after an erase. Counters go on.
    pub(super) fn begin_log(&mut self) {
        let (read_bytes, io_errors) = (self.victims.read_bytes, self.io_errors);
        *self = Compactor { io_errors, ..Compactor::new(self.victims.piece_bytes()) };
        self.victims.read_bytes = read_bytes;
    }

    pub(super) fn new_poll(&mut self) {
        (self.copied_in_poll, self.unread_in_poll) = (0, 0);
        (self.held_back, self.blocked) = (false, false);
    }

    /// The store is being closed or erased, or (false) the erase was refused.
    pub(super) fn stop(&mut self, stopped: bool) {
        self.stopped = stopped;
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// There was no space for copies.
    pub(super) fn block(&mut self) {
        self.blocked = true;
    }

    /// Whether it could use space that becomes dead.
    pub(super) fn can_run(&self) -> bool {
        !self.blocked && !self.stopped
    }

    /// Whether it goes on in the next poll.
    pub(super) fn is_held_back(&self) -> bool {
        self.held_back
    }

    /// Bytes of victims that were read (or lent by the medium), since the store was opened.
    pub(super) fn read_bytes(&self) -> u64 {
        self.victims.read_bytes
    }

    /// Memory taken, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let sources: usize = self.pool.sources.iter().map(|source| source.bytes.len()).sum();
        let live = self.pool.live.capacity() * size_of::<Pooled>();
        self.victims.memory_bytes() + (sources + live) as u64
    }

    /// Bytes that the copies in memory will fill, about.
    pub(super) fn pool_bytes(&self, layout: &Layout) -> u64 {
        self.pool.live_bytes(layout)
    }

    /// Whether copies can be appended now.
    pub(super) fn has_copies(&self) -> bool {
        !self.pool.live.is_empty() && self.can_run() && !self.held_back
    }

    /// Whether a segment is being compacted, or is about to be.
    fn is_busy(&self) -> bool {
        !self.pool.live.is_empty() || !self.victims.is_empty()
    }

    /// Whether this segment is being compacted, or could not be read lately.
    fn has(&self, segment: u32) -> bool {
        self.unread.contains_key(&segment)
            || self.victims.has(segment)
            || self.pool.sources.iter().any(|source| source.segment == segment)
            || self.ending.iter().any(|&(ending, _)| ending == segment)
    }

    #[cfg(test)]
    pub(super) fn has_victim(&self, segment: u32) -> bool {
        self.victims.has(segment)
    }

    /// Whether it would free space, or is doing so.
    pub(super) fn can_free(&mut self, segments: &Segments, context: &CompactionContext) -> bool {
        self.can_run() && !context.is_futile && (self.is_busy() || self.victim(segments, context).is_some())
    }

    /// The best victim.
    fn victim(&mut self, segments: &Segments, context: &CompactionContext) -> Option<u32> {
        self.unread.retain(|_, try_again_at| *try_again_at > context.log_bytes);
        segments.victim(context.now, context.is_urgent(), |segment| self.has(segment))
    }

    /// Whether a victim should be read next.
    fn wants_victim(&self, context: &CompactionContext) -> bool {
        let counts = &context.counts;
        let hurry = context.is_urgent() || self.cold.filling || counts.is_low();
        self.can_run()
            && context.pace.is_some()
            && !context.is_futile
            && self.victims.has_room(self.pool.sources.len(), hurry, counts.segment_bytes)
            // Dead segments first: they cost nothing.
            && counts.dead < counts.round_segments()
    }

    /// Reads and chooses victims. Whether anything was begun, or may go on.
    pub(super) fn advance(&mut self, access: &mut ReadAccess<'_>, context: &CompactionContext) -> bool {
        let hurry = context.is_urgent() || self.cold.filling;
        let most = if hurry { COPIED_PER_URGENT_POLL_BYTES } else { COPIED_PER_POLL_BYTES };
        let enough = self.copied_in_poll >= most || self.unread_in_poll >= UNREAD_PER_POLL;
        let was_held_back = self.held_back;
        // A waiting request needs another poll even between two victims.
        self.held_back = enough && (hurry || self.is_busy());
        let reads = !self.stopped && self.victims.read(access);
        if enough || !self.wants_victim(context) {
            // A request began to wait for space: copies may go on in this very poll.
            return reads || was_held_back && !self.held_back;
        }
        let Some(segment) = self.victim(&access.medium.segments, context) else { return reads };
        self.victims.add(access, segment);
        self.fill_pool(access, context);
        true
    }

    /// The store is being closed or erased: what would be copied later stays where it is, so that nobody waits for it.
    pub(super) fn drop_victims(&mut self, segments: &mut Segments, copies_in_flight: usize) {
        if copies_in_flight == 0 {
            for source in std::mem::take(&mut self.pool).sources {
                segments.unpin(source.segment);
            }
        }
        for segment in self.victims.drop_idle() {
            segments.unpin(segment);
        }
    }

    pub(super) fn piece_read(
        &mut self,
        access: &mut ReadAccess<'_>,
        context: &CompactionContext,
        (segment, piece): (u32, usize),
        result: super::io::IoResult,
    ) {
        self.victims.piece_read(segment, piece, result);
        self.fill_pool(access, context);
    }

    /// Takes victims that were read into the pool. What of them is live is determined now: much may have died since they were chosen.
    pub(super) fn fill_pool(&mut self, access: &mut ReadAccess<'_>, context: &CompactionContext) {
        let segment_bytes = context.counts.segment_bytes;
        let most = u64::from(pool_segments_max(&context.counts).max(1) - 1) * segment_bytes;
        let sources_max = victims_max(segment_bytes) - victims_ahead(segment_bytes);
        while self.pool.takes_more(&access.medium.volume.layout, most, sources_max)
            && let Some(victim) = self.victims.take_next()
        {
            let segment = victim.segment;
            if access.medium.segments.segment(segment).reopened != victim.reopened {
                // Written to while it was read: the bytes may be half old and half new.
                access.medium.segments.unpin(segment);
                continue;
            }
            let bytes = match victim.into_bytes() {
                Ok(bytes) => bytes,
                Err(error) => {
                    access.medium.segments.unpin(segment);
                    self.note_unread(access, context, segment, &error);
                    continue;
                }
            };
            match live_of(segment, &bytes, access.map, &access.medium.segments, &access.medium.volume) {
                Ok(live) if live.is_empty() => access.medium.segments.unpin(segment),
                Ok(live) => self.pool.add(segment, bytes, live),
                Err(reason) => {
                    mark_damaged(access, segment, &reason);
                    access.medium.segments.unpin(segment);
                }
            }
        }
    }

    /// The medium did not read a segment: it is left alone until the log has grown by a segment, or the store is idle.
    fn note_unread(&mut self, access: &ReadAccess<'_>, context: &CompactionContext, segment: u32, error: &str) {
        let volume = access.medium.volume.info.volume_id;
        tracing::warn!(%volume, segment, error, "compaction cannot read a segment; it is tried again later");
        self.io_errors += 1;
        self.unread_in_poll += 1;
        self.unread.insert(segment, context.log_bytes + context.counts.segment_bytes);
    }

    /// Segments that could not be read are tried again. Whether there are any.
    pub(super) fn retry_unread(&mut self) -> bool {
        let any = !self.unread.is_empty();
        self.unread.clear();
        any
    }

    /// A write has had its turn.
    pub(super) fn give_turn(&mut self) {
        self.has_turn = true;
    }

    /// Whether copies have the head, or the next one, to themselves, and that is not full.
    pub(super) fn fills_own_segment(&self, head_is_full: bool) -> bool {
        self.cold.filling && (!head_is_full || self.cold.segment.is_none())
    }

    /// The segment that copies had to themselves is full, or there are no more copies.
    pub(super) fn leave_own_segment(&mut self) {
        self.cold.filling = false;
    }

    /// Whether more copies come for the segment that copies have to themselves, so that writes wait.
    pub(super) fn expects_copies(&mut self, segments: &Segments, context: &CompactionContext) -> bool {
        match (self.pool.live.is_empty(), self.victims.is_empty()) {
            (false, _) => self.held_back && self.can_run(),
            (true, false) => !self.stopped,
            (true, true) => self.wants_victim(context) && !self.held_back && self.victim(segments, context).is_some(),
        }
    }

    /// Whether copies go next rather than writes, if both could: they alternate.
    pub(super) fn take_turn(&mut self, head_is_full: bool, context: &CompactionContext) -> bool {
        if head_is_full && self.has_turn {
            // Writes have the segment after this one, unless there is still too little space.
            self.has_turn = context.counts.is_low();
            self.cold = ColdHead { filling: true, segment: None };
            return true;
        }
        context.is_urgent() && std::mem::take(&mut self.has_turn)
    }

    /// Whether copies may go into their segment beside those in flight. When it is full it is the turn of writes.
    pub(super) fn may_go_along(&mut self, head: u32, head_is_full: bool, copies_in_flight: usize) -> bool {
        if !self.cold.filling || self.cold.segment != Some(head) {
            return false;
        }
        self.cold.filling = !head_is_full;
        self.cold.filling && copies_in_flight < COPY_UNITS_MAX
    }

    /// Whether copies are waiting for what is in flight, to be next.
    pub(super) fn is_next(&self, head_is_full: bool, is_urgent: bool) -> bool {
        self.cold.filling || self.has_copies() && self.has_turn && (is_urgent || head_is_full)
    }

    /// Puts the next copies into a unit of at most `limit` 4 KiB blocks. `least`: of the smallest unit. `lsn`: the number of the unit,
    /// in the segment `head`.
    pub(super) fn fill_unit(
        &mut self,
        access: &mut ReadAccess<'_>,
        (limit, least): (u32, u32),
        lsn: u64,
        head: u32,
    ) -> (UnitBuilder, UnitContent) {
        let most = COPY_UNIT_BLOCKS.max(least);
        let mut unit = match self.cold.filling {
            true => UnitBuilder::new(access.medium.volume.layout, limit.min(2 * most)).packed(most),
            false => UnitBuilder::new(access.medium.volume.layout, limit.min(most)),
        };
        let mut content = UnitContent::default();
        let Pool { sources, live, turn, sequence } = &mut self.pool;
        while let Some(next) = live.last() {
            let source = sources.iter_mut().find(|source| source.segment == next.segment);
            let source = source.expect("a victim stays until all of it is copied");
            let before = content.updates.len();
            if !copy(access, &next.live, source, &mut unit, &mut content) {
                break;
            }
            source.left -= 1;
            if content.updates.len() > before {
                source.last_lsn = lsn;
            }
            (*turn, *sequence) = (next.turn, next.live.sequence());
            live.pop();
        }
        if !unit.is_empty() {
            if self.cold.filling {
                self.cold.segment = Some(head);
            }
            self.copied_in_poll += u64::from(unit.blocks()) * RECORD_BLOCK as u64;
        }
        (unit, content)
    }

    /// Lets victims go all of which is copied. `completed_lsn`: the last unit that is written.
    pub(super) fn end_sources(&mut self, segments: &mut Segments, completed_lsn: u64) {
        for source in self.pool.sources.extract_if(.., |source| source.left == 0) {
            if source.last_lsn > completed_lsn {
                self.ending.push_back((source.segment, source.last_lsn));
            } else {
                segments.unpin(source.segment);
            }
        }
    }

    /// Copies up to this unit are written.
    pub(super) fn copies_written(&mut self, segments: &mut Segments, completed_lsn: u64) {
        while let Some(&(segment, lsn)) = self.ending.front()
            && lsn <= completed_lsn
        {
            self.ending.pop_front();
            segments.unpin(segment);
        }
    }

    /// Copies in flight have failed. Their originals are as live as before, and will be copied another time.
    pub(super) fn copies_failed(&mut self, segments: &mut Segments) {
        let ending = std::mem::take(&mut self.ending).into_iter().map(|(segment, _)| segment);
        let pool = std::mem::take(&mut self.pool);
        for segment in ending.chain(pool.sources.into_iter().map(|source| source.segment)) {
            segments.unpin(segment);
        }
    }
}

/// Leaves a segment as it is: nothing in it may be lost by copying.
fn mark_damaged(access: &mut ReadAccess<'_>, segment: u32, reason: &str) {
    let volume = access.medium.volume.info.volume_id;
    tracing::error!(%volume, segment, reason, "a segment is damaged; it is not compacted");
    access.medium.segments.mark_damaged(segment);
}

/// Copies one entry; false if the unit is full. What has died since the victim was read is dead on arrival.
fn copy(
    access: &mut ReadAccess<'_>,
    live: &Live,
    source: &Source,
    unit: &mut UnitBuilder,
    content: &mut UnitContent,
) -> bool {
    match *live {
        Live::Block { branch, lba, version, item_at, data_at, base } => {
            let Some((item, block)) = source.bytes.block(item_at, data_at, &access.medium.volume) else {
                if access.map.is_live(branch, lba, version) {
                    mark_damaged(access, source.segment, &format!("block {lba} does not match its checksum"));
                }
                return true;
            };
            let pushed = match base {
                None => unit.push_block(branch, lba, version.sequence(), &item),
                Some(base) => unit.push_conditional((branch, lba, version.sequence()), base, &item),
            };
            let Some((item_at, data_index)) = pushed else { return false };
            content.updates.push(UnplacedUpdate::Copy { branch, lba, from: version, item_at, data_index });
            content.data.push(block);
        }
        Live::Hole { branch, start, sequence, place } => {
            let Some(hole) = access.map.hole_at(branch, start, sequence, place) else { return true };
            let record = hole.record.as_ref().map_or(&[][..], |record| record.as_bytes());
            let pushed = unit.push_hole((branch, sequence), hole.start, hole.count, record, hole.is_conditional);
            let Some(item_at) = pushed else { return false };
            content.updates.push(UnplacedUpdate::CopyHole { branch, start, sequence, from: place, item_at });
        }
    }
    true
}

#[cfg(test)]
mod tests;
