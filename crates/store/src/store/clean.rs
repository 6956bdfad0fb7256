//! Cleaning: what is live of a segment is copied forward, in bounded steps, so that the segment can be used again.
//!
//! Copies have segments to themselves as long as there is time: what has lived long and what is new do not lie together.

use std::collections::VecDeque;
use std::io;

use strongroom_block::{Buffer, BufferMut, keyless_checksum};

use super::group::GroupKind;
use super::log::Raw;
use super::read::item_checksum;
use super::{CLEANING_PER_POLL_BYTES, Purpose, Store, URGENT_PER_POLL_BYTES};
use crate::backend::Io;
use crate::holes::ItemPlace;
use crate::index::Version;
use crate::layout::RECORD_BLOCK;
use crate::unit::{Entry, NO_SEGMENT, Place, UnitBuilder, decode_entries, decode_header};

/// Upper bound on one unit of copies, in 4 KiB blocks: what a write may have to wait for.
const COPY_UNIT_BLOCKS: u32 = (256 << 10) / RECORD_BLOCK as u32;
/// What is read of a victim is a multiple of this, in bytes.
const READ_BYTES: usize = 256 << 10;
/// Segments of garbage that are not worth cleaning while space is plenty.
const GARBAGE_SEGMENTS: u64 = 16;
/// Segments that are copied for a waiting request, besides everything live twice, before it is told that there is no space.
const FUTILE_SEGMENTS: u64 = 16;

/// Something live of a victim. Ranges are bytes of the victim as read.
pub(super) enum Live {
    Block { branch: u32, lba: u64, version: Version, item_at: usize, data_at: usize },
    Hole { branch: u32, sequence: u64, place: ItemPlace },
}

#[derive(Default)]
enum State {
    #[default]
    Idle,
    Reading {
        victim: u32,
    },
    Copying {
        victim: u32,
        bytes: Buffer,
        live: VecDeque<Live>,
    },
}

/// A segment that takes copies and nothing else: what has lived long is likely to live on, and what is new to die soon, so
/// they must not lie together.
#[derive(Clone, Copy, Debug, Default)]
struct ColdHead {
    /// Copies have the segment that is the head, or the one that is opened next, to themselves.
    filling: bool,
    /// Which one it was.
    segment: Option<u32>,
    /// Sum of the ages of what was copied into it, and how many blocks that were.
    ages: u128,
    blocks: u64,
}

/// The cleaner.
#[derive(Default)]
pub(super) struct Cleaner {
    state: State,
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
    /// Copied since the first request began to wait for space, in bytes.
    pub(super) copied_for_front: u64,
}

impl Cleaner {
    /// How old a head is that ends now.
    pub(super) fn age_of_head(&self, segment: u32, now: u64) -> u64 {
        match self.cold.segment == Some(segment) && self.cold.blocks > 0 {
            true => (self.cold.ages / u128::from(self.cold.blocks)) as u64,
            false => now,
        }
    }

    /// Whether copies can be appended now.
    pub(super) fn has_copies(&self) -> bool {
        matches!(self.state, State::Copying { .. }) && !self.blocked && !self.held_back && !self.stop
    }
}

impl Store {
    /// Whether cleaning would yield space, or is at it.
    pub(super) fn cleaning_possible(&self) -> bool {
        !self.cleaner.blocked
            && !self.cleaner.stop
            && !self.cleaning_futile()
            && (!matches!(self.cleaner.state, State::Idle) || self.victim().is_some())
    }

    fn victim(&self) -> Option<u32> {
        self.segments.victim(self.head.next_sequence, self.cleaner.urgent)
    }

    /// Whether a victim should be read next.
    fn victim_wanted(&self) -> bool {
        matches!(self.cleaner.state, State::Idle)
            && !self.cleaner.stop
            && !self.cleaner.blocked
            && self.refused.is_none()
            && !self.round.opening
            && !self.cleaning_futile()
            && self.cleaning_wanted()
            // Dead segments first: they cost nothing.
            && self.segments.dead_count() < self.layout.round_segments()
    }

    /// Copies that go before writes, if there are any: `Some` tells whether anything was begun.
    pub(super) fn copies_first(&mut self) -> Option<bool> {
        if self.cleaner.cold.filling {
            if self.head_left_blocks() >= self.least_unit_blocks() || self.cleaner.cold.segment.is_none() {
                if self.copies_may_go() {
                    return Some(self.append_copies());
                }
                let more = match self.cleaner.state {
                    State::Reading { .. } => true,
                    State::Copying { .. } => self.cleaner.held_back && !self.cleaner.blocked && !self.cleaner.stop,
                    State::Idle => self.victim_wanted() && !self.cleaner.held_back && self.victim().is_some(),
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
            self.cleaner.cold = ColdHead { filling: true, ..ColdHead::default() };
            return Some(self.append_copies());
        }
        if self.cleaner.urgent && self.cleaner.turn {
            self.cleaner.turn = false;
            return Some(self.append_copies());
        }
        None
    }

    /// Whether copies are waiting for what is on its way to the log, to be next.
    pub(super) fn copies_have_turn(&self) -> bool {
        let full = self.head_left_blocks() < self.least_unit_blocks();
        self.cleaner.cold.filling || self.cleaner.has_copies() && self.cleaner.turn && (self.cleaner.urgent || full)
    }

    /// Whether copies may go where writes go: when there is no time to lose, or no need of space.
    pub(super) fn copies_may_mix(&self) -> bool {
        self.cleaner.urgent || self.round.idle || !self.space_is_low() || self.head.segment == NO_SEGMENT
    }

    /// So few segments are free, or on their way to be, that cleaning is needed for space.
    fn space_is_low(&self) -> bool {
        let coming = self.segments.dead_count() + self.round.coming();
        self.segments.free_count() + coming <= self.layout.reserved_segments() + self.layout.round_segments() * 2
    }

    /// Everything live was copied twice over for the request that waits: more of it gains nothing.
    fn cleaning_futile(&self) -> bool {
        let most = 2 * self.segments.live_bytes() + FUTILE_SEGMENTS * u64::from(self.layout.segment_bytes);
        self.cleaner.urgent && self.cleaner.copied_for_front > most
    }

    fn cleaning_wanted(&self) -> bool {
        let segment = u64::from(self.layout.segment_bytes);
        let used = u64::from(self.segments.used_count()) * segment;
        self.cleaner.urgent
            || self.space_is_low()
            || used > self.segments.live_bytes() / 2 * 3 + GARBAGE_SEGMENTS * segment
    }

    pub(super) fn drive_cleaner(&mut self) -> bool {
        let cleaner = &mut self.cleaner;
        let hurry = cleaner.urgent || cleaner.cold.filling;
        let most = if hurry { URGENT_PER_POLL_BYTES } else { CLEANING_PER_POLL_BYTES };
        let enough = cleaner.copied_in_poll >= most;
        let was_held_back = cleaner.held_back;
        // A waiting request needs another poll even between two victims.
        cleaner.held_back = enough && (hurry || !matches!(cleaner.state, State::Idle));
        if enough || !self.victim_wanted() {
            // Somebody began to wait for space: copies may go on in this very poll.
            return was_held_back && !self.cleaner.held_back;
        }
        let Some(victim) = self.victim() else { return false };
        self.segments.pin(victim);
        self.cleaner.state = State::Reading { victim };
        let end = self.segments.segment(victim).end as usize * RECORD_BLOCK;
        self.stats.cleaning_read_bytes += end as u64;
        if let Some(bytes) = self.backend.share(self.layout.segment_at(victim), end) {
            self.take_victim(victim, Ok(bytes));
            return true;
        }
        // A few lengths only: then the memory of one victim does for the next.
        let len = end.next_multiple_of(READ_BYTES).min(self.layout.segment_bytes as usize);
        let io = Io::Read { offset: self.layout.segment_at(victim), buffer: BufferMut::to_fill(len) };
        self.start_io(Purpose::Clean, io);
        true
    }

    pub(super) fn clean_read_done(&mut self, result: io::Result<Option<BufferMut>>) {
        let State::Reading { victim } = self.cleaner.state else { unreachable!("a victim is being read") };
        let end = self.segments.segment(victim).end as usize * RECORD_BLOCK;
        let bytes = result.map(|bytes| bytes.expect("reads return their buffer").freeze().slice(..end));
        self.take_victim(victim, bytes.map_err(|error| error.to_string()));
    }

    fn take_victim(&mut self, victim: u32, bytes: Result<Buffer, String>) {
        let live = bytes.and_then(|bytes| self.live_of(victim, &bytes).map(|live| (bytes, live)));
        match live {
            Ok((bytes, live)) => {
                self.cleaner.state = State::Copying { victim, bytes, live };
                self.finish_victim_if_done();
            }
            Err(reason) => {
                self.damaged(victim, &reason);
                self.segments.unpin(victim);
                self.cleaner.state = State::Idle;
            }
        }
    }

    /// Leaves a segment as it is: nothing in it may be lost by copying.
    fn damaged(&mut self, segment: u32, reason: &str) {
        tracing::error!(volume = %self.info.volume_id, segment, reason, "a segment is damaged; it is not cleaned");
        self.segments.mark_damaged(segment);
    }

    /// Everything of a segment that counts.
    pub(super) fn live_of(&self, segment: u32, bytes: &Buffer) -> Result<VecDeque<Live>, String> {
        let mut live = VecDeque::new();
        let mut at = 0;
        while at < bytes.len() {
            let block = (at / RECORD_BLOCK) as u32;
            let place = Place { store_id: self.info.store_id, segment, block };
            let header = decode_header(&bytes[at..at + RECORD_BLOCK], place, &self.layout)
                .filter(|header| header.generation == self.segments.segment(segment).generation)
                .ok_or_else(|| format!("no unit at block {block}"))?;
            let data_at = at + usize::from(header.record_blocks) * RECORD_BLOCK;
            let records = bytes.get(at..data_at).ok_or("a unit runs over the segment's end")?;
            let entries = decode_entries(records, &header, place, &self.layout).map_err(|fault| fault.to_string())?;
            for entry in entries {
                self.live_of_entry(segment, entry, at, data_at, &mut live);
            }
            at += header.blocks() as usize * RECORD_BLOCK;
        }
        Ok(live)
    }

    fn live_of_entry(&self, segment: u32, entry: Entry<'_>, unit_at: usize, data_at: usize, live: &mut VecDeque<Live>) {
        match entry {
            Entry::Blocks { branch, lba, sequence, count, item_at, data_index, .. } => {
                for index in 0..count {
                    let lba = lba + u64::from(index);
                    let item_at = unit_at + (item_at + index * self.layout.item_bytes) as usize;
                    let data_at = data_at + ((data_index + index) * self.layout.block_bytes) as usize;
                    let sequence = sequence + u64::from(index);
                    let version = Version::new(&self.layout, sequence, segment, data_at as u32, item_at as u32);
                    if self.map.is_live(branch, lba, version) {
                        live.push_back(Live::Block { branch, lba, version, item_at, data_at });
                    }
                }
            }
            Entry::Hole { branch, sequence, item_at, .. } => {
                let place = ItemPlace { segment, item_at: unit_at as u32 + item_at };
                if self.map.hole_at(branch, sequence, place).is_some() {
                    live.push_back(Live::Hole { branch, sequence, place });
                }
            }
            Entry::Table { .. } | Entry::Catalogue { .. } | Entry::Change { .. } | Entry::Verified { .. } => {}
        }
    }

    /// Appends the next copies.
    pub(super) fn append_copies(&mut self) -> bool {
        let least = self.least_unit_blocks();
        let Some(limit) = self.unit_limit(least) else { return true };
        let mut unit = UnitBuilder::new(self.layout, limit.min(COPY_UNIT_BLOCKS.max(least)));
        let (mut raw, mut data) = (Vec::new(), Vec::new());
        let State::Copying { victim, bytes, mut live } = std::mem::take(&mut self.cleaner.state) else {
            unreachable!("copies are at hand")
        };
        while let Some(next) = live.pop_front() {
            if !self.copy(&next, victim, &bytes, &mut unit, &mut raw, &mut data) {
                live.push_front(next);
                break;
            }
        }
        self.cleaner.state = State::Copying { victim, bytes, live };
        if unit.is_empty() {
            self.finish_victim_if_done();
            return true;
        }
        if self.cleaner.cold.filling {
            let cold = &mut self.cleaner.cold;
            cold.segment = Some(self.head.segment);
            cold.ages += u128::from(self.segments.segment(victim).written_at) * raw.len() as u128;
            cold.blocks += raw.len() as u64;
        }
        let bytes_copied = u64::from(unit.blocks()) * RECORD_BLOCK as u64;
        self.cleaner.copied_in_poll += bytes_copied;
        self.cleaner.copied_for_front += bytes_copied;
        self.append_unit(unit, raw, data, GroupKind::Cleaning, true);
        true
    }

    /// Copies one thing; false if the unit is full. What has died since the victim was read is dead on arrival.
    fn copy(
        &mut self,
        live: &Live,
        victim: u32,
        bytes: &Buffer,
        unit: &mut UnitBuilder,
        raw: &mut Vec<Raw>,
        data: &mut Vec<Buffer>,
    ) -> bool {
        match *live {
            Live::Block { branch, lba, version, item_at, data_at } => {
                let item = &bytes[item_at..item_at + self.layout.item_bytes as usize];
                let block = bytes.slice(data_at..data_at + self.layout.block_bytes as usize);
                if keyless_checksum(&block) != item_checksum(item) {
                    if self.map.is_live(branch, lba, version) {
                        self.damaged(victim, &format!("block {lba} does not match its checksum"));
                    }
                    return true;
                }
                let pushed = unit.push_block(branch, lba, version.sequence(), item);
                let Some((item_at, data_index)) = pushed else { return false };
                raw.push(Raw::Copy { branch, lba, from: version, item_at, data_index });
                data.push(block);
            }
            Live::Hole { branch, sequence, place } => {
                let Some(hole) = self.map.hole_at(branch, sequence, place) else { return true };
                let record = hole.record.as_ref().map_or(&[][..], |record| record.as_bytes());
                let pushed = unit.push_hole(branch, hole.start, hole.count, sequence, record);
                let Some(item_at) = pushed else { return false };
                raw.push(Raw::CopyHole { branch, sequence, from: place, item_at });
            }
        }
        true
    }

    pub(super) fn copies_written(&mut self) {
        self.finish_victim_if_done();
    }

    fn finish_victim_if_done(&mut self) {
        if let State::Copying { victim, live, .. } = &self.cleaner.state
            && live.is_empty()
        {
            self.segments.unpin(*victim);
            self.cleaner.state = State::Idle;
        }
    }

    pub(super) fn copies_failed(&mut self) {
        if let State::Copying { victim, .. } = &self.cleaner.state {
            self.segments.unpin(*victim);
            self.cleaner.state = State::Idle;
        }
    }
}
