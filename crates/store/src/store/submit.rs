//! Taking requests in: each is checked against the contract of `Op` and the limits, then read, queued or answered.

use crc_fast::{CrcAlgorithm, Digest};
use strongroom_block::{Buffer, HoleRecord, Lba, SealRecord, Token};

use super::Store;
use super::append::{Addresses, Content, WriteOp};
use super::gate::Gate;
use super::group::RELEASED_PER_REQUEST;
use super::read::{Owner, Wanted};
use crate::catalogue::NodeId;
use crate::op::{Completion, Op, OpError, Origin, Outcome};
use crate::view::{BranchId, View};

impl Store {
    /// Takes a request in. Writes are worked on in the next [`Store::poll_completions`], so that requests submitted
    /// together share one append. Every request completes, once. `token` must be unique among requests in flight.
    ///
    /// Requests in flight at the same time are not ordered among each other, but a write that completed is seen by every
    /// read submitted afterwards.
    pub fn submit(&mut self, token: Token, op: Op) {
        self.submit_to(token, View::default(), op);
    }

    /// As [`Store::submit`], addressed to a branch or a snapshot. A flush is of everything, whatever it addresses.
    pub fn submit_to(&mut self, token: Token, view: View, op: Op) {
        let bytes = self.op_bytes(&op);
        if !self.has_room_for(bytes) || !self.admits(&op) {
            self.done.push(Completion { token, result: Err(OpError::Busy) });
            return;
        }
        self.ops_in_flight += 1;
        self.bytes_in_flight += bytes;
        if let Err(error) = self.take_in(token, view, op, bytes) {
            self.complete(token, bytes, Err(error));
        }
    }

    /// Whether the queue takes another request of so many bytes.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        self.ops_in_flight < self.options.queue_ops_max
            && self.bytes_in_flight + bytes <= self.options.queue_bytes_max.max(Op::READ_BYTES_MAX)
    }

    fn take_in(&mut self, token: Token, view: View, op: Op, bytes: usize) -> Result<(), OpError> {
        if let Some(answer) = self.while_erasing(token, &op, bytes) {
            return answer;
        }
        let shown = self.options.planted.shown(token, view, matches!(op, Op::Read { .. }));
        let node = self.map.catalogue.node(shown).ok_or(OpError::NoSuchView)?;
        let branch = match view {
            View::Head(BranchId(branch)) => Some(branch),
            View::Snapshot(_) => None,
        };
        let writable = branch.ok_or(OpError::ReadOnly);
        match op {
            Op::Read { lba, count } => self.take_in_read(token, node, &[(lba, count)], Wanted::Data, bytes)?,
            Op::ReadMedium { lba, count } => {
                self.take_in_read(token, node, &[(lba, count)], Wanted::DataOfMedium, bytes)?;
            }
            Op::ReadRuns { runs } => {
                check((1..=Op::RUNS_MAX).contains(&runs.len()), "none or too many ranges")?;
                self.take_in_read(token, node, &runs, Wanted::Data, bytes)?;
            }
            Op::ReadVersion { lba, older_than } => {
                self.check_range(lba, 1)?;
                let below = if older_than.0 == 0 { u64::MAX } else { older_than.0 };
                self.start_version_read(Owner::Caller { token, bytes }, node, lba.0, below);
            }
            Op::Write { lba, data, records, fua, origin } => {
                let content = self.blocks(lba, data, &records)?;
                self.enqueue_from(token, writable?, content, Gate::Open, fua, bytes, origin)?;
            }
            Op::ConditionalWrite { lba, expected, data, record, fua, origin } => {
                check(self.info.kind.is_sealed(), "a write on condition of a stamp to a plain unit")?;
                let content = self.blocks(lba, data, &[record])?;
                self.enqueue_from(token, writable?, content, Gate::Stamp { expected }, fua, bytes, origin)?;
            }
            Op::CompareAndWrite { lba, compare, data, fua } => {
                check(!self.info.kind.is_sealed(), "a comparison of data on a sealed unit")?;
                check(compare.len() == data.len(), "a comparison with another length than the data")?;
                let content = self.blocks(lba, vec![data], &[])?;
                self.enqueue(token, writable?, content, Gate::Compare(compare), fua, bytes)?;
            }
            Op::Hole { holes, origin } => {
                check(self.info.kind.is_sealed(), "sealed holes for a plain unit")?;
                check((1..=Op::HOLES_MAX).contains(&holes.len()), "none or too many holes")?;
                let holes = holes.into_iter().map(|hole| self.sealed_hole(hole)).collect::<Result<Vec<_>, _>>()?;
                self.enqueue_from(token, writable?, Content::Holes(holes), Gate::Open, false, bytes, origin)?;
            }
            Op::ConditionalHole { hole, origin } => {
                check(self.info.kind.is_sealed(), "sealed holes for a plain unit")?;
                let content = Content::Holes(vec![self.sealed_hole(hole)?]);
                self.enqueue_from(token, writable?, content, Gate::Absent, false, bytes, origin)?;
            }
            Op::RegisterAttachment { attach_id } => {
                check(self.info.kind.is_sealed(), "an attach id of a plain unit")?;
                self.enqueue(token, writable?, Content::Register(attach_id), Gate::Open, true, bytes)?;
            }
            Op::Discard { lba, count } => {
                check(!self.info.kind.is_sealed(), "an unsealed hole for a sealed unit")?;
                self.check_range(lba, count)?;
                self.enqueue(token, writable?, Content::Holes(vec![(lba.0, count, None)]), Gate::Open, false, bytes)?;
            }
            Op::Flush => {
                self.check_writable()?;
                let lsn = self.head.completed_lsn;
                self.complete_when_durable(lsn, token, bytes, Outcome::Flushed);
            }
            Op::Verified { pairs } => {
                check(pairs.len() <= Op::VERIFIED_MAX, "more than Op::VERIFIED_MAX pairs of feedback")?;
                let mut fuel = RELEASED_PER_REQUEST;
                let released = pairs.iter().map(|(lba, sequence)| self.verified(node, lba.0, sequence.0, &mut fuel));
                let released = released.sum();
                self.complete(token, bytes, Ok(Outcome::Verified { released }));
            }
            Op::Grow { blocks } => self.start_grow(token, blocks, bytes)?,
            Op::Erase => self.start_erase(token, writable?, bytes, false)?,
            Op::CryptoErase => self.start_erase(token, writable?, bytes, true)?,
            Op::SnapshotCreate { .. }
            | Op::SnapshotDelete { .. }
            | Op::Rollback { .. }
            | Op::CloneCreate { .. }
            | Op::CloneDelete { .. } => self.take_in_change(token, writable?, op, bytes)?,
        }
        Ok(())
    }

    fn take_in_read(
        &mut self,
        token: Token,
        node: NodeId,
        runs: &[(Lba, u32)],
        wanted: Wanted,
        bytes: usize,
    ) -> Result<(), OpError> {
        for &(lba, count) in runs {
            self.check_range(lba, u64::from(count))?;
        }
        let count: u64 = runs.iter().map(|&(_, count)| u64::from(count)).sum();
        check(count <= u64::from(Op::READ_BLOCKS_MAX), "more than Op::READ_BLOCKS_MAX blocks in one read")?;
        let len = count * u64::from(self.layout.block_bytes);
        check(len <= Op::READ_BYTES_MAX as u64, "more than Op::READ_BYTES_MAX bytes in one read")?;
        self.start_read(Owner::Caller { token, bytes }, node, runs, wanted);
        Ok(())
    }

    /// What a request counts against the queue's limit, in bytes: what it holds in memory until it completes, or will.
    fn op_bytes(&self, op: &Op) -> usize {
        let block_bytes = self.layout.block_bytes as usize;
        match op {
            Op::Write { data, .. } | Op::ConditionalWrite { data, .. } => data.iter().map(|piece| piece.len()).sum(),
            Op::CompareAndWrite { compare, data, .. } => compare.len() + data.len(),
            Op::Hole { holes, .. } => holes.len() * 160,
            Op::ConditionalHole { .. } => 160,
            // What is more than a read may ask for is refused as such.
            Op::Read { count, .. } | Op::ReadMedium { count, .. } => {
                (*count as usize).saturating_mul(block_bytes).min(Op::READ_BYTES_MAX)
            }
            Op::ReadRuns { runs } => {
                let blocks = runs.iter().fold(0_usize, |sum, (_, count)| sum.saturating_add(*count as usize));
                blocks.saturating_mul(block_bytes).min(Op::READ_BYTES_MAX)
            }
            Op::ReadVersion { .. } => block_bytes,
            _ => 0,
        }
    }

    fn check_range(&self, lba: Lba, count: u64) -> Result<(), OpError> {
        check(count > 0, "no blocks")?;
        if self.info.geometry.contains(lba, count) { Ok(()) } else { Err(OpError::OutOfRange { lba, count }) }
    }

    pub(super) fn check_writable(&self) -> Result<(), OpError> {
        if self.refused.is_some() { Err(self.refusal()) } else { Ok(()) }
    }

    pub(super) fn enqueue(
        &mut self,
        token: Token,
        branch: u32,
        content: Content,
        gate: Gate,
        fua: bool,
        bytes: usize,
    ) -> Result<(), OpError> {
        self.enqueue_from(token, branch, content, gate, fua, bytes, None)
    }

    /// As [`Store::enqueue`], of a request that may have a name.
    #[expect(clippy::too_many_arguments, reason = "the parts of one request, put together here")]
    fn enqueue_from(
        &mut self,
        token: Token,
        branch: u32,
        content: Content,
        gate: Gate,
        fua: bool,
        bytes: usize,
        origin: Option<Origin>,
    ) -> Result<(), OpError> {
        self.check_writable()?;
        // Until it was looked what is there.
        let base = matches!(gate, Gate::Stamp { .. } | Gate::Absent).then_some(0);
        let mut op = WriteOp {
            token,
            branch,
            content,
            fua,
            gate,
            base,
            origin,
            checked: false,
            asked: 0,
            judging: None,
            replayed: None,
            named: false,
            bytes,
            done: 0,
            first: 0,
        };
        op.asked = op.counters();
        if let Some(Origin { operation, replay }) = origin {
            check(self.info.kind.is_sealed(), "an operation of a plain unit")?;
            let fits = operation.counter.checked_add(op.asked).is_some() && op.asked > 0;
            check(fits, "an operation without blocks, or with counters beyond their end")?;
            if replay.is_some() {
                // Its condition held when it was executed.
                op.gate = Gate::Open;
            }
        }
        self.queue.push_back(op);
        Ok(())
    }

    fn sealed_hole(&self, hole: HoleRecord) -> Result<(u64, u64, Option<SealRecord>), OpError> {
        self.check_range(hole.start, hole.count)?;
        check(hole.record.flags().is_hole(), "a hole whose record does not seal one")?;
        check(hole.record.as_bytes().len() <= self.info.kind.record_bytes(), "a hole record in another form")?;
        Ok((hole.start.0, hole.count, Some(hole.record)))
    }

    /// Blocks with the items that go into the record blocks.
    fn blocks(&self, lba: Lba, pieces: Vec<Buffer>, records: &[SealRecord]) -> Result<Content, OpError> {
        let block_bytes = self.layout.block_bytes as usize;
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        check(len.is_multiple_of(block_bytes), "data that is not whole blocks")?;
        check(len <= Op::WRITE_BYTES_MAX, "more than Op::WRITE_BYTES_MAX bytes in one write")?;
        let count = len / block_bytes;
        self.check_range(lba, count as u64)?;
        let mut items = Vec::with_capacity(count * self.layout.item_bytes as usize);
        if self.info.kind.is_sealed() {
            check(records.len() == count, "another number of records than blocks")?;
            for record in records {
                check(
                    record.as_bytes().len() == self.info.kind.record_bytes(),
                    "a record in another form than at rest",
                )?;
                check(!record.flags().is_hole(), "a block whose record seals a hole")?;
                items.extend_from_slice(record.as_bytes());
            }
        } else {
            check(records.is_empty(), "records for a plain unit")?;
            checksums_of(&pieces, block_bytes, |sum| items.extend_from_slice(&sum.to_be_bytes()));
        }
        Ok(Content::Blocks { addresses: Addresses::From(lba.0), pieces, items, count: count as u32 })
    }
}

fn check(holds: bool, otherwise: &'static str) -> Result<(), OpError> {
    if holds { Ok(()) } else { Err(OpError::Misuse(otherwise)) }
}

/// Tells the keyless checksum of each block of data that may be cut into pieces anywhere.
fn checksums_of(pieces: &[Buffer], block_bytes: usize, mut tell: impl FnMut(u64)) {
    // Of the block that is not whole yet.
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    let mut missing = block_bytes;
    for piece in pieces {
        let mut rest: &[u8] = piece;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(missing));
            rest = later;
            if now.len() == block_bytes {
                tell(strongroom_block::keyless_checksum(now));
                continue;
            }
            digest.update(now);
            missing -= now.len();
            if missing == 0 {
                tell(digest.finalize());
                digest = Digest::new(CrcAlgorithm::Crc64Nvme);
                missing = block_bytes;
            }
        }
    }
}
