//! Proves that a session does not outlive its connections for longer than the target wants, and that nobody is answered with what
//! belongs to an earlier connection or task.

use std::time::Duration;

use strongroom_block::Buffer;
use strongroom_iscsi::pdu::{Answer, TaskFunction, TaskManagementResult};
use strongroom_iscsi::target::{Direction, Event, Login, LoginEvent, MayAdd, Response, Session};
use strongroom_iscsi::{CloseReason, LoginStatus};

use super::host::{Host, TSIH, begin, config};
use crate::pair::epoch;

/// The larger Time2Wait holds, and an hour may be asked for: how long a session without a connection stays is not the initiator's choice.
#[test]
fn an_initiator_does_not_choose_how_long_a_session_without_connections_stays() {
    let now = epoch();
    let keys = "MaxConnections=3\0ErrorRecoveryLevel=2\0DefaultTime2Wait=3600\0DefaultTime2Retain=3600\0";
    let mut login = begin(now, 0, 0, 100, keys, config(2));
    login.accept(TSIH);
    assert!(matches!(login.poll_event(), Some(LoginEvent::Done)));
    let (session, id) = Session::new(now, login);
    assert_eq!((session.session_keys().time2wait_s, session.session_keys().time2retain_s), (3600, 10));
    let mut host = Host { now, session, cmd_sn: 100 };
    host.lose(id);
    assert_eq!(host.connection_closed(), id);
    let until = host.session.poll_timeout().expect("it ends some time");
    assert_eq!(until - now, Duration::from_secs(5 + 10));
    host.session.handle_timeout(until);
    assert!(matches!(host.session.poll_event(), Some(Event::Closed(CloseReason::NotRecovered))));
}

/// A login may be refused, or lose its connection, after it was let in and before the host saw that it is over.
#[test]
fn a_login_that_ends_before_it_was_seen_to_be_done_is_not_done() {
    let ends: [fn(&mut Login); 3] = [
        |login| login.reject(LoginStatus::SERVICE_UNAVAILABLE),
        |login| login.redirect("192.0.2.1:3260", false),
        |login| login.handle_closed(CloseReason::ConnectionLost("reset".to_owned())),
    ];
    for end in ends {
        let mut login = begin(epoch(), 0, 0, 100, "", config(0));
        login.accept(TSIH);
        assert!(login.agreed().is_some());
        end(&mut login);
        assert!(matches!(login.poll_event(), Some(LoginEvent::Closed(_))));
        assert!(login.poll_event().is_none() && login.agreed().is_none() && login.is_closed());
    }
}

/// The connection that is to replace the only one may never come.
#[test]
fn a_session_whose_only_connection_made_way_ends_when_none_comes() {
    for level in [0, 1] {
        for has_task in [false, true] {
            let (mut host, ids) = Host::new(level, 1);
            let task = has_task.then(|| host.start(ids[0], 5).task);
            let verdict = host.session.may_add(host.now, 0);
            assert_eq!(verdict, if has_task { MayAdd::Later } else { MayAdd::Yes });
            if task.is_some() {
                let Some(Event::TaskManagement(request)) = host.session.poll_event() else { panic!("it is ended") };
                host.session.answer_task_management(request.id, TaskManagementResult::Complete.into());
            }
            assert_eq!(host.connection_closed(), ids[0]);
            while host.session.poll_transmit(ids[0]).is_some() {}
            let until = host.session.poll_timeout().expect("it ends some time");
            assert_eq!(until - host.now, config(level).login_timeout);
            // Asking again does not put it off.
            host.now += Duration::from_secs(1);
            assert_eq!(host.session.may_add(host.now, 0), MayAdd::Yes);
            assert_eq!(host.session.poll_timeout(), Some(until));
            host.session.handle_timeout(until);
            assert!(matches!(host.session.poll_event(), Some(Event::Closed(CloseReason::NotRecovered))));
        }
    }
}

#[test]
fn a_session_whose_only_connection_was_replaced_goes_on() {
    let (mut host, ids) = Host::new(0, 1);
    let again = host.join(0);
    assert_eq!(host.connection_closed(), ids[0]);
    host.now += config(0).login_timeout;
    host.session.handle_timeout(host.now);
    assert!(host.session.poll_event().is_none() && !host.session.is_closed());
    host.start(again, 5);
}

/// What is known of a lost connection's tasks is void once a tag of theirs names another task.
#[test]
fn a_reassigned_task_is_not_answered_with_what_an_earlier_one_of_its_tag_was() {
    // The tag comes again before its first connection is lost, or after.
    for is_lost_first in [false, true] {
        let (mut host, ids) = Host::new(2, 3);
        let old = host.start(ids[1], 5).task;
        assert!(host.session.complete(old, Response::check_condition(vec![0x70; 18])));
        assert!(matches!(host.hear(ids[1]), Some((Answer::ScsiResponse(answer), _)) if answer.status == 2));
        if is_lost_first {
            host.lose(ids[1]);
            assert_eq!(host.connection_closed(), ids[1]);
        }
        let new = host.start(ids[2], 5).task;
        assert!(host.session.complete(new, Response::good()));
        assert!(matches!(host.hear(ids[2]), Some((Answer::ScsiResponse(answer), _)) if answer.status == 0));
        if !is_lost_first {
            host.lose(ids[1]);
            assert_eq!(host.connection_closed(), ids[1]);
        }
        host.lose(ids[2]);
        assert_eq!(host.connection_closed(), ids[2]);
        host.manage(ids[0], TaskFunction::TaskReassign, 5, 0);
        assert_eq!(host.managed(ids[0]), TaskManagementResult::Complete);
        match host.hear(ids[0]) {
            Some((Answer::ScsiResponse(answer), _)) => assert_eq!(answer.status, 0, "the newer task's"),
            other => panic!("{other:?}"),
        }
        host.manage(ids[0], TaskFunction::TaskReassign, 5, 0);
        assert_eq!(host.managed(ids[0]), TaskManagementResult::TaskDoesNotExist, "and the older one's is gone");
    }
}

/// A read that goes on elsewhere brings none of the data that an earlier read of its tag brought.
#[test]
fn a_reassigned_read_does_not_bring_what_an_earlier_one_of_its_tag_did() {
    let (mut host, ids) = Host::new(2, 2);
    for (byte, is_sent) in [(1, true), (2, false)] {
        let cmd_sn = host.cmd_sn;
        let bhs = host.command(5, cmd_sn, Direction::Read, 512);
        host.say(ids[1], bhs, &[]);
        let task = host.taken().task;
        assert!(host.session.complete(task, Response::good_data(Buffer::copy_from(&[byte; 512]))));
        while is_sent && host.hear(ids[1]).is_some() {}
    }
    host.lose(ids[1]);
    assert_eq!(host.connection_closed(), ids[1]);
    host.manage(ids[0], TaskFunction::TaskReassign, 5, 0);
    assert_eq!(host.managed(ids[0]), TaskManagementResult::Complete);
    match host.hear(ids[0]) {
        Some((Answer::DataIn(_), pdu)) => assert_eq!(pdu.data[..], [2; 512]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn of_two_logins_with_one_cid_one_gets_in() {
    let (mut host, _) = Host::new(0, 1);
    let mut begun = Vec::new();
    for _ in 0..2 {
        assert_eq!(host.session.may_add(host.now, 1), MayAdd::Yes);
        let mut login: Login = begin(host.now, 1, TSIH, host.cmd_sn, "", config(2));
        login.accept_into(&host.session);
        assert!(matches!(login.poll_event(), Some(LoginEvent::Done)));
        begun.push(login);
    }
    let late = begun.pop().expect("two");
    let first = begun.pop().expect("one");
    assert!(host.session.has_place_for(&first));
    let id = host.session.add_connection(host.now, first);
    assert!(matches!(host.hear(id), Some((Answer::Login(answer), _)) if answer.status == LoginStatus::SUCCESS));
    assert!(!host.session.has_place_for(&late), "there is one of this CID");
    host.log_out(id, 1, 1);
    assert_eq!(host.connection_closed(), id);
    assert!(host.session.has_place_for(&late));
    host.session.close("for a test");
    assert!(!host.session.has_place_for(&late));
}

/// Tasks of a connection that nobody recovered may still take effect: another one of its CID waits for their end.
#[test]
fn a_cid_is_taken_until_the_tasks_of_its_lost_connection_have_ended() {
    let (mut host, ids) = Host::new(2, 2);
    host.start(ids[1], 5);
    host.lose(ids[1]);
    assert_eq!(host.connection_closed(), ids[1]);
    host.now += Duration::from_secs(11);
    host.session.handle_timeout(host.now);
    let Some(Event::TaskManagement(request)) = host.session.poll_event() else { panic!("its task is ended") };
    assert_eq!(host.session.may_add(host.now, 1), MayAdd::Later);
    assert_eq!(host.session.may_add(host.now, 2), MayAdd::Yes, "another CID is free");
    host.session.answer_task_management(request.id, TaskManagementResult::Complete.into());
    assert_eq!(host.session.may_add(host.now, 1), MayAdd::Yes);
}

/// Answered writes of a lost connection hold no memory: the connection that takes their answers over is read.
#[test]
fn writes_whose_answers_were_lost_do_not_stop_reading() {
    let (mut host, ids) = Host::with_keys(2, 2, "InitialR2T=No");
    let mut tasks = Vec::new();
    for tag in 0..13 {
        let cmd_sn = host.cmd_sn;
        let bhs = host.command(tag, cmd_sn, Direction::Write, 1024);
        host.say(ids[1], bhs, &[7; 1024]);
        tasks.push(host.taken().task);
    }
    assert!(!host.session.accepts_input(ids[0]), "so much is not done with");
    host.lose(ids[1]);
    assert_eq!(host.connection_closed(), ids[1]);
    for task in tasks {
        assert!(host.session.complete(task, Response::good()));
    }
    assert!(host.session.accepts_input(ids[0]));
    for tag in 0..13 {
        host.manage(ids[0], TaskFunction::TaskReassign, tag, 0);
        assert_eq!(host.managed(ids[0]), TaskManagementResult::Complete);
        assert!(
            matches!(host.hear(ids[0]), Some((Answer::ScsiResponse(answer), _)) if answer.initiator_task_tag == tag)
        );
    }
}
