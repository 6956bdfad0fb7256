//! Space accounting: how much is left of the log and of the host beneath it, and which reserves a request may use when there is little.
//!
//! A store in sparse files takes the host's space segment by segment, so the host can run out long before the log does. The store then
//! goes on reading, discarding, deleting snapshots and compacting: for that it keeps a few free segments that have host space already.
//! Writes of callers are refused before these are used.

use std::io;

use strongroom_block::VolumeId;

use super::appender::is_no_space;
use super::io::{IoQueue, Purpose};
use super::policy::{RoomSearch, SegmentCounts};
use super::request::{Addresses, Content, MakesRoom, WriteRequest};
use super::volume::Volume;
use crate::backend::Io;
use crate::error::StoreError;
use crate::map::BlockMap;
use crate::options::SpaceState;
use crate::segments::Segments;

/// Free segments that have host space ahead of need, once the host has no more: for a segment table, for compaction and for discards.
/// Where a table takes whole segments there are as many more.
const HOST_RESERVE: u32 = 4;
/// Discards leave this many of them to deletes, compaction and tables, ...
const HOST_RESERVE_COMPACTION: u32 = 3;
/// ... and deletes and compaction this many to tables: each frees at least the segment that it takes.
const HOST_RESERVE_TABLES: u32 = 2;
/// Where the host is nearly full, two further kinds of free segments with host space are kept: one segment of each kind for this many
/// segments of the log, ...
const EMERGENCY_SHARE: u32 = 32;
/// ... but no more than these. The first are for blocks that hold data already and are written again: what a file system on the
/// volume does when it replays its journal, checks itself and deletes, and what takes no space for long, because the old data makes
/// room. The second are for small writes to blocks that hold nothing.
const EMERGENCY_MAX: u32 = 2;
/// Upper bound on a small write, in bytes: file systems write their metadata in such pieces.
const SMALL_WRITE_BYTES: u64 = 128 << 10;
/// Share of the log that may be live before space counts as nearly full, in percent. A volume written full, without snapshots,
/// stays below.
const NEARLY_FULL_PERCENT: u64 = 85;
/// The host is nearly full when it has less than this, or than a twentieth of the log.
const HOST_NEARLY_FULL_BYTES: u64 = 256 << 20;
/// After the host was full, room is made ahead for one segment for this many of the log, ...
const RELIEF_SHARE: u32 = 32;
/// ... but no more than these: the rest of the older versions stays until a write needs their space.
const RELIEF_MAX: u32 = 8;
/// While writes go on, the segments that this many rounds free keep their host space.
const WARM_ROUNDS: usize = 3;
/// What is live of several victims is sorted together if it fills no more than this share of the reserve, ...
pub(super) const POOL_RESERVE_SHARE: u32 = 2;
/// ... or than this one, once the reserve is used.
pub(super) const POOL_RESERVE_SHARE_LOW: u32 = 4;

/// What is known of space.
pub(super) struct Space {
    /// For messages.
    volume_id: VolumeId,
    /// The host refused space, and has not given any since.
    host_full: bool,
    /// Host space for a free segment is being allocated.
    is_allocating: bool,
    /// The host was asked again for the request that waits now.
    asked_again: bool,
    /// A write was refused for want of space, and none was accepted since.
    refused: bool,
    /// Nothing was written since the store was last idle: free segments keep less host space.
    is_quiet: bool,
    /// What the host has left, when last measured, if that is known.
    host_free: Option<u64>,
    /// The host has little left, when last measured.
    host_low: bool,
    /// The host has little left, or refused space and has not given all that is kept ahead since.
    scarce: bool,
    /// Room is being made while no request waits for it.
    is_relieving: bool,
    state: SpaceState,
    /// The search for room for the first request.
    pub(super) room: RoomSearch,
}

impl Space {
    pub(super) fn new(volume_id: VolumeId) -> Space {
        Space {
            volume_id,
            host_full: false,
            is_allocating: false,
            asked_again: false,
            refused: false,
            is_quiet: false,
            host_free: None,
            host_low: false,
            scarce: false,
            is_relieving: false,
            state: SpaceState::default(),
            room: RoomSearch::default(),
        }
    }

    /// The log begins again after an erase.
    pub(super) fn begin_log(&mut self, volume_id: VolumeId) {
        *self = Space::new(volume_id);
    }

    pub(super) fn state(&self) -> SpaceState {
        self.state
    }

    /// What the host's file system has left, when last measured.
    pub(super) fn host_free_bytes(&self) -> Option<u64> {
        self.host_free
    }

    /// How full the store is, in percent; 0 while there is room for all of the volume.
    pub(super) fn percent(&self, counts: &SegmentCounts, volume: &Volume) -> u8 {
        let (live, room) = (counts.live_bytes, self.room_bytes(counts));
        let whole = volume.info.geometry.blocks.saturating_mul(volume.layout.live_block_bytes());
        match live.checked_mul(100) {
            _ if room >= whole.saturating_sub(live) => 0,
            Some(percent) => (percent / (live + room).max(1)) as u8,
            None => 100,
        }
    }

    /// About how much may still be written to blocks that hold nothing, in bytes.
    pub(super) fn room_bytes(&self, counts: &SegmentCounts) -> u64 {
        let log = log_free_bytes(counts);
        let Some(host) = self.host_free else { return log };
        // A write asks for one more than it fills.
        let kept = self.segments_ahead(counts) + 1;
        let segments = u64::from(counts.warm) + host / counts.segment_bytes;
        // Most of what is dead becomes free by compaction.
        let dead = (u64::from(counts.used()) * counts.segment_bytes).saturating_sub(counts.live_bytes);
        (segments.saturating_sub(kept.into()) * counts.segment_bytes + dead / 2).min(log)
    }

    /// How many free segments of each of the two emergency kinds keep their host space.
    fn emergency_segments(&self, total: u32) -> u32 {
        if self.scarce { (total / EMERGENCY_SHARE).clamp(1, EMERGENCY_MAX) } else { 0 }
    }

    /// Free segments that have host space ahead of need.
    fn segments_ahead(&self, counts: &SegmentCounts) -> u32 {
        HOST_RESERVE + counts.table_segments() + 2 * self.emergency_segments(counts.total)
    }

    /// How many of the emergency kinds a write leaves alone: neither, if nothing becomes live that was not before.
    fn kinds_left_alone(&self, request: &WriteRequest, map: &BlockMap, volume: &Volume) -> u32 {
        let (lba, count) = match &request.content {
            Content::Blocks { addresses: Addresses::From(lba), count, .. } => (*lba, u64::from(*count)),
            // A replay: it was acknowledged before a crash.
            Content::Blocks { .. } if request.replay.is_some() => return 0,
            Content::Holes(_) => return 0,
            _ => return 2,
        };
        let head = map.catalogue.head(request.branch);
        match () {
            () if head.is_some_and(|node| map.has_all_of(node, lba, lba + count)) => 0,
            () if count * u64::from(volume.layout.block_bytes) <= SMALL_WRITE_BYTES => 1,
            () => 2,
        }
    }

    /// Before the first append of an opening: puts the free segments first that have host space, or get it. On a full host these are
    /// those that an earlier opening kept.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the medium fails otherwise than for want of space.
    pub(super) fn find_reserve(
        &mut self,
        io: &mut IoQueue,
        segments: &mut Segments,
        counts: &SegmentCounts,
        volume: &Volume,
    ) -> Result<(), StoreError> {
        self.measure_host(io, counts);
        let wanted = 1 + self.segments_ahead(counts) as usize;
        let mut found = Vec::new();
        for segment in segments.free_list() {
            if found.len() == wanted {
                break;
            }
            let offset = volume.layout.segment_at(segment);
            match io.blocking(Io::Allocate { offset, len: counts.segment_bytes }) {
                Ok(_) => found.push(segment),
                Err(error) if is_no_space(&error) => (self.host_full, self.scarce) = (true, true),
                Err(error) => return Err(StoreError::io("allocating a segment")(error)),
            }
        }
        segments.prefer(&found);
        Ok(())
    }

    /// Allocates host space ahead of need, one segment at a time. `front_segments`: those that the first request may open.
    pub(super) fn allocate_ahead(
        &mut self,
        io: &mut IoQueue,
        segments: &Segments,
        counts: &SegmentCounts,
        front_segments: u32,
        volume: &Volume,
    ) -> bool {
        if self.is_allocating || self.host_full {
            return false;
        }
        if counts.warm >= self.segments_ahead(counts) + counts.copy_segments + front_segments {
            self.scarce = self.host_low;
            return false;
        }
        let Some(segment) = segments.first_cold() else { return false };
        self.is_allocating = true;
        let offset = volume.layout.segment_at(segment);
        io.start(Purpose::Reserve { segment }, Io::Allocate { offset, len: counts.segment_bytes });
        true
    }

    /// An allocation ahead of need has ended. `counts`: after a success the segment counts as warm.
    ///
    /// # Errors
    /// The result's, if it is not want of space.
    pub(super) fn allocated(
        &mut self,
        io: &mut IoQueue,
        counts: &SegmentCounts,
        result: io::Result<()>,
    ) -> io::Result<()> {
        self.is_allocating = false;
        let failure = match result {
            Ok(()) => {
                if self.scarce && !self.emergency_is_used(counts) {
                    self.refused = false;
                }
                // Here too: while much is written the store is never idle.
                self.measure_host(io, counts);
                Ok(())
            }
            Err(error) if !is_no_space(&error) => Err(error),
            Err(error) => {
                // Logged once: while it is full it is asked again for every request that would be refused.
                if self.state != SpaceState::Full {
                    tracing::warn!(volume = %self.volume_id, %error, "the host has no space left for the store");
                }
                (self.host_full, self.scarce) = (true, true);
                Ok(())
            }
        };
        self.update_state(counts);
        failure
    }

    /// Whether host space is being allocated that the first request may be waiting for.
    pub(super) fn is_allocating(&self) -> bool {
        self.is_allocating
    }

    /// Whether a full host may be asked once more for the request that waits.
    pub(super) fn may_ask_again(&self) -> bool {
        self.host_full && !self.asked_again
    }

    /// The host is to be asked again.
    pub(super) fn ask_again(&mut self) {
        (self.asked_again, self.host_full) = (true, false);
    }

    /// Opening a segment found no space on the host.
    pub(super) fn host_refused(&mut self, counts: &SegmentCounts) {
        (self.host_full, self.scarce, self.refused) = (true, true, true);
        self.update_state(counts);
    }

    /// A segment became free, or gave its space back to the host: there may be room again.
    pub(super) fn segment_freed(&mut self, io: &mut IoQueue, counts: &SegmentCounts) {
        self.host_full = false;
        if self.is_relieving {
            self.measure_host(io, counts);
        }
        if self.scarce && !self.emergency_is_used(counts) {
            self.refused = false;
        }
        self.update_state(counts);
    }

    /// Whether the host gave no more than what is kept for discards, compaction and overwrites: then other writes are refused.
    fn emergency_is_used(&self, counts: &SegmentCounts) -> bool {
        self.scarce && counts.warm <= self.segments_ahead(counts)
    }

    /// A write was accepted, or refused for want of space. Whether that is a change: then [`Space::note_change`] follows.
    pub(super) fn write_decided(&mut self, accepted: bool) -> bool {
        self.asked_again = false;
        self.is_quiet = false;
        self.refused == accepted
    }

    /// Writes are accepted from now on, or refused for want of space.
    pub(super) fn note_change(&mut self, counts: &SegmentCounts, accepted: bool) {
        // A write that may use the reserve says nothing about others.
        if !(accepted && self.emergency_is_used(counts)) {
            self.refused = !accepted;
            self.update_state(counts);
        }
    }

    /// The store is idle. What was discarded on a full host is retained as older versions, and would stay until a write wants room.
    pub(super) fn begin_relief(&mut self) {
        if self.scarce && self.state == SpaceState::Full {
            self.is_relieving = true;
            self.asked_again = false;
        }
    }

    /// Whether room is to be made though no request waits.
    pub(super) fn wants_relief(&self, counts: &SegmentCounts) -> bool {
        if !self.is_relieving {
            return false;
        }
        let host = self.host_free.unwrap_or(u64::MAX) / counts.segment_bytes;
        let free = u64::from(counts.warm.saturating_sub(self.segments_ahead(counts))) + host;
        self.state == SpaceState::Full || free < (counts.total / RELIEF_SHARE).clamp(1, RELIEF_MAX).into()
    }

    pub(super) fn end_relief(&mut self) {
        self.is_relieving = false;
    }

    /// Whether the log has `more` segments for a request without its reserve, and the host has given space for them.
    pub(super) fn fits(
        &self,
        counts: &SegmentCounts,
        request: &WriteRequest,
        more: u32,
        map: &BlockMap,
        volume: &Volume,
    ) -> bool {
        log_has(counts, request.makes_room(), more) && self.host_has(counts, request, more, map, volume)
    }

    fn host_has(
        &self,
        counts: &SegmentCounts,
        request: &WriteRequest,
        more: u32,
        map: &BlockMap,
        volume: &Volume,
    ) -> bool {
        let kept = match request.makes_room() {
            MakesRoom::No if !self.scarce => HOST_RESERVE,
            MakesRoom::No => {
                HOST_RESERVE + self.kinds_left_alone(request, map, volume) * self.emergency_segments(counts.total)
            }
            MakesRoom::Perhaps => HOST_RESERVE_COMPACTION,
            MakesRoom::Surely => HOST_RESERVE_TABLES,
        };
        counts.warm == counts.free || counts.warm >= more + kept + counts.table_segments() + counts.copy_segments
    }

    /// Freed segments that keep their host space when the store is idle.
    fn warm_max_idle(&self, counts: &SegmentCounts) -> usize {
        let ahead = self.segments_ahead(counts) + 1;
        counts.round_segments().min(counts.reserve()).max(ahead) as usize
    }

    /// Freed segments that keep their host space now. While much is written, freed segments are soon used again, and giving space back to
    /// the host and taking it again costs more than the write itself: on most file systems the first write to new space, and the sync
    /// after it, wait for the journal.
    pub(super) fn warm_max(&self, counts: &SegmentCounts) -> usize {
        let rounds = WARM_ROUNDS * counts.round_segments() as usize;
        if self.is_quiet { self.warm_max_idle(counts) } else { rounds + self.warm_max_idle(counts) }
    }

    /// The store is idle: returns segments whose host space was kept meanwhile and is to be given back.
    pub(super) fn cool(&mut self, segments: &mut Segments, counts: &SegmentCounts) -> Vec<u32> {
        self.is_quiet = true;
        if counts.free > 0 { segments.cool(self.warm_max_idle(counts)) } else { Vec::new() }
    }

    /// To be called now and then: the host's free space changes without the store.
    pub(super) fn look_at_host(&mut self, io: &mut IoQueue, counts: &SegmentCounts) {
        self.measure_host(io, counts);
        self.update_state(counts);
        // It may have room again: it is asked, and its answer is the new state.
        self.host_full = false;
    }

    fn measure_host(&mut self, io: &mut IoQueue, counts: &SegmentCounts) {
        let log = u64::from(counts.total) * counts.segment_bytes;
        let used = u64::from(counts.used()) * counts.segment_bytes;
        let least = HOST_NEARLY_FULL_BYTES.min(log / 20).min(log - used);
        self.host_free = io.host_free_bytes();
        self.host_low = self.host_free.is_some_and(|free| free < least);
        self.scarce |= self.host_low;
    }

    pub(super) fn update_state(&mut self, counts: &SegmentCounts) {
        let usable = usable_bytes(counts);
        let state = match () {
            () if self.refused || (self.host_full && self.emergency_is_used(counts)) => SpaceState::Full,
            () if self.host_low || counts.live_bytes > usable / 100 * NEARLY_FULL_PERCENT => SpaceState::NearlyFull,
            () => SpaceState::Ample,
        };
        if state != self.state {
            tracing::warn!(volume = %self.volume_id, from = ?self.state, to = ?state, "space");
            self.state = state;
        }
    }
}

/// Bytes of the log that data can fill, the reserve excluded.
fn usable_bytes(counts: &SegmentCounts) -> u64 {
    u64::from(counts.total - counts.base_reserve.min(counts.total)) * counts.segment_bytes
}

/// What the log has room for, however little the host has.
pub(super) fn log_free_bytes(counts: &SegmentCounts) -> u64 {
    usable_bytes(counts).saturating_sub(counts.live_bytes)
}

/// Whether the log has this many segments for a request, the reserve excluded. Discards may use a quarter of the reserve, deletes half: so
/// a snapshot can be deleted after any number of discards that freed nothing.
fn log_has(counts: &SegmentCounts, makes_room: MakesRoom, more: u32) -> bool {
    let reserve = counts.reserve();
    let kept = match makes_room {
        MakesRoom::No => reserve,
        MakesRoom::Perhaps => (3 * reserve).div_ceil(4),
        MakesRoom::Surely => reserve / 2,
    };
    counts.free >= more + kept.max(reserve / 2 + counts.copy_segments)
}

/// Free segments with host space that copies leave to tables.
pub(super) fn warm_for_tables(counts: &SegmentCounts) -> u32 {
    HOST_RESERVE_TABLES + counts.table_segments()
}

/// Segments that copies may take before any is freed, as far as the host is concerned.
pub(super) fn warm_for_copies(counts: &SegmentCounts) -> u32 {
    if counts.warm == counts.free { counts.warm } else { counts.warm.saturating_sub(warm_for_tables(counts)) }
}

/// Whether copies may take more segments before a round, so that what is copied at a time and then a table still have room.
pub(super) fn copies_have_room(counts: &SegmentCounts) -> bool {
    let pool = counts.base_reserve / POOL_RESERVE_SHARE_LOW + counts.copy_segments;
    counts.free > warm_for_tables(counts) + pool && warm_for_copies(counts) > 0
}

/// Segments that the copies of victims that are sorted together may fill. None of the victims may be empty before all of them are copied,
/// so a share of the reserve must be enough, and what the host gave.
pub(super) fn pool_segments_max(counts: &SegmentCounts) -> u32 {
    let share = if counts.warm > counts.base_reserve { POOL_RESERVE_SHARE } else { POOL_RESERVE_SHARE_LOW };
    (counts.base_reserve / share).min(warm_for_copies(counts))
}

/// Segments that copies of this many bytes fill beyond what they may fill once the reserve is used: these are kept free for them.
pub(super) fn copy_segments(live_bytes: u64, segment_bytes: u64, base_reserve: u32) -> u32 {
    (live_bytes.div_ceil(segment_bytes) as u32).saturating_sub(base_reserve / POOL_RESERVE_SHARE_LOW)
}
