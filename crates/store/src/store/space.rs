//! Space: how much is left, of the log and of the host beneath it, and what may still be used when there is none.
//!
//! A store in sparse files takes the host's space segment by segment, so the host can run out long before the log does. The
//! store then goes on reading, discarding, deleting snapshots and cleaning: for that it keeps a few free segments whose host
//! space it has already. Data that a caller wants written is refused before these are touched.

use std::io;

use super::append::{Addresses, Content, MakesRoom, WriteOp};
use super::clean::POOL_RESERVE_SHARE_LOW;
use super::log::is_no_space;
use super::{Purpose, Store};
use crate::backend::Io;
use crate::error::StoreError;
use crate::layout::Layout;
use crate::options::SpaceState;

/// Free segments that hold host space ahead of need, once the host has no more: for a segment table, for cleaning and for
/// discards. Where a table takes whole segments there are as many more, of each of these.
const HOST_RESERVE: u32 = 4;
/// Of these, discards leave as many to deleting, cleaning and tables.
const HOST_RESERVE_CLEANING: u32 = 3;
/// And deleting and cleaning as many to tables: each frees at least the segment that it takes.
const HOST_RESERVE_TABLES: u32 = 2;
/// Where the host is nearly full, two further kinds of free segments with host space are kept: one segment of each kind for this many
/// segments of the log, ...
const EMERGENCY_SHARE: u32 = 32;
/// ... but no more than these. The first are for blocks that hold data already and are written again: what a file system on the
/// volume does when it replays its journal, checks itself and deletes, and what takes no space for long, because the old data makes
/// room. The second are for small writes to blocks that hold nothing.
const EMERGENCY_MAX: u32 = 2;
/// A write of no more bytes is small: file systems write what tells where data is in such pieces.
const SMALL_WRITE_BYTES: u64 = 128 << 10;
/// Share of the log that may be live before space counts as nearly full, in percent. A volume written full, without snapshots,
/// stays below.
const NEARLY_FULL_PERCENT: u64 = 85;
/// The host is nearly full when it has less than this, or than a twentieth of the log.
const HOST_NEARLY_FULL_BYTES: u64 = 256 << 20;

/// Once it was full, room is made for one segment for this many of the log, ...
const RELIEF_SHARE: u32 = 32;
/// ... but no more than these: the rest of the older versions stays until a write needs their space.
const RELIEF_MAX: u32 = 8;

/// As many segments as so many rounds free keep their host space while writes go on.
const WARM_ROUNDS: usize = 3;

/// What is known of space.
#[derive(Default)]
pub(super) struct Space {
    /// The host refused space, and has not given any since.
    host_full: bool,
    /// Space for a free segment is being asked for.
    asking: bool,
    /// The host was asked again for the request that waits now.
    asked_again: bool,
    /// A write was refused for want of space, and none was taken since.
    refused: bool,
    /// Nothing was written since the store was last called idle: free segments keep less host space.
    quiet: bool,
    /// What the host has left, as of the last look, if that can be told.
    host_free: Option<u64>,
    /// The host has little left, as of the last look.
    host_low: bool,
    /// The host has little left, or refused space and has not given all that is kept ahead since.
    scarce: bool,
    /// Room is being made while no request waits for it.
    relieving: bool,
    state: SpaceState,
}

impl Store {
    /// How much space there is. Changes when segments are opened and freed, and when writes are refused.
    pub fn space(&self) -> SpaceState {
        self.space.state
    }

    /// How full the store is of what it can have, in percent; 0 while there is room for all of the volume. The host's file system counts with
    /// what it has left for others too.
    pub fn space_percent(&self) -> u8 {
        let (live, room) = (self.segments.live_bytes(), self.room_bytes());
        let volume = self.info.geometry.blocks.saturating_mul(self.layout.live_block_bytes());
        match live.checked_mul(100) {
            _ if room >= volume.saturating_sub(live) => 0,
            Some(percent) => (percent / (live + room).max(1)) as u8,
            None => 100,
        }
    }

    /// What the host's file system has left, as of the last look.
    pub(super) fn host_free_bytes(&self) -> Option<u64> {
        self.space.host_free
    }

    /// What the log has room for, however little the host has.
    pub(super) fn log_free_bytes(&self) -> u64 {
        usable_bytes(&self.layout).saturating_sub(self.segments.live_bytes())
    }

    /// What may still be written to blocks that hold nothing, about.
    pub(super) fn room_bytes(&self) -> u64 {
        let log = self.log_free_bytes();
        let Some(host) = self.space.host_free else { return log };
        // A write asks for one more than it fills.
        let kept = HOST_RESERVE + self.table_segments() + 2 * self.emergency_segments() + 1;
        let segment = u64::from(self.layout.segment_bytes);
        let segments = u64::from(self.segments.warm_ahead()) + host / segment;
        // What is dead comes back when it is cleaned, for the most part.
        let dead = (u64::from(self.segments.used_count()) * segment).saturating_sub(self.segments.live_bytes());
        (segments.saturating_sub(kept.into()) * segment + dead / 2).min(log)
    }

    /// How many free segments of each of the two kinds keep their host space.
    fn emergency_segments(&self) -> u32 {
        if self.space.scarce { (self.layout.segments / EMERGENCY_SHARE).clamp(1, EMERGENCY_MAX) } else { 0 }
    }

    /// How many of the two kinds a write leaves alone: neither, if nothing is live that was not before.
    fn leaves_kinds(&self, op: &WriteOp) -> u32 {
        let (lba, count) = match &op.content {
            Content::Blocks { addresses: Addresses::From(lba), count, .. } => (*lba, u64::from(*count)),
            // What was acknowledged before a crash.
            Content::Blocks { .. } if op.replayed.is_some() => return 0,
            Content::Holes(_) => return 0,
            _ => return 2,
        };
        let head = self.map.catalogue.head(op.branch);
        match () {
            () if head.is_some_and(|node| self.map.has_all_of(node, lba, lba + count)) => 0,
            () if count * u64::from(self.layout.block_bytes) <= SMALL_WRITE_BYTES => 1,
            () => 2,
        }
    }

    /// Before the first append of an opening: puts the free segments first that have their host space, or get it. On a full host these
    /// are those that an earlier opening kept.
    pub(super) fn find_reserve(&mut self) -> Result<(), StoreError> {
        self.measure_host();
        let wanted = 1 + (HOST_RESERVE + self.table_segments() + 2 * self.emergency_segments()) as usize;
        let mut found = Vec::new();
        for segment in self.segments.free_list() {
            if found.len() == wanted {
                break;
            }
            let (offset, len) = (self.layout.segment_at(segment), u64::from(self.layout.segment_bytes));
            match super::create::blocking(self.backend.as_mut(), Io::Allocate { offset, len }) {
                Ok(_) => found.push(segment),
                Err(error) if is_no_space(&error) => (self.space.host_full, self.space.scarce) = (true, true),
                Err(error) => return Err(StoreError::io("allocating a segment")(error)),
            }
        }
        self.segments.prefer(&found);
        self.look_at_space();
        Ok(())
    }

    /// Asks for host space ahead of need, one segment at a time.
    pub(super) fn drive_reserve(&mut self) -> bool {
        let may = !self.space.asking && !self.space.host_full && self.refused.is_none() && !self.round.opening;
        let ahead = HOST_RESERVE + self.table_segments() + 2 * self.emergency_segments() + self.kept_for_copies();
        if !may {
            return false;
        }
        if self.segments.warm_ahead() >= ahead + self.wanted_for_front() {
            self.space.scarce = self.space.host_low;
            return false;
        }
        let Some(segment) = self.segments.first_cold() else { return false };
        self.space.asking = true;
        let (offset, len) = (self.layout.segment_at(segment), u64::from(self.layout.segment_bytes));
        self.start_io(Purpose::Reserve { segment }, Io::Allocate { offset, len });
        true
    }

    /// Segments that the first request may open; one in any case, so that there is room before it is wanted.
    fn wanted_for_front(&self) -> u32 {
        self.queue.front().map_or(1, |op| op.segments_more(self) + 2)
    }

    pub(super) fn reserve_done(&mut self, segment: u32, result: io::Result<()>) {
        self.space.asking = false;
        match result {
            Ok(()) => {
                self.segments.warm_up(segment);
                if self.space.scarce && !self.emergency_is_touched() {
                    self.space.refused = false;
                }
                // Here too: while much is written nobody calls the store idle.
                self.measure_host();
            }
            Err(error) if !is_no_space(&error) => self.refuse_writes("allocating a segment", &error),
            Err(error) => {
                // Told once: while it is full it is asked again for every request that would be refused.
                if self.space.state != SpaceState::Full {
                    tracing::warn!(volume = %self.info.volume_id, %error, "the host has no space left for the store");
                }
                (self.space.host_full, self.space.scarce) = (true, true);
            }
        }
        self.look_at_space();
    }

    /// Whether host space is being asked for that the first request may be waiting for.
    pub(super) fn space_on_its_way(&mut self) -> bool {
        self.space.asking || self.drive_reserve()
    }

    /// A full host is asked once more for each request that would be refused.
    pub(super) fn ask_host_again(&mut self) -> bool {
        if !self.space.host_full || std::mem::replace(&mut self.space.asked_again, true) {
            return false;
        }
        self.space.host_full = false;
        self.drive_reserve()
    }

    /// Opening a segment found no space on the host.
    pub(super) fn space_refused(&mut self) {
        (self.space.host_full, self.space.scarce) = (true, true);
        self.space.refused = true;
        self.look_at_space();
    }

    /// A segment became free, or gave its space back to the host: there may be room again.
    pub(super) fn space_came(&mut self) {
        self.space.host_full = false;
        if self.space.relieving {
            self.measure_host();
        }
        if self.space.scarce && !self.emergency_is_touched() {
            self.space.refused = false;
        }
        self.look_at_space();
    }

    /// Whether the host gave no more than what is kept for discards, cleaning and what is written again: then other writes are refused.
    fn emergency_is_touched(&self) -> bool {
        let kept = HOST_RESERVE + self.table_segments() + 2 * self.emergency_segments();
        self.space.scarce && self.segments.warm_ahead() <= kept
    }

    /// A write was taken (or, if not, refused for want of space).
    pub(super) fn space_taken(&mut self, taken: bool) {
        self.space.asked_again = false;
        self.cleaner.tried_again = false;
        self.space.quiet = false;
        // What may use the reserve tells nothing of what may not.
        if self.space.refused == taken && !(taken && self.emergency_is_touched()) {
            self.space.refused = !taken;
            self.look_at_space();
        }
    }

    /// Nothing is going on. What was discarded on a full host is there as older versions, and would stay until a write wants room.
    pub(super) fn begin_relief(&mut self) {
        if self.space.scarce && self.space.state == SpaceState::Full && self.queue.is_empty() {
            self.space.relieving = true;
            self.space.asked_again = false;
        }
    }

    /// Whether room is to be made though no request waits.
    pub(super) fn relief_wanted(&self) -> bool {
        if !self.space.relieving || self.cleaner.stop || self.refused.is_some() || self.round.opening {
            return false;
        }
        let kept = HOST_RESERVE + self.table_segments() + 2 * self.emergency_segments();
        let host = self.space.host_free.unwrap_or(u64::MAX) / u64::from(self.layout.segment_bytes);
        let free = u64::from(self.segments.warm_ahead().saturating_sub(kept)) + host;
        self.space.state == SpaceState::Full || free < (self.layout.segments / RELIEF_SHARE).clamp(1, RELIEF_MAX).into()
    }

    pub(super) fn end_relief(&mut self) {
        self.space.relieving = false;
    }

    /// Whether the log has so many segments for a request, the reserve left out. Discards may use a quarter of the reserve, deleting half:
    /// so that however much was discarded in vain, a snapshot can be deleted.
    pub(super) fn log_has(&self, op: &WriteOp, more: u32) -> bool {
        let reserve = self.reserved_segments();
        let kept = match op.makes_room() {
            MakesRoom::No => reserve,
            MakesRoom::Perhaps => (3 * reserve).div_ceil(4),
            MakesRoom::Surely => reserve / 2,
        };
        self.segments.free_count() >= more + kept.max(reserve / 2 + self.kept_for_copies())
    }

    /// Whether the host has given space for so many segments, the reserve left out.
    pub(super) fn host_has(&self, op: &WriteOp, more: u32) -> bool {
        let all_warm = self.segments.warm_ahead() == self.segments.free_count();
        let kept = match op.makes_room() {
            MakesRoom::No if !self.space.scarce => HOST_RESERVE,
            MakesRoom::No => HOST_RESERVE + self.leaves_kinds(op) * self.emergency_segments(),
            MakesRoom::Perhaps => HOST_RESERVE_CLEANING,
            MakesRoom::Surely => HOST_RESERVE_TABLES,
        };
        let kept = kept + self.table_segments() + self.kept_for_copies();
        all_warm || self.segments.warm_ahead() >= more + kept
    }

    /// Whether cleaning may append: on a full host it waits for the segments that it has emptied before it takes more.
    pub(super) fn copies_may_go(&mut self) -> bool {
        if !self.cleaner.has_copies() {
            return false;
        }
        // What a round frees comes without them, however long its syncs take; the table after it must find room.
        if (!self.round.is_idle() || self.is_releasing()) && !self.copies_have_room() {
            return false;
        }
        let warm = self.segments.warm_ahead();
        if warm > self.host_reserve_tables() || warm == self.segments.free_count() {
            return true;
        }
        // Not even the room in the head, which a table may need: victims whose copies are on their way will be dead, and what a round
        // lets go will be free, in a moment.
        let coming = self.round_pending() || self.copies_on_their_way() > 0 || self.is_releasing();
        !coming && (self.head_left_blocks() >= self.least_unit_blocks() || !self.space_on_its_way())
    }

    /// How many segments copies may take before any is freed, as far as the host is concerned.
    pub(super) fn host_room_for_copies(&self) -> u32 {
        let warm = self.segments.warm_ahead();
        if warm == self.segments.free_count() { warm } else { warm.saturating_sub(self.host_reserve_tables()) }
    }

    fn host_reserve_tables(&self) -> u32 {
        HOST_RESERVE_TABLES + self.table_segments()
    }

    /// Whether copies may take more segments before a round, so that what is copied at a time and then a table still have room.
    pub(super) fn copies_have_room(&self) -> bool {
        let pool = self.layout.reserved_segments() / POOL_RESERVE_SHARE_LOW + self.kept_for_copies();
        let least = self.host_reserve_tables() + pool;
        self.segments.free_count() > least && self.host_room_for_copies() > 0
    }

    /// How many freed segments keep their host space when nothing is going on.
    fn warm_max_idle(&self) -> usize {
        let ahead = HOST_RESERVE + self.table_segments() + 2 * self.emergency_segments() + 1;
        self.round_segments().min(self.reserved_segments()).max(ahead) as usize
    }

    /// How many do now. While much is written what is freed is soon wanted again, and space given back to the host and taken anew costs
    /// more than the write itself: on most file systems the first write to new space, and the sync after it, wait for the journal.
    pub(super) fn warm_max(&self) -> usize {
        let rounds = WARM_ROUNDS * self.round_segments() as usize;
        if self.space.quiet { self.warm_max_idle() } else { rounds + self.warm_max_idle() }
    }

    /// Nothing is going on: what was kept meanwhile goes back to the host, some at a time.
    pub(super) fn cool(&mut self) {
        self.space.quiet = true;
        if self.segments.free_count() > 0 {
            let cooling = self.segments.cool(self.warm_max_idle());
            self.round.releasing.extend(cooling);
        }
    }

    /// To be called now and then: what is left on the host changes without us.
    pub(super) fn look_at_host(&mut self) {
        self.measure_host();
        self.look_at_space();
        // It may have room again: it is asked, and what it says is the new state.
        self.space.host_full = false;
    }

    fn measure_host(&mut self) {
        let log = u64::from(self.layout.segments) * u64::from(self.layout.segment_bytes);
        let used = u64::from(self.segments.used_count()) * u64::from(self.layout.segment_bytes);
        let least = HOST_NEARLY_FULL_BYTES.min(log / 20).min(log - used);
        self.space.host_free = self.backend.host_free_bytes();
        self.space.host_low = self.space.host_free.is_some_and(|free| free < least);
        self.space.scarce |= self.space.host_low;
    }

    pub(super) fn look_at_space(&mut self) {
        let usable = usable_bytes(&self.layout);
        let state = match () {
            () if self.space.refused || (self.space.host_full && self.emergency_is_touched()) => SpaceState::Full,
            () if self.space.host_low || self.segments.live_bytes() > usable / 100 * NEARLY_FULL_PERCENT => {
                SpaceState::NearlyFull
            }
            () => SpaceState::Ample,
        };
        if state != self.space.state {
            tracing::warn!(volume = %self.info.volume_id, from = ?self.space.state, to = ?state, "space");
            self.space.state = state;
        }
    }
}

/// Bytes of the log that data can fill, the reserve left out.
fn usable_bytes(layout: &Layout) -> u64 {
    u64::from(layout.segments - layout.reserved_segments().min(layout.segments)) * u64::from(layout.segment_bytes)
}
