//! Proves the commands of more than one step, mode pages, and what is told of the unit, against what the standards say they do.

use strongroom_block::{AttachId, HoleRecord, Mode, RecordFlags, SealRecord, Stamp, Suite, keyless_checksum};
use strongroom_scsi::copy::{self, Segment};
use strongroom_scsi::{SenseKey, UnitAttention, VendorCommand, inquiry, opcode, vendor};

use super::*;

const OTHER: SessionKey = SessionKey(2);

pub(super) fn cdb_of(bytes: &[u8]) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[..bytes.len()].copy_from_slice(bytes);
    cdb
}

/// A 16-byte CDB with an address and a count.
fn long(operation: u8, flags: u8, lba: u64, count: u32) -> [u8; 16] {
    let mut cdb = cdb::write_16(Lba(lba), count, false);
    (cdb[0], cdb[1]) = (operation, flags);
    cdb
}

fn bytes_of(response: &Response) -> Vec<u8> {
    assert_eq!(response.status, 0, "{:?}", Sense::parse(&response.sense));
    response.data.iter().flat_map(|segment| segment.data().to_vec()).collect()
}

pub(super) fn sense_of(response: &Response) -> Sense {
    assert_eq!(response.status, 2);
    Sense::parse(&response.sense).expect("sense")
}

impl Bench {
    fn ask(&mut self, cdb: &[u8]) -> Vec<u8> {
        let response = self.run(cdb_of(cdb), Direction::Read, 4096, &[]);
        bytes_of(&response)
    }

    fn write(&mut self, lba: u64, data: &[u8]) {
        assert_eq!(self.out(cdb::write_16(Lba(lba), (data.len() / BLOCK) as u32, false), data).status, 0);
    }

    /// A second session, past its power-on attention.
    fn with_other() -> Bench {
        let mut bench = Bench::plain();
        let nexus = NexusId { initiator_name: "iqn.b".into(), isid: [1; 6], target_portal_group: 1 };
        bench.unit.attach(OTHER, nexus, here(), false);
        assert_eq!(bench.as_other(cdb::test_unit_ready(), &[]).status, 2);
        bench
    }

    fn as_other(&mut self, cdb: [u8; 16], data: &[u8]) -> Response {
        let direction = if data.is_empty() { Direction::None } else { Direction::Write };
        let command = self.command(cdb, direction, data.len() as u32, data);
        let task = command.task;
        match self.unit.submit(OTHER, command, 16) {
            Verdict::Answer(response) => response,
            Verdict::Violation(what) => panic!("{what}"),
            Verdict::Later => self.finish(task),
        }
    }
}

#[test]
fn or_write_sets_bits() {
    let mut bench = Bench::plain();
    bench.write(3, &[0x0f; 2 * BLOCK]);
    assert_eq!(bench.out(long(opcode::ORWRITE, 0, 4, 2), &[0x31; 2 * BLOCK]).status, 0);
    assert_eq!(bench.read(3, 3), [[0x0f; BLOCK], [0x3f; BLOCK], [0x31; BLOCK]].concat());
}

/// Between its reading and its writing somebody else writes: nothing of that is lost.
#[test]
fn or_write_loses_no_bits_to_others() {
    let mut bench = Bench::with_other();
    let mut tasks = Vec::new();
    for bit in 0..8 {
        let command = bench.command(long(opcode::ORWRITE, 0, 7, 1), Direction::Write, BLOCK as u32, &[1 << bit; BLOCK]);
        let task = command.task;
        let key = if bit % 2 == 0 { KEY } else { OTHER };
        match bench.unit.submit(key, command, 16) {
            Verdict::Later => tasks.push(task),
            verdict => panic!("{verdict:?}"),
        }
    }
    let mut finished = Vec::new();
    let started = Instant::now();
    while finished.len() < tasks.len() && started.elapsed() < PATIENCE {
        bench.unit.poll(&mut finished);
    }
    assert!(finished.iter().all(|done| done.response.as_ref().is_some_and(|response| response.status == 0)));
    assert_eq!(bench.read(7, 1), [0xff; BLOCK]);
}

#[test]
fn a_write_of_a_part_of_a_block_changes_that_part_alone() {
    let mut bench = Bench::plain();
    bench.write(3, &[0xaa; 3 * BLOCK]);
    for (operation, byte) in [(opcode::WRITE_16, 0xbb), (opcode::WRITE_AND_VERIFY_16, 0xcc)] {
        let response = bench.run(long(operation, 0, 3, 3), Direction::Write, 700, &[byte; 700]);
        assert_eq!((response.status, response.wanted_bytes), (0, Some(3 * BLOCK as u64)));
        assert_eq!(bench.read(3, 3), [&[byte; 700][..], &[0xaa; 3 * BLOCK - 700]].concat());
    }
}

#[test]
fn atomic_and_verified_writes() {
    let mut bench = Bench::plain();
    let atomic = |boundary: u8| cdb_of(&[0x9c, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, boundary, 0, 2, 0, 0]);
    assert_eq!(bench.out(atomic(0), &[7; 2 * BLOCK]).status, 0);
    assert!(sense_of(&bench.out(atomic(8), &[8; 2 * BLOCK])).is(&Sense::INVALID_FIELD_IN_CDB));
    for byte_check in [0, 2] {
        assert_eq!(bench.out(long(opcode::WRITE_AND_VERIFY_16, byte_check, 10, 1), &[byte_check; BLOCK]).status, 0);
        assert_eq!(bench.read(9, 2), [[7; BLOCK], [byte_check; BLOCK]].concat());
    }
    let limits = inquiry::BlockLimits::parse(&bench.ask(&[0x12, 1, 0xb0, 1, 0, 0])).unwrap();
    assert_eq!(limits.atomic_blocks_max, (16 << 20) / BLOCK as u32);
}

#[test]
fn copying_moves_data_and_holes_and_tells_how_far_it_came() {
    let mut bench = Bench::plain();
    let data: Vec<u8> = (0..4 * BLOCK).map(|at| (at / BLOCK) as u8 + 1).collect();
    bench.write(10, &data);
    bench.write(100, &[0xee; 8 * BLOCK]);
    let naa = inquiry::naa(bench.unit.volume().id);
    let copy = |bench: &mut Bench, segments: &[Segment<u16>], list_id: Option<u8>| {
        let mut list = copy::encode(&[naa], BLOCK as u32, segments);
        if let Some(list_id) = list_id {
            list[..2].copy_from_slice(&[list_id, 0]);
        }
        bench.out(long(opcode::EXTENDED_COPY, 0, 0, list.len() as u32), &list)
    };
    let segment = |blocks, from, to| Segment { blocks, source: 0, from: Lba(from), destination: 0, to: Lba(to) };
    // Two blocks of nothing, four of data, two of nothing; and one of the copies again.
    let done =
        copy(&mut bench, &[segment(8, 8, 100), segment(1, 101, 7), segment(0, 0, 0), segment(2, 102, 200)], Some(5));
    assert_eq!(done.status, 0);
    let nothing = [0; 2 * BLOCK];
    assert_eq!(bench.read(100, 8), [&nothing[..], &data, &nothing[..]].concat());
    assert_eq!(bench.read(7, 1), [0; BLOCK]);
    assert_eq!(bench.read(200, 2), data[..2 * BLOCK]);
    let status = bench.ask(&long(opcode::RECEIVE_COPY_RESULTS, opcode::SA_COPY_STATUS, 5 << 56, 4096));
    assert_eq!(status[4..7], [1, 0, 4], "complete, four segments");
    assert_eq!(status[8..], ((11 * BLOCK / 1024) as u32).to_be_bytes());
    let outside = copy(&mut bench, &[segment(8, BLOCKS - 4, 0)], None);
    assert!(sense_of(&outside).is(&Sense::COPY_ABORTED));
    let unknown = bench.run(long(opcode::RECEIVE_COPY_RESULTS, 0, 6 << 56, 4096), Direction::Read, 4096, &[]);
    assert!(sense_of(&unknown).is(&Sense::INVALID_FIELD_IN_CDB));
}

/// What libiscsi's CompareAndWrite.InvalidDataOutSize means to send (its source of June 2026 changes other PDUs by mistake).
#[test]
fn a_compare_and_write_with_data_of_another_length_is_refused() {
    let mut bench = Bench::plain();
    bench.write(0, &[1; 4 * BLOCK]);
    for blocks in [1, 3] {
        let response = bench.out(cdb::compare_and_write(Lba(0), blocks, false), &[0xa6; 4 * BLOCK]);
        assert!(sense_of(&response).is(&Sense::INVALID_FIELD_IN_CDB));
    }
    let response = bench.out(cdb::compare_and_write(Lba(0), 2, false), &[0xa6; 4 * BLOCK]);
    assert!(sense_of(&response).is(&Sense::MISCOMPARE));
    assert_eq!(bench.read(0, 4), [1; 4 * BLOCK]);
}

#[test]
fn sanitize_leaves_nothing() {
    let mut bench = Bench::with_other();
    bench.write(0, &[1; 4 * BLOCK]);
    let sanitize = cdb_of(&[0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0]);
    let command = bench.command(sanitize, Direction::None, 0, &[]);
    let task = command.task;
    assert!(matches!(bench.unit.submit(KEY, command, 16), Verdict::Later));
    // While it is at work there is no medium, but the unit still says what it is.
    let refused = sense_of(&bench.as_other(cdb::test_unit_ready(), &[]));
    assert!(refused.is(&Sense::SANITIZE_IN_PROGRESS) && refused.progress.is_some());
    assert_eq!(bench.as_other(cdb::inquiry(36), &[]).status, 0);
    let asked = bench.as_other(cdb_of(&[0x03, 0, 0, 0, 252]), &[]);
    let told = Sense::parse(asked.data[0].data()).unwrap();
    assert!(
        told.is(&Sense::SANITIZE_IN_PROGRESS) && told.progress.is_some(),
        "REQUEST SENSE tells how far it is: {told}"
    );
    // Nothing stops it.
    bench.unit.abort_for_others(KEY);
    assert_eq!(bench.finish(task).status, 0x40);
    assert_eq!(bench.as_other(cdb::test_unit_ready(), &[]).status, 0);
    assert_eq!(bench.read(0, 4), [0; 4 * BLOCK]);
    let status = bench.ask(&cdb::get_lba_status(Lba(0), 4096));
    assert_eq!(provisioning::parse_lba_status(&status).unwrap().len(), 1, "one hole");
    let crypto = bench.run(cdb_of(&[0x48, 0x03, 0, 0, 0, 0, 0, 0, 0, 0]), Direction::None, 0, &[]);
    assert!(sense_of(&crypto).is(&Sense::INVALID_FIELD_IN_CDB), "there is no key to destroy");
}

#[test]
fn sanitize_waits_for_nobodys_snapshots() {
    let mut bench = Bench::plain();
    bench.write(0, &[1; BLOCK]);
    let (reply, answer) = std::sync::mpsc::channel();
    let op = strongroom_store::Op::SnapshotCreate { name: "s".into() };
    bench.unit.take_job(Job::Run { view: strongroom_store::View::default(), op, reply });
    bench.drain();
    answer.recv().unwrap().unwrap();
    let sanitize = cdb_of(&[0x48, 0x02]);
    let refused = bench.run(sanitize, Direction::None, 0, &[]);
    assert!(sense_of(&refused).is(&Sense::COMMAND_SEQUENCE), "a snapshot would be gone too");
    assert_eq!(bench.read(0, 1), [1; BLOCK], "and nothing happened");
    let id = bench.unit.store().snapshots()[0].id;
    let (reply, _answer) = std::sync::mpsc::channel();
    let op = strongroom_store::Op::SnapshotDelete { id };
    bench.unit.take_job(Job::Run { view: strongroom_store::View::default(), op, reply });
    bench.drain();
    assert_eq!(bench.run(sanitize, Direction::None, 0, &[]).status, 0);
    assert_eq!(bench.read(0, 1), [0; BLOCK]);
}

/// One that was begun at the target, or before a restart: initiators see the same.
#[test]
fn an_erase_from_elsewhere_is_a_sanitize_to_initiators() {
    let mut bench = Bench::plain();
    bench.write(0, &[1; BLOCK]);
    let (reply, answer) = std::sync::mpsc::channel();
    let op = strongroom_store::Op::Erase;
    bench.unit.take_job(Job::Run { view: strongroom_store::View::default(), op, reply });
    assert!(!bench.unit.is_idle());
    let refused = bench.run(cdb::test_unit_ready(), Direction::None, 0, &[]);
    assert!(sense_of(&refused).is(&Sense::SANITIZE_IN_PROGRESS));
    bench.drain();
    answer.recv().unwrap().unwrap();
    assert_eq!(bench.read(0, 1), [0; BLOCK]);
}

/// UNMAP of everything lets others in between.
#[test]
fn large_discards_go_in_slices() {
    let spec = VolumeSpec { block_size: BLOCK as u64, ..VolumeSpec::plain("disk", 64 << 20) };
    let (mut bench, blocks) = (Bench::on(&spec), (64 << 20) / BLOCK as u64);
    for lba in (0..blocks).step_by(1 << 15) {
        let fill = cdb::write_same_16(Lba(lba), 1 << 15, false, false);
        assert_eq!(bench.out(fill, &[7; BLOCK]).status, 0);
    }
    let list = provisioning::unmap_parameters(&[(Lba(0), blocks as u32)]);
    let unmap = bench.command(cdb::unmap(list.len() as u16), Direction::Write, list.len() as u32, &list);
    let unmap_task = unmap.task;
    assert!(matches!(bench.unit.submit(KEY, unmap, 16), Verdict::Later));
    let (mut finished, mut between) = (Vec::new(), 0);
    while !finished.iter().any(|done: &Finished| done.task == unmap_task) {
        let read = bench.command(cdb::read_16(Lba(blocks - 1), 1), Direction::Read, BLOCK as u32, &[]);
        let task = read.task;
        assert!(matches!(bench.unit.submit(KEY, read, 16), Verdict::Later));
        let mapped = bench.unit.store().stats().blocks_mapped;
        bench.unit.poll(&mut finished);
        let unmapped = mapped - bench.unit.store().stats().blocks_mapped;
        assert!(unmapped <= 4 * 16384 + 64, "one poll unmaps a little: {unmapped}");
        between += usize::from(finished.iter().any(|done| done.task == task));
    }
    assert!(between >= 2, "reads were answered meanwhile: {between}");
    bench.drain();
    assert_eq!(bench.unit.store().stats().blocks_mapped, 0);
    // Where nothing is mapped there is one slice, and nothing is written for it.
    let appended = bench.unit.store().stats().appended_bytes;
    let unmap = bench.command(cdb::unmap(list.len() as u16), Direction::Write, list.len() as u32, &list);
    let task = unmap.task;
    assert!(matches!(bench.unit.submit(KEY, unmap, 16), Verdict::Later));
    assert_eq!(bench.finish(task).status, 0);
    assert_eq!(bench.unit.store().stats().appended_bytes, appended);
}

/// Work in slices that began before it must not write what it discarded.
#[test]
fn sanitize_leaves_nothing_of_what_was_under_way() {
    let spec = VolumeSpec { block_size: BLOCK as u64, ..VolumeSpec::plain("disk", 16 << 20) };
    let slice = u64::from(SLICE_BYTES) / BLOCK as u64;
    let mut bench = Bench::on(&spec);
    let (cdb, block) = (cdb::write_same_16(Lba(0), 2 * slice as u32, false, false), [1; BLOCK]);
    assert_eq!(bench.out(cdb, &block).status, 0);
    let naa = inquiry::naa(bench.unit.volume().id);
    let segments = [Segment { blocks: 2 * slice as u16, source: 0, from: Lba(0), destination: 0, to: Lba(4 * slice) }];
    let copy = copy::encode(&[naa], BLOCK as u32, &segments);
    let long_work = [(cdb, block.to_vec()), (long(opcode::EXTENDED_COPY, 0, 0, copy.len() as u32), copy)];
    let mut tasks = Vec::new();
    for (cdb, data) in &long_work {
        let command = bench.command(*cdb, Direction::Write, data.len() as u32, data);
        tasks.push((command.task, Some(2)));
        assert!(matches!(bench.unit.submit(KEY, command, 16), Verdict::Later));
    }
    let sanitize = bench.command(cdb_of(&[0x48, 0x02]), Direction::None, 0, &[]);
    tasks.push((sanitize.task, Some(0)));
    assert!(matches!(bench.unit.submit(KEY, sanitize, 16), Verdict::Later));
    let mut finished = Vec::new();
    let started = Instant::now();
    while finished.len() < tasks.len() && started.elapsed() < PATIENCE {
        bench.unit.poll(&mut finished);
    }
    let senses = finished.iter().filter_map(|done| Sense::parse(&done.response.as_ref()?.sense));
    assert!(senses.collect::<Vec<_>>().iter().all(|sense| sense.is(&Sense::SANITIZE_IN_PROGRESS)));
    let mut ended: Vec<_> = finished.into_iter().map(|done| (done.task, done.response.map(|it| it.status))).collect();
    assert_eq!(ended.last(), tasks.last(), "the discard comes last");
    ended.sort();
    assert_eq!(ended, tasks);
    let status = bench.ask(&cdb::get_lba_status(Lba(0), 4096));
    let runs = provisioning::parse_lba_status(&status).unwrap();
    assert!(runs.iter().all(|run| !run.mapped), "{runs:?}");
}

#[test]
fn lba_status_comes_from_the_index() {
    let mut bench = Bench::plain();
    bench.write(5, &[1; BLOCK]);
    bench.write(6, &[1; 3 * BLOCK]);
    let status = bench.ask(&cdb::get_lba_status(Lba(0), 4096));
    let ranges: Vec<_> =
        provisioning::parse_lba_status(&status).unwrap().iter().map(|run| (run.lba.0, run.count, run.mapped)).collect();
    assert_eq!(ranges, [(0, 5, false), (5, 4, true), (9, BLOCKS as u32 - 9, false)]);
    let first = bench.ask(&cdb::get_lba_status(Lba(7), 24));
    assert_eq!(provisioning::parse_lba_status(&first).unwrap()[0].count, 2);
}

#[test]
fn mode_select_changes_what_it_says_for_everybody() {
    let mut bench = Bench::with_other();
    let select = |page: &[u8]| ([&[0; 4], page].concat(), cdb_of(&[0x15, 0x10, 0, 0, 4 + page.len() as u8, 0]));
    let control = |descriptor, protect| [0x0a, 10, descriptor, 0x10, protect, 0x40, 0, 0, 0, 0, 0, 0];
    let (list, cdb) = select(&control(4, 8));
    assert_eq!(bench.out(cdb, &list).status, 0);
    // The other is told, in the new format, and nobody writes.
    let told = bench.as_other(cdb::test_unit_ready(), &[]);
    assert_eq!(told.sense[0], 0x72);
    assert_eq!(sense_of(&told), UnitAttention::ModeParametersChanged.sense());
    for key in [KEY, OTHER] {
        let command = bench.command(cdb::write_16(Lba(0), 1, false), Direction::Write, BLOCK as u32, &[1; BLOCK]);
        let Verdict::Answer(refused) = bench.unit.submit(key, command, 16) else { panic!("it is refused at once") };
        assert_eq!(sense_of(&refused), Sense::SOFTWARE_WRITE_PROTECTED);
    }
    assert_eq!(bench.ask(&[0x1a, 0, 0x0a, 0, 255, 0])[2] & 0x80, 0x80, "WP");
    // A reset brings the defaults back.
    bench.unit.reset();
    assert_eq!(bench.run(cdb::test_unit_ready(), Direction::None, 0, &[]).status, 2);
    bench.write(0, &[1; BLOCK]);
    // SP=1, PF=0, and a page that is not there.
    for (flags, page) in
        [(0x11, control(0, 8)), (0x00, control(0, 8)), (0x10, [0x1c, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])]
    {
        let (list, mut cdb) = select(&page);
        cdb[1] = flags;
        assert_eq!(bench.out(cdb, &list).status, 2);
    }
}

#[test]
fn the_unit_tells_of_itself() {
    let mut bench = Bench::plain();
    let groups = bench.ask(&[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!((groups.len(), groups[3], groups[4] & 0x0f), (16, 12, 0), "one group, active and optimized");
    assert_eq!(bench.ask(&[0x37, 0, 0x1d, 0, 0, 0, 0, 0, 8, 0]), [0, 0x1d, 0, 0]);
    bench.write(0, &[1; 3 * BLOCK]);
    let statistics = bench.ask(&[0x4d, 0, 0x59, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(
        statistics[8..40],
        [[0u64, 1].map(u64::to_be_bytes).concat(), [3u64, 0].map(u64::to_be_bytes).concat()].concat()
    );
    let pages = inquiry::parse_vpd_pages(&bench.ask(&[0x12, 1, 0, 1, 0, 0])).unwrap();
    for page in pages {
        assert_eq!(bench.ask(&[0x12, 1, page, 1, 0, 0])[1], page);
    }
    // The well-known unit lists both.
    let mut command = bench.command(cdb_of(&[0xa0, 0, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0]), Direction::Read, 256, &[]);
    command.lun = Lun(0xc101 << 48);
    let Verdict::Answer(listed) = bench.unit.submit(KEY, command, 16) else { panic!("it is answered at once") };
    assert_eq!(strongroom_scsi::luns::parse(&bytes_of(&listed)), Some(vec![0, 0xc101 << 48]));
}

/// REGISTER, RESERVE (`kind`), and what else PERSISTENT RESERVE OUT does.
fn reserve_out(action: u8, kind: u8, key: u64, action_key: u64, persist: bool) -> ([u8; 16], Vec<u8>) {
    let list = [&key.to_be_bytes()[..], &action_key.to_be_bytes(), &[0, 0, 0, 0, persist.into(), 0, 0, 0]].concat();
    (cdb_of(&[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0]), list)
}

/// Both are registered, with keys 1 and 2, and the other is writing; its task.
fn with_a_victim_that_writes() -> (Bench, TaskId) {
    let mut bench = Bench::with_other();
    let (cdb, list) = reserve_out(0, 0, 0, 1, false);
    assert_eq!(bench.out(cdb, &list).status, 0);
    let (cdb, list) = reserve_out(0, 0, 0, 2, false);
    assert_eq!(bench.as_other(cdb, &list).status, 0);
    let command = bench.command(cdb::write_16(Lba(0), 8, true), Direction::Write, 8 * BLOCK as u32, &[1; 8 * BLOCK]);
    let written = command.task;
    assert!(matches!(bench.unit.submit(OTHER, command, 16), Verdict::Later));
    (bench, written)
}

#[test]
fn preempt_and_abort_is_answered_when_the_tasks_are_over() {
    let (mut bench, written) = with_a_victim_that_writes();
    let (cdb, list) = reserve_out(5, 1, 1, 2, false);
    let command = bench.command(cdb, Direction::Write, 24, &list);
    let preempted = command.task;
    assert!(matches!(bench.unit.submit(KEY, command, 16), Verdict::Later), "its task is not over");
    let mut order = Vec::new();
    let started = Instant::now();
    while order.len() < 2 && started.elapsed() < PATIENCE {
        let mut finished = Vec::new();
        bench.unit.poll(&mut finished);
        order.extend(finished.into_iter().map(|done| (done.task, done.response.map(|response| response.status))));
    }
    assert_eq!(order, [(written, Some(0x40)), (preempted, Some(0))]);
    assert_eq!(sense_of(&bench.as_other(cdb::test_unit_ready(), &[])), UnitAttention::RegistrationsPreempted.sense());
}

/// A write of a session that is gone could still land on what the session that fenced it off writes next.
#[test]
fn preempt_and_abort_waits_for_the_tasks_of_a_session_that_has_gone() {
    let (mut bench, written) = with_a_victim_that_writes();
    bench.unit.detach(OTHER);
    assert!(bench.unit.users().keys_with_tasks().contains(&OTHER));
    let (cdb, list) = reserve_out(5, 1, 1, 2, false);
    let command = bench.command(cdb, Direction::Write, 24, &list);
    let preempted = command.task;
    assert!(matches!(bench.unit.submit(KEY, command, 16), Verdict::Later), "its task is not over");
    let mut order = Vec::new();
    let started = Instant::now();
    while order.len() < 2 && started.elapsed() < PATIENCE {
        bench.unit.poll(&mut order);
    }
    assert_eq!(order.iter().map(|done| done.task).collect::<Vec<_>>(), [written, preempted]);
    assert!(order[0].response.is_none(), "nobody is there to be told");
    assert_eq!(bench.unit.users().keys_with_tasks(), [KEY]);
}

#[test]
fn reserve_6_and_persistent_reservations_keep_each_other_out() {
    let mut bench = Bench::with_other();
    assert_eq!(bench.as_other(cdb::reserve_6(), &[]).status, 0);
    let (cdb, list) = reserve_out(0, 0, 0, 1, false);
    assert_eq!(bench.out(cdb, &list).status, 0x18);
    assert_eq!(bench.as_other(cdb::release_6(), &[]).status, 0);
    let (cdb, list) = reserve_out(0, 0, 0, 1, false);
    assert_eq!(bench.out(cdb, &list).status, 0);
    assert_eq!(bench.as_other(cdb::reserve_6(), &[]).status, 0x18, "not registered");
    assert_eq!(bench.run(cdb::reserve_6(), Direction::None, 0, &[]).status, 0, "registered: good, without effect");
}

/// WCE=0.
pub(super) fn without_cache(bench: &mut Bench) {
    let mut caching = vec![0; 4 + 20];
    caching[4..6].copy_from_slice(&[0x08, 18]);
    assert_eq!(bench.out(cdb_of(&[0x15, 0x10, 0, 0, 24, 0]), &caching).status, 0);
}

#[test]
fn without_a_write_cache_writes_are_durable_when_answered() {
    let mut bench = Bench::plain();
    let naa = inquiry::naa(bench.unit.volume().id);
    let segments = [Segment { blocks: 2, source: 0, from: Lba(0), destination: 0, to: Lba(20) }];
    let copy = copy::encode(&[naa], BLOCK as u32, &segments);
    let unmap = provisioning::unmap_parameters(&[(Lba(1), 1), (Lba(3), 1)]);
    let commands = [
        (cdb::write_16(Lba(2), 1, false), vec![1; BLOCK]),
        (cdb::compare_and_write(Lba(2), 1, false), [[1; BLOCK], [2; BLOCK]].concat()),
        (cdb::write_same_16(Lba(0), 8, false, false), vec![3; BLOCK]),
        (cdb::write_same_16(Lba(2), 1, true, false), vec![0; BLOCK]),
        (cdb::unmap(unmap.len() as u16), unmap),
        (long(opcode::EXTENDED_COPY, 0, 0, copy.len() as u32), copy),
        (long(opcode::ORWRITE, 0, 2, 1), vec![4; BLOCK]),
    ];
    let syncs = |bench: &Bench| bench.unit.store().stats().syncs;
    bench.write(0, &[1; BLOCK]);
    let before = syncs(&bench);
    bench.write(1, &[1; BLOCK]);
    assert_eq!(syncs(&bench), before);
    without_cache(&mut bench);
    for (cdb, data) in commands {
        let before = syncs(&bench);
        assert_eq!(bench.out(cdb, &data).status, 0);
        assert!(syncs(&bench) > before, "{:#x} is not durable", cdb[0]);
    }
}

#[test]
fn a_unit_that_was_closed_goes_on_as_it_was() {
    let mut bench = Bench::plain();
    let (cdb, list) = reserve_out(0, 0, 0, 1, false);
    assert_eq!(bench.out(cdb, &list).status, 0);
    bench.unit.server.sanitizer.set_status(SanitizeStatus::Failed);
    bench.unit.detach(KEY);
    assert!(bench.unit.is_idle());
    let rest = bench.unit.closed();
    let mut opened = Bench::plain();
    opened.unit.resume(rest.clone());
    assert_eq!(
        opened.unit.server.access.reservations.persistent().registrations(),
        bench.unit.server.access.reservations.persistent().registrations()
    );
    assert_eq!(opened.unit.server.sanitizer.status(), SanitizeStatus::Failed);
    // But what somebody put on disk meanwhile counts.
    let mut other = Bench::plain();
    let (cdb, list) = reserve_out(0, 0, 0, 2, true);
    assert_eq!(other.out(cdb, &list).status, 0);
    other.unit.resume(rest);
    assert_eq!(other.unit.server.access.reservations.persistent().registrations()[0].key, 2);
}

#[test]
fn an_absence_is_resealed_only_where_there_is_no_data() {
    fn record(flags: RecordFlags, counter: u64, checksum: u64) -> SealRecord {
        let stamp = Stamp { attach_id: AttachId([1; 16]), counter };
        SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, flags, 1, stamp, checksum, [0; 16])
    }
    fn sent(bench: &mut Bench, command: transport::Command) -> (u8, Option<Sense>) {
        let task = command.task;
        let response = match bench.unit.submit(KEY, command, 16) {
            Verdict::Answer(response) => response,
            Verdict::Later => bench.finish(task),
            Verdict::Violation(what) => panic!("{what}"),
        };
        (response.status, Sense::parse(&response.sense))
    }
    fn seal(bench: &mut Bench, ranges: &[(u64, u64)], expected: Option<[u8; 24]>) -> (u8, Option<Sense>) {
        // Counters of its own for each request: with those of an earlier one it would be a repeat.
        let first = 100 + 10 * bench.next_task;
        let hole = |(&(start, count), counter): (&(u64, u64), u64)| HoleRecord {
            start: Lba(start),
            count,
            record: record(RecordFlags(RecordFlags::HOLE), counter, 0),
        };
        let list = vendor::encode_holes(&ranges.iter().zip(first..).map(hole).collect::<Vec<_>>());
        let parameter_list_len = list.len() as u32;
        let cdb = VendorCommand::SealHole { parameter_list_len }.encode();
        let mut command = bench.command(cdb, Direction::Write, parameter_list_len, &list);
        command.parameters.expected_stamp = expected;
        sent(bench, command)
    }
    let mut bench = Bench::on(&VolumeSpec::sealed("vault", 1 << 20));
    bench.register(AttachId([1; 16]));
    let absent = Some([0; Stamp::BYTES]);
    assert_eq!(seal(&mut bench, &[(0, 256)], None).0, 0);
    assert_eq!(seal(&mut bench, &[(0, 256)], absent).0, 0);
    for (ranges, expected) in [(&[(0, 8)][..], Some([1; 24])), (&[(0, 8), (8, 8)], absent)] {
        let (_, sense) = seal(&mut bench, ranges, expected);
        assert_eq!(sense, Some(Sense::INVALID_FIELD_IN_CDB));
    }
    let block = [7; 4096];
    let mut write = bench.command(cdb::write_16(Lba(5), 1, false), Direction::Write, 4096, &[]);
    let sealed = record(RecordFlags::default(), 1, keyless_checksum(&block));
    write.data = vec![sealed_segment(&block, &sealed)];
    assert_eq!(sent(&mut bench, write).0, 0);
    let (_, sense) = seal(&mut bench, &[(0, 256)], absent);
    assert_eq!(sense.map(|sense| (sense.key, sense.asc)), Some((SenseKey::Miscompare, 0x1d)));
    assert_eq!(seal(&mut bench, &[(6, 250)], absent).0, 0);
    // Unconditionally it goes, and is absent then.
    assert_eq!(seal(&mut bench, &[(5, 1)], None).0, 0);
    assert_eq!(seal(&mut bench, &[(0, 256)], absent).0, 0);
}

#[test]
fn without_a_write_cache_sealed_writes_and_holes_are_durable_when_answered() {
    let mut bench = Bench::on(&VolumeSpec::sealed("vault", 1 << 20));
    bench.register(AttachId([1; 16]));
    without_cache(&mut bench);
    let block = [7; 4096];
    let record = |flags, counter, checksum| {
        let stamp = Stamp { attach_id: AttachId([1; 16]), counter };
        SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, flags, 1, stamp, checksum, [0; 16])
    };
    let conditional = VendorCommand::ConditionalWrite { lba: Lba(5), count: 1 }.encode();
    let mut write = bench.command(conditional, Direction::Write, 4096, &[]);
    let sealed = record(RecordFlags::default(), 1, keyless_checksum(&block));
    write.parameters.expected_stamp = Some([0; Stamp::BYTES]);
    write.data = vec![sealed_segment(&block, &sealed)];
    let hole = HoleRecord { start: Lba(0), count: 256, record: record(RecordFlags(RecordFlags::HOLE), 2, 0) };
    let list = vendor::encode_holes(&[hole]);
    let parameter_list_len = list.len() as u32;
    let seal = VendorCommand::SealHole { parameter_list_len }.encode();
    let seal = bench.command(seal, Direction::Write, parameter_list_len, &list);
    for command in [seal, write] {
        let (task, before) = (command.task, bench.unit.store().stats().syncs);
        let verdict = bench.unit.submit(KEY, command, 16);
        assert!(matches!(verdict, Verdict::Later), "{verdict:?}");
        let response = bench.finish(task);
        assert_eq!(response.status, 0, "{:?}", Sense::parse(&response.sense));
        assert!(bench.unit.store().stats().syncs > before);
    }
}
