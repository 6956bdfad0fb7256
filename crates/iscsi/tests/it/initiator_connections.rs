//! Proves what an initiator does with several connections, against a target that is written down PDU by PDU: who goes by which
//! connection, what is said when one is lost at each error recovery level, and that nothing is sent again that need not be.

use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::Buffer;
use strongroom_iscsi::initiator::{
    Command, Config, ConnectionId, Event, Session, SessionKind, SubmitError, TaskId, WriteSource,
};
use strongroom_iscsi::pdu::{
    Answer, AsyncEvent, AsyncMessage, DataIn, LoginResponse, LogoutResponse, LogoutResult, R2t, Request, ScsiCommand,
    ScsiResponse, Sequence, TaskManagementResponse, TaskManagementResult,
};
use strongroom_iscsi::{Bhs, CloseReason, LoginStatus, Lun, Pdu, PeerMisbehaved, Residual, Serial};

const LUN: Lun = Lun(0);
const TSIH: u16 = 9;
const FIRST: ConnectionId = ConnectionId(0);
const SECOND: ConnectionId = ConnectionId(1);

/// A session and the numbers of its target.
struct Stage {
    now: Instant,
    session: Session,
    stat_sn: [u32; 3],
    exp_cmd_sn: u32,
}

#[allow(clippy::disallowed_methods)] // An Instant has no other beginning.
fn epoch() -> Instant {
    Instant::now()
}

impl Stage {
    /// In full-feature phase on the leading connection.
    fn new(connections: u16, level: u8) -> Stage {
        let kind = SessionKind::Normal { target_name: "t".into() };
        let mut config = Config::new("i", [0x80, 0, 0, 0, 0, 1], kind);
        config.offer.connections_max = connections;
        config.offer.error_recovery_level = level;
        config.offer.time2retain_s = 30;
        let session = Session::new(epoch(), config);
        let mut stage = Stage { now: epoch(), session, stat_sn: [1, 1000, 2000], exp_cmd_sn: 1 };
        let keys = format!(
            "MaxConnections={connections}\0ErrorRecoveryLevel={level}\0InitialR2T=Yes\0ImmediateData=No\0\
             DefaultTime2Wait=1\0DefaultTime2Retain=20\0MaxRecvDataSegmentLength=8192\0"
        );
        stage.log_in(FIRST, TSIH, &keys);
        let Some(Event::LoggedIn { agreed, tsih: TSIH, .. }) = stage.session.poll_event() else { panic!("not in") };
        assert_eq!((agreed.connections_max, agreed.time2wait_s, agreed.time2retain_s), (connections, 1, 20));
        stage
    }

    /// With two connections.
    fn with_two(level: u8) -> Stage {
        let mut stage = Stage::new(2, level);
        assert_eq!(stage.session.add_connection(stage.now, None), Ok(SECOND));
        stage.log_in(SECOND, TSIH, "MaxRecvDataSegmentLength=8192\0");
        assert!(matches!(stage.session.poll_event(), Some(Event::ConnectionJoined { id: SECOND, .. })));
        stage
    }

    fn numbers(&mut self, on: ConnectionId) -> Sequence {
        let stat_sn = Serial(self.stat_sn[usize::from(on.0)]);
        let exp_cmd_sn = Serial(self.exp_cmd_sn);
        Sequence { stat_sn, exp_cmd_sn, max_cmd_sn: exp_cmd_sn.plus(15) }
    }

    /// An answer that uses up a StatSN.
    fn numbered(&mut self, on: ConnectionId) -> Sequence {
        let numbers = self.numbers(on);
        self.stat_sn[usize::from(on.0)] += 1;
        numbers
    }

    fn say(&mut self, on: ConnectionId, bhs: Bhs, data: &[u8]) {
        let pdu = Pdu::new(bhs, Bytes::new(), Buffer::copy_from(data), false);
        self.session.handle_pdu_on(self.now, on, pdu);
    }

    fn hear(&mut self, on: ConnectionId) -> Option<Request> {
        let pdu = self.session.poll_transmit_on(on)?;
        Some(Request::decode(&pdu.bhs).expect("we send sound headers"))
    }

    fn hear_command(&mut self, on: ConnectionId) -> ScsiCommand {
        match self.hear(on) {
            Some(Request::ScsiCommand(command)) => command,
            other => panic!("expected a command on {on:?}, got {other:?}"),
        }
    }

    fn log_in(&mut self, on: ConnectionId, tsih: u16, keys: &str) {
        for stage in [0, 1] {
            let Some(Request::Login(login)) = self.hear(on) else { panic!("no login") };
            assert_eq!((login.cid, login.tsih), (on.0, if on == FIRST && keys.contains("MaxConn") { 0 } else { TSIH }));
            let answer = LoginResponse {
                transit: true,
                continues: false,
                current_stage: stage,
                next_stage: 2 * stage + 1,
                isid: login.isid,
                tsih: if stage == 1 { tsih } else { login.tsih },
                initiator_task_tag: login.initiator_task_tag,
                sequence: self.numbered(on),
                status: LoginStatus::SUCCESS,
            };
            self.say(on, answer.encode(), if stage == 1 { keys.as_bytes() } else { b"AuthMethod=None\0" });
        }
    }

    fn finish(&mut self, on: ConnectionId, tag: u32) {
        let response = ScsiResponse {
            initiator_task_tag: tag,
            response: 0,
            status: 0,
            sequence: self.numbered(on),
            exp_data_sn: 0,
            residual: Residual::None,
        };
        self.say(on, response.encode(), &[]);
    }

    fn data_in(&mut self, on: ConnectionId, tag: u32, data_sn: u32, offset: u32, len: usize, status: Option<u8>) {
        let header = DataIn {
            is_final: status.is_some(),
            status: status.map(|status| (status, Residual::None)),
            lun: LUN,
            initiator_task_tag: tag,
            sequence: if status.is_some() { self.numbered(on) } else { self.numbers(on) },
            data_sn,
            buffer_offset: offset,
        };
        self.say(on, header.encode(), &vec![7; len]);
    }

    fn read(&mut self, bytes: u32) -> TaskId {
        self.session.submit(Command::read(LUN, [0x28; 16], bytes)).expect("in")
    }

    fn write(&mut self, bytes: usize) -> TaskId {
        let data = WriteSource::plain(Buffer::copy_from(&vec![3; bytes]));
        self.session.submit(Command::write(LUN, [0x2a; 16], data)).expect("in")
    }

    fn lose(&mut self, on: ConnectionId) {
        self.session.handle_closed_on(self.now, on, CloseReason::ConnectionLost("cut".into()));
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.session.handle_timeout(self.now);
    }

    /// Answers the logout for recovery of `lost` that must come on `on`.
    fn remove(&mut self, on: ConnectionId, lost: ConnectionId, result: LogoutResult) {
        let Some(Request::Logout(logout)) = self.hear(on) else { panic!("the target is told") };
        assert_eq!((logout.reason, logout.cid), (2, lost.0));
        let answer = LogoutResponse {
            result,
            initiator_task_tag: logout.initiator_task_tag,
            sequence: self.numbered(on),
            time2wait_s: 0,
            time2retain_s: 20,
        };
        self.say(on, answer.encode(), &[]);
    }

    /// Answers a TASK REASSIGN on `on`; the task and ExpDataSN that it named.
    fn reassign(&mut self, on: ConnectionId, result: TaskManagementResult) -> (u32, u32) {
        let Some(Request::TaskManagement(request)) = self.hear(on) else { panic!("nothing is reassigned") };
        assert_eq!((request.function, request.immediate), (8, true));
        let answer = TaskManagementResponse {
            result,
            additional: [0; 3],
            initiator_task_tag: request.initiator_task_tag,
            sequence: self.numbered(on),
        };
        self.say(on, answer.encode(), &[]);
        (request.referenced_task_tag, request.exp_data_sn)
    }

    fn expect_lost(&mut self, id: ConnectionId) {
        let event = self.session.poll_event();
        assert!(matches!(event, Some(Event::ConnectionLost { id: lost, .. }) if lost == id), "{event:?}");
    }

    fn expect_completed(&mut self, task: TaskId) {
        loop {
            match self.session.poll_event() {
                Some(Event::DataIn(_)) => {}
                Some(Event::Completed(done)) if done.task == task => return assert_eq!(done.response, 0),
                other => panic!("expected the end of {task:?}, got {other:?}"),
            }
        }
    }

    fn closed(&mut self) -> CloseReason {
        match self.session.poll_event() {
            Some(Event::Closed(reason)) => reason,
            other => panic!("expected the end, got {other:?}"),
        }
    }
}

#[test]
fn commands_go_by_the_connection_with_the_least_to_move() {
    let mut stage = Stage::with_two(0);
    assert_eq!(stage.session.add_connection(stage.now, None), Err(SubmitError::QueueFull), "two were agreed on");
    let big = stage.read(1 << 20);
    let small = [stage.read(4096), stage.read(4096), stage.read(4096)];
    let heard: Vec<(u32, u32)> = [SECOND, SECOND, SECOND, FIRST]
        .map(|on| stage.hear_command(on))
        .map(|command| (command.initiator_task_tag, command.cmd_sn.0))
        .into();
    let expected = [(small[0].0, 1), (small[1].0, 2), (small[2].0, 3), (big.0, 4)];
    assert_eq!(heard, expected, "one CmdSN for the session, in the order of sending");
    stage.exp_cmd_sn = 5;
    stage.data_in(FIRST, big.0, 0, 0, 8192, None);
    stage.finish(SECOND, small[1].0);
    assert!(matches!(stage.session.poll_event(), Some(Event::DataIn(_))));
    stage.expect_completed(small[1]);
}

#[test]
fn the_window_is_the_sessions() {
    let mut stage = Stage::with_two(0);
    for _ in 0..20 {
        stage.read(4096);
    }
    let sent = (0..20).filter(|at| stage.hear(ConnectionId(at % 2)).is_some()).count();
    assert_eq!(sent, 16);
    stage.exp_cmd_sn = 17;
    let nop = strongroom_iscsi::pdu::NopIn {
        lun: LUN,
        initiator_task_tag: strongroom_iscsi::pdu::TAG_NONE,
        target_transfer_tag: strongroom_iscsi::pdu::TAG_NONE,
        sequence: stage.numbers(SECOND),
    };
    stage.say(SECOND, nop.encode(), &[]);
    assert_eq!(stage.hear_command(FIRST).cmd_sn, Serial(17), "opened by way of the other connection");
}

/// Connection allegiance: a target that answers elsewhere is either broken or not the one.
#[test]
fn an_answer_by_the_wrong_connection_ends_the_session() {
    for level in [0, 2] {
        let mut stage = Stage::with_two(level);
        let task = stage.read(4096);
        stage.hear_command(FIRST);
        stage.finish(SECOND, task.0);
        assert!(matches!(stage.closed(), CloseReason::Misbehaved(PeerMisbehaved::UnknownTask { .. })));
    }
}

#[test]
fn below_level_2_every_connection_is_needed() {
    for level in [0, 1] {
        let mut stage = Stage::with_two(level);
        stage.read(4096);
        stage.lose(SECOND);
        assert!(matches!(stage.closed(), CloseReason::ConnectionLost(_)));
    }
}

#[test]
fn a_login_into_another_session_is_given_up_alone() {
    let mut stage = Stage::new(2, 0);
    let task = stage.read(4096);
    for (tsih, keys) in [(TSIH + 1, "MaxRecvDataSegmentLength=8192\0"), (TSIH, "MaxRecvDataSegmentLength=512\0")] {
        assert_eq!(stage.session.add_connection(stage.now, None), Ok(SECOND));
        stage.log_in(SECOND, tsih, keys);
        stage.expect_lost(SECOND);
    }
    assert_eq!(stage.session.add_connection(stage.now, None), Ok(SECOND));
    stage.pass(20);
    stage.expect_lost(SECOND);
    // The command, and a ping.
    while stage.hear(FIRST).is_some() {}
    stage.exp_cmd_sn = 2;
    stage.finish(FIRST, task.0);
    stage.expect_completed(task);
}

#[test]
fn tasks_of_a_lost_connection_move_and_nothing_is_sent_twice() {
    let mut stage = Stage::with_two(2);
    let [mine, read, write, never_arrived] =
        [stage.read(8192), stage.read(16_384), stage.write(12_288), stage.write(512)];
    let first: Vec<u32> = [0, 0].map(|_| stage.hear_command(FIRST).initiator_task_tag).into();
    let second: Vec<u32> = [0, 0].map(|_| stage.hear_command(SECOND).initiator_task_tag).into();
    assert_eq!((&first[..], &second[..]), (&[mine.0, write.0][..], &[read.0, never_arrived.0][..]));
    // Of four commands the target has three; of the read's three pieces it sent one that arrived.
    stage.exp_cmd_sn = 4;
    stage.data_in(SECOND, read.0, 0, 0, 8192, None);
    stage.lose(SECOND);
    assert!(matches!(stage.session.poll_event(), Some(Event::DataIn(_))));
    stage.expect_lost(SECOND);
    assert_eq!(stage.hear(FIRST), None, "Time2Wait comes first");
    stage.pass(1);
    stage.remove(FIRST, SECOND, LogoutResult::Closed);
    assert_eq!(stage.reassign(FIRST, TaskManagementResult::Complete), (read.0, 1));
    let again = stage.hear_command(FIRST);
    assert_eq!((again.initiator_task_tag, again.cmd_sn), (never_arrived.0, Serial(4)), "it fills its gap");
    assert_eq!(stage.hear(FIRST), None, "and that was all");
    stage.exp_cmd_sn = 5;
    stage.data_in(FIRST, read.0, 1, 8192, 8192, Some(0));
    stage.expect_completed(read);
    for task in [mine, write, never_arrived] {
        stage.finish(FIRST, task.0);
        stage.expect_completed(task);
    }
    // The place is free again.
    assert_eq!(stage.session.add_connection(stage.now, None), Ok(SECOND));
}

#[test]
fn a_reassigned_write_is_asked_for_what_is_missing() {
    let mut stage = Stage::with_two(2);
    let (write, other) = (stage.write(8192), stage.read(512));
    assert_eq!(stage.hear_command(FIRST).initiator_task_tag, write.0);
    assert_eq!(stage.hear_command(SECOND).initiator_task_tag, other.0);
    stage.exp_cmd_sn = 3;
    let r2t = |stage: &mut Stage, on, r2t_sn, buffer_offset, desired_data_transfer_bytes| {
        let sequence = stage.numbers(on);
        let header = R2t {
            lun: LUN,
            initiator_task_tag: write.0,
            target_transfer_tag: 5 + r2t_sn,
            sequence,
            r2t_sn,
            buffer_offset,
            desired_data_transfer_bytes,
        };
        stage.say(on, header.encode(), &[]);
    };
    r2t(&mut stage, FIRST, 0, 0, 8192);
    stage.lose(FIRST);
    stage.expect_lost(FIRST);
    stage.pass(1);
    stage.remove(SECOND, FIRST, LogoutResult::Closed);
    assert_eq!(stage.reassign(SECOND, TaskManagementResult::Complete), (write.0, 0));
    assert_eq!(stage.hear(SECOND), None, "the old R2T is void");
    r2t(&mut stage, SECOND, 7, 4096, 4096);
    let Some(Request::DataOut(data)) = stage.hear(SECOND) else { panic!("the target asked for data") };
    assert_eq!((data.buffer_offset, data.target_transfer_tag, data.is_final), (4096, 12, true));
    stage.finish(SECOND, write.0);
    stage.expect_completed(write);
}

/// What the target does not know any more is told as an unknown outcome; a target that cannot do what it agreed to loses the
/// session, and everything is sent again in a new one.
#[test]
fn a_target_that_forgot_or_cannot() {
    let mut stage = Stage::with_two(2);
    let task = stage.read(4096);
    stage.hear(FIRST);
    stage.exp_cmd_sn = 2;
    let nop_opens_the_window = stage.read(512);
    stage.hear(SECOND);
    stage.exp_cmd_sn = 3;
    stage.finish(SECOND, nop_opens_the_window.0);
    stage.expect_completed(nop_opens_the_window);
    stage.lose(FIRST);
    stage.expect_lost(FIRST);
    stage.pass(1);
    stage.remove(SECOND, FIRST, LogoutResult::CidNotFound);
    stage.reassign(SECOND, TaskManagementResult::TaskDoesNotExist);
    assert!(
        matches!(stage.session.poll_event(), Some(Event::Completed(done)) if done.task == task && done.response == 1)
    );

    for result in [LogoutResult::RecoveryNotSupported, LogoutResult::CleanupFailed] {
        let mut stage = Stage::with_two(2);
        stage.read(4096);
        stage.hear(FIRST);
        stage.lose(FIRST);
        stage.expect_lost(FIRST);
        stage.pass(1);
        stage.remove(SECOND, FIRST, result);
        assert!(matches!(stage.closed(), CloseReason::ClosedHere(_)));
    }
}

#[test]
fn a_session_outlives_its_only_connection() {
    let mut stage = Stage::new(1, 2);
    let task = stage.read(8192);
    stage.hear_command(FIRST);
    stage.exp_cmd_sn = 2;
    stage.data_in(FIRST, task.0, 0, 0, 4096, None);
    assert!(matches!(stage.session.poll_event(), Some(Event::DataIn(_))));
    stage.lose(FIRST);
    stage.expect_lost(FIRST);
    assert!(stage.session.is_suspended());
    assert_eq!(stage.session.continues_at(), Some(stage.now + Duration::from_secs(1)));
    assert_eq!(stage.session.submit(Command::read(LUN, [0; 16], 512)), Err(SubmitError::NotLoggedIn));
    stage.pass(1);
    // The CID is the lost one's: that login is its logout.
    assert_eq!(stage.session.add_connection(stage.now, None), Ok(FIRST));
    stage.log_in(FIRST, TSIH, "MaxRecvDataSegmentLength=8192\0");
    assert!(matches!(stage.session.poll_event(), Some(Event::ConnectionJoined { id: FIRST, .. })));
    assert_eq!(stage.reassign(FIRST, TaskManagementResult::Complete), (task.0, 1));
    stage.data_in(FIRST, task.0, 1, 4096, 4096, Some(0));
    stage.expect_completed(task);
}

#[test]
fn a_session_does_not_wait_longer_than_the_target_keeps_it() {
    let mut stage = Stage::new(1, 2);
    stage.read(8192);
    stage.hear_command(FIRST);
    stage.lose(FIRST);
    stage.expect_lost(FIRST);
    stage.pass(20);
    assert!(!stage.session.is_closed());
    assert_eq!(stage.session.poll_timeout(), Some(stage.now + Duration::from_secs(1)));
    stage.pass(1);
    assert_eq!(stage.closed(), CloseReason::PeerSilent);

    let mut stage = Stage::new(1, 2);
    stage.lose(FIRST);
    stage.expect_lost(FIRST);
    stage.session.add_connection(stage.now, None).expect("it may be continued");
    let Some(Request::Login(login)) = stage.hear(FIRST) else { panic!("no login") };
    let refusal = LoginResponse {
        transit: false,
        continues: false,
        current_stage: 0,
        next_stage: 0,
        isid: login.isid,
        tsih: 0,
        initiator_task_tag: login.initiator_task_tag,
        sequence: Sequence::default(),
        status: LoginStatus::SESSION_DOES_NOT_EXIST,
    };
    stage.say(FIRST, refusal.encode(), &[]);
    stage.expect_lost(FIRST);
    assert!(matches!(stage.closed(), CloseReason::LoginRefused(LoginStatus::SESSION_DOES_NOT_EXIST)));
}

#[test]
fn a_target_says_which_connection_it_drops() {
    for level in [0, 2] {
        let mut stage = Stage::with_two(level);
        let message = AsyncMessage {
            event: AsyncEvent::ConnectionDropped,
            sequence: stage.numbered(FIRST),
            parameters: [SECOND.0, 3, 20],
        };
        stage.say(FIRST, message.encode(), &[]);
        match level {
            2 => stage.expect_lost(SECOND),
            _ => assert_eq!(stage.closed(), CloseReason::DroppedByTarget),
        }
        assert_eq!(stage.session.reconnect_after(), Duration::from_secs(3));
    }
    let mut stage = Stage::with_two(2);
    let message = AsyncMessage {
        event: AsyncEvent::AllConnectionsDropped,
        sequence: stage.numbered(SECOND),
        parameters: [0, 2, 0],
    };
    assert!(matches!(Answer::decode(&message.encode()), Ok(Answer::AsyncMessage(_))));
    stage.say(SECOND, message.encode(), &[]);
    assert_eq!(stage.closed(), CloseReason::DroppedByTarget);
}

/// The connection that takes over may be lost in its turn, in the middle of that.
#[test]
fn a_loss_while_a_loss_is_mended() {
    let mut stage = Stage::with_two(2);
    let (one, two) = (stage.read(4096), stage.read(512));
    stage.hear(FIRST);
    stage.hear(SECOND);
    stage.exp_cmd_sn = 3;
    stage.finish(SECOND, two.0);
    stage.expect_completed(two);
    stage.lose(FIRST);
    stage.expect_lost(FIRST);
    stage.pass(1);
    stage.remove(SECOND, FIRST, LogoutResult::Closed);
    let Some(Request::TaskManagement(_)) = stage.hear(SECOND) else { panic!("reassigned") };
    stage.lose(SECOND);
    stage.expect_lost(SECOND);
    stage.pass(1);
    assert_eq!(stage.session.add_connection(stage.now, None), Ok(SECOND));
    stage.log_in(SECOND, TSIH, "MaxRecvDataSegmentLength=8192\0");
    assert!(matches!(stage.session.poll_event(), Some(Event::ConnectionJoined { .. })));
    assert_eq!(stage.reassign(SECOND, TaskManagementResult::Complete), (one.0, 0));
    stage.data_in(SECOND, one.0, 0, 0, 4096, Some(0));
    stage.expect_completed(one);
}
