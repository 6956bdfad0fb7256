//! Proves sessions of several connections: commands in the order of their numbers whichever way they come, data and answers where the
//! command came, ends of connections, and error recovery level 2, where the tasks of a lost connection go on with another one.

mod host;
mod limits;

use std::time::Duration;

use host::{Host, LUN};
use strongroom_block::Buffer;
use strongroom_iscsi::pdu::{
    Answer, DataOut, LogoutResult, NopOut, RejectReason, TAG_NONE, TaskFunction, TaskManagementResult,
};
use strongroom_iscsi::target::{self, ConnectionId, Event, ManagementFunction, MayAdd, Response};
use strongroom_iscsi::{CloseReason, Serial};
use strongroom_scsi::transport::target::Session as _;

#[test]
fn commands_are_executed_in_the_order_of_their_numbers() {
    let (mut host, ids) = Host::new(0, 3);
    let order = [(ids[2], 102), (ids[1], 101), (ids[0], 103)];
    for (id, cmd_sn) in order {
        let bhs = host.command(cmd_sn, cmd_sn, target::Direction::None, 0);
        host.say(id, bhs, &[]);
        assert!(host.session.poll_event().is_none(), "100 is missing");
    }
    let bhs = host.command(100, 100, target::Direction::None, 0);
    host.say(ids[0], bhs, &[]);
    for (tag, id) in [(100, ids[0]), (101, ids[1]), (102, ids[2]), (103, ids[0])] {
        let command = host.taken();
        assert!(host.session.complete(command.task, Response::good()));
        match host.hear(id) {
            Some((Answer::ScsiResponse(answer), _)) => assert_eq!(answer.initiator_task_tag, tag, "where it came"),
            other => panic!("{other:?}"),
        }
    }
    assert!(ids.iter().all(|id| host.hear(*id).is_none()));
}

#[test]
fn data_belongs_to_the_connection_of_its_command() {
    let (mut host, ids) = Host::new(0, 2);
    let bhs = host.command(5, 100, target::Direction::Write, 512);
    host.say(ids[0], bhs, &[]);
    let Some((Answer::R2t(r2t), _)) = host.hear(ids[0]) else { panic!("asked on the connection of the command") };
    let header = DataOut {
        is_final: true,
        lun: LUN,
        initiator_task_tag: 5,
        target_transfer_tag: r2t.target_transfer_tag,
        exp_stat_sn: Serial(0),
        data_sn: 0,
        buffer_offset: 0,
    };
    host.say(ids[1], header.encode(), &[1; 512]);
    match host.hear(ids[1]) {
        Some((Answer::Reject(reject), _)) => assert_eq!(reject.reason, RejectReason::InvalidPduField as u8),
        other => panic!("{other:?}"),
    }
    host.say(ids[0], header.encode(), &[2; 512]);
    assert_eq!(host.taken().gather()[..], [2; 512]);
}

/// Unsolicited data overtakes, on its own connection, a command that is missing on another one.
#[test]
fn unsolicited_data_waits_with_its_command() {
    let (mut host, ids) = Host::with_keys(0, 2, "InitialR2T=No");
    let mut write = host.command(6, 101, target::Direction::Write, 1024);
    write.0[1] &= !0x80; // Data follows unasked.
    host.say(ids[1], write, &[]);
    let data_out = |data_sn: u32, is_final| DataOut {
        is_final,
        lun: LUN,
        initiator_task_tag: 6,
        target_transfer_tag: TAG_NONE,
        exp_stat_sn: Serial(0),
        data_sn,
        buffer_offset: data_sn * 512,
    };
    host.say(ids[1], data_out(0, false).encode(), &[1; 512]);
    host.say(ids[1], data_out(1, true).encode(), &[2; 512]);
    assert!(host.hear(ids[1]).is_none() && host.session.poll_event().is_none());
    let first = host.command(5, 100, target::Direction::None, 0);
    host.say(ids[0], first, &[]);
    host.taken();
    assert_eq!(host.taken().gather()[..], [[1; 512], [2; 512]].concat());
    // Beyond what was agreed on it is not held.
    let mut write = host.command(7, 103, target::Direction::Write, 4096);
    write.0[1] &= !0x80;
    host.say(ids[1], write, &[]);
    for data_sn in 0..2 {
        host.say(ids[1], DataOut { initiator_task_tag: 7, ..data_out(data_sn, false) }.encode(), &[1; 512]);
    }
    assert!(host.hear(ids[1]).is_none());
    host.say(ids[1], DataOut { initiator_task_tag: 7, ..data_out(2, false) }.encode(), &[1; 512]);
    assert!(matches!(host.hear(ids[1]), Some((Answer::Reject(_), _))));
}

/// A connection that runs far ahead of another one waits for it; it does not cost the session.
#[test]
fn a_fast_connection_waits_for_a_slow_one() {
    let early = |host: &mut Host, id, cmd_sn| {
        let write = host.command(cmd_sn, cmd_sn, target::Direction::Write, 512);
        host.say(id, write, &[7; 512]);
    };
    // Each of these takes a page of 4 KiB, of 64 KiB that there are.
    let ahead = |level| {
        let (mut host, ids) = Host::new(level, 3);
        for cmd_sn in 101..=113 {
            assert!(host.session.accepts_input(ids[1]), "{cmd_sn}");
            early(&mut host, ids[1], cmd_sn);
        }
        (host, ids)
    };
    for level in [0, 2] {
        let (mut host, ids) = ahead(level);
        assert!(!host.session.accepts_input(ids[1]), "one of the others brings what is missing");
        assert!(host.session.accepts_input(ids[0]) && host.session.accepts_input(ids[2]));
        early(&mut host, ids[2], 114);
        assert!(!host.session.accepts_input(ids[2]) && host.session.accepts_input(ids[0]));
        early(&mut host, ids[0], 100);
        for _ in 100..=114 {
            let task = host.taken().task;
            assert!(host.session.complete(task, Response::good()));
        }
        assert!(ids.iter().all(|id| host.session.accepts_input(*id)), "and all go on");
    }
    // Where all are ahead, or one was lost, what is missing comes over any of them.
    let (mut host, ids) = ahead(2);
    early(&mut host, ids[2], 114);
    early(&mut host, ids[0], 115);
    assert!(ids.iter().all(|id| host.session.accepts_input(*id)));
    let (mut host, ids) = ahead(2);
    host.lose(ids[0]);
    assert!(host.session.accepts_input(ids[1]) && host.session.accepts_input(ids[2]));
}

#[test]
fn there_are_no_more_connections_than_agreed() {
    let (mut host, ids) = Host::new(0, 3);
    assert_eq!(host.session.may_add(host.now, 7), MayAdd::TooMany);
    host.log_out(ids[1], 1, 1);
    assert_eq!(host.logged_out(ids[1]), LogoutResult::Closed);
    assert_eq!(host.connection_closed(), ids[1]);
    assert_eq!(host.session.may_add(host.now, 7), MayAdd::Yes);
    host.log_out(ids[0], 1, 55);
    assert_eq!(host.logged_out(ids[0]), LogoutResult::CidNotFound);
    host.log_out(ids[0], 2, 2);
    assert_eq!(host.logged_out(ids[0]), LogoutResult::RecoveryNotSupported);
    assert!(!host.session.is_closed());
    host.log_out(ids[2], 0, 0);
    assert!(matches!(host.session.poll_event(), Some(Event::Closed(CloseReason::LoggedOut))), "the session");
    assert_eq!(host.session.may_add(host.now, 8), MayAdd::Over);
}

/// A write that may yet take effect after its connection's logout was answered could undo what came later by another one.
#[test]
fn a_logout_waits_for_the_tasks_of_its_connection() {
    let (mut host, ids) = Host::new(0, 2);
    let theirs = host.start(ids[1], 5);
    let ours = host.start(ids[0], 6);
    host.log_out(ids[1], 1, 1);
    let Some(Event::TaskManagement(request)) = host.session.poll_event() else { panic!("the application is asked") };
    assert_eq!((request.function, &request.tasks[..]), (ManagementFunction::ConnectionEnded, &[theirs.task][..]));
    assert!(host.hear(ids[1]).is_none() && host.session.poll_event().is_none());
    let nop = NopOut {
        immediate: true,
        lun: LUN,
        initiator_task_tag: 1,
        target_transfer_tag: TAG_NONE,
        cmd_sn: Serial(host.cmd_sn),
        exp_stat_sn: Serial(0),
    };
    host.say(ids[1], nop.encode(), &[]);
    assert!(host.hear(ids[1]).is_none(), "nothing is taken from it any more");
    host.session.answer_task_management(request.id, TaskManagementResult::Complete.into());
    assert_eq!(host.logged_out(ids[1]), LogoutResult::Closed);
    assert_eq!(host.connection_closed(), ids[1]);
    assert!(!host.session.complete(theirs.task, Response::good()));
    assert!(host.session.complete(ours.task, Response::good()), "others go on");
}

#[test]
fn a_lost_connection_ends_the_session_below_level_2() {
    for level in [0, 1] {
        let (mut host, ids) = Host::new(level, 2);
        host.lose(ids[1]);
        assert!(matches!(host.session.poll_event(), Some(Event::Closed(CloseReason::ConnectionLost(_)))));
        assert_eq!(host.session.may_add(host.now, 1), MayAdd::Over);
        assert!(host.session.poll_timeout().is_none());
    }
}

#[test]
fn the_same_cid_replaces_a_connection_and_ends_its_tasks() {
    let (mut host, ids) = Host::new(0, 2);
    let task = host.start(ids[1], 5).task;
    assert_eq!(host.session.may_add(host.now, 1), MayAdd::Later);
    let Some(Event::TaskManagement(request)) = host.session.poll_event() else { panic!("the application is asked") };
    assert_eq!(request.tasks, [task]);
    assert_eq!(host.session.may_add(host.now, 1), MayAdd::Later, "still");
    host.session.answer_task_management(request.id, TaskManagementResult::Complete.into());
    assert_eq!(host.connection_closed(), ids[1]);
    let again = host.join(1);
    assert_eq!(host.session.connections_count(), 2);
    let task = host.start(again, 5).task;
    assert!(host.session.complete(task, Response::good()));
}

/// RFC 7143 §4.2.3.3: the answer to a reset must not overtake what its tasks were told on other connections, nor the reset commands.
#[test]
fn a_reset_over_all_connections_waits_for_commands_and_answers() {
    let (mut host, ids) = Host::new(0, 2);
    let first = host.start(ids[1], 5);
    // The command 101 is on its way by the other connection when the reset, sent after it, comes.
    host.cmd_sn = 102;
    host.manage(ids[0], TaskFunction::LogicalUnitReset, TAG_NONE, 0);
    assert!(host.session.poll_event().is_none());
    let bhs = host.command(6, 101, target::Direction::None, 0);
    host.say(ids[1], bhs, &[]);
    let second = host.taken();
    let Some(Event::TaskManagement(request)) = host.session.poll_event() else { panic!("now it is carried out") };
    assert_eq!(request.tasks, [first.task, second.task]);
    host.session.answer_task_management(request.id, TaskManagementResult::Complete.into());
    assert!(host.hear(ids[0]).is_none(), "not before the other connection has answered a ping");
    let Some((Answer::NopIn(ping), _)) = host.hear(ids[1]) else { panic!("a ping") };
    let pong = NopOut {
        immediate: true,
        lun: LUN,
        initiator_task_tag: TAG_NONE,
        target_transfer_tag: ping.target_transfer_tag,
        cmd_sn: Serial(102),
        exp_stat_sn: Serial(0),
    };
    host.say(ids[1], pong.encode(), &[]);
    assert_eq!(host.managed(ids[0]), TaskManagementResult::Complete);
}

fn content() -> Vec<u8> {
    (0..1500).map(|at| at as u8).collect()
}

/// A read of 1500 bytes in Data-In of 512, of which `sent` PDUs were sent when its connection was lost.
fn cut_read(sent: usize) -> (Host, Vec<ConnectionId>) {
    let (mut host, ids) = Host::new(2, 2);
    let bhs = host.command(5, 100, target::Direction::Read, 1500);
    host.say(ids[1], bhs, &[]);
    let task = host.taken().task;
    host.session.complete(task, Response::good_data(Buffer::copy_from(&content())));
    for _ in 0..sent {
        assert!(matches!(host.hear(ids[1]), Some((Answer::DataIn(_), _))));
    }
    host.lose(ids[1]);
    assert_eq!(host.connection_closed(), ids[1]);
    (host, ids)
}

#[test]
fn a_read_goes_on_with_another_connection() {
    for sent in 0..=3 {
        for first in 0..=sent as u32 {
            let (mut host, ids) = cut_read(sent);
            host.manage(ids[0], TaskFunction::TaskReassign, 5, first);
            assert_eq!(host.managed(ids[0]), TaskManagementResult::Complete);
            let mut read = content()[..(first as usize * 512).min(1500)].to_vec();
            let mut data_sn = first;
            loop {
                match host.hear(ids[0]) {
                    Some((Answer::DataIn(data), pdu)) => {
                        assert_eq!((data.data_sn, data.buffer_offset as usize), (data_sn, read.len()));
                        data_sn += 1;
                        read.extend_from_slice(&pdu.data);
                        if data.status.is_some() {
                            break;
                        }
                    }
                    Some((Answer::ScsiResponse(answer), _)) => {
                        assert_eq!((answer.status, answer.exp_data_sn), (0, 3));
                        break;
                    }
                    other => panic!("{sent} {first}: {other:?}"),
                }
            }
            assert!(read == content(), "{sent} sent, {first} there");
            assert!(host.hear(ids[0]).is_none());
            assert_eq!(host.session.unsent_bytes(), 0);
            host.manage(ids[0], TaskFunction::TaskReassign, 5, 0);
            assert_eq!(host.managed(ids[0]), TaskManagementResult::TaskDoesNotExist, "it is over");
        }
    }
}

#[test]
fn a_write_is_asked_for_again_on_another_connection() {
    let (mut host, ids) = Host::new(2, 2);
    let bhs = host.command(5, 100, target::Direction::Write, 1024);
    host.say(ids[1], bhs, &[7; 512]);
    let Some((Answer::R2t(old), _)) = host.hear(ids[1]) else { panic!("an R2T") };
    host.log_out(ids[0], 2, 1);
    assert_eq!(host.logged_out(ids[0]), LogoutResult::Closed);
    assert_eq!(host.connection_closed(), ids[1]);
    host.manage(ids[0], TaskFunction::TaskReassign, 5, 0);
    assert_eq!(host.managed(ids[0]), TaskManagementResult::Complete, "before it is asked for");
    let Some((Answer::R2t(r2t), _)) = host.hear(ids[0]) else { panic!("an R2T") };
    assert_eq!((r2t.buffer_offset, r2t.desired_data_transfer_bytes), (512, 512));
    assert_ne!(r2t.target_transfer_tag, old.target_transfer_tag);
    let mut header = DataOut {
        is_final: true,
        lun: LUN,
        initiator_task_tag: 5,
        target_transfer_tag: old.target_transfer_tag,
        exp_stat_sn: Serial(0),
        data_sn: 0,
        buffer_offset: 512,
    };
    host.say(ids[0], header.encode(), &[8; 512]);
    assert!(matches!(host.hear(ids[0]), Some((Answer::Reject(_), _))), "the old tag is void");
    header.target_transfer_tag = r2t.target_transfer_tag;
    host.say(ids[0], header.encode(), &[8; 512]);
    let command = host.taken();
    assert_eq!(command.gather()[..], [[7; 512], [8; 512]].concat());
    assert!(host.session.complete(command.task, Response::good()));
    assert!(matches!(host.hear(ids[0]), Some((Answer::ScsiResponse(answer), _)) if answer.status == 0));
}

#[test]
fn what_the_application_has_is_answered_where_the_task_is_then() {
    let (mut host, ids) = Host::new(2, 2);
    let (before, after) = (host.start(ids[1], 5), host.start(ids[1], 6));
    host.lose(ids[1]);
    host.connection_closed();
    assert!(host.session.complete(before.task, Response::check_condition(vec![0x70; 18])), "it is kept");
    for tag in [5, 6] {
        host.manage(ids[0], TaskFunction::TaskReassign, tag, 0);
        assert_eq!(host.managed(ids[0]), TaskManagementResult::Complete);
    }
    host.manage(ids[0], TaskFunction::TaskReassign, 5, 0);
    assert_eq!(host.managed(ids[0]), TaskManagementResult::TaskStillAllegiant);
    assert!(host.session.complete(after.task, Response::good()));
    let mut seen = Vec::new();
    while let Some((Answer::ScsiResponse(answer), pdu)) = host.hear(ids[0]) {
        seen.push((answer.initiator_task_tag, answer.status, pdu.data.len()));
    }
    seen.sort_unstable();
    assert_eq!(seen, [(5, 2, 20), (6, 0, 0)]);
}

/// A status that was sent and not acknowledged comes again under a new number.
#[test]
fn a_lost_status_comes_again() {
    let (mut host, ids) = Host::new(2, 2);
    let task = host.start(ids[1], 5).task;
    host.session.complete(task, Response::check_condition(vec![0x70; 18]));
    assert!(matches!(host.hear(ids[1]), Some((Answer::ScsiResponse(_), _))));
    host.lose(ids[1]);
    host.connection_closed();
    // The same CID: recovery without a logout.
    let again = host.join(1);
    host.manage(again, TaskFunction::TaskReassign, 5, 0);
    assert_eq!(host.managed(again), TaskManagementResult::Complete);
    match host.hear(again) {
        Some((Answer::ScsiResponse(answer), pdu)) => {
            assert_eq!((answer.status, pdu.data.len(), answer.sequence.stat_sn), (2, 20, Serial(1002)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_nobody_recovers_is_ended_in_time() {
    let (mut host, ids) = Host::new(2, 2);
    let task = host.start(ids[1], 5).task;
    host.lose(ids[1]);
    host.connection_closed();
    host.now += Duration::from_secs(10);
    host.session.handle_timeout(host.now);
    assert!(host.session.poll_event().is_none(), "Time2Wait and Time2Retain are 11 s");
    host.now += Duration::from_secs(1);
    host.session.handle_timeout(host.now);
    let Some(Event::TaskManagement(request)) = host.session.poll_event() else { panic!("it is ended") };
    assert_eq!((request.function, &request.tasks[..]), (ManagementFunction::ConnectionEnded, &[task][..]));
    host.session.answer_task_management(request.id, TaskManagementResult::Complete.into());
    host.manage(ids[0], TaskFunction::TaskReassign, 5, 0);
    assert_eq!(host.managed(ids[0]), TaskManagementResult::TaskDoesNotExist);
    // And the session, when no connection is left.
    host.lose(ids[0]);
    host.connection_closed();
    assert!(!host.session.is_closed());
    host.now += Duration::from_secs(11);
    host.session.handle_timeout(host.now);
    assert!(matches!(host.session.poll_event(), Some(Event::Closed(CloseReason::NotRecovered))));
}

#[test]
fn a_session_without_connections_is_found_again() {
    let (mut host, ids) = Host::new(2, 1);
    let task = host.start(ids[0], 5).task;
    host.lose(ids[0]);
    host.connection_closed();
    let again = host.join(4);
    host.manage(again, TaskFunction::TaskReassign, 5, 0);
    assert_eq!(host.managed(again), TaskManagementResult::Complete);
    assert!(host.session.complete(task, Response::good()));
    assert!(matches!(host.hear(again), Some((Answer::ScsiResponse(answer), _)) if answer.status == 0));
}

/// A command that may not have arrived is sent again, under its number, by another connection.
#[test]
fn commands_held_back_are_forgotten_with_their_connection() {
    let (mut host, ids) = Host::new(2, 2);
    let held = host.command(6, 101, target::Direction::None, 0);
    host.say(ids[1], held, &[]);
    host.lose(ids[1]);
    host.connection_closed();
    host.say(ids[0], held, &[]);
    let first = host.command(5, 100, target::Direction::None, 0);
    host.say(ids[0], first, &[]);
    host.taken();
    let command = host.taken();
    assert!(host.session.complete(command.task, Response::good()));
    assert!(matches!(host.hear(ids[0]), Some((Answer::ScsiResponse(_), _))));
}

#[test]
fn connections_that_come_and_go_leave_nothing_behind() {
    let (mut host, ids) = Host::new(2, 1);
    for round in 0..200 {
        let id = host.join(1);
        let task = host.start(id, 1000 + round).task;
        host.lose(id);
        host.connection_closed();
        if let Some(Event::TaskManagement(request)) = host.session.poll_event() {
            host.session.answer_task_management(request.id, TaskManagementResult::Complete.into());
        }
        host.session.complete(task, Response::good());
    }
    let waiting = host.session.session_keys().connections_max;
    host.now += Duration::from_secs(11);
    host.session.handle_timeout(host.now);
    assert_eq!((host.session.connections_count(), waiting), (1, 3));
    host.start(ids[0], 1);
}
