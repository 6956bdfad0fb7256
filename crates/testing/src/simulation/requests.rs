//! What the simulation asks of the store, at random.

use strongroom_block::{Buffer, Custody, HoleRecord, Lba, SealRecord, StoreSequence, Token};
use strongroom_store::{BranchId, Op, Outcome, Store, UnitKind, View};

use super::asked::Asked;
use super::run::Run;
use crate::record_for;

/// Upper bound on the blocks of a volume that grows.
const BLOCKS_MAX: u64 = 600;

impl Run {
    /// A write of a range by operation `op`, noted in the model.
    pub(super) fn write(&mut self, op: u64, branch: u32, lba: u64, count: u64, fua: bool) -> Op {
        let bytes = self.model.bytes(op, lba, count);
        let block = self.volume.block_size.len();
        let records = match self.volume.kind.is_sealed() {
            true => bytes.chunks(block).enumerate().map(|(i, b)| self.record(op, i as u64, Some(b))).collect(),
            false => Vec::new(),
        };
        let cut = self.random.below(bytes.len() as u64) as usize;
        let data = vec![Buffer::copy_from(&bytes[..cut]), Buffer::copy_from(&bytes[cut..])];
        self.model.submitted(op, branch, &[(lba, count)]);
        Op::Write { lba: Lba(lba), data, records, fua, origin: None }
    }

    /// Ranges become holes, noted in the model. A plain unit takes one at a time.
    fn holes(&mut self, op: u64, branch: u32, ranges: &[(u64, u64)]) -> Op {
        if !self.volume.kind.is_sealed() {
            let (lba, count) = ranges[0];
            self.model.submitted(op, branch, &ranges[..1]);
            return Op::Discard { lba: Lba(lba), count };
        }
        self.model.submitted(op, branch, ranges);
        let record = |(at, &(start, count)): (usize, &(u64, u64))| HoleRecord {
            start: Lba(start),
            count,
            record: self.record(op, at as u64, None),
        };
        Op::Hole { holes: ranges.iter().enumerate().map(record).collect(), origin: None }
    }

    pub(super) fn record(&self, op: u64, index: u64, bytes: Option<&[u8]>) -> SealRecord {
        let record = record_for(op, index, bytes);
        match self.volume.kind {
            UnitKind::Sealed { custody: Custody::Target, .. } => record.with_block_key(&[op as u8; 40]),
            _ => record,
        }
    }

    pub(super) fn range(&mut self, most: u64) -> (u64, u64) {
        let lba = self.random.below(self.volume.blocks);
        let count = 1 + self.random.below(most.min(self.volume.blocks - lba));
        (lba, count)
    }

    /// What to discard: mostly a little, at times a lot, at times all of it.
    fn ranges_to_discard(&mut self) -> Vec<(u64, u64)> {
        match self.random.below(8) {
            0 => vec![(0, self.volume.blocks)],
            1 => vec![self.range(self.volume.blocks)],
            2 => (0..1 + self.random.below(6)).map(|_| self.range(10)).collect(),
            _ => vec![self.range(40)],
        }
    }

    pub(super) fn next_op(&mut self) -> u64 {
        self.next_op += 1;
        self.next_op - 1
    }

    /// Writes every block, some of them more than once: a full volume is where space is hard to get.
    pub(super) fn fill(&mut self, store: &mut Store) {
        for lba in (0..self.volume.blocks).chain((0..self.volume.blocks).step_by(3)) {
            let op = self.next_op();
            let write = self.write(op, 0, lba, 1, false);
            match store.execute(write) {
                Ok(Outcome::Written { first, .. }) => self.model.written(op, first.0, false),
                other => panic!("{other:?}"),
            }
        }
    }

    pub(super) fn submit_something(&mut self, store: &mut Store) {
        if self.views.wanted && self.random.once_in(40) {
            return self.submit_snapshot(store);
        }
        if self.growth.wanted
            && self.growth.asked.is_none()
            && self.volume.blocks < BLOCKS_MAX
            && self.random.once_in(150)
        {
            return self.submit_grow(store);
        }
        let op = self.next_op();
        let branch = self.some_head();
        let kind = self.random.below(20);
        let conditional = matches!(kind, 8 | 9).then(|| self.conditional(op, branch)).flatten();
        let (asked, branch, request) = match kind {
            _ if conditional.is_some() => {
                let (asked, request) = conditional.expect("just seen");
                (asked, branch, request)
            }
            _ if self.growth.unformatted.is_some() => {
                let (lba, count) = self.growth.unformatted.take().expect("just seen");
                (Asked::Hole, 0, self.holes(op, 0, &[(lba, count)]))
            }
            0..=9 => {
                let most = if self.random.once_in(8) { 64 } else { 6 };
                let (lba, count) = self.range(most);
                let fua = self.random.once_in(10);
                (Asked::Write { fua }, branch, self.write(op, branch, lba, count, fua))
            }
            10 | 11 => {
                let ranges = self.ranges_to_discard();
                (Asked::Hole, branch, self.holes(op, branch, &ranges))
            }
            12..=14 => {
                let (lba, count) = self.range(50);
                let floor = self.model.floor(branch, lba, count);
                (Asked::Read { branch, lba, floor }, branch, Op::Read { lba: Lba(lba), count: count as u32 })
            }
            15 => {
                let lba = self.random.below(self.volume.blocks);
                let older_than = self.model.floor(0, lba, 1)[0] + self.random.below(2);
                let request = Op::ReadVersion { lba: Lba(lba), older_than: StoreSequence(older_than) };
                let must = self.model.must_have(lba, older_than);
                (Asked::Version { lba, older_than, must }, 0, request)
            }
            16 => {
                let lba = self.random.below(self.volume.blocks);
                let newest = self.model.floor(branch, lba, 1)[0];
                if branch == 0 {
                    self.model.verified(lba, newest);
                }
                (Asked::Verified, branch, Op::Verified { pairs: vec![(Lba(lba), StoreSequence(newest))] })
            }
            _ => (Asked::Flush { mark: self.model.flush_mark() }, 0, Op::Flush),
        };
        self.asked.insert(op, asked);
        store.submit_to(Token(op), View::Head(BranchId(branch)), request);
    }

    fn submit_grow(&mut self, store: &mut Store) {
        let op = self.next_op();
        let blocks = self.volume.blocks + 1 + self.random.below(100);
        self.growth.asked = Some(blocks);
        self.asked.insert(op, Asked::Grow);
        store.submit(Token(op), Op::Grow { blocks });
    }

    /// The volume has grown. A sealed one is formatted there by the next request.
    pub(super) fn grown(&mut self, blocks: u64) {
        self.seen.grown += 1;
        if self.volume.kind.is_sealed() {
            self.growth.unformatted = Some((self.volume.blocks, blocks - self.volume.blocks));
        }
        self.model.grow(blocks, self.never_written());
        self.volume.blocks = blocks;
    }
}
