//! The appender: the end of the log and the units in flight to it, side by side.
//!
//! They reach the medium in any order, but take effect in the order of the log, group after group. If one fails, those behind it
//! fail too. Absent: what goes into a unit, and what a complete group does.

use std::collections::VecDeque;
use std::io;

use strongroom_block::{Buffer, BufferMut};

use super::access::LogMedium;
use super::io::Purpose;
use super::request::{UnitLimits, least_unit_blocks};
use super::update::{Group, GroupKind, UnplacedUpdate, Update};
use super::volume::Volume;
use crate::backend::Io;
use crate::head::Head;
use crate::holes::ItemPlace;
use crate::index::Version;
use crate::layout::RECORD_BLOCK;
use crate::segments::Segments;
use crate::unit::{LogAddress, NO_SEGMENT, UNIT_BYTES_MAX, UnitBuilder, UnitHeader, flag};

/// Most units in flight at a time.
const UNITS_MAX: usize = 16;

/// There is no free segment for the next unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoSegment;

/// The contents of a unit that is to be appended.
#[derive(Default)]
pub(super) struct UnitContent {
    pub(super) updates: Vec<UnplacedUpdate>,
    pub(super) data: Vec<Buffer>,
}

enum Pending {
    Unit(Box<UnitInFlight>),
    /// No unit that follows is in this segment.
    Close {
        segment: u32,
        end: u32,
        written_at: u64,
    },
}

struct UnitInFlight {
    header: UnitHeader,
    block: u32,
    records: Buffer,
    /// Its group, if it is the last of it.
    closes: Option<Group>,
    result: Option<io::Result<()>>,
}

/// A unit that is on the medium, as all before it.
pub(super) struct WrittenUnit {
    pub(super) header: UnitHeader,
    pub(super) block: u32,
    pub(super) records: Buffer,
    /// Its group, if it is the last of it: the group takes effect.
    pub(super) closes: Option<Group>,
}

/// All units in flight have ended, and one failed.
pub(super) struct FailedAppends {
    /// In the order of the log.
    pub(super) groups: Vec<Group>,
    pub(super) error: io::Error,
}

/// Bytes appended since the store was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogCounters {
    /// Data of callers.
    pub(super) written: u64,
    /// Units of writes, with records and padding.
    pub(super) appended: u64,
    pub(super) compacted: u64,
    pub(super) tables: u64,
    /// Units that were appended while others were in flight; not bytes.
    pub(super) units_alongside: u64,
}

impl LogCounters {
    /// By how much the log has grown, in bytes.
    pub(super) fn log_bytes(&self) -> u64 {
        self.appended + self.compacted + self.tables
    }
}

/// The end of the log.
pub(super) struct Appender {
    pub(super) head: Head,
    pub(super) limits: UnitLimits,
    /// The group that is being appended.
    pub(super) group: Group,
    /// In the order of the log.
    pending: VecDeque<Pending>,
    units: usize,
    /// Units in flight that compaction wrote.
    copies: usize,
    /// The next head, while its host space is being allocated. No unit is in flight then.
    allocating: Option<u32>,
    /// Nothing may be appended beside what is in flight.
    is_exclusive: bool,
    /// A unit failed: nothing follows until all have ended.
    failed: bool,
    /// Segments opened since the last segment table.
    pub(super) segments_since_table: u32,
    /// Generation of the segment with the last unit that is in the index; 0: none of this opening is.
    pub(super) applied_generation: u64,
    pub(super) counters: LogCounters,
}

impl Appender {
    pub(super) fn new(head: Head, limits: UnitLimits) -> Appender {
        Appender {
            head,
            limits,
            group: Group::default(),
            pending: VecDeque::new(),
            units: 0,
            copies: 0,
            allocating: None,
            is_exclusive: false,
            failed: false,
            segments_since_table: 0,
            applied_generation: 0,
            counters: LogCounters::default(),
        }
    }

    /// The log begins again after an erase. Counters go on.
    pub(super) fn begin_log(&mut self, head: Head) {
        *self = Appender { counters: self.counters, ..Appender::new(head, self.limits) };
    }

    /// Whether nothing is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.allocating.is_none()
    }

    /// Whether another unit may go beside those in flight.
    pub(super) fn may_go_along(&self) -> bool {
        !self.is_exclusive && !self.failed && self.allocating.is_none() && self.units < UNITS_MAX
    }

    /// Nothing may go beside what is in flight now.
    pub(super) fn make_exclusive(&mut self) {
        self.is_exclusive = true;
    }

    /// Whether no caller's writes are in flight.
    pub(super) fn has_only_copies(&self) -> bool {
        self.copies == self.units
    }

    pub(super) fn copies_in_flight(&self) -> usize {
        self.copies
    }

    /// How much is left of the head, in 4 KiB blocks.
    pub(super) fn blocks_left(&self) -> u32 {
        if self.head.segment == NO_SEGMENT { 0 } else { self.limits.segment_blocks - self.head.block }
    }

    /// Whether the smallest unit with data does not fit into the head any more.
    pub(super) fn head_is_full(&self, volume: &Volume) -> bool {
        self.blocks_left() < least_unit_blocks(&volume.layout)
    }

    /// Whether a unit can be appended without asking the host for space.
    pub(super) fn is_ready(&self, segments: &Segments, volume: &Volume) -> bool {
        !self.head_is_full(volume) || segments.next_is_warm()
    }

    /// Makes sure that the head has at least `least` 4 KiB blocks left; says how large the next unit may be, in such blocks. `None`: host
    /// space of the next head is being allocated.
    ///
    /// # Errors
    /// [`NoSegment`].
    pub(super) fn unit_space(&mut self, medium: &mut LogMedium, least: u32) -> Result<Option<u32>, NoSegment> {
        if self.blocks_left() < least {
            let warm = medium.segments.next_is_warm();
            let Some(segment) = medium.segments.open(self.head.next_generation) else { return Err(NoSegment) };
            self.head.next_generation += 1;
            if !warm {
                self.allocating = Some(segment);
                let offset = medium.volume.layout.segment_at(segment);
                medium.io.start(Purpose::Allocate, Io::Allocate { offset, len: medium.volume.segment_bytes() });
                return Ok(None);
            }
            self.move_head(&mut medium.segments, segment);
        }
        Ok(Some(self.blocks_left().min(UNIT_BYTES_MAX / RECORD_BLOCK as u32)))
    }

    /// Host space for the next head was allocated, or not.
    ///
    /// # Errors
    /// The result's: the segment is free again.
    pub(super) fn allocated(&mut self, segments: &mut Segments, result: io::Result<()>) -> io::Result<()> {
        let segment = self.allocating.take().expect("one segment is being allocated");
        match result {
            Ok(()) => self.move_head(segments, segment),
            Err(_) => segments.unopen(segment, false),
        }
        result
    }

    fn move_head(&mut self, segments: &mut Segments, segment: u32) {
        let (before, end) = (self.head.segment, self.head.block);
        if before != NO_SEGMENT {
            let written_at = self.head.next_sequence;
            self.pending.push_back(Pending::Close { segment: before, end, written_at });
            (self.head.prev_segment, self.head.prev_end) = (before, end);
        }
        (self.head.segment, self.head.block) = (segment, 0);
        // If a group fails, the segments that were opened since it began are given back.
        if self.group.open {
            self.group.opened.push(segment);
        } else if let Some(group) = self.last_group() {
            group.opened.push(segment);
        }
        self.segments_since_table += 1;
        self.close_segments(segments);
    }

    /// The last complete group in flight.
    fn last_group(&mut self) -> Option<&mut Group> {
        self.pending.iter_mut().rev().find_map(|pending| match pending {
            Pending::Unit(unit) => unit.closes.as_mut(),
            Pending::Close { .. } => None,
        })
    }

    /// Closes segments behind whose units nothing is in flight.
    fn close_segments(&mut self, segments: &mut Segments) {
        while let Some(&Pending::Close { segment, end, written_at }) = self.pending.front() {
            segments.close(segment, end, written_at);
            self.pending.pop_front();
        }
    }

    /// Appends a unit at the head. `last`: its group is complete with it.
    pub(super) fn append(
        &mut self,
        medium: &mut LogMedium,
        unit: UnitBuilder,
        content: UnitContent,
        kind: GroupKind,
        last: bool,
    ) {
        debug_assert!(!unit.is_empty(), "a unit says something");
        let header = self.header_of(&medium.segments, kind, last);
        if !self.group.open {
            self.group.start = Some(self.head.clone());
        }
        let (segment, block) = (self.head.segment, self.head.block);
        let padding = unit.data_bytes().next_multiple_of(RECORD_BLOCK as u64) - unit.data_bytes();
        let (header, records) =
            unit.finish(header, LogAddress { store_id: medium.volume.info.store_id, segment, block });
        if kind != GroupKind::Table {
            medium.segments.holds_more(segment);
        }
        let UnitContent { updates, mut data } = content;
        let mut updates = self.place(updates, &header, &medium.volume);
        let records = records.freeze();
        data.insert(0, records.clone());
        if padding > 0 {
            data.push(BufferMut::zeroed(padding as usize).freeze());
        }
        self.count(kind, &header);
        self.group.kind = kind;
        self.group.open = !last;
        self.group.updates.append(&mut updates);
        let closes = last.then(|| std::mem::take(&mut self.group));
        self.head.next_lsn += 1;
        self.head.last_lsn = header.lsn;
        self.head.block += header.blocks();
        self.is_exclusive |= kind == GroupKind::Table;
        self.pending.push_back(Pending::Unit(Box::new(UnitInFlight { header, block, records, closes, result: None })));
        let offset = medium.volume.layout.block_at(segment, block);
        medium.io.start(Purpose::Append { lsn: header.lsn }, Io::Write { offset, buffers: data });
    }

    fn header_of(&self, segments: &Segments, kind: GroupKind, last: bool) -> UnitHeader {
        let mut flags = match kind {
            GroupKind::Writes => 0,
            GroupKind::Table => flag::TABLE,
            GroupKind::Compaction => flag::CLEANING,
        };
        flags |= if self.group.open { 0 } else { flag::FIRST } | if last { flag::LAST } else { 0 };
        let head = &self.head;
        let (prev_segment, prev_end) =
            if head.block == 0 { (head.prev_segment, head.prev_end) } else { (NO_SEGMENT, 0) };
        UnitHeader {
            record_blocks: 0,
            generation: segments.segment(head.segment).generation,
            lsn: head.next_lsn,
            prev_lsn: head.last_lsn,
            open_id: head.open_id,
            open_epoch: head.open_epoch,
            durable_lsn: head.durable_lsn,
            next_sequence: head.next_sequence,
            data_bytes: 0,
            entries: 0,
            flags,
            prev_segment,
            prev_end,
            next_segment: segments.next().unwrap_or(NO_SEGMENT),
        }
    }

    fn count(&mut self, kind: GroupKind, header: &UnitHeader) {
        let bytes = u64::from(header.blocks()) * RECORD_BLOCK as u64;
        match kind {
            GroupKind::Writes => self.counters.appended += bytes,
            GroupKind::Table => self.counters.tables += bytes,
            GroupKind::Compaction => self.counters.compacted += bytes,
        }
        self.units += 1;
        self.copies += usize::from(kind == GroupKind::Compaction);
    }

    /// Gives every update its place, now that the length of the record blocks is known.
    fn place(&self, updates: Vec<UnplacedUpdate>, header: &UnitHeader, volume: &Volume) -> Vec<Update> {
        let layout = &volume.layout;
        let (segment, unit_at) = (self.head.segment, self.head.block * RECORD_BLOCK as u32);
        let data_at = unit_at + u32::from(header.record_blocks) * RECORD_BLOCK as u32;
        let version = |sequence, item_at: u32, data_index: u32| {
            Version::new(layout, sequence, segment, data_at + data_index * layout.block_bytes, unit_at + item_at)
        };
        let place = |item_at: u32| ItemPlace { segment, item_at: unit_at + item_at };
        let placed = updates.into_iter().map(|update| match update {
            UnplacedUpdate::Block { branch, lba, sequence, item_at, data_index } => {
                Update::Block { branch, lba, version: version(sequence, item_at, data_index) }
            }
            UnplacedUpdate::Hole { branch, mut hole, item_at } => {
                hole.place = place(item_at);
                Update::Hole { branch, hole }
            }
            UnplacedUpdate::Copy { branch, lba, from, item_at, data_index } => {
                Update::Copy { branch, lba, from, to: version(from.sequence(), item_at, data_index) }
            }
            UnplacedUpdate::CopyHole { branch, start, sequence, from, item_at } => {
                Update::CopyHole { branch, start, sequence, from, to: place(item_at) }
            }
            UnplacedUpdate::Change { change, sequence } => Update::Change { change, sequence },
        });
        placed.collect()
    }

    /// The write of a unit has ended.
    pub(super) fn write_done(&mut self, lsn: u64, result: io::Result<()>) {
        self.failed |= result.is_err();
        let unit = self.pending.iter_mut().find_map(|pending| match pending {
            Pending::Unit(unit) if unit.header.lsn == lsn => Some(unit),
            _ => None,
        });
        unit.expect("it is in flight").result = Some(result);
    }

    /// The next unit that is written, as all before it. None behind one that failed.
    pub(super) fn next_written(&mut self, segments: &mut Segments) -> Option<WrittenUnit> {
        self.close_segments(segments);
        if !matches!(self.pending.front(), Some(Pending::Unit(unit)) if matches!(unit.result, Some(Ok(())))) {
            self.is_exclusive &= !self.pending.is_empty();
            return None;
        }
        let Some(Pending::Unit(unit)) = self.pending.pop_front() else { unreachable!("just seen") };
        let UnitInFlight { header, block, records, closes, .. } = *unit;
        self.units -= 1;
        self.copies -= usize::from(header.has(flag::CLEANING));
        if closes.is_some() {
            self.applied_generation = header.generation;
            self.head.completed_lsn = header.lsn;
        }
        Some(WrittenUnit { header, block, records, closes })
    }

    /// The groups of which a unit failed, once all units have ended.
    pub(super) fn take_failed(&mut self) -> Option<FailedAppends> {
        let has_ended = |pending: &Pending| match pending {
            Pending::Unit(unit) => unit.result.is_some(),
            Pending::Close { .. } => true,
        };
        if !self.failed || !self.pending.iter().all(has_ended) {
            return None;
        }
        let (mut groups, mut worst) = (Vec::new(), None::<io::Error>);
        for pending in std::mem::take(&mut self.pending) {
            let Pending::Unit(unit) = pending else { continue };
            groups.extend(unit.closes);
            if let Some(Err(error)) = unit.result {
                // Want of space is the lesser fault: if there was another one, that counts.
                worst = Some(worst.filter(|worst| !is_no_space(worst)).unwrap_or(error));
            }
        }
        groups.push(std::mem::take(&mut self.group));
        (self.units, self.copies, self.failed, self.is_exclusive) = (0, 0, false, false);
        Some(FailedAppends { groups, error: worst.expect("one failed") })
    }

    /// These groups, the last of the log, failed for want of space: the next unit takes the place of their first one, so what of them is
    /// on the medium is not part of the log.
    pub(super) fn rewind(&mut self, segments: &mut Segments, groups: &[Group]) {
        for segment in groups.iter().flat_map(|group| &group.opened).rev() {
            segments.unopen(*segment, true);
        }
        if let Some(start) = groups.iter().find_map(|group| group.start.clone()) {
            segments.reopen(start.segment);
            let Head { next_lsn, next_sequence, next_generation, completed_lsn, durable_lsn, .. } = self.head;
            self.head = Head { next_lsn, next_sequence, next_generation, completed_lsn, durable_lsn, ..start };
        }
    }
}

/// Whether an error says that the medium or the host beneath it has no space.
pub(super) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}
