//! What the volume, its clone and its snapshots hold, looked at in the store itself, and what of it rots on the disk.
//!
//! A snapshot holds what each block held at some time between the request for it and its answer: so it is checked as a read of
//! that time, whenever it is looked at, and holds the same ever after.

use std::collections::BTreeSet;

use strongroom_store::SnapshotId;

use super::history::{Action, FailedRead, History, Look, Moment, Operation, Rot, Value};
use super::layout::{HALVES, VIEWS};
use super::target::{ServedStore, Sighted};
use crate::{Random, SimDisk};

/// Names the simulation itself, which looks into the store.
const INSPECTOR: u64 = u64::MAX;
/// Snapshots at a time.
const SNAPSHOTS_MAX: usize = 4;

/// A snapshot that was answered.
struct Snapshot {
    id: SnapshotId,
    invoked: Moment,
    returned: Moment,
    /// What was found in it, by block.
    found: Option<Vec<Option<[Value; HALVES as usize]>>>,
}

/// A block that lies on the disk, durably.
struct Stored {
    block: u64,
    views: Vec<usize>,
    ciphertext: Vec<u8>,
    places: Vec<u64>,
}

/// What is known of it.
#[derive(Default)]
pub(super) struct Contents {
    snapshots: Vec<Snapshot>,
    stored: Vec<Stored>,
    rotten: BTreeSet<u64>,
    /// Snapshots whose contents were looked at.
    pub(super) snapshots_checked: u64,
}

impl Contents {
    /// What the blocks hold after a crash is the last word of the store, and is checked like what initiators read.
    pub(super) fn look_around(&mut self, store: &mut ServedStore, disk: &SimDisk, history: &mut History) {
        self.stored.clear();
        for view in 0..VIEWS.len() {
            let invoked = history.now();
            let found = store.look(view);
            let returned = history.now();
            if !found.is_empty() {
                self.note(view, (invoked, returned), &found, history);
            }
            self.remember(view, found, disk);
        }
        let there = store.snapshots();
        for at in 0..self.snapshots.len() {
            let id = self.snapshots[at].id;
            assert!(there.contains(&id), "snapshot {id:?} was answered, and is gone after a crash");
            self.check_snapshot(at, store, history);
        }
    }

    /// Takes what was found in a view into the history.
    fn note(
        &self,
        view: usize,
        (invoked, returned): (Moment, Moment),
        found: &[Option<Sighted>],
        history: &mut History,
    ) {
        let mut registers = Vec::new();
        for (block, sighted) in (0..).zip(found) {
            let Some(sighted) = sighted else {
                registers.extend(history.registers_of(block).map(|_| None));
                let register = history.registers_of(block).start;
                let failed = FailedRead { initiator: INSPECTOR, view, register, invoked, returned };
                history.failed_reads.push(failed);
                continue;
            };
            let values = history.split(block, sighted.values);
            for (register, value) in values.unwrap_or_else(|| panic!("block {block} of view {view} is torn")) {
                registers.push(Some(value));
                history.operations.push(Operation {
                    initiator: INSPECTOR,
                    view,
                    register,
                    action: Action::Read(value),
                    durable: false,
                    invoked,
                    returned: Some(returned),
                });
            }
        }
        history.looks.push(Look { view, at: returned, found: registers });
    }

    /// What lies on the disk now is durable: the store was just opened.
    fn remember(&mut self, view: usize, found: Vec<Option<Sighted>>, disk: &SimDisk) {
        for (block, sighted) in (0..).zip(found) {
            let Some(ciphertext) = sighted.and_then(|sighted| sighted.ciphertext) else { continue };
            let known = self.stored.iter_mut().find(|one| one.block == block && one.ciphertext == ciphertext);
            match known {
                Some(stored) => stored.views.push(view),
                None => {
                    let places = disk.places_of(&ciphertext);
                    self.stored.push(Stored { block, views: vec![view], ciphertext, places });
                }
            }
        }
    }

    /// What a clone that was made between two moments holds is what the volume held meanwhile, and what it begins with.
    pub(super) fn note_clone(&mut self, during: (Moment, Moment), store: &mut ServedStore, history: &mut History) {
        let found = store.look(1);
        self.note(0, during, &found, history);
        let values = |(block, sighted): (u64, &Option<Sighted>)| {
            let sighted = sighted.as_ref().expect("nothing has gone wrong yet");
            let values = history.split(block, sighted.values).expect("it was looked at");
            values.into_iter().map(|(_, value)| value).collect::<Vec<_>>()
        };
        let initial = (0..).zip(&found).flat_map(values).collect();
        history.initial = vec![Vec::new(), initial];
    }

    /// Takes in which snapshots were answered.
    pub(super) fn take_snapshots(&mut self, store: &mut ServedStore, history: &mut History) {
        for taken in store.take_snapshots() {
            let returned = history.now();
            self.snapshots.push(Snapshot { id: taken.id, invoked: taken.invoked, returned, found: None });
        }
    }

    /// Asks for a snapshot, looks at one, or has one deleted; whether there was something to do.
    pub(super) fn change_snapshots(
        &mut self,
        store: &mut ServedStore,
        history: &mut History,
        random: &mut Random,
    ) -> bool {
        if !store.is_open() {
            return false;
        }
        let there = store.snapshots();
        match there.len() {
            0 => store.ask_for_snapshot(history.now()),
            count if count >= SNAPSHOTS_MAX || random.once_in(3) => {
                let id = there[random.below(count as u64) as usize];
                if let Some(at) = self.snapshots.iter().position(|one| one.id == id) {
                    self.check_snapshot(at, store, history);
                    self.snapshots.remove(at);
                    store.delete_snapshot(id);
                }
            }
            count if random.once_in(2) => {
                let id = there[random.below(count as u64) as usize];
                if let Some(at) = self.snapshots.iter().position(|one| one.id == id) {
                    self.check_snapshot(at, store, history);
                }
            }
            _ => store.ask_for_snapshot(history.now()),
        }
        true
    }

    fn check_snapshot(&mut self, at: usize, store: &mut ServedStore, history: &mut History) {
        let Snapshot { id, invoked, returned, .. } = self.snapshots[at];
        let found = store.look_at_snapshot(id);
        for (block, sighted) in (0..).zip(&found) {
            assert!(sighted.is_some() || self.rotten.contains(&block), "snapshot {id:?}: block {block} cannot be read");
        }
        let values: Vec<_> = found.iter().map(|sighted| sighted.as_ref().map(|sighted| sighted.values)).collect();
        match &self.snapshots[at].found {
            Some(before) => {
                for (block, (before, now)) in before.iter().zip(&values).enumerate() {
                    let is_same = before.is_none() || now.is_none() || before == now;
                    assert!(is_same, "snapshot {id:?}: block {block} held {before:?} and holds {now:?}");
                }
            }
            None => {
                // What cannot be read is no reader's fault here: it was damaged after that time.
                let failed = history.failed_reads.len();
                self.note(0, (invoked, returned), &found, history);
                history.failed_reads.truncate(failed);
                self.snapshots_checked += 1;
            }
        }
        self.snapshots[at].found.get_or_insert(values);
    }

    /// One bit flips anywhere on the disk of a store that was closed in order: from now on any block may be unreadable.
    pub(super) fn rot_anywhere(&mut self, blocks: u64, disk: &SimDisk, history: &mut History, random: &mut Random) {
        disk.flip_anywhere(random.number());
        let at = history.now();
        self.rotten.extend(0..blocks);
        for view in 0..VIEWS.len() {
            let registers = 0..history.registers_of(blocks).start;
            history.rots.extend(registers.map(|register| Rot { view, register, at }));
        }
    }

    /// One bit of a block flips on the disk, wherever it lies; whether one did.
    pub(super) fn rot(&mut self, disk: &SimDisk, history: &mut History, random: &mut Random) -> bool {
        if self.stored.is_empty() {
            return false;
        }
        let stored = self.stored.swap_remove(random.below(self.stored.len() as u64) as usize);
        let bytes = stored.ciphertext.len() as u64;
        let (byte, bit) = (random.below(bytes), random.below(8) as u8);
        let at = history.now();
        let mut is_hit = false;
        for place in stored.places {
            let mut there = vec![0; stored.ciphertext.len()];
            disk.read(place, &mut there);
            // Else something else was written there meanwhile.
            if there == stored.ciphertext {
                disk.flip(place + byte, bit);
                is_hit = true;
            }
        }
        if is_hit {
            self.rotten.insert(stored.block);
            for view in stored.views {
                let registers = history.registers_of(stored.block);
                history.rots.extend(registers.map(|register| Rot { view, register, at }));
            }
        }
        is_hit
    }
}
