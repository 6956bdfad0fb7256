//! The end of the log: units on their way to it, side by side, and what becomes of them.
//!
//! Whichever of them reaches the medium first: they count in the order of the log, group after group. One that fails takes
//! those behind it along. Absent: what goes into a unit, which is `append`'s.

use std::collections::VecDeque;
use std::io;

use strongroom_block::{Buffer, BufferMut};

use super::group::{Group, GroupKind, Update};
use super::{Purpose, Store};
use crate::backend::Io;
use crate::cache::RecordKey;
use crate::catalogue::Change;
use crate::holes::{Hole, ItemPlace};
use crate::index::Version;
use crate::layout::RECORD_BLOCK;
use crate::op::OpError;
use crate::unit::{NO_SEGMENT, Place, UNIT_BYTES_MAX, UnitBuilder, UnitHeader, flag};

/// Most units on their way at a time.
const UNITS_MAX: usize = 16;

/// Where the log ends, and the numbers it hands out.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// [`NO_SEGMENT`] until the first unit of an opening.
    pub(crate) segment: u32,
    /// Where the next unit goes, in 4 KiB blocks.
    pub(crate) block: u32,
    /// Which segment was the head before, and where it ended.
    pub(crate) prev_segment: u32,
    pub(crate) prev_end: u32,
    pub(crate) next_lsn: u64,
    /// The last unit written (of this opening; 0: none).
    pub(crate) last_lsn: u64,
    /// Last unit of the last whole group.
    pub(crate) completed_lsn: u64,
    /// The same, as of the start of the last sync that went well.
    pub(crate) durable_lsn: u64,
    pub(crate) next_sequence: u64,
    pub(crate) next_generation: u64,
    pub(crate) open_id: u64,
    pub(crate) open_epoch: u64,
}

/// Appends on their way.
#[derive(Default)]
pub(super) struct Appends {
    /// In the order of the log.
    pending: VecDeque<Pending>,
    units: usize,
    /// How many of these are copies.
    copies: usize,
    /// The segment that is to be the next head, while its space is made sure of. Nothing else is on its way then.
    allocating: Option<u32>,
    /// Nothing may go along with what is on its way.
    pub(super) alone: bool,
    /// One failed: nothing follows until all have ended.
    failed: bool,
}

enum Pending {
    Unit(Box<Written>),
    /// No unit that follows is in this segment.
    Close {
        segment: u32,
        end: u32,
        written_at: u64,
    },
}

/// A unit on its way.
struct Written {
    header: UnitHeader,
    block: u32,
    records: Buffer,
    /// Its group, if it is the last of it.
    closes: Option<Group>,
    result: Option<io::Result<()>>,
}

impl Written {
    fn is_copies(&self) -> bool {
        self.header.has(flag::CLEANING)
    }
}

impl Appends {
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.allocating.is_none()
    }

    /// Whether another unit may go along with those on their way.
    pub(super) fn may_go_along(&self) -> bool {
        !self.alone && !self.failed && self.allocating.is_none() && self.units < UNITS_MAX
    }

    /// Whether no caller's writes are on their way.
    pub(super) fn are_copies(&self) -> bool {
        self.copies == self.units
    }

    fn push(&mut self, unit: Written) {
        self.units += 1;
        self.copies += usize::from(unit.is_copies());
        self.pending.push_back(Pending::Unit(Box::new(unit)));
    }

    /// The group that the next one follows, if it is still on its way.
    fn last_group(&mut self) -> Option<&mut Group> {
        self.pending.iter_mut().rev().find_map(|pending| match pending {
            Pending::Unit(unit) => unit.closes.as_mut(),
            Pending::Close { .. } => None,
        })
    }

    fn ended(&mut self, lsn: u64, result: io::Result<()>) {
        self.failed |= result.is_err();
        let unit = self.pending.iter_mut().find_map(|pending| match pending {
            Pending::Unit(unit) if unit.header.lsn == lsn => Some(unit),
            _ => None,
        });
        unit.expect("it is on its way").result = Some(result);
    }

    /// What all those before it have ended for, and has itself; `None`: not yet. None is taken from one that failed on.
    fn take_next(&mut self) -> Option<Pending> {
        match self.pending.front()? {
            Pending::Unit(unit) if !matches!(unit.result, Some(Ok(()))) => return None,
            Pending::Unit(unit) => {
                self.units -= 1;
                self.copies -= usize::from(unit.is_copies());
            }
            Pending::Close { .. } => {}
        }
        self.pending.pop_front()
    }

    fn all_ended(&self) -> bool {
        self.pending.iter().all(|pending| match pending {
            Pending::Unit(unit) => unit.result.is_some(),
            Pending::Close { .. } => true,
        })
    }
}

/// A change that does not know yet where its unit's data begins.
pub(super) enum Raw {
    Block { branch: u32, lba: u64, sequence: u64, item_at: u32, data_index: u32 },
    Hole { branch: u32, hole: Box<Hole>, item_at: u32 },
    Copy { branch: u32, lba: u64, from: Version, item_at: u32, data_index: u32 },
    CopyHole { branch: u32, start: u64, sequence: u64, from: ItemPlace, item_at: u32 },
    Change { change: Box<Change>, sequence: u64 },
}

impl Store {
    /// Whether so much can be appended without asking the host for space.
    pub(super) fn head_is_ready(&self, least: u32) -> bool {
        self.head_left_blocks() >= least || self.segments.next_is_warm()
    }

    pub(super) fn copies_on_their_way(&self) -> usize {
        self.appends.copies
    }

    /// How large the next unit may be, in 4 KiB blocks. `None`: a new head is on its way, or there is no space.
    pub(super) fn unit_limit(&mut self, least: u32) -> Option<u32> {
        if self.head_left_blocks() < least {
            let warm = self.segments.next_is_warm();
            let Some(segment) = self.segments.open(self.head.next_generation) else {
                self.out_of_space();
                return None;
            };
            self.head.next_generation += 1;
            if !warm {
                self.appends.allocating = Some(segment);
                let offset = self.layout.segment_at(segment);
                self.start_io(Purpose::Allocate, Io::Allocate { offset, len: u64::from(self.layout.segment_bytes) });
                return None;
            }
            self.head_moves(segment);
        }
        Some(self.head_left_blocks().min(UNIT_BYTES_MAX / RECORD_BLOCK as u32))
    }

    fn head_moves(&mut self, segment: u32) {
        let (before, end) = (self.head.segment, self.head.block);
        if before != NO_SEGMENT {
            let written_at = self.head.next_sequence;
            self.appends.pending.push_back(Pending::Close { segment: before, end, written_at });
            (self.head.prev_segment, self.head.prev_end) = (before, end);
        }
        (self.head.segment, self.head.block) = (segment, 0);
        // If a group fails, the segments that were opened since it began are given back.
        if self.group.open {
            self.group.opened.push(segment);
        } else if let Some(group) = self.appends.last_group() {
            group.opened.push(segment);
        }
        self.round.segments_since += 1;
        self.take_ended();
    }

    pub(super) fn allocate_done(&mut self, result: io::Result<()>) {
        let segment = self.appends.allocating.take().expect("one segment is being allocated");
        match result {
            Ok(()) => self.head_moves(segment),
            Err(error) => {
                self.segments.unopen(segment, false);
                if is_no_space(&error) {
                    self.space_refused();
                    self.out_of_space();
                } else {
                    self.refuse_writes("allocating a segment", &error);
                }
            }
        }
    }

    /// No space for the work at hand: it fails, and everything queued behind it, which would meet the same end.
    fn out_of_space(&mut self) {
        tracing::warn!(volume = %self.info.volume_id, "no space left for the store");
        self.round.blocked = true;
        self.cleaner.blocked = true;
        let group = std::mem::take(&mut self.group);
        self.void_groups(vec![group]);
        self.tables_out_of_space();
        self.grow_out_of_space();
        while let Some(op) = self.queue.pop_front() {
            self.complete(op.token, op.bytes, Err(OpError::NoSpace));
        }
    }

    pub(super) fn head_left_blocks(&self) -> u32 {
        if self.head.segment == NO_SEGMENT { 0 } else { self.layout.segment_blocks() - self.head.block }
    }

    /// 4 KiB blocks of the smallest unit with one block of data.
    pub(super) fn least_unit_blocks(&self) -> u32 {
        1 + self.layout.block_bytes.div_ceil(RECORD_BLOCK as u32)
    }

    /// Writes a unit at the head. `last`: its group is whole with it.
    pub(super) fn append_unit(
        &mut self,
        unit: UnitBuilder,
        raw: Vec<Raw>,
        mut data: Vec<Buffer>,
        kind: GroupKind,
        last: bool,
    ) {
        debug_assert!(!unit.is_empty(), "a unit says something");
        let mut flags = match kind {
            GroupKind::Writes => 0,
            GroupKind::Table => flag::TABLE,
            GroupKind::Cleaning => flag::CLEANING,
        };
        flags |= if self.group.open { 0 } else { flag::FIRST } | if last { flag::LAST } else { 0 };
        if !self.group.open {
            self.group.start = Some(self.head.clone());
        }
        let head = &self.head;
        let (segment, block) = (head.segment, head.block);
        let (prev_segment, prev_end) = if block == 0 { (head.prev_segment, head.prev_end) } else { (NO_SEGMENT, 0) };
        let header = UnitHeader {
            record_blocks: 0,
            generation: self.segments.segment(segment).generation,
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
            next_segment: self.segments.next().unwrap_or(NO_SEGMENT),
        };
        let padding = unit.data_bytes().next_multiple_of(RECORD_BLOCK as u64) - unit.data_bytes();
        let (header, records) = unit.finish(header, Place { store_id: self.info.store_id, segment, block });
        if kind != GroupKind::Table {
            self.segments.holds_more(segment);
        }
        let mut updates = self.locate(raw, &header);
        let records = records.freeze();
        data.insert(0, records.clone());
        if padding > 0 {
            data.push(BufferMut::zeroed(padding as usize).freeze());
        }
        let bytes = u64::from(header.blocks()) * RECORD_BLOCK as u64;
        match kind {
            GroupKind::Writes => self.stats.appended_bytes += bytes,
            GroupKind::Table => self.stats.table_bytes += bytes,
            GroupKind::Cleaning => self.stats.cleaned_bytes += bytes,
        }
        self.group.kind = kind;
        self.group.open = !last;
        self.group.updates.append(&mut updates);
        let closes = last.then(|| std::mem::take(&mut self.group));
        self.head.next_lsn += 1;
        self.head.last_lsn = header.lsn;
        self.head.block += header.blocks();
        self.appends.alone |= kind == GroupKind::Table;
        self.appends.push(Written { header, block, records, closes, result: None });
        let purpose = Purpose::Append { lsn: header.lsn };
        self.start_io(purpose, Io::Write { offset: self.layout.block_at(segment, block), buffers: data });
    }

    /// Gives every change its place, now that the length of the record blocks is known.
    fn locate(&self, raw: Vec<Raw>, header: &UnitHeader) -> Vec<Update> {
        let (segment, unit_at) = (self.head.segment, self.head.block * RECORD_BLOCK as u32);
        let data_at = unit_at + u32::from(header.record_blocks) * RECORD_BLOCK as u32;
        let version = |sequence, item_at: u32, data_index: u32| {
            let data_at = data_at + data_index * self.layout.block_bytes;
            Version::new(&self.layout, sequence, segment, data_at, unit_at + item_at)
        };
        raw.into_iter()
            .map(|raw| match raw {
                Raw::Block { branch, lba, sequence, item_at, data_index } => {
                    Update::Block { branch, lba, version: version(sequence, item_at, data_index) }
                }
                Raw::Hole { branch, mut hole, item_at } => {
                    hole.place = ItemPlace { segment, item_at: unit_at + item_at };
                    Update::Hole { branch, hole }
                }
                Raw::Copy { branch, lba, from, item_at, data_index } => {
                    Update::Copy { branch, lba, from, to: version(from.sequence(), item_at, data_index) }
                }
                Raw::CopyHole { branch, start, sequence, from, item_at } => Update::CopyHole {
                    branch,
                    start,
                    sequence,
                    from,
                    to: ItemPlace { segment, item_at: unit_at + item_at },
                },
                Raw::Change { change, sequence } => Update::Change { change, sequence },
            })
            .collect()
    }

    pub(super) fn append_done(&mut self, lsn: u64, result: io::Result<()>) {
        self.appends.ended(lsn, result);
        self.take_ended();
        if self.appends.failed && self.appends.all_ended() {
            self.appends_failed();
        }
        self.appends.alone &= !self.appends.pending.is_empty();
    }

    fn take_ended(&mut self) {
        while let Some(pending) = self.appends.take_next() {
            match pending {
                Pending::Close { segment, end, written_at } => self.segments.close(segment, end, written_at),
                Pending::Unit(unit) => {
                    let Written { header, block, records, closes, .. } = *unit;
                    self.cache_records(&header, block, &records);
                    if let Some(group) = closes {
                        self.checkpoints.applied_generation = header.generation;
                        self.apply_group(group, header.lsn);
                    }
                }
            }
        }
    }

    /// All have ended, and the first that is left failed.
    fn appends_failed(&mut self) {
        let Appends { pending, .. } = std::mem::take(&mut self.appends);
        let (mut groups, mut worst) = (Vec::new(), None::<io::Error>);
        for pending in pending {
            let Pending::Unit(unit) = pending else { continue };
            groups.extend(unit.closes);
            if let Some(Err(error)) = unit.result {
                // Want of space is the lesser evil, and tells nothing if there was another.
                worst = Some(worst.filter(|worst| !is_no_space(worst)).unwrap_or(error));
            }
        }
        groups.push(std::mem::take(&mut self.group));
        let error = worst.expect("one failed");
        if !is_no_space(&error) {
            self.refuse_writes("writing to the log", &error);
            let refusal = self.refusal();
            for finished in groups.into_iter().flat_map(|group| group.finished) {
                self.complete(finished.token, finished.bytes, Err(refusal.clone()));
            }
            return;
        }
        // The next unit takes the place of the first group's first one: what of them is on the medium is out of the chain.
        self.round.blocked = true;
        self.cleaner.blocked = true;
        self.void_groups(groups);
        if self.queue.front().is_some_and(|op| op.done > 0) {
            let op = self.queue.pop_front().expect("just seen");
            self.complete(op.token, op.bytes, Err(OpError::NoSpace));
        }
    }

    fn cache_records(&mut self, header: &UnitHeader, at_block: u32, records: &Buffer) {
        for index in 0..u32::from(header.record_blocks) {
            let at = index as usize * RECORD_BLOCK;
            let slice = &records[at..at + RECORD_BLOCK];
            // A copy where a slice would keep its neighbours in memory.
            let block = if header.record_blocks == 1 { records.clone() } else { Buffer::copy_from(slice) };
            self.records.insert(RecordKey { generation: header.generation, block: at_block + index }, block);
        }
    }
}

pub(super) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}
