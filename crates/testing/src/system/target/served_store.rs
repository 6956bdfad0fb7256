//! The store on the simulated disk, and what is asked of it beside all sessions: a clone, snapshots, and a look at what the blocks hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use strongroom_block::{AttachId, BlockSize, Buffer, CryptoCounters, Geometry, HoleRecord, Lba, Stamp, VolumeId};
use strongroom_seal::{SealContext, VolumeSealer};
use strongroom_store::{
    BranchId, CreateOptions, Extent, Op, OpError, OpenOptions, Origin, Outcome, Planted, SnapshotId, Store, StoreError,
    StoreId, View,
};
use strongroom_target::machine::{Memory, OpenStore, Unit, create_options, sealed_volume};
use strongroom_target::{CloneOf, Volume};

use super::steps::StepCounter;
use crate::system::content;
use crate::system::history::{Moment, Value};
use crate::system::keys::KeyServer;
use crate::system::layout::{BLOCK_BYTES, DOMAIN, HALVES, VIEWS};
use crate::{Random, SimDisk};

/// The snapshot that the clone is made from.
const FIRST: &str = "first";
/// Blocks of one request that fills what nobody looks at.
const FILLED_AT_ONCE: u64 = 256;

/// What the simulation wants of a store.
#[derive(Clone, Debug)]
pub(in crate::system) struct Settings {
    /// Blocks that initiators use.
    pub(in crate::system) blocks: u64,
    /// Blocks behind them, which nobody looks at.
    pub(in crate::system) more_blocks: u64,
    /// A fault that is planted in the store.
    pub(in crate::system) planted: Planted,
    /// Whose keys seal what the target writes by itself.
    pub(in crate::system) key_server: KeyServer,
    /// A planted fault: persistent reservations do not survive a crash.
    pub(in crate::system) forgets_reservations: bool,
    /// Another one: writer leases do not.
    pub(in crate::system) forgets_leases: bool,
}

/// What a block holds, as the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::system) struct Sighted {
    /// Its halves.
    pub(in crate::system) values: [Value; HALVES as usize],
    /// Its data as it is on the disk; `None`: it is a hole.
    pub(in crate::system) ciphertext: Option<Vec<u8>>,
}

/// A snapshot that was asked for and answered.
#[derive(Clone, Copy, Debug)]
pub(in crate::system) struct TakenSnapshot {
    pub(in crate::system) id: SnapshotId,
    pub(in crate::system) invoked: Moment,
}

/// The store and its views.
pub(in crate::system) struct ServedStore {
    disk: SimDisk,
    settings: Settings,
    random: Random,
    /// One for each view; none while the store is closed.
    views: Vec<OpenStore>,
    /// What outlives the units of the views.
    memories: [Memory; VIEWS.len()],
    /// Snapshots that were asked for and not answered, by token.
    asked_snapshots: BTreeMap<u64, Moment>,
    /// Those that were answered since they were asked for last.
    taken_snapshots: Vec<TakenSnapshot>,
    next_own: u64,
    pub(super) steps: StepCounter,
}

fn volume(settings: &Settings, view: usize) -> Volume {
    let block_size = BlockSize::new(BLOCK_BYTES as u64).expect("possible");
    let blocks = settings.blocks + settings.more_blocks;
    let volume = sealed_volume(VIEWS[view], Geometry { block_size, blocks }, DOMAIN);
    let clone_of = CloneOf { volume: VIEWS[0].to_owned(), branch: 1, snapshot: FIRST.to_owned() };
    Volume { clone_of: (view > 0).then_some(clone_of), ..volume }
}

impl ServedStore {
    /// A new volume, not formatted yet; its store is closed.
    pub(super) fn new(disk: SimDisk, settings: Settings, mut random: Random) -> ServedStore {
        let mut options: CreateOptions = create_options(&volume(&settings, 0));
        options.segment_bytes = [64 << 10, 64 << 10, 256 << 10][random.below(3) as usize];
        options.retention_percent = [10, 100][random.below(2) as usize];
        options.store_id = Some(StoreId([8; 16]));
        Store::create_on(Box::new(disk.backend(true)), &options).expect("the disk is new");
        ServedStore {
            disk,
            settings,
            random,
            views: Vec::new(),
            memories: Default::default(),
            asked_snapshots: BTreeMap::new(),
            taken_snapshots: Vec::new(),
            next_own: 1 << 32,
            steps: StepCounter::default(),
        }
    }

    /// Opens the store unless it is open.
    ///
    /// # Errors
    /// What the store says: the disk may fail to read.
    pub(in crate::system) fn open(&mut self) -> Result<(), StoreError> {
        if self.is_open() {
            return Ok(());
        }
        let options = OpenOptions {
            open_id: Some(self.random.number()),
            planted: self.settings.planted,
            checkpoint_log_bytes: [None, Some(self.random.below(20_000)), Some(100_000)][self.random.below(3) as usize],
            append_unit_bytes_max: [12 << 10, 264 << 10][self.random.below(2) as usize],
            data_cache_bytes: if self.random.once_in(2) { 0 } else { 64 << 10 },
            clock_seconds: || 1_700_000_000,
            ..OpenOptions::default()
        };
        let backend = Box::new(self.disk.backend(false));
        self.views = vec![OpenStore::open(|waker| Store::open_on(backend, &options, waker))?];
        self.find_clone();
        Ok(())
    }

    pub(in crate::system) fn is_open(&self) -> bool {
        !self.views.is_empty()
    }

    /// Closes the store in order. No unit uses it any more. Whether that went well.
    pub(super) fn close(&mut self) -> bool {
        // The last handle takes the store.
        let store = self.views.drain(..).rev().fold(None, |_, view| view.into_store());
        // A store whose disk has failed cannot; it will be opened as after a crash.
        store.is_some_and(|store| store.close().is_ok())
    }

    /// The power goes: what was not synced is lost.
    pub(super) fn crash(&mut self) {
        self.views.clear();
        self.asked_snapshots.clear();
        for memory in &self.memories {
            if self.settings.forgets_reservations {
                memory.forget_reservations();
            }
            if self.settings.forgets_leases {
                memory.forget_leases();
            }
        }
    }

    /// The process is gone, with everything that it had in memory.
    pub(super) fn process_ended(&mut self) {
        self.memories.iter().for_each(Memory::forget_process);
    }

    /// The unit of a view, if the store is open and has it.
    pub(super) fn unit(&self, view: usize) -> Option<Unit> {
        Some(self.views.get(view)?.unit(volume(&self.settings, view), &self.memories[view]))
    }

    /// What outlives the unit of a view.
    pub(super) fn memory(&self, view: usize) -> &Memory {
        &self.memories[view]
    }

    /// Moves the store forward, and takes what was asked of it beside all sessions.
    pub(super) fn poll(&mut self) {
        let views = &mut self.views;
        let answers: Vec<_> = self.steps.count(|| views.iter_mut().flat_map(OpenStore::poll).collect());
        for (token, outcome) in answers {
            self.own_answer(token, outcome);
        }
    }

    /// Whether the store works on something: it is to be polled again soon.
    pub(super) fn is_working(&self) -> bool {
        let goes_on = |view: &OpenStore| view.ios_in_flight() > 0 || view.wants_poll();
        self.views.first().is_some_and(goes_on) || self.views.iter().any(OpenStore::has_mail)
    }

    /// Lets the store tidy up.
    pub(in crate::system) fn idle(&mut self) {
        if let Some(view) = self.views.first_mut() {
            view.idle();
        }
    }

    /// Takes the clone in, if there is one.
    fn find_clone(&mut self) {
        let clone = self.views[0].branches().into_iter().find(|branch| branch.id != BranchId::VOLUME);
        if let Some(clone) = clone {
            let view = self.views[0].of_view(View::Head(clone.id));
            self.views.push(view);
        }
    }

    /// Makes a clone of the volume as it is.
    pub(in crate::system) fn make_clone(&mut self) {
        let Ok(Outcome::SnapshotCreated { id }) = self.ask(Op::SnapshotCreate { name: FIRST.to_owned() }) else {
            panic!("a snapshot was asked for");
        };
        self.ask(Op::CloneCreate { from: id, name: VIEWS[1].to_owned(), volume_id: VolumeId([2; 16]) })
            .expect("nothing goes wrong yet");
        self.find_clone();
        assert_eq!(self.views.len(), 2, "the clone is there");
    }

    fn ask(&mut self, op: Op) -> Result<Outcome, OpError> {
        let token = self.own_token();
        self.views[0].submit(token, op);
        loop {
            for (of, outcome) in self.views[0].poll() {
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

    /// Asks for a snapshot, while others write; `None`: the volume is closed. [`ServedStore::take_snapshots`] tells when it is taken.
    pub(in crate::system) fn ask_for_snapshot(&mut self, invoked: Moment) {
        if self.is_open() {
            let token = self.own_token();
            self.asked_snapshots.insert(token, invoked);
            self.views[0].submit(token, Op::SnapshotCreate { name: token.to_string() });
        }
    }

    /// Asks for a snapshot to be deleted.
    pub(in crate::system) fn delete_snapshot(&mut self, id: SnapshotId) {
        let token = self.own_token();
        self.views[0].submit(token, Op::SnapshotDelete { id });
    }

    /// Snapshots that were answered since the last call.
    pub(in crate::system) fn take_snapshots(&mut self) -> Vec<TakenSnapshot> {
        std::mem::take(&mut self.taken_snapshots)
    }

    /// The snapshots that the store has, but for the clone's.
    pub(in crate::system) fn snapshots(&self) -> Vec<SnapshotId> {
        let all = self.views.first().map(OpenStore::snapshots).unwrap_or_default();
        all.iter().filter(|one| one.name != FIRST).map(|one| one.id).collect()
    }

    /// What the blocks of a view hold, as far as they can be read: asked of the store itself.
    pub(in crate::system) fn look(&mut self, view: usize) -> Vec<Option<Sighted>> {
        if view >= self.views.len() {
            return Vec::new();
        }
        let mut seen = self.views.remove(view);
        let found = self.look_through(&mut seen);
        self.views.insert(view, seen);
        found
    }

    /// The same of a snapshot.
    pub(in crate::system) fn look_at_snapshot(&mut self, id: SnapshotId) -> Vec<Option<Sighted>> {
        let mut view = self.views[0].of_view(View::Snapshot(id));
        self.look_through(&mut view)
    }

    fn look_through(&mut self, view: &mut OpenStore) -> Vec<Option<Sighted>> {
        let sealer = sealer(&self.settings.key_server);
        for block in 0..self.settings.blocks {
            view.submit(block, Op::Read { lba: Lba(block), count: 1 });
        }
        let mut found = vec![None; self.settings.blocks as usize];
        let mut left = self.settings.blocks;
        while left > 0 {
            for (token, outcome) in view.poll() {
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
