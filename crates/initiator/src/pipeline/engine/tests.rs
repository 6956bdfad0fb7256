//! Proves what the engine promises against a unit in memory: every request ends once and right, no matter what the unit answers,
//! loses or forgets; a replay restores what was acknowledged; a part of a block is never written unguarded; and nothing
//! that a hostile store can do gives a reader wrong data. The sealing is the real one, the unit is not.

mod attacks;
mod conditional;
mod epochs;
mod fake_unit;
mod operations;
mod patience;
mod pipelined;
mod refetch;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use proptest::prelude::*;
use strongroom_block::{
    BlockSize, Buffer, BufferMut, CryptoCounters, DeviceErrorKind, Geometry, Lba, SealingDomain, StoreSequence, Token,
    VolumeId,
};
use strongroom_scsi::Sense;
use strongroom_scsi::capacity::ReadCapacity16;
use strongroom_scsi::transport::SealRecords;
use strongroom_scsi::transport::initiator::{DataContent, DataIn};
use strongroom_seal::{KeyPurpose, SealContext, VolumeKeyFile, VolumeSealer};

use super::*;
use crate::SealedClaims;
use crate::completion::device_error;
use crate::pipeline::answer::{Answer, Version};
use crate::pipeline::operation::{
    Capacity, Discard, Flush, Hole, LbaStatus, Operation, ProbeHole, Read, ReadVersion, Write, WritePart,
};
use crate::pipeline::request::FinishedRequest;
use crate::pipeline::sealing::Records;
use crate::pipeline::unflushed::Entry;
use crate::pipeline::unit::SealedUnit;
use fake_unit::{FakeUnit, Stored};

const BLOCK: usize = 512;
const BLOCKS: u64 = 64;

fn sealing(key: u8, domain: u8) -> Arc<Sealing> {
    let context = SealContext::new(SealingDomain([domain; 16]), BlockSize::new(BLOCK as u64).unwrap(), 1);
    let keys = VolumeKeyFile::new(KeyPurpose::Volume, &[key; 32]);
    let sealer = VolumeSealer::blind(&keys, context, Arc::new(CryptoCounters::new())).unwrap();
    Arc::new(Sealing::new(sealer))
}

fn description(sealed: bool) -> UnitDescription {
    let block_size = BlockSize::new(BLOCK as u64).unwrap();
    UnitDescription {
        target_name: "iqn.2026-11.org.strongroom:test".into(),
        lun: 0,
        vendor: "STRNGRM".into(),
        product: String::new(),
        revision: String::new(),
        geometry: Geometry { block_size, blocks: BLOCKS },
        sealed: sealed.then_some(SealedUnit {
            claims: SealedClaims {
                volume_id: VolumeId([1; 16]),
                domain: SealingDomain([2; 16]),
                block_size,
                custody: strongroom_block::Custody::KeyFile,
                suite: strongroom_block::Suite::Aes256Gcm,
                epoch: 1,
            },
            mode: strongroom_block::Mode::Encrypt,
            record_bytes: 56,
            allows_previous: false,
            conditional_holes: true,
            heeds_keys_destroyed: true,
        }),
        target_key: None,
        transfer_blocks_max: Some(8),
        compare_and_write: !sealed,
        unmap_blocks_max: (!sealed).then_some(16),
        other_views: 0,
        image: None,
        incarnation: None,
        has_leases: true,
    }
}

type Tamper = Box<dyn FnMut(&mut DataIn)>;

/// The bytes that a part of a read carries.
fn data_of(data_in: &mut DataIn) -> &mut Buffer {
    match &mut data_in.content {
        DataContent::Plain(data) | DataContent::Sealed { data, .. } => data,
        DataContent::Hole { .. } => panic!("a hole carries no data"),
    }
}

fn replace_records(data_in: &mut DataIn, entry_bytes: usize, entries: Vec<u8>) {
    let DataContent::Sealed { records, .. } = &mut data_in.content else { panic!("sealed blocks") };
    *records = SealRecords::new(entry_bytes, entries.into()).expect("whole entries");
}

/// An engine, its unit, and time that jumps to the next event.
struct Rig {
    engine: Engine,
    sealing: Option<Arc<Sealing>>,
    unit: FakeUnit,
    now: Instant,
    next_token: u64,
    finished: Vec<FinishedRequest>,
    /// Changes what the unit sends.
    tamper: Option<Tamper>,
    /// Connections that were made because the engine wanted one to fetch blocks again.
    refetch_connections: usize,
}

impl Rig {
    fn new(sealed: bool, limits: Limits) -> Rig {
        let sealing = sealed.then(|| sealing(7, 2));
        let unit = Arc::new(description(sealed));
        let mut engine = Engine::new(
            unit.clone(),
            sealing.clone(),
            EngineOptions { limits, verified_feedback: true, ..Default::default() },
        );
        engine.connected(unit, false);
        let mut rig = Rig {
            engine,
            sealing,
            unit: FakeUnit::new(sealed, BLOCK, BLOCKS),
            now: Instant::now(),
            next_token: 0,
            finished: Vec::new(),
            tamper: None,
            refetch_connections: 0,
        };
        if sealed {
            rig.discard(0, BLOCKS).unwrap();
            rig.flush().unwrap();
        }
        rig
    }

    /// Sends up to `most` commands and answers them.
    fn exchange(&mut self, most: usize) -> usize {
        let mut sent = 0;
        while sent < most {
            let Some((id, command)) = self.engine.next_command() else { break };
            sent += 1;
            let (data, completed) = self.unit.execute(&command);
            for mut data_in in data {
                if let Some(tamper) = &mut self.tamper {
                    tamper(&mut data_in);
                }
                self.engine.data_in(self.now, id, &data_in);
            }
            self.engine.completed(self.now, id, &completed);
        }
        self.collect();
        sent
    }

    fn collect(&mut self) {
        for op in self.engine.table.take_finished() {
            match op.reply {
                Reply::Caller(sender) => sender.send(op.result).unwrap(),
                _ => self.finished.push(op),
            }
        }
    }

    /// Runs until nothing is left to do.
    fn run(&mut self) {
        loop {
            if self.exchange(usize::MAX) == 0 {
                if self.engine.refetching.needs_connection().is_some() {
                    self.refetch_connections += 1;
                    self.reconnect(false);
                    continue;
                }
                let Some(at) = self.engine.poll_timeout() else { break };
                self.now = self.now.max(at);
                self.engine.handle_timeout(self.now);
            }
        }
        self.collect();
    }

    fn submit(&mut self, operation: impl Into<Operation>) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        self.engine.submit(NewRequest {
            reply: Reply::Token(Token(token)),
            cost_bytes: 0,
            operation: operation.into(),
        });
        token
    }

    fn ask(&mut self, operation: impl Into<Operation>) -> Receiver<Result<Answer, DeviceError>> {
        let (sender, receiver) = sync_channel(1);
        self.engine.submit(NewRequest { reply: Reply::Caller(sender), cost_bytes: 0, operation: operation.into() });
        receiver
    }

    fn result(&mut self, token: u64) -> Result<Answer, DeviceError> {
        let at = self
            .finished
            .iter()
            .position(|op| matches!(op.reply, Reply::Token(done) if done == Token(token)))
            .expect("the request has ended");
        self.finished.remove(at).result
    }

    fn do_now(&mut self, operation: impl Into<Operation>) -> Result<Answer, DeviceError> {
        let token = self.submit(operation);
        self.run();
        self.result(token)
    }

    fn write_work(&self, lba: u64, data: &[u8], fua: bool) -> Write {
        let lba = Lba(lba);
        match &self.sealing {
            None => Write { lba, data: Buffer::copy_from(data), records: None, fua },
            Some(sealing) => {
                let sealed = sealing.seal(lba, data).unwrap();
                Write { lba, data: sealed.data, records: Some(sealed.records), fua }
            }
        }
    }

    fn write(&mut self, lba: u64, mark: u8, count: usize) -> Result<(), DeviceError> {
        let work = self.write_work(lba, &vec![mark; count * BLOCK], false);
        self.do_now(work).map(drop)
    }

    fn read(&mut self, lba: u64, count: usize) -> Result<Vec<u8>, DeviceError> {
        let buffer = BufferMut::zeroed(count * BLOCK);
        match self.do_now(Read { lba: Lba(lba), buffer })? {
            Answer::Read(buffer) => Ok(buffer.to_vec()),
            other => panic!("{other:?}"),
        }
    }

    fn marks(&mut self) -> Vec<u8> {
        self.read(0, BLOCKS as usize).unwrap().chunks(BLOCK).map(|block| block[0]).collect()
    }

    fn discard(&mut self, lba: u64, count: u64) -> Result<(), DeviceError> {
        let work = self.discard_work(lba, count);
        self.do_now(work).map(drop)
    }

    fn discard_work(&self, lba: u64, count: u64) -> Operation {
        match &self.sealing {
            Some(sealing) => Hole(sealing.seal_hole(Lba(lba), count).unwrap()).into(),
            None => Discard { lba: Lba(lba), count }.into(),
        }
    }

    fn part(lba: u64, offset_bytes: u32, data: &[u8]) -> WritePart {
        WritePart::new(Lba(lba), offset_bytes, Buffer::copy_from(data), false)
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        self.do_now(Flush).map(drop)
    }

    /// The connection breaks and comes back; with `restart` the unit forgets what was not flushed.
    fn reconnect(&mut self, restart: bool) {
        self.engine.disconnected();
        if restart {
            self.unit.crash();
        }
        let unit = Arc::new(description(self.sealing.is_some()));
        self.engine.connected(unit, restart);
    }
}

#[test]
fn requests_larger_than_a_transfer_are_split_and_put_together() {
    for sealed in [false, true] {
        let mut rig = Rig::new(sealed, Limits::default());
        let data: Vec<u8> = (0..50 * BLOCK).map(|at| (at / BLOCK + 1) as u8).collect();
        let work = rig.write_work(5, &data, true);
        rig.do_now(work).unwrap();
        assert!(rig.unit.commands > 6, "8 blocks each");
        assert_eq!(rig.read(5, 50).unwrap(), data);
        assert_eq!(rig.read(55, 9).unwrap(), vec![0; 9 * BLOCK], "never written: zeros");
        rig.discard(10, 40).unwrap();
        assert_eq!(rig.read(10, 40).unwrap(), vec![0; 40 * BLOCK]);
        assert_eq!(rig.read(9, 1).unwrap(), data[4 * BLOCK..5 * BLOCK]);
    }
}

#[test]
fn an_unformatted_block_is_an_error_and_not_zeros() {
    let mut rig = Rig::new(true, Limits::default());
    rig.unit.blocks.remove(&3);
    let error = rig.read(0, 8).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Medium);
}

#[test]
fn answers_that_ask_for_patience_are_obeyed_and_errors_name_their_block() {
    let mut rig = Rig::new(true, Limits::default());
    rig.unit.fail_next =
        vec![Sense::new(strongroom_scsi::SenseKey::UnitAttention, 0x29, 1), Sense::CHECKSUM_ON_ARRIVAL];
    rig.write(1, 9, 1).unwrap();
    assert_eq!(rig.read(1, 1).unwrap(), vec![9; BLOCK]);
    assert_eq!(rig.engine.counters.commands_resent, 2);
    for (sense, kind) in [
        (Sense::NO_SPACE, DeviceErrorKind::NoSpace),
        (Sense::WRITE_PROTECTED, DeviceErrorKind::ReadOnly),
        (Sense::INTERNAL_FAILURE, DeviceErrorKind::Hardware),
        (Sense::UNRECOVERED_READ.at(Lba(1)), DeviceErrorKind::Medium),
    ] {
        rig.unit.fail_next = vec![sense];
        let error = rig.write(1, 3, 1).unwrap_err();
        assert_eq!((error.kind, error.lba), (kind, Some(Lba(1))));
    }
}

#[test]
fn a_unit_that_says_that_its_size_has_changed_is_heard_and_asked() {
    let mut rig = Rig::new(true, Limits::default());
    rig.unit.fail_next = vec![Sense::new(strongroom_scsi::SenseKey::UnitAttention, 0x2a, 9)];
    rig.write(1, 9, 1).unwrap();
    assert_eq!(rig.engine.counters.size_changes, 1);
    let mut says = |capacity| {
        rig.unit.capacity = capacity;
        match rig.do_now(Capacity::default()).unwrap() {
            Answer::Capacity(geometry) => geometry,
            other => panic!("{other:?}"),
        }
    };
    let grown = Geometry { blocks: 2 * BLOCKS, ..description(true).geometry };
    let capacity = ReadCapacity16::of(grown, false);
    assert_eq!(says(Some(capacity)), Some(grown));
    assert_eq!(says(Some(ReadCapacity16 { last_lba: u64::MAX, ..capacity })), None, "no disk is so large");
    assert_eq!(says(Some(ReadCapacity16 { block_bytes: 0, ..capacity })), None);
    assert_eq!(says(None), None, "it does not know the question");
    // That is no reason not to ask others.
    assert!(matches!(rig.do_now(LbaStatus::new(Lba(9))).unwrap(), Answer::LbaStatus(Some(_))));
    assert_eq!(rig.engine.counters.blocks_failed, 0);
}

#[test]
fn what_was_in_flight_is_sent_again_as_it_was() {
    let mut rig = Rig::new(true, Limits::default());
    let work = rig.write_work(0, &[1; 3 * BLOCK], false);
    let token = rig.submit(work);
    let (_, first) = rig.engine.next_command().unwrap();
    // The unit does it; the answer is lost.
    rig.unit.execute(&first);
    rig.reconnect(false);
    let (id, again) = rig.engine.next_command().unwrap();
    let (was, is) = (first.write.unwrap(), again.clone().write.unwrap());
    assert!(was.data == is.data && was.records.unwrap().bytes == is.records.unwrap().bytes, "same bytes, same stamps");
    let written = rig.unit.writes;
    let (_, completed) = rig.unit.execute(&again);
    assert_eq!(rig.unit.writes, written, "acknowledged without writing");
    rig.engine.completed(rig.now, id, &completed);
    rig.run();
    rig.result(token).unwrap();
}

#[test]
fn acknowledged_writes_survive_a_target_that_forgets_them() {
    for sealed in [false, true] {
        let mut rig = Rig::new(sealed, Limits::default());
        rig.write(0, 1, 20).unwrap();
        rig.flush().unwrap();
        rig.write(4, 2, 8).unwrap();
        rig.discard(6, 2).unwrap();
        rig.write(7, 3, 1).unwrap();
        let before = rig.marks();
        // In flight at the crash, and overlapping what is replayed.
        let work = rig.write_work(9, &[4; BLOCK], false);
        let token = rig.submit(work);
        rig.engine.next_command().unwrap();
        rig.reconnect(true);
        rig.run();
        rig.result(token).unwrap();
        let mut expected = before;
        expected[9] = 4;
        assert_eq!(rig.marks(), expected, "sealed: {sealed}");
        assert!(rig.engine.counters.blocks_replayed >= 8);
        // And once more, during the replay of a replay.
        rig.reconnect(true);
        rig.exchange(1);
        rig.reconnect(true);
        rig.exchange(1);
        // Without another restart: what is left of the replay is still due.
        rig.reconnect(false);
        assert_eq!(rig.marks(), expected);
        rig.flush().unwrap();
        rig.reconnect(true);
        let replayed = rig.engine.counters.blocks_replayed;
        rig.reconnect(true);
        assert_eq!(rig.engine.counters.blocks_replayed, replayed, "flushed: nothing to replay");
        assert_eq!(rig.marks(), expected);
    }
}

#[test]
fn the_log_is_bounded_by_flushes_of_our_own() {
    let limits = Limits { unflushed_bytes_max: 16 * BLOCK, ..Limits::default() };
    let mut rig = Rig::new(true, limits);
    let tokens: Vec<u64> = (0..60)
        .map(|at| {
            let work = rig.write_work(at % BLOCKS, &[at as u8 + 1; BLOCK], false);
            rig.submit(work)
        })
        .collect();
    for _ in 0..400 {
        rig.exchange(1);
        assert!(rig.engine.flushes.log.bytes() <= 18 * BLOCK, "{}", rig.engine.flushes.log.bytes());
    }
    rig.run();
    for token in tokens {
        rig.result(token).unwrap();
    }
    assert!(rig.engine.counters.own_flushes >= 6);
    let before = rig.marks();
    rig.reconnect(true);
    assert_eq!(rig.marks(), before);
}

#[test]
fn a_flush_of_our_own_that_fails_is_reported_by_the_next_flush() {
    let limits = Limits { unflushed_bytes_max: 4 * BLOCK, ..Limits::default() };
    let mut rig = Rig::new(true, limits);
    rig.unit.fail_flushes = true;
    for lba in 0..8 {
        rig.write(lba, 1, 1).unwrap();
    }
    rig.unit.fail_flushes = false;
    let error = rig.flush().unwrap_err();
    assert!(error.message.contains("may be lost"), "{error}");
    rig.flush().unwrap();
}

#[test]
fn parts_of_a_block_are_guarded_on_both_kinds_of_units() {
    for sealed in [false, true] {
        let mut rig = Rig::new(sealed, Limits::default());
        rig.do_now(Rig::part(5, 10, b"hello")).unwrap();
        let mut expected = vec![0; BLOCK];
        expected[10..15].copy_from_slice(b"hello");
        assert_eq!(rig.read(5, 1).unwrap(), expected, "a hole is zeros");
        // Another initiator writes between our read and our write.
        let other = rig.write_work(5, &[7; BLOCK], false);
        let token = rig.submit(Rig::part(5, 0, b"AB"));
        rig.exchange(1);
        rig.unit.write_by_another(&other);
        rig.run();
        rig.result(token).unwrap();
        let mut expected = vec![7; BLOCK];
        expected[..2].copy_from_slice(b"AB");
        assert_eq!(rig.read(5, 1).unwrap(), expected, "both updates are there");
        assert_eq!(rig.engine.counters.guarded_retries, 1);
        // The answer to the guarded write is lost: it is found done, not done twice.
        let token = rig.submit(Rig::part(5, 2, b"CD"));
        rig.exchange(1);
        let (_, command) = rig.engine.next_command().unwrap();
        rig.unit.execute(&command);
        rig.reconnect(false);
        rig.run();
        rig.result(token).unwrap();
        expected[2..4].copy_from_slice(b"CD");
        assert_eq!(rig.read(5, 1).unwrap(), expected);
        // And survives a restart like any other write.
        rig.reconnect(true);
        assert_eq!(rig.read(5, 1).unwrap(), expected);
    }
}

#[test]
fn parts_of_one_block_submitted_at_once_all_arrive() {
    let mut rig = Rig::new(true, Limits::default());
    let tokens: Vec<u64> = (0..20).map(|at| rig.submit(Rig::part(3, at * 2, &[at as u8 + 1; 2]))).collect();
    rig.run();
    for token in tokens {
        rig.result(token).unwrap();
    }
    let block = rig.read(3, 1).unwrap();
    assert!((0..20).all(|at| block[at * 2] == at as u8 + 1));
    assert_eq!(rig.engine.counters.guarded_retries, 0, "our own writers are kept apart");
}

#[test]
fn a_plain_unit_without_a_guard_refuses_parts() {
    let mut rig = Rig::new(false, Limits::default());
    let unit = Arc::new(UnitDescription { compare_and_write: false, ..description(false) });
    rig.engine.disconnected();
    rig.engine.connected(unit, false);
    let error = rig.do_now(Rig::part(5, 10, b"hello")).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Refused);
    assert_eq!(rig.unit.writes, 0);
}

#[test]
fn a_unit_that_cannot_unmap_gets_zeros() {
    let mut rig = Rig::new(false, Limits::default());
    rig.write(0, 5, 20).unwrap();
    rig.engine.disconnected();
    rig.engine.connected(Arc::new(UnitDescription { unmap_blocks_max: None, ..description(false) }), false);
    rig.discard(2, 15).unwrap();
    let marks = rig.marks();
    assert_eq!(marks[..20], [5, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 5, 5]);
}

#[test]
fn a_reader_without_the_key_gets_an_error_and_no_older_version() {
    let mut rig = Rig::new(true, Limits::default());
    let context = SealContext::new(SealingDomain([2; 16]), BlockSize::new(BLOCK as u64).unwrap(), 2);
    let text = VolumeKeyFile::new(KeyPurpose::Volume, &[7; 32]).to_text().replace("epoch 1", "epoch 2");
    let keys = VolumeKeyFile::parse(&text).unwrap();
    let sealer = VolumeSealer::blind(&keys, context, Arc::new(CryptoCounters::new())).unwrap();
    let newer = Sealing::new(sealer).seal(Lba(1), &[9; BLOCK]).unwrap();
    rig.unit.blocks.insert(1, Stored::new(&newer.data, &newer.records, 50));
    let error = rig.read(1, 1).unwrap_err();
    assert!(error.message.contains("no key for epoch 2"), "{error}");
}

#[test]
fn versions_holes_and_feedback() {
    let mut rig = Rig::new(true, Limits::default());
    rig.write(2, 1, 1).unwrap();
    rig.write(2, 2, 1).unwrap();
    let version = |rig: &mut Rig, older_than| {
        let answer = rig.ask(ReadVersion::new(Lba(2), StoreSequence(older_than)));
        rig.run();
        match answer.try_recv().unwrap().unwrap() {
            Answer::Version(version) => version,
            other => panic!("{other:?}"),
        }
    };
    let Some(Version::Block { sequence: newest, .. }) = version(&mut rig, 0) else { panic!("a block") };
    let Some(Version::Block { sequence: older, .. }) = version(&mut rig, newest.0) else { panic!("a block") };
    assert!(older < newest);
    assert!(version(&mut rig, 1).is_none(), "nothing is older");
    let holes = rig.ask(ProbeHole::new(Lba(8), 8));
    rig.run();
    assert!(matches!(holes.try_recv().unwrap(), Ok(Answer::HoleBlocks { absent: 8, asked: 8, .. })));
    let holes = rig.ask(ProbeHole::new(Lba(0), 8));
    rig.run();
    assert!(matches!(holes.try_recv().unwrap(), Ok(Answer::HoleBlocks { absent: 2, asked: 8, .. })), "up to the data");
    rig.read(2, 1).unwrap();
    rig.run();
    assert_eq!(rig.unit.verified, [(Lba(2), newest)]);
}

#[test]
fn everything_ends_when_the_connection_is_given_up() {
    let mut rig = Rig::new(true, Limits::default());
    rig.engine.disconnected();
    let write = rig.write_work(0, &[1; BLOCK], false);
    let tokens = [rig.submit(write), rig.submit(Rig::part(0, 0, b"x")), rig.submit(Flush)];
    let error = device_error(DeviceErrorKind::Unreachable, None, "gone");
    rig.engine.fail_all(&error);
    rig.collect();
    for token in tokens {
        assert_eq!(rig.result(token).unwrap_err().kind, DeviceErrorKind::Unreachable);
    }
    let unit = Arc::new(description(true));
    rig.engine.connected(unit, false);
    rig.write(0, 3, 1).unwrap();
}

#[derive(Clone, Debug)]
enum EngineAction {
    Write(u64, usize, u8),
    Part(u64, u8),
    Discard(u64, u64),
    Flush,
    Exchange(usize),
    LoseConnection,
    Restart,
}

fn step() -> impl Strategy<Value = EngineAction> {
    prop_oneof![
        4 => (0..BLOCKS - 12, 1usize..12, 1u8..=255).prop_map(|(lba, count, mark)| EngineAction::Write(lba, count, mark)),
        2 => (0..BLOCKS, 1u8..=255).prop_map(|(lba, mark)| EngineAction::Part(lba, mark)),
        1 => (0..BLOCKS - 12, 1u64..12).prop_map(|(lba, count)| EngineAction::Discard(lba, count)),
        1 => Just(EngineAction::Flush),
        4 => (0usize..6).prop_map(EngineAction::Exchange),
        1 => Just(EngineAction::LoseConnection),
        1 => Just(EngineAction::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Against a model that applies requests in their order: no matter what is lost and forgotten underneath, after everything has
    /// ended the contents are the model's.
    #[test]
    fn any_history_ends_in_the_contents_of_its_requests(
        sealed in any::<bool>(),
        small_log in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let unflushed_bytes_max = if small_log { 8 * BLOCK } else { 64 << 20 };
        let mut rig = Rig::new(sealed, Limits { unflushed_bytes_max, commands_max: 4, ..Limits::default() });
        let mut model = vec![[0_u8; 2]; BLOCKS as usize];
        let mut tokens = Vec::new();
        for step in steps {
            match step {
                EngineAction::Write(lba, count, mark) => {
                    let work = rig.write_work(lba, &vec![mark; count * BLOCK], mark % 5 == 0);
                    tokens.push(rig.submit(work));
                    model[lba as usize..lba as usize + count].fill([mark; 2]);
                }
                EngineAction::Part(lba, mark) => {
                    tokens.push(rig.submit(Rig::part(lba, 1, &[mark])));
                    model[lba as usize][1] = mark;
                }
                EngineAction::Discard(lba, count) => {
                    let work = rig.discard_work(lba, count);
                    tokens.push(rig.submit(work));
                    model[lba as usize..(lba + count) as usize].fill([0; 2]);
                }
                EngineAction::Flush => tokens.push(rig.submit(Flush)),
                EngineAction::Exchange(most) => drop(rig.exchange(most)),
                EngineAction::LoseConnection => {
                    // Some commands are on their way and done, their answers lost.
                    while let Some((_, command)) = rig.engine.next_command() {
                        rig.unit.execute(&command);
                    }
                    rig.reconnect(false);
                }
                EngineAction::Restart => {
                    let _ = rig.engine.next_command();
                    rig.reconnect(true);
                }
            }
        }
        rig.run();
        for token in tokens {
            prop_assert!(rig.result(token).is_ok());
        }
        prop_assert!(rig.finished.is_empty(), "each ends once");
        rig.reconnect(true);
        let all = rig.read(0, BLOCKS as usize).unwrap();
        let is: Vec<[u8; 2]> = all.chunks(BLOCK).map(|block| [block[0], block[1]]).collect();
        prop_assert_eq!(is, model);
    }
}

#[test]
fn seal_records_are_never_shown() {
    // Custody `target` puts block keys into them.
    let secret = "83, 69, 67, 82, 69, 84";
    let records = Records::new(b"SECRET".repeat(10).into());
    let work = Write { lba: Lba(1), data: Buffer::empty(), records: Some(records.clone()), fua: false };
    let entry = Entry::write(Lba(1), BLOCK, Buffer::copy_from(&[0; BLOCK]), Some(records.clone()), None);
    for shown in [format!("{records:?}"), format!("{work:?}"), format!("{entry:?}")] {
        assert!(shown.contains("60 bytes") && !shown.contains(secret) && !shown.contains("SECRET"), "{shown}");
    }
}
