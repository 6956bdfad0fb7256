//! Proves that a store that is full because snapshots hold it never is stuck: after any discards that gain nothing, a snapshot can be
//! deleted, its space comes back, and writes go on.

use std::sync::Arc;

use strongroom_block::{BlockSize, Buffer, Custody, Geometry, HoleRecord, Lba, SealingDomain, VolumeId};
use strongroom_store::{CreateOptions, Op, OpError, OpenOptions, Outcome, SharedMemory, SnapshotId, Store, UnitKind};
use strongroom_testing::record_for;

/// A store in memory.
struct Full {
    medium: SharedMemory,
    store: Store,
    ops: u64,
}

impl Full {
    fn new(kind: UnitKind, blocks: u64, segments: u32) -> Full {
        let geometry = Geometry { block_size: BlockSize::new(512).unwrap(), blocks };
        let options = CreateOptions::new(VolumeId([1; 16]), geometry, kind);
        let options = CreateOptions { segment_bytes: 64 << 10, segments: Some(segments), ..options };
        let medium = SharedMemory::default();
        Store::create_on(Box::new(medium.clone()), &options).unwrap();
        let store = open(&medium);
        Full { medium, store, ops: 0 }
    }

    fn write(&mut self, lba: u64, count: u64) -> Result<Outcome, OpError> {
        self.ops += 1;
        let block = [lba as u8; 512];
        let sealed = self.store.info().kind.is_sealed();
        let records = (0..count).filter(|_| sealed).map(|at| record_for(self.ops, at, Some(&block))).collect();
        let data = vec![Buffer::copy_from(&block.repeat(count as usize))];
        self.store.execute(Op::Write { lba: Lba(lba), data, records, fua: false, origin: None })
    }

    fn discard(&mut self, lba: u64) -> Result<Outcome, OpError> {
        self.ops += 1;
        self.store.execute(match self.store.info().kind.is_sealed() {
            true => Op::Hole {
                holes: vec![HoleRecord { start: Lba(lba), count: 1, record: record_for(self.ops, 0, None) }],
                origin: None,
            },
            false => Op::Discard { lba: Lba(lba), count: 1 },
        })
    }

    fn snapshot(&mut self, name: &str) -> SnapshotId {
        match self.store.execute(Op::SnapshotCreate { name: name.to_owned() }).unwrap() {
            Outcome::SnapshotCreated { id } => id,
            other => panic!("{other:?}"),
        }
    }

    /// The power goes; everything written is there.
    fn crash(&mut self) {
        self.store.execute(Op::Flush).unwrap();
        self.store = open(&self.medium);
    }
}

fn open(medium: &SharedMemory) -> Store {
    Store::open_on(Box::new(medium.clone()), &OpenOptions::default(), Arc::new(|| {})).unwrap()
}

/// Discards of blocks that a snapshot has free nothing, and each leaves a hole that counts: every other block, because holes that touch
/// become one.
#[test]
fn what_is_discarded_in_vain_leaves_room_for_deleting_a_snapshot() {
    const BLOCKS: u64 = 12_000;
    const AT_ONCE: u64 = 50;
    let sealed = UnitKind::Sealed { domain: SealingDomain([9; 16]), custody: Custody::KeyFile };
    for (kind, segments) in [(UnitKind::Plain, 140), (sealed, 160)] {
        for crash in [false, true] {
            let mut full = Full::new(kind, BLOCKS, segments);
            for lba in (0..BLOCKS).step_by(AT_ONCE as usize) {
                full.write(lba, AT_ONCE).unwrap();
            }
            let older = full.snapshot("older");
            for lba in (0..BLOCKS / 10).step_by(AT_ONCE as usize) {
                full.write(lba, AT_ONCE).unwrap();
            }
            let newer = full.snapshot("newer");
            let mut end = BLOCKS;
            while full.write(end - AT_ONCE, AT_ONCE) != Err(OpError::NoSpace) {
                end -= AT_ONCE;
                assert!(end > BLOCKS / 2, "it is never full");
            }
            let mut from = BLOCKS / 10;
            for _ in 0..if crash { 3 } else { 1 } {
                if crash {
                    // A fresh head has a little room that the one before had not.
                    full.crash();
                }
                let refused = (from..end).step_by(2).find(|&lba| full.discard(lba) == Err(OpError::NoSpace));
                from = refused.expect("what discards leave behind uses space up");
            }
            let mut taken = 0;
            for (id, overwritten) in [(older, BLOCKS / 10), (newer, BLOCKS - end)] {
                let deleted = full.store.execute(Op::SnapshotDelete { id });
                assert_eq!(deleted, Ok(Outcome::Changed), "{kind:?}: {:?}", full.store.stats());
                if kind.is_sealed() && id == older {
                    // The newer one pins the version before, too.
                    continue;
                }
                // Most of what it alone had is room for data.
                let until = taken + overwritten * 3 / 4;
                while taken < until {
                    let written = full.write(BLOCKS / 10 + taken, AT_ONCE);
                    assert!(written.is_ok(), "{kind:?}, {taken}: {written:?} {:?}", full.store.stats());
                    taken += AT_ONCE;
                }
            }
        }
    }
}
