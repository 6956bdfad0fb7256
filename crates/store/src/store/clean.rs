//! Cleaning: what is live of a segment is copied forward, in bounded steps, so that the segment can be used again.
//!
//! Copies have segments to themselves as long as there is time: what has lived long and what is new do not lie together. While
//! space is wanted the next segments are read during the copying and writing of others, and several units of copies are on their
//! way at a time: the medium is seldom without work, and a write waits for a read only where copies have the segment to themselves
//! and the next victim is not there yet. Absent: how victims come into memory, which is `victims`'s.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use strongroom_block::{Buffer, keyless_checksum};

use super::group::GroupKind;
use super::log::Raw;
use super::read::item_checksum;
use super::victims::{Pieces, Victims};
use super::{CLEANING_PER_POLL_BYTES, Store, URGENT_PER_POLL_BYTES};
use crate::holes::ItemPlace;
use crate::index::Version;
use crate::layout::{Layout, RECORD_BLOCK};
use crate::unit::{Entry, NO_SEGMENT, Place, UnitBuilder, decode_entries, decode_header};

/// Upper bound on one unit of copies, in 4 KiB blocks: what a write may have to wait for.
const COPY_UNIT_BLOCKS: u32 = (256 << 10) / RECORD_BLOCK as u32;
/// Units of copies on their way at a time.
const COPY_UNITS_MAX: usize = 4;
/// What is live of several victims is sorted together, if there is no more of it than this share of the reserve, ...
const POOL_RESERVE_SHARE: u32 = 2;
/// ... or than this one, once the reserve is touched.
pub(super) const POOL_RESERVE_SHARE_LOW: u32 = 4;
/// Segments that are kept free for writes ahead of need, where there are so many.
const AHEAD_SEGMENTS: u32 = 4;
/// While so much is in use for each byte that is live nothing is cleaned, if space is plenty.
const GARBAGE_SHARE_LEAST: f64 = 1.5;
/// Segments that may turn out unreadable in one poll; then the next poll goes on.
const UNREAD_PER_POLL: u32 = 8;
/// Segments of garbage that are not worth cleaning while space is plenty.
const GARBAGE_SEGMENTS: u64 = 16;
/// Segments that are copied for a waiting request, besides everything live twice, before it is told that there is no space.
const FUTILE_SEGMENTS: u64 = 16;

/// Something live of a victim. Ranges are bytes of the victim as read.
pub(super) enum Live {
    Block { branch: u32, lba: u64, version: Version, item_at: usize, data_at: usize, base: Option<u64> },
    Hole { branch: u32, start: u64, sequence: u64, place: ItemPlace },
}

impl Live {
    fn sequence(&self) -> u64 {
        match *self {
            Live::Block { version, .. } => version.sequence(),
            Live::Hole { sequence, .. } => sequence,
        }
    }
}

/// A victim that is being copied.
struct Source {
    segment: u32,
    bytes: Pieces,
    /// How much of it is not copied yet.
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
    /// How many times it began again with what is oldest.
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

    /// Adds a victim of which something counts.
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

/// The cleaner.
#[derive(Default)]
pub(super) struct Cleaner {
    pub(super) victims: Victims,
    pool: Pool,
    /// All copies of these are in units up to this one, which may still be on its way.
    ending: VecDeque<(u32, u64)>,
    cold: ColdHead,
    /// A write waits for space: more in one poll, and no turns.
    pub(super) urgent: bool,
    /// A write had its turn; copies that must share a segment with writes have the next one.
    pub(super) turn: bool,
    /// The store is being closed.
    pub(super) stop: bool,
    /// There was no space for copies; not again in this poll.
    pub(super) blocked: bool,
    /// Has more to do, but has done enough for one poll.
    pub(super) held_back: bool,
    pub(super) copied_in_poll: u64,
    /// The first request waits for space that is made a slice at a time: a snapshot was deleted, or blocks are being hidden.
    pub(super) awaits_slices: bool,
    /// Copied since the first request began to wait for space, in bytes, and what tables count for.
    pub(super) copied_for_front: u64,
    /// Segments that the medium did not read, each with the length of the log from which on it is tried again. An error of the medium
    /// may pass: only a checksum that does not match shows damage.
    unread: BTreeMap<u32, u64>,
    /// How many could not be read in this poll.
    pub(super) unread_in_poll: u32,
    /// Those were tried again for the request that waits now.
    pub(super) tried_again: bool,
}

impl Cleaner {
    /// Whether copies can be appended now.
    pub(super) fn has_copies(&self) -> bool {
        !self.pool.live.is_empty() && !self.blocked && !self.held_back && !self.stop
    }

    /// Memory taken, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let sources: usize = self.pool.sources.iter().map(|source| source.bytes.len()).sum();
        let live = self.pool.live.capacity() * size_of::<Pooled>();
        self.victims.memory_bytes() + (sources + live) as u64
    }

    /// Whether a segment is being cleaned, or is about to be.
    fn is_busy(&self) -> bool {
        !self.pool.live.is_empty() || !self.victims.is_empty()
    }

    /// Whether this segment is one of those being cleaned, or could not be read lately.
    fn has(&self, segment: u32) -> bool {
        self.unread.contains_key(&segment)
            || self.victims.has(segment)
            || self.pool.sources.iter().any(|source| source.segment == segment)
            || self.ending.iter().any(|&(ending, _)| ending == segment)
    }
}

impl Store {
    /// Whether cleaning would yield space, or is at it.
    pub(super) fn cleaning_possible(&mut self) -> bool {
        !self.cleaner.blocked
            && !self.cleaner.stop
            && !self.cleaning_futile()
            && (self.cleaner.is_busy() || self.victim().is_some())
    }

    fn victim(&mut self) -> Option<u32> {
        if !self.cleaner.unread.is_empty() {
            let log_bytes = self.log_bytes();
            self.cleaner.unread.retain(|_, try_again_at| *try_again_at > log_bytes);
        }
        let cleaner = &self.cleaner;
        self.segments.victim(self.head.next_sequence, cleaner.urgent, |segment| cleaner.has(segment))
    }

    /// Whether a victim should be read next.
    fn victim_wanted(&self) -> bool {
        let hurry = self.cleaner.urgent || self.cleaner.cold.filling || self.space_is_low();
        !self.cleaner.stop
            && !self.cleaner.blocked
            && self.refused.is_none()
            && !self.round.opening
            && !self.cleaning_futile()
            && self.victim_fits(self.cleaner.pool.sources.len(), hurry)
            && self.cleaning_wanted()
            // Dead segments first: they cost nothing.
            && self.segments.dead_count() < self.round_segments()
    }

    /// Copies that go before writes, if there are any: `Some` tells whether anything was begun.
    pub(super) fn copies_first(&mut self) -> Option<bool> {
        if self.cleaner.cold.filling {
            if self.head_left_blocks() >= self.least_unit_blocks() || self.cleaner.cold.segment.is_none() {
                if self.copies_may_go() {
                    return Some(self.append_copies());
                }
                let more = match (self.cleaner.pool.live.is_empty(), self.cleaner.victims.is_empty()) {
                    (false, _) => self.cleaner.held_back && !self.cleaner.blocked && !self.cleaner.stop,
                    (true, false) => !self.cleaner.stop,
                    (true, true) => self.victim_wanted() && !self.cleaner.held_back && self.victim().is_some(),
                };
                if more {
                    return Some(false);
                }
            }
            self.cleaner.cold.filling = false;
        }
        if !self.copies_may_go() {
            return None;
        }
        if self.head_left_blocks() < self.least_unit_blocks() && self.cleaner.turn {
            // Writes have the segment after this one, unless there is still too little space.
            self.cleaner.turn = self.space_is_low();
            self.cleaner.cold = ColdHead { filling: true, segment: None };
            return Some(self.append_copies());
        }
        if self.cleaner.urgent && self.cleaner.turn {
            self.cleaner.turn = false;
            return Some(self.append_copies());
        }
        None
    }

    /// Whether copies go into their segment beside those on their way. When it is full it is the turn of writes.
    pub(super) fn copies_go_along(&mut self) -> bool {
        if !self.cleaner.cold.filling || self.cleaner.cold.segment != Some(self.head.segment) {
            return false;
        }
        if self.head_left_blocks() < self.least_unit_blocks() {
            self.cleaner.cold.filling = false;
            return false;
        }
        self.copies_on_their_way() < COPY_UNITS_MAX && self.copies_may_go()
    }

    /// Whether copies are waiting for what is on its way to the log, to be next.
    pub(super) fn copies_have_turn(&self) -> bool {
        let full = self.head_left_blocks() < self.least_unit_blocks();
        self.cleaner.cold.filling || self.cleaner.has_copies() && self.cleaner.turn && (self.cleaner.urgent || full)
    }

    /// Whether copies may go where writes go: when there is no time to lose, nothing else to do, or much garbage though no need of
    /// space. What is left over when enough space was made waits for the next segment that copies have to themselves.
    pub(super) fn copies_may_mix(&self) -> bool {
        let plenty = || !self.space_is_low() && self.cleaning_wanted();
        self.cleaner.urgent || self.round.idle || self.head.segment == NO_SEGMENT || plenty()
    }

    /// So few segments are free, or on their way to be, that cleaning is needed for space.
    fn space_is_low(&self) -> bool {
        let coming = self.segments.dead_count() + self.round.coming();
        let round = self.round_segments();
        // One round's worth is dead and waits for the others of its round, and some are free for writes meanwhile. What is kept free
        // beyond that is missing where it makes cleaning cheap.
        let ahead = round.min(AHEAD_SEGMENTS) + self.table_segments();
        self.segments.free_count() + coming <= self.reserved_segments() + round + ahead
    }

    /// As much was written for the request that waits as copying everything live twice over takes: more of it gains nothing.
    fn cleaning_futile(&self) -> bool {
        let most = 2 * self.segments.live_bytes() + FUTILE_SEGMENTS * u64::from(self.layout.segment_bytes);
        self.cleaner.urgent && self.cleaner.copied_for_front > most
    }

    fn cleaning_wanted(&self) -> bool {
        let segment = u64::from(self.layout.segment_bytes);
        let used = u64::from(self.segments.used_count()) * segment;
        self.cleaner.urgent
            || self.space_is_low()
            || used as f64
                > self.segments.live_bytes() as f64 * self.garbage_share() + (GARBAGE_SEGMENTS * segment) as f64
    }

    /// How much of the log may be in use, as a multiple of what is live: as much as the whole log is of a full volume.
    fn garbage_share(&self) -> f64 {
        let full = (self.info.geometry.blocks + self.info.retention_blocks) * self.layout.live_block_bytes();
        let log = u64::from(self.layout.segments) * u64::from(self.layout.segment_bytes);
        (log as f64 / full as f64).max(GARBAGE_SHARE_LEAST)
    }

    /// The store is being closed or erased: what would be copied later is left as it is, so that nobody waits for it.
    fn leave_victims(&mut self) {
        if self.copies_on_their_way() == 0 {
            let pool = std::mem::take(&mut self.cleaner.pool);
            for source in pool.sources {
                self.segments.unpin(source.segment);
            }
        }
        for segment in self.cleaner.victims.leave() {
            self.segments.unpin(segment);
        }
    }

    pub(super) fn drive_cleaner(&mut self) -> bool {
        if self.cleaner.stop {
            self.leave_victims();
        }
        let cleaner = &mut self.cleaner;
        let hurry = cleaner.urgent || cleaner.cold.filling;
        let most = if hurry { URGENT_PER_POLL_BYTES } else { CLEANING_PER_POLL_BYTES };
        let enough = cleaner.copied_in_poll >= most || cleaner.unread_in_poll >= UNREAD_PER_POLL;
        let was_held_back = cleaner.held_back;
        // A waiting request needs another poll even between two victims.
        cleaner.held_back = enough && (hurry || cleaner.is_busy());
        let reads = self.read_victims();
        if enough || !self.victim_wanted() {
            // Somebody began to wait for space: copies may go on in this very poll.
            return reads || was_held_back && !self.cleaner.held_back;
        }
        let Some(segment) = self.victim() else { return reads };
        self.add_victim(segment);
        self.next_victim();
        true
    }

    /// How many segments the copies of what is sorted together may fill. None of the victims may be empty before all of them are copied: a
    /// share of the reserve must do for that, and of what the host gave.
    fn pool_segments_max(&self) -> u32 {
        let reserved = self.layout.reserved_segments();
        let plenty = self.segments.warm_ahead() > reserved;
        let share = if plenty { POOL_RESERVE_SHARE } else { POOL_RESERVE_SHARE_LOW };
        (reserved / share).min(self.host_room_for_copies())
    }

    /// How many segments what is sorted together will fill beyond what it may once the reserve is touched: these are kept for it.
    pub(super) fn kept_for_copies(&self) -> u32 {
        let wanted = self.cleaner.pool.live_bytes(&self.layout).div_ceil(u64::from(self.layout.segment_bytes)) as u32;
        wanted.saturating_sub(self.layout.reserved_segments() / POOL_RESERVE_SHARE_LOW)
    }

    /// Takes victims that were read into the pool. What of them counts is looked at now: much may have died since they were chosen.
    pub(super) fn next_victim(&mut self) {
        let most = u64::from(self.pool_segments_max().max(1) - 1) * u64::from(self.layout.segment_bytes);
        let sources_max = self.victims_max() - self.victims_ahead();
        while self.cleaner.pool.takes_more(&self.layout, most, sources_max)
            && let Some(victim) = self.cleaner.victims.take_next()
        {
            let segment = victim.segment;
            if self.segments.segment(segment).reopened != victim.reopened {
                // Written to while it was read: what was read tells nothing.
                self.segments.unpin(segment);
                continue;
            }
            let bytes = match victim.into_bytes() {
                Ok(bytes) => bytes,
                Err(error) => {
                    self.segments.unpin(segment);
                    self.not_read(segment, &error);
                    continue;
                }
            };
            match self.live_of(segment, &bytes) {
                Ok(live) if live.is_empty() => self.segments.unpin(segment),
                Ok(live) => self.cleaner.pool.add(segment, bytes, live),
                Err(reason) => {
                    self.damaged(segment, &reason);
                    self.segments.unpin(segment);
                }
            }
        }
    }

    /// The medium did not read a segment: it is left alone until the log has grown by a segment, or the store is idle.
    fn not_read(&mut self, segment: u32, error: &str) {
        tracing::warn!(volume = %self.info.volume_id, segment, error, "cleaning cannot read a segment; it is tried again later");
        self.stats.cleaning_io_errors += 1;
        self.cleaner.unread_in_poll += 1;
        let try_again_at = self.log_bytes() + u64::from(self.layout.segment_bytes);
        self.cleaner.unread.insert(segment, try_again_at);
    }

    /// Segments that could not be read are tried again. Whether there are any.
    pub(super) fn try_unread_again(&mut self) -> bool {
        let any = !self.cleaner.unread.is_empty();
        self.cleaner.unread.clear();
        any
    }

    /// The first request would be refused for want of space: segments that could not be read are tried once more for it.
    pub(super) fn try_unread_for_front(&mut self) -> bool {
        !std::mem::replace(&mut self.cleaner.tried_again, true) && self.try_unread_again()
    }

    /// Leaves a segment as it is: nothing in it may be lost by copying.
    fn damaged(&mut self, segment: u32, reason: &str) {
        tracing::error!(volume = %self.info.volume_id, segment, reason, "a segment is damaged; it is not cleaned");
        self.segments.mark_damaged(segment);
    }

    /// Everything of a segment that counts.
    pub(super) fn live_of(&self, segment: u32, bytes: &Pieces) -> Result<Vec<Live>, String> {
        let mut live = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let block = (at / RECORD_BLOCK) as u32;
            let place = Place { store_id: self.info.store_id, segment, block };
            let header = decode_header(&bytes.slice(at..at + RECORD_BLOCK), place, &self.layout)
                .filter(|header| header.generation == self.segments.segment(segment).generation)
                .ok_or_else(|| format!("no unit at block {block}"))?;
            let data_at = at + usize::from(header.record_blocks) * RECORD_BLOCK;
            if at + header.blocks() as usize * RECORD_BLOCK > bytes.len() {
                return Err("a unit runs over the segment's end".to_owned());
            }
            let records = bytes.slice(at..data_at);
            let entries = decode_entries(&records, &header, place, &self.layout).map_err(|fault| fault.to_string())?;
            for entry in entries {
                self.live_of_entry(segment, entry, at, data_at, &mut live);
            }
            at += header.blocks() as usize * RECORD_BLOCK;
        }
        Ok(live)
    }

    fn live_of_entry(&self, segment: u32, entry: Entry<'_>, unit_at: usize, data_at: usize, live: &mut Vec<Live>) {
        match entry {
            Entry::Blocks { branch, lba, sequence, count, item_at, data_index, base, .. } => {
                for index in 0..count {
                    let lba = lba + u64::from(index);
                    let item_at = unit_at + (item_at + index * self.layout.item_bytes) as usize;
                    let data_at = data_at + ((data_index + index) * self.layout.block_bytes) as usize;
                    let sequence = sequence + u64::from(index);
                    let version = Version::new(&self.layout, sequence, segment, data_at as u32, item_at as u32);
                    if self.map.is_live(branch, lba, version) {
                        live.push(Live::Block { branch, lba, version, item_at, data_at, base });
                    }
                }
            }
            Entry::Hole { branch, start, sequence, item_at, .. } => {
                let place = ItemPlace { segment, item_at: unit_at as u32 + item_at };
                if self.map.hole_at(branch, start, sequence, place).is_some() {
                    live.push(Live::Hole { branch, start, sequence, place });
                }
            }
            Entry::Table { .. }
            | Entry::Catalogue { .. }
            | Entry::Windows { .. }
            | Entry::Change { .. }
            | Entry::Verified { .. }
            | Entry::Operation { .. }
            | Entry::Registration { .. } => {}
        }
    }

    /// Appends the next copies.
    pub(super) fn append_copies(&mut self) -> bool {
        let least = self.least_unit_blocks();
        let Some(limit) = self.unit_limit(least) else { return true };
        let most = COPY_UNIT_BLOCKS.max(least);
        let mut unit = match self.cleaner.cold.filling {
            true => UnitBuilder::new(self.layout, limit.min(2 * most)).packed(most),
            false => UnitBuilder::new(self.layout, limit.min(most)),
        };
        let (mut raw, mut data) = (Vec::new(), Vec::new());
        let mut pool = std::mem::take(&mut self.cleaner.pool);
        while let Some(next) = pool.live.last() {
            let source = pool.sources.iter_mut().find(|source| source.segment == next.segment);
            let source = source.expect("a victim stays until all of it is copied");
            let before = raw.len();
            if !self.copy(&next.live, next.segment, &source.bytes, &mut unit, &mut raw, &mut data) {
                break;
            }
            source.left -= 1;
            if raw.len() > before {
                source.last_lsn = self.head.next_lsn;
            }
            (pool.turn, pool.sequence) = (next.turn, next.live.sequence());
            pool.live.pop();
        }
        for source in pool.sources.extract_if(.., |source| source.left == 0) {
            if source.last_lsn > self.head.completed_lsn {
                self.cleaner.ending.push_back((source.segment, source.last_lsn));
            } else {
                self.segments.unpin(source.segment);
            }
        }
        self.cleaner.pool = pool;
        if !unit.is_empty() {
            if self.cleaner.cold.filling {
                self.cleaner.cold.segment = Some(self.head.segment);
            }
            let bytes_copied = u64::from(unit.blocks()) * RECORD_BLOCK as u64;
            self.cleaner.copied_in_poll += bytes_copied;
            self.cleaner.copied_for_front += bytes_copied;
            self.append_unit(unit, raw, data, GroupKind::Cleaning, true);
        }
        self.next_victim();
        true
    }

    /// Copies one thing; false if the unit is full. What has died since the victim was read is dead on arrival.
    fn copy(
        &mut self,
        live: &Live,
        victim: u32,
        bytes: &Pieces,
        unit: &mut UnitBuilder,
        raw: &mut Vec<Raw>,
        data: &mut Vec<Buffer>,
    ) -> bool {
        match *live {
            Live::Block { branch, lba, version, item_at, data_at, base } => {
                let item = &bytes.slice(item_at..item_at + self.layout.item_bytes as usize);
                let block = bytes.slice(data_at..data_at + self.layout.block_bytes as usize);
                if keyless_checksum(&block) != item_checksum(item) {
                    if self.map.is_live(branch, lba, version) {
                        self.damaged(victim, &format!("block {lba} does not match its checksum"));
                    }
                    return true;
                }
                let pushed = match base {
                    None => unit.push_block(branch, lba, version.sequence(), item),
                    Some(base) => unit.push_conditional((branch, lba, version.sequence()), base, item),
                };
                let Some((item_at, data_index)) = pushed else { return false };
                raw.push(Raw::Copy { branch, lba, from: version, item_at, data_index });
                data.push(block);
            }
            Live::Hole { branch, start, sequence, place } => {
                let Some(hole) = self.map.hole_at(branch, start, sequence, place) else { return true };
                let record = hole.record.as_ref().map_or(&[][..], |record| record.as_bytes());
                let pushed = unit.push_hole((branch, sequence), hole.start, hole.count, record, hole.is_conditional);
                let Some(item_at) = pushed else { return false };
                raw.push(Raw::CopyHole { branch, start, sequence, from: place, item_at });
            }
        }
        true
    }

    pub(super) fn copies_written(&mut self) {
        while let Some(&(segment, lsn)) = self.cleaner.ending.front()
            && lsn <= self.head.completed_lsn
        {
            self.cleaner.ending.pop_front();
            self.segments.unpin(segment);
        }
    }

    /// What was on its way is void. What it was copied from is as live as before, and will be cleaned another time.
    pub(super) fn copies_failed(&mut self) {
        let ending = std::mem::take(&mut self.cleaner.ending).into_iter().map(|(segment, _)| segment);
        let pool = std::mem::take(&mut self.cleaner.pool);
        for segment in ending.chain(pool.sources.into_iter().map(|source| source.segment)) {
            self.segments.unpin(segment);
        }
        self.next_victim();
    }
}

#[cfg(test)]
mod tests;
