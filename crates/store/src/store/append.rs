//! Appending: which work goes into the next unit.

use strongroom_block::{AttachId, Buffer, SealRecord, StoreSequence, Token};

use super::Store;
use super::gate::Gate;
use super::group::{Finished, GroupKind};
use super::log::Raw;
use super::operations::{Holes, Replayed, Verdict};
use super::superseded::Judging;
use crate::catalogue::Change;
use crate::holes::{Hole, ItemPlace};
use crate::layout::{Layout, RECORD_BLOCK};
use crate::op::{OpError, Origin, Outcome};
use crate::unit::{self, NO_SEGMENT, OPERATION_BYTES, UnitBuilder};
use crate::view::{BranchId, SnapshotId};

/// What a queued request wants appended.
pub(super) enum Content {
    Blocks {
        addresses: Addresses,
        pieces: Vec<Buffer>,
        items: Vec<u8>,
        count: u32,
    },
    Holes(Holes),
    /// A change of the catalogue; in a group of its own.
    Change(Box<Change>),
    /// An attach id becomes known.
    Register(AttachId),
}

/// Where the blocks of a request belong.
pub(super) enum Addresses {
    /// One behind the other.
    From(u64),
    /// Each by itself: what a reception takes in. Without a condition, always.
    Each(Vec<u64>),
}

impl Addresses {
    pub(super) fn at(&self, index: u32) -> u64 {
        match self {
            Addresses::From(lba) => lba + u64::from(index),
            Addresses::Each(lbas) => lbas[index as usize],
        }
    }
}

/// A request that waits for the log.
pub(super) struct WriteOp {
    pub(super) token: Token,
    pub(super) branch: u32,
    pub(super) content: Content,
    pub(super) fua: bool,
    pub(super) gate: Gate,
    /// Of what is written on a condition: what it is made from, 0 if that is not known. `None`: it is written whatever is there.
    pub(super) base: Option<u64>,
    pub(super) origin: Option<Origin>,
    /// It was held against the operation windows.
    pub(super) checked: bool,
    /// How many blocks or holes were asked for; of a replay fewer may be left.
    pub(super) asked: u64,
    /// How far it was looked what is there instead of a replay.
    pub(super) judging: Option<Box<Judging>>,
    /// What a replay writes.
    pub(super) replayed: Option<Box<Replayed>>,
    /// Its name is in a unit of the open group.
    pub(super) named: bool,
    /// Counted against the queue's limit.
    pub(super) bytes: usize,
    /// Blocks or holes already in units of the open group.
    pub(super) done: u32,
    /// Sequence of the first one.
    pub(super) first: u64,
}

/// Whether a request makes room: then it is small, and may use some of the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MakesRoom {
    No,
    /// It discards. Where a snapshot has the blocks nothing goes, and the hole stays.
    Perhaps,
    /// A snapshot or clone goes, or what was written since a snapshot.
    Surely,
}

/// What became of the search for room.
enum Making {
    /// Some is on its way.
    Waits,
    /// Something was done that others have to look at before it goes on.
    GoesOn,
    /// There is none to be had.
    Nothing,
}

impl Store {
    /// Starts the next append, if it may go now and there is something to append.
    pub(super) fn drive_append(&mut self) -> bool {
        if !self.appends.is_empty() {
            return self.append_along();
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
        if self.is_writing_tables() || self.wants_table() {
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

    /// Another unit beside those on their way: of copies that have a segment to themselves; of writes if much is queued, or only copies
    /// are on their way; and if nothing else has its turn.
    fn append_along(&mut self) -> bool {
        let may = self.appends.may_go_along() && self.refused.is_none() && !self.wants_table();
        if may && !self.group.open && self.copies_go_along() {
            return self.append_copies();
        }
        let may = may
            && (self.much_is_queued() || self.appends.are_copies() && self.front_is_data())
            && self.front_is_new()
            && self.head_is_ready(self.least_unit_blocks())
            && !self.copies_have_turn();
        if !may {
            return false;
        }
        if !self.group.open {
            if self.cannot_go_on().is_some() || !self.space_for_front() {
                return false;
            }
            self.cleaner.urgent = false;
            self.cleaner.turn = true;
            self.space_taken(true);
        }
        self.stats.units_alongside += 1;
        self.append_writes()
    }

    /// Whether the first request is blocks that nothing holds up.
    fn front_is_data(&self) -> bool {
        let data = |op: &WriteOp| matches!((&op.content, &op.gate), (Content::Blocks { .. }, Gate::Open));
        self.queue.front().is_some_and(data)
    }

    /// Whether at least half a unit of blocks is queued that nothing holds up.
    fn much_is_queued(&self) -> bool {
        let mut bytes = u64::from(self.write_unit_blocks()) * RECORD_BLOCK as u64 / 2;
        for op in &self.queue {
            let Content::Blocks { count, .. } = op.content else { return false };
            if !matches!(op.gate, Gate::Open) {
                return false;
            }
            bytes = bytes.saturating_sub(u64::from(count - op.done) * u64::from(self.layout.block_bytes));
            if bytes == 0 {
                return true;
            }
        }
        false
    }

    /// Upper bound on a unit of writes, in 4 KiB blocks.
    pub(super) fn write_unit_blocks(&self) -> u32 {
        (self.options.append_unit_bytes_max / RECORD_BLOCK as u32).max(self.least_unit_blocks())
    }

    /// The first queued request, if it can go on now. `None`: it has to wait, or there is none.
    fn foreground(&mut self) -> Option<bool> {
        if let Some(error) = self.cannot_go_on() {
            let op = self.queue.pop_front().expect("just seen");
            self.complete(op.token, op.bytes, Err(error));
            return Some(true);
        }
        let Some(front) = self.queue.front() else {
            return self.relieve();
        };
        if self.waits_for_hiding() {
            return None;
        }
        if let Gate::Reading(..) = front.gate {
            return None;
        }
        match self.check_front() {
            Verdict::Goes => {}
            Verdict::Waits => return None,
            Verdict::Again | Verdict::Ended => return Some(true),
        }
        if !matches!(self.queue.front().expect("just seen").gate, Gate::Open) {
            return Some(self.start_gate());
        }
        if self.covered_by_holes() {
            let op = self.queue.pop_front().expect("just seen");
            self.complete(
                op.token,
                op.bytes,
                Ok(Outcome::Written { first: StoreSequence(0), repeated: 0, superseded: 0 }),
            );
            return Some(true);
        }
        if self.space_for_front() {
            self.cleaner.urgent = false;
            self.cleaner.turn = true;
            self.cleaner.awaits_slices = false;
            self.space_taken(true);
            return Some(self.append_writes());
        }
        match self.make_room() {
            Making::Waits => return None,
            Making::GoesOn => return Some(true),
            Making::Nothing => {}
        }
        self.cleaner.urgent = false;
        self.space_taken(false);
        let op = self.queue.pop_front().expect("just seen");
        self.complete(op.token, op.bytes, Err(OpError::NoSpace));
        Some(true)
    }

    /// No request waits. On a full host room is made all the same, as far as a request would have it made: what was discarded shows at once, and
    /// the next write does not have to wait for it.
    fn relieve(&mut self) -> Option<bool> {
        if self.relief_wanted() {
            match self.make_room() {
                Making::Waits => return None,
                Making::GoesOn => return Some(true),
                Making::Nothing => {}
            }
        }
        self.end_relief();
        self.cleaner.urgent = false;
        self.cleaner.awaits_slices = false;
        None
    }

    /// Everything that makes room, the cheapest first; older versions, which somebody may want to read, come last.
    fn make_room(&mut self) -> Making {
        if self.space_on_its_way() {
            return Making::Waits;
        }
        if !std::mem::replace(&mut self.cleaner.urgent, true) {
            self.cleaner.copied_for_front = 0;
            // Tables and cleaning look at this: they come before it in the next turn.
            return Making::GoesOn;
        }
        if self.reclaim_possible() || self.ask_host_again() {
            return Making::Waits;
        }
        if self.try_unread_for_front() {
            // There may be more to clean than a moment ago, or not.
            return Making::GoesOn;
        }
        if self.nodes_go_on() || self.hiding.is_busy() {
            self.cleaner.awaits_slices = true;
            return Making::Waits;
        }
        if std::mem::take(&mut self.cleaner.awaits_slices) {
            // There is more to clean than before.
            self.cleaner.copied_for_front = 0;
            return Making::GoesOn;
        }
        if let Some(begun) = self.drop_checkpoints() {
            return if begun { Making::GoesOn } else { Making::Waits };
        }
        // Not where cleaning could not use what they leave: it would cost them all at once.
        if !self.cleaner.blocked && !self.cleaner.stop && self.versions_make_way() {
            return Making::GoesOn;
        }
        Making::Nothing
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
        let more = match op.makes_room() {
            _ if blocks <= left => 0,
            MakesRoom::No => (blocks - left).div_ceil(self.layout.segment_blocks() - 1) + 1,
            // One small unit.
            MakesRoom::Perhaps | MakesRoom::Surely => 1,
        };
        self.log_has(op, more) && self.host_has(op, more)
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
        let limit = limit.min(self.write_unit_blocks());
        let mut unit = UnitBuilder::new(self.layout, limit);
        let (mut raw, mut data) = (Vec::new(), Vec::new());
        let (mut partial, mut alone) = (false, false);
        let mut widening = self.begin_widening();
        while let Some(mut op) = self.queue.pop_front() {
            let starts = op.done == 0;
            if starts && !unit.is_empty() && (alone || !self.may_join(&op, &unit, limit)) {
                self.queue.push_front(op);
                break;
            }
            alone = matches!(op.content, Content::Change(_));
            if starts {
                op.first = self.head.next_sequence;
                // Also one that joined others, and is cut.
                op.checked = true;
                self.widen(&mut widening, &mut op);
            }
            let whole = op.push(&mut unit, self.layout.block_bytes, &mut self.head.next_sequence, &mut raw, &mut data);
            if !whole {
                self.queue.push_front(op);
                partial = true;
                break;
            }
            let (outcome, noted) = (op.outcome(), self.note(&op));
            self.group.finished.push(Finished {
                token: op.token,
                bytes: op.bytes,
                first: op.first,
                fua: op.fua,
                holes: matches!(op.content, Content::Holes(_)),
                outcome,
                noted,
                lost: op.replayed.as_ref().and_then(|replayed| replayed.lost),
            });
        }
        self.push_feedback(&mut unit);
        self.stats.written_bytes += unit.data_bytes();
        self.append_unit(unit, raw, data, GroupKind::Writes, !partial);
        self.appends.alone |= alone;
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
            && self.is_new(op)
            && (blocks <= left || cheap_to_cut)
            && self.head.next_sequence + op.sequences() < self.superblock.sequence_limit
            && (blocks <= left
                || self.log_has(op, op.segments_more(self) + 1) && self.host_has(op, op.segments_more(self) + 1))
    }
}

impl WriteOp {
    fn sequences(&self) -> u64 {
        match &self.content {
            Content::Blocks { count, .. } => u64::from(*count),
            Content::Holes(holes) => holes.len() as u64,
            Content::Change(_) => 1,
            Content::Register(_) => 0,
        }
    }

    /// Upper bound on the 4 KiB blocks that it takes in the log, in one segment.
    fn blocks_at_most(&self, store: &Store) -> u32 {
        let per_block = RECORD_BLOCK - unit::BLOCK_HEADER - unit::ENTRY_HEADER;
        match &self.content {
            Content::Blocks { addresses, count, .. } => {
                // Scattered blocks have an entry each: more than half of what units hold otherwise still fits.
                let (entry, holds) = match addresses {
                    Addresses::From(_) => (0, store.write_unit_holds),
                    Addresses::Each(_) => (unit::ENTRY_HEADER, store.write_unit_holds.div_ceil(2)),
                };
                let items = *count as usize * (entry + store.layout.item_bytes as usize);
                let name = u32::from(self.origin.is_some());
                let data = u64::from(*count) * u64::from(store.layout.block_bytes);
                // Each unit but the first may bring a record block, and padding, that are not full.
                let cuts = count.saturating_sub(1) / holds;
                items.div_ceil(per_block - 96) as u32 + 1 + name + data.div_ceil(RECORD_BLOCK as u64) as u32 + 2 * cuts
            }
            Content::Holes(holes) => (holes.len() * 128 + OPERATION_BYTES).div_ceil(per_block - 128) as u32 + 1,
            Content::Change(_) | Content::Register(_) => 2,
        }
    }

    /// What it is to space.
    pub(super) fn makes_room(&self) -> MakesRoom {
        match &self.content {
            Content::Holes(holes) if holes.len() == 1 => MakesRoom::Perhaps,
            // Who may not register may not discard either.
            Content::Register(_) => MakesRoom::Perhaps,
            Content::Change(change) => match **change {
                Change::SnapshotDelete { .. } | Change::CloneDelete { .. } | Change::Rollback { .. } => {
                    MakesRoom::Surely
                }
                _ => MakesRoom::No,
            },
            _ => MakesRoom::No,
        }
    }

    /// The answer, if it is not that it was written.
    fn outcome(&self) -> Option<Outcome> {
        if let Some(replayed) = &self.replayed {
            return Some(replayed.outcome());
        }
        let change = match &self.content {
            Content::Change(change) => change,
            Content::Register(_) => return Some(Outcome::Changed),
            Content::Blocks { .. } | Content::Holes(_) => return None,
        };
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
        self.push_content(unit, block_bytes, next_sequence, raw, data) && self.push_name(unit)
    }

    /// Names the request behind what it wrote, if it has a name.
    fn push_name(&mut self, unit: &mut UnitBuilder) -> bool {
        if let Some(Origin { operation, .. }) = self.origin
            && !self.named
        {
            self.named = unit.push_operation(self.branch, operation, self.asked);
            return self.named;
        }
        true
    }

    /// The sequence of its next block or hole.
    fn next_of(&self, next_sequence: u64) -> u64 {
        self.replayed.as_ref().map_or(next_sequence, |replayed| replayed.sequences[self.done as usize])
    }

    fn push_content(
        &mut self,
        unit: &mut UnitBuilder,
        block_bytes: u32,
        next_sequence: &mut u64,
        raw: &mut Vec<Raw>,
        data: &mut Vec<Buffer>,
    ) -> bool {
        let branch = self.branch;
        // A replay takes none.
        let taken = u64::from(self.replayed.is_none());
        match &self.content {
            Content::Blocks { addresses, pieces, items, count } => {
                let item_bytes = items.len() / (*count).max(1) as usize;
                let from = self.done;
                while self.done < *count {
                    let (lba, sequence) = (addresses.at(self.done), self.next_of(*next_sequence));
                    let item = &items[self.done as usize * item_bytes..][..item_bytes];
                    let pushed = match self.base {
                        None => unit.push_block(branch, lba, sequence, item),
                        Some(base) => unit.push_conditional((branch, lba, sequence), base, item),
                    };
                    let Some((item_at, data_index)) = pushed else { break };
                    raw.push(Raw::Block { branch, lba, sequence, item_at, data_index });
                    *next_sequence += taken;
                    self.done += 1;
                }
                let block_bytes = block_bytes as usize;
                slice_pieces(pieces, from as usize * block_bytes, self.done as usize * block_bytes, data);
                self.done == *count
            }
            Content::Holes(holes) => {
                while let Some((start, count, record)) = holes.get(self.done as usize) {
                    let bytes = record.as_ref().map_or(&[][..], SealRecord::as_bytes);
                    let sequence = self.next_of(*next_sequence);
                    let is_conditional = self.base.is_some();
                    let pushed = unit.push_hole((branch, sequence), *start, *count, bytes, is_conditional);
                    let Some(item_at) = pushed else { break };
                    // Its place is known when the unit is whole.
                    let place = ItemPlace { segment: NO_SEGMENT, item_at };
                    let hole = Hole::new(*start, *count, sequence, record.clone(), place).conditional(is_conditional);
                    raw.push(Raw::Hole { branch, hole: Box::new(hole), item_at });
                    *next_sequence += taken;
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
            &Content::Register(attach_id) => unit.push_registration(branch, attach_id),
        }
    }
}

/// How many of the volume's blocks always go into a unit of so many 4 KiB blocks.
pub(super) fn unit_holds(layout: &Layout, unit_blocks: u32) -> u32 {
    let items_max = (RECORD_BLOCK - unit::UNIT_HEADER - unit::ENTRY_HEADER) as u32 / layout.item_bytes;
    let takes = |count: u32| count.div_ceil(items_max) + (count * layout.block_bytes).div_ceil(RECORD_BLOCK as u32);
    let most = (unit_blocks - 1) * RECORD_BLOCK as u32 / layout.block_bytes;
    (1..=most).rev().find(|&count| takes(count) <= unit_blocks).unwrap_or(1)
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
