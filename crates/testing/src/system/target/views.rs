//! What is done at the target's side beside all sessions: a clone, snapshots, and a look at what the blocks hold.

use std::sync::Arc;

use strongroom_block::{AttachId, BlockSize, Buffer, CryptoCounters, HoleRecord, Lba, Stamp, VolumeId};
use strongroom_seal::{SealContext, VolumeSealer};
use strongroom_store::{BranchId, Extent, Op, OpError, Origin, Outcome, SnapshotId, View};
use strongroom_target::machine::{Memory, Unit};

use super::{BLOCK_BYTES, DOMAIN, Target, VIEWS, volume};
use crate::system::content::{self, HALVES};
use crate::system::history::{Moment, Value};
use crate::system::keys::KeyServer;

/// The snapshot that the clone is made from.
const FIRST: &str = "first";
/// Blocks of one request that fills what nobody looks at.
const FILLED_AT_ONCE: u64 = 256;

/// What a block holds, as the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::system) struct Sighted {
    /// Its halves.
    pub(in crate::system) values: [Value; HALVES as usize],
    /// Its data as it lies on the disk; `None`: it is a hole.
    pub(in crate::system) ciphertext: Option<Vec<u8>>,
}

/// A snapshot that was asked for and answered.
#[derive(Clone, Copy, Debug)]
pub(in crate::system) struct TakenSnapshot {
    pub(in crate::system) id: SnapshotId,
    pub(in crate::system) invoked: Moment,
}

impl Target {
    /// Serves the clone, if there is one.
    pub(super) fn serve_clone(&mut self) {
        let clone = self.units[0].branches().into_iter().find(|branch| branch.id != BranchId::VOLUME);
        if let Some(clone) = clone {
            let unit = self.units[0].of_view(volume(&self.settings, 1), View::Head(clone.id), &self.clone_memory);
            self.units.push(unit);
        }
    }

    /// Makes a clone of the volume as it is, and serves it.
    pub(in crate::system) fn make_clone(&mut self) {
        let Ok(Outcome::SnapshotCreated { id }) = self.ask(Op::SnapshotCreate { name: FIRST.to_owned() }) else {
            panic!("a snapshot was asked for");
        };
        self.ask(Op::CloneCreate { from: id, name: VIEWS[1].to_owned(), volume_id: VolumeId([2; 16]) })
            .expect("nothing goes wrong yet");
        self.serve_clone();
        assert_eq!(self.units.len(), 2, "the clone is there");
    }

    fn ask(&mut self, op: Op) -> Result<Outcome, OpError> {
        let token = self.own_token();
        self.units[0].submit_own(token, op);
        loop {
            self.units[0].poll(&mut self.finished);
            for (of, outcome) in self.units[0].poll_own() {
                if of == token {
                    return outcome;
                }
                self.own_answer(of, outcome);
            }
        }
    }

    fn own_token(&mut self) -> u64 {
        self.next_own += 1;
        self.next_own
    }

    /// Answers to what was asked beside all sessions, and nobody waits for.
    pub(super) fn take_own_answers(&mut self) {
        let answers: Vec<_> = self.units.iter_mut().flat_map(Unit::poll_own).collect();
        for (token, outcome) in answers {
            self.own_answer(token, outcome);
        }
    }

    fn own_answer(&mut self, token: u64, outcome: Result<Outcome, OpError>) {
        let asked = self.asked_snapshots.remove(&token);
        if let (Some(invoked), Ok(Outcome::SnapshotCreated { id })) = (asked, outcome) {
            self.taken_snapshots.push(TakenSnapshot { id, invoked });
        }
    }

    /// Blocks behind those that initiators use get something, each of them by itself.
    pub(in crate::system) fn fill(&mut self) {
        let sealer = sealer(&self.settings.key_server);
        let attach_id = AttachId([0xdd; 16]);
        self.ask(Op::RegisterAttachment { attach_id }).expect("nothing goes wrong yet");
        let end = self.settings.blocks + self.settings.more_blocks;
        let hole: HoleRecord =
            sealer.seal_hole(Lba(self.settings.blocks), self.settings.more_blocks, Stamp { attach_id, counter: 0 });
        self.ask(Op::Hole { holes: vec![hole], origin: None }).expect("nothing goes wrong yet");
        let mut sealed = vec![0; BLOCK_BYTES];
        let record = sealer.seal(Lba(self.settings.blocks), Stamp { attach_id, counter: 1 }, &mut sealed);
        for lba in (self.settings.blocks..end).step_by(FILLED_AT_ONCE as usize) {
            let count = FILLED_AT_ONCE.min(end - lba) as usize;
            let data = vec![Buffer::copy_from(&sealed.repeat(count))];
            let op = Op::Write { lba: Lba(lba), data, records: vec![record.clone(); count], fua: false, origin: None };
            self.ask(op).expect("nothing goes wrong yet");
        }
    }

    /// What an initiator of ours never does: writes block 0, and then blocks 0 and 1 under the name of that operation, as if they were a
    /// part of it. Whether each was answered with success; the second one must not be.
    pub(in crate::system) fn write_overlapping(&mut self, writes: [u64; 2]) -> [bool; 2] {
        let attach_id = AttachId([0xee; 16]);
        self.ask(Op::RegisterAttachment { attach_id }).expect("nothing goes wrong yet");
        let operation = Stamp { attach_id, counter: 0 };
        let sealer = sealer(&self.settings.key_server);
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

    /// Asks for a snapshot, while others write; `None`: the volume is closed. [`Target::take_snapshots`] tells when it is taken.
    pub(in crate::system) fn ask_for_snapshot(&mut self, invoked: Moment) {
        if self.is_open() {
            let token = self.own_token();
            self.asked_snapshots.insert(token, invoked);
            self.units[0].submit_own(token, Op::SnapshotCreate { name: token.to_string() });
        }
    }

    /// Asks for a snapshot to be deleted.
    pub(in crate::system) fn delete_snapshot(&mut self, id: SnapshotId) {
        let token = self.own_token();
        self.units[0].submit_own(token, Op::SnapshotDelete { id });
    }

    /// Snapshots that were answered since the last call.
    pub(in crate::system) fn take_snapshots(&mut self) -> Vec<TakenSnapshot> {
        std::mem::take(&mut self.taken_snapshots)
    }

    /// The snapshots that the store has, but for the clone's.
    pub(in crate::system) fn snapshots(&self) -> Vec<SnapshotId> {
        let all = self.units.first().map(Unit::snapshots).unwrap_or_default();
        all.iter().filter(|one| one.name != FIRST).map(|one| one.id).collect()
    }

    /// What the blocks of a view hold, as far as they can be read: asked of the store itself.
    pub(in crate::system) fn look(&mut self, view: usize) -> Vec<Option<Sighted>> {
        if view >= self.units.len() {
            return Vec::new();
        }
        let mut unit = self.units.remove(view);
        let found = self.look_through(&mut unit);
        self.units.insert(view, unit);
        found
    }

    /// The same of a snapshot.
    pub(in crate::system) fn look_at_snapshot(&mut self, id: SnapshotId) -> Vec<Option<Sighted>> {
        let mut unit = self.units[0].of_view(volume(&self.settings, 0), View::Snapshot(id), &Memory::default());
        self.look_through(&mut unit)
    }

    fn look_through(&mut self, unit: &mut Unit) -> Vec<Option<Sighted>> {
        let sealer = sealer(&self.settings.key_server);
        for block in 0..self.settings.blocks {
            unit.submit_own(block, Op::Read { lba: Lba(block), count: 1 });
        }
        let mut found = vec![None; self.settings.blocks as usize];
        let mut left = self.settings.blocks;
        while left > 0 {
            unit.poll(&mut self.finished);
            for (token, outcome) in unit.poll_own() {
                if token >= self.settings.blocks {
                    self.own_answer(token, outcome);
                    continue;
                }
                left -= 1;
                let extents = match outcome {
                    Ok(Outcome::Read(extents)) => extents,
                    Err(OpError::Medium { lba, .. }) if lba.0 == token => continue,
                    other => panic!("block {token} is not read: {other:?}"),
                };
                found[token as usize] = extents.into_iter().next().map(|extent| sight(token, extent, &sealer));
            }
        }
        found
    }
}

fn sight(block: u64, extent: Extent, sealer: &VolumeSealer) -> Sighted {
    match extent {
        Extent::Blocks { data, records, .. } => {
            let mut plain = data.to_vec();
            sealer.open(Lba(block), &records[0], &mut plain).expect("the store gives back what was sealed");
            let values = content::values_of(block, &plain).expect("what opens is what was written");
            Sighted { values, ciphertext: Some(data.to_vec()) }
        }
        Extent::Hole { .. } => Sighted { values: [Value::Zeros; HALVES as usize], ciphertext: None },
    }
}

/// Opens and seals as every initiator does.
fn sealer(key_server: &KeyServer) -> VolumeSealer {
    let block_size = BlockSize::new(BLOCK_BYTES as u64).expect("possible");
    let context = SealContext::new(DOMAIN, block_size, key_server.epoch());
    VolumeSealer::blind(&key_server.keys(), context, Arc::new(CryptoCounters::new())).expect("a key of each epoch")
}
