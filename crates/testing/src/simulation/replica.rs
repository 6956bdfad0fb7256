//! Another store, to which snapshots are sent while the first one is written to: in full and as differences, through streams
//! that stop, go on, lose frames, and a disk of its own that is cut off. What arrives is what was sent, whole or not at all.

use std::sync::Arc;

use strongroom_block::{Custody, Lba, Mode, Suite};
use strongroom_store::{
    Op, OpError, Outcome, Receiver, Sender, SnapshotId, Store, StreamError, StreamSealing, UnitKind, View,
};

use super::expectation::Expectation;
use super::replica_store::{Replica, Transfer};
use super::seen::Seen;
use super::store_settings::StoreSettings;
use crate::model::held;
use crate::{Content, Random, SimDisk};

/// Upper bound on the pieces of a stream that travel in one step.
const PIECES_MAX: u64 = 6;
/// How many pieces [`Replica::replicate_all`] waits for at most.
const PIECES_ALL: u64 = 10_000;

/// What sending to another store uses of the run.
pub(super) struct Replication<'a> {
    pub(super) random: &'a mut Random,
    pub(super) settings: &'a mut StoreSettings,
    pub(super) expected: &'a Expectation,
    pub(super) seen: &'a mut Seen,
    /// The disk of the store that is sent.
    pub(super) disk: &'a SimDisk,
    /// It may fail to read.
    pub(super) failing_reads: bool,
}

impl Replication<'_> {
    fn reads_may_fail(&self) -> bool {
        self.failing_reads || self.disk.has_strayed() || self.disk.is_cut_off()
    }
}

impl Replica {
    /// It begins again with nothing in it.
    fn start_over(&mut self, run: &mut Replication<'_>) {
        *self = Replica::empty(&run.expected.volume, run.random);
    }

    /// Some pieces of a stream travel.
    pub(super) fn replicate(&mut self, store: &mut Store, run: &mut Replication<'_>) {
        if run.random.once_in(6) {
            self.disk.cut_off_after(run.random.below(80));
        }
        if self.is_open(run) {
            for _ in 0..1 + run.random.below(PIECES_MAX) {
                if !self.send_a_piece(store, run, true) {
                    break;
                }
            }
            if self.disk.is_cut_off() || run.random.once_in(12) {
                run.seen.replica_crashes += 1;
                self.crash();
            }
        }
    }

    /// Nothing goes wrong any more: a snapshot arrives.
    pub(super) fn replicate_all(&mut self, store: &mut Store, run: &mut Replication<'_>) {
        self.crash();
        let arrived = self.has.len();
        for _ in 0..PIECES_ALL {
            if !self.is_open(run) {
                continue;
            }
            if !self.send_a_piece(store, run, false) || self.has.len() > arrived {
                break;
            }
        }
        self.crash();
        while !self.is_open(run) {}
    }

    /// Opens the other store, if it is not open, and compares all of it.
    fn is_open(&mut self, run: &mut Replication<'_>) -> bool {
        if self.store.is_some() {
            return true;
        }
        let options = run.settings.of_replica(run.random);
        let orderly = run.random.once_in(2);
        let opened = Store::open_on(Box::new(self.disk.backend(orderly)), &options, Arc::new(|| {}));
        match opened {
            Ok(store) if !self.disk.is_cut_off() => self.store = Some(store),
            Ok(_) => return self.is_cut_off(run),
            Err(error) => {
                assert!(self.disk.is_cut_off(), "the other store does not open: {error}");
                return self.is_cut_off(run);
            }
        }
        let blocks = self.store.as_ref().map_or(0, |store| store.info().geometry.blocks);
        assert!(blocks >= self.blocks, "what the other store grew by is gone");
        self.blocks = blocks;
        if self.compare(run) { true } else { self.is_cut_off(run) }
    }

    fn is_cut_off(&mut self, run: &mut Replication<'_>) -> bool {
        assert!(self.disk.is_cut_off(), "nothing else may go wrong there");
        run.seen.replica_crashes += 1;
        self.crash();
        false
    }

    /// Everything that arrived is there, as it was sent; false if the disk was cut off.
    fn compare(&mut self, run: &mut Replication<'_>) -> bool {
        let there: Vec<u64> =
            self.store.as_ref().expect("open").index().snapshots().into_iter().map(|info| info.id.0).collect();
        if self.coming.as_ref().is_some_and(|(id, _)| there.contains(id)) {
            self.arrived(None, run);
        }
        for id in &there {
            assert!(self.has.contains_key(id), "the snapshot {id} was never sent to its end");
        }
        let views: Vec<(View, Option<u64>)> = self
            .has
            .keys()
            .map(|&id| (View::Snapshot(SnapshotId(id)), Some(id)))
            .chain([(View::default(), self.newest)])
            .collect();
        for (view, id) in views {
            let Some(found) = self.read(view, run) else { return false };
            let sent = id.map(|id| &self.has[&id]);
            for (lba, found) in found.into_iter().enumerate() {
                let expected =
                    sent.and_then(|sent| sent.get(lba)).copied().unwrap_or(run.expected.volume.never_written());
                assert_eq!(found, expected, "block {lba} of {view:?} at the other store");
            }
        }
        true
    }

    fn read(&mut self, view: View, run: &Replication<'_>) -> Option<Vec<Content>> {
        let store = self.store.as_mut().expect("open");
        let mut all = Vec::new();
        while (all.len() as u64) < self.blocks {
            let lba = all.len() as u64;
            let left = self.blocks - lba;
            let read = |store: &mut Store, count| store.execute_on(view, Op::Read { lba: Lba(lba), count });
            let mut answer = read(store, left as u32);
            if let Err(OpError::NotFormatted { lba: Lba(at) }) = answer
                && at > lba
            {
                answer = read(store, (at - lba) as u32);
            }
            match answer {
                Ok(Outcome::Read(extents)) => {
                    all.extend(held(&extents, run.expected.volume.block_size).into_iter().map(|held| held.content));
                }
                Err(OpError::NotFormatted { .. }) => all.push(Content::Nothing),
                Err(OpError::Medium { .. }) if self.disk.is_cut_off() => return None,
                other => panic!("{view:?} of the other store cannot be read: {other:?}"),
            }
        }
        Some(all)
    }

    /// The snapshot that was coming is whole at the other store.
    fn arrived(&mut self, from: Option<u64>, run: &mut Replication<'_>) {
        let (id, contents) = self.coming.take().expect("it was coming");
        self.has.insert(id, contents);
        (self.newest, self.transfer) = (Some(id), None);
        match from {
            Some(_) => run.seen.sent_as_difference += 1,
            None => run.seen.sent_in_full += 1,
        }
    }

    /// One piece of a stream travels, or a stream begins; false if nothing can, for now. `faults`: it may be damaged.
    fn send_a_piece(&mut self, store: &mut Store, run: &mut Replication<'_>, faults: bool) -> bool {
        if self.transfer.is_none() && !self.begin_transfer(store, run) {
            return false;
        }
        let transfer = self.transfer.as_mut().expect("just begun");
        let mut bytes = match transfer.sender.send(store) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                assert!(transfer.tampered && !transfer.receiver.is_done(), "it was sent to its end");
                self.transfer = None;
                return true;
            }
            Err(StreamError::Store(OpError::Medium { .. })) if run.reads_may_fail() => {
                return false;
            }
            Err(StreamError::Store(OpError::Busy)) if run.settings.few_requests => return false,
            Err(StreamError::Unrelated | StreamError::Store(OpError::NoSuchView)) => {
                // Rolled back past it, or deleted: it begins again elsewhere, with all of another one.
                self.start_over(run);
                return false;
            }
            Err(error) => panic!("the snapshot cannot be sent: {error}"),
        };
        if faults && !bytes.is_empty() && run.random.once_in(40) {
            bytes = transfer.tamper(bytes, run.random);
        }
        self.receive_a_piece(&bytes, run)
    }

    /// The other store takes a piece of the stream in; false if it cannot, for now.
    fn receive_a_piece(&mut self, bytes: &[u8], run: &mut Replication<'_>) -> bool {
        let transfer = self.transfer.as_mut().expect("it is on its way");
        let there = self.store.as_mut().expect("open");
        let cut = run.random.below(bytes.len() as u64 + 1) as usize;
        let mut received = transfer.receiver.receive(there, &bytes[..cut]);
        if received.is_ok() {
            received = transfer.receiver.receive(there, &bytes[cut..]);
        }
        // If its end is on the medium, even in part, a crash may find it whole.
        let (to, from, resumed, tampered) = (transfer.to, transfer.from, transfer.resumed, transfer.tampered);
        match received {
            Ok(()) if transfer.receiver.is_done() => {
                assert!(!tampered, "a damaged stream became a snapshot");
                run.seen.sent_resumed += u64::from(resumed);
                self.arrived(from, run);
            }
            Ok(()) => {}
            Err(_) if self.disk.is_cut_off() => {
                self.coming = self.coming.take().filter(|_| !tampered);
                return false;
            }
            // Its end came, and then once more: all of it was there before.
            Err(StreamError::Damaged(_)) if tampered && transfer.receiver.is_done() => self.arrived(from, run),
            Err(StreamError::Damaged(_) | StreamError::NoBeginning) if tampered => {
                run.seen.streams_refused += 1;
                let arrived = there.index().snapshots().iter().any(|info| info.id.0 == to);
                assert!(!arrived, "a damaged stream became a snapshot");
                self.transfer = None;
            }
            Err(StreamError::Store(OpError::NoSpace)) => {
                run.seen.full += 1;
                self.start_over(run);
                return false;
            }
            Err(error) => panic!("the snapshot is not received: {error}"),
        }
        true
    }

    /// Chooses what to send, or goes on with what was interrupted.
    fn begin_transfer(&mut self, store: &Store, run: &mut Replication<'_>) -> bool {
        let known: Vec<u64> = store.index().snapshots().iter().map(|info| info.id.0).collect();
        let is_sendable = |id: &u64| {
            let read = run.expected.views.taken.get(id).is_some_and(|taken| taken.holds.is_some());
            read && known.contains(id) && run.expected.views.going != Some(*id)
        };
        if !self.grows_to(store.info().geometry.blocks) {
            return false;
        }
        let there = self.store.as_mut().expect("open");
        let begun = there.index().receptions().first().cloned();
        let gives_up = run.random.once_in(6);
        let (to, from, position) = match begun {
            Some(begun) if is_sendable(&begun.id.0) && !gives_up => {
                // Some senders know of no position, and begin again.
                let position = if begun.position.is_multiple_of(3) { 0 } else { begun.position };
                (begun.id.0, begun.from.map(|from| from.0), position)
            }
            Some(begun) => {
                let abandoned = Receiver::abandon(there, begun.id);
                assert!(abandoned.is_ok() || self.disk.is_cut_off(), "{abandoned:?}");
                return false;
            }
            None => {
                let new: Vec<u64> = run
                    .expected
                    .views
                    .taken
                    .keys()
                    .copied()
                    .filter(|id| is_sendable(id) && !self.has.contains_key(id))
                    .collect();
                if new.is_empty() {
                    return false;
                }
                let to = new[run.random.below(new.len() as u64) as usize];
                match self.newest {
                    Some(base) if !known.contains(&base) => {
                        self.start_over(run);
                        return false;
                    }
                    base => (to, base, 0),
                }
            }
        };
        let sealing = match run.expected.volume.kind {
            UnitKind::Plain => None,
            UnitKind::Sealed { custody: Custody::Target, .. } => None,
            UnitKind::Sealed { .. } => Some(StreamSealing { suite: Suite::Aes256Gcm, mode: Mode::Encrypt, epoch: 1 }),
        };
        let sender = Sender::new(from.map(SnapshotId), SnapshotId(to), position).sealed_as(sealing);
        let holds = run.expected.views.taken[&to].holds.as_ref().expect("only what was read is sent");
        self.coming = Some((to, holds.iter().map(|held| held.content).collect()));
        self.transfer =
            Some(Transfer { to, from, resumed: position > 0, sender, receiver: Receiver::new(), tampered: false });
        true
    }

    /// It grows as the first one did; false if its disk was cut off.
    fn grows_to(&mut self, blocks: u64) -> bool {
        if self.blocks >= blocks {
            return true;
        }
        let there = self.store.as_mut().expect("open");
        match there.execute(Op::Grow { blocks }) {
            Ok(_) => self.blocks = blocks,
            Err(error) => assert!(self.disk.is_cut_off(), "the other store does not grow: {error}"),
        }
        self.blocks == blocks
    }
}
