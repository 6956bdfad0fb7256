//! Several initiators at one store: each resends what was not answered and replays what a crash may have taken, and some come back
//! late. The store must execute every request at most once, and every acknowledged one must be there in the end, in its order.
//!
//! The order of requests is that of their store sequences, which a replay keeps: so each block must hold, when all are back, what the
//! request with the highest sequence wrote there.

use std::collections::HashMap;
use std::sync::Arc;

use strongroom_block::{
    AttachId, BlockSize, Buffer, Custody, Geometry, HoleRecord, Lba, SealingDomain, Stamp, StoreSequence, Token,
    VolumeId,
};
use strongroom_store::{
    Completion, CreateOptions, Op, OpError, OpenOptions, Origin, Outcome, Planted, Store, StoreId, UnitKind,
};

use crate::model::{block_bytes, held, record_for};
use crate::{Content, Faults, Random, ReadBlock, SimDisk};

const BLOCKS: u64 = 24;
const BLOCK_SIZE: BlockSize = BlockSize::DEFAULT;
const INITIATORS: usize = 3;
const POLLS_MAX: u64 = 100_000;

/// What runs came across.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenOfInitiators {
    /// Requests that were sent again and were not executed again.
    pub repeated: u64,
    /// Requests that were sent again after a crash, and were executed.
    pub executed_after_crash: u64,
    /// Replays.
    pub replayed: u64,
    /// Blocks that replays left out.
    pub superseded: u64,
    /// Replays refused because a snapshot was taken since.
    pub refused: u64,
    /// Requests with counters of another one, refused.
    pub overlaps: u64,
    /// Crashes.
    pub crashes: u64,
    /// Orderly closes.
    pub closes: u64,
    /// Requests that found no space.
    pub full: u64,
}

impl SeenOfInitiators {
    /// Adds another run's.
    pub fn merge(&mut self, other: SeenOfInitiators) {
        self.repeated += other.repeated;
        self.executed_after_crash += other.executed_after_crash;
        self.replayed += other.replayed;
        self.superseded += other.superseded;
        self.refused += other.refused;
        self.overlaps += other.overlaps;
        self.crashes += other.crashes;
        self.closes += other.closes;
        self.full += other.full;
    }

    /// Whether each of them happened.
    pub fn all(&self) -> bool {
        let SeenOfInitiators { repeated, executed_after_crash, replayed, superseded, .. } = *self;
        let SeenOfInitiators { refused, overlaps, crashes, closes, full, .. } = *self;
        let counts = [repeated, executed_after_crash, replayed, superseded, refused, overlaps, crashes, closes, full];
        counts.iter().all(|&count| count > 0)
    }
}

/// A request, and what is known of it. The initiator knows less: it does not see every answer.
struct Request {
    operation: Stamp,
    lba: u64,
    count: u64,
    is_hole: bool,
    /// The sequence of its first block.
    first: Option<u64>,
    /// Its initiator was told that it is done.
    acknowledged: bool,
    /// It cannot be lost any more.
    durable: bool,
    /// It is certainly in the store now.
    is_there: bool,
    /// It was executed, and a crash took it.
    was_lost: bool,
}

impl Request {
    fn sequence(&self, at: u64) -> Option<u64> {
        self.first.map(|first| if self.is_hole { first } else { first + at })
    }
}

struct Initiator {
    id: AttachId,
    next_counter: u64,
    is_registered: bool,
    is_connected: bool,
    /// Of the store, when it was connected last.
    incarnation: u64,
    /// Sent and not answered.
    pending: Vec<u64>,
    /// Acknowledged and not flushed, in their order.
    unflushed: Vec<u64>,
}

struct Run {
    random: Random,
    disk: SimDisk,
    planted: Planted,
    initiators: Vec<Initiator>,
    requests: HashMap<u64, Request>,
    /// By token: whose, and which request.
    in_flight: HashMap<u64, (usize, u64)>,
    next: u64,
    snapshots: u64,
    seen: SeenOfInitiators,
}

/// Runs one seed: some openings, each with requests of several initiators, and a crash or an orderly end.
///
/// # Panics
/// If a request is executed twice, or an acknowledged one is missing, or in the wrong place of the order.
pub fn simulate_initiators(seed: u64, planted: Planted) -> SeenOfInitiators {
    let mut random = Random::new(seed);
    let disk = SimDisk::new(random.number());
    let kind = UnitKind::Sealed { domain: SealingDomain([9; 16]), custody: Custody::KeyFile };
    let geometry = Geometry { block_size: BLOCK_SIZE, blocks: BLOCKS };
    let options = CreateOptions {
        segment_bytes: 64 << 10,
        store_id: Some(StoreId([7; 16])),
        ..CreateOptions::new(VolumeId([1; 16]), geometry, kind)
    };
    Store::create_on(Box::new(disk.backend(true)), &options).expect("the disk is new");
    let initiators = (0..INITIATORS).map(|_| Initiator {
        id: AttachId(u128::from(random.number()).to_be_bytes()),
        next_counter: 0,
        is_registered: false,
        is_connected: false,
        incarnation: 0,
        pending: Vec::new(),
        unflushed: Vec::new(),
    });
    let initiators = initiators.collect();
    let mut run = Run {
        random,
        disk,
        planted,
        initiators,
        requests: HashMap::new(),
        in_flight: HashMap::new(),
        next: 1,
        snapshots: 0,
        seen: SeenOfInitiators::default(),
    };
    let mut store = run.open();
    let hole = HoleRecord { start: Lba(0), count: BLOCKS, record: record_for(0, 0, None) };
    store.execute(Op::Hole { holes: vec![hole], origin: None }).expect("nothing goes wrong yet");
    store.close().expect("nothing goes wrong yet");
    for _ in 0..2 + run.random.below(5) {
        run.opening();
    }
    let mut store = run.open();
    run.look(&mut store, false);
    run.disconnect();
    run.settle(&mut store);
    run.seen
}

impl Run {
    fn open(&mut self) -> Store {
        let options = OpenOptions {
            open_id: Some(self.random.number()),
            planted: self.planted,
            checkpoint_log_bytes: [None, Some(1), Some(100_000)][self.random.below(3) as usize],
            append_unit_bytes_max: [12 << 10, 24 << 10, 264 << 10][self.random.below(3) as usize],
            clock_seconds: || 1_700_000_000,
            ..OpenOptions::default()
        };
        let orderly = self.random.once_in(4);
        Store::open_on(Box::new(self.disk.backend(orderly)), &options, Arc::new(|| {})).expect("a crash leaves a store")
    }

    /// One opening, from the look at what is left to its end.
    fn opening(&mut self) {
        let mut store = self.open();
        let orderly = store.incarnation() == self.initiators.iter().map(|it| it.incarnation).max().unwrap_or(0);
        self.look(&mut store, orderly);
        self.disconnect();
        if self.random.once_in(2) {
            self.disk.cut_off_after(self.random.below(300));
        }
        let fills_up = self.random.once_in(4);
        for _ in 0..self.random.below(80) {
            if fills_up && self.random.once_in(6) {
                let pages_max = self.disk.pages() + self.random.below(8) as usize;
                self.disk.set_faults(Faults { pages_max, ..Faults::default() });
            } else {
                self.disk.set_faults(Faults::default());
            }
            self.step(&mut store);
            if self.disk.is_cut_off() {
                break;
            }
        }
        self.disk.set_faults(Faults::default());
        let whole = !self.disk.is_cut_off() && !store.stats().writes_refused;
        if whole {
            self.disk.cut_off_after(u64::MAX);
        }
        if whole && self.random.once_in(2) {
            self.settle(&mut store);
        }
        if whole && self.random.once_in(2) {
            let incarnation = store.incarnation();
            store.close().expect("nothing goes wrong any more");
            self.seen.closes += 1;
            for request in self.requests.values_mut().filter(|request| request.is_there) {
                request.durable = true;
            }
            // To be kept: an initiator that returns does not replay.
            let store = self.open();
            assert_eq!(store.incarnation(), incarnation, "an orderly close keeps the incarnation");
            store.close().expect("nothing goes wrong any more");
        } else {
            drop(store);
            self.seen.crashes += 1;
        }
        self.in_flight.clear();
        self.disk.crash();
    }

    fn disconnect(&mut self) {
        self.initiators.iter_mut().for_each(|initiator| initiator.is_connected = false);
    }

    fn step(&mut self, store: &mut Store) {
        let who = self.random.below(INITIATORS as u64) as usize;
        if !self.initiators[who].is_connected {
            if self.random.once_in(3) {
                self.connect(store, who);
            }
            return;
        }
        match self.random.below(16) {
            0..=8 => self.send_new(store, who),
            9 | 10 => self.resend(store, who),
            11 => self.flush(store, who),
            12 => self.overlap(store, who),
            13 if self.random.once_in(3) => self.renew(who),
            14 if self.random.once_in(8) && self.snapshots < 4 => {
                self.snapshots += 1;
                let _ = store.execute(Op::SnapshotCreate { name: format!("s{}", self.snapshots) });
            }
            _ => {}
        }
        self.take_answers(store);
    }

    /// The initiator returns: what may be lost is replayed.
    fn connect(&mut self, store: &mut Store, who: usize) {
        let initiator = &mut self.initiators[who];
        if initiator.incarnation != store.incarnation() {
            for number in initiator.unflushed.clone() {
                let request = &self.requests[&number];
                let sequence = request.first.expect("it was acknowledged with one");
                let replay = request_of(number, request, Some(StoreSequence(sequence)));
                let outcome = store.execute(replay);
                if self.disk.is_cut_off() {
                    return;
                }
                let request = self.requests.get_mut(&number).expect("just seen");
                match outcome {
                    Ok(Outcome::Written { first, repeated: 0, superseded }) => {
                        assert_eq!(first.0, sequence);
                        (self.seen.replayed, self.seen.superseded) =
                            (self.seen.replayed + 1, self.seen.superseded + u64::from(superseded));
                        request.is_there = true;
                    }
                    Ok(Outcome::Written { repeated, .. }) => {
                        assert_eq!(u64::from(repeated), counters(request));
                        (request.is_there, request.durable) = (true, true);
                    }
                    // Its caller is told that it is lost.
                    Err(OpError::ReplayRefused(_)) => {
                        self.seen.refused += 1;
                        assert!(!request.durable, "it is there, so it is known");
                        (request.first, request.acknowledged) = (None, false);
                        self.initiators[who].unflushed.retain(|&other| other != number);
                    }
                    Err(OpError::NoSpace) => return,
                    other => panic!("a replay: {other:?}"),
                }
            }
        }
        let initiator = &mut self.initiators[who];
        (initiator.is_connected, initiator.incarnation) = (true, store.incarnation());
        for number in initiator.pending.clone() {
            self.submit(store, who, number);
        }
    }

    fn submit(&mut self, store: &mut Store, who: usize, number: u64) {
        if !self.initiators[who].is_registered {
            let attach_id = self.initiators[who].id;
            self.initiators[who].is_registered = store.execute(Op::RegisterAttachment { attach_id }).is_ok();
            if !self.initiators[who].is_registered {
                return;
            }
        }
        self.next += 1;
        self.in_flight.insert(self.next, (who, number));
        store.submit(Token(self.next), request_of(number, &self.requests[&number], None));
    }

    fn send_new(&mut self, store: &mut Store, who: usize) {
        let is_hole = self.random.once_in(6);
        let count = 1 + self.random.below(6);
        let lba = self.random.below(BLOCKS - count + 1);
        self.next += 1;
        let number = self.next;
        let initiator = &mut self.initiators[who];
        let operation = Stamp { attach_id: initiator.id, counter: initiator.next_counter };
        // Some counters are never used: a request that was sealed again took others.
        initiator.next_counter += if is_hole { 1 } else { count } + self.random.below(2);
        initiator.pending.push(number);
        let request = Request {
            operation,
            lba,
            count,
            is_hole,
            first: None,
            acknowledged: false,
            durable: false,
            is_there: false,
            was_lost: false,
        };
        self.requests.insert(number, request);
        self.submit(store, who, number);
    }

    fn resend(&mut self, store: &mut Store, who: usize) {
        let pending = &self.initiators[who].pending;
        if let Some(&number) = pending.get(self.random.below(pending.len().max(1) as u64) as usize) {
            self.submit(store, who, number);
        }
    }

    fn flush(&mut self, store: &mut Store, who: usize) {
        let covered: Vec<u64> = self.requests.iter().filter(|(_, it)| it.is_there).map(|(&number, _)| number).collect();
        let marked = self.initiators[who].unflushed.clone();
        if store.execute(Op::Flush).is_err() {
            return;
        }
        for number in covered {
            self.requests.get_mut(&number).expect("just seen").durable = true;
        }
        self.initiators[who].unflushed.retain(|number| !marked.contains(number));
    }

    /// A faulty initiator: counters of which one was executed.
    fn overlap(&mut self, store: &mut Store, who: usize) {
        let id = self.initiators[who].id;
        let mine = |request: &&Request| request.is_there && request.operation.attach_id == id && !request.is_hole;
        let Some(request) = self.requests.values().filter(mine).max_by_key(|request| request.operation.counter) else {
            return;
        };
        // From the last counter of it to one that was never handed out.
        let counter = request.operation.counter + request.count - 1;
        let count = self.initiators[who].next_counter + 1 - counter;
        if count > BLOCKS {
            return;
        }
        let operation = Stamp { attach_id: id, counter };
        let forged = Request { operation, lba: 0, count, is_hole: false, ..*request };
        match store.execute(request_of(u64::MAX, &forged, None)) {
            Err(OpError::OperationOverlaps { .. }) => self.seen.overlaps += 1,
            Err(error) => assert!(self.disk.is_cut_off() || error == OpError::NoSpace, "{error}"),
            Ok(outcome) => panic!("an overlap passes: {outcome:?}"),
        }
    }

    /// A new attach id, once everything under the old one is answered.
    fn renew(&mut self, who: usize) {
        let initiator = &mut self.initiators[who];
        if initiator.pending.is_empty() {
            initiator.id = AttachId(u128::from(self.random.number()).to_be_bytes());
            (initiator.next_counter, initiator.is_registered) = (0, false);
        }
    }

    fn take_answers(&mut self, store: &mut Store) {
        let mut done = Vec::new();
        store.poll_completions(&mut done);
        for Completion { token, result } in done {
            let (who, number) = self.in_flight.remove(&token.0).expect("answered once");
            self.take_answer(who, number, result);
        }
    }

    fn take_answer(&mut self, who: usize, number: u64, result: Result<Outcome, OpError>) {
        let request = self.requests.get_mut(&number).expect("it was sent");
        match result {
            Ok(Outcome::Written { first, repeated: 0, .. }) => {
                assert!(!request.is_there, "request {number} was executed twice");
                assert!(!request.acknowledged, "request {number} was executed, and its replay is due");
                self.seen.executed_after_crash += u64::from(request.was_lost);
                request.first = Some(first.0);
                request.is_there = true;
            }
            Ok(Outcome::Written { repeated, .. }) => {
                assert_eq!(u64::from(repeated), counters(request));
                (request.is_there, request.durable) = (true, true);
                self.seen.repeated += 1;
            }
            Err(OpError::NoSpace) => {
                self.seen.full += 1;
                return;
            }
            Err(error) => {
                assert!(self.disk.is_cut_off(), "request {number}: {error}");
                return;
            }
            other => panic!("request {number}: {other:?}"),
        }
        // Answers get lost on their way.
        let initiator = &mut self.initiators[who];
        if self.random.once_in(4) || !initiator.pending.contains(&number) {
            return;
        }
        initiator.pending.retain(|&other| other != number);
        request.acknowledged = true;
        if !request.durable {
            initiator.unflushed.push(number);
        }
    }

    /// After an opening: what is there, and was it to be?
    fn look(&mut self, store: &mut Store, orderly: bool) {
        let blocks = read_all(store);
        self.learn(&blocks);
        for (number, request) in &mut self.requests {
            let Some(first) = request.first else { continue };
            let range = request.lba..request.lba + request.count;
            let is_lost = range
                .clone()
                .any(|lba| blocks[lba as usize].sequence < request.sequence(lba - request.lba).expect("it has one"));
            let certain = request.durable || orderly && request.is_there;
            assert!(!is_lost || !certain, "request {number} of sequence {first} was durable, and is lost");
            if is_lost && !request.acknowledged {
                // If it is sent again, it is executed, under another sequence.
                request.first = None;
                request.was_lost = true;
            }
            let shows = range.clone().any(|lba| shows(&blocks[lba as usize], *number, request));
            request.is_there = certain || !is_lost && shows;
        }
    }

    /// What is seen of requests whose answers nobody saw.
    fn learn(&mut self, blocks: &[ReadBlock]) {
        for block in blocks {
            let Content::Data(number) = block.content else { continue };
            let request = self.requests.get_mut(&number).expect("somebody sent it");
            let first = block.sequence - (block.lba - request.lba);
            request.first.get_or_insert(first);
            assert_eq!(request.first, Some(first), "request {number} is there twice");
        }
    }

    /// Everybody comes back, everything is answered and flushed: then each block holds what was written there last.
    fn settle(&mut self, store: &mut Store) {
        for _ in 0..POLLS_MAX {
            for who in 0..INITIATORS {
                if !self.initiators[who].is_connected {
                    self.connect(store, who);
                } else if self.in_flight.is_empty() {
                    let pending = self.initiators[who].pending.clone();
                    pending.into_iter().for_each(|number| self.submit(store, who, number));
                }
            }
            self.take_answers(store);
            let connected = self.initiators.iter().all(|it| it.is_connected && it.pending.is_empty());
            if connected && self.in_flight.is_empty() {
                break;
            }
        }
        for who in 0..INITIATORS {
            assert!(self.initiators[who].pending.is_empty(), "not everything was answered");
            self.flush(store, who);
        }
        let blocks = read_all(store);
        self.learn(&blocks);
        for block in blocks {
            let lba = block.lba;
            let here = self.requests.values().filter(|it| (it.lba..it.lba + it.count).contains(&lba));
            // A hole that was executed while nobody saw the answer.
            let unseen = |it: &Request| it.is_hole && it.first.is_none();
            if block.content == Content::Hole && here.clone().any(unseen) {
                continue;
            }
            let newest = here.max_by_key(|it| it.sequence(lba - it.lba));
            let sequence = newest.and_then(|it| it.sequence(lba - it.lba)).unwrap_or(block.sequence);
            assert_eq!(
                block.sequence,
                sequence,
                "block {lba} does not hold what was written there last, by operation {:?}",
                newest.map(|it| (it.operation, it.is_hole, it.acknowledged, it.durable, it.is_there))
            );
        }
    }
}

fn counters(request: &Request) -> u64 {
    if request.is_hole { 1 } else { request.count }
}

/// Whether a block holds what a request wrote there.
fn shows(block: &ReadBlock, number: u64, request: &Request) -> bool {
    match block.content {
        Content::Data(of) => of == number,
        Content::Hole => request.is_hole && request.first == Some(block.sequence),
        Content::Nothing => false,
    }
}

fn request_of(number: u64, request: &Request, replay: Option<StoreSequence>) -> Op {
    let &Request { operation, lba, count, .. } = request;
    let origin = Some(Origin { operation, replay });
    if request.is_hole {
        let holes = vec![HoleRecord { start: Lba(lba), count, record: record_for(number, 0, None) }];
        return Op::Hole { holes, origin };
    }
    let blocks: Vec<Vec<u8>> = (lba..lba + count).map(|lba| block_bytes(number, lba, BLOCK_SIZE)).collect();
    let records = blocks.iter().enumerate().map(|(at, block)| record_for(number, at as u64, Some(block))).collect();
    let data = blocks.iter().map(|block| Buffer::copy_from(block)).collect();
    Op::Write { lba: Lba(lba), data, records, fua: false, origin }
}

fn read_all(store: &mut Store) -> Vec<ReadBlock> {
    let Ok(Outcome::Read(extents)) = store.execute(Op::Read { lba: Lba(0), count: BLOCKS as u32 }) else {
        panic!("the volume cannot be read")
    };
    held(&extents, BLOCK_SIZE)
}
