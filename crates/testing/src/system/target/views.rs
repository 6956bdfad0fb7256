//! What is done at the target's side beside all sessions: a clone, snapshots, and a look at what the blocks hold.

use std::sync::Arc;

use strongroom_block::{AttachId, BlockSize, Buffer, CryptoCounters, Lba, Stamp, VolumeId};
use strongroom_seal::{KeyPurpose, SealContext, VolumeKeyFile, VolumeSealer};
use strongroom_store::{BranchId, Extent, Op, OpError, Origin, Outcome, SnapshotId, View};

use super::{BLOCK_BYTES, DOMAIN, KEY, Target, VIEWS, volume};
use crate::system::content;
use crate::system::history::Value;

impl Target {
    /// Serves the clone, if there is one.
    pub(super) fn serve_clone(&mut self) {
        let clone = self.units[0].branches().into_iter().find(|branch| branch.id != BranchId::VOLUME);
        if let Some(clone) = clone {
            let unit = self.units[0].of_view(volume(self.settings, 1), View::Head(clone.id));
            self.units.push(unit);
        }
    }

    /// Makes a clone of the volume as it is, and serves it.
    pub(in crate::system) fn make_clone(&mut self) {
        let Ok(Outcome::SnapshotCreated { id }) = self.ask(Op::SnapshotCreate { name: "first".to_owned() }) else {
            panic!("a snapshot was asked for");
        };
        self.ask(Op::CloneCreate { from: id, name: VIEWS[1].to_owned(), volume_id: VolumeId([2; 16]) })
            .expect("nothing goes wrong yet");
        self.serve_clone();
        assert_eq!(self.units.len(), 2, "the clone is there");
    }

    fn ask(&mut self, op: Op) -> Result<Outcome, OpError> {
        self.units[0].submit_own(0, op);
        loop {
            self.units[0].poll(&mut self.finished);
            if let Some((_, outcome)) = self.units[0].poll_own().pop() {
                return outcome;
            }
        }
    }

    /// What an initiator of ours never does: writes block 0, and then blocks 0 and 1 under the name of that operation, as if they were a
    /// part of it. Whether each was answered with success; the second one must not be.
    pub(in crate::system) fn write_overlapping(&mut self, writes: [u64; 2]) -> [bool; 2] {
        let attach_id = AttachId([0xee; 16]);
        self.ask(Op::RegisterAttachment { attach_id }).expect("nothing goes wrong yet");
        let operation = Stamp { attach_id, counter: 0 };
        let sealer = sealer();
        let mut counter = 0;
        let mut write = |number: u64, blocks: u64| {
            let (mut data, mut records) = (Vec::new(), Vec::new());
            for block in 0..blocks {
                let mut sealed = content::of_block(number, block);
                records.push(sealer.seal(Lba(block), Stamp { attach_id, counter }, &mut sealed));
                counter += 1;
                data.push(Buffer::copy_from(&sealed));
            }
            let origin = Some(Origin { operation, replay: None });
            self.ask(Op::Write { lba: Lba(0), data, records, fua: false, origin }).is_ok()
        };
        [write(writes[0], 1), write(writes[1], 2)]
    }

    /// Takes a snapshot, or deletes one, while others write.
    pub(in crate::system) fn change_snapshots(&mut self) {
        let Some(unit) = self.units.first_mut() else { return };
        let number = self.random.number();
        // The first one is the clone's.
        let ids: Vec<SnapshotId> =
            unit.snapshots().iter().filter(|one| one.name != "first").map(|one| one.id).collect();
        let op = match ids.len() as u64 {
            0 => Op::SnapshotCreate { name: number.to_string() },
            count if count > 3 || self.random.once_in(2) => {
                Op::SnapshotDelete { id: ids[self.random.below(count) as usize] }
            }
            _ => Op::SnapshotCreate { name: number.to_string() },
        };
        unit.submit_own(number >> 20, op);
    }

    /// What the blocks hold, as far as they can be read: asked of the store itself.
    pub(in crate::system) fn look(&mut self, view: usize) -> Vec<Option<Value>> {
        let sealer = sealer();
        let Some(unit) = self.units.get_mut(view) else { return Vec::new() };
        for block in 0..self.settings.blocks {
            unit.submit_own(block, Op::Read { lba: Lba(block), count: 1 });
        }
        let mut found = vec![None; self.settings.blocks as usize];
        let mut left = self.settings.blocks;
        while left > 0 {
            unit.poll(&mut self.finished);
            for (block, outcome) in unit.poll_own() {
                left -= 1;
                let Ok(Outcome::Read(extents)) = outcome else { continue };
                found[block as usize] = extents.into_iter().next().map(|extent| match extent {
                    Extent::Blocks { data, records, .. } => {
                        let mut plain = data.to_vec();
                        sealer.open(Lba(block), &records[0], &mut plain).expect("the store gives back what was sealed");
                        content::value_of(block, &plain).expect("what opens is what was written")
                    }
                    Extent::Hole { .. } => Value::Zeros,
                });
            }
        }
        found
    }
}

/// Opens and seals as every initiator does.
fn sealer() -> VolumeSealer {
    let block_size = BlockSize::new(BLOCK_BYTES as u64).expect("possible");
    let context = SealContext::new(DOMAIN, block_size, 1);
    let keys = VolumeKeyFile::new(KeyPurpose::Volume, &KEY);
    VolumeSealer::blind(&keys, context, Arc::new(CryptoCounters::new())).expect("a key of epoch 1")
}
