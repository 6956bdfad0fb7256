//! What the simulation asks of the store, at random.

use strongroom_block::{Lba, StoreSequence, Token};
use strongroom_store::{BranchId, Op, Outcome, Store, View};

use super::asked::Asked;
use super::run::Run;

/// Upper bound on the blocks of a volume that grows.
const BLOCKS_MAX: u64 = 600;

impl Run {
    /// Writes every block, some of them more than once: a full volume is where space is hard to get.
    pub(super) fn fill(&mut self, store: &mut Store) {
        let blocks = self.expected.volume.blocks;
        for lba in (0..blocks).chain((0..blocks).step_by(3)) {
            let op = self.pending.next_op();
            let write = self.expected.write(op, 0, (lba, 1), false, &mut self.random);
            match store.execute(write) {
                Ok(Outcome::Written { first, .. }) => self.expected.model.written(op, first.0, false),
                other => panic!("{other:?}"),
            }
        }
    }

    pub(super) fn submit_something(&mut self, store: &mut Store) {
        if self.expected.views.wanted && self.random.once_in(40) {
            return self.submit_snapshot(store);
        }
        let growth = &self.expected.growth;
        if growth.wanted
            && growth.asked.is_none()
            && self.expected.volume.blocks < BLOCKS_MAX
            && self.random.once_in(150)
        {
            return self.submit_grow(store);
        }
        let op = self.pending.next_op();
        let branch = self.expected.some_head(&mut self.random);
        let kind = self.random.below(20);
        let conditional =
            matches!(kind, 8 | 9).then(|| self.expected.conditional(op, branch, &mut self.random)).flatten();
        let (asked, branch, request) = match (conditional, self.expected.growth.unformatted.is_some()) {
            (Some((asked, request)), _) => (asked, branch, request),
            (None, true) => {
                let range = self.expected.growth.unformatted.take().expect("just seen");
                (Asked::Hole, 0, self.expected.holes(op, 0, &[range]))
            }
            (None, false) => self.some_request(op, branch, kind),
        };
        self.pending.insert(op, asked);
        store.submit_to(Token(op), View::Head(BranchId(branch)), request);
    }

    fn some_request(&mut self, op: u64, branch: u32, kind: u64) -> (Asked, u32, Op) {
        let (expected, random) = (&mut self.expected, &mut self.random);
        match kind {
            0..=9 => {
                let most = if random.once_in(8) { 64 } else { 6 };
                let range = expected.volume.range(most, random);
                let fua = random.once_in(10);
                (Asked::Write { fua }, branch, expected.write(op, branch, range, fua, random))
            }
            10 | 11 => {
                let ranges = expected.volume.ranges_to_discard(random);
                (Asked::Hole, branch, expected.holes(op, branch, &ranges))
            }
            12..=14 => {
                let (lba, count) = expected.volume.range(50, random);
                let floor = expected.model.floor(branch, lba, count);
                (Asked::Read { branch, lba, floor }, branch, Op::Read { lba: Lba(lba), count: count as u32 })
            }
            15 => {
                let lba = random.below(expected.volume.blocks);
                let older_than = expected.model.floor(0, lba, 1)[0] + random.below(2);
                let request = Op::ReadVersion { lba: Lba(lba), older_than: StoreSequence(older_than) };
                let must = expected.model.must_have(lba, older_than);
                (Asked::Version { lba, older_than, must }, 0, request)
            }
            16 => {
                let lba = random.below(expected.volume.blocks);
                let newest = expected.model.floor(branch, lba, 1)[0];
                if branch == 0 {
                    expected.model.verified(lba, newest);
                }
                (Asked::Verified, branch, Op::Verified { pairs: vec![(Lba(lba), StoreSequence(newest))] })
            }
            _ => (Asked::Flush { mark: expected.model.flush_mark() }, 0, Op::Flush),
        }
    }

    fn submit_grow(&mut self, store: &mut Store) {
        let op = self.pending.ask(Asked::Grow);
        let blocks = self.expected.volume.blocks + 1 + self.random.below(100);
        self.expected.growth.asked = Some(blocks);
        store.submit(Token(op), Op::Grow { blocks });
    }
}
