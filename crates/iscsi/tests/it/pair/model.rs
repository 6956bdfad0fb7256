//! A reference model of commands: what each should give, computed from the command alone, beside the machines. Random
//! commands, sizes, residuals, segmentations, seals, holes, orders of completion, aborts and resets.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use strongroom_block::{AttachId, Buffer, HoleRecord, Lba, Mode, RecordFlags, SealRecord, Stamp, StoreSequence, Suite};
use strongroom_iscsi::initiator::{
    self, DataContent, Direction, TaskFunction, TaskId, TaskManagementResult, WriteRecords, WriteSource,
};
use strongroom_iscsi::target::{self, ReadPart, Response};
use strongroom_iscsi::{DigestOffer, Lun, Offer, Residual};
use strongroom_scsi::transport::{StoredRecords, Written};

use super::{Pair, Random, initiator_config};

pub(crate) const BLOCK: usize = 512;
const TASK_SET_FULL: u8 = 0x28;
/// Memory for all writes that may be under way, though they come in PDUs of 512 bytes and each takes a page.
const AMPLE: u64 = 4 << 20;
const RECORD: usize = SealRecord::BASE_BYTES;
const ENTRY: usize = 8 + RECORD;

/// What the target will do with a command, decided when it is submitted.
struct Plan {
    expected: u32,
    wanted: u64,
    direction: Direction,
    status: u8,
    sense: Vec<u8>,
    /// Data to write, or what the read returns (holes as zeros).
    data: Vec<u8>,
    /// Which blocks of a sealed read are holes.
    holes: Vec<bool>,
    sealed: bool,
    /// Header segments of the response.
    written: Option<Written>,
}

/// What has come back so far.
#[derive(Default)]
struct Progress {
    data: Vec<u8>,
}

pub(crate) struct Model {
    pub(crate) pair: Pair,
    random: Random,
    plans: HashMap<u64, Plan>,
    names: HashMap<TaskId, (u64, Progress)>,
    executing: Vec<target::Command>,
    /// Task management that the target's application has not carried out yet.
    managing: Vec<target::TaskManagement>,
    /// Commands that the target's application was given.
    arrived: HashSet<u64>,
    /// Whether data can take more memory than the target has for it: then it may refuse a write.
    may_be_full: bool,
    next: u64,
    sealed: bool,
    finished: u64,
}

/// The record of a block: depends on its content, so that a record that went astray is noticed.
fn record_of(block: &[u8]) -> SealRecord {
    let counter = strongroom_block::keyless_checksum(block);
    let stamp = Stamp { attach_id: AttachId([7; 16]), counter };
    SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(0), 1, stamp, counter, [9; 16])
}

fn hole_record() -> SealRecord {
    let stamp = Stamp { attach_id: AttachId([8; 16]), counter: 1 };
    SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(RecordFlags::HOLE), 1, stamp, 0, [3; 16])
}

fn offer(random: &mut Random, sealed: bool) -> Offer {
    let mut length = |max: u64| {
        let length = 512 + random.below(max) as u32;
        if sealed { length.next_multiple_of(BLOCK as u32) } else { length }
    };
    let (recv_segment_bytes_max, max_burst_bytes) = (length(6000), length(12000));
    let first_burst_bytes = length(9000).min(max_burst_bytes);
    Offer {
        recv_segment_bytes_max,
        first_burst_bytes,
        max_burst_bytes,
        initial_r2t: random.one_in(2),
        immediate_data: random.one_in(2),
        max_outstanding_r2t: 1 + random.below(4) as u16,
        header_digest: if random.one_in(2) { DigestOffer::Prefer } else { DigestOffer::Allow },
        data_digest: if random.one_in(2) { DigestOffer::Prefer } else { DigestOffer::Allow },
        protocol_level: 2,
        error_recovery_level: u8::from(random.one_in(2)),
        ..Offer::default()
    }
}

impl Model {
    pub(crate) fn new(seed: u64, sealed: bool) -> Model {
        let mut random = Random::new(seed);
        let mut initiator = initiator_config();
        initiator.in_channel = sealed;
        initiator.offer = offer(&mut random, sealed);
        let target = target::Config {
            in_channel: sealed,
            offer: offer(&mut random, sealed),
            queue_depth: 1 + random.below(8) as u16,
            write_memory_bytes_max: if random.one_in(2) { AMPLE } else { 1 + random.below(100_000) },
            transfer_bytes_max: 30_000,
            ..target::Config::default()
        };
        let may_be_full = target.write_memory_bytes_max < AMPLE;
        let pair = Pair::logged_in(initiator, target);
        Model {
            pair,
            arrived: HashSet::new(),
            may_be_full,
            random,
            plans: HashMap::new(),
            names: HashMap::new(),
            executing: Vec::new(),
            managing: Vec::new(),
            next: 0,
            sealed,
            finished: 0,
        }
    }

    /// Submits `commands` of them, in random interleaving with everything else, and checks each result.
    pub(crate) fn run(&mut self, commands: u64) {
        while self.finished < commands {
            let before = (self.next, self.finished);
            for _ in 0..4 {
                self.step(commands);
            }
            if before == (self.next, self.finished) && self.random.one_in(16) {
                self.pair.settle();
            }
            self.events();
        }
        assert_eq!(self.pair.initiator.outstanding(), 0);
        let residuals = self.pair.target.statistics().residuals;
        assert!(residuals <= commands);
    }

    fn step(&mut self, commands: u64) {
        if self.random.one_in(40) {
            self.manage();
        }
        if self.random.one_in(8)
            && let Some(request) = self.managing.pop()
        {
            self.executing.retain(|command| !request.tasks.contains(&command.task));
            self.pair.target.answer_task_management(request.id, TaskManagementResult::Complete);
        }
        match self.random.below(4) {
            0 if self.next < commands && self.pair.initiator.outstanding() < 40 => self.submit(),
            1 => {
                self.pair.step_to_target();
            }
            2 => {
                self.pair.step_to_initiator();
            }
            _ if !self.executing.is_empty() => {
                let at = self.random.below(self.executing.len() as u64) as usize;
                let command = self.executing.swap_remove(at);
                self.complete(command);
            }
            _ => {}
        }
    }

    /// Asks for the end of a task, or of all tasks of a unit.
    fn manage(&mut self) {
        let lun = Lun::single_level(self.random.below(3) as u16);
        let mut tasks: Vec<TaskId> = self.names.keys().copied().collect();
        tasks.sort_unstable();
        let asked = match self.random.below(8) {
            0 => self.pair.initiator.manage_task(TaskFunction::LogicalUnitReset, lun, None),
            _ if tasks.is_empty() => return,
            _ => {
                let task = tasks[self.random.below(tasks.len() as u64) as usize];
                self.pair.initiator.manage_task(TaskFunction::AbortTask, lun, Some(task))
            }
        };
        assert!(matches!(asked, Ok(_) | Err(initiator::SubmitError::QueueFull)));
    }

    fn submit(&mut self) {
        let name = self.next;
        self.next += 1;
        let plan = self.plan();
        let mut cdb = [0; 16];
        cdb[2..10].copy_from_slice(&name.to_be_bytes());
        let lun = Lun::single_level(self.random.below(3) as u16);
        let command = match plan.direction {
            Direction::None => initiator::Command::without_data(lun, cdb),
            Direction::Read => initiator::Command {
                sealed_block_bytes: plan.sealed.then_some(BLOCK as u32),
                ..initiator::Command::read(lun, cdb, plan.expected)
            },
            Direction::Write => {
                let data = Buffer::copy_from(&plan.data);
                let records = plan.sealed.then(|| {
                    let records: Vec<u8> =
                        plan.data.chunks(BLOCK).flat_map(|block| record_of(block).as_bytes().to_vec()).collect();
                    WriteRecords { block_bytes: BLOCK as u32, record_bytes: RECORD as u32, bytes: Bytes::from(records) }
                });
                initiator::Command::write(lun, cdb, WriteSource { data, records })
            }
        };
        let task = self.pair.initiator.submit(command).expect("logged in, and below the limit");
        self.names.insert(task, (name, Progress::default()));
        self.plans.insert(name, plan);
    }

    fn plan(&mut self) -> Plan {
        let random = &mut self.random;
        let direction = [Direction::None, Direction::Read, Direction::Write][random.below(3) as usize];
        let sealed = self.sealed && !random.one_in(4) && direction != Direction::None;
        let mut length = || {
            let length = if random.one_in(3) { random.below(600) } else { random.below(20_000) };
            if sealed { length.next_multiple_of(BLOCK as u64) } else { length }
        };
        let expected = if direction == Direction::None { 0 } else { length() };
        let other = length();
        let wanted = if direction != Direction::None && random.one_in(3) { other } else { expected };
        let len = if direction == Direction::Read { wanted } else { expected };
        let mut data = random.bytes(len as usize);
        let mut holes = Vec::new();
        if sealed && direction == Direction::Read {
            holes = (0..data.len() / BLOCK).map(|_| random.one_in(3)).collect();
            for (block, _) in data.chunks_mut(BLOCK).zip(&holes).filter(|(_, hole)| **hole) {
                block.fill(0);
            }
        }
        let (status, sense) = match random.below(8) {
            0 => (0x02, random.bytes(18)),
            1 => (0x08, Vec::new()),
            _ => (0, Vec::new()),
        };
        let mut written = None;
        if sealed && direction == Direction::Write {
            let (is_repeat, first) = (random.one_in(4), StoreSequence(random.below(9)));
            written = Some(Written { is_repeat, first, superseded: 3 });
        }
        Plan { expected: expected as u32, wanted, direction, status, sense, data, holes, sealed, written }
    }

    fn complete(&mut self, command: target::Command) {
        let name = name_of(&command.cdb);
        // An abort may have reached the initiator's application already; the target's does not know yet.
        let Some(plan) = self.plans.get(&name) else { return };
        assert_eq!(command.expected_bytes, plan.expected);
        assert_eq!(command.direction, plan.direction);
        if plan.direction == Direction::Write {
            check_write(plan, &command);
        }
        let data = match plan.direction {
            Direction::Read if plan.sealed => sealed_segments(&mut self.random, &self.pair.target, plan),
            Direction::Read => plain_segments(&mut self.random, &plan.data),
            _ => Vec::new(),
        };
        let wanted_bytes = (plan.direction == Direction::Write).then_some(plan.wanted);
        let (status, sense, written) = (plan.status, plan.sense.clone(), plan.written);
        let response = Response { status, sense, data, written, wanted_bytes };
        assert!(self.pair.target.complete(command.task, response), "the task is there");
    }

    fn events(&mut self) {
        while let Some(event) = self.pair.target.poll_event() {
            match event {
                target::Event::Command(command) => {
                    self.arrived.insert(name_of(&command.cdb));
                    self.executing.push(command);
                }
                target::Event::TaskManagement(request) => self.managing.push(request),
                other => panic!("the target said {other:?}"),
            }
        }
        while let Some(event) = self.pair.initiator.poll_event() {
            match event {
                initiator::Event::DataIn(part) => self.take(part),
                initiator::Event::Completed(completed) => self.finish(completed),
                initiator::Event::TaskManagementDone { ended, .. } => {
                    for task in ended {
                        let (name, _) = self.names.remove(&task).expect("ended once, and not completed before");
                        self.plans.remove(&name);
                        self.finished += 1;
                    }
                }
                other => panic!("the initiator said {other:?}"),
            }
        }
    }

    fn take(&mut self, part: initiator::DataIn) {
        let (name, progress) = self.names.get_mut(&part.task).expect("data of a task that is there");
        assert_eq!(part.offset as usize, progress.data.len(), "in order, without gaps");
        let plan = &self.plans[name];
        if let DataContent::Hole { sequence, record } = &part.content {
            let hole = HoleRecord::decode(record).expect("a sound hole");
            assert_eq!((*sequence, hole.record), (StoreSequence(5), hole_record()));
            assert_eq!(part.covers_bytes as usize % BLOCK, 0);
            progress.data.resize(progress.data.len() + part.covers_bytes as usize, 0);
            return;
        }
        if plan.sealed {
            let DataContent::Sealed { data, records } = &part.content else { panic!("sealed, with records") };
            assert_eq!(records.entry_bytes(), ENTRY);
            for (entry, block) in records.iter().zip(data.chunks(BLOCK)) {
                assert_eq!(&entry[8..], record_of(block).as_bytes(), "each block with its record");
            }
        }
        progress.data.extend_from_slice(part.data());
    }

    fn finish(&mut self, completed: initiator::Completed) {
        let (name, progress) = self.names.remove(&completed.task).expect("one completion per command");
        let plan = self.plans.remove(&name).expect("a plan per command");
        self.finished += 1;
        if completed.status == TASK_SET_FULL {
            assert!(self.may_be_full && plan.direction == Direction::Write, "there was room for all");
            assert!(!self.arrived.contains(&name), "what is refused is not carried out");
            return;
        }
        assert_eq!((completed.status, completed.response), (plan.status, 0));
        assert_eq!(completed.sense, plan.sense);
        assert_eq!(completed.written, plan.written, "what the response says of the write");
        assert_eq!(completed.residual, Residual::of(plan.expected, plan.wanted), "residuals are exact");
        if plan.direction == Direction::Read {
            let moved = plan.data.len().min(plan.expected as usize);
            assert_eq!(completed.moved_bytes as usize, progress.data.len());
            assert!(progress.data == plan.data[..moved], "the bytes that the target returned");
        }
    }
}

fn name_of(cdb: &[u8; 16]) -> u64 {
    u64::from_be_bytes(cdb[2..10].try_into().expect("8 bytes"))
}

fn check_write(plan: &Plan, command: &target::Command) {
    let mut at = 0;
    for segment in &command.data {
        assert_eq!(segment.offset as usize, at, "in order, without gaps");
        assert_eq!(segment.records.is_some(), plan.sealed);
        if let Some(records) = &segment.records {
            assert_eq!(records.count() * BLOCK, segment.data.len(), "whole blocks");
            for (entry, block) in records.iter().zip(segment.data.chunks(BLOCK)) {
                assert_eq!(entry, record_of(block).as_bytes(), "each block with its record");
            }
        }
        at += segment.data.len();
    }
    assert!(command.gather()[..] == plan.data[..], "the bytes that the initiator wrote");
}

fn plain_segments(random: &mut Random, data: &[u8]) -> Vec<ReadPart> {
    let mut segments = Vec::new();
    let mut rest = data;
    while !rest.is_empty() {
        let len = (1 + random.below(rest.len() as u64 * 2) as usize).min(rest.len());
        segments.push(ReadPart::Plain(Buffer::copy_from(&rest[..len])));
        rest = &rest[len..];
    }
    segments
}

fn sealed_segments(random: &mut Random, target: &super::Target, plan: &Plan) -> Vec<ReadPart> {
    let max = target.sealed_blocks_max(BLOCK as u32, ENTRY).max(1);
    let mut segments = Vec::new();
    let mut at = 0;
    while at < plan.holes.len() {
        let run = plan.holes[at..].iter().take_while(|hole| **hole == plan.holes[at]).count();
        // What cannot be cut must end where the expected length ends, or it is left out whole.
        let before_end = (plan.expected as usize / BLOCK).checked_sub(at).filter(|left| *left > 0).unwrap_or(run);
        let run = run.min(before_end).min(1 + random.below(max as u64) as usize);
        if plan.holes[at] {
            let record = HoleRecord { start: Lba(0), count: 1 << 20, record: hole_record() };
            segments.push(ReadPart::Hole {
                covers_bytes: (run * BLOCK) as u32,
                covered_blocks: run as u32,
                sequence: StoreSequence(5),
                record: Box::new(record),
            });
        } else {
            let blocks = &plan.data[at * BLOCK..(at + run) * BLOCK];
            let records: Vec<_> = blocks.chunks(BLOCK).map(record_of).collect();
            let entries = records.iter().map(|record| (StoreSequence(77), record));
            let records = StoredRecords::new(ENTRY, entries, false);
            segments.push(ReadPart::Sealed { data: Buffer::copy_from(blocks), records });
        }
        at += run;
    }
    segments
}
