//! An initiator by hand, and the target's machine that it talks to.

use std::time::Instant;

use strongroom_iscsi::pdu::{
    Answer, Attribute, LoginRequest, LogoutRequest, LogoutResult, ScsiCommand, TaskFunction, TaskManagementRequest,
    TaskManagementResult,
};
use strongroom_iscsi::target::{self, Config, ConnectionId, Event, Login, LoginEvent, MayAdd, Session};
use strongroom_iscsi::{Bhs, CloseReason, LoginStatus, Lun, Offer, Pdu, Serial};

use crate::pair::{TARGET, epoch, pdu};

pub(crate) const LUN: Lun = Lun(0);
pub(crate) const TSIH: u16 = 9;

pub(crate) struct Host {
    pub(crate) now: Instant,
    pub(crate) session: Session,
    pub(crate) cmd_sn: u32,
}

pub(crate) fn request(cid: u16, tsih: u16, cmd_sn: u32) -> LoginRequest {
    LoginRequest {
        tsih,
        cid,
        cmd_sn: Serial(cmd_sn),
        exp_stat_sn: Serial(u32::from(cid) * 1000),
        ..LoginRequest::one_step([0x80, 0, 0, 0, 0, 1])
    }
}

pub(crate) fn config(level: u8) -> Config {
    let offer = Offer {
        connections_max: 3,
        error_recovery_level: level,
        time2retain_s: 10,
        first_burst_bytes: 1024,
        max_burst_bytes: 2048,
        ..Offer::default()
    };
    Config { offer, write_memory_bytes_max: 64 << 10, ..Config::default() }
}

pub(crate) fn begin(now: Instant, cid: u16, tsih: u16, cmd_sn: u32, keys: &str, config: Config) -> Login {
    let mut login = Login::new(now, config);
    let text = format!("InitiatorName=iqn.x:a\0TargetName={TARGET}\0MaxRecvDataSegmentLength=512\0{keys}");
    login.handle_pdu(&pdu(request(cid, tsih, cmd_sn).encode(), text.as_bytes()));
    match login.poll_event() {
        Some(LoginEvent::Requested(request)) => assert_eq!((request.tsih, request.cid), (tsih, cid)),
        other => panic!("{other:?}"),
    }
    login
}

impl Host {
    /// A session with `count` connections, CIDs from 0 on.
    pub(crate) fn new(level: u8, count: u16) -> (Host, Vec<ConnectionId>) {
        Host::with_keys(level, count, "InitialR2T=Yes")
    }

    pub(crate) fn with_keys(level: u8, count: u16, initial_r2t: &str) -> (Host, Vec<ConnectionId>) {
        let now = epoch();
        let keys = format!(
            "MaxConnections=3\0{initial_r2t}\0FirstBurstLength=1024\0ErrorRecoveryLevel={level}\0DefaultTime2Wait=1\0DefaultTime2Retain=10\0"
        );
        let mut login = begin(now, 0, 0, 100, &keys, config(level));
        login.accept(TSIH);
        assert!(matches!(login.poll_event(), Some(LoginEvent::Done)));
        let (session, first) = Session::new(now, login);
        let mut host = Host { now, session, cmd_sn: 100 };
        host.hear(first);
        let mut ids = vec![first];
        ids.extend((1..count).map(|cid| host.join(cid)));
        (host, ids)
    }

    pub(crate) fn join(&mut self, cid: u16) -> ConnectionId {
        assert_eq!(self.session.may_add(self.now, cid), MayAdd::Yes);
        self.enter(cid)
    }

    pub(crate) fn enter(&mut self, cid: u16) -> ConnectionId {
        let mut login = begin(self.now, cid, TSIH, self.cmd_sn, "", config(2));
        login.accept_into(&self.session);
        assert!(matches!(login.poll_event(), Some(LoginEvent::Done)));
        let id = self.session.add_connection(self.now, login);
        match self.hear(id) {
            Some((Answer::Login(answer), _)) => {
                assert_eq!((answer.status, answer.tsih), (LoginStatus::SUCCESS, TSIH));
                assert_eq!(answer.sequence.stat_sn, Serial(u32::from(cid) * 1000), "each connection counts for itself");
            }
            other => panic!("{other:?}"),
        }
        id
    }

    pub(crate) fn say(&mut self, id: ConnectionId, bhs: Bhs, data: &[u8]) {
        self.session.handle_pdu(self.now, id, pdu(bhs, data));
    }

    pub(crate) fn hear(&mut self, id: ConnectionId) -> Option<(Answer, Pdu)> {
        let pdu = self.session.poll_transmit(id)?;
        Some((Answer::decode(&pdu.bhs).expect("we send sound headers"), pdu))
    }

    pub(crate) fn command(&mut self, tag: u32, cmd_sn: u32, direction: target::Direction, expected: u32) -> Bhs {
        self.cmd_sn = self.cmd_sn.max(cmd_sn + 1);
        let command = ScsiCommand {
            immediate: false,
            is_final: true,
            read: direction == target::Direction::Read,
            write: direction == target::Direction::Write,
            attribute: Attribute::Simple,
            lun: LUN,
            initiator_task_tag: tag,
            expected_data_transfer_bytes: expected,
            cmd_sn: Serial(cmd_sn),
            exp_stat_sn: Serial(0),
            cdb: [0; 16],
        };
        command.encode()
    }

    /// Sends a command without data and takes it at the application's side.
    pub(crate) fn start(&mut self, id: ConnectionId, tag: u32) -> target::Command {
        let bhs = self.command(tag, self.cmd_sn, target::Direction::None, 0);
        self.say(id, bhs, &[]);
        self.taken()
    }

    pub(crate) fn taken(&mut self) -> target::Command {
        match self.session.poll_event() {
            Some(Event::Command(command)) => command,
            other => panic!("expected a command, got {other:?}"),
        }
    }

    pub(crate) fn manage(&mut self, id: ConnectionId, function: TaskFunction, referenced: u32, exp_data_sn: u32) {
        let request = TaskManagementRequest {
            immediate: true,
            function: function as u8,
            lun: LUN,
            initiator_task_tag: 0x7777,
            referenced_task_tag: referenced,
            cmd_sn: Serial(self.cmd_sn),
            exp_stat_sn: Serial(0),
            ref_cmd_sn: Serial(0),
            exp_data_sn,
        };
        self.say(id, request.encode(), &[]);
    }

    #[track_caller]
    pub(crate) fn managed(&mut self, id: ConnectionId) -> TaskManagementResult {
        match self.hear(id) {
            Some((Answer::TaskManagement(answer), _)) => answer.result,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn log_out(&mut self, id: ConnectionId, reason: u8, cid: u16) {
        let logout = LogoutRequest {
            immediate: true,
            reason,
            initiator_task_tag: 0x8888,
            cid,
            cmd_sn: Serial(self.cmd_sn),
            exp_stat_sn: Serial(0),
        };
        self.say(id, logout.encode(), &[]);
    }

    #[track_caller]
    pub(crate) fn logged_out(&mut self, id: ConnectionId) -> LogoutResult {
        match self.hear(id) {
            Some((Answer::Logout(answer), _)) => answer.result,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn lose(&mut self, id: ConnectionId) {
        self.session.handle_closed(self.now, id, CloseReason::ConnectionLost("cut".into()));
    }

    #[track_caller]
    pub(crate) fn connection_closed(&mut self) -> ConnectionId {
        match self.session.poll_event() {
            Some(Event::ConnectionClosed { connection, .. }) => connection,
            other => panic!("{other:?}"),
        }
    }
}
