//! The tests of a transport, in terms of SCSI alone.

use std::time::{Duration, Instant};

use strongroom_block::{
    AttachId, Buffer, HoleRecord, Lba, Mode, RecordFlags, SealRecord, Stamp, StoreSequence, Suite, keyless_checksum,
};
use strongroom_scsi::transport::initiator::{
    self, Command, Completed, DataContent, DataIn, Session as _, SubmitError, TaskId, WriteRecords, WriteSource,
};
use strongroom_scsi::transport::target::{self, ManagementFunction, ReadPart, Response, Session as _};
use strongroom_scsi::transport::{
    Direction, Lun, Operation, Parameters, Residual, StoredRecords, TaskFunction, TaskManagementResult, Written,
};

const LUN: Lun = Lun::single_level(0);
const BLOCK: usize = 512;
const READ: [u8; 16] = [0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
const WRITE: [u8; 16] = [0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
/// More than any burst or frame.
const LONG: usize = 1 << 20;

/// Two sessions joined in memory: logged in, no event left, sealed blocks allowed.
pub(crate) trait Pair {
    type Initiator: initiator::Session<TransportEvent: std::fmt::Debug>;
    type Target: target::Session<TransportEvent: std::fmt::Debug>;

    fn new() -> Self;

    fn initiator(&mut self) -> &mut Self::Initiator;

    fn target(&mut self) -> &mut Self::Target;

    fn now(&self) -> Instant;

    /// Carries frames both ways until neither side has one.
    fn settle(&mut self);
}

fn command<P: Pair>(pair: &mut P) -> target::Command {
    match pair.target().poll_event() {
        Some(target::Event::Command(command)) => command,
        other => panic!("expected a command, got {other:?}"),
    }
}

fn management<P: Pair>(pair: &mut P) -> target::TaskManagement {
    match pair.target().poll_event() {
        Some(target::Event::TaskManagement(request)) => request,
        other => panic!("expected a task management request, got {other:?}"),
    }
}

/// The data of one command, and its end.
fn completed<P: Pair>(pair: &mut P) -> (Vec<DataIn>, Completed) {
    let mut parts = Vec::new();
    loop {
        match pair.initiator().poll_event() {
            Some(initiator::Event::DataIn(part)) => parts.push(part),
            Some(initiator::Event::Completed(completed)) => return (parts, completed),
            other => panic!("expected a completion, got {other:?}"),
        }
    }
}

fn managed<P: Pair>(pair: &mut P) -> (TaskId, TaskManagementResult, Vec<TaskId>) {
    match pair.initiator().poll_event() {
        Some(initiator::Event::TaskManagementDone { id, result, ended }) => (id, result, ended),
        other => panic!("expected the answer to a task management function, got {other:?}"),
    }
}

fn submit<P: Pair>(pair: &mut P, command: Command) -> TaskId {
    let task = pair.initiator().submit(command).expect("taken");
    pair.settle();
    task
}

fn answer<P: Pair>(pair: &mut P, command: &target::Command, response: Response) {
    assert!(pair.target().complete(command.task, response), "the task is there");
    pair.settle();
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7) as u8 ^ (at >> 8) as u8).collect()
}

/// Checks that parts follow each other without gaps.
fn joined(parts: &[DataIn]) -> Vec<u8> {
    let mut all = Vec::new();
    for part in parts {
        assert_eq!(part.offset as usize, all.len(), "in order and without gaps");
        assert_eq!(part.covers_bytes as usize, part.data().len());
        all.extend_from_slice(part.data());
    }
    all
}

fn stamp(counter: u64) -> Stamp {
    Stamp { attach_id: AttachId([7; 16]), counter }
}

fn record(flags: RecordFlags, counter: u64) -> SealRecord {
    SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, flags, 3, stamp(counter), 0x44, [0x55; 16])
}

/// The record of a block of `data`: a transport may compare its checksum on arrival.
fn record_of(data: &[u8], block: u64) -> SealRecord {
    let checksum = keyless_checksum(&data[block as usize * BLOCK..][..BLOCK]);
    record(RecordFlags::default(), block).with_checksum(checksum)
}

fn write(data: &[u8]) -> Command {
    Command::write(LUN, WRITE, WriteSource::plain(Buffer::copy_from(data)))
}

fn sealed_write(blocks: usize) -> Command {
    let data = pattern(blocks * BLOCK);
    let records: Vec<u8> = (0..blocks).flat_map(|at| record_of(&data, at as u64).as_bytes().to_vec()).collect();
    let records =
        WriteRecords { block_bytes: BLOCK as u32, record_bytes: SealRecord::BASE_BYTES as u32, bytes: records.into() };
    let data = Buffer::copy_from(&data);
    Command::write(LUN, WRITE, WriteSource { data, records: Some(records) })
}

pub(crate) fn a_read_returns_what_the_unit_gave<P: Pair>() {
    let mut pair = P::new();
    let data = pattern(LONG + 100);
    let task = submit(&mut pair, Command::read(LUN, READ, data.len() as u32));
    let request = command(&mut pair);
    assert_eq!((request.lun, request.cdb, request.direction), (LUN, READ, Direction::Read));
    assert_eq!((request.expected_bytes as usize, request.data.len()), (data.len(), 0));
    let parts = data.chunks(70_000).map(|chunk| ReadPart::Plain(Buffer::copy_from(chunk))).collect();
    answer(&mut pair, &request, Response { data: parts, ..Response::good() });
    let (parts, done) = completed(&mut pair);
    assert!(joined(&parts) == data, "the same bytes");
    assert_eq!((done.task, done.status, done.response, done.residual), (task, 0, 0, Residual::None));
    assert_eq!(done.moved_bytes as usize, data.len());
    assert_eq!(pair.target().unsent_bytes(), 0);
}

pub(crate) fn a_write_arrives_whole_and_in_order<P: Pair>() {
    let mut pair = P::new();
    for len in [0, 1, BLOCK, 100_001, LONG] {
        let data = pattern(len);
        let task = submit(&mut pair, write(&data));
        let request = command(&mut pair);
        assert_eq!((request.direction, request.expected_bytes as usize), (Direction::Write, len));
        let mut at = 0;
        for segment in &request.data {
            assert_eq!(segment.offset as usize, at, "in order and without gaps");
            assert!(segment.records.is_none(), "plain data has no records");
            at += segment.data.len();
        }
        assert!(request.gather()[..] == data[..] && request.gather_wiped()[..] == data[..], "the same {len} bytes");
        answer(&mut pair, &request, Response::good());
        let (parts, done) = completed(&mut pair);
        assert!(parts.is_empty());
        assert_eq!((done.task, done.status, done.response, done.residual), (task, 0, 0, Residual::None));
    }
}

pub(crate) fn residuals_are_exact<P: Pair>() {
    let mut pair = P::new();
    for (offered, expected, residual) in [
        (100, 300, Residual::Underflow(200)),
        (300, 100, Residual::Overflow(200)),
        (0, 50, Residual::Underflow(50)),
        (50, 50, Residual::None),
    ] {
        submit(&mut pair, Command::read(LUN, READ, expected));
        let request = command(&mut pair);
        answer(&mut pair, &request, Response::good_data(Buffer::copy_from(&pattern(offered))));
        let (parts, done) = completed(&mut pair);
        assert_eq!(joined(&parts), pattern(offered.min(expected as usize)), "no more than was asked for");
        assert_eq!(done.residual, residual);
    }
    submit(&mut pair, write(&pattern(600)));
    let request = command(&mut pair);
    answer(&mut pair, &request, Response { wanted_bytes: Some(512), ..Response::good() });
    assert_eq!(completed(&mut pair).1.residual, Residual::Underflow(88));
}

pub(crate) fn status_and_sense_arrive<P: Pair>() {
    let mut pair = P::new();
    let sense = pattern(18);
    for (response, status, sense) in
        [(Response::check_condition(sense.clone()), 0x02, sense.clone()), (Response::task_set_full(), 0x28, Vec::new())]
    {
        submit(&mut pair, Command::read(LUN, READ, 512));
        let request = command(&mut pair);
        answer(&mut pair, &request, response);
        let (_, done) = completed(&mut pair);
        assert_eq!((done.status, done.response, done.sense), (status, 0, sense));
    }
}

pub(crate) fn sealed_writes_arrive_with_a_record_per_block<P: Pair>() {
    let mut pair = P::new();
    for blocks in [1, 8, LONG / BLOCK] {
        submit(&mut pair, sealed_write(blocks));
        let request = command(&mut pair);
        let all = pattern(blocks * BLOCK);
        assert!(request.gather()[..] == all[..], "the same bytes");
        let mut counter = 0;
        for segment in &request.data {
            let records = segment.records.as_ref().expect("sealed data has records");
            assert_eq!(records.entry_bytes(), SealRecord::BASE_BYTES);
            assert_eq!(records.count() * BLOCK, segment.data.len(), "whole blocks, each with its record");
            for entry in records.iter() {
                assert_eq!(entry, record_of(&all, counter).as_bytes());
                counter += 1;
            }
        }
        assert_eq!(counter as usize, blocks);
        answer(&mut pair, &request, Response::good());
        completed(&mut pair);
    }
}

pub(crate) fn sealed_reads_arrive_with_records_and_holes<P: Pair>() {
    let mut pair = P::new();
    let entry_bytes = 8 + SealRecord::BASE_BYTES;
    assert!(pair.target().sealed_blocks_max(BLOCK as u32, entry_bytes) >= 2);
    let mut read = Command::read(LUN, READ, 8 * BLOCK as u32);
    read.sealed_block_bytes = Some(BLOCK as u32);
    submit(&mut pair, read);
    let request = command(&mut pair);
    let all = pattern(3 * BLOCK);
    let sealed = |blocks: std::ops::Range<u64>| {
        let data = Buffer::copy_from(&all[blocks.start as usize * BLOCK..blocks.end as usize * BLOCK]);
        let records: Vec<SealRecord> = blocks.clone().map(|at| record_of(&all, at)).collect();
        let entries = blocks.zip(&records).map(|(at, record)| (StoreSequence(100 + at), record));
        let entries = entries.collect::<Vec<_>>().into_iter();
        ReadPart::Sealed { data, records: StoredRecords::new(entry_bytes, entries, false) }
    };
    let hole = HoleRecord { start: Lba(0), count: 64, record: record(RecordFlags(RecordFlags::HOLE), 9) };
    let absent = ReadPart::Hole {
        covers_bytes: 5 * BLOCK as u32,
        covered_blocks: 5,
        sequence: StoreSequence(55),
        record: Box::new(hole.clone()),
    };
    answer(&mut pair, &request, Response { data: vec![sealed(0..2), absent, sealed(2..3)], ..Response::good() });
    let (parts, done) = completed(&mut pair);
    assert_eq!((done.status, done.residual, done.moved_bytes as usize), (0, Residual::None, 8 * BLOCK));
    // A transport may hand over each block apart, but in order, without gaps, and a hole in one piece.
    let (mut end, mut hole_at) = (0, None);
    for part in &parts {
        assert_eq!(part.offset as usize, end, "in order and without gaps");
        if let DataContent::Hole { .. } = part.content {
            hole_at = Some((end, part.covers_bytes as usize));
        }
        end += part.covers_bytes as usize;
    }
    assert_eq!((end, hole_at), (8 * BLOCK, Some((2 * BLOCK, 5 * BLOCK))));
    let mut counter = 0;
    for part in &parts {
        match &part.content {
            DataContent::Sealed { data, records } => {
                assert_eq!(data[..], all[counter as usize * BLOCK..][..data.len()]);
                assert_eq!((records.entry_bytes(), records.count() * BLOCK), (entry_bytes, data.len()));
                for entry in records.iter() {
                    assert_eq!(entry[..8], (100u64 + counter).to_be_bytes());
                    assert_eq!(&entry[8..], record_of(&all, counter).as_bytes());
                    counter += 1;
                }
            }
            DataContent::Hole { sequence, record } => {
                assert_eq!((*sequence, HoleRecord::decode(record).expect("sound")), (StoreSequence(55), hole.clone()));
            }
            DataContent::Plain(_) => panic!("sealed blocks and holes were given"),
        }
    }
    assert_eq!(counter, 3);
}

pub(crate) fn parameters_survive<P: Pair>() {
    let mut pair = P::new();
    let operation = Operation { id: stamp(5), replay: Some(StoreSequence(6)) };
    let first = Operation { replay: None, ..operation };
    for parameters in [
        Parameters::default(),
        Parameters { expected_stamp: Some([4; Stamp::BYTES]), ..Parameters::default() },
        Parameters { older_than: Some(StoreSequence(9)), ..Parameters::default() },
        Parameters { keys_destroyed: Some(2), ..Parameters::default() },
        Parameters { operation: Some(Ok(first)), ..Parameters::default() },
        Parameters {
            expected_stamp: Some([0; Stamp::BYTES]),
            older_than: Some(StoreSequence(u64::MAX)),
            keys_destroyed: Some(u32::MAX),
            operation: Some(Ok(operation)),
        },
    ] {
        for command_of in
            [Command::without_data(LUN, READ), Command::read(LUN, READ, 512), sealed_write(8), write(&[1])]
        {
            submit(&mut pair, Command { parameters, ..command_of });
            let request = command(&mut pair);
            assert_eq!(request.parameters, parameters);
            answer(&mut pair, &request, Response::good());
            completed(&mut pair);
        }
    }
}

pub(crate) fn a_response_says_where_a_write_was_stored<P: Pair>() {
    let mut pair = P::new();
    let stored = Written { is_repeat: false, first: StoreSequence(7), superseded: 2 };
    let repeated = Written { is_repeat: true, ..Written::default() };
    for written in [None, Some(stored), Some(repeated)] {
        submit(&mut pair, sealed_write(4));
        let request = command(&mut pair);
        answer(&mut pair, &request, Response { written, ..Response::good() });
        assert_eq!(completed(&mut pair).1.written, written);
    }
}

pub(crate) fn commands_arrive_in_the_order_of_their_submission<P: Pair>() {
    let mut pair = P::new();
    let mut tasks = Vec::new();
    for at in 0..8u8 {
        let mut cdb = READ;
        cdb[9] = at;
        tasks.push(pair.initiator().submit(Command::read(LUN, cdb, 512)).expect("taken"));
    }
    pair.settle();
    let requests: Vec<target::Command> = (0..8).map(|_| command(&mut pair)).collect();
    for (at, request) in requests.iter().enumerate() {
        assert_eq!(usize::from(request.cdb[9]), at);
    }
    // Answers may come in any order.
    for (at, request) in requests.iter().enumerate().rev() {
        answer(&mut pair, request, Response::good_data(Buffer::copy_from(&[at as u8; 512])));
        let (parts, done) = completed(&mut pair);
        assert_eq!((done.task, joined(&parts)), (tasks[at], vec![at as u8; 512]));
    }
}

pub(crate) fn an_aborted_task_is_not_answered<P: Pair>() {
    let mut pair = P::new();
    let task = submit(&mut pair, Command::read(LUN, READ, 512));
    let other = submit(&mut pair, Command::read(LUN, READ, 512));
    let (request, kept) = (command(&mut pair), command(&mut pair));
    let id = pair.initiator().manage_task(TaskFunction::AbortTask, LUN, Some(task)).expect("taken");
    pair.settle();
    let asked = management(&mut pair);
    assert_eq!(asked.function, ManagementFunction::AbortTask(request.task));
    assert_eq!(asked.tasks, [request.task]);
    pair.target().answer_task_management(asked.id, TaskManagementResult::Complete);
    pair.settle();
    assert_eq!(managed(&mut pair), (id, TaskManagementResult::Complete, vec![task]));
    assert!(!pair.target().complete(request.task, Response::good()), "it is gone");
    answer(&mut pair, &kept, Response::good());
    assert_eq!(completed(&mut pair).1.task, other, "the other one is not");
}

pub(crate) fn a_reset_ends_every_task_of_the_unit<P: Pair>() {
    let mut pair = P::new();
    let mut tasks: Vec<TaskId> = (0..3).map(|_| submit(&mut pair, Command::read(LUN, READ, 512))).collect();
    let mut executing: Vec<_> = (0..3).map(|_| command(&mut pair).task).collect();
    let id = pair.initiator().manage_task(TaskFunction::LogicalUnitReset, LUN, None).expect("taken");
    pair.settle();
    let mut asked = management(&mut pair);
    assert_eq!(asked.function, ManagementFunction::LogicalUnitReset(LUN));
    asked.tasks.sort_unstable();
    executing.sort_unstable();
    assert_eq!(asked.tasks, executing);
    pair.target().answer_task_management(asked.id, TaskManagementResult::Complete);
    pair.settle();
    let (done, result, mut ended) = managed(&mut pair);
    ended.sort_unstable();
    tasks.sort_unstable();
    assert_eq!((done, result, ended), (id, TaskManagementResult::Complete, tasks));
    // The session goes on.
    submit(&mut pair, write(&pattern(BLOCK)));
    let request = command(&mut pair);
    answer(&mut pair, &request, Response::good());
    assert_eq!(completed(&mut pair).1.status, 0);
}

pub(crate) fn a_refused_function_ends_nothing<P: Pair>() {
    let mut pair = P::new();
    let task = submit(&mut pair, Command::read(LUN, READ, 512));
    let request = command(&mut pair);
    for result in [
        TaskManagementResult::AuthorizationFailed,
        TaskManagementResult::LunDoesNotExist,
        TaskManagementResult::NotSupported,
        TaskManagementResult::Rejected,
    ] {
        let id = pair.initiator().manage_task(TaskFunction::LogicalUnitReset, LUN, None).expect("taken");
        pair.settle();
        let asked = management(&mut pair);
        pair.target().answer_task_management(asked.id, result);
        pair.settle();
        assert_eq!(managed(&mut pair), (id, result, vec![]));
    }
    answer(&mut pair, &request, Response::good());
    assert_eq!(completed(&mut pair).1.task, task);
}

pub(crate) fn a_query_is_answered<P: Pair>() {
    let mut pair = P::new();
    submit(&mut pair, Command::read(LUN, READ, 512));
    command(&mut pair);
    for function in [TaskFunction::QueryTaskSet, TaskFunction::QueryAsyncEvent] {
        let id = pair.initiator().manage_task(function, LUN, None).expect("taken");
        pair.settle();
        let asked = management(&mut pair);
        match function {
            TaskFunction::QueryTaskSet => {
                assert_eq!(asked.function, ManagementFunction::QueryTaskSet { lun: LUN, any: true });
                pair.target().answer_task_management(asked.id, TaskManagementResult::Succeeded);
            }
            _ => {
                assert_eq!(asked.function, ManagementFunction::QueryAsyncEvent(LUN));
                pair.target().answer_query(asked.id, [6, 0x29, 0]);
            }
        }
        pair.settle();
        assert_eq!(managed(&mut pair), (id, TaskManagementResult::Succeeded, vec![]));
    }
}

pub(crate) fn tasks_that_another_session_ended_are_answered<P: Pair>() {
    let mut pair = P::new();
    let task = submit(&mut pair, Command::read(LUN, READ, 512));
    let request = command(&mut pair);
    assert_eq!(pair.target().abort_tasks(Some(LUN)), [request.task]);
    answer(&mut pair, &request, Response::task_aborted());
    let (parts, done) = completed(&mut pair);
    assert!(parts.is_empty());
    assert_eq!((done.task, done.status), (task, 0x40));
}

pub(crate) fn the_end_of_a_session_ends_its_tasks<P: Pair>() {
    let mut pair = P::new();
    submit(&mut pair, Command::read(LUN, READ, 512));
    let request = command(&mut pair);
    pair.target().close("the test ends it".into());
    pair.settle();
    assert!(matches!(pair.target().poll_event(), Some(target::Event::Closed { misbehaved: false, .. })));
    assert!(pair.target().poll_event().is_none(), "the end is the last event");
    assert!(pair.target().is_closed() && pair.target().poll_timeout().is_none());
    assert!(!pair.target().complete(request.task, Response::good()), "a late answer is ignored");
    assert_eq!((pair.target().memory_bytes(), pair.target().unsent_bytes()), (0, 0));
}

pub(crate) fn a_logout_ends_the_session<P: Pair>() {
    let mut pair = P::new();
    let now = pair.now();
    pair.initiator().logout(now);
    pair.settle();
    assert!(matches!(pair.initiator().poll_event(), Some(initiator::Event::Closed { .. })));
    assert!(pair.initiator().poll_event().is_none() && pair.initiator().is_closed());
    assert!(pair.initiator().poll_timeout().is_none());
    assert_eq!(pair.initiator().submit(Command::read(LUN, READ, 512)), Err(SubmitError::NotLoggedIn));
    assert!(pair.target().is_closed());
}

pub(crate) fn a_drain_asks_for_a_logout<P: Pair>() {
    let mut pair = P::new();
    let (now, grace) = (pair.now(), Duration::from_secs(20));
    pair.target().request_logout(now, grace);
    pair.settle();
    match pair.initiator().poll_event() {
        Some(initiator::Event::LogoutRequested { within }) => assert_eq!(within, grace),
        other => panic!("expected to be asked for a logout, got {other:?}"),
    }
    // What is not logged out by then is ended.
    let due = pair.target().poll_timeout().expect("it does not wait for ever");
    assert!(due <= now + grace);
    pair.target().handle_timeout(now + grace);
    assert!(pair.target().is_closed());
}

pub(crate) fn malformed_commands_are_not_sent<P: Pair>() {
    let mut pair = P::new();
    let longer = Command { expected_bytes: 513, ..write(&pattern(512)) };
    let no_data = Command { write: None, ..write(&pattern(512)) };
    let mut ragged = sealed_write(2);
    let source = ragged.write.as_mut().expect("a write");
    source.data = source.data.slice(..BLOCK + 1);
    ragged.expected_bytes = BLOCK as u32 + 1;
    let mut fewer = sealed_write(2);
    let records = fewer.write.as_mut().and_then(|source| source.records.as_mut()).expect("sealed");
    records.bytes = records.bytes.slice(..SealRecord::BASE_BYTES);
    for command in [longer, no_data, ragged, fewer] {
        assert!(matches!(pair.initiator().submit(command), Err(SubmitError::Malformed(_))));
    }
    pair.settle();
    assert!(pair.target().poll_event().is_none(), "nothing was sent");
}

pub(crate) fn the_queue_has_a_limit<P: Pair>() {
    let mut pair = P::new();
    let mut taken = 0;
    loop {
        match pair.initiator().submit(Command::read(LUN, READ, 512)) {
            Ok(_) => taken += 1,
            Err(error) => break assert_eq!(error, SubmitError::QueueFull),
        }
        assert!(taken <= 1 << 16, "a queue without a limit");
    }
    pair.settle();
    // All of them are carried out, also where the target's window is shorter than the queue.
    for _ in 0..taken {
        let request = command(&mut pair);
        answer(&mut pair, &request, Response::good_data(Buffer::copy_from(&[1; 512])));
        assert_eq!(completed(&mut pair).1.status, 0);
    }
    assert!(pair.initiator().submit(Command::read(LUN, READ, 512)).is_ok(), "there is room again");
}
