//! What the simulation asks of the store, at random.

use strongroom_block::{Buffer, Custody, HoleRecord, Lba, SealRecord, StoreSequence, Token};
use strongroom_store::{Op, Outcome, Store, UnitKind};

use super::run::Run;
use crate::record_for;

/// What was asked and not answered.
pub(super) enum Asked {
    Write { fua: bool },
    Hole,
    Read { lba: u64, floor: Vec<u64> },
    Version { lba: u64, older_than: u64, must: Option<u64> },
    Flush { mark: u64 },
    SnapshotCreate { floor: Vec<u64> },
    SnapshotDelete { id: u64 },
    Other,
}

impl Run {
    /// A write of a range by operation `op`, noted in the model.
    pub(super) fn write(&mut self, op: u64, lba: u64, count: u64, fua: bool) -> Op {
        let bytes = self.model.bytes(op, lba, count);
        let block = self.block_size.len();
        let records = match self.kind.is_sealed() {
            true => bytes.chunks(block).enumerate().map(|(i, b)| self.record(op, i as u64, Some(b))).collect(),
            false => Vec::new(),
        };
        let cut = self.random.below(bytes.len() as u64) as usize;
        let data = vec![Buffer::copy_from(&bytes[..cut]), Buffer::copy_from(&bytes[cut..])];
        self.model.submitted(op, lba, count);
        Op::Write { lba: Lba(lba), data, records, fua }
    }

    /// A range becomes a hole, noted in the model.
    fn hole(&mut self, op: u64, lba: u64, count: u64) -> Op {
        self.model.submitted(op, lba, count);
        match self.kind.is_sealed() {
            true => Op::Hole { holes: vec![HoleRecord { start: Lba(lba), count, record: self.record(op, 0, None) }] },
            false => Op::Discard { lba: Lba(lba), count },
        }
    }

    pub(super) fn record(&self, op: u64, index: u64, bytes: Option<&[u8]>) -> SealRecord {
        let record = record_for(op, index, bytes);
        match self.kind {
            UnitKind::Sealed { custody: Custody::Target, .. } => record.with_block_key(&[op as u8; 40]),
            _ => record,
        }
    }

    fn range(&mut self, most: u64) -> (u64, u64) {
        let lba = self.random.below(self.blocks);
        let count = 1 + self.random.below(most.min(self.blocks - lba));
        (lba, count)
    }

    pub(super) fn next_op(&mut self) -> u64 {
        self.next_op += 1;
        self.next_op - 1
    }

    /// Writes every block, some of them more than once: a full volume is where space is hard to get.
    pub(super) fn fill(&mut self, store: &mut Store) {
        for lba in (0..self.blocks).chain((0..self.blocks).step_by(3)) {
            let op = self.next_op();
            let write = self.write(op, lba, 1, false);
            match store.execute(write) {
                Ok(Outcome::Written { first, .. }) => self.model.written(op, first.0, false),
                other => panic!("{other:?}"),
            }
        }
    }

    pub(super) fn submit_something(&mut self, store: &mut Store) {
        if self.snapshots.wanted && self.random.once_in(40) {
            return self.submit_snapshot(store);
        }
        let op = self.next_op();
        let (asked, request) = match self.random.below(20) {
            0..=9 => {
                let most = if self.random.once_in(8) { 64 } else { 6 };
                let (lba, count) = self.range(most);
                let fua = self.random.once_in(10);
                (Asked::Write { fua }, self.write(op, lba, count, fua))
            }
            10 | 11 => {
                let (lba, count) = self.range(40);
                (Asked::Hole, self.hole(op, lba, count))
            }
            12..=14 => {
                let (lba, count) = self.range(50);
                let floor = self.model.floor(lba, count);
                (Asked::Read { lba, floor }, Op::Read { lba: Lba(lba), count: count as u32 })
            }
            15 => {
                let lba = self.random.below(self.blocks);
                let older_than = self.model.floor(lba, 1)[0] + self.random.below(2);
                let request = Op::ReadVersion { lba: Lba(lba), older_than: StoreSequence(older_than) };
                let must = self.model.must_have(lba, older_than);
                (Asked::Version { lba, older_than, must }, request)
            }
            16 => {
                let lba = self.random.below(self.blocks);
                let newest = self.model.floor(lba, 1)[0];
                self.model.verified(lba, newest);
                (Asked::Other, Op::Verified { pairs: vec![(Lba(lba), StoreSequence(newest))] })
            }
            _ => (Asked::Flush { mark: self.model.flush_mark() }, Op::Flush),
        };
        self.asked.insert(op, asked);
        store.submit(Token(op), request);
    }
}
