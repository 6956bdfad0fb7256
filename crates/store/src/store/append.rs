//! Appending: which work goes into the next unit, and what happens when it is on the medium.

use std::io;

use strongroom_block::{Buffer, BufferMut, SealRecord, StoreSequence, Token};

use super::gate::Gate;
use super::group::{Finished, GroupKind, Update, hole_of};
use super::{Purpose, Store};
use crate::backend::Io;
use crate::cache::RecordKey;
use crate::catalogue::Change;
use crate::holes::ItemPlace;
use crate::index::Version;
use crate::layout::RECORD_BLOCK;
use crate::op::{OpError, Outcome};
use crate::unit::{self, NO_SEGMENT, Place, UNIT_BYTES_MAX, UnitBuilder, UnitHeader, flag};
use crate::view::{BranchId, SnapshotId};

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

/// What a queued request wants appended.
pub(super) enum Content {
    Blocks {
        lba: u64,
        pieces: Vec<Buffer>,
        items: Vec<u8>,
        count: u32,
    },
    Holes(Vec<(u64, u64, Option<SealRecord>)>),
    /// A change of the catalogue; in a group of its own.
    Change(Box<Change>),
}

/// A request that waits for the log.
pub(super) struct WriteOp {
    pub(super) token: Token,
    pub(super) branch: u32,
    pub(super) content: Content,
    pub(super) fua: bool,
    pub(super) gate: Gate,
    /// Counted against the queue's limit.
    pub(super) bytes: usize,
    /// Blocks or holes already in units of the open group.
    pub(super) done: u32,
    /// Sequence of the first one.
    pub(super) first: u64,
}

/// The append in flight.
pub(super) enum AppendInFlight {
    /// Making sure of the space of the next head.
    Allocate { segment: u32 },
    /// Writing a unit.
    Unit { header: UnitHeader, records: Buffer, updates: Vec<Update> },
}

/// A change that does not know yet where its unit's data begins.
pub(super) enum Raw {
    Block { branch: u32, lba: u64, sequence: u64, item_at: u32, data_index: u32 },
    Hole { branch: u32, start: u64, count: u64, sequence: u64, record: Option<SealRecord>, item_at: u32 },
    Copy { branch: u32, lba: u64, from: Version, item_at: u32, data_index: u32 },
    CopyHole { branch: u32, sequence: u64, from: ItemPlace, item_at: u32 },
    Change { change: Box<Change>, sequence: u64 },
}

impl Store {
    /// Starts the next append, if none is in flight and there is something to append.
    pub(super) fn drive_append(&mut self) -> bool {
        if self.append.is_some() {
            return false;
        }
        if self.refused.is_some() {
            return self.fail_writes();
        }
        if self.group.open {
            return match self.group.kind {
                GroupKind::Table => self.append_table(),
                GroupKind::Writes | GroupKind::Cleaning => self.append_writes(),
            };
        }
        if self.wants_table() {
            return self.append_table();
        }
        if let Some(progress) = self.copies_first() {
            return progress;
        }
        if let Some(progress) = self.foreground() {
            return progress;
        }
        if self.copies_may_mix() && self.copies_may_go() {
            return self.append_copies();
        }
        self.queue.is_empty() && self.append_feedback()
    }

    /// The first queued request, if it can go on now. `None`: it has to wait, or there is none.
    fn foreground(&mut self) -> Option<bool> {
        if let Some(error) = self.cannot_go_on() {
            let op = self.queue.pop_front().expect("just seen");
            self.complete(op.token, op.bytes, Err(error));
            return Some(true);
        }
        let Some(front) = self.queue.front() else {
            self.cleaner.urgent = false;
            return None;
        };
        match front.gate {
            Gate::Open => {}
            Gate::Reading(..) => return None,
            _ => return Some(self.start_gate()),
        }
        if self.covered_by_holes() {
            let op = self.queue.pop_front().expect("just seen");
            self.complete(op.token, op.bytes, Ok(Outcome::Written { first: StoreSequence(0), repeated: 0 }));
            return Some(true);
        }
        if self.space_for_front() {
            self.cleaner.urgent = false;
            self.cleaner.turn = true;
            self.space_taken(true);
            return Some(self.append_writes());
        }
        if self.space_on_its_way() {
            return None;
        }
        if !std::mem::replace(&mut self.cleaner.urgent, true) {
            self.cleaner.copied_for_front = 0;
            // Tables and cleaning look at this: they come before it in the next turn.
            return Some(true);
        }
        if self.reclaim_possible() || self.ask_host_again() {
            return None;
        }
        self.cleaner.urgent = false;
        self.space_taken(false);
        let op = self.queue.pop_front().expect("just seen");
        self.complete(op.token, op.bytes, Err(OpError::NoSpace));
        Some(true)
    }

    /// Whether the first request discards plain blocks none of which has data: nothing to do.
    fn covered_by_holes(&self) -> bool {
        let Some(Content::Holes(holes)) = self.queue.front().map(|op| &op.content) else { return false };
        if self.info.kind.is_sealed() {
            return false;
        }
        let node = self.queue.front().and_then(|op| self.map.catalogue.head(op.branch));
        let path = node.map_or_else(Vec::new, |node| self.map.path(node));
        holes.iter().all(|&(start, count, _)| path.iter().all(|table| !table.index.any_in(start, start + count)))
    }

    /// Whether the first request fits without the reserve. While the reserve is touched even room in the head is kept for
    /// cleaning: so an opening that is cut short never leaves fewer free segments than it found.
    fn space_for_front(&self) -> bool {
        let Some(op) = self.queue.front() else { return true };
        let sequences = op.sequences();
        if self.head.next_sequence + sequences >= self.superblock.sequence_limit {
            return false;
        }
        let left = self.head_left_blocks();
        let blocks = op.blocks_at_most(self);
        let more = if blocks <= left { 0 } else { (blocks - left).div_ceil(self.layout.segment_blocks() - 1) + 1 };
        self.log_has(op, more) && self.host_has(op, more)
    }

    pub(super) fn head_left_blocks(&self) -> u32 {
        if self.head.segment == NO_SEGMENT { 0 } else { self.layout.segment_blocks() - self.head.block }
    }

    /// 4 KiB blocks of the smallest unit with one block of data.
    pub(super) fn least_unit_blocks(&self) -> u32 {
        1 + self.layout.block_bytes.div_ceil(RECORD_BLOCK as u32)
    }

    /// How large the next unit may be, in 4 KiB blocks. `None`: a new head is on its way, or there is no space.
    pub(super) fn unit_limit(&mut self, least: u32) -> Option<u32> {
        let left = self.head_left_blocks();
        if left >= least {
            return Some(left.min(UNIT_BYTES_MAX / RECORD_BLOCK as u32));
        }
        let generation = self.head.next_generation;
        match self.segments.open(generation) {
            Some(segment) => {
                self.head.next_generation += 1;
                self.append = Some(AppendInFlight::Allocate { segment });
                let offset = self.layout.segment_at(segment);
                self.start_io(Purpose::Allocate, Io::Allocate { offset, len: u64::from(self.layout.segment_bytes) });
            }
            None => self.out_of_space(),
        }
        None
    }

    pub(super) fn allocate_done(&mut self, result: io::Result<()>) {
        let Some(AppendInFlight::Allocate { segment }) = self.append.take() else {
            unreachable!("one append is in flight")
        };
        match result {
            Ok(()) => {
                if self.head.segment != NO_SEGMENT {
                    let written_at = self.cleaner.age_of_head(self.head.segment, self.head.next_sequence);
                    self.segments.close(self.head.segment, self.head.block, written_at);
                    (self.head.prev_segment, self.head.prev_end) = (self.head.segment, self.head.block);
                }
                (self.head.segment, self.head.block) = (segment, 0);
                if self.group.open {
                    self.group.opened.push(segment);
                }
                self.round.segments_since += 1;
            }
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
        self.void_group();
        self.round.rows.clear();
        self.grow_out_of_space();
        while let Some(op) = self.queue.pop_front() {
            self.complete(op.token, op.bytes, Err(OpError::NoSpace));
        }
    }

    /// Fails everything that wants to write.
    fn fail_writes(&mut self) -> bool {
        let refusal = self.refusal();
        let mut progress = false;
        self.group.updates.clear();
        self.group.open = false;
        for Finished { token, bytes, .. } in std::mem::take(&mut self.group.finished) {
            self.complete(token, bytes, Err(refusal.clone()));
            progress = true;
        }
        while let Some(op) = self.queue.pop_front() {
            self.complete(op.token, op.bytes, Err(refusal.clone()));
            progress = true;
        }
        progress |= self.fail_grow(refusal.clone());
        progress | self.fail_waiters(&refusal)
    }

    fn append_writes(&mut self) -> bool {
        let least = self.least_unit_blocks();
        let Some(limit) = self.unit_limit(least) else { return true };
        let mut unit = UnitBuilder::new(self.layout, limit);
        let (mut raw, mut data) = (Vec::new(), Vec::new());
        let (mut partial, mut alone) = (false, false);
        while let Some(mut op) = self.queue.pop_front() {
            let starts = op.done == 0;
            if starts && !unit.is_empty() && (alone || !self.may_join(&op, &unit, limit)) {
                self.queue.push_front(op);
                break;
            }
            alone = matches!(op.content, Content::Change(_));
            if starts {
                op.first = self.head.next_sequence;
            }
            let whole = op.push(&mut unit, self.layout.block_bytes, &mut self.head.next_sequence, &mut raw, &mut data);
            if !whole {
                self.queue.push_front(op);
                partial = true;
                break;
            }
            let outcome = op.outcome();
            self.group.finished.push(Finished {
                token: op.token,
                bytes: op.bytes,
                first: op.first,
                fua: op.fua,
                outcome,
            });
        }
        self.push_feedback(&mut unit);
        self.stats.written_bytes += unit.data_bytes();
        self.append_unit(unit, raw, data, GroupKind::Writes, !partial);
        true
    }

    /// Whether a request may go into a unit that others are in already.
    fn may_join(&self, op: &WriteOp, unit: &UnitBuilder, limit: u32) -> bool {
        let blocks = op.blocks_at_most(self);
        let left = limit - unit.blocks();
        let cheap_to_cut = self.head_left_blocks() - unit.blocks() < blocks;
        matches!(op.gate, Gate::Open)
            && !matches!(op.content, Content::Change(_))
            && self.map.catalogue.head(op.branch).is_some()
            && (blocks <= left || cheap_to_cut)
            && self.head.next_sequence + op.sequences() < self.superblock.sequence_limit
            && (blocks <= left
                || self.log_has(op, op.segments_more(self) + 1) && self.host_has(op, op.segments_more(self) + 1))
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
        let updates = self.locate(raw, &header);
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
        self.head.next_lsn += 1;
        self.group.kind = kind;
        self.group.open = !last;
        self.append = Some(AppendInFlight::Unit { header, records, updates });
        self.start_io(Purpose::Append, Io::Write { offset: self.layout.block_at(segment, block), buffers: data });
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
                Raw::Hole { branch, start, count, sequence, record, item_at } => {
                    hole_of(branch, start, count, sequence, record, segment, unit_at + item_at)
                }
                Raw::Copy { branch, lba, from, item_at, data_index } => {
                    Update::Copy { branch, lba, from, to: version(from.sequence(), item_at, data_index) }
                }
                Raw::CopyHole { branch, sequence, from, item_at } => {
                    Update::CopyHole { branch, sequence, from, to: ItemPlace { segment, item_at: unit_at + item_at } }
                }
                Raw::Change { change, sequence } => Update::Change { change, sequence },
            })
            .collect()
    }

    pub(super) fn append_done(&mut self, result: io::Result<()>) {
        let Some(AppendInFlight::Unit { header, records, updates }) = self.append.take() else {
            unreachable!("one append is in flight")
        };
        match result {
            Ok(()) => {
                self.cache_records(&header, &records);
                self.group.updates.extend(updates);
                self.head.block += header.blocks();
                self.head.last_lsn = header.lsn;
                if header.has(flag::LAST) {
                    self.checkpoints.applied_generation = header.generation;
                    self.apply_group(header.lsn);
                }
            }
            // The next unit takes the place of the group's first one: what of it is on the medium is out of the chain.
            Err(error) if is_no_space(&error) => {
                self.round.blocked = true;
                self.cleaner.blocked = true;
                self.void_group();
                if self.queue.front().is_some_and(|op| op.done > 0) {
                    let op = self.queue.pop_front().expect("just seen");
                    self.complete(op.token, op.bytes, Err(OpError::NoSpace));
                }
            }
            Err(error) => self.refuse_writes("writing to the log", &error),
        }
    }

    fn cache_records(&mut self, header: &UnitHeader, records: &Buffer) {
        for index in 0..u32::from(header.record_blocks) {
            let at = index as usize * RECORD_BLOCK;
            let slice = &records[at..at + RECORD_BLOCK];
            // A copy where a slice would keep its neighbours in memory.
            let block = if header.record_blocks == 1 { records.clone() } else { Buffer::copy_from(slice) };
            self.cache.insert(RecordKey { generation: header.generation, block: self.head.block + index }, block);
        }
    }
}

impl WriteOp {
    fn sequences(&self) -> u64 {
        match &self.content {
            Content::Blocks { count, .. } => u64::from(*count),
            Content::Holes(holes) => holes.len() as u64,
            Content::Change(_) => 1,
        }
    }

    /// Upper bound on the 4 KiB blocks that it takes in the log, in one unit.
    fn blocks_at_most(&self, store: &Store) -> u32 {
        let per_block = RECORD_BLOCK - unit::BLOCK_HEADER - unit::ENTRY_HEADER;
        match &self.content {
            Content::Blocks { count, .. } => {
                let items = *count as usize * store.layout.item_bytes as usize;
                let data = u64::from(*count) * u64::from(store.layout.block_bytes);
                items.div_ceil(per_block - 96) as u32 + 1 + data.div_ceil(RECORD_BLOCK as u64) as u32
            }
            Content::Holes(holes) => (holes.len() * 128).div_ceil(per_block - 128) as u32 + 1,
            Content::Change(_) => 2,
        }
    }

    /// Whether it is small and lets more go than it takes.
    pub(super) fn gives_space(&self) -> bool {
        match &self.content {
            Content::Holes(holes) => holes.len() == 1,
            Content::Change(change) => {
                matches!(**change, Change::SnapshotDelete { .. } | Change::CloneDelete { .. } | Change::Rollback { .. })
            }
            Content::Blocks { .. } => false,
        }
    }

    /// The answer, if it is not that it was written.
    fn outcome(&self) -> Option<Outcome> {
        let Content::Change(change) = &self.content else { return None };
        Some(match **change {
            Change::SnapshotCreate { id, .. } => Outcome::SnapshotCreated { id: SnapshotId(id) },
            Change::CloneCreate { branch, .. } | Change::ReceiveBegin { branch, .. } => {
                Outcome::CloneCreated { branch: BranchId(branch) }
            }
            _ => Outcome::Changed,
        })
    }

    pub(super) fn segments_more(&self, store: &Store) -> u32 {
        self.blocks_at_most(store).div_ceil(store.layout.segment_blocks() - 1) + 1
    }

    /// Puts as much as fits into the unit; true if nothing is left.
    fn push(
        &mut self,
        unit: &mut UnitBuilder,
        block_bytes: u32,
        next_sequence: &mut u64,
        raw: &mut Vec<Raw>,
        data: &mut Vec<Buffer>,
    ) -> bool {
        let branch = self.branch;
        match &self.content {
            Content::Blocks { lba, pieces, items, count } => {
                let item_bytes = items.len() / *count as usize;
                let from = self.done;
                while self.done < *count {
                    let (lba, sequence) = (lba + u64::from(self.done), *next_sequence);
                    let item = &items[self.done as usize * item_bytes..][..item_bytes];
                    let pushed = unit.push_block(branch, lba, sequence, item);
                    let Some((item_at, data_index)) = pushed else { break };
                    raw.push(Raw::Block { branch, lba, sequence, item_at, data_index });
                    *next_sequence += 1;
                    self.done += 1;
                }
                let block_bytes = block_bytes as usize;
                slice_pieces(pieces, from as usize * block_bytes, self.done as usize * block_bytes, data);
                self.done == *count
            }
            Content::Holes(holes) => {
                while let Some((start, count, record)) = holes.get(self.done as usize) {
                    let bytes = record.as_ref().map_or(&[][..], SealRecord::as_bytes);
                    let sequence = *next_sequence;
                    let pushed = unit.push_hole(branch, *start, *count, sequence, bytes);
                    let Some(item_at) = pushed else { break };
                    let (start, count, record) = (*start, *count, record.clone());
                    raw.push(Raw::Hole { branch, start, count, sequence, record, item_at });
                    *next_sequence += 1;
                    self.done += 1;
                }
                self.done as usize == holes.len()
            }
            Content::Change(change) => {
                let sequence = *next_sequence;
                let fits = unit.push_change(change.branch(), sequence, &change.encode());
                if fits {
                    raw.push(Raw::Change { change: change.clone(), sequence });
                    *next_sequence += 1;
                }
                fits
            }
        }
    }
}

/// Appends the bytes `from..to` of the pieces put together, sharing their memory.
pub(super) fn slice_pieces(pieces: &[Buffer], from: usize, to: usize, out: &mut Vec<Buffer>) {
    let mut at = 0;
    for piece in pieces {
        let (start, end) = (from.max(at), to.min(at + piece.len()));
        if start < end {
            out.push(if end - start == piece.len() { piece.clone() } else { piece.slice(start - at..end - at) });
        }
        at += piece.len();
    }
}

pub(super) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}
