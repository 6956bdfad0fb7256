//! Another store, to which snapshots are sent while the first one is written to: in full and as differences, through streams
//! that stop, go on, lose frames, and a disk of its own that is cut off. What arrives is what was sent, whole or not at all.

use std::sync::Arc;

use strongroom_block::{Custody, Lba, Mode, Suite};
use strongroom_store::{
    Op, OpError, OpenOptions, Outcome, Receiver, Sender, SnapshotId, Store, StreamError, StreamSealing, UnitKind, View,
};

use super::replica_store::{Replica, Transfer};
use super::run::Run;
use crate::model::held;
use crate::{Content, SimDisk};

/// Upper bound on the pieces of a stream that travel in one step.
const PIECES_MAX: u64 = 6;
/// How many pieces [`Run::replicate_all`] waits for at most.
const PIECES_ALL: u64 = 10_000;

impl Run {
    /// Another store, with nothing in it.
    pub(super) fn new_replica(&mut self) -> Replica {
        let disk = SimDisk::new(self.random.number());
        let options = self.create_options(2);
        Replica::new(disk, &options)
    }

    /// Some pieces of a stream travel.
    pub(super) fn replicate(&mut self, store: &mut Store) {
        let mut replica = self.replica.take().expect("there is one");
        if self.random.once_in(6) {
            replica.disk.cut_off_after(self.random.below(80));
        }
        if self.is_open(&mut replica) {
            for _ in 0..1 + self.random.below(PIECES_MAX) {
                if !self.send_a_piece(store, &mut replica, true) {
                    break;
                }
            }
            if replica.disk.is_cut_off() || self.random.once_in(12) {
                self.seen.replica_crashes += 1;
                replica.crash();
            }
        }
        self.replica = Some(replica);
    }

    /// Nothing goes wrong any more: a snapshot arrives.
    pub(super) fn replicate_all(&mut self, store: &mut Store) {
        let mut replica = self.replica.take().expect("there is one");
        replica.crash();
        let arrived = replica.has.len();
        for _ in 0..PIECES_ALL {
            if !self.is_open(&mut replica) {
                continue;
            }
            if !self.send_a_piece(store, &mut replica, false) || replica.has.len() > arrived {
                break;
            }
        }
        replica.crash();
        while !self.is_open(&mut replica) {}
        self.replica = Some(replica);
    }

    /// Opens the other store, if it is not open, and compares all of it.
    fn is_open(&mut self, replica: &mut Replica) -> bool {
        if replica.store.is_some() {
            return true;
        }
        let few_requests = self.few_requests;
        let options = OpenOptions { queue_ops_max: 4096, ..self.open_options() };
        self.few_requests = few_requests;
        let orderly = self.random.once_in(2);
        let opened = Store::open_on(Box::new(replica.disk.backend(orderly)), &options, Arc::new(|| {}));
        match opened {
            Ok(store) if !replica.disk.is_cut_off() => replica.store = Some(store),
            Ok(_) => return self.is_cut_off(replica),
            Err(error) => {
                assert!(replica.disk.is_cut_off(), "the other store does not open: {error}");
                return self.is_cut_off(replica);
            }
        }
        let blocks = replica.store.as_ref().map_or(0, |store| store.info().geometry.blocks);
        assert!(blocks >= replica.blocks, "what the other store grew by is gone");
        replica.blocks = blocks;
        if self.compare_replica(replica) { true } else { self.is_cut_off(replica) }
    }

    fn is_cut_off(&mut self, replica: &mut Replica) -> bool {
        assert!(replica.disk.is_cut_off(), "nothing else may go wrong there");
        self.seen.replica_crashes += 1;
        replica.crash();
        false
    }

    /// Everything that arrived is there, as it was sent; false if the disk was cut off.
    fn compare_replica(&mut self, replica: &mut Replica) -> bool {
        let there: Vec<u64> =
            replica.store.as_ref().expect("open").index().snapshots().into_iter().map(|info| info.id.0).collect();
        if replica.coming.as_ref().is_some_and(|(id, _)| there.contains(id)) {
            self.arrived(replica, None);
        }
        for id in &there {
            assert!(replica.has.contains_key(id), "the snapshot {id} was never sent to its end");
        }
        let views: Vec<(View, Option<u64>)> = replica
            .has
            .keys()
            .map(|&id| (View::Snapshot(SnapshotId(id)), Some(id)))
            .chain([(View::default(), replica.newest)])
            .collect();
        for (view, id) in views {
            let Some(found) = self.read_replica(replica, view) else { return false };
            let sent = id.map(|id| &replica.has[&id]);
            for (lba, found) in found.into_iter().enumerate() {
                let expected = sent.and_then(|sent| sent.get(lba)).copied().unwrap_or(self.never_written());
                assert_eq!(found, expected, "block {lba} of {view:?} at the other store");
            }
        }
        true
    }

    fn read_replica(&mut self, replica: &mut Replica, view: View) -> Option<Vec<Content>> {
        let store = replica.store.as_mut().expect("open");
        let mut all = Vec::new();
        while (all.len() as u64) < replica.blocks {
            let lba = all.len() as u64;
            let left = replica.blocks - lba;
            let read = |store: &mut Store, count| store.execute_on(view, Op::Read { lba: Lba(lba), count });
            let mut answer = read(store, left as u32);
            if let Err(OpError::NotFormatted { lba: Lba(at) }) = answer
                && at > lba
            {
                answer = read(store, (at - lba) as u32);
            }
            match answer {
                Ok(Outcome::Read(extents)) => {
                    all.extend(held(&extents, self.volume.block_size).into_iter().map(|held| held.content));
                }
                Err(OpError::NotFormatted { .. }) => all.push(Content::Nothing),
                Err(OpError::Medium { .. }) if replica.disk.is_cut_off() => return None,
                other => panic!("{view:?} of the other store cannot be read: {other:?}"),
            }
        }
        Some(all)
    }

    /// The snapshot that was coming is whole at the other store.
    fn arrived(&mut self, replica: &mut Replica, from: Option<u64>) {
        let (id, contents) = replica.coming.take().expect("it was coming");
        replica.has.insert(id, contents);
        (replica.newest, replica.transfer) = (Some(id), None);
        match from {
            Some(_) => self.seen.sent_as_difference += 1,
            None => self.seen.sent_in_full += 1,
        }
    }

    /// One piece of a stream travels, or a stream begins; false if nothing can, for now. `faults`: it may be damaged.
    fn send_a_piece(&mut self, store: &mut Store, replica: &mut Replica, faults: bool) -> bool {
        if replica.transfer.is_none() && !self.begin_transfer(store, replica) {
            return false;
        }
        let transfer = replica.transfer.as_mut().expect("just begun");
        let mut bytes = match transfer.sender.send(store) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                assert!(transfer.tampered && !transfer.receiver.is_done(), "it was sent to its end");
                replica.transfer = None;
                return true;
            }
            Err(StreamError::Store(OpError::Medium { .. })) if self.reads_may_fail() || self.disk.is_cut_off() => {
                return false;
            }
            Err(StreamError::Store(OpError::Busy)) if self.few_requests => return false,
            Err(StreamError::Unrelated | StreamError::Store(OpError::NoSuchView)) => {
                // Rolled back past it, or deleted: it begins again elsewhere, with all of another one.
                *replica = self.new_replica();
                return false;
            }
            Err(error) => panic!("the snapshot cannot be sent: {error}"),
        };
        if faults && !bytes.is_empty() && self.random.once_in(40) {
            bytes = transfer.tamper(bytes, &mut self.random);
        }
        self.receive_a_piece(replica, &bytes)
    }

    /// The other store takes a piece of the stream in; false if it cannot, for now.
    fn receive_a_piece(&mut self, replica: &mut Replica, bytes: &[u8]) -> bool {
        let transfer = replica.transfer.as_mut().expect("it is on its way");
        let there = replica.store.as_mut().expect("open");
        let cut = self.random.below(bytes.len() as u64 + 1) as usize;
        let mut received = transfer.receiver.receive(there, &bytes[..cut]);
        if received.is_ok() {
            received = transfer.receiver.receive(there, &bytes[cut..]);
        }
        // If its end is on the medium, even in part, a crash may find it whole.
        let (to, from, resumed, tampered) = (transfer.to, transfer.from, transfer.resumed, transfer.tampered);
        match received {
            Ok(()) if transfer.receiver.is_done() => {
                assert!(!tampered, "a damaged stream became a snapshot");
                self.seen.sent_resumed += u64::from(resumed);
                self.arrived(replica, from);
            }
            Ok(()) => {}
            Err(_) if replica.disk.is_cut_off() => {
                replica.coming = replica.coming.take().filter(|_| !tampered);
                return false;
            }
            // Its end came, and then once more: all of it was there before.
            Err(StreamError::Damaged(_)) if tampered && transfer.receiver.is_done() => self.arrived(replica, from),
            Err(StreamError::Damaged(_) | StreamError::NoBeginning) if tampered => {
                self.seen.streams_refused += 1;
                let arrived = there.index().snapshots().iter().any(|info| info.id.0 == to);
                assert!(!arrived, "a damaged stream became a snapshot");
                replica.transfer = None;
            }
            Err(StreamError::Store(OpError::NoSpace)) => {
                self.seen.full += 1;
                *replica = self.new_replica();
                return false;
            }
            Err(error) => panic!("the snapshot is not received: {error}"),
        }
        true
    }

    /// Chooses what to send, or goes on with what was interrupted.
    fn begin_transfer(&mut self, store: &Store, replica: &mut Replica) -> bool {
        let known: Vec<u64> = store.index().snapshots().iter().map(|info| info.id.0).collect();
        let is_sendable = |id: &u64| {
            let read = self.views.taken.get(id).is_some_and(|taken| taken.holds.is_some());
            read && known.contains(id) && self.views.going != Some(*id)
        };
        if !grow_replica(replica, store.info().geometry.blocks) {
            return false;
        }
        let there = replica.store.as_mut().expect("open");
        let begun = there.index().receptions().first().cloned();
        let gives_up = self.random.once_in(6);
        let (to, from, position) = match begun {
            Some(begun) if is_sendable(&begun.id.0) && !gives_up => {
                // Some senders know of no position, and begin again.
                let position = if begun.position.is_multiple_of(3) { 0 } else { begun.position };
                (begun.id.0, begun.from.map(|from| from.0), position)
            }
            Some(begun) => {
                let abandoned = Receiver::abandon(there, begun.id);
                assert!(abandoned.is_ok() || replica.disk.is_cut_off(), "{abandoned:?}");
                return false;
            }
            None => {
                let new: Vec<u64> = self
                    .views
                    .taken
                    .keys()
                    .copied()
                    .filter(|id| is_sendable(id) && !replica.has.contains_key(id))
                    .collect();
                if new.is_empty() {
                    return false;
                }
                let to = new[self.random.below(new.len() as u64) as usize];
                match replica.newest {
                    Some(base) if !known.contains(&base) => {
                        *replica = self.new_replica();
                        return false;
                    }
                    base => (to, base, 0),
                }
            }
        };
        let sealing = match self.volume.kind {
            UnitKind::Plain => None,
            UnitKind::Sealed { custody: Custody::Target, .. } => None,
            UnitKind::Sealed { .. } => Some(StreamSealing { suite: Suite::Aes256Gcm, mode: Mode::Encrypt, epoch: 1 }),
        };
        let sender = Sender::new(from.map(SnapshotId), SnapshotId(to), position).sealed_as(sealing);
        let holds = self.views.taken[&to].holds.as_ref().expect("only what was read is sent");
        replica.coming = Some((to, holds.iter().map(|held| held.content).collect()));
        replica.transfer =
            Some(Transfer { to, from, resumed: position > 0, sender, receiver: Receiver::new(), tampered: false });
        true
    }
}

/// The other store grows as the first one did; false if its disk was cut off.
fn grow_replica(replica: &mut Replica, blocks: u64) -> bool {
    if replica.blocks >= blocks {
        return true;
    }
    let there = replica.store.as_mut().expect("open");
    match there.execute(Op::Grow { blocks }) {
        Ok(_) => replica.blocks = blocks,
        Err(error) => assert!(replica.disk.is_cut_off(), "the other store does not grow: {error}"),
    }
    replica.blocks == blocks
}
