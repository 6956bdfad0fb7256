//! Proves, without sockets or sessions, that a unit does what a disk does (against a model of bytes in memory), and that no command,
//! however malformed, makes it panic, hang, or lose a task.

mod claims;
mod commands;
mod cross_unit;
mod key_erase;
mod sanitize;

use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;
use strongroom_block::{AttachId, BlockKeyWrap, Buffer, Lba, SealRecord};
use strongroom_scsi::transport::target::{Response, WriteSegment};
use strongroom_scsi::transport::{Direction, Lun, Parameters, SealRecords, TaskAttribute};
use strongroom_scsi::vendor::ATTACH_ID_BYTES;
use strongroom_scsi::{Sense, Status, VendorCommand, cdb, provisioning};
use strongroom_store::{OpenOptions, Store};

use super::sanitize::SanitizeStatus;
use super::*;
use crate::access::Identity;
use crate::{Catalogue, VolumeSpec};

const BLOCK: usize = 512;
const BLOCKS: u64 = 256;
const KEY: SessionKey = SessionKey(1);
/// A sync on a busy machine can take seconds; a lost task takes for ever.
const PATIENCE: Duration = Duration::from_secs(60);

fn here() -> Origin {
    Origin { identity: Identity::Plain, from: std::net::Ipv4Addr::LOCALHOST.into(), scheme: None }
}

struct Bench {
    unit: Unit,
    next_task: u64,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn plain() -> Bench {
        Bench::on(&VolumeSpec { block_size: BLOCK as u64, ..VolumeSpec::plain("disk", BLOCKS * BLOCK as u64) })
    }

    fn on(spec: &VolumeSpec) -> Bench {
        Bench::serving(spec, |catalogue, volume| {
            Store::open(&catalogue.store_dir(&volume.name), &OpenOptions::default(), Arc::new(|| {})).unwrap()
        })
    }

    fn serving(spec: &VolumeSpec, open: impl FnOnce(&Catalogue, &Volume) -> Store) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::open(dir.path()).unwrap();
        let volume = catalogue.create(spec).unwrap();
        let store = open(&catalogue, &volume);
        let wake: Arc<dyn Fn() + Send + Sync> = Arc::new(|| {});
        let files = UnitFiles::open(&catalogue.volume_dir(&volume.name), &wake).unwrap();
        let mut unit = Unit::new(
            Arc::new(volume),
            "iqn.2026-11.org.strongroom:disk".into(),
            StoreHandle::new(store),
            BlockCodec::default(),
            files,
            Arc::new(TargetEnvironment::of(&crate::Config::new(dir.path()))),
        );
        let nexus = NexusId { initiator_name: "iqn.a".into(), isid: [0; 6], target_portal_group: 1 };
        unit.attach(KEY, nexus, here(), false);
        let mut bench = Bench { unit, next_task: 0, _dir: dir };
        let first = bench.run(cdb::test_unit_ready(), Direction::None, 0, &[]);
        assert_eq!(first.status, 2, "power on is told first");
        bench
    }

    fn command(&mut self, cdb: [u8; 16], direction: Direction, expected: u32, data: &[u8]) -> transport::Command {
        self.next_task += 1;
        // In three pieces, cut where no block ends.
        let cuts = [0, data.len() / 3, data.len() / 2, data.len()];
        let segment = |pair: &[usize]| WriteSegment {
            offset: pair[0] as u32,
            data: Buffer::copy_from(&data[pair[0]..pair[1]]),
            records: None,
        };
        transport::Command {
            task: TaskId(self.next_task),
            lun: Lun::single_level(0),
            cdb,
            parameters: Parameters::default(),
            attribute: TaskAttribute::Simple,
            direction,
            expected_bytes: expected,
            immediate: false,
            data: cuts.windows(2).map(segment).collect(),
        }
    }

    fn run(&mut self, cdb: [u8; 16], direction: Direction, expected: u32, data: &[u8]) -> Response {
        let command = self.command(cdb, direction, expected, data);
        let task = command.task;
        match self.unit.submit(KEY, command, 16) {
            Verdict::Answer(response) => response,
            Verdict::Violation(what) => panic!("{what}"),
            Verdict::Later => self.finish(task),
        }
    }

    /// Polls until the task is over; a unit that loses it would go on for ever.
    fn finish(&mut self, task: TaskId) -> Response {
        let mut finished = Vec::new();
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            self.unit.poll(&mut finished);
            if let Some(done) = finished.drain(..).find(|finished| finished.task == task) {
                return done.response.expect("somebody wants it");
            }
            std::thread::yield_now();
        }
        panic!("task {task:?} was lost")
    }

    /// What was answered before its end (IMMED) ends too, and is told to nobody.
    fn drain(&mut self) {
        let mut finished = Vec::new();
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            self.unit.poll(&mut finished);
            if self.unit.in_flight() == 0 {
                assert!(finished.iter().all(|finished| finished.response.is_none()));
                return;
            }
            std::thread::yield_now();
        }
        panic!("{} tasks were lost", self.unit.in_flight())
    }

    fn out(&mut self, cdb: [u8; 16], data: &[u8]) -> Response {
        self.run(cdb, Direction::Write, data.len() as u32, data)
    }

    /// Makes an attach id known: a sealed unit executes nothing of one that is not.
    fn register(&mut self, attach_id: AttachId) {
        let cdb = VendorCommand::RegisterAttachment { parameter_list_len: ATTACH_ID_BYTES }.encode();
        assert_eq!(self.out(cdb, &attach_id.0).status, 0);
    }

    fn read(&mut self, lba: u64, count: u32) -> Vec<u8> {
        let response = self.run(cdb::read_16(Lba(lba), count), Direction::Read, count * BLOCK as u32, &[]);
        assert_eq!(response.status, 0);
        response.data.iter().flat_map(|segment| segment.data().to_vec()).collect()
    }
}

#[derive(Clone, Debug)]
enum DiskStep {
    Write { lba: u64, count: u32, seed: u8, fua: bool },
    Same { lba: u64, count: u32, seed: u8, unmap: bool },
    Unmap { lba: u64, count: u32 },
    Swap { lba: u64, seed: u8, right: bool },
    Read { lba: u64, count: u32 },
    Flush,
}

fn step() -> impl Strategy<Value = DiskStep> {
    let range = (0..BLOCKS, 1..40u32).prop_map(|(lba, count)| (lba, count.min((BLOCKS - lba) as u32)));
    prop_oneof![
        4 => (range.clone(), any::<u8>(), any::<bool>())
            .prop_map(|((lba, count), seed, fua)| DiskStep::Write { lba, count, seed, fua }),
        1 => (range.clone(), 0..3u8, any::<bool>())
            .prop_map(|((lba, count), seed, unmap)| DiskStep::Same { lba, count, seed, unmap }),
        1 => range.clone().prop_map(|(lba, count)| DiskStep::Unmap { lba, count }),
        1 => (0..BLOCKS, any::<u8>(), any::<bool>()).prop_map(|(lba, seed, right)| DiskStep::Swap { lba, seed, right }),
        3 => range.prop_map(|(lba, count)| DiskStep::Read { lba, count }),
        1 => Just(DiskStep::Flush),
    ]
}

fn bytes_of(seed: u8, blocks: u32) -> Vec<u8> {
    (0..blocks as usize * BLOCK).map(|at| seed.wrapping_mul(31) ^ (at % 253) as u8).collect()
}

fn take(bench: &mut Bench, model: &mut [u8], step: &DiskStep) {
    let place = |lba: u64, count: u32| lba as usize * BLOCK..(lba as usize + count as usize) * BLOCK;
    match *step {
        DiskStep::Write { lba, count, seed, fua } => {
            let data = bytes_of(seed, count);
            assert_eq!(bench.out(cdb::write_16(Lba(lba), count, fua), &data).status, 0);
            model[place(lba, count)].copy_from_slice(&data);
        }
        DiskStep::Same { lba, count, seed, unmap } => {
            let block = if seed == 0 { vec![0; BLOCK] } else { bytes_of(seed, 1) };
            assert_eq!(bench.out(cdb::write_same_16(Lba(lba), count, unmap, false), &block).status, 0);
            model[place(lba, count)].chunks_exact_mut(BLOCK).for_each(|chunk| chunk.copy_from_slice(&block));
        }
        DiskStep::Unmap { lba, count } => {
            let list = provisioning::unmap_parameters(&[(Lba(lba), count)]);
            assert_eq!(bench.out(cdb::unmap(list.len() as u16), &list).status, 0);
            model[place(lba, count)].fill(0);
        }
        DiskStep::Swap { lba, seed, right } => {
            let mut compare = model[place(lba, 1)].to_vec();
            if !right {
                compare[usize::from(seed)] ^= 0x10;
            }
            let data = bytes_of(seed, 1);
            let response = bench.out(cdb::compare_and_write(Lba(lba), 1, false), &[compare, data.clone()].concat());
            if right {
                assert_eq!(response.status, 0);
                model[place(lba, 1)].copy_from_slice(&data);
            } else {
                assert_eq!(Sense::parse(&response.sense), Some(Sense::MISCOMPARE.at(Lba(seed.into()))));
            }
        }
        DiskStep::Read { lba, count } => assert_eq!(bench.read(lba, count), model[place(lba, count)]),
        DiskStep::Flush => {
            assert_eq!(bench.run(cdb::synchronize_cache_10(), Direction::None, 0, &[]).status, 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_unit_is_a_disk(steps in proptest::collection::vec(step(), 1..60)) {
        let mut bench = Bench::plain();
        let mut model = vec![0; BLOCKS as usize * BLOCK];
        for step in &steps {
            take(&mut bench, &mut model, step);
        }
        prop_assert_eq!(bench.read(0, BLOCKS as u32), model);
    }

    #[test]
    fn no_command_makes_it_panic_or_hang(
        commands in proptest::collection::vec(
            (hostile_cdb(), 0..3u8, 0..9000u32, proptest::collection::vec(any::<u8>(), 0..3000), any::<bool>()), 1..20),
        sealed in any::<bool>(),
    ) {
        let records = SealRecords::new(1, Bytes::from_static(&[0]));
        let mut bench = if sealed { Bench::on(&VolumeSpec::sealed("vault", 1 << 20)) } else { Bench::plain() };
        for (cdb, direction, expected, data, marked) in commands {
            let direction = [Direction::None, Direction::Read, Direction::Write][usize::from(direction)];
            let mut command = bench.command(cdb, direction, expected, if direction == Direction::Write { &data } else { &[] });
            command.data.iter_mut().for_each(|segment| segment.records = records.clone().filter(|_| marked));
            let task = command.task;
            match bench.unit.submit(KEY, command, 16) {
                Verdict::Later => drop(bench.finish(task)),
                Verdict::Answer(_) | Verdict::Violation(_) => {}
            }
        }
        bench.drain();
    }
}

/// A sealed block of a write, with its record.
fn sealed_segment(block: &[u8], record: &SealRecord) -> WriteSegment {
    let records = SealRecords::new(record.as_bytes().len(), Bytes::copy_from_slice(record.as_bytes()));
    WriteSegment { offset: 0, data: Buffer::copy_from(block), records }
}

/// Mostly operation codes that are known, with any operands.
fn hostile_cdb() -> impl Strategy<Value = [u8; 16]> {
    let known = proptest::sample::select(vec![
        0x00u8, 0x03, 0x08, 0x0a, 0x12, 0x16, 0x17, 0x1a, 0x1b, 0x1e, 0x25, 0x28, 0x2a, 0x2f, 0x35, 0x41, 0x42, 0x5a,
        0x88, 0x89, 0x8a, 0x8f, 0x91, 0x93, 0x9e, 0xa0, 0xa3, 0xa8, 0xaa, 0xc1,
    ]);
    let small = prop_oneof![Just(0u8), Just(1), 0..=4u8, any::<u8>()];
    (known, proptest::array::uniform15(small)).prop_map(|(opcode, operands)| {
        let mut cdb = [0; 16];
        cdb[0] = opcode;
        cdb[1..].copy_from_slice(&operands);
        cdb
    })
}

#[test]
fn an_aborted_task_is_answered_to_nobody_and_its_end_is_seen() {
    let mut bench = Bench::plain();
    let data = bytes_of(1, 8);
    let command = bench.command(cdb::write_16(Lba(0), 8, true), Direction::Write, data.len() as u32, &data);
    let task = command.task;
    assert!(matches!(bench.unit.submit(KEY, command, 16), Verdict::Later));
    assert_eq!(bench.unit.abort(KEY, Some(task)), [task]);
    let mut finished = Vec::new();
    while bench.unit.in_flight() > 0 {
        bench.unit.poll(&mut finished);
    }
    assert_eq!(finished.len(), 1);
    assert!(finished[0].task == task && finished[0].response.is_none());
}

#[test]
fn a_task_that_another_session_ends_is_answered_when_it_is_over() {
    let mut bench = Bench::plain();
    let data = bytes_of(1, 8);
    let command = bench.command(cdb::write_16(Lba(0), 8, true), Direction::Write, data.len() as u32, &data);
    let task = command.task;
    assert!(matches!(bench.unit.submit(KEY, command, 16), Verdict::Later));
    assert_eq!(bench.unit.abort_for_others(KEY), [task]);
    assert_eq!(bench.finish(task).status, Status::TaskAborted as u8);
    // Its own session has the last word: after that nobody waits.
    let command = bench.command(cdb::write_16(Lba(0), 8, true), Direction::Write, data.len() as u32, &data);
    let task = command.task;
    assert!(matches!(bench.unit.submit(KEY, command, 16), Verdict::Later));
    bench.unit.abort(KEY, Some(task));
    assert_eq!(bench.unit.abort_for_others(KEY), [task]);
    bench.drain();
}

#[test]
fn who_may_only_read_holds_up_nobody() {
    let mut bench = Bench::plain();
    let nexus = NexusId { initiator_name: "iqn.b".into(), isid: [1; 6], target_portal_group: 1 };
    let reader = SessionKey(2);
    bench.unit.attach(reader, nexus, here(), true);
    let mut ask = |cdb| {
        let command = bench.command(cdb, Direction::None, 0, &[]);
        match bench.unit.submit(reader, command, 16) {
            Verdict::Answer(response) => Sense::parse(&response.sense),
            other => panic!("{other:?}"),
        }
    };
    ask(cdb::test_unit_ready());
    let mut reserve = [0; 16];
    reserve[0] = strongroom_scsi::opcode::RESERVE_6;
    assert_eq!(ask(cdb::start_stop_unit(false)), Some(Sense::WRITE_PROTECTED));
    assert_eq!(ask(reserve), Some(Sense::WRITE_PROTECTED));
    assert_eq!(ask(cdb::test_unit_ready()), None);
    bench.out(cdb::write_16(Lba(0), 1, false), &bytes_of(1, 1));
}

#[test]
fn a_nexus_is_leaving_until_its_last_task_has_ended() {
    let mut bench = Bench::plain();
    let data = bytes_of(1, 8);
    let command = bench.command(cdb::write_16(Lba(0), 8, true), Direction::Write, data.len() as u32, &data);
    assert!(matches!(bench.unit.submit(KEY, command, 16), Verdict::Later));
    let nexus = NexusId { initiator_name: "iqn.a".into(), isid: [0; 6], target_portal_group: 1 };
    assert_eq!(bench.unit.users().session_of(&nexus), Some((KEY, Identity::Plain)));
    bench.unit.detach(KEY);
    assert!(bench.unit.users().session_of(&nexus).is_none() && bench.unit.users().is_leaving(&nexus));
    let mut finished = Vec::new();
    while bench.unit.in_flight() > 0 {
        bench.unit.poll(&mut finished);
    }
    assert!(!bench.unit.users().is_leaving(&nexus) && bench.unit.is_idle());
}

#[test]
fn an_immediate_flush_is_answered_at_once_and_happens() {
    let mut bench = Bench::plain();
    bench.out(cdb::write_16(Lba(0), 1, false), &bytes_of(1, 1));
    let mut immediate = cdb::synchronize_cache_10();
    immediate[1] = 2;
    let command = bench.command(immediate, Direction::None, 0, &[]);
    assert!(matches!(bench.unit.submit(KEY, command, 16), Verdict::Answer(Response { status: 0, .. })));
    assert_eq!(bench.unit.in_flight(), 1);
    bench.drain();
}

#[test]
fn a_stopped_unit_does_not_touch_its_medium() {
    let mut bench = Bench::plain();
    assert_eq!(bench.run(cdb::start_stop_unit(false), Direction::None, 0, &[]).status, 0);
    let response = bench.run(cdb::read_16(Lba(0), 1), Direction::Read, BLOCK as u32, &[]);
    assert_eq!(Sense::parse(&response.sense), Some(Sense::STOPPED));
    assert_eq!(bench.run(cdb::start_stop_unit(true), Direction::None, 0, &[]).status, 0);
    bench.read(0, 1);
}
