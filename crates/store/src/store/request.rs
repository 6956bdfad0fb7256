//! A write that waits for the log: what it appends, on which condition, and how it is put into units.

use strongroom_block::{AttachId, Buffer, Lba, SealRecord, Stamp, StoreSequence, Token};

use super::update::{UnplacedUpdate, WindowEntry};
use crate::catalogue::Change;
use crate::holes::{Hole, ItemPlace};
use crate::layout::{Layout, RECORD_BLOCK};
use crate::op::{Origin, Outcome};
use crate::unit::{self, NO_SEGMENT, OPERATION_BYTES, UnitBuilder};
use crate::view::{BranchId, SnapshotId};

/// What a queued request appends.
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
    /// Contiguous.
    From(u64),
    /// Scattered: of a reception. Never with a condition.
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
pub(super) struct WriteRequest {
    pub(super) token: Token,
    pub(super) branch: u32,
    pub(super) content: Content,
    pub(super) fua: bool,
    pub(super) gate: Gate,
    /// The base of a conditional write (see [`unit::Base`]), 0 if unknown; `None`: it has no condition.
    pub(super) base: Option<u64>,
    pub(super) origin: Option<Origin>,
    /// It was checked against the operation windows.
    pub(super) checked: bool,
    /// Blocks or holes of the request; of a replay fewer may be left to write.
    pub(super) asked: u64,
    /// Progress of the check of a replay.
    pub(super) replay_check: Option<Box<ReplayCheck>>,
    /// What is left of a checked replay.
    pub(super) replay: Option<Box<ReplayPlan>>,
    /// Its operation id is in a unit of the open group.
    pub(super) named: bool,
    /// Counted against the queue's limit.
    pub(super) bytes: usize,
    /// Blocks or holes already in units of the open group.
    pub(super) done: u32,
    /// Sequence of the first one.
    pub(super) first: u64,
}

/// Whether a request makes room. Such a request is small and may use part of the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MakesRoom {
    No,
    /// A discard. It frees nothing if a snapshot has the blocks, and its hole takes space.
    Perhaps,
    /// Deletes a snapshot or clone, or what was written since a snapshot.
    Surely,
}

/// How far a replay was compared with what was written since.
#[derive(Default)]
pub(super) struct ReplayCheck {
    /// The range of the request that is being compared.
    pub(super) range: usize,
    /// Blocks of that range before this one are done.
    pub(super) at: u64,
    /// Blocks whose records are being read, and the sequences that they have in the replay.
    pub(super) batch: Vec<(u64, u64)>,
    /// The first block of the replay that is lost.
    pub(super) lost: Option<Lba>,
}

impl ReplayCheck {
    /// The bases of the versions of the batch were read.
    pub(super) fn bases_read(&mut self, bases: &[u64]) {
        for (nth, (lba, sequence)) in std::mem::take(&mut self.batch).into_iter().enumerate() {
            // An unreadable version may be based on anything.
            if bases.get(nth).is_none_or(|&base| base < sequence) {
                self.lost.get_or_insert(Lba(lba));
            }
        }
    }
}

/// The sizes that decide how many units and segments a request takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnitLimits {
    /// Upper bound on a unit of writes, in 4 KiB blocks.
    pub(super) unit_blocks: u32,
    /// Blocks of the volume that always fit into one unit of writes.
    pub(super) holds: u32,
    pub(super) segment_blocks: u32,
    pub(super) block_bytes: u32,
    pub(super) item_bytes: u32,
}

impl UnitLimits {
    pub(super) fn new(layout: &Layout, unit_bytes_max: u32) -> UnitLimits {
        let unit_blocks = (unit_bytes_max / RECORD_BLOCK as u32).max(least_unit_blocks(layout));
        UnitLimits {
            unit_blocks,
            holds: unit_holds(layout, unit_blocks),
            segment_blocks: layout.segment_blocks(),
            block_bytes: layout.block_bytes,
            item_bytes: layout.item_bytes,
        }
    }
}

/// 4 KiB blocks of the smallest unit with one block of data.
pub(super) fn least_unit_blocks(layout: &Layout) -> u32 {
    1 + layout.block_bytes.div_ceil(RECORD_BLOCK as u32)
}

/// What must hold before a queued request may be written.
pub(super) enum Gate {
    /// Nothing (any more).
    Open,
    /// The newest version must have this stamp, or be a hole.
    Stamp { expected: Option<Stamp> },
    /// The blocks must hold this.
    Compare(Buffer),
    /// The range must hold no data.
    Absent,
    /// None, but the records of what a replay would replace are being read.
    Superseded,
    /// The check is reading; the ticket tells its reads from those for requests that failed meanwhile.
    Reading(Box<Gate>, u64),
}

/// A checked replay: what is left of it is written with its original sequences.
pub(super) struct ReplayPlan {
    /// Of the blocks or holes that are left.
    pub(super) sequences: Vec<u64>,
    /// Of the first one of the whole request.
    pub(super) first: StoreSequence,
    pub(super) superseded: u32,
    /// The first block that is neither written nor superseded.
    pub(super) lost: Option<Lba>,
}

impl ReplayPlan {
    pub(super) fn outcome(&self) -> Outcome {
        Outcome::Written { first: self.first, repeated: 0, superseded: self.superseded }
    }
}

impl WriteRequest {
    /// Without a condition or a name; answered when it is appended.
    pub(super) fn new(token: Token, branch: u32, content: Content, bytes: usize) -> WriteRequest {
        let mut request = WriteRequest {
            token,
            branch,
            content,
            fua: false,
            gate: Gate::Open,
            base: None,
            origin: None,
            checked: false,
            asked: 0,
            replay_check: None,
            replay: None,
            named: false,
            bytes,
            done: 0,
            first: 0,
        };
        request.asked = request.counters();
        request
    }

    /// Answered when it is durable, if `fua`.
    pub(super) fn durable_if(self, fua: bool) -> WriteRequest {
        WriteRequest { fua, ..self }
    }

    /// Written only if the condition holds.
    pub(super) fn when(self, gate: Gate) -> WriteRequest {
        // The base is unknown until what is there was read.
        let base = matches!(gate, Gate::Stamp { .. } | Gate::Absent).then_some(0);
        WriteRequest { gate, base, ..self }
    }

    /// Executed at most once under this name, if it has one.
    pub(super) fn named(self, origin: Option<Origin>) -> WriteRequest {
        let mut request = WriteRequest { origin, ..self };
        if origin.is_some_and(|origin| origin.replay.is_some()) {
            // Its condition held when it was executed.
            request.gate = Gate::Open;
        }
        request
    }

    /// Counters of its operation: one for each block or hole.
    fn counters(&self) -> u64 {
        match &self.content {
            Content::Blocks { count, .. } => u64::from(*count),
            Content::Holes(holes) => holes.len() as u64,
            Content::Change(_) | Content::Register(_) => 0,
        }
    }

    pub(super) fn window_entry(&self) -> Option<WindowEntry> {
        let branch = self.branch;
        match (&self.content, self.origin) {
            (&Content::Register(attach_id), _) => Some(WindowEntry::Registration { branch, attach_id }),
            (_, Some(Origin { operation, .. })) => {
                Some(WindowEntry::Operation { branch, operation, count: self.asked })
            }
            _ => None,
        }
    }
}

impl WriteRequest {
    /// Store sequences that it takes.
    pub(super) fn sequences(&self) -> u64 {
        match &self.content {
            Content::Blocks { count, .. } => u64::from(*count),
            Content::Holes(holes) => holes.len() as u64,
            Content::Change(_) => 1,
            Content::Register(_) => 0,
        }
    }

    /// Upper bound on the 4 KiB blocks that it takes in the log, within one segment.
    pub(super) fn blocks_at_most(&self, limits: &UnitLimits) -> u32 {
        let per_block = RECORD_BLOCK - unit::BLOCK_HEADER - unit::ENTRY_HEADER;
        match &self.content {
            Content::Blocks { addresses, count, .. } => {
                // Scattered blocks have an entry each: more than half of what units hold otherwise still fits.
                let (entry, holds) = match addresses {
                    Addresses::From(_) => (0, limits.holds),
                    Addresses::Each(_) => (unit::ENTRY_HEADER, limits.holds.div_ceil(2)),
                };
                let items = *count as usize * (entry + limits.item_bytes as usize);
                let name = u32::from(self.origin.is_some());
                let data = u64::from(*count) * u64::from(limits.block_bytes);
                // Each unit but the first may bring a record block, and padding, that are not full.
                let cuts = count.saturating_sub(1) / holds;
                items.div_ceil(per_block - 96) as u32 + 1 + name + data.div_ceil(RECORD_BLOCK as u64) as u32 + 2 * cuts
            }
            Content::Holes(holes) => (holes.len() * 128 + OPERATION_BYTES).div_ceil(per_block - 128) as u32 + 1,
            Content::Change(_) | Content::Register(_) => 2,
        }
    }

    /// Whether it makes room.
    pub(super) fn makes_room(&self) -> MakesRoom {
        match &self.content {
            Content::Holes(holes) if holes.len() == 1 => MakesRoom::Perhaps,
            // An initiator has to register before it can discard.
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

    /// The outcome, if it is not [`Outcome::Written`] with new sequences.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        if let Some(replay) = &self.replay {
            return Some(replay.outcome());
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

    /// Segments that it may have to open.
    pub(super) fn segments_more(&self, limits: &UnitLimits) -> u32 {
        self.blocks_at_most(limits).div_ceil(limits.segment_blocks - 1) + 1
    }

    /// Puts as much as fits into the unit; true if nothing is left.
    pub(super) fn push(
        &mut self,
        unit: &mut UnitBuilder,
        block_bytes: u32,
        next_sequence: &mut u64,
        raw: &mut Vec<UnplacedUpdate>,
        data: &mut Vec<Buffer>,
    ) -> bool {
        self.push_content(unit, block_bytes, next_sequence, raw, data) && self.push_name(unit)
    }

    /// Adds the operation id behind what the request wrote, if it has one.
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
        self.replay.as_ref().map_or(next_sequence, |replay| replay.sequences[self.done as usize])
    }

    fn push_content(
        &mut self,
        unit: &mut UnitBuilder,
        block_bytes: u32,
        next_sequence: &mut u64,
        raw: &mut Vec<UnplacedUpdate>,
        data: &mut Vec<Buffer>,
    ) -> bool {
        let branch = self.branch;
        // A replay takes none.
        let taken = u64::from(self.replay.is_none());
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
                    raw.push(UnplacedUpdate::Block { branch, lba, sequence, item_at, data_index });
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
                    raw.push(UnplacedUpdate::Hole { branch, hole: Box::new(hole), item_at });
                    *next_sequence += taken;
                    self.done += 1;
                }
                self.done as usize == holes.len()
            }
            Content::Change(change) => {
                let sequence = *next_sequence;
                let fits = unit.push_change(change.branch(), sequence, &change.encode());
                if fits {
                    raw.push(UnplacedUpdate::Change { change: change.clone(), sequence });
                    *next_sequence += 1;
                }
                fits
            }
            &Content::Register(attach_id) => unit.push_registration(branch, attach_id),
        }
    }
}

/// The sealed ranges of a request, as they go into the log.
pub(super) type Holes = Vec<(u64, u64, Option<SealRecord>)>;

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

/// How many of the volume's blocks always go into a unit of this many 4 KiB blocks.
fn unit_holds(layout: &Layout, unit_blocks: u32) -> u32 {
    let items_max = (RECORD_BLOCK - unit::UNIT_HEADER - unit::ENTRY_HEADER) as u32 / layout.item_bytes;
    let takes = |count: u32| count.div_ceil(items_max) + (count * layout.block_bytes).div_ceil(RECORD_BLOCK as u32);
    let most = (unit_blocks - 1) * RECORD_BLOCK as u32 / layout.block_bytes;
    (1..=most).rev().find(|&count| takes(count) <= unit_blocks).unwrap_or(1)
}
