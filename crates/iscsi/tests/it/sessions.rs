//! Proves what each exchange looks like when both sides behave: data in both directions, the command window, pings, task management,
//! logout and drain. Logins and discovery are in `logins`.

use std::time::Duration;

use strongroom_block::Buffer;
use strongroom_iscsi::initiator::{self, Command, SubmitError, TaskFunction, TaskManagementResult, WriteSource};
use strongroom_iscsi::pdu::{Answer, Opcode, Request, TAG_NONE};
use strongroom_iscsi::target::{self, ManagementFunction, ReadPart, Response};
use strongroom_iscsi::{CloseReason, Lun, PeerMisbehaved, Residual};
use strongroom_scsi::transport::{Parameters, Written};

use crate::pair::{Pair, initiator_config};

const LUN: Lun = Lun(0);

fn logged_in() -> Pair {
    Pair::logged_in(initiator_config(), target::Config::default())
}

fn write(len: usize) -> Command {
    let data: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
    Command::write(LUN, [0x2a; 16], WriteSource::plain(Buffer::copy_from(&data)))
}

fn opcodes(pdus: &[strongroom_iscsi::Pdu]) -> Vec<Opcode> {
    pdus.iter().map(|pdu| pdu.bhs.opcode().expect("ours are known")).collect()
}

#[test]
fn a_small_write_crosses_in_one_pdu_and_is_not_copied() {
    let mut pair = logged_in();
    pair.initiator.submit(write(4096)).expect("in");
    let pdu = pair.initiator.poll_transmit().expect("a command");
    assert!(pair.initiator.poll_transmit().is_none());
    let address = pdu.data.as_ptr();
    pair.target.handle_pdu(pair.now, pdu);
    let command = pair.command();
    assert_eq!(command.gather().as_ptr(), address, "the buffer itself is handed over");
    pair.target.complete(command.task, Response::good());
    pair.settle();
    assert_eq!(pair.completed().1.residual, Residual::None);
}

#[test]
fn a_large_write_goes_immediate_then_unsolicited_then_solicited() {
    let mut initiator = initiator_config();
    initiator.offer.first_burst_bytes = 8192;
    initiator.offer.max_burst_bytes = 16384;
    let mut target = target::Config::default();
    target.offer.recv_segment_bytes_max = 4096;
    let mut pair = Pair::logged_in(initiator, target);
    pair.keep = true;
    pair.initiator.submit(write(30000)).expect("in");
    pair.settle();
    let sent: Vec<(u32, u32, bool)> = pair
        .sent_to_target
        .iter()
        .map(|pdu| match Request::decode(&pdu.bhs).expect("sound") {
            Request::ScsiCommand(command) => (0, pdu.data.len() as u32, command.is_final),
            Request::DataOut(data) => (data.buffer_offset, pdu.data.len() as u32, data.is_final),
            other => panic!("unexpected {other:?}"),
        })
        .collect();
    let expected = [
        (0, 4096, false),
        (4096, 4096, true),
        (8192, 4096, false),
        (12288, 4096, false),
        (16384, 4096, false),
        (20480, 4096, true),
        (24576, 4096, false),
        (28672, 1328, true),
    ];
    assert_eq!(sent, expected);
    let asked: Vec<(u32, u32)> = pair
        .sent_to_initiator
        .iter()
        .map(|pdu| match Answer::decode(&pdu.bhs).expect("sound") {
            Answer::R2t(r2t) => (r2t.buffer_offset, r2t.desired_data_transfer_bytes),
            other => panic!("unexpected {other:?}"),
        })
        .collect();
    assert_eq!(asked, [(8192, 16384), (24576, 5424)], "both at once: MaxOutstandingR2T is 4");
    let command = pair.command();
    assert_eq!(command.data.len(), 8);
    assert!(command.gather().iter().enumerate().all(|(at, byte)| *byte == (at * 7) as u8));
    pair.target.complete(command.task, Response::good());
    pair.settle();
    assert_eq!(pair.completed().1.moved_bytes, 30000);
}

#[test]
fn a_good_read_ends_with_status_in_its_last_data() {
    let mut pair = logged_in();
    pair.keep = true;
    for (expected, returned, residual) in [
        (600_000, 600_000, Residual::None),
        (700_000, 600_000, Residual::Underflow(100_000)),
        (500_000, 600_000, Residual::Overflow(100_000)),
        (512, 0, Residual::Underflow(512)),
    ] {
        pair.sent_to_initiator.clear();
        pair.initiator.submit(Command::read(LUN, [0x28; 16], expected)).expect("in");
        pair.settle();
        let command = pair.command();
        let data = Buffer::copy_from(&vec![5; returned]);
        pair.target.complete(command.task, Response::good_data(data));
        pair.settle();
        let (data, completed) = pair.completed();
        assert_eq!((data.len(), completed.residual), (returned.min(expected as usize), residual));
        let last = opcodes(&pair.sent_to_initiator).pop();
        assert_eq!(last, Some(if returned == 0 { Opcode::ScsiResponse } else { Opcode::DataIn }));
        if returned > 0 {
            let sent: Vec<usize> = pair.sent_to_initiator.iter().map(|pdu| pdu.data.len()).collect();
            assert_eq!(sent.iter().sum::<usize>(), data.len());
            assert!(
                sent[..sent.len() - 1].iter().all(|len| *len == 262_144),
                "cut as the initiator likes it: {sent:?}"
            );
        }
    }
    assert_eq!(pair.target.statistics().residuals, 3);
}

#[test]
fn data_before_a_check_condition_is_followed_by_a_response() {
    let mut pair = logged_in();
    pair.keep = true;
    pair.initiator.submit(Command::read(LUN, [0x28; 16], 8192)).expect("in");
    pair.settle();
    let command = pair.command();
    let data = vec![ReadPart::Plain(Buffer::copy_from(&[1; 4096]))];
    let sense = vec![0x72, 3, 0x11, 0];
    pair.target.complete(command.task, Response { data, ..Response::check_condition(sense.clone()) });
    pair.settle();
    let (data, completed) = pair.completed();
    assert_eq!((data.len(), completed.status, completed.sense), (4096, 2, sense));
    assert_eq!(completed.residual, Residual::Underflow(4096));
    assert_eq!(opcodes(&pair.sent_to_initiator), [Opcode::DataIn, Opcode::ScsiResponse]);
}

#[test]
fn large_answers_do_not_hold_up_small_ones() {
    let mut pair = logged_in();
    pair.initiator.submit(Command::read(LUN, [1; 16], 4 << 20)).expect("in");
    pair.initiator.submit(Command::read(LUN, [2; 16], 512)).expect("in");
    pair.settle();
    let (large, small) = (pair.command(), pair.command());
    pair.target.complete(large.task, Response::good_data(Buffer::copy_from(&vec![1; 4 << 20])));
    pair.target.complete(small.task, Response::good_data(Buffer::copy_from(&[2; 512])));
    let tags: Vec<u32> =
        std::iter::from_fn(|| pair.target.poll_transmit()).map(|pdu| pdu.bhs.initiator_task_tag()).collect();
    assert!(tags[1] != tags[0], "the small one takes the second turn: {tags:?}");
}

#[test]
fn the_command_window_is_the_queue_depth() {
    let config = target::Config { queue_depth: 2, ..target::Config::default() };
    let mut pair = Pair::logged_in(initiator_config(), config);
    for _ in 0..5 {
        pair.initiator.submit(Command::without_data(LUN, [0; 16])).expect("in");
    }
    pair.settle();
    let held = [pair.command(), pair.command()];
    assert!(pair.target.poll_event().is_none(), "the third waits at the initiator");
    pair.target.complete(held[1].task, Response::good());
    pair.settle();
    let third = pair.command();
    assert!(pair.target.poll_event().is_none());
    for command in [&held[0], &third] {
        pair.target.complete(command.task, Response::good());
    }
    pair.settle();
    let rest = [pair.command(), pair.command()];
    assert_eq!(pair.initiator.outstanding(), 2);
    for command in rest {
        pair.target.complete(command.task, Response::good());
    }
    pair.settle();
    assert_eq!(pair.initiator.outstanding(), 0);
}

#[test]
fn commands_are_taken_in_order_and_outside_the_window_not_at_all() {
    let config = target::Config { queue_depth: 4, ..target::Config::default() };
    let mut pair = Pair::logged_in(initiator_config(), config);
    for n in 0..3 {
        pair.initiator.submit(Command::without_data(LUN, [n; 16])).expect("in");
    }
    let mut pdus: Vec<_> = std::iter::from_fn(|| pair.initiator.poll_transmit()).collect();
    let mut far = pdus[2].clone();
    far.bhs.0[24..28].copy_from_slice(&100u32.to_be_bytes());
    let mut past = pdus[2].clone();
    past.bhs.0[24..28].copy_from_slice(&0u32.to_be_bytes());
    pdus.swap(0, 2);
    for pdu in [pdus[0].clone(), pdus[0].clone(), far, past, pdus[1].clone()] {
        pair.target.handle_pdu(pair.now, pdu);
    }
    assert!(pair.target.poll_event().is_none(), "the first is missing");
    pair.target.handle_pdu(pair.now, pdus[2].clone());
    let order: Vec<u8> = (0..3).map(|_| pair.command().cdb[0]).collect();
    assert_eq!((order, pair.target.statistics().ignored), (vec![0, 1, 2], 3));
    assert!(pair.target.poll_transmit().is_none(), "ignored means without an answer");
}

#[test]
fn a_silent_connection_is_pinged_and_a_living_one_kept() {
    let mut pair = logged_in();
    pair.keep = true;
    pair.advance(Duration::from_secs(600));
    assert!(!pair.target.is_closed() && !pair.initiator.is_closed());
    let pings = opcodes(&pair.sent_to_target);
    assert!(pings.len() > 50 && pings.iter().all(|opcode| *opcode == Opcode::NopOut));
}

#[test]
fn a_dead_peer_is_given_up_on_both_sides() {
    let mut pair = logged_in();
    // The login's last answer left at a time that nobody knows: that counts as a sign of life, once.
    for _ in 0..2 {
        assert!(pair.target.poll_transmit().is_none());
        pair.now += Duration::from_secs(30);
        pair.target.handle_timeout(pair.now);
    }
    let ping = pair.target.poll_transmit().expect("a ping");
    let Ok(Answer::NopIn(nop)) = Answer::decode(&ping.bhs) else { panic!("a NOP-In") };
    assert!(nop.initiator_task_tag == TAG_NONE && nop.target_transfer_tag != TAG_NONE);
    pair.now += Duration::from_secs(29);
    pair.target.handle_timeout(pair.now);
    assert!(!pair.target.is_closed());
    pair.now += Duration::from_secs(1);
    pair.target.handle_timeout(pair.now);
    assert!(matches!(pair.target.poll_event(), Some(target::Event::Closed(CloseReason::PeerSilent))));

    for _ in 0..2 {
        pair.initiator.handle_timeout(pair.now);
        pair.now += Duration::from_secs(10);
    }
    assert!(matches!(pair.initiator.poll_event(), Some(initiator::Event::Closed(CloseReason::PeerSilent))));
}

/// A peer that is busy moving bulk data, and so answers no ping for a long time, is not dead.
#[test]
fn pings_never_kill_a_busy_connection() {
    let mut pair = logged_in();
    pair.initiator.submit(Command::read(LUN, [0; 16], 8 << 20)).expect("in");
    pair.settle();
    let command = pair.command();
    pair.target.complete(command.task, Response::good_data(Buffer::copy_from(&vec![0; 8 << 20])));
    for _ in 0..20 {
        pair.now += Duration::from_secs(29);
        pair.target.handle_timeout(pair.now);
        assert!(pair.target.poll_transmit().is_some(), "the socket takes a little now and then");
    }
    for _ in 0..20 {
        pair.now += Duration::from_secs(29);
        pair.target.handle_timeout(pair.now);
        pair.target.handle_progress(pair.now);
    }
    assert!(!pair.target.is_closed());
}

#[test]
fn an_abort_ends_a_task_for_both_sides() {
    let mut pair = logged_in();
    let task = pair.initiator.submit(Command::read(LUN, [0; 16], 512)).expect("in");
    pair.settle();
    let command = pair.command();
    let id = pair.initiator.manage_task(TaskFunction::AbortTask, LUN, Some(task)).expect("in");
    pair.settle();
    let Some(target::Event::TaskManagement(request)) = pair.target.poll_event() else { panic!("a request") };
    assert_eq!(
        (request.function, &request.tasks[..]),
        (ManagementFunction::AbortTask(command.task), &[command.task][..])
    );
    pair.target.answer_task_management(request.id, TaskManagementResult::Complete);
    assert!(!pair.target.complete(command.task, Response::good()), "too late, and harmless");
    pair.settle();
    match pair.initiator.poll_event() {
        Some(initiator::Event::TaskManagementDone { id: done, result, ended }) => {
            assert_eq!((done, result, ended), (id, TaskManagementResult::Complete, vec![task]));
        }
        other => panic!("expected the answer, got {other:?}"),
    }
    assert_eq!(pair.initiator.outstanding(), 0);
    assert!(pair.initiator.poll_event().is_none());
}

#[test]
fn a_refused_abort_leaves_the_task() {
    let mut pair = logged_in();
    let task = pair.initiator.submit(Command::read(LUN, [0; 16], 512)).expect("in");
    pair.settle();
    let command = pair.command();
    pair.initiator.manage_task(TaskFunction::AbortTask, LUN, Some(task)).expect("in");
    pair.settle();
    let Some(target::Event::TaskManagement(request)) = pair.target.poll_event() else { panic!("a request") };
    pair.target.answer_task_management(request.id, TaskManagementResult::AuthorizationFailed);
    assert!(pair.target.complete(command.task, Response::good_data(Buffer::copy_from(&[1; 512]))));
    pair.settle();
    assert!(
        matches!(pair.initiator.poll_event(), Some(initiator::Event::TaskManagementDone { ended, .. }) if ended.is_empty())
    );
    assert_eq!(pair.completed().0, [1; 512]);
}

#[test]
fn a_reset_ends_writes_that_are_still_arriving() {
    let mut config = target::Config::default();
    config.offer.initial_r2t = true;
    config.offer.immediate_data = false;
    let mut pair = Pair::logged_in(initiator_config(), config);
    let arriving = pair.initiator.submit(write(8192)).expect("in");
    let elsewhere = pair.initiator.submit(Command::without_data(Lun::single_level(1), [0; 16])).expect("in");
    pair.step_to_target();
    pair.step_to_target();
    let other = pair.command();
    // The R2T and its data cross the reset.
    pair.step_to_initiator();
    let id = pair.initiator.manage_task(TaskFunction::LogicalUnitReset, LUN, None).expect("in");
    pair.settle();
    let Some(target::Event::TaskManagement(request)) = pair.target.poll_event() else { panic!("a request") };
    assert_eq!(request.function, ManagementFunction::LogicalUnitReset(LUN));
    assert!(request.tasks.is_empty(), "the application never saw it");
    assert!(pair.target.poll_event().is_none(), "and will not, although its data has arrived meanwhile");
    pair.target.answer_task_management(request.id, TaskManagementResult::Complete);
    pair.settle();
    match pair.initiator.poll_event() {
        Some(initiator::Event::TaskManagementDone { id: done, ended, .. }) => {
            assert_eq!((done, ended), (id, vec![arriving]));
        }
        other => panic!("expected the answer, got {other:?}"),
    }
    assert!(pair.target.complete(other.task, Response::good()), "another unit's task goes on");
    pair.settle();
    assert_eq!(pair.completed().1.task, elsewhere);
    assert_eq!(pair.target.statistics().rejects, 0);
}

#[test]
fn a_reset_spares_what_was_sent_behind_it() {
    let mut pair = logged_in();
    let before = pair.initiator.submit(Command::without_data(LUN, [1; 16])).expect("in");
    pair.settle();
    pair.command();
    pair.initiator.manage_task(TaskFunction::LogicalUnitReset, LUN, None).expect("in");
    let behind = pair.initiator.submit(Command::without_data(LUN, [2; 16])).expect("in");
    pair.settle();
    let Some(target::Event::TaskManagement(request)) = pair.target.poll_event() else { panic!("a request") };
    let command = pair.command();
    pair.target.answer_task_management(request.id, TaskManagementResult::Complete);
    pair.settle();
    let Some(initiator::Event::TaskManagementDone { ended, .. }) = pair.initiator.poll_event() else { panic!("done") };
    assert_eq!(ended, [before]);
    assert!(pair.target.complete(command.task, Response::good()));
    pair.settle();
    assert_eq!(pair.completed().1.task, behind);
}

#[test]
fn another_session_can_clear_tasks_here() {
    let mut pair = logged_in();
    for _ in 0..3 {
        pair.initiator.submit(Command::without_data(LUN, [0; 16])).expect("in");
    }
    pair.settle();
    let commands = [pair.command(), pair.command(), pair.command()];
    pair.target.complete(commands[0].task, Response::good());
    assert_eq!(pair.target.abort_tasks(Some(Lun::single_level(4))), []);
    assert_eq!(pair.target.abort_tasks(Some(LUN)), [commands[1].task, commands[2].task]);
    pair.settle();
    assert_eq!(pair.completed().1.status, 0);
    assert_eq!(pair.initiator.outstanding(), 2, "the application ends those that it holds");
    assert!(pair.target.complete(commands[1].task, Response::task_aborted()));
    pair.settle();
    assert_eq!(pair.completed().1.status, 0x40);
}

#[test]
fn logout_and_drain() {
    let mut pair = logged_in();
    pair.initiator.logout(pair.now);
    pair.settle();
    assert!(matches!(pair.initiator.poll_event(), Some(initiator::Event::Closed(CloseReason::LoggedOut))));
    assert!(matches!(pair.target.poll_event(), Some(target::Event::Closed(CloseReason::LoggedOut))));

    let mut pair = logged_in();
    pair.target.request_logout(pair.now, Duration::from_secs(20));
    pair.settle();
    let Some(initiator::Event::LogoutRequested { within }) = pair.initiator.poll_event() else { panic!("asked") };
    assert_eq!(within, Duration::from_secs(20));
    pair.initiator.submit(Command::without_data(LUN, [0; 16])).expect("work goes on meanwhile");
    pair.settle();
    pair.command();
    pair.advance(Duration::from_secs(21));
    assert!(matches!(pair.target.poll_event(), Some(target::Event::Closed(CloseReason::DrainTimedOut))));
    assert!(matches!(pair.initiator.poll_event(), Some(initiator::Event::Closed(CloseReason::DroppedByTarget))));
}

#[test]
fn a_lost_connection_is_reported_once() {
    let mut pair = logged_in();
    pair.target.handle_closed(pair.now, CloseReason::ConnectionLost("reset by peer".into()));
    pair.target.close("later");
    assert!(matches!(pair.target.poll_event(), Some(target::Event::Closed(CloseReason::ConnectionLost(_)))));
    assert!(pair.target.poll_event().is_none() && pair.target.poll_transmit().is_none());
    assert!(pair.target.poll_timeout().is_none());
}

#[test]
fn parameters_of_a_command_pass_through() {
    for in_channel in [false, true] {
        let initiator = initiator::Config { in_channel, ..initiator_config() };
        let target = target::Config { in_channel, ..target::Config::default() };
        let mut pair = Pair::logged_in(initiator, target);
        let parameters = Parameters {
            older_than: Some(strongroom_block::StoreSequence(9)),
            expected_stamp: Some([4; 24]),
            ..Parameters::default()
        };
        let command = Command { parameters, ..Command::read(LUN, [0xc1; 16], 512) };
        pair.initiator.submit(command).expect("in");
        pair.settle();
        let command = pair.command();
        assert_eq!(command.parameters, parameters);
    }
}

/// RFC 7143 gives a SCSI Response no header segments: a stock initiator must not see any.
#[test]
fn header_segments_of_a_response_stay_inside_a_channel() {
    for in_channel in [false, true] {
        let initiator = initiator::Config { in_channel, ..initiator_config() };
        let target = target::Config { in_channel, ..target::Config::default() };
        let mut pair = Pair::logged_in(initiator, target);
        pair.initiator.submit(write(100)).expect("in");
        pair.settle();
        let command = pair.command();
        let written = Written { first: strongroom_block::StoreSequence(7), ..Written::default() };
        pair.target.complete(command.task, Response { written: Some(written), ..Response::good() });
        pair.settle();
        let Some(initiator::Event::Completed(completed)) = pair.initiator.poll_event() else { panic!("completed") };
        assert_eq!(completed.status, 0);
        assert_eq!(completed.written, in_channel.then_some(written));
    }
}

#[test]
fn sealed_data_stays_inside_a_channel() {
    let mut pair = logged_in();
    let command = Command { sealed_block_bytes: Some(512), ..Command::read(LUN, [0; 16], 512) };
    assert!(
        matches!(pair.initiator.submit(command), Err(SubmitError::Malformed(why)) if why.contains("strongroom://"))
    );
}

#[test]
fn an_answer_that_was_lost_is_noticed_inside_a_channel() {
    let initiator = initiator::Config { in_channel: true, ..initiator_config() };
    let target = target::Config { in_channel: true, ..target::Config::default() };
    let mut pair = Pair::logged_in(initiator, target);
    for _ in 0..2 {
        pair.initiator.submit(Command::without_data(LUN, [0; 16])).expect("in");
    }
    pair.settle();
    let commands = [pair.command(), pair.command()];
    for command in commands {
        pair.target.complete(command.task, Response::good());
    }
    pair.target.poll_transmit().expect("an answer, lost");
    pair.settle();
    let Some(initiator::Event::Closed(CloseReason::Misbehaved(why))) = pair.initiator.poll_event() else {
        panic!("noticed")
    };
    assert!(matches!(why, PeerMisbehaved::StatSn { .. }));
}

/// RFC 7143 §13.1: the first of the initiator's list that the target takes; a side that insists gets it or ends the login.
/// RFC 7143 §7.8, at error recovery level 0.
#[test]
fn damaged_data_ends_the_session_and_the_initiator_is_told() {
    let mut pair = logged_in();
    pair.initiator.submit(write(100)).expect("in");
    let damaged = pair.initiator.poll_transmit().expect("the command");
    pair.target.handle_corrupt_pdu(pair.now, &damaged);
    assert!(matches!(pair.target.poll_event(), Some(target::Event::Closed(CloseReason::Damaged))));
    let told = pair.target.poll_transmit().expect("a reject");
    let Ok(Answer::Reject(reject)) = Answer::decode(&told.bhs) else { panic!("{told:?}") };
    assert_eq!((reject.reason, &told.data[..]), (2, &damaged.bhs.0[..]));
    pair.initiator.handle_corrupt_pdu(pair.now, &damaged);
    assert!(matches!(pair.initiator.poll_event(), Some(initiator::Event::Closed(CloseReason::Damaged))));
}

/// RFC 7144: only where both agreed on level 2.
#[test]
fn queries_are_answered_at_level_2() {
    use TaskManagementResult::{Complete, LunDoesNotExist, NotSupported, Succeeded};
    let mut config = initiator_config();
    config.offer.protocol_level = 1;
    let mut pair = Pair::logged_in(config, target::Config::default());
    for function in [TaskFunction::QueryTaskSet, TaskFunction::NexusReset, TaskFunction::QueryAsyncEvent] {
        pair.initiator.manage_task(function, LUN, None).expect("in");
        assert_eq!(managed(&mut pair).0, NotSupported);
    }
    let mut pair = logged_in();
    let task = pair.initiator.submit(Command::read(LUN, [0x28; 16], 512)).expect("in");
    let gone = pair.initiator.submit(Command::read(LUN, [0x28; 16], 512)).expect("in");
    pair.settle();
    let (first, second) = (pair.command(), pair.command());
    pair.target.complete(second.task, Response::good());
    pair.settle();
    assert_eq!(pair.completed().1.task, gone);
    pair.initiator.manage_task(TaskFunction::QueryTask, LUN, Some(task)).expect("in");
    assert_eq!(managed(&mut pair), (Succeeded, vec![]));
    assert!(pair.initiator.manage_task(TaskFunction::QueryTask, LUN, None).is_err());
    pair.initiator.manage_task(TaskFunction::QueryTask, LUN, Some(gone)).expect("in");
    assert_eq!(managed(&mut pair), (Complete, vec![]));
    for (lun, any, result) in [(LUN, true, Succeeded), (Lun(1 << 48), false, LunDoesNotExist)] {
        pair.initiator.manage_task(TaskFunction::QueryTaskSet, lun, None).expect("in");
        pair.settle();
        let Some(target::Event::TaskManagement(asked)) = pair.target.poll_event() else { panic!("a query") };
        assert_eq!(asked.function, ManagementFunction::QueryTaskSet { lun, any });
        pair.target.answer_task_management(asked.id, result);
        assert_eq!(managed(&mut pair), (result, vec![]));
    }
    pair.keep = true;
    pair.initiator.manage_task(TaskFunction::QueryAsyncEvent, LUN, None).expect("in");
    pair.settle();
    let Some(target::Event::TaskManagement(asked)) = pair.target.poll_event() else { panic!("a query") };
    assert_eq!(asked.function, ManagementFunction::QueryAsyncEvent(LUN));
    pair.target.answer_query(asked.id, [6, 0x2a, 9]);
    assert_eq!(managed(&mut pair), (Succeeded, vec![]));
    assert_eq!(pair.sent_to_initiator.last().expect("answered").bhs.0[8..11], [6, 0x2a, 9]);
    // The reset of the nexus ends what is left.
    pair.initiator.manage_task(TaskFunction::NexusReset, LUN, None).expect("in");
    pair.settle();
    let Some(target::Event::TaskManagement(asked)) = pair.target.poll_event() else { panic!("a reset") };
    assert_eq!((asked.function, asked.tasks), (ManagementFunction::NexusReset, vec![first.task]));
    pair.target.answer_task_management(asked.id, Complete);
    assert_eq!(managed(&mut pair), (Complete, vec![task]));
    assert!(!pair.target.complete(first.task, Response::good()));
}

fn managed(pair: &mut Pair) -> (TaskManagementResult, Vec<initiator::TaskId>) {
    pair.settle();
    match pair.initiator.poll_event() {
        Some(initiator::Event::TaskManagementDone { result, ended, .. }) => (result, ended),
        other => panic!("expected an answer, got {other:?}"),
    }
}

/// RFC 7143 §11.6.1: what is aborted before it arrives counts as received, and never starts.
#[test]
fn an_abort_overtakes_its_command() {
    let mut pair = logged_in();
    let late = pair.initiator.submit(Command::read(LUN, [0x28; 16], 512)).expect("in");
    let next = pair.initiator.submit(Command::read(LUN, [0x28; 16], 512)).expect("in");
    let lost = pair.initiator.poll_transmit().expect("the first");
    pair.settle();
    assert!(pair.target.poll_event().is_none(), "the second waits for the first");
    pair.initiator.manage_task(TaskFunction::AbortTask, LUN, Some(late)).expect("in");
    assert_eq!(managed(&mut pair), (TaskManagementResult::Complete, vec![late]));
    let second = pair.command();
    pair.target.handle_pdu(pair.now, lost);
    assert!(pair.target.poll_event().is_none(), "the first comes too late");
    pair.target.complete(second.task, Response::good());
    pair.settle();
    assert_eq!(pair.completed().1.task, next);
}

/// RFC 7143 §11.9.1: a target that wants to negotiate is sent a text request, if an empty one.
#[test]
fn a_wish_to_negotiate_is_granted() {
    use strongroom_iscsi::pdu::{AsyncEvent, AsyncMessage, Sequence};
    let mut pair = logged_in();
    pair.keep = true;
    let sequence = Sequence { max_cmd_sn: strongroom_iscsi::Serial(100), ..Sequence::default() };
    let wish = AsyncMessage { event: AsyncEvent::NegotiationRequested, sequence, parameters: [0, 0, 3] };
    pair.initiator.handle_pdu(pair.now, strongroom_iscsi::Pdu::header_only(wish.encode()));
    pair.settle();
    assert_eq!(opcodes(&pair.sent_to_target), [Opcode::TextRequest]);
    assert_eq!(opcodes(&pair.sent_to_initiator), [Opcode::TextResponse]);
    assert!(pair.initiator.poll_event().is_none() && pair.target.poll_event().is_none());
}

#[test]
fn an_echo_brings_its_data_back_and_touches_no_unit() {
    let mut pair = logged_in();
    let first = pair.initiator.echo(Buffer::copy_from(&[7; 3000])).expect("logged in");
    let second = pair.initiator.echo(Buffer::empty()).expect("logged in");
    pair.settle();
    for (tag, bytes) in [(first, 3000), (second, 0)] {
        let event = pair.initiator.poll_event();
        assert!(
            matches!(event, Some(initiator::Event::Echoed { tag: found, bytes: back }) if (found, back) == (tag, bytes)),
            "{event:?}"
        );
    }
    assert!(pair.initiator.poll_event().is_none() && pair.target.poll_event().is_none());
    // One segment, this many at once, and no more.
    let long = Buffer::copy_from(&vec![0; 1 << 20]);
    assert!(matches!(pair.initiator.echo(long), Err(SubmitError::Malformed(_))));
    let taken = (0..).take_while(|_| pair.initiator.echo(Buffer::empty()).is_ok()).count();
    assert_eq!(taken, 256);
    assert!(matches!(pair.initiator.echo(Buffer::empty()), Err(SubmitError::QueueFull)));
}
