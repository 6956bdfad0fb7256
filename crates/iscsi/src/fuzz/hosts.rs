//! A target with its obliging application and up to three connections of one hostile initiator, which may join one session.

use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::Buffer;
use strongroom_scsi::transport::target::Session as _;

use super::{Source, chap_policy};
use crate::pdu::fields::{self, Field};
use crate::pdu::{Bhs, Opcode};
use crate::target::{
    Config, ConnectionId, Direction, Event, Login, LoginEvent, ManagementFunction, MayAdd, Response, Session, TaskId,
    TaskManagementResult,
};
use crate::{CloseReason, Offer, Pdu, Serial};

const CONNECTIONS: usize = 3;
const OPCODES: [u8; 12] = [0x00, 0x01, 0x01, 0x02, 0x03, 0x04, 0x05, 0x05, 0x06, 0x10, 0x25, 0x1f];

enum End {
    Login(Box<Login>, u16),
    In(ConnectionId),
    Over,
}

struct Host {
    now: Instant,
    shape: u8,
    config: Config,
    ends: Vec<End>,
    session: Option<Session>,
    /// With the application.
    held: Vec<TaskId>,
}

pub(super) fn fuzz_target(now: Instant, bytes: &[u8]) {
    let mut source = Source(bytes);
    let shape = source.byte().unwrap_or(0);
    let mut host = Host::new(now, shape);
    if shape & 2 != 0 {
        host.log_in();
    }
    let mut at = 0;
    while let Some(pdu) = source.pdu(&OPCODES, host.config.in_channel) {
        host.now += Duration::from_millis(u64::from(pdu.bhs.0[2]) * 1000);
        if pdu.bhs.0[3] & 0x81 == 0x81 {
            at = (at + 1) % CONNECTIONS;
        }
        host.take(at, pdu);
        host.step();
    }
}

impl Host {
    fn new(now: Instant, shape: u8) -> Host {
        let config = Config {
            in_channel: shape & 1 != 0,
            queue_depth: 4,
            transfer_bytes_max: 8192,
            write_memory_bytes_max: 16 << 10,
            offer: Offer {
                max_burst_bytes: 1024,
                first_burst_bytes: 512,
                connections_max: 2,
                error_recovery_level: 2,
                time2retain_s: 4,
                ..Offer::default()
            },
            ..Config::default()
        };
        let ends = (0..CONNECTIONS).map(|_| End::Over).collect();
        Host { now, shape, config, ends, session: None, held: Vec::new() }
    }

    fn log_in(&mut self) {
        let mut bhs = Bhs::new(Opcode::LoginRequest);
        bhs.0[0] |= 0x40;
        bhs.0[1] = 0x87;
        fields::CMD_SN.put(&mut bhs, Serial(1));
        let mut text = b"InitiatorName=a\0TargetName=t\0InitialR2T=No\0MaxRecvDataSegmentLength=512\0MaxOutstandingR2T=2\0iSCSIProtocolLevel=2\0MaxConnections=2\0".to_vec();
        if self.shape & 0x20 != 0 {
            text.extend_from_slice(b"ErrorRecoveryLevel=2\0DefaultTime2Retain=9\0DefaultTime2Wait=1\0");
        }
        let mut login = Login::new(self.now, self.config.clone());
        login.handle_pdu(&Pdu::new(bhs, Bytes::new(), Buffer::copy_from(&text), false));
        assert!(matches!(login.poll_event(), Some(LoginEvent::Requested(_))));
        login.accept(1);
        assert!(matches!(login.poll_event(), Some(LoginEvent::Done)));
        let (session, id) = Session::new(self.now, login);
        self.session = Some(session);
        self.ends[0] = End::In(id);
    }

    fn take(&mut self, at: usize, pdu: Pdu) {
        if matches!(self.ends[at], End::Over) {
            self.ends[at] = End::Login(Box::new(Login::new(self.now, self.config.clone())), 0);
        }
        match (&mut self.ends[at], &mut self.session) {
            (End::Login(login, _), _) => {
                login.handle_pdu(&pdu);
                login.handle_timeout(self.now);
            }
            (End::In(id), Some(session)) if pdu.bhs.0[3] == 0x42 => {
                let lost = CloseReason::ConnectionLost(String::new());
                session.handle_closed(self.now, *id, lost);
                self.ends[at] = End::Over;
            }
            (End::In(id), Some(session)) => session.handle_pdu(self.now, *id, pdu),
            _ => {}
        }
    }

    fn step(&mut self) {
        for at in 0..CONNECTIONS {
            self.log_on(at);
        }
        let Some(session) = &mut self.session else { return };
        if session.poll_timeout().is_some_and(|at| at <= self.now) {
            session.handle_timeout(self.now);
        }
        let was_closed = session.is_closed();
        self.serve();
        let Some(session) = &mut self.session else { return };
        for end in &mut self.ends {
            let End::In(id) = *end else { continue };
            let mut polled = 0;
            while session.poll_transmit(id).is_some() {
                polled += 1;
                assert!(polled < 4096, "answers come to an end");
            }
        }
        assert!(session.connections_count() <= 2);
        if was_closed {
            assert!(session.poll_timeout().is_none() && session.unsent_bytes() == 0);
            self.session = None;
            self.held.clear();
            self.ends.iter_mut().filter(|end| matches!(end, End::In(_))).for_each(|end| *end = End::Over);
        }
    }

    fn log_on(&mut self, at: usize) {
        let End::Login(login, tsih) = &mut self.ends[at] else { return };
        while let Some(event) = login.poll_event() {
            match event {
                LoginEvent::Requested(request) => {
                    *tsih = request.tsih;
                    match (&mut self.session, request.tsih) {
                        (Some(session), 1) => match session.may_add(self.now, request.cid) {
                            MayAdd::Yes => login.accept_into(session),
                            MayAdd::Later | MayAdd::TooMany | MayAdd::Over => {
                                login.reject(crate::LoginStatus::TOO_MANY_CONNECTIONS);
                            }
                        },
                        (_, 0) if self.shape & 4 != 0 => login.require_chap(chap_policy(self.shape)),
                        (_, 0) if self.shape & 0x18 == 0x18 => login.redirect("[::1]:1", false),
                        (_, 0) => login.accept(1),
                        _ => login.reject(crate::LoginStatus::SESSION_DOES_NOT_EXIST),
                    }
                }
                LoginEvent::Authenticated { user } => {
                    assert!(user.is_none() && self.shape & 8 == 0, "a response cannot be guessed");
                    login.accept(1);
                }
                LoginEvent::Done => {
                    let tsih = *tsih;
                    let End::Login(login, _) = std::mem::replace(&mut self.ends[at], End::Over) else { return };
                    return self.enter(at, *login, tsih);
                }
                LoginEvent::Closed(_) => {
                    assert!(login.is_closed() && login.poll_event().is_none());
                    while login.poll_transmit().is_some() {}
                    self.ends[at] = End::Over;
                    return;
                }
            }
        }
        while login.poll_transmit().is_some() {}
    }

    fn enter(&mut self, at: usize, login: Login, tsih: u16) {
        let id = match &mut self.session {
            Some(session) if tsih != 0 => match session.connections_count() {
                0 | 1 if !session.is_closed() => session.add_connection(self.now, login),
                _ => return,
            },
            None if tsih == 0 => {
                let (session, id) = Session::new(self.now, login);
                self.session = Some(session);
                id
            }
            // Another session: of no interest here.
            _ => return,
        };
        self.ends[at] = End::In(id);
    }

    fn serve(&mut self) {
        let Some(session) = &mut self.session else { return };
        while let Some(event) = session.poll_event() {
            match event {
                Event::SendTargets(id, _) => session.send_targets(id, &[]),
                Event::Command(command) => {
                    assert!(command.expected_bytes <= 8192 || command.direction != Direction::Write);
                    let len: usize = command.data.iter().map(|segment| segment.data.len()).sum();
                    let is_write = command.direction == Direction::Write;
                    assert!(!is_write || len == command.expected_bytes as usize, "all of a write, and no more");
                    self.held.push(command.task);
                }
                Event::TaskManagement(request)
                    if matches!(request.function, ManagementFunction::QueryAsyncEvent(_)) =>
                {
                    session.answer_query(request.id, [6, 0x29, 0]);
                }
                Event::TaskManagement(request) => {
                    session.answer_task_management(request.id, TaskManagementResult::Complete);
                    assert!(request.tasks.iter().all(|task| !session.complete(*task, Response::good())));
                }
                Event::ConnectionClosed { connection, .. } => {
                    while session.poll_transmit(connection).is_some() {}
                    let is_it = |end: &&mut End| matches!(end, End::In(id) if *id == connection);
                    self.ends.iter_mut().filter(is_it).for_each(|end| *end = End::Over);
                }
                Event::Closed(_) => assert!(session.is_closed() && session.poll_event().is_none()),
            }
        }
        if self.held.len() > 2 {
            let data = Buffer::from(Bytes::from(vec![1; 700]));
            session.complete(self.held.swap_remove(0), Response::good_data(data));
        }
    }
}
