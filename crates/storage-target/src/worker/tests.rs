//! Proves what becomes of sessions and units when a worker ends before the others, and that a unit's worker answers for its sessions
//! wherever they are.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::Buffer;
use strongroom_iscsi::pdu::{Answer, LoginRequest};
use strongroom_iscsi::target::{ManagementFunction, ManagementId, TaskManagement};
use strongroom_iscsi::{Bhs, Digests, LoginStatus, Pdu, PlainFramer};

use super::cross_worker::{CrossWorkerMessage, CrossWorkerRequest};
use super::message::Message;
use super::order::{Order, SessionFilter, WorkerReport};
use crate::budget::MemoryClass;
use crate::config::{PlainRule, RuntimeKind};
use crate::names::VolumeName;
use crate::unit::SessionKey;
use crate::{Catalogue, Config, Target, TargetHandle, TargetOptions, VolumeSpec};

const WORKERS: usize = 3;
const ALICE: &str = "iqn.2026-11.org.example:alice";
/// Nothing in these tests takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a worker ends: by a panic, since there is no such time, or in order.
const ENDS: [Duration; 2] = [Duration::MAX, Duration::ZERO];

/// A target with a session of one volume on each worker.
struct Spread {
    target: TargetHandle,
    _dir: tempfile::TempDir,
    sessions: Vec<(TcpStream, usize)>,
    /// Where the unit is.
    unit: usize,
}

impl Spread {
    fn start() -> Spread {
        let dir = tempfile::tempdir().unwrap();
        Catalogue::open(dir.path()).unwrap().create(&VolumeSpec::plain("disk", 1 << 20)).unwrap();
        let mut config = Config::new(dir.path());
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        config.workers = Some(WORKERS);
        // What a ring accepts for a worker that has failed is seen by nobody.
        config.runtime = RuntimeKind::Epoll;
        config.limits.ping_after_s = 3600;
        let any = || vec!["*".to_owned()];
        config.plain.push(PlainRule { initiators: any(), volumes: any(), ..PlainRule::default() });
        let target = Target::start(TargetOptions::new(config)).unwrap();
        let streams = (0..WORKERS as u8).map(|which| log_in(&target, which).expect("admitted"));
        let streams: Vec<TcpStream> = streams.collect();
        let reports = eventually("a session on each worker", || {
            let reports = reports(&target);
            reports.iter().all(|report| report.sessions.len() == 1).then_some(reports)
        });
        let home = |stream: &TcpStream| {
            let address = stream.local_addr().unwrap();
            let mut sessions = reports.iter().flat_map(|report| &report.sessions);
            sessions.find(|session| session.address == address).expect("it was let in").worker
        };
        let sessions = streams.into_iter().map(|stream| (home(&stream), stream)).map(|(home, stream)| (stream, home));
        let volume = reports.iter().flat_map(|report| &report.volumes).next().expect("it is open");
        Spread { unit: volume.worker, sessions: sessions.collect(), _dir: dir, target }
    }

    fn tell(&self, worker: usize, message: Message) {
        self.target.services.tell(worker, message);
    }
}

/// A login in one request.
fn log_in(target: &TargetHandle, which: u8) -> Option<TcpStream> {
    let request = LoginRequest::one_step([0x80, 0, 0, 0, 0, which]);
    let text = format!("InitiatorName={ALICE}\0TargetName=iqn.2026-11.org.strongroom:disk\0SessionType=Normal\0");
    let pdu = Pdu::new(request.encode(), Bytes::new(), Buffer::copy_from(text.as_bytes()), false);
    let mut out = Vec::new();
    PlainFramer::encode(pdu, Digests::default(), &mut out);
    let mut stream = TcpStream::connect(target.local_addresses()[0]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    out.iter().for_each(|bytes| drop(stream.write_all(bytes)));
    let mut header = [0; 48];
    stream.read_exact(&mut header).ok()?;
    let Ok(Answer::Login(answer)) = Answer::decode(&Bhs(header)) else { panic!("{header:?}") };
    (answer.status == LoginStatus::SUCCESS).then_some(stream)
}

/// What the workers tell that are still there.
fn reports(target: &TargetHandle) -> Vec<WorkerReport> {
    let (reply, reports) = mpsc::channel();
    target.services.tell_all(|| Message::Order(Order::Report(reply.clone())));
    drop(reply);
    reports.iter().collect()
}

#[track_caller]
fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "did not happen: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[track_caller]
fn wait_for_end(stream: &mut TcpStream) {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => panic!("it stays"),
            Err(_) => return,
        }
    }
}

#[test]
fn sessions_go_with_their_worker_and_may_come_again_elsewhere() {
    for grace in ENDS {
        let mut spread = Spread::start();
        let unit = spread.unit;
        let at = spread.sessions.iter().position(|(_, home)| *home != unit).expect("they are spread");
        let (mut lost, ended) = spread.sessions.remove(at);
        spread.tell(ended, Message::Stop { grace });
        wait_for_end(&mut lost);
        // The same nexus, and others.
        let again: Vec<TcpStream> = (0..6u8)
            .map(|which| if which == 0 { at as u8 } else { 10 + which })
            .map(|which| eventually("a login elsewhere", || log_in(&spread.target, which)))
            .collect();
        let all = spread.sessions.len() + again.len();
        eventually("all are in", || {
            let reports = reports(&spread.target);
            let sessions = || reports.iter().flat_map(|report| &report.sessions);
            let users = reports.iter().flat_map(|report| &report.volumes).map(|volume| volume.sessions).sum::<usize>();
            (sessions().count() == all && sessions().all(|session| session.worker != ended) && users == all)
                .then_some(())
        });
        eventually("no place is lost", || (spread.target.stats().connections == all as u64).then_some(()));
    }
}

#[test]
fn a_login_is_refused_while_memory_is_short() {
    let spread = Spread::start();
    let budget = &spread.target.services.budget;
    let before = budget.report();
    assert_eq!(before.sessions_bytes, WORKERS as u64 * crate::budget::SESSION_BYTES);
    let rest = before.budget_bytes - before.reserve_bytes - before.used_bytes();
    let held = budget.charge(MemoryClass::Commands, rest);
    assert!(log_in(&spread.target, 200).is_none());
    drop(held);
    let another = log_in(&spread.target, 201);
    assert!(another.is_some());
    drop((another, spread.sessions));
    eventually("all is given back", || (spread.target.services.budget.report().sessions_bytes == 0).then_some(()));
}

#[test]
fn units_of_a_worker_that_ended_are_opened_by_another() {
    for grace in ENDS {
        let mut spread = Spread::start();
        spread.tell(spread.unit, Message::Stop { grace });
        spread.sessions.iter_mut().for_each(|(stream, _)| wait_for_end(stream));
        // Its lock may be held a moment longer.
        let _again = eventually("a login", || log_in(&spread.target, 0));
        let unit = eventually("a unit", || {
            reports(&spread.target).iter().flat_map(|report| &report.volumes).map(|volume| volume.worker).next()
        });
        assert_ne!(unit, spread.unit);
        assert_eq!(spread.target.stats().volumes_open, 1, "the one that ended has none open");
    }
}

/// While a session moves, its unit's worker alone knows of it.
#[test]
fn the_worker_of_a_unit_drops_sessions_of_others() {
    let mut spread = Spread::start();
    let (reply, dropped) = mpsc::channel();
    let which = SessionFilter {
        initiator: Some(ALICE.to_ascii_uppercase()),
        volume: Some("disk".to_owned()),
        ..SessionFilter::default()
    };
    spread.tell(spread.unit, Message::Order(Order::Drop { which, reply }));
    assert_eq!(
        dropped.recv().map(|keys| keys.len()),
        Ok(spread.sessions.len()),
        "its own, and those of its unit elsewhere"
    );
    spread.sessions.iter_mut().for_each(|(stream, _)| wait_for_end(stream));
}

#[test]
fn a_session_that_the_unit_does_not_have_manages_nothing() {
    let spread = Spread::start();
    let function = ManagementFunction::TargetColdReset;
    let message = CrossWorkerMessage::Request {
        session: SessionKey(u64::MAX),
        volume: Arc::new(VolumeName::new("disk").unwrap()),
        request: CrossWorkerRequest::Manage(TaskManagement { id: ManagementId(1), function, tasks: Vec::new() }),
    };
    let from = (spread.unit + 1) % WORKERS;
    spread.tell(spread.unit, Message::CrossWorker { from, messages: vec![message] });
    for _ in 0..20 {
        assert!(reports(&spread.target).iter().all(|report| report.sessions.len() == 1));
    }
}
